//! Punctuality: ten thousand cron tasks on one second, and a task every tenth of a second. No run starts early.

use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::bounded;
use duly::{Client, Context, Durability, Event, NewTask, Overlap, Scheduler, Timestamp};
use rusqlite::Connection;

use crate::Options;
use crate::bare::Bare;
use crate::measure::{median, percentile, wall_nanos};
use crate::report::{Goal, LATER_P50, LATER_P99, ONE_SECOND, Report};
use crate::workloads::{DURABILITIES, Home, LONG_AGO, WORKERS};

/// The number of distinct cron expressions.
const LINES: i64 = 500;
/// The interval of the task whose lateness is measured, in milliseconds.
const EVERY: i64 = 100;

/// Many cron tasks, all due on the same second.
pub(crate) fn one_second(options: &Options, report: &mut Report) {
    let (tasks, lead) = (options.scaled(10_000, 2_000), if options.quick { 500 } else { 2_000 });
    for (name, durability, synchronous) in DURABILITIES {
        let (mut bare, mut duly) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            let home = Home::new();
            let file = home.file("bare.db");
            let mut least = Bare::open(&file, synchronous);
            least.add(tasks, LONG_AGO);
            bare.push(least.drain(&file, tasks).time.as_secs_f64());
            // Adding them takes longer on a busy machine; a second that has passed meanwhile cannot be measured.
            let took = (0..5).find_map(|try_again| {
                let file = home.file(&format!("duly-{try_again}.db"));
                meet_a_second(&file, tasks, durability, lead << try_again)
            });
            duly.push(took.expect("tasks that are added before they are due"));
        }
        let workload = format!("{tasks} cron tasks on a second");
        report.figure((workload, name), (median(bare), median(duly)), "s", &Goal::AtMost(ONE_SECOND));
    }
    report
        .detail(format!("cron tasks: {LINES} distinct lines; none lost, none early, each exactly once in every round"));
}

/// Seconds from the due instant to the last stored outcome; `None` if the instant came too soon.
fn meet_a_second(file: &Path, tasks: usize, durability: Durability, lead: i64) -> Option<f64> {
    let due = (wall_nanos() / 1_000_000 + lead) / 1000 * 1000 + 1000;
    let at = Timestamp::from_millis(due);
    Client::open(file).and_then(|client| client.add_all((0..tasks).map(|n| cron(n, due / 1000)))).expect("new tasks");
    let (early, stored) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let (tell, last) = bounded(1);
    let too_early = early.clone();
    let scheduler = Scheduler::builder(file)
        .workers(WORKERS)
        .durability(durability)
        .handler("none", move |_: &Context| {
            too_early.fetch_add(usize::from(wall_nanos() < due * 1_000_000), Ordering::Relaxed);
            Ok::<_, std::fmt::Error>(())
        })
        .observe(move |event: &Event| {
            if matches!(event, Event::Finished { .. }) && stored.fetch_add(1, Ordering::Relaxed) + 1 == tasks {
                let _ = tell.send(wall_nanos());
            }
        })
        .start()
        .expect("a scheduler");
    let in_time = wall_nanos() / 1_000_000 + 200 < due;
    let end = last.recv_timeout(Duration::from_secs(60)).expect("all of them, in time");
    scheduler.shutdown(Duration::from_secs(60)).expect("a shutdown");
    assert_eq!(early.load(Ordering::Relaxed), 0, "none before {at}");
    let runs = Connection::open(file).expect("the database");
    let counted: (i64, i64, i64, i64) = runs
        .query_row(
            "SELECT count(*), count(DISTINCT task_id), min(scheduled_for), max(scheduled_for)
               FROM task_runs WHERE status = 'succeeded'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )
        .expect("what was stored");
    assert_eq!(counted, (tasks as i64, tasks as i64, due, due), "each exactly once, for {at}");
    in_time.then(|| (end - due * 1_000_000) as f64 / 1e9)
}

/// A daily task that is due at this second, and at others hours away or more than two minutes later.
fn cron(n: usize, second: i64) -> NewTask {
    let (hour, minute, second) = (second / 3600 % 24, second / 60 % 60, second % 60);
    let line = n as i64 % LINES;
    let (other_minute, other_hour) = ((minute + 5 + line % 50) % 60, (hour + 2 + line / 50) % 24);
    let line = format!("{second} {minute},{other_minute} {hour},{other_hour} * * *");
    NewTask::cron(format!("cron-{n}"), line).handler("none")
}

/// The lateness of a task every tenth of a second, by the median of the rounds: in a single round p99 is two starts,
/// and so noise. duly and the bare loop alternate: each has its own half of the tenth.
pub(crate) fn lateness(options: &Options, report: &mut Report) {
    let times = options.scaled(200, 40);
    let mut rounds = DURABILITIES.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..options.rounds {
        for ((_, durability, synchronous), (of_bare, of_duly)) in DURABILITIES.iter().zip(&mut rounds) {
            let home = Home::new();
            let start = wall_nanos() / 1_000_000 + 500;
            let mut bare = Bare::open(&home.file("bare.db"), synchronous);
            let (bare, duly) = std::thread::scope(|scope| {
                let bare = scope.spawn(move || bare.keep_time(start + EVERY / 2, EVERY, times));
                let duly = keep_time(&home.file("duly.db"), start, times, *durability);
                (bare.join().expect("the bare loop"), duly)
            });
            assert!(bare.iter().chain(&duly).all(|late| *late >= 0.0), "none early: {duly:?}");
            assert_eq!(duly.len(), times, "each of them");
            of_bare.push(bare);
            of_duly.push(duly);
        }
    }
    for ((name, ..), (bare, duly)) in DURABILITIES.iter().zip(&rounds) {
        let of = |rounds: &[Vec<f64>], percent: usize| {
            median(rounds.iter().map(|late| percentile(late.iter().copied(), percent)))
        };
        for (part, percent, goal) in [("50", 50, LATER_P50), ("99", 99, LATER_P99)] {
            let figures = (of(bare, percent), of(duly, percent));
            report.distance((format!("lateness, p{part}"), *name), figures, "ms", &Goal::AtMost(goal));
        }
        let most = |rounds: &[Vec<f64>]| percentile(rounds.iter().flatten().copied(), 100);
        report.detail(format!(
            "lateness, {name}: of {times} in each of {} rounds at most {:.2} ms, bare {:.2} ms; none early",
            options.rounds,
            most(duly),
            most(bare)
        ));
    }
}

fn keep_time(file: &Path, start: i64, times: usize, durability: Durability) -> Vec<f64> {
    let late = Arc::new(Mutex::new(Vec::with_capacity(times)));
    let noted = late.clone();
    let last = Arc::new(AtomicI64::new(0));
    let newest = last.clone();
    let scheduler = Scheduler::builder(file)
        .workers(WORKERS)
        .durability(durability)
        .handler("none", move |run: &Context| {
            let due = run.scheduled_for().as_millis();
            let after = wall_nanos() - due * 1_000_000;
            noted.lock().expect("the list").push(after as f64 / 1e6);
            newest.fetch_max(due, Ordering::Relaxed);
            Ok::<_, std::fmt::Error>(())
        })
        .start()
        .expect("a scheduler");
    let end = start + (times as i64 - 1) * EVERY;
    // A late start must not prevent the measurement of the next one.
    let task = NewTask::interval("tick", Duration::from_millis(EVERY as u64)).handler("none").overlap(Overlap::Allow);
    let task = task.starts_at(Timestamp::from_millis(start)).ends_at(Timestamp::from_millis(end));
    scheduler.add(task).expect("a new task");
    while last.load(Ordering::Relaxed) < end && wall_nanos() / 1_000_000 < end + 10_000 {
        std::thread::sleep(Duration::from_millis(50));
    }
    scheduler.shutdown(Duration::from_secs(60)).expect("a shutdown");
    let late = late.lock().expect("the list");
    late.clone()
}
