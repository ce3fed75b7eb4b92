//! Occurrences that got no run: those that were missed, and tasks of which five in a row were skipped, or no start was left.

use rusqlite::{Row, Transaction, named_params};

use crate::error::excerpt;
use crate::model::alarm::{AlarmKind, Condition, Look};
use crate::model::health::PassedOver;
use crate::rules::notice::Notice;
use crate::store::fault::Fault;
use crate::store::sqlite::alarms::{Changes, MAX_ERROR, MAX_FACTS, NEW_EVENTS, NEWEST_EVENT, cursor, move_on};
use crate::store::sqlite::{history, row};
use crate::text::escape;

/// `:caught_up`: whether occurrences are told of in whose place a later one is run. A row of skips that grows has further events, and its alarm has begun already. A row
/// that retention has deleted counts as one occurrence.
// NOT INDEXED: by id, from the last that was examined. Statistics of an empty file would make SQLite read all events.
const PASSED_OVER: &str = "
    SELECT e.id, e.run_id, t.name, e.detail, e.at, ifnull(r.occurrences, 1)
      FROM scheduler_events e NOT INDEXED CROSS JOIN scheduled_tasks t ON t.id = e.task_id
      LEFT JOIN task_runs r ON r.id = e.run_id
     WHERE e.id > :after AND (e.kind = :event OR (:caught_up AND e.kind = 'caught_up'))
       AND NOT EXISTS (SELECT 1 FROM scheduler_alarms a
                        WHERE a.channel = :channel AND a.kind = :kind AND a.subject = t.name AND a.ended_at IS NULL
                          AND a.run_id = e.run_id)
     ORDER BY e.id LIMIT :limit";

const LASTING: &str = "
    SELECT a.id, t.id, a.run_id, r.scheduled_for, a.subject
      FROM scheduler_alarms a LEFT JOIN scheduled_tasks t ON t.name = a.subject LEFT JOIN task_runs r ON r.id = a.run_id
     WHERE a.channel = :channel AND a.kind = :kind AND a.ended_at IS NULL";

/// Finds the tasks whose occurrences were missed, of which five in a row were skipped, or no start was left, since the last look, and those of
/// which that has ended since.
pub(super) fn find(
    tx: &Transaction<'_>,
    channel: &str,
    look: &Look<'_>,
    kind: AlarmKind,
    changes: &mut Changes,
) -> Result<(), Fault> {
    let (notice, caught_up) = match kind {
        AlarmKind::Skipped => (Notice::Skipped, false),
        AlarmKind::Limited => (Notice::Limited, false),
        _ => (Notice::Missed, look.caught_up),
    };
    let after = cursor(tx, channel, kind, (NEW_EVENTS, look.since), changes)?;
    let read = |row: &Row<'_>| {
        let (task, detail) = (row::shown(row, 2)?, row::shown_if_any(row, 3)?.unwrap_or_default());
        let passed = PassedOver { task, detail: excerpt(&detail, MAX_ERROR) };
        let (found, advice) = match kind {
            AlarmKind::Skipped => passed.as_skipped(),
            AlarmKind::Limited => passed.as_limited(),
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
                ":after": after, ":event": notice.kind(), ":caught_up": caught_up, ":channel": channel, ":kind": kind.as_str(),
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
    let mut statement = tx.prepare_cached(LASTING)?;
    let mut lasting = statement.query(named_params! { ":channel": channel, ":kind": kind.as_str() })?;
    while let Some(row) = lasting.next()? {
        // It goes on with a newer row. The next look, which follows at once, asks for a success after that.
        let subject = row::shown(row, 4)?;
        if changes.begun.iter().any(|(begun, _)| begun.kind == kind && begun.subject == subject) {
            continue;
        }
        let of_run = (row.get::<_, Option<i64>>(2)?.unwrap_or_default(), row.get(3)?);
        // A task that is gone needs no success.
        let lasts = |task| history::lasts(tx, notice, task, of_run);
        if !row.get::<_, Option<i64>>(1)?.map_or(Ok(false), lasts)? {
            changes.ended.push(row.get(0)?);
        }
    }
    Ok(())
}
