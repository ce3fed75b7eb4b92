//! A healthy task beside tasks that panic, hang or kill their scheduler, and handlers that share a key but not a process. The
//! schedulers run in processes of their own.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use duly::{Context, Error, NewTask, Overlap, RunStatus, Scheduler};

use crate::fixtures::{Process, TestDb, eventually, overdue, retry_soon, seconds, test_process, wait_for_status};
use crate::sidecar::signal;

/// The variable that holds the database of another process.
const FILE: &str = "DULY_TEST_NEIGHBOUR";

/// The variable that holds the names of its handlers, separated by commas.
const HANDLERS: &str = "DULY_TEST_HANDLERS";
const WORKERS: usize = 2;

/// Not a test by itself: the scheduler in the processes of the tests below. It ends with its standard input.
#[test]
fn scheduler_entry() {
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

/// A scheduler in a process of its own.
struct Neighbour(Process);

impl Neighbour {
    fn start(db: &TestDb, handlers: &str) -> Self {
        let mut command = test_process("isolation::scheduler_entry");
        let mut child = Process::spawn(command.env(FILE, db.file()).env(HANDLERS, handlers).stderr(Stdio::null()));
        // A task that kills it may have done so already.
        let registered = format!("SELECT count(*) FROM scheduler_instances WHERE pid = {}", child.0.id());
        eventually("it is registered", || db.ask(&registered) != "0" || child.has_ended());
        Neighbour(child)
    }

    fn is_running(&mut self) -> bool {
        !self.0.has_ended()
    }

    fn signal(&self, name: &str) {
        signal(name, &self.0.0.id().to_string());
    }

    /// The number of its worker threads.
    fn workers(&self) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.0.id())).expect("its threads");
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("duly-worker")).count()
    }
}

fn due(name: &str, handler: &str) -> NewTask {
    retry_soon(overdue(name).handler(handler), 100)
}

#[test]
fn a_healthy_task_keeps_its_occurrences_beside_tasks_that_panic_hang_or_kill_their_scheduler() {
    const TRIES: u32 = 3;
    let (db, client) = TestDb::with_client();
    let every = |name: &str| NewTask::interval(name, seconds(1)).handler(name).overlap(Overlap::BufferAll);
    client.add(retry_soon(every("beat"), 100)).unwrap();
    client.add(retry_soon(every("panic"), 2)).unwrap();
    let limit = Duration::from_millis(20);
    client.add_all((0..WORKERS).map(|n| due(&format!("hangs-{n}"), "hang").timeout(limit))).unwrap();
    let beats = "SELECT count(*) FROM task_runs WHERE handler = 'beat' AND status = 'succeeded'";
    let all = "beat,panic,hang,kill";
    let mut scheduler = Neighbour::start(&db, all);
    eventually("it beats", || db.number::<u64>(beats) >= 1);
    client.add(retry_soon(overdue("kills").handler("kill"), TRIES)).unwrap();
    let mut deaths = 0;
    let is_dead = || client.history("kills", 1).unwrap().first().is_some_and(|run| run.status == RunStatus::Dead);
    eventually("the one that kills is dead", || {
        if !scheduler.is_running() {
            deaths += 1;
            scheduler = Neighbour::start(&db, all);
        }
        is_dead()
    });
    assert_eq!(deaths, TRIES, "each attempt kills its scheduler");
    let run = client.history("kills", 1).unwrap().remove(0);
    let outcomes =
        format!("SELECT group_concat(outcome) FROM task_attempts WHERE run_id = {} AND outcome <> 'released'", run.id);
    assert_eq!(db.ask(&outcomes), "lost,lost,lost");

    let before = db.number::<u64>(beats);
    eventually("it beats on", || db.number::<u64>(beats) >= before + 3);
    assert!(scheduler.is_running(), "no task kills it any more");
    // The hanging runs have lost an attempt with each scheduler, and hang again.
    let hanging = "SELECT count(*) FROM task_runs WHERE handler = 'hang' AND status = 'running'";
    eventually("they hang again", || db.number::<u64>(hanging) == WORKERS as u64);
    eventually("each hanging worker is replaced", || scheduler.workers() == 2 * WORKERS);
    let panicked = "SELECT count(DISTINCT run_id) FROM task_attempts WHERE outcome = 'panicked'";
    eventually("every second another panics", || db.number::<u64>(panicked) >= 4);
    let before = db.number::<u64>(beats);
    eventually("it beats on", || db.number::<u64>(beats) >= before + 2);
    scheduler.0.kill();

    // One run for each second from the first to the last, none skipped or missed.
    let healthy = "FROM task_runs WHERE handler = 'beat'";
    let others = "SELECT status || ': ' || ifnull(error, '') FROM task_runs WHERE handler = 'beat'
                   AND status NOT IN ('succeeded', 'queued', 'running', 'failed')";
    assert_eq!(db.rows(others), Vec::<String>::new());
    let seconds = db.number::<u64>(&format!("SELECT (max(scheduled_for) - min(scheduled_for)) / 1000 + 1 {healthy}"));
    assert_eq!(db.number::<u64>(&format!("SELECT count(*) {healthy}")), seconds);
    // Only a scheduler that was killed cost it an attempt. A claim that waits too long for a worker is released, and does not count.
    let bad = "SELECT outcome || ': ' || ifnull(a.error, '') FROM task_attempts a JOIN task_runs r ON r.id = a.run_id
                WHERE r.handler = 'beat' AND outcome NOT IN ('lost', 'released')";
    assert_eq!(db.rows(bad), Vec::<String>::new());
    db.assert_sound();
}

#[test]
fn handlers_that_share_a_key_wait_for_each_other_and_not_for_a_dead_process() {
    let (db, client) = TestDb::with_client();
    let count = |handler: &str, status: &str| {
        db.number::<u64>(&format!("SELECT count(*) FROM task_runs WHERE handler = '{handler}' AND status = '{status}'"))
    };
    let shared = |name: &str, handler: &str| due(name, handler).concurrency_key("shared");
    let add = |handler: &str, from: u32| {
        client.add_all((from..from + 5).map(|n| shared(&format!("{handler}-{n}"), handler))).unwrap();
    };
    // No scheduler has the handler `a`, whose runs are the older ones.
    add("a", 0);
    add("b", 0);
    let b = Neighbour::start(&db, "b");
    eventually("those of b are done", || count("b", "succeeded") == 5);
    assert_eq!(count("a", "succeeded"), 0);
    let a = Neighbour::start(&db, "a");
    eventually("those of a are done", || count("a", "succeeded") == 5);

    // While `a` is stopped and idle, its claimable runs do not block those of `b`.
    a.signal("STOP");
    add("a", 5);
    add("b", 5);
    eventually("those of b are done", || count("b", "succeeded") == 10);
    a.signal("CONT");
    eventually("those of a are done", || count("a", "succeeded") == 10);

    // While a run of `a` is running it holds the key and the others wait. When `a` dies they continue at once.
    client.add(shared("holds", "a")).unwrap();
    eventually("it has begun", || db.home().join("held").exists());
    add("b", 10);
    let waiting = "SELECT count(*) FROM task_runs WHERE handler = 'b' AND status = 'queued' AND blocked = 'key'";
    eventually("those of b wait", || db.number::<u64>(waiting) == 5);
    a.0.kill();
    eventually("those of b are done", || count("b", "succeeded") == 15);
    wait_for_status(&client, "holds", RunStatus::Failed);
    assert_eq!(db.outcomes(), ["1|lost"]);
    add("b", 15);
    eventually("those of b are done", || count("b", "succeeded") == 20);
    assert_eq!(db.number::<u64>("SELECT count(*) FROM task_runs WHERE attempt > 1"), 0, "nothing else was begun twice");
    b.0.kill();
    db.assert_sound();
}
