//! A world for one seed: a file, a clock, owners that come and go, and the work that their workers are at. Whatever is done
//! in it goes through [`World::done`], so that the checker sees each step.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::testing::Stepper;
use duly::{Clock, Event, Now, Outcome, Timestamp};

use crate::simulation::attempts::Work;
use crate::simulation::claim_order::Order;
use crate::simulation::databases::Stage;
use crate::simulation::effects::{self, LEDGER, Ledger, Script};
use crate::simulation::history::{Check, Deed, History, Owner, Turn};
use crate::simulation::observer::Look;
use crate::simulation::retention;

/// Every handler that a task may have.
pub(crate) const HANDLERS: [&str; 4] = ["work", "post", "rare", LEDGER];
/// Days on which clocks change, and the end of a leap February.
const BEGINNINGS: [&str; 3] = ["2027-03-12T22:30:00Z", "2027-10-29T21:10:00Z", "2028-02-28T09:59:00Z"];
/// Lines of the log that a failure shows.
const SHOWN: usize = 40;

/// A scheduler that has been started. `None`: it is gone.
pub(crate) struct Agent {
    pub(crate) stepper: Option<Stepper>,
    pub(crate) workers: usize,
    /// How many of the handlers it has.
    pub(crate) handlers: usize,
    pub(crate) works: Vec<Work>,
    /// Stopped by a signal until then, by the monotonic clock: alive for the kernel, and it does not step.
    pub(crate) suspended: Option<Duration>,
    refused: Arc<AtomicBool>,
    pub(crate) script: Arc<Mutex<Script>>,
}

impl Agent {
    pub(crate) fn can_step(&self) -> bool {
        self.stepper.is_some() && self.suspended.is_none()
    }
}

pub(crate) struct World {
    pub(crate) rng: fastrand::Rng,
    pub(crate) agents: Vec<Agent>,
    pub(crate) history: History,
    pub(crate) stage: Stage,
    began: Duration,
    /// The shell holds the write lock.
    pub(crate) held: bool,
    /// The tables are of a newer version.
    pub(crate) is_over: bool,
    pub(crate) turns: u64,
    /// Faults, by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) named: u64,
    /// Tasks with text that is not UTF-8, and the column.
    pub(crate) garbled: BTreeMap<String, &'static str>,
    /// Whether there is such text in any row.
    pub(crate) is_garbled: bool,
    pub(crate) ledger: Ledger,
    log: VecDeque<String>,
    hash: DefaultHasher,
    seed: u64,
}

impl World {
    pub(crate) fn new(seed: u64, mut stage: Stage) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let beginning: Timestamp = BEGINNINGS[rng.usize(..BEGINNINGS.len())].parse().expect("an instant");
        stage.clock.set_wall(beginning.plus(Duration::from_millis(rng.u64(..3_600_000))));
        stage.clear();
        let look = stage.look.take().unwrap_or_else(|| Look::new(&stage.file));
        let history = History::new(look, retention::draw(&mut rng));
        let mut world = World {
            rng,
            agents: Vec::new(),
            history,
            began: stage.clock.now().monotonic,
            stage,
            held: false,
            is_over: false,
            turns: 0,
            faults: BTreeMap::new(),
            named: 0,
            garbled: BTreeMap::new(),
            is_garbled: false,
            ledger: Ledger::default(),
            log: VecDeque::new(),
            hash: DefaultHasher::new(),
            seed,
        };
        world.done(&Deed::Nothing, "it begins").expect("empty tables");
        world
    }

    /// Where it was lived through, for the next to live there.
    pub(crate) fn into_stage(mut self) -> Option<Stage> {
        let steppers = self.agents.into_iter().filter_map(|agent| agent.stepper);
        self.stage.connections.extend(steppers.map(Stepper::crash));
        self.stage.look = Some(self.history.look.anew());
        (!self.is_over).then_some(self.stage)
    }

    /// A statement of the shell's, which is mostly one of a few.
    pub(crate) fn type_in(&self, text: &str, given: impl rusqlite::Params) -> rusqlite::Result<usize> {
        self.stage.shell.prepare_cached(text)?.execute(given)
    }

    pub(crate) fn now(&self) -> Now {
        let now = self.stage.clock.now();
        Now { monotonic: now.monotonic - self.began, ..now }
    }

    pub(crate) fn wall(&self) -> i64 {
        self.now().wall.as_millis()
    }

    /// Whether a fault that comes about once in so many draws comes about.
    pub(crate) fn once_in(&mut self, draws: u32) -> bool {
        self.rng.u32(..draws) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.rng.usize(..among.len())]
    }

    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// Owners for which this holds.
    pub(crate) fn which(&self, holds: impl Fn(&Agent) -> bool) -> Vec<usize> {
        (0..self.agents.len()).filter(|id| holds(&self.agents[*id])).collect()
    }

    /// Has the checker look at what a deed has done.
    pub(crate) fn done(&mut self, deed: &Deed, what: &str) -> Check {
        let now = self.now();
        let (changes, checked) = self.history.observe(deed, now);
        let line = format!("{} +{:?} {what}{changes}", now.wall, now.monotonic);
        line.hash(&mut self.hash);
        if self.log.len() == SHOWN {
            self.log.pop_front();
        }
        self.log.push_back(line);
        checked
    }

    /// Starts an owner. With the write lock held it cannot register.
    pub(crate) fn start(&mut self, handlers: &[&'static str]) -> Check {
        let workers = self.rng.usize(1..=3);
        self.start_with(handlers, workers)
    }

    pub(crate) fn start_with(&mut self, handlers: &[&'static str], workers: usize) -> Check {
        let poll = self.pick(&[1, 30]);
        let lease = Duration::from_secs(self.pick(&[15, 60, 240]));
        let refused = Arc::new(AtomicBool::new(false));
        let tell = refused.clone();
        let id = self.agents.len();
        let mut builder = Stepper::builder(&self.stage.file, self.now().wall)
            .clock(&self.stage.clock)
            .client(&self.stage.client)
            .workers(workers)
            .lease(lease)
            .poll(Duration::from_secs(poll))
            .retention(self.history.keep)
            .busy_timeout(Duration::ZERO)
            .seed(self.seed.wrapping_mul(1000) + id as u64)
            .observe(move |event: &Event| match event {
                Event::Degraded { .. } => tell.store(true, Ordering::Relaxed),
                Event::Recovered => tell.store(false, Ordering::Relaxed),
                _ => {}
            });
        if !self.once_in(12)
            && let Some(crashed) = self.stage.connections.pop()
        {
            builder = builder.after(crashed);
        }
        let script = Arc::new(Mutex::new(Script::default()));
        for handler in handlers {
            builder = match *handler {
                LEDGER => builder.handler(LEDGER, effects::handler(script.clone())),
                handler => builder.accept(handler),
            };
        }
        match builder.start() {
            Ok(stepper) => {
                let name = stepper.owner().to_owned();
                let lock = PathBuf::from(format!("{}-owners", self.stage.file.display())).join(&name);
                let believed = self.history.tables.seen_at.unwrap_or_default();
                self.history.owners.push(Owner {
                    name,
                    handlers: handlers.to_vec(),
                    lock,
                    lives: true,
                    left_its_lock: true,
                    lease,
                    leases: BTreeMap::new(),
                    believed,
                    written: believed,
                    looked: self.now(),
                    seen: None,
                    leapt: None,
                    glimpsed: None,
                    glanced: self.now(),
                    in_parts: false,
                    may_have_leapt: false,
                    order: Order::default(),
                });
                self.agents.push(Agent {
                    stepper: Some(stepper),
                    workers,
                    handlers: handlers.len(),
                    works: Vec::new(),
                    suspended: None,
                    refused,
                    script,
                });
                self.done(&Deed::Nothing, &format!("owner {id} starts"))
            }
            Err(_) if self.held => self.done(&Deed::Nothing, "an owner cannot start"),
            Err(error) => Err(format!("an owner cannot start: {error}")),
        }
    }

    /// An owner's process ends. What its handlers were at ends with it.
    pub(crate) fn crash(&mut self, id: usize, when: &str) -> Check {
        let agent = &mut self.agents[id];
        agent.works.clear();
        agent.suspended = None;
        if let Some(stepper) = agent.stepper.take() {
            self.stage.connections.push(stepper.crash());
        }
        self.history.died(id);
        self.done(&Deed::Nothing, &format!("owner {id} is killed {when}"))
    }

    /// One turn of an owner, with all that its handlers have returned until now. Its idle workers begin what it claims.
    pub(crate) fn turn(&mut self, id: usize) -> Check {
        self.turn_alone(id)?;
        self.begin(id);
        self.stop_what_was_asked(id);
        Ok(())
    }

    /// A turn of an owner whose workers begin nothing of what it claims.
    pub(crate) fn turn_alone(&mut self, id: usize) -> Check {
        self.deliver(id)?;
        self.begin(id);
        self.turns += 1;
        let ahead = if self.once_in(6) { self.rng.usize(1..5) } else { 0 };
        let agent = &mut self.agents[id];
        // What it was at may have been the end of it.
        let Some(stepper) = &mut agent.stepper else { return Ok(()) };
        let free = agent.workers.saturating_sub(stepper.running().len());
        let claims = stepper.claim(ahead).map_err(|error| format!("owner {id} stops: {error}"))?;
        let deed = Deed::Turn(Turn {
            owner: id,
            claims: claims.clone(),
            refused: agent.refused.load(Ordering::Relaxed),
            sleeps: stepper.sleeps(),
            idle: agent.workers.saturating_sub(stepper.running().len()),
            free,
            draining: false,
        });
        self.done(&deed, &format!("turn of owner {id}"))?;
        for (place, claim) in claims.iter().enumerate() {
            let mut work = self.fate(claim);
            // Nobody has begun it, and it is given back.
            if place >= free && self.once_in(2) {
                (work.ends_at, work.outcome) = (self.now().monotonic + Duration::from_secs(2), Outcome::Released);
            }
            self.agents[id].works.push(work);
        }
        Ok(())
    }

    /// Idle workers begin what waits for them, unless it is to be given back.
    fn begin(&mut self, id: usize) {
        let now = self.now().monotonic;
        let Agent { stepper: Some(stepper), workers, works, .. } = &mut self.agents[id] else { return };
        let attempts = &self.history.attempts;
        let (begun, waiting): (Vec<&Work>, Vec<&Work>) =
            works.iter().partition(|work| attempts[&(work.claim.run_id, work.claim.attempt)].began.is_some());
        let begins = waiting.into_iter().filter(|work| work.outcome != Outcome::Released);
        let begins: Vec<_> = begins.take(workers.saturating_sub(begun.len())).map(|work| work.claim.clone()).collect();
        for claim in begins {
            stepper.begin(&claim);
            self.history.began(&claim, now);
        }
    }

    /// What is at work and has ended by now is handed to the loop.
    pub(crate) fn deliver(&mut self, id: usize) -> Check {
        let (now, held) = (self.now(), self.held);
        let agent = &mut self.agents[id];
        // Who writes by himself would wait for the lock.
        let has_ended = |work: &Work| work.ends_at <= now.monotonic && !(held && work.is_done_for_real());
        let (ended, works): (Vec<_>, Vec<_>) = agent.works.drain(..).partition(has_ended);
        agent.works = works;
        for work in &ended {
            if work.is_done_for_real() {
                self.carry_out(id, work)?;
            } else if let Some(stepper) = &mut self.agents[id].stepper {
                stepper.finish(&work.claim, work.outcome.clone());
                self.history.delivered(&work.claim, work.outcome.clone(), now);
            }
        }
        Ok(())
    }

    /// A turn of an owner that is about to leave.
    pub(crate) fn drain(&mut self, id: usize) -> Check {
        self.deliver(id)?;
        self.turns += 1;
        let agent = &mut self.agents[id];
        let Some(stepper) = &mut agent.stepper else { return Ok(()) };
        stepper.settle().map_err(|error| format!("owner {id} stops: {error}"))?;
        let refused = agent.refused.load(Ordering::Relaxed);
        let deed = Deed::Turn(Turn {
            owner: id,
            claims: Vec::new(),
            refused,
            sleeps: stepper.sleeps(),
            idle: 0,
            free: 0,
            draining: true,
        });
        self.done(&deed, &format!("owner {id} drains"))
    }

    /// Time passes, and some owners turn.
    pub(crate) fn pass_and_turn(&mut self) -> Check {
        let by = match self.rng.u32(..100) {
            0..10 => 0,
            10..30 => self.rng.i64(1..1000),
            30..45 => self.rng.i64(1000..30_000),
            45..75 => self.next_instant(),
            75..90 => self.rng.i64(30_000..900_000),
            90..98 => self.rng.i64(900_000..7_200_000),
            _ => self.rng.i64(7_200_000..40_000_000),
        };
        self.stage.clock.advance(Duration::from_millis(by.unsigned_abs()));
        if self.held && self.once_in(2) {
            self.let_go();
        }
        if self.once_in(8) {
            self.unstick()?;
        }
        if self.once_in(40) {
            self.declare_gone()?;
        }
        if self.once_in(9) {
            self.read()?;
        }
        let now = self.now().monotonic;
        for agent in &mut self.agents {
            agent.suspended = agent.suspended.filter(|until| *until > now);
        }
        for one in self.which(Agent::can_step) {
            if !self.once_in(4) {
                self.turn(one)?;
            }
        }
        Ok(())
    }

    /// How long until the next instant that something waits for, or just not yet.
    fn next_instant(&mut self) -> i64 {
        let (now, tables) = (self.wall(), &self.history.tables);
        let due = tables.tasks.values().filter_map(|task| task.next_run);
        let instants = due.chain(tables.unfinished().flat_map(|run| [Some(run.run_at), run.expires_at]).flatten());
        let next = instants.filter(|at| *at > now).min().unwrap_or(now + 1000) - now;
        let next = next.min(12 * 3_600_000);
        if self.once_in(5) { next - 1 } else { next }
    }

    /// What is told of a seed that fails.
    pub(crate) fn told(&self, broken: &str) -> String {
        let now = self.now();
        let log: Vec<&str> = self.log.iter().map(String::as_str).collect();
        format!(
            "seed {}, turn {}, {} of virtual time, at {}:\n  {broken}\nlast events:\n  {}\nagain: DULY_SEED={} cargo test \
             --test it simulation -- --nocapture",
            self.seed,
            self.turns,
            humantime_of(now.monotonic),
            now.wall,
            log.join("\n  "),
            self.seed
        )
    }

    /// A number that two histories share only if they are the same.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.hash.finish()
    }

    /// The wall clock is set, or the machine has slept: no time passes for anybody.
    pub(crate) fn set_wall(&mut self, to: i64) {
        self.stage.clock.set_wall(Timestamp::from_millis(to));
    }
}

/// A length of time, whole seconds of it.
pub(crate) fn humantime_of(length: Duration) -> String {
    let seconds = length.as_secs();
    format!("{}d {:02}:{:02}:{:02}", seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}
