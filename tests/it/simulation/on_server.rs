//! The simulation in a schema of a PostgreSQL server.

use std::cell::RefCell;
use std::path::PathBuf;

use ::postgres::Client;
use duly::Clock;
use duly::testing::ManualClock;
use rusqlite::{Connection, Params};

use crate::fixtures::on_server::{empty_copy, lock_folder, refresh, said, session, translated};
use crate::simulation::shell::follow;

/// The clock of triggers, defaults and views: what the session that runs them says.
const CLOCK: &str = "
    CREATE OR REPLACE FUNCTION duly_now() RETURNS bigint LANGUAGE sql VOLATILE
    RETURN current_setting('duly.given_time')::bigint;
    CREATE OR REPLACE FUNCTION duly_statement_time() RETURNS bigint LANGUAGE sql STABLE
    RETURN current_setting('duly.given_time')::bigint";

/// The advisory lock of the schema, which each of duly's transactions that writes holds.
const LOCK: &str = "
    BEGIN; SET LOCAL lock_timeout = 1;
    SELECT pg_advisory_xact_lock(1685417081, oid::bigint::bit(32)::int) FROM pg_namespace WHERE nspname = current_schema()";

/// A session of another program, and a copy of the rows.
pub(crate) struct OnServer {
    session: RefCell<Client>,
    copy: Connection,
    clock: ManualClock,
}

impl OnServer {
    pub(crate) fn at(address: &str, clock: &ManualClock) -> Self {
        let copy = empty_copy();
        follow(&copy, clock);
        OnServer { session: RefCell::new(session(address)), copy, clock: clock.clone() }
    }

    /// Lets triggers use the scenario's clock, and creates the application's tables.
    pub(crate) fn prepare(&self, tables: &str) {
        self.execute_batch(CLOCK).and_then(|()| self.execute_batch(tables)).expect("the clock and the tables");
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
        self.at_the_given_time();
        let written = self.session.borrow_mut().execute(&translated(&expanded), &[]).map_err(|error| said(&error))?;
        Ok(usize::try_from(written).expect("a number of rows"))
    }

    pub(crate) fn execute_batch(&self, text: &str) -> Result<(), String> {
        self.at_the_given_time();
        self.session.borrow_mut().batch_execute(&translated(text)).map_err(|error| said(&error))
    }

    fn at_the_given_time(&self) {
        let now = self.clock.now().wall.as_millis();
        // Fails only within a transaction that has failed.
        let _ = self.session.borrow_mut().batch_execute(&format!("SET duly.given_time = '{now}'"));
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&Connection) -> T) -> T {
        refresh(&self.copy, &mut self.session.borrow_mut());
        look(&self.copy)
    }

    /// The rows as they were last read.
    pub(crate) fn copy(&self) -> &Connection {
        &self.copy
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

    pub(crate) fn lock_folder(&self) -> PathBuf {
        lock_folder(&mut self.session.borrow_mut())
    }
}
