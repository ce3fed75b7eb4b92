//! Plans tasks again that a wrong clock, or other zone data, had planned. An occurrence that already has a row does not run
//! again.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Transaction, named_params};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::model::event::Event;
use crate::model::task::Task;
use crate::rules::resolve::{self, Plan};
use crate::schedule::{Schedules, zone_data};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{foreign_plans, owners, row};

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

/// How far the tasks are planned again that other zone data had planned, of which there may be any number. A row of `scheduler_meta`
/// keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneMark {
    /// The last of them, in the order of their ids.
    after: i64,
    /// When the other zone data was found: an occurrence that was due then is resolved as it was planned.
    since: i64,
}

const ZONE_MARK: &str = "SELECT CAST(value AS BLOB) FROM scheduler_meta WHERE key = 'zone_mark'";

/// Returns how far the tasks are planned again; `None`: all are, or they are planned by other zone data than that of this process.
pub(crate) fn zone_mark(tx: &Transaction<'_>) -> rusqlite::Result<Option<ZoneMark>> {
    let value: Option<Vec<u8>> = tx.prepare_cached(ZONE_MARK)?.query_row([], |row| row.get(0)).optional()?;
    let Some(value) = value else { return Ok(None) };
    if !foreign_plans::recorded(tx)?.is_some_and(|recorded| zone_data().is_as(&recorded)) {
        return Ok(None);
    }
    // Something that another program wrote counts as the end.
    let read = |value: Vec<u8>| {
        let value = String::from_utf8(value).ok()?;
        let (after, since) = value.split_once(' ')?;
        Some(ZoneMark { after: after.parse().ok()?, since: since.parse().ok()? })
    };
    Ok(Some(read(value).unwrap_or(ZoneMark { after: i64::MAX, since: i64::MAX })))
}

const SET_ZONE_MARK: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES ('zone_mark', :mark)
    ON CONFLICT (key) DO UPDATE SET value = :mark";

const NO_ZONE_MARK: &str = "DELETE FROM scheduler_meta WHERE key = 'zone_mark'";

/// Stores how far the tasks are planned again.
pub(crate) fn set_zone_mark(tx: &Transaction<'_>, mark: Option<ZoneMark>) -> rusqlite::Result<()> {
    let Some(ZoneMark { after, since }) = mark else { return tx.prepare_cached(NO_ZONE_MARK)?.execute([]).map(drop) };
    let mark = format!("{after} {since}");
    tx.prepare_cached(SET_ZONE_MARK)?.execute(named_params! { ":mark": mark }).map(drop)
}

const NEXT_TASKS: &str = sql! {"
    SELECT id, iif({active_planned} AND next_run > :since, iif(time_zone <> 'UTC', {local_time}, 0), 0)
      FROM scheduled_tasks WHERE id > :after ORDER BY id LIMIT :limit"};

/// Returns the next tasks with a local time in the future behind a mark, at most `most`, and the mark after them. At most `looked_at` tasks
/// are looked at: most may have no local time, which costs little.
pub(crate) fn next_tasks(
    tx: &Transaction<'_>,
    mark: ZoneMark,
    looked_at: usize,
    most: usize,
) -> rusqlite::Result<(Vec<i64>, Option<ZoneMark>)> {
    let limit = i64::try_from(looked_at).unwrap_or(i64::MAX);
    let mut statement = tx.prepare_cached(NEXT_TASKS)?;
    let mut rows = statement.query(named_params! { ":after": mark.after, ":since": mark.since, ":limit": limit })?;
    let (mut tasks, mut left, mut looked) = (Vec::new(), mark, 0);
    while let Some(row) = rows.next()? {
        let (id, is_local) = (row.get(0)?, row.get::<_, Option<bool>>(1)?.unwrap_or(false));
        if is_local {
            if tasks.len() == most {
                return Ok((tasks, Some(left)));
            }
            tasks.push(id);
        }
        (left.after, looked) = (id, looked + 1);
    }
    Ok((tasks, (looked >= looked_at).then_some(left)))
}

/// Those of these tasks with a local time in the future, looked up by id. An occurrence that is already due is resolved as it was planned.
const LOCAL_TASKS: &str = sql! {"
    SELECT {task_columns} FROM scheduled_tasks NOT INDEXED
     WHERE id IN (SELECT value FROM rarray(:tasks)) AND +id > :after
       AND {active_planned} AND next_run > :since AND {local_time}"};

/// Plans those of these tasks again that other zone data had planned. Returns whether a row must be examined to be planned: the next turn
/// does. The others are planned at once: left unplanned, a scheduler with the data before would plan them in its next turn.
pub(crate) fn plan_again(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    mark: ZoneMark,
    tasks: &[i64],
) -> rusqlite::Result<bool> {
    let mut statement = tx.prepare_cached(LOCAL_TASKS)?;
    let tasks = row::list(tasks.iter().copied());
    let params = named_params! { ":tasks": tasks, ":after": mark.after, ":since": mark.since };
    let planned = statement.query_map(params, |row| Ok((row.get("id")?, row::task(row).ok())))?;
    let planned: Vec<(i64, Option<Task>)> = planned.collect::<rusqlite::Result<_>>()?;
    let mut any_left = false;
    for (id, task) in planned {
        let before = task.as_ref().and_then(|task| task.next_run);
        let next = task.and_then(|task| anew(schedules, &task));
        any_left |= next.is_none();
        if next.is_none() || next != before {
            foreign_plans::set(tx, id, next)?;
        }
    }
    Ok(any_left)
}

/// Returns when a task is due by the zone data of this process. `None`: its row must be examined.
fn anew(schedules: &mut Schedules, task: &Task) -> Option<Timestamp> {
    let schedule = task.definition.check(task.created_at, schedules).ok()?;
    let plan = Plan::new(&task.definition, schedule, task.next_run?, task.resolved_until, task.active_since);
    resolve::planned_anew(&plan)
}

/// Most tasks that a registration plans again. Turns go on with the others.
pub(crate) const AT_ONCE: usize = 250;

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
    let mark = ZoneMark { after: i64::MIN, since: now.as_millis() };
    let (tasks, left) = next_tasks(tx, mark, AT_ONCE, AT_ONCE)?;
    // The first turn examines the rows that cannot be planned.
    plan_again(tx, schedules, mark, &tasks)?;
    set_zone_mark(tx, left)?;
    if let Some(before) = &before {
        owners::record(tx, now, "zone_data", None, None, Some(&format!("{before} became {version}")))?;
    }
    Ok(before)
}
