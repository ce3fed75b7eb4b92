//! Events as values. The log, counters and tests all consume them. The poller emits them, except the start of an
//! attempt, which its worker emits, and the cancellation by a client of the same scheduler.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::{Timestamp, millis};
use crate::host::orphan::Orphan;
use crate::model::attempt_json::{attempt, orphan};
use crate::model::json;
use crate::model::one_line::OneLine;
use crate::model::run::{Claim, Origin, RunStatus};

/// An event. Its `Display` is the log line: a single line for any names and errors.
///
/// Its JSON has the kind in snake case as `event`, and the fields. An attempt has `run`, `task`, `attempt`, `handler` and
/// `scheduled_for`, and no payload. An event that is read from JSON has these alone: the rest of its [`Claim`] has default values, and
/// an [`Orphan`] names no process.
///
/// ```
/// use duly::{Event, RunStatus};
/// let event = Event::Expired { run: 7, task: "digest".into(), handler: "mail".into() };
/// assert_eq!(serde_json::to_string(&event)?, r#"{"event":"expired","run":7,"task":"digest","handler":"mail"}"#);
/// assert_eq!(serde_json::to_string(&Event::ClockNotSet)?, r#"{"event":"clock_not_set"}"#);
/// assert_eq!(serde_json::from_str::<Event>(r#"{"event":"expired","run":7,"task":"digest","handler":"mail"}"#)?, event);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A worker begins an attempt.
    Started {
        /// The attempt.
        #[serde(flatten, with = "attempt")]
        claim: Arc<Claim>,
    },
    /// An attempt ended, and its outcome is stored.
    Finished {
        /// The attempt.
        #[serde(flatten, with = "attempt")]
        claim: Arc<Claim>,
        /// The new status of the run.
        status: RunStatus,
        /// The error, if it failed.
        error: Option<String>,
        /// How long the handler took.
        #[serde(rename = "took_ms", with = "json::duration")]
        took: Duration,
        /// When the next attempt is due.
        next_attempt: Option<Timestamp>,
        /// When the task is due next. `None` if it is not due again, if that is not known yet, and for tasks that are
        /// due once.
        next_due: Option<Timestamp>,
    },
    /// A handler has postponed its run: see [`Failure::snooze`](crate::Failure::snooze). The attempt does not count.
    Snoozed {
        /// The attempt.
        #[serde(flatten, with = "attempt")]
        claim: Arc<Claim>,
        /// `snoozed`, and the reason if the handler gave one.
        reason: String,
        /// How long the handler took.
        #[serde(rename = "took_ms", with = "json::duration")]
        took: Duration,
        /// When the next attempt is due.
        next_attempt: Timestamp,
    },
    /// An attempt was interrupted, by a shutdown, a lost lease or its own handler, and is tried again: see
    /// [`Failure::interrupted`](crate::Failure::interrupted). The first three in a row do not count.
    Interrupted {
        /// The attempt.
        #[serde(flatten, with = "attempt")]
        claim: Arc<Claim>,
        /// The error of the handler.
        reason: String,
        /// How long the handler took.
        #[serde(rename = "took_ms", with = "json::duration")]
        took: Duration,
        /// When the next attempt is due.
        next_attempt: Timestamp,
    },
    /// A handler has exceeded its time limit, was asked to stop, and does not return. Another worker replaces the one
    /// that it holds. When the handler returns an error, the attempt is recorded as timed out.
    WorkerHeld {
        /// The attempt.
        #[serde(flatten, with = "attempt")]
        claim: Arc<Claim>,
    },
    /// A worker thread ended. No handler can cause this; a fault of duly, of the [`Clock`](crate::Clock) or of the
    /// logger can. A new worker replaces it, and its run is recorded as failed.
    WorkerEnded {
        /// The run that it executed, if any.
        run: Option<i64>,
        /// The message of the panic.
        error: String,
    },
    /// An attempt ended after another owner had claimed the run, or the run had ended or was deleted. Its result changed nothing.
    Superseded {
        /// The attempt.
        #[serde(flatten, with = "attempt")]
        claim: Arc<Claim>,
    },
    /// The owner of an attempt died, and the run was recovered. `Queued`: the attempt had not begun, and does not
    /// count.
    Lost {
        /// The run.
        run: i64,
        /// The name of its task.
        task: String,
        /// The handler of the run.
        handler: String,
        /// The lost attempt.
        attempt: u32,
        /// The new status of the run.
        status: RunStatus,
        /// When the next attempt is due.
        next_attempt: Option<Timestamp>,
    },
    /// An owner is dead, and all its runs are recovered.
    OwnerLost {
        /// Its id.
        owner: String,
    },
    /// The file was restored through SQLite, to an earlier state or another database, and this scheduler goes on under another id. What it
    /// had begun is asked to stop, and counts as lost.
    Restored {
        /// The new id of the scheduler.
        owner: String,
        /// How many attempts have not returned. Their tasks start nothing until they have.
        running: usize,
    },
    /// The command of a dead owner's run is still running. The run waits until the command is gone.
    Orphaned {
        /// The command.
        #[serde(flatten, with = "orphan")]
        orphan: Orphan,
    },
    /// The owner of a run died, and it is unknown whether its command is gone. The run waits until that is known, or
    /// until a user [declares](crate::Client::declare_gone) the command gone.
    OrphanUnknown {
        /// The command.
        #[serde(flatten, with = "orphan")]
        orphan: Orphan,
        /// Why it is unknown.
        reason: String,
    },
    /// The command of a dead owner's run is gone, except for a process that left its group and holds its input. The run
    /// is recovered.
    LeftGroup {
        /// The run.
        run: i64,
        /// The name of its task.
        task: String,
        /// The attempt.
        attempt: u32,
    },
    /// No run was opened for these occurrences: they were skipped or missed.
    PassedOver {
        /// The name of the task.
        task: String,
        /// `Skipped` or `Missed`.
        status: RunStatus,
        /// The oldest occurrence.
        first: Timestamp,
        /// The newest occurrence.
        last: Timestamp,
        /// The number of occurrences.
        count: u64,
        /// Whether `count` is exact; otherwise it is a lower bound.
        exact: bool,
    },
    /// A waiting run was cancelled.
    Cancelled {
        /// The run.
        run: i64,
        /// The name of its task.
        task: String,
        /// The handler of the run.
        handler: String,
        /// Whether an attempt had begun: the run waited for its next attempt.
        began: bool,
    },
    /// A waiting run expired before its first attempt.
    Expired {
        /// The run.
        run: i64,
        /// The name of its task.
        task: String,
        /// The handler of the run.
        handler: String,
    },
    /// No run of the `on_dead` task could be opened for a dead run.
    OnDeadFailed {
        /// The dead run.
        run: i64,
        /// The name of its task.
        task: String,
        /// The name of the `on_dead` task.
        on_dead: String,
        /// The reason.
        reason: String,
    },
    /// No run of a task that follows another one could be opened.
    NotFollowed {
        /// The run that has ended.
        run: i64,
        /// The name of its task.
        task: String,
        /// The column that names the task which follows: `on_success`, `on_end` or `on_missed`.
        origin: Origin,
        /// The name of the task which follows.
        target: String,
        /// The reason.
        reason: String,
    },
    /// An owner is alive but stalled: its lease has expired. Its runs are not taken over.
    OwnerStalled {
        /// Its id.
        owner: String,
        /// Its pid.
        pid: u32,
        /// The name of its machine.
        host: String,
        /// When its lease ended.
        until: Timestamp,
    },
    /// This scheduler goes on after it did nothing for longer than its lease: it was stopped, or its machine or disk did not respond.
    StallEnded {
        /// Its id.
        owner: String,
        /// How long it did nothing.
        #[serde(rename = "lasted_ms", with = "json::duration")]
        lasted: Duration,
    },
    /// A task was paused after `pause_after_failures` consecutive dead runs.
    Paused {
        /// The name of the task.
        task: String,
        /// The number of dead runs.
        failures: u32,
    },
    /// A row that another program wrote is unusable.
    Invalid {
        /// The name of the task.
        task: String,
        /// What is wrong with it.
        reason: String,
    },
    /// One item could not be stored and was set aside; the other items of the turn were stored.
    SetAside {
        /// The item: `task "digest"`, `the outcome of run 7`.
        item: String,
        /// The error.
        reason: String,
    },
    /// The wall clock has stepped, or the machine was suspended.
    ClockStepped {
        /// The expected time.
        expected: Timestamp,
        /// The time that the clock shows.
        found: Timestamp,
    },
    /// The clock is hours behind the time that it showed before: that time was wrong, and all schedules count from now.
    ClockWasWrong {
        /// The time that it showed before.
        believed: Timestamp,
        /// The time that the clock shows.
        found: Timestamp,
    },
    /// The rules of time zones differ from those by which their tasks were planned: future local times are recomputed.
    ZoneDataChanged {
        /// The former version.
        before: String,
        /// The current version.
        now: String,
        /// The time zones of tasks whose rules differ: the first, and how many more.
        zones: String,
    },
    /// The machine's clock has not been set since boot. No run starts until it is set.
    ClockNotSet,
    /// The machine's clock was not set before, and is set now.
    ClockSet {
        /// The time that the clock shows.
        found: Timestamp,
    },
    /// At the start of the scheduler, the clock is behind the newest time in the file. Schedules wait for that time.
    ClockBehind {
        /// The newest time in the file.
        newest: Timestamp,
        /// The time that the clock shows.
        found: Timestamp,
    },
    /// This owner's lock file had been removed or overwritten, and was recreated.
    LockFileRecreated,
    /// The database cannot be written. No run starts until it can.
    Degraded {
        /// The error.
        reason: String,
    },
    /// The database can be written again.
    Recovered,
    /// An attempt could not be started for want of resources. Its run is queued again, and nothing starts for a while.
    CannotStart {
        /// What failed.
        reason: String,
    },
    /// Attempts can be started again.
    StartsAgain,
    /// The scheduler has stopped by itself, because going on would be wrong: see [`Scheduler::wait`](crate::Scheduler::wait).
    Stopped {
        /// Why.
        reason: String,
    },
    /// A newer duly has migrated the tables. No further run starts; after the running ones have ended and are recorded,
    /// the scheduler stops.
    NewerSchema {
        /// The found version, and what to do.
        reason: String,
        /// The number of running runs.
        running: usize,
    },
}

/// Receives events. [`Event::Started`] is emitted by the worker that begins the attempt; [`Event::Cancelled`], for a
/// run that a client of this scheduler cancels, by the thread that calls [`Client::cancel`](crate::Client::cancel);
/// every other event by the scheduler's own thread. The observers of a [`Scheduler`](crate::Scheduler) are called by a thread of their own, in
/// this order: 10 000 events wait for them at most, further ones are dropped, and the log says how many. Those of a
/// [`Stepper`](crate::testing::Stepper) are called by the emitting thread.
///
/// ```
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let (sender, events) = std::sync::mpsc::channel();
/// // A closure is an observer. This one lets another thread do what takes time.
/// let observer = move |event: &duly::Event| _ = sender.send(event.to_string());
/// let scheduler = duly::Scheduler::builder(&file).observe(observer).start()?;
/// scheduler.add(duly::NewTask::manual("export").handler("export"))?;
/// scheduler.cancel(scheduler.trigger("export")?)?;
/// assert!(events.recv()?.contains(r#"run 1 of "export""#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Receives one event, after the reported change was committed.
    fn observe(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync + 'static> Observer for F {
    fn observe(&self, event: &Event) {
        self(event);
    }
}

impl Event {
    /// Returns the log level of the event.
    pub fn level(&self) -> log::Level {
        match self {
            Event::Started { .. }
            | Event::Snoozed { .. }
            | Event::Recovered
            | Event::StartsAgain
            | Event::Cancelled { .. }
            | Event::ClockSet { .. } => log::Level::Info,
            Event::Finished { status: RunStatus::Dead, .. }
            | Event::Degraded { .. }
            | Event::CannotStart { .. }
            | Event::SetAside { .. }
            | Event::WorkerEnded { .. }
            | Event::Stopped { .. }
            | Event::NewerSchema { .. } => log::Level::Error,
            Event::Finished { error: Some(_), status, .. } if *status != RunStatus::Skipped => log::Level::Warn,
            Event::Finished { .. } | Event::PassedOver { status: RunStatus::Skipped, .. } => log::Level::Info,
            _ => log::Level::Warn,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Started { claim } => write!(
                f,
                "run {} of {:?} started (attempt {} of {})",
                claim.run_id,
                claim.task,
                claim.counted(),
                claim.retry.max_attempts
            ),
            Event::Finished { claim, status, error, took, next_attempt, next_due } => {
                write!(f, "run {} of {:?} ", claim.run_id, claim.task)?;
                if *status == RunStatus::Queued {
                    return f.write_str("was released before it started; queued again");
                }
                write!(f, "{status} after {}", humantime::format_duration(coarse(*took)))?;
                if *status == RunStatus::Skipped {
                    let reason = error.as_deref().unwrap_or_default();
                    return write!(f, ": {}", OneLine(reason));
                }
                if let Some(error) = error {
                    let (attempt, of) = (claim.counted(), claim.retry.max_attempts);
                    write!(f, " (attempt {attempt} of {of}): {}", OneLine(error))?;
                }
                match next_due {
                    Some(at) if next_attempt.is_none() => write!(f, "; due again at {at}"),
                    _ if *status == RunStatus::Dead && claim.counted() < claim.retry.max_attempts => {
                        f.write_str("; it gave up, it is not retried")
                    }
                    _ => what_next(f, *status, *next_attempt),
                }
            }
            Event::Snoozed { claim, reason, took, next_attempt } => write!(
                f,
                "run {} of {:?} was postponed by its handler after {}: {}; next attempt at {next_attempt}",
                claim.run_id,
                claim.task,
                humantime::format_duration(coarse(*took)),
                OneLine(reason)
            ),
            Event::Interrupted { claim, reason, took, next_attempt } => write!(
                f,
                "run {} of {:?} was interrupted after {}: {}; next attempt at {next_attempt}",
                claim.run_id,
                claim.task,
                humantime::format_duration(coarse(*took)),
                OneLine(reason)
            ),
            Event::WorkerHeld { claim } => write!(
                f,
                "run {} of {:?} exceeded its time limit and does not stop; another worker replaces the one it holds",
                claim.run_id, claim.task
            ),
            Event::WorkerEnded { run, error } => {
                f.write_str("a worker ended")?;
                run.map_or(Ok(()), |run| write!(f, " while it executed run {run}"))?;
                write!(f, ": {}; a new worker replaces it", OneLine(error))
            }
            Event::Superseded { claim } => write!(
                f,
                "run {} of {:?}: attempt {} ended after its run was claimed by another owner, ended or deleted; its result is \
                 stored with the attempts, or with the events",
                claim.run_id, claim.task, claim.attempt
            ),
            Event::Lost { run, task, attempt, status: RunStatus::Queued, .. } => {
                write!(f, "run {run} of {task:?}: the owner of attempt {attempt} died before it began; queued again")
            }
            Event::Lost { run, task, attempt, status, next_attempt, .. } => {
                write!(f, "run {run} of {task:?}: the owner of attempt {attempt} died; {status}")?;
                what_next(f, *status, *next_attempt)
            }
            Event::Orphaned { orphan } => write!(
                f,
                "run {} of {:?}: the owner of attempt {} died, and its command is still running; the run waits for it",
                orphan.run_id(),
                orphan.task(),
                orphan.attempt()
            ),
            Event::OrphanUnknown { orphan, reason } => {
                let run = orphan.run_id();
                write!(
                    f,
                    "run {run} of {:?}: the owner of attempt {} died, and whether its command is gone cannot be known: {}; \
                     the run waits; if it is gone: duly cancel {run} --gone",
                    orphan.task(),
                    orphan.attempt(),
                    OneLine(reason)
                )
            }
            Event::LeftGroup { run, task, attempt } => write!(
                f,
                "run {run} of {task:?}: the command of attempt {attempt} is gone; a process that left its group holds its input"
            ),
            Event::OwnerStalled { owner, pid, host, until } => write!(
                f,
                "owner {owner} (pid {pid} on {}) is alive and stalled: its lease ended at {until}; its runs are not taken over; \
                 it is stopped or cannot write: let it continue, or mend what its log names",
                OneLine(host)
            ),
            Event::StallEnded { owner, lasted } => {
                let lasted = humantime::format_duration(coarse(*lasted));
                write!(
                    f,
                    "owner {owner} goes on after a stall of {lasted}: it was stopped, or its machine or disk did not respond"
                )
            }
            Event::OwnerLost { owner } => write!(f, "owner {owner} is dead; its runs are recovered"),
            Event::Restored { owner, running: 0 } => {
                write!(f, "the database was restored from a copy: this scheduler goes on as {owner}")
            }
            Event::Restored { owner, running } => {
                let attempts = if *running == 1 { "attempt is" } else { "attempts are" };
                write!(
                    f,
                    "the database was restored from a copy: this scheduler goes on as {owner}; {running} {attempts} of \
                     before: asked to stop, with no outcome recorded; until they have ended, their tasks start nothing"
                )
            }
            Event::PassedOver { task, status, first, last, count, exact } => {
                let least = if *exact { "" } else { "at least " };
                let verb = if *status == RunStatus::Skipped { "skipped" } else { "missed" };
                match count {
                    1 => write!(f, "{verb} the occurrence of {task:?} at {first}"),
                    _ => write!(f, "{verb} {least}{count} occurrences of {task:?} from {first} to {last}"),
                }
            }
            Event::Cancelled { run, task, began: true, .. } => {
                write!(f, "run {run} of {task:?} was cancelled while it waited for its next attempt")
            }
            Event::Cancelled { run, task, began: false, .. } => {
                write!(f, "run {run} of {task:?} was cancelled before it began")
            }
            Event::Expired { run, task, .. } => write!(f, "run {run} of {task:?} expired before it began; missed"),
            Event::OnDeadFailed { run, task, on_dead, reason } => {
                write!(
                    f,
                    "run {run} of {task:?} is dead, and no run of its on_dead task {on_dead:?} was opened: {}",
                    OneLine(reason)
                )
            }
            Event::NotFollowed { run, task, origin, target, reason } => {
                let reason = OneLine(reason);
                write!(f, "no run of {target:?} follows run {run} of {task:?} ({origin}): {reason}")
            }
            Event::Paused { task, failures } => {
                write!(f, "paused {task:?} after {failures} dead runs in a row; it does not run until it is resumed")
            }
            Event::Invalid { task, reason } => {
                write!(f, "task {task:?} is invalid: {}; it does not run until it is changed", OneLine(reason))
            }
            Event::SetAside { item, reason } => write!(f, "set aside {item}: {}", OneLine(reason)),
            Event::ClockStepped { expected, found } if found > expected => {
                write!(
                    f,
                    "the clock moved forward from {expected} to {found}; occurrences in between are resolved as after \
                     downtime"
                )
            }
            Event::ClockStepped { expected, found } => {
                write!(
                    f,
                    "the clock moved back from {expected} to {found}; occurrences that were resolved are not repeated"
                )
            }
            Event::ClockWasWrong { believed, found } => {
                write!(f, "the clock had shown {believed} and shows {found}: all schedules count from now")
            }
            Event::ZoneDataChanged { before, now, zones } => write!(
                f,
                "the time zone data changed from {} to {now}: other rules for {zones}; local times are recomputed",
                OneLine(before)
            ),
            Event::ClockNotSet => f.write_str("the clock of this machine is not set: nothing is done until it is"),
            Event::ClockSet { found } => write!(f, "the clock of this machine is set: it shows {found}"),
            Event::ClockBehind { newest, found } => write!(
                f,
                "the clock shows {found} at the start, behind the newest time in the file, {newest}; schedules that count \
                 from that time wait for it"
            ),
            Event::LockFileRecreated => {
                f.write_str("the lock file of this owner had been removed or overwritten; it is recreated")
            }
            Event::Degraded { reason } => {
                write!(f, "the database cannot be written: {}; nothing starts until it can, retrying", OneLine(reason))
            }
            Event::Recovered => f.write_str("the database can be written again"),
            Event::CannotStart { reason } => {
                write!(
                    f,
                    "{}; the run is queued again; nothing starts until that is possible, retrying",
                    OneLine(reason)
                )
            }
            Event::StartsAgain => f.write_str("attempts can be started again"),
            Event::Stopped { reason } => write!(f, "the scheduler has stopped: {}", OneLine(reason)),
            Event::NewerSchema { reason, running } => {
                write!(f, "{}; no further run starts; waiting for {running} running", OneLine(reason))
            }
        }
    }
}

/// Rounds to milliseconds, or to seconds from ten seconds on.
fn coarse(took: Duration) -> Duration {
    let millis = millis(took).unsigned_abs();
    Duration::from_millis(if millis < 10_000 { millis } else { millis / 1000 * 1000 })
}

fn what_next(f: &mut fmt::Formatter<'_>, status: RunStatus, next_attempt: Option<Timestamp>) -> fmt::Result {
    match (status, next_attempt) {
        (_, Some(at)) => write!(f, "; next attempt at {at}"),
        (RunStatus::Dead, None) => f.write_str("; no attempt is left, it is not retried"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
