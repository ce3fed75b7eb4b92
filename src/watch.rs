//! The other owners: who of them is dead, and what their commands are still at. It asks the kernel and writes nothing.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::orphan::Orphan;
use crate::owner::{DeadOwner, Standing, standing};
use crate::store::owners::{Dead, Lost, Proof};

/// What one owner knows of the others.
#[derive(Debug)]
pub(crate) struct Watch {
    database: PathBuf,
    lease: Duration,
    /// Those that have running runs.
    watched: BTreeMap<String, Watched>,
    /// Those that are dead and not yet recovered.
    dying: BTreeMap<String, Dying>,
    /// Attempts whose command has been told of.
    told: HashSet<(i64, u32)>,
}

#[derive(Debug)]
struct Watched {
    lease: Timestamp,
    /// Since when its lease has had this value, by our monotonic clock.
    still_since: Duration,
}

#[derive(Debug)]
struct Dying {
    /// Where there is a file.
    lock: Option<DeadOwner>,
    /// Commands of its that are still at work. Until one of them ends there is nothing more to recover.
    orphans: Vec<Orphan>,
}

impl Watch {
    pub(crate) fn new(database: PathBuf, lease: Duration) -> Self {
        Watch { database, lease, watched: BTreeMap::new(), dying: BTreeMap::new(), told: HashSet::new() }
    }

    /// Takes note of other owners that have running runs, and of the newest value of their lease.
    pub(crate) fn see(&mut self, others: &[(String, Timestamp)], now: Duration) {
        let mut before = std::mem::take(&mut self.watched);
        for (owner, lease) in others {
            let still_since = match before.remove(owner) {
                Some(seen) if seen.lease == *lease => seen.still_since,
                _ => now,
            };
            self.watched.insert(owner.clone(), Watched { lease: *lease, still_since });
        }
    }

    /// Asks the kernel about each of them. Where it cannot tell, an owner is dead whose lease has stood still for a full
    /// lease by our own clock: no two clocks are compared.
    pub(crate) fn look(&mut self, now: Duration) {
        // Without its lock in our hands it may have come back to life since, if its death could not be written down.
        self.dying.retain(|_, dying| dying.lock.is_some());
        for (owner, watched) in &self.watched {
            if self.dying.contains_key(owner) {
                continue;
            }
            let lock = match standing(&self.database, owner) {
                Standing::Dead(dead) => Some(dead),
                Standing::Unknown if now.saturating_sub(watched.still_since) > self.lease => None,
                Standing::Alive | Standing::Unknown => continue,
            };
            self.dying.insert(owner.clone(), Dying { lock, orphans: Vec::new() });
        }
    }

    /// Asks about owners that have not left in order: one that died idle left nothing but its lock file, and a row that
    /// says it lives.
    pub(crate) fn ask(&mut self, not_stopped: Vec<String>) {
        for owner in not_stopped {
            if !self.dying.contains_key(&owner)
                && let Standing::Dead(dead) = standing(&self.database, &owner)
            {
                self.dying.insert(owner, Dying { lock: Some(dead), orphans: Vec::new() });
            }
        }
    }

    /// Releases the locks of dead owners: this owner leaves, and the next scheduler recovers their runs.
    pub(crate) fn release(&mut self) {
        self.dying.clear();
    }

    /// Owners that are dead and not yet recovered.
    pub(crate) fn dead(&self) -> Vec<Dead> {
        let lease = |owner: &String| self.watched.get(owner).map(|watched| watched.lease);
        let dead = |(owner, dying): (&String, &Dying)| {
            let proof = match &dying.lock {
                Some(lock) => Proof::Lock(lock.begun()),
                None => Proof::Lease(lease(owner)),
            };
            Dead { owner: owner.clone(), proof }
        };
        self.dying.iter().map(dead).collect()
    }

    /// Whether there is something to recover now.
    pub(crate) fn presses(&self) -> bool {
        self.dying.values().any(|dying| dying.orphans.is_empty() || dying.orphans.iter().any(Orphan::is_gone))
    }

    /// Whether the command of a lost run is still at work.
    pub(crate) fn is_at_work(&self, lost: &Lost) -> bool {
        !self.orphan(lost).is_gone()
    }

    /// Takes note of what waits for a command to end. Answers with those that were not known of.
    pub(crate) fn orphaned(&mut self, left: &[(String, Lost)]) -> Vec<Orphan> {
        self.dying.values_mut().for_each(|dying| dying.orphans.clear());
        let mut new = Vec::new();
        for (owner, lost) in left {
            let orphan = self.orphan(lost);
            if self.told.insert((lost.run, lost.attempt)) {
                new.push(orphan.clone());
            }
            if let Some(dying) = self.dying.get_mut(owner) {
                dying.orphans.push(orphan);
            }
        }
        new
    }

    /// Nothing of an owner is left to recover.
    pub(crate) fn recovered(&mut self, owner: &str) {
        self.watched.remove(owner);
        if let Some(lock) = self.dying.remove(owner).and_then(|dying| dying.lock) {
            lock.bury();
        }
    }

    /// A lost run is recovered: what its command read goes.
    pub(crate) fn bury(&mut self, run: i64, attempt: u32) {
        self.told.remove(&(run, attempt));
        Orphan::new(&self.database, run, attempt, String::new(), String::new(), None).bury();
    }

    fn orphan(&self, lost: &Lost) -> Orphan {
        let Lost { run, attempt, task, handler, process } = lost;
        Orphan::new(&self.database, *run, *attempt, task.clone(), handler.clone(), process.as_deref())
    }
}
