//! The process of `duly run`: inherited signal actions, signals, children that it did not start, terminals.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duly::{NewTask, RunStatus};

use crate::disk::tools::{skip_without, succeeds};
use crate::evidence::{UNSHARE, first_process_in};
use crate::fixtures::{TestDb, end, eventually, exited, seconds, wait_for_status};
use crate::sidecar::{Gate, Sidecar, processes, shell, signal, wait_for_line, with_gate};

#[test]
fn an_exit_status_is_known_even_if_the_parent_ignored_sigchld() {
    // Some shells, such as dash, do not pass on an ignored SIGCHLD.
    let ignored = "--ignore-signal=CHLD,USR1,USR2,ALRM,VTALRM,PROF,IO,HUP,INT,TERM";
    if !succeeds("env", &[ignored, "true"]) {
        return skip_without("env", "nothing");
    }
    let (db, client) = TestDb::with_client();
    client.add(shell("fine", "true")).unwrap();
    client.add(shell("fails", "exit 3").at_most_once()).unwrap();
    // In hexadecimal, the lowest bit for signal 1.
    client.add(shell("signals", "sed -n 's/^Sig\\(Ign\\|Blk\\)://p' /proc/self/status")).unwrap();
    let mut sidecar = Sidecar::spawn_within(&db, &[], "env", &[ignored]);
    assert_eq!(wait_for_status(&client, "fails", RunStatus::Dead).error.as_deref(), Some("exit code 3"));
    wait_for_status(&client, "fine", RunStatus::Succeeded);
    let masks = wait_for_status(&client, "signals", RunStatus::Succeeded).output.unwrap();
    for mask in masks.split_whitespace() {
        let mask = u64::from_str_radix(mask, 16).expect("a mask");
        for signal in [17, 10, 12, 14, 26, 27, 29, 1, 2, 15] {
            assert_eq!(
                mask >> (signal - 1) & 1,
                0,
                "a command starts with signal {signal} ignored or blocked: {masks}"
            );
        }
    }
    sidecar.terminate();
}

#[test]
fn other_signals_are_ignored() {
    let (db, client, mut gate) = with_gate();
    let home = db.home().display();
    client.add(shell("long", &format!("echo up >{home}/up; read line <{home}/gate"))).unwrap();
    let mut sidecar = Sidecar::start(&db, &[]);
    wait_for_line(&db, "up");
    for name in ["USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "CHLD"] {
        sidecar.signal(name);
        if name != "CHLD" {
            eventually("it is logged", || {
                sidecar.log().contains(&format!("SIG{name}: ignored; SIGTERM or SIGINT ends"))
            });
        }
    }
    assert!(!sidecar.log().contains("no more runs are started"), "{}", sidecar.log());
    gate.open();
    wait_for_status(&client, "long", RunStatus::Succeeded);
    sidecar.terminate();
}

#[test]
fn signals_that_the_parent_had_blocked_are_unblocked() {
    let blocked = "--block-signal=INT,TERM,HUP,CHLD,RTMIN+3";
    if !succeeds("env", &[blocked, "true"]) {
        return skip_without("env", "nothing");
    }
    let (db, client) = TestDb::with_client();
    client.add(shell("mask", "sed -n 's/^SigBlk://p' /proc/self/status")).unwrap();
    let mut sidecar = Sidecar::spawn_within(&db, &[], "env", &[blocked]);
    let mask = wait_for_status(&client, "mask", RunStatus::Succeeded).output.unwrap();
    assert_eq!(u64::from_str_radix(mask.trim(), 16).expect("a mask"), 0, "{mask}");
    sidecar.terminate();
}

#[test]
fn as_pid_1_each_stop_signal_of_an_image_drains() {
    if !succeeds("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        return skip_without("unshare", "not tried");
    }
    for (name, sent) in [("QUIT", "QUIT"), ("WINCH", "WINCH"), ("PWR", "PWR"), ("RTMIN+3", "37"), ("TERM", "TERM")] {
        let db = TestDb::new();
        drop(db.client());
        let mut sidecar = Sidecar::spawn_within(&db, &[], "unshare", &UNSHARE);
        eventually("it has started", || sidecar.log().contains("started, with"));
        signal(sent, &first_process_in(sidecar.pid()).expect("process 1").to_string());
        assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
        assert!(sidecar.log().contains(&format!("SIG{name}: no more runs are started")), "{}", sidecar.log());
    }
}

#[test]
fn the_host_name_is_that_of_the_kernel() {
    let db = TestDb::new();
    db.client();
    let mut sidecar = Sidecar::spawn_with(&db, &["--until-idle"], &[("HOSTNAME", "somewhere-else")]);
    assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(db.ask("SELECT host FROM scheduler_instances"), kernel.trim());
}

// ------------------------------------------------------------------------------------- children that it did not start --

/// Returns the PIDs of the children of a process, without its guard.
fn children(parent: u32) -> Vec<u32> {
    processes()
        .filter(|process| process.is_child_of(parent) && !process.is_guard())
        .map(|process| process.pid)
        .collect()
}

#[test]
fn a_child_from_before_exec_is_reaped() {
    let (db, client, mut gate) = with_gate();
    let line = format!("(read line <{}/gate) & exec \"$@\"", db.home().display());
    let mut sidecar = Sidecar::spawn_within(&db, &[], "sh", &["-c", &line, "sh"]);
    eventually("it has started", || sidecar.log().contains("started, with"));
    client.add(shell("fine", "true")).unwrap();
    wait_for_status(&client, "fine", RunStatus::Succeeded);
    assert_eq!(children(sidecar.pid()).len(), 1, "it lives");
    gate.open();
    eventually("the child is reaped", || children(sidecar.pid()).is_empty());
    sidecar.terminate();
}

/// nix cannot represent a child that a real-time signal ended.
#[test]
fn a_child_ended_by_a_real_time_signal_is_reaped_and_so_is_another() {
    let db = TestDb::new();
    db.client();
    let mut gates = [Gate::new(&db, "gate-1"), Gate::new(&db, "gate-2")];
    let home = db.home().display();
    let child = |number: u8, then: &str| format!("sh -c 'read line <{home}/gate-{number}; {then}'");
    let line = format!("{} & {} & exec \"$@\"", child(1, "kill -35 $$"), child(2, "exit 7"));
    let mut sidecar = Sidecar::spawn_within(&db, &[], "sh", &["-c", &line, "sh"]);
    eventually("it has started", || sidecar.log().contains("started, with"));
    assert_eq!(children(sidecar.pid()).len(), 2, "they live");
    for (gate, left) in gates.iter_mut().zip([1, 0]) {
        gate.open();
        eventually("the child is reaped", || children(sidecar.pid()).len() == left);
    }
    sidecar.terminate();
}

#[test]
fn as_pid_1_it_reaps_orphan_processes() {
    let namespace = ["--map-root-user", "--pid", "--fork", "--kill-child"];
    if !succeeds("unshare", &[&namespace[..], &["--mount-proc", "true"]].concat()) {
        return skip_without("unshare", "a child of the program that became duly is reaped, in another test");
    }
    // With its own /proc, as in a container; and with that of another namespace, in which its PIDs belong to other processes.
    for proc in [&["--mount-proc"][..], &[]] {
        let (db, client, mut gate) = with_gate();
        let home = db.home().display();
        let daemon = format!("(setsid sh -c 'echo up >{home}/up; read line <{home}/gate' >/dev/null 2>&1 &)");
        client.add(shell("daemon", &format!("{daemon}; exit 0"))).unwrap();
        let mut sidecar = Sidecar::spawn_within(&db, &[], "unshare", &[&namespace[..], proc].concat());
        wait_for_line(&db, "up");
        wait_for_status(&client, "daemon", RunStatus::Succeeded);
        let init = children(sidecar.pid())[0];
        assert_eq!(db.ask("SELECT pid FROM scheduler_instances"), "1");
        assert_eq!(children(init).len(), 1, "it is the parent of the daemon");
        // The exit status of commands that end at the same time is known.
        let left = |code: u8| format!("(setsid true &) ; (sleep 0.1 &) ; exit {code}");
        let tasks = (0..40).map(|n| shell(&format!("task-{n}"), &left(n % 2)).at_most_once().timeout(seconds(50)));
        client.add_all(tasks).unwrap();
        let ended = || db.count(RunStatus::Succeeded) + db.count(RunStatus::Dead);
        eventually("all have ended", || ended() == 41);
        let outcomes = "SELECT status, exit_code, error, count(*) FROM task_runs GROUP BY 1, 2, 3 ORDER BY 1";
        assert_eq!(db.rows(outcomes), ["dead|1|exit code 1|20", "succeeded|0|-|21"]);
        eventually("they are reaped", || children(init).len() == 1);
        gate.open();
        eventually("the daemon is reaped", || children(init).is_empty());
        signal("TERM", &init.to_string());
        assert_eq!(sidecar.end().code(), Some(0), "{}", sidecar.log());
    }
}

// ---------------------------------------------------------------------------------------------------------- a terminal --

/// `duly run` on a terminal of its own, with input. It is killed on drop.
struct Terminal {
    script: Child,
    db: TestDb,
}

impl Terminal {
    fn run(db: TestDb) -> Self {
        let output = File::create_new(db.home().join("terminal-output")).unwrap();
        let line = format!("exec {} --db '{}' run --poll 50ms", env!("CARGO_BIN_EXE_duly"), db.address().display());
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("SHELL", "/bin/sh");
        let script = script.stdin(Stdio::piped()).stdout(output).stderr(Stdio::null()).spawn().expect("script");
        Terminal { script, db }
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.db.home().join("terminal-output")).unwrap()
    }

    fn ends_with(&mut self, code: i32) {
        assert_eq!(exited(&mut self.script, "it").code(), Some(code), "{}", self.output());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        end(&mut self.script);
    }
}

#[test]
fn a_command_has_no_terminal_and_ctrl_c_still_ends_the_program_in_order() {
    if !succeeds("script", &["-qec", "true", "/dev/null"]) {
        return skip_without("script", "nothing");
    }
    let (db, client, mut gate) = with_gate();
    let home = db.home().display();
    // A command that a terminal stops would only end at its timeout.
    let with_timeout =
        |name: &str, line: &str| -> NewTask { shell(name, line).at_most_once().timeout(Duration::from_secs(10)) };
    client.add(with_timeout("reads", "read line </dev/tty")).unwrap();
    client.add(with_timeout("asks", "cat </dev/tty")).unwrap();
    client
        .add(with_timeout(
            "leads",
            "read number name state parent group session rest </proc/self/stat; echo $group $session $$",
        ))
        .unwrap();
    client.add(shell("long", &format!("echo up >{home}/up; read line <{home}/gate; echo passed"))).unwrap();
    let mut terminal = Terminal::run(db);
    for name in ["reads", "asks"] {
        let run = wait_for_status(&client, name, RunStatus::Dead);
        let (error, output) = (run.error.unwrap_or_default(), run.output.unwrap_or_default());
        assert!(error.starts_with("exit code ") && output.contains("/dev/tty"), "{name}: {error}: {output}");
    }
    let leads = wait_for_status(&client, "leads", RunStatus::Succeeded).output.unwrap();
    let numbers: Vec<&str> = leads.split_whitespace().collect();
    assert!(matches!(numbers[..], [group, session, pid] if group == pid && session == pid), "{leads}");
    wait_for_line(&terminal.db, "up");
    terminal.script.stdin.as_mut().unwrap().write_all(&[3]).unwrap();
    eventually("the signal is logged", || {
        terminal.output().contains("SIGINT: no more runs are started; running commands: 1")
    });
    gate.open();
    terminal.ends_with(0);
    assert_eq!(wait_for_status(&client, "long", RunStatus::Succeeded).output.as_deref(), Some("passed\n"));
}
