//! Manual tasks: only a request opens a run. They are never due, overdue or completed.

use duly::testing::Stepper;
use duly::{
    Change, Client, Clock, FailureKind, Limits, NewTask, Origin, Outcome, Retention, Retry, ScheduleKind, TaskStatus,
};

use crate::fixtures::{NOON, TestDb, at, claim, claim_after, minutes, problems, step, succeed};

fn alarm() -> NewTask {
    NewTask::manual("alarm").handler("work")
}

/// A database with a manual task, and a stepper that has planned it.
fn manual_task() -> (TestDb, Stepper) {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add(alarm()).unwrap();
    step(&mut stepper, 0);
    (db, stepper)
}

fn overdue(db: &TestDb) -> Vec<String> {
    db.rows("SELECT name FROM overdue_tasks")
}

#[track_caller]
fn assert_no_problem(client: &Client) {
    assert_eq!(problems(client), [""; 0]);
}

#[test]
fn a_manual_task_is_never_due() {
    let (db, mut stepper) = manual_task();
    let client = stepper.client().clone();
    client.add(NewTask::cron("hourly", "0 * * * *").handler("work")).unwrap();
    for _ in 0..30 {
        let hourly = claim_after(&mut stepper, minutes(60));
        assert_eq!(hourly.task, "hourly");
        succeed(&mut stepper, &hourly);
    }
    // After a gap, and after a clock that showed another year.
    stepper.clock().set_wall(at("2028-03-14T12:00:00Z"));
    step(&mut stepper, 1).iter().for_each(|run| stepper.finish(run, Outcome::succeeded()));
    step(&mut stepper, 0);
    stepper.clock().set_wall(at("2027-06-01T12:30:00Z"));
    step(&mut stepper, 0);
    assert_eq!(db.next("alarm"), "- active");
    assert_eq!(db.history("alarm"), Vec::<String>::new());
    assert_eq!(overdue(&db), Vec::<String>::new());
    assert_no_problem(&client);
    let status = client.status().unwrap();
    assert_eq!((status.due, status.overdue, status.tasks), (0, 0, vec![(TaskStatus::Active, 2)]));
    let task = client.task("alarm").unwrap().unwrap();
    assert_eq!(task.occurrences(at(NOON), 3).unwrap(), []);
    let outage = task.outage(at(NOON), at("2029-03-14T12:00:00Z")).unwrap();
    assert_eq!((outage.projections, outage.next), (Vec::new(), None));
    assert_eq!(alarm().occurrences(at(NOON), 3).unwrap(), []);
    db.assert_sound();
}

#[test]
fn a_trigger_and_a_dead_run_open_runs_and_the_task_stays_active() {
    let (db, mut stepper) = manual_task();
    let client = stepper.client().clone();
    client.add(NewTask::once("job", at(NOON)).handler("work").at_most_once().on_dead("alarm")).unwrap();
    let job = claim(&mut stepper);
    stepper.finish(&job, Outcome::failed("disk full"));
    let alarm_run = claim(&mut stepper);
    assert_eq!((alarm_run.task.as_str(), alarm_run.origin), ("alarm", Origin::OnDead));
    succeed(&mut stepper, &alarm_run);
    let by_hand = client.trigger("alarm").unwrap();
    let claimed = claim(&mut stepper);
    assert_eq!((claimed.run_id, claimed.origin), (by_hand, Origin::Manual));
    succeed(&mut stepper, &claimed);
    assert_eq!(db.next("alarm"), "- active");
    assert_eq!(db.next("job"), "- completed");
    let task = client.task("alarm").unwrap().unwrap();
    assert_eq!(task.last_status, Some(duly::RunStatus::Succeeded));

    // Retention keeps the task, however old its runs are, and deletes the completed one.
    stepper.clock().set_wall(at("2027-09-14T12:00:00Z"));
    let keep = Retention { least_runs: 0, ..Retention::default() };
    let pruned = client.prune(keep).unwrap();
    assert_eq!((pruned.tasks, pruned.runs), (1, 2));
    assert_eq!(client.names().unwrap(), ["alarm"]);
    db.assert_sound();
}

#[test]
fn pauses_and_resumptions_give_a_manual_task_no_occurrence() {
    let (db, mut stepper) = manual_task();
    let client = stepper.client().clone();
    client.pause("alarm").unwrap();
    assert_eq!(db.next("alarm"), "- paused");
    stepper.clock().advance(minutes(60));
    client.resume("alarm").unwrap();
    assert_eq!(db.next("alarm"), "- active");
    // No occurrence was skipped, and the event names none.
    assert_eq!(db.rows("SELECT kind, detail FROM scheduler_events ORDER BY id"), ["paused|user", "resumed|-"]);

    client.replace(alarm().pause_after_failures(1)).unwrap();
    client.trigger("alarm").unwrap();
    let run = claim(&mut stepper);
    let gives_up = Outcome::Failed { how: FailureKind::Failed, error: "no".into(), retry: Retry::GiveUp };
    stepper.finish(&run, gives_up);
    step(&mut stepper, 0);
    assert_eq!(db.next("alarm"), "- paused");
    client.resume("alarm").unwrap();
    assert_eq!(db.next("alarm"), "- active");
    db.assert_sound();
}

#[test]
fn a_task_becomes_manual_and_is_scheduled_again() {
    let (db, mut stepper) = manual_task();
    let client = stepper.client().clone();
    client.add(NewTask::once("done", at(NOON)).handler("work")).unwrap();
    let done = claim(&mut stepper);
    succeed(&mut stepper, &done);
    client.replace(NewTask::manual("done").handler("work")).unwrap();
    assert_eq!(db.next("done"), "- active");
    assert_eq!(
        client.add(NewTask::manual("done").handler("work").time_zone("Asia/Kolkata")).unwrap().change,
        Change::Unchanged
    );

    client.add(NewTask::interval("often", minutes(10)).handler("work")).unwrap();
    stepper.clock().advance(minutes(10));
    // A due occurrence is resolved first, under the old schedule.
    client.replace(NewTask::manual("often").handler("work")).unwrap();
    assert_eq!(db.next("often"), "- active");
    db.assert_history("often", &["2027-03-14 12:10:00 schedule queued"]);
    let often = claim(&mut stepper);
    succeed(&mut stepper, &often);
    client.replace(NewTask::cron("often", "0 * * * *").handler("work")).unwrap();
    assert_eq!(db.next("often"), "2027-03-14 13:00:00 active");
    db.assert_sound();
}

#[test]
fn sql_can_add_a_manual_task_make_a_task_manual_and_make_it_due() {
    let (db, mut stepper) = manual_task();
    let execute = |statement: &str| db.try_execute(statement);
    let insert = |name: &str, kind: &str, value: &str| {
        execute(&format!(
            "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, created_at, updated_at, active_since)
             VALUES ('{name}', 'work', '{kind}', '{value}', 1700000000000, 1700000000000, 1700000000000)"
        ))
    };
    for (kind, value) in [("manual", "x"), ("cron", "")] {
        let refused = insert("t", kind, value).unwrap_err().to_lowercase();
        assert!(refused.contains("check"), "{kind} {value:?}: {refused}");
    }
    insert("t", "manual", "").unwrap();
    insert("cron", "cron", "@daily").unwrap();
    assert_eq!(overdue(&db), ["cron"], "only the scheduled task waits for a scheduler");
    let found = db.client().check(&Limits::default()).unwrap();
    assert!(found.iter().all(|problem| problem.task.as_deref() != Some("t")), "{found:?}");
    step(&mut stepper, 1);
    assert_eq!(db.next("t"), "- active");

    // A completed task becomes manual.
    execute(
        "UPDATE scheduled_tasks SET schedule_type = 'once', schedule_value = '2027-03-14T11:00:00Z' WHERE name = 't'",
    )
    .unwrap();
    let once = claim(&mut stepper);
    succeed(&mut stepper, &once);
    assert_eq!(db.next("t"), "- completed");
    execute("UPDATE scheduled_tasks SET schedule_type = 'manual', schedule_value = '' WHERE name = 't'").unwrap();
    step(&mut stepper, 0);
    assert_eq!(db.next("t"), "- active");

    // SQL may make any task due.
    stepper.clock().advance(minutes(30));
    let now = stepper.clock().now().wall.as_millis();
    execute(&format!("UPDATE scheduled_tasks SET next_run = {now} WHERE name = 't'")).unwrap();
    let requested = claim(&mut stepper);
    assert_eq!(requested.task, "t");
    succeed(&mut stepper, &requested);
    assert_eq!(db.next("t"), "- active");
    assert_eq!(db.history("t").len(), 2);
    assert_eq!(stepper.client().task("t").unwrap().unwrap().definition.schedule_type, ScheduleKind::Manual);
    db.assert_sound();
}
