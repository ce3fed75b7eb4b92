//! Ends attempts: as the worker reported, because the owner died, by a request to stop, or released before they began. Also
//! cancels and expires waiting runs.

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::{Timestamp, millis};
use crate::error::{Error, excerpt};
use crate::model::event::Event;
use crate::model::finished::Finished;
use crate::model::retry::{Retry, Verdict};
use crate::model::run::{AttemptOutcome, Claim, Outcome, RunStatus};
use crate::rules::chain::Ending;
use crate::rules::notice::Notice;
use crate::rules::streak::Streak;
use crate::store::fault::Fault;
use crate::store::sqlite::first_look;
use crate::store::sqlite::open::{Change, Written};
use crate::store::sqlite::runs::{self, Again, End, EndedBy, Fence, Success, Wrote};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{attempts, blocked, delays, followers, owners, row};
use crate::store::turn_io::Seen;

/// Why an attempt was lost.
pub(crate) const DIED: &str = "the scheduler that ran it died";
pub(crate) const RESTORED: &str = "the database was restored from a copy that was made while it ran";

/// Longest result that is stored, in bytes.
pub const MAX_RESULT_BYTES: usize = 256 * 1024;
/// Longest part of a result in the event of a late outcome, in bytes.
const MAX_DETAIL: usize = 16 * 1024;

/// Settles one attempt under its claim, or writes what follows from a success that is stored already. If the claim no longer holds, the
/// run is not changed and the result is stored with the attempts.
pub(crate) fn settle(
    cx: &mut Change<'_>,
    success: &mut Success<'_>,
    owner: &str,
    finished: &Finished,
    random: &mut fastrand::Rng,
) -> Result<(), Fault> {
    if finished.stored {
        return follow_up(cx, finished, RunStatus::Succeeded.into(), None);
    }
    let (tx, claim) = (cx.tx, &*finished.claim);
    // An attempt that was claimed under an earlier id of this scheduler ends under that id.
    let owner = claim.owner.as_deref().unwrap_or(owner);
    let fence = Fence { run: claim.run_id, owner, attempt: claim.attempt };
    if finished.output.is_some() || finished.exit_code.is_some() {
        // If the claim no longer holds, the statement that settles the run reports it.
        let _ = attempts::keep_printed(tx, &fence, finished.output.as_deref(), finished.exit_code)?;
    }
    if let Some(progress) = &finished.progress {
        let _ = attempts::keep_progress(tx, &fence, progress)?;
    }
    let (end, error) = match &finished.outcome {
        Outcome::Succeeded { result } => {
            // The handler has had its effect: a retry because of the result would repeat it.
            let too_long_remark = result.as_ref().and_then(|result| too_long(result));
            let result = result.as_deref().filter(|_| too_long_remark.is_none());
            let mut remarks = finished.remarks();
            remarks.extend(too_long_remark);
            let remark = (!remarks.is_empty()).then(|| remarks.join("; "));
            if let Some(remark) = &remark {
                let _ = attempts::keep_remark(tx, &fence, remark)?;
            }
            if success.record(&fence, finished, result)? == Wrote::Superseded {
                return superseded(cx, &fence, finished);
            }
            (RunStatus::Succeeded.into(), remark)
        }
        Outcome::Failed { how, error, retry } => {
            let error = runs::stored_error(error);
            let end = End { error: Some(&error), ..ended(finished) };
            let failure = Failure {
                how: (*how).into(),
                retry: *retry,
                is_interrupted: finished.is_interrupted,
                unannounced: false,
                end,
            };
            let recorded = end_unsuccessfully(cx, &fence, claim, &failure, random)?;
            let Some(ended) = recorded else { return superseded(cx, &fence, finished) };
            (ended, Some(error))
        }
        Outcome::Released => match release(cx, &fence, finished.not_started.as_deref())? {
            Released::Queued => (RunStatus::Queued.into(), None),
            Released::Cancelled => return Ok(()),
            Released::Superseded => return superseded(cx, &fence, finished),
        },
    };
    if !end.status.is_final() {
        place_retry(cx, claim)?;
    }
    follow_up(cx, finished, end, error)
}

/// Writes what follows from the outcome of an attempt, and emits its event.
fn follow_up(cx: &mut Change<'_>, finished: &Finished, end: AttemptEnd, error: Option<String>) -> Result<(), Fault> {
    let (tx, claim, status) = (cx.tx, &*finished.claim, end.status);
    if status.is_final() {
        after_the_end(tx, claim, finished.finished_at, cx.now, cx.written)?;
    }
    let mut next_due = None;
    if claim.recurring && status != RunStatus::Queued {
        next_due = keep_last(tx, claim.task_id, status, &End { error: error.as_deref(), ..ended(finished) })?;
    }
    let (mut follows, mut paused) = (Vec::new(), false);
    // Of an end that was stored before this turn, nothing else than a plain success follows.
    if status.is_final() && !finished.stored {
        (follows, paused) = followers::follow(cx, claim, Ending { status, origin: claim.origin, began: true })?;
    }
    let next_due = next_due.filter(|_| !paused);
    cx.written.events.push(end_event(finished, end, error, next_due));
    cx.written.events.append(&mut follows);
    Ok(())
}

/// Returns the event of the end of an attempt.
fn end_event(finished: &Finished, end: AttemptEnd, error: Option<String>, next_due: Option<Timestamp>) -> Event {
    let (claim, took) = (finished.claim.clone(), finished.duration.unwrap_or_default());
    let AttemptEnd { status, next_attempt, is_snoozed, is_interrupted } = end;
    match (next_attempt, error) {
        (Some(next_attempt), Some(reason)) if is_snoozed => Event::Snoozed { claim, reason, took, next_attempt },
        (Some(next_attempt), Some(reason)) if is_interrupted => {
            Event::Interrupted { claim, reason, took, next_attempt }
        }
        (_, error) => Event::Finished { claim, status, error, took, next_attempt, next_due },
    }
}

/// Settles first attempts that simply succeeded at the same times and have consecutive run ids. An error if a claim no longer holds: the
/// turn is then repeated with one attempt at a time.
pub(crate) fn settle_span(cx: &mut Change<'_>, owner: &str, span: &[&Finished]) -> Result<(), Fault> {
    let [first, .., last] = span else { return Ok(()) };
    let rows = runs::succeed_span(cx.tx, owner, first.claim.run_id..=last.claim.run_id, first)?;
    if rows != span.len() {
        let reason = format!("{rows} of {} runs were still claimed", span.len());
        return Err(Error::store("settle attempts together", reason).into());
    }
    span.iter().try_for_each(|finished| follow_up(cx, finished, RunStatus::Succeeded.into(), None))
}

/// Returns whether the attempt may be settled in a span: nothing but its times has to be stored.
pub(crate) fn is_plain(finished: &Finished) -> bool {
    matches!(finished.outcome, Outcome::Succeeded { result: None })
        && finished.claim.attempt == 1
        && finished.effects.is_empty()
        && !finished.claim.recurring
        && !finished.stored
        && finished.late.is_none()
        && finished.remark.is_none()
        && finished.output.is_none()
        && finished.exit_code.is_none()
        && finished.progress.is_none()
}

/// Returns whether a run that simply succeeded is all that has to be stored, and its result, if it has one, can be.
#[cfg(feature = "postgres")]
pub(crate) fn is_success_alone(finished: &Finished) -> bool {
    let Outcome::Succeeded { result } = &finished.outcome else { return false };
    result.as_ref().is_none_or(|result| too_long(result).is_none())
        && !finished.claim.recurring
        && finished.effects.is_empty()
        && finished.remarks().is_empty()
        && finished.output.is_none()
        && finished.exit_code.is_none()
        && finished.progress.is_none()
}

/// Returns the event of a success from which nothing follows.
#[cfg(feature = "postgres")]
pub(crate) fn success(finished: &Finished) -> Event {
    end_event(finished, RunStatus::Succeeded.into(), None, None)
}

/// Returns whether `next` can be settled by the same statement as the plain attempt before it.
pub(crate) fn continues(before: &Finished, next: &Finished) -> bool {
    let times = |finished: &Finished| (finished.started_at, finished.finished_at, finished.duration.map(millis));
    next.claim.run_id == before.claim.run_id + 1 && times(next) == times(before)
}

/// Returns the end of an attempt as its worker reported it.
fn ended(finished: &Finished) -> End<'static> {
    let (started, duration) = (Some(finished.started_at), finished.duration);
    End { started, finished: finished.finished_at, duration, error: None }
}

/// The result of releasing an attempt.
enum Released {
    Queued,
    /// The run had been requested to stop.
    Cancelled,
    Superseded,
}

/// running -> queued, for an attempt that never began. It does not count as an attempt.
fn release(cx: &mut Change<'_>, fence: &Fence<'_>, error: Option<&str>) -> Result<Released, Fault> {
    let (tx, now) = (cx.tx, cx.now);
    if runs::give_back(tx, fence, now)? == Wrote::Superseded {
        return Ok(Released::Superseded);
    }
    if error.is_some() {
        runs::put_last(tx, fence.run, now)?;
    }
    attempts::keep_attempt(tx, fence, AttemptOutcome::Released, &End { error, ..End::unknown(now) }, None)?;
    // The stop request is not repeated, and no claim takes a run that has one: cancel it now.
    let cancelled = runs::is_asked_to_stop(tx, fence.run)? && cancel_waiting(cx, fence.run)?;
    Ok(if cancelled { Released::Cancelled } else { Released::Queued })
}

/// Returns the remark about a result that is too long to be stored.
fn too_long(result: &str) -> Option<String> {
    let length = result.len();
    (length > MAX_RESULT_BYTES)
        .then(|| format!("its result is not kept: expected at most {MAX_RESULT_BYTES} bytes of JSON, found {length}"))
}

/// The end of an attempt that did not succeed, and the retry that its handler requests.
struct Failure<'a> {
    how: AttemptOutcome,
    retry: Retry,
    is_interrupted: bool,
    /// Whether nothing shows that the attempt began.
    unannounced: bool,
    end: End<'a>,
}

/// What is recorded of the end of an attempt.
#[derive(Clone, Copy)]
struct AttemptEnd {
    status: RunStatus,
    /// When the next attempt is due, if the run is retried.
    next_attempt: Option<Timestamp>,
    is_snoozed: bool,
    is_interrupted: bool,
}

impl From<RunStatus> for AttemptEnd {
    fn from(status: RunStatus) -> Self {
        AttemptEnd { status, next_attempt: None, is_snoozed: false, is_interrupted: false }
    }
}

/// running -> failed, dead, cancelled or skipped. Returns `None` if the claim no longer holds.
fn end_unsuccessfully(
    cx: &Change<'_>,
    fence: &Fence<'_>,
    claim: &Claim,
    failure: &Failure<'_>,
    random: &mut fastrand::Rng,
) -> Result<Option<AttemptEnd>, Fault> {
    let (tx, &Failure { how, retry, is_interrupted, unannounced, ref end }) = (cx.tx, failure);
    // A request to stop comes before what the handler says, except that it cancels the run too.
    let by = if retry == Retry::Cancel { EndedBy::Handler(RunStatus::Cancelled) } else { EndedBy::Request };
    let (wrote, status, next_attempt) = if runs::end_without_failure(tx, fence, end, by)? == Wrote::Done {
        (Wrote::Done, RunStatus::Cancelled, None)
    } else {
        let tally = claim.tally(is_interrupted, unannounced);
        let verdict = claim.retry.judge(tally, retry, random);
        match verdict {
            Verdict::TryAgainIn(wait) | Verdict::Forgive(wait) => {
                // The wait counts from the end of the attempt, or from now if the clock has stepped back to before it.
                let at = end.finished.min(cx.now).plus(wait).min(Timestamp::MAX);
                let is_forgiven = matches!(verdict, Verdict::Forgive(_));
                let again = Again { run_at: at, is_forgiven, interrupted: tally.interrupted };
                (runs::fail(tx, fence, end, again)?, RunStatus::Failed, Some(at))
            }
            Verdict::Skip => {
                let status = RunStatus::Skipped;
                (runs::end_without_failure(tx, fence, end, EndedBy::Handler(status))?, status, None)
            }
            Verdict::Dead => (runs::set_dead(tx, fence, end, tally.interrupted)?, RunStatus::Dead, None),
            // It would have been written above.
            Verdict::Cancel => return Ok(None),
        }
    };
    if wrote == Wrote::Superseded {
        return Ok(None);
    }
    let outcome = match (how, status) {
        (AttemptOutcome::Failed, RunStatus::Cancelled) => AttemptOutcome::Cancelled,
        (AttemptOutcome::Failed, RunStatus::Skipped) => AttemptOutcome::Skipped,
        (AttemptOutcome::Failed, RunStatus::Failed) if matches!(retry, Retry::Snooze(_)) => AttemptOutcome::Snoozed,
        _ => how,
    };
    attempts::keep_attempt(tx, fence, outcome, end, None)?;
    let is_snoozed = outcome == AttemptOutcome::Snoozed;
    Ok(Some(AttemptEnd { status, next_attempt, is_snoozed, is_interrupted }))
}

/// Places a run that is to be tried again among the waiting runs.
fn place_retry(cx: &mut Change<'_>, claim: &Claim) -> Result<(), Fault> {
    cx.written.blocked = true;
    Ok(blocked::place(cx.tx, claim.run_id, claim.concurrency_key.as_deref(), cx.now)?)
}

/// Unblocks the runs that waited for a run that is now final, and starts a delay that counts from its end.
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
        delays::plan_after(tx, claim.task_id, ended)?;
    }
    Ok(())
}

/// Finds a success that is stored already, by its times.
const RECORDED_SUCCESS: &str = "
    SELECT status, NULL, 0, 0, error FROM task_runs
     WHERE id = :run AND status = 'succeeded' AND attempt = :attempt AND started_at IS :started AND finished_at = :finished";

/// Finds another outcome that is stored already. That of an attempt that never began is stored with another time, so no time is compared.
const RECORDED_ATTEMPT: &str = "
    SELECT CASE WHEN r.attempt = a.attempt AND r.locked_by IS NULL THEN r.status
                WHEN a.outcome = 'released' THEN 'queued' ELSE 'failed' END,
           iif(r.attempt = a.attempt AND r.locked_by IS NULL AND r.status = 'failed', r.run_at, NULL),
           a.outcome = 'snoozed', r.attempt = a.attempt AND r.interrupted > 0, a.error
      FROM task_attempts a JOIN task_runs r ON r.id = a.run_id
     WHERE a.run_id = :run AND a.attempt = :attempt AND a.outcome <> 'lost' AND a.outcome <> 'superseded'
       AND (a.outcome = 'released') = :released AND (:released OR a.finished_at = :finished)
     LIMIT 1";

/// Returns the event of an outcome that is stored already: a server committed it, and the answer to the COMMIT was lost.
fn recorded_before(tx: &Transaction<'_>, fence: &Fence<'_>, finished: &Finished) -> rusqlite::Result<Option<Event>> {
    let read = |row: &Row<'_>| {
        let (status, next_attempt) = (row.get(0)?, row.get(1)?);
        let end = AttemptEnd { status, next_attempt, is_snoozed: row.get(2)?, is_interrupted: row.get(3)? };
        Ok(end_event(finished, end, row::shown_if_any(row, 4)?, None))
    };
    let (run, attempt, ended) = (fence.run, fence.attempt, finished.finished_at);
    match finished.outcome {
        Outcome::Succeeded { .. } => tx.prepare_cached(RECORDED_SUCCESS)?.query_row(
            named_params! { ":run": run, ":attempt": attempt, ":started": finished.started_at, ":finished": ended },
            read,
        ),
        Outcome::Failed { .. } | Outcome::Released => tx.prepare_cached(RECORDED_ATTEMPT)?.query_row(
            named_params! {
                ":run": run, ":attempt": attempt, ":finished": ended,
                ":released": matches!(finished.outcome, Outcome::Released),
            },
            read,
        ),
    }
    .optional()
}

/// Keeps the result of an attempt whose run another owner has claimed, or which is final or deleted: with the attempts, or
/// else as an event.
fn superseded(cx: &mut Change<'_>, fence: &Fence<'_>, finished: &Finished) -> Result<(), Fault> {
    if let Some(event) = recorded_before(cx.tx, fence, finished)? {
        cx.written.events.push(event);
        return Ok(());
    }
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

/// For a run that began before the newest one and ended after it: only the streak changes.
const COUNT_STREAK: &str = "
    UPDATE scheduled_tasks SET failure_count = failure_count * :kept + :adds WHERE id = :task";

/// Stores the end of the newest attempt and the streak of dead runs in the task. Returns when the task is due next.
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

/// running -> failed, dead or cancelled, because the owner of the attempt is dead. A lost attempt counts as an attempt; `may_forgive`: unless
/// its row does not show that it began, and the run may start more than once.
pub(crate) fn recover(
    cx: &mut Change<'_>,
    fence: &Fence<'_>,
    (error, may_forgive): (&str, bool),
    random: &mut fastrand::Rng,
) -> Result<(), Fault> {
    let (tx, now) = (cx.tx, cx.now);
    // The claim as it would be made now: retries use the current settings of the task.
    let Some(claim) = runs::ending(tx, fence.run, now)? else { return Ok(()) };
    let (started, announced) = shown(tx, fence.run)?;
    let unannounced = may_forgive && !announced;
    let end = End { started, error: Some(error), ..End::unknown(now) };
    let how = AttemptOutcome::Lost;
    let failure = Failure { how, retry: Retry::Backoff, is_interrupted: false, unannounced, end };
    let ended = end_unsuccessfully(cx, fence, &claim, &failure, random)?;
    let Some(AttemptEnd { status, next_attempt, .. }) = ended else { return Ok(()) };
    if status.is_final() {
        after_the_end(tx, &claim, now, now, cx.written)?;
    } else {
        place_retry(cx, &claim)?;
    }
    if claim.recurring {
        keep_last(tx, claim.task_id, status, &end)?;
    }
    let mut follows = Vec::new();
    if status.is_final() {
        (follows, _) = followers::follow(cx, &claim, Ending { status, origin: claim.origin, began: true })?;
    }
    let (run, task, handler, attempt) = (fence.run, claim.task, claim.handler, fence.attempt);
    cx.written.events.push(Event::Lost { run, task, handler, attempt, status, next_attempt });
    cx.written.events.append(&mut follows);
    Ok(())
}

/// running -> queued, because the owner of the attempt died before a worker began it. The attempt does not count, so a run
/// with `max_attempts` 1 can still start.
pub(crate) fn recover_unbegun(cx: &mut Change<'_>, fence: &Fence<'_>) -> Result<(), Fault> {
    let Some(claim) = runs::ending(cx.tx, fence.run, cx.now)? else { return Ok(()) };
    let error = "the scheduler that had claimed it died before it began";
    if let Released::Queued = release(cx, fence, Some(error))? {
        place_retry(cx, &claim)?;
        let (run, task, handler, attempt) = (fence.run, claim.task, claim.handler, fence.attempt);
        let status = RunStatus::Queued;
        cx.written.events.push(Event::Lost { run, task, handler, attempt, status, next_attempt: None });
    }
    Ok(())
}

const SHOWN: &str = "
    SELECT started_at, coalesce(started_at, process, progress, output) IS NOT NULL FROM task_runs WHERE id = :run";

/// Returns when the running attempt began, as far as its row shows, and whether the row shows that it did.
fn shown(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<(Option<Timestamp>, bool)> {
    tx.prepare_cached(SHOWN)?.query_row(named_params! { ":run": run }, |row| Ok((row.get(0)?, row.get(1)?)))
}

const CANCELLING: &str = sql! {"
    SELECT id FROM task_runs INDEXED BY task_runs_asked
     WHERE task_id = :task AND {waiting} AND cancel_requested = 1 LIMIT {asked}"};

/// Cancels the first waiting runs of a task that SQL has requested to stop. The task stays unplanned while there are others.
pub(crate) fn cancel_asked(cx: &mut Change<'_>, task: i64) -> Result<(), Fault> {
    let mut statement = cx.tx.prepare_cached(CANCELLING)?;
    let asked = statement.query_map(named_params! { ":task": task }, |row| row.get(0))?;
    for run in asked.collect::<Result<Vec<i64>, _>>()? {
        cancel_waiting(cx, run)?;
    }
    Ok(())
}

const EXPIRING: &str = "
    SELECT id FROM task_runs
     WHERE expires_at IS NOT NULL AND status = 'queued' AND expires_at <= :now AND attempt = forgiven";

const NEXT_EXPIRY: &str = "
    SELECT min(expires_at) FROM task_runs
     WHERE expires_at IS NOT NULL AND status = 'queued' AND attempt = forgiven";

/// Returns waiting runs that have expired, at most `limit`.
pub(crate) fn expiring(tx: &Transaction<'_>, now: Timestamp, limit: usize) -> rusqlite::Result<Vec<i64>> {
    let mut statement = tx.prepare_cached(EXPIRING)?;
    let rows = statement.query_map(named_params! { ":now": now }, |row| row.get(0))?;
    rows.take(limit).collect()
}

/// Returns when the next waiting run expires.
pub(crate) fn next_expiry(tx: &Transaction<'_>) -> rusqlite::Result<Option<Timestamp>> {
    tx.prepare_cached(NEXT_EXPIRY)?.query_row([], |row| row.get(0))
}

/// queued, failed -> cancelled; unblocks other runs. Returns `false` if the run no longer waits.
pub(crate) fn cancel_waiting(cx: &mut Change<'_>, run: i64) -> Result<bool, Fault> {
    let (tx, now) = (cx.tx, cx.now);
    let Some(claim) = runs::ending(tx, run, now)? else { return Ok(false) };
    let began = runs::has_begun(tx, run)?;
    let reason = if began { "cancelled while it waited for its next attempt" } else { "cancelled before it began" };
    if runs::cancel_waiting(tx, run, reason, now)? == Wrote::Superseded {
        return Ok(false);
    }
    (cx.written.blocked, cx.written.delayed) = (true, true);
    after_the_end(tx, &claim, now, now, cx.written)?;
    runs::last_cancelled(tx, claim.task_id, run)?;
    let ending = Ending { status: RunStatus::Cancelled, origin: claim.origin, began };
    let (follows, _) = followers::follow(cx, &claim, ending)?;
    cx.written.events.push(Event::Cancelled { run, task: claim.task, handler: claim.handler, began });
    cx.written.events.extend(follows);
    Ok(true)
}

/// queued -> missed; unblocks other runs. A run that was requested since the last poll can be claimed first.
pub(crate) fn expire(cx: &mut Change<'_>, run: i64, seen: Option<Seen>) -> Result<(), Fault> {
    let (tx, now) = (cx.tx, cx.now);
    if let Some(seen) = seen
        && first_look::defer_expiry(tx, run, &seen, now)? == Wrote::Done
    {
        return Ok(());
    }
    let Some(claim) = runs::ending(tx, run, now)? else { return Ok(()) };
    if runs::expire(tx, run, now)? == Wrote::Done {
        (cx.written.blocked, cx.written.delayed) = (true, true);
        after_the_end(tx, &claim, now, now, cx.written)?;
        let detail = format!("run {run} of {}: {}", claim.scheduled_for, runs::EXPIRED);
        owners::record(tx, now, Notice::Missed.kind(), Some(claim.task_id), Some(run), Some(&detail))?;
        let ending = Ending { status: RunStatus::Missed, origin: claim.origin, began: false };
        let (follows, _) = followers::follow(cx, &claim, ending)?;
        cx.written.events.push(Event::Expired { run, task: claim.task, handler: claim.handler });
        cx.written.events.extend(follows);
    }
    Ok(())
}
