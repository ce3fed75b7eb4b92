//! An owner on a server: its session, and what it does when the server continues another history.

use crate::clock::Now;
use crate::engine::peers::Peers;
use crate::engine::poller::Poller;
use crate::engine::wake_time::WakeTime;
use crate::error::Result;
use crate::host::owner_lock;
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
    /// are not written yet are superseded.
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
        self.held = self.outbox.iter().chain(&self.aside).map(|finished| finished.claim.run_id).collect();
        self.next_heartbeat = now.monotonic;
        Ok(())
    }
}
