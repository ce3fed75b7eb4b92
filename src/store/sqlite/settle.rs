//! How attempts end: as their worker reported, by the death of their owner, by a request to stop, or un-begun.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::{Timestamp, millis};
use crate::error::excerpt;
use crate::model::event::Event;
use crate::model::finished::Finished;
use crate::model::retry::{Retry, Verdict};
use crate::model::run::{AttemptOutcome, Claim, Outcome, RunStatus};
use crate::rules::streak::Streak;
use crate::store::fault::Fault;
use crate::store::sqlite::first_look;
use crate::store::sqlite::open::{Change, Written};
use crate::store::sqlite::runs::{self, End, Fence, Success, Wrote};
use crate::store::sqlite::{attempts, blocked, delays, on_dead, owners};
use crate::store::turn_io::Seen;

/// Longest result that is kept, in bytes.
pub const MAX_RESULT_BYTES: usize = 256 * 1024;
/// Longest part of a result that the event of a late outcome tells, in bytes.
const MAX_DETAIL: usize = 16 * 1024;

/// Settles one attempt under its claim. A claim that no longer holds changes nothing: its result is kept with the attempts.
pub(crate) fn settle(
    cx: &mut Change<'_>,
    success: &mut Success<'_>,
    owner: &str,
    finished: &Finished,
    random: &mut fastrand::Rng,
) -> Result<(), Fault> {
    let (tx, now, claim) = (cx.tx, cx.now, &*finished.claim);
    let fence = Fence { run: claim.run_id, owner, attempt: claim.attempt };
    if finished.output.is_some() || finished.exit_code.is_some() {
        // If the claim no longer holds, what follows finds out.
        let _ = attempts::keep_printed(tx, &fence, finished.output.as_deref(), finished.exit_code)?;
    }
    if let Some(progress) = &finished.progress {
        let _ = attempts::keep_progress(tx, &fence, progress)?;
    }
    let (status, error, next_attempt) = match &finished.outcome {
        Outcome::Succeeded { result } => {
            // What the handler did is done: to try again for the sake of what it returned would do it twice.
            let unkept = result.as_ref().and_then(|result| too_long(result));
            let result = result.as_deref().filter(|_| unkept.is_none());
            let mut remarks = finished.remarks();
            remarks.extend(unkept);
            let remark = (!remarks.is_empty()).then(|| remarks.join("; "));
            if let Some(remark) = &remark {
                let _ = attempts::keep_remark(tx, &fence, remark)?;
            }
            if success.record(&fence, finished, result)? == Wrote::Superseded {
                return superseded(cx, &fence, finished);
            }
            (RunStatus::Succeeded, remark, None)
        }
        Outcome::Failed { how, error, retry } => {
            let error = runs::stored_error(error);
            let end = End { error: Some(&error), ..ended(finished) };
            let failure = Failure { how: (*how).into(), retry: *retry, end };
            let stands = end_badly(cx, &fence, claim, &failure, random)?;
            let Some((status, next)) = stands else { return superseded(cx, &fence, finished) };
            (status, Some(error), next)
        }
        Outcome::Released => match release(cx, &fence, None)? {
            Released::Queued => (RunStatus::Queued, None, None),
            Released::Cancelled => return Ok(()),
            Released::Superseded => return superseded(cx, &fence, finished),
        },
    };
    if status.is_final() {
        after_the_end(tx, claim, finished.finished_at, now, cx.written)?;
    } else {
        waits_again(cx, claim)?;
    }
    let mut next_due = None;
    if claim.recurring && status != RunStatus::Queued {
        next_due = keep_last(tx, claim.task_id, status, &End { error: error.as_deref(), ..ended(finished) })?;
    }
    let (mut follows, mut paused) = (Vec::new(), false);
    if status == RunStatus::Dead {
        (follows, paused) = on_dead::follow(cx, claim)?;
    }
    let next_due = next_due.filter(|_| !paused);
    let (claim, took) = (finished.claim.clone(), finished.duration.unwrap_or_default());
    cx.written.events.push(Event::Finished { claim, status, error, took, next_attempt, next_due });
    cx.written.events.append(&mut follows);
    Ok(())
}

/// The end of an attempt, as its worker reported it.
fn ended(finished: &Finished) -> End<'static> {
    let (started, duration) = (Some(finished.started_at), finished.duration);
    End { started, finished: finished.finished_at, duration, error: None }
}

/// What became of an attempt that is given back.
enum Released {
    Queued,
    /// It had been asked to stop.
    Cancelled,
    Superseded,
}

/// running -> queued, for an attempt that never began: it does not count.
fn release(cx: &mut Change<'_>, fence: &Fence<'_>, error: Option<&str>) -> Result<Released, Fault> {
    let (tx, now) = (cx.tx, cx.now);
    if runs::give_back(tx, fence, now)? == Wrote::Superseded {
        return Ok(Released::Superseded);
    }
    attempts::keep_attempt(tx, fence, AttemptOutcome::Released, &End { error, ..End::unknown(now) }, None)?;
    // The request is made once, and no claim takes a run that was asked to stop.
    let cancelled = runs::is_asked_to_stop(tx, fence.run)? && cancel_waiting(tx, fence.run, now, cx.written)?;
    Ok(if cancelled { Released::Cancelled } else { Released::Queued })
}

/// What is said of a result that is too long to be kept.
fn too_long(result: &str) -> Option<String> {
    let length = result.len();
    (length > MAX_RESULT_BYTES)
        .then(|| format!("its result is not kept: expected at most {MAX_RESULT_BYTES} bytes of JSON, found {length}"))
}

/// The end of an attempt that did not succeed, and what its handler asks for.
struct Failure<'a> {
    how: AttemptOutcome,
    retry: Retry,
    end: End<'a>,
}

/// running -> failed, dead or cancelled. `None`: the claim no longer holds.
fn end_badly(
    cx: &Change<'_>,
    fence: &Fence<'_>,
    claim: &Claim,
    failure: &Failure<'_>,
    random: &mut fastrand::Rng,
) -> Result<Option<(RunStatus, Option<Timestamp>)>, Fault> {
    let (tx, &Failure { how, retry, ref end }) = (cx.tx, failure);
    if runs::cancel_running(tx, fence, end)? == Wrote::Done {
        let outcome = if how == AttemptOutcome::Failed { AttemptOutcome::Cancelled } else { how };
        attempts::keep_attempt(tx, fence, outcome, end, None)?;
        return Ok(Some((RunStatus::Cancelled, None)));
    }
    // From the end of the attempt, by one clock: a step of it before this is written neither stretches nor cuts the wait.
    let ended = end.finished.min(cx.now);
    let (wrote, ended) = match claim.retry.judge(claim.counted(), retry, random) {
        Verdict::TryAgainIn(wait) => {
            let at = ended.plus(wait).min(Timestamp::MAX);
            (runs::fail(tx, fence, end, at, false)?, (RunStatus::Failed, Some(at)))
        }
        Verdict::TryAgain => (runs::fail(tx, fence, end, ended, true)?, (RunStatus::Failed, Some(ended))),
        Verdict::Dead => (runs::bury(tx, fence, end)?, (RunStatus::Dead, None)),
    };
    if wrote == Wrote::Superseded {
        return Ok(None);
    }
    attempts::keep_attempt(tx, fence, how, end, None)?;
    Ok(Some(ended))
}

/// Places a run whose attempt has ended and that is to be tried again.
fn waits_again(cx: &mut Change<'_>, claim: &Claim) -> Result<(), Fault> {
    cx.written.blocked = true;
    Ok(blocked::place(cx.tx, claim.run_id, claim.concurrency_key.as_deref(), cx.now)?)
}

/// Unblocks the runs that waited for one that is final now, and lets a delay count from its end.
fn after_the_end(
    tx: &Transaction<'_>,
    claim: &Claim,
    ended: Timestamp,
    now: Timestamp,
    written: &Written,
) -> Result<(), Fault> {
    if written.blocked {
        blocked::after_the_end(tx, claim.task_id, claim.concurrency_key.as_deref(), now)?;
    }
    if written.delayed {
        delays::over(tx, claim.task_id, ended)?;
    }
    Ok(())
}

/// The attempt's result comes too late: another owner has the run, or it is final, or gone. Nothing is thrown away.
fn superseded(cx: &mut Change<'_>, fence: &Fence<'_>, finished: &Finished) -> Result<(), Fault> {
    let (error, result) = match &finished.outcome {
        Outcome::Failed { error, .. } => (runs::stored_error(error), finished.output.as_deref()),
        Outcome::Succeeded { result } => ("succeeded".to_owned(), result.as_deref().or(finished.output.as_deref())),
        Outcome::Released => ("given back".to_owned(), None),
    };
    let end = End { error: Some(&error), ..ended(finished) };
    if !attempts::keep_attempt(cx.tx, fence, AttemptOutcome::Superseded, &end, result)? {
        let result = result.map(|result| format!(" {}", excerpt(result, MAX_DETAIL))).unwrap_or_default();
        let detail =
            format!("attempt {} of run {} of {:?}: {error}{result}", fence.attempt, fence.run, finished.claim.task);
        owners::record(cx.tx, cx.now, "late_outcome", None, Some(fence.run), Some(&detail))?;
    }
    cx.written.events.push(Event::Superseded { claim: finished.claim.clone() });
    Ok(())
}

const KEEP_LAST: &str = "
    UPDATE scheduled_tasks
       SET last_run = :started, last_finished = :finished, last_status = :status, last_duration_ms = :duration,
           last_error = :error, failure_count = failure_count * :kept + :adds
     WHERE id = :task AND (last_run IS NULL OR last_run <= :started)
    RETURNING next_run";

/// A run that began before the newest one and ended after it counts in the streak all the same.
const COUNT_STREAK: &str = "
    UPDATE scheduled_tasks SET failure_count = failure_count * :kept + :adds WHERE id = :task";

/// Stores the end of the newest attempt with the task, and its streak of dead runs. Returns when the task is due next.
fn keep_last(tx: &Transaction<'_>, task: i64, status: RunStatus, end: &End<'_>) -> rusqlite::Result<Option<Timestamp>> {
    let streak = Streak::after(status);
    let params = named_params! {
        ":task": task, ":kept": streak.is_kept, ":adds": streak.adds, ":started": end.started.unwrap_or(end.finished), ":finished": end.finished, ":status": status,
        ":duration": end.duration.map(millis), ":error": end.error,
    };
    let kept = tx.prepare_cached(KEEP_LAST)?.query_row(params, |row| row.get(0)).optional()?;
    if kept.is_none() && !streak.is_unchanged() {
        let params = named_params! { ":task": task, ":kept": streak.is_kept, ":adds": streak.adds };
        tx.prepare_cached(COUNT_STREAK)?.execute(params)?;
    }
    Ok(kept.flatten())
}

/// running -> failed, dead or cancelled, because the owner of the attempt is dead. A lost attempt counts.
pub(crate) fn recover(cx: &mut Change<'_>, fence: &Fence<'_>, random: &mut fastrand::Rng) -> Result<(), Fault> {
    let (tx, now) = (cx.tx, cx.now);
    // The claim as it would be made now: a repaired task repairs its retries.
    let Some(claim) = runs::ending(tx, fence.run, now)? else { return Ok(()) };
    let started = started_at(tx, fence.run)?;
    let error = "the scheduler that ran it died";
    let end = End { started, error: Some(error), ..End::unknown(now) };
    let failure = Failure { how: AttemptOutcome::Lost, retry: Retry::Backoff, end };
    let ended = end_badly(cx, fence, &claim, &failure, random)?;
    let Some((status, next_attempt)) = ended else { return Ok(()) };
    if status.is_final() {
        after_the_end(tx, &claim, now, now, cx.written)?;
    } else {
        waits_again(cx, &claim)?;
    }
    if claim.recurring {
        keep_last(tx, claim.task_id, status, &end)?;
    }
    let mut follows = Vec::new();
    if status == RunStatus::Dead {
        (follows, _) = on_dead::follow(cx, &claim)?;
    }
    let (run, task, attempt) = (fence.run, claim.task, fence.attempt);
    cx.written.events.push(Event::Lost { run, task, attempt, status, next_attempt });
    cx.written.events.append(&mut follows);
    Ok(())
}

/// running -> queued, because the owner of the attempt died before a worker began it. Such an attempt does not count, and a
/// run that may start only once may still start.
pub(crate) fn recover_unbegun(cx: &mut Change<'_>, fence: &Fence<'_>) -> Result<(), Fault> {
    let Some(claim) = runs::ending(cx.tx, fence.run, cx.now)? else { return Ok(()) };
    let error = "the scheduler that had claimed it died before it began";
    if let Released::Queued = release(cx, fence, Some(error))? {
        waits_again(cx, &claim)?;
        let (run, task, attempt, status) = (fence.run, claim.task, fence.attempt, RunStatus::Queued);
        cx.written.events.push(Event::Lost { run, task, attempt, status, next_attempt: None });
    }
    Ok(())
}

const STARTED_AT: &str = "SELECT started_at FROM task_runs WHERE id = :run";

fn started_at(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<Option<Timestamp>> {
    let found = tx.prepare_cached(STARTED_AT)?.query_row(named_params! { ":run": run }, |row| row.get(0)).optional();
    Ok(found?.flatten())
}

const CANCELLING: &str = "
    SELECT id FROM task_runs
     WHERE task_id = :task AND (status = 'queued' OR status = 'failed' OR status = 'running')
       AND status <> 'running' AND cancel_requested = 1";

/// Cancels the waiting runs of a task that somebody has asked to stop by SQL.
pub(crate) fn cancel_asked(
    tx: &Transaction<'_>,
    task: i64,
    now: Timestamp,
    written: &mut Written,
) -> Result<(), Fault> {
    let mut statement = tx.prepare_cached(CANCELLING)?;
    let asked = statement.query_map(named_params! { ":task": task }, |row| row.get(0))?;
    for run in asked.collect::<Result<Vec<i64>, _>>()? {
        cancel_waiting(tx, run, now, written)?;
    }
    Ok(())
}

const EXPIRING: &str = "
    SELECT id FROM task_runs
     WHERE expires_at IS NOT NULL AND status = 'queued' AND expires_at <= :now AND attempt = forgiven";

const NEXT_EXPIRY: &str = "
    SELECT min(expires_at) FROM task_runs
     WHERE expires_at IS NOT NULL AND status = 'queued' AND attempt = forgiven";

/// Waiting runs that have expired.
pub(crate) fn expiring(tx: &Transaction<'_>, now: Timestamp, limit: usize) -> rusqlite::Result<Vec<i64>> {
    let mut statement = tx.prepare_cached(EXPIRING)?;
    let rows = statement.query_map(named_params! { ":now": now }, |row| row.get(0))?;
    rows.take(limit).collect()
}

/// When the next waiting run expires.
pub(crate) fn next_expiry(tx: &Transaction<'_>) -> rusqlite::Result<Option<Timestamp>> {
    tx.prepare_cached(NEXT_EXPIRY)?.query_row([], |row| row.get(0))
}

/// queued, failed -> cancelled, and what follows from it. `false`: it does not wait any more.
pub(crate) fn cancel_waiting(
    tx: &Transaction<'_>,
    run: i64,
    now: Timestamp,
    written: &mut Written,
) -> Result<bool, Fault> {
    let Some(claim) = runs::ending(tx, run, now)? else { return Ok(false) };
    let began = runs::has_begun(tx, run)?;
    let reason = if began { "cancelled while it waited for its next attempt" } else { "cancelled before it began" };
    if runs::cancel_waiting(tx, run, reason, now)? == Wrote::Superseded {
        return Ok(false);
    }
    (written.blocked, written.delayed) = (true, true);
    after_the_end(tx, &claim, now, now, written)?;
    runs::last_cancelled(tx, claim.task_id, run)?;
    written.events.push(Event::Cancelled { run, task: claim.task, began });
    Ok(true)
}

/// queued -> missed, and what follows from it. A run that was requested since the last look may be claimed first.
pub(crate) fn expire(
    tx: &Transaction<'_>,
    run: i64,
    seen: Option<Seen>,
    now: Timestamp,
    written: &mut Written,
) -> Result<(), Fault> {
    if let Some(seen) = seen
        && first_look::defer_expiry(tx, run, &seen, now)? == Wrote::Done
    {
        return Ok(());
    }
    let Some(claim) = runs::ending(tx, run, now)? else { return Ok(()) };
    if runs::expire(tx, run, now)? == Wrote::Done {
        (written.blocked, written.delayed) = (true, true);
        after_the_end(tx, &claim, now, now, written)?;
        written.events.push(Event::Expired { run, task: claim.task });
    }
    Ok(())
}
