//! `Client::cancel`: what waits is cancelled, what runs is asked to stop.

use rusqlite::Transaction;

use crate::client::Client;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::run::RunStatus;
use crate::store::opening::Written;
use crate::store::{Fault, history, runs, settling, tasks};

/// What became of a request to cancel a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancel {
    /// It waited, and is cancelled.
    Done,
    /// It is running: its handler is asked to stop, and if it then fails the run is cancelled.
    Asked,
}

impl Client {
    /// Cancels a run, or asks it to stop if it is running.
    ///
    /// # Errors
    /// [`Error::UnknownRun`]; [`Error::Refused`] if it is over.
    pub fn cancel(&self, run: i64) -> Result<Cancel> {
        let now = self.now();
        self.write("cancel a run", |tx, _| {
            let found = history::run(tx, run)?.ok_or(Error::UnknownRun { id: run })?;
            let request = format!("cancel run {run}");
            if found.status.is_final() {
                return Err(Error::Refused { request, reason: format!("it is over: {}", found.status) }.into());
            }
            cancel(tx, run, found.status, now)
        })
    }

    /// Cancels all unfinished runs of a task, and answers how many there were.
    ///
    /// # Errors
    /// [`Error::UnknownTask`].
    pub fn cancel_all(&self, name: &str) -> Result<usize> {
        let now = self.now();
        self.write("cancel runs", |tx, _| {
            let task = tasks::expect(tx, name)?;
            let unfinished = history::unfinished(tx, task.id)?;
            for (run, status) in &unfinished {
                cancel(tx, *run, *status, now)?;
            }
            Ok(unfinished.len())
        })
    }
}

fn cancel(tx: &Transaction<'_>, run: i64, status: RunStatus, now: Timestamp) -> Result<Cancel, Fault> {
    if status == RunStatus::Running {
        runs::ask_to_stop(tx, run)?;
        return Ok(Cancel::Asked);
    }
    settling::cancel_waiting(tx, run, now, &mut Written::default())?;
    Ok(Cancel::Done)
}
