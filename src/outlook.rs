//! Which occurrences lie ahead: of a task that is there, and of one that may be added. Nothing is opened or written.

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::new_task::NewTask;
use crate::resolve::{self, Next, Plan};
use crate::schedule::{Schedule, Schedules};
use crate::store::tasks;
use crate::task::Task;

impl NewTask {
    /// What would follow if it were added at `now`: its first occurrences, at most `limit`. Of a delay only the first is
    /// known. A database is not needed.
    ///
    /// ```
    /// use duly::NewTask;
    /// let leap = NewTask::cron("leap-day", "0 12 29 2 *").time_zone("Europe/Rome").handler("work");
    /// let ahead = leap.occurrences("2027-03-14T12:00:00Z".parse()?, 2)?;
    /// assert_eq!(ahead, ["2028-02-29T11:00:00Z".parse()?, "2032-02-29T11:00:00Z".parse()?]);
    /// # Ok::<(), duly::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::add`](crate::Client::add), but for [`Error::TaskDiffers`].
    pub fn occurrences(&self, now: Timestamp, limit: usize) -> Result<Vec<Timestamp>> {
        let task = self.clone().into_definition(now)?;
        let schedule = task.check(now, &mut Schedules::default())?;
        let plan = tasks::plan(&task, schedule, now, None, now);
        match resolve::first(&plan, false) {
            Next::At(first) => Ok(from(&plan, first, limit)),
            Next::AfterTheRun => Ok(Vec::new()),
            Next::Never => Err(Error::never(task.schedule_value)),
        }
    }
}

impl Task {
    /// The occurrences that its schedule names after an instant, at most `limit`, whatever its status. Of a delay only the
    /// next is known, and while a run of it is unfinished not even that.
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`] or [`Error::InvalidTask`] if the task was written by someone else, and cannot be used.
    pub fn occurrences(&self, after: Timestamp, limit: usize) -> Result<Vec<Timestamp>> {
        let schedule = self.definition.check(self.created_at, &mut Schedules::default())?;
        if let Schedule::Delay(_) = schedule {
            return Ok(self.next_run.into_iter().filter(|next| *next > after).take(limit).collect());
        }
        let plan = tasks::plan(&self.definition, schedule, after, None, after);
        Ok(resolve::occurrence_after(&plan, after).map_or_else(Vec::new, |first| from(&plan, first, limit)))
    }
}

/// The occurrences from the first on.
fn from(plan: &Plan, first: Timestamp, limit: usize) -> Vec<Timestamp> {
    let next = |at: &Timestamp| match plan.schedule {
        Schedule::Delay(_) => None,
        _ => resolve::occurrence_after(plan, *at),
    };
    std::iter::successors(Some(first), next).take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn what_would_follow_is_told_before_anything_is_added() {
        let now = at("2027-03-14T12:00:00Z");
        let ahead = |task: NewTask| task.handler("work").occurrences(now, 3);
        let hour = Duration::from_secs(3600);
        let bounded = NewTask::interval("t", hour).starts_at(at("2027-03-14T18:30:00Z"));
        let two = [at("2027-03-14T18:30:00Z"), at("2027-03-14T19:30:00Z")];
        assert_eq!(ahead(bounded.ends_at(at("2027-03-14T20:00:00Z"))).unwrap(), two);
        assert_eq!(ahead(NewTask::delay("t", hour)).unwrap(), [at("2027-03-14T13:00:00Z")]);
        // It is due at once.
        let past = at("2027-03-14T11:00:00Z");
        assert_eq!(ahead(NewTask::once("t", past)).unwrap(), [past]);
        let over = NewTask::cron("t", "@daily").ends_at(now);
        let says = "invalid schedule \"@daily\": it names no occurrence from now on, within starts_at and ends_at";
        assert_eq!(ahead(over).unwrap_err().to_string(), says);
        assert!(ahead(NewTask::cron("no spaces, please", "@daily")).unwrap_err().to_string().contains("invalid name"));
    }
}
