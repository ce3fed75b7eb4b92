//! The whole at a glance: who is at work, what is due, what fails, how large the file is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Transaction;

use crate::client::Client;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::host::owner_lock::{Standing, standing};
use crate::model::run::RunStatus;
use crate::model::task::TaskStatus;
use crate::rules::clock_monitor::NOTICED;
use crate::schedule::ZoneData;
use crate::schedule::zone_data;
use crate::store::sqlite::{census, health, owners};

/// A task that has been due for longer is overdue: no scheduler is at work.
const OVERDUE: Duration = Duration::from_secs(5 * 60);

/// A scheduler that has not left in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Instance {
    /// Its id: the owner of its runs.
    pub id: String,
    /// The machine that it said it runs on.
    pub host: String,
    /// The boot id of that machine, where it has one.
    pub boot_id: Option<String>,
    /// The number of its process.
    pub pid: u32,
    /// Which duly it is.
    pub version: String,
    /// How many handlers it runs at once.
    pub workers: u32,
    /// Its lease: how long it is presumed to work without a heartbeat, if it has no lock file.
    pub lease: Duration,
    /// When it started.
    pub started_at: Timestamp,
    /// When it last gave a sign of life.
    pub seen_at: Timestamp,
    /// Whether it is alive, by its lock; `None` if that cannot be known.
    pub alive: Option<bool>,
    /// Why it cannot be known.
    pub doubt: Option<String>,
    /// Whether it says that it has not been able to write the database for ten seconds or longer.
    pub degraded: bool,
}

/// Schedules wait for the wall clock: it is not set, or it is behind a time up to which they have been resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockWait {
    /// What the clock of the caller shows.
    pub shows: Timestamp,
    /// When all schedules go on.
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

/// A file and its scheduler, as they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Schedulers that have not left in order, the dead among them until their runs are recovered.
    pub instances: Vec<Instance>,
    /// How many tasks there are, by status.
    pub tasks: Vec<(TaskStatus, u64)>,
    /// Tasks that are due now, including those that are overdue.
    pub due: u64,
    /// Tasks that have been due for more than five minutes, or that SQL wrote and no scheduler has looked at for as long: as
    /// [`Client::check`] counts them.
    pub overdue: u64,
    /// Tasks of which two runs in a row or more are dead, a hundred at most.
    pub failing: Vec<String>,
    /// Runs that are at work, or may start now or later, by status.
    pub runs: Vec<(RunStatus, u64)>,
    /// Runs that wait for something else than time: a key, an older run, their task.
    pub blocked: u64,
    /// Set while schedules wait for the clock.
    pub clock: Option<ClockWait>,
    /// The task that is due next, and when.
    pub next: Option<(String, Timestamp)>,
    /// The file.
    pub path: PathBuf,
    /// How large it is.
    pub file_bytes: u64,
    /// How large its write-ahead log is.
    pub log_bytes: u64,
    /// Which SQLite is at work.
    pub sqlite: &'static str,
    /// Which zone data this process goes by.
    pub zone_data: &'static ZoneData,
}

impl Client {
    /// Looks at the whole. It reads every task once.
    ///
    /// ```
    /// use duly::{Client, NewTask, TaskStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// let status = client.status()?;
    /// assert_eq!(status.tasks, [(TaskStatus::Active, 1)]);
    /// assert_eq!(status.next.map(|(name, _)| name).as_deref(), Some("digest"));
    /// // Nobody is at work: the task will be due, and wait.
    /// assert!(status.instances.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn status(&self) -> Result<Status> {
        let now = self.now();
        let (path, file_bytes, log_bytes) = self.sizes();
        self.read("look at the whole", |tx, _| {
            let unfinished = census::unfinished(tx)?;
            let known = |(status, count): &(String, u64)| Some((RunStatus::parse(status)?, *count));
            let tasks = census::tasks(tx)?.into_iter().filter_map(|(status, n)| Some((TaskStatus::parse(&status)?, n)));
            Ok(Status {
                instances: instances(tx, &path)?,
                tasks: tasks.collect(),
                due: census::overdue(tx, now.plus(Duration::from_millis(1)))?,
                overdue: census::overdue(tx, now.minus(OVERDUE))?,
                failing: census::failing(tx)?,
                runs: unfinished.iter().filter_map(known).collect(),
                blocked: unfinished.iter().find(|(status, _)| status == "blocked").map_or(0, |(_, count)| *count),
                clock: clock_wait(tx, now)?,
                next: census::next(tx)?,
                path: path.clone(),
                file_bytes,
                log_bytes,
                sqlite: crate::store::sqlite::connection::sqlite_version(),
                zone_data: zone_data(),
            })
        })
    }
}

/// Whether schedules wait for the clock.
pub(crate) fn clock_wait(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<Option<ClockWait>> {
    let (count, counted) = health::counted_beyond(tx, now.plus(NOTICED))?;
    if now < Timestamp::MIN {
        let until = counted.max(owners::newest_seen(tx)?).unwrap_or(Timestamp::MIN);
        return Ok(Some(ClockWait { shows: now, until, waiting: None }));
    }
    Ok(counted.map(|until| ClockWait { shows: now, until, waiting: Some(count) }))
}

/// Schedulers that have not left in order, and what the kernel says of each.
pub(crate) fn instances(tx: &Transaction<'_>, path: &Path) -> rusqlite::Result<Vec<Instance>> {
    let instances = census::instances(tx)?.into_iter().map(|one| {
        let standing = standing(path, &one.id);
        let degraded = matches!(standing, Standing::Alive { degraded: true });
        let (alive, doubt) = match standing {
            Standing::Alive { .. } => (Some(true), None),
            Standing::Dead(_) | Standing::Inherited(_) => (Some(false), None),
            Standing::Missing => (None, Some("it has no lock file, or a copy in its place".to_owned())),
            Standing::Unknown(reason) => (None, Some(reason)),
        };
        let census::Instance { id, host, boot_id, pid, version, workers, lease, started_at, seen_at } = one;
        Instance { id, host, boot_id, pid, version, workers, lease, started_at, seen_at, alive, doubt, degraded }
    });
    Ok(instances.collect())
}
