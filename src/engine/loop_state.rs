//! What the loop decides: when a turn is taken and for how many claims, which claims begin, what is taken back, how the scheduler
//! drains, and until when the loop waits. A pure state, without a channel, thread, clock, pool or store: [`LoopState::next`] returns
//! what is to be carried out, and the shell (`event_loop`) or a test (`duly::testing`) gives back what came of it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::engine::lanes::Lanes;
use crate::engine::poller::Turn;
use crate::host::orphan::Orphan;
use crate::model::finished::Finished;
use crate::model::run::{Claim, Outcome};
use crate::store::turn_io::Slots;
use crate::worker::pool::{QUEUE, Returned};

/// Claims that wait this long for a worker are returned to the queue.
pub(crate) const UNSTARTED: Duration = Duration::from_millis(500);
/// How long the next outcome of short runs is waited for, to be written with those before it.
const GATHER: Duration = Duration::from_millis(1);
/// How long outcomes are gathered in all.
const GATHER_ALL: Duration = Duration::from_millis(10);
/// How long the workers may need for what is read ahead: what a host that dies had claimed and not begun, or not stored.
const AHEAD: Duration = Duration::from_millis(200);
/// How long they may need for what is read ahead beyond four times what has finished.
const BRIEF: Duration = Duration::from_millis(10);
/// How long handlers may take to stop before the scheduler registers again under another id.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// An order to the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Claim nothing more; end when no run is running.
    Drain,
    /// As `Drain`; when no worker and no executor has a run, as `Cut`. For a sender that blocks the runtime on which async handlers
    /// have to return.
    DrainWorkers,
    /// As `Drain`, and ask the running handlers to stop.
    Interrupt,
    /// As `Interrupt`, and report how many runs are unfinished.
    Cut,
    /// Report if the clock is behind this time, from which tasks count.
    CompareClock(Timestamp),
}

/// What the loop sees when it decides: the time, and the counts of pool and poller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub(crate) now: Now,
    /// How many workers take claims, and how many are held past a time limit and have been replaced.
    pub(crate) workers: usize,
    /// How many claims no worker has begun.
    pub(crate) unstarted: usize,
    /// How many attempts are handed over beside the workers and have not returned.
    pub(crate) beside: usize,
    /// How many of them need no async runtime.
    pub(crate) beside_runtime: usize,
    /// How many runs are claimed and not settled.
    pub(crate) unsettled: usize,
    /// Whether outcomes are left that the next turn writes.
    pub(crate) writes_on: bool,
    /// When a worker may have to be replaced, by the monotonic clock.
    pub(crate) next_replacement: Option<Duration>,
    /// When attempts beside the workers, or reports of running ones, need the loop.
    pub(crate) next_check: Option<Duration>,
    /// On a server: whether the lease lasts long enough for attempts to begin.
    pub(crate) may_begin: bool,
    /// On a server: whether it has another history than that of the claims, so that the owner must register again.
    pub(crate) must_register: bool,
}

/// What is to be carried out next.
#[derive(Debug)]
pub(crate) enum Act {
    /// Gather what the next turn is given. [`LoopState::recalled`] and [`LoopState::lanes_are`] follow.
    Prepare(Prepare),
    /// Register under another id. This number of attempts have not returned, or their ends are not written.
    /// [`LoopState::registered`] follows if that was done.
    Register(usize),
    /// Take a turn. [`LoopState::turned`] follows.
    Turn(NextTurn),
    /// Read an order, without waiting. [`LoopState::ordered`] or [`LoopState::no_order`] follows.
    ReadOrder,
    /// Carry out what a turn returned.
    CarryOut(Given),
    /// Compare the clock with this time.
    CompareClock(Timestamp),
    /// Ask all handlers to stop: the scheduler shuts down.
    StopAll,
    /// Report how many runs are unfinished.
    Report(usize),
    /// Wait for an outcome, a notice, a wake-up or an order, at most until this time of the monotonic clock.
    Wait(Duration),
    /// The scheduler has drained.
    End,
}

/// What is gathered before a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prepare {
    /// Whether to take back the claims that no worker has begun.
    pub(crate) recalls: bool,
    /// Whether the scheduler drains: lanes give back all that has not begun, and no worker is replaced.
    pub(crate) draining: bool,
    /// Whether to look for attempts that were read ahead and still run.
    pub(crate) looks: bool,
}

/// What a turn is given.
#[derive(Debug)]
pub(crate) struct NextTurn {
    pub(crate) now: Now,
    pub(crate) finished: Vec<Finished>,
    /// How many of them have ended, and were not taken back.
    pub(crate) ended: usize,
    /// `None`: it drains.
    pub(crate) slots: Option<Slots>,
    /// The names of all handlers, if they have changed.
    pub(crate) handlers: Option<BTreeSet<String>>,
    /// The handlers for which it claims. `None`: those of the turn before.
    pub(crate) claims_for: Option<Arc<BTreeSet<String>>>,
}

/// What a turn returned that pool and lanes are to do. `None` for a lane: the workers.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) claims: Vec<(Option<usize>, Arc<Claim>)>,
    /// Runs whose handler is to be asked to stop.
    pub(crate) stop: Vec<i64>,
    /// Commands of dead owners that are to be ended.
    pub(crate) orphans: Vec<(Option<usize>, Orphan)>,
}

/// What the loop decides next.
#[derive(Debug)]
enum Phase {
    Prepare,
    /// The owner registers again, if it must.
    Register,
    Turn,
    /// An order may have arrived during the turn.
    Turned(Turn),
    HandOver(Turn),
    /// This number of claims were handed to the workers; the next turn begins at the earliest after the rest.
    HandedOver {
        on_workers: usize,
        again: bool,
        wake_at: Duration,
        rest: Duration,
    },
    Wait {
        again: bool,
        wake_at: Duration,
        rest: Duration,
    },
    Waited,
}

/// The state of the loop.
#[derive(Debug)]
pub(crate) struct LoopState {
    phase: Phase,
    /// When the turn, or what precedes it, began.
    now: Now,
    /// How often a turn is taken, whatever happens.
    poll: Duration,
    lanes: Lanes,
    /// The names of all handlers, if the lanes have changed them.
    handlers: Option<BTreeSet<String>>,
    /// How many more attempts each lane beside the workers takes.
    free: Vec<usize>,
    /// What the next turn records.
    finished: Vec<Finished>,
    /// How many of them had ended before claims were taken back.
    ended: usize,
    /// Of those that ended, the workers': the measure for reading ahead.
    of_workers: Returned,
    gathering: Gathering,
    /// What was claimed in a turn during which an order to drain arrived: it does not begin.
    unbegun: Vec<Arc<Claim>>,
    /// Runs that were handed to the workers and whose outcome has not returned.
    in_flight: usize,
    /// When claims were handed over and how many at a time; the oldest that may still be un-started first.
    handed: VecDeque<(Duration, usize)>,
    /// When the loop next looks for attempts that were read ahead and still run: once every poll interval.
    next_look: Duration,
    drain: Drain,
    /// Since when the owner must register again.
    lost_since: Option<Duration>,
    /// What orders ask for.
    asked: Asked,
}

/// How the scheduler drains.
#[derive(Debug, Default)]
struct Drain {
    /// Whether nothing more is claimed or begun.
    begun: bool,
    /// Whether async handlers are cut when nothing else has a run and no other outcome is left to write.
    cuts_async: bool,
}

/// What is to be carried out before everything else.
#[derive(Debug, Default)]
struct Asked {
    compare: Option<Timestamp>,
    stop_all: bool,
    report: bool,
}

/// The waits for outcomes that are written together.
#[derive(Debug, Default)]
struct Gathering {
    /// When they end, by the monotonic clock.
    until: Option<Duration>,
}

impl Gathering {
    /// Returns how long to wait for the next outcome.
    fn wait(&mut self, now: Duration) -> Duration {
        let until = *self.until.get_or_insert(now.saturating_add(GATHER_ALL));
        until.saturating_sub(now).min(GATHER)
    }
}

/// Returns how many runs to read ahead. `finished`: how many attempts that had begun the workers have just finished; `busy`: the sum of
/// their durations.
///
/// No other process can take a claim that waits un-started, so what has finished is the limit: four times that, as far as the workers need no
/// longer than [`AHEAD`] for all of them at this pace. It is up to sixteen times, if they need no longer than [`BRIEF`].
fn read_ahead(finished: usize, busy: Duration, workers: usize) -> usize {
    let of_each = busy.as_nanos() / finished.max(1) as u128;
    let within =
        |limit: Duration| usize::try_from(limit.as_nanos() * workers as u128 / of_each.max(1)).unwrap_or(QUEUE);
    (finished * 4).min(within(AHEAD)).max((finished * 16).min(within(BRIEF))).min(QUEUE)
}

impl LoopState {
    /// `poll`: how often a turn is taken, whatever happens.
    pub(crate) fn new(lanes: Lanes, poll: Duration, now: Now) -> Self {
        LoopState {
            phase: Phase::Prepare,
            now,
            poll,
            lanes,
            handlers: None,
            free: Vec::new(),
            finished: Vec::new(),
            ended: 0,
            of_workers: Returned::default(),
            gathering: Gathering::default(),
            unbegun: Vec::new(),
            in_flight: 0,
            handed: VecDeque::new(),
            next_look: Duration::ZERO,
            drain: Drain::default(),
            lost_since: None,
            asked: Asked::default(),
        }
    }

    /// Returns what is to be carried out next.
    pub(crate) fn next(&mut self, sight: &Sight) -> Act {
        loop {
            if let Some(act) = self.take_asked(sight) {
                return act;
            }
            match std::mem::replace(&mut self.phase, Phase::Prepare) {
                Phase::Prepare => return Act::Prepare(self.prepare(sight)),
                Phase::Register => {
                    self.phase = Phase::Turn;
                    if let Some(attempts) = self.registers(sight) {
                        return Act::Register(attempts);
                    }
                }
                Phase::Turn => return Act::Turn(self.next_turn(sight)),
                // The turn may have claimed what was added after an order to drain.
                Phase::Turned(turn) if !turn.claims.is_empty() && !self.drain.begun => {
                    self.phase = Phase::Turned(turn);
                    return Act::ReadOrder;
                }
                Phase::Turned(turn) | Phase::HandOver(turn) => {
                    if let Some(given) = self.hand_over(turn) {
                        return Act::CarryOut(given);
                    }
                }
                Phase::HandedOver { on_workers, again, wake_at, rest } => {
                    if on_workers > 0 {
                        // Not the time of the turn: that may have taken longer than `UNSTARTED`.
                        self.handed.push_back((sight.now.monotonic, on_workers));
                        self.in_flight += on_workers;
                    }
                    if self.has_drained(sight) {
                        return Act::End;
                    }
                    if self.unbegun.is_empty() && !(self.drain.begun && sight.writes_on) {
                        self.phase = Phase::Wait { again, wake_at, rest };
                        self.cut_async(sight);
                    }
                    // Otherwise the next turn follows at once: a report on unfinished runs does not count what was taken back.
                }
                Phase::Wait { again, wake_at, rest } => {
                    self.phase = Phase::Waited;
                    return Act::Wait(self.wait_until(sight, (again, wake_at, rest)));
                }
                // Of all that has arrived, the loop takes any. An order that came before the first turn is obeyed after it: that turn
                // recovers the runs of dead owners. What follows an order to drain, as one to report what is unfinished, is obeyed after a
                // turn that records what has been taken back.
                Phase::Waited if !self.drain.begun => {
                    self.phase = Phase::Waited;
                    return Act::ReadOrder;
                }
                Phase::Waited => {}
            }
        }
    }

    /// Attempts were taken back, or dropped, that are recorded in the next turn. `of_workers`: those that no worker has begun.
    pub(crate) fn recalled(&mut self, of_workers: Vec<Finished>, beside: Vec<Finished>) {
        self.in_flight -= of_workers.len();
        self.finished.extend(of_workers);
        self.finished.extend(beside);
    }

    /// Sets the handlers of the lanes beside the workers, and how many more attempts each takes.
    pub(crate) fn lanes_are(&mut self, handlers: Vec<Arc<BTreeSet<String>>>, free: Vec<usize>) {
        if self.lanes.update(handlers) {
            self.handlers = Some(self.lanes.all());
        }
        self.free = free;
    }

    /// The owner has registered under another id.
    pub(crate) fn registered(&mut self) {
        self.lost_since = None;
    }

    /// A turn was taken.
    pub(crate) fn turned(&mut self, turn: Turn) {
        self.drain.begun |= turn.leaves;
        self.phase = Phase::Turned(turn);
    }

    /// An order has arrived. That no more can arrive is an order to drain.
    pub(crate) fn ordered(&mut self, order: Order) {
        match order {
            Order::CompareClock(newest) => return self.asked.compare = Some(newest),
            Order::Drain => {}
            Order::DrainWorkers => self.drain.cuts_async = true,
            Order::Interrupt => self.asked.stop_all = true,
            Order::Cut => self.cut(),
        }
        self.drain.begun = true;
    }

    /// No order is left to read.
    pub(crate) fn no_order(&mut self) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Prepare) {
            Phase::Turned(turn) => Phase::HandOver(turn),
            _ => Phase::Prepare,
        };
    }

    /// The outcome of an attempt has returned. [`LoopState::returned`] follows the last of those that are gathered.
    pub(crate) fn outcome(&mut self, finished: Finished) {
        self.finished.push(finished);
    }

    /// Returns the outcomes that have returned.
    pub(crate) fn outcomes(&self) -> &[Finished] {
        &self.finished
    }

    /// Returns how long to wait for the next outcome before the turn. While claims wait un-started, which shows that runs are short, the
    /// loop waits a moment: outcomes that are written together cost a tenth of what they cost one by one.
    pub(crate) fn gathers(&mut self, now: Duration, unstarted: usize) -> Option<Duration> {
        (unstarted > 0).then(|| self.gathering.wait(now))
    }

    /// Of the outcomes that have returned, those of the workers.
    pub(crate) fn returned(&mut self, of_workers: Returned) {
        self.gathering = Gathering::default();
        self.in_flight -= of_workers.all;
        self.of_workers = of_workers;
    }

    /// A worker ended, perhaps with an attempt.
    pub(crate) fn worker_ended(&mut self, attempt: Option<Finished>) {
        self.in_flight -= usize::from(attempt.is_some());
        self.finished.extend(attempt);
    }

    /// Returns when the turn, or what precedes it, began. An owner registers again at this time, so that its heartbeat is due in the turn.
    pub(crate) fn began(&self) -> Now {
        self.now
    }

    /// Returns how many attempts the workers have.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn take_asked(&mut self, sight: &Sight) -> Option<Act> {
        if let Some(newest) = self.asked.compare.take() {
            return Some(Act::CompareClock(newest));
        }
        if std::mem::take(&mut self.asked.stop_all) {
            return Some(Act::StopAll);
        }
        // An outcome that is not recorded counts as unfinished, though its handler has returned.
        std::mem::take(&mut self.asked.report).then(|| Act::Report(self.running(sight).max(sight.unsettled)))
    }

    fn prepare(&mut self, sight: &Sight) -> Prepare {
        self.phase = Phase::Register;
        self.now = sight.now;
        let now = sight.now.monotonic;
        let draining = self.drain.begun;
        // Recalled claims have not finished.
        self.ended = self.finished.len();
        let recalls = draining || self.unstarted_since(sight.unstarted).is_some_and(|since| now >= since + UNSTARTED);
        let looks = now >= self.next_look;
        if looks {
            self.next_look = now.saturating_add(self.poll);
        }
        let released = |claim| Finished::new(claim, Outcome::Released, sight.now, sight.now);
        self.finished.extend(self.unbegun.drain(..).map(released));
        Prepare { recalls, draining, looks }
    }

    /// Returns the number of attempts under the present id, if the owner is to register under another one now. The attempts were asked
    /// to stop: it waits for them, but for a handler that does not return at most [`STOP_LIMIT`]. Until it has registered, nothing starts.
    fn registers(&mut self, sight: &Sight) -> Option<usize> {
        if !sight.must_register {
            return None;
        }
        let now = self.now.monotonic;
        let since = *self.lost_since.get_or_insert(now);
        let running = self.running(sight);
        (running == 0 || now >= since + STOP_LIMIT).then(|| running + self.finished.len())
    }

    fn next_turn(&mut self, sight: &Sight) -> NextTurn {
        let of_workers = std::mem::take(&mut self.of_workers);
        // A worker that a handler holds past its limit keeps its run; another worker replaces it.
        let ahead = read_ahead(of_workers.begun, of_workers.took, sight.workers);
        let room = (sight.workers + ahead).saturating_sub(self.in_flight);
        let idle = sight.workers.saturating_sub(self.in_flight);
        let choice = self.lanes.choose(Slots { room, idle }, &self.free);
        let slots = if sight.may_begin { choice.slots } else { Slots::default() };
        NextTurn {
            now: self.now,
            finished: std::mem::take(&mut self.finished),
            ended: self.ended,
            slots: (!self.drain.begun).then_some(slots),
            handlers: self.handlers.take(),
            claims_for: choice.handlers,
        }
    }

    /// Hands over what a turn has claimed, unless the scheduler drains. `None`: nothing is to be carried out.
    fn hand_over(&mut self, turn: Turn) -> Option<Given> {
        let Turn { mut claims, stop, orphans, wake_at, rest, .. } = turn;
        // More may be claimed at once.
        let again = self.lanes.claimed(claims.len());
        if self.drain.begun {
            self.unbegun.append(&mut claims);
        }
        let beside = |handler: &str| self.lanes.beside(handler);
        let with_lane = |claim: Arc<Claim>| (beside(&claim.handler), claim);
        let claims: Vec<_> = claims.into_iter().map(with_lane).collect();
        let orphans = orphans.into_iter().map(|orphan| (beside(orphan.handler()), orphan)).collect();
        let on_workers = claims.iter().filter(|(lane, _)| lane.is_none()).count();
        self.phase = Phase::HandedOver { on_workers, again, wake_at, rest };
        let given = Given { claims, stop, orphans };
        (!given.claims.is_empty() || !given.stop.is_empty() || !given.orphans.is_empty()).then_some(given)
    }

    fn has_drained(&self, sight: &Sight) -> bool {
        self.drain.begun && self.running(sight) == 0 && sight.unsettled == 0
    }

    /// Cuts async handlers if nothing else has a run.
    fn cut_async(&mut self, sight: &Sight) {
        let only_async = self.in_flight + sight.beside_runtime == 0;
        if self.drain.cuts_async && only_async && sight.unsettled <= sight.beside {
            self.drain.cuts_async = false;
            self.cut();
        }
    }

    /// Asks the running handlers to stop, and reports how many runs are unfinished.
    fn cut(&mut self) {
        self.asked.stop_all = true;
        self.asked.report = true;
    }

    fn wait_until(&mut self, sight: &Sight, (again, wake_at, rest): (bool, Duration, Duration)) -> Duration {
        let draining = self.drain.begun;
        // A turn in each poll interval, also while it waits to retry a refused write: a watchdog counts turns.
        let latest = self.now.monotonic.saturating_add(self.poll);
        // A turn may take long. What it left due may start when a worker is free.
        let earliest = sight.now.monotonic.saturating_add(rest);
        let turn = if again && !draining { Duration::ZERO } else { wake_at.min(latest).max(earliest) };
        let give_back = self.unstarted_since(sight.unstarted).map(|since| since + UNSTARTED);
        let replace = sight.next_replacement.filter(|_| !draining);
        give_back.into_iter().chain(replace).chain(sight.next_check).fold(turn, Duration::min)
    }

    /// Returns how many attempts are handed over and have not returned.
    fn running(&self, sight: &Sight) -> usize {
        self.in_flight + sight.beside
    }

    /// Returns when the oldest claim was handed over that no worker has begun.
    fn unstarted_since(&mut self, unstarted: usize) -> Option<Duration> {
        let mut begun = self.handed.iter().map(|(_, claims)| claims).sum::<usize>() - unstarted;
        while let Some((_, claims)) = self.handed.front_mut() {
            if *claims > begun {
                *claims -= begun;
                break;
            }
            begun -= *claims;
            self.handed.pop_front();
        }
        self.handed.front().map(|(since, _)| *since)
    }
}
