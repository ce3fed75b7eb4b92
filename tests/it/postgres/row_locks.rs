//! Rows that an application has locked, and holds: only they wait.

use std::path::Path;

use duly::testing::{ManualClock, Stepper};
use duly::{Client, NewTask, Outcome, RunStatus};

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
