//! Plans tasks again that a wrong clock, or other zone data, had planned. An occurrence that already has a row does not run
//! again.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::model::event::Event;
use crate::model::task::Task;
use crate::rules::resolve::{self, Plan};
use crate::schedule::{Schedules, rules_of, zone_data};
use crate::store::sqlite::sql::{number, sql};
use crate::store::sqlite::{foreign_plans, owners, row};
use crate::store::turn_io::Other;
use crate::text::units::first_of;

/// Plans tasks again from `:now`, when the clock was found wrong. What is not ahead of `:wall`, the clock as it is now, was written by
/// the clock as it should be, and stays. A `once` task keeps its time, and runs if its occurrence is not resolved: a next_run that a
/// user has set since the step back is not resolved. The grid of an interval may begin at created_at.
const TASKS: &str = "
    UPDATE scheduled_tasks
       SET planned = 0, next_run = iif(schedule_type = 'once', next_run, NULL),
           resolved_until = CASE WHEN schedule_type = 'once' THEN min(resolved_until, :now, ifnull(next_run - 1, :now))
                                 WHEN resolved_until BETWEEN :now AND :wall THEN resolved_until
                                 ELSE :now END,
           active_since = iif(active_since > :wall, :now, active_since), created_at = iif(created_at > :wall, :now, created_at)
     WHERE ((status = 'active' AND schedule_type <> 'once')
            OR active_since > :wall OR created_at > :wall OR resolved_until > :wall
            OR (schedule_type = 'once' AND next_run <= resolved_until))
       AND id IN (SELECT value FROM json_each(:rows))";

/// Otherwise no later run would be the newest of its task.
const LAST_RUNS: &str = "
    UPDATE scheduled_tasks SET last_run = :now
     WHERE last_run > :wall AND id IN (SELECT value FROM json_each(:rows))";

/// Tasks that the wrong clock completed become active again, within their bounds; a task that has really ended completes again
/// when it is planned. A completed `once` task has run. If active_since stayed the same, a trigger would set it from SQLite's
/// clock.
const ENDED: &str = "
    UPDATE scheduled_tasks
       SET status = 'active', planned = 0, next_run = NULL, resolved_until = :now,
           active_since = :now + (active_since = :now), created_at = iif(created_at > :wall, :now, created_at)
     WHERE status = 'completed' AND schedule_type <> 'once' AND (ends_at IS NULL OR ends_at > :now)
       AND id IN (SELECT value FROM json_each(:rows))";

/// A run_at that was computed from the wrong clock is computed again from now, with the same wait: the backoff of a retry, the
/// jitter of an occurrence. A run that was claimed and returned has waited already. A run_at computed from an earlier time stays.
/// If the wrong clock recorded the end, and a later clock computed the run_at, the wait is at most the longest backoff. A run that waits
/// since before its occurrence is computed already.
const WAITING: &str = sql! {"
    UPDATE task_runs
       SET run_at = CASE WHEN status = 'queued' THEN :now + iif(attempt = 0, max(run_at - scheduled_for, 0), 0)
                         WHEN run_at >= finished_at THEN :now + run_at - finished_at
                         ELSE min(run_at, :now + (SELECT backoff_cap_ms FROM scheduled_tasks t WHERE t.id = task_id))
                     END
     WHERE {waiting} AND run_at > :wall
       AND CASE WHEN status = 'failed' THEN finished_at WHEN attempt = 0 THEN min(scheduled_for, run_at) ELSE run_at END > :wall
       AND id IN (SELECT value FROM json_each(:rows))"};

/// Otherwise the next start would take the clock for wrong again.
const INSTANCES: &str = "
    UPDATE scheduler_instances
       SET seen_at = min(seen_at, :now), started_at = min(started_at, :now), stopped_at = min(stopped_at, :now)
     WHERE seen_at > :now OR stopped_at > :now";

/// Returns whether a heartbeat is ahead of the clock. If not, another scheduler has planned all again already: occurrences that
/// became due since would be lost.
pub(crate) fn is_ahead(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<bool> {
    Ok(owners::newest_seen(tx)?.is_some_and(|newest| newest > now))
}

/// Plans tasks again, without their runs, that a clock ahead of `wall` has planned: as from `since`, when it was found wrong.
pub(crate) fn rewind_tasks(
    tx: &Transaction<'_>,
    tasks: &[i64],
    since: Timestamp,
    wall: Timestamp,
) -> rusqlite::Result<()> {
    [ENDED, TASKS, LAST_RUNS].iter().try_for_each(|statement| rewind_rows(tx, statement, tasks, since, wall))
}

/// As [`rewind_tasks`], for waiting runs.
pub(crate) fn rewind_runs(
    tx: &Transaction<'_>,
    runs: &[i64],
    since: Timestamp,
    wall: Timestamp,
) -> rusqlite::Result<()> {
    rewind_rows(tx, WAITING, runs, since, wall)
}

fn rewind_rows(
    tx: &Transaction<'_>,
    statement: &str,
    rows: &[i64],
    since: Timestamp,
    wall: Timestamp,
) -> rusqlite::Result<()> {
    let rows = serde_json::Value::from(rows).to_string();
    let params = named_params! { ":now": since.min(wall), ":wall": wall, ":rows": rows };
    tx.prepare_cached(statement)?.execute(params).map(drop)
}

/// Corrects the heartbeats, and records the skipped time in an event.
pub(crate) fn rewound(tx: &Transaction<'_>, believed: Timestamp, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(INSTANCES)?.execute(named_params! { ":now": now })?;
    let detail = Event::ClockWasWrong { believed, found: now }.to_string();
    owners::record(tx, now, "clock_wrong", None, None, Some(&detail))
}

/// Tasks and runs that a wrong clock has planned and that could not be written when the mark came to them, and the time from which they are
/// planned again. The tables keep them: a scheduler may end before it could write them.
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

/// Most rows that wait for being planned again beside a mark. If there are more, the mark waits.
pub(crate) const MOST_MISPLANNED: usize = 250;

/// Records what still has to be planned again.
pub(crate) fn set_misplanned(tx: &Transaction<'_>, rows: &Misplanned) -> rusqlite::Result<()> {
    if *rows == Misplanned::default() {
        return delete_meta(tx, "misplanned");
    }
    let rows = serde_json::to_string(rows).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    set_meta(tx, "misplanned", &rows)
}

const SET_META: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = :value";

const DELETE_META: &str = "DELETE FROM scheduler_meta WHERE key = :key";

fn set_meta(tx: &Transaction<'_>, key: &str, value: &str) -> rusqlite::Result<()> {
    tx.prepare_cached(SET_META)?.execute(named_params! { ":key": key, ":value": value }).map(drop)
}

fn delete_meta(tx: &Transaction<'_>, key: &str) -> rusqlite::Result<()> {
    tx.prepare_cached(DELETE_META)?.execute(named_params! { ":key": key }).map(drop)
}

/// How far the tasks of a time zone are planned again that other rules had planned, of which there may be any number. A row of
/// `scheduler_meta` keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneMark {
    /// The last of them, in the order of their ids.
    after: i64,
    /// When the other rules were found: an occurrence that was due then is resolved as it was planned.
    since: i64,
}

/// The marks by zone.
pub(crate) type ZoneMarks = BTreeMap<String, ZoneMark>;

const ZONE_MARKS: &str = "
    SELECT substr(m.key, 11), m.value, (SELECT value FROM scheduler_meta WHERE key = 'zone_rules:' || substr(m.key, 11))
      FROM scheduler_meta m WHERE m.key > 'zone_mark:' AND m.key < 'zone_mark;' ORDER BY m.key LIMIT :limit";

/// Of how many zones one turn plans tasks again.
const ZONES_OF_A_TURN: i64 = number("zone_marks");

/// Returns how far the tasks of each marked zone are planned again, without the zones that this process does not plan: by its rules, the
/// plan would be the old one again. Looks at the first `limit` marks.
fn first_marks(tx: &Transaction<'_>, limit: i64) -> rusqlite::Result<ZoneMarks> {
    let mut statement = tx.prepare_cached(ZONE_MARKS)?;
    let mut rows = statement.query(named_params! { ":limit": limit })?;
    let mut marks = ZoneMarks::new();
    while let Some(row) = rows.next()? {
        let (zone, recorded) = (row::shown(row, 0)?, row::shown_if_any(row, 2)?.unwrap_or_default());
        if rules_of(&zone).is_some_and(|rules| foreign_plans::is_first(&recorded, &rules)) {
            marks
                .insert(zone, read_mark(&row::shown(row, 1)?).unwrap_or(ZoneMark { after: i64::MAX, since: i64::MAX }));
        }
    }
    Ok(marks)
}

/// Returns what a row says; `None`: another program wrote it, which counts as the end.
fn read_mark(value: &str) -> Option<ZoneMark> {
    let (after, since) = value.split_once(' ')?;
    Some(ZoneMark { after: after.parse().ok()?, since: since.parse().ok()? })
}

/// Returns the marks of all zones that this process plans.
pub(crate) fn zone_marks(tx: &Transaction<'_>) -> rusqlite::Result<ZoneMarks> {
    first_marks(tx, i64::MAX)
}

/// Stores how far the tasks of a zone are planned again; `None`: all are.
fn set_zone_mark(tx: &Transaction<'_>, zone: &str, mark: Option<ZoneMark>) -> rusqlite::Result<()> {
    let key = format!("zone_mark:{zone}");
    let Some(ZoneMark { after, since }) = mark else { return delete_meta(tx, &key) };
    set_meta(tx, &key, &format!("{after} {since}"))
}

const NEXT_TASKS: &str = sql! {"
    SELECT id, iif({active_planned} AND next_run > :since, {local_time}, 0)
      FROM scheduled_tasks WHERE {zoned} AND time_zone = :zone AND id > :after ORDER BY id LIMIT :limit"};

/// Returns the next tasks of a zone with a local time in the future behind a mark, at most `most`, and the mark after them. At most
/// `looked_at` tasks are looked at.
fn next_tasks(
    tx: &Transaction<'_>,
    (zone, mark): (&str, ZoneMark),
    looked_at: usize,
    most: usize,
) -> rusqlite::Result<(Vec<i64>, Option<ZoneMark>)> {
    let limit = i64::try_from(looked_at).unwrap_or(i64::MAX);
    let mut statement = tx.prepare_cached(NEXT_TASKS)?;
    let params = named_params! { ":zone": zone, ":after": mark.after, ":since": mark.since, ":limit": limit };
    let mut rows = statement.query(params)?;
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

/// Moves the first marks behind the next tasks, at most `most`, and returns these, which are then to be planned again. At most `looked_at`
/// tasks of each zone are looked at.
pub(crate) fn pass_marks(
    tx: &Transaction<'_>,
    looked_at: usize,
    mut most: usize,
) -> rusqlite::Result<(ZoneMarks, Vec<i64>)> {
    let marks = first_marks(tx, ZONES_OF_A_TURN)?;
    let mut passed = Vec::new();
    for (zone, mark) in &marks {
        let (tasks, left) = next_tasks(tx, (zone, *mark), looked_at, most)?;
        most -= tasks.len();
        passed.extend(tasks);
        if left != Some(*mark) {
            set_zone_mark(tx, zone, left)?;
        }
    }
    Ok((marks, passed))
}

/// Those of these tasks with a local time, looked up by id.
const LOCAL_TASKS: &str = sql! {"
    SELECT {task_columns} FROM scheduled_tasks NOT INDEXED
     WHERE id IN (SELECT value FROM rarray(:tasks)) AND {active_planned} AND {local_time}"};

/// Plans those of these tasks again that other rules had planned. An occurrence that was already due is resolved as it was planned. Returns
/// whether a row must be examined to be planned: the next turn does. The others are planned at once: left unplanned, a scheduler with the
/// rules before would plan them in its next turn.
pub(crate) fn plan_again(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    marks: &ZoneMarks,
    tasks: &[i64],
) -> rusqlite::Result<bool> {
    if marks.is_empty() {
        return Ok(false);
    }
    let mut statement = tx.prepare_cached(LOCAL_TASKS)?;
    let tasks = row::list(tasks.iter().copied());
    let read =
        |row: &Row<'_>| Ok((row.get("id")?, row::shown(row, "time_zone")?, row.get("next_run")?, row::task(row).ok()));
    let planned = statement.query_map(named_params! { ":tasks": tasks }, read)?;
    let planned: Vec<(i64, String, Option<Timestamp>, Option<Task>)> = planned.collect::<rusqlite::Result<_>>()?;
    let mut any_left = false;
    for (id, zone, before, task) in planned {
        let Some(mark) = marks.get(&zone).filter(|mark| id > mark.after) else { continue };
        if before.is_none_or(|before| before.as_millis() <= mark.since) {
            continue;
        }
        let next = task.and_then(|task| anew(schedules, &task));
        any_left |= next.is_none();
        if next.is_none() || next != before {
            foreign_plans::set(tx, id, next)?;
        }
    }
    Ok(any_left)
}

/// Returns when a task is due by the rules of this process. `None`: its row must be examined.
fn anew(schedules: &mut Schedules, task: &Task) -> Option<Timestamp> {
    let schedule = task.definition.check(task.created_at, schedules).ok()?;
    let plan = Plan::new(&task.definition, schedule, task.next_run?, task.resolved_until, task.active_since);
    resolve::planned_anew(&plan)
}

const ZONES_IN_USE: &str = sql! {"
WITH RECURSIVE used (zone) AS ({zones_in_use}) SELECT zone FROM used WHERE zone IS NOT NULL LIMIT {zones}"};

const ZONE_DATA: &str = "SELECT value FROM scheduler_meta WHERE key = 'zone_data'";

/// Forgets the rules and the mark of a zone that no task is in any more.
const FORGET_ZONES: &str = sql! {"
    DELETE FROM scheduler_meta
     WHERE key > 'zone_mark:' AND key < 'zone_rules;'
       AND NOT EXISTS (SELECT 1 FROM scheduled_tasks WHERE {zoned} AND time_zone = substr(key, instr(key, ':') + 1))"};

/// Compares the rules of each time zone in use with those by which its tasks are planned. Where they differ, this scheduler takes the zone
/// over and marks its tasks, or leaves it to one of `others`, which are running, and records that it has other rules. Rules that cannot be
/// read are unknown, and change nothing. Returns an event, if rules have changed.
pub(crate) fn compare_rules(
    tx: &Transaction<'_>,
    owner: &str,
    others: &[Other],
    now: Timestamp,
) -> rusqlite::Result<Option<Event>> {
    tx.prepare_cached(FORGET_ZONES)?.execute([])?;
    let mut zones = tx.prepare_cached(ZONES_IN_USE)?;
    let zones = zones.query_map([], |row| row::shown(row, 0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut changed = Vec::new();
    for zone in zones {
        let Some(rules) = rules_of(&zone) else { continue };
        let recorded = foreign_plans::recorded(tx, &zone)?;
        if recorded.as_ref() == Some(&rules) {
            continue;
        }
        let next = recorded.as_deref().and_then(|recorded| left_to(recorded, &rules, owner, others));
        let takes_over = next.is_none();
        let next = next.unwrap_or_else(|| rules.clone());
        if recorded.as_ref() != Some(&next) {
            set_meta(tx, &format!("zone_rules:{zone}"), &next)?;
        }
        if takes_over {
            set_zone_mark(tx, &zone, Some(ZoneMark { after: 0, since: now.as_millis() }))?;
            if recorded.is_some_and(|recorded| !foreign_plans::is_first(&recorded, &rules)) {
                changed.push(zone);
            }
        }
    }
    if changed.is_empty() {
        return Ok(None);
    }
    let zones = first_of(changed.iter().cloned(), 1, changed.len());
    let before = tx.prepare_cached(ZONE_DATA)?.query_row([], |row| row::shown(row, 0)).optional()?;
    let (before, now_by) = (before.unwrap_or_default(), zone_data().to_string());
    let detail = format!("{before} became {now_by}: other rules for {zones}");
    owners::record(tx, now, "zone_data", None, None, Some(&detail))?;
    Ok(Some(Event::ZoneDataChanged { before, now: now_by, zones }))
}

/// Returns what is recorded of a zone that a scheduler with these rules leaves as it is planned; `None`: it takes the zone over, since no
/// scheduler goes on that has the recorded rules, or because one with other rules has ended. If it did so while others go on, they would
/// plan to and fro.
fn left_to(recorded: &str, rules: &str, owner: &str, others: &[Other]) -> Option<String> {
    let mut parts = recorded.split(' ');
    let planned_by = parts.next()?;
    let own = format!("{rules}@{owner}");
    let parts: Vec<&str> = parts.filter(|part| *part != own).collect();
    let is_of = |part: &str, other: &Other| part.split_once('@').is_some_and(|(_, owner)| owner == other.owner);
    let going_on = parts.iter().filter(|part| others.iter().any(|other| is_of(part, other)));
    let going_on: Vec<&str> = going_on.copied().collect();
    if planned_by == rules {
        return (going_on.len() == parts.len()).then(|| [&[planned_by], &going_on[..]].concat().join(" "));
    }
    let agrees = |other: &Other| going_on.iter().any(|part| is_of(part, other) && part.starts_with(rules));
    (!others.iter().all(agrees)).then(|| [&[planned_by], &going_on[..], &[&own]].concat().join(" "))
}

/// Most tasks that a registration plans again. Turns go on with the others.
pub(crate) const AT_ONCE: usize = 250;

/// Records the zone data of a scheduler that starts, which plans local times from then on. Returns an event, if rules have changed.
pub(crate) fn record_zone_data(
    tx: &Transaction<'_>,
    owner: &str,
    version: &str,
    now: Timestamp,
) -> rusqlite::Result<Option<Event>> {
    let changed = compare_rules(tx, owner, &[], now)?;
    set_meta(tx, "zone_data", version)?;
    // What another scheduler has marked and not planned: what fell due since it ended is resolved as it was planned, or set by SQL.
    for (zone, mark) in zone_marks(tx)? {
        set_zone_mark(tx, &zone, Some(ZoneMark { since: now.as_millis(), ..mark }))?;
    }
    Ok(changed)
}
