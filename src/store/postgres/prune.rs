//! Retention on the server: a batch as that of `sqlite::prune`, in at most six statements.

use postgres::types::ToSql;

use crate::clock::Timestamp;
use crate::error::{Error, Result as Answer};
use crate::model::report::{Pass, Pruned};
use crate::model::run::RunStatus;
use crate::model::settings::Retention;
use crate::rules::retention::{Limits, OldRun};
use crate::store::fault::Fault;
use crate::store::postgres::reach::Reach;
use crate::store::postgres::server::{Access, Server};
use crate::store::postgres::{PostgresStore, TRIES};
use crate::store::sqlite::sql::sql;
use crate::store::turn_io::MAX_ITEMS;

/// Most tasks that one batch reads, and most of their runs that it counts.
const MAX_TASKS: i64 = 5_000;
const MAX_COUNTED: i64 = 20_000;
/// Most stopped instances that are kept.
const MAX_STOPPED: i64 = 100;

/// `$1` before when, `$2` most instances that stay, `$3` most events. Returns the numbers of rows, and the newest task.
const EVENTS_AND_INSTANCES: &str = "
    WITH instance AS (
        DELETE FROM scheduler_instances
         WHERE stopped_at IS NOT NULL
           AND (stopped_at < $1::bigint
                OR id IN (SELECT id FROM scheduler_instances WHERE stopped_at IS NOT NULL
                           ORDER BY seen_at DESC, started_at DESC, id DESC OFFSET $2::bigint))
           AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.status = 'running' AND r.locked_by = scheduler_instances.id)
        RETURNING 1),
    event AS (
        DELETE FROM scheduler_events
         WHERE id = ANY(ARRAY(SELECT id FROM (SELECT id, at FROM scheduler_events ORDER BY id LIMIT $3::bigint) AS oldest
                               WHERE at < $1::bigint))
        RETURNING 1)
    SELECT (SELECT count(*) FROM instance), (SELECT count(*) FROM event), (SELECT coalesce(max(id), 0) FROM scheduled_tasks)";

/// The next tasks of a pass that may have expired rows, and the last one that was read. `$1` after and `$2` up to which task, `$3`
/// before when, `$4` most runs that are counted of a task, `$5` runs that each task keeps.
const SCAN: &str = sql! {"
    WITH RECURSIVE scanned(id, is_expired, runs, counted, place) AS (
        SELECT $1::bigint, false, 0::bigint, 0::bigint, 0::bigint
        UNION ALL
        SELECT t.id, t.is_expired, t.runs, s.counted + t.runs, s.place + 1
          FROM scanned s
         CROSS JOIN LATERAL (
             SELECT t.id,
                    t.schedule_type = 'once' AND t.status = 'completed' AND t.next_run IS NULL AND {undeclared:t}
                    AND t.updated_at < $3::bigint AS is_expired,
                    (SELECT count(*) FROM (SELECT 1 FROM task_runs r WHERE r.task_id = t.id LIMIT $4::bigint) AS c) AS runs
               FROM scheduled_tasks t WHERE t.id > s.id AND t.id <= $2::bigint ORDER BY t.id LIMIT 1) t
         WHERE s.counted < $6::bigint AND s.place < $7::bigint
    )
    SELECT id, is_expired, runs,
           is_expired
           AND NOT EXISTS (SELECT 1 FROM task_runs r
                            WHERE r.task_id = s.id AND {unfinished:r})
           AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = s.id AND r.finished_at >= $3::bigint),
           counted >= $6::bigint OR place >= $7::bigint, is_expired OR runs > $5::bigint
      FROM scanned s
     WHERE place > 0 AND (is_expired OR runs > $5::bigint OR place = (SELECT max(place) FROM scanned))
     ORDER BY place"};

/// The oldest runs of tasks, of both kinds. `$1` the tasks, `$2` how many of each.
const OLDEST: &str = sql! {"
    SELECT t.id, r.scheduled_for, r.id, r.status, r.finished_at
      FROM unnest($1::bigint[], $2::bigint[]) AS t(id, most)
     CROSS JOIN LATERAL (
         (SELECT scheduled_for, id, status, finished_at FROM task_runs o
           WHERE task_id = t.id AND {unscheduled_case} = 0
             AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = t.id AND r.retry_of = o.id)
           ORDER BY scheduled_for LIMIT t.most)
         UNION ALL
         (SELECT scheduled_for, id, status, finished_at FROM task_runs o
           WHERE task_id = t.id AND {unscheduled_case} > 0
             AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = t.id AND r.retry_of = o.id)
           ORDER BY {unscheduled_case} LIMIT t.most)) r"};

/// Deletes runs, except those that another program has reopened meanwhile. `$1` the runs.
const REMOVE_RUNS: &str = "
    WITH old AS MATERIALIZED (
             SELECT id FROM task_runs
              WHERE id = ANY($1::bigint[]) AND status <> 'queued' AND status <> 'failed' AND status <> 'running'
                FOR UPDATE),
         attempt AS (DELETE FROM task_attempts WHERE run_id = ANY(ARRAY(SELECT id FROM old))),
         effect AS (DELETE FROM task_effects WHERE run_id = ANY(ARRAY(SELECT id FROM old)))
    DELETE FROM task_runs WHERE id = ANY(ARRAY(SELECT id FROM old))";

/// Locks the tasks that are still expired, as [`SCAN`] says: another program may change one meanwhile. `$1` the tasks, `$2` before when.
const LOCK_TASKS: &str = sql! {"
    SELECT t.id FROM scheduled_tasks t
     WHERE t.id = ANY($1::bigint[]) AND t.schedule_type = 'once' AND t.status = 'completed' AND t.next_run IS NULL
       AND {undeclared:t} AND t.updated_at < $2::bigint
     ORDER BY t.id FOR UPDATE"};

/// Deletes locked tasks, whose runs have all ended.
const REMOVE_TASKS: &str = sql! {"
    WITH old AS MATERIALIZED (
             SELECT t.id FROM scheduled_tasks t
              WHERE t.id = ANY($1::bigint[])
                AND NOT EXISTS (SELECT 1 FROM task_runs r
                                 WHERE r.task_id = t.id
                                   AND {unfinished:r})
                AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.task_id = t.id AND r.finished_at >= $2::bigint)),
         run AS MATERIALIZED (SELECT id FROM task_runs WHERE task_id = ANY(ARRAY(SELECT id FROM old))),
         attempt AS (DELETE FROM task_attempts WHERE run_id = ANY(ARRAY(SELECT id FROM run))),
         effect AS (DELETE FROM task_effects WHERE run_id = ANY(ARRAY(SELECT id FROM run))),
         event AS (DELETE FROM scheduler_events WHERE task_id = ANY(ARRAY(SELECT id FROM old))),
         gone AS (DELETE FROM task_runs WHERE task_id = ANY(ARRAY(SELECT id FROM old))),
         start AS (DELETE FROM rate_limit_starts WHERE subject = ANY(ARRAY(SELECT 'task:' || id FROM old))),
         opening AS (DELETE FROM rate_limit_openings WHERE subject = ANY(ARRAY(SELECT 'task:' || id FROM old)))
    DELETE FROM scheduled_tasks WHERE id = ANY(ARRAY(SELECT id FROM old))"};

const NEWEST_TASK: &str = "SELECT coalesce(max(id), 0) FROM scheduled_tasks";

/// `$1` before when, `$2` most stopped instances that stay.
const OLD_EVENTS_AND_INSTANCES: &str = "
    SELECT (SELECT count(*) FROM scheduler_events WHERE at < $1::bigint),
           (SELECT count(*) FROM scheduler_instances i
             WHERE i.stopped_at IS NOT NULL
               AND (i.stopped_at < $1::bigint
                    OR i.id IN (SELECT id FROM scheduler_instances WHERE stopped_at IS NOT NULL
                                 ORDER BY seen_at DESC, started_at DESC, id DESC OFFSET $2::bigint))
               AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.status = 'running' AND r.locked_by = i.id))";

/// How many of the oldest runs of tasks expire, as `Limits::removes` decides, until a batch has read as many that it keeps as its
/// limit. In the order in which `sqlite::prune` merges them: scheduled ones by age, the others by their ids. `$1` the tasks, in
/// order, `$2` how many of each, `$3` the runs of each, `$4` before when, `$5` most runs, `$6` the limit.
const REMOVABLE: &str = sql! {"
    SELECT t.id,
           (SELECT count(*)
              FROM (SELECT b.is_expired,
                           count(*) FILTER (WHERE NOT b.is_expired)
                           OVER (ORDER BY b.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS kept
                      FROM (SELECT a.place,
                                   a.status NOT IN ('queued', 'failed', 'running')
                                   AND (a.place <= t.runs - $5::bigint OR coalesce(a.finished_at < $4::bigint, false)) AS is_expired
                              FROM (SELECT o.status, o.finished_at, row_number() OVER (ORDER BY o.age, o.id) AS place
                                      FROM (SELECT o.id, o.status, o.finished_at,
                                                   CASE WHEN {unscheduled_case:o} = 0 THEN ARRAY[o.scheduled_for, o.id]
                                                        ELSE max(ARRAY[o.scheduled_for, o.id])
                                                             OVER (PARTITION BY {unscheduled_case:o} = 0 ORDER BY o.id) END AS age
                                              FROM task_runs o
                                             WHERE o.task_id = t.id
                                               AND NOT EXISTS (SELECT 1 FROM task_runs r
                                                                WHERE r.task_id = t.id AND r.retry_of = o.id)) o) a
                             WHERE a.place <= t.most) b) c
             WHERE c.is_expired AND c.kept < $6::bigint)
      FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS t(id, most, runs) ORDER BY t.id"};

impl PostgresStore {
    /// Deletes a batch of expired history, adds it to `pruned`, and advances `pass`. Returns the id of the newest task.
    pub(super) fn prune_on_server(
        &mut self,
        keep: &Retention,
        pass: &mut Pass,
        pruned: &mut Pruned,
        given: Timestamp,
    ) -> Answer<i64> {
        let mut tries = 1;
        loop {
            let now = self.begin(Access::Write, given, Reach::Everything)?;
            let (mut next, mut counted) = (*pass, *pruned);
            let mut bench = self.bench.lock();
            let server = &mut bench.rows.server;
            let deleted = batch(server, &Limits::new(keep, now), &mut next, MAX_ITEMS, &mut counted)
                .and_then(|_| newest_task(server))
                .and_then(|newest| server.commit().map(|()| newest));
            drop(bench);
            let collided = self.end();
            match deleted {
                Ok(newest) => {
                    (*pass, *pruned) = (next, counted);
                    return Ok(newest);
                }
                Err(_) if collided && tries < TRIES => tries += 1,
                Err(fault) => return Err(self.memory.error(fault, "prune")),
            }
        }
    }

    /// As [`PostgresStore::prune_on_server`], but only counts and deletes nothing.
    pub(super) fn count_expired(
        &mut self,
        keep: &Retention,
        pass: &mut Pass,
        pruned: &mut Pruned,
        given: Timestamp,
    ) -> Answer<i64> {
        let now = self.begin(Access::Read, given, Reach::Everything)?;
        let counted = count(&mut self.bench.lock().rows.server, &Limits::new(keep, now), pass, pruned);
        self.end();
        counted.map_err(|fault| self.memory.error(fault, "count expired history"))
    }
}

fn newest_task(server: &mut Server) -> Result<i64, Fault> {
    Ok(one(server, NEWEST_TASK, &[])?.try_get(0)?)
}

/// Counts what batches would delete, for some tasks after those of the pass. As in `sqlite::prune`.
fn count(server: &mut Server, limits: &Limits, pass: &mut Pass, pruned: &mut Pruned) -> Result<i64, Fault> {
    if pass.after == 0 {
        let row = one(server, OLD_EVENTS_AND_INSTANCES, &[&limits.events_before.as_millis(), &MAX_STOPPED])?;
        pruned.events += size(row.try_get(0)?);
        pruned.instances += size(row.try_get(1)?);
    }
    let (found, end) = scan(server, limits, &Pass { last: i64::MAX, ..*pass }, usize::MAX)?;
    let spare = |found: &Found| number(limits.spare(found.runs));
    let tasks: Vec<i64> = found.iter().map(|found| found.task).collect();
    let (most, runs): (Vec<i64>, Vec<i64>) = found.iter().map(|found| (spare(found), number(found.runs))).unzip();
    let (before, most_runs) = (limits.runs_before.as_millis(), number(limits.most));
    let rows = server.query(REMOVABLE, &[&tasks, &most, &runs, &before, &most_runs, &number(MAX_ITEMS)])?;
    for (Found { runs, is_expired, has_ended, .. }, row) in found.into_iter().zip(rows) {
        let spare = size(row.try_get(1)?);
        // An expired task is deleted with its runs as soon as they fit into a batch.
        let mut first = 0;
        while runs - first > MAX_ITEMS && first < spare {
            first += MAX_ITEMS.min(spare - first);
        }
        if is_expired && runs - first <= MAX_ITEMS && has_ended {
            pruned.tasks += 1;
            pruned.runs += first;
        } else {
            pruned.runs += spare;
        }
    }
    pass.after = end.unwrap_or_default();
    newest_task(server)
}

/// A task that may have expired rows.
struct Found {
    task: i64,
    is_expired: bool,
    runs: usize,
    /// Whether it is expired, and all its runs ended before the retention time.
    has_ended: bool,
}

/// Deletes a batch of about `limit` expired rows within the open transaction, adds it to `pruned`, and advances `pass`. Returns
/// whether the batch ended because it reached its limit.
pub(super) fn batch(
    server: &mut Server,
    limits: &Limits,
    pass: &mut Pass,
    limit: usize,
    pruned: &mut Pruned,
) -> Result<bool, Fault> {
    let begins = pass.after == 0;
    let most = if begins { limit } else { limit / 2 };
    let before = limits.events_before.as_millis();
    let row = one(server, EVENTS_AND_INSTANCES, &[&before, &MAX_STOPPED, &number(most)])?;
    let (instances, events, last): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    pruned.instances += size(instances);
    pruned.events += size(events);
    let (mut left, more) = (limit - size(events).min(limit), size(events) == most);
    let mut next = *pass;
    if begins {
        next.last = last;
    }
    let (found, end) = scan(server, limits, &next, limit)?;
    let mut oldest = oldest(server, limits, &found, limit)?;
    let (mut tasks, mut runs, mut ended) = (Vec::new(), Vec::new(), true);
    for Found { task, is_expired, runs: counted, has_ended } in found {
        if left == 0 || (is_expired && counted > left && left < limit) {
            ended = false;
            break;
        }
        if has_ended && counted <= left {
            tasks.push(task);
            left = left.saturating_sub(1 + counted);
        } else {
            let spare = limits.spare(counted).min(left);
            let old =
                oldest.iter_mut().find(|(of, _)| *of == task).map(|(_, old)| std::mem::take(old)).unwrap_or_default();
            let removed =
                old.into_iter().take(spare).enumerate().filter(|(rank, run)| limits.removes(run, *rank, counted));
            let before = runs.len();
            runs.extend(removed.map(|(_, run)| run.id));
            left -= runs.len() - before;
            if left == 0 && runs.len() > before {
                // This task may have more expired runs.
                ended = false;
                break;
            }
        }
        next.after = task;
    }
    if !runs.is_empty() {
        pruned.runs += size(i64::try_from(server.execute(REMOVE_RUNS, &[&runs])?).unwrap_or_default());
    }
    if !tasks.is_empty() {
        let expired = limits.once_before.as_millis();
        let locked = server.query(LOCK_TASKS, &[&tasks, &expired])?;
        let tasks = locked.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        pruned.tasks += size(i64::try_from(server.execute(REMOVE_TASKS, &[&tasks, &expired])?).unwrap_or_default());
    }
    if !ended {
        *pass = next;
        return Ok(true);
    }
    *pass = end.map(|after| Pass { after, ..next }).unwrap_or_default();
    Ok(more || left == 0)
}

/// Returns the tasks that may have expired rows, and the last task that was read, if more are left.
fn scan(server: &mut Server, limits: &Limits, pass: &Pass, limit: usize) -> Result<(Vec<Found>, Option<i64>), Fault> {
    let (before, most) = (limits.once_before.as_millis(), number(limits.most.saturating_add(limit)));
    let least = number(limits.least);
    let rows = server.query(SCAN, &[&pass.after, &pass.last, &before, &most, &least, &MAX_COUNTED, &MAX_TASKS])?;
    let (mut found, mut end) = (Vec::new(), None);
    for row in rows {
        let task = row.try_get(0)?;
        if row.try_get(4)? {
            end = Some(task);
        }
        if row.try_get(5)? {
            let (is_expired, has_ended) = (row.try_get(1)?, row.try_get(3)?);
            found.push(Found { task, is_expired, runs: size(row.try_get(2)?), has_ended });
        }
    }
    Ok((found, end))
}

/// Returns the oldest runs of each task that may be deleted, oldest first.
fn oldest(
    server: &mut Server,
    limits: &Limits,
    found: &[Found],
    limit: usize,
) -> Result<Vec<(i64, Vec<OldRun>)>, Fault> {
    let spare = found.iter().map(|found| (found.task, number(limits.spare(found.runs).min(limit))));
    let (tasks, most): (Vec<i64>, Vec<i64>) = spare.filter(|(_, most)| *most > 0).unzip();
    let mut oldest: Vec<(i64, Vec<OldRun>)> = tasks.iter().map(|task| (*task, Vec::new())).collect();
    if tasks.is_empty() {
        return Ok(oldest);
    }
    for row in server.query(OLDEST, &[&tasks, &most])? {
        let task: i64 = row.try_get(0)?;
        let status: &str = row.try_get(3)?;
        let status: RunStatus = status.parse().map_err(|error| Error::store("read a status", format!("{error:?}")))?;
        let finished: Option<i64> = row.try_get(4)?;
        let run = OldRun {
            scheduled_for: Timestamp::from_millis(row.try_get(1)?),
            id: row.try_get(2)?,
            status,
            finished: finished.map(Timestamp::from_millis),
        };
        if let Ok(at) = oldest.binary_search_by_key(&task, |(of, _)| *of) {
            oldest[at].1.push(run);
        }
    }
    oldest.iter_mut().for_each(|(_, runs)| runs.sort_unstable_by_key(OldRun::age));
    Ok(oldest)
}

fn one(server: &mut Server, statement: &str, params: &[&(dyn ToSql + Sync)]) -> Result<postgres::Row, Fault> {
    let row = server.query(statement, params)?.into_iter().next();
    Ok(row.ok_or_else(|| Error::store("delete expired history", "the server returned no row"))?)
}

fn number(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn size(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}
