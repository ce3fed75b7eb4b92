//! What is not as it should be, for those who watch over a file.

use rusqlite::{Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::store::sqlite::row;

/// A task, with an instant that says since when.
pub(crate) type Since = (String, Timestamp);

const OVERDUE: &str = "
    SELECT name, coalesce(next_run, updated_at) FROM scheduled_tasks
     WHERE (status = 'active' AND planned = 1 AND next_run < :before)
        OR (planned = 0 AND ((status = 'active' AND (schedule_type <> 'manual' OR next_run IS NOT NULL)
                              AND coalesce(next_run, updated_at) < :before)
                             OR (status = 'completed' AND next_run < :before)))
     ORDER BY 2, name LIMIT :limit";

/// Tasks that have been due, or not been looked at, since before an instant.
pub(crate) fn overdue(tx: &Transaction<'_>, before: Timestamp, limit: usize) -> rusqlite::Result<Vec<Since>> {
    tx.prepare_cached(OVERDUE)?
        .query_map(named_params! { ":before": before, ":limit": bound(limit) }, |row| {
            Ok((row::shown(row, 0)?, row.get(1)?))
        })?
        .collect()
}

const FAILING: &str = "
    SELECT name, failure_count, ifnull(last_error, ''), status = 'paused' FROM scheduled_tasks
     WHERE failure_count >= :failures AND status <> 'completed'
     ORDER BY failure_count DESC, name LIMIT :limit";

/// Tasks with so many dead runs in a row: name, how many, the last error, whether the task is paused.
pub(crate) fn failing(
    tx: &Transaction<'_>,
    failures: u32,
    limit: usize,
) -> rusqlite::Result<Vec<(String, u32, String, bool)>> {
    tx.prepare_cached(FAILING)?
        .query_map(named_params! { ":failures": failures, ":limit": bound(limit) }, |row| {
            Ok((row::shown(row, 0)?, row::saturating(row, 1)?, row::shown(row, 2)?, row.get(3)?))
        })?
        .collect()
}

/// A dead run after which nothing of its task has succeeded.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) run: i64,
    pub(crate) task: String,
    /// How many there are, this one, which is the newest, included.
    pub(crate) count: u32,
    pub(crate) error: String,
}

const DEAD: &str = "
    SELECT max(r.id), t.name, count(*), ifnull(r.error, '')
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'dead' AND r.finished_at >= :since
       AND (t.failure_count < :failures OR t.status = 'completed')
       AND NOT EXISTS (SELECT 1 FROM task_runs s
                        WHERE s.task_id = r.task_id AND s.status = 'succeeded' AND s.id > r.id)
     GROUP BY r.task_id ORDER BY 1 DESC LIMIT :limit";

/// The newest dead run since an instant of each task that is not failing as a whole, unless it has succeeded since.
pub(crate) fn dead(tx: &Transaction<'_>, since: Timestamp, failures: u32, limit: usize) -> rusqlite::Result<Vec<Dead>> {
    let read = |row: &Row<'_>| {
        Ok(Dead { run: row.get(0)?, task: row::shown(row, 1)?, count: row.get(2)?, error: row::shown(row, 3)? })
    };
    tx.prepare_cached(DEAD)?
        .query_map(named_params! { ":since": since, ":failures": failures, ":limit": bound(limit) }, read)?
        .collect()
}

/// A run that has been running for too long.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) run: i64,
    pub(crate) attempt: u32,
    pub(crate) task: String,
    pub(crate) handler: String,
    pub(crate) owner: String,
    /// What was recorded of its command.
    pub(crate) process: Option<String>,
    pub(crate) started_at: Option<Timestamp>,
    /// Past its lease: its owner gives no sign of life. Otherwise it is past its time-out.
    pub(crate) past_lease: bool,
}

/// As the view `stuck_runs`, which reads SQLite's clock.
const STUCK: &str = "
    SELECT r.id, r.attempt, t.name, r.handler, r.locked_by, r.process, r.started_at, r.locked_until < :now
      FROM task_runs r INDEXED BY task_runs_running JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'running'
       AND (r.locked_until < :now
            OR (ifnull(t.timeout_ms, iif(r.handler = 'command', 3600000, 0)) > 0
                AND r.started_at + ifnull(t.timeout_ms, 3600000) < :now))
     ORDER BY r.id LIMIT :limit";

pub(crate) fn stuck(tx: &Transaction<'_>, now: Timestamp, limit: usize) -> rusqlite::Result<Vec<Stuck>> {
    let read = |row: &Row<'_>| {
        let (run, attempt, task, handler) = (row.get(0)?, row.get(1)?, row::shown(row, 2)?, row::shown(row, 3)?);
        let (owner, process, started_at, past_lease) =
            (row::shown(row, 4)?, row::shown_if_any(row, 5)?, row.get(6)?, row.get(7)?);
        Ok(Stuck { run, attempt, task, handler, owner, process, started_at, past_lease })
    };
    tx.prepare_cached(STUCK)?.query_map(named_params! { ":now": now, ":limit": bound(limit) }, read)?.collect()
}

const INVALID: &str = "
    SELECT name, ifnull(invalid_reason, 'no reason is given') FROM scheduled_tasks WHERE status = 'invalid'
     ORDER BY name LIMIT :limit";

/// Tasks that cannot be scheduled, and why.
pub(crate) fn invalid(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<(String, String)>> {
    tx.prepare_cached(INVALID)?
        .query_map(named_params! { ":limit": bound(limit) }, |row| Ok((row::shown(row, 0)?, row::shown(row, 1)?)))?
        .collect()
}

const ZONES: &str = "
    SELECT time_zone, min(name), count(*) FROM scheduled_tasks WHERE status = 'active' GROUP BY time_zone ORDER BY 1";

/// The time zones of active tasks, the first task of each, and how many tasks there are.
pub(crate) fn zones(tx: &Transaction<'_>) -> rusqlite::Result<Vec<(String, String, u32)>> {
    tx.prepare_cached(ZONES)?
        .query_map([], |row| Ok((row::shown(row, 0)?, row::shown(row, 1)?, row::saturating(row, 2)?)))?
        .collect()
}

const NOBODY_TO_TELL: &str = "
    SELECT t.name, t.on_dead,
           CASE WHEN o.id IS NULL THEN 'there is no such task'
                WHEN o.status = 'invalid' THEN 'that is invalid: ' || ifnull(o.invalid_reason, 'no reason is given')
                ELSE 'that is no command: its payload has no argv' END
      FROM scheduled_tasks t LEFT JOIN scheduled_tasks o ON o.name = t.on_dead
     WHERE t.on_dead IS NOT NULL
       AND (o.id IS NULL OR o.status = 'invalid'
            OR (o.handler = 'command'
                AND iif(json_valid(o.payload), ifnull(json_type(o.payload, '$.argv'), '') <> 'array', 1)))
       AND (t.status <> 'completed'
            OR EXISTS (SELECT 1 FROM task_runs r
                        WHERE r.task_id = t.id AND (r.status = 'queued' OR r.status = 'failed' OR r.status = 'running')))
     ORDER BY t.name LIMIT :limit";

/// Tasks whose dead runs would be reported nowhere: name, the task that they name, and what is wrong with it.
pub(crate) fn nobody_to_tell(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<(String, String, String)>> {
    tx.prepare_cached(NOBODY_TO_TELL)?
        .query_map(named_params! { ":limit": bound(limit) }, |row| {
            Ok((row::shown(row, 0)?, row::shown(row, 1)?, row::shown(row, 2)?))
        })?
        .collect()
}

/// Runs of a handler that may start, and that nobody has started.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) handler: String,
    pub(crate) count: u64,
    pub(crate) since: Timestamp,
}

const WAITING: &str = "
    SELECT handler, count(*), min(run_at) FROM task_runs INDEXED BY task_runs_claimable
     WHERE (status = 'queued' OR status = 'failed') AND blocked IS NULL AND run_at < :before
     GROUP BY handler ORDER BY handler LIMIT :limit";

/// What could have begun before an instant, by handler.
pub(crate) fn waiting(tx: &Transaction<'_>, before: Timestamp, limit: usize) -> rusqlite::Result<Vec<Waiting>> {
    let read = |row: &Row<'_>| {
        let count: i64 = row.get(1)?;
        Ok(Waiting { handler: row::shown(row, 0)?, count: count.unsigned_abs(), since: row.get(2)? })
    };
    tx.prepare_cached(WAITING)?.query_map(named_params! { ":before": before, ":limit": bound(limit) }, read)?.collect()
}

const AT_WORK: &str = "
    SELECT count(*) FROM task_runs INDEXED BY task_runs_running WHERE status = 'running' AND locked_by = :owner";

/// How many runs an owner has.
pub(crate) fn at_work(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<u32> {
    tx.prepare_cached(AT_WORK)?.query_row(named_params! { ":owner": owner }, |row| row.get(0))
}

const ANY_WORK: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduled_tasks
                    WHERE (status = 'active' AND planned = 1 AND next_run <= :now)
                       OR (planned = 0 AND (status = 'active' OR (status = 'completed' AND next_run <= :now))))
        OR EXISTS (SELECT 1 FROM task_runs
                    WHERE status = 'running'
                       OR ((status = 'queued' OR status = 'failed') AND blocked IS NULL AND run_at <= :now))";

/// Whether a scheduler would find something to do now.
pub(crate) fn any_work(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_WORK)?.query_row(named_params! { ":now": now }, |row| row.get(0))
}

const ENDED_WORKERS: &str = "
    SELECT i.id, i.pid, max(e.at), e.detail, count(*)
      FROM scheduler_events e JOIN scheduler_instances i ON e.detail GLOB i.id || ': *'
     WHERE e.kind = 'worker_ended' AND e.at >= :since AND i.stopped_at IS NULL
     GROUP BY i.id ORDER BY i.id LIMIT :limit";

/// A scheduler that has not left, of which workers ended.
#[derive(Debug)]
pub(crate) struct EndedWorkers {
    pub(crate) owner: String,
    pub(crate) pid: u32,
    /// Of the newest.
    pub(crate) at: Timestamp,
    pub(crate) error: String,
    pub(crate) count: u32,
}

/// Workers that ended since an instant, by scheduler.
pub(crate) fn ended_workers(
    tx: &Transaction<'_>,
    since: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<EndedWorkers>> {
    let read = |row: &Row<'_>| {
        let (owner, detail) = (row::shown(row, 0)?, row::shown(row, 3)?);
        let error = detail.strip_prefix(&format!("{owner}: ")).unwrap_or(&detail).to_owned();
        Ok(EndedWorkers {
            owner,
            pid: row::saturating(row, 1)?,
            at: row.get(2)?,
            error,
            count: row::saturating(row, 4)?,
        })
    };
    tx.prepare_cached(ENDED_WORKERS)?
        .query_map(named_params! { ":since": since, ":limit": bound(limit) }, read)?
        .collect()
}

/// A schedule counts from the newest of these; a retry from the end of its attempt, unless it was planned anew since.
const COUNTED_BEYOND: &str = "
    SELECT count(*), max(until)
      FROM (SELECT max(active_since, ifnull(resolved_until, 0),
                       iif(schedule_type = 'delay' AND next_run >= last_finished, last_finished, 0)) AS until
              FROM scheduled_tasks
             WHERE status = 'active' AND schedule_type <> 'once' AND schedule_type <> 'manual'
            UNION ALL
            SELECT finished_at FROM task_runs
             WHERE (status = 'queued' OR status = 'failed' OR status = 'running') AND status = 'failed'
               AND run_at >= finished_at)
     WHERE until > :after";

/// Schedules and retries that count from a time after an instant: how many, and the newest of these times.
pub(crate) fn counted_beyond(tx: &Transaction<'_>, after: Timestamp) -> rusqlite::Result<(u64, Option<Timestamp>)> {
    tx.prepare_cached(COUNTED_BEYOND)?
        .query_row(named_params! { ":after": after }, |row| Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?)))
}

fn bound(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
