//! A task with very many waiting runs is paused, resumed, looked at, emptied and removed, beside a task that is due each second and a
//! writer that adds tasks: how late the one starts, how long the other waits, and how long a statement takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use duly::{Client, Context, Limits, NewTask, Overlap, Scheduler, Timestamp};

use crate::measure::{forget_memory, median, most_memory};
use crate::workloads::timed;

const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);

/// How long the statements of other sessions have taken until now, without those that wait for a lock.
const STATEMENTS: &str = "
    SELECT coalesce(max(1000 * extract(epoch FROM clock_timestamp() - query_start))::float8, 0) FROM pg_stat_activity
     WHERE state = 'active' AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND wait_event_type IS DISTINCT FROM 'Lock'";

/// Fills the schema, and prints the figures.
pub(crate) fn run(address: &str, server: &mut postgres::Client, runs: usize) {
    let client = Client::open(address).expect("the database");
    client.add(NewTask::manual("crowd").handler("absent").overlap(Overlap::Allow)).expect("a task");
    let schema = address.split_once("?schema=").expect("an address with a schema").1;
    let waiting = format!(
        "SET search_path = {schema}; SET duly.store = 'on';
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
         SELECT t.id, t.handler, t.created_at + n, 'manual', 'queued', t.created_at
           FROM generate_series(1, {runs}) n CROSS JOIN scheduled_tasks t"
    );
    server.batch_execute(&waiting).expect("runs");
    forget_memory();
    let home = tempfile::tempdir().expect("a folder");
    let latest = Arc::new(AtomicU64::new(0));
    let noted = latest.clone();
    let scheduler = Scheduler::builder(address)
        .state_folder(home.path())
        .handler("tick", move |context: &Context| {
            let late = Timestamp::now().since(context.scheduled_for()).as_millis();
            noted.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            Ok::<_, std::fmt::Error>(())
        })
        .start()
        .expect("a scheduler");
    scheduler.add(NewTask::interval("tick", Duration::from_secs(1)).handler("tick")).expect("a task");
    let over = AtomicBool::new(false);
    let (waits, statement) = std::thread::scope(|scope| {
        let statements = scope.spawn(|| {
            let mut longest = 0.0;
            while !over.load(Ordering::Relaxed) {
                longest = f64::max(longest, server.query_one(STATEMENTS, &[]).expect("the sessions").get(0));
                std::thread::sleep(PAUSE);
            }
            longest
        });
        let adds = scope.spawn(|| {
            let (mut waits, year) = (Vec::new(), Duration::from_secs(31_536_000));
            while !over.load(Ordering::Relaxed) {
                let task = NewTask::once_in(format!("later-{}", waits.len()), year).handler("later");
                waits.push(timed(|| drop(client.add(task).expect("a task"))).as_secs_f64() * 1e3);
                std::thread::sleep(PAUSE);
            }
            waits
        });
        let paused = timed(|| {
            scheduler.pause("crowd").expect("a pause");
            until_written(&scheduler);
        });
        let looked = timed(|| drop(scheduler.check(&Limits::default()).expect("a look for problems")));
        let resumed = timed(|| {
            scheduler.resume("crowd").expect("a resumption");
            until_written(&scheduler);
        });
        let cancelled = timed(|| _ = scheduler.cancel_all("crowd").expect("a cancellation"));
        let removed = timed(|| scheduler.remove("crowd").expect("a removal"));
        over.store(true, Ordering::Relaxed);
        println!(
            "{runs} runs paused in {paused:.2?}, resumed in {resumed:.2?}, cancelled in {cancelled:.2?}, removed in {removed:.2?}; a check takes {looked:.2?}"
        );
        (adds.join().expect("its waits"), statements.join().expect("the longest"))
    });
    scheduler.shutdown(PATIENCE).expect("a shutdown");
    let longest = waits.iter().copied().fold(0.0, f64::max);
    let (median, late) = (median(waits.iter().copied()), latest.load(Ordering::Relaxed));
    println!(
        "add: {} times, median {median:.1} ms, longest {longest:.0} ms; the longest statement {statement:.0} ms; each second, at most \
         {late} ms late; at most {:.0} MiB of memory",
        waits.len(),
        most_memory()
    );
}

fn until_written(client: &Client) {
    let begin = Instant::now();
    while client.task_details("crowd").expect("the task").marked_runs.is_some() {
        assert!(begin.elapsed() < PATIENCE, "in time");
        std::thread::sleep(PAUSE);
    }
}
