//! The attempts that are handed over to be run: their stop flags, how each begins, and how its end is judged.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Now};
use crate::error::{BoxError, Error};
use crate::host::attempt_slots::Place;
use crate::host::orphan::Input;
use crate::host::panics;
use crate::model::event::Event;
use crate::model::finished::{Finished, Report, ReportKind};
use crate::model::observers::Observers;
use crate::model::retry::Retry;
use crate::model::run::{Claim, FailureKind, Outcome};
use crate::store::turn_io::MAX_OUTCOMES;
use crate::worker::attempt::{Link, OwnEnd, Reported, StopFlag, StopReason, Tools};
use crate::worker::failure::Failure;
#[cfg(feature = "postgres")]
use crate::worker::fence::Fence;
use crate::worker::handler::{Context, Handler};
use crate::worker::span::AttemptSpan;

/// A claim that is handed over, with its stop flag.
pub(crate) type Handed = (Arc<Claim>, Arc<StopFlag>);

/// How long an attempt that was read ahead runs before its row says when it began. Most end before.
pub(crate) const LONG: Duration = Duration::from_millis(500);

/// How long to wait before an attempt is returned that could not begin.
pub(crate) const UNNOTED: Duration = Duration::from_secs(1);

/// The attempts that are handed over and whose outcomes are not stored, and what each of them runs with.
#[derive(Clone)]
pub(crate) struct Attempts {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) link: Link,
    observers: Arc<Observers>,
    /// By run; of two attempts of one run, the newer.
    flags: Arc<Mutex<BTreeMap<i64, Handed>>>,
    /// On a server: the end of the owner's lease. Set before the first attempt.
    #[cfg(feature = "postgres")]
    pub(crate) fence: Arc<std::sync::OnceLock<Arc<Fence>>>,
}

thread_local! {
    /// The attempts of the scheduler of which this thread runs a handler, by their address.
    static RUNS_FOR: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Ends what [`Attempts::within`] has begun.
struct Within(Option<usize>);

impl Drop for Within {
    fn drop(&mut self) {
        RUNS_FOR.set(self.0);
    }
}

impl Attempts {
    /// Calls code of a handler, which then can be told from other callers on this thread.
    pub(crate) fn within<T>(&self, f: impl FnOnce() -> T) -> T {
        let _within = Within(RUNS_FOR.replace(Some(Arc::as_ptr(&self.flags).addr())));
        f()
    }

    pub(crate) fn new(clock: Arc<dyn Clock>, observers: Arc<Observers>, link: Link) -> Self {
        Attempts {
            clock,
            link,
            observers,
            flags: Arc::default(),
            #[cfg(feature = "postgres")]
            fence: Arc::default(),
        }
    }

    /// Returns whether the lease of the owner lasts long enough for an attempt to begin.
    fn may_begin(&self) -> bool {
        #[cfg(feature = "postgres")]
        return self.fence.get().is_none_or(|fence| fence.may_start());
        #[cfg(not(feature = "postgres"))]
        true
    }

    /// Adds an attempt. Returns its stop flag.
    pub(crate) fn hand_over(&self, claim: &Arc<Claim>) -> Arc<StopFlag> {
        let flag = Arc::<StopFlag>::default();
        // A run that still runs under another flag was recovered by a scheduler that counted this owner as dead.
        if let Some((_, superseded)) = self.flags().insert(claim.run_id, (claim.clone(), flag.clone())) {
            superseded.raise(StopReason::Asked);
        }
        flag
    }

    /// Records in the slots that the attempt begins, for a scheduler that recovers this one's runs. An attempt that cannot be
    /// recorded must not begin, and none may while the folder of the lock files is unsafe or the owner's lease ends soon, or after a
    /// shutdown or a lost lease has asked it to stop: it is to be returned to the queue.
    pub(crate) fn begin(&self, claim: &Arc<Claim>, flag: &StopFlag, now: Now) -> Option<Place> {
        let Claim { run_id, task, owner, .. } = &**claim;
        if flag.raised().is_some_and(StopReason::interrupts) {
            return None;
        }
        if !self.may_begin() {
            log::warn!("run {run_id} of {task:?} is returned to the queue: the lease of this scheduler ends soon");
            return None;
        }
        let alive = &self.link.alive;
        let begin = || alive.begin(claim.identified(), owner.as_deref());
        let place = match alive.check_folder(now.monotonic).and_then(|()| begin()) {
            Ok(place) => place,
            Err(error) => {
                let reason = "its start cannot be noted in the lock file";
                log::warn!("run {run_id} of {task:?} is returned to the queue: {reason}: {error}");
                return None;
            }
        };
        if claim.read_ahead {
            flag.begin(now);
        }
        self.observers.notify(&Event::Started { claim: claim.clone() });
        Some(place)
    }

    /// Removes an attempt that has not begun, and is taken back.
    pub(crate) fn end(&self, claim: &Arc<Claim>) {
        end(&mut self.flags(), claim);
    }

    /// Removes attempts whose outcomes are stored.
    pub(crate) fn settled(&self, claims: Vec<Arc<Claim>>) {
        let mut flags = self.flags();
        claims.iter().for_each(|claim| end(&mut flags, claim));
    }

    /// Returns what the rows of attempts that run for long do not show yet: the begin of those that were read ahead, and the processes of
    /// those that an executor runs.
    pub(crate) fn take_late(&self, now: Duration) -> Vec<Report> {
        let flags = self.flags();
        let report = |claim: &Claim, kind| Report {
            run: claim.run_id,
            attempt: claim.attempt,
            owner: claim.owner.clone(),
            kind,
        };
        let processes = flags
            .values()
            .filter_map(|(claim, flag)| Some(report(claim, ReportKind::Process(flag.take_process(now)?.to_string()))));
        let ahead = flags.values().filter(|(claim, _)| claim.read_ahead);
        let begun = ahead.filter_map(|(claim, flag)| {
            let at = flag.take_begun(|at| now.saturating_sub(at.monotonic) >= LONG)?;
            Some(report(claim, ReportKind::Began(at.wall)))
        });
        begun.chain(processes.take(MAX_OUTCOMES)).collect()
    }

    /// Asks the handler of a run to stop.
    pub(crate) fn stop(&self, run: i64, reason: StopReason) {
        if let Some((_, flag)) = self.flags().get(&run) {
            flag.raise(reason);
        }
    }

    /// Asks every handler to stop: for this reason, or because its time limit had passed before.
    pub(crate) fn stop_all(&self, reason: StopReason) {
        self.handed_over().stop_all(reason);
    }

    /// Returns what another thread may know and do.
    pub(crate) fn handed_over(&self) -> HandedOver {
        HandedOver { flags: self.flags.clone(), clock: self.clock.clone() }
    }

    fn flags(&self) -> MutexGuard<'_, BTreeMap<i64, Handed>> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`Attempts`] for another thread than the loop. It holds no lock of the owner.
pub(crate) struct HandedOver {
    flags: Arc<Mutex<BTreeMap<i64, Handed>>>,
    clock: Arc<dyn Clock>,
}

impl HandedOver {
    /// Returns the attempts that are handed over and whose outcomes are not stored.
    pub(crate) fn claims(&self) -> Vec<Arc<Claim>> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner).values().map(|(claim, _)| claim.clone()).collect()
    }

    /// Returns whether this thread runs one of them: it must not wait for them.
    pub(crate) fn are_on_this_thread(&self) -> bool {
        RUNS_FOR.get() == Some(Arc::as_ptr(&self.flags).addr())
    }

    /// As [`Attempts::stop_all`].
    pub(crate) fn stop_all(&self, reason: StopReason) {
        for (_, flag) in self.flags.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let is_late = flag.deadline().is_some_and(|at| self.clock.until(at).is_zero());
            flag.raise(if is_late { StopReason::TimeUp } else { reason });
        }
    }
}

fn end(flags: &mut BTreeMap<i64, Handed>, claim: &Arc<Claim>) {
    if flags.get(&claim.run_id).is_some_and(|(newest, _)| Arc::ptr_eq(newest, claim)) {
        flags.remove(&claim.run_id);
    }
}

/// Calls the handler once. A panic of it is a failed attempt: the thread lives on. `begins` receives its time limit, if it has
/// one.
pub(crate) fn attempt(
    handler: &dyn Handler,
    claim: &Arc<Claim>,
    began: Now,
    clock: Arc<dyn Clock>,
    stop: Arc<StopFlag>,
    tools: Tools,
    begins: impl FnOnce(Duration),
) -> Finished {
    let mut stopped = Stopped::default();
    let flag = stop.clone();
    let span = AttemptSpan::new(claim);
    // The handler's own limit and the text of its error are application code as well.
    let run = || {
        let limit = limit(handler, claim);
        if let Some(limit) = limit {
            begins(limit);
        }
        let context = Context::new(claim.clone(), clock.clone(), stop, limit, tools.clone());
        let returned = handler.run(&context);
        stopped = Stopped::of(&context);
        judged(returned)
    };
    let ended = panics::contained(|| span.within(run));
    let outcome = ended.unwrap_or_else(|panic| panicked(&panic));
    let finished = ended_with(claim, outcome, stopped, (began, clock.now()), &tools);
    flag.raise(StopReason::Over);
    span.ended(claim, &finished.outcome);
    tools.left_of(finished)
}

/// Returns the outcome of a handler that panicked.
pub(crate) fn panicked(panic: &str) -> Outcome {
    let error = format!("the handler panicked: {panic}");
    Outcome::Failed { how: FailureKind::Panicked, error, retry: Retry::Backoff }
}

/// What had asked an attempt to stop when its work ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopped {
    /// The time limit, if it was exceeded.
    exceeded: Option<Duration>,
    reason: Option<StopReason>,
}

impl Stopped {
    pub(crate) fn of(context: &Context) -> Self {
        let exceeded = context.exceeded();
        let work_end = context.reported().work_end;
        let reason = work_end.map_or_else(|| context.stop_reason(), |end| end.stop);
        Stopped { exceeded, reason }
    }
}

/// Returns the end of an attempt, with what its handler reported. A copy of its [`Context`] can record nothing more. What is left of
/// its effects, or is being committed with rows of the handler, is not part of it yet: see [`Tools::with_left`].
pub(crate) fn ended_with(
    claim: &Arc<Claim>,
    outcome: Outcome,
    stopped: Stopped,
    (began, ended): (Now, Now),
    tools: &Tools,
) -> Finished {
    let reported = {
        let mut reported = tools.reported();
        let effects = std::mem::take(&mut reported.effects);
        let end = if matches!(reported.end, OwnEnd::Writing) { OwnEnd::Ending } else { OwnEnd::Over };
        std::mem::replace(&mut *reported, Reported { end, effects, ..Reported::default() })
    };
    let input = reported.input;
    let progress = reported.latest.and_then(|latest| latest.end());
    let ended = reported.work_end.and_then(|end| end.at).unwrap_or(ended);
    if let OwnEnd::Written(finished) = reported.end {
        if let Outcome::Failed { error, .. } = outcome {
            let Claim { run_id, task, .. } = &**claim;
            log::warn!(
                "run {run_id} of {task:?} was finished by its handler; what failed then changes nothing: {error:?}"
            );
        }
        input.iter().for_each(Input::remove);
        return *finished;
    }
    let (output, exit_code) = (reported.output, reported.exit_code);
    let mut finished = Finished::new(claim.clone(), outcome, began, ended);
    if stopped.reason.is_some_and(StopReason::interrupts) {
        finished = finished.asked_by_shutdown();
    }
    let finished = finished.exceeding(stopped.exceeded).with_remark(reported.remark);
    Finished { output, exit_code, progress, input, ..finished }
}

/// Returns the time limit of an attempt: the task's, else the handler's.
pub(crate) fn limit(handler: &dyn Handler, claim: &Claim) -> Option<Duration> {
    claim.timeout.or_else(|| handler.default_timeout()).filter(|limit| !limit.is_zero())
}

/// Returns the outcome for a handler's answer.
pub(crate) fn judged(returned: Result<Option<String>, BoxError>) -> Outcome {
    match returned {
        Ok(result) => Outcome::Succeeded { result },
        Err(error) => {
            let retry = match (error.downcast_ref::<Failure>(), error.downcast_ref::<Error>()) {
                (Some(failure), _) => failure.retry(),
                (_, Some(Error::InvalidPayload { .. })) => Retry::GiveUp,
                _ => Retry::Backoff,
            };
            let failed = Outcome::Failed { how: FailureKind::Failed, error: error.to_string(), retry };
            panics::dispose("the error of a handler", error);
            failed
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::bounded;

    use super::Attempts;
    use crate::clock::{Clock, SystemClock, Timestamp};
    use crate::host::owner_lock::OwnerLock;
    use crate::model::observers::Observers;
    use crate::model::run::Claim;
    use crate::worker::attempt::{Link, StopReason};

    #[test]
    fn an_attempt_that_a_shutdown_asked_to_stop_before_it_began_is_returned() {
        let home = tempfile::tempdir().unwrap();
        let anchor = home.path().join("anchor");
        std::fs::write(&anchor, "").unwrap();
        let alive = Arc::new(OwnerLock::take(&anchor, "a-1").unwrap());
        let clock = Arc::new(SystemClock::new());
        let now = clock.now();
        let attempts = Attempts::new(clock, Arc::new(Observers(Vec::new())), Link { notices: bounded(1).0, alive });
        let noon = Timestamp::from_millis(1_805_025_600_000);
        let cases = [(StopReason::Shutdown, false), (StopReason::LeaseLost, false), (StopReason::Asked, true)];
        for (run, (reason, begins)) in (1..).zip(cases) {
            let claim = Arc::new(Claim::described(run, 1, "t".to_owned(), "work".to_owned(), noon));
            let flag = attempts.hand_over(&claim);
            flag.raise(reason);
            assert_eq!(attempts.begin(&claim, &flag, now).is_some(), begins, "{reason:?}");
        }
    }
}
