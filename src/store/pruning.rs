//! Retention: what is long over goes, in small batches, so that a file does not grow for ever.

use rusqlite::{Statement, Transaction, named_params};

use crate::clock::Timestamp;
use crate::run::RunStatus;
use crate::settings::Retention;
use crate::store::Fault;

/// Most tasks that one batch looks at, and most of their runs that it counts.
const MAX_LOOKED_AT: usize = 500;
const MAX_COUNTED: usize = 20_000;

/// What was removed because it is long over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Completed tasks that were due once; their runs went with them.
    pub tasks: usize,
    /// Final runs of other tasks.
    pub runs: usize,
    /// Events.
    pub events: usize,
    /// Rows of schedulers that had stopped.
    pub instances: usize,
}

/// Removes a batch of what is over: about `limit` rows. `after`: the task at which the last batch ended; 0 begins a round,
/// and 0 again says that it is over.
/// Whether it ended because it was large enough.
pub(crate) fn batch(
    tx: &Transaction<'_>,
    keep: &Retention,
    now: Timestamp,
    after: &mut i64,
    limit: usize,
    pruned: &mut Pruned,
) -> Result<bool, Fault> {
    let mut left = limit;
    if *after == 0 {
        let events = events(tx, now.minus(keep.events), left)?;
        pruned.events += events;
        pruned.instances += instances(tx, now.minus(keep.events))?;
        left = left.saturating_sub(events);
    }
    let mut counted = 0;
    for (task, is_over) in tasks(tx, *after)? {
        if left == 0 || counted >= MAX_COUNTED {
            return Ok(left == 0);
        }
        let most = usize::try_from(keep.most_runs).unwrap_or(usize::MAX);
        let runs = count(tx, task, most.saturating_add(limit))?;
        counted += runs;
        if is_over && runs > left && left < limit {
            return Ok(true);
        }
        if is_over && runs <= left && remove_over(tx, task, now.minus(keep.once))? {
            pruned.tasks += 1;
            left = left.saturating_sub(1 + runs);
        } else if let removed @ 1.. = remove_runs(tx, task, keep, now, runs, left)? {
            pruned.runs += removed;
            left -= removed;
            if left == 0 {
                // There may be more of this one.
                return Ok(true);
            }
        }
        *after = task;
    }
    if tasks(tx, *after)?.is_empty() {
        *after = 0;
    }
    Ok(left == 0)
}

const EVENTS: &str = "
    DELETE FROM scheduler_events
     WHERE id IN (SELECT id FROM (SELECT id, at FROM scheduler_events WHERE id > 0 ORDER BY id LIMIT :limit)
                   WHERE at < :before)";

fn events(tx: &Transaction<'_>, before: Timestamp, limit: usize) -> rusqlite::Result<usize> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    tx.prepare_cached(EVENTS)?.execute(named_params! { ":before": before, ":limit": limit })
}

const INSTANCES: &str = "
    DELETE FROM scheduler_instances
     WHERE stopped_at < :before
       AND NOT EXISTS (SELECT 1 FROM task_runs r INDEXED BY task_runs_running
                        WHERE r.status = 'running' AND r.locked_by = scheduler_instances.id)";

fn instances(tx: &Transaction<'_>, before: Timestamp) -> rusqlite::Result<usize> {
    tx.prepare_cached(INSTANCES)?.execute(named_params! { ":before": before })
}

const TASKS: &str = "
    SELECT id, schedule_type = 'once' AND status = 'completed' AND next_run IS NULL AND managed_by IS NULL
      FROM scheduled_tasks
     WHERE id > :after ORDER BY id LIMIT :limit";

fn tasks(tx: &Transaction<'_>, after: i64) -> rusqlite::Result<Vec<(i64, bool)>> {
    let limit = i64::try_from(MAX_LOOKED_AT).unwrap_or(i64::MAX);
    let mut statement = tx.prepare_cached(TASKS)?;
    let rows = statement
        .query_map(named_params! { ":after": after, ":limit": limit }, |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM task_runs WHERE task_id = :task LIMIT :limit)";

/// How many runs a task has, as far as that matters.
fn count(tx: &Transaction<'_>, task: i64, limit: usize) -> rusqlite::Result<usize> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let count: i64 =
        tx.prepare_cached(COUNT)?.query_row(named_params! { ":task": task, ":limit": limit }, |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or_default())
}

// What a manifest declares stays as long as it does: applied again, it would otherwise run again. What SQL has given a
// next_run is to run again.
const REMOVE_OVER: &str = "
    DELETE FROM scheduled_tasks
     WHERE id = :task AND schedule_type = 'once' AND status = 'completed' AND next_run IS NULL AND managed_by IS NULL
       AND updated_at < :before
       AND NOT EXISTS (SELECT 1 FROM task_runs r
                        WHERE r.task_id = :task AND (r.status = 'queued' OR r.status = 'failed' OR r.status = 'running'))
       AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = :task AND r.finished_at >= :before)";

/// As [`REMOVE_OVER`] decides it.
const IS_OVER: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduled_tasks
                    WHERE id = :task AND schedule_type = 'once' AND status = 'completed' AND next_run IS NULL
                      AND managed_by IS NULL AND updated_at < :before)
       AND NOT EXISTS (SELECT 1 FROM task_runs r
                        WHERE r.task_id = :task AND (r.status = 'queued' OR r.status = 'failed' OR r.status = 'running'))
       AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = :task AND r.finished_at >= :before)";

/// Removes a completed task that was due once, with its runs, if all of it ended before.
fn remove_over(tx: &Transaction<'_>, task: i64, before: Timestamp) -> rusqlite::Result<bool> {
    Ok(tx.prepare_cached(REMOVE_OVER)?.execute(named_params! { ":task": task, ":before": before })? == 1)
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

/// How many runs of a task that has `runs` are more than the newest few, and how many more than any task keeps.
fn surplus(keep: &Retention, runs: usize) -> (usize, usize) {
    let more_than = |kept: u32| runs.saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX));
    (more_than(keep.least_runs), more_than(keep.most_runs))
}

/// Removes final runs of a task that has `runs`: the old ones, and the oldest of too many; never the newest few.
fn remove_runs(
    tx: &Transaction<'_>,
    task: i64,
    keep: &Retention,
    now: Timestamp,
    runs: usize,
    limit: usize,
) -> Result<usize, Fault> {
    let (spare, excess) = surplus(keep, runs);
    let spare = spare.min(limit);
    if spare == 0 {
        return Ok(0);
    }
    let before = now.minus(keep.runs);
    let mut oldest = Vec::new();
    for statement in [OLDEST_SCHEDULED, OLDEST_OTHERS] {
        let mut statement = tx.prepare_cached(statement)?;
        for row in old_runs(&mut statement, task, spare)? {
            oldest.push(row?);
        }
    }
    oldest.sort_unstable_by_key(OldRun::order);
    let mut removed = 0;
    for (place, run) in oldest.into_iter().take(spare).enumerate() {
        if run.goes(before, place < excess) {
            removed += tx.prepare_cached(REMOVE_RUN)?.execute(named_params! { ":run": run.id })?;
        }
    }
    Ok(removed)
}

/// What retention asks of a run.
struct OldRun {
    fell: Timestamp,
    id: i64,
    status: RunStatus,
    finished: Option<Timestamp>,
}

impl OldRun {
    fn order(&self) -> (Timestamp, i64) {
        (self.fell, self.id)
    }

    /// Whether it goes: it is final, and old, or one too many.
    fn goes(&self, before: Timestamp, is_too_many: bool) -> bool {
        self.status.is_final() && (is_too_many || self.finished.is_some_and(|finished| finished < before))
    }
}

/// The oldest runs of a task, of one kind, oldest first.
fn old_runs<'s>(
    statement: &'s mut Statement<'_>,
    task: i64,
    limit: usize,
) -> rusqlite::Result<impl Iterator<Item = rusqlite::Result<OldRun>> + use<'s>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    statement.query_map(named_params! { ":task": task, ":limit": limit }, |row| {
        Ok(OldRun { fell: row.get(0)?, id: row.get(1)?, status: row.get(2)?, finished: row.get(3)? })
    })
}

const LAST_TASK: &str = "SELECT ifnull(max(id), 0) FROM scheduled_tasks";

/// The last task that a round looks at.
pub(crate) fn last_task(tx: &Transaction<'_>) -> rusqlite::Result<u64> {
    tx.prepare_cached(LAST_TASK)?.query_row([], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}

const OLD_EVENTS: &str = "SELECT count(*) FROM scheduler_events WHERE at < :before";

/// As [`INSTANCES`] finds them.
const OLD_INSTANCES: &str = "
    SELECT count(*) FROM scheduler_instances
     WHERE stopped_at < :before
       AND NOT EXISTS (SELECT 1 FROM task_runs r INDEXED BY task_runs_running
                        WHERE r.status = 'running' AND r.locked_by = scheduler_instances.id)";

/// How much would go that is of no task.
pub(crate) fn beside_tasks(tx: &Transaction<'_>, keep: &Retention, now: Timestamp) -> rusqlite::Result<Pruned> {
    let before = now.minus(keep.events);
    let old = |statement: &str| -> rusqlite::Result<usize> {
        let count =
            tx.prepare(statement)?.query_row(named_params! { ":before": before }, |row| row.get::<_, i64>(0))?;
        Ok(usize::try_from(count).unwrap_or_default())
    };
    Ok(Pruned { events: old(OLD_EVENTS)?, instances: old(OLD_INSTANCES)?, ..Pruned::default() })
}

/// Of a batch of tasks after the given one: the last that it looked at, and how many tasks and runs would go, by batches of
/// `limit`. `None`: no task is left.
pub(crate) fn would_go(
    tx: &Transaction<'_>,
    keep: &Retention,
    now: Timestamp,
    after: i64,
    limit: usize,
) -> rusqlite::Result<Option<(i64, usize, usize)>> {
    let (mut end, mut over, mut gone, mut counted) = (None, 0, 0, 0);
    for (task, is_over) in tasks(tx, after)? {
        if counted >= MAX_COUNTED {
            break;
        }
        end = Some(task);
        let runs = count(tx, task, usize::MAX)?;
        counted += runs;
        let spare = removable(tx, task, keep, now, runs, limit)?;
        // What is over goes whole as soon as that fits into a batch.
        let mut first = 0;
        while runs - first > limit && first < spare {
            first += limit.min(spare - first);
        }
        let whole = is_over
            && runs - first <= limit
            && tx
                .prepare_cached(IS_OVER)?
                .query_row(named_params! { ":task": task, ":before": now.minus(keep.once) }, |row| row.get(0))?;
        if whole {
            over += 1;
            gone += first;
        } else {
            gone += spare;
        }
    }
    Ok(end.map(|end| (end, over, gone)))
}

/// How many runs of a task that has `runs` would go. Whatever removes them looks at no more than `limit` that stay.
fn removable(
    tx: &Transaction<'_>,
    task: i64,
    keep: &Retention,
    now: Timestamp,
    runs: usize,
    limit: usize,
) -> rusqlite::Result<usize> {
    let (spare, excess) = surplus(keep, runs);
    if spare == 0 {
        return Ok(0);
    }
    let before = now.minus(keep.runs);
    let (mut scheduled, mut others) = (tx.prepare_cached(OLDEST_SCHEDULED)?, tx.prepare_cached(OLDEST_OTHERS)?);
    let mut scheduled = old_runs(&mut scheduled, task, spare)?;
    let mut others = old_runs(&mut others, task, spare)?;
    let (mut one, mut other) = (scheduled.next().transpose()?, others.next().transpose()?);
    let (mut place, mut gone) = (0, 0);
    while place < spare && place - gone < limit {
        let is_scheduled = match (&one, &other) {
            (Some(one), Some(other)) => one.order() <= other.order(),
            (one, _) => one.is_some(),
        };
        let next = if is_scheduled {
            std::mem::replace(&mut one, scheduled.next().transpose()?)
        } else {
            std::mem::replace(&mut other, others.next().transpose()?)
        };
        let Some(run) = next else { break };
        gone += usize::from(run.goes(before, place < excess));
        place += 1;
    }
    Ok(gone)
}
