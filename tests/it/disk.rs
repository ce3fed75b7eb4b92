//! Faults of the disk, of its file and of memory, with real processes: while nothing is at work, while a command is, and while
//! its end is to be written down. What was at work is known when the fault is over; nothing starts that is not recorded; the log
//! says once that it began and once that it ended.
//!
//! By default some places are tried; with `DULY_DISK=all` every one.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::time::Duration;

use duly::{NewTask, RetryPolicy};

use crate::fixtures::TestDb;
use crate::sidecar::shell;

/// The file itself: replaced, removed, corrupt, foreign, newer, read-only.
mod damaged_file;
/// The same where handlers write: effects are done once, rows and outcomes never disagree.
mod effects;
/// The n-th write, sync or read fails, from the first until none is left.
mod injected;
/// A writer that holds the lock for long, and a reader that holds an old snapshot.
mod locks;
/// SQLite's heap is full.
mod memory;
/// A fault that begins at a chosen moment and lasts: errors of the disk, a full disk, a limit, a lock.
mod outages;
/// The tools: strace, a small disk, a limit on the size of files.
pub(crate) mod tools;

/// Whether every place is to be tried.
fn all() -> bool {
    std::env::var("DULY_DISK").as_deref() == Ok("all")
}

/// Tried again as soon as may be.
fn soon(task: NewTask) -> NewTask {
    let (backoff, max_backoff) = (Duration::from_millis(10), Duration::from_millis(50));
    task.retry(RetryPolicy { backoff, max_backoff, ..RetryPolicy::default() })
}

/// A task whose command says in the file `starts` that it starts, and does its work then.
fn probe(db: &TestDb, name: &str, work: &str) -> NewTask {
    let home = db.home().display();
    soon(shell(name, &format!("echo $DULY_RUN_ID $DULY_ATTEMPT >>{home}/starts; {work}")))
}

/// What started, as the commands themselves tell.
fn starts(db: &TestDb) -> Vec<(i64, u32)> {
    let text = std::fs::read_to_string(db.home().join("starts")).unwrap_or_default();
    let start = |line: &str| {
        let (run, attempt) = line.split_once(' ').expect("two numbers");
        (run.parse().expect("a run"), attempt.parse().expect("an attempt"))
    };
    text.lines().map(start).collect()
}

/// Whatever started is recorded, and started once; what succeeded did start; no run is left, and the file is sound.
fn assert_all_told(db: &TestDb, what: &str) {
    let started = starts(db);
    let once: BTreeSet<_> = started.iter().copied().collect();
    assert_eq!(once.len(), started.len(), "{what}: an attempt started twice: {started:?}");
    for (run, attempt) in &started {
        let recorded = db.ask(&format!("SELECT count(*) FROM task_runs WHERE id = {run} AND attempt >= {attempt}"));
        assert_eq!(recorded, "1", "{what}: attempt {attempt} of run {run} started, and is not recorded");
    }
    for row in db.rows("SELECT id, attempt FROM task_runs WHERE status = 'succeeded'") {
        let (run, attempt) = row.split_once('|').expect("two columns");
        let end = (run.parse().expect("a run"), attempt.parse().expect("an attempt"));
        assert!(once.contains(&end), "{what}: run {run} is said to have succeeded, and has not started");
    }
    let open = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running', 'failed')";
    assert_eq!(db.ask(open), "0", "{what}: something is left");
    db.assert_sound();
}

const REFUSES: &str = "the database cannot be written";
const ACCEPTS: &str = "the database can be written again";

/// How often the log says that the database refuses to be written. Each time it says once that it did begin, and once that it
/// is over; and nobody has panicked.
fn refusals(log: &str) -> usize {
    assert!(!log.contains("panicked"), "{log}");
    let words = log.lines().filter(|line| line.contains(REFUSES) || line.contains(ACCEPTS));
    let mut refused = 0;
    for (number, line) in words.enumerate() {
        let begins = line.contains(REFUSES);
        assert_eq!(begins, number % 2 == 0, "not one line a change: {log}");
        refused += usize::from(begins);
    }
    refused
}
