//! Processes that are killed, and the file they leave behind: nothing lost, nothing started twice, nothing stuck.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::{Clock, Context, Event, NewTask, Outcome, RetryPolicy, Scheduler};

use crate::fixtures::{TestDb, at, eventually, minutes, seconds};

const START: &str = "2027-03-14T12:00:00Z";

fn once(name: &str) -> NewTask {
    NewTask::once(name, at(START)).handler("work")
}

/// The names of the lock files of all owners.
fn lock_files(db: &TestDb) -> Vec<String> {
    let folder = db.home().join("agent.db-owners");
    let files = std::fs::read_dir(folder).expect("the folder of the lock files");
    files.map(|file| file.expect("a lock file").file_name().to_string_lossy().into_owned()).collect()
}

/// How each run stands, and how many attempts it has.
fn stand(db: &TestDb) -> Vec<String> {
    db.rows("SELECT t.name, r.status, r.attempt FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY 1")
}

// ------------------------------------------------------------------------------- crashes within one process --

#[test]
fn what_may_start_only_once_is_dead_after_a_crash_between_claim_and_start() {
    let db = TestDb::new();
    let mut first = db.stepper(START);
    first.client().add(once("pay").at_most_once()).unwrap();
    assert_eq!(first.step().unwrap().len(), 1);
    let owner = first.owner().to_owned();
    first.crash();

    let mut next = db.stepper(START);
    assert!(next.step().unwrap().is_empty(), "it may have started: it must not start again");
    assert_eq!(stand(&db), ["pay|dead|1"], "recovered in the first turn");
    assert_eq!(db.rows("SELECT attempt, outcome, locked_by FROM task_attempts"), [format!("1|lost|{owner}")]);
    for _ in 0..48 {
        next.clock().advance(minutes(30));
        assert!(next.step().unwrap().is_empty());
    }
    assert_eq!(lock_files(&db), [next.owner()], "the dead owner's lock file went with its last run");
    db.assert_sound();
}

#[test]
fn other_runs_are_tried_again_after_a_crash_between_claim_and_start() {
    let db = TestDb::new();
    let mut first = db.stepper(START);
    first.client().add(once("post")).unwrap();
    assert_eq!(first.step().unwrap()[0].attempt, 1);
    first.crash();

    let told = Arc::new(Mutex::new(Vec::new()));
    let teller = told.clone();
    let listen = move |event: &Event| teller.lock().unwrap().push(event.to_string());
    let mut next = db.builder(START).accept("work").observe(listen).start().unwrap();
    assert!(next.step().unwrap().is_empty(), "it waits for its backoff");
    assert_eq!(stand(&db), ["post|failed|1"], "recovered in the first turn");
    let died = "the owner of attempt 1 died; failed; next attempt at";
    assert!(told.lock().unwrap().iter().any(|line| line.contains(died)), "{told:?}");
    next.clock().advance(seconds(10));
    let claims = next.step().unwrap();
    assert_eq!((claims.len(), claims[0].attempt), (1, 2));
    next.finish(&claims[0], Outcome::succeeded());
    next.step().unwrap();
    assert_eq!(stand(&db), ["post|succeeded|2"]);
    db.assert_sound();
}

#[test]
fn every_crash_costs_one_attempt_until_none_is_left() {
    let db = TestDb::new();
    db.stepper(START).client().add(once("post")).unwrap();
    let mut now = at(START);
    for attempt in 1..=5 {
        let mut owner = db.stepper(&now.to_string());
        owner.step().unwrap();
        owner.clock().advance(minutes(10));
        owner.step().unwrap();
        assert_eq!(owner.running().iter().map(|claim| claim.attempt).collect::<Vec<_>>(), [attempt]);
        now = owner.clock().now().wall;
        owner.crash();
    }
    db.stepper(&now.to_string()).step().unwrap();
    assert_eq!(stand(&db), ["post|dead|5"]);
    assert_eq!(db.ask("SELECT group_concat(attempt || outcome) FROM task_attempts"), "1lost,2lost,3lost,4lost,5lost");
    db.assert_sound();
}

#[test]
fn a_living_owner_keeps_its_runs_whatever_the_wall_clock_does() {
    let db = TestDb::new();
    let mut owner = db.stepper(START);
    let mut observer = db.builder(START).accept("work").clock(owner.clock()).start().unwrap();
    owner.client().add(once("long")).unwrap();
    let claims = owner.step().unwrap();
    let until = db.ask("SELECT locked_until FROM task_runs");

    // The owner stands still for ten years, and its lease has long run out: stuck, and not robbed.
    for wall in ["2027-03-14T13:00:00Z", "2027-03-14T09:00:00Z", "2037-03-14T12:00:00Z", "2020-01-01T00:00:00Z", START]
    {
        observer.clock().set_wall(at(wall));
        for _ in 0..3 {
            assert!(observer.step().unwrap().is_empty(), "{wall}");
            observer.clock().advance(minutes(5));
        }
    }
    assert_eq!(db.ask("SELECT locked_until FROM task_runs"), until);
    owner.finish(&claims[0], Outcome::succeeded());
    owner.step().unwrap();
    assert_eq!(stand(&db), ["long|succeeded|1"]);
    assert!(db.rows("SELECT * FROM task_attempts").is_empty());
    db.assert_sound();
}

#[test]
fn an_owner_without_a_lock_file_is_believed_for_a_full_lease() {
    let db = TestDb::new();
    let mut owner = db.stepper(START);
    let mut observer = db.builder(START).accept("work").clock(owner.clock()).start().unwrap();
    let clock = owner.clock().clone();
    owner.client().add(once("long")).unwrap();
    owner.step().unwrap();
    observer.step().unwrap();
    let remove = |name: &str| std::fs::remove_file(db.home().join("agent.db-owners").join(name)).unwrap();

    // A cleaner comes every minute; at each heartbeat the owner makes its file again.
    for second in 0..600 {
        clock.advance(seconds(1));
        if second % 60 == 0 {
            remove(owner.owner());
        }
        owner.step().unwrap();
        assert!(observer.step().unwrap().is_empty(), "second {second}");
    }
    assert_eq!(stand(&db), ["long|running|1"]);

    // It dies without a file: nothing proves it but a lease that stands still, counted by the time that really passes.
    remove(owner.owner());
    owner.crash();
    observer.step().unwrap();
    clock.set_wall(at("2028-01-01T00:00:00Z"));
    for second in 0..60 {
        assert!(observer.step().unwrap().is_empty(), "second {second}");
        assert_eq!(stand(&db), ["long|running|1"], "second {second}");
        clock.advance(seconds(1));
    }
    for _ in 0..40 {
        clock.advance(seconds(1));
        observer.step().unwrap();
    }
    assert_eq!(stand(&db), ["long|running|2"], "recovered, and taken up after its backoff");
    assert_eq!(db.rows("SELECT attempt, outcome FROM task_attempts"), ["1|lost"]);
    db.assert_sound();
}

#[test]
fn an_owner_that_dies_between_two_looks_is_recovered_at_the_second() {
    let db = TestDb::new();
    let mut owner = db.stepper(START);
    let mut observer = db.builder(START).accept("work").clock(owner.clock()).start().unwrap();
    observer.step().unwrap();
    owner.client().add(once("post")).unwrap();
    owner.step().unwrap();
    owner.crash();

    observer.clock().advance(seconds(1));
    observer.step().unwrap();
    assert_eq!(stand(&db), ["post|failed|1"]);
    db.assert_sound();
}

#[test]
fn an_owner_that_died_with_nothing_to_do_leaves_nothing_behind() {
    let db = TestDb::new();
    let idle = db.stepper(START);
    let name = idle.owner().to_owned();
    idle.crash();

    let mut next = db.stepper(START);
    for _ in 0..3 {
        next.step().unwrap();
        next.clock().advance(seconds(20));
    }
    assert_eq!(lock_files(&db), [next.owner()]);
    let stopped = "SELECT id FROM scheduler_instances WHERE stopped_at IS NOT NULL";
    assert_eq!(db.rows(stopped), [name], "no monitor takes it for alive");
    next.stop().unwrap();
    assert!(lock_files(&db).is_empty());
}

// ------------------------------------------------------------------------------ two processes on one file --

/// The file on which a second process of this test program is to run a scheduler.
const FILE: &str = "DULY_TEST_FILE";
/// Where it writes a line for every start: run, attempt, process.
const STARTS: &str = "DULY_TEST_STARTS";

/// Not a test of its own: where the processes of the tests below begin. Ends, in order, with its standard input.
#[test]
fn as_a_scheduler() {
    let (Some(file), Some(starts)) = (std::env::var_os(FILE), std::env::var_os(STARTS)) else { return };
    let starts = OpenOptions::new().append(true).open(starts).expect("the file of starts");
    let scheduler = Scheduler::builder(PathBuf::from(file))
        .handler("work", move |run: &Context| {
            // One write of a few bytes to the end of a file: whole, or not at all.
            let line = format!("{} {} {}\n", run.run_id(), run.attempt(), std::process::id());
            (&starts).write_all(line.as_bytes())?;
            // Now and then one takes a moment, so that others wait un-started behind it.
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

/// A db that schedulers in processes of their own live in.
struct Street {
    db: TestDb,
    starts: PathBuf,
}

impl Street {
    fn new() -> Self {
        let db = TestDb::new();
        let starts = db.home().join("starts");
        File::create_new(&starts).expect("the file of starts");
        drop(db.client());
        Street { db, starts }
    }

    /// Starts a scheduler, and waits until it is registered.
    fn scheduler(&self) -> Child {
        let program = std::env::current_exe().expect("the test program");
        let child = Command::new(program)
            .args(["--exact", "crash::as_a_scheduler", "--nocapture"])
            .env(FILE, self.db.file())
            .env(STARTS, &self.starts)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a second process");
        let registered = format!("SELECT count(*) > 0 FROM scheduler_instances WHERE pid = {}", child.id());
        eventually("the scheduler is registered", || self.db.ask(&registered) == "1");
        child
    }

    fn add(&self, round: usize, tasks: usize) {
        let policy = RetryPolicy {
            max_attempts: 20,
            backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(200),
        };
        let due = at("2025-01-01T00:00:00Z");
        let task = |n| NewTask::once(format!("round-{round}/{n}"), due).handler("work").retry(policy);
        self.db.client().add_all((0..tasks).map(task)).expect("new tasks");
    }

    fn succeeded(&self) -> usize {
        let count = self.db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'");
        count.parse().expect("a number")
    }

    /// Every run succeeded, and each of its starts is either the one that did, or a lost one.
    fn assert_kept(&self, tasks: usize) {
        let db = &self.db;
        let ask = |query| db.ask(query).parse::<usize>().unwrap_or_else(|error| panic!("{query}: {error}"));
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
        assert!(once.is_subset(&ended), "started and not told: {:?}", once.difference(&ended).collect::<Vec<_>>());
        let unstarted = final_attempts.difference(&once).collect::<Vec<_>>();
        assert!(unstarted.is_empty(), "succeeded without a start: {unstarted:?}");
        // The attempts of a run are numbered without a gap, and each is told once.
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
        assert!(lock_files(db).is_empty(), "lock files are left: {:?}", lock_files(db));
    }
}

fn kill(mut process: Child) {
    process.kill().expect("a process that can be killed");
    process.wait().expect("its end");
}

fn end(mut process: Child) {
    drop(process.stdin.take());
    assert!(process.wait().expect("its end").success());
}

#[test]
fn one_of_two_schedulers_dies_half_way_through_ten_thousand_runs() {
    const TASKS: usize = 10_000;
    let street = Street::new();
    let (one, other) = (street.scheduler(), street.scheduler());
    street.add(0, TASKS);
    eventually("half of the runs are done", || street.succeeded() >= TASKS / 2);
    kill(one);
    eventually("all runs are done", || street.succeeded() == TASKS);
    end(other);
    street.assert_kept(TASKS);
}

#[test]
fn of_two_schedulers_one_dies_and_one_leaves_anywhere_again_and_again() {
    const TASKS: usize = 1_000;
    const ROUNDS: usize = 6;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let street = Street::new();
    let (mut one, mut other) = (street.scheduler(), street.scheduler());
    for round in 0..ROUNDS {
        if random.bool() {
            std::mem::swap(&mut one, &mut other);
        }
        let mut moments = [random.usize(0..TASKS), random.usize(0..TASKS)];
        moments.sort_unstable();
        println!("round {round}: one dies after {} runs, the other leaves after {}", moments[0], moments[1]);
        street.add(round, TASKS);
        let done = |runs: usize| eventually("so many runs are done", || street.succeeded() >= round * TASKS + runs);
        done(moments[0]);
        kill(one);
        one = street.scheduler();
        done(moments[1]);
        end(other);
        other = street.scheduler();
        done(TASKS);
    }
    end(one);
    end(other);
    street.assert_kept(ROUNDS * TASKS);
}
