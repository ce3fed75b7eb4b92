//! The loop of a [`Stepper`](crate::testing::Stepper), for the simulation of this crate: the state of the loop, a pool without threads, and
//! the orders that wait for it. Hidden, and no part of the public promise.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::engine::lanes::Lanes;
use crate::engine::loop_state::{Act, Given, LoopState, NextTurn, Order, Prepare, Sight, UNSTARTED};
use crate::engine::poller::Poller;
use crate::error::Result;
use crate::model::finished::{AtWork, Finished, WorkerEnded};
use crate::model::run::{Claim, Outcome};
use crate::testing::Stepper;
use crate::worker::pool::Returned;

/// An order to a loop.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopOrder {
    Drain,
    DrainWorkers,
    Interrupt,
    Cut,
}

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

/// A loop and its pool.
#[derive(Debug)]
pub(super) struct Looped {
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

impl Looped {
    fn sight(&self, now: Now, workers: usize, poller: &Poller) -> Sight {
        let beside = |counts: fn(&LoopLane) -> bool| {
            self.lanes.iter().filter(|lane| counts(lane)).map(|lane| lane.running.len()).sum()
        };
        let waiting = self.lanes.iter().filter(|lane| lane.needs_runtime).flat_map(|lane| &lane.running);
        Sight {
            now,
            workers: workers.saturating_sub(self.missing),
            unstarted: self.queue.len(),
            beside: beside(|_| true),
            beside_runtime: beside(|lane| !lane.needs_runtime),
            unsettled: poller.unsettled(),
            writes_on: poller.writes_on(),
            next_replacement: (self.missing > 0).then_some(Duration::ZERO),
            next_check: waiting.filter_map(|(_, since)| *since).map(|since| since + UNSTARTED).min(),
            may_begin: true,
            must_register: false,
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

    /// A worker, or a lane, begins an attempt.
    pub(super) fn begins(&mut self, claim: &Arc<Claim>) {
        self.queue.retain(|waiting| !Arc::ptr_eq(waiting, claim));
        let mut beside = self.lanes.iter_mut().flat_map(|lane| &mut lane.running);
        if let Some((_, since)) = beside.find(|(waiting, _)| Arc::ptr_eq(waiting, claim)) {
            *since = None;
        }
    }

    /// An attempt ends that may not have begun.
    pub(super) fn leaves(&mut self, claim: &Claim) {
        let is_it = |other: &Claim| (other.run_id, other.attempt) == (claim.run_id, claim.attempt);
        self.queue.retain(|waiting| !is_it(waiting));
    }

    /// The outcomes of these attempts are the loop's.
    fn take(&mut self, finished: Vec<Finished>) {
        finished.into_iter().for_each(|one| self.state.outcome(one));
        let mut of_workers = Returned::default();
        for finished in self.state.outcomes() {
            let claim = &finished.claim;
            let of_lane = self.lanes.iter_mut().find_map(|lane| {
                let at = lane.running.iter().position(|(running, _)| Arc::ptr_eq(running, claim))?;
                Some(lane.running.swap_remove(at))
            });
            of_workers = if of_lane.is_none() { of_workers.add(finished) } else { of_workers };
        }
        self.state.returned(of_workers);
    }
}

impl Stepper {
    /// Has a loop take the turns from now on, with these lanes beside the workers. `most`: how many outcomes a turn writes at most, if
    /// that is not what the store allows.
    #[doc(hidden)]
    pub fn begin_loop(&mut self, lanes: Vec<LoopLane>, most: Option<usize>) {
        most.into_iter().for_each(|most| self.poller.limit_outcomes(most));
        let mut threads = self.handlers.names();
        threads.retain(|name| !lanes.iter().any(|lane| lane.handlers.contains(name)));
        let claiming = Arc::new(threads.clone());
        let state = LoopState::new(Lanes::new(threads), self.again.settings.poll, self.now());
        let (queue, orders, ended) = (Vec::new(), VecDeque::new(), Vec::new());
        let (missing, released) = (0, Vec::new());
        self.looped = Some(Box::new(Looped { state, lanes, queue, orders, ended, missing, claiming, released }));
    }

    /// Sends an order to the loop.
    #[doc(hidden)]
    pub fn order(&mut self, order: LoopOrder) {
        let order = match order {
            LoopOrder::Drain => Order::Drain,
            LoopOrder::DrainWorkers => Order::DrainWorkers,
            LoopOrder::Interrupt => Order::Interrupt,
            LoopOrder::Cut => Order::Cut,
        };
        self.looped.iter_mut().for_each(|looped| looped.orders.push_back(order));
    }

    /// Ends the worker that has begun this attempt, by a panic outside of its handler.
    #[doc(hidden)]
    pub fn end_worker(&mut self, claim: &Arc<Claim>) {
        let began = self.forget(claim).map(|(slot, began)| (began, slot));
        let at_work = AtWork { claim: Some(claim.clone()), began };
        let ended = WorkerEnded { at_work, error: "for a test".to_owned(), replaced: false };
        if let Some(looped) = &mut self.looped {
            looped.ended.push(ended);
        }
    }

    /// A worker takes this claim from the queue, and does not begin it.
    #[doc(hidden)]
    pub fn take_from_queue(&mut self, claim: &Arc<Claim>) {
        self.looped.iter_mut().for_each(|looped| looped.begins(claim));
    }

    /// Returns what had not begun and was given back in the last turn, also in one that failed.
    #[doc(hidden)]
    pub fn given_back(&self) -> &[Arc<Claim>] {
        self.looped.as_ref().map_or(&[], |looped| &looped.released)
    }

    /// Returns what has arrived that the loop has not taken.
    #[doc(hidden)]
    pub fn arrivals(&self) -> Vec<Arrival> {
        let Some(looped) = &self.looped else { return Vec::new() };
        let has = [
            (Arrival::Outcomes, !self.finished.is_empty()),
            (Arrival::WorkerEnded, !looped.ended.is_empty()),
            (Arrival::Order, !looped.orders.is_empty()),
        ];
        has.into_iter().filter(|(_, has)| *has).map(|(arrival, _)| arrival).collect()
    }

    /// Ends the wait of the loop. Returns the attempts whose ends it has taken.
    #[doc(hidden)]
    pub fn wake_loop(&mut self, arrival: Arrival) -> Vec<Arc<Claim>> {
        let (now, most) = (self.now(), self.poller.most_outcomes());
        let Stepper { looped: Some(looped), finished, poller, .. } = self else { return Vec::new() };
        match arrival {
            Arrival::Nothing => Vec::new(),
            Arrival::Order => {
                looped.orders.pop_front().into_iter().for_each(|order| looped.state.ordered(order));
                Vec::new()
            }
            Arrival::Outcomes => {
                let taken: Vec<Finished> = finished.drain(..most.min(finished.len())).collect();
                let claims = taken.iter().map(|one| one.claim.clone()).collect();
                looped.take(taken);
                claims
            }
            Arrival::WorkerEnded => {
                let ended = std::mem::take(&mut looped.ended);
                let claims = ended.iter().filter_map(|worker| worker.at_work.claim.clone()).collect();
                for worker in ended {
                    looped.missing += 1;
                    looped.state.worker_ended(worker.finished(now));
                    poller.worker_ended(worker);
                }
                claims
            }
        }
    }

    /// Carries out what the loop decides, up to the next step that a test sees.
    ///
    /// # Errors
    /// As [`Stepper::step`].
    #[doc(hidden)]
    pub fn step_loop(&mut self) -> Result<LoopStep> {
        loop {
            let (now, workers) = (self.now(), self.workers);
            let Stepper { looped: Some(looped), poller, stopped, .. } = self else { return Ok(LoopStep::Ended) };
            let sight = looped.sight(now, workers, poller);
            match looped.state.next(&sight) {
                Act::Prepare(prepare) => looped.prepare(prepare, now),
                Act::Register(_) => looped.state.registered(),
                Act::Turn(next) => return self.turn_of_loop(next).map(LoopStep::Turned),
                Act::ReadOrder => match looped.orders.pop_front() {
                    Some(order) => looped.state.ordered(order),
                    None => looped.state.no_order(),
                },
                Act::CarryOut(Given { claims, stop, .. }) => {
                    stopped.extend(stop);
                    for (lane, claim) in &claims {
                        match lane {
                            Some(lane) => looped.lanes[*lane].running.push((claim.clone(), Some(now.monotonic))),
                            None => looped.queue.push(claim.clone()),
                        }
                    }
                    if !claims.is_empty() {
                        return Ok(LoopStep::HandedOver(claims));
                    }
                }
                Act::CompareClock(newest) => poller.compare_clock(Some(newest), now),
                Act::StopAll => return Ok(LoopStep::StopsAll),
                Act::Report(unfinished) => return Ok(LoopStep::Reported(unfinished)),
                Act::Wait(until) => return Ok(LoopStep::Waits(until)),
                Act::End => return Ok(LoopStep::Ended),
            }
        }
    }

    fn turn_of_loop(&mut self, next: NextTurn) -> Result<LoopTurn> {
        let NextTurn { now, finished, slots, handlers, claims_for, .. } = next;
        handlers.into_iter().for_each(|handlers| self.poller.set_handlers(handlers));
        claims_for.iter().for_each(|handlers| self.poller.claim_for(handlers));
        let released = finished.iter().filter(|one| one.outcome == Outcome::Released).map(|one| one.claim.clone());
        let released: Vec<Arc<Claim>> = released.collect();
        for claim in &released {
            self.forget(claim);
        }
        self.looped.iter_mut().for_each(|looped| looped.released.clone_from(&released));
        let turn = self.poller.turn(now, finished, slots)?;
        self.running.extend(turn.claims.iter().cloned());
        self.wake_at = turn.wake_at;
        let (claims, rest) = (turn.claims.clone(), turn.rest);
        let mut handlers = Arc::default();
        if let Some(looped) = &mut self.looped {
            looped.claiming = claims_for.unwrap_or_else(|| looped.claiming.clone());
            handlers = looped.claiming.clone();
            looped.state.turned(turn);
        }
        let (room, idle) = (slots.map(|slots| slots.room), slots.unwrap_or_default().idle);
        Ok(LoopTurn { claims, released, room, idle, handlers, rest })
    }
}
