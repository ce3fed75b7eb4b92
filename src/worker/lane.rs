//! Attempts that run beside those of the worker threads: what the loop knows of them, and what their kinds share.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::clock::Now;
use crate::error::BoxError;
use crate::host::attempt_slots::Place;
use crate::host::orphan::Orphan;
use crate::host::panics;
use crate::model::finished::Finished;
use crate::model::retry::Retry;
use crate::model::run::{Claim, FailureKind, Outcome};
use crate::worker::attempt::{StopFlag, Tools};
use crate::worker::connection::WorkerConnection;
use crate::worker::handed::{Attempts, Stopped, ended_with, judged, panicked};
use crate::worker::handler::{Context, Handlers};
use crate::worker::span::AttemptSpan;

/// The id of a run and the number of an attempt.
pub(crate) type Id = (i64, u32);

/// Ends a command that a dead scheduler left.
pub(crate) type EndOrphan = Box<dyn Fn(&Orphan) + Send>;

/// Attempts that run beside those of the worker threads. Belongs to the loop.
pub(crate) trait Lane: Send {
    /// Returns the names of its handlers now.
    fn handlers(&mut self) -> Arc<BTreeSet<String>>;

    /// Returns how many attempts are handed over and have not ended.
    fn running(&self) -> usize;

    /// Returns whether its attempts can end while a thread waits that may be the only one of an async runtime.
    fn needs_no_runtime(&self) -> bool {
        true
    }

    /// Returns how many more attempts may be handed over now.
    fn free(&self, now: Duration) -> usize;

    /// Starts an attempt. `flag`: by which it is asked to stop.
    fn submit(&mut self, claim: Arc<Claim>, flag: Arc<StopFlag>);

    /// Forgets an attempt whose outcome has returned. Returns whether it is one of these.
    fn returned(&mut self, claim: &Claim) -> bool;

    /// Takes back attempts that have not begun: all of them, or those that have waited for too long.
    fn recall(&mut self, now: Now, all: bool) -> Vec<Finished>;

    /// Asks attempts that exceed their time limit to stop, and drops those that were asked and have not stopped in time, if it can.
    fn expire(&mut self, now: Duration);

    /// The attempts of a run, or all, have been asked to stop.
    fn stop(&mut self, run: Option<i64>);

    /// Returns when [`Lane::recall`] or [`Lane::expire`] has something to do, or attempts may begin again, by the monotonic clock.
    fn next(&self, now: Duration) -> Option<Duration>;

    /// Returns why it starts nothing, if something is wrong.
    fn trouble(&self, _now: Duration) -> Option<&'static str> {
        None
    }

    /// Returns what ends the commands that dead schedulers left, if something does.
    fn end_orphan(&self) -> Option<EndOrphan> {
        None
    }
}

/// The attempts of a run, or all of them.
pub(crate) fn range(run: Option<i64>) -> RangeInclusive<Id> {
    run.map_or((i64::MIN, 0)..=(i64::MAX, u32::MAX), |run| (run, 0)..=(run, u32::MAX))
}

/// What the attempts of a lane begin and end with.
pub(crate) struct LaneTools {
    pub(crate) handlers: Arc<Handlers>,
    pub(crate) attempts: Attempts,
    /// The template of each attempt's: one connection is shared by all.
    tools: Tools,
    done: Sender<Finished>,
}

/// An attempt that has begun.
pub(crate) struct Began {
    pub(crate) context: Context,
    pub(crate) span: AttemptSpan,
    now: Now,
    place: Place,
    tools: Tools,
}

impl LaneTools {
    pub(crate) fn new(
        handlers: Arc<Handlers>,
        attempts: Attempts,
        connection: WorkerConnection,
        done: Sender<Finished>,
    ) -> Self {
        let tools = Tools::new(Arc::new(Mutex::new(connection)), Some(attempts.link.clone()));
        LaneTools { handlers, attempts, tools, done }
    }

    /// Begins an attempt. `None`: it cannot begin, and is to be returned to the queue.
    pub(crate) fn begin(&self, claim: &Arc<Claim>, flag: &Arc<StopFlag>, now: Now) -> Option<Began> {
        let place = self.attempts.begin(claim, flag, now)?;
        let tools = self.tools.anew();
        let clock = self.attempts.clock.clone();
        let context = Context::new(claim.clone(), clock, flag.clone(), limit(claim), tools.clone());
        Some(Began { context, span: AttemptSpan::new(claim), now, place, tools })
    }

    /// Reports how an attempt ended that has begun.
    pub(crate) fn end(&self, began: Began, outcome: Outcome) {
        let Began { context, span, now, place, tools } = began;
        let claim = context.claim();
        let finished = panics::contained(|| {
            let ended = self.attempts.clock.now();
            ended_with(claim, outcome, Stopped::of(&context), (now, ended), &tools)
        });
        let finished = finished.unwrap_or_else(|panic| broken(claim, now, &panic));
        span.ended(claim, &finished.outcome);
        let finished = Finished { slot: Some(place), ..self.handlers.with_backoff(finished) };
        let done = self.done.clone();
        context.stop_copies();
        tools.with_left(move |left| report(&done, left.of(finished)));
    }

    /// Reports the end of an attempt.
    pub(crate) fn report(&self, finished: Finished) {
        report(&self.done, finished);
    }
}

fn report(done: &Sender<Finished>, finished: Finished) {
    // The channel holds as many as may be running. Without a loop the next scheduler recovers the run.
    let _ = done.send(finished);
}

/// Returns the outcome of what a handler returned. The text of an error is application code as well.
pub(crate) fn outcome_of(returned: Result<Option<String>, BoxError>) -> Outcome {
    panics::contained(|| judged(returned)).unwrap_or_else(|panic| panicked(&panic))
}

/// Returns the end of an attempt outside of whose handler code of the application panicked: its clock.
pub(crate) fn broken(claim: &Arc<Claim>, began: Now, panic: &str) -> Finished {
    let error = format!("the attempt ended before its handler did: {panic}");
    let outcome = Outcome::Failed { how: FailureKind::Panicked, error, retry: Retry::Backoff };
    Finished::new(claim.clone(), outcome, began, began)
}

/// Returns the time limit of an attempt.
pub(crate) fn limit(claim: &Claim) -> Option<Duration> {
    claim.timeout.filter(|limit| !limit.is_zero())
}

/// One timer for each attempt, by the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    by_time: BTreeSet<(Duration, Id)>,
    by_id: BTreeMap<Id, Duration>,
}

impl Timers {
    /// Sets the timer of an attempt, instead of the one that it has.
    pub(crate) fn set(&mut self, id: Id, at: Duration) {
        self.cancel(id);
        self.by_time.insert((at, id));
        self.by_id.insert(id, at);
    }

    pub(crate) fn cancel(&mut self, id: Id) {
        if let Some(at) = self.by_id.remove(&id) {
            self.by_time.remove(&(at, id));
        }
    }

    /// Takes an attempt whose timer has passed.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<Id> {
        let (_, id) = *self.by_time.first().filter(|(at, _)| *at <= now)?;
        self.cancel(id);
        Some(id)
    }

    /// Returns when the next timer passes.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.by_time.first().map(|(at, _)| *at)
    }
}
