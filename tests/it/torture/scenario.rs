//! The scenario: which processes run, which faults they meet, and how it is ended and checked.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use duly::{Client, Clock, SystemClock, Timestamp};
use rusqlite::{Connection, ErrorCode};

use crate::dst_nights;
use crate::fixtures::TestDb;
use crate::selftest::checker::{self, Expectation, Line, Tables};
use crate::sidecar::Sidecar;
use crate::torture::processes::{Kind, Process, set_clock};
use crate::torture::tasks::{EDITED, JOURNAL, ON_DEAD, TRIGGERED, tasks};

/// Limit for finishing all due work after the faults, by the true clock.
const DONE_LIMIT: Duration = Duration::from_secs(60);

/// Largest deviation of the wrong clock, either way.
const MAX_CLOCK_ERROR: Duration = Duration::from_secs(10);

/// Longest time for which a lock is held, longer than any busy timeout; only in a test of at least `LONG_TEST`.
const LONGEST_HOLD: Duration = Duration::from_secs(6);
const LONG_TEST: Duration = Duration::from_secs(20);

/// Numbers of faults and actions.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    kills: usize,
    /// Kills of a scheduler without its PID namespace.
    alone: usize,
    stops: usize,
    drains: usize,
    holds: usize,
    steps: usize,
    bursts: usize,
    edits: usize,
    requests: Vec<i64>,
    cancels: usize,
    /// Requests, edits and starts that failed because another process held the lock.
    locked_out: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { kills, alone, stops, drains, holds, steps, bursts, edits, requests, cancels, locked_out } = self;
        let requests = requests.len();
        write!(
            f,
            "{kills} kills, {alone} of a scheduler alone, {stops} stops, {drains} drains, {holds} holds, {steps} steps of the clock, {bursts} bursts, {edits} edits, \
             {requests} requests, {cancels} cancels, {locked_out} locked out"
        )
    }
}

pub(crate) struct Scenario {
    // Dropped before the database: processes end while its files exist.
    schedulers: Vec<Process>,
    disturbances: Vec<(Process, Instant)>,
    /// Processes that were requested to stop.
    leaving: Vec<Process>,
    /// Processes to start again, and when.
    restarting: Vec<(Kind, Instant)>,
    faketime: Option<PathBuf>,
    random: fastrand::Rng,
    client: Client,
    plain: Connection,
    journal: File,
    expectations: Vec<Expectation>,
    max_clock_error: Duration,
    is_long: bool,
    pub(crate) counts: Counts,
    db: TestDb,
}

fn now() -> Timestamp {
    SystemClock::new().now().wall
}

impl Scenario {
    /// Starts the scenario. `namespaced`: each scheduler of commands in a PID namespace of its own.
    pub(crate) fn begin(seed: u64, length: Duration, namespaced: bool) -> Scenario {
        let (db, client) = TestDb::with_client();
        let plain = db.plain();
        plain.busy_timeout(Duration::from_millis(200)).expect("little patience");
        plain.execute_batch("CREATE TABLE kept (run INTEGER NOT NULL, attempt INTEGER NOT NULL)").expect("a table");
        let journal = OpenOptions::new().append(true).create_new(true).open(db.home().join(JOURNAL)).expect("a file");
        // Late enough for the tasks to be stored before the first is due.
        let from = now().plus(Duration::from_secs(3));
        let (new, expectations): (Vec<_>, Vec<_>) = tasks(&db, from, from.plus(length)).into_iter().unzip();
        client.add_all(new).expect("tasks");
        assert!(now() < from, "the machine is too slow to begin");
        let faketime = if namespaced { None } else { dst_nights::library() };
        set_clock(&db, 0);
        let random = fastrand::Rng::with_seed(seed);
        let (counts, max_clock_error) = (Counts::default(), MAX_CLOCK_ERROR.min(length / 4));
        let mut scenario = Scenario {
            schedulers: Vec::new(),
            disturbances: Vec::new(),
            leaving: Vec::new(),
            restarting: Vec::new(),
            faketime,
            random,
            client,
            plain,
            journal,
            expectations,
            max_clock_error,
            is_long: length >= LONG_TEST,
            counts,
            db,
        };
        let wrong_clock = scenario.faketime.is_some().then_some(Kind::WrongClock);
        let kinds = if namespaced {
            [Kind::Namespaced, Kind::Namespaced, Kind::Closures]
        } else {
            [Kind::Program, Kind::Closures, Kind::Closures]
        };
        for kind in kinds.into_iter().chain(wrong_clock) {
            scenario.start(kind);
        }
        scenario
    }

    fn start(&mut self, kind: Kind) {
        self.schedulers.push(Process::start(&self.db, kind, self.faketime.as_deref()));
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.u64(from..to))
    }

    /// Removes a random scheduler, to be started again later. From now on its attempts may be repeated.
    fn take_out(&mut self) -> Option<Process> {
        let index = (!self.schedulers.is_empty()).then(|| self.random.usize(..self.schedulers.len()))?;
        let process = self.schedulers.swap_remove(index);
        self.write(&Line::Killed { process: process.id() });
        let back = Instant::now() + self.millis(0, 500);
        self.restarting.push((process.kind, back));
        Some(process)
    }

    fn write(&mut self, line: &Line) {
        self.journal.write_all(line.to_string().as_bytes()).expect("a line");
    }

    /// Does what is due: resumes stopped processes, ends disturbances, restarts schedulers.
    pub(crate) fn advance(&mut self) {
        let now = Instant::now();
        for process in self.schedulers.iter_mut().filter(|one| one.stopped_until.is_some_and(|until| until <= now)) {
            process.signal("CONT");
            process.stopped_until = None;
        }
        let over: Vec<Process> =
            self.disturbances.extract_if(.., |(_, until)| *until <= now).map(|(one, _)| one).collect();
        for mut process in over {
            // Some release the lock, others are killed with it.
            if self.random.bool() {
                process.request_stop();
                self.leaving.push(process);
            } else {
                process.kill();
            }
        }
        let back: Vec<Kind> = self.restarting.extract_if(.., |(_, back)| *back <= now).map(|(kind, _)| kind).collect();
        back.into_iter().for_each(|kind| self.start(kind));
        self.check_exits();
    }

    /// Checks that no scheduler exits unrequested, except one that found the file locked at its start.
    fn check_exits(&mut self) {
        self.leaving.retain_mut(|one| !one.has_exited());
        for index in (0..self.schedulers.len()).rev() {
            let Some(status) = self.schedulers[index].exit_status() else { continue };
            let process = self.schedulers.swap_remove(index);
            let (id, log) = (process.id(), process.log());
            assert!(process.was_locked_out(), "{:?}, process {id}, exited by itself: {status}: {log}", process.kind);
            self.counts.locked_out += 1;
            self.restarting.push((process.kind, Instant::now()));
        }
    }

    pub(crate) fn take_action(&mut self) {
        match self.random.u8(..24) {
            0..=3 => {
                let index = self.random.usize(..self.schedulers.len().max(1));
                let namespaced =
                    self.schedulers.get(index).is_some_and(|one| one.kind == Kind::Namespaced && one.is_running());
                if namespaced && self.random.bool() {
                    self.write(&Line::Killed { process: self.schedulers[index].id() });
                    self.schedulers[index].kill_scheduler();
                    self.schedulers[index].stopped_until = None;
                    self.counts.alone += 1;
                } else if let Some(process) = self.take_out() {
                    process.kill();
                    self.counts.kills += 1;
                }
            }
            4 => {
                let until = Instant::now() + self.millis(1_200, 2_000);
                let index = self.random.usize(..self.schedulers.len().max(1));
                if let Some(process) = self.schedulers.get_mut(index).filter(|one| one.stopped_until.is_none()) {
                    process.signal("STOP");
                    process.stopped_until = Some(until);
                    self.counts.stops += 1;
                }
            }
            5 => {
                if let Some(mut process) = self.take_out() {
                    process.signal("CONT");
                    process.request_stop();
                    self.leaving.push(process);
                    self.counts.drains += 1;
                }
            }
            6 => self.disturb(Kind::Holder),
            7 | 8 => self.disturb(Kind::Burst),
            9..=11 => {
                let max_clock_error = i64::try_from(self.max_clock_error.as_millis()).expect("a step");
                // Half of the steps go back to the true time, and half of the others are small.
                let millis = match self.random.u8(..4) {
                    0 | 1 => 0,
                    2 => self.random.i64(-1_000..=1_000),
                    _ => self.random.i64(-max_clock_error..=max_clock_error),
                };
                set_clock(&self.db, millis);
                self.counts.steps += usize::from(self.faketime.is_some());
            }
            12..=16 => self.edit(),
            17..=21 if self.can_write() => {
                // Several at once, so that they wait for each other.
                let name = TRIGGERED[self.random.usize(..TRIGGERED.len())];
                for _ in 0..self.random.u8(1..=4) {
                    let triggered = self.client.trigger(name);
                    let run = self.unless_locked(triggered);
                    self.counts.requests.extend(run);
                }
            }
            _ if self.can_write() => {
                let all: Vec<&str> = self.expectations.iter().map(|expectation| expectation.task.as_str()).collect();
                let name = all[self.random.usize(..all.len())].to_owned();
                let cancelled = self.client.cancel_all(&name);
                self.counts.cancels += self.unless_locked(cancelled).unwrap_or(0);
            }
            _ => self.counts.locked_out += 1,
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
        let long = self.is_long && self.random.u8(..10) == 0;
        let until = Instant::now() + if long { LONGEST_HOLD } else { self.millis(100, 800) };
        self.disturbances.push((Process::start(&self.db, kind, None), until));
        match kind {
            Kind::Holder => self.counts.holds += 1,
            _ => self.counts.bursts += 1,
        }
    }

    /// Makes one change by SQL that schema.sql allows.
    fn edit(&mut self) {
        let name = EDITED[self.random.usize(..EDITED.len())];
        let change = match self.random.u8(..7) {
            0 => "UPDATE scheduled_tasks SET status = 'paused' WHERE name = ?1 AND status = 'active'",
            1 | 2 => "UPDATE scheduled_tasks SET status = 'active' WHERE name = ?1 AND status = 'paused'",
            3 => {
                "UPDATE scheduled_tasks SET next_run = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
                  WHERE name = ?1 AND status = 'active'"
            }
            4 => {
                "UPDATE task_runs SET cancel_requested = 1
                  WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = ?1)
                    AND (status = 'queued' OR status = 'running' OR status = 'failed')"
            }
            5 => "UPDATE scheduled_tasks SET priority = (priority + 1) % 4, max_attempts = 1000 WHERE name = ?1",
            _ => {
                "UPDATE scheduled_tasks SET schedule_value = CASE schedule_value WHEN '700ms' THEN '500ms' ELSE '700ms' END
                  WHERE name = ?1"
            }
        };
        match self.plain.execute(change, [name]) {
            Ok(changed) => self.counts.edits += changed,
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => self.counts.locked_out += 1,
            Err(error) => panic!("{change}: {error}"),
        }
    }

    fn unless_locked<T>(&mut self, answer: duly::Result<T>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) if error.to_string().contains("locked") => {
                self.counts.locked_out += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends all faults. Stopped schedulers continue, the one with a wrong clock is replaced by one with the true clock.
    pub(crate) fn end_faults(&mut self) {
        for mut process in std::mem::take(&mut self.schedulers) {
            if process.stopped_until.take().is_some() {
                process.signal("CONT");
            }
            if process.kind == Kind::WrongClock {
                self.write(&Line::Killed { process: process.id() });
                process.kill();
            } else {
                self.schedulers.push(process);
            }
        }
        self.disturbances.drain(..).for_each(|(one, _)| one.kill());
        self.leaving.drain(..).for_each(Process::wait_for_exit);
        for (kind, _) in std::mem::take(&mut self.restarting) {
            self.start(if kind == Kind::WrongClock { Kind::Program } else { kind });
        }
        self.plain.busy_timeout(Duration::from_secs(60)).expect("patience");
        self.plain
            .execute("UPDATE scheduled_tasks SET status = 'active' WHERE status = 'paused'", [])
            .expect("an edit");
    }

    pub(crate) fn wait_until_done(&mut self) -> Duration {
        let (begin, limit) = (Instant::now(), DONE_LIMIT + self.max_clock_error);
        let never = [TRIGGERED[0], TRIGGERED[1], ON_DEAD].map(|name| format!("'{name}'")).join(", ");
        let left = format!(
            "SELECT name || ' is due at ' || coalesce(next_run, 'some time') FROM scheduled_tasks
              WHERE (status = 'active' OR status = 'invalid') AND name NOT IN ({never})
             UNION ALL
             SELECT 'run ' || r.id || ' of ' || name || ' is ' || r.status || ', ' || coalesce(blocked, 'not blocked')
               FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
              WHERE r.status = 'queued' OR r.status = 'running' OR r.status = 'failed'
             UNION ALL
             SELECT 'of ' || count(*) || ' schedulers not all live: ' || group_concat(id || ', process ' || pid, '; ')
               FROM scheduler_instances WHERE stopped_at IS NULL HAVING count(*) > {}",
            self.schedulers.len()
        );
        loop {
            let rows = self.db.rows(&left);
            if rows.is_empty() {
                return begin.elapsed();
            }
            let files = || self.lock_files();
            assert!(begin.elapsed() < limit, "not done after {limit:?} without faults: {rows:#?}, {:?}", files());
            self.advance();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the lock files of owners, and the records of running commands.
    fn lock_files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.db.lock_folder()).expect("a folder");
        let names = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
        // An owner that was killed while it created its lock file leaves the temporary one.
        names.filter(|name| !name.ends_with(".new")).collect()
    }

    /// Stops all schedulers. One more then starts and removes the files of those that were killed at their start.
    pub(crate) fn shut_down(&mut self) {
        self.schedulers.iter_mut().for_each(Process::request_stop);
        self.schedulers.drain(..).for_each(Process::wait_for_exit);
        Sidecar::start(&self.db, &[]).terminate();
    }

    /// Compares the handlers' journal with the tables, and the tables with their rules.
    pub(crate) fn check(&self) -> checker::Counts {
        let text = std::fs::read_to_string(self.db.home().join(JOURNAL)).expect("the journal");
        let (lines, torn) = checker::parse(&text);
        assert!(torn.is_empty(), "{torn:#?}");
        let tables = Tables::read(&self.client).expect("the tables");
        let faults = checker::check(&lines, &tables, &self.expectations);
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        let lost: Vec<_> =
            self.counts.requests.iter().filter(|id| tables.runs.iter().all(|run| run.id != **id)).collect();
        assert!(lost.is_empty(), "triggered, and the run does not exist: {lost:?}");
        self.db.assert_sound();
        let ask = |query: &str| self.db.ask(query);
        assert_eq!(ask("SELECT count(*) FROM scheduler_events WHERE kind = 'set_aside' OR kind = 'invalid'"), "0");
        let kept = self.db.rows("SELECT run, attempt FROM kept ORDER BY 1, 2");
        let succeeded =
            "SELECT id, attempt FROM task_runs WHERE handler = 'finish' AND status = 'succeeded' ORDER BY 1";
        assert_eq!(kept, self.db.rows(succeeded), "a handler's own rows and the outcomes of its runs");
        assert_eq!(self.lock_files(), [""; 0], "files are left");
        checker::Counts::of(&lines, &tables)
    }
}
