//! Delay tasks: the next run is due so long after the end of the last, whatever happened to the task meanwhile.

use std::sync::Arc;

use duly::testing::Stepper;
use duly::{Claim, NewTask, Outcome, Timestamp};

use crate::house::{House, at, minutes};

const NOON: &str = "2027-03-14T12:00:00Z";

/// A task that is due ten minutes after noon, and a twin that ends first and is left alone.
fn begun(task: NewTask) -> (House, Stepper, Arc<Claim>) {
    let house = House::new();
    let mut stepper = house.stepper(NOON);
    stepper.client().add(task).unwrap();
    stepper.client().add(NewTask::delay("twin", minutes(10)).handler("work")).unwrap();
    stepper.clock().advance(minutes(10));
    let mut claims = stepper.step().unwrap();
    claims.sort_by(|a, b| a.task.cmp(&b.task));
    let [subject, twin] = <[_; 2]>::try_from(claims).expect("both are due");
    stepper.finish(&twin, Outcome::succeeded());
    stepper.step().unwrap();
    assert_eq!(next_run(&stepper, "twin"), Some(at("2027-03-14T12:20:00Z")));
    (house, stepper, subject)
}

fn ten_minutes() -> NewTask {
    NewTask::delay("subject", minutes(10)).handler("work")
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
fn the_delay_counts_from_the_end_of_the_last_run() {
    let (_house, mut stepper, subject) = begun(ten_minutes());
    let manual = stepper.client().trigger("subject").unwrap();
    assert_eq!(next_run(&stepper, "subject"), None, "none while a run is unfinished");
    stepper.clock().set_wall(at("2027-03-14T12:15:00Z"));
    stepper.finish(&subject, Outcome::succeeded());
    let claims = stepper.step().unwrap();
    assert_eq!((claims[0].run_id, next_run(&stepper, "subject")), (manual, None), "a manual run is a run too");
    stepper.clock().set_wall(at("2027-03-14T12:17:00Z"));
    stepper.finish(&claims[0], Outcome::succeeded());
    stepper.step().unwrap();
    assert_eq!(next_run(&stepper, "subject"), Some(at("2027-03-14T12:27:00Z")));
}

#[test]
fn a_delay_that_is_changed_while_a_run_is_at_work_counts_with_its_new_length() {
    let (_house, mut stepper, subject) = begun(ten_minutes());
    stepper.client().replace(NewTask::delay("subject", minutes(2)).handler("work")).unwrap();
    assert_eq!(next_run(&stepper, "subject"), None);
    end(&mut stepper, &subject);
    assert_eq!(next_run(&stepper, "subject"), Some(at("2027-03-14T12:17:00Z")));
}

#[test]
fn a_task_that_becomes_a_delay_while_a_run_is_at_work_is_due_again() {
    for was in
        [NewTask::interval("subject", minutes(10)).handler("work"), NewTask::once("subject", at(NOON)).handler("work")]
    {
        let (_house, mut stepper, subject) = begun(was);
        stepper.client().replace(ten_minutes()).unwrap();
        assert_eq!(next_run(&stepper, "subject"), None);
        end(&mut stepper, &subject);
        assert_eq!(next_run(&stepper, "subject"), Some(at("2027-03-14T12:25:00Z")));
    }
}

#[test]
fn a_waiting_run_that_is_cancelled_by_sql_or_by_a_client_ends_then() {
    for by_sql in [true, false] {
        let (house, mut stepper, subject) = begun(ten_minutes());
        stepper.finish(&subject, Outcome::failed("no luck"));
        stepper.step().unwrap();
        stepper.clock().set_wall(at("2027-03-14T12:15:00Z"));
        if by_sql {
            let asked = "UPDATE task_runs SET cancel_requested = 1 WHERE status = 'failed'";
            assert_eq!(house.plain().execute(asked, []).unwrap(), 1);
        } else {
            stepper.client().cancel(subject.run_id).unwrap();
        }
        let claims = stepper.step().unwrap();
        assert!(claims.iter().all(|claim| claim.task != "subject"), "not at once, by SQL: {by_sql}");
        assert_eq!(next_run(&stepper, "subject"), Some(at("2027-03-14T12:25:00Z")), "by SQL: {by_sql}");
    }
}

#[test]
fn a_run_that_ends_before_a_change_by_sql_is_seen_counts() {
    let (house, mut stepper, subject) = begun(ten_minutes());
    house.plain().execute("UPDATE scheduled_tasks SET overlap = 'buffer_one' WHERE name = 'subject'", []).unwrap();
    end(&mut stepper, &subject);
    assert_eq!(next_run(&stepper, "subject"), Some(at("2027-03-14T12:25:00Z")));
}

#[test]
fn a_completed_delay_stays_completed_when_its_handler_is_changed() {
    let (house, mut stepper, subject) = begun(ten_minutes().ends_at(at("2027-03-14T12:24:00Z")));
    end(&mut stepper, &subject);
    let stands = "SELECT status, next_run, planned FROM scheduled_tasks WHERE name = 'subject'";
    assert_eq!(house.rows(stands), ["completed|-|1"], "12:25 would be too late");
    house.plain().execute("UPDATE scheduled_tasks SET handler = 'other' WHERE name = 'subject'", []).unwrap();
    house.plain().execute("UPDATE scheduled_tasks SET handler = 'work' WHERE name = 'subject'", []).unwrap();
    assert!(stepper.step().unwrap().is_empty());
    assert_eq!(house.rows(stands), ["completed|-|1"]);
    assert_eq!(house.ask("SELECT count(*) FROM task_runs WHERE task_id = 1"), "1");
}
