//! The tables as an interface: what another program may write, may not write, and may read.
//!
//! Each test uses two connections: a plain one of this process, and Debian's `sqlite3` shell, whose SQLite is years older; on a server
//! `psql`. Neither knows duly.

use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use duly::testing::Stepper;
use duly::{Claim, Context, Outcome, Scheduler, Timestamp};

use crate::fixtures::{TestDb, eventually, seconds, skip};

/// How another program opens the database.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    Plain,
    Shell,
}

/// The connections that are available here.
pub(crate) fn programs() -> Vec<Program> {
    let shell = crate::fixtures::shell();
    if Command::new(&shell).arg("--version").output().is_ok() {
        return vec![Program::Plain, Program::Shell];
    }
    skip(&format!("no {}", shell.display()));
    vec![Program::Plain]
}

impl Program {
    /// Executes statements. Returns the error if one is refused.
    pub(crate) fn try_execute(self, db: &TestDb, sql: &str) -> Result<(), String> {
        match self {
            Program::Plain => db.try_execute(sql).map(drop),
            Program::Shell => {
                let output = db.in_shell(sql).output().expect("the shell starts");
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.success() && error.is_empty() { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Executes statements that must be accepted.
    pub(crate) fn execute(self, db: &TestDb, sql: &str) {
        self.try_execute(db, sql).unwrap_or_else(|error| panic!("{self:?}: {sql}: {error}"));
    }
}

/// Advances to the machine's time plus a moment: SQLite rounds its clock where duly truncates.
pub(crate) fn present_time() -> Timestamp {
    Timestamp::from(SystemTime::now()).plus(Duration::from_millis(20))
}

/// A turn at the machine's time, which triggers use.
pub(crate) fn turn(stepper: &mut Stepper) -> Vec<std::sync::Arc<Claim>> {
    stepper.clock().set_wall(present_time());
    stepper.step().unwrap()
}

/// Returns a database whose stepper follows the machine's clock.
pub(crate) fn at_machine_time() -> (TestDb, Stepper) {
    let db = TestDb::new();
    let stepper = db.stepper(&present_time().to_string());
    (db, stepper)
}

/// For each connection: a function that executes statements by it, and what [`at_machine_time`] returns.
pub(crate) fn stages() -> impl Iterator<Item = (impl Fn(&str), Rc<TestDb>, Stepper)> {
    programs().into_iter().map(|program| {
        let (db, stepper) = at_machine_time();
        let db = Rc::new(db);
        let of_program = db.clone();
        (move |sql: &str| program.execute(&of_program, sql), db, stepper)
    })
}

/// An INSERT with the required columns only.
pub(crate) fn insert(name: &str, kind: &str, value: &str) -> String {
    format!(
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
         VALUES ('{name}', 'work', '{kind}', '{value}');"
    )
}

/// A row that is due at once.
pub(crate) fn insert_due(name: &str) -> String {
    insert(name, "once", "2020-01-01T00:00:00Z")
}

/// Returns everything in the tables except times.
fn all_rows(db: &TestDb) -> Vec<String> {
    let tables =
        ["scheduled_tasks", "task_runs", "task_attempts", "task_effects", "scheduler_events", "scheduler_meta"];
    tables.iter().flat_map(|table| db.rows(&format!("SELECT '{table}', * FROM {table}"))).collect()
}

pub(crate) fn names(claims: &[std::sync::Arc<Claim>]) -> Vec<&str> {
    claims.iter().map(|claim| claim.task.as_str()).collect()
}

#[test]
fn unplanned_rows_beyond_one_turn_are_planned_in_the_next_turns() {
    let (db, mut stepper) = at_machine_time();
    Program::Plain.execute(
        &db,
        "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value)
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)
         SELECT 'row-' || i, 'work', 'cron', '0 6 * * *' FROM n",
    );
    for more in [true, true, false] {
        stepper.step().unwrap();
        assert_eq!(stepper.sleeps().is_zero(), more);
    }
    assert_eq!(db.ask("SELECT count(*) FROM scheduled_tasks WHERE planned = 0"), "0");
}

#[test]
fn a_row_that_sql_inserts_runs_within_the_poll_interval() {
    for program in programs() {
        let db = TestDb::new();
        let scheduler = Scheduler::builder(db.file())
            .poll(Duration::from_millis(50))
            .handler("work", |run: &Context| run.payload::<Vec<u8>>())
            .start()
            .unwrap();
        program.execute(
            &db,
            "INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value, time_zone)
             VALUES ('hello', 'work', '[1, 2]', 'once', '2020-01-01 00:00', 'Europe/Rome')",
        );
        eventually("the row has run", || {
            db.ask("SELECT count(*) FROM task_runs WHERE status = 'succeeded' AND result = '[1,2]'") == "1"
        });
        let local =
            "SELECT r.scheduled_for, t.status, t.planned FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id";
        assert_eq!(db.rows(local), ["1577833200000|completed|1"]);
        drop(scheduler);
        db.assert_sound();
    }
}

#[test]
fn one_turn_plans_an_inserted_row_and_the_next_writes_nothing() {
    for (sql, db, mut stepper) in stages() {
        // After a change of the schema a transaction finds out whether the file was restored.
        sql("CREATE TABLE other (x)");
        assert!(turn(&mut stepper).is_empty());
        let before = stepper.transactions();
        assert!(turn(&mut stepper).is_empty());
        assert_eq!(stepper.transactions(), before, "idle");
        sql("INSERT INTO other VALUES (1)");
        assert!(turn(&mut stepper).is_empty());
        assert_eq!(stepper.transactions(), before, "a commit of another program is read, and nothing written");

        sql(&(insert_due("one") + &insert("later", "interval", "1h")));
        assert_eq!(names(&turn(&mut stepper)), ["one"]);
        assert_eq!(stepper.transactions(), before + 1, "planned, resolved and claimed in one");
        assert_eq!(db.ask("SELECT next_run - created_at FROM scheduled_tasks WHERE name = 'later'"), "3600000");
        assert!(turn(&mut stepper).is_empty());
        assert_eq!(stepper.transactions(), before + 1);
    }
}

#[test]
fn a_bad_row_becomes_invalid_with_a_reason_and_delays_no_other() {
    // Column to write, its bad value, its repair, and what the reason must name.
    let bad = [
        ("schedule_value", "'61 * * * *'", "'* * * * * *'", "minute"),
        ("schedule_value", "'0 0 30 2 *'", "'* * * * * *'", "0 0 30 2 *"),
        ("schedule_value", "'every day'", "'* * * * * *'", "every day"),
        ("time_zone", "'Europe/rome'", "'Europe/Rome'", "Europe/rome"),
        ("schedule_type, schedule_value", "('interval', 'soon')", "('interval', '1s')", "soon"),
        ("schedule_type, schedule_value", "('delay', '-5m')", "('delay', '1s')", "-5m"),
        ("schedule_type, schedule_value", "('once', 'tomorrow')", "('once', '2020-01-01T00:00:00Z')", "tomorrow"),
        ("schedule_type, schedule_value", "('once', '2027-02-29T12:00')", "('once', '2020-01-01 12:00')", "2027-02-29"),
        ("schedule_type, schedule_value", "('once', '1999-01-01T00:00:00Z')", "('once', '2002-01-01 12:00')", "2001"),
        ("handler", "'wo' || char(10) || 'rk'", "'work'", "handler"),
        ("handler", "CAST(x'b0' AS TEXT)", "'work'", "handler"),
        ("concurrency_key", "replace(hex(zeroblob(75)), '0', 'é')", "'chat'", "concurrency_key"),
        ("payload", "'\"' || CAST(x'ff' AS TEXT) || '\"'", "'1'", "payload"),
    ];
    for (sql, db, mut stepper) in stages() {
        let mut rows = insert_due("good");
        for (at, (column, value, ..)) in bad.iter().enumerate() {
            rows += &insert(&format!("bad{at}"), "cron", "* * * * * *");
            rows += &format!("UPDATE scheduled_tasks SET ({column}) = {value} WHERE name = 'bad{at}';");
        }
        sql(&rows);
        let claims = turn(&mut stepper);
        assert_eq!(names(&claims), ["good"]);
        stepper.finish(&claims[0], Outcome::succeeded());
        turn(&mut stepper);
        for (at, (column, value, _, named)) in bad.iter().enumerate() {
            let row =
                format!("SELECT status, planned, next_run, invalid_reason FROM scheduled_tasks WHERE name = 'bad{at}'");
            let row = db.rows(&row).remove(0);
            assert!(row.starts_with("invalid|1|-|") && row.contains(named), "{column} = {value}: {row}");
        }
        let idle = stepper.transactions();
        assert!(turn(&mut stepper).is_empty());
        assert_eq!(stepper.transactions(), idle, "an invalid row is looked at once");

        // Repaired, each counts from its repair.
        for (at, (column, _, repair, _)) in bad.iter().enumerate() {
            sql(&format!("UPDATE scheduled_tasks SET ({column}) = {repair} WHERE name = 'bad{at}'"));
        }
        stepper.run_until(present_time().plus(seconds(3))).unwrap();
        assert_eq!(db.rows("SELECT name, invalid_reason FROM scheduled_tasks WHERE status = 'invalid'"), [""; 0]);
        let ran = "SELECT count(DISTINCT task_id) FROM task_runs WHERE status = 'succeeded'";
        assert_eq!(db.ask(ran), (bad.len() + 1).to_string());
        db.assert_sound();
    }
}

#[test]
fn the_database_refuses_what_the_contract_forbids() {
    // A statement, and a part of SQLite's error.
    let refused = [
        ("UPDATE scheduled_tasks SET next_run = 1805025600 WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET next_run = 1805025600000000 WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET starts_at = strftime('%s', 'now') WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET next_run = 'now' WHERE name = 'idle'", "cannot store TEXT"),
        ("UPDATE scheduled_tasks SET payload = '{''a'': 1}' WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET payload = NULL WHERE name = 'idle'", "NOT NULL"),
        ("UPDATE scheduled_tasks SET payload = '\"' || hex(zeroblob(131072)) || '\"' WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET status = 'stopped' WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET schedule_type = 'Cron' WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET overlap = 'queue' WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET misfire = 'run_all' WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET priority = 4 WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET catch_up_limit = 201 WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET concurrency_key = '#1' WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET starts_at = 1805025600001, ends_at = 1805025600000 WHERE name = 'idle'", "CHECK"),
        ("UPDATE scheduled_tasks SET name = 'busy' WHERE name = 'idle'", "of this name exists"),
        ("UPDATE OR REPLACE scheduled_tasks SET name = 'busy' WHERE name = 'idle'", "of this name exists"),
        ("UPDATE scheduled_tasks SET id = 99 WHERE name = 'idle'", "id of a task"),
        (&insert("a b", "once", "2020-01-01"), "CHECK"),
        (&insert("1st", "once", "2020-01-01"), "CHECK"),
        (&insert(&"x".repeat(201), "once", "2020-01-01"), "CHECK"),
        (&insert("busy", "once", "2020-01-01"), "UNIQUE"),
        (&insert("busy", "once", "2020-01-01").replace("INSERT", "REPLACE"), "instead of REPLACE"),
        (&insert("busy", "once", "2020-01-01").replace("INSERT", "INSERT OR REPLACE"), "instead of REPLACE"),
        (
            "REPLACE INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value)
             VALUES (1, 'usurper', 'work', 'once', '2020-01-01')",
            "instead of REPLACE",
        ),
        (
            "INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at)
             SELECT task_id, handler, scheduled_for, 'catch_up', 'queued', run_at FROM task_runs WHERE task_id = 1",
            "UNIQUE",
        ),
        (
            "UPDATE task_runs SET status = 'running', blocked = NULL, locked_by = 'test-owner', locked_until = 1805025600000
              WHERE task_id = 2",
            "UNIQUE constraint failed: task_runs.concurrency_key",
        ),
        ("UPDATE task_runs SET status = 'running' WHERE task_id = 2", "CHECK"),
        ("UPDATE task_runs SET locked_by = NULL WHERE task_id = 1", "CHECK"),
        ("UPDATE task_runs SET cancel_requested = 2", "CHECK"),
        ("DELETE FROM scheduled_tasks WHERE name = 'busy'", "has a running run"),
        ("DELETE FROM scheduled_tasks", "has a running run"),
    ];
    for program in programs() {
        let (db, mut stepper) = at_machine_time();
        program.execute(&db, &(insert_due("busy") + &insert_due("waits") + &insert("idle", "cron", "0 0 1 1 *")));
        program.execute(&db, "UPDATE scheduled_tasks SET concurrency_key = 'chat' WHERE name <> 'idle'");
        assert_eq!(names(&turn(&mut stepper)), ["busy"]);
        let before = all_rows(&db);
        for (sql, says) in &refused {
            let error = program.try_execute(&db, sql).expect_err(sql);
            assert!(error.contains(says), "{program:?}: {sql}: {error}");
            assert_eq!(all_rows(&db), before, "{program:?}: {sql}");
        }
        db.assert_sound();
    }
}

#[test]
fn a_name_is_an_idempotency_key_for_insert_or_ignore_and_upsert() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert_due("job") + &insert("other", "cron", "0 0 1 1 *")));
        turn(&mut stepper);
        let before = all_rows(&db);
        let again = insert_due("job").replace("'work'", "'elsewhere'");
        sql(&again.replace("INSERT", "INSERT OR IGNORE"));
        sql(&again.replace(';', " ON CONFLICT DO NOTHING;"));
        assert_eq!(all_rows(&db), before);

        let upsert =
            " ON CONFLICT (name) DO UPDATE SET handler = excluded.handler, priority = 0, name = excluded.name;";
        sql(&again.replace(';', upsert));
        let rows = "SELECT name, handler, priority, status FROM scheduled_tasks ORDER BY id";
        assert_eq!(db.rows(rows), ["job|elsewhere|0|completed", "other|work|1|active"]);
        turn(&mut stepper);
        assert_eq!(db.runs().len(), 1, "what was done is not done again");
        assert_eq!(db.ask("SELECT value FROM scheduler_meta WHERE key = 'probe'"), "kept");
        db.assert_sound();
    }
}

#[test]
fn deleting_a_task_deletes_its_runs_and_attempts() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert_due("goes") + &insert_due("stays")));
        for claim in turn(&mut stepper) {
            stepper.finish(&claim, Outcome::failed("no luck"));
        }
        turn(&mut stepper);
        sql("INSERT INTO task_effects SELECT 'mail', id, 'done', '1', run_at, run_at FROM task_runs;
             INSERT INTO scheduler_events (at, kind, task_id, run_id) SELECT run_at, 'edited', task_id, id FROM task_runs;",
        );
        let left = |task: i64| {
            let of = |table: &str, column: &str, value: i64| {
                db.rows(&format!("SELECT * FROM {table} WHERE {column} = {value}"))
            };
            [
                of("scheduled_tasks", "id", task),
                of("task_runs", "task_id", task),
                of("task_attempts", "run_id", task),
                of("task_effects", "run_id", task),
                of("scheduler_events", "task_id", task),
            ]
        };
        let stays = left(2);
        assert!([left(1), left(2)].iter().flatten().all(|rows| rows.len() == 1));
        sql("PRAGMA foreign_keys = OFF; DELETE FROM scheduled_tasks WHERE name = 'goes'");
        assert!(left(1).iter().all(Vec::is_empty), "{:?}", left(1));
        assert_eq!(left(2), stays);
        // The name is free again, and the id is not reused.
        sql(&insert_due("goes"));
        assert_eq!(names(&turn(&mut stepper)), ["goes"]);
        assert_eq!(db.ask("SELECT id FROM scheduled_tasks WHERE name = 'goes'"), "3");
        db.assert_sound();
    }
}

#[test]
fn the_views_show_due_failing_and_stuck_work() {
    for (sql, db, mut stepper) in stages() {
        sql(&(insert_due("done") + &insert("cron", "cron", "0 0 1 1 *") + &insert("never", "interval", "1h")));
        for claim in turn(&mut stepper) {
            stepper.finish(&claim, Outcome::failed("oh"));
        }
        turn(&mut stepper);
        stepper.client().trigger("cron").unwrap();
        turn(&mut stepper);
        let now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";
        sql(&format!(
            "UPDATE scheduled_tasks SET next_run = {now} - 301000, last_run = 1805025600001, last_finished = 1805025600999,
                    last_status = 'dead', last_duration_ms = 998, last_error = 'why', failure_count = 2 WHERE name = 'cron';
             UPDATE scheduled_tasks SET next_run = {now} - 299000, failure_count = 1 WHERE name = 'never';
             UPDATE scheduled_tasks SET next_run = {now} - 302000 WHERE name = 'done';
             UPDATE task_runs SET locked_until = {now} - 1000 WHERE status = 'running';"
        ));
        // Inserted long ago, and no scheduler has ever seen it; its twin is paused.
        sql(&(insert("old", "cron", "@daily") + &insert("rests", "cron", "@daily")));
        sql(&format!(
            "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'rests';
             UPDATE scheduled_tasks SET updated_at = {now} - 301000, created_at = {now} - 400000, next_run = NULL, planned = 0
              WHERE name IN ('old', 'rests');"
        ));
        let overdue = "SELECT name, overdue_seconds BETWEEN 300 AND 360 FROM overdue_tasks ORDER BY name";
        assert_eq!(db.rows(overdue), ["cron|1", "done|1", "old|1"]);
        assert_eq!(db.rows("SELECT * FROM failing_tasks"), ["cron|work|2|why|2027-03-14T12:00:00.999Z"]);
        assert_eq!(db.rows("SELECT name, attempt, past FROM stuck_runs"), ["cron|1|lease"]);
        let overview = "SELECT name, status, last_run IS NOT NULL, last_status, last_error, failure_count
                          FROM task_overview WHERE name <> 'rests' ORDER BY name";
        assert_eq!(
            db.rows(overview),
            ["cron|active|1|dead|why|2", "done|completed|1|failed|oh|0", "never|active|0|-|-|1", "old|active|0|-|-|0",]
        );
        assert_eq!(db.ask("SELECT last_run FROM task_overview WHERE name = 'cron'"), "2027-03-14T12:00:00.001Z");
        // Past its time limit, which is an hour by default for a command.
        let rest = "UPDATE task_runs SET locked_until = 1905025600000";
        for (timeout, handler, ago, stuck) in [
            ("NULL", "work", 9_000_000, ""),
            ("0", "command", 9_000_000, ""),
            ("60000", "work", 61_000, "cron|1|timeout"),
            ("60000", "work", 59_000, ""),
            ("NULL", "command", 3_601_000, "cron|1|timeout"),
        ] {
            sql(&format!(
                "{rest}, started_at = {now} - {ago}, handler = '{handler}' WHERE status = 'running';
                 UPDATE scheduled_tasks SET timeout_ms = {timeout} WHERE name = 'cron'"
            ));
            let found = db.rows("SELECT name, attempt, past FROM stuck_runs").join(" ");
            assert_eq!(found, stuck, "{timeout} {handler} {ago}");
        }
        sql("SELECT * FROM task_overview; SELECT * FROM overdue_tasks; SELECT * FROM failing_tasks;
                           SELECT * FROM stuck_runs;");
    }
}
