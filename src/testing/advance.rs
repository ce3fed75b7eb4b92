//! Lets time pass under a [`Stepper`], until an instant or until something has happened.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::finished::Finished;
use crate::model::run::Run;
use crate::testing::Stepper;

impl Stepper {
    /// Runs what falls due until `end` with the registered handlers, on this thread, and lets time pass. Returns the finished
    /// attempts, in order.
    ///
    /// Time in which the scheduler would only poll and write heartbeats is skipped: a quiet year costs two transactions for each
    /// run. While a run is running, here or under another owner, each poll and each heartbeat is a turn, so that leases are
    /// extended.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let mut stepper = Stepper::builder(&file, "2027-01-01T00:00:00Z".parse()?)
    ///     .handler("post", |_: &Context| Ok::<_, Error>(()))
    ///     .start()?;
    /// stepper.client().add(NewTask::cron("weekly", "0 9 * * MON").handler("post"))?;
    /// assert_eq!(stepper.run_until("2028-01-01T00:00:00Z".parse()?)?.len(), 52);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stepper::step`].
    pub fn run_until(&mut self, end: Timestamp) -> Result<Vec<Finished>> {
        Ok(self.run_until_met(end, |_, _| Ok(false))?.0)
    }

    /// As [`Stepper::run_until`], for this long.
    ///
    /// # Errors
    /// As [`Stepper::step`].
    pub fn run_for(&mut self, time: Duration) -> Result<Vec<Finished>> {
        self.run_until(self.now().wall.plus(time))
    }

    /// Lets time pass until this run is over, retries included, and returns it. Other runs that fall due run as well.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::testing::{Stepper, fail_first};
    /// use duly::{Context, Error, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let work = fail_first(2, |_: &Context| Ok::<_, Error>("posted"));
    /// let mut stepper = Stepper::builder(&file, "2027-03-14T12:00:00Z".parse()?).handler("post", work).start()?;
    /// stepper.client().add(NewTask::manual("post").handler("post"))?;
    /// let run = stepper.client().trigger("post")?;
    /// let run = stepper.run_until_over(run, Duration::from_secs(3600))?;
    /// assert_eq!((run.status, run.attempt), (RunStatus::Succeeded, 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] if it is not over within this time; [`Error::UnknownRun`] if there is no such run, or no longer.
    /// Otherwise as [`Stepper::step`].
    pub fn run_until_over(&mut self, run: i64, within: Duration) -> Result<Run> {
        let look = |stepper: &Stepper| stepper.client.run(run)?.ok_or(Error::UnknownRun { id: run });
        let end = self.now().wall.plus(within);
        let (_, is_over) = self.run_until_met(end, |stepper, _| Ok(look(stepper)?.status.is_final()))?;
        let found = look(self)?;
        if is_over {
            return Ok(found);
        }
        let Run { status, attempt, run_at, .. } = found;
        Err(too_late(format!("end run {run}"), within, format!("{status}, attempt {attempt}, due at {run_at}")))
    }

    /// Lets time pass until this number of runs of a task have ended under this stepper, since the call, and returns them in the
    /// order in which they ended. A skipped or missed occurrence is no run.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::testing::Stepper;
    /// use duly::{Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let mut stepper = Stepper::builder(&file, "2027-03-14T12:00:00Z".parse()?).accept("post").start()?;
    /// stepper.client().add(NewTask::cron("hourly", "0 * * * *").handler("post"))?;
    /// let runs = stepper.run_until_count("hourly", 2, Duration::from_secs(7200))?;
    /// assert_eq!(runs[1].scheduled_for, "2027-03-14T14:00:00Z".parse()?);
    /// // Five more do not end within an hour.
    /// let error = stepper.run_until_count("hourly", 5, Duration::from_secs(3600)).unwrap_err();
    /// assert!(error.to_string().ends_with("expected that within 1h, found 1 of them"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] if there are fewer within this time. Otherwise as [`Stepper::step`].
    pub fn run_until_count(&mut self, task: &str, count: usize, within: Duration) -> Result<Vec<Run>> {
        let (mut ended, mut seen) = (Vec::new(), 0);
        let mut over = BTreeSet::new();
        let end = self.now().wall.plus(within);
        let (_, is_met) = self.run_until_met(end, |stepper, done| {
            for finished in done.get(seen..).unwrap_or_default().iter().filter(|one| one.claim.task == task) {
                let run = stepper.client.run(finished.claim.run_id)?.filter(|run| run.status.is_final());
                ended.extend(run.filter(|run| over.insert(run.id)));
            }
            seen = done.len();
            Ok(ended.len() >= count)
        })?;
        if is_met {
            return Ok(ended);
        }
        Err(too_late(format!("end {count} runs of {task:?}"), within, format!("{} of them", ended.len())))
    }

    /// Lets time pass until nothing is left to do: nothing is running, due or waiting for a retry. A task whose next occurrence
    /// is in the future does not count. Returns the finished attempts, in order.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::testing::{Stepper, fail_first};
    /// use duly::{Context, Error, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let work = fail_first(1, |_: &Context| Ok::<_, Error>(()));
    /// let mut stepper = Stepper::builder(&file, noon).handler("post", work).start()?;
    /// stepper.client().add(NewTask::once("now", noon).handler("post"))?;
    /// stepper.client().add(NewTask::cron("tomorrow", "0 0 * * *").handler("post"))?;
    /// assert_eq!(stepper.run_until_idle(Duration::from_secs(600))?.len(), 2, "one attempt that failed, and one retry");
    /// assert!(stepper.client().history("tomorrow", 1)?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] if work is left after this time. Otherwise as [`Stepper::step`].
    pub fn run_until_idle(&mut self, within: Duration) -> Result<Vec<Finished>> {
        let (names, end) = (self.handlers.names(), self.now().wall.plus(within));
        let (done, is_idle) = self.run_until_met(end, |stepper, _| stepper.client.is_idle(&names))?;
        if is_idle {
            return Ok(done);
        }
        let found = format!("{} attempts that ended, and work that is left", done.len());
        Err(too_late("become idle".to_owned(), within, found))
    }

    /// Runs what falls due until `end`, or until the condition holds after a turn that left no outcome to record. It is given the
    /// attempts that have finished so far. Returns them, and whether it holds.
    fn run_until_met(
        &mut self,
        end: Timestamp,
        mut is_met: impl FnMut(&Stepper, &[Finished]) -> Result<bool>,
    ) -> Result<(Vec<Finished>, bool)> {
        let (mut done, mut is_repeated) = (Vec::new(), false);
        loop {
            let before = self.transactions();
            let claims = self.step()?;
            for claim in &claims {
                self.carry_out(claim);
            }
            done.extend(self.finished.iter().cloned());
            if !self.finished.is_empty() {
                continue;
            }
            if is_met(self, &done)? {
                return Ok((done, true));
            }
            // What an observer of this turn's events has added is seen by another turn only.
            is_repeated = !is_repeated && self.transactions() > before;
            if is_repeated {
                continue;
            }
            let now = self.now();
            if now.wall >= end {
                return Ok((done, false));
            }
            let next = self.quiet_until.unwrap_or(self.wake_at).saturating_sub(now.monotonic);
            self.clock.advance(next.max(Duration::from_millis(1)).min(end.since(now.wall)));
        }
    }
}

fn too_late(request: String, within: Duration, found: String) -> Error {
    let within = humantime::format_duration(within);
    Error::Refused { request, reason: format!("expected that within {within}, found {found}") }
}
