//! The simulation in a schema of a PostgreSQL server.

use std::cell::{Cell, RefCell};

use ::postgres::{Client, SimpleQueryMessage};
use duly::testing::ManualClock;
use rusqlite::{Connection, Params};

use crate::fixtures::on_server::{cell, empty_copy, folder_of_locks, said, session, translated};
use crate::simulation::shell::follow;

/// The advisory lock of the schema, which each of duly's transactions that writes holds, except one that only adds tasks.
const LOCK: &str = "
    BEGIN; SET LOCAL lock_timeout = 1;
    SELECT pg_advisory_xact_lock(1685417081, oid::bigint::bit(32)::int) FROM pg_namespace WHERE nspname = current_schema()";

const LOCKED: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1685417081 AND granted";

/// The locks of owners, one for each session of an owner.
const OWNERS: &str = "locktype = 'advisory' AND classid = 1685417082 AND granted";

/// As the guard of the file, with a query that a condition of a trigger may not have here.
const GUARD: &str = "
    CREATE TABLE unwritable (run bigint PRIMARY KEY);
    CREATE FUNCTION run_is_unwritable() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN
        IF EXISTS (SELECT FROM unwritable WHERE run = NEW.id) THEN
            RAISE EXCEPTION USING MESSAGE = 'the run is unwritable', ERRCODE = 'raise_exception';
        END IF;
        RETURN NEW;
    END $body$;
    CREATE TRIGGER run_is_unwritable BEFORE UPDATE OF status ON task_runs FOR EACH ROW
    WHEN (NEW.status <> OLD.status AND NEW.status <> 'cancelled') EXECUTE FUNCTION run_is_unwritable()";

/// The tables of the schema, with the names and the types of their columns.
const COLUMNS: &str = "
    SELECT c.relname, string_agg(a.attname, ',' ORDER BY a.attnum),
           string_agg(format_type(a.atttypid, NULL), ',' ORDER BY a.attnum)
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
     WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
     GROUP BY c.relname ORDER BY c.relname";

/// A session of another program, and a copy of the rows.
pub(crate) struct OnServer {
    address: String,
    session: RefCell<Client>,
    copy: Connection,
    tables: RefCell<Vec<Table>>,
    /// Rows of transactions with a smaller number are in the copy.
    read_until: Cell<i64>,
    /// Whether a session held the lock of the schema then.
    is_locked: Cell<bool>,
}

/// A table that is copied.
struct Table {
    name: String,
    types: Vec<String>,
    columns: String,
    /// Whether a row has a key in the copy, so that it can be replaced there.
    has_key: bool,
}

impl OnServer {
    pub(crate) fn at(address: &str, clock: &ManualClock) -> Self {
        let copy = empty_copy();
        // A row that is replaced keeps what refers to it.
        copy.execute_batch("PRAGMA foreign_keys = OFF").expect("a setting");
        follow(&copy, clock);
        OnServer {
            address: address.to_owned(),
            session: RefCell::new(session(address)),
            copy,
            tables: RefCell::default(),
            read_until: Cell::new(0),
            is_locked: Cell::new(false),
        }
    }

    /// Creates the application's tables.
    pub(crate) fn prepare(&self, tables: &str) {
        self.execute_batch(tables).expect("tables");
        self.session.borrow_mut().batch_execute(GUARD).expect("a guard");
    }

    pub(crate) fn execute(&self, text: &str, given: impl Params) -> Result<usize, String> {
        // SQLite writes the values into the statement. Whatever else it does to the copy is undone.
        self.copy.execute_batch("BEGIN").expect("a transaction");
        let expanded = {
            let mut statement = self.copy.prepare(text).map_err(|error| error.to_string());
            statement.as_mut().map_or_else(
                |_| None,
                |statement| {
                    let _ = statement.execute(given);
                    statement.expanded_sql()
                },
            )
        };
        self.copy.execute_batch("ROLLBACK").expect("an end");
        let expanded = expanded.ok_or_else(|| format!("{text}: SQLite cannot read it"))?;
        self.simple(&translated(&expanded))
    }

    pub(crate) fn execute_batch(&self, text: &str) -> Result<(), String> {
        self.simple(&translated(text)).map(drop)
    }

    /// Executes statements. Returns the number of rows that the last of them wrote.
    fn simple(&self, text: &str) -> Result<usize, String> {
        let mut session = self.session.borrow_mut();
        let answers = session.simple_query(text).map_err(|error| said(&error))?;
        let written = answers.iter().rev().find_map(|answer| match answer {
            SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
            _ => None,
        });
        Ok(usize::try_from(written.unwrap_or_default()).expect("a number of rows"))
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&Connection) -> T) -> T {
        self.refresh();
        look(&self.copy)
    }

    /// The rows as they were last read.
    pub(crate) fn copy(&self) -> &Connection {
        &self.copy
    }

    /// Whether a session held the lock of the schema when the rows were last read: no other one may have written more than new tasks.
    pub(crate) fn is_locked(&self) -> bool {
        self.is_locked.get()
    }

    /// Makes the copy equal to the tables. Reads the rows that newer transactions have written, in one message.
    fn refresh(&self) {
        let mut session = self.session.borrow_mut();
        let mut tables = self.tables.borrow_mut();
        if tables.is_empty() {
            *tables = self.find_tables(&mut session);
        }
        let since = self.read_until.get();
        let counts: Vec<String> = tables.iter().map(|table| format!("(SELECT count(*) FROM {})", table.name)).collect();
        let mut message =
            format!("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, ({LOCKED}), {}", counts.join(", "));
        for (at, table) in tables.iter().enumerate() {
            message +=
                &format!("; SELECT {at}, {} FROM {} WHERE xmin::text::bigint >= {since}", table.columns, table.name);
        }
        let mut answers =
            session.simple_query(&message).expect("the rows").into_iter().filter_map(|answer| match answer {
                SimpleQueryMessage::Row(row) => Some(row),
                _ => None,
            });
        let head = answers.next().expect("numbers");
        let number = |at| head.get(at).and_then(|text: &str| text.parse::<i64>().ok()).expect("a number");
        self.copy.execute_batch("BEGIN").expect("a transaction");
        let mut has_changed = vec![false; tables.len()];
        for row in answers {
            let at: usize = row.get(0).and_then(|text| text.parse().ok()).expect("a table");
            has_changed[at] = true;
            if tables[at].has_key {
                self.put(&tables[at], |column| row.get(column + 1).map(str::to_owned));
            }
        }
        for (at, table) in tables.iter().enumerate() {
            let count = format!("SELECT count(*) FROM {}", table.name);
            let mut count = self.copy.prepare_cached(&count).expect("a count");
            let copied: i64 = count.query_row([], |row| row.get(0)).expect("a count");
            if copied != number(at + 2) || has_changed[at] && !table.has_key {
                self.copy.execute(&format!("DELETE FROM {}", table.name), []).expect("a deletion");
                let all = format!("SELECT {} FROM {}", table.columns, table.name);
                for answer in session.simple_query(&all).expect("the rows") {
                    let SimpleQueryMessage::Row(row) = answer else { continue };
                    self.put(table, |column| row.get(column).map(str::to_owned));
                }
            }
        }
        self.copy.execute_batch("COMMIT").expect("a copy");
        self.read_until.set(number(0));
        self.is_locked.set(number(1) > 0);
    }

    fn put(&self, table: &Table, text: impl Fn(usize) -> Option<String>) {
        let places = vec!["?"; table.types.len()].join(", ");
        let insert = format!("INSERT OR REPLACE INTO {} ({}) VALUES ({places})", table.name, table.columns);
        let cells = table.types.iter().enumerate().map(|(at, of_type)| text(at).map(|text| cell(&text, of_type)));
        let mut insert = self.copy.prepare_cached(&insert).expect("a statement");
        insert.execute(rusqlite::params_from_iter(cells)).unwrap_or_else(|error| panic!("{}: {error}", table.name));
    }

    fn find_tables(&self, session: &mut Client) -> Vec<Table> {
        let found = session.query(COLUMNS, &[]).expect("the tables");
        let table = |row: &::postgres::Row| {
            let (name, columns, types): (String, String, String) = (row.get(0), row.get(1), row.get(2));
            let make = format!("CREATE TABLE IF NOT EXISTS {name} ({columns})");
            self.copy.execute_batch(&make).expect("a table");
            let key = format!("SELECT count(*) FROM pragma_table_info('{name}') WHERE pk > 0");
            let has_key = self.copy.query_row(&key, [], |row| row.get::<_, i64>(0)).expect("its key") > 0;
            Table { name, columns, types: types.split(',').map(str::to_owned).collect(), has_key }
        };
        found.iter().map(table).collect()
    }

    /// Holds the lock that each of duly's transactions needs, if it is free.
    pub(crate) fn lock(&self) -> Result<(), String> {
        let mut session = self.session.borrow_mut();
        let locked = session.batch_execute(LOCK).map_err(|error| said(&error));
        if locked.is_err() {
            session.batch_execute("ROLLBACK").expect("an end");
        }
        locked
    }

    /// Ends the transaction that holds the lock. The server has ended the session if that took seconds.
    pub(crate) fn unlock(&self) {
        if self.session.borrow_mut().batch_execute("ROLLBACK").is_err() {
            self.reconnect();
        }
    }

    /// Opens the session again: the server was restarted.
    pub(crate) fn reconnect(&self) {
        *self.session.borrow_mut() = session(&self.address);
    }

    /// Returns the name of the folder of lock files, in the folder of a host's local files.
    pub(crate) fn folder_of_locks(&self) -> String {
        folder_of_locks(&mut self.session.borrow_mut())
    }

    /// Returns whether the server has a session of an owner.
    pub(crate) fn has_session(&self, owner: &str) -> bool {
        let key = self.key(owner);
        self.number(&format!("SELECT count(*) FROM pg_locks WHERE {OWNERS} AND objid = {key}")) > 0
    }

    /// Returns the number of an owner's lock.
    fn key(&self, owner: &str) -> u32 {
        // As src/store/postgres/owner_session.rs computes the key.
        let schema = self.number("SELECT oid::bigint FROM pg_namespace WHERE nspname = current_schema()") as u32;
        let bytes = schema.to_be_bytes().into_iter().chain(owner.bytes());
        bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }

    /// Ends the session of an owner, as an administrator does. Returns whether there was one.
    pub(crate) fn end_session(&self, owner: &str) -> bool {
        let key = self.key(owner);
        let ended = "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 5000)) FROM pg_locks";
        self.number(&format!("{ended} WHERE {OWNERS} AND objid = {key}")) > 0
    }

    /// Ends all sessions of duly.
    pub(crate) fn end_all_sessions(&self) {
        let ended = "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 5000)) FROM pg_stat_activity";
        self.number(&format!("{ended} WHERE application_name = 'duly'"));
    }

    /// Waits until the server knows that the process of an owner has ended.
    pub(crate) fn await_end_of(&self, owner: &str) {
        while self.has_session(owner) {
            std::thread::yield_now();
        }
    }

    /// Returns the number that a query of the server finds.
    fn number(&self, query: &str) -> i64 {
        self.session.borrow_mut().query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error}")).get(0)
    }
}
