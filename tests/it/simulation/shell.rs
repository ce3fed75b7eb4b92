//! The connection of another program, without any setting of duly's: to the file, or to a schema on a PostgreSQL server.
//!
//! The clock of its triggers is the scenario's. On a server the checker reads a copy of the rows, in SQLite's tables.

use std::path::Path;
use std::time::Duration;

use duly::Clock;
use duly::testing::ManualClock;
use rusqlite::config::DbConfig;
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, Params};

#[cfg(feature = "postgres")]
use crate::simulation::on_server::OnServer;

pub(crate) enum Shell {
    File(Connection),
    #[cfg(feature = "postgres")]
    Server(Box<OnServer>),
}

impl Shell {
    pub(crate) fn of_file(file: &Path, clock: &ManualClock) -> Self {
        let shell = Connection::open(file).expect("a shell");
        shell.busy_timeout(Duration::ZERO).expect("no patience");
        shell.pragma_update(None, "synchronous", 0).expect("a pragma");
        // Closing the last connection would run a checkpoint on a file that is removed next.
        shell.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).expect("a setting");
        follow(&shell, clock);
        Shell::File(shell)
    }

    pub(crate) fn is_on_server(&self) -> bool {
        !matches!(self, Shell::File(_))
    }

    /// Returns whether the server has a session of an owner; a file has none.
    pub(crate) fn has_session(&self, _owner: &str) -> bool {
        match self {
            Shell::File(_) => false,
            #[cfg(feature = "postgres")]
            Shell::Server(server) => server.has_session(_owner),
        }
    }

    /// Returns whether a session held the lock of the schema on a server when the rows were last read.
    pub(crate) fn is_locked(&self) -> bool {
        match self {
            Shell::File(_) => false,
            #[cfg(feature = "postgres")]
            Shell::Server(server) => server.is_locked(),
        }
    }

    /// Waits until the database knows that the process of an owner has ended.
    pub(crate) fn await_end_of(&self, _owner: &str) {
        #[cfg(feature = "postgres")]
        if let Shell::Server(server) = self {
            server.await_end_of(_owner);
        }
    }

    /// Executes a statement. Returns the number of rows that it wrote.
    pub(crate) fn execute(&self, text: &str, given: impl Params) -> Result<usize, String> {
        match self {
            Shell::File(shell) => {
                shell.prepare_cached(text).and_then(|mut it| it.execute(given)).map_err(|error| error.to_string())
            }
            #[cfg(feature = "postgres")]
            Shell::Server(server) => server.execute(text, given),
        }
    }

    /// Executes statements without a result.
    pub(crate) fn execute_batch(&self, text: &str) -> Result<(), String> {
        match self {
            Shell::File(shell) => shell.execute_batch(text).map_err(|error| error.to_string()),
            #[cfg(feature = "postgres")]
            Shell::Server(server) => server.execute_batch(text),
        }
    }

    /// Calls `look` with a connection that reads the rows.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Connection) -> T) -> T {
        match self {
            Shell::File(shell) => look(shell),
            #[cfg(feature = "postgres")]
            Shell::Server(server) => server.read(look),
        }
    }

    /// Begins to read one moment of the tables, see [`Shell::tables`].
    pub(crate) fn begin_snapshot(&self) {
        match self {
            Shell::File(shell) => {
                shell.execute_batch("BEGIN; SELECT count(*) FROM scheduled_tasks").expect("a snapshot")
            }
            #[cfg(feature = "postgres")]
            Shell::Server(server) => server.read(|_| ()),
        }
    }

    pub(crate) fn end_snapshot(&self) {
        match self {
            Shell::File(shell) => shell.execute_batch("COMMIT").expect("the end of a snapshot"),
            #[cfg(feature = "postgres")]
            Shell::Server(_) => {}
        }
    }

    /// A connection that reads the rows: of now, or of the snapshot; on a server always of the last snapshot.
    pub(crate) fn tables(&self) -> &Connection {
        match self {
            Shell::File(shell) => shell,
            #[cfg(feature = "postgres")]
            Shell::Server(server) => server.copy(),
        }
    }

    /// Ends the transaction that holds the write lock.
    pub(crate) fn unlock(&self) {
        match self {
            Shell::File(_) => self.execute_batch("ROLLBACK").expect("a rollback"),
            #[cfg(feature = "postgres")]
            Shell::Server(server) => server.unlock(),
        }
    }

    /// Opens the session again after the server was restarted.
    #[cfg(feature = "postgres")]
    pub(crate) fn reconnect(&self) {
        if let Shell::Server(server) = self {
            server.reconnect();
        }
    }

    /// Ends the session of an owner, as an administrator does. Returns whether there was one.
    #[cfg(feature = "postgres")]
    pub(crate) fn end_session(&self, owner: &str) -> bool {
        match self {
            Shell::File(_) => false,
            Shell::Server(server) => server.end_session(owner),
        }
    }

    /// Ends all sessions of duly.
    #[cfg(feature = "postgres")]
    pub(crate) fn end_all_sessions(&self) {
        if let Shell::Server(server) = self {
            server.end_all_sessions();
        }
    }

    /// Begins a transaction that holds the write lock.
    pub(crate) fn lock(&self) -> Result<(), String> {
        match self {
            Shell::File(_) => self.execute_batch("BEGIN IMMEDIATE"),
            #[cfg(feature = "postgres")]
            Shell::Server(server) => server.lock(),
        }
    }
}

/// Makes SQLite's clock of a connection the scenario's, plus a tenth of a millisecond, so that rounding does not hide what is due now.
pub(crate) fn follow(connection: &Connection, clock: &ManualClock) {
    let (clock, flags) = (clock.clone(), FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS);
    let now = move || {
        let millis = clock.now().wall.as_millis() as f64 + 0.1;
        millis / 86_400_000.0 + 2_440_587.5
    };
    connection.create_scalar_function("julianday", 1, flags, move |_| Ok(now())).expect("a clock");
}
