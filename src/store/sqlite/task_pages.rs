//! Pages of tasks and of the runs of a task.

use rusqlite::{OptionalExtension, Row, ToSql, Transaction, named_params};

use crate::error::Result;
use crate::model::run::{Origin, RunStatus};
use crate::model::task_pages::{After, Few, Mark, RunLine, RunPage, RunQuery, TaskPage, TaskQuery};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::row::Raw;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{history, row, tasks};

/// Ids, so that only the rows of the page are read completely. By name, an index has them in order, from `:from` on; in other orders all
/// tasks are read.
// Without IN: see `schema.sql`. `completed` is compared first, since most tasks are not.
const TASKS: &str = "
    SELECT t.id FROM scheduled_tasks t
     WHERE t.name >= :from AND (:after IS NULL OR t.name <> :after) AND (:pattern IS NULL OR t.name GLOB :pattern)
       AND (:handler IS NULL OR t.handler = :handler)
       AND (:status IS NULL OR t.status = :status)
       AND (:all OR t.status <> 'completed' OR t.schedule_type <> 'once'
            OR ifnull((SELECT r.status = 'dead' OR r.status = 'queued' OR r.status = 'running' OR r.status = 'failed'
                         FROM task_runs r
                        WHERE r.task_id = t.id ORDER BY r.id DESC LIMIT 1), 0))";

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
        let mut statement =
            tx.prepare_cached(&format!("{TASKS} ORDER BY {} LIMIT :limit OFFSET :skip", query.order.terms()))?;
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

/// The newest runs, whatever their task.
const WALK: &str = "SELECT id FROM task_runs WHERE id < :before ORDER BY id DESC LIMIT :most";

/// As [`MARKS`], for the history: from the run before which the page begins.
const OF_TASK: &str = sql! {"
    SELECT id FROM (SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = :task AND {unscheduled_id:n} = 0 AND n.id < :before
                                       AND n.scheduled_for <= ifnull((SELECT b.scheduled_for FROM task_runs b
                                                                       WHERE b.id = :before AND b.task_id = :task
                                                                         AND {unscheduled_id:b} = 0), 64060588800000)
                                     ORDER BY n.scheduled_for DESC LIMIT :most)
                    UNION ALL
                    SELECT id FROM (SELECT n.id FROM task_runs n
                                     WHERE n.task_id = :task
                                       AND {unscheduled_id:n} > 0 AND {unscheduled_id:n} < :before
                                     ORDER BY {unscheduled_id:n} DESC LIMIT :most))
     ORDER BY id DESC LIMIT :most"};

const DEAD: &str = "
    SELECT id FROM task_runs INDEXED BY task_runs_dead WHERE finished_at IS NOT NULL AND status = 'dead' LIMIT :most";

const UNFINISHED: &str = sql! {"
SELECT id FROM task_runs INDEXED BY task_runs_unfinished WHERE {unfinished} LIMIT :most"};

/// When a run began; when it was resolved or ended, if it did not.
const BEGAN: &str = "SELECT coalesce(started_at, finished_at) FROM task_runs WHERE id = :run";

/// Those of some runs that match.
const FOUND: &str = sql! {"
    SELECT r.id, r.scheduled_for, r.origin, r.status, r.run_at, r.blocked, r.attempt, r.started_at, r.duration_ms,
           iif(instr(r.error, char(10)) > 0, substr(r.error, -:length), substr(r.error, 1, :length)), r.occurrences, r.handler, t.name
      FROM rarray(:runs) CROSS JOIN task_runs r NOT INDEXED ON r.id = value
     CROSS JOIN scheduled_tasks t NOT INDEXED ON t.id = r.task_id
     WHERE (:task IS NULL OR r.task_id = :task) AND (:status IS NULL OR r.status = :status)
       AND (:unfinished = 0 OR {unfinished:r})
       AND (:since IS NULL OR ifnull(r.last_scheduled_for, r.scheduled_for) >= :since)
       AND (:until IS NULL OR ifnull(r.last_scheduled_for, r.scheduled_for) <= :until)
       AND (:handler IS NULL OR r.handler = :handler)
       AND (:text IS NULL OR instr(lower(r.error), :text) > 0)
       AND (:pattern IS NULL OR t.name GLOB :pattern)
     ORDER BY r.id DESC LIMIT :limit"};

/// How many runs are read at once, until a page is full.
const BATCH: usize = 200;

/// Returns a page of runs, newest first. The cost does not depend on the length of the history, unless the page begins before a run of a
/// task that has no schedule: it then depends on the number of scheduled runs of that task that are newer.
pub(super) fn runs(store: &mut SqliteStore, query: &RunQuery) -> Result<RunPage> {
    store.read("read a page of runs", |tx, _| {
        let before = query.before.unwrap_or(i64::MAX);
        let ids = |sql, params: &[(&str, &dyn ToSql)]| row::all(tx, sql, params, |row| row.get::<_, i64>(0));
        let few = match query.few() {
            Some(few) => {
                let sql = if few == Few::Dead { DEAD } else { UNFINISHED };
                let mut few = ids(sql, named_params! { ":most": bound(query.most.saturating_add(1)) })?;
                let are_all = few.len() <= query.most;
                few.retain(|run| *run < before);
                few.sort_unstable_by_key(|run| std::cmp::Reverse(*run));
                are_all.then_some(few)
            }
            None => None,
        };
        let (most, mut end) = (query.looks_at(), None);
        let looked_at = match few {
            Some(few) => few,
            None => {
                let looked_at = match query.task {
                    None => ids(WALK, named_params! { ":before": before, ":most": bound(most) })?,
                    Some(_) => {
                        ids(OF_TASK, named_params! { ":task": query.task, ":before": before, ":most": bound(most) })?
                    }
                };
                if let Some(last) = looked_at.last().filter(|_| looked_at.len() == most) {
                    let began =
                        tx.prepare_cached(BEGAN)?.query_row(named_params! { ":run": last }, |row| row.get(0))?;
                    end = Some((*last, began));
                }
                looked_at
            }
        };
        let mut found = Vec::new();
        for batch in looked_at.chunks(BATCH) {
            found.extend(matching(tx, batch, query, query.limit.saturating_add(1) - found.len())?);
            if found.len() > query.limit {
                break;
            }
        }
        Ok(query.page(found, end))
    })
}

/// Returns those of some runs that match, newest first.
fn matching(tx: &Transaction<'_>, runs: &[i64], query: &RunQuery, limit: usize) -> rusqlite::Result<Vec<RunLine>> {
    let params = named_params! {
        ":runs": row::list(runs.iter().copied()),
        ":task": query.task,
        ":status": query.status,
        ":unfinished": query.is_unfinished,
        ":since": query.since,
        ":until": query.until,
        ":handler": query.handler,
        ":text": query.error.as_ref().map(|text| text.to_ascii_lowercase()),
        ":pattern": query.pattern.as_ref().map(|pattern| glob(pattern.as_str())),
        ":length": bound(RunLine::MAX_ERROR),
        ":limit": bound(limit),
    };
    row::all(tx, FOUND, params, run)
}

/// Returns some runs, newest first.
#[cfg(feature = "postgres")]
pub(crate) fn lines(store: &mut SqliteStore, runs: &[i64]) -> Result<Vec<RunLine>> {
    store.read("read a page of runs", |tx, _| Ok(matching(tx, runs, &RunQuery::default(), runs.len())?))
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
        handler: row::shown(row, 11)?,
        task: row::shown(row, 12)?,
    })
}

fn bound(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
