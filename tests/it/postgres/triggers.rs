//! What other programs write: each statement leaves the same rows in PostgreSQL as in SQLite.

use postgres::Client;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::fixtures::on_server::{empty_copy, refresh, said, session};

const SQLITE: &str = include_str!("../../../schema.sql");
const POSTGRES: &str = include_str!("../../../schema.postgres.sql");

/// Rows in all states that an edit may meet. `NOW` is the present, `PAST` an hour ago, `LATER` in an hour.
const ROWS: &str = include_str!("triggers/rows.sql");

/// Statements of other programs, each at the beginning of a line. Those that both databases refuse with words of duly end in `-- refused`; the others are refused by
/// words of the database, or by none.
const EDITS: &str = include_str!("triggers/edits.sql");

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
        refresh(&self.copy, &mut self.server, |_| true);
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
        "rate_limit_openings",
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
    let separate = |text: String, word: &&str| text.replace(&format!("\n{word} "), &format!("\0{word} "));
    let edits = ["INSERT", "UPDATE", "DELETE"].iter().fold(EDITS.trim_end().to_owned(), separate);
    for edit in edits.split('\0') {
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
                          rate_limits, rate_limit_starts, rate_limit_openings RESTART IDENTITY;
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
