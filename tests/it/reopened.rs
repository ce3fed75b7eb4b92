//! Final runs that another program reopened, and runs whose attempt it changed: the tables refuse the simplest statements,
//! `doctor` names every run that contradicts its recorded attempts, and `check` names the unfinished ones.

use duly::testing::Stepper;
use duly::{Client, NewTask, Outcome};

use crate::fixtures::{NOON, TestDb, at, claim, claim_after, findings, minutes, problems, step, work_off};

const RULE: &str = "a final run stays final, and its attempt never decreases";

/// Creates runs that ended in every way, in tasks of that name. The first attempt of `retried` failed.
fn with_final_runs() -> (TestDb, Stepper) {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(8).start().expect("a stepper");
    let client = stepper.client().clone();
    for name in ["succeeded", "retried", "dead", "cancelled", "waited", "bystander"] {
        let handler = if name == "waited" { "absent" } else { "work" };
        let task = NewTask::once(name, at(NOON)).handler(handler);
        client.add(if name == "dead" { task.at_most_once() } else { task }).expect("a task");
    }
    for one in step(&mut stepper, 5) {
        match one.task.as_str() {
            "succeeded" | "bystander" => stepper.finish(&one, Outcome::succeeded()),
            "cancelled" => {
                client.cancel(one.run_id).expect("a request");
                stepper.finish(&one, Outcome::failed("stopped"));
            }
            _ => stepper.finish(&one, Outcome::failed("no route to host")),
        }
    }
    stepper.step().expect("a turn");
    client.cancel(run_of(&db, "waited")).expect("a run that waits");
    let again = claim_after(&mut stepper, minutes(1));
    stepper.finish(&again, Outcome::succeeded());
    work_off(&mut stepper);
    let states = "SELECT t.name || ' ' || r.status || ' ' || r.attempt FROM task_runs r JOIN scheduled_tasks t
                   ON t.id = r.task_id ORDER BY t.id";
    let expected =
        ["succeeded succeeded 1", "retried succeeded 2", "dead dead 1", "cancelled cancelled 1", "waited cancelled 0"];
    assert_eq!(db.rows(states)[..5], expected);
    assert_eq!((findings(&client), reopened_runs(&client)), (vec![], vec![]));
    (db, stepper)
}

fn run_of(db: &TestDb, task: &str) -> i64 {
    let query = "SELECT id FROM task_runs WHERE task_id = (SELECT id FROM scheduled_tasks WHERE name = ";
    db.number(&format!("{query}'{task}')"))
}

fn set_columns(db: &TestDb, task: &str, values: &str) -> Result<usize, String> {
    db.try_execute(&format!("UPDATE task_runs SET {values} WHERE id = {}", run_of(db, task)))
}

fn reopened_runs(client: &Client) -> Vec<String> {
    problems(client).into_iter().filter(|line| line.starts_with("reopened")).collect()
}

#[test]
fn a_final_run_that_another_program_reopened_is_named() {
    let again = "status = 'queued', finished_at = NULL";
    for (task, values, why) in [
        ("succeeded", again, "is queued, with the end of an earlier attempt"),
        (
            "succeeded",
            "status = 'queued', finished_at = NULL, duration_ms = NULL",
            "is queued at attempt 1, ended attempts on record: 0",
        ),
        ("retried", "status = 'failed'", "is failed at attempt 2, ended attempts on record: 1"),
        ("dead", again, "was final after attempt 1, and is queued at attempt 1"),
        ("dead", "status = 'failed'", "was final after attempt 1, and is failed at attempt 1"),
        ("dead", "status = 'succeeded'", "was final after attempt 1, and is succeeded at attempt 1"),
        ("cancelled", "status = 'failed'", "was final after attempt 1, and is failed at attempt 1"),
        ("waited", again, "is queued, with the end of an earlier attempt"),
    ] {
        let (db, stepper) = with_final_runs();
        set_columns(&db, task, values).unwrap_or_else(|error| panic!("{task}, {values}: {error}"));
        let number = run_of(&db, task);
        assert_eq!(findings(stepper.client()), [format!("{RULE}: run {number} of task {task} {why}")], "{values}");
        let line =
            format!("reopened: run {number} of {task} {why}: another program changed its row: duly cancel {number}");
        let lines = reopened_runs(stepper.client());
        assert_eq!(lines.len(), usize::from(!values.contains("succeeded")), "{lines:?}");
        assert!(lines.iter().all(|found| found.starts_with(&line)), "{lines:?}");
    }
}

/// A run that was claimed again has no trace in its own row.
#[test]
fn a_reopened_run_that_ran_again_is_named_as_well() {
    for (task, why) in [
        ("succeeded", "is succeeded at attempt 2, ended attempts on record: 0"),
        ("dead", "was final after attempt 1, and is succeeded at attempt 2"),
    ] {
        let (db, mut stepper) = with_final_runs();
        set_columns(&db, task, "status = 'queued', finished_at = NULL, cancel_requested = 0").expect("an update");
        let again = claim(&mut stepper);
        assert_eq!(again.task, task);
        stepper.finish(&again, Outcome::succeeded());
        work_off(&mut stepper);
        let number = run_of(&db, task);
        assert_eq!(findings(stepper.client()), [format!("{RULE}: run {number} of task {task} {why}")]);
        assert!(reopened_runs(stepper.client()).is_empty(), "it is final");
    }
}

#[test]
fn an_attempt_that_another_program_changed_is_named() {
    for (task, attempt, why) in [
        ("retried", 1, "is succeeded at attempt 1, ended attempts on record: 1"),
        ("retried", 3, "is succeeded at attempt 3, ended attempts on record: 1"),
        ("succeeded", 0, "is succeeded at attempt 0, ended attempts on record: 0"),
        ("waited", 1, "is cancelled at attempt 1, ended attempts on record: 0"),
    ] {
        let (db, stepper) = with_final_runs();
        set_columns(&db, task, &format!("attempt = {attempt}")).expect("an update");
        let number = run_of(&db, task);
        assert_eq!(findings(stepper.client()), [format!("{RULE}: run {number} of task {task} {why}")], "{attempt}");
    }
    // A run that fails, is released, and continues is not named.
    let (_db, mut stepper) = with_final_runs();
    let client = stepper.client().clone();
    let mut claims = Vec::new();
    client.add(NewTask::interval("neighbour", minutes(1)).handler("work")).expect("a task");
    for outcome in [Outcome::failed("no"), Outcome::Released, Outcome::failed("no"), Outcome::succeeded()] {
        stepper.clock().advance(minutes(5));
        claims.extend(stepper.step().expect("a turn"));
        assert_eq!((findings(&client), claims.len()), (vec![], 1));
        stepper.finish(&claims.remove(0), outcome);
        // A released run may be claimed again at once.
        claims.extend(stepper.step().expect("a turn"));
        assert!(findings(&client).is_empty() && reopened_runs(&client).is_empty());
    }
}

#[test]
fn a_run_with_finished_at_cannot_become_queued_or_running() {
    let (db, stepper) = with_final_runs();
    for task in ["succeeded", "dead", "waited"] {
        for values in
            ["status = 'queued'", "status = 'running', locked_by = 'test-owner', locked_until = 1805025600000"]
        {
            let refused = set_columns(&db, task, values).expect_err("an end").to_string();
            assert!(refused.to_lowercase().contains("check"), "{task}, {values}: {refused}");
        }
    }
    assert_eq!(findings(stepper.client()), [""; 0]);
}
