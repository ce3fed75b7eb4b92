//! `duly migrate`: from a file to a server and back. That a migration which is killed changes nothing is proved in `moving`.

use std::path::Path;

use duly::{Client, Error, Limit, Migrated, NewTask, Outcome, Progress, migrate};

use crate::fixtures::{NOON, TestDb, at, finish_all, once};
use crate::postgres::database;

/// Every table but that of the schema's version, and the columns of its key.
pub(crate) const TABLES: [(&str, &str); 12] = [
    ("scheduler_instances", "id"),
    ("concurrency_limits", "concurrency_key"),
    ("rate_limits", "handler"),
    ("rate_limit_starts", "subject, number"),
    ("rate_limit_openings", "subject"),
    ("scheduled_tasks", "id"),
    ("task_runs", "id"),
    ("task_attempts", "id"),
    ("task_effects", "run_id, key"),
    ("scheduler_events", "id"),
    ("scheduler_alarms", "id"),
    ("scheduler_alarm_channels", "channel, kind"),
];

/// A database with rows in every table, on which no scheduler runs.
fn source() -> TestDb {
    let (db, mut stepper, client) = TestDb::with_stepper_and_client();
    client.set_limit(Limit::key("mail", 3).with_rate(5, crate::fixtures::seconds(60))).unwrap();
    client.set_limit(Limit::rate("work", 100, crate::fixtures::seconds(60))).unwrap();
    client.add(NewTask::once("sends", at(NOON)).handler("work").payload("a\nb\\N\tc\r \u{1f980}")).unwrap();
    client.add(NewTask::once("removed", at(NOON)).handler("work")).unwrap();
    client.add(NewTask::cron("nightly", "0 3 * * *").handler("work").payload([1.50, 2e3])).unwrap();
    client.remove("removed").unwrap();
    stepper.step().unwrap();
    finish_all(&mut stepper, &Outcome::failed("no route\n\\."));
    stepper.step().unwrap();
    stepper.stop().unwrap();
    db.execute("INSERT INTO rate_limit_openings VALUES ('key:mail', 1805025600000)");
    db.execute("INSERT INTO task_effects (key, run_id, state, value, created_at, done_at) VALUES ('charge', 1, 'done', '{\"b\": 1, \"a\": [2.0]}', 1, 2)");
    db.execute("INSERT INTO scheduler_events (at, kind, detail) VALUES (1, 'clock_back', '')");
    db.execute("INSERT INTO scheduler_alarms (channel, kind, subject, since, count, changed_at, found, advice) VALUES ('mail', 'dead', '', 1, 1, 1, 'f', 'a')");
    db.execute("INSERT INTO scheduler_alarm_channels (channel, kind, seen_id) VALUES ('mail', 'dead', 7)");
    db
}

/// All rows, as text in the order of their keys.
fn rows(db: &Path) -> Vec<Vec<String>> {
    let file = rusqlite::Connection::open(db).unwrap();
    let all = |(table, key): (&str, &str)| {
        let mut statement = file.prepare(&format!("SELECT * FROM {table} ORDER BY {key}")).unwrap();
        let columns = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            (0..columns).map(|at| row.get::<_, rusqlite::types::Value>(at)).collect::<Result<Vec<_>, _>>()
        };
        statement.query_map([], row).unwrap().map(|row| format!("{:?}", row.unwrap())).collect()
    };
    TABLES.into_iter().map(all).collect()
}

fn refusal(from: impl AsRef<Path>, to: impl AsRef<Path>) -> String {
    match migrate(from, to, &Progress::default()) {
        Err(Error::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_database_that_moves_to_a_server_and_back_is_the_same() {
    let Some(address) = database() else { return };
    let db = source();
    let progress = Progress::default();
    let migrated = migrate(db.file(), &address, &progress).unwrap();
    let Migrated { tasks, runs, others, .. } = migrated;
    assert_eq!((tasks, runs), (2, 1));
    let before = rows(db.file());
    assert!(before.iter().all(|table| !table.is_empty()), "{before:?}");
    let all = before.iter().map(Vec::len).sum::<usize>() as u64;
    assert!(others >= all - 3 && progress.done() == progress.total() && progress.total() >= 2 * all);

    let copy = db.home().join("back.db");
    assert_eq!(migrate(&address, &copy, &Progress::default()).unwrap(), migrated);
    // `jsonb` keeps the value, not the order of keys and the spaces.
    let as_text = |tables: Vec<Vec<String>>| {
        let text = format!("{tables:?}");
        text.replace(r#"{\\\"b\\\": 1, \\\"a\\\": [2.0]}"#, "J")
            .replace(r#"{\\\"a\\\": [2.0], \\\"b\\\": 1}"#, "J")
            .replace("[1.5, ", "[1.5,")
    };
    assert_eq!(as_text(rows(&copy)), as_text(before));

    // No number is given twice, not even that of a task that was removed.
    let newest = |client: &Client| {
        client.add(once("new")).unwrap();
        client.task("new").unwrap().unwrap().id
    };
    let ids = [db.file(), Path::new(&address), &copy].map(|place| newest(&Client::open(place).unwrap()));
    assert_eq!(ids, [4; 3]);
}

/// A NUL in what a command has printed: on a server, U+FFFD is stored in its place.
#[test]
fn what_postgres_cannot_store_of_an_output_or_a_result_is_replaced_and_counted() {
    let Some(address) = database() else { return };
    let db = source();
    db.execute("UPDATE task_runs SET output = CAST(x'610062ff' AS TEXT), error = 'no route'");
    db.execute(r#"UPDATE task_effects SET value = '{"a\u0000": "\ud83d"}'"#);
    db.execute("INSERT INTO scheduler_events (at, kind, detail) VALUES (1, 'edited', CAST(x'610062' AS TEXT))");
    db.execute(r#"UPDATE scheduler_instances SET problems = '["a\u0000"]'"#);
    // What describes a dead run has its output, and a retry of that has the same payload.
    let run = |id: u32, origin: &str, retry_of: &str| {
        format!(
            r#"INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, status, run_at, finished_at, retry_of, payload)
               SELECT {id}, task_id, handler, 1800000000000, '{origin}', 'cancelled', 1800000000000, 1800000000001, {retry_of}, '{{"output": "\u0000"}}'
                 FROM task_runs LIMIT 1"#
        )
    };
    db.execute(&run(90, "on_dead", "NULL"));
    db.execute(&run(91, "manual", "90"));
    // What a user gave is refused.
    db.execute(&run(92, "manual", "NULL"));
    let reason = refusal(db.file(), &address);
    assert!(reason.starts_with("task_runs, row with id 92, ") && reason.contains(r"payload holds \u0000"), "{reason}");
    db.execute("DELETE FROM task_runs WHERE id = 92");
    // Two members would become one.
    db.execute(r#"UPDATE task_runs SET result = '{"\ud800": 1, "\ud801": 2}' WHERE id = 91"#);
    let reason = refusal(db.file(), &address);
    assert!(
        reason.starts_with("task_runs, row with id 91, ") && reason.contains("result has keys of one object"),
        "{reason}"
    );
    db.execute("UPDATE task_runs SET result = NULL WHERE id = 91");
    let file = rusqlite::Connection::open(db.file()).unwrap();
    let count = |query: &str| file.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap().unsigned_abs();
    let instances = count("SELECT count(*) FROM scheduler_instances");
    let migrated = migrate(db.file(), &address, &Progress::default()).unwrap();
    assert!(instances > 0);
    assert_eq!(migrated.replaced, 5 + instances);
    let copy = db.home().join("back.db");
    assert_eq!(migrate(&address, &copy, &Progress::default()).unwrap().replaced, 0);
    let copy = rusqlite::Connection::open(&copy).unwrap();
    let text = |query: &str| copy.query_row(query, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(text("SELECT output FROM task_runs WHERE id < 90"), "a\u{fffd}b\u{fffd}");
    assert_eq!(text("SELECT payload FROM task_runs WHERE id = 91"), "{\"output\": \"\u{fffd}\"}");
    assert_eq!(text("SELECT detail FROM scheduler_events WHERE kind = 'edited'"), "a\u{fffd}b");
    assert_eq!(text("SELECT value FROM task_effects"), "{\"a\u{fffd}\": \"\u{fffd}\"}");
}

#[test]
fn only_a_source_at_rest_moves_and_only_into_an_empty_target() {
    let Some(address) = database() else { return };
    let (db, stepper, client) = TestDb::with_stepper_and_client();
    client.add(once("a")).unwrap();
    assert!(refusal(db.file(), &address).starts_with("schedulers that have not stopped: 1: stop the"));
    stepper.stop().unwrap();
    db.execute("INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, locked_by, locked_until)
                VALUES (1, 'work', 1800000000000, 'manual', 'running', 1800000000000, 1, 'x', 1800000000000)");
    assert!(refusal(db.file(), &address).starts_with("runs that are running: 1: "));
    db.execute("DELETE FROM task_runs");
    // A row that PostgreSQL cannot store is named.
    db.execute("INSERT INTO scheduler_alarm_channels (channel, kind) VALUES (CAST(x'610062' AS TEXT), 'dead')");
    let reason = refusal(db.file(), &address);
    let expected = "scheduler_alarm_channels, row with : channel holds the character U+0000";
    assert!(reason.starts_with(expected), "{reason}");
    db.execute("DELETE FROM scheduler_alarm_channels");
    assert!(Client::open(&address).unwrap().tasks().unwrap().is_empty());

    migrate(db.file(), &address, &Progress::default()).unwrap();
    assert_eq!(refusal(db.file(), &address), "the target has 1 rows in scheduler_instances: expected a new database");
    assert!(refusal(db.file(), db.home().join("other.db")).starts_with("expected a file and an address"));
    assert!(refusal(&address, &address).starts_with("expected a file and an address"));
    assert_eq!(Client::open(&address).unwrap().tasks().unwrap().len(), 1);
}
