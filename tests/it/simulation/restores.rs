//! Restores of a file to any earlier state, under one scheduler and two, with runs queued, running and ended since. The checker has no
//! model of the rows: it remembers what each run id stood for, which attempts were begun in which history, and what each of them
//! returned.
//!
//! A failing seed prints itself; `DULY_SEED` runs one, `DULY_SEEDS` that many.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use duly::testing::{ManualClock, Stepper};
use duly::{Claim, NewTask, Outcome, Overlap, RetryPolicy, Timestamp};
use rusqlite::Connection;
use tempfile::TempDir;

/// Seeds of an ordinary test run.
const SEEDS: u64 = 2;
const STEPS: u32 = 160;
const RESTORES: usize = 6;

fn sqlite(file: &Path, command: &str) {
    let done = Command::new("sqlite3").args(["-bail", "-cmd", ".timeout 20000"]).arg(file).arg(command).output();
    let done = done.expect("sqlite3");
    assert!(done.status.success() && done.stderr.is_empty(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// An attempt whose handler has not returned.
struct Live {
    scheduler: usize,
    claim: Arc<Claim>,
    history: String,
}

struct World {
    rng: fastrand::Rng,
    home: TempDir,
    clock: ManualClock,
    schedulers: Vec<Option<Stepper>>,
    live: Vec<Live>,
    copies: Vec<usize>,
    made: usize,
    restores: usize,
    /// What each run id stood for: task and occurrence.
    runs: HashMap<i64, (String, Timestamp)>,
    /// Attempts that were begun, by history.
    begun: HashSet<(String, i64, u32)>,
    /// What each attempt returned, by its token.
    returned: Vec<(i64, u32, String)>,
}

/// Tasks of which an attempt may run beside others of the same history.
const ALLOWS: &str = "allow";

impl World {
    fn new(seed: u64) -> Self {
        // In memory, if the system has a folder there.
        let in_memory = Path::new("/dev/shm");
        let place = if in_memory.is_dir() { in_memory.to_owned() } else { std::env::temp_dir() };
        let home = tempfile::Builder::new().prefix("duly-restores-").tempdir_in(place).expect("a folder");
        let clock = ManualClock::new("2026-03-01T00:00:00Z".parse().expect("a time"));
        clock.advance(Duration::from_secs(86_400));
        let mut rng = fastrand::Rng::with_seed(seed);
        let schedulers = (0..rng.usize(1..3)).map(|_| None).collect();
        let (live, copies, runs, begun) = (Vec::new(), Vec::new(), HashMap::new(), HashSet::new());
        let (made, restores, returned) = (0, 0, Vec::new());
        let mut world = World { rng, home, clock, schedulers, live, copies, made, restores, runs, begun, returned };
        (0..world.schedulers.len()).for_each(|at| world.start(at));
        let client = world.any().client().clone();
        let every = |name: &str, seconds| NewTask::interval(name, Duration::from_secs(seconds)).handler("work");
        let retry = RetryPolicy { backoff: Duration::from_secs(5), ..RetryPolicy::default() };
        for task in [
            every("plain", 20).retry(retry),
            every(ALLOWS, 15).overlap(Overlap::Allow),
            every("once-each", 25).at_most_once(),
            every("key-a", 30).concurrency_key("shared"),
            every("key-b", 35).concurrency_key("shared"),
            NewTask::manual("manual").handler("work").retry(retry),
        ] {
            client.add(task).expect("a task");
        }
        world
    }

    fn file(&self) -> std::path::PathBuf {
        self.home.path().join("agent.db")
    }

    fn start(&mut self, at: usize) {
        let builder = Stepper::builder(self.file(), duly::Clock::now(&self.clock).wall)
            .clock(&self.clock)
            .accept("work")
            .workers(3);
        self.schedulers[at] = Some(builder.seed(self.rng.u64(..)).start().expect("a scheduler"));
    }

    fn any(&mut self) -> &mut Stepper {
        let at = self.rng.usize(..self.schedulers.len());
        self.schedulers[at].as_mut().expect("a scheduler")
    }

    fn history(&self) -> String {
        let plain = Connection::open(self.file()).expect("a connection");
        let history = "SELECT value FROM scheduler_meta WHERE key = 'history'";
        plain.query_row(history, [], |row| row.get(0)).expect("a history")
    }

    fn step(&mut self, at: usize) {
        let claims = self.schedulers[at].as_mut().expect("a scheduler").step().expect("a step");
        let history = if claims.is_empty() { String::new() } else { self.history() };
        for claim in claims {
            self.check_begin(&claim, &history);
            self.live.push(Live { scheduler: at, claim, history: history.clone() });
        }
    }

    fn check_begin(&mut self, claim: &Claim, history: &str) {
        let Claim { run_id, attempt, task, scheduled_for, .. } = claim;
        let stood_for = self.runs.entry(*run_id).or_insert_with(|| (task.clone(), *scheduled_for));
        assert_eq!(*stood_for, (task.clone(), *scheduled_for), "the id {run_id} was given out twice");
        let attempt = (history.to_owned(), *run_id, *attempt);
        assert!(!self.begun.contains(&attempt), "began twice in a history: {attempt:?}");
        self.begun.insert(attempt);
        let key = |task: &str| if task.starts_with("key-") { "shared".to_owned() } else { task.to_owned() };
        for other in &self.live {
            let may_overlap = *task == ALLOWS && other.history == history;
            assert!(
                key(&other.claim.task) != key(task) || may_overlap,
                "run {run_id} of {task} began beside run {} of {}, which still runs",
                other.claim.run_id,
                other.claim.task
            );
        }
    }

    fn finish(&mut self, which: usize, fails: bool) {
        let Live { scheduler, claim, .. } = self.live.swap_remove(which);
        let outcome = if fails {
            Outcome::failed("for a test")
        } else {
            self.returned.push((claim.run_id, claim.attempt, claim.task.clone()));
            Outcome::Succeeded { result: Some((self.returned.len() - 1).to_string()) }
        };
        self.schedulers[scheduler].as_mut().expect("a scheduler").finish(&claim, outcome);
    }

    /// Each stored result is that of this attempt of this run.
    fn check_results(&self) {
        let plain = Connection::open(self.file()).expect("a connection");
        let results = "SELECT r.id, r.attempt, t.name, CAST(r.result AS INTEGER) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                        WHERE r.status = 'succeeded'";
        let mut results = plain.prepare(results).expect("a query");
        let rows = results.query_map([], |row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get::<_, i64>(3)?)));
        for row in rows.expect("rows") {
            let (stored, token) = row.expect("a row");
            assert_eq!(self.returned[token as usize], stored, "the outcome of another attempt");
        }
        let superseded = "SELECT count(*) FROM task_attempts WHERE outcome = 'superseded'";
        let superseded: i64 = plain.query_row(superseded, [], |row| row.get(0)).expect("a count");
        assert_eq!(superseded, 0, "an outcome of an earlier history was stored");
    }

    fn act(&mut self) {
        match self.rng.u32(..100) {
            0..34 => {
                self.clock.advance(Duration::from_millis(self.rng.u64(0..20_000)));
                let at = self.rng.usize(..self.schedulers.len());
                self.step(at);
            }
            34..64 if !self.live.is_empty() => {
                let (which, fails) = (self.rng.usize(..self.live.len()), self.rng.u32(..4) == 0);
                self.finish(which, fails);
            }
            64..74 => {
                let run = self.any().client().trigger("manual").expect("a run");
                assert!(!self.runs.contains_key(&run), "the id {run} was given out twice");
            }
            74..84 => {
                self.made += 1;
                sqlite(&self.file(), &format!(".backup {}/copy-{}", self.home.path().display(), self.made));
                self.copies.push(self.made);
            }
            84..91 if !self.copies.is_empty() && self.restores < RESTORES => {
                let copy = self.copies[self.rng.usize(..self.copies.len())];
                sqlite(&self.file(), &format!(".restore {}/copy-{copy}", self.home.path().display()));
                self.restores += 1;
            }
            91..95 => {
                let at = self.rng.usize(..self.schedulers.len());
                // What it had begun ends with it.
                self.live.retain(|live| live.scheduler != at);
                drop(self.schedulers[at].take().map(Stepper::crash));
                self.start(at);
            }
            _ => (0..self.schedulers.len()).for_each(|at| self.step(at)),
        }
        self.check_results();
    }

    /// The runs of a task, for a message.
    fn runs_of(&self, task: &str) -> Vec<String> {
        let plain = Connection::open(self.file()).expect("a connection");
        let runs = "SELECT printf('%d %s attempt %d blocked %s by %s, run at %d', r.id, r.status, r.attempt, r.blocked, r.locked_by, r.run_at)
                      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name = ?1 ORDER BY r.id DESC LIMIT 5";
        let mut runs = plain.prepare(runs).expect("a query");
        runs.query_map([task], |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("a row")
    }

    /// All that is begun ends, and each task runs again.
    fn end(&mut self) {
        let before = self.returned.len();
        for _ in 0..20 {
            while !self.live.is_empty() {
                self.finish(0, false);
            }
            self.clock.advance(Duration::from_secs(20));
            (0..self.schedulers.len()).for_each(|at| self.step(at));
        }
        self.check_results();
        let ran: HashSet<&str> = self.returned[before..].iter().map(|(_, _, task)| &**task).collect();
        for task in ["plain", ALLOWS, "once-each", "key-a", "key-b"] {
            assert!(ran.contains(task), "{task} does not run any more: {ran:?}, {:#?}", self.runs_of(task));
        }
        let findings = self.any().client().doctor().expect("an answer");
        assert!(findings.is_empty(), "doctor: {findings:?}");
        let held = "SELECT count(*) FROM scheduler_meta WHERE key = 'held'";
        let plain = Connection::open(self.file()).expect("a connection");
        assert_eq!(
            plain.query_row(held, [], |row| row.get::<_, i64>(0)).expect("a count"),
            0,
            "a task is held for ever"
        );
    }
}

#[test]
fn a_restore_repeats_no_attempt_and_confuses_no_runs() {
    if !Command::new("sqlite3").arg("--version").stdout(Stdio::null()).status().is_ok_and(|ended| ended.success()) {
        return crate::fixtures::skip("no sqlite3");
    }
    let number = |variable: &str| std::env::var(variable).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = number("DULY_SEED").map_or(0..number("DULY_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let mut restores = 0;
    for seed in seeds {
        let lived = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.act());
            world.end();
            world.restores
        });
        restores += lived.unwrap_or_else(|panic| {
            eprintln!("seed {seed}: repeat it with DULY_SEED={seed} cargo test --test it simulation::restores");
            std::panic::resume_unwind(panic)
        });
    }
    assert!(restores > 0);
}
