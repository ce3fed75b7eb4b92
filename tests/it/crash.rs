//! Crashed and killed schedulers: no run is lost, started twice or stuck.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use duly::{Clock, Context, Outcome, Scheduler};

use crate::fixtures::{
    NOON, Process, TestDb, advance_and_step, at, eventually, minutes, once, overdue, retry_soon, seconds, test_process,
};

// ------------------------------------------------------------------------------- crashes within one process --

#[test]
fn an_at_most_once_run_is_dead_after_a_crash_between_claim_and_start() {
    let (db, mut first) = TestDb::with_stepper();
    first.client().add(once("pay").at_most_once()).unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    let owner = first.owner().to_owned();
    first.crash();

    let mut next = db.stepper(NOON);
    assert!(next.step().unwrap().is_empty(), "it may have started: it must not start again");
    assert_eq!(db.states(), ["pay|dead|1"], "recovered in the first turn");
    assert_eq!(db.rows("SELECT attempt, outcome, locked_by FROM task_attempts"), [format!("1|lost|{owner}")]);
    for _ in 0..48 {
        assert!(advance_and_step(&mut next, minutes(30)).is_empty());
    }
    assert_eq!(db.lock_files(), [next.owner()], "the dead owner's lock file is removed with its last run");
    db.assert_sound();
}

#[test]
fn a_run_is_retried_after_a_crash_between_claim_and_start() {
    let (db, mut first) = TestDb::with_stepper();
    first.client().add(once("post")).unwrap();
    assert_eq!(first.step().unwrap()[0].attempt, 1);
    first.crash();

    let (mut next, events) = db.stepper_with_events(NOON);
    assert!(next.step().unwrap().is_empty(), "it waits for its backoff");
    assert_eq!(db.states(), ["post|failed|1"], "recovered in the first turn");
    let died = "the owner of attempt 1 died; failed; next attempt at";
    assert!(events.try_iter().any(|event| event.to_string().contains(died)));
    let claims = advance_and_step(&mut next, seconds(10));
    assert_eq!((claims.len(), claims[0].attempt), (1, 2));
    next.finish(&claims[0], Outcome::succeeded());
    next.step().unwrap();
    assert_eq!(db.states(), ["post|succeeded|2"]);
    db.assert_sound();
}

#[test]
fn every_crash_costs_one_attempt_until_none_is_left() {
    let db = TestDb::new();
    db.stepper(NOON).client().add(once("post")).unwrap();
    let mut now = at(NOON);
    for attempt in 1..=5 {
        let mut owner = db.stepper(&now.to_string());
        owner.step().unwrap();
        advance_and_step(&mut owner, minutes(10));
        assert_eq!(owner.running().iter().map(|claim| claim.attempt).collect::<Vec<_>>(), [attempt]);
        now = owner.clock().now().wall;
        owner.crash();
    }
    db.stepper(&now.to_string()).step().unwrap();
    assert_eq!(db.states(), ["post|dead|5"]);
    assert_eq!(db.outcomes(), ["1|lost", "2|lost", "3|lost", "4|lost", "5|lost"]);
    db.assert_sound();
}

#[test]
fn a_live_owner_keeps_its_runs_whatever_the_wall_clock_does() {
    let (db, mut owner) = TestDb::with_stepper();
    let mut observer = db.builder(NOON).accept("work").clock(owner.clock()).start().unwrap();
    owner.client().add(once("long")).unwrap();
    let claims = owner.step().unwrap();
    let until = db.run(claims[0].run_id).locked_until;

    // The owner is stalled for ten years, long past its lease: its run is not taken over.
    for wall in ["2027-03-14T13:00:00Z", "2027-03-14T09:00:00Z", "2037-03-14T12:00:00Z", "2020-01-01T00:00:00Z", NOON] {
        observer.clock().set_wall(at(wall));
        for _ in 0..3 {
            assert!(observer.step().unwrap().is_empty(), "{wall}");
            observer.clock().advance(minutes(5));
        }
    }
    assert_eq!(db.run(claims[0].run_id).locked_until, until);
    owner.finish(&claims[0], Outcome::succeeded());
    owner.step().unwrap();
    assert_eq!(db.states(), ["long|succeeded|1"]);
    assert_eq!(db.outcomes(), [""; 0]);
    db.assert_sound();
}

#[test]
fn an_owner_without_a_lock_file_counts_as_alive_for_a_full_lease() {
    let (db, mut owner) = TestDb::with_stepper();
    let mut observer = db.builder(NOON).accept("work").clock(owner.clock()).start().unwrap();
    let clock = owner.clock().clone();
    owner.client().add(once("long")).unwrap();
    owner.step().unwrap();
    observer.step().unwrap();
    let remove = |name: &str| std::fs::remove_file(db.lock_folder().join(name)).unwrap();

    // The lock file is removed every minute; the owner recreates it at each heartbeat.
    for second in 0..600 {
        clock.advance(seconds(1));
        if second % 60 == 0 {
            remove(owner.owner());
        }
        owner.step().unwrap();
        assert!(observer.step().unwrap().is_empty(), "second {second}");
    }
    assert_eq!(db.states(), ["long|running|1"]);

    // It dies without a file: the only evidence is a lease without a heartbeat, by the monotonic clock.
    remove(owner.owner());
    owner.crash();
    observer.step().unwrap();
    clock.set_wall(at("2028-01-01T00:00:00Z"));
    for second in 0..60 {
        assert!(observer.step().unwrap().is_empty(), "second {second}");
        assert_eq!(db.states(), ["long|running|1"], "second {second}");
        clock.advance(seconds(1));
    }
    for _ in 0..40 {
        clock.advance(seconds(1));
        observer.step().unwrap();
    }
    assert_eq!(db.states(), ["long|running|2"], "recovered, and retried after its backoff");
    assert_eq!(db.outcomes(), ["1|lost"]);
    db.assert_sound();
}

#[test]
fn an_owner_that_dies_between_two_turns_is_recovered_at_the_second() {
    let (db, mut owner) = TestDb::with_stepper();
    let mut observer = db.builder(NOON).accept("work").clock(owner.clock()).start().unwrap();
    observer.step().unwrap();
    owner.client().add(once("post")).unwrap();
    owner.step().unwrap();
    owner.crash();

    advance_and_step(&mut observer, seconds(1));
    assert_eq!(db.states(), ["post|failed|1"]);
    db.assert_sound();
}

#[test]
fn a_dead_idle_owner_leaves_no_lock_file() {
    let (db, idle) = TestDb::with_stepper();
    let name = idle.owner().to_owned();
    idle.crash();

    let mut next = db.stepper(NOON);
    for _ in 0..3 {
        next.step().unwrap();
        next.clock().advance(seconds(20));
    }
    assert_eq!(db.lock_files(), [next.owner()]);
    let stopped = "SELECT id FROM scheduler_instances WHERE stopped_at IS NOT NULL";
    assert_eq!(db.rows(stopped), [name], "it is recorded as stopped");
    next.stop().unwrap();
    assert!(db.lock_files().is_empty());
}

// ------------------------------------------------------------------------------ two processes on one file --

/// The variable that holds the database of a second process.
const FILE: &str = "DULY_TEST_FILE";
/// The variable that holds the file to which it writes each start: run, attempt, process.
const STARTS: &str = "DULY_TEST_STARTS";

/// Not a test by itself: the scheduler in the processes of the tests below. It drains when its standard input ends.
#[test]
fn scheduler_entry() {
    let (Some(file), Some(starts)) = (std::env::var_os(FILE), std::env::var_os(STARTS)) else { return };
    let starts = OpenOptions::new().append(true).open(starts).expect("the file of starts");
    let scheduler = Scheduler::builder(PathBuf::from(file))
        .handler("work", move |run: &Context| {
            // A short append is written completely or not at all.
            let line = format!("{} {} {}\n", run.run_id(), run.attempt(), std::process::id());
            (&starts).write_all(line.as_bytes())?;
            // Some runs take a moment, so that claimed runs wait behind them.
            if run.run_id() % 8 == 0 {
                run.wait_cancelled(Duration::from_millis(2));
            }
            Ok::<_, std::io::Error>(())
        })
        .workers(4)
        .poll(Duration::from_millis(20))
        .lease(seconds(3))
        .start()
        .expect("a scheduler");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the end of the standard input");
    assert_eq!(scheduler.shutdown(seconds(30)).expect("a shutdown in order").unfinished, 0);
}

/// A database with schedulers in processes of their own.
struct Cluster {
    db: TestDb,
    starts: PathBuf,
}

impl Cluster {
    fn new() -> Self {
        let db = TestDb::new();
        let starts = db.home().join("starts");
        File::create_new(&starts).expect("the file of starts");
        drop(db.client());
        Cluster { db, starts }
    }

    /// Starts a scheduler, and waits until it is registered.
    fn scheduler(&self) -> Process {
        let mut command = test_process("crash::scheduler_entry");
        let child = Process::spawn(command.env(FILE, self.db.file()).env(STARTS, &self.starts));
        let registered = format!("SELECT count(*) > 0 FROM scheduler_instances WHERE pid = {}", child.0.id());
        eventually("the scheduler is registered", || self.db.ask(&registered) == "1");
        child
    }

    fn add(&self, round: usize, tasks: usize) {
        let task = |n| retry_soon(overdue(&format!("round-{round}/{n}")), 20);
        self.db.client().add_all((0..tasks).map(task)).expect("new tasks");
    }

    fn succeeded(&self) -> usize {
        self.db.number("SELECT count(*) FROM task_runs WHERE status = 'succeeded'")
    }

    /// Asserts that every run succeeded, and that each start is of the successful or of a lost attempt.
    fn assert_kept(&self, tasks: usize) {
        let db = &self.db;
        let ask = |query| db.number::<usize>(query);
        assert_eq!(ask("SELECT count(*) FROM task_runs"), tasks);
        assert_eq!(self.succeeded(), tasks);
        assert_eq!(ask("SELECT count(DISTINCT task_id) FROM task_runs"), tasks);
        assert_eq!(ask("SELECT count(*) FROM task_attempts WHERE outcome NOT IN ('lost', 'released')"), 0);

        let pair = |row: &str| -> (i64, u32) {
            let mut numbers = row.split(['|', ' ']);
            let mut next = || numbers.next().unwrap_or_else(|| panic!("{row:?} is no run and attempt"));
            (next().parse().expect("a run"), next().parse().expect("an attempt"))
        };
        let pairs = |query| db.rows(query).iter().map(|row| pair(row)).collect::<Vec<_>>();
        let succeeded: BTreeMap<i64, u32> = pairs("SELECT id, attempt FROM task_runs").into_iter().collect();
        let lost = pairs("SELECT run_id, attempt FROM task_attempts WHERE outcome = 'lost'");
        let released = pairs("SELECT run_id, attempt FROM task_attempts WHERE outcome = 'released'");
        let text = std::fs::read_to_string(&self.starts).expect("the file of starts");
        let starts: Vec<_> = text.lines().map(pair).collect();

        let mut ended: BTreeSet<_> = succeeded.iter().map(|(run, attempt)| (*run, *attempt)).collect();
        let final_attempts = ended.clone();
        ended.extend(&lost);
        let once: BTreeSet<_> = starts.iter().copied().collect();
        assert_eq!(once.len(), starts.len(), "an attempt was started twice");
        assert!(once.is_subset(&ended), "started and not recorded: {:?}", once.difference(&ended).collect::<Vec<_>>());
        let unstarted = final_attempts.difference(&once).collect::<Vec<_>>();
        assert!(unstarted.is_empty(), "succeeded without a start: {unstarted:?}");
        // The attempts of a run are numbered without a gap, and each is recorded once.
        ended.extend(&released);
        let claimed: u32 = succeeded.values().sum();
        assert_eq!(ended.len(), tasks + lost.len() + released.len(), "an attempt has two ends");
        assert_eq!(ended.len(), claimed as usize, "an attempt has no end");
        let processes: BTreeSet<_> = text.lines().filter_map(|line| line.rsplit(' ').next()).collect();
        assert!(processes.len() > 1, "only one process had any work");
        let (starts, waited) = (starts.len(), lost.iter().filter(|attempt| !once.contains(attempt)).count());
        println!("{starts} starts, {} lost attempts ({waited} un-started), {} given back", lost.len(), released.len());

        db.assert_sound();
        assert_eq!(ask("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL"), 0);
        assert!(db.lock_files().is_empty(), "lock files are left: {:?}", db.lock_files());
    }
}

#[test]
fn ten_thousand_runs_survive_the_death_of_one_of_two_schedulers() {
    const TASKS: usize = 10_000;
    let cluster = Cluster::new();
    let (one, other) = (cluster.scheduler(), cluster.scheduler());
    cluster.add(0, TASKS);
    eventually("half of the runs are done", || cluster.succeeded() >= TASKS / 2);
    one.kill();
    eventually("all runs are done", || cluster.succeeded() == TASKS);
    other.end();
    cluster.assert_kept(TASKS);
}

#[test]
fn runs_survive_repeated_kills_and_drains_of_two_schedulers() {
    const TASKS: usize = 1_000;
    const ROUNDS: usize = 6;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let cluster = Cluster::new();
    let (mut one, mut other) = (cluster.scheduler(), cluster.scheduler());
    for round in 0..ROUNDS {
        if random.bool() {
            std::mem::swap(&mut one, &mut other);
        }
        let mut moments = [random.usize(0..TASKS), random.usize(0..TASKS)];
        moments.sort_unstable();
        println!("round {round}: one dies after {} runs, the other leaves after {}", moments[0], moments[1]);
        cluster.add(round, TASKS);
        let done = |runs: usize| eventually("enough runs are done", || cluster.succeeded() >= round * TASKS + runs);
        done(moments[0]);
        one.kill();
        one = cluster.scheduler();
        done(moments[1]);
        other.end();
        other = cluster.scheduler();
        done(TASKS);
    }
    one.end();
    other.end();
    cluster.assert_kept(ROUNDS * TASKS);
}
