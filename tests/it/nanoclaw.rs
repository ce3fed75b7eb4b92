//! `duly import nanoclaw`: the tasks of both versions, and that the database of NanoClaw is not changed.

use std::path::Path;

use rusqlite::Connection;
use serde_json::Value;

use crate::fixtures::TestDb;
use crate::import::{duly, entries, stdout_of};

/// Creates the table of NanoClaw, with the columns of later versions.
fn nanoclaw(path: &Path) -> Connection {
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

/// Imports a database of NanoClaw, and returns the report.
fn import(db: &TestDb, arguments: &[&str]) -> Value {
    let line = [&["import", "nanoclaw", "--json"], arguments].concat();
    serde_json::from_str(&stdout_of(duly(db, &line))).expect("one document")
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
    let import = || import(&db, &["messages.db", "--", "node", "run-task.js"]);
    let first = import();
    let imported = ["1-cron00", "2-every0", "3-once00", "4-other0", "5-late00", "6-paused"];
    assert_eq!(entries(&first, "tasks"), imported.map(|id| format!("task-{id}: added")));
    assert_eq!(
        entries(&first, "refused"),
        [
            "task-7-done00: it is completed",
            "task-8-ran000: it has run at 2026-02-01T14:30:00.000Z",
            "task-a-bad000: expected milliseconds, as in 300000, or one unit, as in 30m, found \"five minutes\"",
            "task-b-bad000: it has no next_run, and its time is invalid: expected an instant as in 2027-03-14T12:00:00Z, \
             or a local time as in 2027-03-14T12:00",
            "task-c-bad000: expected the type cron, interval, once or at, found \"daily\"",
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
    let import = || import(&db, &["messages.db", "--prune", "--", "true"]);
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
        let document = import(&db, &[path.to_str().expect("UTF-8"), "--dry-run", "--", "true"]);
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

/// The migration of NanoClaw to version 2 accepts intervals with one unit, and the type `at`.
#[test]
fn what_the_migration_of_nanoclaw_accepts_is_imported() {
    let db = TestDb::new();
    let source = nanoclaw(&db.home().join("messages.db"));
    let far = "'2999-07-01T13:30:00.000Z'";
    for (id, kind, value, next) in [
        ("minutes", "interval", "30m", "NULL"),
        ("seconds", "interval", " 45s ", "NULL"),
        ("hours", "interval", "2h", "NULL"),
        ("days", "interval", "1d", "NULL"),
        ("at", "at", "2999-07-01T15:30:00", far),
        ("written", "at", "2999-07-01T15:30:00", "NULL"),
        ("none", "interval", "0m", "NULL"),
        ("two", "interval", "1h 30m", "NULL"),
        ("weeks", "interval", "1w", "NULL"),
        ("long", "interval", "99999999999999999d", "NULL"),
        // As in NanoClaw, either day.
        ("days-of-both", "cron", "0 9 */2 * MON", "NULL"),
        ("days-of-one", "cron", "0 9 */2 * *", "NULL"),
    ] {
        insert_row(&source, id, kind, value, next, "NULL", "active");
    }
    let imported = import(&db, &["messages.db", "--", "true"]);
    let refused = |id: &str, value: &str| {
        format!("{id}: expected milliseconds, as in 300000, or one unit, as in 30m, found \"{value}\"")
    };
    assert_eq!(
        entries(&imported, "refused"),
        [
            refused("long", "99999999999999999d"),
            refused("none", "0m"),
            refused("two", "1h 30m"),
            refused("weeks", "1w"),
        ]
    );
    assert_eq!(
        db.rows("SELECT name, schedule_type, schedule_value, status FROM scheduled_tasks ORDER BY name"),
        [
            "nanoclaw:at|once|2999-07-01T15:30:00|active",
            "nanoclaw:days|interval|1d|active",
            "nanoclaw:days-of-both|cron|0 9 1-31/2 * MON|active",
            "nanoclaw:days-of-one|cron|0 9 */2 * *|active",
            "nanoclaw:hours|interval|2h|active",
            "nanoclaw:minutes|interval|30m|active",
            "nanoclaw:seconds|interval|45s|active",
            "nanoclaw:written|once|2999-07-01T15:30:00|active",
        ]
    );
}

/// Creates the database of a session of NanoClaw 2.
fn session(db: &TestDb, group: &str, session: &str) -> Connection {
    let folder = db.home().join("v2-sessions").join(group).join(session);
    std::fs::create_dir_all(&folder).expect("a folder");
    // Other files of a session.
    std::fs::write(folder.join("outbound.db"), "").expect("a file");
    let connection = Connection::open(folder.join("inbound.db")).expect("a database");
    let schema = "
        CREATE TABLE messages_in (
            id TEXT PRIMARY KEY, seq INTEGER UNIQUE, kind TEXT NOT NULL, timestamp TEXT NOT NULL,
            status TEXT DEFAULT 'pending', process_after TEXT, recurrence TEXT, series_id TEXT, tries INTEGER DEFAULT 0,
            trigger INTEGER NOT NULL DEFAULT 1, platform_id TEXT, channel_type TEXT, thread_id TEXT, content TEXT NOT NULL);
        CREATE INDEX idx_messages_in_series ON messages_in(series_id);
        CREATE TABLE delivered (message_out_id TEXT PRIMARY KEY);
        INSERT INTO messages_in (id, kind, timestamp, content) VALUES ('m', 'chat', '2026-02-01 10:00:00', '{}');";
    connection.execute_batch(schema).expect("the tables of a session");
    connection
}

/// `due`, `recurrence` and `series`: SQL.
fn insert_message(to: &Connection, id: &str, series: &str, status: &str, due: &str, recurrence: &str, content: &str) {
    let insert = format!(
        "INSERT INTO messages_in (id, series_id, kind, timestamp, status, process_after, recurrence, content)
         VALUES (?1, {series}, 'task', '2026-02-01 10:00:00', ?2, {due}, {recurrence}, ?3)"
    );
    to.execute(&insert, [id, status, content]).expect("a row");
}

/// Each agent group of NanoClaw 2 may have a zone of its own, which its schedules are in; the others are in `--tz`.
#[test]
fn each_group_of_nanoclaw_2_has_its_zone() {
    let db = TestDb::new();
    for (group, id, due) in [
        ("ag-1", "tokyo", "'2999-01-01T00:00:00.000Z'"),
        ("ag-2", "rome", "'2999-01-01T08:00:00.000Z'"),
        ("ag-3", "nowhere", "'2999-01-01T08:00:00.000Z'"),
        ("ag-4", "plain", "'2999-01-01T08:00:00.000Z'"),
    ] {
        insert_message(&session(&db, group, "s"), id, &format!("'{id}'"), "pending", due, "'0 9 1 1 *'", "{}");
    }
    let zones = || db.rows("SELECT name, time_zone FROM scheduled_tasks ORDER BY name");
    let named = |zone: &str| {
        [("nowhere", "Europe/Rome"), ("plain", "Europe/Rome"), ("rome", "Europe/Rome"), ("tokyo", zone)]
            .map(|(name, zone)| format!("nanoclaw:{name}|{zone}"))
    };
    // An older version has no such table.
    let central = Connection::open(db.home().join("v2.db")).expect("a database");
    central.execute_batch("CREATE TABLE agent_groups (id TEXT PRIMARY KEY);").expect("a table");
    let first = import(&db, &["v2-sessions", "--", "node", "run-task.js"]);
    assert_eq!((zones(), entries(&first, "remarks").len()), (named("Europe/Rome").to_vec(), 1), "{first}");
    central
        .execute_batch(
            "CREATE TABLE container_configs (agent_group_id TEXT PRIMARY KEY, timezone TEXT);
             INSERT INTO container_configs VALUES ('ag-1', 'Asia/Tokyo'), ('ag-2', NULL), ('ag-3', 'Not/AZone');",
        )
        .expect("zones");
    let second = import(&db, &["v2-sessions", "--", "node", "run-task.js"]);
    assert_eq!((zones(), entries(&second, "remarks").len()), (named("Asia/Tokyo").to_vec(), 0), "{second}");
    // The run that NanoClaw has planned is the first.
    let starts = "SELECT strftime('%Y-%m-%dT%H:%M', starts_at / 1000, 'unixepoch') FROM scheduled_tasks WHERE name = 'nanoclaw:tokyo'";
    assert_eq!(db.rows(starts), ["2999-01-01T00:00"]);
}

#[test]
fn tasks_of_the_sessions_of_nanoclaw_2_are_imported_or_refused_with_a_reason() {
    let db = TestDb::new();
    let source = session(&db, "ag-1", "sess-1");
    let prompt = r#"{"prompt":"Say \"hi\"","script":null,"originSessionId":null}"#;
    let (past, far, yearly) = ("'2026-02-02T08:00:00.000Z'", "'2999-07-01T13:30:00.000Z'", "'0 9 1 1 *'");
    // A series: completed occurrences, and the next one.
    insert_message(&source, "brief-1a2b", "'brief-1a2b'", "completed", past, "NULL", "{}");
    insert_message(&source, "task-2", "'brief-1a2b'", "pending", "'2999-01-01T08:00:00.000Z'", yearly, prompt);
    insert_message(&source, "paused", "'paused'", "paused", past, yearly, prompt);
    insert_message(&source, "gap", "'gap'", "completed", past, yearly, prompt);
    insert_message(&source, "failed", "'failed'", "failed", past, yearly, prompt);
    insert_message(&source, "forked", "'forked'", "pending", past, yearly, prompt);
    insert_message(&source, "forked-2", "'forked'", "pending", past, yearly, prompt);
    insert_message(&source, "off-grid", "'off-grid'", "pending", far, yearly, prompt);
    // Without series_id, and with the time as SQLite writes it.
    insert_message(&source, "once", "NULL", "pending", "'2999-07-01 13:30:00'", "NULL", "call anna");
    insert_message(&source, "late", "'late'", "pending", past, "NULL", prompt);
    insert_message(&source, "done", "'done'", "completed", past, "NULL", prompt);
    insert_message(&source, "cancelled", "'cancelled'", "cancelled", past, "NULL", prompt);
    insert_message(&source, "over", "'over'", "failed", past, "NULL", prompt);
    insert_message(&source, "bad", "'bad'", "pending", past, "'every day'", prompt);
    insert_message(&source, "asleep", "'asleep'", "asleep", past, yearly, prompt);
    let other = session(&db, "ag-2", "sess-2");
    let all = r#"{"prompt":"p","script":"exit 0","recurrencePolicy":"catch-up-all"}"#;
    let skip = r#"{"prompt":"p","recurrencePolicy":"skip-if-missed","graceWindowSeconds":90}"#;
    insert_message(&other, "all", "'all'", "pending", "NULL", yearly, all);
    insert_message(&other, "skip", "'skip'", "pending", "NULL", yearly, skip);

    let import = || import(&db, &["v2-sessions", "--prune", "--", "node", "run-task.js"]);
    let first = import();
    let imported = ["brief-1a2b", "paused", "gap", "failed", "forked", "off-grid", "once", "late", "all", "skip"];
    assert_eq!(entries(&first, "tasks"), imported.map(|id| format!("{id}: added")));
    assert_eq!(
        entries(&first, "refused"),
        [
            "done: it is completed",
            "cancelled: it is cancelled",
            "over: it has failed, and NanoClaw plans no further run",
            "asleep: expected the status pending, paused, processing, completed, failed or cancelled, found \"asleep\"",
            "bad: expected 5 fields (minute, hour, day of month, month, day of week) or 6 with seconds first, found 2",
        ]
    );
    let overdue =
        "its run of 2026-02-02T08:00:00.000Z is overdue: duly runs it at its next time, or now by duly trigger";
    assert_eq!(
        entries(&first, "remarks"),
        [
            "failed: its last run failed: duly runs it at its next time".to_owned(),
            "forked: NanoClaw plans 2 runs of it side by side: it is imported once".into(),
            format!("forked: {overdue}"),
            "off-grid: NanoClaw plans a run at 2999-07-01T13:30:00.000Z, which is not a time of its schedule in Europe/Rome: \
             duly runs it at 3000-01-01T08:00:00.000Z first; check --tz"
                .into(),
            "late: its time has passed (2026-02-02T08:00:00.000Z) without a run: it will run when a scheduler starts".into(),
            format!("bad: {overdue}"),
        ]
    );
    let bound = "ifnull(strftime('%Y-%m-%d', starts_at / 1000, 'unixepoch'), 'none')";
    let settings = format!(
        "SELECT name, schedule_type, schedule_value, time_zone, status, concurrency_key, misfire, misfire_grace_ms / 1000,
                overlap, catch_up_limit, {bound} FROM scheduled_tasks ORDER BY id"
    );
    let in_session = |name: &str, rest: &str| format!("nanoclaw:{name}|cron|0 9 1 1 *|Europe/Rome|{rest}");
    let usual = "active|session:ag-1/sess-1|run_once|60|skip|100";
    assert_eq!(
        db.rows(&settings),
        [
            in_session("brief-1a2b", &format!("{usual}|2999-01-01")),
            in_session("paused", "paused|session:ag-1/sess-1|run_once|60|skip|100|none"),
            in_session("gap", &format!("{usual}|none")),
            in_session("failed", &format!("{usual}|none")),
            in_session("forked", &format!("{usual}|none")),
            in_session("off-grid", &format!("{usual}|2999-07-01")),
            format!("nanoclaw:once|once|2999-07-01T13:30:00.000Z|UTC|{usual}|none"),
            format!("nanoclaw:late|once|2026-02-02T08:00:00.000Z|UTC|{usual}|none"),
            in_session("all", "active|session:ag-2/sess-2|run_all|60|buffer_all|24|none"),
            in_session("skip", "active|session:ag-2/sess-2|skip|90|skip|100|none"),
        ]
    );
    // The command reads the task.
    let input = |name: &str| -> Value {
        let payload = db.ask(&format!("SELECT payload FROM scheduled_tasks WHERE name = 'nanoclaw:{name}'"));
        let payload: Value = serde_json::from_str(&payload).unwrap();
        serde_json::from_str(payload["stdin"].as_str().unwrap().strip_suffix('\n').unwrap()).unwrap()
    };
    let brief = input("brief-1a2b");
    let part = |key: &str| brief[key].as_str().unwrap_or("none").to_owned();
    assert_eq!(
        ["id", "prompt", "script", "agent_group", "session", "schedule_type", "schedule_value"].map(part),
        ["brief-1a2b", "Say \"hi\"", "none", "ag-1", "sess-1", "cron", "0 9 1 1 *"]
    );
    assert_eq!(brief["content"], serde_json::from_str::<Value>(prompt).unwrap());
    assert_eq!(input("once")["prompt"], "call anna", "content that is not JSON");
    assert_eq!(input("all")["script"], "exit 0");

    let rows = db.tasks();
    let second = import();
    assert_eq!(entries(&second, "tasks"), imported.map(|id| format!("{id}: unchanged")));
    assert_eq!(db.tasks(), rows);
    // A task that became invalid is kept; one that was cancelled is removed.
    source.execute_batch("UPDATE messages_in SET status = 'asleep' WHERE series_id = 'gap'").unwrap();
    source.execute_batch("UPDATE messages_in SET status = 'cancelled', recurrence = NULL WHERE id = 'paused'").unwrap();
    let third = import();
    let removed = third["tasks"].as_array().unwrap().iter().filter(|task| task["change"] == "removed");
    assert_eq!(removed.map(|task| task["name"].as_str().unwrap()).collect::<Vec<_>>(), ["nanoclaw:paused"]);
    db.assert_sound();
}

/// A task for a handler has the JSON that a command would read as its payload.
#[test]
fn tasks_are_imported_for_a_handler() {
    let db = TestDb::new();
    let source = nanoclaw(&db.home().join("messages.db"));
    insert_row(&source, "daily", "cron", "0 13 * * *", "NULL", "NULL", "active");
    insert_row(&source, "paused", "interval", "300000", "NULL", "NULL", "paused");
    let session = session(&db, "ag-1", "sess-1");
    let content = r#"{"prompt":"p","script":"exit 0"}"#;
    insert_message(&session, "brief", "'brief'", "pending", "NULL", "'0 9 1 1 *'", content);
    let stored =
        || db.rows("SELECT name, handler, payload, concurrency_key, status FROM scheduled_tasks ORDER BY name");
    let import = |file: &str, target: &[&str]| import(&db, &[&[file], target].concat());
    for file in ["messages.db", "v2-sessions"] {
        import(file, &["--", "node", "run-task.js"]);
    }
    let inputs: Vec<String> = db.rows("SELECT json_extract(payload, '$.stdin') FROM scheduled_tasks ORDER BY name");
    // A task that was imported for a command is changed; its schedule and its state are kept.
    let changed = import("messages.db", &["--handler", "agent"]);
    assert_eq!(entries(&changed, "tasks"), ["daily: changed", "paused: changed"]);
    assert_eq!(entries(&import("v2-sessions", &["--handler", "agent"]), "tasks"), ["brief: changed"]);
    let row = |at: usize, id: &str, rest: &str| format!("nanoclaw:{id}|agent|{}|{rest}", inputs[at].trim_end());
    assert_eq!(
        stored(),
        [
            row(0, "brief", "session:ag-1/sess-1|active"),
            row(1, "daily", "chat:120363@g.us|active"),
            row(2, "paused", "chat:120363@g.us|paused"),
        ]
    );
    assert_eq!(
        entries(&import("messages.db", &["--handler", "agent"]), "tasks"),
        ["daily: unchanged", "paused: unchanged"]
    );
    let before = stored();
    for (target, code, says) in [
        (&["--handler", "agent", "--", "true"][..], 2, "cannot be used with"),
        (&["--handler", ""], 2, "a value is required for '--handler <NAME>'"),
        (&[], 2, "required arguments were not provided"),
        (&["--handler", "command"], 2, "invalid --handler: the handler command starts a program"),
    ] {
        let refused = duly(&db, &[&["import", "nanoclaw", "messages.db"], target].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned() + &String::from_utf8_lossy(&refused.stdout);
        assert!(refused.status.code() == Some(code) && said.contains(says), "{target:?}: {said}");
        assert_eq!(stored(), before);
    }
    db.assert_sound();
}

/// A session that cannot be read ends the import: its tasks would be removed by --prune.
#[test]
fn an_unreadable_session_imports_nothing() {
    let db = TestDb::new();
    let source = session(&db, "ag-1", "sess-1");
    insert_message(&source, "a", "'a'", "pending", "NULL", "'@daily'", "{}");
    let line = ["import", "nanoclaw", "v2-sessions", "--prune", "--", "true"];
    stdout_of(duly(&db, &line));
    let rows = db.tasks();
    let file = db.home().join("v2-sessions/ag-1/sess-1/inbound.db");
    source.close().unwrap();
    std::fs::write(&file, "no database").unwrap();
    for text in ["no database", ""] {
        std::fs::write(&file, text).unwrap();
        let refused = duly(&db, &line);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && error.contains("inbound.db: expected NanoClaw's"), "{error}");
        assert_eq!(db.tasks(), rows);
    }
    std::fs::remove_file(&file).unwrap();
    let refused = duly(&db, &line);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.ends_with("v2-sessions of NanoClaw 2, found a folder without inbound.db\n"), "{error}");
}
