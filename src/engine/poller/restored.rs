//! What a scheduler does when its file was restored through SQLite: it registers under another id, and takes its claims for lost.
//!
//! Its attempts are asked to stop, and their outcomes are dropped: the rows are those of another history. Until the last of them has
//! returned, the lock of the earlier id is held, and their tasks start nothing, in no scheduler.

use std::mem;

use crate::clock::Now;
use crate::engine::peers::Peers;
use crate::engine::poller::{Poller, Turn};
use crate::engine::wake_time::WakeTime;
use crate::error::Result;
use crate::host::{guard_lock, owner_lock};
use crate::model::event::Event;
use crate::model::finished::Finished;
use crate::store::turn_io::{Registered, Registration, Slots, Stray};

impl Poller {
    /// The database has another history than the claims: takes the turn under another id, and asks the handlers of all attempts to stop.
    pub(super) fn restored(&mut self, now: Now, slots: Slots) -> Result<Turn> {
        self.former.must_register = true;
        if let Err(error) = self.register_anew(now) {
            return self.refuse(now, slots, error.into());
        }
        let mut turn = self.write(now, slots, true)?;
        turn.stop.extend(self.former.strays.iter().map(|stray| stray.claimed.run));
        Ok(turn)
    }

    /// Registers under another id. What has ended and is not written is dropped.
    pub(super) fn register_anew(&mut self, now: Now) -> Result<()> {
        let before = self.registration.owner.clone();
        self.change_id(now)?;
        let claimed = mem::take(&mut self.claimed).into_iter();
        let stray = |(_, claimed)| Stray { owner: before.clone(), claimed };
        self.former.add(before.clone(), claimed.map(stray));
        let ended: Vec<Finished> = self.outbox.drain(..).chain(self.aside.drain(..)).collect();
        self.drop_former(ended);
        self.ended.clear();
        let running = self.former.strays.len();
        self.emit(&Event::Restored { owner: self.registration.owner.clone(), running });
        Ok(())
    }

    /// Registers under another id, whose lock is taken before. The lock of the present id is held until its attempts have returned. What
    /// was observed of other owners is forgotten.
    pub(super) fn change_id(&mut self, now: Now) -> Result<()> {
        let mut random = fastrand::Rng::new();
        let registration = Registration { owner: owner_lock::new_owner(&mut random), ..self.registration.clone() };
        let before = self.lock.id();
        self.lock.change_owner(&registration.owner, &self.registration.owner)?;
        guard_lock::link(self.lock.folder(), &before, &registration.owner);
        let Registered { others, not_stopped, cookie, .. } = self.store.register(&registration, random, now.wall)?;
        cookie.iter().for_each(|cookie| self.lock.compared(*cookie));
        let mut peers = Peers::new(self.peers.database().to_owned(), registration.owner.clone(), self.settings.lease);
        peers.update(&others, &[], now.monotonic);
        peers.check_not_stopped(not_stopped, now.monotonic);
        (self.registration, self.peers, self.horizon) = (registration, peers, WakeTime::default());
        self.reports.clear();
        self.next_heartbeat = now.monotonic;
        Ok(())
    }

    /// Drops the outcomes of claims under earlier ids of a file: the rows of these runs, if there are any, are of another history.
    pub(super) fn drop_former(&mut self, mut finished: Vec<Finished>) -> Vec<Finished> {
        if self.former.owners.is_empty() {
            return finished;
        }
        let owner = self.registration.owner.clone();
        for former in finished.extract_if(.., |finished| finished.claim.is_of_other(&owner)) {
            self.former.returned(&former.claim);
            former.remove_input();
        }
        finished
    }
}
