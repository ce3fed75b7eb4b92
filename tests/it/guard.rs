//! The guard process of `duly run`: it ends the commands and workers of a scheduler that was killed, and no other process.
#![cfg(target_os = "linux")]

use std::process::Command;

use duly::RunStatus;

use crate::disk::tools::{skip_without, succeeds};
use crate::evidence::{UNSHARE, scheduler_in};
use crate::fixtures::{TestDb, eventually, eventually_counts, wait_for_status};
use crate::sidecar::{
    Gate, ProcessStat, Sidecar, group_size, guard_of, live_processes, shell, signal, wait_for_line,
    wait_for_process_record,
};

/// Returns the state of a live process: `S` for asleep, `T` for stopped.
pub(crate) fn state(pid: u32) -> Option<String> {
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
    assert_eq!(recorded, "1-1", "the scheduler holds the lock, and the next guard is told of the group");
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
