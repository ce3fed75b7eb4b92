//! `Client::cancel`: what waits is cancelled, what runs is asked to stop. `Client::declare_gone`: the command of a dead
//! scheduler is gone, because a user says so.

use std::path::Path;

use rusqlite::Transaction;

use crate::client::Client;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::host::owner_lock::{Standing, standing};
use crate::model::run::{Run, RunStatus};
use crate::store::fault::Fault;
use crate::store::sqlite::open::Written;
use crate::store::sqlite::runs::{self, Fence};
use crate::store::sqlite::{history, owners, settle, tasks};

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
    /// The observers of the scheduler that this client belongs to receive [`Event::Cancelled`](crate::Event::Cancelled) for a run
    /// that waited, on this thread, before this method returns.
    ///
    /// # Errors
    /// [`Error::UnknownRun`]; [`Error::Refused`] if it is over.
    pub fn cancel(&self, run: i64) -> Result<Cancel> {
        let now = self.now();
        self.write_observed("cancel a run", |tx, written| {
            let found = history::run(tx, run)?.ok_or(Error::UnknownRun { id: run })?;
            let request = format!("cancel run {run}");
            if found.status.is_final() {
                return Err(Error::Refused { request, reason: format!("it is over: {}", found.status) }.into());
            }
            cancel(tx, run, found.status, now, written)
        })
    }

    /// Cancels all unfinished runs of a task, and answers how many there were. Observers are called as by [`Client::cancel`].
    ///
    /// # Errors
    /// [`Error::UnknownTask`].
    pub fn cancel_all(&self, name: &str) -> Result<usize> {
        let now = self.now();
        self.write_observed("cancel runs", |tx, written| {
            let task = tasks::expect(tx, name)?;
            let unfinished = history::unfinished(tx, task.id)?;
            for (run, status) in &unfinished {
                cancel(tx, *run, *status, now, written)?;
            }
            Ok(unfinished.len())
        })
    }
}

impl Client {
    /// Declares that the command of a running run is gone whose scheduler is dead, where duly cannot know it: the user has
    /// looked. Nothing is signalled. The run ends as cancelled at the next turn of any scheduler.
    ///
    /// If the command is alive after all, it works on beside whatever the task does next.
    ///
    /// # Errors
    /// [`Error::UnknownRun`]; [`Error::Refused`] if it is not running, or its scheduler is alive, or was within its lease and
    /// nothing shows that it has died since.
    pub fn declare_gone(&self, run: i64) -> Result<()> {
        let (now, (path, ..)) = (self.now(), self.sizes());
        self.write("declare a command gone", |tx, _| {
            let found = history::run(tx, run)?.ok_or(Error::UnknownRun { id: run })?;
            let reason = match found.status {
                RunStatus::Running => declare_gone(tx, &path, &found, now)?,
                status => Some(format!("it is not running: {status}")),
            };
            let request = format!("declare the command of run {run} gone");
            reason.map_or(Ok(()), |reason| Err(Error::Refused { request, reason }.into()))
        })
    }

    /// As [`Client::declare_gone`], for all running runs of a task whose scheduler is not alive. Returns how many there were.
    ///
    /// # Errors
    /// [`Error::UnknownTask`].
    pub fn declare_all_gone(&self, name: &str) -> Result<usize> {
        let (now, (path, ..)) = (self.now(), self.sizes());
        self.write("declare commands gone", |tx, _| {
            let task = tasks::expect(tx, name)?;
            let mut declared = 0;
            for (run, status) in history::unfinished(tx, task.id)? {
                if status == RunStatus::Running
                    && let Some(found) = history::run(tx, run)?
                    && declare_gone(tx, &path, &found, now)?.is_none()
                {
                    declared += 1;
                }
            }
            Ok(declared)
        })
    }
}

/// Returns why that is refused, if it is. An owner without a lock file of its own may have lost it a moment ago.
fn declare_gone(tx: &Transaction<'_>, database: &Path, run: &Run, now: Timestamp) -> Result<Option<String>, Fault> {
    let owner = run.locked_by.as_deref().unwrap_or_default();
    match standing(database, owner) {
        Standing::Alive { .. } => {
            return Ok(Some(format!("its scheduler is alive: duly cancel {} asks the command to stop", run.id)));
        }
        Standing::Missing | Standing::Unknown(_) if owners::is_believed(tx, owner, now)? => {
            let reason = "its scheduler has no lock file that can be read, and its lease is not over: wait for that";
            return Ok(Some(reason.to_owned()));
        }
        Standing::Missing | Standing::Unknown(_) | Standing::Dead(_) | Standing::Inherited(_) => {}
    }
    let (task, recorded) = runs::process(tx, run.id)?;
    // The row was read in this transaction: nothing else can have changed it.
    runs::declare_gone(tx, &Fence { run: run.id, owner, attempt: run.attempt })?;
    owners::record(tx, now, "declared_gone", Some(task), Some(run.id), recorded.as_deref())?;
    Ok(None)
}

fn cancel(
    tx: &Transaction<'_>,
    run: i64,
    status: RunStatus,
    now: Timestamp,
    written: &mut Written,
) -> Result<Cancel, Fault> {
    if status == RunStatus::Running {
        runs::ask_to_stop(tx, run)?;
        return Ok(Cancel::Asked);
    }
    settle::cancel_waiting(tx, run, now, written)?;
    Ok(Cancel::Done)
}
