//! Records occurrences that are not run: skipped, or missed.

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::model::run::RunStatus;
use crate::rules::resolve::Span;
use crate::store::sqlite::sql::sql;

/// (due) -> skipped | missed, one row for a whole span.
const PASS_OVER: &str = "
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, priority, finished_at, error,
                           occurrences, last_scheduled_for)
    VALUES (:task, :handler, :first, 'schedule', :status, :first, :priority, :now, :error, :count, :last)
    ON CONFLICT DO NOTHING";

/// Extends the newest scheduled run of a task if it is a skip of the same kind, and not of a handler or a gate.
const GROW_SKIP: &str = sql! {"
    UPDATE task_runs
       SET occurrences = occurrences + :count, last_scheduled_for = :last, finished_at = :now
     WHERE id = (SELECT id FROM task_runs
                  WHERE task_id = :task AND {unscheduled_id} = 0 ORDER BY scheduled_for DESC LIMIT 1)
       AND status = 'skipped' AND attempt = 0 AND ifnull(last_scheduled_for, scheduled_for) < :first AND iif(:asked_for, error = :error, error GLOB '*(overlap policy)*')
    RETURNING id, occurrences"};

/// Occurrences of a task that are not run. `is_asked_for`: a window or a limit of the task excludes them.
pub(crate) struct PassedOver<'a> {
    pub(crate) task: i64,
    pub(crate) handler: &'a str,
    pub(crate) priority: u8,
    pub(crate) status: RunStatus,
    pub(crate) span: Span,
    pub(crate) reason: &'a str,
    pub(crate) is_asked_for: bool,
}

/// The row of occurrences that are not run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedRow {
    pub(crate) run: i64,
    /// How many it stands for now.
    pub(crate) occurrences: u64,
}

/// Records occurrences that are not run. Consecutive skips of a task are one row. Returns `None` if a row already exists.
pub(crate) fn pass_over(
    tx: &Transaction<'_>,
    row: &PassedOver<'_>,
    now: Timestamp,
) -> rusqlite::Result<Option<PassedRow>> {
    let span = &row.span;
    let count = i64::try_from(span.count).unwrap_or(i64::MAX);
    if row.status == RunStatus::Skipped {
        let named = named_params! {
            ":task": row.task, ":count": count, ":first": span.first, ":last": span.last, ":now": now, ":asked_for": row.is_asked_for,
            ":error": row.reason,
        };
        let read =
            |row: &Row<'_>| Ok(PassedRow { run: row.get(0)?, occurrences: row.get::<_, i64>(1)?.unsigned_abs() });
        if let Some(grown) = tx.prepare_cached(GROW_SKIP)?.query_row(named, read).optional()? {
            return Ok(Some(grown));
        }
    }
    let last = (span.count > 1).then_some(span.last);
    let rows = tx.prepare_cached(PASS_OVER)?.execute(named_params! {
        ":task": row.task, ":handler": row.handler, ":first": span.first, ":status": row.status,
        ":priority": row.priority, ":now": now, ":error": row.reason, ":count": count, ":last": last,
    })?;
    Ok((rows == 1).then(|| PassedRow { run: tx.last_insert_rowid(), occurrences: span.count }))
}
