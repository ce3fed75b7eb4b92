//! The rows that a timeline needs: those that the look-ups of `store::sqlite::timeline` find, of as many tasks as it has lanes.

use std::collections::{BTreeMap, BTreeSet};

use postgres::types::ToSql;

use crate::clock::Timestamp;
use crate::model::views::Window;
use crate::store::fault::Fault;
use crate::store::postgres::reach::around::{bound, last_runs};
use crate::store::postgres::sheets::{Cell, Sheets};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::timeline::{LOOK_BACK, MAX_EXAMINED};

/// The next tasks by name.
const CANDIDATES: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT s.id FROM scheduled_tasks s WHERE s.name > $1 AND s.name >= $2 ORDER BY s.name LIMIT $3))";

/// The runs of some tasks around a window from $2 until $3, of which $4 are read one by one. Of scheduled runs: the newest in it, the last
/// ones before it, and the unfinished ones before it. Of the others: the same, and each that the searches for both ends of the window
/// examine.
const RUNS: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT x.id
          FROM unnest($1::bigint[]) one (task)
         CROSS JOIN LATERAL (
               WITH RECURSIVE search (at, below, above, id) AS (
                   SELECT e.at, 0::bigint, n.id, n.id
                     FROM (VALUES ($2::bigint), ($3::bigint)) e (at)
                    CROSS JOIN LATERAL (
                          SELECT r.id, r.scheduled_for FROM task_runs r
                           WHERE r.task_id = one.task AND {unscheduled_case:r} > 0
                           ORDER BY {unscheduled_case:r} DESC LIMIT 1) n
                    WHERE n.scheduled_for >= e.at
                    UNION ALL
                   SELECT s.at, CASE WHEN n.scheduled_for < s.at THEN n.id ELSE s.below END,
                          CASE WHEN n.scheduled_for < s.at THEN s.above ELSE s.below + (s.above - s.below) / 2 END, n.id
                     FROM search s
                    CROSS JOIN LATERAL (
                          SELECT r.id, r.scheduled_for FROM task_runs r
                           WHERE r.task_id = one.task AND {unscheduled_case:r} >= s.below + (s.above - s.below) / 2
                           ORDER BY {unscheduled_case:r} LIMIT 1) n
                    WHERE s.below + 1 < s.above),
               places (first, above) AS (
                   SELECT coalesce((SELECT s.above FROM search s WHERE s.at = $2 ORDER BY s.above - s.below LIMIT 1), 9223372036854775807),
                          coalesce((SELECT s.above FROM search s WHERE s.at = $3 ORDER BY s.above - s.below LIMIT 1), 9223372036854775807))
               SELECT s.id FROM search s
                UNION ALL
               (SELECT n.id FROM task_runs n
                 WHERE n.task_id = one.task AND {unscheduled_case:n} > 0 AND {unscheduled_case:n} < (SELECT p.above FROM places p)
                 ORDER BY {unscheduled_case:n} DESC LIMIT $4::bigint + 1)
                UNION ALL
               (SELECT n.id FROM task_runs n
                 WHERE n.task_id = one.task AND {unscheduled_case:n} > 0 AND {unscheduled_case:n} < (SELECT p.first FROM places p)
                 ORDER BY {unscheduled_case:n} DESC LIMIT $5::bigint)
                UNION ALL
               (SELECT n.id FROM task_runs n
                 WHERE n.task_id = one.task AND {unfinished:n} AND {unscheduled_case:n} > 0
                   AND {unscheduled_case:n} < (SELECT p.first FROM places p)
                 ORDER BY {unscheduled_case:n} LIMIT $4)
                UNION ALL
               (SELECT n.id FROM task_runs n
                 WHERE n.task_id = one.task AND {unfinished:n} AND {unscheduled_case:n} = 0 AND n.scheduled_for < $2
                 ORDER BY n.scheduled_for LIMIT $4)
                UNION ALL
               (SELECT n.id FROM task_runs n
                 WHERE n.task_id = one.task AND {unscheduled_case:n} = 0 AND n.scheduled_for >= $2 AND n.scheduled_for < $3
                 ORDER BY n.scheduled_for DESC LIMIT $4 + 1)
                UNION ALL
               (SELECT n.id FROM task_runs n
                 WHERE n.task_id = one.task AND {unscheduled_case:n} = 0 AND n.scheduled_for < $2
                 ORDER BY n.scheduled_for DESC LIMIT $5)) x))"};

/// The newest dead runs of some tasks that ended in a window from $2 until $3.
const DEAD: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT r.id FROM task_runs r
         WHERE r.task_id = ANY ($1::bigint[]) AND r.status = 'dead' AND r.finished_at >= $2 AND r.finished_at < $3
         ORDER BY r.finished_at DESC LIMIT $4))";

/// Reads tasks in parts: all that a page examines if `whole`, else until one more seems to have a lane than the window shows.
pub(super) fn read(bench: &mut Sheets, window: &Window, now: Timestamp, whole: bool) -> Result<(), Fault> {
    let prefix = window.pattern.as_ref().map_or("", |pattern| pattern.prefix()).to_owned();
    let (mut after, mut examined) = (window.after.clone().unwrap_or_default(), 0);
    while examined < MAX_EXAMINED {
        let part = (window.lanes + 1).min(MAX_EXAMINED - examined);
        let found = bench.read("scheduled_tasks", CANDIDATES, &[&after, &prefix, &bound(part)])?;
        let candidates: BTreeMap<String, i64> = tasks(bench).into_iter().filter(|(name, _)| *name > after).collect();
        let ids: Vec<i64> = candidates.iter().filter(|(name, _)| shows(window, name)).map(|(_, id)| *id).collect();
        runs(bench, &ids, window)?;
        examined += found;
        let Some((last, _)) = candidates.into_iter().next_back() else { break };
        if found < part || !last.starts_with(&prefix) || !whole && seems_full(bench, window, now) {
            break;
        }
        after = last;
    }
    last_runs(bench)
}

fn runs(bench: &mut Sheets, tasks: &[i64], window: &Window) -> Result<(), Fault> {
    if tasks.is_empty() {
        return Ok(());
    }
    let (from, until, runs) = (window.from.as_millis(), window.until.as_millis(), bound(window.runs));
    let long = ["output", "payload", "result"];
    let params: [&(dyn ToSql + Sync); 5] = [&tasks, &from, &until, &runs, &bound(LOOK_BACK)];
    bench.read_without(&long, "task_runs", RUNS, &params)?;
    let params: [&(dyn ToSql + Sync); 4] = [&tasks, &from, &until, &bound(window.dead + 1)];
    bench.read_without(&long, "task_runs", DEAD, &params).map(|_| ())
}

fn tasks(bench: &Sheets) -> Vec<(String, i64)> {
    let tasks = bench.column("scheduled_tasks", "name").into_iter().zip(bench.column("scheduled_tasks", "id"));
    let task = |task| if let (Cell::Text(name), Cell::Integer(id)) = task { Some((name, id)) } else { None };
    tasks.filter_map(task).collect()
}

fn shows(window: &Window, name: &str) -> bool {
    window.pattern.as_ref().is_none_or(|pattern| pattern.matches(name))
}

/// Returns whether more tasks seem to have a lane than the window shows: a run in it, or an occurrence ahead. One whose run is not drawn,
/// such as a run between those of another clock, has none.
pub(crate) fn seems_full(bench: &Sheets, window: &Window, now: Timestamp) -> bool {
    let (from, until) = (window.from.as_millis(), window.until.as_millis());
    let of_runs = bench.column("task_runs", "task_id").into_iter().zip(bench.column("task_runs", "scheduled_for"));
    let drawn = of_runs.filter(|(_, at)| matches!(at, Cell::Integer(at) if (from..until).contains(at)));
    let is_ahead = |status: &Cell, next: &Cell| matches!((status, next), (Cell::Text(status), Cell::Integer(at)) if status == "active" && *at < until);
    let states = bench.column("scheduled_tasks", "status").into_iter().zip(bench.column("scheduled_tasks", "next_run"));
    let states = bench.column("scheduled_tasks", "id").into_iter().zip(states);
    let ahead = states.filter(|(_, (status, next))| window.until > now && is_ahead(status, next));
    let with_lane = drawn.map(|(task, _)| task).chain(ahead.map(|(task, _)| task));
    let with_lane: BTreeSet<i64> =
        with_lane.filter_map(|task| if let Cell::Integer(id) = task { Some(id) } else { None }).collect();
    tasks(bench).iter().filter(|(name, id)| shows(window, name) && with_lane.contains(id)).count() > window.lanes
}
