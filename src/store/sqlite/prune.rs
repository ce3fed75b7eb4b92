//! Retention: deletes expired history in small batches.

use rusqlite::{Statement, ToSql, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::report::{Pass, Pruned};
use crate::model::settings::Retention;
use crate::rules::retention::{Limits, OldRun};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::tasks;
use crate::store::turn_io::MAX_ITEMS;

/// Most tasks that one batch looks at, and most of their runs that it counts. Most tasks have nothing to remove: to look at five
/// thousand takes about six milliseconds, and a scheduler that is never idle does so once a minute.
const MAX_LOOKED_AT: usize = 5_000;
const MAX_COUNTED: usize = 20_000;
/// Stopped instances that are kept: a crash loop adds one with each start.
const MAX_STOPPED: usize = 100;

/// Deletes a batch of expired history, adds it to `pruned`, and moves `pass` on. Returns the id of the newest task.
pub(super) fn prune(
    store: &mut SqliteStore,
    keep: &Retention,
    pass: &mut Pass,
    pruned: &mut Pruned,
    now: Timestamp,
) -> Result<i64> {
    store.write("prune", |tx, _| {
        batch(tx, &Limits::new(keep, now), pass, MAX_ITEMS, pruned)?;
        Ok(last_task(tx)?)
    })
}

/// As [`prune`], and deletes nothing.
pub(super) fn would_prune(
    store: &mut SqliteStore,
    keep: &Retention,
    pass: &mut Pass,
    pruned: &mut Pruned,
    now: Timestamp,
) -> Result<i64> {
    let limits = Limits::new(keep, now);
    store.read("count expired history", |tx, _| {
        if pass.after == 0 {
            let Pruned { events, instances, .. } = beside_tasks(tx, &limits)?;
            (pruned.events, pruned.instances) = (pruned.events + events, pruned.instances + instances);
        }
        let (end, tasks, runs) = would_go(tx, &limits, pass.after, MAX_ITEMS)?;
        (pruned.tasks, pruned.runs) = (pruned.tasks + tasks, pruned.runs + runs);
        pass.after = end.unwrap_or_default();
        Ok(last_task(tx)?)
    })
}

/// Removes a batch of expired rows: about `limit`. Events and instances are part of every batch, wherever the pass over the
/// tasks is. Returns whether the batch ended because it was large enough.
pub(crate) fn batch(
    tx: &Transaction<'_>,
    limits: &Limits,
    pass: &mut Pass,
    limit: usize,
    pruned: &mut Pruned,
) -> Result<bool, Fault> {
    let (mut left, mut more) = (limit, false);
    pruned.instances += instances(tx, limits.events_before)?;
    // The rest is for the tasks of a pass that has begun.
    let most = if pass.after == 0 { limit } else { limit / 2 };
    let events = events(tx, limits.events_before, most)?;
    pruned.events += events;
    left -= events;
    more |= events == most;
    if pass.after == 0 {
        pass.last = last_task(tx)?;
    }
    let seen = look(tx, limits, *pass, limits.most.saturating_add(limit))?;
    for Found { task, is_over, runs } in seen.found {
        if left == 0 || (is_over && runs > left && left < limit) {
            return Ok(true);
        }
        if is_over && runs <= left && ended_before(tx, task, limits.once_before)? {
            tasks::delete(tx, task)?;
            pruned.tasks += 1;
            left = left.saturating_sub(1 + runs);
        } else if let removed @ 1.. = remove_runs(tx, task, limits, runs, left)? {
            pruned.runs += removed;
            left -= removed;
            if left == 0 {
                // There may be more of this one.
                return Ok(true);
            }
        }
        pass.after = task;
    }
    *pass = seen.end.map(|after| Pass { after, ..*pass }).unwrap_or_default();
    Ok(more || left == 0)
}

const EVENTS: &str = "
    DELETE FROM scheduler_events
     WHERE id IN (SELECT id FROM (SELECT id, at FROM scheduler_events WHERE id > 0 ORDER BY id LIMIT :limit)
                   WHERE at < :before)";

fn events(tx: &Transaction<'_>, before: Timestamp, limit: usize) -> rusqlite::Result<usize> {
    tx.prepare_cached(EVENTS)?.execute(named_params! { ":before": before, ":limit": bound(limit) })
}

const INSTANCES: &str = "
    DELETE FROM scheduler_instances
     WHERE stopped_at IS NOT NULL
       AND (stopped_at < :before
            OR id IN (SELECT id FROM scheduler_instances WHERE stopped_at IS NOT NULL
                       ORDER BY seen_at DESC, rowid DESC LIMIT -1 OFFSET :most))
       AND NOT EXISTS (SELECT 1 FROM task_runs r INDEXED BY task_runs_running
                        WHERE r.status = 'running' AND r.locked_by = scheduler_instances.id)";

/// Removes stopped instances that have no running run: those that stopped before an instant, and all but the newest
/// [`MAX_STOPPED`]. The newest `seen_at`, by which the clock is judged at the next start, stays.
pub(crate) fn instances(tx: &Transaction<'_>, before: Timestamp) -> rusqlite::Result<usize> {
    let params = named_params! { ":before": before, ":most": bound(MAX_STOPPED) };
    tx.prepare_cached(INSTANCES)?.execute(params)
}

/// A task that a manifest declares stays as long as it does: applied again, it would run again. A task that SQL has given a
/// next_run is to run again.
const TASKS: &str = "
    SELECT id,
           schedule_type = 'once' AND status = 'completed' AND next_run IS NULL AND managed_by IS NULL AND updated_at < :before,
           (SELECT count(*) FROM (SELECT 1 FROM task_runs WHERE task_id = t.id LIMIT :most))
      FROM scheduled_tasks t
     WHERE id > :after AND id <= :last ORDER BY id LIMIT :limit";

/// What a look at some tasks has found.
struct Seen {
    /// Tasks of which something may be removed.
    found: Vec<Found>,
    /// The last that was looked at; `None`: no task is left.
    end: Option<i64>,
}

struct Found {
    task: i64,
    /// It is a completed `once` task that has not changed within the retention time.
    is_over: bool,
    /// How many runs it has, up to the bound that was given.
    runs: usize,
}

/// Looks at the next tasks of a pass, and counts up to `most` runs of each.
fn look(tx: &Transaction<'_>, limits: &Limits, pass: Pass, most: usize) -> rusqlite::Result<Seen> {
    let mut statement = tx.prepare_cached(TASKS)?;
    let mut rows = statement.query(named_params! {
        ":before": limits.once_before, ":most": bound(most), ":after": pass.after, ":last": pass.last,
        ":limit": bound(MAX_LOOKED_AT),
    })?;
    let (mut seen, mut counted, mut looked_at) = (Seen { found: Vec::new(), end: None }, 0, 0);
    while let Some(row) = rows.next()? {
        let (task, is_over) = (row.get(0)?, row.get(1)?);
        let runs = usize::try_from(row.get::<_, i64>(2)?).unwrap_or_default();
        if is_over || limits.spare(runs) > 0 {
            seen.found.push(Found { task, is_over, runs });
        }
        (counted, looked_at) = (counted + runs, looked_at + 1);
        if counted >= MAX_COUNTED || looked_at >= MAX_LOOKED_AT {
            seen.end = Some(task);
            break;
        }
    }
    Ok(seen)
}

fn bound(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

const ENDED_BEFORE: &str = "
    SELECT NOT EXISTS (SELECT 1 FROM task_runs
                        WHERE task_id = :task AND (status = 'queued' OR status = 'failed' OR status = 'running'))
       AND NOT EXISTS (SELECT 1 FROM task_runs WHERE task_id = :task AND finished_at >= :before)";

/// Returns whether all runs of a task ended before an instant.
fn ended_before(tx: &Transaction<'_>, task: i64, before: Timestamp) -> rusqlite::Result<bool> {
    tx.prepare_cached(ENDED_BEFORE)?.query_row(named_params! { ":task": task, ":before": before }, |row| row.get(0))
}

// Both in the order of the index that is a task's history: scheduled runs by occurrence, the others by id. What was retried
// is kept as long as its retry: a later one finds through both the key, and what was done outside.
const OLDEST_SCHEDULED: &str = "
    SELECT scheduled_for, id, status, finished_at FROM task_runs
     WHERE task_id = :task AND (iif(origin = 'schedule' OR origin = 'catch_up', 0, id)) = 0
       AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = :task AND r.retry_of = task_runs.id)
     ORDER BY scheduled_for LIMIT :limit";

const OLDEST_OTHERS: &str = "
    SELECT scheduled_for, id, status, finished_at FROM task_runs
     WHERE task_id = :task AND (iif(origin = 'schedule' OR origin = 'catch_up', 0, id)) > 0
       AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = :task AND r.retry_of = task_runs.id)
     ORDER BY (iif(origin = 'schedule' OR origin = 'catch_up', 0, id)) LIMIT :limit";

const REMOVE_RUN: &str = "
    DELETE FROM task_runs WHERE id = :run AND status <> 'queued' AND status <> 'failed' AND status <> 'running'";

/// Removes final runs of a task that has `runs`, as the limits say. Looks at the oldest `limit`.
fn remove_runs(tx: &Transaction<'_>, task: i64, limits: &Limits, runs: usize, limit: usize) -> Result<usize, Fault> {
    let spare = limits.spare(runs).min(limit);
    if spare == 0 {
        return Ok(0);
    }
    let mut oldest = Vec::new();
    for statement in [OLDEST_SCHEDULED, OLDEST_OTHERS] {
        let mut statement = tx.prepare_cached(statement)?;
        for row in old_runs(&mut statement, task, spare)? {
            oldest.push(row?);
        }
    }
    oldest.sort_unstable_by_key(OldRun::age);
    let mut removed = 0;
    for (place, run) in oldest.into_iter().take(spare).enumerate() {
        if limits.removes(&run, place, runs) {
            removed += tx.prepare_cached(REMOVE_RUN)?.execute(named_params! { ":run": run.id })?;
        }
    }
    Ok(removed)
}

/// The oldest runs of a task, of one kind, oldest first.
fn old_runs<'s>(
    statement: &'s mut Statement<'_>,
    task: i64,
    limit: usize,
) -> rusqlite::Result<impl Iterator<Item = rusqlite::Result<OldRun>> + use<'s>> {
    statement.query_map(named_params! { ":task": task, ":limit": bound(limit) }, |row| {
        Ok(OldRun { scheduled_for: row.get(0)?, id: row.get(1)?, status: row.get(2)?, finished: row.get(3)? })
    })
}

const LAST_TASK: &str = "SELECT ifnull(max(id), 0) FROM scheduled_tasks";

/// The last task that exists.
fn last_task(tx: &Transaction<'_>) -> rusqlite::Result<i64> {
    tx.prepare_cached(LAST_TASK)?.query_row([], |row| row.get(0))
}

const OLD_EVENTS: &str = "SELECT count(*) FROM scheduler_events WHERE at < :before";

/// As [`INSTANCES`] finds them.
const OLD_INSTANCES: &str = "
    SELECT count(*) FROM scheduler_instances
     WHERE stopped_at IS NOT NULL
       AND (stopped_at < :before
            OR id IN (SELECT id FROM scheduler_instances WHERE stopped_at IS NOT NULL
                       ORDER BY seen_at DESC, rowid DESC LIMIT -1 OFFSET :most))
       AND NOT EXISTS (SELECT 1 FROM task_runs r INDEXED BY task_runs_running
                        WHERE r.status = 'running' AND r.locked_by = scheduler_instances.id)";

/// How much would go that is of no task.
fn beside_tasks(tx: &Transaction<'_>, limits: &Limits) -> rusqlite::Result<Pruned> {
    let before = limits.events_before;
    let count = |statement: &str, params: &[(&str, &dyn ToSql)]| -> rusqlite::Result<usize> {
        let count = tx.prepare(statement)?.query_row(params, |row| row.get::<_, i64>(0))?;
        Ok(usize::try_from(count).unwrap_or_default())
    };
    let events = count(OLD_EVENTS, named_params! { ":before": before })?;
    let instances = count(OLD_INSTANCES, named_params! { ":before": before, ":most": bound(MAX_STOPPED) })?;
    Ok(Pruned { events, instances, ..Pruned::default() })
}

/// Of a batch of tasks after the given one: the last that it looked at, if more are left, and how many tasks and runs would go,
/// by batches of `limit`.
fn would_go(
    tx: &Transaction<'_>,
    limits: &Limits,
    after: i64,
    limit: usize,
) -> rusqlite::Result<(Option<i64>, usize, usize)> {
    let (mut over, mut gone) = (0, 0);
    let seen = look(tx, limits, Pass { after, last: i64::MAX }, usize::MAX)?;
    for Found { task, is_over, runs } in seen.found {
        let spare = removable(tx, task, limits, runs, limit)?;
        // What is over goes whole as soon as that fits into a batch.
        let mut first = 0;
        while runs - first > limit && first < spare {
            first += limit.min(spare - first);
        }
        if is_over && runs - first <= limit && ended_before(tx, task, limits.once_before)? {
            over += 1;
            gone += first;
        } else {
            gone += spare;
        }
    }
    Ok((seen.end, over, gone))
}

/// How many runs of a task that has `runs` would go. Whatever removes them looks at no more than `limit` that stay.
fn removable(tx: &Transaction<'_>, task: i64, limits: &Limits, runs: usize, limit: usize) -> rusqlite::Result<usize> {
    let spare = limits.spare(runs);
    if spare == 0 {
        return Ok(0);
    }
    let (mut scheduled, mut others) = (tx.prepare_cached(OLDEST_SCHEDULED)?, tx.prepare_cached(OLDEST_OTHERS)?);
    let mut scheduled = old_runs(&mut scheduled, task, spare)?;
    let mut others = old_runs(&mut others, task, spare)?;
    let (mut one, mut other) = (scheduled.next().transpose()?, others.next().transpose()?);
    let (mut place, mut gone) = (0, 0);
    while place < spare && place - gone < limit {
        let is_scheduled = match (&one, &other) {
            (Some(one), Some(other)) => one.age() <= other.age(),
            (one, _) => one.is_some(),
        };
        let next = if is_scheduled {
            std::mem::replace(&mut one, scheduled.next().transpose()?)
        } else {
            std::mem::replace(&mut other, others.next().transpose()?)
        };
        let Some(run) = next else { break };
        gone += usize::from(limits.removes(&run, place, runs));
        place += 1;
    }
    Ok(gone)
}
