//! The claims of an owner, compared with those that are stored.

use std::sync::Arc;

use crate::clock::Now;
use crate::engine::poller::Poller;
use crate::error::Result;
use crate::model::finished::Finished;
use crate::model::run::{Claim, Outcome, Run};

impl Poller {
    /// Returns how many runs are claimed and not settled. An outcome of a claim under an earlier id counts until it is written.
    pub(crate) fn unsettled(&self) -> usize {
        let of_other = self.unwritten().filter(|claim| claim.is_of_other(self.owner()));
        self.claimed.len() + self.former.strays.len() + of_other.count()
    }

    /// Returns the attempts whose outcomes are not written.
    pub(crate) fn unwritten(&self) -> impl Iterator<Item = &Arc<Claim>> {
        self.outbox.iter().chain(&self.aside).map(|finished| &finished.claim)
    }

    /// Forgets the claim of an attempt whose outcome is stored.
    pub(super) fn forget(&mut self, claim: &Claim) {
        #[cfg(feature = "postgres")]
        if claim.is_of_other(&self.registration.owner) {
            return self.forget_former();
        }
        // This owner may have claimed another attempt of the run since, after others had counted it as dead.
        if self.claimed.get(&claim.run_id).is_some_and(|claimed| claimed.attempt == claim.attempt) {
            self.claimed.remove(&claim.run_id);
        }
    }

    /// Sets the owner of the claims of this turn: after it has registered under another id, they are not mistaken for its own.
    pub(super) fn sign(&mut self, claims: &mut [Arc<Claim>]) {
        if !claims.is_empty() {
            let owner: Arc<str> = self.registration.owner.as_str().into();
            claims.iter_mut().for_each(|claim| Arc::make_mut(claim).owner = Some(owner.clone()));
        }
    }

    /// Returns the runs that this owner holds and another has taken over: their handlers are asked to stop. Claims of which it never
    /// learned, because the answer of a server was lost, are returned to the queue. `new`: those of this turn.
    pub(super) fn lost_claims(&mut self, new: &[Arc<Claim>], now: Now) -> Result<Vec<i64>> {
        let claimed = self.store.claimed_by(&self.registration.owner)?;
        if self.store.as_file().is_some() {
            return Ok(self.claimed.keys().filter(|run| !claimed.contains(run)).copied().collect());
        }
        let is_new = |run: &i64| new.iter().any(|claim| claim.run_id == *run);
        let lost = self.claimed.keys().filter(|run| !claimed.contains(run)).copied().collect();
        let unknown: Vec<i64> =
            claimed.into_iter().filter(|run| !self.claimed.contains_key(run) && !is_new(run)).collect();
        for run in unknown {
            let Some(Run { id, task, handler, attempt, scheduled_for, concurrency_key, .. }) = self.store.run(run)?
            else {
                continue;
            };
            let Some(task_id) = self.store.task(&task)?.map(|task| task.id) else { continue };
            let described = Claim::described(id, attempt, task, handler, scheduled_for);
            let claim = Arc::new(Claim { task_id, concurrency_key, ..described });
            self.claimed.insert(run, claim.identified());
            self.outbox.push_back(Finished::new(claim, Outcome::Released, now, now));
        }
        Ok(lost)
    }
}
