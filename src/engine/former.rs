//! The earlier ids of an owner whose file was restored, and what still runs of their attempts.

use std::time::Duration;

use crate::host::owner_lock::OwnerLock;
use crate::model::run::Claim;
use crate::store::turn_io::{Dead, Proof, Stray};

/// What was claimed under earlier ids.
#[derive(Debug, Default)]
pub(crate) struct Former {
    /// Whether the owner has still to register under another id.
    pub(crate) must_register: bool,
    /// The earlier ids whose locks are held.
    pub(crate) owners: Vec<String>,
    /// Those of them whose running rows are not recovered yet.
    unrecovered: Vec<String>,
    /// Attempts that have not returned.
    pub(crate) strays: Vec<Stray>,
    /// Whether some have returned since the last turn that wrote.
    changed: bool,
    /// When to look again whether what holds something back still runs, of this owner or another.
    pub(crate) look_again: Option<Duration>,
}

impl Former {
    /// The owner has registered under another id than this one, under which these attempts may still run.
    pub(crate) fn add(&mut self, owner: String, strays: impl Iterator<Item = Stray>) {
        self.must_register = false;
        self.strays.extend(strays);
        self.unrecovered.push(owner.clone());
        self.owners.push(owner);
        self.changed = true;
    }

    /// Returns the earlier ids as dead owners: what the restored rows show as running under them is lost.
    pub(crate) fn dead(&self) -> impl Iterator<Item = Dead> {
        self.unrecovered.iter().map(|owner| Dead {
            owner: owner.clone(),
            proof: Proof::Restored,
            dead_for: Duration::ZERO,
        })
    }

    /// Returns whether an owner is an earlier id, and forgets that its rows are to be recovered.
    pub(crate) fn recovered(&mut self, owner: &str) -> bool {
        self.unrecovered.retain(|former| former != owner);
        self.owners.iter().any(|former| former == owner)
    }

    /// Returns whether a turn has to write which attempts have not returned, or to look at those of others.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.changed || self.look_again.is_some_and(|at| now >= at)
    }

    /// Returns whether this attempt has not returned.
    pub(crate) fn has(&self, run: i64, attempt: u32) -> bool {
        self.strays.iter().any(|stray| (stray.claimed.run, stray.claimed.attempt) == (run, attempt))
    }

    /// A turn has stored which attempts have not returned. After the last of them, the locks of the earlier ids are released.
    pub(crate) fn written(&mut self, lock: &OwnerLock) {
        self.changed = false;
        if self.strays.is_empty() && self.unrecovered.is_empty() && !self.owners.is_empty() {
            self.owners.clear();
            lock.retire_former();
        }
    }

    /// Forgets an attempt that has returned.
    pub(crate) fn returned(&mut self, claim: &Claim) {
        let is_it =
            |stray: &Stray| stray.claimed == claim.identified() && claim.owner.as_deref() == Some(&*stray.owner);
        let before = self.strays.len();
        self.strays.retain(|stray| !is_it(stray));
        self.changed |= self.strays.len() < before;
    }
}
