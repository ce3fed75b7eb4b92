//! The turns of one scheduler: each is given the time, the finished attempts and the free slots. The poller decides when, and
//! nothing else: it has no thread, no channel and no clock, so a test can stop it anywhere. Only the poller emits events.

mod claims;
mod faults;
mod given;
mod next_turn;
#[cfg(feature = "postgres")]
mod on_server;
mod quiet;
mod restored;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::engine::former::Former;
use crate::engine::log_once::LogOnce;
use crate::engine::peers::Peers;
use crate::engine::wake_time::{Refusal, WakeTime};
use crate::engine::wall_clock::WallClock;
use crate::error::{Error, Result};
use crate::host::attempt_slots::ClaimedAttempt;
use crate::host::fault_points;
use crate::host::orphan::Orphan;
use crate::host::owner_lock::{FileState, OwnerLock};
use crate::host::platform;
use crate::model::event::{Event, Observer};
use crate::model::finished::{self, Finished, Report, WorkerEnded};
use crate::model::observers::Observers;
use crate::model::run::Claim;
use crate::model::settings::Settings;
use crate::model::vitals::Refused;
use crate::rules::clock_monitor::ClockMonitor;
use crate::rules::retention_timer::{Part, RetentionTimer};
use crate::rules::turn_size::TurnSize;
use crate::schedule::zone_data;
use crate::store::Store;
use crate::store::fault::Fault;
use crate::store::turn_io::{Dead, Done, MAX_ITEMS, Orphaned, Registered, Registration, Slots, Stalled, Work};

/// Due tasks that a turn resolves although no worker is free for them: what is due is recorded without delay.
const RESOLVE_AHEAD: usize = 32;
/// How long due tasks may wait to be resolved before turns do little else.
const BEHIND: Duration = Duration::from_secs(1);
/// Longest time between two heartbeats: well below a step back of the clock that is noticed.
const LONGEST_UNSEEN: Duration = Duration::from_secs(3600);

/// What a turn returns.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Runs to start now. They are recorded.
    pub(crate) claims: Vec<Arc<Claim>>,
    /// Runs whose handler is to be asked to stop.
    pub(crate) stop: Vec<i64>,
    /// Commands of dead owners that are to be ended.
    pub(crate) orphans: Vec<Orphan>,
    /// When the next turn is due at the latest, by the monotonic clock.
    pub(crate) wake_at: Duration,
    /// How long after this turn the next one begins at the earliest, unless an attempt ends.
    pub(crate) rest: Duration,
    /// Whether the scheduler claims nothing more, because the tables are of a newer version, and drains.
    pub(crate) leaves: bool,
    /// Why it wrote nothing, if it tried.
    pub(crate) refused: Option<Refused>,
}

/// What a look has shown.
enum Looked {
    /// There is nothing to write.
    Idle(Turn),
    /// There is something to write. `stop`: runs whose handler is to be asked to stop.
    Work { stop: Vec<i64> },
}

/// What a poller is made of.
pub(crate) struct Parts {
    pub(crate) store: Box<dyn Store>,
    /// The file that the lock and input files of owners are beside.
    pub(crate) database: PathBuf,
    pub(crate) owner: String,
    pub(crate) handlers: BTreeSet<String>,
    pub(crate) settings: Settings,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    /// The source of all chance in its turns.
    pub(crate) random: fastrand::Rng,
}

/// The state of one scheduler between turns.
#[derive(Debug)]
pub(crate) struct Poller {
    store: Box<dyn Store>,
    registration: Registration,
    lock: Arc<OwnerLock>,
    handlers: BTreeSet<String>,
    /// Those for which it claims now.
    claiming: Arc<BTreeSet<String>>,
    settings: Settings,
    observers: Arc<Observers>,
    /// Outcomes that are not written yet, however long that takes.
    outbox: VecDeque<Finished>,
    /// How many of them a turn writes at most, if a test limits it.
    limit: Option<usize>,
    size: TurnSize,
    /// Whether turns are smaller after those that held the lock of a file for long.
    adapts: bool,
    /// Those of them that were set aside. Only full turns try them again.
    aside: Vec<Finished>,
    /// The attempts that this owner has claimed and not settled, by run.
    claimed: BTreeMap<i64, ClaimedAttempt>,
    /// What was claimed under earlier ids, before the database was restored.
    former: Former,
    /// Reports on running attempts that are not written yet.
    reports: Vec<Report>,
    /// Workers that ended, which is not recorded yet.
    ended: Vec<WorkerEnded>,
    peers: Peers,
    clock: WallClock,
    horizon: WakeTime,
    next_heartbeat: Duration,
    /// When the owner's lock file is checked next: once every poll interval.
    next_lock_check: Duration,
    /// Whether the lock file was found in its place, or made again, in a folder that only this user can write. Otherwise the
    /// scheduler claims nothing and declares no other owner dead.
    lock_is_kept: bool,
    /// Since when more has been due than was resolved.
    behind_since: Option<Duration>,
    retention_timer: RetentionTimer,
    /// Whether this owner drains: it takes on no work.
    draining: bool,
    refused: Refusal,
    troubles: given::Troubles,
    log_once: LogOnce,
    /// Set when the tables are of a newer version: why this owner shuts down.
    newer: Option<Error>,
    /// On a server: how many attempts of earlier ids of this scheduler have an outcome that is not stored.
    #[cfg(feature = "postgres")]
    former_unstored: usize,
}

/// The input of a turn that is not kept in the poller.
struct Input {
    outcomes: usize,
    dead: Vec<Dead>,
    stalled: Vec<Stalled>,
    doubts: HashMap<(i64, u32), String>,
    rewind: Option<Timestamp>,
    prune: Option<Part>,
    /// Whether due tasks have waited too long to be resolved.
    behind: bool,
    full: bool,
    slots: Slots,
}

impl Poller {
    /// Registers a new owner, whose lock is taken before its id can be read.
    pub(crate) fn new(parts: Parts, now: Now) -> Result<Self> {
        let Parts { mut store, database, owner, handlers, settings, observers, random } = parts;
        let lock = OwnerLock::take(&database, &owner)?;
        let lock = if store.as_file().is_some() { lock } else { lock.of_server() };
        fault_points::reach("locked");
        let (workers, lease, zone_data) = (settings.workers, settings.lease, zone_data().to_string());
        let registration =
            Registration { owner: owner.clone(), host: platform::host(), workers, lease, zone_data, problems: None };
        let registered = store.register(&registration, random, now.wall)?;
        let Registered { others, not_stopped, cookie, newest_seen, zone_data_changed } = registered;
        cookie.iter().for_each(|cookie| lock.compared(*cookie));
        // The first turn asks the kernel about them already: a dead owner's runs do not wait for the second turn.
        let mut peers = Peers::new(database, owner, lease);
        peers.update(&others, &[], now.monotonic);
        peers.check_not_stopped(not_stopped, now.monotonic);
        let mut poller = Poller {
            store,
            registration,
            lock: Arc::new(lock),
            claiming: Arc::new(handlers.clone()),
            handlers,
            settings,
            observers: Arc::new(Observers(observers)),
            outbox: VecDeque::new(),
            limit: None,
            size: TurnSize::default(),
            adapts: false,
            aside: Vec::new(),
            claimed: BTreeMap::new(),
            former: Former::default(),
            reports: Vec::new(),
            ended: Vec::new(),
            peers,
            clock: WallClock::new(now, newest_seen),
            horizon: WakeTime::default(),
            next_heartbeat: now.monotonic,
            next_lock_check: now.monotonic,
            lock_is_kept: true,
            behind_since: None,
            retention_timer: RetentionTimer::new(settings.retention, now),
            draining: false,
            refused: Refusal::default(),
            troubles: given::Troubles::default(),
            log_once: LogOnce::default(),
            newer: None,
            #[cfg(feature = "postgres")]
            former_unstored: 0,
        };
        zone_data_changed.iter().for_each(|event| poller.emit(event));
        // If the clock is behind a heartbeat, the event names the newest time of all.
        if ClockMonitor::behind(newest_seen, now).is_some() {
            let counted = poller.store.counted_beyond(now.wall)?;
            poller.compare_clock(newest_seen.max(counted), now);
        }
        Ok(poller)
    }

    /// Returns whether a new poller has found the clock behind: it has reported that, or its first turn plans all tasks again.
    /// Otherwise its caller compares the clock with the times that tasks count from, which reads all tasks.
    pub(crate) fn is_behind(&self, now: Now) -> bool {
        !self.clock.unrecorded.is_empty() || self.clock.monitor.was_wrong(now)
    }

    /// Reports a clock that is behind the newest time in the file. The next turn records it.
    pub(crate) fn compare_clock(&mut self, newest: Option<Timestamp>, now: Now) {
        if let Some(event) = self.clock.behind(newest, now) {
            self.next_heartbeat = now.monotonic;
            self.emit(&event);
        }
    }

    /// Returns this owner's lock, for its workers to share.
    pub(crate) fn lock(&self) -> Arc<OwnerLock> {
        self.lock.clone()
    }

    /// Returns the id of this owner.
    pub(crate) fn owner(&self) -> &str {
        &self.registration.owner
    }

    /// Returns whether outcomes are left that the next turn writes.
    pub(crate) fn writes_on(&self) -> bool {
        !self.outbox.is_empty() && self.refused.until().is_none() && self.clock.is_set
    }

    /// Returns the observers, for workers that report a start.
    pub(crate) fn observers(&self) -> Arc<Observers> {
        self.observers.clone()
    }

    /// Returns the connection, without writing anything more.
    pub(crate) fn into_store(#[cfg_attr(not(feature = "postgres"), expect(unused_mut))] mut self) -> Box<dyn Store> {
        #[cfg(feature = "postgres")]
        self.store.end_session();
        self.store
    }

    /// Takes one turn. Finished attempts are kept until they are written, however often that fails. `None` for `slots`: the
    /// scheduler drains. It records outcomes and extends leases, and resolves, recovers, skips, cancels and claims nothing: what
    /// falls due meanwhile is left to the next scheduler.
    ///
    /// # Errors
    /// Only if going on would be wrong: the file or its log was removed or replaced, or the file was overwritten; or its tables are
    /// of a newer version, and no run of this owner is left; or it is corrupt. A database that refuses to be written is retried.
    pub(crate) fn turn(&mut self, now: Now, finished: Vec<Finished>, slots: Option<Slots>) -> Result<Turn> {
        let finished = self.drop_former(finished);
        let slots = self.admit(slots, &finished, now);
        for (claim, slot, event) in finished::split_recorded(finished, &mut self.outbox) {
            self.forget(&claim);
            self.lock.free_slots(slot.into_iter());
            self.emit(&event);
        }
        self.draining = slots.is_none();
        if self.draining {
            self.peers.release_all();
        }
        let slots = slots.map(|slots| self.less_what_is_unwritten(slots)).unwrap_or_default();
        if self.refused.until().is_some_and(|at| now.monotonic < at) {
            return Ok(self.idle_turn(now, slots));
        }
        if !self.check_clock(now) {
            return Ok(Turn { wake_at: now.monotonic + self.settings.poll, ..Turn::default() });
        }
        let full = self.clock.monitor.was_wrong(now) || now.monotonic >= self.next_heartbeat;
        if full {
            if let Some(Err(fault)) = self.store.as_file().map(|file| file.check_writable()) {
                return self.refuse(now, slots, fault);
            }
            self.outbox.extend(self.aside.drain(..));
        }
        if now.monotonic >= self.next_lock_check || self.refused.until().is_some() {
            self.next_lock_check = now.monotonic.saturating_add(self.settings.poll);
            // A lock file that is made again where the database no longer is would leave the old one free for others to take.
            if let Some(Err(fault)) = self.store.as_file().map(|file| file.check_in_place()) {
                return self.refuse(now, slots, fault);
            }
            self.keep_lock();
        }
        let slots = if self.lock_is_kept { slots } else { Slots::default() };
        if !self.draining && self.lock_is_kept {
            self.peers.look(now.monotonic, full);
        }
        if self.former.must_register {
            return self.restored(now, slots);
        }
        // After a refusal only a write shows whether the database can be written again.
        let must_write = full
            || self.lock.is_halted()
            || self.has_reports()
            || self.former.is_due(now.monotonic)
            || self.refused.until().is_some()
            || self.newer.is_some();
        if must_write || self.has_work(now, slots) {
            return self.write(now, slots, full);
        }
        match self.look(now, slots) {
            Looked::Idle(turn) => Ok(turn),
            Looked::Work { stop } => {
                let mut turn = self.write(now, slots, full)?;
                turn.stop.extend(stop);
                Ok(turn)
            }
        }
    }

    /// Returns whether workers have reported something that is not written yet.
    fn has_reports(&self) -> bool {
        !self.outbox.is_empty() || !self.reports.is_empty() || !self.ended.is_empty()
    }

    /// Reports steps of the wall clock. Returns whether the clock is set.
    fn check_clock(&mut self, now: Now) -> bool {
        let was_set = self.clock.is_set;
        self.clock.check(now).iter().for_each(|event| self.emit(event));
        if self.clock.stepped != 0 {
            // The time that counts from now on is recorded in this turn.
            self.next_heartbeat = now.monotonic;
        }
        // No turn records it before the clock is set.
        if was_set && !self.clock.is_set && self.store.record_clock_events(&self.clock.unrecorded).is_ok() {
            self.clock.unrecorded.clear();
        }
        self.clock.is_set
    }

    /// Records that this owner shuts down, and removes its lock file. If that cannot be recorded any more, the lock file stays, and
    /// its free lock shows the next scheduler the same; it is no error.
    pub(crate) fn stop(&mut self, now: Now) -> Result<()> {
        match self.store.stop(&self.registration.owner, now.wall) {
            Err(error @ Error::Store { .. }) => {
                log::warn!("{error}; the next scheduler counts this one as dead, with nothing to recover");
                return Ok(());
            }
            stopped => stopped?,
        }
        // With a run still claimed the file stays: its free lock is the proof by which the run is recovered at once. So it does while an
        // attempt of an earlier history runs.
        if self.claimed.is_empty() && self.former.strays.is_empty() {
            self.lock.retire();
        }
        Ok(())
    }

    /// Returns whether there is something to write, as far as is known, beside outcomes and leases.
    fn has_work(&mut self, now: Now, slots: Slots) -> bool {
        !self.draining && (self.peers.has_work(now.monotonic) || self.is_due(now, slots))
    }

    /// Returns whether something that is known is due.
    fn is_due(&self, now: Now, slots: Slots) -> bool {
        self.behind_since.is_some() || self.retention_timer.is_due(now) || self.horizon.is_due(now.wall, slots)
    }

    /// Reads what other connections committed.
    fn look(&mut self, now: Now, slots: Slots) -> Looked {
        let since = self.horizon.data_version();
        let done = match self.store.look(&self.registration.owner, &self.claiming, since, now.wall) {
            Ok(Some(done)) => done,
            Ok(None) => {
                self.horizon.looked_again(now.wall);
                return Looked::Idle(self.idle_turn(now, slots));
            }
            // The write is to find out why nothing can be read.
            Err(_) => return Looked::Work { stop: Vec::new() },
        };
        let (seen, is_of_a_turn) = (self.horizon.seen, self.horizon.look_follows());
        self.remember(&done, now);
        if !self.draining {
            // An owner that this look shows for the first time may be dead already: the next look is a poll interval away.
            self.peers.look(now.monotonic, false);
            let pressing = done.more_due || self.peers.has_work(now.monotonic) || self.behind_since.is_some();
            if !pressing && is_of_a_turn && slots.room == 0 && self.horizon.is_due(now.wall, Slots::default()) {
                return Looked::Idle(Turn { stop: done.stop, ..self.crowded_turn(now, slots) });
            }
            if pressing || self.is_due(now, slots) {
                // The turn that follows is part of this look.
                self.horizon.seen = seen;
                return Looked::Work { stop: done.stop };
            }
        }
        Looked::Idle(Turn { stop: done.stop, ..self.idle_turn(now, slots) })
    }

    fn write(&mut self, now: Now, slots: Slots, full: bool) -> Result<Turn> {
        let input = self.input(now, slots, full);
        let work = Work {
            now: now.wall,
            monotonic: now.monotonic,
            owner: &self.registration.owner,
            halted: self.lock.is_halted().then_some(&*self.lock),
            registration: &self.registration,
            handlers: &self.claiming,
            until: now.wall.plus(self.settings.lease).min(Timestamp::MAX),
            finished: &self.outbox.make_contiguous()[..input.outcomes],
            reports: &self.reports,
            ended: &self.ended,
            dead: &input.dead,
            claimed: &self.claimed,
            former: &self.former.owners,
            strays: &self.former.strays,
            stalled: &input.stalled,
            database: self.peers.database(),
            doubts: &input.doubts,
            doubted: self.peers.doubted(),
            rewind: input.rewind,
            stepped: self.clock.stepped,
            clock_events: &self.clock.unrecorded,
            newer: self.newer.is_some(),
            draining: self.draining,
            seen: self.horizon.seen,
            full,
            prune: input.prune,
            slots,
            most: self.size.items(),
            derived: self.limit.unwrap_or(self.size.items().div_ceil(2)),
            ahead: if input.behind { MAX_ITEMS } else { RESOLVE_AHEAD },
        };
        match self.store.turn(&work) {
            Ok(done) => self.apply(now, &input, done),
            Err(Fault::Newer(error)) => self.leave_newer(now, error),
            Err(Fault::Restored(_)) => self.restored(now, slots),
            Err(fault) => self.refuse(now, slots, fault),
        }
    }

    /// Gathers the input of a turn.
    fn input(&mut self, now: Now, slots: Slots, full: bool) -> Input {
        let outcomes = self.outbox.len().min(self.most_outcomes());
        let calm = self.newer.is_none() && self.clock.monitor.is_calm(now);
        let prune = self.retention_timer.part(now, full && outcomes == 0, calm).filter(|_| !self.draining);
        Input {
            outcomes,
            dead: self.peers.dead(now.monotonic).into_iter().chain(self.former.dead()).collect(),
            stalled: self.peers.stalled(now.monotonic),
            doubts: self.peers.recent_doubts(now.monotonic),
            rewind: self.clock.monitor.was_wrong(now).then(|| self.clock.monitor.newest()),
            prune,
            behind: self.behind_since.is_some_and(|since| now.monotonic.saturating_sub(since) >= BEHIND),
            full,
            slots,
        }
    }

    /// Applies the result of a turn that was committed.
    fn apply(&mut self, now: Now, input: &Input, mut done: Done) -> Result<Turn> {
        self.clear_written(now, input, &mut done);
        self.measure(&done);
        self.compared(now, &mut done);
        self.sign(&mut done.claims);
        self.remember(&done, now);
        self.peers.stalled_reported(&input.stalled);
        self.peers.set_resting(std::mem::take(&mut done.resting));
        // Another turn has not looked for them.
        if input.full {
            self.peers.check_not_stopped(std::mem::take(&mut done.not_stopped), now.monotonic);
        }
        for event in &done.events {
            if let Event::Lost { run, attempt, .. } = event
                && !self.former.has(*run, *attempt)
            {
                self.peers.run_recovered(*run, *attempt);
            }
            self.emit(event);
        }
        for owner in std::mem::take(&mut done.recovered) {
            if self.former.recovered(&owner) {
                continue;
            }
            self.peers.owner_recovered(&owner);
            self.emit(&Event::OwnerLost { owner });
        }
        let orphans = self.orphans(&done.orphaned, done.more_lost, input.full, now);
        if done.extended.is_some_and(|extended| extended != self.claimed.len()) {
            let lost = self.lost_claims(&done.claims, now);
            done.stop.extend(self.log_once.log("claims that were taken over are not known", lost).unwrap_or_default());
        }
        self.troubles.claimed(done.claims.len(), now);
        self.claimed.extend(done.claims.iter().map(|claim| (claim.run_id, claim.identified())));
        let owner = &self.registration.owner;
        if self.claimed.len() == self.aside.iter().filter(|finished| !finished.claim.is_of_other(owner)).count()
            && self.outbox.is_empty()
            && let Some(error) = self.newer.take()
        {
            self.stop(now)?;
            return Err(error);
        }
        if input.full
            && input.outcomes == 0
            && done.claims.is_empty()
            && let Some(file) = self.store.as_file()
        {
            self.log_once.log("the log stays long", file.shrink_log());
        }
        let (wake_at, rest) = self.next_after(now, input, &done);
        let leaves = self.newer.is_some();
        Ok(Turn { claims: done.claims, stop: done.stop, orphans, wake_at, rest, leaves, refused: None })
    }

    /// Forgets what a turn has written.
    fn clear_written(&mut self, now: Now, input: &Input, done: &mut Done) {
        let (mut deferred, mut stored) = (Vec::new(), Vec::new());
        for (place, finished) in self.outbox.drain(..input.outcomes).enumerate() {
            if done.deferred.contains(&place) { deferred.push(finished) } else { stored.push(finished) }
        }
        deferred.into_iter().rev().for_each(|finished| self.outbox.push_front(finished));
        // Claim, slot and input of an attempt stay until its outcome is stored.
        let is_unwritten = |of: &Finished| done.unwritten.iter().any(|one| Arc::ptr_eq(&one.claim, &of.claim));
        stored.retain(|finished| !is_unwritten(finished));
        for finished in &stored {
            self.forget(&finished.claim);
            finished.remove_input();
        }
        self.lock.free_slots(stored.iter().filter_map(|finished| finished.slot));
        self.aside.append(&mut done.unwritten);
        self.reports.clear();
        self.ended.clear();
        self.clock.recorded();
        if let Some(believed) = input.rewind {
            self.emit(&Event::ClockWasWrong { believed, found: now.wall });
        }
        self.clock.monitor.believe(now);
        self.retention_timer.took(input.prune, done.pruned, now);
        if input.full {
            self.next_heartbeat = now.monotonic.saturating_add((self.settings.lease / 3).min(LONGEST_UNSEEN));
        }
        if self.refused.is_over(!done.damaged) {
            self.emit(&Event::Recovered);
        }
        self.lock.recover();
    }

    /// Keeps what a turn saw of the future and of other owners.
    fn remember(&mut self, done: &Done, now: Now) {
        if done.look_follows {
            return self.horizon.expect_look(now.wall);
        }
        self.horizon = WakeTime::of(done, now.wall);
        self.peers.update(&done.others, &done.declared_gone, now.monotonic);
    }

    /// Reports the commands that lost runs wait for. Returns those that are to be ended here: each once as soon as it is found, and
    /// again at each heartbeat.
    fn orphans(&mut self, left: &[Orphaned], more: bool, full: bool, now: Now) -> Vec<Orphan> {
        let (new, mut running) = self.peers.orphaned(left, more, now.monotonic);
        if !full {
            running.retain(|orphan| new.iter().any(|(new, _)| new == orphan));
        }
        running.retain(|orphan| self.handlers.contains(orphan.handler()));
        for (orphan, doubt) in new {
            self.emit(&match doubt {
                Some(reason) => Event::OrphanUnknown { orphan, reason },
                None => Event::Orphaned { orphan },
            });
        }
        self.peers.release(&self.handlers);
        running
    }

    fn keep_lock(&mut self) {
        let what = "the lock file of this scheduler cannot be kept, so it starts nothing";
        let kept = self.log_once.log(what, self.lock.keep());
        self.lock_is_kept = kept.is_some();
        if kept == Some(FileState::Recreated) {
            self.emit(&Event::LockFileRecreated);
        }
    }

    pub(crate) fn emit(&self, event: &Event) {
        self.observers.notify(event);
    }
}
