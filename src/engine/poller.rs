//! The loop without the loop: one turn at a time, given the time, what finished and how much room there is.
//!
//! It decides when, and nothing else: no thread, no channel, no clock. So a test can step it through a year in a second, and
//! stop it anywhere. It alone emits events.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::engine::log_once::LogOnce;
use crate::engine::peers::Peers;
use crate::engine::turn::Turn;
use crate::engine::wake_time::{Refusal, WakeTime};
use crate::error::{Error, Result};
use crate::host::orphan::Orphan;
use crate::host::owner_lock::{Kept, OwnerLock};
use crate::host::platform;
use crate::model::event::{Event, Observer, Observers};
use crate::model::finished::{self, Finished, Report, WorkerEnded};
use crate::model::settings::Settings;
use crate::rules::clock_monitor::{ClockMonitor, Step};
use crate::rules::retention_timer::RetentionTimer;
use crate::schedule::zone_data;
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::open::Slots;
use crate::store::sqlite::owners::{self, Registration};
use crate::store::sqlite::{damage, health, prune, replan, turn};
use crate::store::turn_io::{ClockEvent, Done, MAX_ITEMS, MAX_OUTCOMES, Memory, Orphaned, Work};

/// Due tasks that a turn resolves although no worker is free for them: what is due must not wait to be told.
const RESOLVE_AHEAD: usize = 32;
/// How long due tasks may wait to be resolved before turns do little else.
const BEHIND: Duration = Duration::from_secs(1);
/// How soon a turn looks again at tasks that it left due because no worker was free.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Most events of the clock that wait to be recorded: a clock may step more often than the database can be written.
const MAX_CLOCK_EVENTS: usize = 100;
/// How far the time that is written down may lag behind: well below a step back that is noticed.
const LONGEST_UNSEEN: Duration = Duration::from_secs(3600);

/// The writing of one scheduler.
#[derive(Debug)]
pub(crate) struct Poller {
    pub(crate) store: SqliteStore,
    owner: String,
    registration: Registration,
    lock: Arc<OwnerLock>,
    handlers: BTreeSet<String>,
    settings: Settings,
    observers: Arc<Observers>,
    memory: Memory,
    /// Outcomes that are not yet written. They wait as long as they must.
    outbox: VecDeque<Finished>,
    /// Those of them that were set aside. They are tried again in full turns only.
    aside: Vec<Finished>,
    /// Runs that this owner has claimed and not settled.
    held: HashSet<i64>,
    /// What is yet to be written of attempts that go on.
    reports: Vec<Report>,
    /// Workers that ended, which is yet to be recorded.
    ended: Vec<WorkerEnded>,
    peers: Peers,
    steps: ClockMonitor,
    /// By how many milliseconds the wall clock has stepped since that was last written.
    stepped: i64,
    /// What is yet to be recorded of the wall clock.
    clock_events: Vec<ClockEvent>,
    /// Whether the machine's clock had been set when it was last looked at.
    is_set: bool,
    horizon: WakeTime,
    next_heartbeat: Duration,
    /// When the owner's lock file is looked at next: once every poll interval.
    next_lock_look: Duration,
    /// Whether the lock file was found in its place, or made again, in a folder that is this user's alone. Otherwise nothing is
    /// claimed, and no other owner is taken for dead.
    lock_is_kept: bool,
    /// Since when more has been due than was resolved.
    behind_since: Option<Duration>,
    retention_timer: RetentionTimer,
    /// Whether this owner is about to leave, and takes nothing on.
    draining: bool,
    refused: Refusal,
    log_once: LogOnce,
    /// Set when the tables are of a newer version: why this owner leaves.
    newer: Option<Error>,
}

impl Poller {
    /// Registers a new owner, whose lock is taken before anybody can read its name.
    pub(crate) fn new(
        mut store: SqliteStore,
        handlers: BTreeSet<String>,
        settings: Settings,
        observers: Vec<Arc<dyn Observer>>,
        mut random: fastrand::Rng,
        now: Now,
    ) -> Result<Self> {
        let owner = uuid::Builder::from_random_bytes(std::array::from_fn(|_| random.u8(..))).into_uuid().to_string();
        let lock = OwnerLock::take(store.path(), &owner)?;
        crate::host::fault_points::reach("locked");
        let (workers, lease) = (settings.workers, settings.lease);
        let registration = Registration { owner: owner.clone(), host: platform::host(), workers, lease };
        // The first turn asks the kernel about them already: a dead owner's runs do not wait for a second one.
        let zones = zone_data().to_string();
        let (others, not_stopped, newest, counted, other_zones) = store.write("register the scheduler", |tx, _| {
            let (newest, counted) = (owners::newest_seen(tx)?, health::counted_beyond(tx, now.wall)?.1);
            damage::stamp(tx, &owner)?;
            owners::register(tx, &registration, now.wall.max(Timestamp::MIN))?;
            // Here, since a scheduler that crashes as soon as it works may never come to its first batch of retention.
            prune::instances(tx, Timestamp::MIN)?;
            let (others, not_stopped) = (owners::others(tx, &owner)?, owners::not_stopped(tx, &owner)?);
            Ok((others, not_stopped, newest, counted, replan::zone_data(tx, &zones, now.wall.max(Timestamp::MIN))?))
        })?;
        store.watch();
        let mut peers = Peers::new(store.path().to_owned(), owner.clone(), settings.lease);
        peers.see(&others, &[], now.monotonic);
        peers.ask(not_stopped, now.monotonic);
        let mut poller = Poller {
            store,
            owner,
            registration,
            lock: Arc::new(lock),
            handlers,
            settings,
            observers: Arc::new(Observers(observers)),
            memory: Memory::new(random),
            outbox: VecDeque::new(),
            aside: Vec::new(),
            held: HashSet::new(),
            reports: Vec::new(),
            ended: Vec::new(),
            peers,
            steps: ClockMonitor::new(now, newest),
            stepped: 0,
            clock_events: Vec::new(),
            is_set: true,
            horizon: WakeTime::default(),
            next_heartbeat: now.monotonic,
            next_lock_look: now.monotonic,
            lock_is_kept: true,
            behind_since: None,
            retention_timer: RetentionTimer::new(settings.retention, now),
            draining: false,
            refused: Refusal::default(),
            log_once: LogOnce::default(),
            newer: None,
        };
        if let Some(before) = other_zones {
            poller.emit(&Event::ZoneDataChanged { before, now: zones });
        }
        if let Some(newest) = ClockMonitor::behind(newest.max(counted), now).filter(|_| !poller.steps.was_wrong(now)) {
            poller.tell_of_the_clock("clock_behind", now.wall, &Event::ClockBehind { newest, found: now.wall });
        }
        Ok(poller)
    }

    /// This owner's lock, for its workers to share.
    pub(crate) fn lock(&self) -> Arc<OwnerLock> {
        self.lock.clone()
    }

    /// The id of this owner.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// Draws all further chance from this seed.
    pub(crate) fn reseed(&mut self, seed: u64) {
        self.memory.random.seed(seed);
    }

    /// How many write transactions were begun.
    pub(crate) fn transactions(&self) -> u64 {
        self.store.transactions()
    }

    /// Runs that are claimed and not settled.
    pub(crate) fn unsettled(&self) -> usize {
        self.held.len()
    }

    /// The observers, for workers that report a start.
    pub(crate) fn observers(&self) -> Arc<Observers> {
        self.observers.clone()
    }

    /// Keeps what a worker tells, for the next turn to write.
    pub(crate) fn report(&mut self, report: Report) {
        report.join(&mut self.reports);
    }

    /// Keeps that a worker ended, for the next turn to record.
    pub(crate) fn worker_ended(&mut self, worker: WorkerEnded) {
        let run = worker.at_work.claim.as_ref().map(|claim| claim.run_id);
        self.emit(&Event::WorkerEnded { run, error: worker.error.clone() });
        self.ended.push(worker);
    }

    /// Takes one turn. What finished is kept until it is written, however often that fails. `None` for `slots`: the scheduler
    /// drains. It records outcomes and extends leases, and resolves, recovers, skips, cancels and claims nothing: what falls
    /// due meanwhile is left to the next scheduler.
    ///
    /// # Errors
    /// Only if going on would be wrong: the file or its log was removed or replaced, or the file was overwritten; or its tables are
    /// of a newer version, and nothing of this owner's runs any more; or it is corrupt. A database that refuses to be written is
    /// retried.
    pub(crate) fn turn(&mut self, now: Now, finished: Vec<Finished>, slots: Option<Slots>) -> Result<Turn> {
        for (run, slot, event) in finished::told(finished, &mut self.outbox) {
            self.held.remove(&run);
            self.lock.settled(slot.into_iter());
            self.emit(&event);
        }
        self.draining = slots.is_none();
        if self.draining {
            self.peers.let_go();
        }
        let slots = slots.unwrap_or_default();
        if self.refused.until().is_some_and(|at| now.monotonic < at) {
            return Ok(Turn { wake_at: self.wake_at(now, slots), ..Turn::default() });
        }
        if !self.look_at_the_clock(now) {
            return Ok(Turn { wake_at: now.monotonic + self.settings.poll, ..Turn::default() });
        }
        let full = self.steps.was_wrong(now) || now.monotonic >= self.next_heartbeat;
        if full {
            if let Err(fault) = self.store.check_writable() {
                return self.refuse(now, slots, fault);
            }
            self.outbox.extend(self.aside.drain(..));
        }
        if now.monotonic >= self.next_lock_look || self.refused.until().is_some() {
            self.next_lock_look = now.monotonic.saturating_add(self.settings.poll);
            // A lock file that is made again where the database no longer is would leave the old one free for others to take.
            if let Err(fault) = self.store.check_in_place() {
                return self.refuse(now, slots, fault);
            }
            self.keep_lock();
        }
        let slots = if self.lock_is_kept { slots } else { Slots::default() };
        if !self.draining && self.lock_is_kept {
            self.peers.look(now.monotonic, full);
        }
        // After a refusal, whether it can be written again is a question that only a write answers.
        let told = self.has_news() || self.refused.until().is_some();
        if !full && !told && self.newer.is_none() && !self.presses(now, slots) {
            // Whether somebody else has committed since the last look.
            if self.store.data_version().is_ok_and(|version| self.horizon.is_still(version, now.wall)) {
                return Ok(Turn { wake_at: self.wake_at(now, slots), ..Turn::default() });
            }
            // Why nothing can be read, the write finds out.
            if let Ok(Some(turn)) = self.look(now, slots) {
                return Ok(turn);
            }
        }
        self.write(now, slots, full)
    }

    /// Whether workers have reported something that is yet to be written.
    fn has_news(&self) -> bool {
        !self.outbox.is_empty() || !self.reports.is_empty() || !self.ended.is_empty()
    }

    /// Tells of a step. Whether the clock can be gone by.
    fn look_at_the_clock(&mut self, now: Now) -> bool {
        let was_set = std::mem::replace(&mut self.is_set, ClockMonitor::is_set(now));
        if !self.is_set {
            if was_set {
                self.emit(&Event::ClockNotSet);
                let detail = format!("{}; it shows {}", Event::ClockNotSet, now.wall);
                self.record_of_the_clock("clock_not_set", self.steps.estimate(now), detail);
                // No turn records it before the clock is set.
                let events = &self.clock_events;
                let recorded = self.store.write("record that the clock is not set", |tx, _| {
                    Ok(events.iter().try_for_each(|event| event.record(tx))?)
                });
                if recorded.is_ok() {
                    self.clock_events.clear();
                }
            }
            return false;
        }
        if !was_set {
            self.tell_of_the_clock("clock_set", now.wall, &Event::ClockSet { found: now.wall });
        }
        if let Some(Step { expected, found }) = self.steps.look(now) {
            self.stepped += found.as_millis() - expected.as_millis();
            // What is believed from now on is written down now.
            self.next_heartbeat = now.monotonic;
            if expected >= Timestamp::MIN {
                let kind = if found > expected { "clock_forward" } else { "clock_back" };
                self.tell_of_the_clock(kind, found, &Event::ClockStepped { expected, found });
            } else if let Some(newest) = ClockMonitor::behind(Some(self.steps.newest()), now)
                && !self.steps.was_wrong(now)
            {
                self.tell_of_the_clock("clock_behind", found, &Event::ClockBehind { newest, found });
            }
        }
        true
    }

    /// Emits an event about the wall clock, and keeps it for the next turn to record.
    fn tell_of_the_clock(&mut self, kind: &'static str, at: Timestamp, event: &Event) {
        self.emit(event);
        self.record_of_the_clock(kind, at, event.to_string());
    }

    fn record_of_the_clock(&mut self, kind: &'static str, at: Timestamp, detail: String) {
        if self.clock_events.len() < MAX_CLOCK_EVENTS {
            self.clock_events.push(ClockEvent { at, kind, detail });
        }
    }

    /// Writes down that this owner leaves; its lock file goes. What can be written down no more is no reason to call a stay
    /// that is over a failure: the lock file stays then, and its free lock tells the next scheduler the same.
    pub(crate) fn stop(&mut self, now: Now) -> Result<()> {
        match self.store.write("leave", |tx, _| Ok(owners::stopped(tx, &self.owner, now.wall)?)) {
            Err(error @ Error::Store { .. }) => {
                log::warn!("{error}; the next scheduler takes this one for dead, with nothing to recover");
                return Ok(());
            }
            left => left?,
        }
        // With a run still claimed the file stays: its free lock is the proof by which the run is recovered at once.
        if self.held.is_empty() {
            self.lock.retire();
        }
        Ok(())
    }

    /// Whether there is something to write, as far as is known, beside outcomes and leases.
    fn presses(&mut self, now: Now, slots: Slots) -> bool {
        !self.draining && (self.peers.presses(now.monotonic) || self.is_due(now, slots))
    }

    /// Whether something that is known of is due.
    fn is_due(&self, now: Now, slots: Slots) -> bool {
        self.behind_since.is_some() || self.retention_timer.is_due(now) || self.horizon.is_due(now.wall, slots.room)
    }

    /// Reads what somebody else's commit has brought. `None`: something that is to be written.
    fn look(&mut self, now: Now, slots: Slots) -> Result<Option<Turn>> {
        let (owner, handlers) = (&self.owner, &self.handlers);
        let (done, work) = self.store.read("look for changes", |tx, _| turn::look(tx, owner, handlers, now.wall))?;
        let seen = self.horizon.seen;
        self.remember(&done, now);
        if !self.draining {
            // An owner that it shows for the first time may be dead already: the next look is a poll interval away.
            self.peers.look(now.monotonic, false);
            if work || self.presses(now, slots) {
                // The turn that follows is part of this look.
                self.horizon.seen = seen;
                return Ok(None);
            }
        }
        Ok(Some(Turn { stop: done.stop, wake_at: self.wake_at(now, slots), ..Turn::default() }))
    }

    fn write(&mut self, now: Now, slots: Slots, full: bool) -> Result<Turn> {
        let outcomes = self.outbox.len().min(MAX_OUTCOMES);
        let stalled = self.peers.stalled(now.monotonic);
        let presence = |lost: &owners::Lost| self.peers.presence(lost, now.monotonic);
        let behind = self.behind_since.is_some_and(|since| now.monotonic.saturating_sub(since) >= BEHIND);
        let rewind = self.steps.was_wrong(now).then(|| self.steps.newest());
        let calm = self.newer.is_none() && self.steps.is_calm(now);
        let prune = self.retention_timer.part(now, full && outcomes == 0, calm).filter(|_| !self.draining);
        let work = Work {
            now: now.wall,
            owner: &self.owner,
            registration: &self.registration,
            handlers: &self.handlers,
            until: now.wall.plus(self.settings.lease).min(Timestamp::MAX),
            finished: &self.outbox.make_contiguous()[..outcomes],
            reports: &self.reports,
            ended: &self.ended,
            dead: &self.peers.dead(),
            stalled: &stalled,
            presence: &presence,
            doubted: self.peers.doubted(),
            rewind,
            stepped: self.stepped,
            clock_events: &self.clock_events,
            newer: self.newer.is_some(),
            draining: self.draining,
            seen: self.horizon.seen,
            full,
            prune,
            slots,
            ahead: if behind { MAX_ITEMS } else { RESOLVE_AHEAD },
        };
        let mut done = match turn::turn(&mut self.store, &work, &mut self.memory) {
            Ok(done) => done,
            Err(Fault::Newer(error)) => return self.outlive(now, error),
            Err(fault) => return self.refuse(now, slots, fault),
        };
        let settled = self.outbox.drain(..outcomes).filter_map(|finished| {
            self.held.remove(&finished.claim.run_id);
            // Slot and input of an attempt stay until its outcome is stored.
            let is_same = |unwritten: &Finished| Arc::ptr_eq(&unwritten.claim, &finished.claim);
            if done.unwritten.iter().any(is_same) {
                return None;
            }
            finished.is_written();
            finished.slot
        });
        self.lock.settled(settled);
        self.aside.append(&mut done.unwritten);
        self.held.extend(self.aside.iter().map(|finished| finished.claim.run_id));
        self.reports.clear();
        self.ended.clear();
        self.stepped = 0;
        self.clock_events.clear();
        if let Some(believed) = rewind {
            self.emit(&Event::ClockWasWrong { believed, found: now.wall });
        }
        self.steps.believe(now);
        self.retention_timer.took(prune, done.pruned, now);
        if full {
            self.store.stamped();
            self.next_heartbeat = now.monotonic.saturating_add((self.settings.lease / 3).min(LONGEST_UNSEEN));
        }
        if self.refused.is_over(!self.memory.damaged) {
            self.emit(&Event::Recovered);
        }
        self.lock.recover();
        self.remember(&done, now);
        let Done {
            written, mut stop, orphaned, more_lost, resting, recovered, extended, more_due, not_stopped, ..
        } = done;
        self.peers.reported(&stalled);
        self.peers.rest(resting);
        self.peers.ask(not_stopped, now.monotonic);
        for event in &written.events {
            if let Event::Lost { run, attempt, .. } = event {
                self.peers.bury(*run, *attempt);
            }
            self.emit(event);
        }
        for owner in recovered {
            self.peers.recovered(&owner);
            self.emit(&Event::OwnerLost { owner });
        }
        let orphans = self.orphans(&orphaned, more_lost, full, now);
        if extended.is_some_and(|extended| extended != self.held.len()) {
            let gone = self.no_longer_ours();
            stop.extend(self.log_once.judge("claims that were taken over are not known", gone).unwrap_or_default());
        }
        self.behind_since = if more_due { self.behind_since.or(Some(now.monotonic)) } else { None };
        for claim in &written.claims {
            self.held.insert(claim.run_id);
        }
        if self.held.len() == self.aside.len()
            && self.outbox.is_empty()
            && let Some(error) = self.newer.take()
        {
            self.stop(now)?;
            return Err(error);
        }
        if full && outcomes == 0 && written.claims.is_empty() {
            self.log_once.judge("the log stays long", self.store.shrink_log());
        }
        let left = Slots { room: slots.room.saturating_sub(written.claims.len()), ..slots };
        // What could have been written and was not, waits for something else than time: an idle worker, or a look at the
        // whole. It must not keep the loop spinning.
        self.horizon.put_off(now.wall, now.wall.plus(self.settings.poll), written.claims.is_empty());
        let mut wake_at = self.wake_at(now, left);
        if more_lost {
            wake_at = now.monotonic;
        }
        if more_due {
            wake_at = wake_at.min(now.monotonic + if left.room > 0 || behind { Duration::ZERO } else { LOOK_AGAIN });
        }
        Ok(Turn { claims: written.claims, stop, orphans, wake_at, leaves: self.newer.is_some() })
    }

    /// Keeps what a turn saw of the future and of other owners.
    fn remember(&mut self, done: &Done, now: Now) {
        self.horizon = WakeTime::of(done, now.wall);
        self.peers.see(&done.others, &done.declared_gone, now.monotonic);
    }

    /// Reports the commands that lost runs wait for, and returns those that are to be ended here: each once as soon as it is
    /// found, and again at each heartbeat.
    fn orphans(&mut self, left: &[Orphaned], more: bool, full: bool, now: Now) -> Vec<Orphan> {
        let (new, mut at_work) = self.peers.orphaned(left, more, now.monotonic);
        if !full {
            at_work.retain(|orphan| new.iter().any(|(new, _)| new == orphan));
        }
        at_work.retain(|orphan| self.handlers.contains(orphan.handler()));
        for (orphan, doubt) in new {
            self.emit(&match doubt {
                Some(reason) => Event::OrphanUnknown { orphan, reason },
                None => Event::Orphaned { orphan },
            });
        }
        self.peers.release(&self.handlers);
        at_work
    }

    fn keep_lock(&mut self) {
        let what = "the lock file of this scheduler cannot be kept, so it starts nothing";
        let kept = self.log_once.judge(what, self.lock.keep());
        self.lock_is_kept = kept.is_some();
        if kept == Some(Kept::MadeAgain) {
            self.emit(&Event::LockMadeAgain);
        }
    }

    /// Claims that another took over, though this owner believes it has them. Their handlers are told to stop.
    fn no_longer_ours(&mut self) -> Result<Vec<i64>> {
        let owner = &self.owner;
        let ours = self.store.read("count claims", |tx, _| Ok(owners::claimed_by(tx, owner)?))?;
        Ok(self.held.difference(&ours).copied().collect())
    }

    /// Another program has brought the tables to its own version: nothing more is claimed, what runs is written down.
    fn outlive(&mut self, now: Now, error: Error) -> Result<Turn> {
        self.emit(&Event::Outlived { reason: error.to_string(), at_work: self.held.len() });
        self.store.accept_newer();
        self.newer = Some(error);
        self.outbox.extend(self.aside.drain(..));
        self.write(now, Slots::default(), true)
    }

    /// Nothing could be written: said once, tried again with growing waits. What no later try can mend ends the loop.
    fn refuse(&mut self, now: Now, slots: Slots, fault: Fault) -> Result<Turn> {
        self.retention_timer.give_way(now);
        let (reason, damaged) = (fault.to_string(), fault.is_damage());
        let lasts = self.refused.is_damaged(damaged);
        let from_outside = matches!(fault, Fault::Damaged(_));
        if let error @ Error::UnusableDatabase { .. } = self.store.told(fault, "take a turn")
            && (lasts || !damaged)
        {
            if from_outside {
                self.store.set_log_aside();
            }
            return Err(error);
        }
        if self.refused.happened(now.monotonic) {
            self.emit(&Event::Degraded { reason });
        }
        if self.refused.lasts(now.monotonic) {
            self.lock.degrade();
        }
        Ok(Turn { wake_at: self.wake_at(now, slots), ..Turn::default() })
    }

    /// When the next turn is due at the latest.
    fn wake_at(&self, now: Now, slots: Slots) -> Duration {
        if let Some(at) = self.refused.until() {
            return at;
        }
        if self.has_news() {
            return now.monotonic;
        }
        let heartbeat = now.monotonic.saturating_add(self.settings.poll).min(self.next_heartbeat);
        if self.draining {
            return heartbeat;
        }
        let wait = self.horizon.wait(now.wall, slots.room);
        now.monotonic.saturating_add(wait).min(heartbeat).min(self.retention_timer.wake_at(now))
    }

    pub(crate) fn emit(&self, event: &Event) {
        self.observers.tell(event);
    }
}
