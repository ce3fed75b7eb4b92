//! The attempts at one executor, as the loop knows them: when each has to stop, and that the executor is asked once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::host::panics;
use crate::model::finished::Finished;
use crate::model::run::{Claim, Outcome};
use crate::worker::attempt::{StopFlag, StopReason};
use crate::worker::executor::{Delegated, Executor, Waker};
use crate::worker::handed::UNNOTED;
use crate::worker::lane::{EndOrphan, Id, Lane, LaneTools, Timers, limit, range};

/// Most attempts at one executor.
pub(crate) const MOST: usize = 1024;

/// The attempts at one executor.
pub(crate) struct ExecutorLane {
    executor: Arc<dyn Executor>,
    tools: Arc<LaneTools>,
    /// Those that were handed over and whose outcome has not returned.
    running: BTreeMap<Id, Running>,
    /// When an attempt exceeds its time limit.
    timers: Timers,
    /// No attempt can begin before, by the monotonic clock.
    rests_until: Duration,
    /// The names that it returned last.
    handlers: Arc<BTreeSet<String>>,
}

struct Running {
    flag: Arc<StopFlag>,
    /// Whether the executor was asked to stop it.
    is_asked: bool,
}

impl ExecutorLane {
    pub(crate) fn new(executor: Arc<dyn Executor>, waker: Waker, tools: LaneTools) -> Self {
        call("attach", || executor.attach(waker));
        let (running, timers, handlers) = (BTreeMap::new(), Timers::default(), Arc::default());
        ExecutorLane { executor, tools: Arc::new(tools), running, timers, rests_until: Duration::ZERO, handlers }
    }
}

/// Calls a function of an executor. A panic of it is logged.
fn call<T>(name: &str, f: impl FnOnce() -> T) -> Option<T> {
    let logged = |panic: &String| log::error!("an executor panicked in `{name}`: {panic:?}");
    panics::contained(f).inspect_err(logged).ok()
}

/// Returns the handlers of an executor. `None`: it panicked, which is logged.
pub(crate) fn handlers_of(executor: &dyn Executor) -> Option<Arc<BTreeSet<String>>> {
    call("handlers", || executor.handlers())
}

impl Lane for ExecutorLane {
    fn handlers(&mut self) -> Arc<BTreeSet<String>> {
        if let Some(handlers) = handlers_of(&*self.executor) {
            self.handlers = handlers;
        }
        self.handlers.clone()
    }

    fn running(&self) -> usize {
        self.running.len()
    }

    fn free(&self, now: Duration) -> usize {
        if now < self.rests_until {
            return 0;
        }
        let left = MOST.saturating_sub(self.running.len());
        call("free", || self.executor.free()).unwrap_or_default().min(left)
    }

    fn submit(&mut self, claim: Arc<Claim>, flag: Arc<StopFlag>) {
        let now = self.tools.attempts.clock.now();
        let (id, limit) = ((claim.run_id, claim.attempt), limit(&claim));
        self.running.insert(id, Running { flag: flag.clone(), is_asked: false });
        let Some(began) = self.tools.begin(&claim, &flag, now) else {
            self.rests_until = now.monotonic.saturating_add(UNNOTED);
            return self.tools.report(Finished::new(claim, Outcome::Released, now, now));
        };
        if let Some(limit) = limit {
            self.timers.set(id, now.monotonic.saturating_add(limit));
        }
        let attempt = Delegated::new(began, self.tools.clone());
        // If it panics, the attempt is dropped, and has failed. The channel of outcomes has room for it.
        call("start", || self.executor.start(attempt));
    }

    fn returned(&mut self, claim: &Claim) -> bool {
        let id = (claim.run_id, claim.attempt);
        self.timers.cancel(id);
        self.running.remove(&id).is_some()
    }

    fn recall(&mut self, _now: Now, _all: bool) -> Vec<Finished> {
        // The executor releases what it has not begun.
        Vec::new()
    }

    fn expire(&mut self, now: Duration) {
        while let Some(id) = self.timers.take_due(now) {
            if let Some(running) = self.running.get(&id) {
                running.flag.raise(StopReason::TimeUp);
                self.stop_attempts(id..=id);
            }
        }
    }

    fn stop(&mut self, run: Option<i64>) {
        self.stop_attempts(range(run));
    }

    fn next(&self, now: Duration) -> Option<Duration> {
        let rests = Some(self.rests_until).filter(|until| *until > now);
        self.timers.next().into_iter().chain(rests).min()
    }

    fn end_orphan(&self) -> Option<EndOrphan> {
        let executor = self.executor.clone();
        Some(Box::new(move |orphan| executor.end_orphan(orphan)))
    }
}

impl ExecutorLane {
    /// Asks the executor to stop these attempts, unless it was asked before, or they have ended. Their flags are raised.
    fn stop_attempts(&mut self, ids: std::ops::RangeInclusive<Id>) {
        for ((run, attempt), running) in self.running.range_mut(ids) {
            if !std::mem::replace(&mut running.is_asked, true) {
                match running.flag.raised().unwrap_or(StopReason::Asked) {
                    StopReason::Over => {}
                    reason => _ = call("stop", || self.executor.stop(*run, *attempt, reason)),
                }
            }
        }
    }
}
