//! The tasks of `torture`: handlers, policies, and what the checker expects of each.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::{Misfire, NewTask, Overlap, RetryPolicy, Timestamp};
use serde_json::{Value, json};

use crate::fixtures::TestDb;
use crate::kills::handlers::FINISH;
use crate::kills::journal::{OF_RUN, OF_TASK, probe, sleep};
use crate::selftest::checker::Expectation;

/// A task that is not edited, and due on a grid.
struct Grid {
    name: &'static str,
    handler: &'static str,
    every: u64,
    takes: u64,
    overlap: Overlap,
    fails_first: bool,
    at_most_once: bool,
}

const PLAIN: Grid = Grid {
    name: "",
    handler: "closure",
    every: 0,
    takes: 0,
    overlap: Overlap::Skip,
    fails_first: false,
    at_most_once: false,
};

const GRIDS: [Grid; 11] = [
    Grid { name: "short", every: 200, takes: 5, ..PLAIN },
    Grid { name: "slow", every: 500, takes: 900, ..PLAIN },
    Grid { name: "buffered", every: 700, takes: 150, overlap: Overlap::BufferAll, ..PLAIN },
    Grid { name: "beside-itself", every: 900, takes: 1100, overlap: Overlap::Allow, ..PLAIN },
    Grid { name: "replaced", every: 800, takes: 1000, overlap: Overlap::CancelRunning, ..PLAIN },
    Grid { name: "failing", every: 600, takes: 10, fails_first: true, ..PLAIN },
    Grid { name: "at-most-once", every: 300, takes: 20, at_most_once: true, ..PLAIN },
    Grid { name: "with-rows", handler: FINISH, every: 400, takes: 10, fails_first: true, ..PLAIN },
    Grid { name: "command", handler: "command", every: 500, takes: 30, ..PLAIN },
    Grid { name: "long-command", handler: "command", every: 1300, takes: 1500, overlap: Overlap::BufferOne, ..PLAIN },
    Grid { name: "command-once", handler: "command", every: 900, takes: 300, at_most_once: true, ..PLAIN },
];

/// Tasks that are edited by SQL while they run; their due times are not known beforehand.
pub(crate) const EDITED: [&str; 3] = ["edited-1", "edited-2", "edited-3"];
/// Tasks that run only when triggered.
pub(crate) const TRIGGERED: [&str; 2] = ["triggered-closure", "triggered-command"];
/// Exceeds its time limit each time, and its `on_dead` task.
const LATE: &str = "late";
const ON_DEAD: &str = "on-dead";

/// Runs of a task that are `alone` take its lock, others that of their run.
fn payload(db: &TestDb, handler: &str, millis: u64, fails_first: bool, alone: bool) -> Value {
    match handler {
        "command" => {
            json!({ "argv": ["sh", "-c", probe(db.home(), if alone { OF_TASK } else { OF_RUN }, &sleep(millis))] })
        }
        _ => json!({ "millis": millis, "fails_first": fails_first }),
    }
}

fn with_fast_retries(task: NewTask, max_attempts: u32) -> NewTask {
    task.retry(RetryPolicy {
        max_attempts,
        backoff: Duration::from_millis(20),
        max_backoff: Duration::from_millis(200),
    })
}

/// Returns every task, due from one instant to another, and what the checker expects of it.
pub(crate) fn tasks(db: &TestDb, from: Timestamp, to: Timestamp) -> Vec<(NewTask, Expectation)> {
    let mut all = Vec::new();
    for Grid { name, handler, every, takes, overlap, fails_first, at_most_once } in GRIDS {
        let every = Duration::from_millis(every);
        let task = NewTask::interval(name, every).starts_at(from).ends_at(to).handler(handler);
        let alone = overlap != Overlap::Allow;
        let task = task.payload(payload(db, handler, takes, fails_first, alone)).overlap(overlap);
        // After a clock that ran ahead, a row is enough for a missed occurrence.
        let task = with_fast_retries(task, if at_most_once { 1 } else { 100_000 })
            .misfire(Misfire::RunOnce, Duration::from_secs(2));
        let instants = std::iter::successors(Some(from), |at| Some(at.plus(every))).take_while(|at| *at <= to);
        let due: BTreeSet<Timestamp> = instants.collect();
        all.push((task, Expectation { task: name.to_owned(), due: Some(due), at_most_once, alone }));
    }
    let open = |name: &str| Expectation { task: name.to_owned(), due: None, at_most_once: false, alone: true };
    for (name, handler) in EDITED.into_iter().zip(["closure", "closure", "command"]) {
        let task = NewTask::interval(name, Duration::from_millis(700)).starts_at(from).ends_at(to).handler(handler);
        all.push((with_fast_retries(task.payload(payload(db, handler, 100, false, true)), 100_000), open(name)));
    }
    for (name, handler) in TRIGGERED.into_iter().zip(["closure", "command"]) {
        let task = NewTask::once(name, Timestamp::MAX).handler(handler).payload(payload(db, handler, 50, false, true));
        all.push((with_fast_retries(task, 100_000), open(name)));
    }
    let on_dead = NewTask::once(ON_DEAD, Timestamp::MAX).handler("closure").payload(json!({}));
    all.push((with_fast_retries(on_dead, 100_000), open(ON_DEAD)));
    let late = NewTask::interval(LATE, Duration::from_millis(1500)).starts_at(from).ends_at(to).handler("command");
    let late =
        late.payload(payload(db, "command", 3_000, false, true)).timeout(Duration::from_millis(300)).on_dead(ON_DEAD);
    all.push((with_fast_retries(late, 2), open(LATE)));
    all
}
