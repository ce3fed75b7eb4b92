//! Two schedulers with workers in Node.js and Python. In each of `DULY_ROUNDS` rounds a worker, a scheduler or both are killed
//! with SIGKILL at a random moment. Afterwards the journal of the handlers agrees with the tables.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};

use duly::{Client, NewTask, RunStatus};
use rustix::process::{Pid, Signal, kill_process};

use crate::disk::tools::succeeds;
use crate::fixtures::{TestDb, eventually, number, overdue, retry_soon, skip};
use crate::sidecar::{ProcessStat, Sidecar, processes};
use crate::workers::rules::Id;

/// Rounds without `DULY_ROUNDS`.
const ROUNDS: usize = 4;

/// Tasks that each round adds: by turns at most once, with an effect, and two others.
const TASKS: usize = 12;

/// The commands of the workers whose language is installed.
fn workers(db: &TestDb) -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/workers");
    let known = [("node", "kill_worker.mjs"), ("python3", "kill_worker.py")];
    let installed = known.into_iter().filter(|(program, _)| succeeds(program, &["--version"]));
    installed.map(|(program, file)| format!("{program}={program} {folder}/{file} {}", db.home().display())).collect()
}

fn start(db: &TestDb, worker: &str) -> Sidecar {
    let times = "backoff=10ms,term=300ms,starts=1000";
    Sidecar::spawn(db, &["--lease", "10m", "--poll", "100ms", "--worker", worker, "--worker-times", times])
}

fn add(client: &Client, round: usize) {
    for number in 0..TASKS {
        let wait = [0, 20, 100][number % 3];
        let task = |kind: &str, handler: &str| -> NewTask {
            retry_soon(overdue(&format!("{kind}-{round}-{number}")).handler(handler).payload(wait), 1000)
        };
        let added = match number % 4 {
            0 => client.add(task("once", "work").at_most_once()),
            1 => client.add(task("pay", "pay")),
            _ => client.add(task("task", "work")),
        };
        added.expect("a new task");
    }
}

/// Kills the worker of a scheduler, if it has one now. Returns whether it had.
fn kill_worker(sidecar: &Sidecar) -> bool {
    let worker = processes().find(|process| process.is_child_of(sidecar.pid()) && !process.is_guard());
    let pid = worker.and_then(|process| Pid::from_raw(process.pid.cast_signed()));
    pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

#[test]
fn worker_kills_lose_nothing_and_start_no_attempt_twice() {
    let rounds = number("DULY_ROUNDS", ROUNDS);
    let seed = number("DULY_SEED", fastrand::u64(..));
    println!("{rounds} rounds, DULY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (db, client) = TestDb::with_client();
    let workers = workers(&db);
    let [first, .., last] = &*workers.iter().cycle().take(workers.len() * 2).collect::<Vec<_>>() else {
        return skip("no node, no python3");
    };
    if workers.len() < 2 {
        skip(&format!("only {first}"));
    }
    let mut sidecars = [start(&db, first), start(&db, last)];
    let mut killed = [0; 3];
    for round in 0..rounds {
        let before = db.lines("journal").len();
        add(&client, round);
        // At once, or after some of the expected lines.
        let moment = random.usize(0..TASKS + TASKS / 2);
        eventually("enough is done", || db.lines("journal").len() >= before + moment);
        let index = round % 2;
        let what = random.usize(..3);
        killed[what] += 1;
        if what != 1 {
            kill_worker(&sidecars[index]);
        }
        if what != 0 {
            sidecars[index].kill();
            let pid = sidecars[index].pid();
            let next = start(&db, [first, last][index]);
            let left = format!(
                "SELECT count(*) FROM task_runs r JOIN scheduler_instances i ON i.id = r.locked_by WHERE i.pid = {pid}"
            );
            eventually("the dead scheduler has no run", || db.ask(&left) == "0");
            sidecars[index] = next;
        }
    }
    let unfinished = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running', 'failed')";
    eventually("nothing is left to do", || db.ask(unfinished) == "0");
    sidecars.iter_mut().for_each(Sidecar::terminate);
    let journal = Journal::read(&db);
    eventually("no worker is left", || journal.pids.iter().all(|pid| ProcessStat::read(*pid).is_none_or(is_zombie)));
    // A worker that outlived its scheduler for a moment may have left its file: the next start of a scheduler removes it.
    start(&db, first).terminate();
    assert_eq!(db.lock_files(), [""; 0]);
    db.assert_sound();
    journal.assert_recorded(&db, rounds);
    let [worker, scheduler, both] = killed;
    println!("killed: a worker {worker} times, a scheduler {scheduler} times, both {both} times");
}

fn is_zombie(process: ProcessStat) -> bool {
    process.fields[0] == "Z"
}

/// What the handlers have written.
#[derive(Default)]
struct Journal {
    starts: BTreeMap<i64, Vec<u32>>,
    ends: BTreeSet<Id>,
    paid: BTreeMap<i64, Vec<u32>>,
    pids: BTreeSet<u32>,
}

impl Journal {
    /// Reads it, and requires that no two attempts of a run overlap and none starts twice.
    fn read(db: &TestDb) -> Self {
        let mut journal = Journal::default();
        for line in db.lines("journal") {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, run, attempt, pid] = words[..] else { panic!("half a line: {line:?}") };
            let id: Id = (run.parse().expect("a run"), attempt.parse().expect("an attempt"));
            journal.pids.insert(pid.parse().expect("a pid"));
            match what {
                "start" => {
                    let begun = journal.starts.entry(id.0).or_default();
                    assert!(begun.last().is_none_or(|last| *last < id.1), "{line:?} after {begun:?}");
                    begun.push(id.1);
                }
                "end" => {
                    assert_eq!(journal.starts[&id.0].last(), Some(&id.1), "{line:?}: not the newest attempt");
                    assert!(journal.ends.insert(id), "{line:?}: twice");
                }
                "paid" => journal.paid.entry(id.0).or_default().push(id.1),
                _ => panic!("two attempts at once: {line:?}"),
            }
        }
        journal
    }

    /// Compares it with the tables.
    fn assert_recorded(&self, db: &TestDb, rounds: usize) {
        let ids = |query: &str| -> BTreeSet<Id> {
            let id = |row: &String| {
                let (run, attempt) = row.split_once('|').expect("two columns");
                (run.parse().expect("a run"), attempt.parse().expect("an attempt"))
            };
            db.rows(query).iter().map(id).collect()
        };
        let lost = ids("SELECT run_id, attempt FROM task_attempts WHERE outcome = 'lost'");
        let failed = ids("SELECT run_id, attempt FROM task_attempts WHERE outcome = 'failed'");
        let released = ids("SELECT run_id, attempt FROM task_attempts WHERE outcome = 'released'");
        let succeeded = ids("SELECT id, attempt FROM task_runs WHERE status = 'succeeded'");
        let others = "SELECT DISTINCT outcome FROM task_attempts WHERE outcome NOT IN ('lost', 'failed', 'released')";
        assert_eq!(db.rows(others), [""; 0]);
        // A worker that was killed, or an effect in doubt.
        let errors = "SELECT DISTINCT error FROM task_attempts WHERE outcome = 'failed'
            AND error NOT LIKE 'the worker \"%\" ended: killed by SIGKILL%' AND error NOT LIKE '%effect%in doubt%'";
        assert_eq!(db.rows(errors), [""; 0]);
        let starts = self.starts.iter().flat_map(|(run, attempts)| attempts.iter().map(|attempt| (*run, *attempt)));
        for id in starts.clone() {
            let counts = lost.contains(&id) || failed.contains(&id) || succeeded.contains(&id);
            assert!(counts, "attempt {id:?} has started, and does not count; released: {}", released.contains(&id));
        }
        let kind = |kind: &str| {
            db.rows(&format!(
                "SELECT r.id, r.status, r.attempt FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                 WHERE t.name LIKE '{kind}-%'"
            ))
        };
        let rows = |rows: Vec<String>| -> Vec<(i64, String, u32)> {
            let row = |row: &String| {
                let words: Vec<&str> = row.split('|').collect();
                (words[0].parse().expect("a run"), words[1].to_owned(), words[2].parse().expect("an attempt"))
            };
            rows.iter().map(row).collect()
        };
        let (once, pay, task) = (rows(kind("once")), rows(kind("pay")), rows(kind("task")));
        assert_eq!((once.len(), pay.len(), task.len()), (rounds * TASKS / 4, rounds * TASKS / 4, rounds * TASKS / 2));
        for (run, status, attempt) in once.iter().chain(&task) {
            if status == "succeeded" {
                let is_newest = self.starts.get(run).and_then(|starts| starts.last()) == Some(attempt);
                assert!(is_newest && self.ends.contains(&(*run, *attempt)), "run {run} succeeded, and had not");
            }
        }
        for (run, status, _) in &once {
            let begun = self.starts.get(run).map_or(0, Vec::len);
            assert!(begun <= 1, "run {run} may start once, and started {begun} times");
            assert!(status == "succeeded" || status == "dead", "run {run} is {status}");
        }
        for (run, status, _) in &pay {
            let paid = self.paid.get(run).map_or(0, Vec::len);
            assert!(paid <= 1, "run {run} has paid {paid} times");
            assert!(status == "dead" || (status == "succeeded" && paid == 1), "run {run} is {status}, and paid {paid}");
        }
        assert!(task.iter().all(|(_, status, _)| status == "succeeded"), "all the others succeeded");
        let dead = db.count(RunStatus::Dead);
        println!(
            "{} runs, {} starts, {} attempts lost, {} failed, {} released, {dead} runs dead, {} processes",
            once.len() + pay.len() + task.len(),
            starts.count(),
            lost.len(),
            failed.len(),
            released.len(),
            self.pids.len()
        );
    }
}
