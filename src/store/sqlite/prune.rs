//! Retention: deletes expired history in small batches.

use rusqlite::{Statement, ToSql, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::report::{Pass, Pruned};
use crate::model::settings::Retention;
use crate::rules::retention::{Limits, OldRun};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::own_triggers;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::tasks;
use crate::store::turn_io::MAX_ITEMS;

/// Most tasks that one batch reads, and most of their runs that it counts. Most tasks have nothing to remove: to read five
/// thousand takes about six milliseconds, and a scheduler that is never idle does so once a minute.
const MAX_TASKS: usize = 5_000;
const MAX_COUNTED: usize = 20_000;
/// Most stopped instances that are kept: a crash loop adds one with each start.
const MAX_STOPPED: usize = 100;

/// Deletes a batch of expired history, adds it to `pruned`, and advances `pass`. Returns the id of the newest task.
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

/// As [`prune`], but only counts and deletes nothing.
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
            let Pruned { events, instances, .. } = expired_events_and_instances(tx, &limits)?;
            (pruned.events, pruned.instances) = (pruned.events + events, pruned.instances + instances);
        }
        let (end, tasks, runs) = expired_tasks_and_runs(tx, &limits, pass.after, MAX_ITEMS)?;
        (pruned.tasks, pruned.runs) = (pruned.tasks + tasks, pruned.runs + runs);
        pass.after = end.unwrap_or_default();
        Ok(last_task(tx)?)
    })
}

/// Deletes a batch of about `limit` expired rows. Every batch includes events and instances, whatever the position of the pass.
/// Returns whether the batch ended because it reached its limit.
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
    let scanned = scan(tx, limits, *pass, limits.most.saturating_add(limit))?;
    for Found { task, is_expired, runs } in scanned.found {
        if left == 0 || (is_expired && runs > left && left < limit) {
            return Ok(true);
        }
        if is_expired && runs <= left && ended_before(tx, task, limits.once_before)? && delete_task(tx, task)? {
            pruned.tasks += 1;
            left = left.saturating_sub(1 + runs);
        } else if let removed @ 1.. = remove_runs(tx, task, limits, runs, left)? {
            pruned.runs += removed;
            left -= removed;
            if left == 0 {
                // This task may have more expired runs.
                return Ok(true);
            }
        }
        pass.after = task;
    }
    *pass = scanned.end.map(|after| Pass { after, ..*pass }).unwrap_or_default();
    Ok(more || left == 0)
}

/// Deletes a task, by whose triggers its runs go with it.
fn delete_task(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<bool> {
    own_triggers::fire(tx)?;
    tasks::delete(tx, task)
}

// No trigger of `schema.sql` is of these tables.
const EVENTS: &str = "
    DELETE FROM scheduler_events
     WHERE id IN (SELECT id FROM (SELECT id, at FROM scheduler_events WHERE id > 0 ORDER BY id LIMIT :limit)
                   WHERE at < :before)";

fn events(tx: &Transaction<'_>, before: Timestamp, limit: usize) -> rusqlite::Result<usize> {
    tx.prepare_cached(EVENTS)?.execute(named_params! { ":before": before, ":limit": sql_limit(limit) })
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
    let params = named_params! { ":before": before, ":most": sql_limit(MAX_STOPPED) };
    tx.prepare_cached(INSTANCES)?.execute(params)
}

/// A task that a manifest declares is kept while it is declared: if the manifest were applied again, it would run again. A
/// completed task that SQL has given a next_run runs again, and is kept.
const TASKS: &str = sql! {"
    SELECT id,
           schedule_type = 'once' AND status = 'completed' AND next_run IS NULL AND {undeclared} AND updated_at < :before,
           (SELECT count(*) FROM (SELECT 1 FROM task_runs WHERE task_id = t.id LIMIT :most))
      FROM scheduled_tasks t
     WHERE id > :after AND id <= :last ORDER BY id LIMIT :limit"};

/// The result of a scan of some tasks.
struct Scan {
    /// Tasks that may have expired rows.
    found: Vec<Found>,
    /// The last task that was read; `None` if no task is left.
    end: Option<i64>,
}

struct Found {
    task: i64,
    /// Whether it is a completed `once` task that has not changed within the retention time.
    is_expired: bool,
    /// The number of its runs, at most the given limit.
    runs: usize,
}

/// Reads the next tasks of a pass, and counts at most `most` runs of each.
fn scan(tx: &Transaction<'_>, limits: &Limits, pass: Pass, most: usize) -> rusqlite::Result<Scan> {
    let mut statement = tx.prepare_cached(TASKS)?;
    let mut rows = statement.query(named_params! {
        ":before": limits.once_before, ":most": sql_limit(most), ":after": pass.after, ":last": pass.last,
        ":limit": sql_limit(MAX_TASKS),
    })?;
    let (mut scanned, mut counted, mut tasks) = (Scan { found: Vec::new(), end: None }, 0, 0);
    while let Some(row) = rows.next()? {
        let (task, is_expired) = (row.get(0)?, row.get(1)?);
        let runs = usize::try_from(row.get::<_, i64>(2)?).unwrap_or_default();
        if is_expired || limits.spare(runs) > 0 {
            scanned.found.push(Found { task, is_expired, runs });
        }
        (counted, tasks) = (counted + runs, tasks + 1);
        if counted >= MAX_COUNTED || tasks >= MAX_TASKS {
            scanned.end = Some(task);
            break;
        }
    }
    Ok(scanned)
}

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

const ENDED_BEFORE: &str = sql! {"
    SELECT NOT EXISTS (SELECT 1 FROM task_runs
                        WHERE task_id = :task AND {unfinished})
       AND NOT EXISTS (SELECT 1 FROM task_runs WHERE task_id = :task AND finished_at >= :before)"};

/// Returns whether all runs of a task ended before an instant.
fn ended_before(tx: &Transaction<'_>, task: i64, before: Timestamp) -> rusqlite::Result<bool> {
    tx.prepare_cached(ENDED_BEFORE)?.query_row(named_params! { ":task": task, ":before": before }, |row| row.get(0))
}

// Both in the order of the index of a task's history: scheduled runs by occurrence, the others by id. A run that was retried is
// kept while its retry is: a later retry finds its idempotency key and the recorded effects through both.
const OLDEST_SCHEDULED: &str = sql! {"
    SELECT scheduled_for, id, status, finished_at FROM task_runs
     WHERE task_id = :task AND {unscheduled_id} = 0
       AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = :task AND r.retry_of = task_runs.id)
     ORDER BY scheduled_for LIMIT :limit"};

const OLDEST_OTHERS: &str = sql! {"
    SELECT scheduled_for, id, status, finished_at FROM task_runs
     WHERE task_id = :task AND {unscheduled_id} > 0
       AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = :task AND r.retry_of = task_runs.id)
     ORDER BY {unscheduled_id} LIMIT :limit"};

const REMOVE_RUN: &str = "
    DELETE FROM task_runs WHERE id = :run AND status <> 'queued' AND status <> 'failed' AND status <> 'running'";

/// Deletes expired final runs of a task that has `runs` runs. Reads at most the oldest `limit`.
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
    for (rank, run) in oldest.into_iter().take(spare).enumerate() {
        if limits.removes(&run, rank, runs) {
            // Not before: while nothing has expired, no statement is prepared again.
            own_triggers::fire(tx)?;
            removed += tx.prepare_cached(REMOVE_RUN)?.execute(named_params! { ":run": run.id })?;
        }
    }
    Ok(removed)
}

/// Returns the oldest runs of a task, of one kind, oldest first.
fn old_runs<'s>(
    statement: &'s mut Statement<'_>,
    task: i64,
    limit: usize,
) -> rusqlite::Result<impl Iterator<Item = rusqlite::Result<OldRun>> + use<'s>> {
    statement.query_map(named_params! { ":task": task, ":limit": sql_limit(limit) }, |row| {
        Ok(OldRun { scheduled_for: row.get(0)?, id: row.get(1)?, status: row.get(2)?, finished: row.get(3)? })
    })
}

const LAST_TASK: &str = "SELECT ifnull(max(id), 0) FROM scheduled_tasks";

/// Returns the id of the newest task.
fn last_task(tx: &Transaction<'_>) -> rusqlite::Result<i64> {
    tx.prepare_cached(LAST_TASK)?.query_row([], |row| row.get(0))
}

const OLD_EVENTS: &str = "SELECT count(*) FROM scheduler_events WHERE at < :before";

/// Counts expired events and instances.
fn expired_events_and_instances(tx: &Transaction<'_>, limits: &Limits) -> rusqlite::Result<Pruned> {
    let before = limits.events_before;
    let count = |statement: &str, params: &[(&str, &dyn ToSql)]| -> rusqlite::Result<usize> {
        let count = tx.prepare(statement)?.query_row(params, |row| row.get::<_, i64>(0))?;
        Ok(usize::try_from(count).unwrap_or_default())
    };
    let events = count(OLD_EVENTS, named_params! { ":before": before })?;
    let old_instances = INSTANCES.replace("DELETE", "SELECT count(*)");
    let instances = count(&old_instances, named_params! { ":before": before, ":most": sql_limit(MAX_STOPPED) })?;
    Ok(Pruned { events, instances, ..Pruned::default() })
}

/// Counts the tasks and runs that batches of `limit` would delete, for some tasks after the given one. Returns also the last task
/// that was read, if more are left.
fn expired_tasks_and_runs(
    tx: &Transaction<'_>,
    limits: &Limits,
    after: i64,
    limit: usize,
) -> rusqlite::Result<(Option<i64>, usize, usize)> {
    let (mut tasks, mut expired) = (0, 0);
    let scanned = scan(tx, limits, Pass { after, last: i64::MAX }, usize::MAX)?;
    for Found { task, is_expired, runs } in scanned.found {
        let spare = removable(tx, task, limits, runs, limit)?;
        // An expired task is deleted with its runs as soon as they fit into a batch.
        let mut first = 0;
        while runs - first > limit && first < spare {
            first += limit.min(spare - first);
        }
        if is_expired && runs - first <= limit && ended_before(tx, task, limits.once_before)? {
            tasks += 1;
            expired += first;
        } else {
            expired += spare;
        }
    }
    Ok((scanned.end, tasks, expired))
}

/// Counts the expired runs of a task that has `runs` runs. [`remove_runs`] reads at most `limit` runs that it keeps.
fn removable(tx: &Transaction<'_>, task: i64, limits: &Limits, runs: usize, limit: usize) -> rusqlite::Result<usize> {
    let spare = limits.spare(runs);
    if spare == 0 {
        return Ok(0);
    }
    let (mut scheduled, mut others) = (tx.prepare_cached(OLDEST_SCHEDULED)?, tx.prepare_cached(OLDEST_OTHERS)?);
    let mut scheduled = old_runs(&mut scheduled, task, spare)?;
    let mut others = old_runs(&mut others, task, spare)?;
    let (mut one, mut other) = (scheduled.next().transpose()?, others.next().transpose()?);
    let (mut rank, mut expired) = (0, 0);
    while rank < spare && rank - expired < limit {
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
        expired += usize::from(limits.removes(&run, rank, runs));
        rank += 1;
    }
    Ok(expired)
}
