//! Dead runs: `on_dead` starts another task, `pause_after_failures` pauses the task after consecutive deaths, and a user may
//! retry the run.

use duly::testing::Stepper;
use duly::{Client, Error, Event, FailureKind, NewTask, Origin, Outcome, Retry, RunStatus, TaskStatus};

use crate::fixtures::{
    NOON, TestDb, advance_and_step, at, claim, claim_after, far_future, finish_all, is_of_sqlite, listen, minutes,
    step, step_after, succeed,
};

fn minutely(name: &str) -> NewTask {
    NewTask::interval(name, minutes(1)).handler("work")
}

/// A task that becomes due only by a trigger or by `on_dead`.
fn on_demand(name: &str) -> NewTask {
    far_future(name).handler("alarm")
}

fn stepper_with_alarm(db: &TestDb) -> Stepper {
    db.builder(NOON).accept("work").accept("alarm").start().expect("a stepper")
}

fn with_alarm() -> (TestDb, Stepper, Client) {
    let db = TestDb::new();
    let stepper = stepper_with_alarm(&db);
    let client = stepper.client().clone();
    (db, stepper, client)
}

fn give_up() -> Outcome {
    Outcome::Failed { how: FailureKind::Failed, error: "no\u{1b} luck".into(), retry: Retry::GiveUp }
}

/// Triggers a task and lets its run die. Returns the run, and the claims of the step that settles it.
fn trigger_and_give_up(stepper: &mut Stepper, task: &str) -> (i64, Vec<std::sync::Arc<duly::Claim>>) {
    stepper.client().trigger(task).expect("a run");
    let dead = claim(stepper);
    stepper.finish(&dead, give_up());
    (dead.run_id, stepper.step().expect("a step"))
}

#[test]
fn a_dead_run_starts_the_on_dead_task() {
    let (db, mut stepper, client) = with_alarm();
    client.add(on_demand("alarm")).unwrap();
    client.add(on_demand("subject").handler("work").payload(["anna"]).on_dead("alarm")).unwrap();
    let bystander = db.add_bystander(&stepper);

    let (dead, claims) = trigger_and_give_up(&mut stepper, "subject");
    assert_eq!(claims.len(), 1, "in the turn in which it dies");
    assert_eq!((claims[0].task.as_str(), claims[0].origin), ("alarm", Origin::OnDead));
    let says: serde_json::Value = serde_json::from_str(&claims[0].payload).unwrap();
    assert_eq!(
        (&says["id"], &says["task"], &says["status"], &says["error"], &says["payload"][0], &says["finished_at"]),
        (
            &dead.into(),
            &"subject".into(),
            &"dead".into(),
            &"no\u{1b} luck".into(),
            &"anna".into(),
            &"2027-03-14T12:00:00.000Z".into()
        )
    );
    assert!(succeed(&mut stepper, &claims[0]).is_empty());
    assert_eq!(db.next("alarm"), "3999-01-01 00:00:00 active", "it consumed no occurrence");

    // Runs that do not die start nothing.
    for end in [Outcome::failed("again"), Outcome::succeeded(), Outcome::Released] {
        let run = client.trigger("subject").unwrap();
        let subject = claim(&mut stepper);
        stepper.finish(&subject, end);
        stepper.step().unwrap();
        let status = db.run(run).status;
        if !status.is_final() {
            client.cancel(run).unwrap();
            stepper.step().unwrap();
        }
        finish_all(&mut stepper, &Outcome::failed("asked to stop"));
        stepper.step().unwrap();
    }
    assert_eq!(db.ask("SELECT count(*) FROM task_runs WHERE origin = 'on_dead'"), "1");
    db.assert_bystander(&bystander);
    db.assert_sound();
}

#[test]
fn a_run_lost_in_its_last_attempt_starts_the_on_dead_task() {
    let db = TestDb::new();
    let mut first = stepper_with_alarm(&db);
    first.client().add(on_demand("alarm")).unwrap();
    first.client().add(on_demand("subject").handler("work").at_most_once().on_dead("alarm")).unwrap();
    first.client().trigger("subject").unwrap();
    claim(&mut first);
    first.crash();
    let mut second = stepper_with_alarm(&db);
    let on_dead = claim(&mut second);
    assert_eq!((on_dead.task.as_str(), on_dead.origin), ("alarm", Origin::OnDead));
    assert!(on_dead.payload.contains("the scheduler that ran it died"), "{}", on_dead.payload);
    db.assert_sound();
}

#[test]
fn a_dead_on_dead_run_starts_no_other() {
    let db = TestDb::new();
    let mut stepper = stepper_with_alarm(&db);
    stepper.client().add(on_demand("ping").on_dead("pong")).unwrap();
    stepper.client().add(on_demand("pong").on_dead("ping")).unwrap();
    stepper.client().add(on_demand("self").on_dead("self")).unwrap();
    for (task, on_dead) in [("ping", "pong"), ("self", "self")] {
        let (_, claims) = trigger_and_give_up(&mut stepper, task);
        assert_eq!(claims.iter().map(|claim| claim.task.as_str()).collect::<Vec<_>>(), [on_dead]);
        stepper.finish(&claims[0], give_up());
        step(&mut stepper, 0);
    }
    assert_eq!(db.runs().len(), 4);
}

#[test]
fn an_on_dead_task_that_cannot_run_is_reported_by_an_event() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let mut stepper = db.builder(NOON).accept("work").accept("alarm").observe(observer).start().unwrap();
    stepper.client().add(on_demand("subject").handler("work").on_dead("alarm")).unwrap();
    let reported = || {
        events.try_iter().find_map(|event| match event {
            Event::OnDeadFailed { task, on_dead, reason, .. } => Some(format!("{task} {on_dead} {reason}")),
            _ => None,
        })
    };
    let (dead, claims) = trigger_and_give_up(&mut stepper, "subject");
    assert!(claims.is_empty());
    assert_eq!(reported().as_deref(), Some("subject alarm there is no such task"));
    let events = format!("SELECT detail FROM scheduler_events WHERE kind = 'on_dead' AND run_id = {dead}");
    assert_eq!(db.rows(&events), ["the on_dead task \"alarm\" cannot run: there is no such task"]);

    let invalid = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
                   VALUES ('alarm', 'alarm', 'cron', 'every day')";
    db.execute(invalid);
    step(&mut stepper, 0);
    assert!(trigger_and_give_up(&mut stepper, "subject").1.is_empty());
    assert!(reported().is_some_and(|says| says.starts_with("subject alarm it is invalid: invalid schedule")));

    // The death is recorded although the table refuses the `on_dead` run.
    db.execute("DELETE FROM scheduled_tasks WHERE name = 'alarm'");
    stepper.client().add(on_demand("alarm")).unwrap();
    let refuses = "CREATE TRIGGER no BEFORE INSERT ON task_runs WHEN NEW.origin = 'on_dead'
                   BEGIN SELECT RAISE(ABORT, 'not in my db'); END";
    db.execute(refuses);
    let (dead, claims) = trigger_and_give_up(&mut stepper, "subject");
    assert!(claims.is_empty());
    assert_eq!(db.run(dead).status, RunStatus::Dead);
    let reason = reported().expect("an event");
    // A server adds its code.
    assert_eq!(reason.trim_end_matches(" [SQLSTATE P0001]"), "subject alarm not in my db");
    db.assert_sound();
}

#[test]
fn a_paused_on_dead_task_runs_when_it_is_resumed() {
    let (db, mut stepper, client) = with_alarm();
    client.add(on_demand("alarm")).unwrap();
    client.add(on_demand("subject").handler("work").on_dead("alarm")).unwrap();
    client.pause("alarm").unwrap();
    assert!(trigger_and_give_up(&mut stepper, "subject").1.is_empty());
    assert_eq!(db.rows("SELECT status, blocked FROM task_runs WHERE origin = 'on_dead'"), ["queued|paused"]);
    client.resume("alarm").unwrap();
    assert_eq!(claim(&mut stepper).origin, Origin::OnDead);
}

#[test]
fn a_due_delay_is_resolved_before_an_on_dead_run_opens() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").start().unwrap();
    let client = stepper.client().clone();
    client.add(NewTask::delay("alarm", minutes(1)).handler("alarm")).unwrap();
    client.add(on_demand("subject").handler("work").at_most_once().on_dead("alarm")).unwrap();
    client.trigger("subject").unwrap();
    let subject = claim(&mut stepper);
    stepper.clock().advance(minutes(2));
    stepper.finish(&subject, give_up());
    step(&mut stepper, 0);
    db.assert_history("alarm", &["2027-03-14 12:01:00 schedule queued", "2027-03-14 12:02:00 on_dead queued"]);
}

/// Lets an hour of minutely runs die until the task is paused. Returns the number of deaths.
fn deaths_until_paused(stepper: &mut Stepper, task: &str) -> usize {
    for dead in 0..60 {
        let claims = advance_and_step(stepper, minutes(1));
        let Some(subject) = claims.iter().find(|claim| claim.task == task) else { return dead };
        stepper.finish(subject, give_up());
        let others: Vec<_> = claims.iter().filter(|claim| claim.task != task).collect();
        others.iter().for_each(|claim| stepper.finish(claim, Outcome::succeeded()));
        stepper.step().unwrap();
    }
    60
}

#[test]
fn a_task_is_paused_after_consecutive_dead_runs() {
    let db = TestDb::new();
    let (observer, events) = listen();
    let mut stepper = db.builder(NOON).accept("work").accept("alarm").observe(observer).start().unwrap();
    let client = stepper.client().clone();
    client.add(minutely("subject").pause_after_failures(3)).unwrap();
    client.add(minutely("twin")).unwrap();
    // A success in between restarts the count.
    stepper.clock().advance(minutes(1));
    for (end, fails) in [(give_up(), 1), (give_up(), 2), (Outcome::succeeded(), 0)] {
        for run in step(&mut stepper, 2) {
            let end = if run.task == "twin" { Outcome::succeeded() } else { end.clone() };
            stepper.finish(&run, end);
        }
        step(&mut stepper, 0);
        assert_eq!(client.task("subject").unwrap().unwrap().failure_count, fails);
        stepper.clock().advance(minutes(1));
    }
    let both = step(&mut stepper, 2);
    both.iter().for_each(|run| stepper.finish(run, Outcome::succeeded()));
    step(&mut stepper, 0);

    let waits = client.trigger("subject").unwrap();
    client.cancel(waits).unwrap();
    assert_eq!(deaths_until_paused(&mut stepper, "subject"), 3);
    assert_eq!(db.next("subject"), "- paused");
    assert!(db.next("twin").ends_with(" active"));
    let paused = |event: Event| matches!(event, Event::Paused { task, failures: 3, .. } if task == "subject");
    assert!(events.try_iter().any(paused));
    let events = "SELECT detail FROM scheduler_events WHERE kind = 'paused'";
    assert_eq!(db.rows(events), ["pause_after_failures: 3 dead runs in a row"]);

    // A resume, by the client or by SQL, resets the count.
    client.resume("subject").unwrap();
    assert_eq!(client.task("subject").unwrap().unwrap().failure_count, 0);
    assert_eq!(deaths_until_paused(&mut stepper, "subject"), 3);
    db.execute("UPDATE scheduled_tasks SET status = 'active' WHERE name = 'subject'");
    stepper.step().unwrap();
    finish_all(&mut stepper, &Outcome::succeeded());
    stepper.step().unwrap();
    assert_eq!(deaths_until_paused(&mut stepper, "subject"), 3);
    db.assert_sound();
}

#[test]
fn waiting_runs_of_a_paused_task_keep_waiting() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(1).start().unwrap();
    let client = stepper.client().clone();
    client.add(minutely("subject").overlap(duly::Overlap::BufferAll).pause_after_failures(1)).unwrap();
    let subject = claim_after(&mut stepper, minutes(1));
    step_after(&mut stepper, minutes(1), 0);
    // One more is due in the turn in which the first dies: it is resolved before the task is paused.
    stepper.clock().advance(minutes(1));
    stepper.finish(&subject, give_up());
    step(&mut stepper, 0);
    // The next turn derives its runs again.
    step(&mut stepper, 0);
    let waiting = "SELECT status, blocked FROM task_runs WHERE id > 1 ORDER BY id";
    assert_eq!(db.rows(waiting), ["queued|paused", "queued|paused"]);
    client.resume("subject").unwrap();
    assert_eq!(claim(&mut stepper).scheduled_for, at("2027-03-14T12:02:00Z"));
    db.assert_sound();
}

#[test]
fn on_dead_and_pause_after_failures_are_stored_compared_and_checked() {
    let (_db, client) = TestDb::with_client();
    let policies = || minutely("subject").on_dead("alarm").pause_after_failures(3);
    client.add(policies()).unwrap();
    let definition = client.task("subject").unwrap().unwrap().definition;
    assert_eq!((definition.on_dead.as_deref(), definition.pause_after_failures), (Some("alarm"), Some(3)));
    assert!(matches!(client.add(minutely("subject")), Err(Error::TaskDiffers { field: "on_dead", .. })));
    let other = client.add(policies().pause_after_failures(4)).unwrap_err().to_string();
    assert_eq!(other, r#"task "subject" exists with another pause_after_failures: stored "3", given "4""#);
    client.replace(minutely("subject").pause_after_failures(4)).unwrap();
    let definition = client.task("subject").unwrap().unwrap().definition;
    assert_eq!((definition.on_dead, definition.pause_after_failures), (None, Some(4)));
    let refused = |task: NewTask| match client.add(task) {
        Err(Error::InvalidTask { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(minutely("a").on_dead("")), "on_dead");
    assert_eq!(refused(minutely("a").pause_after_failures(0)), "pause_after_failures");
    assert_eq!(client.task("subject").unwrap().unwrap().status, TaskStatus::Active);
}

#[test]
fn a_retry_is_a_new_run_with_the_key_and_payload_of_the_old() {
    let (db, mut stepper, client) = with_alarm();
    client.add(minutely("subject").payload("the task's")).unwrap();
    let scheduled = claim_after(&mut stepper, minutes(1));
    stepper.finish(&scheduled, give_up());
    step(&mut stepper, 0);
    let manual = client.trigger_with("subject", "its own").unwrap();
    let triggered = claim(&mut stepper);
    stepper.finish(&triggered, give_up());
    step(&mut stepper, 0);
    let bystander = db.add_bystander(&stepper);
    let dead = "SELECT * FROM task_runs WHERE status = 'dead' AND retry_of IS NULL ORDER BY id";
    let before = db.rows(dead);

    for (first, payload) in [(&scheduled, r#""the task's""#), (&triggered, r#""its own""#)] {
        // A retry can be retried too, and again only once that retry has finished.
        let mut old = first.run_id;
        for _ in 0..3 {
            let retry = client.retry(old).unwrap();
            let again = client.retry(old).unwrap_err().to_string();
            assert_eq!(again, format!("cannot retry run {old}: run {retry} retries it already"));
            let claimed = claim(&mut stepper);
            assert_eq!((claimed.run_id, claimed.origin, claimed.attempt), (retry, Origin::Manual, 1));
            assert_eq!((claimed.idempotency_key(), claimed.payload.as_str()), (first.idempotency_key(), payload));
            assert_eq!(db.run(retry).retry_of, Some(old));
            stepper.finish(&claimed, give_up());
            step(&mut stepper, 0);
            old = retry;
        }
    }
    assert_eq!(triggered.idempotency_key(), format!("subject/run-{manual}"));
    assert_eq!(db.rows(dead), before, "what is final stays as it was");
    assert_eq!(db.next("subject"), "2027-03-14 12:02:00 active", "it consumes no occurrence");
    db.assert_bystander(&bystander);
    db.assert_sound();
}

#[test]
fn only_a_finished_unsuccessful_run_is_retried() {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(1).start().unwrap();
    let client = stepper.client().clone();
    client.add(on_demand("subject").handler("work")).unwrap();
    let refused = |run: i64| client.retry(run).unwrap_err().to_string();
    let run = client.trigger("subject").unwrap();
    assert_eq!(refused(run), format!("cannot retry run {run}: it is not over: queued"));
    let claimed = claim(&mut stepper);
    assert_eq!(refused(run), format!("cannot retry run {run}: it is not over: running"));
    stepper.finish(&claimed, Outcome::failed("again"));
    step(&mut stepper, 0);
    assert_eq!(refused(run), format!("cannot retry run {run}: it is not over: failed"));
    client.cancel(run).unwrap();
    let retry = client.retry(run).unwrap();
    let claimed = claim(&mut stepper);
    succeed(&mut stepper, &claimed);
    assert_eq!(refused(retry), format!("cannot retry run {retry}: it succeeded"));
    assert!(matches!(client.retry(4711), Err(Error::UnknownRun { id: 4711 })));

    // A run of a paused task can be retried; one of an invalid task cannot.
    client.pause("subject").unwrap();
    client.retry(run).unwrap();
    let claimed = claim(&mut stepper);
    succeed(&mut stepper, &claimed);
    let make_invalid = "UPDATE scheduled_tasks SET schedule_type = 'cron', schedule_value = 'x', status = 'active'";
    db.execute(make_invalid);
    step(&mut stepper, 0);
    assert!(refused(run).contains("its task \"subject\" is invalid"), "{}", refused(run));

    // It is unknown which of its occurrences a missed row would repeat.
    client.add(minutely("late")).unwrap();
    advance_and_step(&mut stepper, minutes(10));
    let missed = db.number("SELECT id FROM task_runs WHERE status = 'missed'");
    let says = format!("cannot retry run {missed}: it was missed: trigger task \"late\" instead");
    assert_eq!(refused(missed), says);
    db.assert_sound();
}

/// The policy is read when a run dies: a value that the tables refuse, and newer ones may hold, must not keep the outcome out.
#[test]
fn a_policy_that_cannot_be_read_pauses_nothing_and_the_outcome_is_stored() {
    if is_of_sqlite("it changes settings or tables of SQLite") {
        return;
    }
    let (db, mut stepper, client) = with_alarm();
    client.add(on_demand("subject").handler("work").pause_after_failures(1)).unwrap();
    client.trigger("subject").unwrap();
    let dead = claim(&mut stepper);
    db.execute("PRAGMA ignore_check_constraints = ON; UPDATE scheduled_tasks SET pause_after_failures = 5000000000");
    stepper.finish(&dead, give_up());
    stepper.step().unwrap();
    assert_eq!(db.ask("SELECT status FROM task_runs"), "dead");
}
