//! honker: a queue without a worker pool; the caller claims and acknowledges. An acknowledged job's row is deleted.

#[path = "../peer.rs"]
mod peer;

use std::path::Path;
use std::time::SystemTime;

use honker::{Database, EnqueueOpts, QueueOpts};
use peer::{Arguments, Calls, Cost, DAY, LONG_AGO, Watch, Workload};

/// Jobs for each claim, and for each acknowledgement. One by one it is thirty times slower.
const BATCH: i64 = 100;

fn main() {
    let Arguments { workload, count, synchronous, file } = Arguments::read();
    let (cost, database) = match workload {
        Workload::Drain => drain(&file, count, synchronous),
        Workload::AddOne => {
            let database = open(&file, synchronous);
            let (queue, due) = (database.queue("none", QueueOpts::default()), tomorrow());
            let watch = Watch::begin();
            for _ in 0..count {
                queue.enqueue(&(), at(due)).expect("a new job");
            }
            (watch.end(), database)
        }
        Workload::AddBatch => {
            let database = open(&file, synchronous);
            let due = tomorrow();
            let watch = Watch::begin();
            add_all(&database, count, due);
            (watch.end(), database)
        }
    };
    let stored = number(&database, "SELECT count(*) FROM _honker_live");
    let expected = if matches!(workload, Workload::Drain) { 0 } else { count };
    assert_eq!(stored, expected, "all of them");
    let journal: String = database
        .with_conn(|connection| connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)))
        .expect("a mode");
    let level = number(&database, "PRAGMA synchronous") as i64;
    cost.print(count, &journal, Some(level), rusqlite::version());
}

fn drain(file: &Path, count: usize, synchronous: Option<&str>) -> (Cost, Database) {
    let database = open(file, synchronous);
    add_all(&database, count, LONG_AGO as i64);
    drop(database);

    let database = open(file, synchronous);
    assert_eq!(number(&database, "SELECT count(*) FROM _honker_live"), count);
    let (queue, calls) = (database.queue("none", QueueOpts::default()), Calls::default());
    let watch = Watch::begin();
    let mut acknowledged = 0;
    loop {
        let jobs = queue.claim_batch("worker", BATCH).expect("claims");
        if jobs.is_empty() {
            break;
        }
        jobs.iter().for_each(|_| calls.add());
        let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
        acknowledged += queue.ack_batch(&ids, "worker").expect("acknowledgements");
    }
    let cost = watch.end();
    assert_eq!((calls.count(), acknowledged as usize), (count, count), "each once");
    (cost, database)
}

fn open(file: &Path, synchronous: Option<&str>) -> Database {
    let database = Database::open(file).expect("a database");
    if let Some(level) = synchronous {
        database.with_conn(|connection| connection.pragma_update(None, "synchronous", level)).expect("a durability");
    }
    database
}

fn add_all(database: &Database, count: usize, due: i64) {
    let queue = database.queue("none", QueueOpts::default());
    let transaction = database.transaction().expect("a transaction");
    for _ in 0..count {
        queue.enqueue_tx(&transaction, &(), at(due)).expect("a new job");
    }
    transaction.commit().expect("a commit");
}

fn at(due: i64) -> EnqueueOpts {
    EnqueueOpts { run_at: Some(due), ..EnqueueOpts::default() }
}

fn tomorrow() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock that is set");
    (now.as_secs() + DAY) as i64
}

fn number(database: &Database, query: &str) -> usize {
    let found: i64 =
        database.with_conn(|connection| connection.query_row(query, [], |row| row.get(0))).expect("a number");
    usize::try_from(found).expect("a count")
}
