//! `Client::retry`: a run that came to nothing is tried once more, by a run of its own.

use crate::client::Client;
use crate::error::{Error, Result};
use crate::model::run::{Origin, RunStatus};
use crate::model::task::TaskStatus;
use crate::schedule::ScheduleKind;
use crate::store::sqlite::manual::{self, Request};
use crate::store::sqlite::{history, tasks};

impl Client {
    /// Opens a new run for one that is dead or cancelled, and answers with its id. The new run has the payload of the old,
    /// and its [idempotency key](crate::Context::idempotency_key): to the outside world it is the same piece of work. Like
    /// one that was triggered it consumes no occurrence, and has all attempts before it.
    ///
    /// A skipped or missed row may stand for many occurrences, and no handler ever had one of them:
    /// [`Client::trigger`] is for those.
    ///
    /// # Errors
    /// [`Error::UnknownRun`]; [`Error::Refused`] if the run is not over, succeeded, was skipped or missed, or is being
    /// retried already, and if its task is invalid.
    pub fn retry(&self, run: i64) -> Result<i64> {
        let now = self.now();
        self.write("retry a run", |tx, schedules| {
            let old = history::run(tx, run)?.ok_or(Error::UnknownRun { id: run })?;
            let refused = |reason: String| Error::Refused { request: format!("retry run {run}"), reason };
            match old.status {
                RunStatus::Dead | RunStatus::Cancelled => {}
                RunStatus::Succeeded => return Err(refused("it succeeded".to_owned()).into()),
                status if status.is_final() => {
                    let reason = format!("it was {status}, and never begun: trigger task {:?} instead", old.task);
                    return Err(refused(reason).into());
                }
                status => return Err(refused(format!("it is not over: {status}")).into()),
            }
            let mut task = tasks::expect(tx, &old.task)?;
            if let Some(retry) = manual::unfinished_retry(tx, task.id, run)? {
                return Err(refused(format!("run {retry} retries it already")).into());
            }
            if task.definition.schedule_type == ScheduleKind::Delay {
                // Its schedule is about to wait for this run: what is due is resolved before.
                task = tasks::resolve_before_a_change(tx, schedules, task, now)?;
            }
            if task.status == TaskStatus::Invalid {
                let reason = task.invalid_reason.unwrap_or_default();
                return Err(refused(format!("its task {:?} is invalid: {reason}", old.task)).into());
            }
            let payload = old.payload.as_deref();
            let asked = Request { origin: Origin::Manual, payload, retry_of: Some(run), key: None };
            manual::open(tx, &task, asked, now)
        })
    }
}
