//! `duly import nanoclaw`: the tasks, and that the database of NanoClaw is not changed.

use std::path::Path;

use rusqlite::Connection;
use serde_json::Value;

use crate::fixtures::TestDb;
use crate::import::{duly, entries, stdout_of};

/// Creates the table of NanoClaw, with the columns of later versions.
pub(crate) fn nanoclaw(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("a database");
    let schema = "
        CREATE TABLE chats (jid TEXT PRIMARY KEY, name TEXT);
        CREATE TABLE scheduled_tasks (
            id TEXT PRIMARY KEY, group_folder TEXT NOT NULL, chat_jid TEXT NOT NULL, prompt TEXT NOT NULL,
            schedule_type TEXT NOT NULL, schedule_value TEXT NOT NULL, next_run TEXT, last_run TEXT, last_result TEXT,
            status TEXT DEFAULT 'active', created_at TEXT NOT NULL);
        CREATE INDEX idx_next_run ON scheduled_tasks(next_run);
        CREATE INDEX idx_status ON scheduled_tasks(status);
        ALTER TABLE scheduled_tasks ADD COLUMN context_mode TEXT DEFAULT 'isolated';
        ALTER TABLE scheduled_tasks ADD COLUMN script TEXT;";
    connection.execute_batch(schema).expect("NanoClaw's tables");
    connection
}

/// `next` and `last`: SQL.
fn insert_row(connection: &Connection, id: &str, kind: &str, value: &str, next: &str, last: &str, status: &str) {
    let insert = format!(
        "INSERT INTO scheduled_tasks (id, group_folder, chat_jid, prompt, schedule_type, schedule_value, next_run, last_run,
                                      status, created_at)
         VALUES (?1, 'family', '120363@g.us', 'Say \"hi\"\nto ' || ?1, ?2, ?3, {next}, {last}, ?4, '2026-02-01T10:00:00.000Z')"
    );
    connection.execute(&insert, [id, kind, value, status]).expect("a row");
}

#[test]
fn tasks_are_imported_or_refused_with_a_reason() {
    let db = TestDb::new();
    let path = db.home().join("messages.db");
    let source = nanoclaw(&path);
    let far = "'2999-07-01T13:30:00.000Z'";
    let past = "'2026-02-01T14:30:00.000Z'";
    for (id, kind, value, next, last, status) in [
        ("task-1-cron00", "cron", "0 13 * * *", "'2026-02-02T12:00:00.000Z'", "NULL", "active"),
        ("task-2-every0", "interval", "300000", "'2026-02-07T10:01:30.000Z'", past, "active"),
        ("task-3-once00", "once", "2999-07-01T15:30:00", far, "NULL", "active"),
        ("task-4-other0", "once", "2999-07-01T13:30:00", far, "NULL", "active"),
        ("task-5-late00", "once", "2026-02-01T15:30:00", past, "NULL", "active"),
        ("task-6-paused", "cron", "30 8 * * 1-5", "'2026-02-02T07:30:00.000Z'", "NULL", "paused"),
        ("task-7-done00", "once", "2026-02-01T15:30:00", "NULL", past, "completed"),
        ("task-8-ran000", "once", "2026-02-01T15:30:00", past, past, "active"),
        ("task-9-bad000", "cron", "every day", "NULL", "NULL", "active"),
        ("task-a-bad000", "interval", "five minutes", "NULL", "NULL", "active"),
        ("task-b-bad000", "once", "soon", "NULL", "NULL", "active"),
        ("task-c-bad000", "daily", "15:30", "NULL", "NULL", "active"),
        ("task-d-bad000", "cron", "0 1 * * *", "NULL", "NULL", "asleep"),
    ] {
        insert_row(&source, id, kind, value, next, last, status);
    }
    drop(source);
    let line = ["import", "nanoclaw", "messages.db", "--json", "--", "node", "run-task.js"];
    let import = || -> Value { serde_json::from_str(&stdout_of(duly(&db, &line))).expect("one document") };
    let first = import();
    let imported = ["1-cron00", "2-every0", "3-once00", "4-other0", "5-late00", "6-paused"];
    assert_eq!(entries(&first, "tasks"), imported.map(|id| format!("task-{id}: added")));
    assert_eq!(
        entries(&first, "refused"),
        [
            "task-7-done00: it is completed",
            "task-8-ran000: it has run at 2026-02-01T14:30:00.000Z",
            "task-a-bad000: expected milliseconds, as in 300000, found \"five minutes\"",
            "task-b-bad000: it has no next_run, and its time is invalid: expected an instant as in 2027-03-14T12:00:00Z, \
             or a local time as in 2027-03-14T12:00",
            "task-c-bad000: expected the type cron, interval or once, found \"daily\"",
            "task-d-bad000: expected the status active, paused or completed, found \"asleep\"",
            "task-9-bad000: expected 5 fields (minute, hour, day of month, month, day of week) or 6 with seconds first, found 2",
        ]
    );
    assert_eq!(
        entries(&first, "remarks"),
        [
            "task-4-other0: it will run at 2999-07-01T13:30:00.000Z, as planned by NanoClaw; its time in Europe/Rome differs: check \
             --tz",
            "task-5-late00: its time has passed (2026-02-01T14:30:00.000Z) without a run: it will run when a scheduler starts",
        ]
    );
    assert_eq!(
        db.rows(
            "SELECT name, schedule_type, schedule_value, time_zone, status, concurrency_key,
                    strftime('%Y-%m-%dT%H:%M:%S', starts_at / 1000, 'unixepoch') FROM scheduled_tasks ORDER BY name"
        ),
        [
            "nanoclaw:task-1-cron00|cron|0 13 * * *|Europe/Rome|active|chat:120363@g.us|-",
            "nanoclaw:task-2-every0|interval|5m|UTC|active|chat:120363@g.us|2026-02-01T10:01:30",
            "nanoclaw:task-3-once00|once|2999-07-01T15:30:00|Europe/Rome|active|chat:120363@g.us|-",
            "nanoclaw:task-4-other0|once|2999-07-01T13:30:00.000Z|Europe/Rome|active|chat:120363@g.us|-",
            "nanoclaw:task-5-late00|once|2026-02-01T15:30:00|Europe/Rome|active|chat:120363@g.us|-",
            "nanoclaw:task-6-paused|cron|30 8 * * 1-5|Europe/Rome|paused|chat:120363@g.us|-",
        ]
    );
    let rows = db.tasks();
    let second = import();
    assert_eq!(entries(&second, "tasks"), imported.map(|id| format!("task-{id}: unchanged")));
    assert_eq!(db.tasks(), rows);

    // The command reads the task.
    let task: Value = serde_json::from_str(&db.ask("SELECT payload FROM scheduled_tasks WHERE id = 1")).unwrap();
    assert_eq!(task["argv"], serde_json::json!(["node", "run-task.js"]));
    let input: Value = serde_json::from_str(task["stdin"].as_str().unwrap().strip_suffix('\n').unwrap()).unwrap();
    let part = |key: &str| input[key].as_str().unwrap_or("none").to_owned();
    assert_eq!(part("prompt"), "Say \"hi\"\nto task-1-cron00");
    let rest = ["id", "chat_jid", "group_folder", "context_mode", "script", "schedule_value"].map(part);
    assert_eq!(rest, ["task-1-cron00", "120363@g.us", "family", "isolated", "none", "0 13 * * *"]);
    db.assert_sound();
}

#[test]
fn a_task_that_became_invalid_is_not_pruned_and_a_completed_one_is() {
    let db = TestDb::new();
    let source = nanoclaw(&db.home().join("messages.db"));
    let far = "'2999-07-01T13:30:00.000Z'";
    for (id, kind, value) in [
        ("i", "interval", "300000"),
        ("c", "cron", "@daily"),
        ("o", "once", "2999-07-01T15:30:00"),
        ("s", "cron", "@daily"),
    ] {
        insert_row(&source, id, kind, value, far, "NULL", "active");
    }
    let import = || -> Value {
        let line = ["import", "nanoclaw", "messages.db", "--prune", "--json", "--", "true"];
        serde_json::from_str(&stdout_of(duly(&db, &line))).expect("one document")
    };
    import();
    let rows = db.tasks();
    source.execute_batch("UPDATE scheduled_tasks SET schedule_value = 'soon', next_run = NULL").unwrap();
    source.execute_batch("UPDATE scheduled_tasks SET status = 'asleep' WHERE id = 's'").unwrap();
    let second = import();
    assert_eq!(entries(&second, "tasks"), [""; 0]);
    assert_eq!(second["refused"].as_array().unwrap().len(), 4, "each is reported once: {second}");
    assert_eq!(db.tasks(), rows);
    source.execute_batch("UPDATE scheduled_tasks SET status = 'completed' WHERE id = 'o'").unwrap();
    let third = import();
    assert_eq!(third["tasks"][0]["name"], "nanoclaw:o");
    assert_eq!(db.tasks().len(), 3, "{third}");
}

/// NanoClaw would run the task when it starts.
#[cfg(target_os = "linux")]
#[test]
fn an_overdue_task_runs_at_once_and_only_once() {
    let db = TestDb::new();
    let source = nanoclaw(&db.home().join("messages.db"));
    let past = "'2026-02-01T14:30:00.000Z'";
    insert_row(&source, "late", "once", "2026-02-01T15:30:00", past, "NULL", "active");
    for _ in 0..2 {
        stdout_of(duly(&db, &["import", "nanoclaw", "messages.db", "--", "cat"]));
        assert!(duly(&db, &["run", "--until-idle"]).status.success());
    }
    let runs = "SELECT group_concat(r.status || json_extract(output, '$.id')) FROM task_runs r";
    assert_eq!(db.ask(runs), "succeededlate", "the second import starts no second run");
}

#[test]
fn a_database_in_use_is_read_with_its_wal_and_not_written() {
    let db = TestDb::new();
    let folder = db.home().join("it's 100% store");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("messages.db");
    let listed = || {
        let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let import = || {
        let file = path.to_str().expect("UTF-8");
        let line = ["import", "nanoclaw", file, "--dry-run", "--json", "--", "true"];
        let document: Value = serde_json::from_str(&stdout_of(duly(&db, &line))).expect("one document");
        document["tasks"].as_array().unwrap().len()
    };
    let source = nanoclaw(&path);
    insert_row(&source, "task-1", "cron", "0 13 * * *", "NULL", "NULL", "active");
    assert_eq!((import(), listed()), (1, vec!["messages.db".to_owned()]), "a rollback journal, as NanoClaw has it");
    source.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    insert_row(&source, "task-2", "cron", "0 14 * * *", "NULL", "NULL", "active");
    let live = listed();
    assert_eq!((import(), listed()), (2, live), "the second is in the log alone");
    assert!(
        std::fs::metadata(folder.join("messages.db-wal")).unwrap().len() > 0,
        "no checkpoint has moved it into the database"
    );
    drop(source);
    let before = std::fs::read(&path).unwrap();
    assert_eq!((import(), listed()), (2, vec!["messages.db".to_owned()]), "in WAL mode, without another connection");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
