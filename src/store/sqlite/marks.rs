//! Marks: what a change of a task means for its waiting runs, of which there may be any number.
//!
//! A change of the status, the handler or the overlap policy of a task writes its column `marked` and none of its runs. Turns then
//! derive the runs again from the task as it is, in batches, scheduled runs first, and store in the same transaction how far they
//! came. Until then a claim derives the run that it is about to claim. Deriving a run again changes nothing, so a run that is opened
//! after the change needs no exception, and a later mark begins with the first run.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::store::sqlite::blocked;
use crate::store::sqlite::row::{self, Raw};
use crate::store::sqlite::sql::sql;

const MARKED: &str = sql! {"SELECT id, marked FROM scheduled_tasks WHERE marked IS NOT NULL ORDER BY id LIMIT {marks}"};

/// Returns the first marked tasks, and how far each has come.
pub(crate) fn marked(tx: &Transaction<'_>) -> rusqlite::Result<Vec<(i64, i64)>> {
    let mut statement = tx.prepare_cached(MARKED)?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

const IS_MARKED: &str = "SELECT EXISTS (SELECT 1 FROM scheduled_tasks WHERE marked IS NOT NULL)";

/// Returns whether any task is marked.
pub(crate) fn any(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(IS_MARKED)?.query_row([], |row| row.get(0))
}

// INDEXED BY: after an ANALYZE SQLite would choose the index that also holds all final runs.
const NEXT_SCHEDULED: &str = sql! {"
    SELECT id, scheduled_for FROM task_runs INDEXED BY task_runs_unfinished
     WHERE task_id = :task AND {unfinished} AND {unscheduled_id} = 0 AND scheduled_for > :after
     ORDER BY scheduled_for LIMIT :limit"};

const NEXT_OTHERS: &str = sql! {"
    SELECT id, -id FROM task_runs INDEXED BY task_runs_unfinished
     WHERE task_id = :task AND {unfinished} AND {unscheduled_id} > :after
     ORDER BY {unscheduled_id} LIMIT :limit"};

/// The next unfinished runs of a marked task.
pub(crate) struct Batch {
    pub(crate) runs: Vec<i64>,
    /// The mark after them; `None` if they are the last.
    pub(crate) reached: Option<i64>,
}

/// Returns the unfinished runs of a task behind its mark, at most `limit`.
pub(crate) fn batch(tx: &Transaction<'_>, task: i64, mark: i64, limit: usize) -> rusqlite::Result<Batch> {
    let mut found: Vec<(i64, i64)> = Vec::new();
    let scheduled = (mark >= 0).then_some((NEXT_SCHEDULED, mark));
    for (statement, after) in scheduled.into_iter().chain([(NEXT_OTHERS, (-mark).max(0))]) {
        let left = i64::try_from(limit - found.len()).unwrap_or(i64::MAX);
        let mut statement = tx.prepare_cached(statement)?;
        let params = named_params! { ":task": task, ":after": after, ":limit": left };
        for row in statement.query_map(params, |row| Ok((row.get(0)?, row.get(1)?)))? {
            found.push(row?);
        }
    }
    let reached = found.last().filter(|_| found.len() == limit).map(|(_, reached)| *reached);
    Ok(Batch { runs: found.into_iter().map(|(run, _)| run).collect(), reached })
}

/// Returns how many unfinished runs of a task are behind its mark, at most `most`; `None` if it is not marked.
pub(crate) fn count(tx: &Transaction<'_>, task: i64, most: usize) -> rusqlite::Result<Option<usize>> {
    mark(tx, task)?.map(|mark| batch(tx, task, mark, most).map(|batch| batch.runs.len())).transpose()
}

const SET_MARK: &str = "UPDATE scheduled_tasks SET marked = :mark WHERE id = :task";

/// Stores how far a mark has come; `None`: it is gone.
pub(crate) fn reach(tx: &Transaction<'_>, task: i64, mark: Option<i64>) -> rusqlite::Result<()> {
    tx.prepare_cached(SET_MARK)?.execute(named_params! { ":task": task, ":mark": mark }).map(drop)
}

const RENEW_HANDLER: &str = sql! {"
    UPDATE task_runs SET handler = (SELECT t.handler FROM scheduled_tasks t WHERE t.id = task_id)
     WHERE id = :run AND {waiting} AND handler <> (SELECT t.handler FROM scheduled_tasks t WHERE t.id = task_id)"};

/// Writes the handler of a waiting run and what blocks it, as they follow from its task. Returns whether that differs from what was
/// stored. The caller then derives its key.
pub(crate) fn renew(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<bool> {
    let has_another_handler = tx.prepare_cached(RENEW_HANDLER)?.execute(named_params! { ":run": run })? > 0;
    Ok(blocked::set_reason(tx, run)? || has_another_handler)
}

/// Most runs that a request derives by itself, so that what it changes of few runs is seen at once.
const AT_ONCE: usize = 10;

/// Derives the first runs of a task that a request has changed. On a server it has read these runs.
pub(crate) fn begin(tx: &Transaction<'_>, task: i64, now: Timestamp) -> rusqlite::Result<()> {
    let Some(mark) = mark(tx, task)? else { return Ok(()) };
    let batch = batch(tx, task, mark, AT_ONCE)?;
    derive(tx, &batch.runs, now)?;
    reach(tx, task, batch.reached)
}

const MARK: &str = "SELECT marked FROM scheduled_tasks WHERE id = :task";

fn mark(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Option<i64>> {
    let mark = tx.prepare_cached(MARK)?.query_row(named_params! { ":task": task }, |row| row.get(0)).optional()?;
    Ok(mark.flatten())
}

const KEYS: &str = "
    SELECT DISTINCT concurrency_key FROM task_runs
     WHERE id IN (SELECT value FROM rarray(:runs)) AND concurrency_key IS NOT NULL";

/// Derives runs again from their task, and then their keys.
pub(crate) fn derive(tx: &Transaction<'_>, runs: &[i64], now: Timestamp) -> rusqlite::Result<()> {
    for run in runs {
        renew(tx, *run)?;
    }
    keys(tx, runs)?.iter().try_for_each(|key| blocked::derive_key(tx, key, now))
}

/// Returns the keys of runs.
pub(crate) fn keys(tx: &Transaction<'_>, runs: &[i64]) -> rusqlite::Result<Vec<Raw>> {
    let mut statement = tx.prepare_cached(KEYS)?;
    statement.query_map(named_params! { ":runs": row::list(runs.iter().copied()) }, |row| row.get(0))?.collect()
}
