//! Two probe files: one for the file lock, as an owner holds it, and a database in WAL mode, for the locks and the shared memory
//! of SQLite.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use duly::BoxError;
use rusqlite::{Connection, ErrorCode};

/// Names of the files.
const OWNER: &str = "owner";
const DATABASE: &str = "probe.db";
/// Increments of each child that counts.
pub(crate) const TIMES: u32 = 200;
/// Time for which a child waits for the other one: SQLite serves in no order, so on a busy machine until the other has counted to its end.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates both files.
pub(crate) fn create(folder: &Path) -> Result<(), BoxError> {
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

/// The result of an attempt to take a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    Free,
    Held,
    /// The attempt failed with an error.
    Broken(String),
}

impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockState::Free => f.write_str("free"),
            LockState::Held => f.write_str("held"),
            LockState::Broken(error) => f.write_str(error),
        }
    }
}

impl LockState {
    /// Returns the states of the file lock and of the SQLite lock.
    pub(crate) fn both(folder: &Path) -> [LockState; 2] {
        [LockState::of_file(folder), LockState::of_database(folder)]
    }

    /// Takes and releases the file lock.
    fn of_file(folder: &Path) -> LockState {
        let file = OpenOptions::new().read(true).write(true).open(folder.join(OWNER));
        match file.map(|file| file.try_lock()) {
            Ok(Ok(())) => LockState::Free,
            Ok(Err(TryLockError::WouldBlock)) => LockState::Held,
            Ok(Err(TryLockError::Error(error))) | Err(error) => LockState::Broken(error.to_string()),
        }
    }

    /// Takes and releases the write lock of the database.
    fn of_database(folder: &Path) -> LockState {
        let locked = open(folder).and_then(|connection| connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK"));
        match locked {
            Ok(()) => LockState::Free,
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => LockState::Held,
            Err(error) => LockState::Broken(error.to_string()),
        }
    }
}

/// Holds both locks until it is dropped.
pub(crate) struct Locks {
    _file: File,
    _connection: Connection,
}

impl Locks {
    pub(crate) fn take(folder: &Path) -> Result<Locks, BoxError> {
        let file = OpenOptions::new().read(true).write(true).open(folder.join(OWNER))?;
        file.try_lock().map_err(io::Error::from)?;
        let connection = open(folder)?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        Ok(Locks { _file: file, _connection: connection })
    }
}

/// Increments the counter [`TIMES`] times, in one transaction each.
pub(crate) fn count(folder: &Path) -> Result<(), BoxError> {
    let connection = open(folder)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    for _ in 0..TIMES {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let n: u32 = connection.query_row("SELECT n FROM counts", [], |row| row.get(0))?;
        connection.execute("UPDATE counts SET n = ?1", [n + 1])?;
        connection.execute_batch("COMMIT")?;
    }
    Ok(())
}

/// Reads the counter on a connection that was opened before it changed.
pub(crate) struct Reader(Connection);

impl Reader {
    pub(crate) fn open(folder: &Path) -> rusqlite::Result<Reader> {
        let reader = Reader(open(folder)?);
        reader.count()?;
        Ok(reader)
    }

    pub(crate) fn count(&self) -> rusqlite::Result<u32> {
        self.0.query_row("SELECT n FROM counts", [], |row| row.get(0))
    }
}
