//! Two real schedulers on one file, one or both killed with SIGKILL at random in each of `DULY_ROUNDS` rounds. The lease is too
//! long to wait for.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};

use duly::{Client, NewTask, Overlap, RunStatus};

use crate::fixtures::{TestDb, eventually, number, retry_soon, seconds};
use crate::sidecar::{Sidecar, shell};

/// Rounds without `DULY_ROUNDS`.
const ROUNDS: usize = 6;

/// Tasks that each round adds; every fourth is at-most-once.
const TASKS: usize = 12;

/// A run and its attempt.
type Try = (i64, u32);

/// A shell line that appends its start and its end to the file `log`, and an overlap with another attempt of the same run: a lock
/// lasts as long as the command or any child of it.
fn probe(db: &TestDb, work: &str) -> String {
    let home = db.home().display();
    format!(
        "me=\"$DULY_RUN_ID $DULY_ATTEMPT $$\"; exec 9>>{home}/lock-$DULY_RUN_ID
         flock -n 9 || echo \"overlap $me\" >>{home}/log
         echo \"start $me\" >>{home}/log; {work}; echo \"end $me\" >>{home}/log"
    )
}

fn start(db: &TestDb) -> Sidecar {
    Sidecar::spawn(db, &["--lease", "10m", "--poll", "100ms"])
}

fn add(db: &TestDb, client: &Client, round: usize) {
    for task in 0..TASKS {
        // Some take a moment, in which the guard ends them if their scheduler is killed; others end before its next turn.
        let work = ["true", "sleep 0.02", "sleep 0.1"][task % 3];
        let task_of = |name: String| retry_soon(shell(&name, &probe(db, work)), 1000);
        let added = match task % 4 {
            0 => client.add(task_of(format!("once-{round}-{task}")).at_most_once()),
            _ => client.add(task_of(format!("task-{round}-{task}"))),
        };
        added.expect("a new task");
    }
}

#[test]
fn under_random_kills_each_run_starts_once_or_again_after_a_lost_attempt() {
    let rounds = number("DULY_ROUNDS", ROUNDS);
    let seed = number("DULY_SEED", fastrand::u64(..));
    println!("{rounds} rounds, DULY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (db, client) = TestDb::with_client();
    let tick = NewTask::interval("tick", seconds(1)).handler("command").overlap(Overlap::BufferAll);
    let payload = serde_json::json!({ "argv": ["sh", "-c", probe(&db, "sleep 0.01")] });
    client.add(retry_soon(tick.payload(payload), 1000)).expect("a task");
    let mut sidecars = [start(&db), start(&db)];
    for round in 0..rounds {
        add(&db, &client, round);
        let before = db.lines("log").len();
        // At once, or after some of the expected lines.
        let moment = random.usize(0..TASKS * 2);
        eventually("enough is done", || db.lines("log").len() >= before + moment);
        let both = random.u8(..4) == 0;
        let first = random.usize(..2);
        for index in [first, 1 - first].into_iter().take(if both { 2 } else { 1 }) {
            sidecars[index].kill();
            let pid = sidecars[index].pid();
            let next = start(&db);
            // The new scheduler recovers them in its first turn, or the other one in its next.
            let left = format!(
                "SELECT count(*) FROM task_runs r JOIN scheduler_instances i ON i.id = r.locked_by WHERE i.pid = {pid}"
            );
            eventually("the dead owner has no run", || db.ask(&left) == "0");
            sidecars[index] = next;
        }
    }
    client.pause("tick").expect("a pause");
    client.cancel_all("tick").expect("what waits is cancelled");
    let unfinished = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running', 'failed')";
    eventually("nothing is left to do", || db.ask(unfinished) == "0");
    sidecars.iter_mut().for_each(Sidecar::terminate);
    assert_eq!(db.lock_files(), [""; 0]);
    db.assert_sound();
    assert_eq!(db.count(RunStatus::Missed), 0);
    assert_recorded(&db, rounds);
}

/// Compares what the commands wrote with the tables.
fn assert_recorded(db: &TestDb, rounds: usize) {
    let mut starts: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    let mut ends: BTreeSet<Try> = BTreeSet::new();
    for line in db.lines("log") {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, run, attempt, _pid] = words[..] else { panic!("half a line: {line:?}") };
        let (run, attempt): Try = (run.parse().expect("a run"), attempt.parse().expect("an attempt"));
        assert_ne!(what, "overlap", "attempt {attempt} of run {run} began while another was running");
        let begun = starts.entry(run).or_default();
        if what == "start" {
            assert!(begun.last().is_none_or(|last| *last < attempt), "attempt {attempt} of run {run} after {begun:?}");
            begun.push(attempt);
        } else {
            assert_eq!(begun.last(), Some(&attempt), "run {run}: an attempt ended that was not the newest");
            assert!(ends.insert((run, attempt)), "attempt {attempt} of run {run} ended twice");
        }
    }
    let tries = |query: &str| -> BTreeSet<Try> {
        let pair = |row: &String| {
            let (run, attempt) = row.split_once('|').expect("two columns");
            (run.parse().expect("a run"), attempt.parse().expect("an attempt"))
        };
        db.rows(query).iter().map(pair).collect()
    };
    let lost = tries("SELECT run_id, attempt FROM task_attempts WHERE outcome = 'lost'");
    // The last tick, which the test cancelled.
    let cancelled = tries("SELECT run_id, attempt FROM task_attempts WHERE outcome = 'cancelled'");
    assert!(cancelled.len() <= 1, "{cancelled:?}");
    let succeeded = tries("SELECT id, attempt FROM task_runs WHERE status = 'succeeded'");
    assert_eq!(
        db.ask("SELECT count(*) FROM task_attempts WHERE outcome NOT IN ('lost', 'released', 'cancelled')"),
        "0"
    );
    for (run, attempts) in &starts {
        for attempt in attempts {
            let of = (*run, *attempt);
            let is_recorded = lost.contains(&of) || succeeded.contains(&of) || cancelled.contains(&of);
            assert!(is_recorded, "attempt {attempt} of run {run} is not recorded");
        }
    }
    for (run, attempt) in &succeeded {
        let of = (*run, *attempt);
        assert!(ends.contains(&of) && starts[run].last() == Some(attempt), "run {run} succeeded, and had not");
    }
    let at_most_once = db.rows(
        "SELECT r.id, r.status FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id WHERE t.name LIKE 'once-%'",
    );
    assert_eq!(at_most_once.len(), rounds * TASKS.div_ceil(4));
    for row in &at_most_once {
        let (run, status) = row.split_once('|').expect("two columns");
        let begun = starts.get(&run.parse().expect("a run")).map_or(0, Vec::len);
        assert!(begun <= 1 && (status == "succeeded" || status == "dead"), "run {row} started {begun} times");
    }
    let others = "SELECT count(*) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                   WHERE t.name LIKE 'task-%' AND r.status = 'succeeded'";
    assert_eq!(db.ask(others), (rounds * (TASKS - TASKS.div_ceil(4))).to_string(), "all the others succeeded");
    let count = starts.values().map(Vec::len).sum::<usize>();
    println!("{} runs, {count} starts, {} lost attempts", succeeded.len(), lost.len());
}
