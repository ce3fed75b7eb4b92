//! All faults at once, for the time in `DULY_TORTURE` (`60s`, or a number of seconds): real schedulers of both kinds on one
//! file are killed, stopped past their lease, drained, and run with a wrong clock; the write lock is held for seconds, the
//! disk is busy, tasks are edited by SQL, triggered and cancelled. When the faults end, all due work must be done in bounded
//! time, and the handlers' own journal is compared with the tables.
//!
//! `DULY_SEED` repeats the choices; their timing depends on the machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use duly::{Clock, SystemClock, Timestamp};
use rusqlite::{Connection, ErrorCode};

use crate::dst_nights;
use crate::evidence::{UNSHARE, tool_works};
use crate::fixtures::eventually;
use crate::kills::process::{Kind, Process, Setup, set_clock};
use crate::kills::soak::{Soak, edit};
use crate::kills::tasks::{EDITED, TRIGGERED, tasks};

/// For how long tasks are due, by default.
const LENGTH: Duration = Duration::from_secs(2);

/// From the start until the first task is due: late enough for the tasks to be stored.
const LEAD: Duration = Duration::from_secs(3);

/// Largest deviation of the wrong clock, either way.
const MAX_CLOCK_ERROR: Duration = Duration::from_secs(10);

/// Longest time for which a lock is held, longer than any busy timeout; only in a test of at least `LONG_TEST`.
const LONGEST_HOLD: Duration = Duration::from_secs(6);
const LONG_TEST: Duration = Duration::from_secs(20);

#[test]
fn every_occurrence_is_recorded_once_and_all_work_finishes_under_faults() {
    torture(false);
}

/// The schedulers of commands do not see each other's processes. Some are killed with their namespace, others alone.
#[test]
fn schedulers_in_two_pid_namespaces_start_nothing_beside_a_running_attempt() {
    if tool_works("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        torture(true);
    }
}

fn torture(namespaced: bool) {
    let length = std::env::var("DULY_TORTURE").map_or(LENGTH, |text| match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => duly::parse_duration(&text).expect("DULY_TORTURE is a length of time: 60s, or seconds"),
    });
    let mut scenario = Scenario::begin(length, namespaced);
    let begin = Instant::now();
    while begin.elapsed() < LEAD + length {
        scenario.advance();
        scenario.take_action();
        // The pace of the faults: nothing waits for it.
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(scenario.millis(20, 150));
    }
    scenario.end_faults();
    let end = Instant::now();
    eventually("all work is done", || {
        scenario.advance();
        scenario.soak.is_over()
    });
    println!("{length:?}, {:?}, all done {} ms after the last fault", scenario.counts, end.elapsed().as_millis());
    scenario.check();
}

/// Numbers of faults and actions.
type Counts = BTreeMap<&'static str, usize>;

struct Scenario {
    disturbances: Vec<(Process, Instant)>,
    /// Processes that were requested to stop.
    leaving: Vec<Process>,
    /// Processes to start again, and when.
    restarting: Vec<(Kind, Instant)>,
    has_wrong_clock: bool,
    plain: Connection,
    max_clock_error: Duration,
    is_long: bool,
    setup: Setup,
    /// The runs that were triggered.
    requests: Vec<i64>,
    counts: Counts,
    soak: Soak,
}

fn now() -> Timestamp {
    SystemClock::new().now().wall
}

impl Scenario {
    /// Starts the scenario. `namespaced`: each scheduler of commands in a PID namespace of its own.
    fn begin(length: Duration, namespaced: bool) -> Scenario {
        let mut soak = Soak::new();
        let plain = soak.db.plain();
        plain.busy_timeout(Duration::from_millis(200)).expect("little patience");
        let from = now().plus(LEAD);
        let (new, expectations): (Vec<_>, Vec<_>) = tasks(&soak.db, from, from.plus(length)).into_iter().unzip();
        soak.rules.tasks = expectations;
        soak.client.add_all(new).expect("tasks");
        assert!(now() < from, "the machine is too slow to begin");
        let has_wrong_clock = !namespaced && dst_nights::library().is_some();
        set_clock(soak.db.home(), "clock", 0);
        // The lease is shorter than the time for which a process is stopped.
        let options = ["--drain", "200ms"].map(str::to_owned).to_vec();
        let setup = Setup { lease: "1s", options, handlers: "closure,finish", ..Setup::LONG };
        let commands = if namespaced {
            [Kind::Namespaced, Kind::Namespaced, Kind::Closures]
        } else {
            [Kind::Program, Kind::Closures, Kind::Closures]
        };
        for kind in commands.into_iter().chain(has_wrong_clock.then_some(Kind::WrongClock)) {
            soak.start(kind, &setup);
        }
        Scenario {
            disturbances: Vec::new(),
            leaving: Vec::new(),
            restarting: Vec::new(),
            has_wrong_clock,
            plain,
            max_clock_error: MAX_CLOCK_ERROR.min(length / 4),
            is_long: length >= LONG_TEST,
            setup,
            requests: Vec::new(),
            counts: Counts::new(),
            soak,
        }
    }

    fn count(&mut self, what: &'static str, number: usize) {
        *self.counts.entry(what).or_default() += number;
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.soak.random.u64(from..to))
    }

    /// The index of a scheduler; `None` if all are being restarted.
    fn any(&mut self) -> Option<usize> {
        let count = self.soak.schedulers.len();
        (count > 0).then(|| self.soak.random.usize(..count))
    }

    /// Removes a scheduler, to be started again later.
    fn take_out(&mut self, index: usize) -> Process {
        let process = self.soak.take_out(index);
        let back = Instant::now() + self.millis(0, 500);
        self.restarting.push((process.kind, back));
        process
    }

    /// Does what is due: resumes stopped processes, ends disturbances, restarts schedulers.
    fn advance(&mut self) {
        let now = Instant::now();
        for process in self.soak.schedulers.iter_mut().filter(|one| one.stopped_until.is_some_and(|until| until <= now))
        {
            process.signal("CONT");
            process.stopped_until = None;
        }
        let over: Vec<Process> =
            self.disturbances.extract_if(.., |(_, until)| *until <= now).map(|(one, _)| one).collect();
        for mut process in over {
            // Some release the lock, others are killed with it.
            if self.soak.random.bool() {
                process.request_stop();
                self.leaving.push(process);
            } else {
                process.kill();
            }
        }
        let back: Vec<Kind> = self.restarting.extract_if(.., |(_, back)| *back <= now).map(|(kind, _)| kind).collect();
        back.into_iter().for_each(|kind| self.soak.start(kind, &self.setup));
        self.check_exits();
    }

    /// Checks that no scheduler exits unrequested, except one that found the file locked at its start.
    fn check_exits(&mut self) {
        self.leaving.retain_mut(|one| !one.has_exited());
        for index in (0..self.soak.schedulers.len()).rev() {
            let Some(status) = self.soak.schedulers[index].exit_status() else { continue };
            let process = self.soak.schedulers.swap_remove(index);
            let (number, log) = (process.number, process.log());
            assert!(
                process.was_locked_out(),
                "{:?}, scheduler {number}, exited by itself: {status}: {log}",
                process.kind
            );
            self.count("locked out", 1);
            self.restarting.push((process.kind, Instant::now()));
        }
    }

    fn take_action(&mut self) {
        let index = self.any();
        match (self.soak.random.u8(..24), index) {
            (0..=3, Some(index)) => {
                let one = &self.soak.schedulers[index];
                if one.kind == Kind::Namespaced && one.is_running() && self.soak.random.bool() {
                    self.soak.record_kill(one.number);
                    let one = &mut self.soak.schedulers[index];
                    one.kill_scheduler();
                    one.stopped_until = None;
                    self.count("kills of a scheduler alone", 1);
                } else {
                    self.take_out(index).kill();
                    self.count("kills", 1);
                }
            }
            (4, Some(index)) => {
                let until = Instant::now() + self.millis(1_200, 2_000);
                let one = &mut self.soak.schedulers[index];
                if one.stopped_until.is_none() {
                    one.signal("STOP");
                    one.stopped_until = Some(until);
                    self.count("stops", 1);
                }
            }
            (5, Some(index)) => {
                let mut process = self.take_out(index);
                process.signal("CONT");
                process.request_stop();
                self.leaving.push(process);
                self.count("drains", 1);
            }
            (6, _) => self.disturb(Kind::Holder),
            (7 | 8, _) => self.disturb(Kind::Burst),
            (9..=11, _) => {
                let most = i64::try_from(self.max_clock_error.as_millis()).expect("a step");
                // Half of the steps go back to the true time, and half of the others are small.
                let millis = match self.soak.random.u8(..4) {
                    0 | 1 => 0,
                    2 => self.soak.random.i64(-1_000..=1_000),
                    _ => self.soak.random.i64(-most..=most),
                };
                set_clock(self.soak.db.home(), "clock", millis);
                self.count("steps of the clock", usize::from(self.has_wrong_clock));
            }
            (12..=16, _) => self.edit(),
            (17..=21, _) if self.can_write() => {
                // Several at once, so that they wait for each other.
                let name = TRIGGERED[self.soak.random.usize(..TRIGGERED.len())];
                for _ in 0..self.soak.random.u8(1..=4) {
                    let run = self.unless_locked(self.soak.client.trigger(name));
                    self.count("requests", run.iter().count());
                    self.requests.extend(run);
                }
            }
            (22.., _) if self.can_write() => {
                let all = &self.soak.rules.tasks;
                let name = &all[self.soak.random.usize(..all.len())].task;
                let cancelled = self.unless_locked(self.soak.client.cancel_all(name));
                self.count("cancellations", cancelled.unwrap_or(0));
            }
            (0..=5, None) => {}
            _ => self.count("locked out", 1),
        }
    }

    /// Whether a request would not have to wait for a stopped process with the write lock: the test must not block on it.
    fn can_write(&self) -> bool {
        self.plain.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
    }

    /// Starts a disturbance for a while, at most one of a kind.
    fn disturb(&mut self, kind: Kind) {
        if self.disturbances.iter().any(|(one, _)| one.kind == kind) {
            return;
        }
        let long = self.is_long && self.soak.random.u8(..10) == 0;
        let until = Instant::now() + if long { LONGEST_HOLD } else { self.millis(100, 800) };
        self.disturbances.push((Process::start(&self.soak.db, kind, &self.setup), until));
        self.count(if kind == Kind::Holder { "holds" } else { "bursts" }, 1);
    }

    fn edit(&mut self) {
        let name = EDITED[self.soak.random.usize(..EDITED.len())];
        match edit(&self.plain, &mut self.soak.random, name) {
            Ok(changed) => self.count("edits", changed),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => self.count("locked out", 1),
            Err(error) => panic!("an edit: {error}"),
        }
    }

    fn unless_locked<T>(&mut self, answer: duly::Result<T>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) if error.to_string().contains("locked") => {
                self.count("locked out", 1);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends all faults. Stopped schedulers continue, the one with a wrong clock is replaced by one with the true clock.
    fn end_faults(&mut self) {
        for mut process in std::mem::take(&mut self.soak.schedulers) {
            if process.stopped_until.take().is_some() {
                process.signal("CONT");
            }
            if process.kind == Kind::WrongClock {
                self.soak.record_kill(process.number);
                process.kill();
            } else {
                self.soak.schedulers.push(process);
            }
        }
        self.disturbances.drain(..).for_each(|(one, _)| one.kill());
        self.leaving.drain(..).for_each(Process::wait_for_exit);
        for (kind, _) in std::mem::take(&mut self.restarting) {
            self.soak.start(if kind == Kind::WrongClock { Kind::Program } else { kind }, &self.setup);
        }
        self.plain.busy_timeout(Duration::from_secs(60)).expect("patience");
        self.plain
            .execute("UPDATE scheduled_tasks SET status = 'active' WHERE status = 'paused'", [])
            .expect("an edit");
    }

    /// Ends all schedulers, and compares the journal with the tables.
    fn check(self) {
        let (requests, soak) = (self.requests, self.soak);
        let there = format!(
            "SELECT count(*) FROM task_runs WHERE id IN ({})",
            requests.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
        );
        assert_eq!(soak.db.number::<usize>(&there), requests.len(), "triggered, and a run does not exist");
        let counts = soak.end();
        assert!(counts.starts > 0, "no attempt has started");
    }
}
