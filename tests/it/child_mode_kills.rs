//! Applications in Python and Node.js, killed with SIGKILL; duly, their child, killed; and both. No run of a task that may start only once starts
//! twice, no attempt starts beside a living one, and no run is lost. `DULY_ROUNDS` sets the number of kills.
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};

use duly::{NewTask, RunFilter, RunStatus};

use crate::disk::tools::succeeds;
use crate::fixtures::{Process, TestDb, eventually, number, overdue, retry_soon, skip};
use crate::sidecar::signal;

/// Kills without `DULY_ROUNDS`.
const ROUNDS: usize = 4;
/// Tasks of each kind that a round adds.
const TASKS: usize = 4;

struct Bot<'a> {
    db: &'a TestDb,
    command: [&'static str; 2],
}

impl Bot<'_> {
    fn start(&self) -> Process {
        let [interpreter, script] = self.command;
        let mut command = Command::new(interpreter);
        command.arg(script).arg(self.db.home()).arg(self.db.file()).arg(env!("CARGO_BIN_EXE_duly"));
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// The lines of the journal that begin with a word.
    fn journal(&self, word: &str) -> Vec<String> {
        let journal = std::fs::read_to_string(self.db.home().join("journal")).unwrap_or_default();
        journal.lines().filter(|line| line.starts_with(word)).map(str::to_owned).collect()
    }

    /// Kills the newest duly that is registered, if it lives.
    fn kill_duly(&self) {
        let pid = self.db.ask("SELECT pid FROM scheduler_instances ORDER BY started_at DESC, rowid DESC LIMIT 1");
        if std::path::Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok_and(|exe| exe.ends_with("duly")) {
            signal("KILL", &pid);
        }
    }
}

fn survives(command: [&'static str; 2]) {
    if !succeeds(command[0], &["--version"]) {
        return skip(&format!("no {}", command[0]));
    }
    let (db, client) = TestDb::with_client();
    let bot = Bot { db: &db, command };
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let mut application = bot.start();
    for round in 0..number("DULY_ROUNDS", ROUNDS) {
        let begun = bot.journal("begin").len();
        for task in 0..TASKS {
            let name = |kind: &str| format!("{kind}-{round}-{task}");
            let once: NewTask = overdue(&name("once")).handler("work");
            client.add(once.at_most_once()).unwrap();
            client.add(retry_soon(overdue(&name("again")).handler("work"), 1000)).unwrap();
        }
        let more = random.usize(1..TASKS);
        eventually("some of them have begun", || bot.journal("begin").len() >= begun + more);
        let whom = random.u8(0..3);
        if whom > 0 {
            bot.kill_duly();
        }
        if whom != 1 {
            application.kill();
            application = bot.start();
        }
    }
    let unfinished = "SELECT count(*) FROM task_runs WHERE status IN ('queued', 'running', 'failed')";
    let unopened = "SELECT count(*) FROM scheduled_tasks WHERE status = 'active'";
    eventually("all have ended", || db.ask(unfinished) == "0" && db.ask(unopened) == "0");
    application.kill();
    assert_eq!(bot.journal("twice"), Vec::<String>::new());
    for run in client.runs(&RunFilter::newest(100_000)).unwrap() {
        let begins = bot.journal(&format!("begin {} ", run.task)).len();
        if run.task.starts_with("once") {
            assert!(begins <= 1 && matches!(run.status, RunStatus::Succeeded | RunStatus::Dead), "{run:?}: {begins}");
            assert!(run.status == RunStatus::Dead || begins == 1, "{run:?}: {begins}");
        } else {
            assert!(begins >= 1 && run.status == RunStatus::Succeeded, "{run:?}: {begins}");
        }
    }
}

#[test]
fn of_python() {
    survives(["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/child_mode/bot.py")]);
}

#[test]
fn of_node() {
    survives(["node", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/child_mode/bot.mjs")]);
}
