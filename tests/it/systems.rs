//! What is promised on every system, with commands that run on each: this test binary. Processes show by locked files that they live, and the
//! kernel releases these at their death. `.ci/windows` and `.ci/arm` run this module where few other tests of the program can run.
#![cfg(feature = "cli")]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use duly::{Client, Clock, NewTask, RunStatus, SystemClock};
use serde_json::json;

use crate::fixtures::{Process, TestDb, eventually, number, retry_soon, test_process, wait_for_status};

/// The role of a process: a command, with this number of generations below it.
const BELOW: &str = "DULY_TEST_BELOW";
/// The folder of its files.
const FOLDER: &str = "DULY_TEST_FOLDER";
/// The name of its locks: at most one process of each generation may have a lock.
const NAME: &str = "DULY_TEST_NAME";
/// How long it works, in milliseconds; without it, until it is ended.
const MILLIS: &str = "DULY_TEST_MILLIS";
/// The role of a command that prints its arguments, one a line.
const PRINTS: &str = "DULY_TEST_PRINTS";

/// This test as a command.
const ROLE: [&str; 3] = ["--exact", "systems::acts_as_a_command", "--nocapture"];

/// A file that a process of a generation holds locked while it lives.
fn lock_of(folder: &Path, name: &str, below: u32) -> PathBuf {
    folder.join(format!("{name}-{below}.lock"))
}

fn note(folder: &Path, line: &str) {
    let journal = File::options().create(true).append(true).open(folder.join("journal"));
    journal.and_then(|mut journal| journal.write_all(format!("{line}\n").as_bytes())).expect("the journal");
}

#[test]
fn acts_as_a_command() {
    if std::env::var_os(PRINTS).is_some() {
        std::env::args().for_each(|argument| println!("{argument:?}"));
    }
    let Ok(below) = std::env::var(BELOW) else { return };
    let below: u32 = below.parse().unwrap();
    let (folder, name) = (PathBuf::from(std::env::var_os(FOLDER).unwrap()), std::env::var(NAME).unwrap());
    let lock = File::options().create(true).append(true).open(lock_of(&folder, &name, below)).unwrap();
    if lock.try_lock().is_err() {
        note(&folder, &format!("overlap {name} {below}"));
    }
    let child = (below > 0).then(|| {
        let mut child = test_process(ROLE[1]);
        Process::spawn(child.env(BELOW, (below - 1).to_string()))
    });
    if below == 0 {
        note(&folder, &format!("begun {name}"));
    }
    let millis = std::env::var(MILLIS).ok().map(|millis| Duration::from_millis(millis.parse().unwrap()));
    let begin = Instant::now();
    eventually("its work is done", || millis.is_some_and(|millis| begin.elapsed() >= millis));
    if let Some(mut child) = child {
        eventually("its child has ended", || child.has_ended());
        note(&folder, &format!("done {name}"));
    }
}

/// A task whose command is this test, with this number of generations below it.
fn tree(db: &TestDb, name: &str, below: u32, millis: Option<u64>) -> NewTask {
    let program = std::env::current_exe().unwrap();
    let mut env = json!({ BELOW: below.to_string(), FOLDER: db.home(), NAME: name });
    if let Some(millis) = millis {
        env[MILLIS] = json!(millis.to_string());
    }
    let argv = [&[program.to_str().unwrap()][..], &ROLE].concat();
    NewTask::once(name, SystemClock::new().now().wall).handler("command").payload(json!({ "argv": argv, "env": env }))
}

fn scheduler(db: &TestDb) -> Process {
    let log = File::options().create(true).append(true).open(db.home().join("log")).unwrap();
    Process::spawn(db.duly(&["run", "--workers", "3"]).stderr(log))
}

fn count(db: &TestDb, line: &str) -> usize {
    db.lines("journal").iter().filter(|found| *found == line).count()
}

/// Whether no process of these generations lives.
fn are_gone(db: &TestDb, name: &str, generations: u32) -> bool {
    (0..generations).all(|below| {
        let lock = File::options().append(true).open(lock_of(db.home(), name, below)).unwrap();
        lock.try_lock().is_ok()
    })
}

/// Adds a task with a command of three generations, and waits until all live.
fn start_tree(db: &TestDb, client: &Client, task: NewTask) {
    client.add(task).unwrap();
    eventually("three generations live", || count(db, "begun tree") == 1);
    assert!(!are_gone(db, "tree", 1) && !are_gone(db, "tree", 3));
}

#[test]
fn three_generations_of_processes_end_at_a_timeout() {
    let (db, client) = TestDb::with_client();
    let _scheduler = scheduler(&db);
    let task = tree(&db, "tree", 2, None).at_most_once();
    // Long enough for three processes to start.
    start_tree(&db, &client, task.timeout(Duration::from_secs(number("DULY_TEST_TIMEOUT", 5))));
    let run = wait_for_status(&client, "tree", RunStatus::Dead);
    assert!(run.error.as_deref().is_some_and(|error| error.contains("took longer than")), "{:?}", run.error);
    assert!(are_gone(&db, "tree", 3), "when its end is recorded");
}

#[test]
fn three_generations_of_processes_end_at_a_cancel() {
    let (db, client) = TestDb::with_client();
    let _scheduler = scheduler(&db);
    start_tree(&db, &client, tree(&db, "tree", 2, None));
    let run = client.history("tree", 1).unwrap().pop().unwrap();
    client.cancel(run.id).unwrap();
    wait_for_status(&client, "tree", RunStatus::Cancelled);
    assert!(are_gone(&db, "tree", 3), "when its end is recorded");
}

// On macOS there is neither a guard nor a job object: the next scheduler waits for such a command.
#[cfg(any(target_os = "linux", windows))]
#[test]
fn three_generations_of_processes_end_with_a_scheduler_that_is_killed() {
    let (db, client) = TestDb::with_client();
    let first = scheduler(&db);
    start_tree(&db, &client, retry_soon(tree(&db, "tree", 2, None), 5));
    first.kill();
    eventually("all are gone, without another scheduler", || are_gone(&db, "tree", 3));
    assert_eq!(db.lines("journal"), ["begun tree"]);
}

#[test]
fn killed_schedulers_lose_no_run_and_start_none_beside_itself() {
    let (db, client) = TestDb::with_client();
    let seed = number("DULY_SEED", fastrand::u64(..));
    println!("DULY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut schedulers = [scheduler(&db), scheduler(&db)];
    let (rounds, mut tasks) = (number("DULY_ROUNDS", 5), 0);
    for _ in 0..rounds {
        let new = random.usize(1..4);
        for _ in 0..new {
            let task = tree(&db, &format!("t{tasks}"), 1, Some(random.u64(..300)));
            client.add(retry_soon(task, 100_000)).unwrap();
            tasks += 1;
        }
        // A moment that the work chooses, and some more.
        let (lines, more, begin) = (db.lines("journal").len(), random.usize(..2 * new), Instant::now());
        let length = Duration::from_millis(random.u64(..500));
        eventually("work goes on", || db.lines("journal").len() >= lines + more);
        eventually("the moment has come", || begin.elapsed() >= length);
        let which = random.usize(..2);
        let killed = std::mem::replace(&mut schedulers[which], scheduler(&db));
        killed.kill();
    }
    for task in 0..tasks {
        wait_for_status(&client, &format!("t{task}"), RunStatus::Succeeded);
    }
    let (journal, attempts) = (db.lines("journal"), client.history("t0", 1).unwrap()[0].attempt);
    println!("{rounds} rounds, {tasks} runs, {} lines, {attempts} attempts of the first", journal.len());
    let overlaps: Vec<&String> = journal.iter().filter(|line| line.starts_with("overlap")).collect();
    assert!(overlaps.is_empty(), "{overlaps:?}");
    for task in 0..tasks {
        assert!(count(&db, &format!("done t{task}")) >= 1, "t{task} has succeeded and was not done");
        assert_eq!(client.history(&format!("t{task}"), 10).unwrap().len(), 1, "t{task}");
    }
    db.assert_sound();
}

#[test]
fn arguments_arrive_as_they_were_given() {
    let (db, client) = TestDb::with_client();
    let given =
        ["", "two words", "a\"b", r"back\slash\", r#"\"both\\""#, "100%", "%PATH%", "^&|<>()!", "*", "läuft", "'x'"];
    let program = std::env::current_exe().unwrap();
    let argv = [&[program.to_str().unwrap()][..], &ROLE].concat();
    let argv: Vec<&str> = argv.into_iter().chain(given.iter().flat_map(|one| ["--skip", one])).collect();
    let task = NewTask::once("prints", SystemClock::new().now().wall).handler("command");
    client.add(task.payload(json!({ "argv": argv, "env": { PRINTS: "1" } }))).unwrap();
    db.printed(&["run", "--until-idle"]);
    let output = wait_for_status(&client, "prints", RunStatus::Succeeded).output.unwrap();
    let printed: Vec<&str> = output.lines().filter(|line| line.starts_with('"')).collect();
    let expected: Vec<String> = argv.iter().map(|argument| format!("{argument:?}")).collect();
    assert_eq!(printed[1..], expected[1..]);
}
