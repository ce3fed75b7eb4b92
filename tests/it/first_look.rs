//! A run that expires sooner than a scheduler looks for new work: if a worker is free at the first look after it was written,
//! it starts. What an earlier look has seen expires as it says.

use std::time::Duration;

use duly::testing::Stepper;
use duly::{Clock, NewTask, Overlap};

use crate::fixtures::{TestDb, at, claim, minutes, seconds, step, succeed};

const NOON: &str = "2027-03-14T12:00:00Z";
const SHORT: Duration = Duration::from_millis(200);

fn millis(stepper: &Stepper, length: u64) {
    stepper.clock().advance(Duration::from_millis(length));
}

/// A scheduler that has looked at an empty file.
fn looking(db: &TestDb) -> Stepper {
    let mut stepper = db.builder(NOON).accept("work").accept("holds").workers(1).start().expect("a stepper");
    step(&mut stepper, 0);
    stepper
}

fn now(name: &str, stepper: &Stepper) -> NewTask {
    NewTask::once(name, stepper.clock().now().wall).handler("work").expires(SHORT)
}

#[test]
fn a_task_that_was_just_added_starts_at_the_first_look() {
    let db = TestDb::new();
    let mut stepper = looking(&db);
    for round in 0..5 {
        let name = format!("t{round}");
        let instant = stepper.clock().now().wall;
        let task = NewTask::once(&name, instant).handler("work").expires(SHORT);
        stepper.client().add(task).expect("a task");
        millis(&stepper, 900);
        let claimed = claim(&mut stepper);
        assert_eq!((&*claimed.task, claimed.scheduled_for), (&*name, instant));
        assert!(succeed(&mut stepper, &claimed).is_empty());
        millis(&stepper, 100);
        step(&mut stepper, 0);
    }
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded'"), "5");
    db.assert_sound();
}

#[test]
fn so_does_one_that_sql_has_made_due_and_one_whose_instant_is_past() {
    let db = TestDb::new();
    let mut stepper = looking(&db);
    let later = NewTask::once("later", at("2027-03-15T12:00:00Z")).handler("work").expires(SHORT);
    stepper.client().add(later).expect("a task");
    step(&mut stepper, 0);
    millis(&stepper, 100);
    let instant = stepper.clock().now().wall.as_millis();
    db.plain().execute("UPDATE scheduled_tasks SET next_run = ?1", [instant]).expect("an update");
    millis(&stepper, 900);
    let claimed = claim(&mut stepper);
    assert!(succeed(&mut stepper, &claimed).is_empty());

    let past = NewTask::once("past", at("2020-01-01T00:00:00Z")).handler("work").expires(SHORT);
    stepper.client().add(past).expect("a task");
    millis(&stepper, 900);
    let claimed = claim(&mut stepper);
    assert_eq!(claimed.task, "past");
}

#[test]
fn so_does_a_run_that_was_triggered() {
    let db = TestDb::new();
    let mut stepper = looking(&db);
    stepper.client().add(NewTask::cron("t", "0 0 1 1 *").handler("work").expires(SHORT)).expect("a task");
    step(&mut stepper, 0);
    millis(&stepper, 100);
    let run = stepper.client().trigger("t").expect("a run");
    millis(&stepper, 900);
    let claimed = claim(&mut stepper);
    assert_eq!(claimed.run_id, run);
    assert!(succeed(&mut stepper, &claimed).is_empty());
    db.assert_sound();
}

/// No worker was free at the first look: it is missed at the next.
#[test]
fn without_a_free_worker_it_expires() {
    let db = TestDb::new();
    let mut stepper = looking(&db);
    let held = NewTask::once("held", at(NOON)).handler("holds");
    let each = NewTask::cron("t", "0 0 1 1 *").handler("work").expires(SHORT);
    stepper.client().add(held).expect("a task");
    stepper.client().add(each.overlap(Overlap::Allow)).expect("a task");
    let held = claim(&mut stepper);
    millis(&stepper, 100);
    stepper.client().trigger("t").expect("a run");
    stepper.client().add(now("new", &stepper)).expect("a task");
    millis(&stepper, 900);
    step(&mut stepper, 0);
    millis(&stepper, 100);
    step(&mut stepper, 0);
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE status = 'missed'"), "2");
    assert!(succeed(&mut stepper, &held).is_empty());
    db.assert_sound();
}

/// What expired while no scheduler ran, or while the machine was suspended, is missed as before.
#[test]
fn what_was_known_or_written_before_the_start_expires() {
    let db = TestDb::new();
    let mut stepper = looking(&db);
    stepper.client().add(NewTask::cron("t", "1 12 * * *").handler("work").expires(seconds(20))).expect("a task");
    step(&mut stepper, 0);
    // The loop would have come at one past twelve: the machine was suspended.
    stepper.clock().advance(minutes(10));
    step(&mut stepper, 0);
    db.assert_history("t", &["2027-03-14 12:01:00 catch_up missed"]);
    stepper.crash();

    let client = db.builder("2027-03-14T12:20:00Z").accept("other").start().expect("a stepper");
    client.client().add(NewTask::once("u", at("2027-03-14T12:20:00Z")).handler("work").expires(SHORT)).expect("a task");
    client.crash();
    let mut stepper = db.stepper("2027-03-14T12:21:00Z");
    step(&mut stepper, 0);
    db.assert_history("u", &["2027-03-14 12:20:00 schedule missed"]);
}
