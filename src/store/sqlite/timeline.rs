//! Reads the runs of each task within a window of time, in time that does not depend on the length of the histories.
//!
//! No index orders runs by their start. Scheduled runs of a task are read by their occurrence, the others by their id, which is the
//! order of their requests; a run that began before the window and ended in it is found among the last ones before it.

use std::cmp::Reverse;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::run::RunStatus;
use crate::model::views::{Lane, LaneRun, Timeline, Window};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::row;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::tasks::listed;

/// Most tasks that one page examines: most of them may have no run in the window.
pub(crate) const MAX_EXAMINED: usize = 1000;
/// Number of runs before the window among which those are found that ended in it.
pub(crate) const LOOK_BACK: usize = 20;
/// Number of runs of a busy task that are read before those that are read completely.
pub(crate) const SAMPLES: i64 = 100;

/// Returns the tasks that have runs or future occurrences within a window, by name.
pub(super) fn timeline(store: &mut SqliteStore, window: &Window, now: Timestamp) -> Result<Timeline> {
    store.read("read the timeline", |tx, _| {
        let (mut lanes, mut tasks): (Vec<Lane>, Vec<i64>) = Default::default();
        let (mut examined, mut next): (Option<String>, _) = Default::default();
        let candidates = candidates(tx, window)?;
        let is_cut = candidates.len() == MAX_EXAMINED;
        for Candidate { id, name, next_run } in candidates {
            if lanes.len() == window.lanes {
                next = examined.take();
                break;
            }
            examined = Some(name.clone());
            if !window.pattern.as_ref().is_none_or(|pattern| pattern.matches(&name)) {
                continue;
            }
            let (runs, sampled_before) = runs_of(tx, id, window, now)?;
            let is_ahead = window.until > now && next_run.is_some_and(|next| next < window.until);
            let ahead = if is_ahead { listed(tx, id)? } else { None };
            if !runs.is_empty() || ahead.is_some() {
                lanes.push(Lane { task: name, runs, sampled_before, ahead });
                tasks.push(id);
            }
        }
        let has_all_dead = add_dead(tx, &mut lanes, &tasks, window)?;
        Ok(Timeline { lanes, next: next.or(examined.filter(|_| is_cut)), has_all_dead })
    })
}

/// A task that may have a lane.
struct Candidate {
    id: i64,
    name: String,
    next_run: Option<Timestamp>,
}

const CANDIDATES: &str = "
    SELECT id, name, iif(status = 'active', next_run, NULL) FROM scheduled_tasks
     WHERE name > :after AND name >= :prefix ORDER BY name LIMIT :limit";

/// Returns the next tasks by name. Those whose name does not begin with the text before the first wildcard are left out.
fn candidates(tx: &Transaction<'_>, window: &Window) -> rusqlite::Result<Vec<Candidate>> {
    let prefix = window.pattern.as_ref().map_or("", |pattern| pattern.prefix());
    let after = window.after.as_deref().unwrap_or_default();
    let params = named_params! { ":after": after, ":prefix": prefix, ":limit": MAX_EXAMINED as i64 };
    let mut statement = tx.prepare_cached(CANDIDATES)?;
    let rows = statement
        .query_map(params, |row| Ok(Candidate { id: row.get(0)?, name: row::shown(row, 1)?, next_run: row.get(2)? }))?;
    rows.take_while(|row| row.as_ref().map_or(true, |one| one.name.starts_with(prefix))).collect()
}

const SCHEDULED: &str = sql! {"
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for
      FROM task_runs INDEXED BY task_runs_one_per_occurrence
     WHERE task_id = :task AND {unscheduled_id} = 0 AND scheduled_for < :before
     ORDER BY scheduled_for DESC"};

const UNSCHEDULED: &str = sql! {"
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for
      FROM task_runs INDEXED BY task_runs_one_per_occurrence
     WHERE task_id = :task AND {unscheduled_id} > 0 AND {unscheduled_id} < :before
     ORDER BY {unscheduled_id} DESC"};

/// Returns the runs of a task that a window shows, newest first, and before which instant they are a sample.
fn runs_of(
    tx: &Transaction<'_>,
    task: i64,
    window: &Window,
    now: Timestamp,
) -> rusqlite::Result<(Vec<LaneRun>, Option<Timestamp>)> {
    let (mut runs, left_out) = newest(tx, SCHEDULED, (task, window.until.as_millis()), window, now)?;
    if let Some(oldest) = left_out {
        runs.extend(samples(tx, task, window.from, oldest)?);
    }
    let until = first_unscheduled(tx, task, window.until)?;
    let (others, others_left_out) = newest(tx, UNSCHEDULED, (task, until), window, now)?;
    runs.extend(others);
    runs.sort_by_key(|run| (Reverse(run.scheduled_for), Reverse(run.id)));
    Ok((runs, left_out.max(others_left_out)))
}

/// Returns the newest runs of a task before a place in an order that a window shows, newest first; and the oldest of them, if older
/// ones were left out.
fn newest(
    tx: &Transaction<'_>,
    statement: &str,
    (task, before): (i64, i64),
    window: &Window,
    now: Timestamp,
) -> rusqlite::Result<(Vec<LaneRun>, Option<Timestamp>)> {
    let mut statement = tx.prepare_cached(statement)?;
    let mut rows = statement.query(named_params! { ":task": task, ":before": before })?;
    let (mut runs, mut read, mut looked_back) = (Vec::<LaneRun>::new(), 0, 0);
    while let Some(row) = rows.next()? {
        read += 1;
        // A value that only another program writes must not hide the other runs.
        let Ok(run) = lane_run(row) else { continue };
        let is_before = run.scheduled_for < window.from;
        if read > window.runs && !is_before {
            return Ok((runs, Some(run.scheduled_for)));
        }
        if shows(&run, window, now) {
            runs.push(run);
        }
        looked_back += usize::from(is_before);
        if looked_back == LOOK_BACK || read > window.runs + LOOK_BACK {
            break;
        }
    }
    Ok((runs, None))
}

/// Returns whether any part of a run is within a window.
fn shows(run: &LaneRun, window: &Window, now: Timestamp) -> bool {
    let last = match run.status {
        RunStatus::Queued | RunStatus::Running | RunStatus::Failed => now,
        RunStatus::Skipped | RunStatus::Missed => run.last_scheduled_for.unwrap_or(run.scheduled_for),
        _ => run.finished_at.unwrap_or(run.scheduled_for),
    };
    run.scheduled_for.max(last) >= window.from && run.scheduled_for < window.until
}

const DEAD: &str = "
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for, task_id
      FROM task_runs INDEXED BY task_runs_dead
     WHERE status = 'dead' AND finished_at >= :from AND finished_at < :until ORDER BY finished_at DESC LIMIT :limit";

/// Adds to lanes of which a part is a sample the dead runs that it lacks. Returns whether these are all of the window.
fn add_dead(tx: &Transaction<'_>, lanes: &mut [Lane], tasks: &[i64], window: &Window) -> rusqlite::Result<bool> {
    if lanes.iter().all(|lane| lane.sampled_before.is_none()) {
        return Ok(true);
    }
    let limit = i64::try_from(window.dead).unwrap_or(i64::MAX).saturating_add(1);
    let (mut statement, mut read) = (tx.prepare_cached(DEAD)?, 0);
    let mut rows = statement.query(named_params! { ":from": window.from, ":until": window.until, ":limit": limit })?;
    while let Some(row) = rows.next()? {
        read += 1;
        let task: i64 = row.get(8)?;
        let Some(lane) = tasks.iter().position(|id| *id == task).and_then(|place| lanes.get_mut(place)) else {
            continue;
        };
        let (Some(before), Ok(run)) = (lane.sampled_before, lane_run(row)) else { continue };
        // Those that began later were read.
        if run.scheduled_for <= before && !lane.runs.iter().any(|one| one.id == run.id) {
            lane.runs.push(run);
        }
    }
    lanes.iter_mut().for_each(|lane| lane.runs.sort_by_key(|run| (Reverse(run.scheduled_for), Reverse(run.id))));
    Ok(read <= window.dead)
}

const SAMPLE: &str = sql! {"
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for
      FROM task_runs INDEXED BY task_runs_one_per_occurrence
     WHERE task_id = :task AND {unscheduled_id} = 0 AND scheduled_for >= :from AND scheduled_for <= :before
     ORDER BY scheduled_for LIMIT 1"};

/// Returns the first scheduled run in each of a hundred equal parts of a time.
fn samples(tx: &Transaction<'_>, task: i64, from: Timestamp, before: Timestamp) -> rusqlite::Result<Vec<LaneRun>> {
    let mut statement = tx.prepare_cached(SAMPLE)?;
    let (from, length) = (from.as_millis(), before.as_millis().saturating_sub(from.as_millis()).max(0));
    let part = |number: i64| from.saturating_add(length / SAMPLES * number);
    let mut runs = Vec::new();
    for number in 0..SAMPLES {
        let end = if number + 1 == SAMPLES { before.as_millis() } else { part(number + 1) - 1 };
        let params = named_params! { ":task": task, ":from": part(number), ":before": end };
        runs.extend(statement.query_row(params, |row| Ok(lane_run(row).ok())).optional()?.flatten());
    }
    Ok(runs)
}

const NEXT_UNSCHEDULED: &str = sql! {"
    SELECT {unscheduled_id}, scheduled_for FROM task_runs INDEXED BY task_runs_one_per_occurrence
     WHERE task_id = :task AND {unscheduled_id} >= :id ORDER BY {unscheduled_id} LIMIT 1"};

const NEWEST_UNSCHEDULED: &str = sql! {"
    SELECT {unscheduled_id}, scheduled_for FROM task_runs INDEXED BY task_runs_one_per_occurrence
     WHERE task_id = :task AND {unscheduled_id} > 0 ORDER BY {unscheduled_id} DESC LIMIT 1"};

/// Returns the id of the first unscheduled run of a task that was requested at an instant or later, by a binary search: requests
/// have rising ids.
fn first_unscheduled(tx: &Transaction<'_>, task: i64, at: Timestamp) -> rusqlite::Result<i64> {
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Timestamp>(1)?));
    let newest = tx.prepare_cached(NEWEST_UNSCHEDULED)?.query_row(named_params! { ":task": task }, read).optional()?;
    let Some((mut above, _)) = newest.filter(|(_, requested)| *requested >= at) else { return Ok(i64::MAX) };
    let mut below = 0;
    let mut statement = tx.prepare_cached(NEXT_UNSCHEDULED)?;
    // Every run up to `below` was requested before the instant, and the run `above` not.
    while below + 1 < above {
        let middle = below + (above - below) / 2;
        match statement.query_row(named_params! { ":task": task, ":id": middle }, read).optional()? {
            Some((id, requested)) if requested < at => below = id,
            _ => above = middle,
        }
    }
    Ok(above)
}

fn lane_run(row: &Row<'_>) -> rusqlite::Result<LaneRun> {
    Ok(LaneRun {
        id: row.get(0)?,
        status: row.get(1)?,
        scheduled_for: row.get(2)?,
        started_at: row.get(3)?,
        finished_at: row.get(4)?,
        duration: row::millis_at(row, 5)?,
        occurrences: u64::from(row::saturating(row, 6)?),
        last_scheduled_for: row.get(7)?,
    })
}
