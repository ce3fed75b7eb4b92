//! Reads the runs of each task within a window of time. A limit for the runs that are read, and one for those that are counted, bound
//! the time.
//!
//! No index orders runs by their start. Scheduled runs of a task are read by their occurrence, the others by their id, which is the
//! order of their requests. Of a task with many runs in the window, the newest are read, and the older ones are counted. A run that began
//! before the window and reaches into it is found among the last ones before the window, the unfinished ones and the dead ones.

use std::cmp::Reverse;
use std::ops::Range;
use std::time::Duration;

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

/// The older runs of a lane, which are counted: ranges of the occurrences of scheduled runs, and of the ids of the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Older {
    pub(crate) task: i64,
    pub(crate) scheduled: Range<i64>,
    pub(crate) unscheduled: Range<i64>,
}

impl Older {
    fn range(&mut self, is_scheduled: bool) -> &mut Range<i64> {
        if is_scheduled { &mut self.scheduled } else { &mut self.unscheduled }
    }
}

/// Older runs of one range that have one status, and occurred in one part of the window.
#[derive(Clone, Debug)]
pub(crate) struct OlderRuns {
    /// The number of the lane.
    pub(crate) lane: usize,
    pub(crate) is_scheduled: bool,
    /// -1: requested at an instant outside of the window, when the clock was set.
    pub(crate) part: i64,
    /// `None`: only another program writes it.
    pub(crate) status: Option<RunStatus>,
    pub(crate) count: i64,
    pub(crate) newest: i64,
    pub(crate) oldest: Timestamp,
    /// The first place in the range: an occurrence, or an id.
    pub(crate) first: i64,
}

/// Counts older runs: at most a number in each range, the newest of it.
pub(crate) type Count<'a> = &'a mut dyn FnMut(&[Older], i64) -> Result<Vec<OlderRuns>, Fault>;

/// Returns the tasks that have runs or future occurrences within a window, by name. `elsewhere` counts the older runs if they are not in
/// these tables.
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
        let limit = i64::try_from(window.counted / ranges.count().max(1)).unwrap_or(i64::MAX - 1);
        // One run more than the limit shows that there are more.
        let groups = match elsewhere {
            Some(count) => count(&older, limit + 1)?,
            None => count(tx, &older, window, limit + 1)?,
        };
        add_counts(&mut lanes, &mut older, groups, limit, window);
        let has_all_dead = add_dead(tx, &mut lanes, &mut older, window)?;
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
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for, scheduled_for
      FROM task_runs INDEXED BY task_runs_one_per_occurrence
     WHERE task_id = :task AND {unscheduled_id} = 0 AND scheduled_for >= :first AND scheduled_for < :end
     ORDER BY scheduled_for DESC LIMIT :limit"};

const UNFINISHED_SCHEDULED: &str = sql! {"
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for, scheduled_for
      FROM task_runs INDEXED BY task_runs_unfinished
     WHERE task_id = :task AND {unfinished} AND {unscheduled_id} = 0 AND scheduled_for >= :first AND scheduled_for < :end
     ORDER BY scheduled_for LIMIT :limit"};

const UNSCHEDULED: &str = sql! {"
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for, {unscheduled_id}
      FROM task_runs INDEXED BY task_runs_one_per_occurrence
     WHERE task_id = :task AND {unscheduled_id} >= :first AND {unscheduled_id} < :end
     ORDER BY {unscheduled_id} DESC LIMIT :limit"};

const UNFINISHED_UNSCHEDULED: &str = sql! {"
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for, {unscheduled_id}
      FROM task_runs INDEXED BY task_runs_unfinished
     WHERE task_id = :task AND {unfinished} AND {unscheduled_id} >= :first AND {unscheduled_id} < :end
     ORDER BY {unscheduled_id} LIMIT :limit"};

/// Returns the runs of a task that a window shows, newest first, and which older ones are left out.
fn runs_of(
    tx: &Transaction<'_>,
    task: i64,
    window: &Window,
    now: Timestamp,
) -> rusqlite::Result<(Vec<LaneRun>, Older)> {
    let (mut all, mut older) = (Vec::new(), Older { task, ..Older::default() });
    let scheduled = window.from.as_millis()..window.until.as_millis();
    let unscheduled = first_unscheduled(tx, task, window.from)?..first_unscheduled(tx, task, window.until)?;
    for (newest, unfinished, mut places, least) in
        [(SCHEDULED, UNFINISHED_SCHEDULED, scheduled, i64::MIN), (UNSCHEDULED, UNFINISHED_UNSCHEDULED, unscheduled, 1)]
    {
        let mut before = read(tx, newest, task, least..places.start, LOOK_BACK)?;
        let is_within = |run: &LaneRun| run.scheduled_for >= window.from && run.scheduled_for < window.until;
        // If the clock was set back, ids do not show which runs were requested within the window: it may be any.
        if places.start > places.end || before.iter().any(|(_, run)| run.as_ref().is_some_and(is_within)) {
            places.start = least;
            before.clear();
        }
        let mut runs = read(tx, newest, task, places.clone(), window.runs + 1)?;
        if runs.len() > window.runs
            && let Some((place, _)) = runs.pop()
        {
            *older.range(newest == SCHEDULED) = places.start..place + 1;
        }
        runs.extend(before);
        runs.extend(read(tx, unfinished, task, least..places.start, window.runs)?);
        all.extend(runs.into_iter().filter_map(|(_, run)| run).filter(|run| shows(run, window, now)));
    }
    sort(&mut all);
    Ok((all, older))
}

/// Reads the runs of a task that a statement finds in a range of places, with their places.
fn read(
    tx: &Transaction<'_>,
    statement: &str,
    task: i64,
    places: Range<i64>,
    limit: usize,
) -> rusqlite::Result<Vec<(i64, Option<LaneRun>)>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let params = named_params! { ":task": task, ":first": places.start, ":end": places.end, ":limit": limit };
    // A value that only another program writes must not hide the other runs.
    tx.prepare_cached(statement)?.query_map(params, |row| Ok((row.get(8)?, lane_run(row).ok())))?.collect()
}

/// Sorts runs, newest first. Of a run that was read twice, one is left.
fn sort(runs: &mut Vec<LaneRun>) {
    runs.sort_by_key(|run| (Reverse(run.scheduled_for), Reverse(run.id)));
    runs.dedup_by_key(|run| run.id);
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
    SELECT is_scheduled, iif(scheduled_for >= :from AND scheduled_for < :until, (scheduled_for - :from) / :part, -1), status,
           count(*), max(id), min(scheduled_for), min(place)
      FROM (SELECT * FROM (
                SELECT 1 AS is_scheduled, scheduled_for AS place, id, status, scheduled_for
                  FROM task_runs INDEXED BY task_runs_one_per_occurrence
                 WHERE task_id = :task AND {unscheduled_id} = 0 AND scheduled_for >= :oldest AND scheduled_for < :before
                 ORDER BY scheduled_for DESC LIMIT :limit)
             UNION ALL
            SELECT * FROM (
                SELECT 0, {unscheduled_id}, id, status, scheduled_for FROM task_runs INDEXED BY task_runs_one_per_occurrence
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
                ":task": task, ":from": window.from, ":until": window.until, ":part": part, ":limit": limit,
                ":oldest": scheduled.start, ":before": scheduled.end, ":first": unscheduled.start, ":end": unscheduled.end,
            },
            |row| {
                Ok(OlderRuns {
                    lane,
                    is_scheduled: row.get(0)?,
                    part: row.get(1)?,
                    status: row.get(2).ok(),
                    count: row.get(3)?,
                    newest: row.get(4)?,
                    oldest: row.get(5)?,
                    first: row.get(6)?,
                })
            },
        )?;
        groups.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(groups)
}

/// Adds what was counted to lanes. The ranges of a lane with more runs become shorter: they hold what was counted.
fn add_counts(lanes: &mut [Lane], older: &mut [Older], groups: Vec<OlderRuns>, limit: i64, window: &Window) {
    let mut of_lanes: Vec<Vec<OlderRuns>> = vec![Vec::new(); lanes.len()];
    groups.into_iter().for_each(|group| of_lanes[group.lane].push(group));
    for ((lane, older), mut groups) in lanes.iter_mut().zip(older).zip(of_lanes) {
        for is_scheduled in [true, false] {
            let count: i64 =
                groups.iter().filter(|group| group.is_scheduled == is_scheduled).map(|group| group.count).sum();
            let of_range = groups.iter_mut().filter(|group| group.is_scheduled == is_scheduled && count > limit);
            if let Some(beyond) = of_range.min_by_key(|group| group.first) {
                // Its oldest run shows that there are more, and is not counted.
                beyond.count -= 1;
                older.range(is_scheduled).start = beyond.first + 1;
                let from = beyond.oldest.clamp(window.from, window.until).plus(Duration::from_millis(1));
                lane.counted_from = lane.counted_from.max(Some(from));
            }
        }
        lane.counts = groups.iter().filter_map(OlderRuns::counted).collect();
        lane.counts.sort_by_key(|counted| (counted.part, counted.newest));
    }
}

impl OlderRuns {
    /// `None`: a run that was requested outside of the window, when the clock was set, or that has no status of duly.
    fn counted(&self) -> Option<Counted> {
        let (part, count) = (u32::try_from(self.part).ok()?, usize::try_from(self.count).ok()?);
        (count > 0).then_some(Counted { part, status: self.status?, count, newest: self.newest })
    }
}

const DEAD: &str = sql! {"
    SELECT id, status, scheduled_for, started_at, finished_at, duration_ms, occurrences, last_scheduled_for, task_id,
           {unscheduled_id} = 0
      FROM task_runs INDEXED BY task_runs_dead
     WHERE status = 'dead' AND finished_at >= :from AND finished_at < :until ORDER BY finished_at DESC LIMIT :limit"};

/// Adds to lanes with many runs the dead ones that were neither read nor counted. Returns whether these are all of the window.
fn add_dead(tx: &Transaction<'_>, lanes: &mut [Lane], older: &mut [Older], window: &Window) -> rusqlite::Result<bool> {
    if older.iter().all(|one| one.scheduled.is_empty() && one.unscheduled.is_empty()) {
        return Ok(true);
    }
    let limit = i64::try_from(window.dead).unwrap_or(i64::MAX).saturating_add(1);
    let (mut statement, mut read) = (tx.prepare_cached(DEAD)?, 0);
    let mut rows = statement.query(named_params! { ":from": window.from, ":until": window.until, ":limit": limit })?;
    while let Some(row) = rows.next()? {
        read += 1;
        let (task, is_scheduled): (i64, bool) = (row.get(8)?, row.get(9)?);
        let Some(number) = older.iter().position(|one| one.task == task) else { continue };
        let Ok(run) = lane_run(row) else { continue };
        let place = if is_scheduled { run.scheduled_for.as_millis() } else { run.id };
        let is_counted = older[number].range(is_scheduled).contains(&place) && run.scheduled_for >= window.from;
        if !is_counted && run.scheduled_for < window.until {
            lanes[number].runs.push(run);
        }
    }
    lanes.iter_mut().for_each(|lane| sort(&mut lane.runs));
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

    const FROM: i64 = NOON - 3_600_000;

    /// Reads the window of an hour until noon of a task whose runs are requests (id, instant, status), and scheduled runs before them.
    fn hour(requests: &str, scheduled: &str, (runs, counted): (usize, usize)) -> Lane {
        let home = tempfile::tempdir().expect("a folder");
        let file = home.path().join("t.db");
        let mut store =
            SqliteStore::open(&file, Missing::Create, Durability::MayRepeatAfterPowerLoss).expect("a store");
        let insert = |rows: &str, origin: &str| {
            format!(
                "INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, status, run_at, attempt, started_at, finished_at)
                 SELECT n.id, 1, 'work', n.at, '{origin}', n.status, n.at, 1, n.at,
                        CASE n.status WHEN 'queued' THEN NULL WHEN 'dead' THEN max(n.at, {FROM}) ELSE n.at END
                   FROM ({rows}) n;"
            )
        };
        let sql = insert(scheduled, "schedule") + &insert(requests, "manual");
        rusqlite::Connection::open(&file)
            .and_then(|other| {
                other.execute_batch(&format!(
                    "PRAGMA ignore_check_constraints = ON;
                     INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, planned)
                     VALUES (1, 'task', 'work', 'manual', '', 1);
                     {sql}"
                ))
            })
            .expect("rows");
        let window = Window {
            from: Timestamp::from_millis(FROM),
            until: Timestamp::from_millis(NOON),
            pattern: None,
            after: None,
            lanes: 1,
            runs,
            part: Duration::from_secs(60),
            counted,
            dead: 100,
        };
        let mut lanes = timeline(&mut store, &window, window.until, None).expect("a timeline").lanes;
        lanes.pop().expect("a lane")
    }

    /// Rows for [`hour`]: `count` runs whose ids follow `first`, each `period` milliseconds after the last one; the first is at `at`.
    fn every(first: i64, count: i64, at: i64, period: i64, status: &str) -> String {
        format!(
            "SELECT {first} + value AS id, {at} + value * {period} AS at, '{status}' AS status
               FROM (WITH RECURSIVE n (value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM n WHERE value + 1 < {count}) SELECT value FROM n)"
        )
    }

    const NONE: &str = "SELECT 1 AS id, 1 AS at, '' AS status WHERE false";

    #[test]
    fn a_lane_is_cut_only_if_it_has_more_runs_than_are_counted() {
        for (rows, cut) in [(29, None), (30, None), (31, Some(FROM + 1)), (32, Some(FROM + 60_001))] {
            let written = every(1, rows, FROM, 60_000, "succeeded");
            for lane in [hour(&written, NONE, (10, 20)), hour(NONE, &written, (10, 20))] {
                assert_eq!(lane.counted_from, cut.map(Timestamp::from_millis), "{rows}: {lane:?}");
                assert_eq!(count(&lane, RunStatus::Succeeded) as i64, rows.min(30), "{rows}");
            }
        }
    }

    #[test]
    fn dead_runs_of_the_millisecond_of_a_cut_are_read_once() {
        let rows = every(1, 5, NOON - 1, 0, "dead") + " UNION ALL " + &every(6, 45, NOON - 1, 0, "succeeded");
        let lane = hour(&rows, NONE, (10, 20));
        assert!(lane.counted_from.is_some(), "{lane:?}");
        assert_eq!((count(&lane, RunStatus::Dead), count(&lane, RunStatus::Succeeded)), (5, 30), "{lane:?}");
    }

    #[test]
    fn requests_beside_the_window_whose_ids_are_in_it_are_not_counted() {
        // The clock was wrong for a moment, three times; a value is one that the table refuses.
        let odd = [FROM - 5000, NOON + 5000, i64::MIN]
            .iter()
            .zip(12..)
            .map(|(at, id)| format!("SELECT {id} AS id, {at} AS at, 'succeeded' AS status"))
            .collect::<Vec<_>>();
        let rows = [
            every(1, 10, FROM, 1000, "succeeded"),
            odd.join(" UNION ALL "),
            every(20, 30, NOON - 60_000, 1000, "succeeded"),
        ];
        let lane = hour(&rows.join(" UNION ALL "), NONE, (10, 1000));
        assert_eq!(count(&lane, RunStatus::Succeeded), 40, "{lane:?}");
        assert!(lane.counts.iter().all(|counted| counted.part < 60), "{lane:?}");
    }

    #[test]
    fn requests_of_before_the_clock_was_set_back_are_counted() {
        // Twenty in the window, then the clock is set back, ten before the window, and three in it.
        let rows = [every(1, 20, FROM, 1000, "succeeded"), every(21, 10, FROM - 60_000, 1000, "succeeded")];
        let rows = rows.join(" UNION ALL ") + " UNION ALL " + &every(121, 3, FROM + 1000, 1000, "succeeded");
        let lane = hour(&rows, NONE, (10, 1000));
        assert_eq!((count(&lane, RunStatus::Succeeded), lane.counted_from), (23, None), "{lane:?}");
        // Two hours until noon, twice.
        let hours = |first| every(first, 120, NOON - 7_200_000, 60_000, "succeeded");
        let lane = hour(&(hours(1) + " UNION ALL " + &hours(121)), NONE, (10, 1000));
        assert!(lane.counted_from.is_some() || count(&lane, RunStatus::Succeeded) >= 60, "{lane:?}");
    }

    #[test]
    fn a_run_that_began_before_a_window_with_many_runs_and_reaches_into_it_is_read() {
        let before =
            every(1, 1, FROM - 7_200_000, 1, "dead") + " UNION ALL " + &every(2, 1, FROM - 7_100_000, 1, "queued");
        let rows = before
            + " UNION ALL "
            + &every(3, 100, FROM - 100_000, 1000, "succeeded")
            + " UNION ALL "
            + &every(103, 100, FROM, 1000, "succeeded");
        // The dead one ended in the window.
        let ended =
            |lane: Lane| [RunStatus::Dead, RunStatus::Queued, RunStatus::Succeeded].map(|status| count(&lane, status));
        for lane in [hour(&rows, NONE, (10, 1000)), hour(NONE, &rows, (10, 1000))] {
            assert_eq!(ended(lane), [1, 1, 100]);
        }
    }
}
