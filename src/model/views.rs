//! What the pages of one run, of the timeline and of the schedulers show: each the answer of one snapshot.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::filter::NamePattern;
use crate::model::report::{ClockWait, Instance};
use crate::model::run::{Attempt, Effect, Follower, Run, RunStatus};
use crate::model::task::Task;

/// A run with all that belongs to it.
#[derive(Debug)]
pub(crate) struct RunView {
    pub(crate) run: Run,
    pub(crate) task: Task,
    /// The newest attempts that did not simply succeed, oldest first.
    pub(crate) attempts: Vec<Attempt>,
    /// Whether there are older ones.
    pub(crate) has_older_attempts: bool,
    /// Effects of the run and of the runs that it retries, by key, at most [`RunView::MAX_LISTED`].
    pub(crate) effects: Vec<Effect>,
    /// The retries of this run, oldest first.
    pub(crate) retries: Vec<(i64, RunStatus)>,
    /// The runs that follow it.
    pub(crate) followers: Vec<Follower>,
    /// Why it has not started; empty if it is not waiting.
    pub(crate) waits: Vec<WaitsFor>,
    /// The scheduler that runs it, while it is running: `None` if that is not registered.
    pub(crate) owner: Option<Instance>,
}

impl RunView {
    /// Most attempts, effects, retries, and runs that a reason names.
    pub(crate) const MAX_LISTED: usize = 20;
}

/// A run that another waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) id: i64,
    pub(crate) task: String,
    pub(crate) status: RunStatus,
}

/// Why a run that waits has not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// Its cancellation is requested: the next turn of a scheduler cancels it.
    Cancellation,
    /// Its task is paused.
    Paused { by: Option<String> },
    /// Its task is invalid.
    Invalid { reason: Option<String> },
    /// This older run of its task is unfinished.
    Older(Option<Other>),
    /// All slots of its key are held.
    Key { key: String, limit: u32, holders: Vec<Other> },
    /// A slot of its key is free, and these runs go first.
    Behind { key: String, first: Vec<Other> },
    /// A reason that no version of duly stores.
    Unknown { stored: String },
    /// It is not due before this instant.
    Time(Timestamp),
    /// No start of its task, or of its key, was left; when one is, if that is known.
    Starts { key: Option<String>, until: Option<Timestamp> },
    /// Attempts of its handler may not start before this instant.
    Rate { handler: String, until: Timestamp },
    /// The machine's clock.
    Clock(ClockWait),
    /// No scheduler is alive.
    NoScheduler,
    /// It is unknown whether a scheduler is alive, and why.
    UnknownScheduler { doubt: String },
    /// The schedulers that are alive cannot write the database.
    Degraded,
    /// All workers of all schedulers are busy, with these runs.
    Workers { workers: u64, busy_with: Vec<Other> },
    /// A scheduler is alive and has a free worker, and the run has been due for this time: none has the handler.
    Handler { handler: String, due_for: Duration },
    /// Nothing: it starts at the next turn of a scheduler.
    NextTurn,
}

/// What part of the timeline is read.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) pattern: Option<NamePattern>,
    /// Only tasks whose name comes after this one.
    pub(crate) after: Option<String>,
    /// Most lanes.
    pub(crate) lanes: usize,
    /// Most runs of a lane that are read one by one, of scheduled runs and of the others. The older ones are counted.
    pub(crate) runs: usize,
    /// The parts of the window in which runs are counted, each as long as this.
    pub(crate) part: Duration,
    /// Most runs that are counted.
    pub(crate) counted: usize,
    /// Most dead runs of the window that are read beside these.
    pub(crate) dead: usize,
}

/// The lanes of a timeline.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) lanes: Vec<Lane>,
    /// The name after which the next page begins, if there may be more lanes.
    pub(crate) next: Option<String>,
    /// Whether the lanes have each dead run of the window.
    pub(crate) has_all_dead: bool,
}

/// The runs of one task within a window.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) task: String,
    /// The runs that were read one by one, newest first.
    pub(crate) runs: Vec<LaneRun>,
    /// The older ones.
    pub(crate) counts: Vec<Counted>,
    /// Set if the window has more runs than were counted: before this instant, runs that are not dead are missing.
    pub(crate) counted_from: Option<Timestamp>,
    /// The task, if an occurrence is due within the window.
    pub(crate) ahead: Option<Task>,
}

/// Runs of a lane that have one status, and whose occurrences are in one part of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// The number of the part: the first is 0.
    pub(crate) part: u32,
    pub(crate) status: RunStatus,
    pub(crate) count: usize,
    /// The id of the newest of them.
    pub(crate) newest: i64,
}

/// A run in a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaneRun {
    pub(crate) id: i64,
    pub(crate) status: RunStatus,
    pub(crate) scheduled_for: Timestamp,
    /// When its newest attempt began.
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) duration: Option<Duration>,
    /// The number of occurrences of a skipped or missed row, and the newest of them.
    pub(crate) occurrences: u64,
    pub(crate) last_scheduled_for: Option<Timestamp>,
}

/// A scheduler, and what it does.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerView {
    pub(crate) instance: Instance,
    /// Its running runs.
    pub(crate) running: u32,
    pub(crate) stopped_at: Option<Timestamp>,
}
