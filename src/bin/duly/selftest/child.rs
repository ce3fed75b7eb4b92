//! The child processes of the selftest. Each has a role in one check, works in the folder of the check, and exits when its
//! standard input ends. So it does not outlive the selftest, however that ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use duly::{BoxError, Context, Retention, Scheduler};
use serde::{Deserialize, Serialize};

use crate::selftest::checker::Line;
use crate::selftest::probe::{self, LockState, Locks};

/// Environment variable that names the role.
pub(crate) const ROLE: &str = "DULY_SELFTEST_PART";

/// Files in the folder of a check.
pub(crate) const DATABASE: &str = "agent.db";
pub(crate) const JOURNAL: &str = "journal";
/// File with the lock states that a child found, and file that shows that a child holds the locks.
pub(crate) const FOUND: &str = "found";
pub(crate) const HOLDING: &str = "holding";

/// Handler of the tasks.
pub(crate) const HANDLER: &str = "selftest";
/// Workers of a scheduler.
const WORKERS: usize = 4;
/// Poll interval of a scheduler.
const POLL: Duration = Duration::from_millis(50);
/// Lease: longer than the test, so that recovery must not depend on it.
const LEASE: Duration = Duration::from_secs(600);
/// Drain time of a scheduler.
const DRAIN: Duration = Duration::from_secs(30);

/// The role of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Tries to take both locks, and writes the result to a file.
    TryLocks,
    /// Takes both locks, and holds them.
    HoldLocks,
    /// Increments a counter that another child increments too.
    Count,
    /// Runs a scheduler.
    Schedule,
}

impl Role {
    const ALL: [Role; 4] = [Role::TryLocks, Role::HoldLocks, Role::Count, Role::Schedule];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::TryLocks => "try",
            Role::HoldLocks => "hold",
            Role::Count => "count",
            Role::Schedule => "schedule",
        }
    }

    /// Returns the role of this process, if it is a child of a selftest.
    pub(crate) fn from_env() -> Option<Role> {
        let name = std::env::var(ROLE).ok()?;
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Does the work of the role, in the current directory.
    pub(crate) fn run(self) -> Result<(), BoxError> {
        let folder = Path::new(".");
        match self {
            Role::TryLocks => {
                let found = LockState::both(folder);
                std::fs::write(FOUND, found.map(|found| format!("{found}\n")).concat())?;
            }
            Role::HoldLocks => {
                let _locks = Locks::take(folder)?;
                File::create(HOLDING)?;
                wait_for_end()?;
            }
            Role::Count => probe::count(folder)?,
            Role::Schedule => schedule()?,
        }
        Ok(())
    }
}

/// Waits until the parent has ended or has closed the pipe.
fn wait_for_end() -> io::Result<()> {
    io::stdin().read_to_end(&mut Vec::new()).map(|_| ())
}

/// The work of a task.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) millis: u64,
    /// The first attempt of each run fails.
    pub(crate) fails_first: bool,
}

fn schedule() -> Result<(), BoxError> {
    let journal = OpenOptions::new().append(true).open(JOURNAL)?;
    // The checker needs every run.
    let (long, all) = (Duration::from_secs(10 * 365 * 86_400), u32::MAX);
    let keep = Retention { once: long, runs: long, least_runs: 0, most_runs: all, events: long };
    let scheduler = Scheduler::builder(DATABASE)
        .existing()
        .workers(WORKERS)
        .poll(POLL)
        .lease(LEASE)
        .retention(keep)
        .handler(HANDLER, move |run: &Context| work(run, &journal))
        .start()?;
    wait_for_end()?;
    match scheduler.shutdown(DRAIN)?.unfinished {
        0 => Ok(()),
        count => Err(format!("{count} runs had not ended").into()),
    }
}

fn work(run: &Context, mut journal: &File) -> Result<(), BoxError> {
    let (id, attempt, scheduled_for) = (run.run_id(), run.attempt(), run.scheduled_for());
    let mut write = |line: Line| journal.write_all(line.to_string().as_bytes());
    let task = run.task().to_owned();
    write(Line::Began { run: id, attempt, process: std::process::id(), scheduled_for, task })?;
    let Work { millis, fails_first } = run.payload()?;
    let stopped = run.wait_cancelled(Duration::from_millis(millis));
    write(Line::Ended { run: id, attempt })?;
    match attempt {
        _ if stopped => Err("asked to stop".into()),
        1 if fails_first => Err("the first attempt fails on purpose".into()),
        _ => Ok(()),
    }
}
