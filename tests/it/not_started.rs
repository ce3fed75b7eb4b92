//! Attempts that cannot be started for want of resources: they do not count, and the scheduler waits until they can.
#![cfg(target_os = "linux")]

use duly::{FailureKind, Limits, Outcome, ProblemKind, Retry, RunStatus};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::fixtures::{NOON, TestDb, eventually, overdue, retry_soon, seconds, wait_for_status};
use crate::sidecar::{Sidecar, shell};
use crate::workers_run::{handles, pids, task, worker};

/// Leaves a process this number of descriptors; `None`: as many as before. Those that are open stay open.
fn limit_descriptors(process: u32, descriptors: Option<u64>) {
    let own = getrlimit(Resource::Nofile);
    let limit = Rlimit { current: descriptors.or(own.current), ..own };
    prlimit(Pid::from_raw(i32::try_from(process).unwrap()), Resource::Nofile, limit).unwrap();
}

fn problems(client: &duly::Client) -> Vec<String> {
    client.check(&Limits::default()).unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn a_command_without_an_input_file_has_not_begun() {
    let (db, client) = TestDb::with_client();
    let mut sidecar = Sidecar::start(&db, &[]);
    // It has compared the lock files of others.
    client.add(shell("first", "true")).unwrap();
    wait_for_status(&client, "first", RunStatus::Succeeded);
    limit_descriptors(sidecar.pid(), Some(3));
    client.add(shell("once", "echo passed").at_most_once()).unwrap();
    client.add(retry_soon(shell("often", "echo passed"), 2)).unwrap();
    let is_degraded = |problem: &String| problem.starts_with("degraded: the scheduler with pid");
    eventually("it is reported", || problems(&client).iter().any(is_degraded));
    let found = problems(&client).into_iter().find(is_degraded).unwrap();
    assert!(found.contains("cannot start anything: cannot create the input file of the command: "), "{found}");
    let released =
        "SELECT count(*) FROM task_attempts WHERE outcome = 'released' AND error LIKE '%Too many open files%'";
    eventually("one is tried again", || db.number::<u32>(released) >= 3);
    assert_eq!(db.ask("SELECT count(*) FROM task_attempts WHERE outcome <> 'released'"), "0");
    assert!(db.number::<u32>(released) < 8, "it waits longer each time");
    limit_descriptors(sidecar.pid(), None);
    for name in ["once", "often"] {
        let run = wait_for_status(&client, name, RunStatus::Succeeded);
        assert_eq!(run.attempt - run.forgiven, 1);
    }
    eventually("it is over", || !problems(&client).iter().any(is_degraded));
    let log = sidecar.log();
    assert_eq!(log.matches("nothing starts until that is possible").count(), 1, "{log}");
    assert_eq!(log.matches("attempts can be started again").count(), 1, "{log}");
    sidecar.terminate();
    db.assert_sound();
}

/// A command inherits its locked file as descriptor 41.
#[test]
fn a_command_that_may_not_have_the_descriptor_of_its_lock_has_not_begun() {
    let (db, client) = TestDb::with_client();
    let mut sidecar = Sidecar::start(&db, &[]);
    limit_descriptors(sidecar.pid(), Some(41));
    client.add(shell("once", "echo passed").at_most_once()).unwrap();
    let released =
        "SELECT count(*) FROM task_attempts WHERE outcome = 'released' AND error LIKE '%Too many open files%'";
    eventually("it is released", || db.number::<u32>(released) >= 1);
    limit_descriptors(sidecar.pid(), None);
    wait_for_status(&client, "once", RunStatus::Succeeded);
    sidecar.terminate();
}

/// What others have compared after a change of the tables is in their lock files.
#[test]
fn a_scheduler_that_cannot_read_lock_files_says_why_it_starts_nothing() {
    let (db, client) = TestDb::with_client();
    let mut sidecar = Sidecar::start(&db, &["--poll", "50ms"]);
    limit_descriptors(sidecar.pid(), Some(3));
    db.plain().execute_batch("CREATE TABLE photos (photo)").unwrap();
    let nothing_starts = "after a change of the tables nothing starts, since lock files cannot be read: ";
    eventually("it is said", || sidecar.log().contains(nothing_starts));
    client.add(shell("once", "true")).unwrap();
    limit_descriptors(sidecar.pid(), None);
    wait_for_status(&client, "once", RunStatus::Succeeded);
    let log = sidecar.log();
    assert_eq!(log.matches(nothing_starts.trim_end()).count(), 2, "once more when it is over: {log}");
    sidecar.terminate();
}

/// Its cause may concern it alone: the others are tried before it is tried again.
#[test]
fn what_could_not_be_started_waits_behind_the_others() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(1).start().unwrap();
    for name in ["first", "second"] {
        stepper.client().add(overdue(name)).unwrap();
    }
    let mut tried = Vec::new();
    for _ in 0..4 {
        let claim = stepper.step().unwrap().remove(0);
        tried.push(claim.task.clone());
        let error = "no descriptor".to_owned();
        stepper.finish(&claim, Outcome::Failed { how: FailureKind::Failed, error, retry: Retry::NotStarted });
        stepper.step().unwrap();
        stepper.clock().advance(seconds(60));
    }
    assert_eq!(tried, ["first", "second", "first", "second"]);
}

#[test]
fn a_worker_that_cannot_be_started_is_not_given_up() {
    let (db, client) = TestDb::with_client();
    let option = worker(&db, "mail", &handles("mail", 1), r#"*'"type":"run"'*) begin; succeed ''; exit 0;;"#);
    let mut sidecar = Sidecar::start(&db, &["--worker", &option, "--worker-times", "backoff=10ms,starts=3"]);
    // A run has ended: nothing of the scheduler is still about to open files. The worker, which ends with its run, is started again.
    client.add(task("before", "mail")).unwrap();
    wait_for_status(&client, "before", RunStatus::Succeeded);
    eventually("it is started again", || pids(&db, "mail").len() == 2);
    limit_descriptors(sidecar.pid(), Some(3));
    client.add(task("first", "mail")).unwrap();
    wait_for_status(&client, "first", RunStatus::Succeeded);
    eventually("it is started again and again", || sidecar.log().matches("it was not started: ").count() >= 5);
    assert!(!sidecar.log().contains("was given up"), "{}", sidecar.log());
    limit_descriptors(sidecar.pid(), None);
    client.add(task("second", "mail")).unwrap();
    wait_for_status(&client, "second", RunStatus::Succeeded);
    let is_given_up = |problem: &duly::Problem| problem.kind == ProblemKind::Worker;
    assert!(!client.check(&Limits::default()).unwrap().iter().any(is_given_up));
    sidecar.terminate();
}
