//! Pages of tasks and of the runs of a task.

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::error::Result;
use crate::model::run::{Origin, RunStatus};
use crate::model::task_pages::{After, Mark, RunLine, RunQuery, TaskPage, TaskQuery};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::row::Raw;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{history, row, tasks};

/// Ids, so that only the rows of the page are read completely. By name: an index, from `:from` on.
// Without IN: see `schema.sql`. `completed` is compared first, since most tasks are not.
const TASKS: &str = "
    SELECT t.id FROM scheduled_tasks t
     WHERE t.name >= :from AND (:after IS NULL OR t.name <> :after) AND (:pattern IS NULL OR t.name GLOB :pattern)
       AND (:handler IS NULL OR t.handler = :handler)
       AND (:status IS NULL OR t.status = :status)
       AND (:all OR t.status <> 'completed' OR t.schedule_type <> 'once'
            OR ifnull((SELECT r.status = 'dead' OR r.status = 'queued' OR r.status = 'running' OR r.status = 'failed'
                         FROM task_runs r
                        WHERE r.task_id = t.id ORDER BY r.id DESC LIMIT 1), 0))
     ORDER BY t.name LIMIT :limit OFFSET :skip";

const NAME: &str = "SELECT name FROM scheduled_tasks WHERE id = :id";

/// Returns a page of tasks, with their last runs.
pub(super) fn tasks(store: &mut SqliteStore, query: &TaskQuery) -> Result<TaskPage> {
    store.read("read a page of tasks", |tx, _| {
        let pattern = query.pattern.as_ref();
        let after = match &query.after {
            None => None,
            Some(After::Name(name)) => Some(Raw(name.clone().into_bytes())),
            Some(After::Id(id)) => tx
                .prepare_cached(NAME)?
                .query_row(named_params! { ":id": id }, |row| row.get::<_, Raw>(0))
                .optional()?,
        };
        let after = after.as_ref().map(AsRef::as_ref);
        let prefix = pattern.map_or("", |pattern| pattern.prefix()).as_bytes();
        let params = named_params! {
            ":from": row::raw(after.map_or(prefix, |after| after.max(prefix))),
            ":after": after.map(row::raw),
            ":pattern": pattern.map(|pattern| glob(pattern.as_str())),
            ":handler": query.handler,
            ":status": query.status,
            ":all": query.with_completed || query.status.is_some(),
            ":limit": bound(query.limit.saturating_add(1)),
            ":skip": bound(query.skip),
        };
        let mut statement = tx.prepare_cached(TASKS)?;
        let ids = statement.query_map(params, |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        let mut found = Vec::new();
        for id in ids.iter().take(query.limit) {
            if let Some(task) = tasks::listed(tx, *id)? {
                found.push((history::with_last_run(tx, task)?, marks(tx, *id, query.marks)?));
            }
        }
        Ok(TaskPage { tasks: found, has_more: ids.len() > query.limit })
    })
}

/// The same pattern for GLOB, to which `[` begins a set.
fn glob(pattern: &str) -> String {
    pattern.replace('[', "[[]")
}

/// Takes the newest scheduled runs and the newest others, each from an index: the cost does not depend on the length of the history.
const MARKS: &str = sql! {"
    SELECT r.id, r.status, ifnull(r.started_at, r.scheduled_for), r.duration_ms FROM task_runs r
     WHERE r.id IN (SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = :task AND {unscheduled_id:n} = 0
                                     ORDER BY n.scheduled_for DESC LIMIT :limit)
                    UNION ALL
                    SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = :task AND {unscheduled_id:n} > 0
                                     ORDER BY {unscheduled_id:n} DESC LIMIT :limit))
     ORDER BY r.id DESC LIMIT :limit"};

/// Returns the last runs of a task, oldest first.
fn marks(tx: &Transaction<'_>, task: i64, limit: usize) -> rusqlite::Result<Vec<Mark>> {
    // A run whose status no version of duly stores has no mark: only another program writes it.
    let read = |row: &Row<'_>| {
        let Some(status) = row::shown_if_any(row, 1)?.as_deref().and_then(RunStatus::parse) else { return Ok(None) };
        Ok(Some(Mark { run: row.get(0)?, status, at: row.get(2)?, duration: row::millis_at(row, 3)? }))
    };
    let params = named_params! { ":task": task, ":limit": bound(limit) };
    let mut marks: Vec<Mark> = row::all(tx, MARKS, params, read)?.into_iter().flatten().collect();
    marks.reverse();
    Ok(marks)
}

/// As [`MARKS`], for the history: the cost depends on the number of the page, and with a status on how rare that is.
const RUNS: &str = sql! {"
    SELECT r.id, r.scheduled_for, r.origin, r.status, r.run_at, r.blocked, r.attempt, r.started_at, r.duration_ms,
           substr(r.error, 1, :error), r.occurrences
      FROM task_runs r
     WHERE r.id IN (SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = :task AND {unscheduled_id:n} = 0
                                       AND (:status IS NULL OR n.status = :status)
                                     ORDER BY n.scheduled_for DESC LIMIT :until)
                    UNION ALL
                    SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = :task AND {unscheduled_id:n} > 0
                                       AND (:status IS NULL OR n.status = :status)
                                     ORDER BY {unscheduled_id:n} DESC LIMIT :until))
     ORDER BY r.id DESC LIMIT :limit OFFSET :skip"};

/// Returns a page of the runs of a task, newest first, and whether there are older ones.
pub(super) fn runs(store: &mut SqliteStore, query: &RunQuery) -> Result<(Vec<RunLine>, bool)> {
    store.read("read a page of the history", |tx, _| {
        let limit = query.limit.saturating_add(1);
        let params = named_params! {
            ":task": query.task,
            ":status": query.status,
            ":error": bound(RunLine::MAX_ERROR),
            ":until": bound(query.skip.saturating_add(limit)),
            ":limit": bound(limit),
            ":skip": bound(query.skip),
        };
        let mut runs = row::all(tx, RUNS, params, run)?;
        let has_more = runs.len() > query.limit;
        runs.truncate(query.limit);
        Ok((runs, has_more))
    })
}

fn run(row: &Row<'_>) -> rusqlite::Result<RunLine> {
    Ok(RunLine {
        id: row.get(0)?,
        scheduled_for: row.get(1)?,
        origin: row::shown_if_any(row, 2)?.as_deref().and_then(Origin::parse),
        status: row::shown_if_any(row, 3)?.as_deref().and_then(RunStatus::parse),
        run_at: row.get(4)?,
        blocked: row::shown_if_any(row, 5)?,
        attempt: row::saturating(row, 6)?,
        started_at: row.get(7)?,
        duration: row::millis_at(row, 8)?,
        error: row::shown_if_any(row, 9)?,
        occurrences: u64::from(row::saturating(row, 10)?),
    })
}

fn bound(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
