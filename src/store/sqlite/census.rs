//! The status of the database: counts, schedulers, what is due next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::report::Status;
use crate::model::run::RunStatus;
use crate::model::task::TaskStatus;
use crate::schedule::zone_data;
use crate::store::sqlite::connection::{SqliteStore, sqlite_version};
use crate::store::sqlite::limits::InForce;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{claim, due, health, limit_requests, owners, row, starts, tasks};

/// A task that has been due for longer is overdue.
const OVERDUE_AFTER: Duration = Duration::from_secs(5 * 60);

/// Returns the state of the database at one moment. Reads every task once.
pub(super) fn status(store: &mut SqliteStore, now: Timestamp) -> Result<Status> {
    let (path, (file_bytes, log_bytes)) = (store.path().to_owned(), store.sizes());
    let (due, late) = due_and_overdue(now);
    store.read("read the status", |tx, _| {
        let (tasks, unfinished) = (tasks_by_status(tx)?, unfinished(tx)?);
        Ok(Status {
            instances: health::instances(tx, &path)?,
            tasks: TaskStatus::ALL.iter().filter_map(|one| Some((*one, *tasks.get(one.as_str())?))).collect(),
            due: overdue(tx, due)?,
            overdue: overdue(tx, late)?,
            failing: failing(tx)?,
            runs: RunStatus::ALL.iter().filter_map(|one| Some((*one, *unfinished.get(one.as_str())?))).collect(),
            blocked: unfinished.get("blocked").copied().unwrap_or_default(),
            clock: health::clock_wait(tx, now)?,
            next: next(tx)?,
            limits: limit_requests::states(tx, now)?,
            path: path.clone(),
            file_bytes: Some(file_bytes),
            log_bytes: Some(log_bytes),
            server: None,
            sqlite: sqlite_version().to_owned(),
            zone_data: zone_data().to_string(),
        })
    })
}

/// Returns the instants before which a task that is due, and one that is overdue, was due.
pub(crate) fn due_and_overdue(now: Timestamp) -> (Timestamp, Timestamp) {
    (now.plus(Duration::from_millis(1)), now.minus(OVERDUE_AFTER))
}

/// Reports whether a scheduler with these handlers has nothing to do now.
pub(super) fn is_idle(store: &mut SqliteStore, handlers: &BTreeSet<String>, now: Timestamp) -> Result<bool> {
    store.read("look for work", |tx, _| {
        // A blocked run waits for one of these, or for a start.
        let any = owners::any_running(tx)?
            || claim::next(tx, &InForce::default(), handlers)?.is_some()
            || !tasks::unplanned(tx, 1)?.is_empty()
            || due::next_due(tx)?.is_some_and(|at| at <= now)
            || starts::any_waits(tx)?;
        Ok(!any)
    })
}

const TASKS: &str = "SELECT status, count(*) FROM scheduled_tasks GROUP BY status";

fn tasks_by_status(tx: &Transaction<'_>) -> rusqlite::Result<BTreeMap<String, u64>> {
    tx.prepare_cached(TASKS)?.query_map([], pair)?.collect()
}

const UNFINISHED: &str = sql! {"
    SELECT iif(status = 'running' OR blocked IS NULL, status, 'blocked'), count(*) FROM task_runs
     WHERE {unfinished} GROUP BY 1"};

/// Counts the unfinished runs: running, queued or failed where they may start, and blocked where they may not.
fn unfinished(tx: &Transaction<'_>) -> rusqlite::Result<BTreeMap<String, u64>> {
    tx.prepare_cached(UNFINISHED)?.query_map([], pair)?.collect()
}

/// The condition of `OVERDUE` in `health` and of the view `overdue_tasks`.
const OVERDUE: &str = sql! {"
    SELECT count(*) FROM scheduled_tasks
     WHERE ({active_planned} AND next_run < :before)
        OR (planned = 0 AND ((status = 'active' AND (schedule_type <> 'manual' OR next_run IS NOT NULL)
                              AND coalesce(next_run, updated_at) < :before)
                             OR (status = 'completed' AND next_run < :before)))"};

/// Counts the tasks that have been due, or have waited for a scheduler to plan them, since before an instant.
fn overdue(tx: &Transaction<'_>, before: Timestamp) -> rusqlite::Result<u64> {
    tx.prepare_cached(OVERDUE)?.query_row(named_params! { ":before": before }, |row| count(row, 0))
}

const FAILING: &str =
    "SELECT name FROM scheduled_tasks WHERE failure_count >= 2 ORDER BY failure_count DESC, name LIMIT 100";

/// Returns the tasks whose last two runs or more are dead.
fn failing(tx: &Transaction<'_>) -> rusqlite::Result<Vec<String>> {
    tx.prepare_cached(FAILING)?.query_map([], |row| row::shown(row, 0))?.collect()
}

const NEXT: &str = sql! {"
    SELECT name, next_run FROM scheduled_tasks
     WHERE {active_planned} AND next_run IS NOT NULL
     ORDER BY next_run LIMIT 1"};

/// Returns the task that is due next, and when.
fn next(tx: &Transaction<'_>) -> rusqlite::Result<Option<(String, Timestamp)>> {
    tx.prepare_cached(NEXT)?.query_row([], |row| Ok((row::shown(row, 0)?, row.get(1)?))).optional()
}

fn pair(row: &Row<'_>) -> rusqlite::Result<(String, u64)> {
    Ok((row.get(0)?, count(row, 1)?))
}

fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.unsigned_abs())
}
