//! Tasks with a calendar interval: from the library, by SQL, over a change of the clock, after an outage.

use duly::{NewTask, Outcome};

use crate::fixtures::{TestDb, at, finish_all, work_off};
use crate::sql::insert;

/// Nine o'clock on every second Monday, over the begin of daylight saving on 2027-03-14.
#[test]
fn a_task_of_every_second_week_runs_at_nine_by_the_clock() {
    let db = TestDb::new();
    let mut stepper = db.stepper("2027-02-24T12:00:00Z");
    let client = stepper.client().clone();
    let task = NewTask::calendar("sprint", "every 2 weeks on mon at 09:00").time_zone("America/New_York");
    client.add(task.handler("work").starts_at(at("2027-03-01T05:00:00Z"))).expect("a task");
    let before = db.add_bystander(&stepper);
    for day in ["2027-03-01T14:00:00Z", "2027-03-15T13:00:00Z", "2027-03-29T13:00:00Z"] {
        assert_eq!(client.task("sprint").expect("a row").expect("the task").next_run, Some(at(day)));
        stepper.clock().set_wall(at(day));
        assert_eq!(stepper.step().expect("a step").len(), 1, "{day}");
        finish_all(&mut stepper, &Outcome::succeeded());
    }
    // After an outage of five weeks one of two is run.
    stepper.clock().set_wall(at("2027-05-03T00:00:00Z"));
    work_off(&mut stepper);
    assert_eq!(db.next("sprint"), "2027-05-10 13:00:00 active");
    let late: Vec<String> = db.history("sprint").into_iter().skip(3).collect();
    assert_eq!(late, ["2027-04-12 13:00:00 schedule missed", "2027-04-26 13:00:00 catch_up succeeded"]);
    db.assert_bystander(&before);
    db.assert_sound();
}

/// Another program names what it wants; what is ambiguous makes its row invalid, with the reason.
#[test]
fn sql_adds_a_calendar_interval() {
    let db = TestDb::new();
    let mut stepper = db.stepper("2027-03-01T12:00:00Z");
    db.execute(&insert("rent", "calendar", "every month on last day at 06:00"));
    db.execute(&insert("odd", "calendar", "every month on 31 at 06:00"));
    db.execute("UPDATE scheduled_tasks SET created_at = 1803902400000, active_since = 1803902400000");
    stepper.step().expect("a step");
    assert_eq!(db.next("rent"), "2027-03-31 06:00:00 active");
    let reason = db.ask("SELECT status || ': ' || invalid_reason FROM scheduled_tasks WHERE name = 'odd'");
    assert!(reason.starts_with("invalid: ") && reason.contains("write \"last day\""), "{reason}");
}
