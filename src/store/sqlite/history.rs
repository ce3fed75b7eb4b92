//! What was: runs and their attempts, as others ask for them.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::model::run::{Attempt, Run, RunFilter, RunStatus};
use crate::model::task::Task;
use crate::schedule::ScheduleKind;
use crate::store::sqlite::row;

const BY_ID: &str = "
    SELECT r.*, t.name FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE r.id = :run";

pub(crate) fn run(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<Option<Run>> {
    tx.prepare_cached(BY_ID)?.query_row(named_params! { ":run": run }, row::run).optional()
}

const NEWEST: &str = "
    SELECT r.*, t.name FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE (:status IS NULL OR r.status = :status)
       AND (:since IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) >= :since)
     ORDER BY r.id DESC LIMIT :limit";

const NEWEST_OF_TASK: &str = "
    SELECT r.*, t.name FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.task_id = :task
       AND (:status IS NULL OR r.status = :status)
       AND (:since IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) >= :since)
     ORDER BY r.id DESC LIMIT :limit";

/// The newest runs that a filter lets through, of the task with the given id if the filter names one, newest first.
pub(crate) fn newest(tx: &Transaction<'_>, task: Option<i64>, filter: &RunFilter) -> rusqlite::Result<Vec<Run>> {
    let (status, since) = (filter.status, filter.since);
    let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
    match task {
        Some(task) => tx
            .prepare_cached(NEWEST_OF_TASK)?
            .query_map(named_params! { ":task": task, ":status": status, ":since": since, ":limit": limit }, row::run)?
            .collect(),
        None => tx
            .prepare_cached(NEWEST)?
            .query_map(named_params! { ":status": status, ":since": since, ":limit": limit }, row::run)?
            .collect(),
    }
}

/// A run in short.
#[derive(Debug)]
pub(crate) struct Short {
    pub(crate) task: i64,
    pub(crate) run: i64,
    pub(crate) status: RunStatus,
    pub(crate) duration: Option<Duration>,
}

/// By the index that is a task's history: of each kind of run the newest few, whatever else there is.
const RECENT: &str = "
    SELECT t.id, r.id, r.status, r.duration_ms
      FROM scheduled_tasks t CROSS JOIN task_runs r
     WHERE r.id IN (SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = t.id
                                       AND (iif(n.origin = 'schedule' OR n.origin = 'catch_up', 0, n.id)) = 0
                                     ORDER BY n.scheduled_for DESC LIMIT :limit)
                    UNION ALL
                    SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = t.id
                                       AND (iif(n.origin = 'schedule' OR n.origin = 'catch_up', 0, n.id)) > 0
                                     ORDER BY (iif(n.origin = 'schedule' OR n.origin = 'catch_up', 0, n.id)) DESC
                                     LIMIT :limit))";

/// The newest runs of every task: up to a limit of those of the schedule, and of the others.
pub(crate) fn recent(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<Short>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let read = |row: &Row<'_>| {
        let (task, run, status) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Short { task, run, status, duration: row::millis_at(row, 3)? })
    };
    tx.prepare_cached(RECENT)?.query_map(named_params! { ":limit": limit }, read)?.collect()
}

const UNFINISHED: &str = "
    SELECT r.id, r.status FROM task_runs r
     WHERE r.task_id = :task AND (r.status = 'queued' OR r.status = 'failed' OR r.status = 'running')";

/// The runs of a task that are not final.
pub(crate) fn unfinished(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Vec<(i64, RunStatus)>> {
    tx.prepare_cached(UNFINISHED)?
        .query_map(named_params! { ":task": task }, |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

const ATTEMPTS: &str = "SELECT * FROM task_attempts WHERE run_id = :run ORDER BY attempt, id";

/// The attempts of a run that did not simply succeed, oldest first.
pub(crate) fn attempts(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<Vec<Attempt>> {
    tx.prepare_cached(ATTEMPTS)?.query_map(named_params! { ":run": run }, row::attempt)?.collect()
}

const LAST_OF_ONCE: &str = "
    SELECT started_at, finished_at, status, error, duration_ms FROM task_runs WHERE task_id = :task AND attempt > 0
     ORDER BY started_at DESC, id DESC LIMIT 1";

/// Fills in what the row of a `once` task does not keep: its run tells it, as in the view `task_overview`.
pub(crate) fn with_last(tx: &Transaction<'_>, mut task: Task) -> rusqlite::Result<Task> {
    if task.definition.schedule_type != ScheduleKind::Once {
        return Ok(task);
    }
    let read = |row: &Row<'_>| {
        task.last_run = row.get(0)?;
        task.last_finished = row.get(1)?;
        task.last_status = row.get(2)?;
        task.last_error = row::shown_if_any(row, 3)?;
        task.last_duration = row::millis_at(row, 4)?;
        Ok(())
    };
    tx.prepare_cached(LAST_OF_ONCE)?.query_row(named_params! { ":task": task.id }, read).optional()?;
    Ok(task)
}
