//! Proves that what the server refuses, or another program changes meanwhile, harms nothing else: the rest of a turn is stored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::new_task::NewTask;
use crate::model::request::Existing;
use crate::model::retry::Retry;
use crate::model::run::{FailureKind, Outcome};
use crate::model::settings::Retention;
use crate::rules::retention_timer::Part;
use crate::store::Store;
use crate::store::postgres::testing::TestServer;
use crate::store::postgres::turn_tests::{self, NOON, Owner, Turn, stage};

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
    let Some((_server, mut owner, mut other)) = stage() else { return };
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
    let refused = [
        owner.store.trigger("a\0", None, None, now).unwrap_err().to_string(),
        owner.store.trigger("a", None, Some("k\0"), now).unwrap_err().to_string(),
        owner.store.task("a\0").unwrap_err().to_string(),
        owner.store.pause("\0", now).unwrap_err().to_string(),
    ];
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
        let mut other = turn_tests::other(&server);
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

/// Waits until a statement of duly waits for the end of another transaction, or `is_over`.
fn wait_for_a_lock(other: &mut postgres::Client, is_over: impl Fn() -> bool) {
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event <> 'advisory'";
    crate::waits::eventually("a statement waits", || {
        is_over() || other.query_one(waits, &[]).unwrap().get::<_, i64>(0) > 0
    });
}

/// What another program does to a running run or to its task, and what has become of the run after its failure.
const EDITS: [(&str, &str); 3] = [
    ("UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'a'", "work failed paused"),
    ("UPDATE scheduled_tasks SET handler = 'mail' WHERE name = 'a'", "mail failed -"),
    ("UPDATE task_runs SET cancel_requested = 1 WHERE id = 1", "work cancelled -"),
];

#[test]
fn a_change_holds_that_another_program_commits_while_a_turn_waits_to_write_what_it_has_read() {
    let Some(server) = TestServer::start("") else { return };
    for (edit, expected) in EDITS {
        let _ = server.other().batch_execute("DROP SCHEMA IF EXISTS duly CASCADE");
        let mut owner = Owner::new(&server, "one", false);
        let (mut editor, mut other) = (turn_tests::other(&server), turn_tests::other(&server));
        let once = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
                    VALUES ('a', 'work', 'once', '2027-03-14T12:00:00Z')";
        other.batch_execute(once).unwrap();
        owner.turn(&Turn { now: NOON, room: 5, full: true, ..Turn::default() });
        let finished = owner.ended(NOON + 10, || failed("no"));
        assert_eq!(finished.len(), 1);
        editor.batch_execute(&format!("BEGIN; {edit}")).unwrap();
        std::thread::scope(|scope| {
            let turn = scope.spawn(|| {
                owner.turn(&Turn { now: NOON + 20, finished: &finished, ..Turn::default() });
            });
            wait_for_a_lock(&mut other, || turn.is_finished());
            editor.batch_execute("COMMIT").unwrap();
        });
        let run = "SELECT handler || ' ' || status || ' ' || coalesce(blocked, '-') FROM task_runs";
        assert_eq!(texts(&mut other, run), [expected], "{edit}");
    }
}

#[test]
fn many_tasks_are_added_while_another_program_adds_some_all_the_time() {
    let Some((_server, mut owner, mut other)) = stage() else { return };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                other.batch_execute(&insert(&format!("(VALUES ('sql-{number}'))"))).unwrap();
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let now = Timestamp::from_millis(NOON);
        let added = (0..10).map(|batch| {
            let task =
                |number| NewTask::interval(format!("task-{batch}-{number}"), Duration::from_secs(60)).handler("work");
            let tasks = (0..300).map(|number| task(number).into_definition(now).map(|task| (task, Existing::Refuse)));
            owner.store.add_all(tasks.collect::<Result<_, _>>().unwrap(), now).map(|added| added.len())
        });
        let added: Vec<_> = added.collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(added.iter().all(|added| matches!(added, Ok(300))), "{added:?}");
    });
}

#[test]
fn retention_keeps_a_task_that_another_program_needs_again() {
    let Some((server, mut owner, mut other)) = stage() else { return };
    let mut editor = turn_tests::other(&server);
    let done = format!(
        "SET duly.store = 'on';
         INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, status, planned, created_at, active_since, updated_at)
         SELECT name, 'work', 'once', '2026-03-14T12:00:00Z', 'completed', 1, {then}, {then}, {then}
           FROM (VALUES ('needed'), ('gone')) AS t(name);
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, attempt, finished_at)
         SELECT id, 'work', {then}, 'schedule', 'succeeded', {then}, 1, {then} FROM scheduled_tasks;
         SET duly.store = ''",
        then = NOON - 86_400_000 * 365
    );
    other.batch_execute(&done).unwrap();
    editor
        .batch_execute(&format!("BEGIN; UPDATE scheduled_tasks SET next_run = {NOON} WHERE name = 'needed'"))
        .unwrap();
    let part = Part { keep: Retention { once: Duration::from_secs(60), ..Retention::default() }, if_idle: true };
    std::thread::scope(|scope| {
        let turn = scope.spawn(|| {
            owner.turn(&Turn { now: NOON, prune: Some(part), ..Turn::default() });
        });
        wait_for_a_lock(&mut other, || turn.is_finished());
        editor.batch_execute("COMMIT").unwrap();
    });
    assert_eq!(texts(&mut other, "SELECT name FROM scheduled_tasks"), ["needed"]);
    assert_eq!(texts(&mut other, "SELECT status FROM task_runs"), ["succeeded"]);
}

#[test]
fn many_runs_of_a_task_that_are_cancelled_by_sql_write_the_task_once() {
    let Some((_server, _owner, mut other)) = stage() else { return };
    let runs = format!(
        "SET duly.store = 'on'; {};
         INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
         SELECT 1, 'work', {NOON}, 'manual', 'queued', {NOON} FROM generate_series(1, 1000);
         SET duly.store = ''",
        insert("(VALUES ('a'))")
    );
    other.batch_execute(&runs).unwrap();
    other.batch_execute("BEGIN; UPDATE task_runs SET cancel_requested = 1").unwrap();
    let updates = "SELECT n_tup_upd::text || ' ' || (SELECT planned FROM scheduled_tasks)
                     FROM pg_stat_xact_user_tables WHERE relid = 'scheduled_tasks'::regclass";
    assert_eq!(texts(&mut other, updates), ["1 0"]);
}

#[test]
fn no_other_role_may_use_the_functions_of_the_triggers() {
    let Some((_server, _owner, mut other)) = stage() else { return };
    let open = "SELECT proname::text FROM pg_proc p
                 WHERE pronamespace = 'duly'::regnamespace AND prosecdef
                   AND EXISTS (SELECT 1 FROM aclexplode(coalesce(proacl, acldefault('f', proowner))) WHERE grantee = 0)";
    assert_eq!(texts(&mut other, open), Vec::<String>::new());
}
