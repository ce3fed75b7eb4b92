//! Rows that an application has locked, and holds: only they wait.

use std::path::Path;
use std::time::Duration;

use duly::testing::{ManualClock, Stepper};
use duly::{Client, NewTask, Outcome, Overlap, RunStatus, TaskStatus};

use crate::fixtures::on_server::session;
use crate::fixtures::{NOON, at, seconds};
use crate::postgres::database;

fn owner(address: &str, folder: &Path, clock: &ManualClock) -> Stepper {
    let builder = Stepper::builder(address, at(NOON)).clock(clock).state_folder(folder).accept("work").workers(50);
    builder.poll(seconds(1)).lease(seconds(60)).start().expect("a stepper")
}

fn status(client: &Client, task: &str) -> Option<RunStatus> {
    client.history(task, 10).expect("its runs").first().map(|run| run.status)
}

#[test]
fn a_lock_that_an_application_holds_stops_only_what_it_locks() {
    let Some(address) = database() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let clock = ManualClock::new(at(NOON));
    let mut owners = ["a", "b"].map(|host| owner(&address, &home.path().join(host), &clock));
    let client = owners[0].client().clone();
    for task in ["early", "held", "free", "later"] {
        let due = if task == "later" { at(NOON).plus(seconds(2)) } else { at(NOON) };
        let due = if task == "early" { due } else { due.plus(seconds(1)) };
        client.add(NewTask::once(task, due).handler("work")).expect("a task");
    }
    assert_eq!(owners[0].step().expect("a turn").len(), 1);

    // A task that is due, and a run that is running: its lease is extended, and its end is to be recorded.
    let mut application = session(&address);
    let lock = "SET duly.store = 'on'; BEGIN; UPDATE scheduled_tasks SET priority = priority WHERE name = 'held';
                UPDATE task_runs SET priority = priority WHERE status = 'running'";
    application.batch_execute(lock).expect("locks");
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
    let mut other = session(&address);
    let told = "SELECT detail FROM scheduler_events WHERE kind = 'set_aside' ORDER BY id";
    let told: Vec<String> = other.query(told, &[]).expect("events").iter().map(|row| row.get(0)).collect();
    assert_eq!(
        told.iter().filter(|told| told.starts_with("task \"held\": another transaction holds")).count(),
        2,
        "{told:?}"
    );
    assert!(told.len() <= 3, "each owner tells it once: {told:?}");
    let lost = "SELECT count(*) FROM task_attempts WHERE outcome = 'lost'";
    assert_eq!(other.query_one(lost, &[]).expect("a number").get::<_, i64>(0), 0, "its lease was extended");

    application.batch_execute("COMMIT").expect("the end of its locks");
    for _ in 0..25 {
        clock.advance(seconds(1));
        owners.iter_mut().for_each(|owner| _ = owner.step().expect("a turn"));
    }
    assert_eq!(status(&client, "held"), Some(RunStatus::Running));
    assert_eq!(status(&client, "early"), Some(RunStatus::Succeeded));
}

fn owner_alone(address: &str, folder: &Path) -> Stepper {
    let builder = Stepper::builder(address, at(NOON)).state_folder(folder).accept("work").workers(50);
    builder.busy_timeout(Duration::from_millis(100)).poll(seconds(1)).lease(seconds(60)).start().expect("a stepper")
}

fn steps(owner: &mut Stepper, count: usize) {
    for _ in 0..count {
        owner.clock().advance(seconds(1));
        owner.step().expect("a turn");
    }
}

fn told(address: &str, kind: &str) -> Vec<String> {
    let told = "SELECT detail FROM scheduler_events WHERE kind = $1 ORDER BY id";
    session(address).query(told, &[&kind]).expect("events").iter().map(|row| row.get(0)).collect()
}

#[test]
fn a_task_whose_run_is_locked_does_not_become_invalid() {
    let Some(address) = database() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let mut owner = owner_alone(&address, home.path());
    let client = owner.client().clone();
    client.add(NewTask::interval("held", seconds(30)).handler("work").overlap(Overlap::CancelRunning)).expect("a task");
    steps(&mut owner, 30);
    assert_eq!(status(&client, "held"), Some(RunStatus::Running));

    // Its next occurrence asks the run to stop.
    let mut application = session(&address);
    let lock = "SET duly.store = 'on'; BEGIN; UPDATE task_runs SET priority = priority WHERE status = 'running'";
    application.batch_execute(lock).expect("a lock");
    steps(&mut owner, 60);
    let task = client.task("held").expect("an answer").expect("a task");
    assert_eq!((task.status, &task.invalid_reason), (TaskStatus::Active, &None));
    assert_eq!(told(&address, "invalid"), [""; 0]);
    let aside = told(&address, "set_aside");
    assert!(aside.len() == 1 && aside[0].starts_with("task \"held\": another transaction holds"), "{aside:?}");

    application.batch_execute("COMMIT").expect("the end of its lock");
    steps(&mut owner, 25);
    assert!(owner.stopped().contains(&1), "the run is asked to stop: {:?}", owner.stopped());
}

#[test]
fn a_task_whose_run_would_have_the_id_of_another_row_does_not_become_invalid() {
    let Some(address) = database() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let mut owner = owner_alone(&address, home.path());
    let client = owner.client().clone();
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
    let aside = told(&address, "set_aside");
    assert!(aside.len() == 1 && aside[0].starts_with("task \"due\": duplicate key"), "{aside:?}");
}

#[test]
fn an_outcome_waits_for_a_lock_as_a_whole() {
    let Some(address) = database() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let mut owner = owner_alone(&address, home.path());
    let client = owner.client().clone();
    client.add(NewTask::manual("alarm").handler("elsewhere")).expect("a task");
    client.add(NewTask::once("dies", at(NOON)).handler("work").at_most_once().on_dead("alarm")).expect("a task");
    let claim = owner.step().expect("a turn").pop().expect("a run");

    let mut application = session(&address);
    let lock = "SET duly.store = 'on'; BEGIN; UPDATE scheduled_tasks SET priority = priority WHERE name = 'alarm'";
    application.batch_execute(lock).expect("a lock");
    owner.finish(&claim, Outcome::failed("no luck"));
    steps(&mut owner, 45);
    assert_eq!(status(&client, "dies"), Some(RunStatus::Running), "its end cannot be recorded as a whole yet");
    assert_eq!((told(&address, "on_dead").len(), told(&address, "set_aside").len()), (0, 1));

    application.batch_execute("COMMIT").expect("the end of its lock");
    steps(&mut owner, 25);
    let run = client.history("dies", 1).expect("its runs").pop().expect("a run");
    assert_eq!((run.status, run.error.as_deref()), (RunStatus::Dead, Some("no luck")));
    assert_eq!(status(&client, "alarm"), Some(RunStatus::Queued));
}

#[test]
fn a_lost_run_whose_on_dead_run_is_refused_is_recovered_without_it() {
    let Some(address) = database() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let mut owner = owner_alone(&address, home.path());
    let client = owner.client().clone();
    client.add(NewTask::manual("alarm").handler("work")).expect("a task");
    client.add(NewTask::once("dies", at(NOON)).handler("work").at_most_once().on_dead("alarm")).expect("a task");
    assert_eq!(owner.step().expect("a turn").len(), 1);
    let refuses = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not in my db'; END $$;
                   CREATE TRIGGER no BEFORE INSERT ON task_runs FOR EACH ROW WHEN (NEW.origin = 'on_dead')
                   EXECUTE FUNCTION refuse()";
    session(&address).batch_execute(refuses).expect("a trigger");
    owner.crash();
    let mut owner = owner_alone(&address, home.path());
    steps(&mut owner, 2);
    assert_eq!(status(&client, "dies"), Some(RunStatus::Dead));
    let told = told(&address, "on_dead");
    assert!(told.len() == 1 && told[0].contains("not in my db"), "{told:?}");
}
