//! `delay` tasks: due again so long after the last of their runs is over.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::schedule::parse_duration;
use crate::store::sqlite::row;

const OVER: &str = "
    UPDATE scheduled_tasks
       SET next_run = iif(max(:next, ifnull(starts_at, 0)) > ends_at, NULL, max(:next, ifnull(starts_at, 0))),
           status = iif(max(:next, ifnull(starts_at, 0)) > ends_at, 'completed', 'active')
     WHERE id = :task AND schedule_type = 'delay' AND status = 'active' AND planned = 1 AND next_run IS NULL
       AND NOT EXISTS (SELECT 1 FROM task_runs
                        WHERE task_id = :task AND (status = 'queued' OR status = 'failed' OR status = 'running'))";

const ANY: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduled_tasks
                    WHERE status = 'active' AND planned = 1 AND priority = :priority AND next_run IS NULL)";

/// Whether a delay task may wait for the end of a run; if none does, no task is looked up when a run ends. A manual task counts
/// too: it has no next_run either, and to tell the two apart would read the row of each.
pub(crate) fn any(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    let mut statement = tx.prepare_cached(ANY)?;
    for priority in 0..=3_i64 {
        if statement.query_row(named_params! { ":priority": priority }, |row| row.get(0))? {
            return Ok(true);
        }
    }
    Ok(false)
}

const AWAITED: &str = "
    SELECT schedule_value FROM scheduled_tasks
     WHERE id = :task AND schedule_type = 'delay' AND status = 'active' AND planned = 1 AND next_run IS NULL";

/// The last unfinished run of a delay task is over: the task is due again so long after its end. The delay is the task's of
/// now: it may have become a delay task, or another, while the run was at work.
pub(crate) fn over(tx: &Transaction<'_>, task: i64, ended: Timestamp) -> rusqlite::Result<()> {
    let value = tx.prepare_cached(AWAITED)?.query_row(named_params! { ":task": task }, |row| row::shown(row, 0));
    if let Some(delay) = value.optional()?.and_then(|value| parse_duration(&value).ok()) {
        let next = ended.plus(delay).min(Timestamp::MAX);
        tx.prepare_cached(OVER)?.execute(named_params! { ":task": task, ":next": next })?;
    }
    Ok(())
}
