//! Faults of the disk, of the database file and of memory, with real processes: while the scheduler is idle, while a command
//! runs, and while its outcome is to be recorded. After the fault every running attempt is accounted for; nothing starts
//! unrecorded; the log reports the fault once when it begins and once when it ends.
//!
//! By default some places are tried; with `DULY_DISK=all` every one.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;

use duly::NewTask;

use crate::fixtures::{TestDb, retry_soon};
use crate::sidecar::shell;

/// The file: replaced, removed, corrupt, foreign, newer, read-only.
mod damaged_file;
/// Handlers that write: effects are done once, rows and outcomes never disagree.
mod effects;
/// The n-th write, sync or read fails, for each n.
mod injected;
/// A writer that holds the lock for long, and a reader that holds an old snapshot.
mod locks;
/// SQLite's heap is full.
mod memory;
/// A fault that begins at a chosen moment and lasts: disk errors, a full disk, a limit, a lock.
mod outages;
/// The tools: strace, a small disk, a file size limit.
pub(crate) mod tools;

/// Whether every place is to be tried.
fn all() -> bool {
    std::env::var("DULY_DISK").as_deref() == Ok("all")
}

/// Retries as soon as possible.
fn soon(task: NewTask) -> NewTask {
    retry_soon(task, 5)
}

/// Returns a task whose command records its start in the file `starts`, and then runs `work`.
fn probe(db: &TestDb, name: &str, work: &str) -> NewTask {
    let home = db.home().display();
    soon(shell(name, &format!("echo $DULY_RUN_ID $DULY_ATTEMPT >>{home}/starts; {work}")))
}

/// Returns the starts that the commands have recorded.
fn starts(db: &TestDb) -> Vec<(i64, u32)> {
    let text = std::fs::read_to_string(db.home().join("starts")).unwrap_or_default();
    let start = |line: &str| {
        let (run, attempt) = line.split_once(' ').expect("two numbers");
        (run.parse().expect("a run"), attempt.parse().expect("an attempt"))
    };
    text.lines().map(start).collect()
}

/// Checks that each start is recorded and happened once, that each success has started, and that no run is left.
fn assert_consistent(db: &TestDb, what: &str) {
    let started = starts(db);
    let once: BTreeSet<_> = started.iter().copied().collect();
    assert_eq!(once.len(), started.len(), "{what}: an attempt started twice: {started:?}");
    for (run, attempt) in &started {
        let recorded = db.ask(&format!("SELECT count(*) FROM task_runs WHERE id = {run} AND attempt >= {attempt}"));
        assert_eq!(recorded, "1", "{what}: attempt {attempt} of run {run} started and is not recorded");
    }
    for row in db.rows("SELECT id, attempt FROM task_runs WHERE status = 'succeeded'") {
        let (run, attempt) = row.split_once('|').expect("two columns");
        let end = (run.parse().expect("a run"), attempt.parse().expect("an attempt"));
        assert!(once.contains(&end), "{what}: run {run} succeeded according to its row and has not started");
    }
    let open = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running', 'failed')";
    assert_eq!(db.ask(open), "0", "{what}: unfinished runs");
    db.assert_sound();
}

const REFUSES: &str = "the database cannot be written";
const ACCEPTS: &str = "the database can be written again";

/// Returns how often the log reports that the database cannot be written. Each time it reports the beginning and the end
/// once.
fn count_outages(log: &str) -> usize {
    assert!(!log.contains("panicked"), "{log}");
    let words = log.lines().filter(|line| line.contains(REFUSES) || line.contains(ACCEPTS));
    let mut refused = 0;
    for (number, line) in words.enumerate() {
        let begins = line.contains(REFUSES);
        assert_eq!(begins, number % 2 == 0, "more than one line for a change: {log}");
        refused += usize::from(begins);
    }
    refused
}
