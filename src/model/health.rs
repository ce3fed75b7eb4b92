//! What may be wrong with a store and its schedulers, as facts. [`Client::check`](crate::Client::check) judges them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::report::{ClockWait, Instance};
use crate::model::run::Origin;

/// How the problem begins that a scheduler reports of itself while it cannot start attempts.
pub(crate) const CANNOT_START: &str = "cannot start: ";
/// What a scheduler reports of itself when the runtime of its async handlers has shut down, and while it polls nothing.
pub(crate) const RUNTIME_GONE: &str =
    "the runtime of the async handlers has shut down: this scheduler starts none of their runs any more";
pub(crate) const RUNTIME_BLOCKED: &str =
    "the runtime of the async handlers polls nothing, it is blocked or nothing drives it: none of their runs starts";

/// Thresholds of [`Client::check`](crate::Client::check).
///
/// ```
/// use std::time::Duration;
/// use duly::testing::Stepper;
/// use duly::{Limits, NewTask, ProblemKind};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let stepper = Stepper::builder(&file, noon).start()?;
/// let client = stepper.client();
/// client.add(NewTask::once("post", noon).handler("post"))?;
/// stepper.clock().advance(Duration::from_secs(120));
/// assert!(client.check(&Limits::default())?.is_empty(), "late, but not by five minutes");
/// let strict = Limits { overdue: Duration::from_secs(60), ..Limits::default() };
/// assert_eq!(client.check(&strict)?[0].kind, ProblemKind::Overdue);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Work that has been due for longer is overdue. Default: 5 minutes.
    pub overdue: Duration,
    /// A task with at least this number of dead runs in a row is failing. Default: 2.
    pub failures: u32,
    /// Whether missed occurrences are reported although a later one ran in their place (misfire policies `run_once` and `run_all`).
    /// Default: false, only those for which nothing ran.
    pub caught_up: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { overdue: Duration::from_secs(5 * 60), failures: 2, caught_up: false }
    }
}

/// The facts of one snapshot. Each list is limited.
#[derive(Debug)]
pub(crate) struct Health {
    /// Schedulers that have not stopped in order, each with the number of its running runs.
    pub(crate) instances: Vec<(Instance, u32)>,
    pub(crate) clock: Option<ClockWait>,
    /// The newest heartbeat of any scheduler.
    pub(crate) newest_seen: Option<Timestamp>,
    /// Whether a scheduler would find work now; false while one is alive.
    pub(crate) any_work: bool,
    /// Whether the waiting runs of any task are being marked.
    pub(crate) any_marked: bool,
    /// Tasks that are overdue, and since when.
    pub(crate) overdue: Vec<(String, Timestamp)>,
    pub(crate) waiting: Vec<Waiting>,
    /// Those that have waited for a minute: time enough for a scheduler that has their handler and a free worker.
    pub(crate) unhandled: Vec<Waiting>,
    pub(crate) ownerless: Vec<Ownerless>,
    pub(crate) stuck: Vec<Stuck>,
    pub(crate) ended_workers: Vec<EndedWorkers>,
    /// What the applications of schedulers that have not stopped report as wrong: the owner, and a text.
    pub(crate) problems: Vec<(String, String)>,
    /// What was begun before the file was restored, and may still run.
    pub(crate) held: Vec<HeldTask>,
    /// Living owners that have not looked at the file since its tables changed. Others start nothing meanwhile.
    pub(crate) laggards: Vec<String>,
    /// Runs that are blocked by nothing: run, task, stored reason.
    pub(crate) blocked: Vec<(i64, String, String)>,
    /// Final runs that another program reopened: run, task, what shows it.
    pub(crate) reopened: Vec<(i64, String, String)>,
    /// Unfinished runs with more than one interruption: run, task, how many.
    pub(crate) interrupted: Vec<(i64, String, u32)>,
    pub(crate) failing: Vec<Failing>,
    pub(crate) dead: Vec<DeadRun>,
    /// The rows of tasks that have not succeeded since: for which nothing ran, in whose place a later one ran, and with five or more that
    /// were skipped in a row. The newest of each task.
    pub(crate) missed: Vec<(i64, PassedOver)>,
    pub(crate) caught_up: Vec<(i64, PassedOver)>,
    pub(crate) skipped: Vec<(i64, PassedOver)>,
    /// Tasks of which no start was left, and none has started since.
    pub(crate) limited: Vec<(i64, PassedOver)>,
    /// Tasks that cannot be scheduled, and why.
    pub(crate) invalid: Vec<(String, String)>,
    /// The time zones of active tasks: the zone, its first task, the number of its tasks.
    pub(crate) zones: Vec<(String, String, u32)>,
    /// The zone data of each scheduler that has not stopped: its id, and what it displays.
    pub(crate) zone_data: Vec<(String, String)>,
    /// By which rules the tasks of each time zone are planned: a digest, and those of other running schedulers.
    pub(crate) zone_rules: BTreeMap<String, String>,
    pub(crate) cannot_follow: Vec<CannotFollow>,
}

/// Whether an owner is alive, by its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Alive {
        /// It reports that it has not been able to write the database for ten seconds or longer.
        degraded: bool,
    },
    Dead {
        /// The scheduler that recovers its runs, if one has taken its lock.
        heir: Option<String>,
    },
    /// It has no lock. That proves nothing; the lease decides.
    NoLock,
    /// On a server: neither a lock nor a session. The lease decides.
    NoSession {
        /// Its lease has passed.
        passed: bool,
    },
    /// It cannot be known, and why.
    Unknown(String),
}

/// Runs of one handler that may start and have not been started.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) handler: String,
    pub(crate) count: u64,
    pub(crate) since: Timestamp,
    /// The owners that run other runs of the handler.
    pub(crate) running: BTreeSet<String>,
}

/// A running run whose owner is not registered.
#[derive(Debug)]
pub(crate) struct Ownerless {
    pub(crate) run: i64,
    pub(crate) task: String,
    pub(crate) owner: String,
    pub(crate) liveness: Liveness,
}

/// A run that has been running for too long.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) run: i64,
    pub(crate) attempt: u32,
    pub(crate) task: String,
    pub(crate) handler: String,
    pub(crate) owner: String,
    /// What was recorded of its command.
    pub(crate) process: Option<String>,
    pub(crate) started_at: Option<Timestamp>,
    /// It is past its lease: its owner sends no heartbeat. Otherwise it is past its timeout.
    pub(crate) past_lease: bool,
    /// The scheduler that recovers the runs of its dead owner, if one has taken the owner's lock.
    pub(crate) heir: Option<String>,
}

/// What a scheduler had begun before the file was restored: its task, and others with its key, start nothing.
#[derive(Debug)]
pub(crate) struct HeldTask {
    /// `None`: what the scheduler may run is not known, so nothing starts.
    pub(crate) run: Option<i64>,
    /// The task, if the file has it now.
    pub(crate) task: Option<String>,
    /// `None`: the row that says what had begun is damaged.
    pub(crate) owner: Option<String>,
    /// Whether its owner goes on under this id; otherwise it is not known to have found that the file was restored.
    pub(crate) goes_on: bool,
    pub(crate) liveness: Liveness,
}

/// A scheduler that has not stopped, and whose workers ended.
#[derive(Debug)]
pub(crate) struct EndedWorkers {
    pub(crate) owner: String,
    pub(crate) pid: u32,
    /// When the newest ended, and why.
    pub(crate) at: Timestamp,
    pub(crate) error: String,
    pub(crate) count: u32,
}

/// A task whose newest runs are dead.
#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) task: String,
    pub(crate) count: u32,
    pub(crate) error: String,
    pub(crate) is_paused: bool,
    /// How many of its waiting runs are being marked, if it is marked.
    pub(crate) marked: Option<usize>,
}

/// A dead run after which no run of its task has succeeded.
#[derive(Debug)]
pub(crate) struct DeadRun {
    pub(crate) run: i64,
    pub(crate) task: String,
    /// The number of such runs of the task, including this one, which is the newest.
    pub(crate) count: u32,
    pub(crate) error: String,
}

/// A task that could not run after another one, which names it.
#[derive(Debug)]
pub(crate) struct CannotFollow {
    /// The task that names it, and the column that does.
    pub(crate) task: String,
    pub(crate) column: Origin,
    /// The name, and what is wrong with that task.
    pub(crate) target: String,
    pub(crate) reason: String,
}

/// Occurrences of a task that got no run.
#[derive(Debug)]
pub(crate) struct PassedOver {
    pub(crate) task: String,
    /// How many, when, and why.
    pub(crate) detail: String,
}

impl PassedOver {
    /// Says what was missed, and what to do about it.
    pub(crate) fn as_missed(&self) -> (String, String) {
        let PassedOver { task, detail } = self;
        (
            format!("{task} missed {detail}"),
            format!("see duly history {task}; if it is still wanted: duly trigger {task}"),
        )
    }

    /// Says what was skipped, and what to do about it.
    pub(crate) fn as_skipped(&self) -> (String, String) {
        let PassedOver { task, detail } = self;
        let advice = format!("see duly history {task}: shorten its runs or limit their time, or let it run less often");
        (format!("{task} was skipped {detail}"), advice)
    }

    /// Says what no start was left for, and what to do about it.
    pub(crate) fn as_limited(&self) -> (String, String) {
        let PassedOver { task, detail } = self;
        let advice =
            format!("see duly show {task}: let it run less often, or raise the limit (max_starts, duly limit)");
        (format!("{task}: {detail}"), advice)
    }
}

/// The unfinished runs of one moment, counted.
#[cfg(feature = "page")]
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) queued: u64,
    pub(crate) failed: u64,
    /// Running runs by owner.
    pub(crate) running: Vec<(String, u64)>,
    /// Queued and failed runs by what they wait for: a stored reason, or `time`, `rate` or `worker`.
    pub(crate) waiting: Vec<(&'static str, u64)>,
    /// Since when the oldest of what is due has been due: a task, or a run that nothing blocks.
    pub(crate) oldest_due: Option<Timestamp>,
}
