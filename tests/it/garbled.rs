//! Text that is not UTF-8 or holds NUL: the tables refuse what SQLite can recognize, and the rest harms its own row only. A row
//! that is marked as planned without a next run is planned.

use duly::{Limits, NewTask, Outcome, ProblemKind, RetryPolicy};

use crate::fixtures::{NOON, TestDb, at, claim, claim_after, minutes, once, seconds, step, step_after, succeed};

/// A byte that SQLite reads as the character U+00B0, and that is not UTF-8: no check can refuse it.
const NOT_UTF8: &str = "CAST(x'636166b0' AS TEXT)";

/// A task that is due at noon, with a key that all tasks of a test share.
fn keyed(name: &str) -> NewTask {
    once(name).concurrency_key("shared")
}

#[test]
fn text_that_sqlite_can_recognize_as_malformed_is_refused() {
    let db = TestDb::new();
    db.client().add(keyed("task").on_dead("other")).unwrap();
    let columns =
        ["name", "handler", "payload", "schedule_value", "time_zone", "concurrency_key", "on_dead", "managed_by"];
    for column in columns {
        let mut malformed = vec!["CAST(x'2231003122' AS TEXT)", "'b' || char(0) || x'ff'"];
        if !["payload", "managed_by"].contains(&column) {
            malformed.extend(["CAST(x'636166e9' AS TEXT)", "CAST(x'ff' AS TEXT)", "CAST(x'c328' AS TEXT)"]);
        }
        for text in malformed {
            let refused = db.plain().execute(&format!("UPDATE scheduled_tasks SET {column} = {text}"), []);
            assert!(refused.is_err_and(|error| error.to_string().contains("CHECK")), "{column} = {text}");
        }
    }
    let run = "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, request_key)
               SELECT 1, 'work', 1805025600000, 'manual', 'queued', 1805025600000, ";
    for text in ["CAST(x'2231003122' AS TEXT)", "CAST(x'636166e9' AS TEXT)", "CAST(x'ff' AS TEXT)"] {
        let refused = db.plain().execute(&format!("{run}{text}"), []);
        assert!(refused.is_err_and(|error| error.to_string().contains("CHECK")), "request_key = {text}");
    }
    assert_eq!(db.plain().execute(&format!("{run}'caf\u{e9}'"), []), Ok(1));
    for (column, text) in [("handler", "caf\u{e9}"), ("concurrency_key", "\u{6f22}\u{1f600}"), ("on_dead", "\u{b0}")] {
        let allowed = db.plain().execute(&format!("UPDATE scheduled_tasks SET {column} = ?1"), [text]);
        assert_eq!(allowed, Ok(1), "{column} = {text}");
    }
}

#[test]
fn a_garbled_handler_does_not_block_the_runs_behind_its_key() {
    let (db, mut owner) = TestDb::with_stepper();
    for name in ["first", "bad", "good"] {
        owner.client().add(keyed(name)).unwrap();
    }
    let first = claim(&mut owner);
    assert_eq!(first.task, "first");
    step(&mut owner, 0);
    db.plain().execute(&format!("UPDATE scheduled_tasks SET handler = {NOT_UTF8} WHERE name = 'bad'"), []).unwrap();
    // The outcome is recorded and the next run of the key starts, while the bad row waits.
    owner.finish(&first, Outcome::succeeded());
    let good = claim(&mut owner);
    assert_eq!(good.task, "good");
    succeed(&mut owner, &good);
    let statuses =
        "SELECT t.name, t.status, r.status FROM scheduled_tasks t JOIN task_runs r ON r.task_id = t.id ORDER BY t.id";
    assert_eq!(db.rows(statuses), ["first|completed|succeeded", "bad|invalid|queued", "good|completed|succeeded"]);
}

#[test]
fn an_outcome_is_recorded_although_its_task_was_garbled_meanwhile() {
    for column in ["payload", "handler", "on_dead", "concurrency_key", "managed_by"] {
        let (db, mut owner) = TestDb::with_stepper();
        let bad = NewTask::interval("bad", minutes(1)).handler("work").concurrency_key("shared").at_most_once();
        owner.client().add(bad.pause_after_failures(1)).unwrap();
        let run = claim_after(&mut owner, minutes(1));
        owner.client().add(keyed("good")).unwrap();
        step(&mut owner, 0);
        let text = format!("'\"' || {NOT_UTF8} || '\"'");
        db.plain().execute(&format!("UPDATE scheduled_tasks SET {column} = {text} WHERE name = 'bad'"), []).unwrap();
        owner.finish(&run, Outcome::failed("no route to host"));
        let good = claim(&mut owner);
        assert_eq!(good.task, "good", "{column}");
        succeed(&mut owner, &good);
        assert_eq!(db.ask("SELECT status FROM task_runs WHERE task_id = 1"), "dead", "{column}");
    }
}

#[test]
fn the_run_of_a_garbled_task_is_recovered_and_frees_its_key() {
    for column in ["payload", "handler", "on_dead", "concurrency_key", "managed_by"] {
        let (db, mut owner) = TestDb::with_stepper();
        let retry = RetryPolicy { backoff: minutes(10), ..RetryPolicy::default() };
        owner.client().add(keyed("bad").retry(retry)).unwrap();
        let lost = claim(&mut owner);
        owner.begin(&lost);
        owner.client().add(keyed("good")).unwrap();
        step(&mut owner, 0);
        let clock = owner.clock().clone();
        owner.crash();
        let text = format!("'\"' || {NOT_UTF8} || '\"'");
        db.plain().execute(&format!("UPDATE scheduled_tasks SET {column} = {text} WHERE name = 'bad'"), []).unwrap();
        let mut next = db.builder(NOON).accept("work").clock(&clock).start().unwrap();
        clock.advance(seconds(1));
        let good =
            (0..3).flat_map(|_| next.step().unwrap()).next().unwrap_or_else(|| panic!("{column}: nothing starts"));
        assert_eq!(good.task, "good", "{column}");
        assert_eq!(db.ask("SELECT status FROM task_runs WHERE task_id = 1"), "failed", "{column}");
        succeed(&mut next, &good);
    }
}

#[test]
fn a_waiting_run_of_a_garbled_task_can_be_cancelled() {
    let (db, mut owner) = TestDb::with_stepper();
    for name in ["bad", "good"] {
        owner.client().add(NewTask::interval(name, minutes(1)).handler("elsewhere")).unwrap();
    }
    step_after(&mut owner, minutes(1), 0);
    db.plain().execute(&format!("UPDATE scheduled_tasks SET time_zone = {NOT_UTF8} WHERE name = 'bad'"), []).unwrap();
    db.plain().execute("UPDATE task_runs SET cancel_requested = 1 WHERE task_id = 1", []).unwrap();
    for _ in 0..3 {
        step(&mut owner, 0);
    }
    let runs = "SELECT t.name, t.status, r.status FROM scheduled_tasks t JOIN task_runs r ON r.task_id = t.id";
    assert_eq!(db.rows(runs), ["bad|invalid|cancelled", "good|active|queued"]);
    assert_eq!(db.ask("SELECT count(*) FROM scheduler_events WHERE kind = 'invalid'"), "1");
}

/// An older version of the tables accepts such a name.
#[test]
fn a_garbled_name_is_invalid_and_reported_and_harms_no_other_row() {
    let (db, mut owner) = TestDb::with_stepper();
    owner.client().add(NewTask::interval("good", minutes(1)).handler("work")).unwrap();
    let insert = "PRAGMA ignore_check_constraints = 1;
        INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
        VALUES ('b' || char(0) || CAST(x'ff' AS TEXT), 'work', 'interval', '1m')";
    db.plain().execute_batch(insert).unwrap();
    let client = owner.client().clone();
    let named = "b\0\u{fffd}";
    for is_planned in [false, true] {
        assert!(client.tasks().unwrap().iter().any(|task| task.name() == named));
        assert!(client.names().unwrap().contains(&named.to_owned()));
        client.status().unwrap();
        let found = client.check(&Limits::default()).unwrap();
        assert_eq!(
            found.iter().filter(|one| one.task.as_deref() == Some(named) && one.kind == ProblemKind::Invalid).count(),
            1,
            "{found:?}"
        );
        let found = client.doctor().unwrap();
        assert!(
            found.iter().any(|one| one.to_string().ends_with("task 2, b \u{fffd}: name is not UTF-8")),
            "{found:?}"
        );
        if !is_planned {
            let run = claim_after(&mut owner, minutes(1));
            assert_eq!(run.task, "good");
            succeed(&mut owner, &run);
            assert_eq!(db.ask("SELECT status FROM scheduled_tasks WHERE id = 2"), "invalid");
        }
    }
}

#[test]
fn a_row_marked_as_planned_without_a_next_run_is_planned() {
    let (db, mut owner) = TestDb::with_stepper();
    let sooner = NewTask::delay("waits", minutes(1)).handler("work");
    owner.client().add(sooner).unwrap();
    let waits = claim_after(&mut owner, minutes(1));
    for (kind, value) in
        [("cron", "30 12 * * *"), ("interval", "90m"), ("once", "2027-03-14T13:00:00Z"), ("delay", "2h")]
    {
        let insert = "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, planned, active_since, created_at)
                      VALUES (?1, 'work', ?1, ?2, 1, ?3, ?3)";
        db.plain().execute(insert, (kind, value, at(NOON).as_millis())).unwrap();
    }
    step_after(&mut owner, minutes(1), 0);
    for (name, next) in [("cron", "12:30:00"), ("interval", "13:30:00"), ("once", "13:00:00"), ("delay", "14:00:00")] {
        assert_eq!(db.next(name), format!("2027-03-14 {next} active"));
    }
    assert_eq!(db.next("waits"), "- active", "it waits for its run");
    succeed(&mut owner, &waits);
    db.assert_sound();
}

/// A debug build checks the rules after each write. It must not panic over a row that a damaged index hides.
#[test]
fn a_row_hidden_by_a_damaged_index_does_not_fail_the_write_that_misses_it() {
    let (db, mut owner) = TestDb::with_stepper();
    for name in ["hidden", "other"] {
        owner.client().add(NewTask::once(name, at("2027-03-14T12:01:00Z")).handler("work")).unwrap();
    }
    // The index is removed from the schema while a row is inserted.
    let name = "task_runs_one_per_occurrence";
    let index = format!("SELECT rootpage, sql FROM sqlite_schema WHERE name = '{name}'");
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    let (page, sql) = db.plain().query_row(&index, [], read).unwrap();
    let plain = db.plain();
    plain.execute_batch("PRAGMA writable_schema = ON").unwrap();
    plain.execute("DELETE FROM sqlite_schema WHERE name = ?1", [name]).unwrap();
    let row = "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at)
               SELECT id, 'work', next_run, 'schedule', 'succeeded', next_run, next_run
                 FROM scheduled_tasks WHERE name = 'hidden'";
    db.plain().execute(row, []).unwrap();
    let put_back = "INSERT INTO sqlite_schema VALUES ('index', ?1, 'task_runs', ?2, ?3)";
    plain.execute(put_back, (name, page, sql)).unwrap();
    drop(plain);

    assert_eq!(step_after(&mut owner, minutes(1), 2).len(), 2, "the database could not reject the second run");
    let rules: Vec<_> = owner.client().doctor().unwrap().into_iter().map(|finding| finding.rule).collect();
    assert!(rules.contains(&"integrity_check"), "{rules:?}");
}
