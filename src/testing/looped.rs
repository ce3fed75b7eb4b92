//! A [`Stepper`] under the loop of a scheduler, for the simulation of this crate: the state of the loop, a pool without threads, and the
//! orders that wait for it. Hidden, and no part of the public promise.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::engine::lanes::Lanes;
use crate::engine::loop_state::{Act, Given, LoopState, NextTurn, Order, Prepare, Sight, UNSTARTED};
use crate::error::Result;
use crate::model::finished::{AtWork, Finished, WorkerEnded};
use crate::model::run::{Claim, Outcome};
use crate::testing::Stepper;
use crate::worker::pool::Returned;

/// What ends a wait of a loop.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    Outcomes,
    WorkerEnded,
    Order,
    /// A wake-up, or the time.
    Nothing,
}

/// A step of a loop that its test sees.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum LoopStep {
    Turned(LoopTurn),
    /// Claims, each with its lane beside the workers.
    HandedOver(Vec<(Option<usize>, Arc<Claim>)>),
    StopsAll,
    Reported(usize),
    /// Until when, by the monotonic clock.
    Waits(Duration),
    Ended,
}

/// A turn of a loop.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct LoopTurn {
    pub claims: Vec<Arc<Claim>>,
    /// What had not begun and was given back in this turn.
    pub released: Vec<Arc<Claim>>,
    /// `None`: it drains.
    pub room: Option<usize>,
    pub idle: usize,
    /// The handlers for which it claims.
    pub handlers: Arc<BTreeSet<String>>,
    /// How long after it the next turn begins at the earliest.
    pub rest: Duration,
}

/// A lane beside the workers.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct LoopLane {
    pub handlers: Arc<BTreeSet<String>>,
    pub limit: usize,
    /// Whether its attempts are those of async handlers.
    pub needs_runtime: bool,
    /// What it has, and since when, if that has not begun.
    running: Vec<(Arc<Claim>, Option<Duration>)>,
}

impl LoopLane {
    pub fn new(handler: &str, limit: usize, needs_runtime: bool) -> Self {
        let handlers = Arc::new(BTreeSet::from([handler.to_owned()]));
        LoopLane { handlers, limit, needs_runtime, running: Vec::new() }
    }

    fn recall(&mut self, now: Duration, all: bool) -> Vec<Arc<Claim>> {
        if !self.needs_runtime {
            return Vec::new();
        }
        let waits = |since: &Option<Duration>| since.is_some_and(|since| all || now >= since + UNSTARTED);
        self.running.extract_if(.., |(_, since)| waits(since)).map(|(claim, _)| claim).collect()
    }
}

/// A stepper whose turns a loop takes, and the pool of that loop.
#[doc(hidden)]
#[derive(Debug)]
pub struct Looped {
    stepper: Stepper,
    state: LoopState,
    lanes: Vec<LoopLane>,
    /// Claims that no worker has begun.
    queue: Vec<Arc<Claim>>,
    orders: VecDeque<Order>,
    /// Workers that ended, which the loop does not know yet, and those that are not replaced.
    ended: Vec<WorkerEnded>,
    missing: usize,
    claiming: Arc<BTreeSet<String>>,
    /// What had not begun and was given back in the last turn.
    released: Vec<Arc<Claim>>,
}

impl Deref for Looped {
    type Target = Stepper;

    fn deref(&self) -> &Stepper {
        &self.stepper
    }
}

impl DerefMut for Looped {
    fn deref_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }
}

impl Looped {
    /// Has a loop take the turns from now on, with these lanes beside the workers. `most`: how many outcomes a turn writes at most, if
    /// that is not what the store allows.
    pub fn new(mut stepper: Stepper, lanes: Vec<LoopLane>, most: Option<usize>) -> Self {
        most.into_iter().for_each(|most| stepper.poller.limit_outcomes(most));
        let mut threads = stepper.handlers.names();
        threads.retain(|name| !lanes.iter().any(|lane| lane.handlers.contains(name)));
        let claiming = Arc::new(threads.clone());
        let state = LoopState::new(Lanes::new(threads), stepper.again.settings.poll, stepper.now());
        let (queue, orders, ended) = (Vec::new(), VecDeque::new(), Vec::new());
        let (missing, released) = (0, Vec::new());
        Looped { stepper, state, lanes, queue, orders, ended, missing, claiming, released }
    }

    /// Has each turn write at most this many items.
    pub fn limit_items(&mut self, most: usize) {
        self.stepper.poller.limit_items(most);
    }

    /// Returns how many outcomes the next turn writes at most.
    pub fn most_outcomes(&self) -> usize {
        self.stepper.poller.most_outcomes()
    }

    /// Returns the stepper: the loop goes no further.
    pub fn into_stepper(self) -> Stepper {
        self.stepper
    }

    /// Sends an order to the loop.
    pub fn order(&mut self, order: Order) {
        self.orders.push_back(order);
    }

    /// A worker, or a lane, takes this claim, which is not given back any more.
    pub fn take(&mut self, claim: &Arc<Claim>) {
        self.queue.retain(|waiting| !Arc::ptr_eq(waiting, claim));
        let mut beside = self.lanes.iter_mut().flat_map(|lane| &mut lane.running);
        if let Some((_, since)) = beside.find(|(waiting, _)| Arc::ptr_eq(waiting, claim)) {
            *since = None;
        }
    }

    /// Ends the worker that has begun this attempt, by a panic outside of its handler.
    pub fn end_worker(&mut self, claim: &Arc<Claim>) {
        let began = self.stepper.forget(claim).map(|(slot, began)| (began, slot));
        let at_work = AtWork { claim: Some(claim.clone()), began };
        self.ended.push(WorkerEnded { at_work, error: "for a test".to_owned(), replaced: false });
    }

    /// Returns what had not begun and was given back in the last turn, also in one that failed.
    pub fn given_back(&self) -> &[Arc<Claim>] {
        &self.released
    }

    /// Returns what has arrived that the loop has not taken.
    pub fn arrivals(&self) -> Vec<Arrival> {
        let has = [
            (Arrival::Outcomes, !self.stepper.finished.is_empty()),
            (Arrival::WorkerEnded, !self.ended.is_empty()),
            (Arrival::Order, !self.orders.is_empty()),
        ];
        has.into_iter().filter(|(_, has)| *has).map(|(arrival, _)| arrival).collect()
    }

    /// Ends the wait of the loop. Returns the attempts whose ends it has taken.
    pub fn wake(&mut self, arrival: Arrival) -> Vec<Arc<Claim>> {
        match arrival {
            Arrival::Nothing => Vec::new(),
            Arrival::Order => {
                self.orders.pop_front().into_iter().for_each(|order| self.state.ordered(order));
                Vec::new()
            }
            Arrival::Outcomes => {
                let Stepper { finished, poller, .. } = &mut self.stepper;
                let most = poller.most_outcomes().min(finished.len());
                finished.drain(..most).for_each(|one| self.state.outcome(one));
                self.returned()
            }
            Arrival::WorkerEnded => {
                let (now, ended) = (self.stepper.now(), std::mem::take(&mut self.ended));
                let claims = ended.iter().filter_map(|worker| worker.at_work.claim.clone()).collect();
                for worker in ended {
                    self.missing += 1;
                    self.state.worker_ended(worker.finished(now));
                    self.stepper.poller.worker_ended(worker);
                }
                claims
            }
        }
    }

    /// The outcomes that the loop has taken have left workers and lanes. Returns their attempts.
    fn returned(&mut self) -> Vec<Arc<Claim>> {
        let mut of_workers = Returned::default();
        for finished in self.state.outcomes() {
            let claim = &finished.claim;
            let of_lane = self.lanes.iter_mut().find_map(|lane| {
                let at = lane.running.iter().position(|(running, _)| Arc::ptr_eq(running, claim))?;
                Some(lane.running.swap_remove(at))
            });
            of_workers = if of_lane.is_none() { of_workers.add(finished) } else { of_workers };
        }
        let claims = self.state.outcomes().iter().map(|one| one.claim.clone()).collect();
        self.state.returned(of_workers);
        claims
    }

    fn sight(&self) -> Sight {
        let beside = |counts: fn(&LoopLane) -> bool| {
            self.lanes.iter().filter(|lane| counts(lane)).map(|lane| lane.running.len()).sum()
        };
        let waiting = self.lanes.iter().filter(|lane| lane.needs_runtime).flat_map(|lane| &lane.running);
        Sight {
            now: self.stepper.now(),
            workers: self.stepper.workers.saturating_sub(self.missing),
            unstarted: self.queue.len(),
            beside: beside(|_| true),
            beside_runtime: beside(|lane| !lane.needs_runtime),
            unsettled: self.stepper.poller.unsettled(),
            writes_on: self.stepper.poller.writes_on(),
            next_replacement: (self.missing > 0).then_some(Duration::ZERO),
            next_check: waiting.filter_map(|(_, since)| *since).map(|since| since + UNSTARTED).min(),
            may_begin: true,
            must_register: false,
        }
    }

    /// Carries out what the loop decides, up to the next step that a test sees.
    ///
    /// # Errors
    /// As [`Stepper::step`].
    pub fn step(&mut self) -> Result<LoopStep> {
        loop {
            let sight = self.sight();
            match self.state.next(&sight) {
                Act::Prepare(prepare) => self.prepare(prepare, sight.now),
                Act::Register(_) => self.state.registered(),
                Act::Turn(next) => return self.turn(next).map(LoopStep::Turned),
                Act::ReadOrder => match self.orders.pop_front() {
                    Some(order) => self.state.ordered(order),
                    None => self.state.no_order(),
                },
                Act::CarryOut(Given { claims, stop, .. }) => {
                    self.stepper.stopped.extend(stop);
                    for (lane, claim) in &claims {
                        match lane {
                            Some(lane) => self.lanes[*lane].running.push((claim.clone(), Some(sight.now.monotonic))),
                            None => self.queue.push(claim.clone()),
                        }
                    }
                    if !claims.is_empty() {
                        return Ok(LoopStep::HandedOver(claims));
                    }
                }
                Act::CompareClock(newest) => self.stepper.poller.compare_clock(Some(newest), sight.now),
                Act::StopAll => return Ok(LoopStep::StopsAll),
                Act::Report(unfinished) => return Ok(LoopStep::Reported(unfinished)),
                Act::Wait(until) => return Ok(LoopStep::Waits(until)),
                Act::End => return Ok(LoopStep::Ended),
            }
        }
    }

    fn prepare(&mut self, Prepare { recalls, draining, .. }: Prepare, now: Now) {
        let released = |claim| Finished::new(claim, Outcome::Released, now, now);
        let of_workers = if recalls { std::mem::take(&mut self.queue) } else { Vec::new() };
        let beside = self.lanes.iter_mut().flat_map(|lane| lane.recall(now.monotonic, draining));
        let beside = beside.map(released).collect();
        self.state.recalled(of_workers.into_iter().map(released).collect(), beside);
        if !draining {
            self.missing = 0;
        }
        let free = self.lanes.iter().map(|lane| lane.limit.saturating_sub(lane.running.len())).collect();
        self.state.lanes_are(self.lanes.iter().map(|lane| lane.handlers.clone()).collect(), free);
    }

    fn turn(&mut self, next: NextTurn) -> Result<LoopTurn> {
        let NextTurn { now, finished, slots, handlers, claims_for, .. } = next;
        let stepper = &mut self.stepper;
        handlers.into_iter().for_each(|handlers| stepper.poller.set_handlers(handlers));
        claims_for.iter().for_each(|handlers| stepper.poller.claim_for(handlers));
        let released = finished.iter().filter(|one| one.outcome == Outcome::Released).map(|one| one.claim.clone());
        self.released = released.collect();
        for claim in &self.released {
            stepper.forget(claim);
        }
        let turn = stepper.poller.turn(now, finished, slots)?;
        stepper.running.extend(turn.claims.iter().cloned());
        stepper.wake_at = turn.wake_at;
        let (claims, rest) = (turn.claims.clone(), turn.rest);
        self.claiming = claims_for.unwrap_or_else(|| self.claiming.clone());
        self.state.turned(turn);
        let (room, idle) = (slots.map(|slots| slots.room), slots.unwrap_or_default().idle);
        let (released, handlers) = (self.released.clone(), self.claiming.clone());
        Ok(LoopTurn { claims, released, room, idle, handlers, rest })
    }
}
