//! `delay` tasks: due again when the delay has passed since the end of their last unfinished run.

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::model::task::TaskStatus;
use crate::rules::resolve;
use crate::schedule::parse_duration;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{row, tasks};

// One statement for all priorities: starting a statement costs more than the search.
const ANY: &str = sql! {"
    SELECT CASE
           WHEN EXISTS (SELECT 1 FROM scheduled_tasks WHERE {active_planned} AND priority = 1 AND next_run IS NULL) THEN 1
           WHEN EXISTS (SELECT 1 FROM scheduled_tasks WHERE {active_planned} AND priority = 0 AND next_run IS NULL) THEN 1
           WHEN EXISTS (SELECT 1 FROM scheduled_tasks WHERE {active_planned} AND priority = 2 AND next_run IS NULL) THEN 1
           WHEN EXISTS (SELECT 1 FROM scheduled_tasks WHERE {active_planned} AND priority = 3 AND next_run IS NULL) THEN 1
           ELSE 0 END"};

/// Returns whether a delay task may wait for the end of a run. If not, the end of a run looks up no task. A manual task counts
/// too: it has no `next_run` either, and the index does not distinguish the two.
pub(crate) fn any(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY)?.query_row([], |row| row.get(0))
}

const AWAITED: &str = sql! {"
    SELECT schedule_value, starts_at, ends_at FROM scheduled_tasks
     WHERE id = :task AND schedule_type = 'delay' AND {active_planned} AND next_run IS NULL
       AND NOT EXISTS (SELECT 1 FROM task_runs
                        WHERE task_id = :task AND {unfinished})"};

const PLAN: &str = "UPDATE scheduled_tasks SET next_run = :next, status = :status WHERE id = :task";

/// Plans a delay task again if the run that has ended was its last unfinished one. Uses the current delay of the task, which may
/// be newer than the run.
pub(crate) fn plan_after(tx: &Transaction<'_>, task: i64, ended: Timestamp) -> rusqlite::Result<()> {
    let read = |row: &Row<'_>| Ok((row::shown(row, 0)?, (row.get(1)?, row.get(2)?)));
    let awaited = tx.prepare_cached(AWAITED)?.query_row(named_params! { ":task": task }, read).optional()?;
    let Some((value, bounds)) = awaited else { return Ok(()) };
    let Ok(delay) = parse_duration(&value) else { return Ok(()) };
    let (status, next) = tasks::stored(resolve::delayed(bounds, ended, delay), TaskStatus::Active);
    tx.prepare_cached(PLAN)?.execute(named_params! { ":task": task, ":next": next, ":status": status })?;
    Ok(())
}
