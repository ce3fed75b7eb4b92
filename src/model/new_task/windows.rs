//! The times and dates at which the occurrences of a new task are run.

use crate::model::new_task::NewTask;

impl NewTask {
    /// Sets the local times of the day within which an occurrence is run, each from the first time until before the second. Occurrences at
    /// other times are skipped, and recorded with the reason. Only for cron, calendar and interval schedules.
    ///
    /// It decides about occurrences: a run that waits, or is retried, may start later. An occurrence that is resolved late, at a time that is
    /// excluded, is missed.
    ///
    /// ```
    /// use duly::NewTask;
    /// let now = "2027-03-14T12:00:00Z".parse()?;
    /// let hourly = NewTask::cron("digest", "0 * * * *").handler("work").only_between("09:00-12:00, 13:00-17:30");
    /// let ahead = hourly.upcoming(now, 2)?;
    /// assert_eq!(ahead[0].skipped, None);
    /// // 17:30 is not within, 17:00 is.
    /// let skipped = hourly.upcoming("2027-03-14T17:00:00Z".parse()?, 1)?.remove(0).skipped;
    /// assert_eq!(skipped.as_deref(), Some("outside of 09:00-12:00, 13:00-17:30 (only_between)"));
    /// # Ok::<(), duly::Error>(())
    /// ```
    #[must_use]
    pub fn only_between(mut self, times: impl Into<String>) -> Self {
        self.rest.only_between = Some(times.into());
        self
    }

    /// Sets the local dates on which an occurrence is run, as [`NewTask::only_between`] sets the times: `2027-12-20..2027-12-31, 2028-01-07`.
    #[must_use]
    pub fn only_on(mut self, dates: impl Into<String>) -> Self {
        self.rest.only_on = Some(dates.into());
        self
    }

    /// Sets the local dates on which an occurrence is skipped: `2027-12-24..2027-12-26`, or with the names of calendars
    /// `holidays: 2027-12-25, 2028-01-01; strike: 2027-11-02`.
    ///
    /// ```
    /// use duly::NewTask;
    /// let daily = NewTask::cron("digest", "0 9 * * *").handler("work").except_on("holidays: 2027-12-24..2027-12-26");
    /// let ahead = daily.upcoming("2027-12-25T00:00:00Z".parse()?, 3)?;
    /// assert_eq!(ahead[0].skipped.as_deref(), Some("on holidays: 2027-12-24..2027-12-26 (except_on)"));
    /// assert_eq!(ahead[2].skipped, None);
    /// # Ok::<(), duly::Error>(())
    /// ```
    #[must_use]
    pub fn except_on(mut self, dates: impl Into<String>) -> Self {
        self.rest.except_on = Some(dates.into());
        self
    }
}
