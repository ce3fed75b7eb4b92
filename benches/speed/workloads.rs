//! The workloads for duly, and the files for them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::bounded;
use duly::{Client, Context, Durability, Event, NewTask, RunStatus, Scheduler, Timestamp};
use rusqlite::{Connection, params};
use tempfile::TempDir;

use crate::measure::{Moment, Round, Watch};

pub(crate) const WORKERS: usize = 2;
/// The due time of overdue tasks: the start of 2025.
pub(crate) const LONG_AGO: i64 = 1_735_689_600_000;
/// An instant, as text.
const DUE: &str = "2027-03-14T12:00:00.000Z";
/// Longer than any round.
const PATIENCE: Duration = Duration::from_secs(300);

/// A durability with both of its names.
pub(crate) const DURABILITIES: [(&str, Durability, &str); 2] =
    [("normal", Durability::MayRepeatAfterPowerLoss, "NORMAL"), ("full", Durability::Full, "FULL")];

/// A folder for one round's files.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Home(tempfile::tempdir().expect("a folder for the bench"))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// `count` overdue tasks.
pub(crate) fn overdue(prefix: &str, count: usize) -> impl Iterator<Item = NewTask> {
    let due = Timestamp::from_millis(LONG_AGO);
    (0..count).map(move |n| NewTask::once(format!("{prefix}-{n}"), due).handler("none"))
}

/// Runs what is due with a handler that does nothing, until the last outcome is stored; each once.
pub(crate) fn drain(file: &Path, tasks: usize, durability: Durability) -> Round {
    // Open until the end: the last connection to close a database writes the whole log back.
    let client = Client::open(file).expect("the database");
    let watch = Watch::begin(file);
    let (started, stored) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let first = Arc::new(OnceLock::new());
    let (tell, last) = bounded(1);
    let (count, begun) = (started.clone(), first.clone());
    let scheduler = Scheduler::builder(file)
        .workers(WORKERS)
        .durability(durability)
        .handler("none", move |_: &Context| {
            begun.get_or_init(Moment::now);
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::fmt::Error>(())
        })
        // Observers are notified after the commit.
        .observe(move |event: &Event| {
            if matches!(event, Event::Finished { status: RunStatus::Succeeded, .. })
                && stored.fetch_add(1, Ordering::Relaxed) + 1 == tasks
            {
                let _ = tell.send(Moment::now());
            }
        })
        .start()
        .expect("a scheduler");
    // As with the bare loop, opening the file is not counted. The loop may start before this thread continues.
    let opened = Moment::now();
    let end = last.recv_timeout(PATIENCE).expect("all of them, in time");
    let begin = first.get().map_or(opened, |first| opened.earlier(*first));
    let round = watch.end(begin, end);
    scheduler.shutdown(PATIENCE).expect("a shutdown");
    assert_eq!(started.load(Ordering::Relaxed), tasks, "each once");
    drop((watch, client));
    Round { bytes: std::fs::metadata(file).map_or(0, |metadata| metadata.len()), ..round }
}

/// A connection for filling a file faster than any client can; no measured operation uses it.
fn fill(file: &Path, statements: &str, rows: usize, now: i64) {
    drop(Client::open(file).expect("a database"));
    let connection = Connection::open(file).expect("the database");
    connection.execute_batch("PRAGMA synchronous = OFF; BEGIN").expect("a transaction");
    for statement in statements.split(';').filter(|statement| !statement.trim().is_empty()) {
        let statement = format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 WHERE ?1 > 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) {statement}"
        );
        connection.execute(&statement, params![rows as i64, now]).expect("rows");
    }
    connection.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)").expect("a commit");
}

/// The tables without the program: the minimum that a row needs, by a prepared statement. It chooses ids above the
/// AUTOINCREMENT counter, so that the counter is not written.
pub(crate) struct ByHand {
    connection: Connection,
    last_id: i64,
}

impl ByHand {
    pub(crate) fn open(file: &Path, synchronous: &str) -> Self {
        drop(Client::open(file).expect("a database"));
        let connection = Connection::open(file).expect("the database");
        connection
            .execute_batch(&format!(
                "PRAGMA synchronous = {synchronous};
                 PRAGMA wal_autocheckpoint = 4000;
                 INSERT INTO sqlite_sequence (name, seq) VALUES ('scheduled_tasks', 1000000000)"
            ))
            .expect("a durability");
        ByHand { connection, last_id: 0 }
    }

    /// Adds `count` tasks that are due at `at`, each by its own statement, or all in one transaction.
    pub(crate) fn add(&mut self, prefix: &str, tasks: std::ops::Range<usize>, at: i64, one_by_one: bool) {
        let connection = &self.connection;
        let transaction = (!one_by_one).then(|| connection.unchecked_transaction().expect("a transaction"));
        for n in tasks {
            self.last_id += 1;
            connection
                .prepare_cached(
                    "INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, next_run, planned,
                                                  active_since, created_at, updated_at)
                     VALUES (?5, ?1, 'none', 'once', ?2, ?3, 1, ?4, ?4, ?4)",
                )
                .and_then(|mut add| add.execute(params![format!("{prefix}-{n}"), DUE, at, LONG_AGO, self.last_id]))
                .expect("a task");
        }
        if let Some(transaction) = transaction {
            transaction.commit().expect("a commit");
        }
    }
}

/// Adds tasks that are due in the year that begins a day after `now`.
pub(crate) fn fill_with_future(file: &Path, tasks: usize, now: i64) {
    fill(
        file,
        "INSERT INTO scheduled_tasks
             (name, handler, schedule_type, schedule_value, next_run, planned, active_since, created_at, updated_at)
         SELECT 'future-' || i, 'none', 'once', strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000.0, 'unixepoch'), at, 1, ?2, ?2, ?2
           FROM (SELECT i, ?2 + 86400000 + i * (31536000000 / ?1) AS at FROM n)",
        tasks,
        now,
    );
}

/// Adds final runs: half of `once` tasks, half of a few recurring tasks that are paused.
pub(crate) fn fill_with_history(file: &Path, rows: usize, now: i64) {
    fill(
        file,
        "INSERT INTO scheduled_tasks
             (id, name, handler, schedule_type, schedule_value, status, planned, active_since, created_at, updated_at)
         SELECT i, 'past-' || i, 'none', iif(i % 2, 'once', 'interval'), iif(i % 2, '2025-01-01T00:00:00Z', '1m'),
                iif(i % 2, 'completed', 'paused'), 1, ?2 - 86400000, ?2 - 86400000, ?2 - 86400000
           FROM n WHERE i % 2 OR i <= 1000;
         INSERT INTO task_runs
             (task_id, handler, scheduled_for, origin, status, run_at, concurrency_key, attempt, started_at, finished_at)
         SELECT task, 'none', at, 'schedule', 'succeeded', at, '#' || task, 1, at, at
           FROM (SELECT iif(i % 2, i, 2 + i % 1000) AS task, ?2 - 86400000 + i AS at FROM n)",
        rows,
        now,
    );
}

/// Adds waiting runs, all behind one key or free.
pub(crate) fn fill_with_waiting(file: &Path, runs: usize, now: i64, key: Option<&str>) {
    let statements = "
        INSERT INTO scheduled_tasks
            (id, name, handler, schedule_type, schedule_value, status, planned, resolved_until, overlap, active_since,
             created_at, updated_at, concurrency_key)
        SELECT i, 'waiting-' || i, 'none', 'once', '2025-01-01T00:00:00Z', 'completed', 1, ?2, 'allow', ?2, ?2, ?2, KEY
          FROM n;
        INSERT INTO task_runs
            (task_id, handler, scheduled_for, origin, status, run_at, blocked, concurrency_key)
        SELECT i, 'none', ?2, 'schedule', 'queued', ?2, iif(i > 1 AND KEY IS NOT NULL, 'key', NULL), KEY FROM n";
    let key = key.map_or("NULL".to_owned(), |key| format!("'{key}'"));
    fill(file, &statements.replace("KEY", &key), runs, now);
}
