//! Other writers of the file while the scheduler of this process has much to write: how long an application's INSERT into a table of
//! its own waits, on a connection with a busy timeout of five seconds, and how long `Client::add`. docs/tables.md says what they may
//! count on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use duly::testing::Stepper;
use duly::{Client, Context, Event, Filter, Limits, NewTask, Overlap, Retention, RunStatus, Scheduler, Timestamp};
use rusqlite::Connection;

use crate::Options;
use crate::measure::{forget_memory, median, most_memory, wall_nanos};
use crate::report::Report;
use crate::workloads::{Home, LONG_AGO, WORKERS, fill_with_history, overdue};

/// Between two writes of one writer.
const PAUSE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(300);

/// Fills a new file. Returns the work, which ends when everything is stored.
type Scenario = fn(&Path, usize) -> Box<dyn FnOnce()>;

pub(crate) fn run(options: &Options, report: &mut Report) {
    let scenarios: [(&str, usize, usize, Scenario); 6] = [
        ("lost runs recovered", 10_000, 2_000, recovered),
        ("closures drained", 60_000, 5_000, drained),
        ("runs ended by a shutdown", 10_000, 2_000, shut_down),
        ("runs retried by a filter", 100_000, 5_000, retried),
        ("runs deleted by retention", 100_000, 5_000, deleted),
        ("waiting runs paused, resumed and cancelled", 200_000, 5_000, marked),
    ];
    for (name, whole, quick, scenario) in scenarios {
        let count = options.scaled(whole, quick);
        let home = Home::new();
        let file = home.file("others.db");
        drop(Client::open(&file).expect("a database"));
        let work = scenario(&file, count);
        let (took, inserts, adds) = beside(&file, work);
        report.detail(format!("{count} {name} in {:.2} s: INSERT {inserts}; add {adds}", took.as_secs_f64()));
    }
}

/// The waits of one writer.
#[derive(Default)]
struct Waits {
    all: Vec<f64>,
    refused: usize,
}

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let longest = self.all.iter().copied().fold(0.0, f64::max);
        let (count, median) = (self.all.len(), median(self.all.iter().copied()));
        write!(f, "{count} times, median {median:.1} ms, longest {longest:.0} ms, {} refused", self.refused)
    }
}

/// Does the work beside two writers.
fn beside(file: &Path, work: impl FnOnce()) -> (Duration, Waits, Waits) {
    let application = Connection::open(file).expect("the database");
    application.busy_timeout(Duration::from_secs(5)).expect("a timeout");
    application.execute_batch("CREATE TABLE IF NOT EXISTS notes (text TEXT)").expect("a table");
    let client = Client::open(file).expect("the database");
    let over = AtomicBool::new(false);
    let insert = move |_| application.execute("INSERT INTO notes VALUES ('x')", []).is_ok();
    let year = Duration::from_secs(31_536_000);
    let add = |n| client.add(NewTask::once_in(format!("later-{n}"), year).handler("later")).is_ok();
    thread::scope(|scope| {
        let inserts = scope.spawn(|| repeat(&over, insert));
        let adds = scope.spawn(|| repeat(&over, add));
        let begin = Instant::now();
        work();
        let took = begin.elapsed();
        over.store(true, Ordering::Relaxed);
        (took, inserts.join().expect("its waits"), adds.join().expect("its waits"))
    })
}

fn repeat(over: &AtomicBool, mut write: impl FnMut(usize) -> bool) -> Waits {
    let mut waits = Waits::default();
    while !over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        waits.refused += usize::from(!write(waits.all.len()));
        waits.all.push(begin.elapsed().as_secs_f64() * 1e3);
        thread::sleep(PAUSE);
    }
    waits
}

/// Waits until this is so, by looks that take no lock.
fn until(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "in time");
        thread::sleep(PAUSE);
    }
}

fn recovered(file: &Path, count: usize) -> Box<dyn FnOnce()> {
    let mut stepper = Stepper::builder(file, Timestamp::now()).accept("none").start().expect("a stepper");
    stepper.client().add_all(overdue("lost", count)).expect("new tasks");
    while stepper.running().len() < count {
        stepper.step_ahead(count).expect("a turn");
    }
    drop(stepper.crash());
    let file = file.to_owned();
    Box::new(move || {
        let reader = Client::open(&file).expect("the database");
        // Without their handler: they are recovered, and not started.
        let scheduler =
            Scheduler::builder(&file).workers(WORKERS).handler("other", nothing).start().expect("a scheduler");
        until(|| running(&reader) == 0);
        scheduler.shutdown(PATIENCE).expect("a shutdown");
    })
}

fn running(reader: &Client) -> usize {
    let runs = reader.status().expect("a status").runs;
    runs.iter().filter(|(status, _)| *status == RunStatus::Running).map(|(_, runs)| *runs as usize).sum()
}

fn nothing(_: &Context) -> Result<(), std::fmt::Error> {
    Ok(())
}

/// Starts a scheduler, and counts the runs that have succeeded.
fn start(file: &Path) -> (Scheduler, Arc<AtomicUsize>) {
    let stored = Arc::new(AtomicUsize::new(0));
    let counter = stored.clone();
    let scheduler = Scheduler::builder(file).workers(WORKERS).handler("none", nothing).observe(move |event: &Event| {
        if matches!(event, Event::Finished { status: RunStatus::Succeeded, .. }) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    (scheduler.start().expect("a scheduler"), stored)
}

fn drained(file: &Path, count: usize) -> Box<dyn FnOnce()> {
    Client::open(file).and_then(|client| client.add_all(overdue("closure", count))).expect("new tasks");
    let file = file.to_owned();
    Box::new(move || {
        let (scheduler, stored) = start(&file);
        until(|| stored.load(Ordering::Relaxed) == count);
        scheduler.shutdown(PATIENCE).expect("a shutdown");
    })
}

#[cfg(feature = "tokio")]
fn shut_down(file: &Path, count: usize) -> Box<dyn FnOnce()> {
    Client::open(file).and_then(|client| client.add_all(overdue("long", count))).expect("new tasks");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let long = |_: Context| async {
        tokio::time::sleep(PATIENCE).await;
        Ok::<_, std::fmt::Error>(())
    };
    let scheduler = Scheduler::builder(file)
        .runtime(runtime.handle().clone())
        .async_limit(count)
        .async_handler("none", long)
        .start()
        .expect("a scheduler");
    let reader = Client::open(file).expect("the database");
    until(|| running(&reader) == count);
    Box::new(move || {
        // The loop goes on until the end of each run is stored.
        scheduler.shutdown(Duration::ZERO).expect("a shutdown");
        until(|| running(&reader) == 0);
        drop(runtime);
    })
}

#[cfg(not(feature = "tokio"))]
fn shut_down(_: &Path, _: usize) -> Box<dyn FnOnce()> {
    eprintln!("runs ended by a shutdown: not measured (it needs the feature tokio)");
    Box::new(|| ())
}

fn retried(file: &Path, count: usize) -> Box<dyn FnOnce()> {
    fill_with_history(file, 2 * count, wall_nanos() / 1_000_000);
    let rows = Connection::open(file).expect("the database");
    rows.execute("UPDATE task_runs SET status = 'dead' WHERE id % 2", []).expect("dead runs");
    let file = file.to_owned();
    Box::new(move || {
        let (scheduler, stored) = start(&file);
        let dead = Filter::new().handler("none").status(RunStatus::Dead);
        let retried = scheduler.retry_matching(&dead).expect("retries").changed;
        until(|| stored.load(Ordering::Relaxed) >= retried);
        scheduler.shutdown(PATIENCE).expect("a shutdown");
    })
}

fn deleted(file: &Path, count: usize) -> Box<dyn FnOnce()> {
    fill_with_history(file, count, LONG_AGO);
    let file = file.to_owned();
    Box::new(move || {
        let (scheduler, _) = start(&file);
        let keep = Retention { least_runs: 0, ..Retention::default() };
        scheduler.prune(keep).expect("a pass");
        scheduler.shutdown(PATIENCE).expect("a shutdown");
    })
}

/// A task with very many waiting runs is paused, resumed and emptied beside a task that is due each second.
fn marked(file: &Path, count: usize) -> Box<dyn FnOnce()> {
    let crowd = NewTask::manual("crowd").handler("absent").overlap(Overlap::Allow);
    Client::open(file).and_then(|client| client.add(crowd)).expect("a task");
    let rows = Connection::open(file).expect("the database");
    let waiting = "
        INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
        WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
        SELECT t.id, t.handler, t.created_at + i, 'manual', 'queued', t.created_at FROM n CROSS JOIN scheduled_tasks t";
    rows.execute(waiting, [i64::try_from(count).expect("a count")]).expect("runs");
    let file = file.to_owned();
    Box::new(move || {
        let late = Arc::new(AtomicU64::new(0));
        let latest = late.clone();
        forget_memory();
        // No scheduler has the handler of the runs that wait.
        let scheduler = Scheduler::builder(&file)
            .workers(WORKERS)
            .handler("tick", move |context: &Context| {
                let late = Timestamp::now().since(context.scheduled_for()).as_millis();
                latest.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
                Ok::<_, std::fmt::Error>(())
            })
            .start()
            .expect("a scheduler");
        scheduler.add(NewTask::interval("tick", Duration::from_secs(1)).handler("tick")).expect("a task");
        let is_written = || scheduler.task_details("crowd").expect("the task").marked_runs.is_none();
        let paused = timed(|| {
            scheduler.pause("crowd").expect("a pause");
            until(is_written);
        });
        let resumed = timed(|| {
            scheduler.resume("crowd").expect("a resumption");
            until(is_written);
        });
        let looked = timed(|| _ = scheduler.check(&Limits::default()).expect("a look for problems"));
        let cancelled = scheduler.cancel_all("crowd").expect("a cancellation");
        let removed = timed(|| scheduler.remove("crowd").expect("a removal"));
        scheduler.shutdown(PATIENCE).expect("a shutdown");
        let (late, memory) = (late.load(Ordering::Relaxed), most_memory());
        eprintln!(
            "paused in {paused:.2} s, resumed in {resumed:.2} s, {cancelled} cancelled, and removed in {removed:.2} s; a check beside \
             them takes {looked:.2} s; each second, at most {late} ms late; at most {memory:.0} MiB of memory"
        );
    })
}

/// Returns the seconds that it takes.
fn timed(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}
