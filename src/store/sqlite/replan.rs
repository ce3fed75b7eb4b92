//! Plans tasks again that a wrong clock, or other zone data, had planned. An occurrence that already has a row does not run
//! again.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Transaction, named_params};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::model::event::Event;
use crate::rules::resolve::{self, Plan};
use crate::schedule::Schedules;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{foreign_plans, owners, tasks};

/// A `once` task keeps its time, and runs if its occurrence is not resolved: a next_run that a user has set since the step back
/// is not resolved. The grid of an interval may begin at created_at.
const TASKS: &str = "
    UPDATE scheduled_tasks
       SET planned = 0, next_run = iif(schedule_type = 'once', next_run, NULL),
           resolved_until = iif(schedule_type = 'once', min(resolved_until, :now, ifnull(next_run - 1, :now)), :now),
           active_since = min(active_since, :now), created_at = min(created_at, :now)
     WHERE ((status = 'active' AND schedule_type <> 'once')
            OR active_since > :now OR created_at > :now OR resolved_until > :now
            OR (schedule_type = 'once' AND next_run <= resolved_until))";

/// Otherwise no later run would be the newest of its task.
const LAST_RUNS: &str = "UPDATE scheduled_tasks SET last_run = :now WHERE last_run > :now";

/// Tasks that the wrong clock completed become active again, within their bounds; a task that has really ended completes again
/// when it is planned. A completed `once` task has run. If active_since stayed the same, a trigger would set it from SQLite's
/// clock.
const ENDED: &str = "
    UPDATE scheduled_tasks
       SET status = 'active', planned = 0, next_run = NULL, resolved_until = :now,
           active_since = :now + (active_since = :now), created_at = min(created_at, :now)
     WHERE status = 'completed' AND schedule_type <> 'once' AND (ends_at IS NULL OR ends_at > :now)";

/// A run_at that was computed from the wrong clock is computed again from now, with the same wait: the backoff of a retry, the
/// jitter of an occurrence. A run that was claimed and returned has waited already. A run_at computed from an earlier time stays.
/// If the wrong clock recorded the end, and a later clock computed the run_at, the wait is at most the longest backoff.
const WAITING: &str = sql! {"
    UPDATE task_runs
       SET run_at = CASE WHEN status = 'queued' THEN :now + iif(attempt = 0, max(run_at - scheduled_for, 0), 0)
                         WHEN run_at >= finished_at THEN :now + run_at - finished_at
                         ELSE min(run_at, :now + (SELECT backoff_cap_ms FROM scheduled_tasks t WHERE t.id = task_id))
                     END
     WHERE {waiting} AND run_at > :now
       AND CASE WHEN status = 'failed' THEN finished_at WHEN attempt = 0 THEN scheduled_for ELSE run_at END > :now"};

/// Otherwise the next start would take the clock for wrong again.
const INSTANCES: &str = "
    UPDATE scheduler_instances
       SET seen_at = min(seen_at, :now), started_at = min(started_at, :now), stopped_at = min(stopped_at, :now)
     WHERE seen_at > :now OR stopped_at > :now";

/// Otherwise a start in the future would count until the clock has reached it.
const STARTS: &str = "UPDATE rate_limit_starts SET started_at = :now WHERE started_at > :now";

/// Limits a statement to these rows.
const OF_ROWS: &str = "AND id IN (SELECT value FROM json_each(:rows))";

/// Returns whether a heartbeat is ahead of the clock. If not, another scheduler has planned all again already: occurrences that
/// became due since would be lost.
pub(crate) fn is_ahead(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<bool> {
    Ok(owners::newest_seen(tx)?.is_some_and(|newest| newest > now))
}

/// Plans all tasks and waiting runs again from now on.
pub(crate) fn rewind_all(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    for statement in [ENDED, TASKS, LAST_RUNS, WAITING] {
        tx.prepare_cached(statement)?.execute(named_params! { ":now": now })?;
    }
    Ok(())
}

/// As [`rewind_all`], for these tasks, without their runs.
pub(crate) fn rewind_tasks(tx: &Transaction<'_>, tasks: &[i64], now: Timestamp) -> rusqlite::Result<()> {
    [ENDED, TASKS, LAST_RUNS].iter().try_for_each(|statement| rewind_rows(tx, statement, tasks, now))
}

/// As [`rewind_all`], for these runs.
pub(crate) fn rewind_runs(tx: &Transaction<'_>, runs: &[i64], now: Timestamp) -> rusqlite::Result<()> {
    rewind_rows(tx, WAITING, runs, now)
}

fn rewind_rows(tx: &Transaction<'_>, statement: &str, rows: &[i64], now: Timestamp) -> rusqlite::Result<()> {
    let rows = serde_json::Value::from(rows).to_string();
    let statement = format!("{statement} {OF_ROWS}");
    tx.prepare_cached(&statement)?.execute(named_params! { ":now": now, ":rows": rows })?;
    Ok(())
}

const ALL_TASKS: &str = "SELECT id FROM scheduled_tasks";

/// Returns all tasks.
pub(crate) fn all_tasks(tx: &Transaction<'_>) -> rusqlite::Result<Vec<i64>> {
    tx.prepare_cached(ALL_TASKS)?.query_map([], |row| row.get(0))?.collect()
}

const LATER: &str = sql! {"SELECT id FROM task_runs WHERE {waiting} AND run_at > :now"};

/// Returns the waiting runs that are due later.
pub(crate) fn later_runs(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<Vec<i64>> {
    tx.prepare_cached(LATER)?.query_map(named_params! { ":now": now }, |row| row.get(0))?.collect()
}

/// Corrects the starts of rate limits and the heartbeats, and records the skipped time in an event.
pub(crate) fn rewound(tx: &Transaction<'_>, believed: Timestamp, now: Timestamp) -> rusqlite::Result<()> {
    for statement in [STARTS, INSTANCES] {
        tx.prepare_cached(statement)?.execute(named_params! { ":now": now })?;
    }
    let detail = Event::ClockWasWrong { believed, found: now }.to_string();
    owners::record(tx, now, "clock_wrong", None, None, Some(&detail))
}

/// Tasks and runs that a wrong clock has planned and that could not be written yet, and the time from which they are planned again. The
/// tables keep them: a scheduler may end before it could write them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Misplanned {
    pub(crate) tasks: BTreeMap<i64, Timestamp>,
    pub(crate) runs: BTreeMap<i64, Timestamp>,
}

const MISPLANNED: &str = "SELECT CAST(value AS BLOB) FROM scheduler_meta WHERE key = 'misplanned'";

/// Returns what still has to be planned again.
pub(crate) fn misplanned(tx: &Transaction<'_>) -> rusqlite::Result<Misplanned> {
    let value: Option<Vec<u8>> = tx.prepare_cached(MISPLANNED)?.query_row([], |row| row.get(0)).optional()?;
    // Something that another program wrote counts as nothing.
    Ok(value.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default())
}

const SET_MISPLANNED: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES ('misplanned', :rows)
    ON CONFLICT (key) DO UPDATE SET value = :rows";

const NONE_MISPLANNED: &str = "DELETE FROM scheduler_meta WHERE key = 'misplanned'";

/// Records what still has to be planned again.
pub(crate) fn set_misplanned(tx: &Transaction<'_>, rows: &Misplanned) -> rusqlite::Result<()> {
    if *rows == Misplanned::default() {
        return tx.prepare_cached(NONE_MISPLANNED)?.execute([]).map(|_| ());
    }
    let rows = serde_json::to_string(rows).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    tx.prepare_cached(SET_MISPLANNED)?.execute(named_params! { ":rows": rows }).map(|_| ())
}

const SET_ZONE_DATA: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES ('zone_data', :version)
    ON CONFLICT (key) DO UPDATE SET value = :version";

/// Tasks with a local time in the future. An occurrence that is already due is resolved as it was planned.
const LOCAL_TASKS: &str = sql! {"
    UPDATE scheduled_tasks SET planned = 0, next_run = NULL
     WHERE {active_planned} AND next_run > :now AND {local_time}"};

/// They are planned at once: left unplanned, a scheduler with the data before would plan them in its next turn.
const PLANNED: &str = sql! {"
    SELECT id FROM scheduled_tasks
     WHERE {active_planned} AND next_run > :now AND {local_time}"};

/// Records the zone data of this process. Returns the recorded zone data if it differs: local times are then planned again. They are
/// also if none was recorded: clients may have planned them with other data.
pub(crate) fn record_zone_data(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    version: &str,
    now: Timestamp,
) -> rusqlite::Result<Option<String>> {
    let before = foreign_plans::recorded(tx)?;
    if before.as_deref() == Some(version) {
        return Ok(None);
    }
    tx.prepare_cached(SET_ZONE_DATA)?.execute(named_params! { ":version": version })?;
    let planned: Vec<i64> = {
        let mut statement = tx.prepare_cached(PLANNED)?;
        statement.query_map(named_params! { ":now": now }, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?
    };
    let anew: Vec<_> = planned.into_iter().filter_map(|id| Some((id, anew(tx, schedules, id)?))).collect();
    tx.prepare_cached(LOCAL_TASKS)?.execute(named_params! { ":now": now })?;
    for (task, next) in anew {
        foreign_plans::set(tx, task, next)?;
    }
    if let Some(before) = &before {
        owners::record(tx, now, "zone_data", None, None, Some(&format!("{before} became {version}")))?;
    }
    Ok(before)
}

/// Returns when a task is due by the zone data of this process. `None`: its row must be examined.
fn anew(tx: &Transaction<'_>, schedules: &mut Schedules, id: i64) -> Option<Timestamp> {
    let task = tasks::readable(tx, id).ok()??;
    let schedule = task.definition.check(task.created_at, schedules).ok()?;
    let plan = Plan::new(&task.definition, schedule, task.next_run?, task.resolved_until, task.active_since);
    resolve::planned_anew(&plan)
}
