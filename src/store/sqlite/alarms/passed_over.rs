//! Occurrences that got no run: those that were missed, and tasks of which five in a row were skipped.

use rusqlite::{Row, Transaction, named_params};

use crate::error::excerpt;
use crate::model::alarm::{AlarmKind, Condition, Look};
use crate::model::health::PassedOver;
use crate::rules::notice::Notice;
use crate::store::fault::Fault;
use crate::store::sqlite::alarms::{Changes, MAX_ERROR, MAX_FACTS, NEW_EVENTS, NEWEST_EVENT, cursor, move_on};
use crate::store::sqlite::row;
use crate::store::sqlite::sql::sql;
use crate::text::escape;

/// `:other`: a further kind of events, or the same again. A row of skips that grows has further events, and its alarm has begun already. A row
/// that retention has deleted counts as one occurrence.
// NOT INDEXED: by id, from the last that was examined. Statistics of an empty file would make SQLite read all events.
const PASSED_OVER: &str = "
    SELECT e.id, e.run_id, t.name, e.detail, e.at, ifnull(r.occurrences, 1)
      FROM scheduler_events e NOT INDEXED CROSS JOIN scheduled_tasks t ON t.id = e.task_id
      LEFT JOIN task_runs r ON r.id = e.run_id
     WHERE e.id > :after AND (e.kind = :event OR e.kind = :other)
       AND NOT EXISTS (SELECT 1 FROM scheduler_alarms a
                        WHERE a.channel = :channel AND a.kind = :kind AND a.subject = t.name AND a.ended_at IS NULL
                          AND a.run_id = e.run_id)
     ORDER BY e.id LIMIT :limit";

/// A task that is gone needs no success. Only runs after the row that was passed over are searched.
const SUCCEEDED: &str = sql! {"
    SELECT a.id FROM scheduler_alarms a
     WHERE a.channel = :channel AND a.kind = :kind AND a.ended_at IS NULL
       AND (NOT EXISTS (SELECT 1 FROM scheduled_tasks WHERE name = a.subject)
            OR EXISTS (SELECT 1 FROM scheduled_tasks t CROSS JOIN task_runs r INDEXED BY task_runs_one_per_occurrence
                        WHERE t.name = a.subject AND r.task_id = t.id AND {unscheduled_id:r} = 0
                          AND r.scheduled_for > ifnull((SELECT scheduled_for FROM task_runs WHERE id = a.run_id), 0)
                          AND r.status = 'succeeded' AND r.id > a.run_id)
            OR EXISTS (SELECT 1 FROM scheduled_tasks t CROSS JOIN task_runs r INDEXED BY task_runs_one_per_occurrence
                        WHERE t.name = a.subject AND r.task_id = t.id AND {unscheduled_id:r} > a.run_id
                          AND r.status = 'succeeded'))"};

/// Finds the tasks whose occurrences were missed since the last look, and those that have succeeded since.
pub(super) fn missed(tx: &Transaction<'_>, channel: &str, look: &Look<'_>, changes: &mut Changes) -> Result<(), Fault> {
    let other = if look.caught_up { Notice::CaughtUp } else { Notice::Missed };
    find(tx, channel, look, (AlarmKind::Missed, [Notice::Missed, other]), changes)
}

/// Finds the tasks that were skipped five times in a row since the last look, and those that have succeeded since.
pub(super) fn skipped(
    tx: &Transaction<'_>,
    channel: &str,
    look: &Look<'_>,
    changes: &mut Changes,
) -> Result<(), Fault> {
    find(tx, channel, look, (AlarmKind::Skipped, [Notice::Skipped; 2]), changes)
}

fn find(
    tx: &Transaction<'_>,
    channel: &str,
    look: &Look<'_>,
    (kind, [notice, other]): (AlarmKind, [Notice; 2]),
    changes: &mut Changes,
) -> Result<(), Fault> {
    let after = cursor(tx, channel, kind, (NEW_EVENTS, look.since), changes)?;
    let read = |row: &Row<'_>| {
        let (task, detail) = (row::shown(row, 2)?, row::shown_if_any(row, 3)?.unwrap_or_default());
        let passed = PassedOver { task, detail: excerpt(&detail, MAX_ERROR) };
        let (found, advice) = match kind {
            AlarmKind::Skipped => passed.as_skipped(),
            _ => passed.as_missed(),
        };
        let (found, subject) = (escape::one_line(&found), passed.task);
        // One condition, however many were skipped; of what was missed, each occurrence counts.
        let count = if kind == AlarmKind::Missed { row.get(5)? } else { 1 };
        Ok((row.get(0)?, (Condition { kind, subject, run: row.get(1)?, since: row.get(4)?, found, advice }, count)))
    };
    let found: Vec<(i64, (Condition, i64))> = tx
        .prepare_cached(PASSED_OVER)?
        .query_map(
            named_params! {
                ":after": after, ":event": notice.kind(), ":other": other.kind(), ":channel": channel, ":kind": kind.as_str(),
                ":limit": i64::try_from(MAX_FACTS).unwrap_or(i64::MAX),
            },
            read,
        )?
        .collect::<rusqlite::Result<_>>()?;
    let newest = tx.prepare_cached(NEWEST_EVENT)?.query_row([], |row| row.get::<_, i64>(0))?;
    move_on(kind, (after, newest), &found, changes);
    for (_, (condition, count)) in found {
        if !changes.begun.iter().any(|(begun, _)| begun.kind == kind && begun.run == condition.run) {
            changes.begun.push((condition, count));
        }
    }
    let mut statement = tx.prepare_cached(SUCCEEDED)?;
    for id in statement.query_map(named_params! { ":channel": channel, ":kind": kind.as_str() }, |row| row.get(0))? {
        changes.ended.push(id?);
    }
    Ok(())
}
