//! A scheduler that is shut down and started again and again while its runs are interrupted, and that cannot start anything for a while.
//! The checker follows each run: which of its attempts count, when the next may begin, and how often a start is tried.
//!
//! A failing seed prints itself; `DULY_SEED` runs one, `DULY_SEEDS` that many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duly::testing::{Arrival, Crashed, LoopOrder, LoopStep, Looped, ManualClock, Stepper};
use duly::{Claim, Client, Clock, FailureKind, NewTask, Outcome, Retry, RetryPolicy};
use tempfile::TempDir;

/// Seeds of an ordinary test run.
const SEEDS: u64 = 6;
const ACTS: u32 = 400;
const NOON: &str = "2027-03-14T12:00:00Z";
/// Interruptions in a row that are forgiven.
const FORGIVEN: u32 = 3;
/// A loop that has taken as many turns at one time spins.
const MOST_TURNS: u32 = 100;
/// The first and the longest wait after a start that failed, in seconds, and after how long without one the first applies again.
const WAIT: (u64, u64, u64) = (1, 60, 60);

/// What the checker knows of a run.
#[derive(Debug)]
struct Model {
    retry: RetryPolicy,
    forgiven: u32,
    interrupted: u32,
    /// How many attempts have begun, and how many of them were snoozed, or ended otherwise than by an interruption.
    begun: u32,
    snoozed: u32,
    otherwise: u32,
    /// The next attempt begins at the earliest then.
    not_before: Duration,
    is_final: bool,
}

/// An attempt that was handed over. `ends`: how and when; `None`: it has not begun.
struct Call {
    claim: Arc<Claim>,
    /// Whether it was claimed after a start had failed.
    is_try: bool,
    ends: Option<(Duration, Outcome)>,
}

struct World {
    rng: fastrand::Rng,
    home: TempDir,
    clock: ManualClock,
    client: Client,
    scheduler: Option<Looped>,
    crashed: Option<Crashed>,
    starts: u64,
    is_ordered: bool,
    /// When the loop wakes up.
    until: Duration,
    calls: Vec<Call>,
    /// What has returned and is not stored, and when it returned.
    returned: BTreeMap<(i64, u32), (Duration, Outcome)>,
    /// Of that, what the next turn stores.
    taken: Vec<Arc<Claim>>,
    models: BTreeMap<i64, Model>,
    tasks: BTreeMap<String, RetryPolicy>,
    /// Nothing can be started.
    is_short: bool,
    /// When the last failed start was recorded by which the scheduler waits, and how often one had failed until then.
    refused: Option<(Duration, u32)>,
    /// How many turns were taken at this time.
    turns: (Duration, u32),
    /// Handlers succeed at once.
    is_calm: bool,
    interruptions: u32,
    refusals: u32,
}

fn failed(retry: Retry) -> Outcome {
    Outcome::Failed { how: FailureKind::Failed, error: "for a test".to_owned(), retry }
}

/// Returns how long nothing may start after failed starts in a row.
fn wait_after(refusals: u32) -> Duration {
    Duration::from_secs((WAIT.0 << (refusals - 1).min(16)).min(WAIT.1))
}

/// Returns the shortest backoff after a number of failures.
fn shortest(retry: RetryPolicy, failures: u32) -> Duration {
    (retry.backoff * 2u32.pow(failures - 1)).min(retry.max_backoff) / 2
}

impl Model {
    fn new(retry: RetryPolicy) -> Self {
        Model {
            retry,
            forgiven: 0,
            interrupted: 0,
            begun: 0,
            snoozed: 0,
            otherwise: 0,
            not_before: Duration::ZERO,
            is_final: false,
        }
    }

    fn counted(&self, attempt: u32) -> u32 {
        attempt - self.forgiven
    }

    /// An attempt has ended. `at`: when it returned, or when its scheduler died.
    fn ended(&mut self, attempt: u32, outcome: Option<&Outcome>, at: Duration) {
        let retry = match outcome {
            Some(Outcome::Succeeded { .. }) => return self.is_final = true,
            Some(Outcome::Released | Outcome::Failed { retry: Retry::NotStarted, .. }) => {
                return self.forgiven += 1;
            }
            Some(Outcome::Failed { retry, .. }) => *retry,
            _ => Retry::Backoff,
        };
        let may_start_again = self.retry.max_attempts > 1;
        self.interrupted = if retry == Retry::Interrupted { self.interrupted + 1 } else { 0 };
        self.snoozed += u32::from(matches!(retry, Retry::Snooze(_)));
        self.otherwise += u32::from(retry != Retry::Interrupted);
        let wait = match retry {
            Retry::Snooze(wait) if may_start_again => {
                self.forgiven += 1;
                wait.max(Duration::from_secs(1))
            }
            Retry::Interrupted if may_start_again && self.interrupted <= FORGIVEN => {
                self.forgiven += 1;
                shortest(self.retry, self.interrupted)
            }
            _ if self.counted(attempt) >= self.retry.max_attempts => return self.is_final = true,
            _ => shortest(self.retry, self.counted(attempt)),
        };
        self.not_before = at + wait;
    }

    /// An attempt begins.
    fn begins(&mut self, claim: &Claim, now: Duration) {
        let (task, attempt) = (&claim.task, claim.attempt);
        self.begun += 1;
        assert!(!self.is_final, "attempt {attempt} of {task} begins, and the run is over: {self:?}");
        assert!(now >= self.not_before, "attempt {attempt} of {task} begins at {now:?}: {self:?}");
        let most = self.retry.max_attempts;
        assert!(self.counted(attempt) <= most, "attempt {attempt} of {task} begins: {self:?}");
        // However the attempts are counted.
        let bound = if most == 1 { 1 } else { most + FORGIVEN * (self.otherwise + 1) + self.snoozed };
        assert!(self.begun <= bound, "{task} has begun {} times: {self:?}", self.begun);
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let stepper = Stepper::builder(home.path().join("agent.db"), NOON.parse().expect("an instant"));
        let stepper = stepper.start().expect("a stepper");
        let (clock, client) = (stepper.clock().clone(), stepper.client().clone());
        stepper.stop().expect("a stop");
        World {
            rng: fastrand::Rng::with_seed(seed),
            home,
            clock,
            client,
            scheduler: None,
            crashed: None,
            starts: 0,
            is_ordered: false,
            until: Duration::ZERO,
            calls: Vec::new(),
            returned: BTreeMap::new(),
            taken: Vec::new(),
            models: BTreeMap::new(),
            tasks: BTreeMap::new(),
            is_short: false,
            refused: None,
            turns: (Duration::ZERO, 0),
            is_calm: false,
            interruptions: 0,
            refusals: 0,
        }
    }

    fn now(&self) -> Duration {
        self.clock.now().monotonic
    }

    fn add(&mut self) {
        let seconds = Duration::from_secs;
        // A task of the second kind ends its own scheduler.
        let name = format!("{}-{}", if self.rng.u32(..3) == 0 { "ends" } else { "works" }, self.tasks.len());
        let retry = RetryPolicy {
            max_attempts: self.rng.u32(1..=4),
            backoff: seconds(self.rng.u64(1..=10)),
            max_backoff: seconds(self.rng.u64(10..=120)),
        };
        let task = NewTask::once(&name, self.clock.now().wall).handler("work").retry(retry);
        self.client.add(task).expect("a task");
        self.tasks.insert(name, retry);
    }

    fn start(&mut self) {
        self.starts += 1;
        let builder = Stepper::builder(self.home.path().join("agent.db"), NOON.parse().expect("an instant"));
        let builder = builder.clock(&self.clock).client(&self.client).seed(self.starts).workers(3).accept("work");
        let builder = builder.poll(Duration::from_secs(30));
        let builder = match self.crashed.take() {
            Some(crashed) => builder.after(crashed),
            None => builder,
        };
        self.scheduler = Some(Looped::new(builder.start().expect("a start"), Vec::new(), None));
        (self.is_ordered, self.refused) = (false, None);
        self.go_on();
    }

    fn model(&mut self, claim: &Claim) -> &mut Model {
        let retry = self.tasks[&claim.task];
        self.models.entry(claim.run_id).or_insert_with(|| Model::new(retry))
    }

    /// Ends the wait of the loop, and goes on until it waits or has ended.
    fn wake(&mut self, arrival: Arrival) {
        let Some(scheduler) = &mut self.scheduler else { return };
        self.taken.extend(scheduler.wake(arrival));
        self.go_on();
    }

    fn go_on(&mut self) {
        while let Some(scheduler) = &mut self.scheduler {
            match scheduler.step().expect("a step") {
                LoopStep::Turned(turn) => self.turned(&turn.released),
                LoopStep::HandedOver(claims) => claims.into_iter().for_each(|(_, claim)| self.handed_over(claim)),
                LoopStep::StopsAll => self.stop_all(),
                LoopStep::Reported(_) => {}
                LoopStep::Waits(until) => return self.until = until,
                LoopStep::Ended => {
                    assert!(self.is_ordered && self.calls.is_empty(), "the scheduler ends by itself");
                    let ended = self.scheduler.take().map(Looped::into_stepper);
                    ended.expect("a scheduler").stop().expect("a stop");
                }
            }
        }
    }

    /// A turn has stored what had returned, and what was given back.
    fn turned(&mut self, released: &[Arc<Claim>]) {
        let now = self.now();
        self.turns = if self.turns.0 == now { (now, self.turns.1 + 1) } else { (now, 1) };
        assert!(self.turns.1 <= MOST_TURNS, "the loop has taken {} turns at one time", self.turns.1);
        // A start that failed is given back, too, after it has returned.
        let has_returned = |claim: &Claim| self.returned.contains_key(&(claim.run_id, claim.attempt));
        let released: Vec<_> = released.iter().filter(|claim| !has_returned(claim)).collect();
        for claim in released {
            self.calls.retain(|call| !Arc::ptr_eq(&call.claim, claim));
            self.settled(claim, now, &Outcome::Released);
        }
        for claim in std::mem::take(&mut self.taken) {
            let (at, outcome) = self.returned.remove(&(claim.run_id, claim.attempt)).expect("an outcome");
            if outcome == failed(Retry::NotStarted) {
                self.refused(now);
            }
            self.settled(&claim, at, &outcome);
        }
    }

    /// A start has failed.
    fn refused(&mut self, now: Duration) {
        self.refusals += 1;
        let refusals = match self.refused {
            // It was handed over before the one that failed then.
            Some((at, refusals)) if now < at + wait_after(refusals) => return,
            Some((at, refusals)) if now < at + wait_after(refusals) + Duration::from_secs(WAIT.2) => refusals + 1,
            _ => 1,
        };
        self.refused = Some((now, refusals));
    }

    /// The end of an attempt is stored.
    fn settled(&mut self, claim: &Claim, at: Duration, outcome: &Outcome) {
        let run = self.client.run(claim.run_id).expect("a look-up").expect("a run");
        let model = self.model(claim);
        model.ended(claim.attempt, Some(outcome), at);
        let expected = (model.forgiven, model.interrupted, model.is_final);
        let found = (run.forgiven, run.interrupted, run.status.is_final());
        assert_eq!(found, expected, "{} after attempt {}: {outcome:?}", claim.task, claim.attempt);
    }

    fn handed_over(&mut self, claim: Arc<Claim>) {
        let now = self.now();
        if let Some((at, refusals)) = self.refused {
            let until = at + wait_after(refusals);
            assert!(now >= until, "{} is to start at {now:?}, and nothing may start before {until:?}", claim.task);
        }
        self.calls.push(Call { claim, is_try: self.refused.is_some(), ends: None });
    }

    fn stop_all(&mut self) {
        let now = self.now();
        for ends in self.calls.iter_mut().filter_map(|call| call.ends.as_mut()) {
            let soon = now + Duration::from_millis(self.rng.u64(..2000));
            match self.rng.u32(..10) {
                0 => *ends = (soon, Outcome::succeeded()),
                1 => *ends = (soon, failed(Retry::Snooze(Duration::ZERO))),
                // It ignores the request.
                2 => {}
                _ => *ends = (soon, failed(Retry::Interrupted)),
            }
        }
    }

    /// The workers take what was handed over.
    fn begin(&mut self) {
        let (now, mut calls, mut orders) = (self.now(), std::mem::take(&mut self.calls), false);
        for call in calls.iter_mut().filter(|call| call.ends.is_none()) {
            let claim = call.claim.clone();
            let scheduler = self.scheduler.as_mut().expect("a scheduler");
            scheduler.take(&claim);
            scheduler.begin(&claim);
            if self.is_short {
                call.ends = Some((now, failed(Retry::NotStarted)));
                continue;
            }
            if call.is_try {
                self.refused = None;
            }
            self.model(&claim).begins(&claim, now);
            let millis = self.rng.u64(..20_000);
            let (takes, later) = (Duration::from_millis(millis), Duration::from_millis(millis / 4));
            call.ends = Some(match self.rng.u32(..10) {
                _ if self.is_calm => (now, Outcome::succeeded()),
                // It waits until it is asked to stop.
                _ if claim.task.starts_with("ends") => (now + Duration::from_secs(600), Outcome::succeeded()),
                0..5 => (now + takes, Outcome::succeeded()),
                5 => (now + takes, failed(Retry::Snooze(later))),
                6 => (now + takes, failed(Retry::Interrupted)),
                _ => (now + takes, failed(Retry::Backoff)),
            });
            orders |= claim.task.starts_with("ends") && !self.is_calm;
        }
        self.calls = calls;
        if orders {
            self.order(LoopOrder::Interrupt);
        }
    }

    fn order(&mut self, order: LoopOrder) {
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.order(order);
            self.is_ordered = true;
        }
    }

    /// Handlers return whose time has come.
    fn finish(&mut self) {
        let now = self.now();
        let Some(scheduler) = &mut self.scheduler else { return };
        for call in self.calls.extract_if(.., |call| call.ends.as_ref().is_some_and(|(at, _)| *at <= now)) {
            let (_, outcome) = call.ends.expect("an end");
            self.interruptions += u32::from(outcome == failed(Retry::Interrupted));
            self.returned.insert((call.claim.run_id, call.claim.attempt), (now, outcome.clone()));
            scheduler.finish(&call.claim, outcome);
        }
    }

    /// The loop takes what has arrived.
    fn take_all(&mut self) {
        while let Some(scheduler) = &self.scheduler {
            let Some(arrival) = self.rng.choice(scheduler.arrivals()) else { return };
            self.wake(arrival);
        }
    }

    /// The process is killed: what has begun and is not stored is lost, and what has not begun does not count.
    fn kill(&mut self) {
        let Some(scheduler) = self.scheduler.take() else { return };
        let now = self.now();
        self.crashed = Some(scheduler.into_stepper().crash());
        for Call { claim, ends, .. } in std::mem::take(&mut self.calls) {
            let outcome = if ends.is_some() { None } else { Some(&Outcome::Released) };
            self.model(&claim).ended(claim.attempt, outcome, now);
        }
        for (run, attempt) in std::mem::take(&mut self.returned).into_keys() {
            self.models.get_mut(&run).expect("a model").ended(attempt, None, now);
        }
        self.taken.clear();
    }

    /// Time passes until something may happen.
    fn pass(&mut self) {
        let (now, most) = (self.now(), Duration::from_millis(self.rng.u64(1..30_000)));
        let ends = self.calls.iter().filter_map(|call| call.ends.as_ref()).map(|(at, _)| at.saturating_sub(now));
        let wait = ends.chain([most, self.until.saturating_sub(now)]).min().unwrap_or(most);
        self.clock.advance(wait);
        self.finish();
        self.take_all();
        self.wake(Arrival::Nothing);
    }

    fn act(&mut self) {
        if self.scheduler.is_none() {
            self.clock.advance(Duration::from_millis(self.rng.u64(..20_000)));
            return self.start();
        }
        match self.rng.u32(..100) {
            0..60 => {
                self.begin();
                self.pass();
            }
            60..68 => self.pass(),
            68..75 => {
                let order = if self.rng.bool() { LoopOrder::Drain } else { LoopOrder::Interrupt };
                self.order(order);
            }
            75..80 if self.is_ordered => self.order(LoopOrder::Cut),
            80..84 => self.is_short = !self.is_short,
            84..87 => self.kill(),
            87..95 if self.tasks.len() < 40 => self.add(),
            _ => self.begin(),
        }
        self.finish();
        self.take_all();
    }

    /// Nothing is ended or short any more: all runs end.
    fn end(&mut self) {
        (self.is_calm, self.is_short) = (true, false);
        let now = self.now();
        self.calls
            .iter_mut()
            .filter_map(|call| call.ends.as_mut())
            .for_each(|ends| *ends = (now, Outcome::succeeded()));
        let ended = |world: &World| world.models.values().filter(|model| model.is_final).count();
        for _ in 0..1000 {
            // What was lost is over when the next scheduler has recovered it.
            if ended(self) == self.tasks.len() && self.crashed.is_none() && self.scheduler.is_some() {
                break;
            }
            if self.scheduler.is_none() {
                self.start();
            }
            self.begin();
            self.pass();
        }
        for name in self.tasks.keys() {
            let run = self.client.history(name, 1).expect("a history").remove(0);
            assert!(run.status.is_final() && self.models[&run.id].is_final, "{name} has not ended: {run:?}");
        }
        let findings = self.client.doctor().expect("an answer");
        assert!(findings.is_empty(), "doctor: {findings:?}");
    }
}

#[test]
fn interruptions_and_failed_starts_are_bounded() {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|value| value.parse::<u64>().ok());
    let only = number("DULY_SEED");
    let seeds = only.map_or(0..number("DULY_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let (mut interruptions, mut refusals) = (0, 0);
    for seed in seeds {
        let lived = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..ACTS).for_each(|_| world.act());
            world.end();
            (world.interruptions, world.refusals)
        });
        let (interrupted, refused) = lived.unwrap_or_else(|panic| {
            eprintln!("seed {seed}: repeat it with DULY_SEED={seed} cargo test --test it simulation::interruptions");
            std::panic::resume_unwind(panic)
        });
        (interruptions, refusals) = (interruptions + interrupted, refusals + refused);
    }
    println!("{interruptions} interruptions, {refusals} failed starts");
    assert!(only.is_some() || interruptions > 0 && refusals > 0, "the seeds show nothing");
}
