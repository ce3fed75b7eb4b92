//! An owner on a server: its session, and what it does when the server continues another history.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::Now;
use crate::engine::peers::Peers;
use crate::engine::poller::Poller;
use crate::engine::wake_time::WakeTime;
use crate::error::Result;
use crate::host::owner_lock;
use crate::model::event::Event;
use crate::model::finished::{Finished, split_recorded};
use crate::model::run::Claim;
use crate::store::OwnerSession;
use crate::store::turn_io::{Registered, Registration};

impl Poller {
    /// Takes the session of this owner, for the thread that keeps it alive.
    pub(crate) fn take_session(&mut self) -> Option<Box<dyn OwnerSession>> {
        self.store.take_session()
    }

    /// The next turn looks up which claims are still this owner's, and what other connections changed.
    pub(crate) fn look_up_claims(&mut self, now: Now) {
        self.next_heartbeat = now.monotonic;
    }

    /// Registers under another id: the claims are lost, because the server may lack the commits by which they were made. Outcomes that
    /// are not written yet are superseded, and those of attempts that still run will be: see [`Poller::supersede`].
    pub(crate) fn register_again(&mut self, now: Now) -> Result<()> {
        let mut random = fastrand::Rng::new();
        let registration = Registration { owner: owner_lock::new_owner(&mut random), ..self.registration.clone() };
        self.lock.change_owner(&registration.owner)?;
        let Registered { others, not_stopped, .. } = self.store.register(&registration, random, now.wall)?;
        let mut peers = Peers::new(self.peers.database().to_owned(), registration.owner.clone(), self.settings.lease);
        peers.update(&others, &[], now.monotonic);
        peers.check_not_stopped(not_stopped, now.monotonic);
        log::warn!(
            "the server continues another history: this scheduler has registered again, and its claims are lost"
        );
        (self.registration, self.peers, self.horizon) = (registration, peers, WakeTime::default());
        self.reports.clear();
        self.held.clear();
        let unwritten: Vec<Finished> = self.outbox.drain(..).chain(self.aside.drain(..)).collect();
        unwritten.into_iter().for_each(|finished| self.supersede_one(finished));
        self.next_heartbeat = now.monotonic;
        Ok(())
    }

    /// Notes in claims of this turn who has claimed them.
    pub(super) fn sign(&mut self, claims: &mut [Arc<Claim>]) {
        if !claims.is_empty() && self.store.as_file().is_none() {
            let owner: Arc<str> = self.registration.owner.as_str().into();
            claims.iter_mut().for_each(|claim| Arc::make_mut(claim).owner = Some(owner.clone()));
        }
    }

    /// Takes out the ends of attempts that an earlier owner claimed: this owner may have claimed the same attempt of a run again, and they
    /// are not its ends.
    pub(super) fn supersede(&mut self, finished: Vec<Finished>) -> Vec<Finished> {
        let owner = &self.registration.owner;
        let (stale, own): (Vec<_>, Vec<_>) = finished.into_iter().partition(|one| one.claim.is_of_other(owner));
        stale.into_iter().for_each(|finished| self.supersede_one(finished));
        own
    }

    fn supersede_one(&mut self, finished: Finished) {
        let mut superseded = VecDeque::new();
        // One whose handler has committed it was still the claim of the earlier owner then.
        for (_, slot, event) in split_recorded(vec![finished], &mut superseded) {
            self.lock.free_slots(slot.into_iter());
            self.emit(&event);
        }
        for finished in superseded {
            self.lock.free_slots(finished.slot.into_iter());
            finished.remove_input();
            self.emit(&Event::Superseded { claim: finished.claim });
        }
    }
}
