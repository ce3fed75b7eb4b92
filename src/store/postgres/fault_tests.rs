//! Proves that what the server refuses, or another program changes meanwhile, harms nothing else: the rest of a turn is stored.

use crate::clock::Timestamp;
use crate::model::new_task::NewTask;
use crate::model::request::Existing;
use crate::model::retry::Retry;
use crate::model::run::{FailureKind, Outcome};
use crate::store::Store;
use crate::store::postgres::testing::TestServer;
use crate::store::postgres::turn_tests::{NOON, Owner, Turn, other};

fn insert(tasks: &str) -> String {
    format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned, created_at, active_since)
         SELECT name, 'work', 'interval', '1h', {NOON}, 1, {NOON}, {NOON} FROM {tasks} AS t(name)"
    )
}

fn failed(error: &str) -> Option<Outcome> {
    Some(Outcome::Failed { how: FailureKind::Failed, error: error.to_owned(), retry: Retry::Backoff })
}

#[test]
fn text_that_the_server_cannot_store_is_replaced_or_refused() {
    let Some(server) = TestServer::start("") else { return };
    let mut owner = Owner::new(&server, "one", false);
    let mut other = other(&server);
    other.batch_execute(&insert("(VALUES ('a'), ('b'))")).unwrap();
    owner.turn(&Turn { now: NOON, room: 5, ..Turn::default() });
    assert_eq!(owner.claimed.len(), 2);
    let mut finished = owner.ended(NOON + 10, || failed("a\0b"));
    finished[0].output = Some("\0".to_owned());
    owner.turn(&Turn { now: NOON + 20, finished: &finished, ..Turn::default() });
    let rows =
        other.query("SELECT error, coalesce(output, '') FROM task_runs WHERE status = 'failed' ORDER BY id", &[]);
    let rows: Vec<(String, String)> = rows.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(rows.iter().all(|(error, _)| error == "a\u{FFFD}b"), "{rows:?}");
    assert!(rows.iter().any(|(_, output)| output == "\u{FFFD}"), "{rows:?}");

    let now = Timestamp::from_millis(NOON + 30);
    let mut refused = Vec::new();
    refused.push(owner.store.trigger("a\0", None, None, now).unwrap_err().to_string());
    refused.push(owner.store.trigger("a", None, Some("k\0"), now).unwrap_err().to_string());
    refused.push(owner.store.task("a\0").unwrap_err().to_string());
    refused.push(owner.store.pause("\0", now).unwrap_err().to_string());
    for (message, field) in refused.iter().zip(["name", "request_key", "name", "name"]) {
        assert!(message.starts_with(&format!("invalid {field}: ")) && message.contains("U+0000"), "{message}");
    }
    let keyed = NewTask::manual("c").handler("work").concurrency_key("k\0");
    let added = keyed.into_definition(now).and_then(|task| owner.store.add(task, Existing::Keep, now));
    let message = added.unwrap_err().to_string();
    assert!(message.contains("invalid concurrency_key"), "{message}");
}

/// Another program's trigger before writes of a table.
fn trigger(name: &str, before: &str, body: &str) -> String {
    format!(
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$;
         CREATE TRIGGER {name} BEFORE {before} FOR EACH ROW EXECUTE FUNCTION {name}()"
    )
}

fn texts(other: &mut postgres::Client, query: &str) -> Vec<String> {
    other.query(query, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

const STATES: &str =
    "SELECT t.name || ' ' || r.status FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id ORDER BY 1";

#[test]
fn an_item_that_the_server_refuses_is_set_aside_alone() {
    let Some(server) = TestServer::start("") else { return };
    let refusals = [
        "RAISE EXCEPTION 'not in my database'",
        "RETURN NULL",
        "PERFORM 1 / 0",
        "RAISE unique_violation",
        "INSERT INTO duly.scheduler_meta VALUES ('program', 'twice')",
    ];
    for (number, refusal) in refusals.into_iter().enumerate() {
        let _ = server.other().batch_execute("DROP SCHEMA IF EXISTS duly CASCADE");
        let mut owner = Owner::new(&server, "one", false);
        let mut other = other(&server);
        other.batch_execute(&insert("(VALUES ('a'), ('b'), ('c'), ('d'))")).unwrap();
        let body = format!("IF NEW.task_id = 2 THEN {refusal}; END IF");
        other.batch_execute(&trigger("no_run", "INSERT ON task_runs", &body)).unwrap();
        let done = owner.turn(&Turn { now: NOON, room: 5, full: true, ..Turn::default() });
        assert_eq!(texts(&mut other, STATES), ["a running", "c running", "d running"], "{refusal}: {:?}", done.events);
        let invalid = "SELECT name FROM scheduled_tasks WHERE status = 'invalid'";
        assert_eq!(texts(&mut other, invalid), ["b"], "{refusal}: {:?}", done.events);

        let body = format!("IF NEW.task_id = 3 AND NEW.status <> 'running' THEN {refusal}; END IF");
        other.batch_execute(&trigger("no_end", "UPDATE ON task_runs", &body)).unwrap();
        let finished = owner.ended(NOON + 10, || Some(Outcome::succeeded()));
        assert_eq!(finished.len(), 3);
        let done = owner.turn(&Turn { now: NOON + 20, finished: &finished, full: true, ..Turn::default() });
        assert_eq!(texts(&mut other, STATES), ["a succeeded", "c running", "d succeeded"], "{refusal}");
        assert_eq!(done.unwritten.len(), 1, "{refusal}");
        let aside = "SELECT detail FROM scheduler_events WHERE kind = 'set_aside'";
        assert_eq!(texts(&mut other, aside).len(), 1, "{refusal}: {:?}", texts(&mut other, aside));
        // A turn that is not full writes the others that come while the item is aside.
        other.batch_execute(&insert(&format!("(VALUES ('e{number}'))"))).unwrap();
        owner.turn(&Turn { now: NOON + 30, room: 5, ..Turn::default() });
        assert_eq!(texts(&mut other, STATES).len(), 4, "{refusal}");
        other.batch_execute("DROP TRIGGER no_end ON task_runs; DROP TRIGGER no_run ON task_runs").unwrap();
        owner.turn(&Turn { now: NOON + 40, finished: &done.unwritten, full: true, ..Turn::default() });
        assert_eq!(texts(&mut other, STATES)[1], "c succeeded", "{refusal}");
    }
}
