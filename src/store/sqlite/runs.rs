//! The transitions of a run's status, one guarded statement each. The row count is checked: 1 is done, 0 is superseded, 2 is a bug.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use rusqlite::types::FromSql;
use rusqlite::{CachedStatement, OptionalExtension, Row, Transaction, named_params, params};

use crate::clock::{Timestamp, millis};
use crate::host::orphan;
use crate::model::finished::Finished;
use crate::model::retry::RetryPolicy;
use crate::model::run::{Claim, FirstRun, Origin, RunStatus};
use crate::rules::placement::Reason;
use crate::schedule::ScheduleKind;
use crate::store::sqlite::limits::Place;
use crate::store::sqlite::row::{self, Replaced};
use crate::store::sqlite::sql::sql;

/// Longest error text that is stored, in bytes.
const MAX_ERROR_BYTES: usize = 16 * 1024;

/// The result of a guarded statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    Done,
    /// No row matched: another owner has changed the run before. This happens to correct code.
    Superseded,
}

/// Returns the result of a guarded statement that changed this number of rows.
pub(crate) fn judged(rows: usize) -> Wrote {
    debug_assert!(rows <= 1, "a guarded statement changed {rows} rows");
    if rows == 0 { Wrote::Superseded } else { Wrote::Done }
}

/// Returns an error text, cut to the length that is stored.
pub(crate) fn stored_error(error: &str) -> String {
    crate::error::excerpt(error, MAX_ERROR_BYTES)
}

/// (due) -> queued. The run is blocked unless nothing can block it; the caller then derives its reason.
const OPEN: &str = "
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, expires_at, blocked, priority,
                           concurrency_key, payload, retry_of, request_key)
    VALUES (:task, :handler, :scheduled_for, :origin, 'queued', :run_at, :expires_at, :blocked, :priority, :key, :payload,
            :retry_of, :request_key)
    ON CONFLICT DO NOTHING";

/// A run to open.
#[derive(Clone, Debug)]
pub(crate) struct Opening<'a> {
    pub(crate) task: i64,
    pub(crate) handler: &'a str,
    pub(crate) scheduled_for: Timestamp,
    pub(crate) origin: Origin,
    pub(crate) run_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) priority: u8,
    pub(crate) key: Option<&'a str>,
    pub(crate) payload: Option<&'a str>,
    pub(crate) retry_of: Option<i64>,
    pub(crate) request_key: Option<&'a str>,
}

/// Opens a waiting run. Returns `None` if its occurrence already has a row, which is no error.
pub(crate) fn open(tx: &Transaction<'_>, run: &Opening<'_>, blocked: Option<Reason>) -> rusqlite::Result<Option<i64>> {
    let rows = tx.prepare_cached(OPEN)?.execute(named_params! {
        ":task": run.task, ":handler": run.handler, ":scheduled_for": run.scheduled_for, ":origin": run.origin,
        ":run_at": run.run_at, ":expires_at": run.expires_at, ":blocked": blocked, ":priority": run.priority,
        ":key": run.key, ":payload": run.payload, ":retry_of": run.retry_of, ":request_key": run.request_key,
    })?;
    Ok((rows == 1).then(|| tx.last_insert_rowid()))
}

/// (due) -> running: opens and claims a run in one statement, when no other run waits and a worker is free.
const START: &str = "
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, expires_at, priority,
                           concurrency_key, attempt, locked_by, locked_until, started_at, slot)
    VALUES (:task, :handler, :scheduled_for, :origin, 'running', :run_at, :expires_at, :priority,
            :key, 1, :owner, :until, :started, :slot)
    ON CONFLICT DO NOTHING";

/// Opens a run and claims its first attempt.
///
/// `slot`: of its key. `started`: now if an idle worker starts it immediately; `None` if the run is read ahead.
pub(crate) fn start(
    tx: &Transaction<'_>,
    run: &Opening<'_>,
    claimer: &Claimer<'_>,
    slot: i64,
    started: Option<Timestamp>,
) -> rusqlite::Result<Option<i64>> {
    // Bound by position, for every run: to look up the names takes a tenth of the time.
    let rows = tx.prepare_cached(START)?.execute(params![
        run.task,
        run.handler,
        run.scheduled_for,
        run.origin,
        run.run_at,
        run.expires_at,
        run.priority,
        run.key,
        claimer.owner,
        claimer.until,
        started,
        slot,
    ])?;
    Ok((rows == 1).then(|| tx.last_insert_rowid()))
}

/// queued, failed -> running, for a run that is not blocked. Checks the key again: another program may have changed
/// `blocked`.
const CLAIM: &str = sql! {"
    UPDATE task_runs
       SET status = 'running', attempt = attempt + 1, locked_by = :owner, locked_until = :until, started_at = :started,
           finished_at = NULL, error = NULL, exit_code = NULL, output = NULL, progress = NULL,
           duration_ms = NULL, slot = :slot
     WHERE id = :run AND {claimable} AND cancel_requested = 0
       AND (expires_at IS NULL OR expires_at > :now OR attempt > forgiven OR status = 'failed')
       AND NOT EXISTS (SELECT 1 FROM task_runs k
                        WHERE k.status = 'running' AND k.concurrency_key = task_runs.concurrency_key
                          AND (:alone OR k.slot = :slot))"};

/// Claims the next attempt of a waiting run, in its `place` behind its key.
///
/// `started`: as for [`start`].
pub(crate) fn claim(
    tx: &Transaction<'_>,
    run: i64,
    claimer: &Claimer<'_>,
    (place, started): (Place, Option<Timestamp>),
    now: Timestamp,
) -> rusqlite::Result<Wrote> {
    let (alone, slot) = match place {
        Place::Alone => (true, 0),
        Place::Slot(slot) => (false, slot),
        Place::Full => return Ok(Wrote::Superseded),
    };
    tx.prepare_cached(CLAIM)?
        .execute(named_params! {
            ":run": run, ":owner": claimer.owner, ":until": claimer.until, ":started": started, ":now": now,
            ":alone": alone, ":slot": slot,
        })
        .map(judged)
}

/// The owner that claims.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claimer<'a> {
    pub(crate) owner: &'a str,
    pub(crate) handlers: &'a BTreeSet<String>,
    /// The end of the owner's lease.
    pub(crate) until: Timestamp,
}

/// Identifies a running attempt (fencing): its run, owner and number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence<'a> {
    pub(crate) run: i64,
    pub(crate) owner: &'a str,
    pub(crate) attempt: u32,
}

/// running -> succeeded, for the fenced attempt only.
const SUCCEED: &str = sql! {"
    UPDATE task_runs
       SET status = 'succeeded', started_at = :started, finished_at = :finished, duration_ms = :duration, result = :result,
           locked_by = NULL, locked_until = NULL, process = NULL
     WHERE {fenced}"};

/// The prepared statement that records successes.
pub(crate) struct Success<'a>(CachedStatement<'a>);

impl<'a> Success<'a> {
    pub(crate) fn new(tx: &'a Transaction<'_>) -> rusqlite::Result<Self> {
        tx.prepare_cached(SUCCEED).map(Success)
    }

    pub(crate) fn record(
        &mut self,
        fence: &Fence<'_>,
        finished: &Finished,
        result: Option<&str>,
    ) -> rusqlite::Result<Wrote> {
        let (started, ended, duration) = (finished.started_at, finished.finished_at, finished.duration.map(millis));
        // Bound by position, for every run.
        self.0.execute(params![started, ended, duration, result, fence.run, fence.owner, fence.attempt]).map(judged)
    }
}

/// running -> succeeded, for the first attempts of consecutive runs.
// NOT INDEXED: after an ANALYZE of an empty file SQLite would scan all unfinished runs. likely: after one of few rows it would read
// all runs from the first on.
const SUCCEED_SPAN: &str = "
    UPDATE task_runs NOT INDEXED
       SET status = 'succeeded', started_at = :started, finished_at = :finished, duration_ms = :duration,
           locked_by = NULL, locked_until = NULL, process = NULL
     WHERE likely(id >= :first) AND id <= :last AND locked_by = :owner AND attempt = 1 AND status = 'running'";

/// Records that the first attempts of these runs succeeded, with the times of `finished`. Returns how many claims held.
pub(crate) fn succeed_span(
    tx: &Transaction<'_>,
    owner: &str,
    runs: RangeInclusive<i64>,
    finished: &Finished,
) -> rusqlite::Result<usize> {
    tx.prepare_cached(SUCCEED_SPAN)?.execute(named_params! {
        ":owner": owner, ":first": runs.start(), ":last": runs.end(), ":started": finished.started_at,
        ":finished": finished.finished_at, ":duration": finished.duration.map(millis),
    })
}

/// running -> failed: it is retried, with the current handler of the task. Blocked until the caller derives its reason. A forgiven
/// attempt has begun, so the run expires no more: the count of its attempts does not show that.
const FAIL: &str = sql! {"
    UPDATE task_runs
       SET status = 'failed', handler = (SELECT t.handler FROM scheduled_tasks t WHERE t.id = task_id),
           started_at = ifnull(:started, started_at), finished_at = :finished, duration_ms = :duration,
           error = :error, run_at = :run_at, blocked = 'key', forgiven = forgiven + :forgiven,
           interrupted = :interrupted, expires_at = iif(:forgiven, NULL, expires_at),
           locked_by = NULL, locked_until = NULL, process = NULL
     WHERE {fenced}"};

/// The end of an attempt that did not succeed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    /// `None` if its start is unknown.
    pub(crate) started: Option<Timestamp>,
    pub(crate) finished: Timestamp,
    /// `None` if it cannot be known.
    pub(crate) duration: Option<Duration>,
    pub(crate) error: Option<&'a str>,
}

impl End<'_> {
    /// Returns the end of an attempt of which only the fact that it ended is known.
    pub(crate) fn unknown(now: Timestamp) -> Self {
        End { started: None, finished: now, duration: None, error: None }
    }
}

/// The next attempt of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    pub(crate) run_at: Timestamp,
    /// Whether the attempt that has ended does not count.
    pub(crate) is_forgiven: bool,
    /// See [`Tally`](crate::model::retry::Tally).
    pub(crate) interrupted: u32,
}

pub(crate) fn fail(tx: &Transaction<'_>, fence: &Fence<'_>, end: &End<'_>, again: Again) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(FAIL)?
        .execute(named_params! {
            ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt,
            ":started": end.started, ":finished": end.finished, ":duration": end.duration.map(millis), ":error": end.error, ":run_at": again.run_at,
            ":forgiven": again.is_forgiven, ":interrupted": again.interrupted,
        })
        .map(judged)
}

/// running -> dead: all attempts are used, or the handler refused a retry (`Retry::GiveUp`).
const SET_DEAD: &str = sql! {"
    UPDATE task_runs
       SET status = 'dead', started_at = ifnull(:started, started_at), finished_at = :finished, duration_ms = :duration,
           error = :error, interrupted = :interrupted,
           locked_by = NULL, locked_until = NULL, process = NULL
     WHERE {fenced}"};

pub(crate) fn set_dead(
    tx: &Transaction<'_>,
    fence: &Fence<'_>,
    end: &End<'_>,
    interrupted: u32,
) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(SET_DEAD)?
        .execute(named_params! {
            ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt,
            ":started": end.started, ":finished": end.finished, ":duration": end.duration.map(millis), ":error": end.error,
            ":interrupted": interrupted,
        })
        .map(judged)
}

/// running -> cancelled, because a stop was requested or the handler cancels its run; running -> skipped, and the attempt is forgiven,
/// because there was nothing to do.
const END_WITHOUT_FAILURE: &str = sql! {"
    UPDATE task_runs
       SET status = :status, forgiven = forgiven + (:status = 'skipped'), started_at = ifnull(:started, started_at),
           finished_at = :finished, duration_ms = :duration, error = :error,
           locked_by = NULL, locked_until = NULL, process = NULL
     WHERE {fenced} AND cancel_requested >= :requested"};

/// Why a running run ends that did not succeed and did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// A stop was requested before, which cancels it: otherwise nothing is written.
    Request,
    /// Its handler has ended it with this status.
    Handler(RunStatus),
}

pub(crate) fn end_without_failure(
    tx: &Transaction<'_>,
    fence: &Fence<'_>,
    end: &End<'_>,
    by: EndedBy,
) -> rusqlite::Result<Wrote> {
    let (status, requested) = match by {
        EndedBy::Request => (RunStatus::Cancelled, true),
        EndedBy::Handler(status) => (status, false),
    };
    tx.prepare_cached(END_WITHOUT_FAILURE)?
        .execute(named_params! {
            ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt,
            ":started": end.started, ":finished": end.finished, ":duration": end.duration.map(millis), ":error": end.error,
            ":status": status, ":requested": requested,
        })
        .map(judged)
}

/// running -> queued: returned before it started. The attempt does not count. The run was due when it was claimed, so it stays
/// due even if the clock was set back since. Otherwise as [`FAIL`].
const GIVE_BACK: &str = sql! {"
    UPDATE task_runs
       SET status = 'queued', handler = (SELECT t.handler FROM scheduled_tasks t WHERE t.id = task_id), forgiven = forgiven + 1, blocked = 'key', started_at = NULL, process = NULL, locked_by = NULL,
           locked_until = NULL, run_at = min(run_at, :now)
     WHERE {fenced}"};

pub(crate) fn give_back(tx: &Transaction<'_>, fence: &Fence<'_>, now: Timestamp) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(GIVE_BACK)?
        .execute(named_params! { ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt, ":now": now })
        .map(judged)
}

/// Puts a run that was given back behind those that wait already: what cannot be started is not tried before all others again.
const PUT_LAST: &str = "UPDATE task_runs SET run_at = max(run_at, :now) WHERE id = :run AND status = 'queued'";

pub(crate) fn put_last(tx: &Transaction<'_>, run: i64, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(PUT_LAST)?.execute(named_params! { ":run": run, ":now": now }).map(drop)
}

/// queued, failed -> cancelled.
const CANCEL_WAITING: &str = sql! {"
    UPDATE task_runs SET status = 'cancelled', blocked = NULL, finished_at = :now, error = :reason
     WHERE id = :run AND {waiting}"};

pub(crate) fn cancel_waiting(tx: &Transaction<'_>, run: i64, reason: &str, now: Timestamp) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(CANCEL_WAITING)?
        .execute(named_params! { ":run": run, ":reason": reason, ":now": now })
        .map(judged)
}

const HAS_BEGUN: &str = "
    SELECT attempt > forgiven
           OR EXISTS (SELECT 1 FROM task_attempts WHERE run_id = :run AND outcome <> 'released')
      FROM task_runs WHERE id = :run";

/// Returns whether an attempt of a waiting run has begun. An attempt that a shutdown interrupted, or that its handler snoozed, does
/// not count against the limit, but has begun.
pub(crate) fn has_begun(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<bool> {
    tx.prepare_cached(HAS_BEGUN)?.query_row(named_params! { ":run": run }, |row| row.get(0))
}

/// The newest attempted run of the task waited for a retry, which is now cancelled.
const LAST_CANCELLED: &str = "
    UPDATE scheduled_tasks SET last_status = 'cancelled'
     WHERE id = :task AND last_status = 'failed'
       AND last_run = (SELECT started_at FROM task_runs WHERE id = :run)";

/// Records in the task that its newest run was cancelled.
pub(crate) fn last_cancelled(tx: &Transaction<'_>, task: i64, run: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(LAST_CANCELLED)?.execute(named_params! { ":task": task, ":run": run })?;
    Ok(())
}

/// Why a run is missed that has expired.
pub(crate) const EXPIRED: &str = "expired before an attempt began";

/// queued -> missed: it expired before an attempt began.
const EXPIRE: &str = "
    UPDATE task_runs
       SET status = 'missed', blocked = NULL, finished_at = :now, error = :error
     WHERE id = :run AND status = 'queued' AND attempt = forgiven AND expires_at <= :now";

pub(crate) fn expire(tx: &Transaction<'_>, run: i64, now: Timestamp) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(EXPIRE)?.execute(named_params! { ":run": run, ":now": now, ":error": EXPIRED }).map(judged)
}

/// Requests that a running run stop.
const ASK_TO_STOP: &str = "UPDATE task_runs SET cancel_requested = 1 WHERE id = :run AND status = 'running'";

pub(crate) fn ask_to_stop(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(ASK_TO_STOP)?.execute(named_params! { ":run": run }).map(judged)
}

/// For a running run of a dead owner: a user has declared that its command is gone. The scheduler that recovers it cancels it.
const DECLARE_GONE: &str = sql! {"
    UPDATE task_runs SET cancel_requested = 1, process = :process
     WHERE {fenced}"};

pub(crate) fn declare_gone(tx: &Transaction<'_>, fence: &Fence<'_>) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(DECLARE_GONE)?
        .execute(named_params! {
            ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt, ":process": orphan::DECLARED_GONE,
        })
        .map(judged)
}

const PROCESS: &str = "SELECT task_id, process FROM task_runs WHERE id = :run";

/// Returns the task of a run, and the recorded process of its command.
pub(crate) fn process(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<(i64, Option<String>)> {
    let read = |row: &Row<'_>| Ok((row.get(0)?, row::shown_if_any(row, 1)?));
    tx.prepare_cached(PROCESS)?.query_row(named_params! { ":run": run }, read)
}

const IS_ASKED_TO_STOP: &str = "SELECT cancel_requested FROM task_runs WHERE id = :run";

pub(crate) fn is_asked_to_stop(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<bool> {
    tx.prepare_cached(IS_ASKED_TO_STOP)?.query_row(named_params! { ":run": run }, |row| row.get(0))
}

const CLAIMED: &str = "
    SELECT r.task_id, r.attempt, r.forgiven, r.handler, r.scheduled_for, r.origin, r.concurrency_key, t.name,
           ifnull(r.payload, t.payload), t.schedule_type, t.max_attempts, t.backoff_ms,
           t.backoff_cap_ms, t.timeout_ms, r.retry_of, iif(r.payload IS NULL, NULL, t.payload),
           r.interrupted,
           t.marked IS NOT NULL OR t.status = 'paused' OR t.status = 'invalid' OR r.handler <> t.handler, t.max_starts
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.id = :run";

/// The claim of a run that is about to be claimed.
pub(crate) struct Claimable {
    pub(crate) claim: Claim,
    /// Whether its row may not be written yet as its task is now.
    pub(crate) may_be_old: bool,
    /// `max_starts` of its task.
    pub(crate) max_starts: Option<String>,
}

/// Returns the claim of a run that is about to be claimed. The policies are read again at each claim, so that a change of the task applies
/// to its retries.
pub(crate) fn claimed(tx: &Transaction<'_>, run: i64, now: Timestamp) -> rusqlite::Result<Option<Claimable>> {
    read_claim::<String>(tx, run, now)
}

/// As [`claimed`], for a run that is recovered or ends without an attempt. Text that is not UTF-8 is replaced: no handler
/// receives it, and such a run must not hold its key forever.
pub(crate) fn ending(tx: &Transaction<'_>, run: i64, now: Timestamp) -> rusqlite::Result<Option<Claim>> {
    Ok(read_claim::<Replaced>(tx, run, now)?.map(|claimable| claimable.claim))
}

fn read_claim<T: FromSql + Into<String>>(
    tx: &Transaction<'_>,
    run: i64,
    now: Timestamp,
) -> rusqlite::Result<Option<Claimable>> {
    let mut statement = tx.prepare_cached(CLAIMED)?;
    let mut retry_of = None;
    let read = |row: &Row<'_>| {
        retry_of = row.get(14)?;
        let (claim, may_be_old) = (as_claim::<T>(row, run, now)?, row.get(17)?);
        Ok(Claimable { claim, may_be_old, max_starts: row::shown_if_any(row, 18)? })
    };
    let mut found = statement.query_row(named_params! { ":run": run }, read).optional()?;
    if let (Some(found), Some(retried)) = (&mut found, retry_of) {
        found.claim.first = first_of(tx, run, retried)?;
    }
    Ok(found)
}

const RETRIED: &str = "SELECT id, origin, scheduled_for, retry_of FROM task_runs WHERE id = :run";

/// Returns the first run of a chain of retries; `run` retries `retried`.
fn first_of(tx: &Transaction<'_>, run: i64, retried: i64) -> rusqlite::Result<Option<FirstRun>> {
    let mut statement = tx.prepare_cached(RETRIED)?;
    let (mut first, mut newer, mut next) = (None, run, Some(retried));
    // Ids decrease along a valid chain. This ends the loop if another program wrote a cycle.
    while let Some(id) = next.filter(|id| *id < newer) {
        let read = |row: &Row<'_>| {
            Ok((FirstRun { id: row.get(0)?, origin: row.get(1)?, scheduled_for: row.get(2)? }, row.get(3)?))
        };
        let Some((found, before)) = statement.query_row(named_params! { ":run": id }, read).optional()? else { break };
        (first, newer, next) = (Some(found), id, before);
    }
    Ok(first)
}

/// Reads columns by position, because this is called for every run that has waited.
fn as_claim<T: FromSql + Into<String>>(row: &Row<'_>, run_id: i64, now: Timestamp) -> rusqlite::Result<Claim> {
    let text = |column| row.get::<_, T>(column).map(Into::into);
    let text_if_any = |column| row.get::<_, Option<T>>(column).map(|text| text.map(Into::into));
    Ok(Claim {
        run_id,
        attempt: row.get(1)?,
        task: text(7)?,
        handler: text(3)?,
        payload: text(8)?,
        task_payload: text_if_any(15)?,
        scheduled_for: row.get(4)?,
        origin: row.get(5)?,
        claimed_at: now,
        timeout: row::millis_at(row, 13)?,
        task_id: row.get(0)?,
        forgiven: row.get(2)?,
        interrupted: row.get(16)?,
        retry: RetryPolicy {
            max_attempts: row.get(10)?,
            backoff: row::millis_at(row, 11)?.unwrap_or_default(),
            max_backoff: row::millis_at(row, 12)?.unwrap_or_default(),
        },
        concurrency_key: text_if_any(6)?,
        first: None,
        recurring: row.get::<_, ScheduleKind>(9)? != ScheduleKind::Once,
        read_ahead: false,
        begins_by: None,
        owner: None,
    })
}

const WAITING: &str = "SELECT task_id, concurrency_key, handler, priority, run_at FROM task_runs WHERE id = :run";

/// A run that may start, as far as it matters what holds it back.
pub(crate) struct WaitingRun {
    pub(crate) task: i64,
    pub(crate) key: Option<String>,
    pub(crate) handler: String,
    pub(crate) priority: i64,
    pub(crate) run_at: Timestamp,
}

/// Returns what may hold a run back.
pub(crate) fn waiting(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<Option<WaitingRun>> {
    let read = |row: &Row<'_>| {
        Ok(WaitingRun {
            task: row.get(0)?,
            key: row::shown_if_any(row, 1)?,
            handler: row::shown(row, 2)?,
            priority: row.get(3)?,
            run_at: row.get(4)?,
        })
    };
    tx.prepare_cached(WAITING)?.query_row(named_params! { ":run": run }, read).optional()
}
