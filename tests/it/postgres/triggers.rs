//! What other programs write: each statement leaves the same rows in PostgreSQL as in SQLite.

use postgres::Client;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::fixtures::on_server::{empty_copy, refresh, said, session};

const SQLITE: &str = include_str!("../../../schema.sql");
const POSTGRES: &str = include_str!("../../../schema.postgres.sql");

/// Rows in all states that an edit may meet. `NOW` is the present, `PAST` an hour ago, `LATER` in an hour.
const ROWS: &str = "
    INSERT INTO scheduled_tasks (id, name, handler, payload, schedule_type, schedule_value, status, next_run, planned,
                                 resolved_until, active_since, created_at, updated_at, overlap, concurrency_key, failure_count,
                                 paused_by, invalid_reason, starts_at, ends_at)
    VALUES (1, 'due', 'work', '{\"a\":1}', 'cron', '* * * * *', 'active', PAST, 1, NULL, 1600000000000, 1600000000000,
            1600000000000, 'skip', NULL, 0, NULL, NULL, NULL, NULL),
           (2, 'later', 'work', 'null', 'interval', '15m', 'active', LATER, 1, PAST, 1600000000000, 1600000000000, 1600000000000,
            'buffer_all', 'key', 2, NULL, NULL, 1700000000000, NULL),
           (3, 'paused', 'work', 'null', 'cron', '0 7 * * *', 'paused', NULL, 1, PAST, 1600000000000, 1600000000000, 1600000000000,
            'buffer_all', 'key', 3, 'user', NULL, NULL, NULL),
           (4, 'done', 'work', 'null', 'once', '2020-01-01T00:00:00Z', 'completed', NULL, 1, 1577836800000, 1600000000000,
            1600000000000, 1600000000000, 'skip', NULL, 0, NULL, NULL, NULL, NULL),
           (5, 'invalid', 'work', 'null', 'cron', 'nonsense', 'invalid', NULL, 1, NULL, 1600000000000, 1600000000000,
            1600000000000, 'skip', NULL, 0, NULL, 'no cron expression', NULL, NULL),
           (6, 'busy', 'work', 'null', 'cron', '* * * * *', 'active', LATER, 1, PAST, 1600000000000, 1600000000000, 1600000000000,
            'skip', NULL, 0, NULL, NULL, NULL, NULL),
           (7, 'waits', 'work', 'null', 'manual', '', 'active', NULL, 1, NULL, 1600000000000, 1600000000000, 1600000000000,
            'allow', 'key', 0, NULL, NULL, NULL, NULL),
           (8, 'limited', 'work', 'null', 'manual', '', 'active', NULL, 1, NULL, 1600000000000, 1600000000000, 1600000000000,
            'allow', 'few', 0, NULL, NULL, NULL, NULL),
           (9, 'limited-too', 'work', 'null', 'manual', '', 'active', NULL, 1, NULL, 1600000000000, 1600000000000, 1600000000000,
            'allow', 'few', 0, NULL, NULL, NULL, NULL),
           (10, 'once', 'work', 'null', 'once', '2020-01-01T00:00:00Z', 'active', PAST, 1, NULL, 1600000000000, 1600000000000,
            1600000000000, 'skip', NULL, 0, NULL, NULL, NULL, NULL);
    INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('few', 2);
    INSERT INTO rate_limits (handler, max_starts, per_ms) VALUES ('work', 10, 60000), ('other', 1, 1000);
    INSERT INTO rate_limit_starts (handler, number, started_at) VALUES ('work', 1, PAST), ('work', 2, PAST), ('other', 1, PAST);
    INSERT INTO task_runs (id, task_id, handler, scheduled_for, origin, status, run_at, blocked, attempt, concurrency_key,
                           locked_by, locked_until, started_at, finished_at, error)
    VALUES (1, 2, 'work', 1600000000001, 'schedule', 'queued', PAST, NULL, 0, 'key', NULL, NULL, NULL, NULL, NULL),
           (2, 2, 'work', 1600000000002, 'schedule', 'queued', PAST, 'order', 0, 'key', NULL, NULL, NULL, NULL, NULL),
           (3, 2, 'work', 1600000000003, 'manual', 'queued', PAST, 'key', 0, 'key', NULL, NULL, NULL, NULL, NULL),
           (4, 3, 'work', 1600000000004, 'schedule', 'failed', PAST, 'paused', 1, 'key', NULL, NULL, PAST, PAST, 'no'),
           (5, 3, 'work', 1600000000005, 'schedule', 'queued', PAST, 'paused', 0, 'key', NULL, NULL, NULL, NULL, NULL),
           (6, 3, 'work', 1600000000006, 'on_dead', 'queued', PAST, 'paused', 0, NULL, NULL, NULL, NULL, NULL, NULL),
           (7, 6, 'work', 1600000000007, 'schedule', 'running', PAST, NULL, 1, '#6', 'owner', LATER, PAST, NULL, NULL),
           (8, 7, 'work', 1600000000008, 'manual', 'queued', PAST, 'key', 0, 'key', NULL, NULL, NULL, NULL, NULL),
           (9, 8, 'work', 1600000000009, 'manual', 'queued', PAST, NULL, 0, 'few', NULL, NULL, NULL, NULL, NULL),
           (10, 9, 'work', 1600000000010, 'manual', 'queued', PAST, 'key', 0, 'few', NULL, NULL, NULL, NULL, NULL),
           (11, 4, 'work', 1577836800000, 'schedule', 'dead', PAST, NULL, 1, NULL, NULL, NULL, PAST, PAST, 'no'),
           (12, 1, 'work', 1600000000012, 'schedule', 'failed', PAST, NULL, 1, '#1', NULL, NULL, PAST, PAST, 'no');
    INSERT INTO task_attempts (run_id, attempt, outcome, locked_by, finished_at)
    VALUES (4, 1, 'failed', 'owner', PAST), (11, 1, 'failed', 'owner', PAST), (12, 1, 'failed', 'owner', PAST);
    INSERT INTO task_effects (key, run_id, state, created_at) VALUES ('sent', 4, 'intent', PAST), ('sent', 11, 'intent', PAST);
    INSERT INTO scheduler_events (at, kind, task_id, run_id) VALUES (PAST, 'pause', 3, NULL), (PAST, 'pause', 4, NULL);";

/// Statements of other programs. Those that both databases refuse with words of duly end in `-- refused`; the others are refused by
/// words of the database, or by none.
const EDITS: &[&str] = &[
    "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'due'",
    "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'later'",
    "UPDATE scheduled_tasks SET status = 'paused', paused_by = 'the operator' WHERE name = 'waits'",
    "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'done'",
    "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'invalid'",
    "UPDATE scheduled_tasks SET status = 'paused' WHERE name = 'busy'",
    "UPDATE scheduled_tasks SET status = 'paused'",
    "UPDATE scheduled_tasks SET status = 'active' WHERE name = 'paused'",
    "UPDATE scheduled_tasks SET status = 'active', next_run = LATER WHERE name = 'paused'",
    "UPDATE scheduled_tasks SET status = 'active', overlap = 'allow' WHERE name = 'paused'",
    "UPDATE scheduled_tasks SET status = 'active' WHERE name = 'invalid'",
    "UPDATE scheduled_tasks SET status = 'active' WHERE name = 'done'",
    "UPDATE scheduled_tasks SET status = 'active', next_run = LATER WHERE name = 'done'",
    "UPDATE scheduled_tasks SET status = 'active'",
    "UPDATE scheduled_tasks SET status = 'completed' WHERE name = 'due'",
    "UPDATE scheduled_tasks SET status = 'invalid' WHERE name = 'due'",
    "UPDATE scheduled_tasks SET schedule_value = '5 * * * *' WHERE name = 'due'",
    "UPDATE scheduled_tasks SET schedule_value = '5 * * * *', next_run = LATER WHERE name = 'due'",
    "UPDATE scheduled_tasks SET schedule_value = '5 * * * *', resolved_until = LATER WHERE name = 'due'",
    "UPDATE scheduled_tasks SET schedule_value = '* * * * *' WHERE name = 'due'",
    "UPDATE scheduled_tasks SET schedule_type = 'interval', schedule_value = '1h' WHERE name = 'later'",
    "UPDATE scheduled_tasks SET schedule_value = '2030-01-01T00:00:00Z' WHERE name = 'done'",
    "UPDATE scheduled_tasks SET schedule_value = '2030-01-01T00:00:00Z' WHERE name = 'once'",
    "UPDATE scheduled_tasks SET schedule_value = '0 7 * * *' WHERE name = 'invalid'",
    "UPDATE scheduled_tasks SET schedule_value = '0 8 * * *' WHERE name = 'paused'",
    "UPDATE scheduled_tasks SET time_zone = 'Europe/Berlin'",
    "UPDATE scheduled_tasks SET starts_at = LATER WHERE name = 'due'",
    "UPDATE scheduled_tasks SET starts_at = NULL WHERE name = 'later'",
    "UPDATE scheduled_tasks SET ends_at = LATER WHERE name = 'later'",
    "UPDATE scheduled_tasks SET schedule_value = '7 * * * *', status = 'paused', handler = 'other' WHERE name = 'due'",
    "UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'later'",
    "UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'due'",
    "UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'done'",
    "UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'paused'",
    "UPDATE scheduled_tasks SET next_run = NOW WHERE name = 'once'",
    "UPDATE scheduled_tasks SET next_run = NOW",
    "UPDATE scheduled_tasks SET next_run = NULL",
    "UPDATE scheduled_tasks SET next_run = LATER",
    "UPDATE scheduled_tasks SET next_run = LATER, planned = 0",
    "UPDATE scheduled_tasks SET next_run = LATER, handler = 'other' WHERE name = 'due'",
    "UPDATE scheduled_tasks SET handler = 'other'",
    "UPDATE scheduled_tasks SET handler = 'work'",
    "UPDATE scheduled_tasks SET overlap = 'allow'",
    "UPDATE scheduled_tasks SET overlap = 'buffer_one', misfire = 'skip' WHERE name = 'later'",
    "UPDATE scheduled_tasks SET payload = '{\"b\":2}'",
    "UPDATE scheduled_tasks SET priority = 0, max_attempts = 1, timeout_ms = 0 WHERE name IN ('due', 'invalid')",
    "UPDATE scheduled_tasks SET priority = 0, updated_at = 1600000000009 WHERE name IN ('due', 'invalid')",
    "UPDATE scheduled_tasks SET name = 'renamed' WHERE name = 'due'",
    "UPDATE scheduled_tasks SET name = name",
    "UPDATE scheduled_tasks SET last_error = 'seen'",
    "UPDATE scheduled_tasks SET concurrency_key = NULL, on_dead = 'later', pause_after_failures = 3, managed_by = 'm'",
    "UPDATE scheduled_tasks SET name = 'later' WHERE name = 'due' -- refused",
    "UPDATE scheduled_tasks SET id = 99 WHERE name = 'due' -- refused",
    "UPDATE task_runs SET cancel_requested = 1 WHERE id IN (1, 7)",
    "UPDATE task_runs SET cancel_requested = 1",
    "UPDATE task_runs SET cancel_requested = 0",
    "DELETE FROM scheduled_tasks WHERE name = 'due'",
    "DELETE FROM scheduled_tasks WHERE name = 'later'",
    "DELETE FROM scheduled_tasks WHERE name = 'paused'",
    "DELETE FROM scheduled_tasks WHERE name = 'done'",
    "DELETE FROM scheduled_tasks WHERE name = 'limited'",
    "DELETE FROM scheduled_tasks WHERE name IN ('limited', 'limited-too')",
    "DELETE FROM scheduled_tasks WHERE name <> 'busy'",
    "DELETE FROM scheduled_tasks WHERE name = 'busy' -- refused",
    "DELETE FROM scheduled_tasks -- refused",
    "INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('key', 3)",
    "INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ('few', 3)
         ON CONFLICT (concurrency_key) DO UPDATE SET max_running = excluded.max_running",
    "UPDATE concurrency_limits SET max_running = 1",
    "UPDATE concurrency_limits SET concurrency_key = 'key' -- refused",
    "UPDATE concurrency_limits SET managed_by = 'm'",
    "DELETE FROM concurrency_limits",
    "UPDATE rate_limits SET max_starts = 3",
    "UPDATE rate_limits SET handler = 'third' WHERE handler = 'other' -- refused",
    "UPDATE rate_limits SET handler = handler",
    "DELETE FROM rate_limits WHERE handler = 'work'",
    "DELETE FROM rate_limit_starts",
    "DELETE FROM task_effects WHERE run_id = 4",
    "UPDATE task_effects SET state = 'done', value = '[1,2]', done_at = NOW WHERE run_id = 11",
    "INSERT INTO scheduled_tasks (name, handler, payload, schedule_type, schedule_value)
         VALUES ('new', 'work', '{\"to\":\"bob\"}', 'cron', '0 7 * * *')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('due', 'other', 'manual', '')
         ON CONFLICT DO NOTHING",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('due', 'other', 'manual', '')
         ON CONFLICT (name) DO UPDATE SET handler = excluded.handler, schedule_value = '9 * * * *'",
    "INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value) VALUES (50, 'far', 'work', 'manual', '');
     INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('next', 'work', 'manual', '')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('due', 'other', 'manual', '')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('1st', 'work', 'manual', '')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('a b', 'work', 'manual', '')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('é', 'work', 'manual', '')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('', 'work', 'manual', '')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('a\n', 'work', 'manual', '')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('new', 'w\u{fffd}', 'manual', '')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('new', 'é', 'cron', 'é')",
    "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value) VALUES ('new', 'work', 'manual', 'x')",
    "UPDATE scheduled_tasks SET payload = '{''a'': 1}'",
    "UPDATE scheduled_tasks SET payload = NULL",
    "UPDATE scheduled_tasks SET payload = '\"\u{fffd}\"'",
    "UPDATE scheduled_tasks SET next_run = 1805025600",
    "UPDATE scheduled_tasks SET status = 'stopped'",
    "UPDATE scheduled_tasks SET misfire = 'run_all' WHERE name = 'due'",
    "UPDATE scheduled_tasks SET catch_up_limit = 201",
    "UPDATE scheduled_tasks SET concurrency_key = '#1'",
    "UPDATE scheduled_tasks SET concurrency_key = ''",
    "UPDATE scheduled_tasks SET starts_at = 1805025600001, ends_at = 1805025600000",
    "UPDATE task_runs SET status = 'running' WHERE id = 1",
    "UPDATE task_runs SET locked_by = NULL WHERE id = 7",
    "UPDATE task_runs SET cancel_requested = 2",
    "UPDATE concurrency_limits SET max_running = 0",
];

/// Both databases with the same rows, the moment that `NOW` stands for, and all rows as text.
struct Both {
    sqlite: Connection,
    copy: Connection,
    server: Client,
    now: i64,
}

impl Both {
    fn new(address: &str) -> Self {
        let sqlite = Connection::open_in_memory().expect("a database in memory");
        sqlite.execute_batch(SQLITE).expect("the tables");
        let mut server = session(address);
        let schema = address.split_once("schema=").expect("a schema").1;
        server.batch_execute(&format!("CREATE SCHEMA {schema}; {POSTGRES}")).expect("the tables");
        let now =
            sqlite.query_row("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)", [], |row| row.get(0));
        let mut both = Both { sqlite, copy: empty_copy(), server, now: now.expect("a time") };
        let rows = both.filled(ROWS);
        both.sqlite.execute_batch(&rows).expect("the rows");
        both.server.batch_execute(&format!("SET duly.store = 'on'; {rows}; RESET duly.store")).expect("the rows");
        for table in ["scheduled_tasks", "task_runs", "task_attempts", "scheduler_events"] {
            let moved = format!("SELECT setval('{table}_id_seq', max(id)) FROM {table}");
            both.server.execute(&moved, &[]).expect("the numbers");
        }
        assert_eq!(both.in_postgres(), both.in_sqlite());
        both
    }

    fn filled(&self, sql: &str) -> String {
        let text = |time: i64| time.to_string();
        let hour = 3_600_000;
        sql.replace("LATER", &text(self.now + hour))
            .replace("PAST", &text(self.now - hour))
            .replace("NOW", &text(self.now))
    }

    fn in_sqlite(&self) -> Vec<String> {
        rows(&self.sqlite, self.now)
    }

    fn in_postgres(&mut self) -> Vec<String> {
        refresh(&self.copy, &mut self.server);
        rows(&self.copy, self.now)
    }
}

/// All rows of all tables. A time of the last minute that is not `now` itself was read from a clock.
fn rows(database: &Connection, now: i64) -> Vec<String> {
    let mut rows = Vec::new();
    for table in [
        "scheduled_tasks",
        "task_runs",
        "task_attempts",
        "task_effects",
        "scheduler_events",
        "concurrency_limits",
        "rate_limits",
        "rate_limit_starts",
    ] {
        let mut all = database.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2")).expect("a table");
        let names: Vec<String> = all.column_names().map(str::to_owned).collect();
        let mut found = all.query([]).expect("rows");
        while let Some(row) = found.next().expect("a row") {
            let mut text = table.to_owned();
            for (at, name) in names.iter().enumerate() {
                match row.get_ref(at).expect("a value") {
                    ValueRef::Null => {}
                    ValueRef::Integer(time) if time > now && time < now + 600_000 => text += &format!(" {name}=CLOCK"),
                    ValueRef::Integer(number) => text += &format!(" {name}={number}"),
                    value => text += &format!(" {name}={}", value.as_str().expect("text")),
                }
            }
            rows.push(text);
        }
    }
    rows
}

#[test]
fn each_statement_of_another_program_leaves_the_same_rows_as_in_sqlite() {
    let mut both = match super::database() {
        Some(address) => Both::new(&address),
        None => return,
    };
    let before = both.in_sqlite();
    let mut changed = 0;
    for edit in EDITS {
        let sql = both.filled(edit);
        both.sqlite.execute_batch("BEGIN").expect("a transaction");
        both.server.batch_execute("BEGIN").expect("a transaction");
        let in_sqlite = both.sqlite.execute_batch(&sql).map_err(|error| error.to_string());
        let in_postgres = both.server.batch_execute(&sql).map_err(|error| said(&error));
        match (&in_sqlite, &in_postgres) {
            (Ok(()), Ok(())) => {
                let left = rows(&both.sqlite, both.now);
                // Within the open transaction: a copy begins one of its own.
                both.server.batch_execute("COMMIT").expect("a commit");
                assert_eq!(both.in_postgres(), left, "{edit}");
                changed += usize::from(left != before);
            }
            (Err(in_sqlite), Err(in_postgres)) => {
                let same = in_sqlite == in_postgres;
                assert!(same || !edit.ends_with("-- refused"), "{edit}: {in_sqlite}, {in_postgres}");
            }
            _ => panic!("{edit}: {in_sqlite:?} in SQLite, {in_postgres:?} in PostgreSQL"),
        }
        let refused = in_postgres.is_err();
        assert!(refused || !edit.ends_with("-- refused"), "{edit}");
        both.sqlite.execute_batch("ROLLBACK").expect("an end");
        both.server.batch_execute("ROLLBACK").expect("an end");
        both.restore();
    }
    assert!(changed > 60, "{changed} edits changed rows");
}

impl Both {
    /// Makes the rows on the server those from before an edit.
    fn restore(&mut self) {
        let rows = self.filled(ROWS);
        self.server
            .batch_execute(&format!(
                "SET duly.store = 'on';
                 TRUNCATE scheduled_tasks, task_runs, task_attempts, task_effects, scheduler_events, concurrency_limits,
                          rate_limits, rate_limit_starts RESTART IDENTITY;
                 {rows}; RESET duly.store;
                 SELECT setval('scheduled_tasks_id_seq', 10), setval('task_runs_id_seq', 12)"
            ))
            .expect("the rows");
    }
}

/// The program writes what the triggers would write, and nothing happens twice.
#[test]
fn in_a_session_of_the_program_no_trigger_writes() {
    let mut both = match super::database() {
        Some(address) => Both::new(&address),
        None => return,
    };
    both.server.batch_execute("SET duly.store = 'on'").expect("a setting");
    both.server
        .batch_execute("UPDATE scheduled_tasks SET status = 'paused', next_run = NULL, handler = 'other'")
        .expect("an edit");
    let left = both.in_postgres().join("\n");
    assert!(!left.contains("CLOCK") && !left.contains("paused_by=sql") && !left.contains("planned=0"), "{left}");
    both.server.batch_execute("DELETE FROM scheduled_tasks WHERE name = 'later'").expect_err("its runs are there");
}

/// What the other store refuses when it reads a row must not be stored: it would stop every operation.
#[test]
fn json_that_sqlite_cannot_read_is_refused() {
    let mut both = match super::database() {
        Some(address) => Both::new(&address),
        None => return,
    };
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let list = |items: usize| format!("[{}]", vec!["1"; items].join(","));
    for (payload, says) in [
        (deep(1000), ""),
        (deep(1001), "the payload is too deep"),
        (list(87_381), ""),
        (list(87_382), "the payload is too long: expected at most 262144 bytes, found 262146"),
        (format!("\"{}\"", "x".repeat(262_142)), ""),
        (format!("\"{}\"", "x".repeat(262_143)), "the payload is too long"),
        ("1e100000".to_owned(), ""),
        ("[1e100000, 1e100000, 1e100000]".to_owned(), "the payload is too long"),
        ("\"\\u0000\"".to_owned(), "Unicode escape"),
        ("\"\\ud83d\"".to_owned(), "invalid input syntax"),
    ] {
        let sql = format!("UPDATE scheduled_tasks SET payload = '{payload}' WHERE name = 'due'");
        let error = both.server.batch_execute(&sql).map_or_else(|error| said(&error), |()| String::new());
        assert!(error.starts_with(says) || error.contains(says) && !says.is_empty(), "{payload:.40}: {error}");
        assert_eq!(error.is_empty(), says.is_empty(), "{payload:.40}: {error}");
        let stored = "SELECT payload::text FROM scheduled_tasks WHERE name = 'due'";
        let stored: String = both.server.query_one(stored, &[]).expect("a row").get(0);
        both.sqlite.execute("UPDATE scheduled_tasks SET payload = ?1 WHERE name = 'due'", [stored]).expect("a payload");
    }
}

/// A claim that is committed while a DELETE waits for it: a run that has begun is never deleted.
#[test]
fn a_task_whose_run_begins_meanwhile_is_not_deleted() {
    let Some(address) = super::database() else { return };
    let mut both = Both::new(&address);
    let claims = both.filled(
        "SET duly.store = 'on'; BEGIN;
         UPDATE task_runs SET status = 'running', locked_by = 'owner', locked_until = LATER, finished_at = NULL WHERE id = 12",
    );
    both.server.batch_execute(&claims).expect("a claim");
    let mut other = session(&address);
    let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).expect("a row").get(0);
    let deletes = std::thread::spawn(move || other.batch_execute("DELETE FROM scheduled_tasks WHERE name = 'due'"));
    let mut observer = session(&address);
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'";
    crate::fixtures::eventually("the DELETE waits", || {
        observer.query_one(waits, &[&pid]).expect("a row").get::<_, i64>(0) == 1
    });
    both.server.batch_execute("COMMIT").expect("a commit");
    let error = crate::fixtures::joined(deletes, "the DELETE").expect("a thread").expect_err("its run has begun");
    assert_eq!(said(&error), "the task has a running run: cancel it, or pause the task and wait");
    let left = both.in_postgres();
    assert_eq!(left.iter().filter(|row| row.contains(" task_id=1 ") || row.contains(" name=due ")).count(), 2);
}
