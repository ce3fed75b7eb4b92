//! A scheduler that drains takes nothing on: it records outcomes and extends leases, and leaves the rest to the next one.

use duly::testing::Stepper;
use duly::{Misfire, NewTask, Outcome, Overlap, RunStatus};

use crate::fixtures::{TestDb, at, minutes, seconds};

const START: &str = "2027-03-14T12:00:00Z";

/// A scheduler that is at work on a run of the task `long`, and drains from now on.
fn draining(db: &TestDb) -> Stepper {
    let mut stepper = db.stepper(START);
    stepper.client().add(NewTask::once("long", at(START)).handler("work")).unwrap();
    assert_eq!(stepper.step().unwrap().len(), 1);
    stepper
}

fn rows(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT t.name, r.status, r.cancel_requested FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
          ORDER BY r.id",
    )
}

#[test]
fn what_falls_due_during_a_drain_is_left_to_the_next_scheduler_and_its_misfire_policy() {
    let db = TestDb::new();
    let mut leaving = draining(&db);
    let client = leaving.client().clone();
    let strict = NewTask::cron("strict", "1 * * * *").handler("work").misfire(Misfire::Skip, seconds(10));
    client.add(strict).unwrap();
    client.add(NewTask::once("soon", at("2027-03-14T12:01:00Z")).handler("work")).unwrap();
    for _ in 0..8 {
        leaving.clock().advance(seconds(10));
        leaving.settle().unwrap();
    }
    assert_eq!(rows(&db), ["long|running|0"], "nothing was opened, 20 s after it fell due");
    let long = leaving.running()[0].clone();
    leaving.finish(&long, Outcome::succeeded());
    leaving.settle().unwrap();
    let clock = leaving.clock().clone();
    leaving.stop().unwrap();

    let mut next = db.builder(START).clock(&clock).accept("work").start().unwrap();
    next.step().unwrap();
    assert_eq!(rows(&db), ["long|succeeded|0", "strict|missed|0", "soon|running|0"]);
    db.assert_sound();
}

#[test]
fn a_drain_skips_nothing_because_of_a_run_that_only_waits_and_stops_nothing_for_one_that_will_not_start() {
    let db = TestDb::new();
    let mut leaving = draining(&db);
    let client = leaving.client().clone();
    // One worker is at work on each; a manual run of the second waits behind the first.
    let every = |name: &str| NewTask::interval(name, minutes(1)).handler("work").starts_at(at("2027-03-14T12:01:00Z"));
    client.add(every("replaces").overlap(Overlap::CancelRunning)).unwrap();
    client.add(every("skips")).unwrap();
    client.pause("skips").unwrap();
    client.trigger("replaces").unwrap();
    assert_eq!(leaving.step().unwrap().len(), 1);
    client.resume("skips").unwrap();
    client.trigger("skips").unwrap();
    leaving.settle().unwrap();
    let before = rows(&db);
    assert_eq!(before, ["long|running|0", "replaces|running|0", "skips|queued|0"]);
    for _ in 0..30 {
        leaving.clock().advance(seconds(10));
        leaving.settle().unwrap();
    }
    assert_eq!(rows(&db), before);
    assert!(leaving.stopped().is_empty(), "no healthy handler is asked to stop");
    // A person who asks a running handler to stop is heard.
    client.cancel(1).unwrap();
    leaving.clock().advance(seconds(1));
    leaving.settle().unwrap();
    assert_eq!(leaving.stopped(), [1]);
}

#[test]
fn a_drain_extends_leases_and_leaves_the_dead_to_the_next_scheduler() {
    let db = TestDb::new();
    let mut leaving = draining(&db);
    let client = leaving.client().clone();
    let mut other = db.builder(START).clock(leaving.clock()).accept("work").start().unwrap();
    client.add(NewTask::once("others", at(START)).handler("work")).unwrap();
    assert_eq!(other.step().unwrap().len(), 1);
    leaving.step().unwrap();
    other.crash();
    let lease = || db.ask("SELECT locked_until FROM task_runs WHERE id = 1").parse::<i64>().unwrap();
    let before = lease();
    for _ in 0..10 {
        leaving.clock().advance(seconds(30));
        leaving.settle().unwrap();
        assert!(leaving.sleeps() <= seconds(1) && !leaving.sleeps().is_zero(), "{:?}", leaving.sleeps());
    }
    assert!(lease() >= before + 290_000, "its own run is at work");
    assert_eq!(client.history("others", 1).unwrap()[0].status, RunStatus::Running);
    // It holds no lock of the dead: another scheduler recovers them while it still drains.
    let mut next = db.builder(START).clock(leaving.clock()).accept("work").start().unwrap();
    next.step().unwrap();
    assert_eq!(client.history("others", 1).unwrap()[0].status, RunStatus::Failed);
    assert_eq!(client.history("long", 1).unwrap()[0].status, RunStatus::Running);
    db.assert_sound();
}
