//! A run that expires before the next poll starts if a worker is free at the first turn after it was written. A run that an
//! earlier turn has seen expires as configured.

use std::time::Duration;

use duly::testing::Stepper;
use duly::{Clock, NewTask, Outcome, Overlap, RunStatus};

use crate::fixtures::{NOON, TestDb, at, claim, minutes, overdue, seconds, step, step_after, succeed};

const SHORT: Duration = Duration::from_millis(200);

fn advance_ms(stepper: &Stepper, length: u64) {
    stepper.clock().advance(Duration::from_millis(length));
}

/// Returns a scheduler with one worker that has taken a turn on a new database.
fn after_first_turn() -> (TestDb, Stepper) {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").accept("holds").workers(1).start().expect("a stepper");
    step(&mut stepper, 0);
    (db, stepper)
}

fn due_now(name: &str, stepper: &Stepper) -> NewTask {
    NewTask::once(name, stepper.clock().now().wall).handler("work").expires(SHORT)
}

#[test]
fn a_new_task_starts_at_the_first_turn() {
    let (db, mut stepper) = after_first_turn();
    for round in 0..5 {
        let name = format!("t{round}");
        let instant = stepper.clock().now().wall;
        let task = NewTask::once(&name, instant).handler("work").expires(SHORT);
        stepper.client().add(task).expect("a task");
        advance_ms(&stepper, 900);
        let claimed = claim(&mut stepper);
        assert_eq!((&*claimed.task, claimed.scheduled_for), (&*name, instant));
        assert!(succeed(&mut stepper, &claimed).is_empty());
        advance_ms(&stepper, 100);
        step(&mut stepper, 0);
    }
    assert_eq!(db.count(RunStatus::Succeeded), 5);
    db.assert_sound();
}

#[test]
fn a_task_that_sql_makes_due_and_one_with_a_past_instant_start_at_the_first_turn() {
    let (db, mut stepper) = after_first_turn();
    let later = NewTask::once("later", at("2027-03-15T12:00:00Z")).handler("work").expires(SHORT);
    stepper.client().add(later).expect("a task");
    step(&mut stepper, 0);
    advance_ms(&stepper, 100);
    let instant = stepper.clock().now().wall.as_millis();
    db.execute(&format!("UPDATE scheduled_tasks SET next_run = {instant}"));
    advance_ms(&stepper, 900);
    let claimed = claim(&mut stepper);
    assert!(succeed(&mut stepper, &claimed).is_empty());

    let past = overdue("past").expires(SHORT);
    stepper.client().add(past).expect("a task");
    advance_ms(&stepper, 900);
    let claimed = claim(&mut stepper);
    assert_eq!(claimed.task, "past");
}

#[test]
fn a_triggered_run_starts_at_the_first_turn() {
    let (db, mut stepper) = after_first_turn();
    stepper.client().add(NewTask::cron("t", "0 0 1 1 *").handler("work").expires(SHORT)).expect("a task");
    step(&mut stepper, 0);
    advance_ms(&stepper, 100);
    let run = stepper.client().trigger("t").expect("a run");
    advance_ms(&stepper, 900);
    let claimed = claim(&mut stepper);
    assert_eq!(claimed.run_id, run);
    assert!(succeed(&mut stepper, &claimed).is_empty());
    db.assert_sound();
}

/// No worker is free at the first turn: the run is missed at the next.
#[test]
fn without_a_free_worker_the_run_expires() {
    let (db, mut stepper) = after_first_turn();
    let held = NewTask::once("held", at(NOON)).handler("holds");
    let each = NewTask::cron("t", "0 0 1 1 *").handler("work").expires(SHORT);
    stepper.client().add(held).expect("a task");
    stepper.client().add(each.overlap(Overlap::Allow)).expect("a task");
    let held = claim(&mut stepper);
    advance_ms(&stepper, 100);
    stepper.client().trigger("t").expect("a run");
    stepper.client().add(due_now("new", &stepper)).expect("a task");
    advance_ms(&stepper, 900);
    step(&mut stepper, 0);
    advance_ms(&stepper, 100);
    step(&mut stepper, 0);
    assert_eq!(db.count(RunStatus::Missed), 2);
    assert!(succeed(&mut stepper, &held).is_empty());
    db.assert_sound();
}

/// The turn that first sees the task due also pauses it: what it resolves before that could not start, and expires as configured.
#[test]
fn a_run_of_a_task_that_the_same_turn_pauses_expires() {
    let (db, mut stepper) = after_first_turn();
    let task = NewTask::cron("t", "0 0 1 1 *").handler("work").expires(SHORT).overlap(Overlap::Allow);
    stepper.client().add(task.max_attempts(1).pause_after_failures(1)).expect("a task");
    stepper.client().trigger("t").expect("a run");
    let held = claim(&mut stepper);
    let instant = stepper.clock().now().wall.plus(Duration::from_millis(100));
    db.execute(&format!("UPDATE scheduled_tasks SET next_run = {}", instant.as_millis()));
    advance_ms(&stepper, 900);
    stepper.finish(&held, Outcome::failed("a reason"));
    step(&mut stepper, 0);
    db.assert_history("t", &["2027-03-14 12:00:00 manual dead", "2027-03-14 12:00:00.100 schedule missed"]);
    assert_eq!(db.rows("SELECT expires_at - scheduled_for FROM task_runs WHERE status = 'missed'"), ["200"]);
    assert_eq!(db.next("t"), "- paused");
    db.assert_sound();
}

/// Runs that expired while no scheduler ran or while the machine was suspended are missed.
#[test]
fn runs_seen_before_or_written_before_the_start_expire() {
    let (db, mut stepper) = after_first_turn();
    stepper.client().add(NewTask::cron("t", "1 12 * * *").handler("work").expires(seconds(20))).expect("a task");
    step(&mut stepper, 0);
    // The next turn was due at 12:01: the machine was suspended.
    step_after(&mut stepper, minutes(10), 0);
    db.assert_history("t", &["2027-03-14 12:01:00 catch_up missed"]);
    stepper.crash();

    let other = db.builder("2027-03-14T12:20:00Z").accept("other").start().expect("a stepper");
    other.client().add(NewTask::once("u", at("2027-03-14T12:20:00Z")).handler("work").expires(SHORT)).expect("a task");
    other.crash();
    let mut stepper = db.stepper("2027-03-14T12:21:00Z");
    step(&mut stepper, 0);
    db.assert_history("u", &["2027-03-14 12:20:00 schedule missed"]);
}
