//! The workloads for duly.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::bounded;
use duly::{Client, Context, Event, NewTask, Overlap, RetryPolicy, RunStatus, Scheduler, Timestamp};
use tempfile::TempDir;

use crate::measure::wall_nanos;

/// Worker threads of each scheduler.
pub(crate) const WORKERS: usize = 2;
/// Longer than any round.
const PATIENCE: Duration = Duration::from_secs(300);
/// Until the tasks of a drain are due: in this time they are added and the schedulers start.
const LEAD: i64 = 2_000;

/// Returns tasks that are due at `at`.
fn tasks(prefix: &str, count: usize, at: i64) -> impl Iterator<Item = NewTask> {
    let due = Timestamp::from_millis(at);
    (0..count).map(move |n| NewTask::once(format!("{prefix}-{n}"), due).handler("none"))
}

/// Adds tasks, each in a commit of its own.
pub(crate) fn add_one_by_one(address: &str, count: usize, at: i64) -> Duration {
    let client = Client::open(address).expect("the database");
    timed(|| tasks("one", count, at).for_each(|task| drop(client.add(task).expect("a new task"))))
}

/// Adds tasks, a hundred to a commit.
pub(crate) fn add_in_batches(address: &str, count: usize, at: i64) -> Duration {
    let client = Client::open(address).expect("the database");
    let mut tasks = tasks("some", count, at);
    timed(|| {
        loop {
            let batch: Vec<NewTask> = tasks.by_ref().take(crate::bare::BATCH).collect();
            if batch.is_empty() {
                break;
            }
            drop(client.add_all(batch).expect("new tasks"));
        }
    })
}

pub(crate) fn timed(work: impl FnOnce()) -> Duration {
    let begin = std::time::Instant::now();
    work();
    begin.elapsed()
}

/// What else the schema of a drain holds.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Other {
    Nothing,
    /// Limits of other keys and handlers, and a paused task with very many waiting runs.
    Beside,
    /// The same; and of ten tasks one has one of twenty keys, of which one has a limit of its own, one a handler with a rate limit that
    /// is never reached, and every second one a first attempt that fails. Twenty more tasks are due each second.
    Mixed,
}

const BESIDE: &str = "
    INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('other', 1), ('key-7', 4);
    INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('elsewhere', 1, 1000), ('rated', 10000, 10000);
    INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, overlap, status, planned)
    VALUES ('crowd', 'none', 'manual', '', 'allow', 'paused', 1);
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, blocked)
    SELECT t.id, t.handler, t.created_at + n, 'on_dead', 'queued', t.created_at, 'paused'
      FROM generate_series(1, 10000) n CROSS JOIN scheduled_tasks t WHERE t.name = 'crowd'";

impl Other {
    fn task(self, number: usize, task: NewTask) -> NewTask {
        match number % 10 {
            _ if self != Other::Mixed => task,
            1 => task.concurrency_key(format!("key-{}", number / 10 % 20)),
            3 => task.handler("rated"),
            5 if number % 20 == 5 => task.handler("fails").retry(RetryPolicy {
                max_attempts: 2,
                backoff: Duration::from_millis(1),
                max_backoff: Duration::from_millis(1),
            }),
            _ => task,
        }
    }
}

/// A drain.
pub(crate) struct Drained {
    /// From the instant at which the tasks are due to the last outcome.
    pub(crate) time: Duration,
    /// Turns of all schedulers, also those in which nothing happened.
    pub(crate) turns: u64,
}

/// Runs tasks that fall due at one instant with a handler that does nothing, until the last outcome is stored; each once. `measured` is
/// called when everything is prepared. `direct`: the address by which the tasks are added.
pub(crate) fn drain(
    address: &str,
    direct: &str,
    (schedulers, count): (usize, usize),
    other: Other,
    mut measured: impl FnMut(),
) -> Drained {
    let home = tempfile::tempdir().expect("a folder");
    let client = Client::open(direct).expect("the database");
    let far = tasks("far", count, wall_nanos() / 1_000_000 + 86_400_000);
    client.add_all(far.enumerate().map(|(number, task)| other.task(number, task))).expect("new tasks");
    if other != Other::Nothing {
        execute(direct, BESIDE);
    }
    if other == Other::Mixed {
        let tick = |n| NewTask::interval(format!("tick-{n}"), Duration::from_secs(1)).handler("tick");
        client.add_all((0..20).map(tick)).expect("new tasks");
    }
    let (started, stored) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (tell, last) = bounded(1);
    let run = || {
        let (begun, ended, tell) = (started.clone(), stored.clone(), tell.clone());
        let works = move |run: &Context| {
            if run.handler() == "fails" && run.attempt() == 1 {
                return Err(std::fmt::Error);
            }
            begun.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let mut builder = scheduler(address, &home).handler("none", works.clone());
        // Each handler is looked for: a plain drain has one.
        if other == Other::Mixed {
            let ticks = |_: &Context| Ok::<_, std::fmt::Error>(());
            builder = builder.handler("rated", works.clone()).handler("fails", works).handler("tick", ticks);
        }
        builder
            // Observers are notified after the commit.
            .observe(move |event: &Event| {
                if matches!(event, Event::Finished { status: RunStatus::Succeeded, claim, .. } if claim.handler != "tick")
                    && ended.fetch_add(1, Ordering::Relaxed) + 1 == count
                {
                    let _ = tell.send(wall_nanos());
                }
            })
            .start()
            .expect("a scheduler")
    };
    let running: Vec<Scheduler> = (0..schedulers).map(|_| run()).collect();
    let due = wall_nanos() / 1_000_000 + LEAD;
    hasten(direct, due);
    let turns = || running.iter().map(Scheduler::turns).sum::<u64>();
    let ahead = due * 1_000_000 - wall_nanos() - 20_000_000;
    assert!(ahead > 0, "the tasks are changed before they are due");
    std::thread::sleep(Duration::from_nanos(ahead.unsigned_abs()));
    measured();
    let before = turns();
    let end = last.recv_timeout(PATIENCE).expect("all of them, in time");
    let turns = turns() - before;
    for scheduler in running {
        scheduler.shutdown(PATIENCE).expect("a shutdown");
    }
    assert_eq!(started.load(Ordering::Relaxed), count, "each once");
    Drained { time: Duration::from_nanos((end - due * 1_000_000).unsigned_abs()), turns }
}

/// Has all tasks due at `due`, and tells the schedulers.
fn hasten(address: &str, due: i64) {
    execute(address, &format!("UPDATE scheduled_tasks SET next_run = {due} WHERE name LIKE 'far-%'"));
    execute(address, "VACUUM ANALYZE scheduled_tasks");
}

/// Changes the schema as duly's own sessions do: the tasks are planned.
fn execute(address: &str, change: &str) {
    let (address, schema) = address.split_once("?schema=").expect("an address with a schema");
    let mut session = postgres::Client::connect(address, postgres::NoTls).expect("a connection");
    session.batch_execute(&format!("SET search_path = {schema}; SET duly.store = 'on'")).expect("a session");
    session.batch_execute(change).expect("a change");
}

fn scheduler(address: &str, home: &TempDir) -> duly::Builder {
    Scheduler::builder(address).state_folder(home.path()).workers(WORKERS)
}

/// Runs a task at each of `times` instants, the first at `start`. Returns how late each began, in milliseconds.
pub(crate) fn keep_time(address: &str, start: i64, every: i64, times: usize) -> Vec<f64> {
    let home = tempfile::tempdir().expect("a folder");
    let late = Arc::new(Mutex::new(Vec::with_capacity(times)));
    let noted = late.clone();
    let last = Arc::new(AtomicI64::new(0));
    let newest = last.clone();
    let scheduler = scheduler(address, &home)
        .handler("none", move |run: &Context| {
            let due = run.scheduled_for().as_millis();
            let after = wall_nanos() - due * 1_000_000;
            noted.lock().expect("the list").push(after as f64 / 1e6);
            newest.fetch_max(due, Ordering::Relaxed);
            Ok::<_, std::fmt::Error>(())
        })
        .start()
        .expect("a scheduler");
    let end = start + (i64::try_from(times).expect("a number") - 1) * every;
    // A late start must not prevent the measurement of the next one.
    let task = NewTask::interval("tick", Duration::from_millis(every.unsigned_abs()));
    let task = task.handler("none").overlap(Overlap::Allow);
    let task = task.starts_at(Timestamp::from_millis(start)).ends_at(Timestamp::from_millis(end));
    scheduler.add(task).expect("a new task");
    while last.load(Ordering::Relaxed) < end && wall_nanos() / 1_000_000 < end + 10_000 {
        std::thread::sleep(Duration::from_millis(50));
    }
    scheduler.shutdown(PATIENCE).expect("a shutdown");
    let late = late.lock().expect("the list");
    late.clone()
}
