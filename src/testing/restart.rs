//! Restarts of a [`Stepper`], after a crash or an outage.

use std::time::Duration;

use crate::error::Result;
use crate::testing::Stepper;

impl Stepper {
    /// Is killed as by [`Stepper::crash`], and starts again: another owner with the same clock, client, handlers, settings and
    /// observers, whose first step recovers what was running.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{AttemptOutcome, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("post").start()?;
    /// stepper.client().add(NewTask::once("post", noon).handler("post"))?;
    /// let run = stepper.step()?[0].run_id;
    /// let mut stepper = stepper.restart()?;
    /// // The lost attempt counts, and the run is retried.
    /// assert_eq!(stepper.run_until_over(run, std::time::Duration::from_secs(3600))?.attempt, 2);
    /// assert_eq!(stepper.client().attempts(run)?[0].outcome, AttemptOutcome::Lost);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`StepperBuilder::start`](crate::testing::StepperBuilder::start).
    pub fn restart(self) -> Result<Stepper> {
        self.outage(Duration::ZERO)
    }

    /// As [`Stepper::restart`], with this time between: no scheduler runs, as on a machine without power.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::testing::Stepper;
    /// use duly::{NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let mut stepper = Stepper::builder(&file, "2027-03-14T12:00:00Z".parse()?).accept("post").start()?;
    /// stepper.client().add(NewTask::cron("hourly", "0 * * * *").handler("post"))?;
    /// stepper.run_for(Duration::from_secs(3600))?;
    /// let mut stepper = stepper.outage(Duration::from_secs(5 * 3600))?;
    /// stepper.run_until_idle(Duration::from_secs(60))?;
    /// // 13:00 ran; 14:00 to 17:00 are missed, in one row; 18:00, the newest, runs late.
    /// let runs = stepper.client().history("hourly", 10)?;
    /// assert_eq!(runs.iter().filter(|run| run.status == RunStatus::Succeeded).count(), 2);
    /// assert!(runs.iter().any(|run| run.status == RunStatus::Missed && run.occurrences == 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`StepperBuilder::start`](crate::testing::StepperBuilder::start).
    pub fn outage(self, length: Duration) -> Result<Stepper> {
        let again = self.again.copy().client(&self.client);
        let crashed = self.crash();
        again.clock.advance(length);
        again.after(crashed).start()
    }
}
