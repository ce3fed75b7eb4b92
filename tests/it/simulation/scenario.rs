//! The state of one seed: a file, a clock, schedulers that start and stop, and their handler calls. Every action goes
//! through [`Scenario::record`], so that the checker sees each step.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::testing::{Looped, Stepper};
use duly::{Clock, Event, Now, Outcome, Timestamp};

use crate::simulation::attempts::HandlerCall;
use crate::simulation::claim_order::Order;
use crate::simulation::databases::Database;
use crate::simulation::effects::{self, ExpectedEffects, LEDGER, Script};
use crate::simulation::event_loop::LoopModel;
use crate::simulation::faults;
use crate::simulation::history::{Action, Check, History, Owner};
use crate::simulation::marks_seen::MarksSeen;
use crate::simulation::retention;

/// Every handler that a task may have.
pub(crate) const HANDLERS: [&str; 4] = ["work", "post", "rare", LEDGER];
/// Days on which clocks change, and the end of a leap February.
const START_TIMES: [&str; 3] = ["2027-03-12T22:30:00Z", "2027-10-29T21:10:00Z", "2028-02-28T09:59:00Z"];
/// Lines of the log that a failure report shows.
const LOG_LINES: usize = 40;

/// A scheduler that was started. `stepper` is `None` once it has stopped.
pub(crate) struct Scheduler {
    pub(crate) stepper: Option<Looped>,
    pub(crate) workers: usize,
    /// How many of [`HANDLERS`] it has.
    pub(crate) handlers: usize,
    pub(crate) calls: Vec<HandlerCall>,
    /// Stopped by a signal until this monotonic time: the process is alive and does not step.
    pub(crate) suspended: Option<Duration>,
    pub(crate) refused: Arc<AtomicBool>,
    pub(crate) script: Arc<Mutex<Script>>,
    pub(crate) in_loop: LoopModel,
}

impl Scheduler {
    pub(crate) fn can_step(&self) -> bool {
        self.stepper.is_some() && self.suspended.is_none()
    }

    /// Whether it runs, and was not ordered to drain.
    pub(crate) fn takes_on(&self) -> bool {
        self.stepper.is_some() && self.in_loop.ordered.is_none()
    }
}

pub(crate) struct Scenario {
    pub(crate) rng: fastrand::Rng,
    pub(crate) schedulers: Vec<Scheduler>,
    /// How many schedulers were started, with those that could not register.
    starts: u64,
    pub(crate) history: History,
    pub(crate) database: Database,
    began: Duration,
    /// Another program holds the write lock.
    pub(crate) write_locked: bool,
    /// The tables are of a newer version.
    pub(crate) is_newer_version: bool,
    /// Faults have stopped.
    pub(crate) is_calm: bool,
    pub(crate) turns: u64,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) named: u64,
    /// Tasks with text that is not UTF-8, and the column.
    pub(crate) corrupt_texts: BTreeMap<String, &'static str>,
    /// Whether any row holds such text.
    pub(crate) has_corrupt_text: bool,
    pub(crate) expected_effects: ExpectedEffects,
    marks: MarksSeen,
    /// How many steps left a mark of each kind.
    pub(crate) marks_seen: BTreeMap<&'static str, u64>,
    log: VecDeque<String>,
    hash: DefaultHasher,
    seed: u64,
}

impl Scenario {
    pub(crate) fn new(seed: u64, mut database: Database) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let beginning: Timestamp = START_TIMES[rng.usize(..START_TIMES.len())].parse().expect("an instant");
        database.set_wall(beginning.plus(Duration::from_millis(rng.u64(..3_600_000))));
        database.follows_server = database.shell.is_on_server() && rng.bool();
        if database.follows_server {
            let begins = database.clock.now().wall.as_millis();
            let hosts = database.hosts.iter();
            hosts.for_each(|host| host.clock.set_wall(Timestamp::from_millis(begins + faults::draw_error(&mut rng))));
        }
        database.clear();
        let observer = database.observer.take().unwrap_or_else(|| database.new_observer());
        let history = History::new(observer, retention::draw(&mut rng));
        let mut scenario = Scenario {
            rng,
            schedulers: Vec::new(),
            starts: 0,
            history,
            began: database.clock.now().monotonic,
            database,
            write_locked: false,
            is_newer_version: false,
            is_calm: false,
            turns: 0,
            faults: BTreeMap::new(),
            named: 0,
            corrupt_texts: BTreeMap::new(),
            has_corrupt_text: false,
            expected_effects: ExpectedEffects::default(),
            marks: MarksSeen::default(),
            marks_seen: BTreeMap::new(),
            log: VecDeque::new(),
            hash: DefaultHasher::new(),
            seed,
        };
        scenario.record(&Action::Nothing, "it begins").expect("empty tables");
        scenario
    }

    /// Returns the database for the next seed, unless its tables are of a newer version.
    pub(crate) fn into_database(mut self) -> Option<Database> {
        for (scheduler, owner) in self.schedulers.into_iter().zip(&self.history.owners) {
            self.database
                .connections
                .extend(scheduler.stepper.map(|stepper| (owner.host, stepper.into_stepper().crash())));
            self.database.shell.await_end_of(&owner.name);
        }
        self.database.observer = Some(self.history.observer.reset());
        (!self.is_newer_version).then_some(self.database)
    }

    /// Executes a statement as another program would.
    pub(crate) fn execute(&self, text: &str, given: impl rusqlite::Params) -> Result<usize, String> {
        self.database.shell.execute(text, given)
    }

    /// Whether a turn of this seed writes 1 to 8 items, so that it takes many turns to do what else is done in one.
    pub(crate) fn has_small_turns(&self) -> bool {
        self.seed % 4 == 3
    }

    pub(crate) fn now(&self) -> Now {
        let now = self.database.clock.now();
        Now { monotonic: now.monotonic - self.began, ..now }
    }

    pub(crate) fn wall(&self) -> i64 {
        self.now().wall.as_millis()
    }

    /// Returns true once in `draws` calls on average.
    pub(crate) fn once_in(&mut self, draws: u32) -> bool {
        self.rng.u32(..draws) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.rng.usize(..among.len())]
    }

    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// Returns the ids of the schedulers for which this holds.
    pub(crate) fn schedulers_where(&self, holds: impl Fn(&Scheduler) -> bool) -> Vec<usize> {
        (0..self.schedulers.len()).filter(|id| holds(&self.schedulers[*id])).collect()
    }

    /// Returns the ids of the schedulers that have not stopped.
    pub(crate) fn running(&self) -> Vec<usize> {
        self.schedulers_where(|scheduler| scheduler.stepper.is_some())
    }

    /// Has the checker compare the tables with what `action` may have changed, and logs the step.
    pub(crate) fn record(&mut self, action: &Action, what: &str) -> Check {
        let now = self.now();
        let before = self.history.tables.tasks.clone();
        self.history.corrupt = self.corrupt_texts.keys().cloned().collect();
        let (changes, checked) = self.history.observe(action, now);
        let History { tables, observer, .. } = &self.history;
        for mark in self.marks.after_a_step(&before, &tables.tasks, observer) {
            *self.marks_seen.entry(mark).or_default() += 1;
        }
        let line = format!("{} +{:?} {what}{changes}", now.wall, now.monotonic);
        line.hash(&mut self.hash);
        if self.log.len() == LOG_LINES {
            self.log.pop_front();
        }
        self.log.push_back(line);
        checked
    }

    /// Starts a scheduler. It cannot register while the write lock is held.
    pub(crate) fn start(&mut self, handlers: &[&'static str]) -> Check {
        let workers = self.rng.usize(1..=3);
        self.start_with(handlers, workers)
    }

    pub(crate) fn start_with(&mut self, handlers: &[&'static str], workers: usize) -> Check {
        let poll = self.pick(&[1, 30]);
        let lease = Duration::from_secs(self.pick(&[15, 60, 240]));
        let refused = Arc::new(AtomicBool::new(false));
        let tell = refused.clone();
        let id = self.schedulers.len();
        let hosts = self.database.hosts.len();
        let host = if hosts > 1 { self.rng.usize(..hosts) } else { 0 };
        let builder = Stepper::builder(&self.database.address, self.now().wall);
        let mut builder = self.database.hosts[host]
            .builder(builder, self.database.given_clock())
            .client(&self.database.client)
            .workers(workers)
            .lease(lease)
            .poll(Duration::from_secs(poll))
            .retention(self.history.keep)
            .busy_timeout(Duration::ZERO)
            .seed(self.seed.wrapping_mul(1000) + self.starts)
            .observe(move |event: &Event| match event {
                Event::Degraded { .. } => tell.store(true, Ordering::Relaxed),
                Event::Recovered => tell.store(false, Ordering::Relaxed),
                _ => {}
            });
        if !self.once_in(12)
            && let Some(crashed) = self.database.take_connection(host)
        {
            builder = builder.after(crashed);
        }
        // One that cannot register leaves its lock file, perhaps on another host: the next one has another id, as every owner does.
        self.starts += 1;
        let script = Arc::new(Mutex::new(Script::default()));
        for handler in handlers {
            builder = match *handler {
                LEDGER => builder.handler(LEDGER, effects::handler(script.clone())),
                handler => builder.accept(handler),
            };
        }
        match builder.start() {
            Ok(stepper) => {
                let (stepper, in_loop) = self.begin_loop(stepper, handlers, Duration::from_secs(poll));
                let name = stepper.owner().to_owned();
                let lock = self.database.hosts[host].locks.join(&name);
                let clock_known = self.history.tables.seen_at.unwrap_or_default();
                self.history.owners.push(Owner {
                    name,
                    handlers: handlers.to_vec(),
                    host,
                    lock,
                    is_alive: true,
                    left_lock_file: true,
                    lease,
                    leases: BTreeMap::new(),
                    clock_known,
                    written: clock_known,
                    full_turn_at: self.now(),
                    seen: None,
                    step_seen_at: None,
                    possible_step_at: None,
                    turned_at: self.now(),
                    large_step_between_turns: false,
                    may_have_seen_step: false,
                    order: Order::default(),
                });
                self.schedulers.push(Scheduler {
                    stepper: Some(stepper),
                    workers,
                    handlers: handlers.len(),
                    calls: Vec::new(),
                    suspended: None,
                    refused,
                    script,
                    in_loop,
                });
                self.record(&Action::Nothing, &format!("owner {id} starts"))
            }
            Err(_) if self.write_locked => self.record(&Action::Nothing, "an owner cannot start"),
            Err(error) => Err(format!("an owner cannot start: {error}")),
        }
    }

    /// Kills a scheduler's process, and its handlers with it.
    pub(crate) fn crash(&mut self, id: usize, when: &str) -> Check {
        let scheduler = &mut self.schedulers[id];
        scheduler.calls.clear();
        scheduler.suspended = None;
        let Some(stepper) = scheduler.stepper.take() else { return Ok(()) };
        let owner = &self.history.owners[id];
        self.database.connections.push((owner.host, stepper.into_stepper().crash()));
        self.database.shell.await_end_of(&owner.name);
        self.history.died(id);
        self.record(&Action::Nothing, &format!("owner {id} is killed {when}"))
    }

    /// Has the loop of a scheduler take all outcomes that its handlers have returned, and go on until it waits. Its idle workers begin
    /// what it hands over.
    pub(crate) fn turn(&mut self, id: usize) -> Check {
        self.deliver(id)?;
        self.begin(id);
        self.run_loop(id)?;
        self.stop_cancelled_calls(id);
        Ok(())
    }

    /// Has the loop of a scheduler take one turn; nothing of what that claims is handed over.
    pub(crate) fn turn_without_starting(&mut self, id: usize) -> Check {
        self.deliver(id)?;
        self.begin(id);
        self.take_one_turn(id)
    }

    /// Whether something falls due in this very millisecond, and the owner takes the time for one that is earlier.
    pub(crate) fn is_behind(&self, id: usize) -> bool {
        let stepper = self.schedulers[id].stepper.as_ref();
        stepper.is_some_and(|stepper| stepper.now().wall < self.now().wall) && self.is_due_now()
    }

    /// Has idle workers, and the lanes beside them, take and begin what was handed over. What is to be returned does not begin.
    pub(crate) fn begin(&mut self, id: usize) {
        let wall = self.now().wall.as_millis();
        let now = self.now().monotonic;
        let Scheduler { stepper: Some(stepper), workers, calls, in_loop, .. } = &mut self.schedulers[id] else {
            return;
        };
        let at_work = calls.iter().filter(|call| call.lane.is_none() && call.ends_at.is_some()).count();
        let mut idle = workers.saturating_sub(at_work);
        for call in calls.iter_mut().filter(|call| call.ends_at.is_none()) {
            if in_loop.is_blocked(call.lane) {
                continue;
            }
            if call.lane.is_none() {
                let Some(left) = idle.checked_sub(1) else { continue };
                idle = left;
            }
            let attempt = &self.history.attempts[&(call.claim.run_id, call.claim.attempt)];
            if attempt.begins_by.is_some_and(|at| wall > at) {
                call.outcome = Outcome::Released;
            }
            call.ends_at = Some(now + call.takes);
            in_loop.takes(&call.claim);
            stepper.take(&call.claim);
            if call.outcome != Outcome::Released {
                stepper.begin(&call.claim);
                self.history.began(&call.claim, now);
            }
        }
    }

    /// Passes the outcomes of calls that have ended to the engine.
    pub(crate) fn deliver(&mut self, id: usize) -> Check {
        let (now, held) = (self.now(), self.write_locked);
        let scheduler = &mut self.schedulers[id];
        // A handler that writes would wait for the lock.
        let is_over = |call: &HandlerCall| call.ends_at.is_some_and(|at| at <= now.monotonic);
        let blocked = |call: &HandlerCall| scheduler.in_loop.is_blocked(call.lane) || held && call.calls_real_handler();
        let has_ended = |call: &HandlerCall| is_over(call) && !blocked(call);
        let (ended, calls): (Vec<_>, Vec<_>) = scheduler.calls.drain(..).partition(has_ended);
        scheduler.calls = calls;
        for call in &ended {
            if call.calls_real_handler() && !self.is_newer_version {
                self.run_effect_handler(id, call)?;
            } else if let Some(stepper) = &mut self.schedulers[id].stepper {
                stepper.finish(&call.claim, call.outcome.clone());
                let known = stepper.now().wall;
                if known.since(now.wall).max(now.wall.since(known)) > self.database.uncertainty() {
                    return Err(format!("owner {id} takes {known} for the time of day, which is {}", now.wall));
                }
                self.history.delivered(&call.claim, call.outcome.clone(), Now { wall: known, ..now });
            }
        }
        Ok(())
    }

    /// Advances the clock and steps some of the schedulers.
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
        self.database.advance(Duration::from_millis(by.unsigned_abs()));
        if self.write_locked && self.once_in(2) {
            self.release_write_lock();
        }
        if self.once_in(8) {
            self.unblock_run_writes()?;
        }
        if self.once_in(40) {
            self.declare_gone()?;
        }
        if self.once_in(9) {
            self.step_reader()?;
        }
        let now = self.now().monotonic;
        for scheduler in &mut self.schedulers {
            scheduler.suspended = scheduler.suspended.filter(|until| *until > now);
        }
        for one in self.schedulers_where(Scheduler::can_step) {
            if self.once_in(100) {
                self.end_worker(one)?;
            }
            if !self.schedulers[one].takes_on() && self.once_in(4) {
                self.order_cut(one)?;
            }
            if !self.once_in(4) {
                self.turn(one)?;
            }
            if self.schedulers[one].takes_on() && self.once_in(8) {
                self.order_at_a_bad_moment(one)?;
            }
            // Its caller does not wait for what is unfinished.
            if self.schedulers[one].in_loop.cut && self.once_in(2) {
                self.crash(one, "after its deadline")?;
            }
        }
        Ok(())
    }

    /// Returns the instants at which something is due.
    fn instants(&self) -> impl Iterator<Item = i64> + '_ {
        let tables = &self.history.tables;
        let due = tables.tasks.values().filter_map(|task| task.next_run);
        let runs = tables.unfinished().flat_map(|run| [Some(run.run_at), run.expires_at]).flatten();
        due.chain(runs)
    }

    fn is_due_now(&self) -> bool {
        let now = self.wall();
        let opens = HANDLERS.iter().filter_map(|handler| self.history.limits.handler_opens_at(handler));
        self.instants().chain(opens).any(|at| at == now)
    }

    /// Returns the milliseconds until the next due instant, or one less.
    fn next_instant(&mut self) -> i64 {
        let now = self.wall();
        let next = self.instants().filter(|at| *at > now).min().unwrap_or(now + 1000) - now;
        let next = next.min(12 * 3_600_000);
        if self.once_in(5) { next - 1 } else { next }
    }

    /// Returns the report of a failing seed.
    pub(crate) fn failure_report(&self, broken: &str) -> String {
        let now = self.now();
        let log: Vec<&str> = self.log.iter().map(String::as_str).collect();
        let (store, feature) = match self.database.shell.is_on_server() {
            true => ("DULY_STORE=postgres ", "--features postgres "),
            false => ("", ""),
        };
        format!(
            "seed {}, turn {}, {} of virtual time, at {}:\n  {broken}\nlast events:\n  {}\nagain: {store}DULY_SEED={} cargo test \
             {feature}--test it simulation -- --nocapture",
            self.seed,
            self.turns,
            humantime_of(now.monotonic),
            now.wall,
            log.join("\n  "),
            self.seed
        )
    }

    /// Returns a hash of the log: equal only for equal histories.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.hash.finish()
    }

    /// Sets the wall clock alone: it was set, or the machine was suspended.
    pub(crate) fn set_wall(&mut self, to: i64) {
        self.database.set_wall(Timestamp::from_millis(to));
    }
}

pub(crate) fn humantime_of(length: Duration) -> String {
    let seconds = length.as_secs();
    format!("{}d {:02}:{:02}:{:02}", seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}
