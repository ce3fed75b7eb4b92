//! Repeated requests: a task that counts from the time of its addition, and a run under an idempotency key. One after another,
//! and from twenty processes at once.

use std::process::Stdio;

use duly::{Change, Client, Error, NewRun, NewTask, Outcome, Retention, Retry};

use crate::fixtures::{TestDb, at, claim, claim_after, minutes, step, succeed};
use crate::sql::{insert, programs};

/// The number of concurrent processes.
const MANY: usize = 20;

fn tea_task() -> NewTask {
    NewTask::once_in("tea", minutes(60)).handler("work").payload("green")
}

#[track_caller]
fn differing_field(client: &Client, task: NewTask) -> &'static str {
    match client.add(task) {
        Err(Error::TaskDiffers { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn adding_a_task_that_counts_from_its_addition_again_changes_nothing() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    assert_eq!(client.add(tea_task()).unwrap().change, Change::Created);
    stepper.clock().advance(minutes(59));
    assert_eq!(client.add(tea_task()).unwrap().change, Change::Unchanged);
    assert_eq!(db.next("tea"), "2027-03-14 13:00:00 active");
    let run = claim_after(&mut stepper, minutes(1));
    assert_eq!(client.add(tea_task()).unwrap().change, Change::Unchanged, "while it runs");
    succeed(&mut stepper, &run);
    let row = db.tasks();
    for done in [
        tea_task(),
        tea_task().time_zone("Europe/Rome"),
        NewTask::once_in("tea", minutes(7)).handler("work").payload("green"),
    ] {
        assert_eq!(client.add(done.clone()).unwrap().change, Change::Unchanged);
        assert_eq!(client.add_all([done]).unwrap()[0].change, Change::Unchanged);
    }
    assert_eq!(db.add_in_transaction(&client, tea_task(), false).change, Change::Unchanged);
    assert_eq!(db.tasks(), row);
    assert!(stepper.step().unwrap().is_empty());

    // A task that differing_field in a field is another task, whatever its instant.
    assert_eq!(differing_field(&client, tea_task().payload("black")), "payload");
    assert_eq!(differing_field(&client, tea_task().handler("other")), "handler");
    assert_eq!(differing_field(&client, tea_task().priority(0)), "priority");
    // An explicit instant is compared, and so is the kind of schedule.
    assert_eq!(
        differing_field(&client, NewTask::once("tea", at("2027-03-14T14:00:00Z")).handler("work").payload("green")),
        "schedule_value"
    );
    client.add(NewTask::cron("daily", "@daily").handler("work")).unwrap();
    assert_eq!(differing_field(&client, NewTask::once_in("daily", minutes(1)).handler("work")), "schedule_type");
    assert_eq!(db.rows("SELECT * FROM scheduled_tasks WHERE name = 'tea'"), row);

    // A replacement counts again from now.
    assert_eq!(client.replace(tea_task()).unwrap().change, Change::Replaced);
    assert_eq!(db.next("tea"), "2027-03-14 14:00:00 active");
    db.assert_sound();
}

#[test]
fn an_invalid_row_is_not_the_same_task() {
    let (db, mut stepper) = TestDb::with_stepper();
    programs()[0].execute(&db, &insert("tea", "once", "at five"));
    stepper.step().unwrap();
    let again = NewTask::once_in("tea", minutes(1)).handler("work");
    assert_eq!(differing_field(stepper.client(), again), "schedule_value");
}

#[test]
fn a_request_with_a_key_opens_one_run() {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.add_all(["invoice", "other"].map(|name| NewTask::manual(name).handler("work").at_most_once())).unwrap();
    let request = || NewRun::of("invoice").key("order-17");
    let first = client.trigger_run(request().payload(17)).unwrap();
    assert!(first.is_new);
    let assert_same = |when: &str| {
        let rows = db.rows("SELECT * FROM task_runs ORDER BY id");
        let again = client.trigger_run(request().payload(17)).unwrap();
        assert_eq!((again.run_id, again.is_new), (first.run_id, false), "{when}");
        for (other, given) in [(request().payload("another"), "\"another\""), (request(), "null")] {
            let refused = client.trigger_run(other).unwrap_err().to_string();
            let expected = format!(
                "cannot trigger task \"invoice\" with the key \"order-17\": the key was used for run 1, with another payload: \
                 stored 17, given {given}"
            );
            assert_eq!(refused, expected, "{when}");
        }
        assert_eq!(db.rows("SELECT * FROM task_runs ORDER BY id"), rows, "{when}");
    };
    assert_same("queued");
    let claimed = claim(&mut stepper);
    assert_eq!(claimed.payload, "17");
    assert_same("running");
    let gives_up = Outcome::Failed { how: duly::FailureKind::Failed, error: "no".into(), retry: Retry::GiveUp };
    stepper.finish(&claimed, gives_up);
    step(&mut stepper, 0);
    assert_same("dead");
    assert_eq!(db.run(first.run_id).request_key.as_deref(), Some("order-17"));

    // A retry is a run of its own and does not take the key.
    let retry = client.retry(first.run_id).unwrap();
    assert_same("retried");
    assert_eq!(db.run(retry).request_key, None);
    // Another key, another task or no key: other requests.
    for other in [NewRun::of("invoice").key("order-18"), NewRun::of("other").key("order-17"), NewRun::of("invoice")] {
        assert!(client.trigger_run(other).unwrap().is_new);
    }
    client.pause("invoice").unwrap();
    assert_same("paused");
    for key in ["", "a\nb", &"k".repeat(201)] {
        let refused = client.trigger_run(NewRun::of("invoice").key(key)).unwrap_err();
        assert!(matches!(refused, Error::InvalidTask { field: "request_key", .. }), "{refused}");
    }
    // No payload is that of the task, and payloads are compared by value.
    client.add(NewTask::manual("letter").handler("work").payload([1, 2])).unwrap();
    let letter = || NewRun::of("letter").key("first");
    let first_letter = client.trigger_run(letter()).unwrap().run_id;
    db.client().replace(NewTask::manual("letter").handler("work").payload([1, 2, 3])).unwrap();
    assert_eq!(client.trigger_run(letter()).unwrap().run_id, first_letter);
    assert!(client.trigger_run(letter().payload([1.0, 2.0])).is_err(), "its run has the payload of the task now");
    assert_eq!(client.trigger_run(letter().payload([1.0, 2.0, 3.0])).unwrap().run_id, first_letter);
    // The table refuses a second run under the key.
    let twice = "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, request_key)
                 SELECT task_id, handler, scheduled_for, origin, 'queued', run_at, request_key FROM task_runs WHERE id = 1";
    let refused = db.try_execute(twice).unwrap_err().to_lowercase();
    assert!(refused.contains("unique"), "{refused}");
    // The key is valid as long as its run is kept.
    client.cancel_all("invoice").unwrap();
    stepper.clock().set_wall(at("2027-06-14T12:00:00Z"));
    client.prune(Retention { least_runs: 0, ..Retention::default() }).unwrap();
    assert!(client.trigger_run(request()).unwrap().is_new);
    db.assert_sound();
}

/// Runs the same command in many processes at once, and returns what each prints. All must succeed.
fn at_once(db: &TestDb, line: &[&str]) -> Vec<String> {
    let start = |_| db.duly(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("duly");
    let children: Vec<_> = (0..MANY).map(start).collect();
    let printed = |child: std::process::Child| {
        let output = child.wait_with_output().expect("its end");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    children.into_iter().map(printed).collect()
}

#[test]
fn twenty_processes_that_add_the_same_work_add_it_once() {
    for when in [&["--now"][..], &["--in", "1h"]] {
        // The file exists, or one of them creates it.
        for is_there in [true, false] {
            let db = TestDb::new();
            if is_there {
                drop(db.client());
            }
            let line = [&["add", "post"], when, &["--", "true"]].concat();
            let printed = at_once(&db, &line);
            let count = |start: &str| printed.iter().filter(|text| text.starts_with(start)).count();
            assert_eq!((count("added post"), count("post exists already")), (1, MANY - 1), "{printed:?}");
            assert_eq!(db.tasks().len(), 1);
        }
    }
}

#[test]
fn twenty_processes_that_request_a_run_under_one_key_get_one_run() {
    let db = TestDb::new();
    db.client().add(NewTask::manual("post").handler("work")).unwrap();
    for document in at_once(&db, &["trigger", "post", "--key", "order-17", "--json"]) {
        let run: serde_json::Value = serde_json::from_str(&document).unwrap();
        assert_eq!((&run["id"], &run["request_key"]), (&1.into(), &"order-17".into()));
    }
    assert_eq!(db.runs().len(), 1);
}
