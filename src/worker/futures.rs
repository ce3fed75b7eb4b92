//! Async handlers: each attempt is a future on the application's runtime, so that many of them need no thread each.
//!
//! The loop hands an attempt over and goes on; its outcome arrives as that of a worker thread does. A future that the runtime drops
//! before it returned reports that too, so no attempt is lost while this process lives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Wakers, Poll};
use std::time::Duration;

use crossbeam_channel::Sender;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::clock::Now;
use crate::error::BoxError;
use crate::host::panics;
use crate::model::finished::Finished;
use crate::model::health::{RUNTIME_BLOCKED, RUNTIME_GONE};
use crate::model::retry::Retry;
use crate::model::run::{Claim, FailureKind, Outcome};
use crate::worker::attempt::{StopFlag, StopReason};
use crate::worker::handed::{Attempts, UNNOTED, panicked};
use crate::worker::handler::HandlerFuture;
use crate::worker::lane::{Began, Id, Lane, LaneTools, Timers, broken, limit, outcome_of, range};
use crate::worker::span::AttemptSpan;

/// How long after the request to stop a future may still run. Then it is dropped.
const GRACE: Duration = Duration::from_secs(10);

/// Attempts that the runtime has not begun for this long are returned to the queue.
const UNSTARTED: Duration = Duration::from_millis(500);

/// A runtime that polls nothing for this long is reported as a problem.
const BLOCKED: Duration = Duration::from_secs(10);

/// Where the attempts of async handlers run, and how many at once.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    pub(crate) handle: Handle,
    pub(crate) limit: usize,
    /// Wakes the loop.
    pub(crate) wake: Sender<()>,
}

/// The attempts of async handlers.
pub(crate) struct Futures {
    runtime: Runtime,
    handlers: Arc<BTreeSet<String>>,
    shared: Arc<Shared>,
    /// Those that were handed over and whose outcome has not returned.
    running: BTreeMap<Id, Running>,
    /// Those of them that may not have begun, oldest first, and when they were handed over.
    waiting: VecDeque<(Duration, Arc<Attempt>)>,
    /// When an attempt exceeds its time limit, or is dropped.
    timers: Timers,
    /// Whether the loss of the runtime has been logged.
    is_reported: bool,
}

struct Running {
    attempt: Arc<Attempt>,
    abort: AbortHandle,
    /// Whether it was asked to stop. Then its timer drops it.
    is_asked: bool,
}

/// What every attempt uses.
struct Shared {
    tools: LaneTools,
    wake: Sender<()>,
    state: Mutex<RuntimeState>,
}

/// Whether the runtime begins attempts.
#[derive(Debug, Default)]
struct RuntimeState {
    /// It dropped a future: it has shut down.
    is_gone: bool,
    /// Attempts were taken back from it at this time by the monotonic clock, and it has polled none since.
    stalled_since: Option<Duration>,
    /// No attempt can begin before, by the monotonic clock.
    rests_until: Duration,
}

struct Attempt {
    claim: Arc<Claim>,
    handed_over: Now,
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
    pub(crate) fn new(runtime: Runtime, tools: LaneTools) -> Self {
        let handlers = Arc::new(tools.handlers.future_names());
        let shared = Arc::new(Shared { tools, wake: runtime.wake.clone(), state: Mutex::default() });
        let (running, waiting, timers) = (BTreeMap::new(), VecDeque::new(), Timers::default());
        Futures { runtime, handlers, shared, running, waiting, timers, is_reported: false }
    }

    fn now(&self) -> Now {
        self.shared.tools.attempts.clock.now()
    }
}

impl Lane for Futures {
    fn handlers(&mut self) -> Arc<BTreeSet<String>> {
        self.handlers.clone()
    }

    fn running(&self) -> usize {
        self.running.len()
    }

    fn needs_no_runtime(&self) -> bool {
        false
    }

    fn free(&self, now: Duration) -> usize {
        let state = self.shared.state();
        let begins = !state.is_gone && state.stalled_since.is_none() && state.rests_until <= now;
        if begins { self.runtime.limit.saturating_sub(self.running.len()) } else { 0 }
    }

    fn submit(&mut self, claim: Arc<Claim>, flag: Arc<StopFlag>) {
        let handed_over = self.now();
        let now = handed_over.monotonic;
        let (id, limit) = ((claim.run_id, claim.attempt), limit(&claim));
        let (state, is_dropped) = (Mutex::new(State::Waiting), AtomicBool::new(false));
        let attempt = Arc::new(Attempt { claim, handed_over, flag, state, is_dropped });
        let spawned = Spawned { shared: self.shared.clone(), attempt: attempt.clone(), began: None, is_over: false };
        let abort = self.runtime.handle.spawn(spawned.run()).abort_handle();
        self.waiting.push_back((now, attempt.clone()));
        self.running.insert(id, Running { attempt, abort, is_asked: false });
        if let Some(limit) = limit {
            self.timers.set(id, now.saturating_add(limit));
        }
    }

    fn returned(&mut self, claim: &Claim) -> bool {
        let id = (claim.run_id, claim.attempt);
        self.timers.cancel(id);
        self.running.remove(&id).is_some()
    }

    fn recall(&mut self, now: Now, all: bool) -> Vec<Finished> {
        let is_gone = self.shared.state().is_gone;
        if is_gone && !std::mem::replace(&mut self.is_reported, true) {
            log::error!("{RUNTIME_GONE}");
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
                if is_recalled {
                    state.stalled_since.get_or_insert(now.monotonic);
                }
                is_recalled
            };
            if is_recalled {
                self.shared.tools.attempts.end(&attempt.claim);
                self.returned(&attempt.claim);
                recalled.push(Finished::new(attempt.claim.clone(), Outcome::Released, now, now));
            }
        }
        recalled
    }

    fn next(&self, now: Duration) -> Option<Duration> {
        let waiting = self.waiting.front().map(|(since, _)| *since + UNSTARTED);
        let rests = Some(self.shared.state().rests_until).filter(|until| *until > now);
        waiting.into_iter().chain(self.timers.next()).chain(rests).min()
    }

    fn trouble(&self, now: Duration) -> Option<&'static str> {
        let state = self.shared.state();
        let is_blocked = state.stalled_since.is_some_and(|since| now.saturating_sub(since) >= BLOCKED);
        if state.is_gone { Some(RUNTIME_GONE) } else { is_blocked.then_some(RUNTIME_BLOCKED) }
    }

    fn expire(&mut self, now: Duration) {
        while let Some(id) = self.timers.take_due(now) {
            let Some(running) = self.running.get_mut(&id) else { continue };
            let attempt = &running.attempt;
            let limit = limit(&attempt.claim).unwrap_or_default();
            let state = *attempt.state();
            let again = match state {
                _ if running.is_asked => {
                    attempt.is_dropped.store(true, Ordering::SeqCst);
                    running.abort.abort();
                    None
                }
                State::Waiting => Some(now.saturating_add(limit)),
                State::Recalled => None,
                State::Begun(at) if at.saturating_add(limit) > now => Some(at.saturating_add(limit)),
                State::Begun(_) => {
                    attempt.flag.raise(StopReason::TimeUp);
                    running.is_asked = true;
                    Some(now.saturating_add(GRACE))
                }
            };
            if let Some(at) = again {
                self.timers.set(id, at);
            }
        }
    }

    fn stop(&mut self, run: Option<i64>) {
        let mut until = None;
        for (id, running) in self.running.range_mut(range(run)) {
            // A repeated request does not prolong the wait.
            if !std::mem::replace(&mut running.is_asked, true) {
                let now = || self.shared.tools.attempts.clock.now().monotonic;
                self.timers.set(*id, *until.get_or_insert_with(|| now().saturating_add(GRACE)));
            }
        }
    }
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

impl Spawned {
    async fn run(mut self) {
        let answer = match panics::contained(|| self.begin()) {
            Ok(None) => return,
            Ok(Some((span, Ok(future)))) => {
                let attempts = self.shared.tools.attempts.clone();
                Contained { future: Some(future), span, attempts }.await
            }
            Ok(Some((_, Err(panic)))) => Err(panic),
            Err(panic) => return self.report(broken(&self.attempt.claim, self.attempt.handed_over, &panic)),
        };
        self.end(answer.map_or_else(|panic| panicked(&panic), outcome_of));
    }

    /// Begins the attempt. Returns its span and the future of its handler, or the panic of a handler that returned none. `None`: it
    /// does not begin.
    fn begin(&mut self) -> Option<(AttemptSpan, Result<HandlerFuture, String>)> {
        let shared = self.shared.clone();
        let (claim, flag) = (&self.attempt.claim.clone(), &self.attempt.flag.clone());
        self.is_over = !self.attempt.change(State::Begun(self.attempt.handed_over.monotonic));
        shared.update(|state| state.stalled_since.take().is_some());
        if self.is_over {
            return None;
        }
        let now = shared.tools.attempts.clock.now();
        *self.attempt.state() = State::Begun(now.monotonic);
        let Some(handler) = shared.tools.handlers.future(&claim.handler) else {
            let error = format!("no async handler is named {:?} here", claim.handler);
            self.report(Finished::new(claim.clone(), Outcome::failed(error), now, now));
            return None;
        };
        let Some(began) = shared.tools.begin(claim, flag, now) else {
            shared.update(|state| {
                state.rests_until = now.monotonic.saturating_add(UNNOTED);
                true
            });
            self.report(Finished::new(claim.clone(), Outcome::Released, now, now));
            return None;
        };
        let (context, span) = (began.context.clone(), began.span.clone());
        self.began = Some(began);
        let attempts = &shared.tools.attempts;
        let future = panics::contained(|| attempts.within(|| span.within(|| handler(context))));
        Some((span, future))
    }

    /// Reports how an attempt ended that has begun.
    fn end(&mut self, outcome: Outcome) {
        if let Some(began) = self.began.take() {
            self.is_over = true;
            self.shared.tools.end(began, outcome);
        }
    }

    fn report(&mut self, finished: Finished) {
        self.is_over = true;
        self.shared.tools.report(finished);
    }

    /// Returns the outcome of an attempt whose future was dropped before it returned.
    fn dropped(&self) -> Outcome {
        let reason = self.attempt.flag.raised();
        let how = if reason == Some(StopReason::TimeUp) { FailureKind::TimedOut } else { FailureKind::Failed };
        let error = if self.attempt.is_dropped.load(Ordering::SeqCst) {
            let limit = limit(&self.attempt.claim).filter(|_| reason == Some(StopReason::TimeUp));
            let late = limit.map(|limit| format!("it took longer than {}: ", humantime::format_duration(limit)));
            let grace = humantime::format_duration(GRACE);
            format!("{}it was asked to stop, did not return within {grace}, and was dropped", late.unwrap_or_default())
        } else {
            "the runtime dropped it before it returned: it has shut down".to_owned()
        };
        Outcome::Failed { how, error, retry: Retry::Backoff }
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if !self.attempt.is_dropped.load(Ordering::SeqCst) {
            self.shared.update(|state| !std::mem::replace(&mut state.is_gone, true));
        }
        // One that has not begun is taken back by the loop.
        self.end(self.dropped());
    }
}

/// A future of application code, polled within its span. None of its panics reaches the runtime.
struct Contained {
    future: Option<HandlerFuture>,
    span: AttemptSpan,
    attempts: Attempts,
}

impl Future for Contained {
    type Output = Result<Result<Option<String>, BoxError>, String>;

    fn poll(mut self: Pin<&mut Self>, wakers: &mut Wakers<'_>) -> Poll<Self::Output> {
        let Contained { future, span, attempts } = &mut *self;
        let Some(future) = future else { return Poll::Pending };
        let poll = || span.within(|| future.as_mut().poll(wakers));
        let answer = match panics::contained(|| attempts.within(poll)) {
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
        if let Some(future) = self.future.take() {
            let dispose = || panics::dispose("the future of a handler", future);
            self.attempts.within(|| self.span.within(dispose));
        }
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        self.dispose();
    }
}
