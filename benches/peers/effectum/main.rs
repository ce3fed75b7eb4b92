//! effectum: a queue with a writer thread, which stores queued operations in one transaction; outcomes stay in `jobs`.
//!
//! It sets `synchronous = NORMAL` itself, and has no setting for it. Its writer's connection cannot be reached, so only the
//! journal mode is read.

#[path = "../peer.rs"]
mod peer;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use peer::{Arguments, Calls, Cost, DAY, LONG_AGO, PATIENCE, Watch, Workload, unavailable};
use rusqlite::Connection;
use time::OffsetDateTime;

/// Jobs at once. With 10, as in effectum's example, it drains seven times slower; with more workers, or more jobs, no faster.
const CONCURRENCY: u16 = 200;

#[tokio::main]
async fn main() {
    let Arguments { workload, count, synchronous, file } = Arguments::read();
    if synchronous == Some("FULL") {
        unavailable("effectum sets synchronous = NORMAL, and has no setting for it");
    }
    let cost = match workload {
        Workload::Drain => drain(&file, count).await,
        Workload::AddOne => {
            let queue = Queue::new(&file).await.expect("a queue");
            let watch = Watch::begin();
            for _ in 0..count {
                job(tomorrow()).add_to(&queue).await.expect("a new job");
            }
            watch.end()
        }
        Workload::AddBatch => {
            let queue = Queue::new(&file).await.expect("a queue");
            let watch = Watch::begin();
            let jobs = (0..count).map(|_| job(tomorrow()).build()).collect();
            queue.add_jobs(jobs).await.expect("new jobs");
            watch.end()
        }
    };
    let connection = Connection::open(&file).expect("the file");
    let stored = number(&connection, "SELECT count(*) FROM jobs");
    assert_eq!(stored, count, "all of them are stored");
    let journal: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("a mode");
    cost.print(count, &journal, None, rusqlite::version());
}

async fn drain(file: &Path, count: usize) -> Cost {
    let queue = Queue::new(file).await.expect("a queue");
    let due = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(LONG_AGO);
    queue.add_jobs((0..count).map(|_| job(due).build()).collect()).await.expect("new jobs");
    queue.close(PATIENCE).await.expect("a closed queue");

    let queue = Queue::new(file).await.expect("the same queue");
    let reader = Connection::open(file).expect("the file");
    let calls = Arc::new(Calls::default());
    let watch = Watch::begin();
    let runner = JobRunner::builder("none", |_: RunningJob, calls: Arc<Calls>| async move {
        calls.add();
        Ok::<_, String>(())
    });
    let worker = Worker::builder(&queue, calls.clone()).jobs([runner.build()]).max_concurrency(CONCURRENCY);
    let _worker = worker.build().await.expect("a worker");
    let finish = async {
        // An outcome is stored after its handler returned; `active_jobs` has a row until then.
        while calls.count() < count || number(&reader, "SELECT count(*) FROM active_jobs") > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        watch.end()
    };
    let cost = tokio::time::timeout(PATIENCE, finish).await.expect("all of them, in time");
    assert_eq!(calls.count(), count, "each once");
    assert_eq!(number(&reader, "SELECT count(*) FROM jobs WHERE status = 'succeeded'"), count);
    cost
}

fn job(due: OffsetDateTime) -> effectum::JobBuilder {
    Job::builder("none").run_at(due)
}

fn tomorrow() -> OffsetDateTime {
    OffsetDateTime::from(SystemTime::now()) + Duration::from_secs(DAY)
}

fn number(connection: &Connection, query: &str) -> usize {
    let found: i64 = connection.query_row(query, [], |row| row.get(0)).expect("a number");
    usize::try_from(found).expect("a count")
}
