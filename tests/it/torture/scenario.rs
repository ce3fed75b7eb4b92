//! The play: who is on the stage, what is done to them, and how it is brought to rest and judged.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use duly::{Client, Clock, SystemClock, Timestamp};
use rusqlite::{Connection, ErrorCode};

use crate::dst_nights;
use crate::fixtures::TestDb;
use crate::selftest::checker::{self, Line, Promise, Sums, Told};
use crate::sidecar::Sidecar;
use crate::torture::processes::{Actor, Part, set_clock};
use crate::torture::tasks::{ASKED, EDITED, JOURNAL, TOLD, tasks};

/// How long what is due may take to be done when nothing disturbs it any more, by a clock that tells the truth.
const QUIET: Duration = Duration::from_secs(60);
/// Farthest that the clock of the liar goes, either way.
const FARTHEST: Duration = Duration::from_secs(10);
/// Longest that a lock is kept: longer than anybody waits for it. Where there is the time.
const LONGEST_HOLD: Duration = Duration::from_secs(6);
const TIME: Duration = Duration::from_secs(20);

/// What was done to them.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    kills: usize,
    /// Schedulers that were killed, and not the PID namespace that they were in.
    alone: usize,
    stops: usize,
    left: usize,
    holds: usize,
    steps: usize,
    bursts: usize,
    edits: usize,
    requests: Vec<i64>,
    cancels: usize,
    /// Requests and edits that somebody else's lock kept from being made, and schedulers that it kept from starting.
    locked_out: usize,
}

impl fmt::Display for Deeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deeds { kills, alone, stops, left, holds, steps, bursts, edits, requests, cancels, locked_out } = self;
        let requests = requests.len();
        write!(
            f,
            "{kills} kills, {alone} of a scheduler alone, {stops} stops, {left} left, {holds} holds, {steps} steps of the clock, {bursts} bursts, {edits} edits, \
             {requests} requests, {cancels} cancels, {locked_out} locked out"
        )
    }
}

/// The play, as it goes on.
pub(crate) struct Play {
    // Before the db: they end while there is one.
    schedulers: Vec<Actor>,
    others: Vec<(Actor, Instant)>,
    /// Who was asked to leave.
    leaving: Vec<Actor>,
    /// Who comes back, and when.
    away: Vec<(Part, Instant)>,
    library: Option<PathBuf>,
    random: fastrand::Rng,
    client: Client,
    plain: Connection,
    journal: File,
    promises: Vec<Promise>,
    farthest: Duration,
    has_time: bool,
    pub(crate) deeds: Deeds,
    db: TestDb,
}

fn now() -> Timestamp {
    SystemClock::new().now().wall
}

impl Play {
    /// `apart`: each scheduler of commands in a PID namespace of its own.
    pub(crate) fn begin(seed: u64, length: Duration, apart: bool) -> Play {
        let db = TestDb::new();
        let client = db.client();
        let plain = db.plain();
        plain.busy_timeout(Duration::from_millis(200)).expect("little patience");
        plain.execute_batch("CREATE TABLE kept (run INTEGER NOT NULL, attempt INTEGER NOT NULL)").expect("a table");
        let journal = OpenOptions::new().append(true).create_new(true).open(db.home().join(JOURNAL)).expect("a file");
        // Far enough for the tasks to be there before the first of them is due.
        let from = now().plus(Duration::from_secs(1));
        let (new, promises): (Vec<_>, Vec<_>) = tasks(&db, from, from.plus(length)).into_iter().unzip();
        client.add_all(new).expect("tasks");
        assert!(now() < from, "the machine is too slow to begin");
        let library = if apart { None } else { dst_nights::library() };
        set_clock(&db, 0);
        let random = fastrand::Rng::with_seed(seed);
        let (deeds, farthest) = (Deeds::default(), FARTHEST.min(length / 4));
        let mut play = Play {
            schedulers: Vec::new(),
            others: Vec::new(),
            leaving: Vec::new(),
            away: Vec::new(),
            library,
            random,
            client,
            plain,
            journal,
            promises,
            farthest,
            has_time: length >= TIME,
            deeds,
            db,
        };
        let liar = play.library.is_some().then_some(Part::Liar);
        let cast = if apart {
            [Part::Apart, Part::Apart, Part::Closures]
        } else {
            [Part::Program, Part::Closures, Part::Closures]
        };
        for part in cast.into_iter().chain(liar) {
            play.enter(part);
        }
        play
    }

    fn enter(&mut self, part: Part) {
        self.schedulers.push(Actor::start(&self.db, part, self.library.as_deref()));
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.u64(from..to))
    }

    /// One that stands on the stage, and is removed from it. What it had begun may be begun again from now on.
    fn doom(&mut self) -> Option<Actor> {
        let index = (!self.schedulers.is_empty()).then(|| self.random.usize(..self.schedulers.len()))?;
        let actor = self.schedulers.swap_remove(index);
        self.write(&Line::Doomed { process: actor.id() });
        let back = Instant::now() + self.millis(0, 500);
        self.away.push((actor.part, back));
        Some(actor)
    }

    fn write(&mut self, line: &Line) {
        self.journal.write_all(line.to_string().as_bytes()).expect("a line");
    }

    /// What is to happen by the time: who was stopped goes on, who keeps a lock lets go, who was away comes back.
    pub(crate) fn keep_time(&mut self) {
        let now = Instant::now();
        for actor in self.schedulers.iter_mut().filter(|actor| actor.stopped_until.is_some_and(|until| until <= now)) {
            actor.signal("CONT");
            actor.stopped_until = None;
        }
        let over: Vec<Actor> = self.others.extract_if(.., |(_, until)| *until <= now).map(|(actor, _)| actor).collect();
        for mut actor in over {
            // Some let go, others die with it.
            if self.random.bool() {
                actor.ask();
                self.leaving.push(actor);
            } else {
                actor.kill();
            }
        }
        let back: Vec<Part> = self.away.extract_if(.., |(_, back)| *back <= now).map(|(part, _)| part).collect();
        back.into_iter().for_each(|part| self.enter(part));
        self.see_who_left();
    }

    /// Nobody leaves unasked, but who found the file locked when it was to start.
    fn see_who_left(&mut self) {
        self.leaving.retain_mut(|actor| !actor.has_left());
        for index in (0..self.schedulers.len()).rev() {
            let Some(status) = self.schedulers[index].ended() else { continue };
            let actor = self.schedulers.swap_remove(index);
            let (id, log) = (actor.id(), actor.log());
            assert!(actor.was_locked_out(), "{:?}, process {id}, left by itself: {status}: {log}", actor.part);
            self.deeds.locked_out += 1;
            self.away.push((actor.part, Instant::now()));
        }
    }

    /// One deed.
    pub(crate) fn act(&mut self) {
        match self.random.u8(..24) {
            0..=3 => {
                let index = self.random.usize(..self.schedulers.len().max(1));
                let apart =
                    self.schedulers.get(index).is_some_and(|actor| actor.part == Part::Apart && actor.is_there());
                if apart && self.random.bool() {
                    self.write(&Line::Doomed { process: self.schedulers[index].id() });
                    self.schedulers[index].kill_scheduler();
                    self.schedulers[index].stopped_until = None;
                    self.deeds.alone += 1;
                } else if let Some(actor) = self.doom() {
                    actor.kill();
                    self.deeds.kills += 1;
                }
            }
            4 => {
                let until = Instant::now() + self.millis(1_200, 2_000);
                let index = self.random.usize(..self.schedulers.len().max(1));
                if let Some(actor) = self.schedulers.get_mut(index).filter(|actor| actor.stopped_until.is_none()) {
                    actor.signal("STOP");
                    actor.stopped_until = Some(until);
                    self.deeds.stops += 1;
                }
            }
            5 => {
                if let Some(mut actor) = self.doom() {
                    actor.signal("CONT");
                    actor.ask();
                    self.leaving.push(actor);
                    self.deeds.left += 1;
                }
            }
            6 => self.bring(Part::Holder),
            7 | 8 => self.bring(Part::Burst),
            9..=11 => {
                let farthest = i64::try_from(self.farthest.as_millis()).expect("a step");
                // Half of the steps lead back to the true time, and of the others half are small.
                let millis = match self.random.u8(..4) {
                    0 | 1 => 0,
                    2 => self.random.i64(-1_000..=1_000),
                    _ => self.random.i64(-farthest..=farthest),
                };
                set_clock(&self.db, millis);
                self.deeds.steps += usize::from(self.library.is_some());
            }
            12..=16 => self.edit(),
            17..=21 if self.is_free() => {
                // Several at once, so that they wait for each other.
                let name = ASKED[self.random.usize(..ASKED.len())];
                for _ in 0..self.random.u8(1..=4) {
                    let asked = self.client.trigger(name);
                    let run = self.unless_locked(asked);
                    self.deeds.requests.extend(run);
                }
            }
            _ if self.is_free() => {
                let all: Vec<&str> = self.promises.iter().map(|promise| promise.task.as_str()).collect();
                let name = all[self.random.usize(..all.len())].to_owned();
                let cancelled = self.client.cancel_all(&name);
                self.deeds.cancels += self.unless_locked(cancelled).unwrap_or(0);
            }
            _ => self.deeds.locked_out += 1,
        }
    }

    /// Whether a request would not have to wait for somebody who stands still with the write lock: the test must not stand
    /// still with him.
    fn is_free(&self) -> bool {
        self.plain.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
    }

    /// Has somebody else make trouble for a while, one of a kind at a time.
    fn bring(&mut self, part: Part) {
        if self.others.iter().any(|(actor, _)| actor.part == part) {
            return;
        }
        let long = self.has_time && self.random.u8(..10) == 0;
        let until = Instant::now() + if long { LONGEST_HOLD } else { self.millis(100, 800) };
        self.others.push((Actor::start(&self.db, part, None), until));
        match part {
            Part::Holder => self.deeds.holds += 1,
            _ => self.deeds.bursts += 1,
        }
    }

    /// One change by SQL, as schema.sql allows it.
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
            Ok(changed) => self.deeds.edits += changed,
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => self.deeds.locked_out += 1,
            Err(error) => panic!("{change}: {error}"),
        }
    }

    fn unless_locked<T>(&mut self, answer: duly::Result<T>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) if error.to_string().contains("locked") => {
                self.deeds.locked_out += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Nothing disturbs them any more. Whoever was away or lied is replaced by somebody who is there and does not.
    pub(crate) fn calm(&mut self) {
        for mut actor in std::mem::take(&mut self.schedulers) {
            if actor.stopped_until.take().is_some() {
                actor.signal("CONT");
            }
            if actor.part == Part::Liar {
                self.write(&Line::Doomed { process: actor.id() });
                actor.kill();
            } else {
                self.schedulers.push(actor);
            }
        }
        self.others.drain(..).for_each(|(actor, _)| actor.kill());
        self.leaving.drain(..).for_each(Actor::see_out);
        for (part, _) in std::mem::take(&mut self.away) {
            self.enter(if part == Part::Liar { Part::Program } else { part });
        }
        self.plain.busy_timeout(Duration::from_secs(60)).expect("patience");
        self.plain
            .execute("UPDATE scheduled_tasks SET status = 'active' WHERE status = 'paused'", [])
            .expect("an edit");
    }

    /// Waits until all that was due is done.
    pub(crate) fn quiet(&mut self) -> Duration {
        let (begin, limit) = (Instant::now(), QUIET + self.farthest);
        let never = [ASKED[0], ASKED[1], TOLD].map(|name| format!("'{name}'")).join(", ");
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
            assert!(begin.elapsed() < limit, "not done after {limit:?} without any trouble: {rows:#?}, {:?}", files());
            self.keep_time();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The lock files of owners, and what tells of commands at work.
    fn lock_files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.db.home().join("agent.db-owners")).expect("a folder");
        let names = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
        // An owner that is killed before its lock file has its name leaves it under the other.
        names.filter(|name| !name.ends_with(".new")).collect()
    }

    /// Everybody leaves; and so does one more, who at its start sweeps up after those that were killed in theirs.
    pub(crate) fn end(&mut self) {
        self.schedulers.iter_mut().for_each(Actor::ask);
        self.schedulers.drain(..).for_each(Actor::see_out);
        Sidecar::start(&self.db, &[]).leave();
    }

    /// What the handlers wrote down, held against the tables; and the tables against their rules.
    pub(crate) fn judge(&self) -> Sums {
        let text = std::fs::read_to_string(self.db.home().join(JOURNAL)).expect("the journal");
        let (lines, torn) = checker::read(&text);
        assert!(torn.is_empty(), "{torn:#?}");
        let told = Told::read(&self.client).expect("the tables");
        let faults = checker::judge(&lines, &told, &self.promises);
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        let lost: Vec<_> =
            self.deeds.requests.iter().filter(|asked| told.runs.iter().all(|run| run.id != **asked)).collect();
        assert!(lost.is_empty(), "asked for, and there is no such run: {lost:?}");
        self.db.assert_sound();
        let ask = |query: &str| self.db.ask(query);
        assert_eq!(ask("SELECT count(*) FROM scheduler_events WHERE kind = 'set_aside' OR kind = 'invalid'"), "0");
        let kept = self.db.rows("SELECT run, attempt FROM kept ORDER BY 1, 2");
        let succeeded =
            "SELECT id, attempt FROM task_runs WHERE handler = 'finish' AND status = 'succeeded' ORDER BY 1";
        assert_eq!(kept, self.db.rows(succeeded), "rows of a handler's own, and how its runs ended");
        assert_eq!(self.lock_files(), [""; 0], "nothing is left");
        Sums::of(&lines, &told)
    }
}
