//! Two versions on one file: a newer duly has migrated the tables to its own, by a made-up version, while an older one runs.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use duly::{Client, Context, Error, Event, Outcome, Scheduler};

use crate::fixtures::{NOON, TestDb, eventually, held, overdue, receive, receive_until, seconds};

const NEWER: &str =
    "its tables are of version 2, written by a newer duly; this one knows version 1: use the newer program";

/// What a newer duly would have done, and a task that is due from the same moment on.
const RAISE: &str = "
    BEGIN IMMEDIATE;
    ALTER TABLE scheduled_tasks ADD COLUMN colour TEXT;
    UPDATE scheduler_meta SET value = '2' WHERE key = 'schema_version';
    INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
    VALUES ('late', 'work', 'once', '2020-01-01T00:00:00Z'), ('late-command', 'command', 'once', '2020-01-01T00:00:00Z');
    COMMIT";

fn is_newer(error: &Error) -> bool {
    matches!(error, Error::UnusableDatabase { .. }) && error.to_string().ends_with(NEWER)
}

/// Returns status and attempt of each run.
fn run_states(db: &TestDb) -> Vec<String> {
    db.rows("SELECT t.name, r.status, r.attempt FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY 1")
}

#[test]
fn a_task_is_not_added_to_newer_tables() {
    let (db, client) = TestDb::with_client();
    // Further tasks are added without another check of the version.
    client.add(overdue("first")).unwrap();
    db.plain()
        .execute_batch(
            "PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '')
              WHERE name = 'scheduled_tasks';
             PRAGMA schema_version = 1000;
             UPDATE scheduler_meta SET value = '2' WHERE key = 'schema_version'",
        )
        .unwrap();
    assert!(is_newer(&client.add(overdue("another")).unwrap_err()));
    assert!(is_newer(&client.add_if_absent(overdue("another")).unwrap_err()));
    assert_eq!(db.ask("SELECT group_concat(name) FROM scheduled_tasks"), "first");
}

#[test]
fn a_scheduler_with_newer_tables_stops_after_its_running_attempts() {
    let db = TestDb::new();
    let (begun, begins) = channel();
    let (open, gate) = channel::<()>();
    let (sender, receiver) = channel();
    let (begun, gate, sender) = (Mutex::new(begun), Mutex::new(gate), Mutex::new(sender));
    let scheduler = Scheduler::builder(db.file())
        .workers(3)
        .lease(seconds(1))
        .poll(std::time::Duration::from_millis(20))
        .observe(move |event: &Event| drop(sender.lock().unwrap().send(event.clone())))
        .handler("work", move |run: &Context| {
            let _ = begun.lock().unwrap().send(run.task().to_owned());
            let _ = held(&*gate.lock().unwrap());
            if run.task() == "fails" { Err("no route to host") } else { Ok("sent") }
        })
        .start()
        .unwrap();
    let client = scheduler.client().clone();
    client.add_all([overdue("fails"), overdue("works")]).unwrap();
    (0..2).for_each(|_| _ = receive(&begins, "a start"));
    db.plain().execute_batch(RAISE).unwrap();
    let outlived =
        |event: &Event| matches!(event, Event::NewerSchema { running: 2, reason } if reason.ends_with(NEWER));
    receive_until(&receiver, "the newer schema", outlived);
    // It stays registered, with a lease, while it has running attempts.
    let lease = || db.ask("SELECT max(locked_until) FROM task_runs");
    let before = lease();
    eventually("its lease is extended", || lease() > before);
    assert!(!scheduler.has_stopped());
    assert!(is_newer(&client.add(overdue("another")).unwrap_err()), "an older client writes into newer tables");
    assert!(is_newer(&client.tasks().unwrap_err()));

    open.send(()).unwrap();
    open.send(()).unwrap();
    assert!(is_newer(&scheduler.wait().unwrap_err()));
    assert_eq!(run_states(&db), ["fails|failed|1", "works|succeeded|1"], "what has ended is written down, and no more");
    assert_eq!(db.ask("SELECT result FROM task_runs WHERE status = 'succeeded'"), "\"sent\"");
    assert_eq!(db.ask("SELECT group_concat(outcome) FROM task_attempts"), "failed");
    assert_eq!(db.registered_schedulers(), 0);
    assert_eq!(db.lock_files(), [""; 0], "lock files are left");
    assert!(begins.try_recv().is_err(), "another attempt was begun");
}

#[test]
fn an_idle_scheduler_with_newer_tables_stops_at_once() {
    let (db, mut stepper) = TestDb::with_stepper();
    assert!(stepper.step().unwrap().is_empty());
    db.plain().execute_batch(RAISE).unwrap();
    assert!(is_newer(&stepper.step().unwrap_err()));
    assert!(run_states(&db).is_empty());
    assert!(is_newer(&db.builder(NOON).start().unwrap_err()), "and none starts");
}

#[test]
fn no_task_is_added_to_newer_tables_in_a_transaction_of_the_application() {
    let db = TestDb::new();
    let (client, mut plain) = (db.client(), db.plain());
    plain.execute_batch(RAISE).unwrap();
    let tasks = db.rows("SELECT name FROM scheduled_tasks");
    let tx = plain.transaction().unwrap();
    assert!(is_newer(&client.add_in(&tx, overdue("one")).unwrap_err()));
    tx.commit().unwrap();
    assert_eq!(db.rows("SELECT name FROM scheduled_tasks"), tasks);
}

#[test]
fn claims_that_no_worker_has_begun_are_released() {
    let (db, mut stepper) = TestDb::with_stepper();
    stepper.client().add_all([overdue("one"), overdue("other")]).unwrap();
    let claims = stepper.step().unwrap();
    db.plain().execute_batch(RAISE).unwrap();
    assert!(stepper.step().unwrap().is_empty());
    stepper.finish(&claims[0], Outcome::Released);
    assert!(stepper.step().unwrap().is_empty(), "one is still running");
    assert_eq!(run_states(&db), ["one|queued|1", "other|running|1"]);
    stepper.finish(&claims[1], Outcome::succeeded());
    assert!(is_newer(&stepper.step().unwrap_err()));
    assert_eq!(run_states(&db), ["one|queued|1", "other|succeeded|1"]);
}

#[test]
fn an_outcome_that_newer_tables_refuse_is_left_to_the_newer_program() {
    let db = TestDb::new();
    let (mut stepper, events) = db.stepper_with_events(NOON);
    stepper.client().add_all([overdue("fails"), overdue("works")]).unwrap();
    let claims = stepper.step().unwrap();
    let of = |name: &str| claims.iter().find(|claim| claim.task == name).unwrap();
    db.plain().execute_batch(RAISE).unwrap();
    // A column that is written when a run succeeds, and not when it fails.
    let rename = |from: &str, to: &str| {
        db.plain().execute_batch(&format!("ALTER TABLE task_runs RENAME COLUMN {from} TO {to}")).unwrap();
    };
    rename("result", "answer");
    stepper.finish(of("fails"), Outcome::failed("no route to host"));
    stepper.finish(of("works"), Outcome::succeeded());
    assert!(is_newer(&stepper.step().unwrap_err()), "it does not try for ever");
    assert_eq!(run_states(&db), ["fails|failed|1", "works|running|1"]);
    let aside = |event: &Event| matches!(event, Event::SetAside { item, .. } if item.contains("the outcome of run"));
    assert_eq!(events.try_iter().filter(aside).count(), 1);
    let owner = stepper.owner().to_owned();
    stepper.crash();

    // In this test the newer program is this one, with its original tables.
    rename("answer", "result");
    db.plain().execute("UPDATE scheduler_meta SET value = '1' WHERE key = 'schema_version'", []).unwrap();
    let mut next = db.stepper(NOON);
    next.step().unwrap();
    let lost = db.rows("SELECT outcome, locked_by FROM task_attempts WHERE outcome = 'lost'");
    assert_eq!(lost, [format!("lost|{owner}")], "in its first turn, by the lock that was left behind");
}

#[cfg(target_os = "linux")]
#[test]
fn the_program_waits_for_its_commands_and_exits_with_4() {
    use crate::sidecar::{Gate, Sidecar, shell, wait_for_line};

    let db = TestDb::new();
    let mut gate = Gate::new(&db, "gate");
    let path = db.home().join("gate");
    let line = format!("echo $$ >{0}.group; read line <{0}; echo passed", path.display());
    db.client().add(shell("long", &line)).unwrap();
    let mut sidecar = Sidecar::start(&db, &["--lease", "1s"]);
    wait_for_line(&db, "gate.group");
    db.plain().execute_batch(RAISE).unwrap();
    eventually("it has seen them", || sidecar.log().contains("no further run starts; waiting for 1 running"));
    gate.open();
    assert_eq!(sidecar.end().code(), Some(4), "{}", sidecar.log());
    let log = sidecar.log();
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("error: cannot use ") && last.ends_with(NEWER), "{log}");
    assert_eq!(log.lines().filter(|line| line.starts_with("error:")).count(), 1, "{log}");
    assert_eq!(db.rows("SELECT status, output FROM task_runs"), ["succeeded|passed\n"]);

    let mut refused = Sidecar::spawn(&db, &["--until-idle"]);
    assert_eq!(refused.end().code(), Some(4));
    assert!(refused.log().lines().count() == 1 && refused.log().trim_end().ends_with(NEWER), "{}", refused.log());
    assert!(is_newer(&Client::open_existing(db.file()).unwrap_err()));
    assert_eq!(db.ask("SELECT count(*) FROM task_runs"), "1");
}
