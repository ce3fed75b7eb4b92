//! Delay tasks count from the end of their last run: while one is unfinished nobody can say when the next is due; then it is
//! the end and the delay, whatever the end was.

use std::sync::Arc;

use duly::testing::Stepper;
use duly::{Cancel, Claim, Misfire, NewTask, Outcome, RetryPolicy, RunStatus, Timestamp};

use crate::fixtures::{TestDb, at, claim, minutes, seconds, step, succeed, work_off};

const NOON: &str = "2027-03-14T12:00:00Z";

fn every_ten() -> NewTask {
    NewTask::delay("t", minutes(10)).handler("work")
}

/// A db with one task, added at noon.
fn house_of(task: NewTask) -> (TestDb, Stepper) {
    let db = TestDb::new();
    let stepper = db.stepper(NOON);
    stepper.client().add(task).expect("a task");
    (db, stepper)
}

#[test]
fn counts_from_the_end_of_the_run() {
    let (db, mut stepper) = house_of(every_ten());
    let before = db.add_bystander(&stepper);
    assert_eq!(db.next("t"), "2027-03-14 12:10:00 active");
    stepper.clock().advance(minutes(10));
    let first = claim(&mut stepper);
    assert_eq!(db.next("t"), "- active");
    stepper.clock().advance(minutes(3));
    step(&mut stepper, 0);
    assert_eq!(db.next("t"), "- active");
    // It ended then, however late that is written down.
    stepper.finish(&first, Outcome::succeeded());
    stepper.clock().advance(seconds(7));
    step(&mut stepper, 0);
    assert_eq!(db.next("t"), "2027-03-14 12:23:00 active");

    // A retry is the same run: its last end counts.
    stepper.clock().set_wall(at("2027-03-14T12:23:00Z"));
    let second = claim(&mut stepper);
    stepper.finish(&second, Outcome::failed("no"));
    step(&mut stepper, 0);
    assert_eq!(db.next("t"), "- active");
    stepper.clock().advance(seconds(10));
    let again = claim(&mut stepper);
    assert!(succeed(&mut stepper, &again).is_empty());
    assert_eq!(db.next("t"), "2027-03-14 12:33:10 active");
    db.assert_history("t", &["2027-03-14 12:10:00 schedule succeeded", "2027-03-14 12:23:00 schedule succeeded"]);
    db.assert_bystander(&before);
    db.assert_sound();
}

/// Dead, cancelled while it ran, cancelled while it waited, expired, lost for good: each is an end.
#[test]
fn whatever_ends_the_run() {
    let due = |task: NewTask| {
        let (db, mut stepper) = house_of(task);
        stepper.clock().advance(minutes(10));
        let run = claim(&mut stepper);
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
    stepper.finish(&run, Outcome::failed("told to stop"));
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
    stepper.clock().advance(minutes(10));
    step(&mut stepper, 0);
    stepper.clock().advance(minutes(2));
    step(&mut stepper, 0);
    db.assert_history("t", &["2027-03-14 12:10:00 schedule missed"]);
    assert_eq!(db.next("t"), "2027-03-14 12:22:00 active");
}

#[test]
fn counts_from_the_end_of_a_manual_run_too() {
    let (db, mut stepper) = house_of(every_ten());
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

/// What had come due before somebody asked for a run is not forgotten.
#[test]
fn a_trigger_swallows_nothing_that_was_due() {
    let (db, stepper) = house_of(every_ten());
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
fn counts_from_now_after_a_skip_or_a_miss_and_on_resume() {
    let (db, stepper) = house_of(every_ten().misfire(Misfire::Skip, seconds(60)));
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
    assert_eq!(db.history("t").len(), 1, "what fell meanwhile is neither run nor missed");

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
fn ends_and_starts() {
    let ends = || every_ten().ends_at(at("2027-03-14T12:30:00Z"));
    let (db, mut stepper) = house_of(ends());
    stepper.clock().advance(minutes(10));
    let first = claim(&mut stepper);
    stepper.clock().advance(minutes(10));
    succeed(&mut stepper, &first);
    assert_eq!(db.next("t"), "2027-03-14 12:30:00 active", "exactly the end is not after it");
    stepper.clock().advance(minutes(10));
    let second = claim(&mut stepper);
    succeed(&mut stepper, &second);
    assert_eq!(db.next("t"), "- completed");
    // A run by hand does not wake it.
    stepper.clock().advance(minutes(60));
    stepper.client().trigger("t").expect("a run");
    work_off(&mut stepper);
    assert_eq!((db.next("t").as_str(), db.history("t").len()), ("- completed", 3));

    // A run by hand before the start: the start counts where it is later.
    let (db, mut stepper) = house_of(every_ten().starts_at(at("2027-03-14T13:00:00Z")));
    assert_eq!(db.next("t"), "2027-03-14 13:00:00 active");
    stepper.client().trigger("t").expect("a run");
    work_off(&mut stepper);
    assert_eq!(db.next("t"), "2027-03-14 13:00:00 active");
}

/// A crash in the middle: the lost attempt is tried again, and the delay counts from the end of that.
#[test]
fn a_crash_in_the_middle_of_a_run() {
    let retry = RetryPolicy { max_attempts: 2, backoff: seconds(10), max_backoff: seconds(10) };
    let (db, mut stepper) = house_of(every_ten().retry(retry));
    stepper.clock().advance(minutes(10));
    let run = claim(&mut stepper);
    stepper.crash();
    let mut stepper = db.stepper("2027-03-15T12:00:00Z");
    work_off(&mut stepper);
    assert_eq!(db.next("t"), "- active");
    stepper.clock().advance(seconds(10));
    let again = claim(&mut stepper);
    assert_eq!((again.run_id, again.attempt), (run.run_id, 2));
    succeed(&mut stepper, &again);
    assert_eq!(db.next("t"), "2027-03-15 12:10:10 active");
    let run = stepper.client().run(run.run_id).expect("a look-up").expect("a run");
    assert_eq!(run.status, RunStatus::Succeeded);
    db.assert_sound();
}

/// A task that is due ten minutes after noon, and a twin that ends first and is left alone.
fn begun(task: NewTask) -> (TestDb, Stepper, Arc<Claim>) {
    let db = TestDb::new();
    let mut stepper = db.stepper(NOON);
    stepper.client().add(task).unwrap();
    stepper.client().add(NewTask::delay("twin", minutes(10)).handler("work")).unwrap();
    stepper.clock().advance(minutes(10));
    let mut claims = stepper.step().unwrap();
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
fn a_delay_that_is_changed_while_a_run_is_at_work_counts_with_its_new_length() {
    let (_house, mut stepper, subject) = begun(every_ten());
    stepper.client().replace(NewTask::delay("t", minutes(2)).handler("work")).unwrap();
    assert_eq!(next_run(&stepper, "t"), None);
    end(&mut stepper, &subject);
    assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:17:00Z")));
}

#[test]
fn a_task_that_becomes_a_delay_while_a_run_is_at_work_is_due_again() {
    for was in [NewTask::interval("t", minutes(10)).handler("work"), NewTask::once("t", at(NOON)).handler("work")] {
        let (_house, mut stepper, subject) = begun(was);
        stepper.client().replace(every_ten()).unwrap();
        assert_eq!(next_run(&stepper, "t"), None);
        end(&mut stepper, &subject);
        assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:25:00Z")));
    }
}

#[test]
fn a_waiting_run_that_is_cancelled_by_sql_or_by_a_client_ends_then() {
    for by_sql in [true, false] {
        let (db, mut stepper, subject) = begun(every_ten());
        stepper.finish(&subject, Outcome::failed("no luck"));
        stepper.step().unwrap();
        stepper.clock().set_wall(at("2027-03-14T12:15:00Z"));
        if by_sql {
            let asked = "UPDATE task_runs SET cancel_requested = 1 WHERE status = 'failed'";
            assert_eq!(db.plain().execute(asked, []).unwrap(), 1);
        } else {
            stepper.client().cancel(subject.run_id).unwrap();
        }
        let claims = stepper.step().unwrap();
        assert!(claims.iter().all(|claim| claim.task != "t"), "not at once, by SQL: {by_sql}");
        assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:25:00Z")), "by SQL: {by_sql}");
    }
}

#[test]
fn a_run_that_ends_before_a_change_by_sql_is_seen_counts() {
    let (db, mut stepper, subject) = begun(every_ten());
    db.plain().execute("UPDATE scheduled_tasks SET overlap = 'buffer_one' WHERE name = 't'", []).unwrap();
    end(&mut stepper, &subject);
    assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:25:00Z")));
}

#[test]
fn a_completed_delay_stays_completed_when_its_handler_is_changed() {
    let (db, mut stepper, subject) = begun(every_ten().ends_at(at("2027-03-14T12:24:00Z")));
    end(&mut stepper, &subject);
    let stands = "SELECT status, next_run, planned FROM scheduled_tasks WHERE name = 't'";
    assert_eq!(db.rows(stands), ["completed|-|1"], "12:25 would be too late");
    db.plain().execute("UPDATE scheduled_tasks SET handler = 'other' WHERE name = 't'", []).unwrap();
    db.plain().execute("UPDATE scheduled_tasks SET handler = 'work' WHERE name = 't'", []).unwrap();
    assert!(stepper.step().unwrap().is_empty());
    assert_eq!(db.rows(stands), ["completed|-|1"]);
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE task_id = 1"), "1");
}

#[test]
fn an_instant_that_was_resolved_and_is_set_again_by_sql_waits_for_the_run_too() {
    let (db, mut stepper, subject) = begun(every_ten());
    db.plain().execute("UPDATE scheduled_tasks SET next_run = resolved_until WHERE name = 't'", []).unwrap();
    stepper.step().unwrap();
    assert_eq!(next_run(&stepper, "t"), None);
    end(&mut stepper, &subject);
    assert_eq!(next_run(&stepper, "t"), Some(at("2027-03-14T12:25:00Z")));
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE task_id = 1"), "1");
}
