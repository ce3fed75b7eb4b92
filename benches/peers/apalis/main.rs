//! apalis with its SQLite storage: claims, starts and outcomes in batches; outcomes stay in `Jobs`.
//!
//! `setup` sets `synchronous = OFF` on the connection that it gets, so the pool has one connection, on which the level is
//! set afterwards.

#[path = "../peer.rs"]
mod peer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use futures::stream;
use peer::{Arguments, Calls, Cost, DAY, LONG_AGO, PATIENCE, Watch, Workload};

/// Jobs for each claim, and running at once. The default is 10.
const BATCH: usize = 100;

#[tokio::main]
async fn main() {
    let Arguments { workload, count, synchronous, file } = Arguments::read();
    let pool = open(&file, synchronous).await;
    let mut storage = storage(&pool);
    let tomorrow = || TaskBuilder::new(0).run_after(Duration::from_secs(DAY)).build();
    let cost = match workload {
        Workload::Drain => {
            let overdue = || TaskBuilder::new(0).run_at_timestamp(LONG_AGO).build();
            storage.push_all(stream::iter((0..count).map(|_| overdue()))).await.expect("new jobs");
            drop(storage);
            pool.close().await;
            return drain(&file, count, synchronous).await;
        }
        Workload::AddOne => {
            let watch = Watch::begin();
            for _ in 0..count {
                storage.push_task(tomorrow()).await.expect("a new job");
            }
            watch.end()
        }
        Workload::AddBatch => {
            let watch = Watch::begin();
            storage.push_all(stream::iter((0..count).map(|_| tomorrow()))).await.expect("new jobs");
            watch.end()
        }
    };
    print(&cost, &pool, count, "SELECT count(*) FROM Jobs WHERE status = 'Pending'").await;
}

async fn drain(file: &Path, count: usize, synchronous: Option<&str>) {
    let pool = open(file, synchronous).await;
    // The worker's connection is busy; this one only reads.
    let reader = SqlitePoolOptions::new().connect_with(options(file)).await.expect("the file");
    let calls = Arc::new(Calls::default());
    let done = "SELECT count(*) FROM Jobs WHERE status = 'Done'";
    let counted = calls.clone();
    let watch = Watch::begin();
    let worker = WorkerBuilder::new("worker").backend(storage(&pool)).concurrency(BATCH).build(move |_: u32| {
        counted.add();
        async { Ok::<_, BoxDynError>(()) }
    });
    let running = tokio::spawn(worker.run());
    let finish = async {
        while calls.count() < count || number(&reader, done).await < count as i64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        watch.end()
    };
    let cost = tokio::time::timeout(PATIENCE, finish).await.expect("all of them, in time");
    running.abort();
    assert_eq!(calls.count(), count, "each once");
    print(&cost, &pool, count, done).await;
}

fn options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(file).create_if_missing(true)
}

async fn open(file: &Path, synchronous: Option<&str>) -> SqlitePool {
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options(file)).await.expect("a pool");
    SqliteStorage::setup(&pool).await.expect("tables");
    match synchronous {
        Some("NORMAL") => sqlx::query("PRAGMA synchronous = NORMAL").execute(&pool).await.map(drop),
        Some(_) => sqlx::query("PRAGMA synchronous = FULL").execute(&pool).await.map(drop),
        None => Ok(()),
    }
    .expect("a durability");
    pool
}

fn storage(pool: &SqlitePool) -> SqliteStorage<u32> {
    SqliteStorage::new(pool).with_config(Config::default().queue("none").batch_size(BATCH))
}

/// Prints the result, if the query counts all jobs.
async fn print(cost: &Cost, pool: &SqlitePool, count: usize, stored: &'static str) {
    assert_eq!(number(pool, stored).await, count as i64, "all of them are stored");
    let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(pool).await.expect("a mode");
    let sqlite: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(pool).await.expect("a version");
    cost.print(count, &journal, Some(number(pool, "PRAGMA synchronous").await), &sqlite);
}

async fn number(pool: &SqlitePool, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(pool).await.expect("a number")
}
