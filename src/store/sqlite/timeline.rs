//! Reads the runs of each task within a window of time, in time that does not depend on the length of the histories.
//!
//! No index orders runs by their start. Scheduled runs of a task are read by their occurrence, the others by their id, which is the
//! order of their requests; a run that began before the window and ended in it is found among the last ones before it. Of a task with
//! more runs, the newest are read, and the older ones are counted.

use std::cmp::Reverse;
use std::ops::Range;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::run::RunStatus;
use crate::model::views::{Counted, Lane, LaneRun, Timeline, Window};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::row;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::tasks::listed;

/// Most tasks that one page examines: most of them may have no run in the window.
pub(crate) const MAX_EXAMINED: usize = 1000;
/// Number of runs before the window among which those are found that ended in it.
pub(crate) const LOOK_BACK: usize = 20;

/// The older runs of a lane: ranges of the occurrences of scheduled runs, and of the ids of the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Older {
    pub(crate) task: i64,
    pub(crate) scheduled: Range<i64>,
    pub(crate) unscheduled: Range<i64>,
}

/// Older runs of one range that have one status, and occurred in one part of the window.
#[derive(Clone, Debug)]
pub(crate) struct OlderRuns {
    /// The number of the lane.
    pub(crate) lane: usize,
    pub(crate) is_scheduled: bool,
    pub(crate) part: i64,
    /// `None`: only another program writes it.
    pub(crate) status: Option<RunStatus>,
    pub(crate) count: i64,
    pub(crate) newest: i64,
    pub(crate) oldest: Timestamp,
}

/// Counts older runs: at most a number in each range, the newest of it.
pub(crate) type Count<'a> = &'a mut dyn FnMut(&[Older], i64) -> Result<Vec<OlderRuns>, Fault>;

/// Returns the tasks that have runs or future occurrences within a window, by name. `elsewhere`: who counts, if the older runs are not
/// in these tables.
pub(crate) fn timeline(
    store: &mut SqliteStore,
    window: &Window,
    now: Timestamp,
    elsewhere: Option<Count<'_>>,
) -> Result<Timeline> {
    store.read("read the timeline", |tx, _| {
        let (mut lanes, mut older): (Vec<Lane>, Vec<Older>) = Default::default();
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
            let (runs, left_out) = runs_of(tx, id, window, now)?;
            let is_ahead = window.until > now && next_run.is_some_and(|next| next < window.until);
            let ahead = if is_ahead { listed(tx, id)? } else { None };
            if !runs.is_empty() || ahead.is_some() {
                lanes.push(Lane { task: name, runs, counts: Vec::new(), counted_from: None, ahead });
                older.push(left_out);
            }
        }
        let ranges = older.iter().flat_map(|one| [&one.scheduled, &one.unscheduled]).filter(|range| !range.is_empty());
        let limit = i64::try_from(window.counted / ranges.count().max(1)).unwrap_or(i64::MAX);
        let groups = match elsewhere {
            Some(count) => count(&older, limit)?,
            None => count(tx, &older, window, limit)?,
        };
        let cuts = add_counts(&mut lanes, &groups, limit);
        let has_all_dead = add_dead(tx, &mut lanes, &older, &cuts, window)?;
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

/// Returns the runs of a task that a window shows, newest first, and which older ones are left out.
fn runs_of(
    tx: &Transaction<'_>,
    task: i64,
    window: &Window,
    now: Timestamp,
) -> rusqlite::Result<(Vec<LaneRun>, Older)> {
    let mut older = Older { task, ..Older::default() };
    let (mut runs, left_out) = newest(tx, SCHEDULED, (task, window.until.as_millis()), window, now)?;
    if let Some(newest) = left_out {
        older.scheduled = window.from.as_millis()..newest.scheduled_for.as_millis() + 1;
    }
    let until = first_unscheduled(tx, task, window.until)?;
    let (others, left_out) = newest(tx, UNSCHEDULED, (task, until), window, now)?;
    if let Some(newest) = left_out {
        older.unscheduled = first_unscheduled(tx, task, window.from)?..newest.id + 1;
    }
    runs.extend(others);
    runs.sort_by_key(|run| (Reverse(run.scheduled_for), Reverse(run.id)));
    Ok((runs, older))
}

/// Returns the newest runs of a task before a place in an order that a window shows, newest first; and the next one, if older ones
/// are left out.
fn newest(
    tx: &Transaction<'_>,
    statement: &str,
    (task, before): (i64, i64),
    window: &Window,
    now: Timestamp,
) -> rusqlite::Result<(Vec<LaneRun>, Option<LaneRun>)> {
    let mut statement = tx.prepare_cached(statement)?;
    let mut rows = statement.query(named_params! { ":task": task, ":before": before })?;
    let (mut runs, mut read, mut looked_back) = (Vec::<LaneRun>::new(), 0, 0);
    while let Some(row) = rows.next()? {
        read += 1;
        // A value that only another program writes must not hide the other runs.
        let Ok(run) = lane_run(row) else { continue };
        let is_before = run.scheduled_for < window.from;
        if read > window.runs && !is_before {
            return Ok((runs, Some(run)));
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

const COUNTED: &str = sql! {"
    SELECT is_scheduled, (scheduled_for - :from) / :part, status, count(*), max(id), min(scheduled_for)
      FROM (SELECT * FROM (
                SELECT 1 AS is_scheduled, id, status, scheduled_for FROM task_runs INDEXED BY task_runs_one_per_occurrence
                 WHERE task_id = :task AND {unscheduled_id} = 0 AND scheduled_for >= :oldest AND scheduled_for < :before
                 ORDER BY scheduled_for DESC LIMIT :limit)
             UNION ALL
            SELECT * FROM (
                SELECT 0, id, status, scheduled_for FROM task_runs INDEXED BY task_runs_one_per_occurrence
                 WHERE task_id = :task AND {unscheduled_id} >= :first AND {unscheduled_id} < :end
                 ORDER BY {unscheduled_id} DESC LIMIT :limit))
     GROUP BY 1, 2, 3"};

/// Counts the older runs of each lane.
fn count(tx: &Transaction<'_>, lanes: &[Older], window: &Window, limit: i64) -> Result<Vec<OlderRuns>, Fault> {
    let (mut statement, part) = (tx.prepare_cached(COUNTED)?, window.part.as_millis() as i64);
    let mut groups = Vec::new();
    for (lane, Older { task, scheduled, unscheduled }) in lanes.iter().enumerate() {
        if scheduled.is_empty() && unscheduled.is_empty() {
            continue;
        }
        let rows = statement.query_map(
            named_params! {
                ":task": task, ":from": window.from, ":part": part, ":limit": limit,
                ":oldest": scheduled.start, ":before": scheduled.end, ":first": unscheduled.start, ":end": unscheduled.end,
            },
            |row| {
                let (is_scheduled, part, status) = (row.get(0)?, row.get(1)?, row.get(2).ok());
                Ok(OlderRuns { lane, is_scheduled, part, status, count: row.get(3)?, newest: row.get(4)?, oldest: row.get(5)? })
            },
        )?;
        groups.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(groups)
}

/// The instant of the oldest run that was counted, of each range with more: of scheduled runs, and of the others.
type Cut = [Option<Timestamp>; 2];

/// Adds what was counted to lanes. Returns what was not counted, by lane.
fn add_counts(lanes: &mut [Lane], groups: &[OlderRuns], limit: i64) -> Vec<Cut> {
    let of_lane = |number: usize, lane: &mut Lane| {
        let of = |is_scheduled: bool| {
            let of = groups.iter().filter(move |group| group.lane == number && group.is_scheduled == is_scheduled);
            let (count, oldest) =
                (of.clone().map(|group| group.count).sum::<i64>(), of.map(|group| group.oldest).min());
            oldest.filter(|_| count >= limit)
        };
        lane.counts = groups.iter().filter(|group| group.lane == number).filter_map(OlderRuns::counted).collect();
        lane.counts.sort_by_key(|counted| (counted.part, counted.newest));
        let cut = [of(true), of(false)];
        lane.counted_from = cut.into_iter().flatten().max();
        cut
    };
    lanes.iter_mut().enumerate().map(|(number, lane)| of_lane(number, lane)).collect()
}

impl OlderRuns {
    /// `None`: a run that was requested before the window, when the clock was ahead, or that has no status of duly.
    fn counted(&self) -> Option<Counted> {
        let (part, count) = (u32::try_from(self.part).ok()?, usize::try_from(self.count).ok()?);
        Some(Counted { part, status: self.status?, count, newest: self.newest })
    }
}

const DEAD: &str = sql! {"
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for, task_id,
           {unscheduled_id} = 0
      FROM task_runs INDEXED BY task_runs_dead
     WHERE status = 'dead' AND finished_at >= :from AND finished_at < :until ORDER BY finished_at DESC LIMIT :limit"};

/// Adds to lanes whose runs were not all counted the dead runs that they lack. Returns whether these are all of the window.
fn add_dead(
    tx: &Transaction<'_>,
    lanes: &mut [Lane],
    older: &[Older],
    cuts: &[Cut],
    window: &Window,
) -> rusqlite::Result<bool> {
    if lanes.iter().all(|lane| lane.counted_from.is_none()) {
        return Ok(true);
    }
    let limit = i64::try_from(window.dead).unwrap_or(i64::MAX).saturating_add(1);
    let (mut statement, mut read) = (tx.prepare_cached(DEAD)?, 0);
    let mut rows = statement.query(named_params! { ":from": window.from, ":until": window.until, ":limit": limit })?;
    while let Some(row) = rows.next()? {
        read += 1;
        let (task, is_scheduled): (i64, bool) = (row.get(8)?, row.get(9)?);
        let Some(number) = older.iter().position(|one| one.task == task) else { continue };
        let (Some(before), Ok(run)) = (cuts[number][usize::from(!is_scheduled)], lane_run(row)) else { continue };
        // The later ones were read or counted.
        if run.scheduled_for < before {
            lanes[number].runs.push(run);
        }
    }
    lanes.iter_mut().for_each(|lane| lane.runs.sort_by_key(|run| (Reverse(run.scheduled_for), Reverse(run.id))));
    Ok(read <= window.dead)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::sqlite::file::{Durability, Missing};

    const NOON: i64 = 1_805_025_600_000;

    fn count(lane: &Lane, status: RunStatus) -> usize {
        let counted = lane.counts.iter().filter(|counted| counted.status == status).map(|counted| counted.count);
        lane.runs.iter().filter(|run| run.status == status).count() + counted.sum::<usize>()
    }

    #[test]
    fn all_runs_are_counted_and_beyond_the_limit_the_dead_ones() {
        let home = tempfile::tempdir().expect("a folder");
        let file = home.path().join("t.db");
        let mut store =
            SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).expect("a store");
        store.fill(60, 12_000, NOON);
        let until = Timestamp::from_millis(NOON + 60_000);
        let mut read = |counted| {
            let window = Window {
                from: until.minus(Duration::from_secs(8 * 86_400)),
                until,
                pattern: None,
                after: None,
                lanes: 60,
                runs: 10,
                part: Duration::from_secs(3600),
                counted,
                dead: 1000,
            };
            timeline(&mut store, &window, until, None).expect("a timeline").lanes
        };
        let (all, some) = (read(1_000_000), read(1200));
        assert_eq!((all.len(), some.len()), (60, 60));
        for (all, some) in all.iter().zip(&some) {
            assert_eq!((all.counted_from, some.counted_from.is_some()), (None, true), "{}", all.task);
            assert_eq!(count(all, RunStatus::Dead), count(some, RunStatus::Dead), "{}", all.task);
            assert!(count(all, RunStatus::Succeeded) > count(some, RunStatus::Succeeded), "{}", all.task);
        }
        let sum = |status| all.iter().map(|lane| count(lane, status)).sum::<usize>();
        for status in RunStatus::ALL {
            let rows = store.read("count", |tx, _| {
                let count = "SELECT count(*) FROM task_runs WHERE status = ?1";
                Ok(tx.query_row(count, [status.as_str()], |row| row.get::<_, i64>(0))?)
            });
            assert_eq!(i64::try_from(sum(*status)).ok(), rows.ok(), "{status}");
        }
    }
}
