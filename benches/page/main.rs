//! Measures the status page: the server time and the size of each page over files of several sizes, and the lateness of a task that
//! is due every second, without and with a load of requests, idle, dripping and slowly reading connections.
//!
//! `cargo bench --bench page [-- --quick] [--check] [--seconds N]`. `--check` exits with 1 if a goal is missed. docs/performance.md
//! explains the results.

mod http;
mod load;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use duly::page::Page;
use duly::{Client, Context, NewTask, Scheduler, Timestamp};
use rusqlite::Connection;

/// Longest server time of a page, of a scrape, and the largest page, with 1 000 tasks and 100 000 runs.
const PAGE_TIME: Duration = Duration::from_millis(50);
const SCRAPE_TIME: Duration = Duration::from_millis(20);
const PAGE_BYTES: usize = 200_000;
/// How much later a task may start under load.
const LATER: Duration = Duration::from_millis(50);

/// Requests for each page.
const REQUESTS: usize = 20;
/// The handlers of the rows, except for one: its runs wait.
const HANDLERS: usize = 9;

/// The sizes of a file. `of_one`: additional runs of the first task.
struct Size {
    tasks: usize,
    runs: usize,
    of_one: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let seconds = arguments.iter().position(|argument| argument == "--seconds");
    let seconds = seconds.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(30);
    let mut missed = Vec::new();
    let first = Size { tasks: 1_000, runs: 100_000, of_one: 0 };
    measure(&first, &mut missed, |file, address, missed| load::lateness(file, address, seconds, missed));
    if !has("--quick") {
        // The goals are for the first file. These show what grows.
        let more = [
            Size { tasks: 1_000, runs: 100_000, of_one: 600_000 },
            Size { tasks: 1_000, runs: 1_000_000, of_one: 0 },
            Size { tasks: 100_000, runs: 100_000, of_one: 0 },
        ];
        for size in more {
            measure(&size, &mut Vec::new(), |_, _, _| {});
        }
    }
    for goal in &missed {
        println!("missed: {goal}");
    }
    if has("--check") && !missed.is_empty() {
        std::process::exit(1);
    }
}

/// Prints the cost of each page over a file of this size, and calls `then` while the page is served.
fn measure(size: &Size, missed: &mut Vec<String>, then: impl FnOnce(&Scheduler, SocketAddr, &mut Vec<String>)) {
    let home = tempfile::tempdir().expect("a folder for the bench");
    let file = home.path().join("page.db");
    fill(&file, size);
    // Three runs that run, so that pages show them.
    let stop = std::sync::Arc::new(AtomicUsize::new(0));
    let (begun, stopping) = (stop.clone(), stop.clone());
    let mut builder = Scheduler::builder(&file)
        .workers(4)
        .page(Page::on("127.0.0.1:0").actions())
        .handler("long", move |run: &Context| {
            begun.fetch_add(1, Ordering::Relaxed);
            run.progress("half <done>");
            while !run.is_cancelled() && stopping.load(Ordering::Relaxed) < 1000 {
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok::<_, std::fmt::Error>(())
        })
        .handler("tick", load::tick);
    for handler in 0..HANDLERS {
        builder = builder.handler(format!("work-{handler}"), |_: &Context| Ok::<_, std::fmt::Error>(()));
    }
    let scheduler = builder.start().expect("a scheduler");
    for name in ["long-1", "long-2", "long-3"] {
        scheduler.add(NewTask::manual(name).handler("long")).expect("a task");
        scheduler.trigger(name).expect("a run");
    }
    while stop.load(Ordering::Relaxed) < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let address = scheduler.page_address().expect("a page");
    println!("\n{} tasks, {} runs, {} more of one task; {REQUESTS} requests", size.tasks, size.runs, size.of_one);
    println!("{:<44} {:>6} {:>10} {:>10} {:>10}", "", "status", "median ms", "most ms", "bytes");
    for path in paths(&file) {
        let mut times = Vec::with_capacity(REQUESTS);
        let (mut status, mut bytes) = (0, 0);
        for _ in 0..REQUESTS {
            let begin = Instant::now();
            (status, bytes) = http::get(address, &path);
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        let (median, most) = (times[REQUESTS / 2], times[REQUESTS - 1]);
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let short: String = path.chars().take(44).collect();
        println!("{short:<44} {status:>6} {:>10.2} {:>10.2} {bytes:>10}", millis(median), millis(most));
        let goal = if path == "/metrics" { SCRAPE_TIME } else { PAGE_TIME };
        // `/healthz` answers 503: the rows have problems.
        if status != 200 && path != "/healthz" {
            missed.push(format!("{short}: expected status 200, found {status}"));
        }
        if median > goal {
            missed.push(format!("{short}: expected at most {goal:?}, found {median:?}"));
        }
        // The API answers with whole rows, however long their texts are.
        if bytes > PAGE_BYTES && !path.starts_with("/api/") {
            missed.push(format!("{short}: expected at most {PAGE_BYTES} bytes, found {bytes}"));
        }
    }
    then(&scheduler, address, missed);
    stop.store(1000, Ordering::Relaxed);
    scheduler.shutdown(Duration::from_secs(60)).expect("a shutdown");
}

/// Every page, and the worst case of each: the task with the most runs, the run with the longest texts.
fn paths(file: &Path) -> Vec<String> {
    let of_rows = Connection::open(file).and_then(|db| {
        db.query_row(
            "SELECT (SELECT id FROM task_runs WHERE length(output) > 100000),
                    (SELECT name FROM scheduled_tasks WHERE id = 1),
                    (SELECT max(id) FROM task_runs WHERE status = 'queued'),
                    (SELECT max(id) FROM task_runs WHERE status = 'running')",
            [],
            |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?, row.get::<_, i64>(3)?)),
        )
    });
    let (large, task, waiting, running) = of_rows.expect("rows");
    let mut paths: Vec<String> = http::PATHS.lines().map(str::to_owned).collect();
    for path in ["/tasks/{task}", "/tasks/{task}?page=2", "/api/tasks/{task}", "/tasks/team-0%2Freport-100"] {
        paths.push(path.replace("{task}", &task.replace('/', "%2F")));
    }
    for run in [large, waiting, running, 1] {
        paths.extend([format!("/runs/{run}"), format!("/api/runs/{run}")]);
    }
    paths
}

/// Creates the file. Its times are relative to the real clock.
fn fill(file: &Path, size: &Size) {
    drop(Client::open(file).expect("a database"));
    let now = Timestamp::now().as_millis();
    let Size { tasks, runs, of_one } = size;
    let db = Connection::open(file).expect("the database");
    let rows = format!(
        "PRAGMA synchronous = OFF;
         BEGIN;
         CREATE TEMP TABLE size AS SELECT {tasks} AS tasks, {runs} AS runs, {now} AS now;
         {}
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {of_one})
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, concurrency_key, started_at,
                                finished_at, duration_ms, output)
         SELECT 1, 'work-1', {now} - 700000000 + i * 1000, 'manual', 'succeeded', {now} - 700000000 + i * 1000, 1, '#1',
                {now} - 700000000 + i * 1000, {now} - 699999000 + i * 1000, 1000, 'done' FROM n WHERE {of_one} > 0;
         COMMIT;",
        include_str!("rows.sql")
    );
    db.execute_batch(&rows).expect("rows");
}
