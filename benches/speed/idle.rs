//! Idling: a million tasks that are due on another day.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Options;
use crate::bare::Bare;
use crate::measure::{cpu_of, memory_of, wall_nanos};
use crate::report::{Goal, IDLE_CPU, IDLE_MEMORY, Report};
use crate::workloads::{Home, fill_with_future};

/// The program itself, as users run it.
const PROGRAM: Option<&str> = option_env!("CARGO_BIN_EXE_duly");
/// The argument that makes this program the idling bare loop.
pub(crate) const WAIT: &str = "--wait-on";

/// A process that is killed on drop.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(options: &Options, report: &mut Report) {
    let tasks = options.scaled(1_000_000, 100_000);
    let Some(program) = PROGRAM else {
        report.detail("idle: the program was not built (it needs the feature cli)");
        return;
    };
    let home = Home::new();
    let (bare, duly) = (home.file("bare.db"), home.file("duly.db"));
    Bare::open(&bare, "FULL").add(tasks, i64::MAX);
    fill_with_future(&duly, tasks, wall_nanos() / 1_000_000);
    let this = std::env::current_exe().expect("this program");
    let both = [
        start(Command::new(this).arg(WAIT).arg(&bare)),
        start(Command::new(program).arg("--db").arg(&duly).args(["run", "--quiet"])),
    ];
    // Until they have opened their files and finished their first poll.
    std::thread::sleep(Duration::from_secs(2));
    let spent = || both.each_ref().map(|process| cpu_of(process.0.id()).unwrap_or(f64::NAN));
    let (begin, before) = (Instant::now(), spent());
    std::thread::sleep(Duration::from_secs(options.scaled(20, 5) as u64));
    let (minutes, after) = (begin.elapsed().as_secs_f64() / 60.0, spent());
    let memory = both.each_ref().map(|process| memory_of(process.0.id()).unwrap_or(f64::NAN));
    let workload = format!("idle, {tasks} future tasks, a minute");
    let cpu = ((after[0] - before[0]) / minutes, (after[1] - before[1]) / minutes);
    report.figure((workload, "full"), cpu, "s", &Goal::AtMost(IDLE_CPU));
    report.figure(("  .. memory", "full"), (memory[0], memory[1]), "MiB", &Goal::AtMost(IDLE_MEMORY));
}

fn start(command: &mut Command) -> Waiting {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Waiting(child.expect("a process"))
}

/// The idling bare loop, in a process of its own, until it is killed.
pub(crate) fn wait(file: &Path) -> ! {
    Bare::open(file, "FULL").poll()
}
