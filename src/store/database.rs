//! One connection to the file: how it is opened, and the one place where transactions begin.
//!
//! It promises that every setting it relies on was read back, and that nothing is written to a file that is not ours.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use crate::advance::Advance;
use crate::error::{Error, Result};
use crate::platform;
use crate::schedule::Schedules;
use crate::store::Fault;
use crate::store::migration::{self, Tables};
use crate::store::schema::{self, Contents};

/// How long a writer waits for another.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// A write-ahead log larger than this is cut when nothing else is to be done.
const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;
/// Pages in the write-ahead log from which on a commit writes them back. A page that many turns change, as those of the indexes
/// are, is then written back once for four times as many commits as by SQLite's own 1000.
const CHECKPOINT_PAGES: i64 = 4000;
/// SQLite before this can lose committed pages when two connections write and checkpoint at once.
const LEAST_SQLITE: i32 = 3_051_003;
/// Steps of SQLite's machine between two looks at how far a copy has come: some milliseconds.
const STEPS_BETWEEN_LOOKS: i32 = 100_000;
/// Prepared statements that are kept; there are fewer, so that each is prepared once.
const STATEMENTS: usize = 128;

/// What is given up for speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Every commit is on the disk before anything that it records starts (`synchronous = FULL`).
    #[default]
    Full,
    /// The last commits before a power cut, or a crash of the operating system, may be gone afterwards: a run may start
    /// again that had already run. A crash of the program alone loses nothing (`synchronous = NORMAL`).
    MayRepeatAfterPowerLoss,
}

/// What to do where there is no database yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Make it, or make our tables beside an application's own.
    Create,
    /// Say so.
    Refuse,
}

/// An open database, with what is remembered between transactions.
#[derive(Debug)]
pub(crate) struct Store {
    connection: Connection,
    path: PathBuf,
    identity: Option<(u64, u64)>,
    schedules: Schedules,
    transactions: u64,
    /// The version of the tables that all statements are written for.
    version: i64,
    /// Set when no more than outcomes is written: then newer tables will do.
    accepts_newer: bool,
}

impl Store {
    /// Opens the database, makes its tables if `missing` says so, and brings those of an older version to this one.
    pub(crate) fn open(path: &Path, missing: Missing, durability: Durability) -> Result<Self> {
        Self::open_as(path, missing, durability, &Tables::CURRENT)
    }

    /// The same, for tables of another version.
    pub(crate) fn open_as(path: &Path, missing: Missing, durability: Durability, tables: &Tables) -> Result<Self> {
        let opened = open(path, missing, durability, tables);
        opened.map_err(|fault| match fault {
            Fault::Sqlite(error) => unusable(path, describe(&error)),
            Fault::Told(error) | Fault::Newer(error) => error,
        })
    }

    /// Runs `f` in a transaction that holds the write lock from its beginning, and commits if it succeeds. A deferred
    /// transaction that turned writer would fail at once where this one waits. Nothing is promised into a file that the
    /// path no longer names.
    pub(crate) fn write<T>(
        &mut self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        self.check_in_place()?;
        self.try_write(f).map_err(|fault| told(&self.path, fault, doing))
    }

    /// The same, for a caller that can tell what to do about a fault, and looks after the file itself.
    pub(crate) fn try_write<T>(
        &mut self,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        self.transactions += 1;
        if !self.accepts_newer {
            schema::check_version(&transaction, &self.path, self.version)?;
        }
        let answer = f(&transaction, &mut self.schedules)?;
        transaction.commit()?;
        Ok(answer)
    }

    /// From now on newer tables will do, for an owner that has outcomes to write before it leaves.
    pub(crate) fn accept_newer(&mut self) {
        self.accepts_newer = true;
    }

    /// Runs `f` as [`Store::write`] does, and takes back what it wrote.
    pub(crate) fn rehearse<T>(
        &mut self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        self.check_in_place()?;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| told(&self.path, error.into(), doing))?;
        schema::check_version(&transaction, &self.path, self.version)
            .and_then(|()| f(&transaction, &mut self.schedules))
            .map_err(|fault| told(&self.path, fault, doing))
    }

    /// Runs `f` over one snapshot, without a lock that a writer would wait for.
    pub(crate) fn read<T>(
        &mut self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Deferred)
            .map_err(|error| told(&self.path, error.into(), doing))?;
        schema::check_version(&transaction, &self.path, self.version)
            .and_then(|()| f(&transaction, &mut self.schedules))
            .map_err(|fault| told(&self.path, fault, doing))
    }

    /// Writes the whole into another file, which is empty, as one snapshot. Writers do not wait for it. `advance` counts
    /// the bytes that are there.
    pub(crate) fn copy_into(&mut self, copy: &Path, advance: &Advance) -> Result<()> {
        let doing = "copy the database";
        let store = |error| Error::store(doing, error);
        let name = copy.to_str().ok_or_else(|| Error::store(doing, "the name of the copy is not Unicode"))?;
        let number = |pragma| self.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let pages = number("page_count").and_then(|pages| Ok(pages - number("freelist_count")?)).map_err(store)?;
        advance.expect((pages * number("page_size").map_err(store)?).unsigned_abs());
        let (looks, file) = (advance.clone(), copy.to_owned());
        // SQLite tells nobody how far it is; it lets somebody look now and then.
        let look = move || {
            looks.reach(std::fs::metadata(&file).map_or(0, |metadata| metadata.len()));
            false
        };
        self.connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(look)).map_err(store)?;
        let copied = self.connection.execute("VACUUM INTO ?1", [name]);
        self.connection.progress_handler(0, None::<fn() -> bool>).map_err(store)?;
        copied.map(|_| ()).map_err(store)
    }

    /// What is still in the log stays there when this connection is closed, even if it is the last: whoever only looks
    /// leaves every byte of the file as it was.
    pub(crate) fn leave_log(&self) -> Result<()> {
        let left = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        left.map(|_| ()).map_err(|error| Error::store("leave the log as it is", error))
    }

    /// A number that changes whenever another connection has committed.
    pub(crate) fn data_version(&self) -> Result<i64> {
        data_version(&self.connection).map_err(|error| Error::store("look for changes", error))
    }

    /// Gives the log's space back to the disk, if it has grown beyond what a busy hour needs. For an idle moment.
    pub(crate) fn shrink_log(&self) -> Result<()> {
        if std::fs::metadata(log(&self.path)).is_ok_and(|metadata| metadata.len() > MAX_LOG_BYTES) {
            // Its answer says whether a reader was in the way; then the next idle moment will do. It would wait for that
            // reader with the write lock in its hands: nobody could write, and nothing would start.
            let shrunk = self
                .connection
                .busy_timeout(Duration::ZERO)
                .and_then(|()| self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
            let patient = self.connection.busy_timeout(BUSY_TIMEOUT);
            return shrunk.and(patient).map_err(|error| Error::store("shrink the log", error));
        }
        Ok(())
    }

    /// How many write transactions were begun; for tests of what an idle loop costs.
    pub(crate) fn transactions(&self) -> u64 {
        self.transactions
    }

    /// How large the file and its write-ahead log are, in bytes; nothing if they are not there.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        (size(&self.path), size(&log(&self.path)))
    }

    /// Counts the steps of SQLite's machine from now on.
    #[cfg(test)]
    pub(crate) fn count_steps(&mut self) -> std::sync::Arc<std::sync::atomic::AtomicU64> {
        let steps = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
        let counter = steps.clone();
        let count = move || {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            false
        };
        self.connection.progress_handler(1, Some(count)).expect("a handler");
        steps
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if the path no longer names the file that is open: SQLite would go on writing to one that nobody sees.
    pub(crate) fn check_in_place(&self) -> Result<()> {
        match std::fs::metadata(&self.path) {
            Ok(metadata) if platform::identity(&metadata) == self.identity => Ok(()),
            Ok(_) => Err(unusable(&self.path, "it was replaced by another file while it was open: start again".into())),
            Err(error) => Err(unusable(&self.path, format!("it was removed while it was open ({error})"))),
        }
    }
}

/// Which SQLite is at work.
pub(crate) fn sqlite_version() -> &'static str {
    rusqlite::version()
}

pub(crate) fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

fn open(path: &Path, missing: Missing, durability: Durability, tables: &Tables) -> Result<Store, Fault> {
    if rusqlite::version_number() < LEAST_SQLITE {
        let reason = format!("SQLite {} is too old: expected 3.51.3 or newer", rusqlite::version());
        return Err(unusable(path, reason).into());
    }
    check_path(path, missing)?;
    let path = &platform::real_path(path).map_err(|error| unusable(path, error.to_string()))?;
    // Without CREATE: the file was made just now if it was to be. An absolute name is never read as a URI.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let has_log = std::fs::metadata(log(path)).is_ok();
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // If this turns out to be another program's file, that is no reason to write its log back for it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log)?;
    if connection.is_readonly("main")? {
        return Err(unusable(path, "it is read-only: make the file and its folder writable".into()).into());
    }
    let contents = schema::examine(&connection, path, tables.version)?;
    if missing == Missing::Refuse && matches!(contents, Contents::Free { .. }) {
        return Err(unusable(path, "it holds no tables of duly".into()).into());
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    configure(&connection, path, durability)?;
    if contents != Contents::Ours(tables.version) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Somebody else may have made them between the look and the lock.
        match schema::examine(&transaction, path, tables.version)? {
            Contents::Free { .. } => schema::create(&transaction)?,
            Contents::Ours(version) if version < tables.version => {
                migration::migrate(&transaction, path, version, tables)?;
                log::info!("the tables of {} are of version {} now", path.display(), tables.version);
            }
            Contents::Ours(_) => {}
        }
        transaction.commit()?;
    }
    schema::watch_moves(&connection)?;
    let identity = std::fs::metadata(path).ok().and_then(|metadata| platform::identity(&metadata));
    let (path, schedules, version) = (path.to_owned(), Schedules::default(), tables.version);
    Ok(Store { connection, path, identity, schedules, transactions: 0, version, accepts_newer: false })
}

/// SQLite's write-ahead log of a database.
fn log(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// Looks at the path with `stat` alone: a database that is open elsewhere in this process would lose its locks if we opened
/// and closed it. Makes a missing file, so that it is private from its first moment.
fn check_path(path: &Path, missing: Missing) -> Result<(), Error> {
    if path.as_os_str().is_empty() || path.as_os_str() == ":memory:" {
        return Err(unusable(path, "expected the name of a file: what is not on the disk is not durable".into()));
    }
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(unusable(path, "it is a folder: expected a file".into())),
        Ok(metadata) => match platform::writable(&metadata) {
            platform::Writable::Anyone => Err(unusable(
                path,
                "anyone may write it, and so run commands as you: take that right away (chmod o-w)".into(),
            )),
            platform::Writable::Group => {
                warn_once(path);
                Ok(())
            }
            platform::Writable::Owner => Ok(()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && missing == Missing::Create => {
            match platform::create_private(path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    Err(unusable(path, format!("it cannot be made: {error}")))
                }
                _ => Ok(()),
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(unusable(path, "there is no such file".into()))
        }
        Err(error) => Err(unusable(path, error.to_string())),
    }
}

/// A scheduler opens its file more than once, and need not say so each time.
fn warn_once(path: &Path) {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned()) {
        log::warn!("{} can be written by its group, who may run commands as you", path.display());
    }
}

/// Sets what we rely on, and reads it back: SQLite accepts an unknown or refused pragma without a word.
fn configure(connection: &Connection, path: &Path, durability: Durability) -> Result<(), Fault> {
    let synchronous = match durability {
        Durability::Full => 2,
        Durability::MayRepeatAfterPowerLoss => 1,
    };
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        let reason = format!("its journal mode stays {mode:?}, expected \"wal\": does the file system support it?");
        return Err(unusable(path, reason).into());
    }
    for (pragma, value) in [
        ("synchronous", synchronous),
        ("foreign_keys", 1),
        ("trusted_schema", 0),
        ("cell_size_check", 1),
        ("fullfsync", 1),
        ("checkpoint_fullfsync", 1),
        ("wal_autocheckpoint", CHECKPOINT_PAGES),
    ] {
        connection.pragma_update(None, pragma, value)?;
        let found: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
        if found != value {
            let reason = format!("SQLite keeps {pragma} at {found}, expected {value}");
            return Err(unusable(path, reason).into());
        }
    }
    // Without it SQLite prepares a statement anew whenever a bound value might suit another plan, which costs 30 us each
    // time; and a plan that changes with a value is one that no test has seen.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(())
}

/// What SQLite's error means for somebody who wants to use the file.
fn describe(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => "it is not an SQLite database".into(),
        Some(ErrorCode::DatabaseCorrupt) => "it is corrupt: restore a backup; duly repairs nothing".into(),
        Some(ErrorCode::ReadOnly) => "it is read-only: make the file and its folder writable".into(),
        Some(ErrorCode::CannotOpen) => "it cannot be opened: may you read and write it and its folder?".into(),
        Some(ErrorCode::DatabaseBusy) => "another program keeps it locked".into(),
        _ => error.to_string(),
    }
}

/// Why something could not be done, for the caller. A file that has become no database, or a corrupt one, stays so.
fn told(path: &Path, fault: Fault, doing: &'static str) -> Error {
    match fault {
        Fault::Sqlite(error) => match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => unusable(path, describe(&error)),
            _ => Error::store(doing, error),
        },
        Fault::Told(error) | Fault::Newer(error) => error,
    }
}

fn unusable(path: &Path, reason: String) -> Error {
    Error::UnusableDatabase { path: path.to_owned(), reason }
}
