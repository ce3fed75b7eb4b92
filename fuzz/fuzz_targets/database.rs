//! A database with changed bytes: readers and a scheduler return results or errors, without a panic.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use duly::testing::Stepper;
use duly::{Client, Limits, NewTask, Outcome, Result, Timestamp};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const NOON: Timestamp = Timestamp::from_millis(1_805_025_600_000);

static HOME: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder"));

/// A file with tasks of several kinds, and runs that succeeded, failed, wait and were running.
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let file = HOME.path().join("whole.db");
    let mut stepper = Stepper::builder(&file, NOON).accept("h").seed(1).start().expect("a stepper");
    let minute = std::time::Duration::from_secs(60);
    let tasks =
        [NewTask::cron("cron", "* * * * *"), NewTask::interval("grid", minute), NewTask::delay("delay", minute)];
    for task in tasks {
        stepper.client().add(task.handler("h").concurrency_key("key")).expect("a task");
    }
    for round in 0..8 {
        for claim in stepper.step().expect("a turn") {
            stepper.finish(&claim, if round % 2 == 0 { Outcome::succeeded() } else { Outcome::failed("no") });
        }
        stepper.clock().advance(minute);
    }
    stepper.step().expect("a turn");
    stepper.crash();
    std::fs::read(file).expect("the file")
});

fn look(file: &Path) -> Result<()> {
    let client = Client::open_existing(file)?;
    let _ = (client.names(), client.recent(5), client.status(), client.check(&Limits::default()), client.doctor());
    for task in client.tasks().unwrap_or_default() {
        let _ = (task.occurrences(NOON, 2), client.history(task.name(), 10));
    }
    for run in client.newest_runs(100)? {
        let _ = (client.attempts(run.id), client.effects(run.id));
    }
    client.trigger("grid").map(|_| ())
}

fn work(file: &Path) -> Result<()> {
    let mut stepper = Stepper::builder(file, NOON).accept("h").seed(2).start()?;
    for _ in 0..3 {
        stepper.clock().advance(std::time::Duration::from_secs(600));
        for claim in stepper.step()? {
            stepper.finish(&claim, Outcome::succeeded());
        }
    }
    stepper.stop()
}

fuzz_target!(|changes: Vec<(u32, u8)>| {
    let mut bytes = WHOLE.clone();
    for (at, byte) in changes {
        let at = at as usize % bytes.len();
        bytes[at] = byte;
    }
    let home = tempfile::tempdir_in(HOME.path()).expect("a folder");
    let file = home.path().join("agent.db");
    std::fs::write(&file, bytes).expect("the file");
    for answer in [look(&file), work(&file), look(&file)] {
        if let Err(error) = answer {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }
});
