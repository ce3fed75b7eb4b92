//! SIGTERM ends the program within the time of the drain and ten seconds, and its commands before, whatever it waits for.

use std::path::PathBuf;

use duly::{Client, RunStatus};

use crate::fixtures::{eventually, seconds};
use crate::postgres::deadline::silent::{Frozen, Program, Proxy, database_behind_proxy, runs};
use crate::postgres::own_server::OwnServer;
use crate::postgres::server::address;
use crate::sidecar::{guard_of, shell, signal};

/// The address of a database behind a proxy, where an answer is waited for longer than any test.
fn patient(proxy: &Proxy, direct: &str) -> String {
    proxy.address(direct).replace("statement_timeout=2000", "statement_timeout=300000")
}

/// Starts a command that ends when it is asked to. Returns the file that it makes then.
fn runs_until_asked(client: &Client, program: &Program) -> PathBuf {
    let home = program.home.path();
    let (up, asked) = (home.join("works"), home.join("asked"));
    let line =
        format!("trap 'echo >{}; exit 1' TERM; echo >{}; while :; do sleep 0.1; done", asked.display(), up.display());
    client.add(shell("asked", &line)).unwrap();
    eventually("a command runs", || up.exists());
    asked
}

#[test]
fn sigterm_ends_a_program_that_waits_for_its_server_while_it_starts() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    proxy.close();
    let patient = proxy.address(&direct).replace("connect_timeout=3", "connect_timeout=300");
    let mut program = Program::spawn(&patient, &["run"]);
    eventually("it connects", || proxy.accepted() > 0);
    program.terminate();
    assert_eq!(program.ends_within(seconds(10)), Some(1));
    assert!(program.log().contains("asked to stop, and the database does not answer"), "{}", program.log());
}

#[test]
fn sigterm_ends_a_program_whose_server_is_frozen() {
    let Some(server) = OwnServer::start() else { return };
    let database = address(&server.folder) + "?schema=frozen";
    let client = Client::open(&database).unwrap();
    let mut program = Program::spawn(&database, &["run", "--drain", "1s", "--poll", "50ms"]);
    program.has_logged("scheduler started");
    runs(&client, "before");
    let home = program.home.path().display().to_string();
    client.add(shell("long", &format!("trap '' TERM; echo up >{home}/up; sleep 300")).at_most_once()).unwrap();
    eventually("a command runs that ignores SIGTERM", || program.home.path().join("up").exists());
    let asked = runs_until_asked(&client, &program);
    let frozen = Frozen::of(&server.folder);
    program.terminate();
    eventually("the other one is asked to end", || asked.exists());
    assert!(program.process.try_wait().unwrap().is_none(), "by the scheduler: {}", program.log());
    let code = program.ends_within(seconds(1 + 10));
    assert_eq!(code, Some(3), "{}", program.log());
    drop(frozen);
    // What was not recorded is recovered: the next one goes on.
    let mut next = Program::spawn(&database, &["run", "--drain", "1s", "--poll", "50ms"]);
    next.has_logged("scheduler started");
    runs(&client, "after");
    next.terminate();
    assert_eq!(next.ends_within(seconds(1 + 10)), Some(0), "{}", next.log());
}

#[test]
fn sigterm_drains_while_a_reload_waits_for_its_server() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    let client = Client::open(&direct).unwrap();
    let home = tempfile::tempdir().unwrap();
    let tasks = home.path().join("tasks.toml");
    std::fs::write(&tasks, "").unwrap();
    let options = ["run", "--drain", "1s", "--tasks", tasks.to_str().unwrap()];
    let mut program = Program::spawn(&patient(&proxy, &direct), &options);
    program.has_logged("scheduler started");
    let asked = runs_until_asked(&client, &program);
    proxy.hush(&["added-by-the-reload"]);
    let task = "[[task]]\nname = \"added-by-the-reload\"\nevery = \"1h\"\ncommand = [\"true\"]\n";
    std::fs::write(&tasks, task).unwrap();
    signal("HUP", &program.process.id().to_string());
    proxy.has_hushed("it applies the manifest");
    program.terminate();
    assert_eq!(program.ends_within(seconds(1 + 10)), Some(3));
    let log = program.log();
    assert!(asked.exists() && log.contains("scheduler stopped"), "{log}");
    assert!(log.contains("SIGHUP: the manifest is not applied yet"), "{log}");
    // The poller had its answers: the interruption is recorded.
    let run = client.history("asked", 1).unwrap().pop().unwrap();
    assert_eq!((run.status, run.forgiven), (RunStatus::Failed, 1));
}

#[test]
fn sigterm_drains_while_it_is_asked_whether_all_is_done() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    let client = Client::open(&direct).unwrap();
    client.add(shell("works", "sleep 300")).unwrap();
    let mut program = Program::spawn(&patient(&proxy, &direct), &["run", "--drain", "1s", "--until-idle"]);
    program.has_logged("scheduler started");
    let asked = runs_until_asked(&client, &program);
    // The poller asks so, too: none of them has an answer.
    proxy.close();
    proxy.silence();
    program.terminate();
    eventually("the command is asked to end", || asked.exists());
    assert!(program.process.try_wait().unwrap().is_none(), "by the scheduler: {}", program.log());
    assert_eq!(program.ends_within(seconds(1 + 10)), Some(3));
    assert!(program.log().contains("the database does not answer"), "{}", program.log());
}

#[test]
fn a_program_that_waits_while_it_starts_has_a_guard_and_drains() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    let client = Client::open(&direct).unwrap();
    // The times that tasks count from: only a warning depends on them.
    proxy.hush(&["greatest(t.active_since, t.resolved_until"]);
    let mut program = Program::spawn(&patient(&proxy, &direct), &["run", "--drain", "1s"]);
    let asked = runs_until_asked(&client, &program);
    proxy.has_hushed("it compares the clock");
    assert!(guard_of(program.process.id()).is_some(), "a guard knows the command");
    program.terminate();
    assert_eq!(program.ends_within(seconds(1 + 10)), Some(3));
    assert!(asked.exists() && program.log().contains("scheduler stopped"), "{}", program.log());
}

#[test]
fn many_reloads_hide_no_sigterm() {
    let Some((direct, proxy)) = database_behind_proxy() else { return };
    proxy.close();
    let patient = proxy.address(&direct).replace("connect_timeout=3", "connect_timeout=300");
    let mut program = Program::spawn(&patient, &["run"]);
    eventually("it connects", || proxy.accepted() > 0);
    // More than it could keep. Each is a process, so the thread of the signals takes most of them one by one.
    for _ in 0..200 {
        signal("HUP", &program.process.id().to_string());
    }
    program.terminate();
    assert_eq!(program.ends_within(seconds(10)), Some(1));
}
