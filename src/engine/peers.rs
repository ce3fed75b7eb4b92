//! The other owners: which of them are dead, and which of their commands still run. Asks the kernel, and writes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::host::orphan::{self, Orphan, Presence};
use crate::host::owner_lock::{self, DeadOwner, Standing, standing};
use crate::host::platform::{self, Hold};
use crate::host::{guard_lock, shared_input};
use crate::store::Store;
use crate::store::turn_io::{self, Dead, Orphaned, Other, Proof, Session, Stalled};

/// First and longest wait before the kernel is asked again about a command of which it could not be known whether it is gone.
/// The wait doubles each time.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Removes the lock files of owners that died before they were registered, or whose end was recorded by a scheduler that died before it
/// removed them, and those of their guards; the inputs and payloads of attempts whose owner died between recording their end and removing
/// them; and the files of dead owners' workers: no turn learns of them. Returns the workers of dead owners that still run.
pub(crate) fn remove_leftovers(store: &mut dyn Store, database: &Path, now: Timestamp) -> Result<Vec<Orphan>> {
    owner_lock::remove_stale_temporaries(database, now);
    let inputs = orphan::inputs(database);
    let (workers, guards) = (shared_input::files(database), guard_lock::owners(database));
    if !owner_lock::any_owner(database) && inputs.is_empty() && workers.is_empty() && guards.is_empty() {
        return Ok(Vec::new());
    }
    // Without a lock of a dead owner, which would look alive: if the file was restored, a new history begins here. What it holds back is
    // among what is known then.
    if store.as_file().is_some() {
        store.known_owners()?;
    }
    let left = owner_lock::dead_owners(database);
    let known = store.known_owners()?;
    let is_dead = |owner: &String| {
        let is_gone = || !known.not_ended.contains(owner) && matches!(standing(database, owner), Standing::Missing);
        left.iter().any(|(dead, _)| dead == owner) || is_gone()
    };
    let mut running = Vec::new();
    for ((_, file), number) in workers.into_iter().filter(|(owner, _)| is_dead(owner)).zip(1..) {
        match platform::held(&file).0 {
            Hold::Free => _ = std::fs::remove_file(file),
            Hold::Held => running.push(Orphan::of_worker(database, file, number)),
            Hold::Missing | Hold::Unknown(_) => {}
        }
    }
    // An owner that is not recovered may have the guard of an earlier id.
    let may_be_lost = |owner: &String| {
        let standing = || standing(database, owner);
        left.iter().any(|(dead, _)| dead == owner) || !matches!(standing(), Standing::Alive { .. } | Standing::Missing)
    };
    if !known.not_ended.iter().any(may_be_lost) {
        let of_ended = guards.iter().filter(|owner| !known.not_ended.contains(*owner));
        of_ended.for_each(|owner| guard_lock::remove_free(database, owner));
    }
    left.into_iter().filter(|(name, _)| !known.not_ended.contains(name)).for_each(|(_, dead)| dead.remove());
    // What a living owner has begun is not left over, whatever the rows say.
    let alive = |owner: &String| owner_lock::is_alive(database, owner);
    let begun = owner_lock::begun(database).into_iter().filter(|(owner, _)| alive(owner));
    let begun: HashSet<_> = begun.flat_map(|(_, begun)| begun.into_keys()).collect();
    let ended = inputs.into_iter().filter(|attempt| !known.running.contains(attempt) && !begun.contains(attempt));
    ended.filter(|_| known.all).for_each(|attempt| orphan::remove_free_input(database, attempt));
    Ok(running)
}

/// The state of the other owners, as far as this owner knows it.
#[derive(Debug)]
pub(crate) struct Peers {
    database: PathBuf,
    /// The id of this owner.
    owner: String,
    lease: Duration,
    /// Owners that have running runs.
    watched: BTreeMap<String, Watched>,
    /// Owners without running runs and without a lock file. Their `until` is their last heartbeat.
    silent: BTreeMap<String, Watched>,
    /// Owners that are dead and not yet recovered.
    dying: BTreeMap<String, Dying>,
    /// Owners of which a run could not be recovered. The next full turn tries again.
    resting: HashSet<String>,
    /// Whether dead owners have more runs than the last turn could look at.
    more: bool,
    /// Attempts whose command is known to run, which has been reported.
    reported_alive: HashSet<(i64, u32)>,
    /// Attempts of which it has been reported that this cannot be known.
    doubted: HashSet<(i64, u32)>,
    doubts: HashMap<(i64, u32), Doubt>,
}

#[derive(Debug)]
struct Watched {
    until: Timestamp,
    /// The length of its lease, or of this owner's if that is longer.
    lease: Duration,
    /// Since when its lease has had this value, by this process's monotonic clock.
    still_since: Duration,
    /// When it was first seen alive although its lease had not changed for longer than the lease.
    late_since: Option<Duration>,
    /// Whether that has been reported.
    is_reported: bool,
    /// What its session showed last.
    session: Session,
}

impl Watched {
    fn new(until: Timestamp, lease: Duration, now: Duration, session: Session) -> Self {
        Watched { until, lease, still_since: now, late_since: None, is_reported: false, session }
    }

    /// Returns whether its lease has not changed for a full lease.
    fn is_late(&self, now: Duration) -> bool {
        now.saturating_sub(self.still_since) > self.lease
    }

    /// Returns whether it counts as dead if it has no lock file. Whether its lease has passed by the clock of a server may have changed
    /// since its session was looked at: that is looked at again before anything is recovered.
    fn is_gone(&self, now: Duration) -> bool {
        self.is_late(now) && !self.session.is_held()
    }
}

#[derive(Debug)]
struct Dying {
    evidence: Evidence,
    /// When it was first seen dead.
    since: Duration,
    /// Commands of its runs that are not known to be gone. Until one of them is gone, nothing more can be recovered.
    orphans: Vec<Orphan>,
}

impl Dying {
    fn dead_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }
}

/// Why an owner counts as dead.
#[derive(Debug)]
enum Evidence {
    Lock(DeadOwner),
    /// It has no lock file and no session, and its lease has not changed for a full lease.
    Lease,
    /// It has no lock file, no session and no running run, and for a full lease no heartbeat: the last one was then.
    Silence(Timestamp),
    /// Its lock was acquired, and released again: only commands that this process cannot end are left.
    Released,
}

/// A command of which it cannot be known whether it is gone.
#[derive(Debug)]
struct Doubt {
    reason: String,
    /// How long to wait before the kernel is asked again, and until when.
    wait: Duration,
    until: Duration,
}

impl Peers {
    pub(crate) fn new(database: PathBuf, owner: String, lease: Duration) -> Self {
        let (watched, silent, dying) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (resting, more) = (HashSet::new(), false);
        let (reported_alive, doubted, doubts) = (HashSet::new(), HashSet::new(), HashMap::new());
        Peers { database, owner, lease, watched, silent, dying, resting, more, reported_alive, doubted, doubts }
    }

    /// Updates the owners that have running runs, with the newest end of their lease, and the runs whose command a user has
    /// declared gone.
    pub(crate) fn update(&mut self, others: &[Other], declared_gone: &[i64], now: Duration) {
        let mut before = std::mem::take(&mut self.watched);
        for Other { owner, until, lease, session } in others {
            let (lease, session) = (self.lease.max(*lease), *session);
            let watched = match before.remove(owner) {
                Some(seen) if seen.until == *until => Watched { lease, session, ..seen },
                _ => Watched::new(*until, lease, now, session),
            };
            self.watched.insert(owner.clone(), watched);
        }
        let released = |dying: &Dying| matches!(dying.evidence, Evidence::Released);
        // Another scheduler has recovered what this one released.
        self.dying.retain(|owner, dying| !released(dying) || self.watched.contains_key(owner));
        let orphans = self.dying.values_mut().flat_map(|dying| &mut dying.orphans);
        orphans.filter(|orphan| declared_gone.contains(&orphan.run_id())).for_each(Orphan::declare_gone);
    }

    /// Asks the kernel about each owner. An owner without a lock file is dead if its lease has not changed for a full lease by
    /// this process's clock: no two clocks are compared. On a server its session must be gone as well. `full`: asks also about owners
    /// whose lock was released, and those without running runs.
    pub(crate) fn look(&mut self, now: Duration, full: bool) {
        let (mut before, mut seen) = (BTreeMap::new(), BTreeMap::new());
        for (owner, dying) in std::mem::take(&mut self.dying) {
            let stays = match dying.evidence {
                Evidence::Lock(_) => true,
                Evidence::Released => !full && !self.any_news(&dying, now),
                // This process does not hold its lock, so it may have resumed before its death was recorded.
                Evidence::Lease | Evidence::Silence(_) => false,
            };
            if stays {
                self.dying.insert(owner, dying);
            } else {
                seen.insert(owner.clone(), dying.since);
                before.insert(owner, dying.orphans);
            }
        }
        for (owner, watched) in &mut self.watched {
            if self.dying.contains_key(owner) {
                continue;
            }
            let (is_late, is_gone) = (watched.is_late(now), watched.is_gone(now));
            let holds = watched.session.is_held();
            let (evidence, orphans) = match watched.session.standing(&self.database, owner) {
                Standing::Dead(dead) => (Evidence::Lock(dead.mark_taken_over(&self.owner)), Vec::new()),
                Standing::Missing if is_gone => (Evidence::Lease, before.remove(owner).unwrap_or_default()),
                Standing::Missing if is_late && holds => {
                    watched.late_since.get_or_insert(now);
                    continue;
                }
                Standing::Alive { .. } if is_late => {
                    watched.late_since.get_or_insert(now);
                    continue;
                }
                _ => continue,
            };
            let since = seen.get(owner).copied().unwrap_or(now);
            self.dying.insert(owner.clone(), Dying { evidence, since, orphans });
        }
        for (owner, silent) in self.silent.iter().filter(|_| full) {
            if silent.is_gone(now)
                && !self.dying.contains_key(owner)
                && matches!(silent.session.standing(&self.database, owner), Standing::Missing)
            {
                let evidence = Evidence::Silence(silent.until);
                self.dying.insert(owner.clone(), Dying { evidence, since: now, orphans: Vec::new() });
            }
        }
    }

    /// Asks the kernel about owners that did not shut down, each with the time of its last heartbeat. An owner that died idle
    /// left only a row, and perhaps a lock file. Removes the lock files of the guards of owners that have ended.
    pub(crate) fn check_not_stopped(&mut self, not_stopped: Vec<Other>, now: Duration) {
        let mut before = std::mem::take(&mut self.silent);
        let not_ended: HashSet<String> = not_stopped.iter().map(|other| other.owner.clone()).collect();
        for Other { owner, until, lease, session } in not_stopped {
            if self.dying.contains_key(&owner) {
                continue;
            }
            let standing = session.standing(&self.database, &owner);
            if matches!(standing, Standing::Missing) && !self.watched.contains_key(&owner) {
                let seen = before.remove(&owner).filter(|seen| seen.until == until);
                let new = || Watched::new(until, self.lease.max(lease), now, session);
                self.silent.insert(owner, Watched { session, ..seen.unwrap_or_else(new) });
            } else if let Standing::Dead(dead) = standing {
                let evidence = Evidence::Lock(dead.mark_taken_over(&self.owner));
                self.dying.insert(owner, Dying { evidence, since: now, orphans: Vec::new() });
            }
        }
        for owner in guard_lock::owners(&self.database).into_iter().filter(|owner| !not_ended.contains(owner)) {
            self.remove_guard(&owner);
        }
    }

    /// Removes the lock file of the guard of an owner that has ended. Not while another owner is dead: of an earlier id of that one, the
    /// guard may still be asked.
    fn remove_guard(&self, owner: &str) {
        let is_alive = |other: &String| owner_lock::is_alive(&self.database, other);
        if self.dying.is_empty() && self.watched.keys().all(is_alive) {
            guard_lock::remove_free(&self.database, owner);
        }
    }

    /// Returns owners that are alive and did not extend their lease in time, and are not reported yet. This process may have
    /// been suspended together with such an owner, which then has the time of a heartbeat to extend its lease.
    pub(crate) fn stalled(&self, now: Duration) -> Vec<Stalled> {
        let is_stalled = |watched: &Watched| {
            let late = watched.late_since.map(|since| now.saturating_sub(since));
            !watched.is_reported && late.is_some_and(|late| late >= watched.lease / 3)
        };
        let stalled =
            self.watched.iter().filter(|(owner, watched)| is_stalled(watched) && !self.dying.contains_key(*owner));
        stalled.map(|(owner, watched)| Stalled { owner: owner.clone(), until: watched.until }).collect()
    }

    /// Records that stalled owners have been reported.
    pub(crate) fn stalled_reported(&mut self, stalled: &[Stalled]) {
        for Stalled { owner, until } in stalled {
            if let Some(watched) = self.watched.get_mut(owner).filter(|watched| watched.until == *until) {
                watched.is_reported = true;
            }
        }
    }

    /// Releases the locks of dead owners: this owner drains, and the next scheduler recovers their runs.
    pub(crate) fn release_all(&mut self) {
        self.dying.clear();
    }

    /// Returns the owners that are dead and not yet recovered.
    pub(crate) fn dead(&self, now: Duration) -> Vec<Dead> {
        let until = |owner: &String| self.watched.get(owner).map(|watched| watched.until);
        let dead = |(owner, dying): (&String, &Dying)| {
            let proof = match &dying.evidence {
                Evidence::Lock(lock) => Proof::Lock(lock.begun()),
                Evidence::Lease => Proof::Lease(until(owner)),
                Evidence::Silence(seen) => Proof::Silence(*seen),
                Evidence::Released => return None,
            };
            Some(Dead { owner: owner.clone(), proof, dead_for: dying.dead_for(now) })
        };
        self.dying.iter().filter_map(dead).collect()
    }

    /// Returns whether no other owner is watched: none has a running run, and each that did not shut down is alive.
    pub(crate) fn is_empty(&self) -> bool {
        self.watched.is_empty() && self.silent.is_empty() && self.dying.is_empty()
    }

    /// Returns whether there is something to recover or to report now.
    pub(crate) fn has_work(&mut self, now: Duration) -> bool {
        if !self.stalled(now).is_empty() {
            return true;
        }
        let released = |dying: &Dying| matches!(dying.evidence, Evidence::Released);
        let dying = || self.dying.values().filter(|dying| !released(dying));
        let rests = |owner: &String| self.resting.contains(owner);
        let mut left = self.dying.iter().filter(|(owner, dying)| !released(dying) && !rests(owner));
        if dying().next().is_some_and(|_| self.more) || left.any(|(_, dying)| dying.orphans.is_empty()) {
            return true;
        }
        let all = std::mem::take(&mut self.dying);
        let any = all.values().filter(|dying| !released(dying)).any(|dying| self.any_news(dying, now));
        self.dying = all;
        any
    }

    /// Returns whether a command of an owner is gone, or for the first time cannot be known to be gone: both are to be recorded.
    fn any_news(&mut self, dying: &Dying, now: Duration) -> bool {
        dying.orphans.iter().any(|orphan| {
            let presence = self.presence(orphan, dying.dead_for(now), now);
            self.remember(orphan, &presence, now);
            match presence {
                Presence::Alive => false,
                Presence::Unknown(_) => !self.doubted.contains(&key(orphan)),
                Presence::Gone | Presence::NoTrace | Presence::LeftGroup => true,
            }
        })
    }

    /// Returns whether a command is still running. Does not ask the kernel again soon after that could not be known.
    fn presence(&self, orphan: &Orphan, dead_for: Duration, now: Duration) -> Presence {
        let doubt = self.doubts.get(&key(orphan)).filter(|doubt| now < doubt.until);
        turn_io::presence(orphan, doubt.map(|doubt| &*doubt.reason), dead_for)
    }

    /// Returns the attempts about which the kernel is not asked again now, and why that could not be known.
    pub(crate) fn recent_doubts(&self, now: Duration) -> HashMap<(i64, u32), String> {
        let recent = self.doubts.iter().filter(|(_, doubt)| now < doubt.until);
        recent.map(|(attempt, doubt)| (*attempt, doubt.reason.clone())).collect()
    }

    /// Returns the file that the lock and input files of owners are beside.
    pub(crate) fn database(&self) -> &Path {
        &self.database
    }

    /// Keeps a doubt, and doubles its wait.
    fn remember(&mut self, orphan: &Orphan, presence: &Presence, now: Duration) {
        let Presence::Unknown(reason) = presence else {
            self.doubts.remove(&key(orphan));
            return;
        };
        let (first, longest) = ASK_AGAIN;
        let wait = match self.doubts.get(&key(orphan)) {
            Some(doubt) if now < doubt.until => return,
            Some(doubt) => (doubt.wait * 2).min(longest),
            None => first,
        };
        self.doubts.insert(key(orphan), Doubt { reason: reason.clone(), wait, until: now.saturating_add(wait) });
    }

    /// Returns the attempts of which it has been reported that it cannot be known whether their command is gone.
    pub(crate) fn doubted(&self) -> &HashSet<(i64, u32)> {
        &self.doubted
    }

    /// Updates the commands that lost runs wait for. Returns those that are not reported yet, with the reason where presence is
    /// unknown, and all commands that still run.
    pub(crate) fn orphaned(
        &mut self,
        left: &[Orphaned],
        more: bool,
        now: Duration,
    ) -> (Vec<(Orphan, Option<String>)>, Vec<Orphan>) {
        self.more = more;
        let ours = self.dying.values_mut().filter(|dying| !matches!(dying.evidence, Evidence::Released));
        ours.for_each(|dying| dying.orphans.clear());
        let (mut new, mut at_work) = (Vec::new(), Vec::new());
        for Orphaned { owner, lost, doubt } in left {
            let orphan = lost.orphan(&self.database, Some(owner));
            let presence = doubt.clone().map_or(Presence::Alive, Presence::Unknown);
            self.remember(&orphan, &presence, now);
            let reported = if doubt.is_some() { &mut self.doubted } else { &mut self.reported_alive };
            if reported.insert(key(&orphan)) {
                new.push((orphan.clone(), doubt.clone()));
            }
            if doubt.is_none() {
                at_work.push(orphan.clone());
            }
            if let Some(dying) = self.dying.get_mut(owner) {
                dying.orphans.push(orphan);
            }
        }
        (new, at_work)
    }

    /// Releases the lock of each dead owner of which only commands are left that this process cannot end: those of handlers
    /// that it does not have, or in a PID namespace that it does not see. A scheduler that can end them acquires the lock; this
    /// one acquires it again when one of the commands is gone.
    pub(crate) fn release(&mut self, handlers: &BTreeSet<String>) {
        if self.more {
            return;
        }
        let can_end = |orphan: &Orphan| handlers.contains(orphan.handler()) && orphan.group().is_some();
        for dying in self.dying.values_mut() {
            let orphans = &dying.orphans;
            if matches!(dying.evidence, Evidence::Lock(_)) && !orphans.is_empty() && !orphans.iter().any(can_end) {
                dying.evidence = Evidence::Released;
            }
        }
    }

    /// Sets the dead owners of which a run could not be recovered.
    pub(crate) fn set_resting(&mut self, owners: HashSet<String>) {
        self.resting = owners;
    }

    /// Forgets an owner that is recovered, and removes its lock file, and that of its guard.
    pub(crate) fn owner_recovered(&mut self, owner: &str) {
        self.watched.remove(owner);
        self.silent.remove(owner);
        if let Some(Dying { evidence: Evidence::Lock(lock), .. }) = self.dying.remove(owner) {
            lock.remove();
        }
        self.remove_guard(owner);
    }

    /// Forgets a lost run that is recovered, and removes the file of its command's input.
    pub(crate) fn run_recovered(&mut self, run: i64, attempt: u32) {
        self.reported_alive.remove(&(run, attempt));
        self.doubted.remove(&(run, attempt));
        self.doubts.remove(&(run, attempt));
        Orphan::new(&self.database, run, attempt, String::new(), String::new(), None).remove_files();
    }
}

fn key(orphan: &Orphan) -> (i64, u32) {
    (orphan.run_id(), orphan.attempt())
}
