//! A healthy task beside some that are not, and handlers that share a key and not a process. Closures, in processes of their
//! own, which die for good.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duly::{Context, Error, NewTask, Overlap, RetryPolicy, RunStatus, Scheduler};

use crate::fixtures::{TestDb, at, eventually, seconds};
use crate::sidecar::{signal, stands};

/// The file on which a process of this test program is to run a scheduler.
const FILE: &str = "DULY_TEST_NEIGHBOUR";
/// The handlers that it has, separated by commas.
const HANDLERS: &str = "DULY_TEST_HANDLERS";
const WORKERS: usize = 2;

/// Not a test of its own: where the processes of the tests below begin. Ends with its standard input.
#[test]
fn as_a_scheduler() {
    let (Some(file), Ok(handlers)) = (std::env::var_os(FILE), std::env::var(HANDLERS)) else { return };
    let held = Path::new(&file).with_file_name("held");
    let mut builder = Scheduler::builder(&file).workers(WORKERS).poll(Duration::from_millis(20)).lease(seconds(600));
    for handler in handlers.split(',') {
        builder = match handler {
            "panic" => builder.handler(handler, |_: &Context| -> Result<(), Error> { panic!("as it always does") }),
            "hang" => builder.handler(handler, |_: &Context| -> Result<(), Error> { forever() }),
            "kill" => builder.handler(handler, |_: &Context| -> Result<(), Error> {
                signal("KILL", &std::process::id().to_string());
                forever()
            }),
            _ => {
                let held = held.clone();
                builder.handler(handler, move |run: &Context| -> Result<(), std::io::Error> {
                    if run.task() == "holds" {
                        std::fs::File::create(&held)?.write_all(b"held\n")?;
                        forever();
                    }
                    Ok(())
                })
            }
        };
    }
    let scheduler = builder.start().expect("a scheduler");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the end of the standard input");
    let _ = scheduler.shutdown(Duration::ZERO);
}

fn forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// A scheduler in a process of its own. Killed when it is dropped.
struct Neighbour(Child);

impl Neighbour {
    fn start(db: &TestDb, handlers: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("the test program"))
            .args(["--exact", "isolation::as_a_scheduler", "--nocapture"])
            .env(FILE, db.file())
            .env(HANDLERS, handlers)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a second process");
        // One with a task that kills it may not live to be looked at.
        let registered = format!("SELECT count(*) FROM scheduler_instances WHERE pid = {}", child.id());
        eventually("it is registered", || {
            db.ask(&registered) != "0" || child.try_wait().expect("its status").is_some()
        });
        Neighbour(child)
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().expect("its status").is_none()
    }

    fn signal(&self, name: &str) {
        signal(name, &self.0.id().to_string());
    }

    fn kill(mut self) {
        self.0.kill().expect("a process that can be killed");
        self.0.wait().expect("its end");
    }

    /// How many of its threads are workers.
    fn workers(&self) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("its threads");
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("duly-worker")).count()
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn soon(task: NewTask, max_attempts: u32) -> NewTask {
    let (backoff, max_backoff) = (Duration::from_millis(50), Duration::from_millis(200));
    task.retry(RetryPolicy { max_attempts, backoff, max_backoff })
}

fn due(name: &str, handler: &str) -> NewTask {
    soon(NewTask::once(name, at("2020-01-01T00:00:00Z")).handler(handler), 100)
}

#[test]
fn a_healthy_task_keeps_all_its_occurrences_beside_those_that_panic_hang_and_kill_their_scheduler() {
    const TRIES: u32 = 3;
    let db = TestDb::new();
    let client = db.client();
    let number = |query: &str| db.ask(query).parse::<u64>().expect("a number");
    let every = |name: &str| NewTask::interval(name, seconds(1)).handler(name).overlap(Overlap::BufferAll);
    client.add(soon(every("beat"), 100)).unwrap();
    client.add(soon(every("panic"), 2)).unwrap();
    let limit = Duration::from_millis(20);
    client.add_all((0..WORKERS).map(|n| due(&format!("hangs-{n}"), "hang").timeout(limit))).unwrap();
    let beats = "SELECT count(*) FROM task_runs WHERE handler = 'beat' AND status = 'succeeded'";
    let all = "beat,panic,hang,kill";
    let mut scheduler = Neighbour::start(&db, all);
    eventually("it beats", || number(beats) >= 1);
    client.add(soon(NewTask::once("kills", at("2020-01-01T00:00:00Z")).handler("kill"), TRIES)).unwrap();
    let mut deaths = 0;
    let status = || client.history("kills", 1).unwrap().first().map(|run| run.status);
    eventually("the one that kills is dead", || {
        if !scheduler.lives() {
            deaths += 1;
            scheduler = Neighbour::start(&db, all);
        }
        status() == Some(RunStatus::Dead)
    });
    assert_eq!(deaths, TRIES, "it was tried so often, and each time took its scheduler with it");
    let run = client.history("kills", 1).unwrap().remove(0);
    let outcomes = format!("SELECT group_concat(outcome) FROM task_attempts WHERE run_id = {}", run.id);
    assert_eq!(db.ask(&outcomes), "lost,lost,lost");

    let before = number(beats);
    eventually("it beats on", || number(beats) >= before + 3);
    assert!(scheduler.lives(), "nothing kills it any more");
    // Those that hang have lost their attempts with each scheduler, and hang on.
    let hanging = "SELECT count(*) FROM task_runs WHERE handler = 'hang' AND status = 'running'";
    eventually("they hang again", || number(hanging) == WORKERS as u64);
    eventually("each that is held is replaced", || scheduler.workers() == 2 * WORKERS);
    let panicked = "SELECT count(DISTINCT run_id) FROM task_attempts WHERE outcome = 'panicked'";
    eventually("every second another panics", || number(panicked) >= 4);
    let before = number(beats);
    eventually("it beats on", || number(beats) >= before + 2);
    scheduler.kill();

    // One for each second from the first to the last, and nothing skipped or missed.
    let healthy = "FROM task_runs WHERE handler = 'beat'";
    assert_eq!(
        number(&format!("SELECT count(*) {healthy} AND status NOT IN ('succeeded', 'queued', 'running', 'failed')")),
        0
    );
    let seconds = number(&format!("SELECT (max(scheduled_for) - min(scheduled_for)) / 1000 + 1 {healthy}"));
    assert_eq!(number(&format!("SELECT count(*) {healthy}")), seconds);
    let bad = "SELECT count(*) FROM task_attempts a JOIN task_runs r ON r.id = a.run_id WHERE r.handler = 'beat' AND outcome <> 'lost'";
    assert_eq!(number(bad), 0);
    db.assert_sound();
}

#[test]
fn handlers_that_share_a_key_wait_for_each_other_and_not_for_a_process_that_is_gone() {
    let db = TestDb::new();
    let client = db.client();
    let number = |query: &str| db.ask(query).parse::<u64>().expect("a number");
    let count = |handler: &str, status: &str| {
        number(&format!("SELECT count(*) FROM task_runs WHERE handler = '{handler}' AND status = '{status}'"))
    };
    let shared = |name: &str, handler: &str| due(name, handler).concurrency_key("shared");
    let add = |handler: &str, from: u32| {
        client.add_all((from..from + 5).map(|n| shared(&format!("{handler}-{n}"), handler))).unwrap();
    };
    // Nobody has `a`, and its runs are the older ones.
    add("a", 0);
    add("b", 0);
    let b = Neighbour::start(&db, "b");
    eventually("those of b are done", || count("b", "succeeded") == 5);
    assert_eq!(count("a", "succeeded"), 0);
    let a = Neighbour::start(&db, "a");
    eventually("those of a are done", || count("a", "succeeded") == 5);

    // Stopped with nothing at work: what it may start is nobody's to start, and in nobody's way.
    a.signal("STOP");
    add("a", 5);
    add("b", 5);
    eventually("those of b are done", || count("b", "succeeded") == 10);
    a.signal("CONT");
    eventually("those of a are done", || count("a", "succeeded") == 10);

    // At work: then its run has the key, and the others wait for it. It dies: they go on at once, and it waits for another.
    client.add(shared("holds", "a")).unwrap();
    eventually("it has begun", || db.home().join("held").exists());
    add("b", 10);
    let waiting = "SELECT count(*) FROM task_runs WHERE handler = 'b' AND status = 'queued' AND blocked = 'key'";
    eventually("those of b wait", || number(waiting) == 5);
    a.kill();
    eventually("those of b are done", || count("b", "succeeded") == 15);
    stands(&client, "holds", RunStatus::Failed);
    assert_eq!(db.ask("SELECT group_concat(outcome) FROM task_attempts"), "lost");
    add("b", 15);
    eventually("those of b are done", || count("b", "succeeded") == 20);
    assert_eq!(number("SELECT count(*) FROM task_runs WHERE attempt > 1"), 0, "nothing else was begun twice");
    b.kill();
    db.assert_sound();
}
