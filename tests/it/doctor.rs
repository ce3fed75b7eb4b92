//! `doctor` finds each broken rule, and none in a file that is sound.

use std::io::{Seek, SeekFrom, Write};

use duly::testing::Stepper;
use duly::{Client, NewTask, Outcome};

use crate::fixtures::{NOON, TestDb, advance_and_step, findings, minutes, once, step_after};

/// Tasks and runs of all kinds, with a scheduler that runs them.
fn busy() -> (TestDb, Stepper) {
    let db = TestDb::new();
    let mut stepper = db.builder(NOON).accept("work").workers(2).start().expect("a stepper");
    let client = stepper.client().clone();
    client.add(NewTask::cron("cron", "* * * * *").handler("work")).expect("a task");
    client.add(NewTask::delay("delay", minutes(5)).handler("work")).expect("a task");
    client.add(once("once").at_most_once()).expect("a task");
    for name in ["one", "two", "three"] {
        client.add(once(name).concurrency_key("key")).expect("a task");
    }
    let claims = step_after(&mut stepper, minutes(1), 2);
    stepper.finish(&claims[0], Outcome::failed("no route to host"));
    stepper.step().expect("a turn");
    client.trigger("cron").expect("a run");
    (db, stepper)
}

/// The rules that are broken, each once.
fn broken(client: &Client) -> Vec<&'static str> {
    let findings = client.doctor().expect("an examination");
    assert!(findings.iter().all(|finding| finding.to_string().lines().count() == 1), "{findings:?}");
    let mut rules: Vec<_> = findings.into_iter().map(|finding| finding.rule).collect();
    rules.dedup();
    rules
}

/// Each case breaks a rule in a file of its own; `doctor` reports that row and no other.
#[test]
fn each_broken_rule_is_found() {
    let attempt = "INSERT INTO task_attempts (run_id, attempt, outcome, locked_by, finished_at)";
    for (harm, lines) in [
        ("SELECT 1".to_owned(), &[][..]),
        (
            "UPDATE task_runs SET task_id = 99 WHERE id = 1".to_owned(),
            &[
                "foreign_key_check: task_runs row 1 refers to no row of scheduled_tasks",
                "each run has a task: run 1 is of task 99",
            ],
        ),
        (
            format!("{attempt} VALUES (99, 1, 'failed', 'test-owner', 1805025600000)"),
            &[
                "foreign_key_check: task_attempts row 2 refers to no row of task_runs",
                "each attempt has a run: attempt 2 is of run 99",
            ],
        ),
        (
            format!("{attempt} VALUES (5, 7, 'failed', 'test-owner', 1805025600000)"),
            &["attempts are counted: attempt 7 of run 5, which had 1"],
        ),
        (
            "DROP INDEX task_runs_one_per_occurrence;
             INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at)
             SELECT task_id, handler, scheduled_for, 'schedule', 'cancelled', run_at, run_at FROM task_runs WHERE id = 1"
                .to_owned(),
            &["each occurrence has one run: task 4 at 1805025600000: runs 1, 7"],
        ),
        (
            "UPDATE scheduled_tasks SET next_run = NULL WHERE name = 'cron';
             UPDATE scheduled_tasks SET planned = 1"
                .to_owned(),
            &["each active task has a next run, a run that it waits for, or is manual: task cron"],
        ),
        (
            "UPDATE scheduled_tasks SET next_run = 1805025600000, active_since = active_since + 1 WHERE name = 'once'".to_owned(),
            &["a completed task has no next run: task once"],
        ),
        (
            "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, status, planned)
             VALUES ('by-hand', 'work', 'manual', '', 'completed', 1)"
                .to_owned(),
            &["a manual task is not completed: task by-hand"],
        ),
        (
            "UPDATE task_runs SET blocked = 'paused' WHERE id = 3".to_owned(),
            &["a run that is held back is so by something: run 3 of task three (paused)"],
        ),
        (
            "UPDATE task_runs SET occurrences = 3, status = 'missed', finished_at = run_at WHERE status = 'dead'".to_owned(),
            &[
                "occurrences are counted: run 5 stands for 3",
                "a final run stays final, and its attempt never decreases: run 5 of task once was final after attempt 1, and is \
                 missed at attempt 1",
            ],
        ),
    ] {
        let (db, stepper) = busy();
        assert_eq!(broken(stepper.client()), [""; 0]);
        let plain = db.plain();
        plain.execute_batch("PRAGMA foreign_keys = OFF").expect("a setting");
        plain.execute_batch(&harm).unwrap_or_else(|error| panic!("{harm}: {error}"));
        assert_eq!(findings(stepper.client()), lines, "{harm}");
    }
}

#[test]
fn claimable_runs_that_must_wait_are_found() {
    let insert = |status: &str, run: u32| {
        let locked = if status == "running" { "'test-owner', 1805025600000, 1" } else { "NULL, NULL, 0" };
        format!(
            "INSERT OR IGNORE INTO scheduler_instances (id, host, pid, version, workers, lease_ms, started_at, seen_at)
             VALUES ('test-owner', 'here', 1, '1', 1, 60000, 1805025600000, 1805025600000);
             INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, concurrency_key, locked_by,
                                    locked_until, attempt)
             VALUES (1, 'work', 180502560000{run}, 'manual', '{status}', 1805025600000, 'k', {locked});"
        )
    };
    let free = "UPDATE task_runs SET origin = 'schedule', concurrency_key = NULL, blocked = NULL;
                UPDATE scheduled_tasks SET planned = 1, marked = NULL;";
    let held = "a run that may start is held back by nothing";
    for (harm, rule) in [
        (insert("queued", 1) + "UPDATE scheduled_tasks SET status = 'paused';" + free, held),
        // They must run one after the other, but not because of a key.
        (insert("queued", 1) + "UPDATE task_runs SET concurrency_key = 'o';" + &insert("queued", 2) + free, held),
        (insert("queued", 1) + &insert("queued", 2), "each key has no more runs that go first than free slots"),
        (insert("running", 1) + &insert("queued", 2), held),
        (
            "DROP INDEX task_runs_running;".to_owned() + &insert("running", 1) + &insert("running", 2),
            "each slot of a key has one running run",
        ),
    ] {
        let (db, client) = TestDb::with_client();
        client.add(NewTask::cron("task", "@yearly").handler("work")).expect("a task");
        assert_eq!(broken(&client), [""; 0]);
        db.execute(&harm);
        assert_eq!(broken(&client), [rule]);
    }
}

#[test]
fn a_damaged_page_is_found_and_nothing_is_written() {
    let (db, stepper) = busy();
    stepper.crash();
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    let root: u64 = db.number("SELECT rootpage FROM sqlite_schema WHERE name = 'task_runs_claimable'");
    let size: u64 = db.number("PRAGMA page_size");
    {
        let mut file = std::fs::File::options().write(true).open(db.file()).expect("the file");
        file.seek(SeekFrom::Start((root - 1) * size)).expect("a place");
        file.write_all(&[0xff; 64]).expect("damage");
    }
    let before = std::fs::read(db.file()).expect("the file");
    let client = Client::open_existing(db.file()).expect("a client");
    assert_eq!(broken(&client)[0], "integrity_check");
    drop(client);
    assert!(std::fs::read(db.file()).expect("the file") == before, "nothing is repaired");
}

#[test]
fn doctor_waits_for_no_writer() {
    let (db, mut stepper) = busy();
    let writer = db.plain();
    writer.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    assert_eq!(broken(&Client::open_existing(db.file()).expect("a client")), [""; 0]);
    writer.execute_batch("ROLLBACK").expect("an end");
    stepper.step().expect("a turn");
}

/// A running scheduler, and one that was killed with its newest rows in the log: no byte of either file changes.
#[test]
fn doctor_changes_no_byte() {
    let bytes =
        |db: &TestDb| ["agent.db", "agent.db-wal"].map(|name| std::fs::read(db.home().join(name)).expect("a file"));
    let (db, mut stepper) = busy();
    let plain = db.plain();
    let version = || plain.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).expect("a version");
    let (before, was) = (bytes(&db), version());
    let client = Client::open_existing(db.file()).expect("a client");
    assert_eq!(broken(&client), [""; 0]);
    drop(client);
    assert!(bytes(&db) == before && version() == was, "while it runs");
    // Control: a write changes both.
    advance_and_step(&mut stepper, minutes(1));
    assert!(bytes(&db) != before && version() != was);

    // The log of a dead process: the last connection to close the file would normally checkpoint it.
    let died = TestDb::new();
    for (name, content) in ["agent.db", "agent.db-wal"].into_iter().zip(bytes(&db)) {
        std::fs::write(died.home().join(name), content).expect("a copy");
    }
    let before = bytes(&died);
    assert!(before[1].len() > 1000, "there is something in the log");
    let client = Client::open_existing(died.file()).expect("a client");
    assert_eq!(broken(&client), [""; 0]);
    drop(client);
    assert!(bytes(&died) == before, "nothing is written back");
}

/// A debug build checks the rules after each of its writes, unless there are many rows. This write leaves few.
#[test]
fn a_write_that_leaves_few_rows_is_not_blamed_for_earlier_damage() {
    let (db, client) = TestDb::with_client();
    client.add(once("once")).expect("a task");
    client.add(NewTask::cron("crowded", "@yearly").handler("work")).expect("a task");
    let many = "UPDATE scheduled_tasks SET status = 'completed' WHERE name = 'once';
                WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)
                INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, finished_at)
                SELECT 2, 'work', 1805000000000 + i, 'manual', 'cancelled', 1805000000000, 1805000000000 FROM n";
    db.execute(many);
    client.remove("crowded").expect("a removal");
    assert_eq!(broken(&client), ["a completed task has no next run"]);
}

/// The rules about waiting runs do not apply while a row is unplanned. This write plans it.
#[test]
fn a_write_that_plans_is_not_blamed_for_earlier_damage() {
    let (db, mut stepper) = busy();
    let free = "BEGIN; UPDATE task_runs SET blocked = NULL WHERE blocked = 'key';
                INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value)
                VALUES ('by-hand', 'work', 'null', 'once', '2030-01-01T00:00:00Z'); COMMIT";
    db.execute(free);
    stepper.step().expect("a turn");
    assert_eq!(db.ask("SELECT planned FROM scheduled_tasks WHERE name = 'by-hand'"), "1");
}
