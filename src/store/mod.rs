//! Records what has happened. The store takes no decision: it applies the pure rules inside a transaction. It reads no clock; `now` is
//! an argument.

pub(crate) mod fault;
pub(crate) mod sqlite;
pub(crate) mod turn_io;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::health::{Health, Limits};
use crate::model::progress_meter::Progress;
use crate::model::report::{Finding, Pass, Pruned, Recent, Status};
use crate::model::request::{Added, Applied, Cancelled, Declaration, Existing, Runs, Triggered};
use crate::model::run::{Attempt, Effect, Run, RunFilter};
use crate::model::settings::Retention;
use crate::model::task::{Definition, Task};
use crate::store::fault::Fault;

/// A store of tasks and runs. Each method is one whole operation: all that it writes is committed when it returns, or nothing is.
pub(crate) trait Store: Send + std::fmt::Debug {
    // Requests of clients.

    /// Adds a task, or treats the task of its name as `existing` says.
    fn add(&mut self, task: Definition, existing: Existing, now: Timestamp) -> Result<Added>;
    /// Adds tasks: all of them, or none.
    fn add_all(&mut self, tasks: Vec<(Definition, Existing)>, now: Timestamp) -> Result<Vec<Added>>;
    /// Makes the tasks of a source what it declares; a dry run writes nothing.
    fn apply(&mut self, declared: Declaration<'_>, progress: &Progress, now: Timestamp) -> Result<Vec<Applied>>;
    /// Opens a run of a task beside its schedule, or finds the run that the same key opened. `payload` is JSON.
    fn trigger(&mut self, task: &str, payload: Option<&str>, key: Option<&str>, now: Timestamp) -> Result<Triggered>;
    /// Opens a run that retries a dead or cancelled one. Returns its id.
    fn retry(&mut self, run: i64, now: Timestamp) -> Result<i64>;
    fn pause(&mut self, task: &str, now: Timestamp) -> Result<()>;
    fn resume(&mut self, task: &str, now: Timestamp) -> Result<()>;
    /// Removes a task with its history.
    fn remove(&mut self, task: &str, now: Timestamp) -> Result<()>;
    /// Cancels runs that wait, and asks running ones to stop.
    fn cancel(&mut self, runs: Runs<'_>, now: Timestamp) -> Result<Cancelled>;
    /// Records that the commands of running runs are gone, where their schedulers are not alive. Returns the number of these runs.
    fn declare_gone(&mut self, runs: Runs<'_>, now: Timestamp) -> Result<usize>;
    fn task(&mut self, name: &str) -> Result<Option<Task>>;
    /// Returns all tasks, by name.
    fn tasks(&mut self) -> Result<Vec<Task>>;
    /// Returns the names of all tasks, in order.
    fn names(&mut self) -> Result<Vec<String>>;
    fn run(&mut self, run: i64) -> Result<Option<Run>>;
    /// Returns the newest runs that match, newest first.
    fn runs(&mut self, filter: &RunFilter) -> Result<Vec<Run>>;
    /// Returns the attempts of a run that did not simply succeed, oldest first.
    fn attempts(&mut self, run: i64) -> Result<Vec<Attempt>>;
    /// Returns the effects of a run and of the runs that it retries, by key.
    fn effects(&mut self, run: i64, now: Timestamp) -> Result<Vec<Effect>>;
    /// Returns the last runs of each task by the task's id, oldest first, at most `limit` of each.
    fn recent(&mut self, limit: usize) -> Result<BTreeMap<i64, Vec<Recent>>>;
    /// Reports whether a scheduler with these handlers has nothing to do now.
    fn is_idle(&mut self, handlers: &BTreeSet<String>, now: Timestamp) -> Result<bool>;
    fn status(&mut self, now: Timestamp) -> Result<Status>;
    fn health(&mut self, limits: &Limits, now: Timestamp) -> Result<Health>;
    /// Finds the rules that the stored rows break.
    fn doctor(&mut self) -> Result<Vec<Finding>>;
    /// Deletes a batch of expired history, adds it to `pruned`, and moves `pass` on. Returns the id of the newest task.
    fn prune(&mut self, keep: &Retention, pass: &mut Pass, pruned: &mut Pruned, now: Timestamp) -> Result<i64>;
    /// As [`Store::prune`], and deletes nothing.
    fn would_prune(&mut self, keep: &Retention, pass: &mut Pass, pruned: &mut Pruned, now: Timestamp) -> Result<i64>;

    // Turns of a scheduler.

    // Effects and outcomes of workers.

    /// What only a file has; `None` for a server.
    fn as_file(&mut self) -> Option<&mut dyn FileStore>;
}

/// What only a store in a file has.
pub(crate) trait FileStore {
    fn path(&self) -> &Path;
    /// Returns the sizes of the file and of its write-ahead log in bytes.
    fn sizes(&self) -> (u64, u64);
    /// Fails if the path no longer names the open file, or if the file or its log is damaged.
    fn check_in_place(&self) -> Result<(), Fault>;
    /// Copies the database into another file, which is empty, as one snapshot. `progress` counts bytes.
    fn copy_into(&mut self, copy: &Path, progress: &Progress) -> Result<()>;
    /// Makes this copy of `original` a file without schedulers: the runs that they ran are lost attempts. Returns the number of
    /// these runs.
    fn disown(&mut self, original: &Path, now: Timestamp) -> Result<usize>;
}
