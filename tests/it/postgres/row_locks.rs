//! Rows that an application has locked, and holds: only they wait.

use std::path::Path;
use std::time::Duration;

use duly::testing::{ManualClock, Stepper, StepperBuilder};
use duly::{Client, NewTask, Outcome, Overlap, RetryPolicy, RunStatus, TaskStatus};
use tempfile::TempDir;

use crate::fixtures::on_server::session;
use crate::fixtures::{NOON, at, minutes, seconds};
use crate::postgres::database;

fn owner(address: &str, folder: &Path) -> StepperBuilder {
    let builder = Stepper::builder(address, at(NOON)).state_folder(folder).accept("work").workers(50);
    builder.poll(seconds(1)).lease(seconds(60))
}

fn owner_alone(address: &str, home: &TempDir) -> Stepper {
    owner(address, home.path()).busy_timeout(Duration::from_millis(100)).start().expect("a stepper")
}

/// The address of a schema, with a scheduler and a client.
fn alone() -> Option<(String, TempDir, Stepper, Client)> {
    let (address, home) = (database()?, tempfile::tempdir().expect("a folder"));
    let owner = owner_alone(&address, &home);
    let client = owner.client().clone();
    Some((address, home, owner, client))
}

fn steps(owner: &mut Stepper, count: usize) {
    for _ in 0..count {
        owner.clock().advance(seconds(1));
        owner.step().expect("a turn");
    }
}

/// Locks the rows that statements of an application change, until it commits.
fn lock(address: &str, statements: &str) -> postgres::Client {
    let mut application = session(address);
    application.batch_execute(&format!("SET duly.store = 'on'; BEGIN; {statements}")).expect("locks");
    application
}

/// The details of the events of a kind.
fn details(address: &str, kind: &str) -> Vec<String> {
    let details = "SELECT detail FROM scheduler_events WHERE kind = $1 ORDER BY id";
    session(address).query(details, &[&kind]).expect("events").iter().map(|row| row.get(0)).collect()
}

fn status(client: &Client, task: &str) -> Option<RunStatus> {
    client.history(task, 10).expect("its runs").first().map(|run| run.status)
}

#[test]
fn a_lock_that_an_application_holds_stops_only_what_it_locks() {
    let Some(address) = database() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let clock = ManualClock::new(at(NOON));
    let start = |host| owner(&address, &home.path().join(host)).clock(&clock).start().expect("a stepper");
    let mut owners = ["a", "b"].map(start);
    let client = owners[0].client().clone();
    for task in ["early", "held", "free", "later"] {
        let due = if task == "later" { at(NOON).plus(seconds(2)) } else { at(NOON) };
        let due = if task == "early" { due } else { due.plus(seconds(1)) };
        client.add(NewTask::once(task, due).handler("work")).expect("a task");
    }
    assert_eq!(owners[0].step().expect("a turn").len(), 1);

    // A task that is due, and a run that is running: its lease is extended, and its end is to be recorded.
    let rows = "UPDATE scheduled_tasks SET priority = priority WHERE name = 'held';
                UPDATE task_runs SET priority = priority WHERE status = 'running'";
    let mut application = lock(&address, rows);
    clock.advance(seconds(1));
    owners[0].step().expect("a turn");
    assert_eq!((status(&client, "free"), status(&client, "held")), (Some(RunStatus::Running), None));
    let early = owners[0].running().iter().find(|claim| claim.task == "early").expect("a run").clone();
    owners[0].finish(&early, Outcome::succeeded());
    for _ in 0..50 {
        clock.advance(seconds(1));
        owners.iter_mut().for_each(|owner| _ = owner.step().expect("a turn"));
    }
    assert_eq!((status(&client, "later"), status(&client, "held")), (Some(RunStatus::Running), None));
    assert_eq!(status(&client, "early"), Some(RunStatus::Running), "its end cannot be recorded yet");
    let aside = details(&address, "set_aside");
    let held = aside.iter().filter(|detail| detail.starts_with("task \"held\": another transaction holds")).count();
    assert!(held == 2 && aside.len() <= 3, "each owner records it once: {aside:?}");
    let lost = "SELECT count(*) FROM task_attempts WHERE outcome = 'lost'";
    assert_eq!(session(&address).query_one(lost, &[]).expect("a number").get::<_, i64>(0), 0, "its lease was extended");

    application.batch_execute("COMMIT").expect("the end of its locks");
    for _ in 0..25 {
        clock.advance(seconds(1));
        owners.iter_mut().for_each(|owner| _ = owner.step().expect("a turn"));
    }
    assert_eq!(status(&client, "held"), Some(RunStatus::Running));
    assert_eq!(status(&client, "early"), Some(RunStatus::Succeeded));
}

#[test]
fn a_task_whose_run_is_locked_does_not_become_invalid() {
    let Some((address, _home, mut owner, client)) = alone() else { return };
    client.add(NewTask::interval("held", seconds(30)).handler("work").overlap(Overlap::CancelRunning)).expect("a task");
    steps(&mut owner, 30);
    assert_eq!(status(&client, "held"), Some(RunStatus::Running));

    // Its next occurrence asks the run to stop.
    let rows = "UPDATE task_runs SET priority = priority WHERE status = 'running'";
    let mut application = lock(&address, rows);
    steps(&mut owner, 60);
    let task = client.task("held").expect("an answer").expect("a task");
    assert_eq!((task.status, &task.invalid_reason), (TaskStatus::Active, &None));
    assert_eq!(details(&address, "invalid"), [""; 0]);
    let aside = details(&address, "set_aside");
    assert!(aside.len() == 1 && aside[0].starts_with("task \"held\": another transaction holds"), "{aside:?}");

    application.batch_execute("COMMIT").expect("the end of its lock");
    steps(&mut owner, 25);
    assert!(owner.stopped().contains(&1), "the run is asked to stop: {:?}", owner.stopped());
}

#[test]
fn a_task_whose_run_would_have_the_id_of_another_row_does_not_become_invalid() {
    let Some((address, _home, mut owner, client)) = alone() else { return };
    client.add(NewTask::manual("other").handler("nowhere")).expect("a task");
    // As a restored table, whose sequence was not restored.
    let restored = "SET duly.store = 'on';
        INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, status, run_at, finished_at)
        OVERRIDING SYSTEM VALUE
        SELECT i, 1, 'nowhere', 1800000000000, 'manual', 'cancelled', 1800000000000, 1800000000000 FROM generate_series(1, 12) i";
    session(&address).batch_execute(restored).expect("rows");
    client.add(NewTask::once("due", at(NOON).plus(seconds(1))).handler("work")).expect("a task");
    for _ in 0..300 {
        steps(&mut owner, 1);
        let task = client.task("due").expect("an answer").expect("a task");
        assert_eq!(task.invalid_reason, None);
    }
    assert_eq!(status(&client, "due"), Some(RunStatus::Running));
    let aside = details(&address, "set_aside");
    assert!(aside.len() == 1 && aside[0].starts_with("task \"due\": duplicate key"), "{aside:?}");
}

#[test]
fn an_outcome_waits_for_a_lock_as_a_whole() {
    let Some((address, _home, mut owner, client)) = alone() else { return };
    client.add(NewTask::manual("alarm").handler("elsewhere")).expect("a task");
    client.add(NewTask::once("dies", at(NOON)).handler("work").at_most_once().on_dead("alarm")).expect("a task");
    let claim = owner.step().expect("a turn").pop().expect("a run");

    let rows = "UPDATE scheduled_tasks SET priority = priority WHERE name = 'alarm'";
    let mut application = lock(&address, rows);
    owner.finish(&claim, Outcome::failed("no route"));
    steps(&mut owner, 45);
    assert_eq!(status(&client, "dies"), Some(RunStatus::Running), "its end cannot be recorded as a whole yet");
    assert_eq!((details(&address, "on_dead").len(), details(&address, "set_aside").len()), (0, 1));

    application.batch_execute("COMMIT").expect("the end of its lock");
    steps(&mut owner, 25);
    let run = client.history("dies", 1).expect("its runs").pop().expect("a run");
    assert_eq!((run.status, run.error.as_deref()), (RunStatus::Dead, Some("no route")));
    assert_eq!(status(&client, "alarm"), Some(RunStatus::Queued));
}

#[test]
fn a_lost_run_whose_on_dead_run_is_refused_is_recovered_without_it() {
    let Some((address, home, mut owner, client)) = alone() else { return };
    client.add(NewTask::manual("alarm").handler("work")).expect("a task");
    client.add(NewTask::once("dies", at(NOON)).handler("work").at_most_once().on_dead("alarm")).expect("a task");
    assert_eq!(owner.step().expect("a turn").len(), 1);
    let refuses = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not in my db'; END $$;
                   CREATE TRIGGER no BEFORE INSERT ON task_runs FOR EACH ROW WHEN (NEW.origin = 'on_dead')
                   EXECUTE FUNCTION refuse()";
    session(&address).batch_execute(refuses).expect("a trigger");
    owner.crash();
    let mut owner = owner_alone(&address, &home);
    steps(&mut owner, 2);
    assert_eq!(status(&client, "dies"), Some(RunStatus::Dead));
    let refused = details(&address, "on_dead");
    assert!(refused.len() == 1 && refused[0].contains("not in my db"), "{refused:?}");
}

#[test]
fn a_lock_does_not_stop_what_a_wrong_clock_needs() {
    let Some((address, _home, mut owner, client)) = alone() else { return };
    let wrong = at(NOON).plus(seconds(3 * 86_400));
    owner.clock().set_wall(wrong);
    for task in ["held", "free"] {
        client.add(NewTask::interval(task, minutes(10)).handler("nowhere")).expect("a task");
        client.add(NewTask::once(format!("{task}-run"), wrong).handler("work")).expect("a task");
        let late = RetryPolicy { max_attempts: 3, backoff: minutes(1), max_backoff: minutes(1) };
        client.add(NewTask::once(format!("{task}-retry"), wrong).handler("work").retry(late)).expect("a task");
    }
    let claims = owner.step().expect("a turn");
    for claim in claims.iter().filter(|claim| claim.task.ends_with("retry")) {
        owner.finish(claim, Outcome::failed("no route"));
    }
    steps(&mut owner, 2);
    let run = |task: &str| client.history(task, 1).expect("its runs").pop().expect("a run");
    let next = |task: &str| client.task(task).expect("an answer").expect("a task").next_run.expect("a time");
    let begins = |task: &str| run(task).started_at.expect("a start");
    assert!(next("held") > wrong && run("held-retry").run_at > wrong && begins("held-run") >= wrong);

    let rows = "UPDATE scheduled_tasks SET priority = priority WHERE name = 'held';
                UPDATE task_runs r SET priority = r.priority FROM scheduled_tasks t
                 WHERE t.id = r.task_id AND t.name IN ('held-run', 'held-retry')";
    let mut application = lock(&address, rows);
    owner.clock().set_wall(at(NOON));
    owner.step().expect("a turn");
    assert_eq!(details(&address, "clock_wrong").len(), 1);
    let soon = at(NOON).plus(minutes(30));
    assert!(next("free") < soon && run("free-retry").run_at < soon && begins("free-run") < soon);
    assert!(next("held") > wrong && run("held-retry").run_at > wrong && begins("held-run") >= wrong);
    steps(&mut owner, 45);
    let aside = details(&address, "set_aside");
    assert_eq!(aside.len(), 3, "each is recorded once: {aside:?}");

    application.batch_execute("COMMIT").expect("the end of its locks");
    steps(&mut owner, 25);
    assert!(next("held") < soon && begins("held-run") < soon, "{} {}", next("held"), begins("held-run"));
    assert!(run("held-retry").started_at.is_some_and(|started| started < soon) || run("held-retry").run_at < soon);
    assert_eq!(details(&address, "clock_wrong").len(), 1);
}
