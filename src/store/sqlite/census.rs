//! How much there is of everything, for people who look at the whole.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::store::sqlite::row;

const TASKS: &str = "SELECT status, count(*) FROM scheduled_tasks GROUP BY status";

/// How many tasks there are, by status.
pub(crate) fn tasks(tx: &Transaction<'_>) -> rusqlite::Result<Vec<(String, u64)>> {
    tx.prepare_cached(TASKS)?.query_map([], pair)?.collect()
}

const UNFINISHED: &str = "
    SELECT iif(status = 'running' OR blocked IS NULL, status, 'blocked'), count(*) FROM task_runs
     WHERE status = 'queued' OR status = 'failed' OR status = 'running'
     GROUP BY 1";

/// How many runs are not over: running, queued or failed where they may start, and blocked where they may not.
pub(crate) fn unfinished(tx: &Transaction<'_>) -> rusqlite::Result<Vec<(String, u64)>> {
    tx.prepare_cached(UNFINISHED)?.query_map([], pair)?.collect()
}

/// The condition of [`problems::overdue`](crate::store::sqlite::health::overdue) and of the view `overdue_tasks`.
const OVERDUE: &str = "
    SELECT count(*) FROM scheduled_tasks
     WHERE (status = 'active' AND planned = 1 AND next_run < :before)
        OR (planned = 0 AND ((status = 'active' AND (schedule_type <> 'manual' OR next_run IS NOT NULL)
                              AND coalesce(next_run, updated_at) < :before)
                             OR (status = 'completed' AND next_run < :before)))";

/// How many tasks have been due, or have waited for a scheduler to look at them, since before an instant.
pub(crate) fn overdue(tx: &Transaction<'_>, before: Timestamp) -> rusqlite::Result<u64> {
    tx.prepare_cached(OVERDUE)?.query_row(named_params! { ":before": before }, |row| count(row, 0))
}

const FAILING: &str =
    "SELECT name FROM scheduled_tasks WHERE failure_count >= 2 ORDER BY failure_count DESC, name LIMIT 100";

/// Tasks of which two runs in a row or more are dead.
pub(crate) fn failing(tx: &Transaction<'_>) -> rusqlite::Result<Vec<String>> {
    tx.prepare_cached(FAILING)?.query_map([], |row| row::shown(row, 0))?.collect()
}

const NEXT: &str = "
    SELECT name, next_run FROM scheduled_tasks
     WHERE status = 'active' AND planned = 1 AND next_run IS NOT NULL
     ORDER BY next_run LIMIT 1";

/// The task that is due next, and when.
pub(crate) fn next(tx: &Transaction<'_>) -> rusqlite::Result<Option<(String, Timestamp)>> {
    tx.prepare_cached(NEXT)?.query_row([], |row| Ok((row::shown(row, 0)?, row.get(1)?))).optional()
}

/// An owner that has not left in order, as far as the tables know.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) boot_id: Option<String>,
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) workers: u32,
    pub(crate) lease: Duration,
    pub(crate) started_at: Timestamp,
    pub(crate) seen_at: Timestamp,
}

const INSTANCES: &str = "
    SELECT id, host, pid, version, workers, started_at, seen_at, boot_id, lease_ms FROM scheduler_instances
     WHERE stopped_at IS NULL ORDER BY started_at, id";

pub(crate) fn instances(tx: &Transaction<'_>) -> rusqlite::Result<Vec<Instance>> {
    let read = |row: &Row<'_>| {
        let (id, host, version) = (row::shown(row, 0)?, row::shown(row, 1)?, row::shown(row, 3)?);
        let (pid, workers) = (row::saturating(row, 2)?, row::saturating(row, 4)?);
        let (started_at, seen_at) = (row.get(5)?, row.get(6)?);
        let (boot_id, lease) = (row::shown_if_any(row, 7)?, row::millis_at(row, 8)?.unwrap_or_default());
        Ok(Instance { id, host, boot_id, pid, version, workers, lease, started_at, seen_at })
    };
    tx.prepare_cached(INSTANCES)?.query_map([], read)?.collect()
}

fn pair(row: &Row<'_>) -> rusqlite::Result<(String, u64)> {
    Ok((row.get(0)?, count(row, 1)?))
}

fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.unsigned_abs())
}
