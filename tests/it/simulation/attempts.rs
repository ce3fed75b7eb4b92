//! What becomes of an attempt: how long its handler takes, and what it returns.

use std::sync::Arc;
use std::time::Duration;

use duly::{Claim, FailureKind, Outcome, Retry};

use crate::simulation::effects::{Fate, LEDGER};
use crate::simulation::scenario::World;

/// An attempt that a worker is at.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) claim: Arc<Claim>,
    /// By the monotonic clock.
    pub(crate) ends_at: Duration,
    pub(crate) outcome: Outcome,
    /// Whether it has noticed that it should stop.
    pub(crate) asked: bool,
    /// What is to befall it while it does what it does once.
    pub(crate) fate: Fate,
}

fn failed(how: FailureKind, error: &str, retry: Retry) -> Outcome {
    Outcome::Failed { how, error: error.to_owned(), retry }
}

pub(crate) fn succeeded(claim: &Claim) -> Outcome {
    Outcome::Succeeded { result: Some(format!("{}", claim.attempt)) }
}

/// Draws the fate of an attempt that begins now.
pub(crate) fn fate(rng: &mut fastrand::Rng, claim: &Arc<Claim>, now: Duration) -> Work {
    let millis = Duration::from_millis;
    let (short, long) = (millis(rng.u64(..3000)), millis(rng.u64(..1_500_000)));
    let limit = claim.timeout.filter(|limit| !limit.is_zero()).unwrap_or(Duration::from_secs(60));
    let (takes, outcome) = match rng.u32(..100) {
        0..40 => (short, succeeded(claim)),
        40..58 => (long, succeeded(claim)),
        58..72 => (short, failed(FailureKind::Failed, "it did not work", Retry::Backoff)),
        72..77 => (long, failed(FailureKind::Failed, "it did not work after all", Retry::Backoff)),
        77..82 => (short, failed(FailureKind::Failed, "no use", Retry::GiveUp)),
        82..87 => {
            let wait = Duration::from_secs(rng.u64(..600));
            (short, failed(FailureKind::Failed, "come back later", Retry::After(wait)))
        }
        87..92 => (short, failed(FailureKind::Panicked, "the handler panicked", Retry::Backoff)),
        92..95 => (short, failed(FailureKind::Failed, "cut short", Retry::Interrupted)),
        // It does not heed its limit, and succeeds all the same, or does not.
        95..98 => (limit + long * 4, succeeded(claim)),
        _ => (limit + long * 4, failed(FailureKind::Failed, "it took too long", Retry::Backoff)),
    };
    let fate = if claim.handler == LEDGER { Fate::draw(rng) } else { Fate::Nothing };
    Work { claim: claim.clone(), ends_at: now + takes, outcome, asked: false, fate }
}

impl Work {
    /// Whether it is carried out to its end: what it was to do once it does then.
    pub(crate) fn is_done_for_real(&self) -> bool {
        self.claim.handler == LEDGER
            && matches!(self.outcome, Outcome::Succeeded { .. } | Outcome::Failed { retry: Retry::Backoff, .. })
    }

    pub(crate) fn fails(&self) -> bool {
        !matches!(self.outcome, Outcome::Succeeded { .. })
    }

    /// It sees that it should stop: most handlers do, some have just succeeded, some never look.
    pub(crate) fn heed(&mut self, rng: &mut fastrand::Rng, now: Duration) {
        self.asked = true;
        match rng.u32(..10) {
            0..6 => {
                self.ends_at = now + Duration::from_millis(rng.u64(..2000));
                self.outcome = failed(FailureKind::Failed, "stopped", Retry::Backoff);
            }
            6..8 => {
                self.ends_at = now;
                self.outcome = succeeded(&self.claim);
            }
            _ => {}
        }
    }
}

impl World {
    /// Hands one attempt back with this outcome, now.
    pub(crate) fn end_now(&mut self, id: usize, claim: &Arc<Claim>, outcome: Outcome) {
        let now = self.now().monotonic;
        let works = &mut self.agents[id].works;
        if let Some(work) = works.iter_mut().find(|work| Arc::ptr_eq(&work.claim, claim)) {
            (work.ends_at, work.outcome) = (now, outcome);
        }
    }

    /// Draws what becomes of an attempt.
    pub(crate) fn fate(&mut self, claim: &Arc<Claim>) -> Work {
        let now = self.now().monotonic;
        fate(&mut self.rng, claim, now)
    }

    /// Handlers that were asked to stop mostly do, soon.
    pub(crate) fn stop_what_was_asked(&mut self, id: usize) {
        let now = self.now().monotonic;
        let World { agents, rng, .. } = self;
        let agent = &mut agents[id];
        let Some(stepper) = &agent.stepper else { return };
        for work in agent.works.iter_mut().filter(|work| !work.asked && stepper.stopped().contains(&work.claim.run_id))
        {
            work.heed(rng, now);
        }
    }
}
