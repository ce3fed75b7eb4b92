//! The bare queue: the minimum that is durable. One row per job, claims by SKIP LOCKED and outcomes by an array, a hundred to a
//! transaction. No recurring tasks, leases, retries, limits or checks.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls, Statement};

use crate::measure::wall_nanos;

/// Claims and outcomes in one transaction.
pub(crate) const BATCH: usize = 100;

const TABLES: &str = "
    CREATE TABLE jobs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, payload jsonb NOT NULL DEFAULT 'null',
        status text NOT NULL DEFAULT 'queued', run_at bigint NOT NULL, locked_by text, started_at bigint, finished_at bigint);
    CREATE INDEX ready ON jobs (run_at) WHERE status = 'queued'";

const ADD: &str = "INSERT INTO jobs (name, run_at) VALUES ($1, $2)";

const ADD_BATCH: &str = "INSERT INTO jobs (name, run_at) SELECT n, $2 FROM unnest($1::text[]) AS n";

const CLAIM: &str = "
    WITH c AS MATERIALIZED (
        SELECT id FROM jobs WHERE status = 'queued' AND run_at <= $1 ORDER BY run_at LIMIT $2 FOR UPDATE SKIP LOCKED)
    UPDATE jobs j SET status = 'running', locked_by = $3, started_at = $1 FROM c WHERE j.id = c.id RETURNING j.id";

const DONE: &str = "
    UPDATE jobs j SET status = 'succeeded', locked_by = NULL, finished_at = o.finished_at
      FROM unnest($1::bigint[], $2::bigint[]) AS o(id, finished_at)
     WHERE j.id = o.id AND j.locked_by IS NOT DISTINCT FROM $3";

/// A connection to the bare queue of a schema.
pub(crate) struct Bare {
    client: Client,
    claim: Statement,
    done: Statement,
    add: Statement,
    add_batch: Statement,
}

impl Bare {
    /// Creates the schema with its table.
    pub(crate) fn create(address: &str, schema: &str) -> Self {
        let mut client = Client::connect(address, NoTls).expect("a connection");
        client
            .batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {TABLES}"))
            .expect("the table of the bare queue");
        drop(client);
        Self::open(address, schema)
    }

    pub(crate) fn open(address: &str, schema: &str) -> Self {
        let mut client = Client::connect(address, NoTls).expect("a connection");
        client.batch_execute(&format!("SET search_path = {schema}")).expect("a path");
        let [claim, done, add, add_batch] =
            [CLAIM, DONE, ADD, ADD_BATCH].map(|text| client.prepare(text).expect("a statement"));
        Bare { client, claim, done, add, add_batch }
    }

    /// Adds jobs, each in a commit of its own.
    pub(crate) fn add_one_by_one(&mut self, count: usize, at: i64) {
        for n in 0..count {
            self.client.execute(&self.add, &[&format!("job-{n}"), &at]).expect("a job");
        }
    }

    /// Adds jobs, a hundred to a commit.
    pub(crate) fn add_in_batches(&mut self, count: usize, at: i64) {
        let names: Vec<String> = (0..count).map(|n| format!("job-{n}")).collect();
        for names in names.chunks(BATCH) {
            self.client.execute(&self.add_batch, &[&names, &at]).expect("jobs");
        }
    }

    /// Claims a batch, and stores the outcomes. Returns how many, and when they were claimed.
    fn work(&mut self, owner: &str, now: i64) -> (usize, i64) {
        let limit = i64::try_from(BATCH).expect("a small number");
        let rows = self.client.query(&self.claim, &[&now, &limit, &owner]).expect("claims");
        let begun = wall_nanos();
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        if !ids.is_empty() {
            let ends = vec![wall_nanos() / 1_000_000; ids.len()];
            let stored = self.client.execute(&self.done, &[&ids, &ends, &owner]).expect("outcomes");
            assert_eq!(stored, ids.len() as u64, "every outcome is stored");
        }
        (ids.len(), begun)
    }

    /// Runs one job at each of `count` instants, the first at `from`. Returns how late each began, in milliseconds.
    pub(crate) fn keep_time(&mut self, from: i64, every: i64, count: usize) -> Vec<f64> {
        let mut late = Vec::with_capacity(count);
        let mut due = from;
        self.client.execute(&self.add, &[&"tick", &due]).expect("a job");
        while late.len() < count {
            let ahead = due * 1_000_000 - wall_nanos();
            if ahead > 0 {
                std::thread::sleep(Duration::from_nanos(ahead.unsigned_abs()));
                continue;
            }
            let (claimed, begun) = self.work("one", due);
            assert_eq!(claimed, 1, "the job that is due");
            late.push((begun - due * 1_000_000) as f64 / 1e6);
            due += every;
            self.client.execute(&self.add, &[&"tick", &due]).expect("the next job");
        }
        late
    }
}

/// Runs what is due on this number of connections, until the last outcome is stored.
pub(crate) fn drain(address: &str, schema: &str, connections: usize, jobs: usize) -> Duration {
    let barrier = Barrier::new(connections + 1);
    let (time, stored) = std::thread::scope(|scope| {
        let owners: Vec<_> = (0..connections)
            .map(|n| {
                let (mut queue, barrier) = (Bare::open(address, schema), &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let (mut stored, owner) = (0, format!("owner-{n}"));
                    loop {
                        match queue.work(&owner, wall_nanos() / 1_000_000) {
                            (0, _) => return stored,
                            (some, _) => stored += some,
                        }
                    }
                })
            })
            .collect();
        barrier.wait();
        let begin = Instant::now();
        let stored: usize = owners.into_iter().map(|owner| owner.join().expect("an owner")).sum();
        (begin.elapsed(), stored)
    });
    assert_eq!(stored, jobs, "each once");
    time
}
