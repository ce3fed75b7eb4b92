//! Two files that are nobody's, on which it is tried what duly needs of a disk: the lock of a file, as an owner holds it, and
//! a database with a log and shared memory, as SQLite keeps it.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use duly::BoxError;
use rusqlite::{Connection, ErrorCode};

/// The two files.
const OWNER: &str = "owner";
const DATABASE: &str = "probe.db";
/// How often each that counts does so.
pub(crate) const TIMES: u32 = 200;
/// How long one that counts waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes both.
pub(crate) fn make(folder: &Path) -> Result<(), BoxError> {
    File::create_new(folder.join(OWNER))?;
    let connection = Connection::open(folder.join(DATABASE))?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(format!("SQLite's journal mode stays {mode:?}, expected \"wal\"").into());
    }
    Ok(connection.execute_batch("CREATE TABLE counts (n INTEGER NOT NULL); INSERT INTO counts VALUES (0)")?)
}

fn open(folder: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(folder.join(DATABASE))?;
    connection.busy_timeout(Duration::ZERO)?;
    Ok(connection)
}

/// What came of it to take a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Free,
    Held,
    /// It could be neither had nor refused.
    Broken(String),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Free => f.write_str("free"),
            Found::Held => f.write_str("held"),
            Found::Broken(error) => f.write_str(error),
        }
    }
}

impl Found {
    /// Takes the lock of the file, and gives it back.
    pub(crate) fn of_file(folder: &Path) -> Found {
        let file = OpenOptions::new().read(true).write(true).open(folder.join(OWNER));
        match file.map(|file| file.try_lock()) {
            Ok(Ok(())) => Found::Free,
            Ok(Err(TryLockError::WouldBlock)) => Found::Held,
            Ok(Err(TryLockError::Error(error))) | Err(error) => Found::Broken(error.to_string()),
        }
    }

    /// Takes the database's lock for writing, and gives it back.
    pub(crate) fn of_database(folder: &Path) -> Found {
        let tried = open(folder).and_then(|connection| connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK"));
        match tried {
            Ok(()) => Found::Free,
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Found::Held,
            Err(error) => Found::Broken(error.to_string()),
        }
    }
}

/// Both locks, for as long as it lives.
pub(crate) struct Held {
    _file: File,
    _connection: Connection,
}

impl Held {
    pub(crate) fn take(folder: &Path) -> Result<Held, BoxError> {
        let file = OpenOptions::new().read(true).write(true).open(folder.join(OWNER))?;
        file.try_lock().map_err(io::Error::from)?;
        let connection = open(folder)?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        Ok(Held { _file: file, _connection: connection })
    }
}

/// Counts, one by one, in transactions of its own.
pub(crate) fn count(folder: &Path) -> Result<(), BoxError> {
    let connection = open(folder)?;
    connection.busy_timeout(PATIENCE)?;
    for _ in 0..TIMES {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let n: u32 = connection.query_row("SELECT n FROM counts", [], |row| row.get(0))?;
        connection.execute("UPDATE counts SET n = ?1", [n + 1])?;
        connection.execute_batch("COMMIT")?;
    }
    Ok(())
}

/// A look at the count, by somebody who had opened the database before it changed.
pub(crate) struct Watcher(Connection);

impl Watcher {
    pub(crate) fn open(folder: &Path) -> rusqlite::Result<Watcher> {
        let watcher = Watcher(open(folder)?);
        watcher.count()?;
        Ok(watcher)
    }

    pub(crate) fn count(&self) -> rusqlite::Result<u32> {
        self.0.query_row("SELECT n FROM counts", [], |row| row.get(0))
    }
}
