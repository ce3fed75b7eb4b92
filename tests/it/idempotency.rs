//! The same request again: a task that counts from when it is added, and a run under a key. One after another, and twenty
//! processes at once.

use std::process::{Command, Output, Stdio};

use duly::{Change, Client, Error, NewRun, NewTask, Outcome, Retention, Retry};

use crate::fixtures::{TestDb, at, claim, minutes, step, succeed};
use crate::sql::{insert, programs};

const NOON: &str = "2027-03-14T12:00:00Z";

/// Processes at once.
const MANY: usize = 20;

fn tea() -> NewTask {
    NewTask::once_in("tea", minutes(60)).handler("work").payload("green")
}

#[track_caller]
fn differs(client: &Client, task: NewTask) -> &'static str {
    match client.add(task) {
        Err(Error::TaskDiffers { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_task_that_counts_from_its_adding_is_added_again_while_it_waits_and_when_it_is_done() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    assert_eq!(client.add(tea()).unwrap().change, Change::Created);
    stepper.clock().advance(minutes(59));
    assert_eq!(client.add(tea()).unwrap().change, Change::Unchanged);
    assert_eq!(db.next("tea"), "2027-03-14 13:00:00 active");
    stepper.clock().advance(minutes(1));
    let run = claim(&mut stepper);
    assert_eq!(client.add(tea()).unwrap().change, Change::Unchanged, "at work");
    succeed(&mut stepper, &run);
    let row = db.rows("SELECT * FROM scheduled_tasks");
    for done in
        [tea(), tea().time_zone("Europe/Rome"), NewTask::once_in("tea", minutes(7)).handler("work").payload("green")]
    {
        assert_eq!(client.add(done.clone()).unwrap().change, Change::Unchanged);
        assert_eq!(client.add_all([done]).unwrap()[0].change, Change::Unchanged);
    }
    let mut plain = db.plain();
    let tx = plain.transaction().unwrap();
    assert_eq!(client.add_in(&tx, tea()).unwrap().change, Change::Unchanged);
    drop(tx);
    assert_eq!(db.rows("SELECT * FROM scheduled_tasks"), row);
    assert!(stepper.step().unwrap().is_empty());

    // Other work is told by the field in which it differs, whatever the instant.
    assert_eq!(differs(&client, tea().payload("black")), "payload");
    assert_eq!(differs(&client, tea().handler("other")), "handler");
    assert_eq!(differs(&client, tea().priority(0)), "priority");
    // An instant that is said is part of what a task means, and a task of another kind is another.
    assert_eq!(
        differs(&client, NewTask::once("tea", at("2027-03-14T14:00:00Z")).handler("work").payload("green")),
        "schedule_value"
    );
    client.add(NewTask::cron("daily", "@daily").handler("work")).unwrap();
    assert_eq!(differs(&client, NewTask::once_in("daily", minutes(1)).handler("work")), "schedule_type");
    assert_eq!(db.rows("SELECT * FROM scheduled_tasks WHERE name = 'tea'"), row);

    // Who replaces it has it count anew.
    assert_eq!(client.replace(tea()).unwrap().change, Change::Replaced);
    assert_eq!(db.next("tea"), "2027-03-14 14:00:00 active");
    db.assert_sound();
}

#[test]
fn a_row_that_cannot_be_used_is_not_taken_for_the_same_work() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    programs()[0].execute(&db, &insert("tea", "once", "at five"));
    stepper.step().unwrap();
    let again = NewTask::once_in("tea", minutes(1)).handler("work");
    assert_eq!(differs(stepper.client(), again), "schedule_value");
}

#[test]
fn a_request_with_a_key_opens_one_run() {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    let client = stepper.client().clone();
    client.add_all(["invoice", "other"].map(|name| NewTask::manual(name).handler("work").at_most_once())).unwrap();
    let request = || NewRun::of("invoice").key("order-17");
    let first = client.trigger_run(request().payload(17)).unwrap();
    assert!(first.is_new);
    let same = |stand: &str| {
        let rows = db.rows("SELECT * FROM task_runs ORDER BY id");
        for again in [request(), request().payload(17), request().payload("another")] {
            let again = client.trigger_run(again).unwrap();
            assert_eq!((again.run_id, again.is_new), (first.run_id, false), "{stand}");
        }
        assert_eq!(db.rows("SELECT * FROM task_runs ORDER BY id"), rows, "{stand}");
    };
    same("queued");
    let claimed = claim(&mut stepper);
    assert_eq!(claimed.payload, "17");
    same("running");
    let gives_up = Outcome::Failed { how: duly::FailureKind::Failed, error: "no".into(), retry: Retry::GiveUp };
    stepper.finish(&claimed, gives_up);
    step(&mut stepper, 0);
    same("dead");
    assert_eq!(client.run(first.run_id).unwrap().unwrap().request_key.as_deref(), Some("order-17"));

    // A retry is a run of its own, and leaves the key where it was.
    let retry = client.retry(first.run_id).unwrap();
    same("retried");
    assert_eq!(client.run(retry).unwrap().unwrap().request_key, None);
    // Another key, another task, or none: other requests.
    for other in [NewRun::of("invoice").key("order-18"), NewRun::of("other").key("order-17"), NewRun::of("invoice")] {
        assert!(client.trigger_run(other).unwrap().is_new);
    }
    client.pause("invoice").unwrap();
    same("paused");
    for key in ["", "a\nb", &"k".repeat(201)] {
        let refused = client.trigger_run(NewRun::of("invoice").key(key)).unwrap_err();
        assert!(matches!(refused, Error::InvalidTask { field: "request_key", .. }), "{refused}");
    }
    // The database refuses a second one, whatever the code does.
    let twice = "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, request_key)
                 SELECT task_id, handler, scheduled_for, origin, 'queued', run_at, request_key FROM task_runs WHERE id = 1";
    let refused = db.plain().execute(twice, []).unwrap_err().to_string();
    assert!(refused.contains("UNIQUE"), "{refused}");
    // A key holds as long as its run is kept.
    client.cancel_all("invoice").unwrap();
    stepper.clock().set_wall(at("2027-06-14T12:00:00Z"));
    client.prune(Retention { least_runs: 0, ..Retention::default() }).unwrap();
    assert!(client.trigger_run(request()).unwrap().is_new);
    db.assert_sound();
}

/// The same line typed by many at once: what each was answered.
fn at_once(db: &TestDb, line: &[&str]) -> Vec<Output> {
    let start = |_| {
        let mut duly = Command::new(env!("CARGO_BIN_EXE_duly"));
        duly.arg("--db").arg(db.file()).args(line).current_dir(db.home());
        duly.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("duly")
    };
    let children: Vec<_> = (0..MANY).map(start).collect();
    children.into_iter().map(|child| child.wait_with_output().expect("its end")).collect()
}

#[track_caller]
fn said(outputs: Vec<Output>) -> Vec<String> {
    let said = |output: Output| {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    outputs.into_iter().map(said).collect()
}

#[test]
fn twenty_processes_that_add_the_same_work_add_it_once() {
    for when in [&["--now"][..], &["--in", "1h"]] {
        // The file is there, or one of them makes it.
        for is_there in [true, false] {
            let db = TestDb::new();
            if is_there {
                drop(db.client());
            }
            let line = [&["add", "post"], when, &["--", "true"]].concat();
            let said = said(at_once(&db, &line));
            assert_eq!(said.iter().filter(|said| said.starts_with("added post")).count(), 1, "{said:?}");
            assert_eq!(
                said.iter().filter(|said| said.starts_with("post is there already")).count(),
                MANY - 1,
                "{said:?}"
            );
            assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks"), "1");
        }
    }
}

#[test]
fn twenty_processes_that_request_a_run_under_one_key_are_answered_with_one_run() {
    let db = TestDb::new();
    db.client().add(NewTask::manual("post").handler("work")).unwrap();
    let said = said(at_once(&db, &["trigger", "post", "--key", "order-17", "--json"]));
    for document in said {
        let run: serde_json::Value = serde_json::from_str(&document).unwrap();
        assert_eq!((&run["id"], &run["request_key"]), (&1.into(), &"order-17".into()));
    }
    assert_eq!(db.ask("SELECT count(*) FROM task_runs"), "1");
}
