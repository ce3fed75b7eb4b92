//! Records what has happened. The store takes no decision: it applies the pure rules inside a transaction. It reads no clock; `now` is
//! an argument.

pub(crate) mod fault;
pub(crate) mod place;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod turn_io;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::action::{Acted, Action, By};
use crate::model::alarm::{AlarmKind, AlarmMessage, AlarmPace, AlarmTurn, Look};
use crate::model::bulk::{BulkPass, BulkReport};
use crate::model::event::Event;
use crate::model::filter::Selection;
#[cfg(feature = "page")]
use crate::model::health::Queue;
use crate::model::health::{Health, Limits};
use crate::model::limit::{Limit, LimitOn, LimitState};
use crate::model::progress_meter::Progress;
use crate::model::recorded::{EventFilter, RecordedEvent};
use crate::model::report::{Finding, Pass, Pruned, Recent, Status};
use crate::model::request::{Added, AppliedParts, Cancelled, Change, Declaration, Existing, Runs, Triggered};
use crate::model::run::{Attempt, Claim, Effect, Follower, Run, RunFilter};
use crate::model::settings::Retention;
use crate::model::task::{Definition, Task};
#[cfg(feature = "page")]
use crate::model::task_pages::{RunPage, RunQuery, TaskPage, TaskQuery};
#[cfg(feature = "page")]
use crate::model::views::{RunView, SchedulerView, Timeline, Window};
use crate::store::fault::Fault;
use crate::store::turn_io::{Begun, ClockEvent, Done, KnownOwners, MAX_OUTCOMES, Registered, Registration, Work};

/// One connection to the tables. Each method is a whole operation: a transaction of its own that is committed when it returns.
pub(crate) trait Store: Send + std::fmt::Debug {
    /// What only a file has; `None` for a server.
    fn as_file(&mut self) -> Option<&mut dyn FileStore>;

    /// The backend's own type, for functions whose signature names the backend: `finish`, `add_in`, `on_connect`.
    fn as_any(&mut self) -> &mut dyn Any;

    /// Returns the error for the caller of an operation that failed. `doing`: the operation, as in "take a turn".
    fn error(&self, fault: Fault, doing: &'static str) -> Error;

    /// Takes the session of the owner that registered on this connection, for a thread of its own. `None` for a file.
    #[cfg(feature = "postgres")]
    fn take_session(&mut self) -> Option<Box<dyn OwnerSession>> {
        None
    }

    /// Ends the session of the owner that registered on this connection, as the end of its process does.
    #[cfg(feature = "postgres")]
    fn end_session(&mut self) {}

    /// Notifies the schedulers of a server that something was committed. This only hastens, so an error is ignored.
    #[cfg(feature = "postgres")]
    fn notify(&mut self) {}

    /// Limits how long a write waits for another connection's.
    fn set_busy_timeout(&mut self, timeout: Duration) -> Result<()>;

    /// Returns how many write transactions were begun since the scheduler registered.
    fn transactions(&self) -> u64;

    /// Returns a number that changes whenever another connection has committed.
    fn data_version(&self) -> Result<i64>;

    /// Returns how many outcomes a turn takes at most.
    fn most_outcomes(&self) -> usize {
        MAX_OUTCOMES
    }

    // Requests of clients.

    /// Adds a task, or treats the task of its name as `existing` says.
    fn add(&mut self, task: Definition, existing: Existing, now: Timestamp) -> Result<Added>;
    /// Adds tasks: all of them, or none.
    fn add_all(&mut self, tasks: Vec<(Definition, Existing)>, now: Timestamp) -> Result<Vec<Added>>;
    /// Makes the tasks of a source what it declares; a dry run writes nothing.
    fn apply(&mut self, declared: Declaration<'_>, now: Timestamp) -> Result<AppliedParts>;
    /// Returns the names of the tasks that a source declared.
    fn managed_by(&mut self, source: &str) -> Result<Vec<String>>;
    /// Returns who added those of these tasks that an actor has added, by the name of the task.
    fn actors(&mut self, names: &BTreeSet<String>) -> Result<BTreeMap<String, String>>;
    /// Opens a run of a task beside its schedule, or finds the run that the same key opened. `payload` is JSON.
    fn trigger(&mut self, task: &str, payload: Option<&str>, key: Option<&str>, now: Timestamp) -> Result<Triggered>;
    /// Opens a run that retries a dead or cancelled one. Returns its id.
    fn retry(&mut self, run: i64, now: Timestamp) -> Result<i64>;
    fn pause(&mut self, task: &str, now: Timestamp) -> Result<()>;
    fn resume(&mut self, task: &str, now: Timestamp) -> Result<()>;
    /// Removes a task with its history.
    /// Removes a task, or a part of its runs. Returns whether that was all.
    fn remove(&mut self, task: &str, now: Timestamp) -> Result<bool>;
    /// Cancels a run that waits, or asks a running one to stop.
    fn cancel(&mut self, run: i64, now: Timestamp) -> Result<Cancelled>;
    /// Records that the commands of running runs are gone, where their schedulers are not alive. Returns the number of these runs.
    fn declare_gone(&mut self, runs: Runs<'_>, now: Timestamp) -> Result<usize>;
    /// Changes a batch of what a filter selects, adds it to `report`, and moves `pass` on. Returns the events.
    fn change_matching(
        &mut self,
        selection: &Selection,
        pass: &mut BulkPass,
        report: &mut BulkReport,
        now: Timestamp,
    ) -> Result<Vec<Event>>;
    /// As [`Store::change_matching`], and changes nothing.
    fn count_matching(&mut self, selection: &Selection, pass: &mut BulkPass, report: &mut BulkReport) -> Result<()>;
    /// Sets a limit that was checked, by hand.
    fn set_limit(&mut self, limit: &Limit) -> Result<Change>;
    /// Removes a limit. Returns whether there was one.
    fn remove_limit(&mut self, on: &LimitOn) -> Result<bool>;
    /// Returns all limits and their use.
    fn limits(&mut self, now: Timestamp) -> Result<Vec<LimitState>>;
    fn task(&mut self, name: &str) -> Result<Option<Task>>;
    /// Returns all tasks, by name.
    fn tasks(&mut self) -> Result<Vec<Task>>;
    /// Returns the names of all tasks, in order.
    fn names(&mut self) -> Result<Vec<String>>;
    /// Returns how many waiting runs of a task are behind its mark, at most a number; `None` if it is not marked.
    fn marked_runs(&mut self, task: i64, most: usize) -> Result<Option<usize>>;
    /// Returns when a task that has no start left has one again, by its own limit.
    fn next_start(&mut self, task: i64) -> Result<Option<Timestamp>>;
    fn run(&mut self, run: i64) -> Result<Option<Run>>;
    /// Returns the newest runs that match, newest first.
    fn runs(&mut self, filter: &RunFilter) -> Result<Vec<Run>>;
    /// Returns the attempts of a run that did not simply succeed, oldest first.
    fn attempts(&mut self, run: i64) -> Result<Vec<Attempt>>;
    /// Returns the effects of a run and of the runs that it retries, by key.
    fn effects(&mut self, run: i64, now: Timestamp) -> Result<Vec<Effect>>;
    /// Returns the runs that follow a run, of the tasks that its task names now.
    fn followers(&mut self, run: i64) -> Result<Vec<Follower>>;
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
    /// Returns the newest recorded events that match, newest first.
    fn events(&mut self, filter: &EventFilter) -> Result<Vec<RecordedEvent>>;
    /// Returns a run with all that belongs to it, and why it has not started.
    #[cfg(feature = "page")]
    fn run_view(&mut self, run: i64, now: Timestamp) -> Result<Option<RunView>>;
    /// Returns the runs of each task within a window.
    #[cfg(feature = "page")]
    fn timeline(&mut self, window: &Window, now: Timestamp) -> Result<Timeline>;
    /// Returns the schedulers that have not stopped in order, then the newest of those that have.
    #[cfg(feature = "page")]
    fn schedulers(&mut self) -> Result<Vec<SchedulerView>>;

    /// Returns a page of tasks, with their last runs.
    #[cfg(feature = "page")]
    fn task_page(&mut self, query: &TaskQuery) -> Result<TaskPage>;
    /// Returns a page of runs, newest first.
    #[cfg(feature = "page")]
    fn run_page(&mut self, query: &RunQuery) -> Result<RunPage>;

    /// Performs an action and records it as an event that names who acts, in one transaction.
    fn act(&mut self, by: By<'_>, action: &Action, now: Timestamp) -> Result<Acted>;
    /// Makes the backend refuse every write on this connection from now on.
    #[cfg(feature = "page")]
    fn refuse_writes(&mut self) -> Result<()>;
    /// Returns 128 bits from the randomness of the operating system, as hexadecimal digits.
    #[cfg(feature = "page")]
    fn random_token(&mut self) -> Result<String>;
    /// Counts the unfinished runs.
    #[cfg(feature = "page")]
    fn queue(&mut self, now: Timestamp) -> Result<Queue>;
    /// Records which alarms began and ended, if any did. Returns whether it must be called again for more.
    fn update_alarms(&mut self, look: &Look<'_>, now: Timestamp) -> Result<bool>;
    /// Claims the next message of a channel. `token` identifies the claim.
    fn claim_alarm(
        &mut self,
        channel: &str,
        token: &str,
        pace: &AlarmPace,
        refused: Option<AlarmKind>,
        now: Timestamp,
    ) -> Result<AlarmTurn>;
    /// Ends the claim of a message. Returns false if the claim had ended before.
    fn settle_alarm(&mut self, message: &AlarmMessage, delivered: bool, now: Timestamp) -> Result<bool>;

    // Turns of a scheduler.

    /// Returns which owners and attempts the tables know, for the removal of files that others left behind.
    fn known_owners(&mut self) -> Result<KnownOwners>;

    /// Registers an owner, whose lock is held, and forgets what an earlier owner on this connection remembered. `random`: the source
    /// of all chance in its turns.
    fn register(&mut self, new: &Registration, random: fastrand::Rng, now: Timestamp) -> Result<Registered>;

    /// Returns the newest time that a row counts from beyond the wall clock. Reads all tasks.
    fn counted_beyond(&mut self, now: Timestamp) -> Result<Option<Timestamp>>;

    /// Takes a turn. After a crash, either all that it wrote is stored, or nothing.
    fn turn(&mut self, work: &Work<'_>) -> Result<Done, Fault>;

    /// Reads what a turn would see, and writes nothing. `None`: nothing was committed since the snapshot with the data version
    /// `since`.
    fn look(
        &mut self,
        owner: &str,
        handlers: &BTreeSet<String>,
        since: Option<i64>,
        now: Timestamp,
    ) -> Result<Option<Done>>;

    /// Returns the runs that an owner has claimed and not settled.
    fn claimed_by(&mut self, owner: &str) -> Result<HashSet<i64>>;

    /// Records events of the wall clock while no turn can be taken.
    fn record_clock_events(&mut self, events: &[ClockEvent]) -> Result<()>;

    /// Records that an owner shut down.
    fn stop(&mut self, owner: &str, now: Timestamp) -> Result<()>;

    // Effects and outcomes of workers.

    /// Commits the intent of an effect, unless the effect is known. Fails if the claim is superseded.
    fn begin_effect(&mut self, owner: &str, claim: &Claim, key: &str, now: Timestamp) -> Result<Begun>;

    /// Fails if the claim is superseded.
    fn check_claim(&mut self, owner: &str, claim: &Claim) -> Result<()>;

    /// Records that an effect was performed, and its value. Returns the value that another attempt recorded before, if one did. Not
    /// fenced: an effect was performed whichever owner holds the run now, and the next attempt must know.
    fn record_effect(&mut self, claim: &Claim, key: &str, value: &str, now: Timestamp) -> Result<Option<String>>;

    /// Deletes the intent of an effect that failed and was not performed. Under a superseded claim it stays, in doubt.
    fn undo_effect(&mut self, owner: &str, claim: &Claim, key: &str) -> Result<()>;
}

/// The session by which an owner on a server is known to be alive.
#[cfg(feature = "postgres")]
pub(crate) trait OwnerSession: Send + std::fmt::Debug {
    /// Extends the lease of the owner and of its runs. After an error the next call connects again, and takes the lock again.
    fn heartbeat(&mut self) -> Result<Beat, Fault>;

    /// Waits until another connection has changed something, at most for `limit`. Returns whether one has.
    fn wait(&mut self, limit: Duration) -> Result<bool, Fault>;
}

/// The answer to a heartbeat.
#[cfg(feature = "postgres")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beat {
    /// Whether the lease is extended. If not, the owner counts as stopped, or its row is gone: a full turn registers it again.
    pub(crate) extended: bool,
    /// Whether the session is a new one.
    pub(crate) again: bool,
    /// Whether the server has another history than at the heartbeat before: a replica was promoted. Nothing is extended then.
    pub(crate) promoted: bool,
}

/// Opens another connection of the same kind.
pub(crate) type Open = dyn Fn() -> Result<Box<dyn Store>> + Send + Sync;

/// What only a store in a file has.
pub(crate) trait FileStore {
    /// Fails if the path no longer names the file that is open, or the file or its log is damaged.
    fn check_in_place(&self) -> Result<(), Fault>;

    /// Also fails while the file has a second name. That can pass: no [`Error::UnusableDatabase`].
    fn check_writable(&self) -> Result<(), Fault>;

    /// Truncates the log if it is long, for an idle moment.
    fn shrink_log(&self) -> Result<()>;

    /// Renames the log of a damaged file, so that no program applies it to what is at the path now.
    fn set_log_aside(&self);

    /// The path of the file.
    fn path(&self) -> &Path;

    /// Returns the sizes of the file and of its write-ahead log in bytes.
    fn sizes(&self) -> (u64, u64);

    /// Copies the database into another file, which is empty, as one snapshot. `progress` counts bytes.
    fn copy_into(&mut self, copy: &Path, progress: &Progress) -> Result<()>;
    /// Makes this copy of `original` a file without schedulers: the runs that they ran are lost attempts. Returns the number of
    /// these runs.
    fn disown(&mut self, original: &Path, now: Timestamp) -> Result<usize>;
}
