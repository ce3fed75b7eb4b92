//! Files that an older duly wrote. `tests/fixtures/` holds one for each released version of the schema, as text: it opens, can be
//! read, runs on, and then has the same tables as a new file.
//!
//! `DULY_WRITE_FIXTURES=1 cargo test --test it fixture` writes the newest again while its version is unreleased.

use std::path::{Path, PathBuf};

use duly::testing::Stepper;
use duly::{Client, Event, NewTask, Outcome, Overlap, RunStatus, TaskStatus};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::fixtures::{
    NOON, TestDb, advance_and_step, at, claim_after, listen, minutes, seconds, step, step_after, succeed, work_off,
};

const STATUSES: [&str; 8] = ["queued", "running", "failed", "succeeded", "dead", "cancelled", "skipped", "missed"];

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/version-{version}.sql"))
}

/// A database made from a fixture, as the shell reads it.
fn from_fixture(version: u32) -> TestDb {
    let path = fixture(version);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let db = TestDb::new();
    db.plain().execute_batch(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    db
}

/// The whole schema by name; the order of creation does not matter.
fn schema(db: &TestDb) -> Vec<String> {
    db.rows("SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY type, name")
}

fn assert_same_schema(db: &TestDb) {
    let fresh = TestDb::new();
    drop(fresh.client());
    for (found, expected) in schema(db).iter().zip(&schema(&fresh)) {
        assert_eq!(found, expected, "is version 1 unreleased? Then write its fixture anew: see the top of this file");
    }
    assert_eq!(schema(db).len(), schema(&fresh).len());
}

/// Everything that version 1 stores: tasks and runs in every status, attempts, events.
fn busy() -> (TestDb, Stepper) {
    let db = TestDb::new();
    let mut stepper = db.builder("2027-03-14T11:59:00Z").accept("work").workers(8).start().expect("a stepper");
    let client = stepper.client().clone();
    let cron = |name: &str| NewTask::cron(name, "* * * * *").handler("work");
    client.add(cron("digest:anna").payload("anna@example.org").time_zone("Europe/Rome")).expect("a task");
    client.add(cron("resting").overlap(Overlap::BufferAll)).expect("a task");
    client.add(NewTask::once("hello", at(NOON)).handler("work").at_most_once()).expect("a task");
    client.add(NewTask::delay("poll", minutes(5)).handler("work").concurrency_key("feed")).expect("a task");
    client.add(NewTask::interval("report", minutes(30)).handler("elsewhere").priority(0)).expect("a task");
    let plain = db.plain();
    let unusable =
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, created_at, active_since)
                    VALUES ('broken', 'work', 'cron', 'every day', 1805025600000, 1805025600000)";
    plain.execute(unusable, []).expect("a row");
    let first = step_after(&mut stepper, minutes(1), 3);
    let of = |name: &str| first.iter().find(|claim| claim.task == name).expect("its claim").clone();
    // One run is dead; one is retried, and the occurrence meanwhile is skipped; one is cancelled.
    stepper.finish(&of("hello"), Outcome::failed("no route to host"));
    stepper.finish(&of("digest:anna"), Outcome::failed("mailbox is full"));
    step(&mut stepper, 0);
    let again = claim_after(&mut stepper, minutes(1));
    succeed(&mut stepper, &again);
    let by_hand = client.trigger_with("digest:anna", "bob@example.org").expect("a run");
    client.cancel(by_hand).expect("cancelled");
    succeed(&mut stepper, &of("resting"));
    client.pause("resting").expect("a pause");
    client.trigger("poll").expect("a run");
    client.replace(NewTask::interval("report", minutes(20)).handler("elsewhere").priority(0)).expect("an edit");
    // An hour is missed; then the scheduler dies while runs are running.
    advance_and_step(&mut stepper, minutes(61));
    let digest = stepper.running().iter().find(|claim| claim.task == "digest:anna").expect("at work").clone();
    stepper.finish(&digest, Outcome::failed("mailbox is full"));
    stepper.step().expect("a step");
    (db, stepper)
}

#[test]
fn a_file_of_version_1_opens_and_runs_on() {
    if std::env::var_os("DULY_WRITE_FIXTURES").is_some() {
        let (db, stepper) = busy();
        let plain = db.plain();
        plain.execute("UPDATE scheduler_instances SET host = 'example', pid = 4242", []).expect("neutral names");
        std::fs::write(fixture(1), dump(&plain)).expect("the fixture is written");
        stepper.crash();
    }
    let db = from_fixture(1);
    let count = |table: &str, status: &str| {
        db.number::<u32>(&format!("SELECT count(*) FROM {table} WHERE status = '{status}'"))
    };
    for status in STATUSES {
        assert!(count("task_runs", status) > 0, "the fixture has no {status} run");
    }
    for status in ["active", "paused", "completed", "invalid"] {
        assert!(count("scheduled_tasks", status) > 0, "the fixture has no {status} task");
    }
    assert!(db.number::<u32>("SELECT count(*) FROM task_attempts") > 1);
    assert!(db.number::<u32>("SELECT count(DISTINCT kind) FROM scheduler_events") > 1);
    db.assert_sound();
    assert_same_schema(&db);

    let client = Client::open_existing(db.file()).expect("a client");
    let tasks = client.tasks().expect("the tasks");
    let names: Vec<(&str, TaskStatus)> = tasks.iter().map(|task| (task.name(), task.status)).collect();
    assert_eq!(
        names,
        [
            ("broken", TaskStatus::Invalid),
            ("digest:anna", TaskStatus::Active),
            ("hello", TaskStatus::Completed),
            ("poll", TaskStatus::Active),
            ("report", TaskStatus::Active),
            ("resting", TaskStatus::Paused),
        ]
    );
    assert_eq!(tasks[1].definition.payload, "\"anna@example.org\"");
    for task in &tasks {
        for run in client.history(task.name(), 100).expect("a history") {
            assert_eq!(client.run(run.id).expect("a look-up").expect("a run"), run);
            let attempts = client.attempts(run.id).expect("its attempts");
            assert!(run.status != RunStatus::Dead || !attempts.is_empty(), "a dead run has its attempts");
        }
    }
    let finals = final_rows(&db);

    // The runs of the dead owner are recovered after its lease; then every task continues.
    let (observer, events) = listen();
    let now = db.number("SELECT max(seen_at) FROM scheduler_instances");
    let builder = Stepper::builder(db.file(), duly::Timestamp::from_millis(now)).accept("work").accept("elsewhere");
    let mut stepper = builder.observe(observer).start().expect("a stepper");
    for _ in 0..200 {
        work_off(&mut stepper);
        stepper.clock().advance(seconds(1));
    }
    assert!(events.try_iter().any(|event| matches!(event, Event::Lost { .. })), "the owner is lost");
    let over = final_rows(&db);
    assert!(finals.iter().all(|row| over.contains(row)), "final runs are unchanged");
    let unfinished = "SELECT DISTINCT t.name FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
                       WHERE r.status = 'queued' OR r.status = 'failed' OR r.status = 'running'";
    assert_eq!(db.rows(unfinished), ["resting"], "it is paused");
    client.resume("resting").expect("a resumption");
    client.replace(NewTask::cron("broken", "@hourly").handler("work")).expect("a repair");
    stepper.clock().advance(minutes(60));
    let mut ran: Vec<String> = work_off(&mut stepper).iter().map(|claim| claim.task.clone()).collect();
    ran.sort();
    ran.dedup();
    assert_eq!(ran, ["broken", "digest:anna", "poll", "report", "resting"]);
    db.assert_sound();
    assert_same_schema(&db);
}

/// The rows of final runs, except skips, which may grow.
fn final_rows(db: &TestDb) -> Vec<String> {
    db.rows(
        "SELECT * FROM task_runs WHERE status IN ('succeeded', 'dead', 'cancelled', 'missed')
                   AND id <= (SELECT 1000) ORDER BY finished_at, id",
    )
}

/// The file as text, like the shell's `.dump`: tables and rows, then indexes, views and triggers, which must not see the inserts.
fn dump(connection: &Connection) -> String {
    let mut text = String::from("BEGIN;\n");
    let mut later = String::new();
    let mut statement = connection
        .prepare("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY rowid")
        .expect("the schema");
    let mut rows = statement.query([]).expect("the schema");
    while let Some(row) = rows.next().expect("an object") {
        let column = |at| row.get::<_, String>(at).expect("text");
        let (kind, name, sql) = (column(0), column(1), column(2));
        if kind != "table" {
            later.push_str(&format!("{sql};\n"));
            continue;
        }
        text.push_str(&format!("{sql};\n"));
        text.push_str(&inserts(connection, &name));
    }
    text + &later + "COMMIT;\n"
}

fn inserts(connection: &Connection, table: &str) -> String {
    let mut text = String::new();
    let mut statement = connection.prepare(&format!("SELECT * FROM {table}")).expect("a table");
    let names = Vec::from_iter(statement.column_names()).join(", ");
    let columns = statement.column_count();
    let mut rows = statement.query([]).expect("rows");
    while let Some(row) = rows.next().expect("a row") {
        let values: Vec<String> = (0..columns)
            .map(|column| match row.get_ref(column).expect("a value") {
                ValueRef::Integer(number) => number.to_string(),
                ValueRef::Text(text) => format!("'{}'", String::from_utf8_lossy(text).replace('\'', "''")),
                ValueRef::Null => "NULL".to_owned(),
                other => panic!("a column of {table} holds {other:?}"),
            })
            .collect();
        text.push_str(&format!("INSERT INTO {table} ({names}) VALUES ({});\n", values.join(", ")));
    }
    text
}

#[test]
fn a_dump_restores_the_same_tables() {
    let (db, stepper) = busy();
    stepper.crash();
    let copy = TestDb::new();
    copy.plain().execute_batch(&dump(&db.plain())).expect("a copy");
    for table in ["scheduled_tasks", "task_runs", "task_attempts", "scheduler_events", "scheduler_meta"] {
        let all = format!("SELECT * FROM {table}");
        assert_eq!(copy.rows(&all), db.rows(&all), "{table}");
    }
    assert_eq!(schema(&copy), schema(&db));
}
