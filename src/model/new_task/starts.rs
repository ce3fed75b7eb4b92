//! How often a new task may start, and what happens when it may not.

use std::time::Duration;

use crate::model::new_task::NewTask;
use crate::model::start_rate::StartRate;
use crate::model::task::WhenLimited;

impl NewTask {
    /// Sets how many starts the task may have in any time of the length `per`: at most `starts`, over all schedulers. Retries, and runs that
    /// are requested, count as starts and wait for one. For every kind of schedule.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::testing::Stepper;
    /// use duly::NewTask;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("ask").start()?;
    /// let day = Duration::from_secs(86400);
    /// stepper.client().add(NewTask::manual("ask").handler("ask").overlap(duly::Overlap::Allow).max_starts(2, day))?;
    /// for _ in 0..3 {
    ///     stepper.client().trigger("ask")?;
    /// }
    /// assert_eq!(stepper.step()?.len(), 2, "the third waits for a day");
    /// stepper.clock().advance(day);
    /// assert_eq!(stepper.step()?.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn max_starts(mut self, starts: u32, per: Duration) -> Self {
        self.rest.max_starts = Some(StartRate { starts, per }.to_string());
        self
    }

    /// Sets what happens to an occurrence that falls due while no start is left by a limit. Default [`WhenLimited::Wait`].
    #[must_use]
    pub fn when_limited(mut self, when: WhenLimited) -> Self {
        self.rest.when_limited = when;
        self
    }
}
