//! Looks up tasks, runs and attempts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::report::Recent;
use crate::model::run::{Attempt, Run, RunFilter, RunStatus};
use crate::model::task::Task;
use crate::rules::notice::Notice;
use crate::schedule::ScheduleKind;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{row, tasks};

/// Most tasks that one look-up returns.
pub(crate) const MAX_LISTED: i64 = 1_000_000;

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
///
/// Where most runs are wanted, it reads the whole table once in its order, which is twice as fast as by the index of a
/// task's history. Otherwise the cost does not depend on the length of the histories.
pub(super) fn recent(store: &mut SqliteStore, limit: usize) -> Result<BTreeMap<i64, Vec<Recent>>> {
    let found = store.read("read the last runs", |tx, _| {
        let (tasks, runs): (i64, i64) =
            tx.prepare_cached(SIZES)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let wanted = i64::try_from(limit).unwrap_or(i64::MAX).saturating_mul(tasks);
        Ok(found(tx, if runs <= SPARSE.saturating_mul(wanted) { ALL_RUNS } else { RECENT }, limit)?)
    })?;
    Ok(by_task(found, limit))
}

/// Returns the last of the runs of each task, oldest first, at most `limit` of each.
pub(crate) fn by_task(mut found: Vec<Found>, limit: usize) -> BTreeMap<i64, Vec<Recent>> {
    found.sort_unstable_by_key(|run| (run.task, Reverse(run.occurrence), Reverse(run.id)));
    found.chunk_by(|one, next| one.task == next.task).map(|runs| (runs[0].task, last(runs, limit))).collect()
}

const BY_ID: &str = sql! {"
SELECT {run_columns:r}, t.name FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE r.id = :run"};

pub(crate) fn run(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<Option<Run>> {
    tx.prepare_cached(BY_ID)?.query_row(named_params! { ":run": run }, row::run).optional()
}

const NEWEST: &str = sql! {"
    SELECT {run_columns:r}, t.name FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.id < :before AND (:status IS NULL OR r.status = :status)
       AND (:since IS NULL OR coalesce(r.last_scheduled_for, r.scheduled_for) >= :since)
     ORDER BY r.id DESC LIMIT :limit"};

/// The ids are sorted, not the runs: an output may be long.
// CROSS JOIN, NOT INDEXED: after an ANALYZE of few rows SQLite would scan all runs.
const NEWEST_OF_TASK: &str = sql! {"
    SELECT {run_columns:r}, t.name
      FROM (SELECT n.id FROM task_runs n
             WHERE n.task_id = :task AND +n.id < :before
               AND (:status IS NULL OR n.status = :status)
               AND (:since IS NULL OR coalesce(n.last_scheduled_for, n.scheduled_for) >= :since)
             ORDER BY n.id DESC LIMIT :limit) newest
     CROSS JOIN task_runs r NOT INDEXED ON r.id = newest.id
     CROSS JOIN scheduled_tasks t NOT INDEXED ON t.id = r.task_id
     ORDER BY newest.id DESC"};

/// Returns the newest runs that match, newest first; `task` is the id of the task that the filter names.
fn newest(tx: &Transaction<'_>, task: Option<i64>, filter: &RunFilter) -> rusqlite::Result<Vec<Run>> {
    let (status, since, before) = (filter.status, filter.since, filter.before.unwrap_or(i64::MAX));
    let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
    match task {
        Some(task) => row::all(
            tx,
            NEWEST_OF_TASK,
            named_params! { ":task": task, ":status": status, ":since": since, ":before": before, ":limit": limit },
            row::run,
        ),
        None => row::all(
            tx,
            NEWEST,
            named_params! { ":status": status, ":since": since, ":before": before, ":limit": limit },
            row::run,
        ),
    }
}

/// The number of tasks, and an upper limit for the number of runs. Neither counts runs one by one.
const SIZES: &str = "
    SELECT (SELECT count(*) FROM scheduled_tasks),
           ifnull((SELECT max(id) FROM task_runs) - (SELECT min(id) FROM task_runs) + 1, 0)";

/// The whole table is read if it has at most this many times the number of runs that are wanted.
const SPARSE: i64 = 2;

/// Uses the index of a task's history: the cost does not depend on the length of the history.
const RECENT: &str = sql! {"
    SELECT t.id, r.id, r.status, r.duration_ms, iif({unscheduled_id:r} = 0, r.scheduled_for, NULL)
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

/// The columns of [`RECENT`], of all runs.
const ALL_RUNS: &str = sql! {"
SELECT task_id, id, status, duration_ms, iif({unscheduled_id} = 0, scheduled_for, NULL) FROM task_runs"};

/// A run of a task, with its id. The occurrence of a scheduled run.
pub(crate) struct Found {
    pub(crate) task: i64,
    pub(crate) occurrence: Option<i64>,
    pub(crate) id: i64,
    pub(crate) recent: Recent,
}

/// Reads runs. `sql`: [`RECENT`] or [`ALL_RUNS`].
fn found(tx: &Transaction<'_>, sql: &str, limit: usize) -> rusqlite::Result<Vec<Found>> {
    let mut statement = tx.prepare_cached(sql)?;
    if statement.parameter_count() > 0 {
        statement.raw_bind_parameter(1, i64::try_from(limit).unwrap_or(i64::MAX))?;
    }
    let (mut rows, mut found) = (statement.raw_query(), Vec::new());
    while let Some(row) = rows.next()? {
        // A status that only another program writes must not hide the other runs.
        let Some(status) = row::shown_if_any(row, 2)?.as_deref().and_then(RunStatus::parse) else { continue };
        let recent = Recent { status, duration: row::millis_at(row, 3)? };
        found.push(Found { task: row.get(0)?, id: row.get(1)?, occurrence: row.get(4)?, recent });
    }
    Ok(found)
}

/// Returns the last of the newest scheduled runs, by their occurrences, and of the newest others, by their ids: oldest first, at
/// most `limit`. The runs of one task, in this order.
fn last(runs: &[Found], limit: usize) -> Vec<Recent> {
    let scheduled = runs.iter().take_while(|run| run.occurrence.is_some()).take(limit);
    let others = runs.iter().skip_while(|run| run.occurrence.is_some()).take(limit);
    let mut newest: Vec<&Found> = scheduled.chain(others).collect();
    // Ids are assigned in the order in which runs are opened.
    newest.sort_unstable_by_key(|run| run.id);
    newest[newest.len().saturating_sub(limit)..].iter().map(|run| run.recent).collect()
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

const ATTEMPTS: &str = sql! {"SELECT {attempt_columns} FROM task_attempts WHERE run_id = :run ORDER BY attempt, id"};

/// Returns the attempts of a run that did not simply succeed, oldest first.
pub(crate) fn attempts(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<Vec<Attempt>> {
    row::all(tx, ATTEMPTS, named_params! { ":run": run }, row::attempt)
}

const LAST_OF_ONCE: &str = "
    SELECT started_at, finished_at, status, error, duration_ms FROM task_runs WHERE task_id = :task AND attempt > 0
     ORDER BY started_at DESC, id DESC LIMIT 1";

/// Fills in the last run of a `once` task, which its row does not store, as in the view `task_overview`.
pub(super) fn with_last_run(tx: &Transaction<'_>, mut task: Task) -> rusqlite::Result<Task> {
    if task.definition.schedule_type != ScheduleKind::Once {
        return Ok(task);
    }
    let read = |row: &Row<'_>| {
        task.last_run = row.get(0)?;
        task.last_finished = row.get(1)?;
        task.last_status = row::shown_if_any(row, 2)?.as_deref().and_then(RunStatus::parse);
        task.last_error = row::shown_if_any(row, 3)?;
        task.last_duration = row::millis_at(row, 4)?;
        Ok(())
    };
    tx.prepare_cached(LAST_OF_ONCE)?.query_row(named_params! { ":task": task.id }, read).optional()?;
    Ok(task)
}

const SUCCEEDED_SINCE: &str = sql! {"
    SELECT EXISTS (SELECT 1 FROM task_runs r INDEXED BY task_runs_one_per_occurrence
                    WHERE r.task_id = :task AND {unscheduled_id:r} = 0 AND r.scheduled_for > ifnull(:scheduled_for, 0)
                      AND r.status = 'succeeded' AND r.id > :run)
        OR EXISTS (SELECT 1 FROM task_runs r INDEXED BY task_runs_one_per_occurrence
                    WHERE r.task_id = :task AND {unscheduled_id:r} > :run AND r.status = 'succeeded')
        OR EXISTS (SELECT 1 FROM (SELECT r.status, r.started_at FROM task_runs r INDEXED BY task_runs_one_per_occurrence
                                   WHERE r.task_id = :task AND {unscheduled_id:r} = 0 AND r.scheduled_for < ifnull(:scheduled_for, 0)
                                   ORDER BY r.scheduled_for DESC LIMIT {most_waiting})
                    WHERE status = 'succeeded'
                      AND started_at > (SELECT ifnull(last_scheduled_for, scheduled_for) FROM task_runs WHERE id = :run))"};

const STARTED_SINCE: &str = sql! {"
    SELECT EXISTS (SELECT 1 FROM task_runs WHERE id = :run AND status <> 'skipped' AND NOT ({waiting}))
        OR EXISTS (SELECT 1 FROM task_runs r INDEXED BY task_runs_one_per_occurrence
                    WHERE r.task_id = :task AND {unscheduled_id:r} = 0 AND r.scheduled_for > ifnull(:scheduled_for, 0) AND r.attempt > 0)
        OR EXISTS (SELECT 1 FROM task_runs r INDEXED BY task_runs_one_per_occurrence
                    WHERE r.task_id = :task AND {unscheduled_id:r} > :run AND r.attempt > 0)"};

/// Returns whether what an event of this kind has told of a task has not ended: occurrences without a run by a success after the run that the
/// event names, a limit that is reached by a start, or by the end of the run that waits for one.
pub(crate) fn lasts(
    tx: &Transaction<'_>,
    notice: Notice,
    task: i64,
    of_run: (i64, Option<Timestamp>),
) -> rusqlite::Result<bool> {
    if notice != Notice::Limited {
        return has_succeeded_since(tx, task, of_run).map(|succeeded| !succeeded);
    }
    let named = named_params! { ":task": task, ":run": of_run.0, ":scheduled_for": of_run.1 };
    tx.prepare_cached(STARTED_SINCE)?.query_row(named, |row| row.get(0)).map(|started: bool| !started)
}

/// Returns whether a task has succeeded since a run, of which the occurrence is known unless retention has deleted it. Only the runs after
/// it are searched, scheduled ones by their occurrence and the others by their id, and those before it that may have waited until then.
fn has_succeeded_since(
    tx: &Transaction<'_>,
    task: i64,
    (run, scheduled_for): (i64, Option<Timestamp>),
) -> rusqlite::Result<bool> {
    let named = named_params! { ":task": task, ":run": run, ":scheduled_for": scheduled_for };
    tx.prepare_cached(SUCCEEDED_SINCE)?.query_row(named, |row| row.get(0))
}
