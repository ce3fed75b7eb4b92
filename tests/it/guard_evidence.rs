//! What shows that a command is gone where its process group cannot be read: the lock that it inherits on two descriptors, and its guard.
//! Real schedulers, killed with SIGKILL, in PID namespaces of their own or without `/proc`.
#![cfg(target_os = "linux")]

use std::fs::{create_dir, create_dir_all};

use duly::{Client, NewTask, RunStatus};
use serde_json::json;

use crate::evidence::{UNSHARE, first_process_in, scheduler_in, tool_works};
use crate::fixtures::{TestDb, eventually, retry_soon, set_mode, wait_for_status};
use crate::sidecar::{
    Sidecar, guard_of, kill_group, kill_guard_of, shell, signal, wait_for_line, wait_for_process_record,
};
use crate::workers_run::{handles, task, worker};

/// Has a scheduler see no process.
const WITHOUT_PROC: [&str; 5] = ["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"];

/// A shell line that notes its attempt and its process, and whether another attempt runs. Then it does `work`.
fn line(db: &TestDb, work: &str) -> String {
    let home = db.home().display();
    format!(
        "cd {home}; exec 9>>lock; if flock -n 9; then echo alone >>overlap; else echo together >>overlap; fi
         echo $$ >up-$DULY_ATTEMPT
         if [ $DULY_ATTEMPT = 1 ]; then {work}; fi; echo passed"
    )
}

/// Status and attempt of the one run, and what its attempts saw of each other.
fn state(db: &TestDb) -> String {
    db.ask("SELECT status || ' ' || attempt FROM task_runs WHERE id = 1") + ": " + &db.lines("overlap").join(" ")
}

/// Starts a scheduler in a PID namespace of its own, which survives it.
fn start_in_namespace(db: &TestDb, poll: &[&str]) -> Sidecar {
    let before = db.registered_schedulers();
    let arguments = [&UNSHARE[..], &["sh", "-c", "\"$@\" & wait; exec sleep 1000", "sh"]].concat();
    let sidecar = Sidecar::spawn_within(db, poll, "unshare", &arguments);
    eventually("it is registered", || db.registered_schedulers() != before);
    eventually("it is guarded", || scheduler_in(sidecar.pid()).is_some_and(|one| guard_of(one).is_some()));
    sidecar
}

/// A run at work in a namespace, and a scheduler in another one.
fn two_namespaces(work: &str) -> Option<(TestDb, Client, Sidecar, Sidecar)> {
    if !tool_works("unshare", &[&UNSHARE[..], &["true"]].concat()) {
        return None;
    }
    let (db, client) = TestDb::with_client();
    client.add(retry_soon(shell("post", &line(&db, work)), 5)).unwrap();
    let first = start_in_namespace(&db, &[]);
    wait_for_line(&db, "up-1");
    wait_for_process_record(&db);
    let second = start_in_namespace(&db, &[]);
    Some((db, client, first, second))
}

/// Waits until the second scheduler has looked at the command, which it says in its log, or has begun it again.
fn looked(db: &TestDb, second: &Sidecar, says: &str) {
    eventually("the second has examined it", || second.log().contains(says) || state(db) != "running 1: alone");
    assert_eq!(state(db), "running 1: alone", "{}", second.log());
}

fn succeeds_alone(db: &TestDb, client: &Client) {
    assert_eq!(wait_for_status(client, "post", RunStatus::Succeeded).attempt, 2);
    assert_eq!(state(db), "succeeded 2: alone alone");
    db.assert_sound();
}

const RUNS: &str = "its command is still running; the run waits for it";

#[test]
fn a_command_that_replaced_its_input_is_waited_for_until_its_namespace_is_killed() {
    let Some((db, client, mut first, second)) = two_namespaces("trap '' TERM; exec sleep 1000 </dev/null") else {
        return;
    };
    let scheduler = scheduler_in(first.pid()).expect("a scheduler");
    signal("STOP", &scheduler.to_string());
    kill_guard_of(scheduler);
    signal("KILL", &scheduler.to_string());
    looked(&db, &second, RUNS);
    first.kill();
    succeeds_alone(&db, &client);
}

#[test]
fn a_command_that_replaced_its_input_is_waited_for_without_proc() {
    if !tool_works("unshare", &[&WITHOUT_PROC[..], &["true"]].concat()) {
        return;
    }
    let (db, client) = TestDb::with_client();
    client.add(retry_soon(shell("post", &line(&db, "exec sleep 1000 </dev/null")), 5)).unwrap();
    let start = || Sidecar::spawn_within(&db, &[], "unshare", &WITHOUT_PROC);
    let mut first = start();
    let group = wait_for_line(&db, "up-1");
    wait_for_process_record(&db);
    first.kill();
    let mut second = start();
    looked(&db, &second, RUNS);
    kill_group(&group);
    succeeds_alone(&db, &client);
    second.terminate();
}

#[test]
fn a_guard_that_waits_is_waited_for_and_its_word_counts() {
    // Closes every descriptor that duly gave it. Of the usual shells, only this one can.
    if !tool_works("bash", &["--version"]) {
        return;
    }
    let closes = "exec bash -c 'exec 41>&- </dev/null; echo >closed; sleep 1000; exit 1'";
    let Some((db, client, first, second)) = two_namespaces(closes) else { return };
    let scheduler = scheduler_in(first.pid()).expect("a scheduler");
    let guard = guard_of(scheduler).expect("a guard").to_string();
    wait_for_line(&db, "closed");
    signal("STOP", &guard);
    signal("KILL", &scheduler.to_string());
    looked(&db, &second, RUNS);
    db.plain().execute("UPDATE task_runs SET locked_until = started_at", []).expect("an edit");
    let check = db.duly(&["check"]).output().expect("check");
    assert!(String::from_utf8_lossy(&check.stdout).contains("duly cancel 1 --gone"), "{check:?}");
    signal("CONT", &guard);
    succeeds_alone(&db, &client);
    assert!(first_process_in(first.pid()).is_some(), "the namespace lives");
    // The guard is expected to be at work for some seconds.
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'orphan_unknown'"), "0");
}

#[test]
fn a_process_that_left_the_group_is_not_waited_for_once_the_guard_says_so() {
    let Some((db, client, first, _second)) =
        two_namespaces("setsid sh -c 'echo $$ >left; exec sleep 1000 9>&-' & sleep 1000")
    else {
        return;
    };
    wait_for_line(&db, "left");
    signal("KILL", &scheduler_in(first.pid()).expect("a scheduler").to_string());
    succeeds_alone(&db, &client);
    let recorded = "SELECT count(*) FROM scheduler_events WHERE kind = 'left_group'";
    assert_eq!(db.ask(recorded), "1", "it holds the lock");
}

#[test]
fn commands_and_workers_inherit_the_lock_on_a_further_descriptor() {
    let (db, client) = TestDb::with_client();
    client.add(shell("shows", "readlink /proc/self/fd/0 /proc/self/fd/41")).unwrap();
    let arms = r#"*'"type":"run"'*) begin; succeed ",\"result\":\"$(readlink /proc/self/fd/41)\"";;"#;
    let option = worker(&db, "mail", &handles("mail", 1), arms);
    client.add(task("mail", "mail")).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--worker", &option]);
    let output = wait_for_status(&client, "shows", RunStatus::Succeeded).output.unwrap_or_default();
    let lines: Vec<&str> = output.lines().collect();
    let of_run = db.lock_folder().join(lines[0].rsplit('/').next().unwrap_or_default());
    assert_eq!(lines[..2], [of_run.to_str().unwrap(); 2], "{output}");
    let result = wait_for_status(&client, "mail", RunStatus::Succeeded).result.unwrap_or_default();
    assert!(result.contains("/worker-"), "{result}");
    sidecar.terminate();
    assert_eq!(db.lock_files(), [""; 0], "the file of the guard is removed");
}

#[test]
fn a_guard_whose_file_is_removed_gets_another_and_the_next_scheduler_removes_it() {
    let (db, _client) = TestDb::with_client();
    let mut sidecar = Sidecar::start(&db, &[]);
    let of_guard = || db.lock_files().into_iter().find(|name| name.ends_with(".guard"));
    let name = of_guard().expect("its file");
    std::fs::remove_file(db.lock_folder().join(&name)).unwrap();
    eventually("there is another", || of_guard().as_ref() == Some(&name));
    eventually("the log says so", || sidecar.log().contains("the lock file of the guard process was removed"));
    sidecar.kill_with_guard();
    assert_eq!(of_guard(), Some(name), "it stays");
    let mut next = Sidecar::start(&db, &[]);
    next.terminate();
    assert_eq!(db.lock_files(), [""; 0]);
}

/// The files are duly's own: no task is at fault.
#[test]
fn an_attempt_whose_file_cannot_be_made_has_not_begun() {
    let (db, client) = TestDb::with_client();
    create_dir_all(db.lock_folder()).unwrap();
    set_mode(&db.lock_folder(), 0o700);
    let add = |number: u32, suffix: &str| create_dir(db.lock_folder().join(format!("run-{number}-1{suffix}"))).unwrap();
    add(1, "");
    add(2, ".payload");
    add(3, ".worker");
    let option = worker(&db, "mail", &handles("mail", 1), r#"*'"type":"run"'*) begin; succeed '';;"#);
    let names = ["input", "payload", "mail"];
    client.add(shell("input", "true").at_most_once()).unwrap();
    client
        .add(NewTask::manual("payload").handler("command").payload(json!({"argv": ["true"]})).at_most_once())
        .unwrap();
    client.add(NewTask::manual("mail").handler("mail").at_most_once()).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--worker", &option]);
    wait_for_status(&client, "input", RunStatus::Succeeded);
    client.trigger_with("payload", 1).unwrap();
    wait_for_status(&client, "payload", RunStatus::Succeeded);
    client.trigger("mail").unwrap();
    wait_for_status(&client, "mail", RunStatus::Succeeded);
    for (name, expected) in names.into_iter().zip([
        "cannot create the input file of the command: ",
        "cannot create the payload file of the command: ",
        "cannot link the file that shows that a worker is alive: ",
    ]) {
        let run = &client.history(name, 1).unwrap()[0];
        assert_eq!((run.attempt, run.forgiven), (2, 1), "{name}");
        let released = format!("SELECT outcome, error LIKE '{expected}%' FROM task_attempts WHERE run_id = {}", run.id);
        assert_eq!(db.rows(&released)[0], "released|1", "{name}");
    }
    sidecar.terminate();
}
