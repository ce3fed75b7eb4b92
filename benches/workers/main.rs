//! Measures handlers in another language: runs that do nothing, carried out by one worker of each client, by an application that has started
//! duly (child mode), and by a process for each run. Elapsed time from the begin of the first run to the end of the last, as the tables show
//! it, and the processor time of the scheduler and of the worker or application. In child mode also the time from the call of the client's
//! `start` to the first handler, of a task that is due.
//!
//! `cargo bench --bench workers [-- RUNS [ROUNDS]]`. Medians; worker and application alternate. A client whose interpreter is missing is left
//! out. Linux only: processor time is read from /proc.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use duly::{Client, NewTask, Timestamp};
use rusqlite::Connection;

/// Fewer runs, where each starts a process.
const COMMANDS: usize = 20;
/// More starts than rounds.
const STARTS: usize = 4;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (runs, rounds) = (numbers.next().unwrap_or(10_000), numbers.next().unwrap_or(5));
    println!("{runs} runs, for commands {}; median of {rounds} rounds", runs / COMMANDS);
    println!("{:<24} {:>10} {:>12} {:>16} {:>16}", "", "seconds", "runs/s", "scheduler us/run", "worker us/run");
    for (interpreter, name) in [("node", "noop.mjs"), ("python3", "noop.py")] {
        if Command::new(interpreter).arg("--version").output().is_err() {
            println!("{interpreter:<24} left out: no {interpreter}");
            continue;
        }
        let script = || Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/workers").join(name);
        let kinds = [Kind::Worker(interpreter, script()), Kind::Application(interpreter, script())];
        let mut measured = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            kinds.iter().zip(&mut measured).for_each(|(kind, measured)| measured.push(round(kind, runs)));
        }
        let worker = print(&format!("worker in {interpreter}"), &measured[0], runs);
        let application = print(&format!("application in {interpreter}"), &measured[1], runs);
        let starts: Vec<f64> = (0..STARTS * rounds).map(|_| first_handler(interpreter, &script())).collect();
        let longest = starts.iter().copied().fold(0.0, f64::max);
        println!(
            "{:<24} {:.2} of the worker's runs/s; first handler {:.1} ms after start, at most {longest:.1} ms of {}",
            "",
            worker / application,
            median(starts.iter().copied()),
            starts.len()
        );
    }
    let measured: Vec<Round> = (0..rounds).map(|_| round(&Kind::Command, runs / COMMANDS)).collect();
    print("a process each", &measured, runs / COMMANDS);
}

/// Who carries out the runs.
enum Kind {
    Command,
    /// An interpreter and its script.
    Worker(&'static str, PathBuf),
    Application(&'static str, PathBuf),
}

/// One round: all in seconds.
#[derive(Clone, Copy)]
struct Round {
    elapsed: f64,
    scheduler: f64,
    worker: f64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the medians, and returns that of the elapsed time.
fn print(name: &str, measured: &[Round], runs: usize) -> f64 {
    let of = |of: fn(&Round) -> f64| median(measured.iter().map(of));
    let each = |seconds: f64| seconds * 1e6 / runs as f64;
    let elapsed = of(|round| round.elapsed);
    let (scheduler, worker) = (each(of(|round| round.scheduler)), each(of(|round| round.worker)));
    println!("{name:<24} {elapsed:>10.3} {:>12.0} {scheduler:>16.1} {worker:>16.1}", runs as f64 / elapsed);
    elapsed
}

/// An application that starts duly on a file.
fn application(interpreter: &str, script: &Path, db: &Path) -> Command {
    let mut program = Command::new(interpreter);
    program.arg(script).arg(db).arg(env!("CARGO_BIN_EXE_duly"));
    program
}

fn round(kind: &Kind, runs: usize) -> Round {
    let home = tempfile::tempdir().expect("a folder for the bench");
    let db = home.path().join("bench.db");
    let client = Client::open(&db).expect("a client");
    let mut program = match kind {
        Kind::Application(interpreter, script) => application(interpreter, script, &db),
        _ => Command::new(env!("CARGO_BIN_EXE_duly")),
    };
    if !matches!(kind, Kind::Application(..)) {
        program.arg("--db").arg(&db).arg("run");
    }
    if let Kind::Worker(interpreter, script) = kind {
        program.arg("--worker").arg(format!("noop={interpreter} '{}'", script.display()));
    }
    program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut parent = program.spawn().expect("the program");
    let mut log = BufReader::new(parent.stderr.take().expect("its log")).lines().map_while(Result::ok);
    let ready = if matches!(kind, Kind::Command) { "scheduler started" } else { ": ready, " };
    assert!(log.any(|line| line.contains(ready)), "the scheduler ended");
    // Its log is read on, so that it does not wait for it.
    let log = thread::spawn(move || log.count());
    let (scheduler, worker) = match kind {
        Kind::Command => (parent.id(), None),
        Kind::Worker(..) => (parent.id(), Some(child_of(parent.id()))),
        Kind::Application(..) => (child_of(parent.id()), Some(parent.id())),
    };
    let before = (cpu(scheduler), worker.map_or(0.0, cpu));
    let past: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let task = |n: usize| {
        let task = NewTask::once(format!("t-{n}"), past);
        match kind {
            Kind::Command => task.handler("command").payload(std::collections::BTreeMap::from([("argv", ["true"])])),
            _ => task.handler("noop"),
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
    let used = (cpu(scheduler) - before.0, worker.map_or(0.0, cpu) - before.1);
    let span = "SELECT (max(finished_at) - min(started_at)) / 1000.0 FROM task_runs";
    let elapsed = reader.query_row(span, [], |row| row.get(0)).expect("the times");
    stop(&mut parent);
    // An application has ended before its duly.
    log.join().expect("its log");
    Round { elapsed, scheduler: used.0, worker: used.1 }
}

/// Returns the milliseconds from the call of `start` to the first handler.
fn first_handler(interpreter: &str, script: &Path) -> f64 {
    let home = tempfile::tempdir().expect("a folder for the bench");
    let db = home.path().join("bench.db");
    let past: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    Client::open(&db).and_then(|client| client.add(NewTask::once("t", past).handler("noop"))).expect("a task");
    let mut program = application(interpreter, script, &db);
    let mut parent =
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let mut line = String::new();
    BufReader::new(parent.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    stop(&mut parent);
    BufReader::new(parent.stderr.take().expect("its log")).lines().map_while(Result::ok).for_each(drop);
    line.trim().parse().expect("milliseconds")
}

/// The processor time of a process, in seconds.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name: the state, ten numbers, and the time in the program and in the kernel, in hundredths of a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// The child of a process that is not its guard.
fn child_of(pid: u32) -> u32 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children = children.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let is_guard = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"--guard"))
    };
    children.filter_map(|pid| pid.parse().ok()).find(|pid| !is_guard(pid)).expect("a child")
}

fn stop(parent: &mut Child) {
    let pid = rustix::process::Pid::from_child(parent);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    parent.wait().expect("its end");
}
