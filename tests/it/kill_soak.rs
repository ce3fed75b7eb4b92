//! Two real schedulers on one file, killed with SIGKILL at random, one or both, again and again. As many rounds as
//! `DULY_ROUNDS` says; the lease is so long that nothing may wait for it.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use duly::{Client, NewTask, Overlap, RetryPolicy};

use crate::fixtures::{TestDb, eventually, seconds};
use crate::sidecar::{Sidecar, shell};

/// Rounds where nobody asks for more.
const ROUNDS: usize = 6;
/// Tasks that each of them adds; every fourth may start only once.
const TASKS: usize = 12;

/// A run, and an attempt of it.
type Try = (i64, u32);

/// A line for the shell that says in the file `log` when it starts and when it ends. One that finds another of the same run
/// at work says so: a lock lives as long as the command, or any child of its.
fn probe(db: &TestDb, work: &str) -> String {
    let home = db.home().display();
    format!(
        "me=\"$DULY_RUN_ID $DULY_ATTEMPT $$\"; exec 9>>{home}/lock-$DULY_RUN_ID
         flock -n 9 || echo \"overlap $me\" >>{home}/log
         echo \"start $me\" >>{home}/log; {work}; echo \"end $me\" >>{home}/log"
    )
}

fn soon(task: NewTask) -> NewTask {
    let (backoff, max_backoff) = (Duration::from_millis(10), Duration::from_millis(50));
    task.retry(RetryPolicy { max_attempts: 1000, backoff, max_backoff })
}

fn start(db: &TestDb) -> Sidecar {
    Sidecar::spawn(db, &["--lease", "10m", "--poll", "100ms"])
}

fn lines(db: &TestDb) -> Vec<String> {
    let text = std::fs::read_to_string(db.home().join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn add(db: &TestDb, client: &Client, round: usize) {
    for task in 0..TASKS {
        // Some take a moment, so that they outlive their scheduler; others are over before it has looked.
        let work = ["true", "sleep 0.02", "sleep 0.1"][task % 3];
        let task_of = |name: String| soon(shell(&name, &probe(db, work)));
        let added = match task % 4 {
            0 => client.add(task_of(format!("once-{round}-{task}")).at_most_once()),
            _ => client.add(task_of(format!("task-{round}-{task}"))),
        };
        added.expect("a new task");
    }
}

#[test]
fn whatever_is_killed_and_whenever_each_occurrence_starts_once_or_again_with_a_lost_attempt() {
    let rounds = std::env::var("DULY_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    let seed = std::env::var("DULY_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a seed"));
    println!("{rounds} rounds, DULY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let db = TestDb::new();
    let client = db.client();
    let tick = soon(NewTask::interval("tick", seconds(1)).handler("command").overlap(Overlap::BufferAll));
    let payload = serde_json::json!({ "argv": ["sh", "-c", probe(&db, "sleep 0.01")] });
    client.add(tick.payload(payload)).expect("a task");
    let mut sidecars = [start(&db), start(&db)];
    for round in 0..rounds {
        add(&db, &client, round);
        let before = lines(&db).len();
        // Right away, or after some of what is to be written has been.
        let moment = random.usize(0..TASKS * 2);
        eventually("so much is done", || lines(&db).len() >= before + moment);
        let both = random.u8(..4) == 0;
        let first = random.usize(..2);
        for index in [first, 1 - first].into_iter().take(if both { 2 } else { 1 }) {
            sidecars[index].signal("KILL");
            let _ = sidecars[index].end();
            let pid = sidecars[index].pid();
            let next = start(&db);
            // By another's first turn, or by the next of the one that is left.
            let left = format!(
                "SELECT count(*) FROM task_runs r JOIN scheduler_instances i ON i.id = r.locked_by WHERE i.pid = {pid}"
            );
            eventually("nothing is left with the dead", || db.ask(&left) == "0");
            sidecars[index] = next;
        }
    }
    client.pause("tick").expect("a pause");
    client.cancel_all("tick").expect("what waits is cancelled");
    let unfinished = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running', 'failed')";
    eventually("nothing is left to do", || db.ask(unfinished) == "0");
    sidecars.iter_mut().for_each(Sidecar::leave);
    assert_eq!(std::fs::read_dir(db.home().join("agent.db-owners")).expect("a folder").count(), 0, "nothing is left");
    db.assert_sound();
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE status = 'missed'"), "0");
    assert_told(&db, rounds);
}

/// What the commands wrote, held against what the tables tell.
fn assert_told(db: &TestDb, rounds: usize) {
    let mut starts: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    let mut ends: BTreeSet<Try> = BTreeSet::new();
    for line in lines(db) {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, run, attempt, _pid] = words[..] else { panic!("half a line: {line:?}") };
        let (run, attempt): Try = (run.parse().expect("a run"), attempt.parse().expect("an attempt"));
        assert_ne!(what, "overlap", "attempt {attempt} of run {run} began while another was at work");
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
    // Of the last tick, where the test ended it.
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
            let told = lost.contains(&of) || succeeded.contains(&of) || cancelled.contains(&of);
            assert!(told, "attempt {attempt} of run {run} is told nowhere");
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
