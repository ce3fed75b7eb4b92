//! `duly run` as a process: shutdown, lost files, idle cost. Also `Sidecar`, which other tests use.
#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use duly::{Client, NewTask, Run, RunStatus};
use serde_json::{Value, json};

use crate::fixtures::{TestDb, at, eventually};

/// A task of the handler `command` that is overdue.
pub(crate) fn command(name: &str, payload: Value) -> NewTask {
    NewTask::once(name, at("2020-01-01T00:00:00Z")).handler("command").payload(payload)
}

/// The same with a command line for the shell.
pub(crate) fn shell(name: &str, line: &str) -> NewTask {
    command(name, json!({ "argv": ["sh", "-c", line] }))
}

/// `duly run` on the file of `db`. It is killed on drop.
pub(crate) struct Sidecar {
    child: Child,
    log: PathBuf,
}

impl Sidecar {
    /// Starts it, and waits until it is registered.
    pub(crate) fn start(db: &TestDb, options: &[&str]) -> Self {
        let sidecar = Self::spawn(db, options);
        let registered = format!("SELECT count(*) FROM scheduler_instances WHERE pid = {}", sidecar.pid());
        eventually("the sidecar is registered", || db.ask(&registered) == "1");
        sidecar
    }

    /// Starts it. Standard error goes to a file.
    pub(crate) fn spawn(db: &TestDb, options: &[&str]) -> Self {
        Self::spawn_with(db, options, &[])
    }

    /// Starts it with additional environment variables.
    pub(crate) fn spawn_with(db: &TestDb, options: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn_by(db, options, Command::new(env!("CARGO_BIN_EXE_duly")).envs(variables.iter().copied()))
    }

    /// Lets another program start it; the command line follows the arguments of that program.
    pub(crate) fn spawn_within(db: &TestDb, options: &[&str], program: &str, arguments: &[&str]) -> Self {
        Self::spawn_by(db, options, Command::new(program).args(arguments).arg(env!("CARGO_BIN_EXE_duly")))
    }

    fn spawn_by(db: &TestDb, options: &[&str], program: &mut Command) -> Self {
        let log = db.home().join(format!("log-{}", fastrand::u64(..)));
        let poll: &[&str] = if options.contains(&"--poll") { &[] } else { &["--poll", "50ms"] };
        let child = program
            .arg("--db")
            .arg(db.file())
            .arg("run")
            .args(poll)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create_new(&log).expect("a log file"))
            .spawn()
            .expect("the sidecar");
        Sidecar { child, log }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard error so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log")
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        signal(name, &self.pid().to_string());
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the sidecar has ended", || {
            status = self.child.try_wait().expect("its status");
            status.is_some()
        });
        status.expect("a status")
    }

    /// Sends SIGTERM, and waits for an end with exit code 0.
    pub(crate) fn leave(&mut self) {
        self.signal("TERM");
        assert_eq!(self.end().code(), Some(0), "{}", self.log());
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            // A panic during a panic would abort all tests.
            eprintln!("--- the sidecar's log\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// Sends a signal to a process, or to a group if its number is negative.
pub(crate) fn signal(name: &str, process: &str) {
    let sent = Command::new("kill").args(["-s", name, "--", process]).status().expect("kill");
    assert!(sent.success(), "cannot send {name} to {process}");
}

/// A named pipe at which a command waits until the test opens it.
pub(crate) struct Gate {
    file: File,
}

impl Gate {
    pub(crate) fn new(db: &TestDb, name: &str) -> Self {
        let path = db.home().join(name);
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        // Open at both ends, so that opening it does not block.
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the pipe");
        Gate { file }
    }

    /// Lets one reader continue.
    pub(crate) fn open(&mut self) {
        self.file.write_all(b"go\n").expect("a line");
    }
}

/// Returns the number of live processes in the group whose ID is in a file. Zombies do not count.
pub(crate) fn group_size(group: &str) -> usize {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    let in_it = |stat: &String| {
        let fields: Vec<&str> = stat[stat.rfind(')').expect("a name") + 2..].split(' ').collect();
        fields[2] == group && !matches!(fields[0], "Z" | "X")
    };
    stats.filter(in_it).count()
}

/// Waits until a file contains a complete line, and returns it.
pub(crate) fn told(db: &TestDb, name: &str) -> String {
    let mut text = String::new();
    eventually(&format!("{name} is written"), || {
        text = std::fs::read_to_string(db.home().join(name)).unwrap_or_default();
        text.ends_with('\n')
    });
    text.trim_end().to_owned()
}

/// Waits until the newest run of a task has a status, and returns it.
pub(crate) fn stands(client: &Client, task: &str, status: RunStatus) -> Run {
    let mut found = None;
    eventually(&format!("the run of {task} is {status}"), || {
        found = client.history(task, 1).expect("a history").pop();
        found.as_ref().is_some_and(|run| run.status == status)
    });
    found.expect("a run")
}

/// A command line that writes its group to `NAME.group`, then waits at the gate `NAME`.
fn waiting(db: &TestDb, name: &str) -> String {
    let path = db.home().join(name);
    let path = path.to_str().expect("a path of UTF-8");
    format!("echo $$ >{path}.group; read line <{path}; echo passed")
}

#[test]
fn a_signal_lets_running_commands_end_and_their_outcome_is_kept() {
    let db = TestDb::new();
    let client = db.client();
    let mut gate = Gate::new(&db, "gate");
    client.add(shell("long", &waiting(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    told(&db, "gate.group");
    sidecar.signal("TERM");
    eventually("it has heard", || sidecar.log().contains("SIGTERM: no more runs are started; running commands: 1"));
    gate.open();
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let run = stands(&client, "long", RunStatus::Succeeded);
    assert_eq!((run.output.as_deref(), run.exit_code, run.attempt), (Some("passed\n"), Some(0), 1));
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL"), "0");
    assert_eq!(std::fs::read_dir(db.home().join("agent.db-owners")).unwrap().count(), 0, "nothing is left");
    db.assert_sound();
}

#[test]
fn commands_that_exceed_the_drain_are_ended_and_run_again() {
    let db = TestDb::new();
    let client = db.client();
    let mut gate = Gate::new(&db, "gate");
    client.add(shell("long", &waiting(&db, "gate"))).unwrap();
    client.add(shell("once", &waiting(&db, "gate-once")).at_most_once()).unwrap();
    let _held = Gate::new(&db, "gate-once");
    let mut sidecar = Sidecar::start(&db, &["--drain", "1s"]);
    let groups = [told(&db, "gate.group"), told(&db, "gate-once.group")];
    sidecar.signal("INT");
    assert_eq!(sidecar.end().code(), Some(3), "{}", sidecar.log());
    assert_eq!(groups.map(|group| group_size(&group)), [0, 0]);
    let run = stands(&client, "long", RunStatus::Failed);
    assert_eq!(run.error.as_deref(), Some("the scheduler stopped before the command had ended: killed by SIGTERM"));
    stands(&client, "once", RunStatus::Dead);

    std::fs::remove_file(db.home().join("gate.group")).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    told(&db, "gate.group");
    gate.open();
    let run = stands(&client, "long", RunStatus::Succeeded);
    assert_eq!((run.attempt, db.ask("SELECT sum(forgiven) FROM task_runs").as_str()), (2, "1"));
    sidecar.leave();
}

#[test]
fn a_second_signal_ends_the_drain() {
    let db = TestDb::new();
    let client = db.client();
    let _gate = Gate::new(&db, "gate");
    client.add(shell("long", &waiting(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--drain", "1h"]);
    let group = told(&db, "gate.group");
    sidecar.signal("TERM");
    eventually("it has heard", || sidecar.log().contains("SIGTERM: no more runs"));
    // A signal that follows at once is the same request.
    eventually("a later one counts", || {
        sidecar.signal("INT");
        sidecar.log().contains("second SIGINT: running commands are ended now")
    });
    assert_eq!(sidecar.end().code(), Some(3), "{}", sidecar.log());
    assert_eq!(group_size(&group), 0);
    stands(&client, "long", RunStatus::Failed);
}

/// A wrapper that forwards a signal, in the same process group, makes it arrive twice.
#[test]
fn two_signals_at_once_are_one_request() {
    let db = TestDb::new();
    let client = db.client();
    let mut gate = Gate::new(&db, "gate");
    client.add(shell("long", &waiting(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--drain", "1h"]);
    told(&db, "gate.group");
    // Both are pending while the process is stopped.
    sidecar.signal("STOP");
    sidecar.signal("TERM");
    sidecar.signal("INT");
    sidecar.signal("CONT");
    let heard = |sidecar: &Sidecar| {
        ["it belongs to the signal before it", "running commands are ended now"]
            .iter()
            .any(|x| sidecar.log().contains(x))
    };
    eventually("it has heard both", || heard(&sidecar));
    gate.open();
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let run = stands(&client, "long", RunStatus::Succeeded);
    assert_eq!((run.output.as_deref(), run.attempt), (Some("passed\n"), 1));
}

#[test]
fn a_shutdown_that_cannot_be_recorded_succeeds_and_the_next_scheduler_detects_it() {
    let db = TestDb::new();
    let client = db.client();
    client.add(shell("fine", "true")).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    stands(&client, "fine", RunStatus::Succeeded);
    let refuse = "CREATE TRIGGER nobody_leaves BEFORE UPDATE OF stopped_at ON scheduler_instances
                  BEGIN SELECT RAISE(ABORT, 'not now'); END";
    db.plain().execute_batch(refuse).unwrap();
    sidecar.leave();
    assert!(sidecar.log().contains("not now; the next scheduler counts this one as dead"), "{}", sidecar.log());
    let (there, left) = ("SELECT count(*) FROM scheduler_instances WHERE stopped_at IS NULL", "agent.db-owners");
    assert_eq!(db.ask(there), "1", "it cannot be recorded");
    db.plain().execute_batch("DROP TRIGGER nobody_leaves").unwrap();
    let mut next = Sidecar::start(&db, &[]);
    eventually("the next has found it out", || db.ask(there) == "1");
    next.leave();
    assert_eq!(std::fs::read_dir(db.home().join(left)).unwrap().count(), 0, "nothing is left");
    db.assert_sound();
}

#[test]
fn until_idle_finishes_all_work_and_exits() {
    let db = TestDb::new();
    let client = db.client();
    let policy = duly::RetryPolicy { backoff: Duration::from_millis(100), ..duly::RetryPolicy::default() };
    let flag = db.home().join("flag");
    // It fails once; the retry is awaited.
    let line = format!("test -e {0} || {{ touch {0}; exit 7; }}", flag.display());
    client.add(shell("second-try", &line).retry(policy)).unwrap();
    client.add(shell("fine", "echo fine")).unwrap();
    client.add(NewTask::once("far", at("3999-01-01T00:00:00Z")).handler("command")).unwrap();
    let mut sidecar = Sidecar::spawn(&db, &["--until-idle"]);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let run = stands(&client, "second-try", RunStatus::Succeeded);
    assert_eq!(client.attempts(run.id).unwrap()[0].error.as_deref(), Some("exit code 7"));
    stands(&client, "fine", RunStatus::Succeeded);
    // Each start and end is a log line with its time; a failure names the next attempt.
    let log = sidecar.log();
    let line = |with: &str| log.lines().find(|line| line.contains(with)).unwrap_or_else(|| panic!("{with}: {log}"));
    let failed = line(r#"of "second-try" failed after"#);
    assert!(failed.contains("(attempt 1 of 5): exit code 7; next attempt at "), "{failed}");
    assert!(failed.starts_with("20") && failed.contains("Z [WARN] run "), "{failed}");
    line(r#"of "fine" started (attempt 1 of 5)"#);
    line(r#"of "fine" succeeded after"#);
}

#[test]
fn a_missing_file_is_created_only_with_an_option() {
    let db = TestDb::new();
    let mut sidecar = Sidecar::spawn(&db, &["--until-idle"]);
    assert_eq!(sidecar.end().code(), Some(4));
    let log = sidecar.log();
    assert!(log.starts_with("error: cannot use ") && log.lines().count() == 1, "{log}");
    assert!(!db.file().exists() && !db.home().join("agent.db-owners").exists());
    let mut sidecar = Sidecar::spawn(&db, &["--until-idle", "--create"]);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks"), "0");
}

#[test]
fn a_removed_file_ends_the_scheduler_and_its_commands() {
    let db = TestDb::new();
    let _gate = Gate::new(&db, "gate");
    db.client().add(shell("long", &waiting(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let group = told(&db, "gate.group");
    std::fs::remove_file(db.file()).unwrap();
    let status = sidecar.end();
    assert_eq!((status.code(), status.signal()), (Some(4), None), "{}", sidecar.log());
    assert!(sidecar.log().contains("it was removed or moved while it was open"), "{}", sidecar.log());
    assert_eq!(group_size(&group), 0, "nobody is left to see to it");
    assert!(!db.file().exists(), "nothing was made again");
}

#[test]
fn an_unreadable_file_leaves_no_command_running() {
    let db = TestDb::new();
    let _gate = Gate::new(&db, "gate");
    db.client().add(shell("long", &waiting(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--until-idle", "--drain", "1s"]);
    let group = told(&db, "gate.group");
    let mut file = OpenOptions::new().write(true).open(db.file()).unwrap();
    file.write_all(&[0xff; 4096]).unwrap();
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    let log = sidecar.log();
    let last = log.lines().last().expect("a line");
    assert!(last.starts_with("error: cannot use ") && last.contains("it is "), "{log}");
    assert_eq!(group_size(&group), 0, "nobody is left to see to it");
}

#[test]
fn an_idle_scheduler_uses_little_processor_time() {
    let db = TestDb::new();
    db.client().add(NewTask::once("far", at("3999-01-01T00:00:00Z")).handler("command")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--poll", "1s"]);
    let ticks = |field: usize| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", sidecar.pid())).unwrap();
        stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(field).unwrap().parse::<u64>().unwrap()
    };
    // Age and processor time of the process, in hundredths of a second.
    let age = || {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        (uptime.split('.').next().unwrap().parse::<u64>().unwrap() * 100).saturating_sub(ticks(19))
    };
    let size = || std::fs::metadata(db.file()).unwrap().len();
    let (work, made) = (|| ticks(11) + ticks(12), size());
    eventually("it has settled down", || age() >= 150);
    let begun = work();
    eventually("five seconds have passed", || age() >= 650);
    let spent = work() - begun;
    // 0.2 s a minute would be 2; the kernel may add a tick.
    assert!(spent <= 4, "{spent} hundredths of a second in five seconds of rest");
    assert_eq!(size(), made, "the file has grown");
    sidecar.leave();
}

/// The first command of the README: a new database and running commands, until Ctrl-C.
#[test]
fn a_manifest_is_sufficient() {
    let db = TestDb::new();
    let tasks = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tasks.toml");
    let mut sidecar = Sidecar::spawn(&db, &["--tasks", tasks]);
    eventually("it has started", || sidecar.log().contains("started, with 4 workers"));
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE managed_by LIKE '%/examples/tasks.toml'"), "5");
    let beaten = "SELECT count(*) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                   WHERE t.name = 'heartbeat' AND r.status = 'succeeded' AND r.output LIKE '%UTC%'";
    eventually("the first command has run", || db.ask(beaten) != "0");
    sidecar.signal("INT");
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    db.assert_sound();
    // An invalid manifest creates no database.
    let other = TestDb::new();
    let bad = other.home().join("bad.toml");
    std::fs::write(&bad, "[[task]]\nname = \"t\"\nevry = \"1m\"\n").expect("a manifest");
    let mut refused = Sidecar::spawn(&other, &["--tasks", bad.to_str().expect("a name")]);
    assert_eq!(refused.end().code(), Some(1));
    assert!(
        refused.log().ends_with("bad.toml: task \"t\": unknown key \"evry\": did you mean \"every\"?\n"),
        "{}",
        refused.log()
    );
    assert!(!other.file().exists());
}
