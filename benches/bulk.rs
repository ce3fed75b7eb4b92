//! Measures the program with many tasks at once: a crontab of 100 000 lines imported, a manifest of as many tasks
//! applied; each again with nothing changed, and with one line edited. Then the cost for a scheduler: its first turn,
//! and a turn in which nothing is due; and the time from the start of `duly run` to the first line about a run. Last, what
//! `list`, `history`, `status` and `show` cost, without runs and with ten runs of each task.
//!
//! `cargo bench --bench bulk [-- TASKS [ROUNDS]]`. Medians; the program is started for each measurement and prints its
//! whole output. Processor time and maximum memory are those that Linux reports; on a shared machine the elapsed time
//! also includes waiting for the processor.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use duly::testing::Stepper;
use duly::{Client, Clock, NewTask, SystemClock};
use rusqlite::Connection;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (tasks, rounds) = (numbers.next().unwrap_or(100_000), numbers.next().unwrap_or(3));
    println!("{tasks} tasks, median of {rounds} rounds");
    println!("{:<32} {:>12} {:>12} {:>12} {:>12}", "", "seconds", "of CPU", "CPU us/task", "MiB");
    let mut last = None;
    for (name, file, line, text) in [
        (
            "import crontab",
            "crontab",
            &["import", "crontab", "--tz", "Europe/Rome"][..],
            crontab as fn(usize, &str) -> String,
        ),
        ("apply", "tasks.toml", &["apply"], manifest),
    ] {
        let mut steps = [const { Vec::new() }; 3];
        let mut turns = [const { Vec::new() }; 2];
        let mut starts = Vec::new();
        for _ in 0..rounds {
            let home = tempfile::tempdir().expect("a folder for the bench");
            let (file, db) = (home.path().join(file), home.path().join("bench.db"));
            std::fs::write(&file, text(tasks, "work")).expect("a file of tasks");
            steps[0].push(run(&db, line, Some(&file)));
            steps[1].push(run(&db, line, Some(&file)));
            std::fs::write(&file, text(tasks, "other")).expect("a file of tasks");
            steps[2].push(run(&db, line, Some(&file)));
            let [first, idle] = look(&db);
            turns[0].push(first);
            turns[1].push(idle);
            starts.push(start(&db));
            last = Some((home, db));
        }
        for (what, step) in ["first", "nothing changed", "one line edited"].iter().zip(&mut steps) {
            print(&format!("{name}, {what}"), step, tasks);
        }
        let [first, after] = turns;
        for (what, mut turn) in [("first turn", first), ("a turn after", after), ("start to first run", starts)] {
            turn.sort_unstable();
            println!("{:<32} {:>12.6}", format!("{name}, {what}"), turn[turn.len() / 2].as_secs_f64());
        }
    }
    let Some((_home, db)) = last else { return };
    for runs in ["no", "ten"] {
        if runs == "ten" {
            Connection::open(&db).and_then(|db| db.execute_batch(TEN_RUNS)).expect("runs");
        }
        for line in ["list", "list --json", "history -n 20", "history t-0", "status", "show t-0"] {
            let words: Vec<&str> = line.split(' ').collect();
            let mut costs: Vec<Run> = (0..rounds).map(|_| run(&db, &words, None)).collect();
            print(&format!("{line}, {runs} runs"), &mut costs, tasks);
        }
    }
}

/// Ten final runs of each task, in the order in which a scheduler would open them.
const TEN_RUNS: &str = "
    WITH RECURSIVE r (i, at) AS (SELECT 0, 1790000000000 UNION ALL SELECT i + 1, at + 604800000 FROM r WHERE i < 9)
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, concurrency_key, started_at,
                           finished_at, duration_ms, exit_code, output)
    SELECT t.id, t.handler, at + t.id, 'schedule', iif((t.id + i) % 97 = 0, 'dead', 'succeeded'), at + t.id, 1, '#' || t.id,
           at + t.id + 3, at + t.id + 250, 200 + (t.id * 7 + i * 13) % 50, 0,
           'processed ' || t.id || ' records, wrote /var/lib/work/' || t.id || '.json'
      FROM r CROSS JOIN scheduled_tasks t";

fn print(name: &str, runs: &mut [Run], tasks: usize) {
    runs.sort_unstable();
    let Run { wall, used, memory } = runs[runs.len() / 2];
    let (seconds, used) = (wall.as_secs_f64(), used.as_secs_f64());
    let each = used * 1e6 / tasks as f64;
    println!("{name:<32} {seconds:>12.2} {used:>12.2} {each:>12.1} {:>12}", memory / 1024);
}

/// `one`: the command of the edited line.
fn crontab(tasks: usize, one: &str) -> String {
    let mut text = String::from("SHELL=/bin/bash\nPATH=/usr/local/bin:/usr/bin:/bin\n");
    for n in 0..tasks {
        let command = if n == tasks / 2 { one } else { "work" };
        writeln!(text, "{} /usr/local/bin/{command} --number {n} >/dev/null 2>&1", times(n)).expect("text");
    }
    text
}

fn manifest(tasks: usize, one: &str) -> String {
    let mut text = String::from("[defaults]\ntime_zone = \"Europe/Rome\"\nmax_attempts = 3\n");
    for n in 0..tasks {
        let command = if n == tasks / 2 { one } else { "work" };
        let times = times(n);
        writeln!(text, "[[task]]\nname = \"t-{n}\"\ncron = \"{times}\"\ncommand = [\"{command}\", \"{n}\"]")
            .expect("text");
    }
    text
}

/// Ten thousand different cron expressions, as if each task had its own time of the week.
fn times(n: usize) -> String {
    format!("{} {} * * {}", n % 60, n / 60 % 24, n / 1440 % 7)
}

/// The cost of one run of the program: elapsed time, processor time, and memory in KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    wall: Duration,
    used: Duration,
    memory: u64,
}

/// Runs the program until it exits.
fn run(db: &Path, line: &[&str], file: Option<&Path>) -> Run {
    let begin = Instant::now();
    let mut program = Command::new(env!("CARGO_BIN_EXE_duly"));
    program.arg("--db").arg(db).args(line).args(file).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = program.spawn().expect("the program");
    let proc_file = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", child.id())).unwrap_or_default();
    let (mut used, mut memory) = (Duration::ZERO, 0);
    loop {
        let status = proc_file("status");
        let peak =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        memory = memory.max(peak.unwrap_or(0));
        // After the name: the state, ten numbers, and the time in the program and in the kernel, in hundredths of a second.
        let stat = proc_file("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        used = used.max(Duration::from_millis(10 * ticks));
        // It is not waited for before that: waiting would remove its `/proc` entry.
        if fields.first().is_none_or(|state| *state == "Z") {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(child.wait().expect("its end").success());
    Run { wall: begin.elapsed(), used, memory }
}

/// The time from the start of `duly run` to the first line about a run: one task is due.
fn start(db: &Path) -> Duration {
    let client = Client::open(db).expect("a client");
    client
        .replace(NewTask::manual("due").handler("command").payload(BTreeMap::from([("argv", ["true"])])))
        .expect("a task");
    client.trigger("due").expect("a run");
    drop(client);
    let begin = Instant::now();
    let mut program = Command::new(env!("CARGO_BIN_EXE_duly"));
    program.arg("--db").arg(db).arg("run").stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = program.stderr(Stdio::piped()).spawn().expect("the program");
    let mut lines = BufReader::new(child.stderr.take().expect("its log")).lines().map_while(Result::ok);
    let first = lines.find(|line| line.contains("] run ")).map(|_| begin.elapsed());
    child.kill().and_then(|()| child.wait()).expect("its end");
    first.expect("a run")
}

/// The first turn of a scheduler on the file, and a later one in which nothing is due.
fn look(db: &Path) -> [Duration; 2] {
    let mut stepper = Stepper::builder(db, SystemClock::new().now().wall).accept("command").start().expect("a stepper");
    [(); 2].map(|()| {
        let begin = Instant::now();
        stepper.step().expect("a turn");
        begin.elapsed()
    })
}
