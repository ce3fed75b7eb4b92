//! What look-ups answer: the status of a store, the last runs of each task, what retention deletes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::model::json;
use crate::model::limit::LimitState;
use crate::model::run::{Run, RunStatus};
use crate::model::task::TaskStatus;

/// A scheduler that has not stopped in order.
///
/// ```
/// use duly::testing::Stepper;
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let stepper = Stepper::builder(&file, noon).workers(2).start()?;
/// let client = stepper.client().clone();
/// let instance = &client.status()?.instances[0];
/// assert_eq!((instance.workers, instance.alive), (2, Some(true)));
/// // Killed: it is listed until its runs are recovered.
/// stepper.crash();
/// assert_eq!(client.status()?.instances[0].alive, Some(false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Instance {
    /// Its id: the owner of its runs.
    pub id: String,
    /// The host name that it reported.
    pub host: String,
    /// The boot id of that machine, where it has one.
    pub boot_id: Option<String>,
    /// The id of its process.
    pub pid: u32,
    /// Its version of duly.
    pub version: String,
    /// How many handlers it runs at once.
    pub workers: u32,
    /// Its lease: how long it counts as alive without a heartbeat, if it has no lock file.
    #[serde(rename = "lease_ms", with = "json::duration")]
    pub lease: Duration,
    /// When it started.
    pub started_at: Timestamp,
    /// Its newest heartbeat.
    pub seen_at: Timestamp,
    /// Whether it is alive, by its lock; `None` if that cannot be known.
    pub alive: Option<bool>,
    /// Why it cannot be known.
    pub doubt: Option<String>,
    /// Whether it reports that it has not been able to write the database for ten seconds or longer.
    pub degraded: bool,
}

/// Schedules wait for the wall clock: it is not set, or it is behind a time up to which they have been resolved.
///
/// ```
/// use duly::testing::Stepper;
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// // A machine without a battery starts in 1970.
/// let start = "2027-03-14T12:00:00Z".parse()?;
/// let mut stepper = Stepper::builder(&file, start).start()?;
/// stepper.clock().set_wall("1970-01-01T00:00:05Z".parse()?);
/// stepper.step()?;
/// let wait = stepper.client().status()?.clock.ok_or("the clock is right")?;
/// assert_eq!(wait.waiting, None, "nothing is done");
/// assert!(wait.to_string().contains("it is not set, and shows 1970-01-01T00:00:05"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockWait {
    /// What the clock of the caller shows.
    pub shows: Timestamp,
    /// When all schedules continue.
    pub until: Timestamp,
    /// How many schedules and retries wait. `None`: the clock is not set, and nothing is done.
    pub waiting: Option<u64>,
}

impl fmt::Display for ClockWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClockWait { shows, until, waiting } = self;
        write!(f, "waiting for the clock until {until}: it ")?;
        match waiting {
            Some(count) => write!(f, "shows {shows}; schedules and retries that count from a later time: {count}"),
            None => write!(f, "is not set, and shows {shows}; nothing is done"),
        }
    }
}

/// The state of a database and its schedulers at one moment.
///
/// Its JSON is that of `duly status --json`: `tasks` and `runs` are objects with a number for each status, 0 included.
///
/// ```
/// use duly::{Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("alarm").handler("mail"))?;
/// let json = serde_json::to_value(client.status()?)?;
/// assert_eq!((&json["tasks"]["active"], &json["tasks"]["paused"], &json["next_run"]), (&1.into(), &0.into(), &().into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "StatusJson", from = "StatusJson")]
#[non_exhaustive]
pub struct Status {
    /// Schedulers that have not stopped in order; a dead one is listed until its runs are recovered.
    pub instances: Vec<Instance>,
    /// The number of tasks, by status, in the order of [`TaskStatus::ALL`].
    pub tasks: Vec<(TaskStatus, u64)>,
    /// The number of tasks that are due now, including those that are overdue.
    pub due: u64,
    /// The number of tasks that have been due for more than five minutes, or that SQL wrote and no scheduler has examined for as
    /// long: as [`Client::check`](crate::Client::check) counts them.
    pub overdue: u64,
    /// Tasks whose last two runs or more are dead; at most 100.
    pub failing: Vec<String>,
    /// The number of runs that are running, or may start now or later, by status, in the order of [`RunStatus::ALL`].
    pub runs: Vec<(RunStatus, u64)>,
    /// The number of runs that wait for something other than time: a key, an older run, their task.
    pub blocked: u64,
    /// Set while schedules wait for the clock.
    pub clock: Option<ClockWait>,
    /// The task that is due next, and when.
    pub next: Option<(String, Timestamp)>,
    /// All limits and their use.
    pub limits: Vec<LimitState>,
    /// The database: a file, or the address of a server, without its password.
    pub path: PathBuf,
    /// The size of the file in bytes; `None` for a database on a server, as the next.
    pub file_bytes: Option<u64>,
    /// The size of its write-ahead log in bytes.
    pub log_bytes: Option<u64>,
    /// The server and its version, as in `PostgreSQL 15.18`; `None` for a file.
    pub server: Option<String>,
    /// The version of SQLite that this process uses.
    pub sqlite: String,
    /// The zone data that this process uses, as [`zone_data`](crate::zone_data) displays it.
    pub zone_data: String,
}

/// The JSON form of a [`Status`].
#[derive(Serialize, Deserialize)]
struct StatusJson {
    schedulers: Vec<Instance>,
    tasks: BTreeMap<String, u64>,
    due: u64,
    overdue: u64,
    failing: Vec<String>,
    /// With the key `blocked`.
    runs: BTreeMap<String, u64>,
    waiting_for_clock_until: Option<Timestamp>,
    clock_shows: Option<Timestamp>,
    waiting_for_clock: Option<u64>,
    next_task: Option<String>,
    next_run: Option<Timestamp>,
    limits: Vec<LimitState>,
    file: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wal_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    sqlite: String,
    zone_data: String,
}

impl From<Status> for StatusJson {
    fn from(status: Status) -> Self {
        fn count<T: PartialEq>(counts: &[(T, u64)], status: &T) -> u64 {
            counts.iter().find(|(one, _)| one == status).map_or(0, |(_, count)| *count)
        }
        let waiting = RunStatus::ALL.iter().filter(|status| !status.is_final());
        let runs = waiting.map(|one| (one.to_string(), count(&status.runs, one)));
        let tasks = TaskStatus::ALL.iter().map(|one| (one.to_string(), count(&status.tasks, one)));
        let (next_task, next_run) = status.next.unzip();
        let clock = status.clock.as_ref();
        StatusJson {
            tasks: tasks.collect(),
            runs: runs.chain([("blocked".to_owned(), status.blocked)]).collect(),
            waiting_for_clock_until: clock.map(|wait| wait.until),
            clock_shows: clock.map(|wait| wait.shows),
            waiting_for_clock: clock.and_then(|wait| wait.waiting),
            next_task,
            next_run,
            schedulers: status.instances,
            due: status.due,
            overdue: status.overdue,
            failing: status.failing,
            limits: status.limits,
            file: status.path.to_string_lossy().into_owned(),
            file_bytes: status.file_bytes,
            wal_bytes: status.log_bytes,
            server: status.server,
            sqlite: status.sqlite,
            zone_data: status.zone_data,
        }
    }
}

impl From<StatusJson> for Status {
    fn from(json: StatusJson) -> Self {
        let count = |of: &BTreeMap<String, u64>, key: &str| of.get(key).copied().filter(|count| *count > 0);
        let tasks = TaskStatus::ALL.iter().filter_map(|one| Some((*one, count(&json.tasks, one.as_str())?)));
        let runs = RunStatus::ALL.iter().filter_map(|one| Some((*one, count(&json.runs, one.as_str())?)));
        let clock = json.waiting_for_clock_until.zip(json.clock_shows);
        Status {
            tasks: tasks.collect(),
            runs: runs.collect(),
            blocked: count(&json.runs, "blocked").unwrap_or_default(),
            clock: clock.map(|(until, shows)| ClockWait { shows, until, waiting: json.waiting_for_clock }),
            next: json.next_task.zip(json.next_run),
            path: json.file.into(),
            instances: json.schedulers,
            due: json.due,
            overdue: json.overdue,
            failing: json.failing,
            limits: json.limits,
            file_bytes: json.file_bytes,
            log_bytes: json.wal_bytes,
            server: json.server,
            sqlite: json.sqlite,
            zone_data: json.zone_data,
        }
    }
}

/// A run in short.
///
/// ```
/// use duly::{Client, NewTask, RunStatus};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("export").handler("export"))?;
/// client.cancel(client.trigger("export")?)?;
/// let recent = client.task_details("export")?.recent[0];
/// assert_eq!((recent.status, recent.duration), (RunStatus::Cancelled, None), "no attempt began");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recent {
    /// Its status.
    pub status: RunStatus,
    /// How long its newest attempt took, if one began and ended.
    #[serde(rename = "duration_ms", with = "json::optional_duration")]
    pub duration: Option<Duration>,
}

impl From<&Run> for Recent {
    fn from(run: &Run) -> Self {
        Recent { status: run.status, duration: run.duration }
    }
}

/// What retention deleted.
///
/// ```
/// use duly::{Client, Pruned, Retention};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// // A new file has nothing to delete.
/// assert_eq!(Client::open(&file)?.prune(Retention::default())?, Pruned::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pruned {
    /// Completed tasks that were due once; their runs were deleted with them.
    pub tasks: usize,
    /// Final runs of other tasks.
    pub runs: usize,
    /// Events.
    pub events: usize,
    /// Rows of stopped schedulers: expired ones, and all but the newest hundred.
    pub instances: usize,
}

/// What [`migrate`](crate::migrate) copied.
///
/// ```no_run
/// let back = duly::migrate("postgres://duly@db.example/app", "agent.db", &duly::Progress::default())?;
/// println!("{} tasks, {} runs, {} other rows", back.tasks, back.runs, back.others);
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Migrated {
    /// Tasks.
    pub tasks: u64,
    /// Runs, finished ones too.
    pub runs: u64,
    /// Rows of the other tables: attempts, effects, limits, events, stopped schedulers, alarms.
    pub others: u64,
    /// Texts of a file, such as outputs, that hold what PostgreSQL cannot store: the copy has U+FFFD in place of U+0000 and of bytes
    /// that are no UTF-8.
    pub replaced: u64,
}

/// The position of a pass of retention over the tasks. A pass ends at the last task that existed when it began: tasks that are
/// added meanwhile, however many, do not delay the next pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    /// The id of the last task that was examined; 0: the next batch begins a pass.
    pub(crate) after: i64,
    /// The id of the last task of this pass.
    pub(crate) last: i64,
}

/// A broken rule of the database. Its `Display` is one line.
///
/// ```
/// use duly::{Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("export").handler("export"))?;
/// client.trigger("export")?;
/// let plain = duly::rusqlite::Connection::open(&file)?;
/// // Another program writes a value that no column accepts.
/// plain.execute_batch("PRAGMA ignore_check_constraints = ON; UPDATE task_runs SET priority = 9")?;
/// let findings = client.doctor()?;
/// assert!(findings[0].to_string().starts_with("integrity_check: "), "{findings:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The rule; `integrity_check` and `foreign_key_check` are SQLite's.
    pub rule: &'static str,
    /// What breaks it.
    pub found: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.found)
    }
}
