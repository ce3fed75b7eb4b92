//! What a look-up counts: the server counts it, and no row is read.

use std::collections::BTreeMap;
use std::time::Duration;

use postgres::types::ToSql;

use crate::clock::Timestamp;
#[cfg(feature = "page")]
use crate::model::health::Queue;
use crate::model::health::Waiting;
use crate::model::limit::{Limit, LimitState};
use crate::model::report::{Recent, Status};
use crate::model::run::RunStatus;
use crate::model::task::TaskStatus;
#[cfg(feature = "page")]
use crate::model::task_pages::{Few, RunQuery};
#[cfg(feature = "page")]
use crate::model::views::Window;
use crate::store::fault::Fault;
use crate::store::postgres::server::Server;
use crate::store::sqlite::census;
use crate::store::sqlite::history::{self, Found};
#[cfg(feature = "page")]
use crate::store::sqlite::queue::{self, Group};
use crate::store::sqlite::sql::sql;
#[cfg(feature = "page")]
use crate::store::sqlite::timeline::{Older, OlderRuns};
use crate::store::turn_io::MAX_ITEMS;

/// Kind, name and number: tasks by status, unfinished runs as in `census`, and tasks that are due or overdue. Waiting and running runs
/// apart: before an ANALYZE, the server expects an owner in each row.
const STATUS: &str = sql! {"
    SELECT 'task', t.status, count(*) FROM scheduled_tasks t GROUP BY t.status
     UNION ALL
    SELECT 'run', CASE WHEN r.status = 'running' OR r.blocked IS NULL THEN r.status ELSE 'blocked' END, count(*)
      FROM (SELECT w.status, w.blocked FROM task_runs w WHERE {waiting:w}
             UNION ALL
            SELECT o.status, o.blocked FROM task_runs o WHERE o.status = 'running') r
     GROUP BY 2
     UNION ALL
    SELECT 'due', b.name, count(*)
      FROM (VALUES ('due', $1::bigint), ('overdue', $2::bigint)) b (name, before)
      JOIN scheduled_tasks t
        ON ({active_planned:t} AND t.next_run < b.before)
        OR (t.planned = 0 AND ((t.status = 'active' AND (t.schedule_type <> 'manual' OR t.next_run IS NOT NULL)
                                AND coalesce(t.next_run, t.updated_at) < b.before)
                               OR (t.status = 'completed' AND t.next_run < b.before)))
     GROUP BY b.name"};

/// Counts what the status counts.
pub(super) fn status(server: &mut Server, status: &mut Status, now: Timestamp) -> Result<(), Fault> {
    let (due, overdue) = census::due_and_overdue(now);
    let mut counted: BTreeMap<(String, String), u64> = BTreeMap::new();
    for row in server.query(STATUS, &[&due.as_millis(), &overdue.as_millis()])? {
        counted.insert((row.try_get(0)?, row.try_get(1)?), number(row.try_get(2)?));
    }
    let of = |kind: &str, name: &str| counted.get(&(kind.to_owned(), name.to_owned())).copied();
    status.tasks = TaskStatus::ALL.iter().filter_map(|one| Some((*one, of("task", one.as_str())?))).collect();
    status.runs = RunStatus::ALL.iter().filter_map(|one| Some((*one, of("run", one.as_str())?))).collect();
    status.blocked = of("run", "blocked").unwrap_or_default();
    status.due = of("due", "due").unwrap_or_default();
    status.overdue = of("due", "overdue").unwrap_or_default();
    limits(server, &mut status.limits, now)
}

/// Whether it is a key, its name, what runs, what waits and the starts that count, as in `limit_requests`.
const LIMITS: &str = sql! {"
    SELECT true, l.concurrency_key,
           (SELECT count(*) FROM task_runs r WHERE r.status = 'running' AND r.concurrency_key = l.concurrency_key),
           (SELECT count(*) FROM task_runs r WHERE {claimable:r} AND r.concurrency_key = l.concurrency_key)
           + (SELECT count(*) FROM task_runs r
               WHERE {waiting:r} AND r.blocked = 'key' AND r.concurrency_key = l.concurrency_key),
           (SELECT count(*) FROM rate_limit_starts s
             WHERE s.subject = 'key:' || l.concurrency_key AND s.started_at > $1 - l.per_ms
               AND s.number > (SELECT max(n.number) FROM rate_limit_starts n WHERE n.subject = s.subject) - l.max_starts)
      FROM concurrency_limits l
     UNION ALL
    SELECT false, l.handler, 0,
           (SELECT count(*) FROM task_runs r WHERE {claimable:r} AND r.handler = l.handler),
           (SELECT count(*) FROM rate_limit_starts s
             WHERE s.subject = 'handler:' || l.handler AND s.started_at > $1 - l.per_ms
               AND s.number > (SELECT max(n.number) FROM rate_limit_starts n WHERE n.subject = s.subject) - l.max_starts)
      FROM rate_limits l"};

/// Counts the use of limits.
pub(super) fn limits(server: &mut Server, limits: &mut [LimitState], now: Timestamp) -> Result<(), Fault> {
    if limits.is_empty() {
        return Ok(());
    }
    let mut counted: BTreeMap<(bool, String), [u64; 3]> = BTreeMap::new();
    for row in server.query(LIMITS, &[&now.as_millis()])? {
        let counts = [number(row.try_get(2)?), number(row.try_get(3)?), number(row.try_get(4)?)];
        counted.insert((row.try_get(0)?, row.try_get(1)?), counts);
    }
    for state in limits {
        let of = match &state.limit {
            Limit::Key { key, .. } => (true, key.clone()),
            Limit::Rate { handler, .. } => (false, handler.clone()),
        };
        let [running, waiting, started] = counted.get(&of).copied().unwrap_or_default();
        (state.used, state.waiting, state.started) = (if of.0 { running } else { started }, waiting, started);
    }
    Ok(())
}

/// As `waiting` in the health of the SQLite store.
const MAY_START: &str = sql! {"
    SELECT r.handler, count(*) FROM task_runs r
     WHERE {claimable:r} AND r.handler = ANY ($1) AND r.run_at < $2
       AND r.task_id <> ALL (ARRAY(SELECT s.id FROM scheduled_tasks s WHERE s.marked IS NOT NULL))
     GROUP BY r.handler"};

/// Counts the runs of handlers that could have started before an instant.
pub(super) fn waiting(server: &mut Server, waiting: &mut [Waiting], before: Timestamp) -> Result<(), Fault> {
    let handlers: Vec<&str> = waiting.iter().map(|waiting| waiting.handler.as_str()).collect();
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    for row in server.query(MAY_START, &[&handlers, &before.as_millis()])? {
        counted.insert(row.try_get(0)?, number(row.try_get(1)?));
    }
    for one in waiting {
        one.count = counted.get(&one.handler).copied().unwrap_or(one.count);
    }
    Ok(())
}

const NAMES: &str = "SELECT name FROM scheduled_tasks ORDER BY name LIMIT $1";

/// Returns the names of tasks, in order.
pub(super) fn names(server: &mut Server, limit: i64) -> Result<Vec<String>, Fault> {
    server.query(NAMES, &[&limit])?.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// How many runs each of some tasks has, in their order; more than the limit are not counted.
const RUNS_OF_TASKS: &str = "
    SELECT (SELECT count(*) FROM (SELECT 1 FROM task_runs r WHERE r.task_id = n.id LIMIT $2) x)
      FROM unnest($1::bigint[]) WITH ORDINALITY AS n (id, place) ORDER BY n.place";

/// As [`RUNS_OF_TASKS`], by name.
const RUNS_OF_NAMES: &str = "
    SELECT (SELECT count(*) FROM (SELECT 1 FROM scheduled_tasks t JOIN task_runs r ON r.task_id = t.id WHERE t.name = n.name LIMIT $2) x)
      FROM unnest($1::text[]) WITH ORDINALITY AS n (name, place) ORDER BY n.place";

/// Some tasks, in an order.
#[derive(Clone, Copy)]
pub(super) enum Listed<'a> {
    Ids(&'a [i64]),
    Names(&'a [String]),
}

/// Returns how many of the first of some tasks have together at most the runs that one transaction deletes. If the first one has more, it is
/// none.
pub(super) fn removed_together(server: &mut Server, tasks: Listed<'_>) -> Result<usize, Fault> {
    let limit = MAX_ITEMS as i64 + 1;
    let rows = match tasks {
        Listed::Ids(ids) => server.query(RUNS_OF_TASKS, &[&ids, &limit])?,
        Listed::Names(names) => server.query(RUNS_OF_NAMES, &[&names, &limit])?,
    };
    let (mut together, mut runs) = (0, 0);
    for row in rows {
        runs += row.try_get::<_, i64>(0)?;
        if runs >= limit {
            break;
        }
        together += 1;
    }
    Ok(together)
}

const MANAGED_BY: &str = "SELECT name FROM scheduled_tasks WHERE managed_by = $1";

/// Returns the names of the tasks that a source declared.
pub(super) fn managed_by(server: &mut Server, source: &str) -> Result<Vec<String>, Fault> {
    server.query(MANAGED_BY, &[&source])?.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// As `batch` of the marks in the SQLite store.
const MARKED_RUNS: &str = sql! {"
    SELECT count(*) FROM (
        SELECT 1 FROM scheduled_tasks t CROSS JOIN LATERAL (
            (SELECT 1 FROM task_runs n
              WHERE t.marked >= 0 AND n.task_id = t.id AND {unfinished:n} AND {unscheduled_case:n} = 0 AND n.scheduled_for > t.marked
              LIMIT $2)
             UNION ALL
            (SELECT 1 FROM task_runs n
              WHERE n.task_id = t.id AND {unfinished:n} AND {unscheduled_case:n} > greatest(-t.marked, 0)
              LIMIT $2)) r
         WHERE t.id = $1 LIMIT $2) x
    HAVING EXISTS (SELECT 1 FROM scheduled_tasks WHERE id = $1 AND marked IS NOT NULL)"};

/// Returns when a task that has no start left has one again.
pub(super) fn next_start(server: &mut Server, task: i64) -> Result<Option<Timestamp>, Fault> {
    let rows =
        server.query("SELECT opens_at FROM rate_limit_openings WHERE subject = 'task:' || $1::bigint", &[&task])?;
    rows.first().map(|row| Ok(Timestamp::from_millis(row.try_get(0)?))).transpose()
}

/// Returns how many unfinished runs of a task are behind its mark, at most `most`; `None` if it is not marked.
pub(super) fn marked_runs(server: &mut Server, task: i64, most: usize) -> Result<Option<usize>, Fault> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let rows = server.query(MARKED_RUNS, &[&task, &most])?;
    let count: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?;
    Ok(count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
}

/// The last scheduled runs of each task, by their occurrences, and the last others: see `history`.
const RECENT: &str = sql! {"
    SELECT t.id, x.id, x.status, x.duration_ms, x.occurrence
      FROM scheduled_tasks t CROSS JOIN LATERAL (
        (SELECT n.id, n.status, n.duration_ms, n.scheduled_for AS occurrence FROM task_runs n
          WHERE n.task_id = t.id AND {unscheduled_case:n} = 0 ORDER BY n.scheduled_for DESC LIMIT $1)
         UNION ALL
        (SELECT n.id, n.status, n.duration_ms, NULL FROM task_runs n
          WHERE n.task_id = t.id AND {unscheduled_case:n} > 0 ORDER BY {unscheduled_case:n} DESC LIMIT $1)) x"};

/// Returns the last runs of each task, oldest first.
pub(super) fn recent(server: &mut Server, limit: usize) -> Result<BTreeMap<i64, Vec<Recent>>, Fault> {
    let mut found = Vec::new();
    for row in server.query(RECENT, &[&i64::try_from(limit).unwrap_or(i64::MAX)])? {
        // A status that only another program writes must not hide the other runs.
        let Some(status) = RunStatus::parse(row.try_get(2)?) else { continue };
        let duration =
            row.try_get::<_, Option<i64>>(3)?.map(|millis| Duration::from_millis(millis.max(0).unsigned_abs()));
        let recent = Recent { status, duration };
        found.push(Found { task: row.try_get(0)?, id: row.try_get(1)?, occurrence: row.try_get(4)?, recent });
    }
    Ok(history::by_task(found, limit))
}

/// Returns the ids that a query finds.
pub(super) fn ids(server: &mut Server, query: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<i64>, Fault> {
    server.query(query, params)?.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// The newest recorded action. As `actions::NEWEST` of the SQLite store.
pub(super) const NEWEST_ACTION: &str = "SELECT id FROM scheduler_events WHERE kind = 'action' ORDER BY id DESC LIMIT 1";

/// The number of the runs that a page looks at, the last of them and when it began or ended, and those that match, as in `task_pages`. The
/// parameters are those of [`runs`].
#[cfg(feature = "page")]
macro_rules! found_among {
    ($runs:literal) => {
        sql! { (concat!(
            "WITH c AS MATERIALIZED (
                SELECT n.id, n.task_id, n.handler, n.status, n.error, coalesce(n.last_scheduled_for, n.scheduled_for) AS occurrence
                  FROM task_runs n ", $runs, ")
             SELECT (SELECT count(*) FROM c), l.id, (SELECT coalesce(e.started_at, e.finished_at) FROM task_runs e WHERE e.id = l.id),
                    ARRAY(SELECT c.id FROM c
                           WHERE c.id < $1 AND ($4::bigint IS NULL OR c.task_id = $4) AND ($5::text IS NULL OR c.status = $5)
                             AND (NOT $6::boolean OR c.status = 'queued' OR c.status = 'running' OR c.status = 'failed')
                             AND ($7::bigint IS NULL OR c.occurrence >= $7) AND ($8::bigint IS NULL OR c.occurrence <= $8)
                             AND ($9::text IS NULL OR c.handler = $9)
                             AND ($10::text IS NULL OR strpos(lower(c.error COLLATE \"C\"), $10) > 0)
                             AND ($11::text IS NULL OR EXISTS (SELECT 1 FROM scheduled_tasks t WHERE t.id = c.task_id AND t.name LIKE $11))
                           ORDER BY c.id DESC LIMIT $3::bigint)
               FROM (SELECT min(c.id) AS id FROM c) l"
        )) }
    };
}

#[cfg(feature = "page")]
const WALK: &str = found_among!("WHERE n.id < $1::bigint ORDER BY n.id DESC LIMIT $2::bigint");

/// In the orders of their indexes: before an ANALYZE, the server would read the whole table.
#[cfg(feature = "page")]
const DEAD: &str = found_among!("WHERE n.status = 'dead' ORDER BY n.finished_at LIMIT $2::bigint");

#[cfg(feature = "page")]
const UNFINISHED: &str =
    found_among!("WHERE {unfinished:n} ORDER BY n.task_id, {unscheduled_case:n}, n.scheduled_for LIMIT $2::bigint");

#[cfg(feature = "page")]
const OF_TASK: &str = found_among!(
    "WHERE n.id = ANY (ARRAY(
        SELECT x.id FROM (
            (SELECT s.id FROM task_runs s
              WHERE s.task_id = $4 AND {unscheduled_case:s} = 0 AND s.id + 0 < $1
                AND s.scheduled_for <= coalesce((SELECT b.scheduled_for FROM task_runs b
                                                  WHERE b.id = $1 AND b.task_id = $4 AND {unscheduled_case:b} = 0), 64060588800000)
              ORDER BY s.scheduled_for DESC LIMIT $2)
             UNION ALL
            (SELECT s.id FROM task_runs s
              WHERE s.task_id = $4 AND {unscheduled_case:s} > 0 AND {unscheduled_case:s} < $1
              ORDER BY {unscheduled_case:s} DESC LIMIT $2)) x
         ORDER BY x.id DESC LIMIT $2))"
);

/// The ids of the runs of a page, and its end, as in [`RunQuery::page`].
#[cfg(feature = "page")]
type FoundRuns = (Vec<i64>, Option<(i64, Option<Timestamp>)>);

/// Finds the runs of a page.
#[cfg(feature = "page")]
pub(super) fn runs(server: &mut Server, query: &RunQuery) -> Result<FoundRuns, Fault> {
    let before = query.before.unwrap_or(i64::MAX);
    let limit = bound(query.limit.saturating_add(1));
    let status = query.status.map(|status| status.as_str());
    let [since, until] = [query.since, query.until].map(|at| at.map(Timestamp::as_millis));
    let text = query.error.as_ref().map(|text| text.to_ascii_lowercase());
    let like = query.pattern.as_ref().map(|pattern| like(pattern.as_str()));
    let mut find = |statement: &str, most: usize| {
        let rows = server.query(
            statement,
            &[
                &before,
                &bound(most),
                &limit,
                &query.task,
                &status,
                &query.is_unfinished,
                &since,
                &until,
                &query.handler,
                &text,
                &like,
            ],
        )?;
        let (count, last, began): (i64, Option<i64>, Option<i64>) =
            (rows[0].try_get(0)?, rows[0].try_get(1)?, rows[0].try_get(2)?);
        let end = last.filter(|_| count == bound(most)).map(|last| (last, began.map(Timestamp::from_millis)));
        Ok::<FoundRuns, Fault>((rows[0].try_get(3)?, end))
    };
    if let Some(few) = query.few() {
        let statement = if few == Few::Dead { DEAD } else { UNFINISHED };
        let found = find(statement, query.most.saturating_add(1))?;
        if found.1.is_none() {
            return Ok(found);
        }
    }
    find(if query.task.is_some() { OF_TASK } else { WALK }, query.looks_at())
}

#[cfg(feature = "page")]
fn bound(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A page of tasks, without its order. The conditions are those of `task_pages`.
#[cfg(feature = "page")]
pub(super) const TASK_LINES: &str = "
    SELECT t.id FROM scheduled_tasks t
     WHERE t.name >= $1 AND ($2::text IS NULL OR t.name > $2)
       AND ($2::text IS NOT NULL OR $3::bigint IS NULL OR t.name > coalesce((SELECT o.name FROM scheduled_tasks o WHERE o.id = $3), ''))
       AND ($4::text IS NULL OR t.name LIKE $4)
       AND ($5::text IS NULL OR t.handler = $5) AND ($6::text IS NULL OR t.status = $6)
       AND ($7 OR t.status <> 'completed' OR t.schedule_type <> 'once'
            OR coalesce((SELECT r.status = 'dead' OR r.status = 'queued' OR r.status = 'running' OR r.status = 'failed'
                           FROM task_runs r WHERE r.task_id = t.id ORDER BY r.id + 0 DESC LIMIT 1), false))";

/// Returns a pattern of names for LIKE.
#[cfg(feature = "page")]
pub(super) fn like(pattern: &str) -> String {
    let mut like = String::with_capacity(pattern.len());
    for one in pattern.chars() {
        match one {
            '*' => like.push('%'),
            '?' => like.push('_'),
            '%' | '_' | '\\' => like.extend(['\\', one]),
            one => like.push(one),
        }
    }
    like
}

/// The older runs of lanes, as the SQLite store counts them.
#[cfg(feature = "page")]
const OLDER_RUNS: &str = sql! {"
    SELECT l.number, r.is_scheduled,
           CASE WHEN r.scheduled_for >= $6 AND r.scheduled_for < $7 THEN (r.scheduled_for - $6) / $8 ELSE -1 END,
           r.status, count(*), max(r.id), min(r.scheduled_for), min(r.place)
      FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
           AS l (task, oldest, before, first, above, number)
     CROSS JOIN LATERAL (
           (SELECT true AS is_scheduled, n.scheduled_for AS place, n.id, n.status, n.scheduled_for FROM task_runs n
             WHERE n.task_id = l.task AND {unscheduled_case:n} = 0 AND n.scheduled_for >= l.oldest AND n.scheduled_for < l.before
             ORDER BY n.scheduled_for DESC LIMIT $9)
            UNION ALL
           (SELECT false, {unscheduled_case:n}, n.id, n.status, n.scheduled_for FROM task_runs n
             WHERE n.task_id = l.task AND {unscheduled_case:n} >= l.first AND {unscheduled_case:n} < l.above
             ORDER BY {unscheduled_case:n} DESC LIMIT $9)) r
     GROUP BY 1, 2, 3, 4"};

/// Counts the older runs of the lanes of a timeline.
#[cfg(feature = "page")]
pub(super) fn older_runs(
    server: &mut Server,
    lanes: &[Older],
    window: &Window,
    limit: i64,
) -> Result<Vec<OlderRuns>, Fault> {
    if lanes.iter().all(|lane| lane.scheduled.is_empty() && lane.unscheduled.is_empty()) {
        return Ok(Vec::new());
    }
    let column = |of: fn(&Older) -> i64| lanes.iter().map(of).collect::<Vec<i64>>();
    let (tasks, first, above) =
        (column(|lane| lane.task), column(|lane| lane.unscheduled.start), column(|lane| lane.unscheduled.end));
    let (oldest, before) = (column(|lane| lane.scheduled.start), column(|lane| lane.scheduled.end));
    let (from, until, part) = (window.from.as_millis(), window.until.as_millis(), window.part.as_millis() as i64);
    let rows = server.query(OLDER_RUNS, &[&tasks, &oldest, &before, &first, &above, &from, &until, &part, &limit])?;
    rows.iter()
        .map(|row| {
            Ok(OlderRuns {
                lane: row.try_get::<_, i64>(0)? as usize - 1,
                is_scheduled: row.try_get(1)?,
                part: row.try_get(2)?,
                status: RunStatus::parse(row.try_get(3)?),
                count: row.try_get(4)?,
                newest: row.try_get(5)?,
                oldest: Timestamp::from_millis(row.try_get(6)?),
                first: row.try_get(7)?,
            })
        })
        .collect()
}

#[cfg(feature = "page")]
const RUNNING: &str = "
    SELECT coalesce(r.locked_by, ''), count(*) FROM task_runs r WHERE r.status = 'running' GROUP BY r.locked_by ORDER BY 1";

#[cfg(feature = "page")]
const WAITING: &str = sql! {"
    SELECT r.status = 'failed', r.blocked, count(*), count(*) FILTER (WHERE r.run_at > $1), min(r.run_at)
      FROM task_runs r WHERE {waiting:r} GROUP BY r.blocked, r.status"};

/// The runs that only the rate limits of these handlers keep from starting, and when the next task is due.
#[cfg(feature = "page")]
const LIMITED_AND_DUE: &str = sql! {"
    SELECT (SELECT count(*) FROM task_runs r WHERE {claimable:r} AND r.handler = ANY ($1) AND r.run_at <= $2),
           (SELECT min(x.next_run) FROM generate_series(0, 3) p (priority) CROSS JOIN LATERAL (
                SELECT s.next_run FROM scheduled_tasks s
                 WHERE {active_planned:s} AND s.priority = p.priority AND s.next_run IS NOT NULL
                 ORDER BY s.next_run LIMIT 1) x)"};

/// Counts the unfinished runs. `limits`: all limits.
#[cfg(feature = "page")]
pub(super) fn queue(server: &mut Server, limits: &[LimitState], now: Timestamp) -> Result<Queue, Fault> {
    let reached: Vec<&str> = limits
        .iter()
        .filter(|state| state.next_start.is_some())
        .filter_map(|state| if let Limit::Rate { handler, .. } = &state.limit { Some(handler.as_str()) } else { None })
        .collect();
    let (mut running, mut groups) = (Vec::new(), Vec::new());
    for row in server.query(RUNNING, &[])? {
        running.push((row.try_get(0)?, number(row.try_get(1)?)));
    }
    for row in server.query(WAITING, &[&now.as_millis()])? {
        groups.push(Group {
            is_failed: row.try_get(0)?,
            blocked: row.try_get(1)?,
            count: number(row.try_get(2)?),
            later: number(row.try_get(3)?),
            oldest: Timestamp::from_millis(row.try_get(4)?),
        });
    }
    let rows = server.query(LIMITED_AND_DUE, &[&reached, &now.as_millis()])?;
    let limited = number(rows[0].try_get(0)?);
    let next_due = rows[0].try_get::<_, Option<i64>>(1)?.map(Timestamp::from_millis);
    Ok(queue::sum(running, groups, limited, next_due, now))
}

fn number(count: i64) -> u64 {
    count.unsigned_abs()
}
