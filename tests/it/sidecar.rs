//! `duly run` as a process: shutdown, lost files, idle cost. Also `Sidecar`, which other tests use.
#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use duly::{Client, NewTask, RunStatus};
use serde_json::{Value, json};

use crate::fixtures::{
    TestDb, Watched, end, eventually, exited, far_future, overdue, problems, retry_soon, wait_for_status,
};

/// A task of the handler `command` that is overdue.
pub(crate) fn command(name: &str, payload: Value) -> NewTask {
    overdue(name).handler("command").payload(payload)
}

/// The same with a command line for the shell.
pub(crate) fn shell(name: &str, line: &str) -> NewTask {
    command(name, json!({ "argv": ["sh", "-c", line] }))
}

/// `duly run` on the file of `db`. It is killed on drop.
pub(crate) struct Sidecar {
    child: Child,
    log: PathBuf,
    _watched: Watched,
}

impl Sidecar {
    /// Starts it, and waits until it is registered and guarded.
    pub(crate) fn start(db: &TestDb, options: &[&str]) -> Self {
        Self::spawn(db, options).until_guarded(db)
    }

    pub(crate) fn until_guarded(mut self, db: &TestDb) -> Self {
        let registered = format!("SELECT count(*) FROM scheduler_instances WHERE pid = {}", self.pid());
        eventually("the sidecar is registered", || db.ask(&registered) == "1");
        eventually("the sidecar is guarded", || guard_of(self.pid()).is_some() || self.has_ended());
        self
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
            .arg(db.address())
            .arg("run")
            .args(poll)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create_new(&log).expect("a log file"))
            .spawn()
            .expect("the sidecar");
        Sidecar { child, log, _watched: Watched::test() }
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
        exited(&mut self.child, "the sidecar")
    }

    /// Sends SIGKILL, and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
        self.end();
    }

    /// As [`Sidecar::kill`], and kills its guard before, which would end its commands. Stopped, it cannot start another one.
    pub(crate) fn kill_with_guard(&mut self) {
        self.signal("STOP");
        kill_guard_of(self.pid());
        self.kill();
    }

    /// Sends SIGTERM, and waits for an end with exit code 0. Not before it has started: until it listens for signals, one kills it.
    pub(crate) fn terminate(&mut self) {
        eventually("the sidecar has started", || self.log().contains("scheduler started") || self.has_ended());
        self.signal("TERM");
        assert_eq!(self.end().code(), Some(0), "{}", self.log());
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        end(&mut self.child);
        if std::thread::panicking() {
            // A panic during a panic would abort all tests.
            eprintln!("--- the sidecar's log\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// Sends a signal to a process, or to a group if its number is negative.
pub(crate) fn signal(name: &str, process: &str) {
    let sent = kill(&["-s", name, "--", process]).status().expect("sh");
    assert!(sent.success(), "cannot send {name} to {process}");
}

/// The `kill` of the shell: a small system has no program of this name.
pub(crate) fn kill(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "kill \"$@\"", "kill"]).args(arguments);
    command
}

/// Checks every case in a thread of its own: each waits for a program most of the time.
pub(crate) fn at_once<C: Send>(cases: impl IntoIterator<Item = C>, check: impl Fn(C) + Sync) {
    std::thread::scope(|scope| cases.into_iter().for_each(|case| drop(scope.spawn(|| check(case)))));
}

/// Sends SIGKILL to a group of processes, if any is left.
pub(crate) fn kill_group(leader: impl std::fmt::Display) {
    let _ = kill(&["-s", "KILL", "--", &format!("-{leader}")]).stderr(Stdio::null()).status();
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

/// Returns a new database, a client, and the gate `gate` in the folder of the database.
pub(crate) fn with_gate() -> (TestDb, Client, Gate) {
    let (db, client) = TestDb::with_client();
    let gate = Gate::new(&db, "gate");
    (db, client, gate)
}

/// A process, as `/proc/PID/stat` describes it.
pub(crate) struct ProcessStat {
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// The fields after the name: state, parent, process group, session, ..
    pub(crate) fields: Vec<String>,
}

impl ProcessStat {
    pub(crate) fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, fields) = stat.split_once('(')?.1.rsplit_once(") ")?;
        Some(ProcessStat { pid, name: name.to_owned(), fields: fields.split(' ').map(str::to_owned).collect() })
    }

    pub(crate) fn is_child_of(&self, parent: u32) -> bool {
        self.fields[1] == parent.to_string()
    }

    /// Whether it is the guard process of a scheduler.
    pub(crate) fn is_guard(&self) -> bool {
        std::fs::read(format!("/proc/{}/cmdline", self.pid)).is_ok_and(|line| line.ends_with(b"\0--guard\0"))
    }

    pub(crate) fn is_in_group(&self, group: &str) -> bool {
        self.fields[2] == group
    }
}

/// Returns all processes but zombies.
pub(crate) fn live_processes() -> impl Iterator<Item = ProcessStat> {
    processes().filter(|process| !matches!(&*process.fields[0], "Z" | "X"))
}

/// Returns all processes.
pub(crate) fn processes() -> impl Iterator<Item = ProcessStat> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries.filter_map(|entry| ProcessStat::read(entry.ok()?.file_name().to_str()?.parse().ok()?))
}

/// Returns the guard process of a scheduler.
pub(crate) fn guard_of(scheduler: u32) -> Option<u32> {
    live_processes().find(|process| process.is_child_of(scheduler) && process.is_guard()).map(|process| process.pid)
}

/// Kills the guard of a scheduler, which is stopped or killed next.
pub(crate) fn kill_guard_of(scheduler: u32) {
    if let Some(guard) = guard_of(scheduler) {
        signal("KILL", &guard.to_string());
        eventually("the guard is gone", || guard_of(scheduler).is_none());
    }
}

/// Returns the number of live processes in a process group.
pub(crate) fn group_size(group: &str) -> usize {
    live_processes().filter(|process| process.is_in_group(group)).count()
}

/// Waits until a file contains a complete line, and returns it.
pub(crate) fn wait_for_line(db: &TestDb, name: &str) -> String {
    let mut text = String::new();
    eventually(&format!("{name} is written"), || {
        text = std::fs::read_to_string(db.home().join(name)).unwrap_or_default();
        text.ends_with('\n')
    });
    text.trim_end().to_owned()
}

/// Waits until the process of a running command is recorded.
pub(crate) fn wait_for_process_record(db: &TestDb) {
    let recorded = "SELECT count(*) FROM task_runs WHERE process IS NOT NULL";
    eventually("the process of the command is recorded", || db.ask(recorded) != "0");
}

/// A command line that writes its group to `NAME.group`, then waits at the gate `NAME`.
fn gated_line(db: &TestDb, name: &str) -> String {
    let path = db.home().join(name);
    let path = path.to_str().expect("a path of UTF-8");
    format!("echo $$ >{path}.group; read line <{path}; echo passed")
}

#[test]
fn a_signal_lets_running_commands_end_and_their_outcome_is_kept() {
    let (db, client, mut gate) = with_gate();
    client.add(shell("long", &gated_line(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_line(&db, "gate.group");
    sidecar.signal("TERM");
    eventually("the signal is logged", || {
        sidecar.log().contains("SIGTERM: no more runs are started; running commands: 1")
    });
    gate.open();
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let run = wait_for_status(&client, "long", RunStatus::Succeeded);
    assert_eq!((run.output.as_deref(), run.exit_code, run.attempt), (Some("passed\n"), Some(0), 1));
    assert_eq!(db.registered_schedulers(), 0);
    assert_eq!(db.lock_files(), [""; 0], "nothing is left");
    db.assert_sound();
}

#[test]
fn commands_that_exceed_the_drain_are_ended_and_run_again() {
    let (db, client, mut gate) = with_gate();
    client.add(retry_soon(shell("long", &gated_line(&db, "gate")), 2)).unwrap();
    client.add(shell("once", &gated_line(&db, "gate-once")).at_most_once()).unwrap();
    let _held = Gate::new(&db, "gate-once");
    let mut sidecar = Sidecar::start(&db, &["--drain", "1s"]);
    let groups = [wait_for_line(&db, "gate.group"), wait_for_line(&db, "gate-once.group")];
    sidecar.signal("INT");
    assert_eq!(sidecar.end().code(), Some(3), "{}", sidecar.log());
    assert_eq!(groups.map(|group| group_size(&group)), [0, 0]);
    let run = wait_for_status(&client, "long", RunStatus::Failed);
    assert_eq!(run.error.as_deref(), Some("the scheduler stopped before the command had ended: killed by SIGTERM"));
    wait_for_status(&client, "once", RunStatus::Dead);

    std::fs::remove_file(db.home().join("gate.group")).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_line(&db, "gate.group");
    gate.open();
    let run = wait_for_status(&client, "long", RunStatus::Succeeded);
    assert_eq!((run.attempt, db.ask("SELECT sum(forgiven) FROM task_runs").as_str()), (2, "1"));
    sidecar.terminate();
}

/// As `systemctl restart` of its own unit. Three interruptions are forgiven, and then each counts.
#[test]
fn a_command_that_ends_its_own_scheduler_does_not_do_so_for_ever() {
    let (db, client) = TestDb::with_client();
    let line = format!("echo begun >>{}/begun; kill $PPID; exec sleep 60", db.home().display());
    client.add(retry_soon(shell("self", &line), 2)).unwrap();
    let newest = || client.history("self", 1).unwrap().pop().map(|run| (run.status, run.forgiven, run.interrupted));
    let mut seen = Vec::new();
    while seen.len() < 8 && newest().is_none_or(|(status, ..)| !status.is_final()) {
        let mut sidecar = Sidecar::spawn(&db, &["--drain", "0s"]);
        assert_eq!(sidecar.end().code(), Some(3), "{}", sidecar.log());
        seen.extend(newest());
        let is_named =
            problems(&client).iter().any(|line| line.starts_with("interrupted: run 1 of self was interrupted "));
        assert_eq!(is_named, (2..5).contains(&seen.len()), "{:?}", problems(&client));
    }
    let failed = |forgiven, interrupted| (RunStatus::Failed, forgiven, interrupted);
    assert_eq!(seen, [failed(1, 1), failed(2, 2), failed(3, 3), failed(3, 4), (RunStatus::Dead, 3, 5)]);
    assert_eq!(db.lines("begun").len(), 5);
    db.assert_sound();
}

#[test]
fn a_second_signal_ends_the_drain() {
    let (db, client, _gate) = with_gate();
    client.add(shell("long", &gated_line(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--drain", "1h"]);
    let group = wait_for_line(&db, "gate.group");
    sidecar.signal("TERM");
    eventually("the signal is logged", || sidecar.log().contains("SIGTERM: no more runs"));
    // A signal that follows at once is the same request.
    eventually("a later one counts", || {
        sidecar.signal("INT");
        sidecar.log().contains("second SIGINT: running commands are ended now")
    });
    assert_eq!(sidecar.end().code(), Some(3), "{}", sidecar.log());
    assert_eq!(group_size(&group), 0);
    wait_for_status(&client, "long", RunStatus::Failed);
}

/// A wrapper that forwards a signal, in the same process group, makes it arrive twice.
#[test]
fn two_signals_at_once_are_one_request() {
    let (db, client, mut gate) = with_gate();
    client.add(shell("long", &gated_line(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--drain", "1h"]);
    wait_for_line(&db, "gate.group");
    // Both are pending while the process is stopped.
    sidecar.signal("STOP");
    sidecar.signal("TERM");
    sidecar.signal("INT");
    sidecar.signal("CONT");
    let is_logged = |sidecar: &Sidecar| {
        ["it belongs to the signal before it", "running commands are ended now"]
            .iter()
            .any(|x| sidecar.log().contains(x))
    };
    eventually("both signals are logged", || is_logged(&sidecar));
    gate.open();
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let run = wait_for_status(&client, "long", RunStatus::Succeeded);
    assert_eq!((run.output.as_deref(), run.attempt), (Some("passed\n"), 1));
}

#[test]
fn a_shutdown_that_cannot_be_recorded_succeeds_and_the_next_scheduler_detects_it() {
    let (db, client) = TestDb::with_client();
    client.add(shell("fine", "true")).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_status(&client, "fine", RunStatus::Succeeded);
    let refuse = "CREATE TRIGGER refuse_stop BEFORE UPDATE OF stopped_at ON scheduler_instances
                  BEGIN SELECT RAISE(ABORT, 'not now'); END";
    db.plain().execute_batch(refuse).unwrap();
    sidecar.terminate();
    assert!(sidecar.log().contains("not now; the next scheduler counts this one as dead"), "{}", sidecar.log());
    assert_eq!(db.registered_schedulers(), 1, "it cannot be recorded");
    db.plain().execute_batch("DROP TRIGGER refuse_stop").unwrap();
    let mut next = Sidecar::start(&db, &[]);
    eventually("the next scheduler has recorded it", || db.registered_schedulers() == 1);
    next.terminate();
    assert_eq!(db.lock_files(), [""; 0], "nothing is left");
    db.assert_sound();
}

#[test]
fn until_idle_finishes_all_work_and_exits() {
    let (db, client) = TestDb::with_client();
    let policy = duly::RetryPolicy { backoff: Duration::from_millis(100), ..duly::RetryPolicy::default() };
    let flag = db.home().join("flag");
    // It fails once; the retry is awaited.
    let line = format!("test -e {0} || {{ touch {0}; exit 7; }}", flag.display());
    client.add(shell("second-try", &line).retry(policy)).unwrap();
    client.add(shell("fine", "echo fine")).unwrap();
    client.add(far_future("far").handler("command")).unwrap();
    let mut sidecar = Sidecar::spawn(&db, &["--until-idle"]);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let run = wait_for_status(&client, "second-try", RunStatus::Succeeded);
    assert_eq!(client.attempts(run.id).unwrap()[0].error.as_deref(), Some("exit code 7"));
    wait_for_status(&client, "fine", RunStatus::Succeeded);
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
    assert!(!db.file().exists() && !db.lock_folder().exists());
    let mut sidecar = Sidecar::spawn(&db, &["--until-idle", "--create"]);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks"), "0");
}

#[test]
fn a_removed_file_ends_the_scheduler_and_its_commands() {
    let db = TestDb::new();
    let _gate = Gate::new(&db, "gate");
    db.client().add(shell("long", &gated_line(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    let group = wait_for_line(&db, "gate.group");
    std::fs::remove_file(db.file()).unwrap();
    let status = sidecar.end();
    assert_eq!((status.code(), status.signal()), (Some(4), None), "{}", sidecar.log());
    assert!(sidecar.log().contains("it was removed or moved while it was open"), "{}", sidecar.log());
    assert_eq!(group_size(&group), 0, "no scheduler is left to end it");
    assert!(!db.file().exists(), "it was not created again");
}

#[test]
fn an_unreadable_file_leaves_no_command_running() {
    let db = TestDb::new();
    let _gate = Gate::new(&db, "gate");
    db.client().add(shell("long", &gated_line(&db, "gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--until-idle", "--drain", "1s"]);
    let group = wait_for_line(&db, "gate.group");
    let mut file = OpenOptions::new().write(true).open(db.file()).unwrap();
    file.write_all(&[0xff; 4096]).unwrap();
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    let log = sidecar.log();
    let last = log.lines().last().expect("a line");
    assert!(last.starts_with("error: cannot use ") && last.contains("it is "), "{log}");
    assert_eq!(group_size(&group), 0, "no scheduler is left to end it");
}

/// Counts what an idle scheduler does, not its processor time: that depends on the machine (`cargo bench --bench speed -- idle` has it).
#[test]
fn an_idle_scheduler_seldom_wakes_and_writes_nothing() {
    let db = TestDb::new();
    db.client().add(far_future("far").handler("command")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--poll", "1s"]);
    let process = PathBuf::from(format!("/proc/{}", sidecar.pid()));
    let ticks = |field: usize| ProcessStat::read(sidecar.pid()).unwrap().fields[field].parse::<u64>().unwrap();
    // Age and processor time of the process, in hundredths of a second.
    let age = || {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        (uptime.split('.').next().unwrap().parse::<u64>().unwrap() * 100).saturating_sub(ticks(19))
    };
    let processor_time = || ticks(11) + ticks(12);
    // How often its threads have blocked, and how often they have called `read`.
    let work = || {
        let threads = process.join("task").read_dir().unwrap().map(|thread| thread.unwrap().path().join("status"));
        let blocked: u64 = threads.map(|status| value_of(&status, "voluntary_ctxt_switches")).sum();
        (blocked, value_of(&process.join("io"), "syscr"))
    };
    let size = || std::fs::metadata(db.file()).unwrap().len();
    let initial_size = size();
    eventually("it has settled down", || age() >= 150);
    let (begun, spent, (blocked, reads)) = (age(), processor_time(), work());
    eventually("five seconds have passed", || age() >= begun + 500);
    let (seconds, (blocked_now, reads_now)) = ((age() - begun) / 100, work());
    let (blocked, reads) = (blocked_now - blocked, reads_now - reads);
    // A second of rest has two wakes and seven reads, a renewal of its record twelve and eighty.
    assert!(blocked <= 6 * seconds + 20, "its threads blocked {blocked} times in {seconds} seconds of rest");
    assert!(reads <= 20 * seconds + 160, "{reads} reads in {seconds} seconds of rest");
    // A thread that never blocks would use all of the time, or its share beside other processes.
    assert!(processor_time() - spent <= 20 * seconds, "a thread does not block");
    assert_eq!(size(), initial_size, "the file has grown");
    sidecar.terminate();
}

/// A number of a file of `/proc` that has a line for each value.
fn value_of(file: &Path, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {}", file.display())).trim().parse().unwrap()
}

/// The first command of the README: a new database and running commands, until Ctrl-C.
#[test]
fn a_manifest_creates_the_database_and_its_commands_run() {
    let db = TestDb::new();
    let tasks = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tasks.toml");
    let mut sidecar = Sidecar::spawn(&db, &["--tasks", tasks]);
    eventually("it has started", || sidecar.log().contains("started, with 4 workers"));
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE managed_by LIKE '%/examples/tasks.toml'"), "5");
    let heartbeats = "SELECT count(*) FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                   WHERE t.name = 'heartbeat' AND r.status = 'succeeded' AND r.output LIKE '%UTC%'";
    eventually("the first command has run", || db.ask(heartbeats) != "0");
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
