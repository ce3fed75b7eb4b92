//! One measurement, of duly or of the bare loop, for `benches/peers/run`: the same arguments and the same output as its
//! programs for other schedulers, `single duly|bare drain|add-one|add-batch COUNT normal|full FILE`.

use std::path::{Path, PathBuf};

use duly::{Client, Durability, NewTask, Scheduler, Timestamp};
use rusqlite::Connection;

use crate::bare::Bare;
use crate::measure::{Moment, Round, Watch, wall_nanos};
use crate::workloads::{DURABILITIES, LONG_AGO, drain, overdue};

const USAGE: &str = "single duly|bare drain|add-one|add-batch COUNT normal|full FILE";

/// Measures in a new file, and prints the result as a line of JSON.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let [program, workload, count, level, file] = arguments else {
        return Err(format!("expected {USAGE}, found {arguments:?}"));
    };
    let (_, durability, synchronous) = DURABILITIES
        .into_iter()
        .find(|(name, ..)| name == level)
        .ok_or(format!("expected normal or full, found {level:?}"))?;
    let count: usize = count.parse().map_err(|_| format!("expected a number, found {count:?}"))?;
    let file = PathBuf::from(file);
    let (round, synchronous) = match program.as_str() {
        "bare" => bare(&file, workload, count, synchronous)?,
        "duly" => (duly(&file, workload, count, durability)?, None),
        other => return Err(format!("expected duly or bare, found {other:?}")),
    };
    let connection = Connection::open(&file).expect("the database");
    let text = |query: &str| connection.query_row(query, [], |row| row.get::<_, String>(0)).expect("a text");
    println!(
        "{}",
        serde_json::json!({
            "seconds": round.time.as_secs_f64(),
            "cpu_seconds": round.cpu,
            "jobs": count,
            "journal_mode": text("PRAGMA journal_mode"),
            // The connection of duly cannot be reached.
            "synchronous": synchronous,
            "sqlite": text("SELECT sqlite_version()"),
        })
    );
    Ok(())
}

fn bare(file: &Path, workload: &str, count: usize, synchronous: &str) -> Result<(Round, Option<i64>), String> {
    let mut bare = Bare::open(file, synchronous);
    let level = bare.synchronous();
    let round = match workload {
        "drain" => {
            bare.add(count, LONG_AGO);
            bare.drain(file, count)
        }
        "add-one" => timed(file, || bare.add_one_by_one(count, tomorrow())),
        "add-batch" => timed(file, || bare.add(count, tomorrow())),
        other => return Err(format!("expected drain, add-one or add-batch, found {other:?}")),
    };
    let table = if workload == "drain" { "runs" } else { "tasks" };
    assert_eq!(rows(file, table), count, "all of them are stored");
    Ok((round, Some(level)))
}

fn duly(file: &Path, workload: &str, count: usize, durability: Durability) -> Result<Round, String> {
    let client = Client::open(file).expect("a database");
    if workload == "drain" {
        client.add_all(overdue("task", count)).expect("new tasks");
        drop(client);
        let round = drain(file, count, durability);
        assert_eq!(rows(file, "task_runs WHERE status = 'succeeded'"), count, "every outcome is stored");
        return Ok(round);
    }
    // A client has the durability of its scheduler, which sleeps: the tasks are due in a day.
    let scheduler = Scheduler::builder(file).durability(durability).start().expect("a scheduler");
    let client = if matches!(durability, Durability::Full) { &client } else { scheduler.client() };
    let due = Timestamp::from_millis(tomorrow());
    let task = |n: usize| NewTask::once(format!("task-{n}"), due).handler("none");
    let round = match workload {
        "add-one" => timed(file, || {
            for n in 0..count {
                client.add(task(n)).expect("a new task");
            }
        }),
        "add-batch" => timed(file, || drop(client.add_all((0..count).map(task)).expect("new tasks"))),
        other => return Err(format!("expected drain, add-one or add-batch, found {other:?}")),
    };
    assert_eq!(rows(file, "scheduled_tasks"), count, "all of them are stored");
    Ok(round)
}

fn timed(file: &Path, work: impl FnOnce()) -> Round {
    let (watch, begin) = (Watch::begin(file), Moment::now());
    work();
    watch.end(begin, Moment::now())
}

fn rows(file: &Path, table: &str) -> usize {
    let connection = Connection::open(file).expect("the database");
    let count: i64 =
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("a number");
    usize::try_from(count).expect("a count")
}

/// A day from now, in milliseconds.
fn tomorrow() -> i64 {
    wall_nanos() / 1_000_000 + 86_400_000
}
