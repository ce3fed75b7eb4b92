//! The loop of a scheduler (`engine/loop_state`) with its poller: what arrives while it waits or takes a turn is the scenario's choice, and
//! each step is compared with a model of what has been handed over, has returned, was given back and was ordered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duly::testing::{Arrival, LoopLane, LoopOrder, LoopStep, LoopTurn, Looped, Stepper};
use duly::{Claim, FailureKind, Now, Outcome, Retry, RunStatus};

use crate::simulation::attempts::HandlerCall;
use crate::simulation::effects::LEDGER;
use crate::simulation::history::{Action, Check, Turn};
use crate::simulation::scenario::{Scenario, Scheduler};

/// Claims that have not begun are given back after this time.
const UNSTARTED: Duration = Duration::from_millis(500);
/// A loop that has taken as many turns in a row, in which nothing arrived and nothing was claimed, spins. The mark of a task is worked off in
/// fewer: its waiting runs are a hundred or two, and a turn derives one at least.
const MOST_IDLE_TURNS: u32 = 300;
/// The same, if a turn writes a few items.
const MOST_SMALL_TURNS: u32 = 3000;
const MOST_STEPS: u32 = 500;
/// A loop reads ahead four times what its workers have just finished if that takes no longer than this, and up to sixteen times if it takes
/// no longer than that.
const AHEAD: Duration = Duration::from_millis(200);
const BRIEF: Duration = Duration::from_millis(10);

type Id = (i64, u32);

fn id_of(claim: &Claim) -> Id {
    (claim.run_id, claim.attempt)
}

/// A lane beside the workers, as the checker knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    handler: &'static str,
    limit: usize,
    is_async: bool,
}

/// An attempt that was handed over.
#[derive(Clone, Copy, Debug)]
struct Handed {
    lane: Option<usize>,
    since: Duration,
    /// Whether a worker, or its lane, has taken it: it is not given back any more.
    is_taken: bool,
}

/// What the checker knows of a loop.
#[derive(Debug, Default)]
pub(crate) struct LoopModel {
    lanes: Vec<Lane>,
    poll: Duration,
    turns: u64,
    /// Whether the workers have handlers.
    has_threads: bool,
    /// What was handed over and has not returned to the loop.
    handed: BTreeMap<Id, Handed>,
    /// What a turn has claimed and is neither handed over nor given back.
    claimed: BTreeSet<Id>,
    /// Workers that ended and are not replaced.
    missing: usize,
    /// How long each attempt took that the workers began and finished since the last turn.
    finished: Vec<Duration>,
    /// How many outcomes a turn writes at most, if not as many as the store allows.
    most_outcomes: Option<usize>,
    /// The first order to drain, and whether an order to cut has followed.
    pub(crate) ordered: Option<LoopOrder>,
    pub(crate) cut: bool,
    /// An order that arrives during the next turn, and whether an order to cut follows at once.
    during_turn: Option<(LoopOrder, bool)>,
    /// Whether the loop has certainly read the order to drain.
    obeys: bool,
    asked_to_stop: bool,
    reported: bool,
    /// How long after the last turn the loop may wait.
    longest: Duration,
    /// The handlers for which the last turn claimed. `None`: it drained.
    claimed_for: Option<Arc<BTreeSet<String>>>,
}

impl LoopModel {
    /// Returns how many more attempts the workers (`None`) or a lane can have.
    fn free(&self, lane: Option<usize>, workers: usize) -> usize {
        let limit = lane.map_or(workers.saturating_sub(self.missing), |lane| self.lanes[lane].limit);
        limit.saturating_sub(self.count(lane))
    }

    /// Returns how many attempts the workers, or a lane, have.
    fn count(&self, lane: Option<usize>) -> usize {
        self.handed.values().filter(|it| it.lane == lane).count()
    }

    fn lane_of(&self, handler: &str) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.handler == handler)
    }

    fn is_async(&self, lane: Option<usize>) -> bool {
        lane.is_some_and(|lane| self.lanes[lane].is_async)
    }

    /// Whether attempts of this lane neither begin nor return: who has ordered the drain blocks their runtime until the report.
    pub(crate) fn is_blocked(&self, lane: Option<usize>) -> bool {
        self.ordered == Some(LoopOrder::DrainWorkers) && !self.reported && self.is_async(lane)
    }

    /// Returns how many runs the loop may read ahead after what the workers have just finished.
    fn most_ahead(&self, workers: usize) -> usize {
        let (count, took) = (self.finished.len(), self.finished.iter().sum::<Duration>());
        let fits = |ahead: usize, limit: Duration| took * ahead as u32 <= limit * (workers * count) as u32;
        let longest = |times: usize, limit| (0..=count * times).rev().find(|ahead| fits(*ahead, limit)).unwrap_or(0);
        longest(4, AHEAD).max(longest(16, BRIEF))
    }

    /// Returns the handler of a lane that could begin an attempt, and for which the last turn claimed nothing.
    fn left_out(&self, handlers: &[&'static str], workers: usize) -> Option<&'static str> {
        let claimed_for = self.claimed_for.as_ref()?;
        let is_free = |handler: &str| self.free(self.lane_of(handler), workers) > 0;
        handlers.iter().copied().find(|handler| is_free(handler) && !claimed_for.contains(*handler))
    }

    /// A worker, or its lane, takes an attempt.
    pub(crate) fn takes(&mut self, claim: &Claim) {
        self.handed.entry(id_of(claim)).and_modify(|it| it.is_taken = true);
    }

    /// Nothing arrives any more that is not under way.
    pub(crate) fn calm(&mut self) {
        self.during_turn = None;
    }

    /// The workers, and the lanes beside them, that have handlers.
    fn all(&self) -> impl Iterator<Item = Option<usize>> + '_ {
        self.has_threads.then_some(None).into_iter().chain((0..self.lanes.len()).map(Some))
    }
}

impl Scenario {
    /// Draws the lanes of a scheduler, and begins its loop.
    pub(crate) fn begin_loop(
        &mut self,
        stepper: Stepper,
        handlers: &[&'static str],
        poll: Duration,
    ) -> (Looped, LoopModel) {
        let mut lanes = Vec::new();
        for handler in handlers.iter().copied().filter(|handler| ["post", "rare"].contains(handler)) {
            if self.once_in(2) {
                lanes.push(Lane { handler, limit: self.rng.usize(1..=4), is_async: self.rng.bool() });
            }
        }
        let most_outcomes = if self.once_in(3) { Some(self.rng.usize(1..=3)) } else { None };
        let of_loop = lanes.iter().map(|it| LoopLane::new(it.handler, it.limit, it.is_async)).collect();
        let mut stepper = Looped::new(stepper, of_loop, most_outcomes);
        let most_outcomes = if self.has_small_turns() {
            stepper.limit_items(self.rng.usize(1..=8));
            Some(stepper.most_outcomes())
        } else {
            most_outcomes
        };
        let has_threads = handlers.len() > lanes.len();
        let mut model = LoopModel { lanes, poll, has_threads, most_outcomes, ..LoopModel::default() };
        if !self.is_calm && self.once_in(25) {
            stepper.order(LoopOrder::Drain);
            model.ordered = Some(LoopOrder::Drain);
        }
        (stepper, model)
    }

    /// Orders a scheduler to drain: now, or during its next turn.
    pub(crate) fn order(&mut self, id: usize) -> Check {
        let order = self.pick(&[LoopOrder::Drain, LoopOrder::DrainWorkers, LoopOrder::Interrupt]);
        let (during_turn, cuts) = (self.rng.bool(), self.once_in(3));
        self.order_as(id, order, during_turn, cuts)
    }

    /// Orders a scheduler to end in a moment in which that is difficult, if this is one.
    pub(crate) fn order_at_a_bad_moment(&mut self, id: usize) -> Check {
        let Scheduler { calls, in_loop, .. } = &self.schedulers[id];
        let runs_async = |is_async| calls.iter().any(|call| in_loop.is_async(call.lane) == is_async);
        if calls.iter().any(|call| call.ends_at.is_none()) {
            self.fault("ordered to end at once, with claims that have not begun");
            return self.order_as(id, LoopOrder::Drain, false, true);
        }
        if runs_async(true) && runs_async(false) {
            self.fault("ordered to drain, with handlers that cannot return");
            self.order_as(id, LoopOrder::DrainWorkers, false, false)?;
            // The outcomes of its workers are refused, and then the async handlers are all that runs.
            return if self.rng.bool() && !self.is_calm { self.hold_write_lock() } else { Ok(()) };
        }
        Ok(())
    }

    fn order_as(&mut self, id: usize, order: LoopOrder, during_turn: bool, cuts: bool) -> Check {
        let Scheduler { stepper: Some(stepper), in_loop, .. } = &mut self.schedulers[id] else { return Ok(()) };
        if in_loop.ordered.is_some() {
            return Ok(());
        }
        if during_turn {
            in_loop.during_turn = Some((order, cuts));
            return Ok(());
        }
        stepper.order(order);
        in_loop.ordered = Some(order);
        self.record(&Action::Nothing, &format!("owner {id} is ordered: {order:?}"))?;
        if cuts { self.order_cut(id) } else { Ok(()) }
    }

    /// The caller of a shutdown loses its patience.
    pub(crate) fn order_cut(&mut self, id: usize) -> Check {
        let Scheduler { stepper: Some(stepper), in_loop, .. } = &mut self.schedulers[id] else { return Ok(()) };
        if in_loop.cut || in_loop.ordered.is_none() {
            return Ok(());
        }
        in_loop.cut = true;
        stepper.order(LoopOrder::Cut);
        self.record(&Action::Nothing, &format!("owner {id} is ordered: Cut"))
    }

    /// Ends a worker outside of its handler.
    pub(crate) fn end_worker(&mut self, id: usize) -> Check {
        let Scheduler { stepper: Some(stepper), calls, .. } = &mut self.schedulers[id] else { return Ok(()) };
        let attempts = &self.history.attempts;
        let has_begun = |call: &HandlerCall| attempts[&id_of(&call.claim)].began.is_some();
        let begun = |call: &HandlerCall| call.lane.is_none() && call.claim.handler != LEDGER && has_begun(call);
        let Some(at) = calls.iter().position(begun) else { return Ok(()) };
        let call = calls.remove(at);
        stepper.end_worker(&call.claim);
        self.fault("worker ended");
        self.record(&Action::Nothing, &format!("the worker of run {} ends", call.claim.run_id))
    }

    /// Has the loop of a scheduler take what has arrived, and go on until it waits and nothing is left to take.
    pub(crate) fn run_loop(&mut self, id: usize) -> Check {
        let mut idle_turns = 0;
        loop {
            let arrival = self.wake(id)?;
            let Some(until) = self.until_it_waits(id)? else { return Ok(()) };
            let Some(stepper) = &self.schedulers[id].stepper else { return Ok(()) };
            if stepper.arrivals().is_empty() && until > stepper.now().monotonic {
                return self.check_rest(id);
            }
            idle_turns = if arrival == Arrival::Nothing { idle_turns + 1 } else { 0 };
            let most = if self.has_small_turns() { MOST_SMALL_TURNS } else { MOST_IDLE_TURNS };
            if idle_turns > most {
                return Err(format!("owner {id} took {idle_turns} turns in a row, and time did not pass"));
            }
        }
    }

    /// Has the loop take one turn, and hand over nothing of it.
    pub(crate) fn take_one_turn(&mut self, id: usize) -> Check {
        self.wake(id)?;
        loop {
            let before = self.schedulers[id].in_loop.turns;
            let ended = self.step(id)?.is_some();
            if ended || self.schedulers[id].stepper.is_none() || self.schedulers[id].in_loop.turns > before {
                return Ok(());
            }
        }
    }

    /// Ends the wait of a loop with one of what has arrived.
    fn wake(&mut self, id: usize) -> Check<Arrival> {
        let now = self.now();
        let Scheduler { stepper: Some(stepper), in_loop, .. } = &mut self.schedulers[id] else {
            return Ok(Arrival::Nothing);
        };
        let now = Now { wall: stepper.now().wall, ..now };
        // It begins with a turn.
        let arrivals = if in_loop.turns > 0 { stepper.arrivals() } else { Vec::new() };
        let arrival = self.rng.choice(arrivals).unwrap_or(Arrival::Nothing);
        for claim in stepper.wake(arrival) {
            let lane = in_loop.handed.remove(&id_of(&claim)).and_then(|it| it.lane);
            let took = self.history.attempts[&id_of(&claim)].took;
            in_loop.finished.extend(took.filter(|_| lane.is_none() && arrival == Arrival::Outcomes));
            if arrival == Arrival::WorkerEnded {
                in_loop.missing += 1;
                let error = "the worker ended before the attempt did: for a test".to_owned();
                let outcome = Outcome::Failed { how: FailureKind::Panicked, error, retry: Retry::Backoff };
                self.history.delivered(&claim, outcome, now);
            }
            self.history.arrived(&claim);
        }
        // The loop reads what orders it can before it takes a turn, but for its first.
        in_loop.obeys = in_loop.ordered.is_some() && in_loop.turns > 0;
        Ok(arrival)
    }

    /// Returns until when the loop waits. `None`: it has ended.
    fn until_it_waits(&mut self, id: usize) -> Check<Option<Duration>> {
        for _ in 0..MOST_STEPS {
            if self.schedulers[id].stepper.is_none() {
                return Ok(None);
            }
            if let Some(until) = self.step(id)? {
                return Ok(Some(until));
            }
        }
        Err(format!("owner {id} took {MOST_STEPS} steps and did not wait"))
    }

    /// Takes a step of the loop. Returns until when it waits, if it does.
    fn step(&mut self, id: usize) -> Check<Option<Duration>> {
        let Some(stepper) = &mut self.schedulers[id].stepper else { return Ok(None) };
        let step = match stepper.step() {
            Ok(step) => step,
            Err(_) if self.is_newer_version => return self.left_newer(id).map(|()| None),
            Err(error) => return Err(format!("owner {id} stops: {error}")),
        };
        match step {
            LoopStep::Turned(turn) => self.turned(id, turn)?,
            LoopStep::HandedOver(claims) => self.handed_over(id, claims)?,
            LoopStep::StopsAll => self.stops_all(id),
            LoopStep::Reported(unfinished) => self.reported(id, unfinished)?,
            LoopStep::Waits(until) => {
                self.check_wait(id, until)?;
                self.begin(id);
                return Ok(Some(until));
            }
            LoopStep::Ended => self.ended(id)?,
        }
        Ok(None)
    }

    /// A turn was taken.
    fn turned(&mut self, id: usize, turn: LoopTurn) -> Check {
        self.turns += 1;
        let now = self.now();
        let uncertainty = self.database.uncertainty();
        let (behind, is_small) = (self.is_behind(id), self.has_small_turns());
        let LoopTurn { claims, released, room, idle, handlers, rest } = turn;
        let scheduler = &mut self.schedulers[id];
        let (Some(stepper), in_loop) = (&scheduler.stepper, &mut scheduler.in_loop) else { return Ok(()) };
        let known = Now { wall: stepper.now().wall, ..now };
        let mut waited = None;
        for claim in &released {
            in_loop.claimed.remove(&id_of(claim));
            if let Some(Handed { since, .. }) = in_loop.handed.remove(&id_of(claim)) {
                waited = waited.max(Some(now.monotonic.saturating_sub(since)));
            }
            scheduler.calls.retain(|call| !Arc::ptr_eq(&call.claim, claim));
            self.history.given_back(claim, known);
        }
        // All go back with the one that has waited for long.
        if let Some(waited) = waited.filter(|it| *it < UNSTARTED && room.is_some()) {
            return Err(format!("owner {id} gives {} claims back after {waited:?}", released.len()));
        }
        if room.is_some() {
            in_loop.missing = 0;
        }
        let draining = room.is_none();
        if in_loop.obeys && !draining {
            return Err(format!("owner {id} was ordered to drain, and takes a turn as before"));
        }
        if in_loop.turns == 0 && draining {
            return Err(format!("the first turn of owner {id} drains, and recovers nothing"));
        }
        in_loop.turns += 1;
        // Whatever the turn is for, it has the slots of the lane that has fewest.
        let serves = |lane: &Option<usize>| handlers.iter().any(|handler| in_loop.lane_of(handler) == *lane);
        let free_of = |lane| in_loop.free(lane, scheduler.workers);
        let expected = match room {
            None => 0,
            Some(0) => in_loop.all().map(free_of).max().unwrap_or_default(),
            Some(_) => in_loop.all().filter(serves).map(free_of).min().unwrap_or_default(),
        };
        if idle != expected {
            return Err(format!("a turn of owner {id} for {handlers:?} has {idle} slots, expected {expected}"));
        }
        let (ahead, in_flight) = (in_loop.most_ahead(scheduler.workers), in_loop.count(None));
        in_loop.finished.clear();
        // A turn for lanes beside the workers reads nothing ahead.
        let most = (scheduler.workers + ahead).saturating_sub(in_flight).max(idle);
        if let Some(room) = room.filter(|room| *room > most) {
            return Err(format!("a turn of owner {id} claims up to {room} runs, expected at most {most}"));
        }
        in_loop.claimed_for = room.map(|_| handlers.clone());
        let sleeps = stepper.sleeps();
        in_loop.longest = sleeps.max(rest);
        in_loop.claimed.extend(claims.iter().map(|claim| id_of(claim)));
        if self.is_newer_version && !claims.is_empty() {
            return Err(format!("owner {id} claims from tables of a newer version"));
        }
        let during_turn = in_loop.during_turn.take();
        let action = Action::Turn(Turn {
            owner: id,
            claims: claims.clone(),
            handlers,
            refused: scheduler.refused.load(Ordering::Relaxed) || self.is_newer_version,
            sleeps: sleeps.saturating_sub(uncertainty),
            idle: idle.saturating_sub(claims.len()),
            free: idle,
            draining,
            behind,
            is_small,
            most_outcomes: in_loop.most_outcomes,
        });
        let what = if draining { "drains" } else { "takes a turn" };
        self.record(&action, &format!("owner {id} {what}"))?;
        // Claims are in flight now, and the scenario may have an order arrive, or time pass: the turn took long.
        if let Some((order, cuts)) = during_turn {
            self.order_as(id, order, false, cuts)?;
        }
        if self.once_in(60) {
            self.database.advance(Duration::from_millis(600));
        }
        Ok(())
    }

    /// Claims were handed over: each once, by the owner that claimed it, and none after an order to drain.
    fn handed_over(&mut self, id: usize, claims: Vec<(Option<usize>, Arc<Claim>)>) -> Check {
        let now = self.now().monotonic;
        for (lane, claim) in claims {
            let (run, key) = (claim.run_id, id_of(&claim));
            let mut call = self.draw_call(&claim);
            call.lane = lane;
            // Its worker cannot record that it begins, and returns it.
            if lane.is_none() && self.once_in(25) {
                (call.takes, call.outcome) = (Duration::from_secs(1), Outcome::Released);
            }
            let scheduler = &mut self.schedulers[id];
            let in_loop = &mut scheduler.in_loop;
            if !in_loop.claimed.remove(&key) {
                return Err(format!("owner {id} hands run {run} over, which it has not just claimed"));
            }
            if let Some(order) = in_loop.ordered {
                return Err(format!("owner {id} was ordered to drain ({order:?}), and hands run {run} over"));
            }
            if in_loop.handed.insert(key, Handed { lane, since: now, is_taken: false }).is_some() {
                return Err(format!("owner {id} hands run {run} over twice"));
            }
            if lane != in_loop.lane_of(&claim.handler) {
                return Err(format!("owner {id} hands run {run} to {lane:?}, and its handler is {}", claim.handler));
            }
            scheduler.calls.push(call);
        }
        let left = &self.schedulers[id].in_loop.claimed;
        if !left.is_empty() {
            return Err(format!("owner {id} has claimed {left:?}, and does not hand them over"));
        }
        Ok(())
    }

    fn stops_all(&mut self, id: usize) {
        let now = self.now().monotonic;
        let Scenario { schedulers, rng, .. } = self;
        let scheduler = &mut schedulers[id];
        scheduler.in_loop.asked_to_stop = true;
        scheduler.calls.iter_mut().filter(|call| !call.stopping).for_each(|call| call.notice_stop(rng, now));
    }

    /// The loop has reported how many runs are unfinished.
    fn reported(&mut self, id: usize, unfinished: usize) -> Check {
        let scheduler = &mut self.schedulers[id];
        let in_loop = &mut scheduler.in_loop;
        if !in_loop.cut && (in_loop.reported || in_loop.ordered != Some(LoopOrder::DrainWorkers)) {
            return Err(format!("owner {id} reports {unfinished} unfinished runs, and was not asked to"));
        }
        in_loop.reported = true;
        let history = &self.history;
        let own: Vec<Id> = history.open.iter().copied().filter(|key| history.attempts[key].owner == id).collect();
        // What is recorded at the next write does not count, if nothing prevents that.
        let held_up = scheduler.refused.load(Ordering::Relaxed) || own.iter().any(|(run, _)| history.was_stuck(*run));
        let is_taken = |key: &Id| in_loop.handed.get(key).is_some_and(|it| it.is_taken);
        let has_begun = |key: &&Id| history.attempts[*key].began.is_some() || is_taken(key);
        let is_left = |key: &&Id| has_begun(key) && !history.attempts[*key].arrived;
        let most = if held_up { own.len() } else { own.iter().filter(is_left).count() };
        let fewest = in_loop.handed.keys().filter(|key| is_taken(key)).count();
        if !(fewest..=most.max(fewest)).contains(&unfinished) {
            return Err(format!("owner {id} reports {unfinished} unfinished runs, expected {fewest} to {most}"));
        }
        let in_lane = |key: &Id| in_loop.handed.get(key).is_some_and(|it| in_loop.is_async(it.lane));
        let waits_for = own.iter().find(|key| !in_lane(key) && history.is_running(key));
        if let Some((run, _)) = waits_for.filter(|_| !in_loop.cut) {
            return Err(format!("owner {id} cuts its async handlers, and run {run} is no async run and not recorded"));
        }
        self.record(&Action::Nothing, &format!("owner {id} reports {unfinished} unfinished runs"))
    }

    /// The loop waits no longer than its poller and what has not begun allow.
    fn check_wait(&mut self, id: usize, until: Duration) -> Check {
        let scheduler = &self.schedulers[id];
        let Some(stepper) = &scheduler.stepper else { return Ok(()) };
        let in_loop = &scheduler.in_loop;
        let now = stepper.now().monotonic;
        let waits = until.saturating_sub(now);
        let longest = in_loop.longest.min(in_loop.poll.max(Duration::from_millis(10)));
        if waits > longest {
            return Err(format!("owner {id} waits for {waits:?}, expected at most {longest:?}"));
        }
        let gives_back = |it: &&Handed| !it.is_taken && (it.lane.is_none() || in_loop.is_async(it.lane));
        let since = in_loop.handed.values().filter(gives_back).map(|it| it.since).min();
        let left = since.map(|since| (since + UNSTARTED).saturating_sub(self.now().monotonic));
        if let Some(left) = left.filter(|left| waits > *left) {
            return Err(format!("owner {id} waits for {waits:?}, and a claim is to be given back in {left:?}"));
        }
        if !in_loop.claimed.is_empty() {
            return Err(format!("owner {id} has claimed {:?}, and waits", in_loop.claimed));
        }
        let left_out = in_loop.left_out(&self.history.owners[id].handlers, scheduler.workers);
        if let Some(handler) = left_out.filter(|_| !waits.is_zero()) {
            return Err(format!("owner {id} waits, and has claimed nothing for {handler:?}, which could begin"));
        }
        Ok(())
    }

    /// Checks that a loop at rest has obeyed its orders, and that a drain ends.
    fn check_rest(&self, id: usize) -> Check {
        let scheduler = &self.schedulers[id];
        let (Some(stepper), in_loop) = (&scheduler.stepper, &scheduler.in_loop) else { return Ok(()) };
        if in_loop.ordered.is_none() || scheduler.refused.load(Ordering::Relaxed) {
            return Ok(());
        }
        if in_loop.cut && !in_loop.reported {
            return Err(format!("owner {id} was ordered to cut, and reports nothing"));
        }
        if (in_loop.cut || in_loop.ordered == Some(LoopOrder::Interrupt)) && !in_loop.asked_to_stop {
            return Err(format!("owner {id} was ordered to interrupt, and its handlers are not asked to stop"));
        }
        let name = stepper.owner();
        let own = || self.history.tables.unfinished().filter(|run| run.owner.as_deref() == Some(name));
        if scheduler.calls.is_empty() && own().next().is_none() {
            return Err(format!("owner {id} was ordered to drain, has no run, and does not end"));
        }
        // What runs beside the async handlers, and what is not recorded, is waited for.
        let is_blocked = |key: &Id| in_loop.handed.get(key).is_some_and(|it| in_loop.is_blocked(it.lane));
        if !in_loop.handed.is_empty()
            && in_loop.handed.keys().all(is_blocked)
            && own().all(|run| is_blocked(&(run.id, run.attempt)))
        {
            return Err(format!(
                "only async handlers of owner {id} run, which cannot return, and it does not cut them"
            ));
        }
        match in_loop.handed.iter().find(|(_, it)| !it.is_taken) {
            Some(((run, _), _)) => {
                Err(format!("owner {id} drains, and does not give back run {run}, which has not begun"))
            }
            None => Ok(()),
        }
    }

    /// The loop has ended: nothing is running or unsettled.
    fn ended(&mut self, id: usize) -> Check {
        let scheduler = &mut self.schedulers[id];
        let Some(stepper) = scheduler.stepper.take() else { return Ok(()) };
        let (name, in_loop) = (stepper.owner().to_owned(), &scheduler.in_loop);
        if in_loop.ordered.is_none() && !self.is_newer_version {
            return Err(format!("owner {id} ends, and was not ordered to"));
        }
        if !in_loop.handed.is_empty() || !in_loop.claimed.is_empty() || !scheduler.calls.is_empty() {
            return Err(format!("owner {id} ends with {:?} running, {:?} claimed", in_loop.handed, in_loop.claimed));
        }
        let is_own = |run: &&crate::simulation::rows::RunRow| {
            run.status == RunStatus::Running && run.owner.as_ref() == Some(&name)
        };
        if let Some(run) = self.history.tables.unfinished().find(is_own) {
            return Err(format!("owner {id} ends, and run {} is not settled: {run:?}", run.id));
        }
        let left = stepper.into_stepper().stop();
        self.history.died(id);
        self.fault("ended after a drain");
        let how = if left.is_ok() { "leaves" } else { "leaves without a last turn" };
        self.record(&Action::Nothing, &format!("owner {id} {how}"))
    }

    /// The turn in which a scheduler left tables of a newer version.
    fn left_newer(&mut self, id: usize) -> Check {
        let now = self.now();
        let scheduler = &mut self.schedulers[id];
        let Some(stepper) = scheduler.stepper.take() else { return Ok(()) };
        for claim in stepper.given_back() {
            scheduler.in_loop.handed.remove(&id_of(claim));
            self.history.given_back(claim, now);
        }
        let at_work = scheduler.in_loop.handed.len();
        self.turns += 1;
        let action = Action::Turn(Turn { owner: id, refused: true, ..Turn::default() });
        self.record(&action, &format!("turn of owner {id}, which leaves"))?;
        if at_work > 0 {
            return Err(format!("owner {id} stopped while {at_work} of its runs were executing"));
        }
        self.history.died(id);
        Ok(())
    }
}
