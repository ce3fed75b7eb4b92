//! The guard process of `duly run`: it ends the commands and workers of a scheduler that was killed, and no other process.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use duly::RunStatus;
use serde_json::{Value, json};

use crate::disk::tools::{skip_without, succeeds};
use crate::evidence::{UNSHARE, scheduler_in};
use crate::fixtures::{TestDb, end, eventually, eventually_counts, exited, reap, wait_for_status};
use crate::sidecar::{
    Gate, ProcessStat, Sidecar, group_size, guard_of, kill_group, live_processes, shell, signal, wait_for_line,
    wait_for_process_record,
};

/// Returns the state of a live process: `S` for asleep, `T` for stopped.
fn state(pid: u32) -> Option<String> {
    ProcessStat::read(pid).map(|stat| stat.fields[0].clone()).filter(|state| state != "Z")
}

// ---------------------------------------------------------------------------------------------------- of a scheduler --

#[test]
fn the_commands_of_a_killed_scheduler_end_without_another_scheduler() {
    let ((db, client), (other, other_client)) = (TestDb::with_client(), TestDb::with_client());
    let home = db.home().display();
    let line = format!(
        "setsid sh -c 'echo $$ >{home}/left; exec sleep 1000' & sleep 1000 & echo $$ >{home}/group; sleep 1000; true"
    );
    client.add(shell("long", &line)).unwrap();
    let line = format!("echo $$ >{}/group; exec sleep 1000", other.home().display());
    other_client.add(shell("other", &line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let beside = Sidecar::start(&other, &[]);
    let (group, left, of_other) =
        (wait_for_line(&db, "group"), wait_for_line(&db, "left"), wait_for_line(&other, "group"));
    eventually("all of the group run", || group_size(&group) == 3);
    wait_for_process_record(&db);
    let guard = guard_of(sidecar.pid()).expect("a guard");
    sidecar.kill();
    eventually("its group is gone", || group_size(&group) == 0);
    eventually("the guard is gone", || state(guard).is_none());
    assert_eq!((group_size(&left), group_size(&of_other)), (1, 1), "what left the group, and the other scheduler's");
    assert_eq!(db.ask("SELECT status FROM task_runs"), "running", "the guard records nothing");
    signal("KILL", &left);
    let mut next = Sidecar::start(&db, &[]);
    wait_for_status(&client, "long", RunStatus::Failed);
    assert_eq!(db.rows("SELECT attempt, outcome FROM task_attempts"), ["1|lost"]);
    next.terminate();
    drop(beside);
    eventually("the guard of the other ends its command", || group_size(&of_other) == 0);
    db.assert_sound();
}

#[test]
fn a_scheduler_that_is_not_first_in_its_namespace_is_guarded_there() {
    if !succeeds("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        return skip_without("unshare", "the guard in the namespace of the tests is tested");
    }
    let (db, client) = TestDb::with_client();
    client.add(shell("long", &format!("cd {}; echo up >up; exec sleep 1987", db.home().display()))).unwrap();
    let script = "\"$@\" & wait; exec sleep 1000";
    let unshare = Sidecar::spawn_within(&db, &[], "unshare", &[&UNSHARE[..], &["sh", "-c", script, "sh"]].concat());
    wait_for_line(&db, "up");
    wait_for_process_record(&db);
    let scheduler = scheduler_in(unshare.pid()).expect("the scheduler");
    let mut command = None;
    eventually("its command has become sleep", || {
        command = live_processes().find(|one| one.is_child_of(scheduler) && one.name == "sleep").map(|one| one.pid);
        command.is_some()
    });
    let command = command.expect("its command");
    signal("KILL", &scheduler.to_string());
    eventually("its command is gone", || state(command).is_none());
    assert!(state(unshare.pid()).is_some(), "the namespace lives");
}

/// As `/proc/PID/status` shows them: signal 1 is the lowest bit.
const HUP_INT_TERM: u64 = 1 | 1 << 1 | 1 << 14;

/// Returns the signals that a process catches.
fn catches(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

#[test]
fn a_guard_that_is_killed_is_started_again_and_knows_what_runs() {
    let (db, client) = TestDb::with_client();
    client.add(shell("long", &format!("echo $$ >{}/group; exec sleep 1000", db.home().display()))).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    let group = wait_for_line(&db, "group");
    wait_for_process_record(&db);
    let mut guards = vec![guard_of(sidecar.pid()).expect("a guard")];
    eventually("it catches signals", || catches(guards[0]) & HUP_INT_TERM == HUP_INT_TERM);
    // Signals that a service manager sends to all processes do not end it.
    for name in ["TERM", "INT", "HUP"] {
        signal(name, &guards[0].to_string());
    }
    for _ in 0..2 {
        signal("KILL", &guards[guards.len() - 1].to_string());
        eventually("another one is started", || {
            guard_of(sidecar.pid()).is_some_and(|guard| {
                !guards.contains(&guard) && {
                    guards.push(guard);
                    true
                }
            })
        });
    }
    let log = sidecar.log();
    assert_eq!(
        log.matches("[WARN] the guard process ended: killed by SIGKILL; it is started again").count(),
        1,
        "{log}"
    );
    assert_eq!(group_size(&group), 1, "the command is not affected");
    sidecar.kill();
    eventually("the command is gone", || group_size(&group) == 0);
}

#[test]
fn a_guard_that_does_not_read_is_replaced_and_holds_up_no_command() {
    let (db, client) = TestDb::with_client();
    let mut sidecar = Sidecar::start(&db, &[]);
    let guard = guard_of(sidecar.pid()).expect("a guard");
    signal("STOP", &guard.to_string());
    client.add_all((0..400).map(|n| shell(&format!("task-{n}"), "true"))).unwrap();
    eventually_counts("all have run", 400, || db.count(RunStatus::Succeeded));
    eventually("it is replaced", || guard_of(sidecar.pid()).is_some_and(|now| now != guard));
    eventually("it is gone", || state(guard).is_none());
    let log = sidecar.log();
    assert!(log.contains("the guard process ended: it does not read: "), "{log}");
    let guard = guard_of(sidecar.pid()).expect("a guard");
    sidecar.terminate();
    assert_eq!(state(guard), None, "it ends with its scheduler");
    // Released: claimed for a worker that was held up, and not begun.
    assert_eq!(db.rows("SELECT outcome FROM task_attempts WHERE outcome <> 'released'"), [""; 0]);
    assert_eq!(db.ask("SELECT max(attempt - forgiven) FROM task_runs"), "1");
    db.assert_sound();
}

#[test]
fn without_a_guard_commands_run_and_the_log_says_so() {
    if !succeeds("unshare", &["--mount", "mount", "-t", "tmpfs", "none", "/proc"]) {
        return skip_without("unshare", "nothing");
    }
    let (db, client) = TestDb::with_client();
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let mut sidecar = Sidecar::spawn_within(&db, &[], "unshare", &["--mount", "sh", "-c", script, "sh"]);
    let mut gate = Gate::new(&db, "gate");
    client.add(shell("fine", &format!("read -r line <{}/gate", db.home().display()))).unwrap();
    wait_for_process_record(&db);
    let recorded = db.ask("SELECT process ->> '$.guard.group' FROM task_runs");
    gate.open();
    wait_for_status(&client, "fine", RunStatus::Succeeded);
    assert_eq!(recorded, "1", "the scheduler holds the lock, and the next guard is told of the group");
    sidecar.terminate();
    assert_eq!(sidecar.log().matches("[WARN] the guard process cannot be started: ").count(), 1, "{}", sidecar.log());
    // Before the database is opened, none is started.
    let mut refused =
        Sidecar::spawn_within(&db, &["--http", "nonsense"], "unshare", &["--mount", "sh", "-c", script, "sh"]);
    assert!(!refused.end().success());
    let log = refused.log();
    assert!(!log.contains("guard"), "{log}");
}

#[test]
fn a_guard_that_cannot_be_started_is_a_problem() {
    if !succeeds("unshare", &["--mount", "mount", "-t", "tmpfs", "none", "/proc"]) {
        return skip_without("unshare", "nothing");
    }
    let (db, client) = TestDb::with_client();
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let mut sidecar = Sidecar::spawn_within(&db, &[], "unshare", &["--mount", "sh", "-c", script, "sh"]);
    let problems = || client.check(&duly::Limits::default()).expect("the problems");
    eventually("it is reported", || {
        problems().iter().any(|one| one.found.contains("the guard process cannot be started: "))
    });
    sidecar.terminate();
    assert!(problems().is_empty());
}

#[test]
fn the_guard_has_the_variables_of_the_loader_and_no_others() {
    let (db, _client) = TestDb::with_client();
    let variables = [("LD_LIBRARY_PATH", "lib:/nonexistent"), ("SECRET", "x")];
    let mut sidecar = Sidecar::spawn_with(&db, &[], &variables);
    let mut guard = None;
    eventually("it is guarded", || {
        guard = guard_of(sidecar.pid());
        guard.is_some()
    });
    let folder = format!("/proc/{}", guard.expect("a guard"));
    let environment = std::fs::read_to_string(format!("{folder}/environ")).expect("its environment");
    assert_eq!(environment.split_terminator('\0').collect::<Vec<_>>(), ["LD_LIBRARY_PATH=lib:/nonexistent"]);
    eventually("it keeps no folder busy", || {
        std::fs::read_link(format!("{folder}/cwd")).is_ok_and(|folder| folder == std::path::Path::new("/"))
    });
    sidecar.terminate();
}

#[test]
fn helpers_of_a_worker_that_ended_are_ended() {
    let (db, _client) = TestDb::with_client();
    let script = db.home().join("ends.sh");
    let line = format!("sleep 1000 & echo $! >{}/helper", db.home().display());
    std::fs::write(&script, line).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--worker", &format!("ends=sh {}", script.display())]);
    let helper = wait_for_line(&db, "helper").parse().expect("a pid");
    // The guard knows of the worker: a scheduler that is killed between start and message leaves its helpers.
    eventually("the worker is reported", || sidecar.log().contains("worker ends: started"));
    sidecar.kill();
    eventually("the helper is gone", || state(helper).is_none());
}

#[test]
fn a_command_that_handles_sigterm_gets_it_once() {
    let (db, client) = TestDb::with_client();
    let home = db.home().display();
    // It needs its time for the end, and the next scheduler starts meanwhile.
    let gate = db.home().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().expect("mkfifo").success());
    let line = format!(
        "cd {home}; trap 'echo term >>terms; read -r _ <gate; exit 0' TERM; echo $$ >group; while :; do sleep 1000 & wait; done"
    );
    client.add(shell("graceful", &line)).unwrap();
    let mut first = Sidecar::start(&db, &[]);
    let group = wait_for_line(&db, "group");
    wait_for_process_record(&db);
    first.kill();
    wait_for_line(&db, "terms");
    let mut second = Sidecar::start(&db, &["--lease", "1s"]);
    client.add(shell("fine", "true")).unwrap();
    wait_for_status(&client, "fine", RunStatus::Succeeded);
    std::fs::write(&gate, "go\n").unwrap();
    wait_for_status(&client, "graceful", RunStatus::Failed);
    assert_eq!(std::fs::read_to_string(db.home().join("terms")).unwrap(), "term\n");
    assert_eq!(group_size(&group), 0);
    assert!(!second.log().contains("ending the orphan"), "{}", second.log());
    second.terminate();
    db.assert_sound();
}

// -------------------------------------------------------------------------------------------------------- its lines --

/// A guard whose scheduler is the test.
struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    fn start() -> Self {
        let mut guard = Guard::reading(Stdio::piped());
        guard.pipe = guard.child.stdin.take();
        guard
    }

    /// As [`Guard::start`], with a lock file.
    fn with_words(program: &mut Command) -> (Self, tempfile::NamedTempFile) {
        let words = tempfile::NamedTempFile::new().expect("a file");
        let mut child = program.stdin(Stdio::piped()).stdout(words.reopen().expect("a file")).spawn().expect("a guard");
        let pipe = child.stdin.take();
        (Guard { child, pipe }, words)
    }

    fn reading(pipe: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duly"));
        let child = command.arg("--guard").stdin(pipe).spawn().expect("a guard");
        Guard { child, pipe: None }
    }

    fn tell(&mut self, line: &Value) {
        writeln!(self.pipe.as_mut().expect("a pipe"), "{line}").expect("a line");
    }

    /// Closes the pipe, as the kernel does when the scheduler dies, and waits until the guard has ended.
    fn close(mut self) {
        self.pipe = None;
        self.ends();
    }

    fn ends(&mut self) {
        exited(&mut self.child, "the guard");
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A process that leads a session, and ends with the test.
struct Leader(Child);

impl Leader {
    /// Starts a shell, which has printed a line when this returns.
    fn start(line: &str) -> Self {
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", line]).env("DULY_RUN_ID", "7").env("DULY_ATTEMPT", "2").stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a process");
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        assert_eq!(line, "up\n");
        Leader(child)
    }

    fn group(&self) -> String {
        self.0.id().to_string()
    }

    /// The line that announces it.
    fn announced(&self) -> Value {
        let pid = self.0.id();
        let started: u64 = ProcessStat::read(pid).expect("its state").fields[19].parse().unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the boot's id");
        let namespace = std::fs::metadata("/proc/self/ns/pid").expect("a namespace").ino();
        let leader = json!({ "pid": pid, "started": started, "boot": boot.trim(), "pid_ns": namespace });
        let variables = ["DULY_RUN_ID=7", "DULY_ATTEMPT=2"];
        json!({ "start": { "number": pid, "pid": pid, "leader": leader, "kill_after": 60_000, "variables": variables } })
    }
}

/// Milliseconds since the boot.
fn uptime() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").expect("the uptime");
    let seconds: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("seconds");
    (seconds * 1000.0) as u64
}

/// The line that sets a deadline, this many milliseconds from now.
fn deadline(term: u64, kill: u64) -> Value {
    let now = uptime();
    json!({ "deadline": { "term": now + term, "kill": now + kill } })
}

impl Drop for Leader {
    fn drop(&mut self) {
        kill_group(self.0.id());
        reap(&mut self.0);
    }
}

#[test]
fn a_group_that_ignores_sigterm_is_killed() {
    let deaf = Leader::start("trap '' TERM; sleep 1000 & echo up; sleep 1000; sleep 1000");
    let mut guard = Guard::start();
    let mut line = deaf.announced();
    line["start"]["kill_after"] = json!(300);
    guard.tell(&line);
    guard.close();
    assert_eq!(group_size(&deaf.group()), 0);
}

#[test]
fn a_failed_look_is_no_evidence() {
    if !succeeds("unshare", &["--mount", "mount", "-t", "tmpfs", "none", "/proc"]) {
        return skip_without("unshare", "nothing");
    }
    let leader = Leader::start("echo up; exec sleep 1000");
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_duly"), "--guard"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("a guard");
    let pipe = child.stdin.take();
    let mut guard = Guard { child, pipe };
    eventually("it is the guard", || ProcessStat::read(guard.child.id()).is_some_and(|stat| stat.name == "duly"));
    guard.tell(&leader.announced());
    guard.pipe = None;
    // The processes of the namespace are hidden from it for a while.
    let of_guard = guard.child.id().to_string();
    eventually("/proc is visible", || succeeds("nsenter", &["--mount", "-t", &of_guard, "umount", "/proc"]));
    guard.ends();
    assert_eq!(group_size(&leader.group()), 0);
}

#[test]
fn what_is_left_of_a_killed_scheduler_is_dead_when_its_lease_ends() {
    let deaf = Leader::start("trap '' TERM; echo up; while :; do sleep 1000; done");
    let mut guard = Guard::start();
    let mut line = deaf.announced();
    line["start"]["kill_after"] = json!(3_600_000);
    guard.tell(&line);
    guard.tell(&deadline(1000, 1200));
    guard.close();
    assert_eq!(group_size(&deaf.group()), 0);
}

#[test]
fn what_is_not_certainly_the_announced_group_is_left_alone() {
    let sleeps = || Leader::start("echo up; exec sleep 1000");
    let (ended, over) = (sleeps(), sleeps());
    let (mut guard, words) = Guard::with_words(Command::new(env!("CARGO_BIN_EXE_duly")).arg("--guard"));
    guard.tell(&ended.announced());
    guard.tell(&over.announced());
    guard.tell(&json!({ "end": over.0.id() }));
    // A later process with its pid, a machine that was booted again, another namespace.
    let mut others = Vec::new();
    for (field, value) in [("started", json!(1)), ("boot", json!("x")), ("pid_ns", json!(1)), ("pid_ns", Value::Null)] {
        let other = sleeps();
        let mut line = other.announced();
        line["start"]["leader"][field] = value;
        guard.tell(&line);
        others.push(other);
    }
    guard.tell(&json!({ "something": "else" }));
    guard.pipe = None;
    eventually("the announced group is gone", || group_size(&ended.group()) == 0);
    let has_said = |leader: &Leader| {
        let words = std::fs::read_to_string(words.path()).expect("its words");
        words.lines().any(|line| line == format!("gone {}.", leader.group()))
    };
    // The number of a group is not reused while a process of it lives.
    eventually("the others are seen gone", || [&ended, &over, &others[0]].into_iter().all(has_said));
    assert!([&over].into_iter().chain(&others).all(|other| group_size(&other.group()) == 1));
    assert!(!others[1..].iter().any(has_said));
    others.iter_mut().for_each(|other| end(&mut other.0));
    eventually("that of another boot is seen gone", || has_said(&others[1]));
    // Nothing of another namespace can be seen.
    assert!(!others[2..].iter().any(has_said) && !matches!(guard.child.try_wait(), Ok(Some(_))));
    assert_eq!(group_size(&over.group()), 1);
}

#[test]
fn a_guard_writes_which_groups_it_has_seen_gone() {
    let (ended, mut other) = (Leader::start("echo up; exec sleep 1000"), Leader::start("echo up; exec sleep 1000"));
    let mut unidentified = other.announced();
    unidentified["start"]["leader"] = Value::Null;
    let (mut guard, words) = Guard::with_words(Command::new(env!("CARGO_BIN_EXE_duly")).arg("--guard"));
    guard.tell(&ended.announced());
    guard.tell(&unidentified);
    guard.pipe = None;
    let written = || std::fs::read_to_string(words.path()).expect("its words");
    let (first, second) = (format!("\ngone {}.\n", ended.group()), format!("\ngone {}.\n", other.group()));
    // The test has not waited for it: it is dead.
    eventually("the first is gone", || written() == first);
    assert_eq!((group_size(&ended.group()), group_size(&other.group())), (0, 1));
    end(&mut other.0);
    guard.ends();
    assert_eq!(written(), first + &second);
}

#[test]
fn what_was_being_started_when_the_scheduler_died_is_waited_for_and_not_ended() {
    let starting =
        |number: u32, variables: &[&str]| json!({ "starting": { "number": number, "variables": variables } });
    let runs = Leader::start("echo up; exec sleep 1000");
    let mut guard = Guard::start();
    // Nothing has both variables. The second of the others has ended, and the guard knows which group the third is.
    guard.tell(&starting(1, &["DULY_RUN_ID=7", "DULY_ATTEMPT=3"]));
    guard.tell(&starting(2, &["DULY_RUN_ID=7"]));
    guard.tell(&json!({ "end": 2 }));
    let identified = Leader::start("echo up; exec sleep 1000");
    guard.tell(&starting(identified.0.id(), &["DULY_RUN_ID=7"]));
    guard.tell(&identified.announced());
    guard.tell(&starting(4, &["DULY_RUN_ID=7", "DULY_ATTEMPT=2"]));
    guard.pipe = None;
    eventually("the known one is gone", || group_size(&identified.group()) == 0);
    assert!(group_size(&runs.group()) == 1 && !matches!(guard.child.try_wait(), Ok(Some(_))));
    drop(runs);
    guard.ends();
}

#[test]
fn a_group_without_its_leader_is_ended_only_if_a_member_is_identified() {
    let leaves = |with: &str| {
        let mut leader = Leader::start(&format!("{with} sleep 1000 >/dev/null & echo up; read line"));
        eventually("its child has executed its program", || {
            live_processes().any(|one| one.is_in_group(&leader.group()) && one.name == "sleep")
        });
        let line = leader.announced();
        end(&mut leader.0);
        (leader, line)
    };
    let ((known, of_known), (unknown, of_unknown)) = (leaves(""), leaves("env -i"));
    let (unnamed, mut of_unnamed) = leaves("");
    of_unnamed["start"]["variables"] = json!([]);
    let mut guard = Guard::start();
    for line in [of_known, of_unknown, of_unnamed] {
        guard.tell(&line);
    }
    guard.pipe = None;
    eventually("the known one is gone", || group_size(&known.group()) == 0);
    assert_eq!([&unknown, &unnamed].map(|leader| group_size(&leader.group())), [1, 1]);
    drop((unknown, unnamed));
    guard.ends();
}

/// As of a scheduler that entered the PID namespace for its children alone.
#[test]
fn a_guard_in_another_namespace_than_its_scheduler_never_says_that_a_group_is_gone() {
    if !succeeds("unshare", &["--pid", "true"]) {
        return skip_without("unshare", "nothing");
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "sh", "-c", "\"$0\" --guard; true", env!("CARGO_BIN_EXE_duly")]);
    let (mut shell, words) = Guard::with_words(&mut command);
    let of_shell = shell.child.id();
    let mut guard = None;
    eventually("it is started", || {
        guard =
            live_processes().find(|one| one.is_child_of(of_shell) && one.name.starts_with("duly")).map(|one| one.pid);
        guard.is_some()
    });
    let guard = guard.expect("a guard");
    // No process has this number, here or there.
    shell.tell(
        &json!({ "start": { "number": 1, "pid": 2_000_000_000, "leader": null, "kill_after": 0, "variables": [] } }),
    );
    shell.pipe = None;
    let looks = || {
        let status = std::fs::read_to_string(format!("/proc/{guard}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(u64::MAX)
    };
    let threads = || std::fs::read_dir(format!("/proc/{guard}/task")).map_or(0, Iterator::count);
    eventually("it no longer reads", || threads() <= 1);
    let before = looks();
    eventually("it has looked several times, or has ended", || looks() >= before.saturating_add(4));
    let (is_alive, written) = (state(guard).is_some(), std::fs::read_to_string(words.path()).expect("its words"));
    if is_alive {
        signal("KILL", &guard.to_string());
    }
    assert_eq!((is_alive, written.as_str()), (true, ""));
}

/// The scheduler holds the lock as well, and starts another guard.
#[test]
fn after_its_deadline_a_guard_does_not_wait_without_end_for_a_scheduler_that_lives() {
    let other = Leader::start("echo up; exec sleep 1000");
    let mut line = other.announced();
    line["start"]["leader"] = Value::Null;
    line["start"]["kill_after"] = json!(0);
    let mut guard = Guard::start();
    guard.tell(&line);
    guard.tell(&json!({ "deadline": { "term": 1, "kill": 1 } }));
    guard.ends();
    assert_eq!(group_size(&other.group()), 1);
}

/// Here the scheduler is a shell, which stops itself.
#[test]
fn the_commands_of_a_frozen_scheduler_end_at_its_deadline_and_nothing_else() {
    let (deaf, other) = (
        Leader::start("trap '' TERM; echo up; while :; do sleep 1000; done"),
        Leader::start("echo up; exec sleep 1000"),
    );
    let script = "printf '%s\n' \"$@\"; kill -STOP $$";
    let mut scheduler = Command::new("sh");
    scheduler
        .args(["-c", script, "sh", &deaf.announced().to_string(), &deadline(500, 1000).to_string()])
        .stdout(Stdio::piped());
    let mut scheduler = scheduler.spawn().expect("a shell");
    let mut guard = Guard::reading(Stdio::from(scheduler.stdout.take().unwrap()));
    eventually("it is frozen", || state(scheduler.id()).as_deref() == Some("T"));
    guard.ends();
    assert_eq!((group_size(&deaf.group()), group_size(&other.group())), (0, 1));
    assert_eq!(state(scheduler.id()).as_deref(), Some("T"));
    end(&mut scheduler);
}

#[test]
fn a_later_deadline_replaces_an_earlier_one() {
    let leader = Leader::start("echo up; exec sleep 1000");
    let mut guard = Guard::start();
    for hours in [1, 2] {
        guard.tell(&deadline(hours * 3_600_000, hours * 3_600_000));
    }
    guard.tell(&leader.announced());
    // In the past: at once.
    guard.tell(&json!({ "deadline": { "term": 1, "kill": 1 } }));
    guard.ends();
    assert_eq!(group_size(&leader.group()), 0);
}

#[test]
fn a_guard_that_was_stopped_reads_on_before_it_acts_on_a_deadline_that_has_passed() {
    let leader = Leader::start("echo up; exec sleep 1000");
    let mut guard = Guard::start();
    let of_guard = guard.child.id();
    guard.tell(&leader.announced());
    let passed = uptime() + 500;
    guard.tell(&deadline(500, 500));
    eventually("it waits for the deadline", || state(of_guard).as_deref() == Some("S"));
    signal("STOP", &of_guard.to_string());
    eventually("it has passed", || uptime() > passed + 100);
    guard.tell(&deadline(3_600_000, 3_600_000));
    signal("CONT", &of_guard.to_string());
    guard.tell(&json!({ "end": leader.0.id() }));
    guard.close();
    assert_eq!(group_size(&leader.group()), 1);
}
