//! Workers that are refused, messages about attempts that have ended, and processes that leave their worker: each is named, and ends nothing
//! else.
#![cfg(target_os = "linux")]

use duly::RunStatus;

use crate::fixtures::{TestDb, eventually, wait_for_status};
use crate::sidecar::{Sidecar, signal};
use crate::workers_run::{check, handles, pids, sent, start, task, worker};

/// With the times that a user has, in which it is given up after minutes.
#[test]
fn a_worker_that_is_refused_is_a_problem_at_once_until_it_serves() {
    let (db, client) = TestDb::with_client();
    let refused =
        worker(&db, "refused", &handles("'$(cat \"$DULY_DB.handler\")'", 1), r#"*'"type":"run"'*) succeed;;"#);
    let handler = |name: &str| std::fs::write(format!("{}.handler", db.file().display()), name).expect("a file");
    handler("command");
    let mut sidecar = Sidecar::start(&db, &["--worker", &refused, "--worker", "missing=/nonexistent/worker"]);
    let lines =
        || check(&db).lines().filter(|line| line.starts_with("worker: ")).map(str::to_owned).collect::<Vec<_>>();
    eventually("check reports both", || lines().len() == 2);
    let is_named = |parts: [&str; 3]| lines().iter().any(|line| parts.iter().all(|part| line.contains(part)));
    let again = "it is started again, and serves nothing before its hello";
    assert!(
        is_named(["the worker \"refused\" was ended: hello: handlers: ", "is a handler of duly itself", again]),
        "{:?}",
        lines()
    );
    assert!(is_named(["the worker \"missing\"", "cannot start", again]), "{:?}", lines());
    assert!(!sidecar.log().contains("was given up"), "{}", sidecar.log());
    handler("h");
    client.add(task("a", "h")).unwrap();
    wait_for_status(&client, "a", RunStatus::Succeeded);
    eventually("check reports the other alone", || lines().len() == 1 && is_named(["missing", "", ""]));
    sidecar.terminate();
}

/// Attempt 1 of a run fails and is at work all the same. What it says while attempt 2 runs concerns neither that nor its neighbour.
#[test]
fn a_late_message_of_an_attempt_that_has_ended_reaches_nobody() {
    let (db, client) = TestDb::with_client();
    let hello = r#""handlers":["late","beside"],"concurrency":2"#;
    let arms = r#"
  *'"handler":"beside"'*) begin; beside=$id;;
  *'"handler":"late"'*) begin
    if [ $attempt = 1 ]; then fail 'too slow'; first=$id
    else
      second=$id; id=$first; succeed ',"result":1'; progress 'late'; fail 'late'; effect begin
    fi;;
  *'"state":"refused"'*) id=$second; succeed ',"result":2'; id=$beside; succeed;;"#;
    let option = worker(&db, "all", hello, arms);
    client.add(task("beside", "beside")).unwrap();
    let mut sidecar = start(&db, &[&option], &[]);
    let running = "SELECT count(*) FROM task_runs WHERE status = 'running'";
    eventually("the neighbour runs", || db.ask(running) == "1");
    client.add(task("late", "late")).unwrap();
    let late = wait_for_status(&client, "late", RunStatus::Succeeded);
    let beside = wait_for_status(&client, "beside", RunStatus::Succeeded);
    assert_eq!((late.attempt, late.result.as_deref(), late.progress.as_deref()), (2, Some("2"), None));
    assert_eq!((beside.attempt, pids(&db, "all").len()), (1, 1), "{}", sidecar.log());
    let refused = format!(r#""key":"send","state":"refused","error":"attempt 1 of run {} has ended""#, late.id);
    assert!(sent(&db, "all").contains(&refused), "{}", sent(&db, "all"));
    let ignored = format!("run {}: a late message is ignored: attempt 1 of run {0} has ended", late.id);
    assert_eq!(sidecar.log().matches(&ignored).count(), 3, "{}", sidecar.log());
    sidecar.terminate();
}

#[test]
fn a_process_that_has_left_the_group_of_its_worker_is_named() {
    let (db, client) = TestDb::with_client();
    let arms = format!(
        r#"*'"type":"run"'*) setsid sh -c 'echo $$ >{0}/left; exec sleep 1000' </dev/null >/dev/null 2>&1 &
        until [ -s {0}/left ]; do sleep 0.01; done; succeed;;"#,
        db.home().display()
    );
    let option = worker(&db, "all", &handles("h", 1), &arms);
    client.add(task("a", "h")).unwrap();
    let mut sidecar = start(&db, &[&option], &[]);
    wait_for_status(&client, "a", RunStatus::Succeeded);
    sidecar.terminate();
    let left = std::fs::read_to_string(db.home().join("left")).expect("a pid");
    let named = format!(
        "worker all: left running, since they have left the process group of the worker: sleep (pid {})",
        left.trim()
    );
    let log = sidecar.log();
    signal("KILL", left.trim());
    assert!(log.contains(&named), "{log}");
}
