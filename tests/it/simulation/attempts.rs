//! Handler calls: how long a handler takes, and what it returns.

use std::sync::Arc;
use std::time::Duration;

use duly::{Claim, FailureKind, Outcome, Retry};

use crate::simulation::effects::{Fault, LEDGER};
use crate::simulation::scenario::Scenario;

/// A claimed attempt, and the drawn result of its handler.
#[derive(Clone, Debug)]
pub(crate) struct HandlerCall {
    pub(crate) claim: Arc<Claim>,
    /// How long its handler takes.
    pub(crate) takes: Duration,
    /// By the monotonic clock; `None` until a worker or its lane takes it.
    pub(crate) ends_at: Option<Duration>,
    /// Its lane beside the workers.
    pub(crate) lane: Option<usize>,
    pub(crate) outcome: Outcome,
    /// Whether it has noticed that it should stop.
    pub(crate) stopping: bool,
    /// The fault to inject if it performs an effect.
    pub(crate) fault: Fault,
}

fn failed(how: FailureKind, error: &str, retry: Retry) -> Outcome {
    Outcome::Failed { how, error: error.to_owned(), retry }
}

pub(crate) fn succeeded(claim: &Claim) -> Outcome {
    Outcome::Succeeded { result: Some(format!("{}", claim.attempt)) }
}

/// Draws duration and outcome of an attempt.
pub(crate) fn draw_call(rng: &mut fastrand::Rng, claim: &Arc<Claim>) -> HandlerCall {
    let millis = Duration::from_millis;
    let (short, long) = (millis(rng.u64(..3000)), millis(rng.u64(..1_500_000)));
    let limit = claim.timeout.filter(|limit| !limit.is_zero()).unwrap_or(Duration::from_secs(60));
    let (takes, outcome) = match rng.u32(..100) {
        0..40 => (short, succeeded(claim)),
        40..57 => (long, succeeded(claim)),
        57..58 => (short, failed(FailureKind::Failed, "nothing to do", Retry::Skip)),
        58..72 => (short, failed(FailureKind::Failed, "it failed", Retry::Backoff)),
        72..77 => (long, failed(FailureKind::Failed, "it failed late", Retry::Backoff)),
        77..82 => (short, failed(FailureKind::Failed, "no use", Retry::GiveUp)),
        82..87 => {
            let wait = Duration::from_secs(rng.u64(..600));
            (short, failed(FailureKind::Failed, "come back later", Retry::After(wait)))
        }
        87..92 => (short, failed(FailureKind::Panicked, "the handler panicked", Retry::Backoff)),
        92..93 => (short, failed(FailureKind::Failed, "cut short", Retry::Interrupted)),
        // Up to ten minutes.
        93..94 => (short, failed(FailureKind::Failed, "snoozed", Retry::Snooze(short * 200))),
        94..95 => (short, failed(FailureKind::Failed, "not needed any more", Retry::Cancel)),
        // It ignores its time limit.
        95..98 => (limit + long * 4, succeeded(claim)),
        _ => (limit + long * 4, failed(FailureKind::Failed, "it took too long", Retry::Backoff)),
    };
    let fault = if claim.handler == LEDGER { Fault::draw(rng) } else { Fault::Nothing };
    HandlerCall { claim: claim.clone(), takes, ends_at: None, lane: None, outcome, stopping: false, fault }
}

impl HandlerCall {
    /// Whether the real handler is called at the end, and draws its outcome itself.
    pub(crate) fn calls_real_handler(&self) -> bool {
        self.claim.handler == LEDGER
            && matches!(self.outcome, Outcome::Succeeded { .. } | Outcome::Failed { retry: Retry::Backoff, .. })
    }

    /// Its handler returns now, or as soon as it is called.
    pub(crate) fn end_at(&mut self, now: Duration) {
        self.takes = Duration::ZERO;
        self.ends_at = self.ends_at.map(|_| now);
    }

    pub(crate) fn fails(&self) -> bool {
        !matches!(self.outcome, Outcome::Succeeded { .. })
    }

    /// Reacts to a request to stop: most handlers stop, some have just succeeded, some ignore it.
    pub(crate) fn notice_stop(&mut self, rng: &mut fastrand::Rng, now: Duration) {
        self.stopping = true;
        match rng.u32(..10) {
            0..6 => {
                self.takes = Duration::from_millis(rng.u64(..2000));
                self.ends_at = self.ends_at.map(|_| now + self.takes);
                self.outcome = failed(FailureKind::Failed, "stopped", Retry::Backoff);
            }
            6..8 => {
                self.end_at(now);
                self.outcome = succeeded(&self.claim);
            }
            _ => {}
        }
    }
}

impl Scenario {
    pub(crate) fn end_now(&mut self, id: usize, claim: &Arc<Claim>, outcome: Outcome) {
        let now = self.now().monotonic;
        let calls = &mut self.schedulers[id].calls;
        if let Some(call) = calls.iter_mut().find(|call| Arc::ptr_eq(&call.claim, claim)) {
            call.end_at(now);
            call.outcome = outcome;
        }
    }

    pub(crate) fn draw_call(&mut self, claim: &Arc<Claim>) -> HandlerCall {
        draw_call(&mut self.rng, claim)
    }

    /// Lets handlers notice that their run is to stop.
    pub(crate) fn stop_cancelled_calls(&mut self, id: usize) {
        let now = self.now().monotonic;
        let Scenario { schedulers, rng, .. } = self;
        let scheduler = &mut schedulers[id];
        let Some(stepper) = &scheduler.stepper else { return };
        for call in
            scheduler.calls.iter_mut().filter(|call| !call.stopping && stepper.stopped().contains(&call.claim.run_id))
        {
            call.notice_stop(rng, now);
        }
    }
}
