//! Looks up tasks, runs and attempts.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::error::Result;
use crate::model::report::Recent;
use crate::model::run::{Attempt, Run, RunFilter, RunStatus};
use crate::model::task::Task;
use crate::schedule::ScheduleKind;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{row, tasks};

/// Most tasks that one look-up returns.
pub(super) const MAX_LISTED: i64 = 1_000_000;

/// Returns the task of this name.
pub(super) fn task(store: &mut SqliteStore, name: &str) -> Result<Option<Task>> {
    store.read("look a task up", |tx, _| {
        Ok(tasks::by_name(tx, name)?.map(|task| with_last_run(tx, task)).transpose()?)
    })
}

/// Returns all tasks, by name.
pub(super) fn tasks(store: &mut SqliteStore) -> Result<Vec<Task>> {
    store.read("list tasks", |tx, _| {
        let tasks = tasks::all(tx, MAX_LISTED)?.into_iter();
        Ok(tasks.map(|task| with_last_run(tx, task)).collect::<rusqlite::Result<_>>()?)
    })
}

/// Returns the newest runs that match, newest first.
pub(super) fn runs(store: &mut SqliteStore, filter: &RunFilter) -> Result<Vec<Run>> {
    store.read("read the history", |tx, _| {
        let task = filter.task.as_deref().map(|name| tasks::expect(tx, name)).transpose()?;
        Ok(newest(tx, task.map(|task| task.id), filter)?)
    })
}

/// Returns the last runs of each task by the task's id, oldest first, at most `limit` of each.
pub(super) fn recent(store: &mut SqliteStore, limit: usize) -> Result<BTreeMap<i64, Vec<Recent>>> {
    let rows = store.read("read the last runs", |tx, _| Ok(newest_of_each(tx, limit)?))?;
    let mut by_task: BTreeMap<i64, Vec<(i64, Recent)>> = BTreeMap::new();
    for (task, run, recent) in rows {
        by_task.entry(task).or_default().push((run, recent));
    }
    let last = |mut runs: Vec<(i64, Recent)>| {
        // Ids are assigned in the order in which runs are opened.
        runs.sort_unstable_by_key(|(id, _)| *id);
        runs.drain(..runs.len().saturating_sub(limit));
        runs.into_iter().map(|(_, run)| run).collect()
    };
    Ok(by_task.into_iter().map(|(task, runs)| (task, last(runs))).collect())
}

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

/// Returns the newest runs that match, newest first; `task` is the id of the task that the filter names.
fn newest(tx: &Transaction<'_>, task: Option<i64>, filter: &RunFilter) -> rusqlite::Result<Vec<Run>> {
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

/// Uses the index of a task's history: the cost does not depend on the length of the history.
const RECENT: &str = sql! {"
    SELECT t.id, r.id, r.status, r.duration_ms
      FROM scheduled_tasks t CROSS JOIN task_runs r
     WHERE r.id IN (SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = t.id
                                       AND {unscheduled_id:n} = 0
                                     ORDER BY n.scheduled_for DESC LIMIT :limit)
                    UNION ALL
                    SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = t.id
                                       AND {unscheduled_id:n} > 0 ORDER BY {unscheduled_id:n} DESC
                                     LIMIT :limit))"};

/// Returns the newest runs of every task, with the ids of task and run: up to `limit` scheduled runs, and `limit` others.
fn newest_of_each(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<(i64, i64, Recent)>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let read = |row: &Row<'_>| {
        Ok((row.get(0)?, row.get(1)?, Recent { status: row.get(2)?, duration: row::millis_at(row, 3)? }))
    };
    tx.prepare_cached(RECENT)?.query_map(named_params! { ":limit": limit }, read)?.collect()
}

const UNFINISHED: &str = sql! {"
    SELECT r.id, r.status FROM task_runs r
     WHERE r.task_id = :task AND {unfinished:r}"};

/// Returns the runs of a task that are not final.
pub(crate) fn unfinished(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Vec<(i64, RunStatus)>> {
    tx.prepare_cached(UNFINISHED)?
        .query_map(named_params! { ":task": task }, |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

const ATTEMPTS: &str = "SELECT * FROM task_attempts WHERE run_id = :run ORDER BY attempt, id";

/// Returns the attempts of a run that did not simply succeed, oldest first.
pub(crate) fn attempts(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<Vec<Attempt>> {
    tx.prepare_cached(ATTEMPTS)?.query_map(named_params! { ":run": run }, row::attempt)?.collect()
}

const LAST_OF_ONCE: &str = "
    SELECT started_at, finished_at, status, error, duration_ms FROM task_runs WHERE task_id = :task AND attempt > 0
     ORDER BY started_at DESC, id DESC LIMIT 1";

/// Fills in the last run of a `once` task, which its row does not store, as in the view `task_overview`.
fn with_last_run(tx: &Transaction<'_>, mut task: Task) -> rusqlite::Result<Task> {
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
