//! The rows around those that an operation names: what the rules look at from there. Each function is one statement, whose work is
//! in proportion to the rows that it returns.

use std::collections::{BTreeSet, HashSet};

use crate::model::limit::LimitOn;
use crate::rules::chain;
use crate::store::fault::Fault;
use crate::store::postgres::sheets::{Cell, Sheets};
use crate::store::sqlite::limits::WINDOW;
use crate::store::sqlite::sql::sql;

/// The version of the tables, the rules of time zones, and how far tasks are planned again by them, and after a clock was wrong.
const META: &str = "WHERE t.key = 'schema_version' OR t.key LIKE 'zone%' OR t.key = 'clock_mark'";

/// Reads the version of the tables.
pub(super) fn version(bench: &mut Sheets) -> Result<(), Fault> {
    bench.read("scheduler_meta", META, &[]).map(|_| ())
}

/// Reads tasks by their names, with the version of the tables and the numbers of new rows.
pub(super) fn tasks_at_first(bench: &mut Sheets, names: &[String]) -> Result<(), Fault> {
    let parts = [("scheduler_meta", META), ("scheduled_tasks", "WHERE t.name = ANY ($1::text[])")];
    bench.read_together(&parts, None, true, &[&names])
}

/// Reads tasks by their names.
pub(super) fn tasks_named<S: AsRef<str>>(bench: &mut Sheets, names: &[S]) -> Result<(), Fault> {
    if names.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    bench.read("scheduled_tasks", "WHERE t.name = ANY ($1)", &[&names]).map(|_| ())
}

/// The columns that name tasks which follow, and the origins of the runs that do.
pub(crate) const FOLLOWERS: [&str; 4] = ["on_dead", "on_success", "on_end", "on_missed"];

/// Reads the tasks that may follow the tasks that were read, and what a run of them changes. What is due of a delay task that follows is
/// resolved, and others may follow from that, as far as a chain may get.
pub(super) fn followers(bench: &mut Sheets) -> Result<(), Fault> {
    for _ in 0..chain::MAX_LENGTH {
        let before = numbers(bench, "scheduled_tasks", "id");
        read_named(bench, &FOLLOWERS, &[])?;
        let mut delays = tasks_with(bench, "schedule_type", "delay");
        delays.retain(|task| before.binary_search(task).is_err());
        if delays.is_empty() {
            break;
        }
        before_a_change(bench, &delays)?;
    }
    Ok(())
}

/// The runs of tasks that follow a run.
const FOLLOWING: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT r.id FROM unnest($2::bigint[]) one (task) CROSS JOIN LATERAL (
            SELECT n.id FROM task_runs n
             WHERE n.task_id = one.task AND n.request_key > '#' || $1::bigint || '/'
               AND n.request_key < '#' || $1::bigint || '0' OFFSET 0) r))";

/// Reads the tasks of the runs that were read, those that they name, and their runs that follow a run.
pub(super) fn following(bench: &mut Sheets, run: i64) -> Result<(), Fault> {
    tasks_of_runs(bench)?;
    read_named(bench, &FOLLOWERS, &[])?;
    let tasks = numbers(bench, "scheduled_tasks", "id");
    bench.read("task_runs", FOLLOWING, &[&run, &tasks]).map(|_| ())
}

/// Reads all tasks to which `on_success` and `on_end` of those that were read lead, and those of these names.
pub(super) fn led_to(bench: &mut Sheets, names: &[String]) -> Result<(), Fault> {
    let mut names = names;
    while read_named(bench, &FOLLOWERS[1..3], names)? {
        names = &[];
    }
    Ok(())
}

/// Reads the tasks that these columns name, and those of these names. Returns whether another one was found.
fn read_named(bench: &mut Sheets, columns: &[&str], names: &[String]) -> Result<bool, Fault> {
    let known: HashSet<String> = texts(bench, "scheduled_tasks", "name").into_iter().collect();
    let held: Vec<String> = columns.iter().flat_map(|column| texts(bench, "scheduled_tasks", column)).collect();
    let named = held.iter().chain(names).flat_map(|names| chain::names(names));
    let named: BTreeSet<&str> = named.filter(|name| !known.contains(*name) && !name.contains('\0')).collect();
    tasks_named(bench, &named.into_iter().collect::<Vec<_>>())?;
    Ok(texts(bench, "scheduled_tasks", "name").len() > known.len())
}

/// Reads the tasks of the runs that were read.
pub(super) fn tasks_of_runs(bench: &mut Sheets) -> Result<(), Fault> {
    let mut tasks = numbers(bench, "task_runs", "task_id");
    let known = numbers(bench, "scheduled_tasks", "id");
    tasks.retain(|task| known.binary_search(task).is_err());
    if tasks.is_empty() {
        return Ok(());
    }
    bench.read("scheduled_tasks", "WHERE t.id = ANY ($1)", &[&tasks]).map(|_| ())
}

/// Reads runs by their ids.
pub(super) fn runs(bench: &mut Sheets, ids: &[i64]) -> Result<(), Fault> {
    bench.read("task_runs", "WHERE t.id = ANY ($1)", &[&ids]).map(|_| ())
}

/// A run with the runs that it retries, down to the first.
const CHAIN: &str = "
    WHERE t.id = ANY (ARRAY(
        WITH RECURSIVE chain (id, retry_of) AS (
            SELECT r.id, r.retry_of FROM task_runs r WHERE r.id = $1
            UNION ALL
            SELECT r.id, r.retry_of FROM chain c JOIN task_runs r ON r.id = c.retry_of AND r.id < c.id)
        SELECT c.id FROM chain c))";

pub(super) fn chain(bench: &mut Sheets, run: i64) -> Result<(), Fault> {
    bench.read("task_runs", CHAIN, &[&run]).map(|_| ())
}

/// The first unfinished runs of a task; its newest scheduled run, which a skip extends; scheduled runs of its next occurrences, which a
/// clock that was wrong has opened, and of those since it was found wrong if the task is to be planned again; and the last end, from
/// which a `delay` counts that SQL wrote.
const BEFORE_A_CHANGE: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        WITH clock_mark AS MATERIALIZED ({clock_mark})
        SELECT x.id FROM scheduled_tasks s LEFT JOIN clock_mark m ON m.task < s.id CROSS JOIN LATERAL (
            (SELECT n.id FROM task_runs n
              WHERE n.task_id = s.id AND {unfinished:n} AND {unscheduled_case:n} = 0
              ORDER BY n.scheduled_for LIMIT {looked_at} + 1)
             UNION ALL
            (SELECT n.id FROM task_runs n
              WHERE n.task_id = s.id AND {unfinished:n} AND {unscheduled_case:n} > 0
              ORDER BY {unscheduled_case:n} LIMIT {front})
             UNION ALL
            (SELECT n.id FROM task_runs n
              WHERE n.task_id = s.id AND {waiting:n} AND n.cancel_requested = 1 ORDER BY n.task_id, n.id LIMIT 1)
             UNION ALL
            SELECT n.id FROM task_runs n
             WHERE n.task_id = s.id AND {unscheduled_case:n} = 0
               AND (s.next_run IS NOT NULL OR (s.schedule_type <> 'manual' AND (s.planned = 0 OR m.since IS NOT NULL)))
               AND n.scheduled_for >= least(coalesce(s.next_run, s.resolved_until, m.since, 0), m.since)
             UNION ALL
            (SELECT n.id FROM task_runs n
              WHERE n.task_id = s.id AND {unscheduled_case:n} = 0 ORDER BY n.scheduled_for DESC LIMIT 1)
             UNION ALL
            (SELECT n.id FROM task_runs n
              WHERE s.schedule_type = 'delay' AND (s.planned = 0 OR s.status = 'invalid' OR m.since IS NOT NULL)
                AND n.task_id = s.id AND n.finished_at IS NOT NULL ORDER BY n.finished_at DESC LIMIT 1)) x
         WHERE s.id = ANY ($1)))"};

/// Reads what a change of tasks resolves and derives again.
pub(super) fn before_a_change(bench: &mut Sheets, tasks: &[i64]) -> Result<(), Fault> {
    if tasks.is_empty() {
        return Ok(());
    }
    bench.read("task_runs", BEFORE_A_CHANGE, &[&tasks])?;
    limits_that_skip(bench)
}

/// Reads what decides whether occurrences of the tasks that were read are skipped, for which no start is left.
fn limits_that_skip(bench: &mut Sheets) -> Result<(), Fault> {
    let tasks = tasks_with(bench, "when_limited", "skip");
    if tasks.is_empty() {
        return Ok(());
    }
    let mut subjects: Vec<String> = tasks.iter().map(|task| format!("task:{task}")).collect();
    let mut keys = texts(bench, "scheduled_tasks", "concurrency_key");
    let mut handlers = texts(bench, "scheduled_tasks", "handler");
    keys.dedup();
    handlers.dedup();
    bench.read("concurrency_limits", "WHERE t.concurrency_key = ANY ($1)", &[&keys])?;
    bench.read("rate_limits", "WHERE t.handler = ANY ($1)", &[&handlers])?;
    subjects.extend(texts(bench, "concurrency_limits", "concurrency_key").into_iter().map(|key| format!("key:{key}")));
    subjects.extend(texts(bench, "rate_limits", "handler").into_iter().map(|handler| format!("handler:{handler}")));
    starts(bench, &subjects)
}

/// Reads the starts that count for subjects, and whether some are left.
fn starts(bench: &mut Sheets, subjects: &[String]) -> Result<(), Fault> {
    bench.read("rate_limit_starts", "WHERE t.subject = ANY ($1)", &[&subjects])?;
    bench.read("rate_limit_openings", "WHERE t.subject = ANY ($1)", &[&subjects]).map(|_| ())
}

/// Reads which of the tasks and keys that were read have no start left.
#[cfg(feature = "page")]
pub(super) fn openings(bench: &mut Sheets) -> Result<(), Fault> {
    let keys = texts(bench, "task_runs", "concurrency_key").into_iter().map(|key| format!("key:{key}"));
    let tasks = numbers(bench, "scheduled_tasks", "id").into_iter().map(|task| format!("task:{task}"));
    let subjects: Vec<String> = keys.chain(tasks).collect();
    bench.read("rate_limit_openings", "WHERE t.subject = ANY ($1)", &[&subjects]).map(|_| ())
}

/// The first runs of tasks that wait for a start: more than there are runs that were read, which may end.
const AWAITING: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT x.id FROM unnest($1::bigint[]) one (task) CROSS JOIN generate_series(0, 3) p (priority) CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r
             WHERE r.blocked = 'starts' AND r.task_id = one.task AND r.priority = p.priority
             ORDER BY r.run_at, r.id LIMIT $2) x))";

/// Reads the starts of the tasks that were read and have a limit of them, and the first runs that wait for one.
fn limited_tasks(bench: &mut Sheets) -> Result<(), Fault> {
    let (ids, limits) = (bench.column("scheduled_tasks", "id"), bench.column("scheduled_tasks", "max_starts"));
    let limited = ids.into_iter().zip(limits).filter(|(_, limit)| *limit != Cell::Null);
    let tasks: Vec<i64> =
        limited.filter_map(|(id, _)| if let Cell::Integer(id) = id { Some(id) } else { None }).collect();
    if tasks.is_empty() {
        return Ok(());
    }
    let most = i64::try_from(bench.column("task_runs", "id").len()).unwrap_or(i64::MAX / 2) + 1;
    bench.read("task_runs", AWAITING, &[&tasks, &most])?;
    starts(bench, &tasks.iter().map(|task| format!("task:{task}")).collect::<Vec<_>>())
}

/// Returns those of the tasks that were read with a value of a column.
pub(super) fn tasks_with(bench: &Sheets, column: &str, value: &str) -> Vec<i64> {
    let (ids, values) = (bench.column("scheduled_tasks", "id"), bench.column("scheduled_tasks", column));
    let found = ids.into_iter().zip(values).filter(|(_, found)| *found == Cell::Text(value.to_owned()));
    found.filter_map(|(id, _)| if let Cell::Integer(id) = id { Some(id) } else { None }).collect()
}

/// Reads the unfinished runs of the tasks that were read.
pub(super) fn unfinished_of_tasks(bench: &mut Sheets) -> Result<(), Fault> {
    let tasks = numbers(bench, "scheduled_tasks", "id");
    if tasks.is_empty() {
        return Ok(());
    }
    bench.read("task_runs", sql! {"WHERE t.task_id = ANY ($1) AND {unfinished:t}"}, &[&tasks]).map(|_| ())
}

/// The first unfinished runs of the tasks of some runs, one more of each kind than there are of these runs.
const FRONT: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT x.id FROM (SELECT DISTINCT r.task_id FROM task_runs r WHERE r.id = ANY ($1)) one CROSS JOIN LATERAL (
            (SELECT n.id FROM task_runs n
              WHERE n.task_id = one.task_id AND {unfinished:n} AND {unscheduled_case:n} = 0
              ORDER BY n.scheduled_for LIMIT $2)
             UNION ALL
            (SELECT n.id FROM task_runs n
              WHERE n.task_id = one.task_id AND {unfinished:n} AND {unscheduled_case:n} > 0
              ORDER BY {unscheduled_case:n} LIMIT $2)) x
         UNION ALL
        SELECT r.id FROM task_runs r WHERE r.id = ANY ($1)))"};

/// Reads runs that are about to end, and those behind which other runs of their tasks wait then.
pub(super) fn runs_with_front(bench: &mut Sheets, runs: &[i64]) -> Result<(), Fault> {
    let least = i64::try_from(runs.len()).unwrap_or(i64::MAX).saturating_add(1);
    bench.read("task_runs", FRONT, &[&runs, &least]).map(|_| ())
}

/// One attempt of each run that shows that it has begun.
const BEGAN: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT x.id FROM unnest($1::bigint[]) one (run) CROSS JOIN LATERAL (
            SELECT a.id FROM task_attempts a WHERE a.run_id = one.run AND a.outcome <> 'released' LIMIT 1) x))";

/// Reads whether the runs that were read have begun.
pub(super) fn attempts_that_began(bench: &mut Sheets) -> Result<(), Fault> {
    let runs = numbers(bench, "task_runs", "id");
    if runs.is_empty() {
        return Ok(());
    }
    bench.read("task_attempts", BEGAN, &[&runs]).map(|_| ())
}

/// What holds keys, and what goes first behind them: as many of each handler and priority as may start, and as many more as runs
/// were read, all of which may end.
const BEHIND_KEYS: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT x.id FROM unnest($1::text[]) one (key) CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r WHERE r.status = 'running' AND r.concurrency_key = one.key
             UNION ALL
            (SELECT r.id FROM task_runs r WHERE {claimable:r} AND r.concurrency_key = one.key
              ORDER BY r.blocked, r.concurrency_key, r.handler, r.priority, r.run_at, r.id OFFSET 0)) x
         UNION ALL
        SELECT first.id
          FROM unnest($1::text[]) one (key)
         CROSS JOIN LATERAL (
               WITH RECURSIVE found (handler) AS (
                   SELECT min(r.handler) FROM task_runs r
                    WHERE {waiting:r} AND r.blocked = 'key' AND r.concurrency_key = one.key
                    UNION ALL
                   SELECT (SELECT min(r.handler) FROM task_runs r
                            WHERE {waiting:r} AND r.blocked = 'key' AND r.concurrency_key = one.key
                              AND r.handler > f.handler)
                     FROM found f WHERE f.handler IS NOT NULL)
               SELECT f.handler FROM found f WHERE f.handler IS NOT NULL) h
         CROSS JOIN generate_series(0, 3) p (priority)
         CROSS JOIN LATERAL (
               SELECT r.id FROM task_runs r
                WHERE {waiting:r} AND r.blocked = 'key' AND r.concurrency_key = one.key
                  AND r.handler = h.handler AND r.priority = p.priority
                ORDER BY r.run_at, r.id
                LIMIT CASE WHEN starts_with(one.key, '#') THEN 1
                           ELSE least($3, coalesce((SELECT l.max_running FROM concurrency_limits l
                                                     WHERE l.concurrency_key = one.key), 1)) END + $2) first))"};

/// Reads what waits behind the keys of the runs and of the tasks that were read, and the limits of these keys.
pub(super) fn behind_keys(bench: &mut Sheets) -> Result<(), Fault> {
    behind_keys_and(bench, None)
}

/// As [`behind_keys`], with a key that was read before.
pub(super) fn behind_keys_and(bench: &mut Sheets, key: Option<&str>) -> Result<(), Fault> {
    limited_tasks(bench)?;
    let own = numbers(bench, "scheduled_tasks", "id").into_iter().map(|id| format!("#{id}"));
    let mut keys: Vec<String> = texts(bench, "task_runs", "concurrency_key");
    keys.extend(texts(bench, "scheduled_tasks", "concurrency_key"));
    keys.extend(own);
    keys.extend(key.map(str::to_owned));
    keys.sort_unstable();
    keys.dedup();
    read_behind(bench, keys)
}

/// Reads what waits behind these keys, and their limits.
pub(super) fn read_behind(bench: &mut Sheets, mut keys: Vec<String>) -> Result<(), Fault> {
    if keys.is_empty() {
        return Ok(());
    }
    bench.keys.extend(keys.iter().cloned());
    let read = i64::try_from(bench.column("task_runs", "id").len()).unwrap_or(i64::MAX / 2);
    let window = WINDOW as i64;
    bench.read("task_runs", BEHIND_KEYS, &[&keys, &read, &window])?;
    keys.retain(|key| !key.starts_with('#'));
    if keys.is_empty() {
        return Ok(());
    }
    bench.read("concurrency_limits", "WHERE t.concurrency_key = ANY ($1)", &[&keys])?;
    if bench.column("concurrency_limits", "max_starts").iter().all(|starts| *starts == Cell::Null) {
        return Ok(());
    }
    let subjects: Vec<String> = keys.iter().map(|key| format!("key:{key}")).collect();
    bench.read("rate_limit_openings", "WHERE t.subject = ANY ($1)", &[&subjects]).map(|_| ())
}

/// The first run that waits behind each key, and the first that may start: a limit that changes calls the loop through their tasks.
/// OFFSET 0: the server would search the runs of all keys in the order of another index.
const CALLED: &str = sql! {"
    WHERE t.id = ANY (ARRAY(
        SELECT x.id FROM unnest($1::text[]) one (key) CROSS JOIN LATERAL (
            (SELECT r.id FROM task_runs r WHERE {waiting:r} AND r.blocked = 'key' AND r.concurrency_key = one.key
              ORDER BY r.handler, r.priority, r.run_at, r.id LIMIT 1)
             UNION ALL
            (SELECT f.id FROM (SELECT r.* FROM task_runs r WHERE {claimable:r} AND r.concurrency_key = one.key OFFSET 0) f
              ORDER BY f.handler, f.priority, f.run_at, f.id LIMIT 1)) x))"};

/// Reads limits that are set or removed, and what their triggers change.
pub(super) fn limits(bench: &mut Sheets, on: &[LimitOn]) -> Result<(), Fault> {
    let (mut keys, mut handlers) = (Vec::new(), Vec::new());
    for one in on {
        match one {
            LimitOn::Key(key) => keys.push(key.as_str()),
            LimitOn::Handler(handler) => handlers.push(handler.as_str()),
        }
    }
    if !keys.is_empty() {
        bench.read("concurrency_limits", "WHERE t.concurrency_key = ANY ($1)", &[&keys])?;
        bench.read("task_runs", CALLED, &[&keys])?;
        tasks_of_runs(bench)?;
        starts(bench, &keys.iter().map(|key| format!("key:{key}")).collect::<Vec<_>>())?;
    }
    if !handlers.is_empty() {
        bench.read("rate_limits", "WHERE t.handler = ANY ($1)", &[&handlers])?;
        starts(bench, &handlers.iter().map(|handler| format!("handler:{handler}")).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Returns the numbers in a column of the rows that were read, in order, each once.
pub(super) fn numbers(bench: &Sheets, table: &str, column: &str) -> Vec<i64> {
    let cells = bench.column(table, column).into_iter();
    let mut found: Vec<i64> =
        cells.filter_map(|cell| if let Cell::Integer(number) = cell { Some(number) } else { None }).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the texts in a column of the rows that were read.
pub(super) fn texts(bench: &Sheets, table: &str, column: &str) -> Vec<String> {
    let cells = bench.column(table, column).into_iter();
    cells.filter_map(|cell| if let Cell::Text(text) = cell { Some(text) } else { None }).collect()
}

/// The last attempted run of each `once` task, which its row does not store.
const LAST_OF_ONCE: &str = "
    WHERE t.id = ANY (ARRAY(
        SELECT x.id FROM scheduled_tasks s CROSS JOIN LATERAL (
            SELECT r.id FROM task_runs r WHERE r.task_id = s.id AND r.attempt > 0
             ORDER BY r.started_at DESC NULLS LAST, r.id DESC LIMIT 1) x
         WHERE s.id = ANY ($1)))";

/// Reads the last runs of the `once` tasks that were read.
pub(super) fn last_runs(bench: &mut Sheets) -> Result<(), Fault> {
    let tasks = tasks_with(bench, "schedule_type", "once");
    bench.read("task_runs", LAST_OF_ONCE, &[&tasks]).map(|_| ())
}

/// Returns a number of rows, as the server counts them.
pub(super) fn bound(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
