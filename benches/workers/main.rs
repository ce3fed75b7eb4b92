//! Measures handlers in another language: runs that do nothing, carried out by one worker of each client, and by a process for each
//! run. Elapsed time from the begin of the first run to the end of the last, as the tables show it, and the processor time of
//! the scheduler and of the worker.
//!
//! `cargo bench --bench workers [-- RUNS [ROUNDS]]`. Medians. A worker whose interpreter is missing is left out. Linux only: processor time is
//! read from /proc.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use duly::{Client, NewTask, Timestamp};
use rusqlite::Connection;

/// Fewer runs, where each starts a process.
const COMMANDS: usize = 20;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (runs, rounds) = (numbers.next().unwrap_or(10_000), numbers.next().unwrap_or(5));
    println!("{runs} runs, for commands {}; median of {rounds} rounds", runs / COMMANDS);
    println!("{:<20} {:>10} {:>12} {:>16} {:>16}", "", "seconds", "runs/s", "scheduler us/run", "worker us/run");
    let script = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/workers").join(name);
    for (interpreter, name) in [("node", "noop.mjs"), ("python3", "noop.py")] {
        if Command::new(interpreter).arg("--version").output().is_err() {
            println!("{interpreter:<20} left out: no {interpreter}");
            continue;
        }
        measure(&format!("worker in {interpreter}"), Some((interpreter, script(name))), runs, rounds);
    }
    measure("a process each", None, runs / COMMANDS, rounds);
}

/// One round: all in seconds.
#[derive(Clone, Copy)]
struct Round {
    elapsed: f64,
    scheduler: f64,
    worker: f64,
}

fn measure(name: &str, worker: Option<(&str, PathBuf)>, runs: usize, rounds: usize) {
    let measured: Vec<Round> = (0..rounds).map(|_| round(worker.as_ref(), runs)).collect();
    let median = |of: fn(&Round) -> f64| {
        let mut values: Vec<f64> = measured.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let each = |seconds: f64| seconds * 1e6 / runs as f64;
    let elapsed = median(|round| round.elapsed);
    let (scheduler, worker) = (each(median(|round| round.scheduler)), each(median(|round| round.worker)));
    println!("{name:<20} {elapsed:>10.3} {:>12.0} {scheduler:>16.1} {worker:>16.1}", runs as f64 / elapsed);
}

fn round(worker: Option<&(&str, PathBuf)>, runs: usize) -> Round {
    let home = tempfile::tempdir().expect("a folder for the bench");
    let db = home.path().join("bench.db");
    let client = Client::open(&db).expect("a client");
    let mut program = Command::new(env!("CARGO_BIN_EXE_duly"));
    program.arg("--db").arg(&db).arg("run").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    if let Some((interpreter, script)) = worker {
        program.arg("--worker").arg(format!("noop={interpreter} '{}'", script.display()));
    }
    let mut scheduler = program.spawn().expect("the program");
    let mut log = BufReader::new(scheduler.stderr.take().expect("its log")).lines().map_while(Result::ok);
    let ready = if worker.is_some() { ": ready, " } else { "scheduler started" };
    assert!(log.any(|line| line.contains(ready)), "the scheduler ended");
    // Its log is read on, so that it does not wait for it.
    let log = thread::spawn(move || log.count());
    let worker_pid = worker.map(|_| child_of(scheduler.id()));
    let before = (cpu(scheduler.id()), worker_pid.map_or(0.0, cpu));
    let past: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let task = |n: usize| {
        let task = NewTask::once(format!("t-{n}"), past);
        match worker {
            Some(_) => task.handler("noop"),
            None => task.handler("command").payload(std::collections::BTreeMap::from([("argv", ["true"])])),
        }
    };
    client.add_all((0..runs).map(task)).expect("tasks");
    let reader = Connection::open(&db).expect("a reader");
    let left = || -> bool {
        let sql = "SELECT count(*) < ?1 FROM task_runs WHERE status = 'succeeded'";
        reader.query_row(sql, [i64::try_from(runs).expect("a number")], |row| row.get(0)).expect("a count")
    };
    while left() {
        thread::sleep(Duration::from_millis(50));
    }
    let used = (cpu(scheduler.id()) - before.0, worker_pid.map_or(0.0, cpu) - before.1);
    let span = "SELECT (max(finished_at) - min(started_at)) / 1000.0 FROM task_runs";
    let elapsed = reader.query_row(span, [], |row| row.get(0)).expect("the times");
    stop(&mut scheduler);
    log.join().expect("its log");
    Round { elapsed, scheduler: used.0, worker: used.1 }
}

/// The processor time of a process, in seconds.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name: the state, ten numbers, and the time in the program and in the kernel, in hundredths of a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// The child of a scheduler that is not its guard.
fn child_of(pid: u32) -> u32 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children = children.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let is_guard = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"--guard"))
    };
    children.filter_map(|pid| pid.parse().ok()).find(|pid| !is_guard(pid)).expect("a worker")
}

fn stop(scheduler: &mut Child) {
    let pid = rustix::process::Pid::from_child(scheduler);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    scheduler.wait().expect("its end");
}
