//! The process of the guard by itself: the test is its scheduler, and tells it the lines that a scheduler tells.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};

use crate::disk::tools::{skip_without, succeeds};
use crate::fixtures::{end, eventually, exited, reap};
use crate::guard::state;
use crate::sidecar::{ProcessStat, group_size, kill_group, live_processes, signal};

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
        Leader::of_task("t", line)
    }

    /// As [`Leader::start`]. Other tests start processes beside this one.
    fn of_task(task: &str, line: &str) -> Self {
        let mut command = Command::new("setsid");
        command.env("DULY_TASK", task);
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
        json!({ "start": { "name": pid.to_string(), "pid": pid, "leader": leader, "kill_after": 60_000, "variables": variables } })
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

/// How often a guard that ends groups has looked at them; more than ever if it has ended.
fn looks(guard: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{guard}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(u64::MAX)
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
    let starting = json!({ "name": "7-2", "at": uptime(), "kill_after": 60_000, "variables": ["DULY_TASK=hidden"] });
    let begun = Leader::of_task("hidden", "echo up; exec sleep 1000");
    eventually("it is the guard", || ProcessStat::read(guard.child.id()).is_some_and(|stat| stat.name == "duly"));
    guard.tell(&leader.announced());
    guard.tell(&json!({ "starting": starting }));
    guard.pipe = None;
    // The processes of the namespace are hidden from it for a while.
    let of_guard = guard.child.id().to_string();
    eventually("/proc is visible", || succeeds("nsenter", &["--mount", "-t", &of_guard, "umount", "/proc"]));
    guard.ends();
    assert_eq!((group_size(&leader.group()), group_size(&begun.group())), (0, 0));
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
    guard.tell(&json!({ "end": over.group() }));
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
fn what_was_being_started_when_the_scheduler_died_is_looked_for() {
    let starting = |name: &str, at: u64| json!({ "starting": { "name": name, "at": at, "kill_after": 60_000, "variables": ["DULY_TASK=looked for"] } });
    let start = || Leader::of_task("looked for", "echo up; exec sleep 1000");
    // Processes are counted by ticks of ten milliseconds.
    let earlier = start();
    let at = uptime() + 20;
    eventually("the time has come", || uptime() >= at + 20);
    let (begun, ended) = (start(), start());
    let mut other = Command::new("setsid").args(["sleep", "1000"]).env_clear().spawn().expect("a process");
    let (mut guard, words) = Guard::with_words(Command::new(env!("CARGO_BIN_EXE_duly")).arg("--guard"));
    let has_said = |name: &str| {
        let words = std::fs::read_to_string(words.path()).expect("its words");
        words.lines().any(|line| line == format!("gone {name}."))
    };
    // The scheduler knows the end of one group, and which another is. The one of an hour from now has not begun.
    guard.tell(&starting("8-1", at));
    guard.tell(&json!({ "end": "8-1" }));
    guard.tell(&starting(&ended.group(), at));
    guard.tell(&ended.announced());
    guard.tell(&starting("7-2", at));
    guard.tell(&starting("9-1", uptime() + 3_600_000));
    guard.pipe = None;
    eventually("what is known to be gone is said", || {
        ["8-1", "9-1", &ended.group()].into_iter().all(has_said) && group_size(&begun.group()) == 0
    });
    // Which of them was started as 7-2 is not certain: the one without its variables is waited for, and not ended.
    let looks = || looks(guard.child.id());
    let before = looks();
    eventually("it has looked several times", || looks() >= before.saturating_add(4));
    assert!(!has_said("7-2") && group_size(&earlier.group()) == 1 && group_size(&other.id().to_string()) == 1);
    end(&mut other);
    guard.ends();
    assert!(has_said("7-2") && group_size(&earlier.group()) == 1);
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
        &json!({ "start": { "name": "1", "pid": 2_000_000_000, "leader": null, "kill_after": 0, "variables": [] } }),
    );
    shell.pipe = None;
    let looks = || looks(guard);
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
    guard.tell(&json!({ "end": leader.group() }));
    guard.close();
    assert_eq!(group_size(&leader.group()), 1);
}
