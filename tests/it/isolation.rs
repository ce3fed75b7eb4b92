//! A healthy task beside tasks that panic, hang or kill their scheduler, and handlers that share a key but not a process. The
//! schedulers run in processes of their own.
#![cfg(target_os = "linux")]

use std::time::Duration;

use duly::{NewTask, Overlap, RunStatus};
use serde_json::json;

use crate::fixtures::{TestDb, eventually, overdue, retry_soon, seconds, wait_for_status};
use crate::kills::handlers::STOPPED;
use crate::kills::process::{Kind, Process, Setup};

const WORKERS: usize = 2;

/// Starts a scheduler in a process of its own, and waits until it is registered.
fn start(db: &TestDb, handlers: &'static str) -> Process {
    let mut process = Process::start(db, Kind::Closures, &Setup { workers: WORKERS, handlers, ..Setup::LONG });
    // A task that kills it may have done so already.
    let registered = format!("SELECT count(*) FROM scheduler_instances WHERE pid = {}", process.pid());
    eventually("it is registered", || db.ask(&registered) != "0" || process.has_ended());
    process
}

/// The number of its worker threads.
fn workers(process: &Process) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.pid())).expect("its threads");
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("duly-worker")).count()
}

/// A task whose handler panics, hangs or kills its process.
fn bad(task: NewTask, does: &str) -> NewTask {
    task.handler(does).payload(json!({ "does": does }))
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
    client.add(retry_soon(bad(every("panic"), "panic"), 2)).unwrap();
    let limit = Duration::from_millis(20);
    client.add_all((0..WORKERS).map(|n| bad(due(&format!("hangs-{n}"), "hang"), "hang").timeout(limit))).unwrap();
    let beats = "SELECT count(*) FROM task_runs WHERE handler = 'beat' AND status = 'succeeded'";
    let all = "beat,panic,hang,kill";
    let mut scheduler = start(&db, all);
    eventually("it beats", || db.number::<u64>(beats) >= 1);
    client.add(retry_soon(bad(overdue("kills"), "kill"), TRIES)).unwrap();
    let mut deaths = 0;
    let is_dead = || client.history("kills", 1).unwrap().first().is_some_and(|run| run.status == RunStatus::Dead);
    eventually("the one that kills is dead", || {
        if scheduler.has_ended() {
            deaths += 1;
            scheduler = start(&db, all);
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
    assert!(!scheduler.has_ended(), "no task kills it any more");
    // The hanging runs have lost an attempt with each scheduler, and hang again.
    let hanging = "SELECT count(*) FROM task_runs WHERE handler = 'hang' AND status = 'running'";
    eventually("they hang again", || db.number::<u64>(hanging) == WORKERS as u64);
    eventually("each hanging worker is replaced", || workers(&scheduler) == 2 * WORKERS);
    let panicked = "SELECT count(DISTINCT run_id) FROM task_attempts WHERE outcome = 'panicked'";
    eventually("every second another panics", || db.number::<u64>(panicked) >= 4);
    let before = db.number::<u64>(beats);
    eventually("it beats on", || db.number::<u64>(beats) >= before + 2);
    scheduler.kill();

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
    let b = start(&db, "b");
    eventually("those of b are done", || count("b", "succeeded") == 5);
    assert_eq!(count("a", "succeeded"), 0);
    let a = start(&db, "a");
    eventually("those of a are done", || count("a", "succeeded") == 5);

    // While `a` is stopped and idle, its claimable runs do not block those of `b`.
    a.signal("STOP");
    add("a", 5);
    add("b", 5);
    eventually("those of b are done", || count("b", "succeeded") == 10);
    a.signal("CONT");
    eventually("those of a are done", || count("a", "succeeded") == 10);

    // While a run of `a` is running it holds the key and the others wait. When `a` dies they continue at once.
    client.add(shared("holds", "a").payload(json!({ "stops": "before" }))).unwrap();
    eventually("it has begun", || db.home().join(STOPPED).exists());
    add("b", 10);
    let waiting = "SELECT count(*) FROM task_runs WHERE handler = 'b' AND status = 'queued' AND blocked = 'key'";
    eventually("those of b wait", || db.number::<u64>(waiting) == 5);
    a.kill();
    eventually("those of b are done", || count("b", "succeeded") == 15);
    wait_for_status(&client, "holds", RunStatus::Failed);
    assert_eq!(db.outcomes(), ["1|lost"]);
    add("b", 15);
    eventually("those of b are done", || count("b", "succeeded") == 20);
    assert_eq!(db.number::<u64>("SELECT count(*) FROM task_runs WHERE attempt > 1"), 0, "nothing else was begun twice");
    b.kill();
    db.assert_sound();
}
