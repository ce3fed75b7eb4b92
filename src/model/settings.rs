//! Settings of a scheduler and their limits.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::schedule::duration_text;

/// How long ended rows are kept. Default: 30 days each; of a task's runs at least 100 and at most 10 000.
///
/// ```
/// use duly::Retention;
/// let keep = Retention { least_runs: 10, ..Retention::default() };
/// assert_eq!((keep.runs.as_secs(), keep.most_runs), (30 * 86_400, 10_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Completed `once` tasks, with their runs. A name is an idempotency key as long as its row is kept. A task that a
    /// manifest declares is kept, since applying the manifest again would run it again.
    pub once: Duration,
    /// Final runs of other tasks.
    pub runs: Duration,
    /// At least this number of runs per task is kept, whatever their age.
    pub least_runs: u32,
    /// At most this number of runs per task is kept; the oldest final ones are deleted first.
    pub most_runs: u32,
    /// Events, and the rows of stopped schedulers.
    pub events: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let month = Duration::from_secs(30 * 86_400);
        Retention { once: month, runs: month, least_runs: 100, most_runs: 10_000, events: month }
    }
}

impl Retention {
    /// Checks the values.
    pub(crate) fn check(&self) -> Result<()> {
        let (least, most) = (self.least_runs, self.most_runs);
        if least <= most && most > 0 {
            return Ok(());
        }
        let reason = format!("expected least_runs not above most_runs, found {least} and {most}");
        Err(Error::InvalidConfig { field: "retention", reason })
    }
}

/// The shortest lease on a server: an attempt has some seconds to stop, after some lost heartbeats.
#[cfg(feature = "postgres")]
const LEAST_LEASE_ON_SERVER: Duration = Duration::from_secs(30);

/// Settings of a scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) workers: usize,
    /// How long an owner without a heartbeat counts as alive. A heartbeat is due every third of it.
    pub(crate) lease: Duration,
    /// The interval at which it polls for changes by other programs.
    pub(crate) poll: Duration,
    pub(crate) retention: Retention,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            workers: 4,
            lease: Duration::from_secs(60),
            poll: Duration::from_secs(1),
            retention: Retention::default(),
        }
    }
}

impl Settings {
    /// Checks the values.
    pub(crate) fn check(&self) -> Result<()> {
        let Settings { workers, lease, poll, retention } = *self;
        let wrong = |field, found: String, expected: &str| {
            Err(Error::InvalidConfig { field, reason: format!("expected {expected}, found {found}") })
        };
        if !(1..=256).contains(&workers) {
            return wrong("workers", workers.to_string(), "1 to 256");
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&lease) {
            return wrong("lease", duration_text(lease), "one second to a day");
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&poll) {
            return wrong("poll", duration_text(poll), "10 ms to an hour");
        }
        retention.check()
    }

    /// Checks what a server needs beside that: a scheduler that cannot reach it has to stop its attempts before its lease ends.
    #[cfg(feature = "postgres")]
    pub(crate) fn check_on_server(&self) -> Result<()> {
        if self.lease >= LEAST_LEASE_ON_SERVER {
            return Ok(());
        }
        let found = self.lease;
        let reason = format!(
            "expected at least {} with a database on a server, found {}",
            duration_text(LEAST_LEASE_ON_SERVER),
            duration_text(found)
        );
        Err(Error::InvalidConfig { field: "lease", reason })
    }
}

/// The methods of a builder that set its field `settings`.
macro_rules! settings_methods {
    () => {
        /// Sets the number of worker threads, 1 to 256: how many runs of closures and other [`Handler`](crate::Handler) types run
        /// at once. Default 4. Async handlers have a limit of their own (`async_limit`), and take no worker. While runs are
        /// short, more are claimed ahead, which wait less than a second for a worker; runs that may start only once are not.
        ///
        /// ```
        /// # let home = tempfile::tempdir()?;
        /// # let file = home.path().join("agent.db");
        /// let error = duly::Scheduler::builder(&file).workers(0).start().unwrap_err();
        /// assert_eq!(error.to_string(), "invalid workers: expected 1 to 256, found 0");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn workers(mut self, workers: usize) -> Self {
            self.settings.workers = workers;
            self
        }

        /// Lease: how long a scheduler without a heartbeat counts as alive, at least a second. Default one minute. A dead process
        /// is detected at once all the same; the lease is for a process that is alive and stalled. With a database on a server it is
        /// at least 30 seconds, and schedulers on other hosts recover the runs of a dead one when its lease has passed.
        ///
        /// ```
        /// use std::time::Duration;
        /// # let home = tempfile::tempdir()?;
        /// # let file = home.path().join("agent.db");
        /// let error = duly::Scheduler::builder(&file).lease(Duration::from_millis(500)).start().unwrap_err();
        /// assert_eq!(error.to_string(), "invalid lease: expected one second to a day, found 500ms");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn lease(mut self, lease: Duration) -> Self {
            self.settings.lease = lease;
            self
        }

        /// Poll interval: how often the scheduler looks for changes by other programs, 10 ms to an hour. Default one second. Due
        /// tasks start on time whatever it is.
        pub fn poll(mut self, interval: Duration) -> Self {
            self.settings.poll = interval;
            self
        }

        /// Retention: how long history is kept. It is deleted in small batches, at heartbeats at which nothing else is to be
        /// done, or beside other work after a minute without such a heartbeat; and not within 24 hours after the clock stepped
        /// by a day or more, because it may have been wrong.
        ///
        /// ```
        /// use duly::{Retention, Scheduler};
        /// # let home = tempfile::tempdir()?;
        /// # let file = home.path().join("agent.db");
        /// let keep = Retention { least_runs: 10, most_runs: 1000, ..Retention::default() };
        /// Scheduler::builder(&file).retention(keep).start()?;
        /// let none = Retention { least_runs: 0, most_runs: 0, ..keep };
        /// assert!(Scheduler::builder(&file).retention(none).start().is_err(), "at least one run is kept");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn retention(mut self, keep: Retention) -> Self {
            self.settings.retention = keep;
            self
        }
    };
}
pub(crate) use settings_methods;
