//! Delay tasks count from the end of their last run: while a run is unfinished there is no next run; then it is the end plus the
//! delay, whatever the outcome.

use std::sync::Arc;

use duly::testing::Stepper;
use duly::{Cancel, Claim, Misfire, NewTask, Outcome, RetryPolicy, RunStatus, Timestamp};

use crate::fixtures::{
    NOON, TestDb, advance_and_step, at, claim, claim_after, minutes, once, seconds, step, step_after, succeed,
    with_task, work_off,
};

fn every_ten() -> NewTask {
    NewTask::delay("t", minutes(10)).handler("work")
}

#[test]
fn a_delay_counts_from_the_end_of_the_run() {
    let (db, mut stepper) = with_task(every_ten());
    let before = db.add_bystander(&stepper);
    assert_eq!(db.next("t"), "2027-03-14 12:10:00 active");
    let first = claim_after(&mut stepper, minutes(10));
    assert_eq!(db.next("t"), "- active");
    step_after(&mut stepper, minutes(3), 0);
    assert_eq!(db.next("t"), "- active");
    // The end counts, not the time of its record.
    stepper.finish(&first, Outcome::succeeded());
    step_after(&mut stepper, seconds(7), 0);
    assert_eq!(db.next("t"), "2027-03-14 12:23:00 active");

    // A retry continues the same run: the end of its last attempt counts.
    stepper.clock().set_wall(at("2027-03-14T12:23:00Z"));
    let second = claim(&mut stepper);
    stepper.finish(&second, Outcome::failed("no"));
    step(&mut stepper, 0);
    assert_eq!(db.next("t"), "- active");
    let again = claim_after(&mut stepper, seconds(10));
    assert!(succeed(&mut stepper, &again).is_empty());
    assert_eq!(db.next("t"), "2027-03-14 12:33:10 active");
    db.assert_history("t", &["2027-03-14 12:10:00 schedule succeeded", "2027-03-14 12:23:00 schedule succeeded"]);
    db.assert_bystander(&before);
    db.assert_sound();
}

/// Dead, cancelled while it ran, cancelled while it waited, lost, expired: each is an end.
#[test]
fn a_delay_counts_from_the_end_whatever_the_outcome() {
    let due = |task: NewTask| {
        let (db, mut stepper) = with_task(task);
        let run = claim_after(&mut stepper, minutes(10));
        stepper.clock().advance(minutes(1));
        (db, stepper, run)
    };
    let (db, mut stepper, run) = due(every_ten().at_most_once());
    stepper.finish(&run, Outcome::failed("no"));
    step(&mut stepper, 0);
    assert_eq!((db.next("t").as_str(), db.history("t").len()), ("2027-03-14 12:21:00 active", 1));

    let (db, mut stepper, run) = due(every_ten());
    assert_eq!(stepper.client().cancel(run.run_id).expect("asked"), Cancel::Asked);
    assert_eq!(db.next("t"), "- active");
    stepper.finish(&run, Outcome::failed("stopped"));
    step(&mut stepper, 0);
    assert_eq!(db.next("t"), "2027-03-14 12:21:00 active");

    let (db, mut stepper, run) = due(every_ten());
    stepper.finish(&run, Outcome::failed("no"));
    step(&mut stepper, 0);
    assert_eq!(stepper.client().cancel(run.run_id).expect("done"), Cancel::Done);
    assert_eq!(db.next("t"), "2027-03-14 12:21:00 active");

    let (db, stepper, _) = due(every_ten().at_most_once());
    stepper.crash();
    let mut stepper = db.stepper("2027-03-14T13:00:00Z");
    work_off(&mut stepper);
    db.assert_history("t", &["2027-03-14 12:10:00 schedule dead"]);
    assert_eq!(db.next("t"), "2027-03-14 13:10:00 active", "when its end is known");

    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("other").start().expect("a stepper");
    stepper.client().add(every_ten().expires(minutes(2))).expect("a task");
    step_after(&mut stepper, minutes(10), 0);
    step_after(&mut stepper, minutes(2), 0);
    db.assert_history("t", &["2027-03-14 12:10:00 schedule missed"]);
    assert_eq!(db.next("t"), "2027-03-14 12:22:00 active");
}

#[test]
fn a_delay_counts_from_the_end_of_a_manual_run_too() {
    let (db, mut stepper) = with_task(every_ten());
    stepper.clock().advance(minutes(5));
    stepper.client().trigger("t").expect("a run");
    assert_eq!(db.next("t"), "- active");
    let by_hand = claim(&mut stepper);
    stepper.client().trigger("t").expect("another run");
    stepper.clock().advance(minutes(10));
    let other = succeed(&mut stepper, &by_hand);
    assert_eq!(db.next("t"), "- active", "the last of them counts");
    stepper.clock().advance(minutes(1));
    succeed(&mut stepper, &other[0]);
    assert_eq!(db.next("t"), "2027-03-14 12:26:00 active");
    db.assert_history("t", &["2027-03-14 12:05:00 manual succeeded", "2027-03-14 12:05:00 manual succeeded"]);
}

/// An occurrence that was due before the trigger still runs.
#[test]
fn a_trigger_does_not_replace_a_due_occurrence() {
    let (db, stepper) = with_task(every_ten());
    stepper.crash();
    let mut stepper = db.stepper("2027-03-14T12:10:00Z");
    stepper.client().trigger("t").expect("a run");
    let due = claim(&mut stepper);
    db.assert_history("t", &["2027-03-14 12:10:00 schedule running", "2027-03-14 12:10:00 manual queued"]);
    stepper.clock().advance(minutes(1));
    let by_hand = succeed(&mut stepper, &due);
    assert_eq!(db.next("t"), "- active");
    stepper.clock().advance(minutes(1));
    succeed(&mut stepper, &by_hand[0]);
    assert_eq!(db.next("t"), "2027-03-14 12:22:00 active");
}

#[test]
fn a_delay_counts_from_now_after_a_miss_and_on_resume() {
    let (db, stepper) = with_task(every_ten().misfire(Misfire::Skip, seconds(60)));
    stepper.crash();
    let mut stepper = db.stepper("2027-03-14T12:30:00Z");
    step(&mut stepper, 0);
    db.assert_history("t", &["2027-03-14 12:10:00 schedule missed"]);
    assert_eq!(db.next("t"), "2027-03-14 12:40:00 active");

    stepper.client().pause("t").expect("a pause");
    assert_eq!(db.next("t"), "- paused");
    stepper.clock().set_wall(at("2027-03-14T13:00:00Z"));
    step(&mut stepper, 0);
    stepper.client().resume("t").expect("a resumption");
    assert_eq!(db.next("t").as_str(), "2027-03-14 13:10:00 active");
    assert_eq!(db.history("t").len(), 1, "occurrences during the pause are neither run nor missed");

    // Resumed while a run is unfinished: its end counts.
    stepper.client().trigger("t").expect("a run");
    let by_hand = claim(&mut stepper);
    stepper.client().pause("t").expect("a pause");
    stepper.clock().advance(minutes(5));
    stepper.client().resume("t").expect("a resumption");
    assert_eq!(db.next("t"), "- active");
    stepper.clock().advance(minutes(1));
    succeed(&mut stepper, &by_hand);
    assert_eq!(db.next("t"), "2027-03-14 13:16:00 active");
}

#[test]
fn a_delay_respects_starts_at_and_ends_at() {
    let ends = || every_ten().ends_at(at("2027-03-14T12:30:00Z"));
    let (db, mut stepper) = with_task(ends());
    let first = claim_after(&mut stepper, minutes(10));
    stepper.clock().advance(minutes(10));
    succeed(&mut stepper, &first);
    assert_eq!(db.next("t"), "2027-03-14 12:30:00 active", "exactly the end is not after it");
    let second = claim_after(&mut stepper, minutes(10));
    succeed(&mut stepper, &second);
    assert_eq!(db.next("t"), "- completed");
    // A manual run does not reactivate it.
    stepper.clock().advance(minutes(60));
    stepper.client().trigger("t").expect("a run");
    work_off(&mut stepper);
    assert_eq!((db.next("t").as_str(), db.history("t").len()), ("- completed", 3));

    // After a manual run, the later of `starts_at` and the end plus the delay counts.
    let (db, mut stepper) = with_task(every_ten().starts_at(at("2027-03-14T13:00:00Z")));
    assert_eq!(db.next("t"), "2027-03-14 13:00:00 active");
    stepper.client().trigger("t").expect("a run");
    work_off(&mut stepper);
    assert_eq!(db.next("t"), "2027-03-14 13:00:00 active");
}

/// The lost attempt is retried.
#[test]
fn after_a_crash_a_delay_counts_from_the_end_of_the_retry() {
    let retry = RetryPolicy { max_attempts: 2, backoff: seconds(10), max_backoff: seconds(10) };
    let (db, mut stepper) = with_task(every_ten().retry(retry));
    let run = claim_after(&mut stepper, minutes(10));
    stepper.crash();
    let mut stepper = db.stepper("2027-03-15T12:00:00Z");
    work_off(&mut stepper);
    assert_eq!(db.next("t"), "- active");
    let again = claim_after(&mut stepper, seconds(10));
    assert_eq!((again.run_id, again.attempt), (run.run_id, 2));
    succeed(&mut stepper, &again);
    assert_eq!(db.next("t"), "2027-03-15 12:10:10 active");
    let run = stepper.client().run(run.run_id).expect("a look-up").expect("a run");
    assert_eq!(run.status, RunStatus::Succeeded);
    db.assert_sound();
}

/// A run of the task, due ten minutes after noon, and a twin that has ended and that no test changes.
fn begun(task: NewTask) -> (TestDb, Stepper, Arc<Claim>) {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(task).unwrap();
    stepper.client().add(NewTask::delay("twin", minutes(10)).handler("work")).unwrap();
    let mut claims = advance_and_step(&mut stepper, minutes(10));
    claims.sort_by(|a, b| a.task.cmp(&b.task));
    let [subject, twin] = <[_; 2]>::try_from(claims).expect("both are due");
    stepper.finish(&twin, Outcome::succeeded());
    stepper.step().unwrap();
    assert_eq!(next_run(&stepper, "twin"), Some(at("2027-03-14T12:20:00Z")));
    (db, stepper, subject)
}

fn next_run(stepper: &Stepper, name: &str) -> Option<Timestamp> {
    stepper.client().task(name).unwrap().expect(name).next_run
}

/// Ends the run at 12:15.
fn end(stepper: &mut Stepper, claim: &Arc<Claim>) {
    stepper.clock().set_wall(at("2027-03-14T12:15:00Z"));
    stepper.finish(claim, Outcome::succeeded());
    stepper.step().unwrap();
}

#[test]
fn a_changed_delay_counts_with_its_new_length_after_the_run_at_work() {
    let (_db, mut stepper, subject) = begun(every_ten());
    stepper.client().replace(NewTask::delay("t", minutes(2)).handler("work")).unwrap();
    assert_eq!(next_run(&stepper, "t"), None);
    end(&mut stepper, &subject);
    assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:17:00Z")));
}

#[test]
fn a_task_that_becomes_a_delay_during_a_run_is_planned_at_its_end() {
    for was in [NewTask::interval("t", minutes(10)).handler("work"), once("t")] {
        let (_db, mut stepper, subject) = begun(was);
        stepper.client().replace(every_ten()).unwrap();
        assert_eq!(next_run(&stepper, "t"), None);
        end(&mut stepper, &subject);
        assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:25:00Z")));
    }
}

#[test]
fn a_delay_counts_from_the_cancellation_of_a_waiting_run() {
    for by_sql in [true, false] {
        let (db, mut stepper, subject) = begun(every_ten());
        stepper.finish(&subject, Outcome::failed("no luck"));
        stepper.step().unwrap();
        stepper.clock().set_wall(at("2027-03-14T12:15:00Z"));
        if by_sql {
            let asked = "UPDATE task_runs SET cancel_requested = 1 WHERE status = 'failed'";
            assert_eq!(db.execute(asked), 1);
        } else {
            stepper.client().cancel(subject.run_id).unwrap();
        }
        let claims = stepper.step().unwrap();
        assert!(claims.iter().all(|claim| claim.task != "t"), "not at once, by SQL: {by_sql}");
        assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:25:00Z")), "by SQL: {by_sql}");
    }
}

#[test]
fn a_run_that_ends_before_an_sql_edit_is_planned_counts() {
    let (db, mut stepper, subject) = begun(every_ten());
    db.execute("UPDATE scheduled_tasks SET overlap = 'buffer_one' WHERE name = 't'");
    end(&mut stepper, &subject);
    assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:25:00Z")));
}

#[test]
fn a_completed_delay_stays_completed_when_its_handler_is_changed() {
    let (db, mut stepper, subject) = begun(every_ten().ends_at(at("2027-03-14T12:24:00Z")));
    end(&mut stepper, &subject);
    let state = "SELECT status, next_run, planned FROM scheduled_tasks WHERE name = 't'";
    assert_eq!(db.rows(state), ["completed|-|1"], "12:25 would be too late");
    db.execute("UPDATE scheduled_tasks SET handler = 'other' WHERE name = 't'");
    db.execute("UPDATE scheduled_tasks SET handler = 'work' WHERE name = 't'");
    assert!(stepper.step().unwrap().is_empty());
    assert_eq!(db.rows(state), ["completed|-|1"]);
    assert_eq!(db.history("t").len(), 1);
}

#[test]
fn a_resolved_instant_that_sql_sets_again_waits_for_the_run() {
    let (db, mut stepper, subject) = begun(every_ten());
    db.execute("UPDATE scheduled_tasks SET next_run = resolved_until WHERE name = 't'");
    stepper.step().unwrap();
    assert_eq!(next_run(&stepper, "t"), None);
    end(&mut stepper, &subject);
    assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:25:00Z")));
    assert_eq!(db.history("t").len(), 1);
}
