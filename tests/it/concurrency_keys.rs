//! The next run behind a concurrency key starts when the first is paused, deleted or replaced.

use std::sync::Arc;

use duly::testing::Stepper;
use duly::{Claim, NewTask, Outcome, Overlap, Run, RunStatus};

use crate::fixtures::{TestDb, at};
use crate::sql::{names, programs};

/// Three runs that wait for a key, the first of them unblocked, while the only worker is busy.
fn three_waiting_for_a_key(db: &TestDb, shape: impl Fn(NewTask) -> NewTask) -> (Stepper, Arc<Claim>) {
    let mut stepper = db.builder("2027-03-14T11:58:00Z").accept("work").workers(1).start().unwrap();
    stepper.client().add(NewTask::once("busy", at("2027-03-14T11:58:00Z")).handler("work")).unwrap();
    let busy = stepper.step().unwrap().remove(0);
    // A pair with another key, older and less urgent than the three.
    for (name, line, key, priority) in [
        ("aside", "59 * * * *", "aside", 3),
        ("behind", "59 * * * *", "aside", 3),
        ("first", "0 * * * *", "chat", 1),
        ("second", "0 * * * *", "chat", 1),
        ("third", "0 * * * *", "chat", 1),
    ] {
        let task = NewTask::cron(name, line).handler("work").concurrency_key(key).priority(priority);
        stepper.client().add(shape(task)).unwrap();
    }
    for time in ["2027-03-14T11:59:00Z", "2027-03-14T12:00:00Z"] {
        stepper.clock().set_wall(at(time));
        assert!(stepper.step().unwrap().is_empty());
    }
    assert_eq!(waiting(db), ["aside|-", "behind|key", "first|-", "second|key", "third|key"]);
    (stepper, busy)
}

/// The task of each waiting run, and what blocks it.
fn waiting(db: &TestDb) -> Vec<String> {
    let waits = |run: &&Run| run.status == RunStatus::Queued || run.status == RunStatus::Failed;
    let line = |run: &Run| format!("{}|{}", run.task, run.blocked.as_deref().unwrap_or("-"));
    db.runs().iter().filter(waits).map(line).collect()
}

#[test]
fn the_next_run_behind_a_key_is_freed_when_the_first_is_paused_or_deleted() {
    for program in programs() {
        for (sql, left) in [
            (
                "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'first'",
                vec!["first|paused", "second|-", "third|key"],
            ),
            ("DELETE FROM scheduled_tasks WHERE name = 'first'", vec!["second|-", "third|key"]),
        ] {
            let db = TestDb::new();
            let (mut stepper, busy) = three_waiting_for_a_key(&db, |task| task);
            program.execute(&db, sql);
            assert!(stepper.step().unwrap().is_empty(), "{sql}");
            assert_eq!(waiting(&db)[..2], ["aside|-", "behind|key"]);
            assert_eq!(waiting(&db)[2..], left, "before the end of the run: {sql}");
            stepper.finish(&busy, Outcome::succeeded());
            assert_eq!(names(&stepper.step().unwrap()), ["second"], "{sql}");
            db.assert_sound();
        }
    }
}

#[test]
fn the_next_run_behind_a_key_is_freed_when_a_newer_occurrence_replaces_the_first() {
    let db = TestDb::new();
    let (mut stepper, _busy) = three_waiting_for_a_key(&db, |task| task.overlap(Overlap::CancelRunning));
    let client = stepper.client().clone();
    let moved = NewTask::cron("first", "0 * * * *").handler("work").concurrency_key("other").priority(0);
    client.replace(moved.overlap(Overlap::CancelRunning)).unwrap();
    client.pause("third").unwrap();
    db.execute("UPDATE scheduled_tasks SET next_run = next_run + 1 WHERE name = 'second'");
    stepper.clock().set_wall(at("2027-03-14T13:00:00Z"));
    stepper.step().unwrap();
    assert_eq!(waiting(&db)[..3], ["second|-", "third|paused", "first|-"]);
}
