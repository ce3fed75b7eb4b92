//! A draining scheduler claims nothing: it records outcomes and extends leases, and leaves the rest to the next scheduler.

use duly::testing::Stepper;
use duly::{Misfire, NewTask, Outcome, Overlap, RunStatus};

use crate::fixtures::{NOON, TestDb, at, minutes, once, seconds};

/// Returns a scheduler that executes a run of the task `long`; the tests drain it with `settle`.
fn with_running_task() -> (TestDb, Stepper) {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(once("long")).unwrap();
    assert_eq!(stepper.step().unwrap().len(), 1);
    (db, stepper)
}

fn run_states(db: &TestDb) -> Vec<String> {
    db.runs().iter().map(|run| format!("{}|{}|{}", run.task, run.status, u8::from(run.cancel_requested))).collect()
}

#[test]
fn occurrences_during_a_drain_are_left_to_the_next_scheduler_and_their_misfire_policy() {
    let (db, mut leaving) = with_running_task();
    let client = leaving.client().clone();
    let strict = NewTask::cron("strict", "1 * * * *").handler("work").misfire(Misfire::Skip, seconds(10));
    client.add(strict).unwrap();
    client.add(NewTask::once("soon", at("2027-03-14T12:01:00Z")).handler("work")).unwrap();
    for _ in 0..8 {
        leaving.clock().advance(seconds(10));
        leaving.settle().unwrap();
    }
    assert_eq!(run_states(&db), ["long|running|0"], "no run is opened, 20 s after it was due");
    let long = leaving.running()[0].clone();
    leaving.finish(&long, Outcome::succeeded());
    leaving.settle().unwrap();
    let clock = leaving.clock().clone();
    leaving.stop().unwrap();

    let mut next = db.builder(NOON).clock(&clock).accept("work").start().unwrap();
    next.step().unwrap();
    assert_eq!(run_states(&db), ["long|succeeded|0", "strict|missed|0", "soon|running|0"]);
    db.assert_sound();
}

#[test]
fn a_drain_neither_skips_occurrences_nor_cancels_running_ones() {
    let (db, mut leaving) = with_running_task();
    let client = leaving.client().clone();
    // A run of `replaces` is running; a manual run of `skips` waits.
    let every = |name: &str| NewTask::interval(name, minutes(1)).handler("work").starts_at(at("2027-03-14T12:01:00Z"));
    client.add(every("replaces").overlap(Overlap::CancelRunning)).unwrap();
    client.add(every("skips")).unwrap();
    client.pause("skips").unwrap();
    client.trigger("replaces").unwrap();
    assert_eq!(leaving.step().unwrap().len(), 1);
    client.resume("skips").unwrap();
    client.trigger("skips").unwrap();
    leaving.settle().unwrap();
    let before = run_states(&db);
    assert_eq!(before, ["long|running|0", "replaces|running|0", "skips|queued|0"]);
    for _ in 0..30 {
        leaving.clock().advance(seconds(10));
        leaving.settle().unwrap();
    }
    assert_eq!(run_states(&db), before);
    assert!(leaving.stopped().is_empty(), "no healthy handler is asked to stop");
    // A cancellation by the user is delivered.
    client.cancel(1).unwrap();
    leaving.clock().advance(seconds(1));
    leaving.settle().unwrap();
    assert_eq!(leaving.stopped(), [1]);
}

#[test]
fn a_drain_extends_leases_and_recovers_no_dead_owner() {
    let (db, mut leaving) = with_running_task();
    let client = leaving.client().clone();
    let mut other = db.builder(NOON).clock(leaving.clock()).accept("work").start().unwrap();
    client.add(once("others")).unwrap();
    assert_eq!(other.step().unwrap().len(), 1);
    leaving.step().unwrap();
    other.crash();
    let lease = || db.run(1).locked_until.unwrap();
    let before = lease();
    for _ in 0..10 {
        leaving.clock().advance(seconds(30));
        leaving.settle().unwrap();
        assert!(leaving.sleeps() <= seconds(1) && !leaving.sleeps().is_zero(), "{:?}", leaving.sleeps());
    }
    assert!(lease() >= before.plus(seconds(290)), "its own run is running");
    assert_eq!(client.history("others", 1).unwrap()[0].status, RunStatus::Running);
    // It holds no lock of the dead owner: another scheduler recovers the run during the drain.
    let mut next = db.builder(NOON).clock(leaving.clock()).accept("work").start().unwrap();
    next.step().unwrap();
    assert_eq!(client.history("others", 1).unwrap()[0].status, RunStatus::Failed);
    assert_eq!(client.history("long", 1).unwrap()[0].status, RunStatus::Running);
    db.assert_sound();
}
