//! Overlap: an occurrence that becomes due while an earlier run is unfinished, under every policy, for one and for several
//! occurrences, and the order in which waiting runs start. Rows are compared completely.

use std::time::Duration;

use duly::testing::Stepper;
use duly::{Misfire, NewTask, Outcome, Overlap, RetryPolicy};

use crate::fixtures::{NOON, TestDb, at, claim, claim_after, minutes, seconds, step, step_after, succeed, work_off};

/// A minutely task, added at noon.
fn minutely(db: &TestDb, overlap: Overlap, limit: u32) -> Stepper {
    let stepper = db.stepper(NOON);
    let task = NewTask::cron("t", "* * * * *").handler("work").overlap(overlap).catch_up_limit(limit);
    stepper.client().add(task.misfire(Misfire::RunOnce, minutes(10))).expect("a task");
    stepper
}

/// Advances by a minute, and takes a step that must claim `count` runs.
#[track_caller]
fn next_minute(stepper: &mut Stepper, claims: usize) {
    step_after(stepper, minutes(1), claims);
}

/// Every run of the task, oldest occurrence first: the minute and the status; the origin if that is not the schedule.
fn history(db: &TestDb) -> String {
    db.history("t").join(", ").replace("2027-03-14 12:", "").replace(":00 schedule", "").replace(":00", "")
}

/// Five are due at once, all within the grace: each meets the run that the one before it opened, even if a worker is free to
/// start it in the same turn.
#[test]
fn several_occurrences_due_at_once_follow_each_policy() {
    let cases = [
        (Overlap::Skip, "01 running, 02 skipped x4 to 05", 1),
        (Overlap::BufferOne, "01 running, 02 skipped x4 to 05", 1),
        (Overlap::BufferAll, "01 running, 02 queued, 03 queued, 04 skipped x2 to 05", 1),
        (Overlap::CancelRunning, "01 cancelled, 02 cancelled, 03 cancelled, 04 cancelled, 05 running", 1),
        (Overlap::Allow, "01 running, 02 running, 03 running, 04 running, 05 running", 5),
    ];
    for (overlap, expected, claims) in cases {
        let db = TestDb::new();
        minutely(&db, overlap, 3).crash();
        let mut stepper = db.builder("2027-03-14T12:05:00Z").accept("work").workers(5).start().expect("a stepper");
        let before = db.add_bystander(&stepper);
        let claimed = step(&mut stepper, claims);
        assert_eq!(history(&db), expected, "{overlap}");
        assert_eq!(db.next("t"), "2027-03-14 12:06:00 active", "{overlap}");
        // No worker was free: the same rows, except that none runs.
        let idle = TestDb::new();
        minutely(&idle, overlap, 3).crash();
        let mut other = idle.builder("2027-03-14T12:05:00Z").accept("other").start().expect("a stepper");
        step(&mut other, 0);
        assert_eq!(history(&idle), expected.replace("running", "queued"), "{overlap}");
        idle.assert_sound();

        for claim in &claimed {
            stepper.finish(claim, Outcome::succeeded());
        }
        work_off(&mut stepper);
        assert_eq!(history(&db), expected.replace("running", "succeeded").replace("queued", "succeeded"), "{overlap}");
        db.assert_bystander(&before);
        db.assert_sound();
    }
}

#[test]
fn the_reason_of_a_skip_says_whether_the_earlier_run_had_started() {
    for (handler, claims, expected) in [
        ("other", 0, "had not started yet (overlap policy): with a more urgent priority"),
        ("work", 1, "was unfinished (overlap policy)"),
    ] {
        let db = TestDb::new();
        minutely(&db, Overlap::Skip, 3).crash();
        let mut stepper = db.builder(NOON).accept(handler).start().expect("a stepper");
        next_minute(&mut stepper, claims);
        next_minute(&mut stepper, 0);
        let reason = db.ask("SELECT error FROM task_runs WHERE status = 'skipped'");
        assert!(reason.contains(expected), "{reason}");
    }
}

/// Each stretch of skips has one row, which grows until another row is written.
#[test]
fn skip_records_occurrences_during_a_run_as_skipped() {
    let db = TestDb::new();
    let mut stepper = minutely(&db, Overlap::Skip, 1);
    let first = claim_after(&mut stepper, minutes(1));
    next_minute(&mut stepper, 0);
    assert_eq!(history(&db), "01 running, 02 skipped");
    next_minute(&mut stepper, 0);
    next_minute(&mut stepper, 0);
    assert_eq!(history(&db), "01 running, 02 skipped x3 to 04");
    assert!(succeed(&mut stepper, &first).is_empty(), "what was skipped stays skipped");

    let second = claim_after(&mut stepper, minutes(1));
    // It fails: unfinished while it waits for its retry.
    stepper.finish(&second, Outcome::failed("no"));
    step(&mut stepper, 0);
    stepper.clock().set_wall(at("2027-03-14T12:06:00Z"));
    let again = claim(&mut stepper);
    assert_eq!((again.run_id, again.attempt), (second.run_id, 2));
    succeed(&mut stepper, &again);

    // A manual run counts as unfinished too, waiting or running, and consecutive skips are one row.
    stepper.clock().set_wall(at("2027-03-14T12:06:30Z"));
    stepper.client().trigger("t").expect("a run");
    let by_hand = claim(&mut stepper);
    stepper.clock().set_wall(at("2027-03-14T12:07:00Z"));
    step(&mut stepper, 0);
    succeed(&mut stepper, &by_hand);
    next_minute(&mut stepper, 1);
    assert_eq!(
        history(&db),
        "01 succeeded, 02 skipped x3 to 04, 05 succeeded, 06 skipped x2 to 07, 06:30 manual succeeded, 08 running"
    );
    db.assert_sound();
}

#[test]
fn a_row_of_skips_grows_over_a_restart() {
    let db = TestDb::new();
    let mut stepper = minutely(&db, Overlap::Skip, 1);
    claim_after(&mut stepper, minutes(1));
    next_minute(&mut stepper, 0);
    next_minute(&mut stepper, 0);
    stepper.crash();
    let mut stepper = db.stepper("2027-03-14T12:04:00Z");
    work_off(&mut stepper);
    stepper.clock().advance(seconds(10));
    work_off(&mut stepper);
    assert_eq!(history(&db), "01 succeeded, 02 skipped x3 to 04");
    db.assert_sound();
}

#[test]
fn buffer_one_keeps_one_waiting_run() {
    let db = TestDb::new();
    let mut stepper = minutely(&db, Overlap::BufferOne, 100);
    let first = claim_after(&mut stepper, minutes(1));
    for _ in 0..3 {
        next_minute(&mut stepper, 0);
    }
    // The queued run waits for the older one; the others are skipped.
    assert_eq!(history(&db), "01 running, 02 queued, 03 skipped x2 to 04");
    assert_eq!(db.ask("SELECT blocked FROM task_runs WHERE status = 'queued'"), "order");
    let second = succeed(&mut stepper, &first);
    assert_eq!(second.len(), 1, "it starts in the turn that settles the first");
    assert_eq!(second[0].scheduled_for, at("2027-03-14T12:02:00Z"));
    next_minute(&mut stepper, 0);
    // A run that waits for its retry is not queued: one more may be queued behind it. Manual runs do not count.
    stepper.finish(&second[0], Outcome::failed("no"));
    stepper.client().trigger("t").expect("a run");
    let by_hand = claim(&mut stepper);
    next_minute(&mut stepper, 0);
    assert_eq!(history(&db), "01 succeeded, 02 failed, 03 skipped x2 to 04, 05 queued, 05 manual running, 06 skipped");
    let retried = succeed(&mut stepper, &by_hand);
    assert_eq!((retried.len(), retried[0].scheduled_for), (1, at("2027-03-14T12:02:00Z")), "the oldest first");
    let newest = succeed(&mut stepper, &retried[0]);
    assert_eq!((newest.len(), newest[0].scheduled_for), (1, at("2027-03-14T12:05:00Z")));
    db.assert_sound();
}

#[test]
fn buffer_all_holds_as_many_as_its_limit() {
    let db = TestDb::new();
    let mut stepper = minutely(&db, Overlap::BufferAll, 2);
    let first = claim_after(&mut stepper, minutes(1));
    for _ in 0..4 {
        next_minute(&mut stepper, 0);
    }
    assert_eq!(history(&db), "01 running, 02 queued, 03 queued, 04 skipped x2 to 05");
    let second = succeed(&mut stepper, &first);
    // A run can wait again, which ends the series: later skips get a new row.
    next_minute(&mut stepper, 0);
    next_minute(&mut stepper, 0);
    assert_eq!(history(&db), "01 succeeded, 02 running, 03 queued, 04 skipped x2 to 05, 06 queued, 07 skipped");
    let third = succeed(&mut stepper, &second[0]);
    assert_eq!(third[0].scheduled_for, at("2027-03-14T12:03:00Z"));
    let fourth = succeed(&mut stepper, &third[0]);
    assert_eq!(fourth[0].scheduled_for, at("2027-03-14T12:06:00Z"));
    db.assert_sound();
}

#[test]
fn cancel_running_cancels_the_older_run() {
    let db = TestDb::new();
    let mut stepper = minutely(&db, Overlap::CancelRunning, 100);
    let before = db.add_bystander(&stepper);
    let first = claim_after(&mut stepper, minutes(1));
    assert!(stepper.stopped().is_empty());
    stepper.client().trigger("t").expect("a run");
    next_minute(&mut stepper, 0);
    assert!(stepper.stopped().contains(&first.run_id), "it is asked to stop in the turn that resolved the next");
    next_minute(&mut stepper, 0);
    assert_eq!(history(&db), "01 running, 01 manual queued, 02 cancelled, 03 queued");
    // It stops. A manual run is older than the newest, and waits for the key alone.
    stepper.finish(&first, Outcome::failed("asked to stop"));
    let by_hand = claim(&mut stepper);
    assert_eq!(by_hand.origin, duly::Origin::Manual);
    let newest = succeed(&mut stepper, &by_hand);
    assert_eq!((newest.len(), newest[0].scheduled_for), (1, at("2027-03-14T12:03:00Z")));
    assert_eq!(history(&db), "01 cancelled, 01 manual succeeded, 02 cancelled, 03 running");
    assert_eq!(db.ask("SELECT group_concat(outcome) FROM task_attempts"), "cancelled");

    // A run that succeeds despite the request has succeeded.
    next_minute(&mut stepper, 0);
    let last = succeed(&mut stepper, &newest[0]);
    assert_eq!((last.len(), last[0].scheduled_for), (1, at("2027-03-14T12:04:00Z")));
    // A run that waits for its retry is older: it is cancelled too.
    stepper.finish(&last[0], Outcome::failed("no"));
    next_minute(&mut stepper, 1);
    let statuses = "SELECT group_concat(status, ' ') FROM (SELECT status FROM task_runs WHERE handler = 'work'
                     AND origin = 'schedule' ORDER BY scheduled_for)";
    assert_eq!(db.ask(statuses), "cancelled cancelled succeeded cancelled running");
    assert_eq!(db.ask("SELECT last_status FROM scheduled_tasks WHERE name = 't'"), "cancelled");
    db.assert_bystander(&before);
    db.assert_sound();
}

#[test]
fn allow_runs_side_by_side_up_to_workers_and_key() {
    let db = TestDb::new();
    let mut stepper = minutely(&db, Overlap::Allow, 1);
    for _ in 0..4 {
        next_minute(&mut stepper, 1);
    }
    next_minute(&mut stepper, 0);
    assert_eq!(db.ask("SELECT group_concat(ifnull(concurrency_key, '-')) FROM task_runs"), "-,-,-,-,-");
    let oldest = stepper.running()[3].clone();
    let fifth = succeed(&mut stepper, &oldest);
    assert_eq!((fifth.len(), fifth[0].scheduled_for), (1, at("2027-03-14T12:05:00Z")));
    db.assert_sound();

    let (db, mut stepper) = TestDb::with_stepper();
    let keyed = NewTask::cron("t", "* * * * *").handler("work").overlap(Overlap::Allow).concurrency_key("chat:7");
    stepper.client().add(keyed).expect("a task");
    next_minute(&mut stepper, 1);
    next_minute(&mut stepper, 0);
    next_minute(&mut stepper, 0);
    assert_eq!(db.ask("SELECT group_concat(blocked) FROM task_runs"), "key,key");
    let first = stepper.running()[0].clone();
    let second = succeed(&mut stepper, &first);
    assert_eq!((second.len(), second[0].scheduled_for), (1, at("2027-03-14T12:02:00Z")));
    db.assert_sound();
}

/// A scheduled run waits for every older scheduled run of its task, also for one that waits for its retry. A manual run
/// waits for the key alone, and runs alone.
#[test]
fn waiting_runs_start_in_order_and_behind_a_retry() {
    let (db, mut stepper) = TestDb::with_stepper();
    let retry = RetryPolicy { max_attempts: 3, backoff: minutes(10), max_backoff: minutes(10) };
    let task = NewTask::cron("t", "* * * * *").handler("work").overlap(Overlap::BufferAll).retry(retry);
    stepper.client().add(task.misfire(Misfire::RunOnce, minutes(30))).expect("a task");
    let first = claim_after(&mut stepper, minutes(1));
    stepper.finish(&first, Outcome::failed("no"));
    step(&mut stepper, 0);
    next_minute(&mut stepper, 0);
    next_minute(&mut stepper, 0);
    let reasons = "SELECT group_concat(origin || ' ' || status || ' ' || ifnull(blocked, '-'), ', ')
                     FROM (SELECT * FROM task_runs ORDER BY id)";
    assert_eq!(db.ask(reasons), "schedule failed -, schedule queued order, schedule queued order");
    stepper.client().trigger("t").expect("a run");
    let by_hand = claim(&mut stepper);
    assert_eq!(by_hand.origin, duly::Origin::Manual);
    assert_eq!(db.ask(reasons), "schedule failed key, schedule queued order, schedule queued order, manual running -");
    assert!(succeed(&mut stepper, &by_hand).is_empty(), "the oldest waits for its retry, and the others for it");
    // Between five and ten minutes after it failed. Occurrences that become due meanwhile wait behind it.
    stepper.clock().advance(minutes(8));
    let began: Vec<String> = work_off(&mut stepper).iter().map(|claim| claim.scheduled_for.to_string()).collect();
    let expected: Vec<String> = (1..=11).map(|minute| format!("2027-03-14T12:{minute:02}:00.000Z")).collect();
    assert_eq!(began, expected);
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE status <> 'succeeded'"), "0");
    db.assert_sound();
}

/// A change of the overlap policy releases waiting runs, or orders them.
#[test]
fn a_change_of_overlap_applies_to_waiting_runs() {
    let db = TestDb::new();
    let mut stepper = minutely(&db, Overlap::BufferAll, 10);
    for claims in [1, 0, 0] {
        next_minute(&mut stepper, claims);
    }
    let task = NewTask::cron("t", "* * * * *").handler("work").overlap(Overlap::Allow);
    let task = task.catch_up_limit(10).misfire(Misfire::RunOnce, minutes(10));
    stepper.client().replace(task).expect("a change");
    // They were opened with the task's own key and keep it: one at a time, the oldest first.
    step(&mut stepper, 0);
    let first = stepper.running()[0].clone();
    let second = succeed(&mut stepper, &first);
    assert_eq!((second.len(), second[0].scheduled_for), (1, at("2027-03-14T12:02:00Z")));
    // A new occurrence runs beside them.
    next_minute(&mut stepper, 1);
    work_off(&mut stepper);
    assert_eq!(stepper.sleeps().min(Duration::from_secs(1)), Duration::from_secs(1));
    db.assert_sound();
}
