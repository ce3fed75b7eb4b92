//! How fast what is due is carried out: 10 000 stored `once` tasks with a handler that does nothing, until every outcome is
//! stored, beside a bare loop that does the least a durable scheduler can.
//!
//! `cargo bench --bench drain [-- TASKS [ROUNDS]]`. Rounds are interleaved and the figure is the ratio of medians: on a
//! shared machine the same loop runs three times slower from one minute to the next, and only ratios can be compared.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use duly::{Client, Context, Durability, NewTask, Scheduler};
use rusqlite::{Connection, TransactionBehavior, params};

const WORKERS: usize = 2;
/// Claims and outcomes in one transaction of the bare loop.
const BATCH: usize = 100;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (tasks, rounds) = (numbers.next().unwrap_or(10_000), numbers.next().unwrap_or(7));
    println!("{tasks} tasks, {WORKERS} workers, median of {rounds} interleaved rounds");
    println!(
        "{:<12} {:>14} {:>14} {:>8} {:>12} {:>12}",
        "durability", "bare runs/s", "duly runs/s", "ratio", "us/run", "bytes/run"
    );
    for (name, durability, synchronous) in
        [("normal", Durability::MayRepeatAfterPowerLoss, "NORMAL"), ("full", Durability::Full, "FULL")]
    {
        let mut bare_times = Vec::new();
        let mut duly_times = Vec::new();
        let mut bytes = 0;
        for _ in 0..rounds {
            bare_times.push(fresh(|file| bare(file, tasks, synchronous)).0);
            let (time, size) = fresh(|file| duly(file, tasks, durability));
            duly_times.push(time);
            bytes = size / tasks as u64;
        }
        let (bare, duly) = (median(&mut bare_times), median(&mut duly_times));
        let per_second = |time: Duration| tasks as f64 / time.as_secs_f64();
        println!(
            "{name:<12} {:>14.0} {:>14.0} {:>8.3} {:>12.1} {bytes:>12}",
            per_second(bare),
            per_second(duly),
            bare.as_secs_f64() / duly.as_secs_f64(),
            duly.as_secs_f64() * 1e6 / tasks as f64,
        );
    }
}

/// Runs `f` on a new file, and answers with what it took and how large the file became.
fn fresh(f: impl FnOnce(&Path) -> Duration) -> (Duration, u64) {
    let home = tempfile::tempdir().expect("a folder for the bench");
    let file = home.path().join("bench.db");
    let time = f(&file);
    (time, std::fs::metadata(&file).map_or(0, |metadata| metadata.len()))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn duly(file: &Path, tasks: usize, durability: Durability) -> Duration {
    let due = "2025-01-01T00:00:00Z".parse().expect("an instant");
    let client = Client::open(file).expect("a new database");
    client.add_all((0..tasks).map(|n| NewTask::once(format!("task-{n}"), due).handler("none"))).expect("new tasks");

    let started = Arc::new(AtomicUsize::new(0));
    let counter = started.clone();
    let scheduler = Scheduler::builder(file)
        .workers(WORKERS)
        .durability(durability)
        .handler("none", move |_: &Context| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::fmt::Error>(())
        })
        .start()
        .expect("a scheduler");
    // As with the bare loop, opening the file and closing it (SQLite then writes the whole log back) are not counted.
    let begin = Instant::now();
    while started.load(Ordering::Relaxed) < tasks {
        std::thread::sleep(Duration::from_micros(200));
    }
    // Shutdown waits until the last outcome is stored.
    scheduler.shutdown(Duration::from_secs(60)).expect("a shutdown");
    let time = begin.elapsed();
    drop(client);
    assert_eq!(started.load(Ordering::Relaxed), tasks, "each once");
    time
}

/// The least that keeps the promise while the process lives: one row a task, one a run, one index, claims and outcomes in
/// one transaction.
fn bare(file: &Path, tasks: usize, synchronous: &str) -> Duration {
    let mut connection = Connection::open(file).expect("a new database");
    connection
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous};
             CREATE TABLE tasks (id INTEGER PRIMARY KEY, name TEXT, payload TEXT, next_run INTEGER, status INTEGER);
             CREATE INDEX due ON tasks (next_run) WHERE status = 0;
             CREATE TABLE runs (id INTEGER PRIMARY KEY, task_id INTEGER, finished_at INTEGER, status TEXT);"
        ))
        .expect("the bare tables");
    let transaction = connection.transaction().expect("a transaction");
    for n in 0..tasks {
        transaction
            .prepare_cached("INSERT INTO tasks (name, payload, next_run, status) VALUES (?1, 'null', ?2, 0)")
            .and_then(|mut insert| insert.execute(params![format!("task-{n}"), 1_735_689_600_000_i64]))
            .expect("a task");
    }
    transaction.commit().expect("a commit");

    let (claims, queue) = bounded::<i64>(BATCH * 2);
    let (done, outcomes) = bounded::<i64>(BATCH * 2);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            let (queue, done) = (queue.clone(), done.clone());
            scope.spawn(move || queue.into_iter().try_for_each(|id| done.send(id)));
        }
        drop((queue, done));
        let (mut stored, mut finished) = (0, Vec::with_capacity(BATCH));
        while stored < tasks {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("a turn");
            for id in &finished {
                transaction
                    .prepare_cached("INSERT INTO runs (task_id, finished_at, status) VALUES (?1, ?2, 'succeeded')")
                    .and_then(|mut insert| insert.execute(params![id, 1_735_689_600_000_i64]))
                    .expect("an outcome");
                transaction
                    .prepare_cached("UPDATE tasks SET status = 2 WHERE id = ?1")
                    .and_then(|mut update| update.execute([id]))
                    .expect("a task that is done");
            }
            let claimed: Vec<i64> = transaction
                .prepare_cached(
                    "UPDATE tasks SET status = 1 WHERE id IN
                       (SELECT id FROM tasks WHERE status = 0 AND next_run <= ?1 ORDER BY next_run LIMIT ?2) RETURNING id",
                )
                .and_then(|mut claim| {
                    claim.query_map(params![1_800_000_000_000_i64, BATCH as i64], |row| row.get(0))?.collect()
                })
                .expect("claims");
            transaction.commit().expect("a commit");
            stored += finished.len();
            finished.clear();
            let expected = claimed.len();
            claimed.into_iter().for_each(|id| claims.send(id).expect("a worker"));
            finished.extend(outcomes.iter().take(expected));
        }
        drop(claims);
    });
    begin.elapsed()
}
