//! Async handlers: each attempt is a future on the application's runtime, so that many of them need no thread each.
//!
//! The loop hands an attempt over and goes on; its outcome arrives as that of a worker thread does. A future that the runtime drops
//! before it returned reports that too, so no attempt is lost while this process lives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Wakers, Poll};
use std::time::Duration;

use crossbeam_channel::Sender;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::clock::Now;
use crate::error::BoxError;
use crate::host::attempt_slots::Place;
use crate::host::panics;
use crate::model::finished::Finished;
use crate::model::retry::Retry;
use crate::model::run::{Claim, FailureKind, Outcome};
use crate::worker::attempt::{StopFlag, StopReason, Tools};
use crate::worker::connection::WorkerConnection;
use crate::worker::handed::{Attempts, UNNOTED, ended_with, judged, panicked};
use crate::worker::handler::{Context, HandlerFuture, Handlers};

/// How long after the request to stop a future may still run. Then it is dropped.
const GRACE: Duration = Duration::from_secs(10);

/// Attempts that the runtime has not begun for this long are returned to the queue.
const UNSTARTED: Duration = Duration::from_millis(500);

/// Where the attempts of async handlers run, and how many at once.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    pub(crate) handle: Handle,
    pub(crate) limit: usize,
    /// Wakes the loop.
    pub(crate) wake: Sender<()>,
}

/// The attempts of async handlers. Belongs to the loop.
pub(crate) struct Futures {
    runtime: Runtime,
    shared: Arc<Shared>,
    /// Those that were handed over and whose outcome has not returned.
    running: BTreeMap<(i64, u32), Running>,
    /// Those of them that may not have begun, oldest first, and when they were handed over.
    waiting: VecDeque<(Duration, Arc<Attempt>)>,
    /// By the monotonic clock: when an attempt exceeds its time limit, or is dropped.
    timers: BTreeSet<(Duration, (i64, u32))>,
    /// Whether the loss of the runtime has been logged.
    is_reported: bool,
}

struct Running {
    attempt: Arc<Attempt>,
    abort: AbortHandle,
    timer: Option<Duration>,
}

/// What every attempt uses.
struct Shared {
    handlers: Arc<Handlers>,
    attempts: Attempts,
    connection: Arc<Mutex<WorkerConnection>>,
    file: Arc<Path>,
    gate: Arc<Semaphore>,
    done: Sender<Finished>,
    wake: Sender<()>,
    state: Mutex<RuntimeState>,
}

/// Whether the runtime begins attempts.
#[derive(Debug, Default)]
struct RuntimeState {
    /// It dropped a future: it has shut down.
    is_gone: bool,
    /// Attempts were taken back from it, and it has polled none since.
    is_stalled: bool,
    /// No attempt can begin before, by the monotonic clock.
    rests_until: Duration,
}

struct Attempt {
    claim: Arc<Claim>,
    flag: Arc<StopFlag>,
    state: Mutex<State>,
    /// Whether the loop has it dropped.
    is_dropped: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// Returned to the queue: it must not begin.
    Recalled,
    /// Since this time by the monotonic clock.
    Begun(Duration),
}

impl Futures {
    pub(crate) fn new(
        runtime: Runtime,
        handlers: Arc<Handlers>,
        attempts: Attempts,
        connection: WorkerConnection,
        done: Sender<Finished>,
    ) -> Self {
        let file = connection.file();
        let (connection, gate) = (Arc::new(Mutex::new(connection)), Arc::new(Semaphore::new(1)));
        let (wake, state) = (runtime.wake.clone(), Mutex::default());
        let shared = Arc::new(Shared { handlers, attempts, connection, file, gate, done, wake, state });
        let (running, waiting, timers) = (BTreeMap::new(), VecDeque::new(), BTreeSet::new());
        Futures { runtime, shared, running, waiting, timers, is_reported: false }
    }

    /// Returns how many attempts are handed over and have not ended.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns how many more attempts may be handed over now.
    pub(crate) fn free(&self, now: Duration) -> usize {
        let state = self.shared.state();
        let begins = !state.is_gone && !state.is_stalled && state.rests_until <= now;
        if begins { self.runtime.limit.saturating_sub(self.running.len()) } else { 0 }
    }

    /// Starts an attempt on the runtime.
    pub(crate) fn submit(&mut self, claim: Arc<Claim>) {
        let now = self.now().monotonic;
        let flag = self.shared.attempts.hand_over(&claim);
        let (id, limit) = ((claim.run_id, claim.attempt), limit(&claim));
        let (state, is_dropped) = (Mutex::new(State::Waiting), AtomicBool::new(false));
        let attempt = Arc::new(Attempt { claim, flag, state, is_dropped });
        let spawned = Spawned { shared: self.shared.clone(), attempt: attempt.clone(), began: None, is_over: false };
        let abort = self.runtime.handle.spawn(spawned.run()).abort_handle();
        self.waiting.push_back((now, attempt.clone()));
        self.running.insert(id, Running { attempt, abort, timer: None });
        if let Some(limit) = limit {
            self.set_timer(id, now.saturating_add(limit));
        }
    }

    /// Forgets an attempt whose outcome has returned. Returns whether it is one of these.
    pub(crate) fn returned(&mut self, claim: &Claim) -> bool {
        let id = (claim.run_id, claim.attempt);
        let Some(running) = self.running.remove(&id) else { return false };
        running.timer.map(|at| self.timers.remove(&(at, id)));
        true
    }

    /// Takes back attempts that have not begun: all of them, or those that the runtime has left waiting for too long.
    pub(crate) fn recall(&mut self, now: Now, all: bool) -> Vec<Finished> {
        let is_gone = self.shared.state().is_gone;
        if is_gone && !std::mem::replace(&mut self.is_reported, true) {
            log::error!(
                "the runtime of the async handlers has shut down: this scheduler starts none of their runs any more"
            );
        }
        let mut recalled = Vec::new();
        while let Some((since, attempt)) = self.waiting.front() {
            if *attempt.state() != State::Waiting {
                self.waiting.pop_front();
                continue;
            }
            if !all && !is_gone && now.monotonic < *since + UNSTARTED {
                break;
            }
            let attempt = attempt.clone();
            let is_recalled = {
                // Locked, so that a future that is polled meanwhile ends the stall.
                let mut state = self.shared.state();
                let is_recalled = attempt.change(State::Recalled);
                state.is_stalled |= is_recalled;
                is_recalled
            };
            if is_recalled {
                self.shared.attempts.end(&attempt.claim);
                self.returned(&attempt.claim);
                recalled.push(Finished::new(attempt.claim.clone(), Outcome::Released, now, now));
            }
        }
        recalled
    }

    /// Returns when [`Futures::recall`] or [`Futures::expire`] has something to do, or attempts may begin again, by the monotonic
    /// clock.
    pub(crate) fn next(&self, now: Duration) -> Option<Duration> {
        let waiting = self.waiting.front().map(|(since, _)| *since + UNSTARTED);
        let timer = self.timers.first().map(|(at, _)| *at);
        let rests = Some(self.shared.state().rests_until).filter(|until| *until > now);
        waiting.into_iter().chain(timer).chain(rests).min()
    }

    /// Asks attempts that exceed their time limit to stop, and drops those that were asked and have not stopped in time.
    pub(crate) fn expire(&mut self, now: Duration) {
        while let Some((_, id)) = self.due(now) {
            let Some(running) = self.running.get_mut(&id) else { continue };
            running.timer = None;
            let attempt = &running.attempt;
            let limit = limit(&attempt.claim).unwrap_or_default();
            let state = *attempt.state();
            let again = match state {
                _ if attempt.flag.raised().is_some() => {
                    attempt.is_dropped.store(true, Ordering::SeqCst);
                    running.abort.abort();
                    None
                }
                State::Waiting => Some(now.saturating_add(limit)),
                State::Recalled => None,
                State::Begun(at) if at.saturating_add(limit) > now => Some(at.saturating_add(limit)),
                State::Begun(_) => {
                    attempt.flag.raise(StopReason::TimeUp);
                    Some(now.saturating_add(GRACE))
                }
            };
            if let Some(at) = again {
                self.set_timer(id, at);
            }
        }
    }

    /// Has the attempts of a run, or all, dropped if they do not stop in time. They have been asked to.
    pub(crate) fn drop_late(&mut self, run: Option<i64>) {
        let until = self.now().monotonic.saturating_add(GRACE);
        let range = run.map_or((i64::MIN, 0)..=(i64::MAX, u32::MAX), |run| (run, 0)..=(run, u32::MAX));
        let asked: Vec<_> = self.running.range(range).map(|(id, running)| (*id, running.timer)).collect();
        // A repeated request does not prolong the wait.
        for (id, _) in asked.into_iter().filter(|(_, timer)| timer.is_none_or(|at| at > until)) {
            self.set_timer(id, until);
        }
    }

    fn due(&mut self, now: Duration) -> Option<(Duration, (i64, u32))> {
        self.timers.first().is_some_and(|(at, _)| *at <= now).then(|| self.timers.pop_first()).flatten()
    }

    fn set_timer(&mut self, id: (i64, u32), at: Duration) {
        if let Some(running) = self.running.get_mut(&id) {
            running.timer.replace(at).map(|before| self.timers.remove(&(before, id)));
            self.timers.insert((at, id));
        }
    }

    fn now(&self) -> Now {
        self.shared.attempts.clock.now()
    }
}

/// Returns the time limit of an attempt.
fn limit(claim: &Claim) -> Option<Duration> {
    claim.timeout.filter(|limit| !limit.is_zero())
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, RuntimeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state of the runtime, and wakes the loop if that changed it.
    fn update(&self, change: impl FnOnce(&mut RuntimeState) -> bool) {
        if change(&mut self.state()) {
            let _ = self.wake.try_send(());
        }
    }
}

impl Attempt {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the state `Waiting`. Returns false if it is another one already.
    fn change(&self, to: State) -> bool {
        let mut state = self.state();
        let is_waiting = *state == State::Waiting;
        if is_waiting {
            *state = to;
        }
        is_waiting
    }
}

/// An attempt as the runtime holds it. Reports its end when it is dropped, at the latest.
struct Spawned {
    shared: Arc<Shared>,
    attempt: Arc<Attempt>,
    began: Option<Began>,
    is_over: bool,
}

struct Began {
    now: Now,
    place: Place,
    context: Context,
    tools: Tools,
}

impl Spawned {
    async fn run(mut self) {
        let Shared { attempts, handlers, .. } = &*self.shared.clone();
        let (claim, flag) = (self.attempt.claim.clone(), self.attempt.flag.clone());
        let now = attempts.clock.now();
        self.is_over = !self.attempt.change(State::Begun(now.monotonic));
        self.shared.update(|state| std::mem::take(&mut state.is_stalled));
        if self.is_over {
            return;
        }
        let Some(handler) = handlers.future(&claim.handler) else {
            let error = format!("no async handler is named {:?} here", claim.handler);
            return self.report(Finished::new(claim, Outcome::failed(error), now, now));
        };
        let Some(place) = attempts.begin(&claim, &flag, now) else {
            self.shared.update(|state| {
                state.rests_until = now.monotonic.saturating_add(UNNOTED);
                true
            });
            return self.report(Finished::new(claim, Outcome::Released, now, now));
        };
        let connection = self.shared.connection.clone();
        let tools =
            Tools::shared(connection, self.shared.file.clone(), self.shared.gate.clone(), attempts.link.clone());
        let context = Context::new(claim.clone(), attempts.clock.clone(), flag, limit(&claim), tools.clone());
        self.began = Some(Began { now, place, context: context.clone(), tools });
        let answer = match panics::contained(|| handler(context)) {
            Ok(future) => Contained(Some(future)).await,
            Err(panic) => Err(panic),
        };
        // The text of an error is application code as well.
        let outcome = answer.and_then(|returned| panics::contained(|| judged(returned)));
        self.end(outcome.unwrap_or_else(|panic| panicked(&panic)));
    }

    /// Reports how an attempt ended that has begun.
    fn end(&mut self, outcome: Outcome) {
        if let Some(Began { now, place, context, tools }) = self.began.take() {
            let ended = self.shared.attempts.clock.now();
            let finished = ended_with(&self.attempt.claim, outcome, context.exceeded(), (now, ended), &tools);
            self.report(Finished { slot: Some(place), ..self.shared.handlers.with_backoff(finished) });
        }
    }

    fn report(&mut self, finished: Finished) {
        self.is_over = true;
        self.shared.attempts.end(&self.attempt.claim);
        // The channel holds as many as may be running. Without a loop the next scheduler recovers the run.
        let _ = self.shared.done.send(finished);
    }

    /// Returns the outcome of an attempt whose future was dropped before it returned.
    fn dropped(&self) -> Outcome {
        let reason = self.attempt.flag.raised();
        let (how, retry) = match reason {
            Some(StopReason::Shutdown) => (FailureKind::Failed, Retry::Interrupted),
            Some(StopReason::TimeUp) => (FailureKind::TimedOut, Retry::Backoff),
            Some(StopReason::Asked) | None => (FailureKind::Failed, Retry::Backoff),
        };
        let error = if self.attempt.is_dropped.load(Ordering::SeqCst) {
            let limit = limit(&self.attempt.claim).filter(|_| reason == Some(StopReason::TimeUp));
            let late = limit.map(|limit| format!("it took longer than {}: ", humantime::format_duration(limit)));
            let grace = humantime::format_duration(GRACE);
            format!("{}it was asked to stop, did not return within {grace}, and was dropped", late.unwrap_or_default())
        } else {
            "the runtime dropped it before it returned: it has shut down".to_owned()
        };
        Outcome::Failed { how, error, retry }
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if std::thread::panicking() {
            return self.end(panicked("outside of its own code"));
        }
        if !self.attempt.is_dropped.load(Ordering::SeqCst) {
            self.shared.update(|state| !std::mem::replace(&mut state.is_gone, true));
        }
        // One that has not begun is taken back by the loop.
        self.end(self.dropped());
    }
}

/// A future of application code, none of whose panics reaches the runtime.
struct Contained(Option<HandlerFuture>);

impl Future for Contained {
    type Output = Result<Result<Option<String>, BoxError>, String>;

    fn poll(mut self: Pin<&mut Self>, wakers: &mut Wakers<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let answer = match panics::contained(|| future.as_mut().poll(wakers)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(answer)) => Ok(answer),
            Err(panic) => Err(panic),
        };
        self.dispose();
        Poll::Ready(answer)
    }
}

impl Contained {
    fn dispose(&mut self) {
        if let Some(future) = self.0.take() {
            panics::dispose("the future of a handler", future);
        }
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        self.dispose();
    }
}
