//! The bare loop: the minimum that is durable while the process lives. One row per task, one per run, one index, claims
//! and outcomes a hundred to a transaction, workers behind channels. No leases, no retries, no policies, no checks.

use std::path::Path;
use std::time::Duration;

use crossbeam_channel::bounded;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use crate::measure::{Moment, Round, Watch, wall_nanos};
use crate::workloads::{LONG_AGO, WORKERS};

/// Claims and outcomes in one transaction.
const BATCH: usize = 100;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS tasks (id INTEGER PRIMARY KEY, name TEXT, payload TEXT, next_run INTEGER, status INTEGER);
    CREATE INDEX IF NOT EXISTS due ON tasks (next_run) WHERE status = 0;
    CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, task_id INTEGER, finished_at INTEGER, status TEXT);";

const ADD: &str = "INSERT INTO tasks (name, payload, next_run, status) VALUES (?1, 'null', ?2, 0)";

const CLAIM: &str = "
    UPDATE tasks SET status = 1
     WHERE id IN (SELECT id FROM tasks WHERE status = 0 AND next_run <= ?1 ORDER BY next_run LIMIT ?2) RETURNING id";

const ENDED: &str = "INSERT INTO runs (task_id, finished_at, status) VALUES (?1, ?2, 'succeeded')";

const DONE: &str = "UPDATE tasks SET status = 2 WHERE id = ?1";

const AGAIN: &str = "UPDATE tasks SET status = 0, next_run = next_run + ?2 WHERE id = ?1";

const NEXT: &str = "SELECT next_run FROM tasks WHERE status = 0 ORDER BY next_run LIMIT 1";

/// A database of the bare loop.
pub(crate) struct Bare(Connection);

impl Bare {
    pub(crate) fn open(file: &Path, synchronous: &str) -> Self {
        let connection = Connection::open(file).expect("a database");
        connection
            .execute_batch(&format!("PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; {TABLES}"))
            .expect("the bare tables");
        Bare(connection)
    }

    /// Returns the value of `PRAGMA synchronous`.
    pub(crate) fn synchronous(&self) -> i64 {
        self.0.query_row("PRAGMA synchronous", [], |row| row.get(0)).expect("a level")
    }

    /// Adds all in one commit.
    pub(crate) fn add(&mut self, count: usize, at: i64) {
        let transaction = self.begin();
        for n in 0..count {
            add(&transaction, n, at);
        }
        transaction.commit().expect("a commit");
    }

    /// Adds each in a commit of its own.
    pub(crate) fn add_one_by_one(&mut self, count: usize, at: i64) {
        for n in 0..count {
            let transaction = self.begin();
            add(&transaction, n, at);
            transaction.commit().expect("a commit");
        }
    }

    /// Adds `count` rows of history.
    pub(crate) fn add_history(&mut self, rows: usize) {
        self.0
            .execute(
                "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                 INSERT INTO runs (task_id, finished_at, status) SELECT -i, ?2, 'succeeded' FROM n",
                params![rows as i64, LONG_AGO],
            )
            .expect("history");
    }

    /// Runs what is due, until the last outcome is stored.
    pub(crate) fn drain(&mut self, file: &Path, tasks: usize) -> Round {
        let (watch, begin) = (Watch::begin(file), Moment::now());
        let end = self.carry_out(tasks);
        watch.end(begin, end)
    }

    fn carry_out(&mut self, tasks: usize) -> Moment {
        let (claims, queue) = bounded::<i64>(BATCH * 2);
        let (done, outcomes) = bounded::<i64>(BATCH * 2);
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                let (queue, done) = (queue.clone(), done.clone());
                scope.spawn(move || queue.into_iter().try_for_each(|id| done.send(id)));
            }
            drop((queue, done));
            let (mut stored, mut finished) = (0, Vec::with_capacity(BATCH));
            while stored < tasks {
                let transaction = self.begin();
                for id in &finished {
                    run(&transaction, ENDED, params![id, LONG_AGO]);
                    run(&transaction, DONE, params![id]);
                }
                let claimed = claim(&transaction, i64::MAX);
                transaction.commit().expect("a commit");
                stored += finished.len();
                finished.clear();
                let expected = claimed.len();
                claimed.into_iter().for_each(|id| claims.send(id).expect("a worker"));
                finished.extend(outcomes.iter().take(expected));
            }
            drop(claims);
            Moment::now()
        })
    }

    /// Runs one task at each of `count` instants, the first at `from`. Returns how late each worker began, in
    /// milliseconds.
    pub(crate) fn keep_time(&mut self, from: i64, every: i64, count: usize) -> Vec<f64> {
        self.add(1, from);
        let (claims, queue) = bounded::<i64>(BATCH);
        let (done, outcomes) = bounded::<(i64, i64)>(BATCH);
        let mut late = Vec::with_capacity(count);
        std::thread::scope(|scope| {
            scope.spawn(move || queue.into_iter().try_for_each(|id| done.send((id, wall_nanos()))));
            let mut due = from;
            while late.len() < count {
                let ahead = due * 1_000_000 - wall_nanos();
                if ahead > 0 {
                    std::thread::sleep(Duration::from_nanos(ahead.unsigned_abs()));
                    continue;
                }
                let transaction = self.begin();
                let claimed = claim(&transaction, due);
                transaction.commit().expect("a commit");
                claimed.into_iter().for_each(|id| claims.send(id).expect("a worker"));
                let (id, began) = outcomes.recv().expect("an outcome");
                late.push((began - due * 1_000_000) as f64 / 1e6);
                let transaction = self.begin();
                run(&transaction, ENDED, params![id, due]);
                run(&transaction, AGAIN, params![id, every]);
                due = transaction
                    .prepare_cached(NEXT)
                    .and_then(|mut next| next.query_row([], |row| row.get(0)))
                    .expect("the next");
                transaction.commit().expect("a commit");
            }
            drop(claims);
        });
        late
    }

    /// Polls every second, forever.
    pub(crate) fn poll(&self) -> ! {
        loop {
            let next: Option<i64> =
                self.0.prepare_cached(NEXT).and_then(|mut next| next.query_row([], |row| row.get(0))).ok();
            std::hint::black_box(next);
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn begin(&mut self) -> Transaction<'_> {
        self.0.transaction_with_behavior(TransactionBehavior::Immediate).expect("a transaction")
    }
}

fn add(transaction: &Transaction<'_>, n: usize, at: i64) {
    run(transaction, ADD, params![format!("task-{n}"), at]);
}

fn run(transaction: &Transaction<'_>, statement: &str, values: impl rusqlite::Params) {
    transaction.prepare_cached(statement).and_then(|mut statement| statement.execute(values)).expect("a row");
}

fn claim(transaction: &Transaction<'_>, now: i64) -> Vec<i64> {
    transaction
        .prepare_cached(CLAIM)
        .and_then(|mut claim| claim.query_map(params![now, BATCH as i64], |row| row.get(0))?.collect())
        .expect("claims")
}
