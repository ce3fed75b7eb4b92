//! `Client::cancel`: what waits is cancelled, what runs is asked to stop. `Client::declare_gone`: the command of a dead
//! scheduler is gone, because a user says so.

use std::path::Path;

use rusqlite::Transaction;

use crate::client::Client;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::owner::{Standing, standing};
use crate::run::{Run, RunStatus};
use crate::store::opening::Written;
use crate::store::runs::{Fence, Wrote};
use crate::store::{Fault, history, owners, runs, settling, tasks};

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
    /// [`Error::UnknownRun`]; [`Error::Refused`] if it is not running, or its scheduler is alive.
    pub fn declare_gone(&self, run: i64) -> Result<()> {
        let (now, (path, ..)) = (self.now(), self.sizes());
        self.write("declare a command gone", |tx, _| {
            let found = history::run(tx, run)?.ok_or(Error::UnknownRun { id: run })?;
            if found.status == RunStatus::Running && declare_gone(tx, &path, &found, now)? {
                return Ok(());
            }
            let reason = match found.status {
                RunStatus::Running => format!("its scheduler is alive: duly cancel {run} asks the command to stop"),
                status => format!("it is not running: {status}"),
            };
            Err(Error::Refused { request: format!("declare the command of run {run} gone"), reason }.into())
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
                    && declare_gone(tx, &path, &found, now)?
                {
                    declared += 1;
                }
            }
            Ok(declared)
        })
    }
}

/// `false`: its scheduler is alive.
fn declare_gone(tx: &Transaction<'_>, database: &Path, run: &Run, now: Timestamp) -> Result<bool, Fault> {
    let owner = run.locked_by.as_deref().unwrap_or_default();
    if let Standing::Alive = standing(database, owner) {
        return Ok(false);
    }
    let (task, recorded) = runs::process(tx, run.id)?;
    let wrote = runs::declare_gone(tx, &Fence { run: run.id, owner, attempt: run.attempt })?;
    owners::record(tx, now, "declared_gone", Some(task), Some(run.id), recorded.as_deref())?;
    Ok(wrote == Wrote::Done)
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
    settling::cancel_waiting(tx, run, now, written)?;
    Ok(Cancel::Done)
}
