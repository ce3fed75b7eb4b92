//! Opens the file: examines it first, and verifies each setting.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::vtab::array;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::error::{Error, Result};
use crate::host::{file_aliases, folder, platform};
use crate::store::fault::{Class, Fault};
use crate::store::sqlite::migration::{self, Tables};
use crate::store::sqlite::restore::record::{self, LogOf};
use crate::store::sqlite::schema::{self, Contents};
use crate::store::sqlite::{damage, fault};

/// The busy timeout: how long a writer waits for another.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Pages in the write-ahead log from which on a commit runs a checkpoint. A page that many turns change, such as an index page, is
/// then written back once per four times as many commits as with SQLite's default of 1000.
const CHECKPOINT_PAGES: i64 = 4000;
/// Older versions of SQLite can lose committed pages when two connections write and checkpoint at once.
const LEAST_SQLITE: i32 = 3_051_003;
/// Capacity of the statement cache: more than there are statements, so that each is prepared once.
const STATEMENTS: usize = 128;

/// How durable a commit is.
///
/// ```
/// use duly::{Durability, Scheduler};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// // For tasks that may run again after a power failure: a commit does not wait for the disk.
/// let builder = Scheduler::builder(&file).durability(Durability::MayRepeatAfterPowerLoss);
/// builder.start()?.shutdown(std::time::Duration::ZERO)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Every commit is on the disk before any run that it records starts (`synchronous = FULL`).
    #[default]
    Full,
    /// The last commits before a power failure, or a crash of the operating system, may be lost: a run that had already run may
    /// start again. A crash of the program alone loses nothing (`synchronous = NORMAL`).
    MayRepeatAfterPowerLoss,
}

/// What to do if there is no database yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Create it, or create duly's tables beside those of an application.
    Create,
    /// Create it, but refuse a file that holds tables of an application only.
    CreateAlone,
    /// Fail.
    Refuse,
}

/// An open file.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    /// The real path, whichever name was given.
    pub(crate) path: PathBuf,
    /// Device and inode, if the system reports them.
    pub(crate) identity: Option<(u64, u64)>,
}

/// Opens a file, creates its tables if `missing` says so, and migrates those of an older version.
pub(crate) fn open(path: &Path, missing: Missing, durability: Durability, tables: &Tables) -> Result<Opened, Fault> {
    check_library(rusqlite::version_number(), rusqlite::version()).map_err(|reason| unusable(path, reason))?;
    check_path(path, missing)?;
    let path = &platform::real_path(path).map_err(|error| unusable(path, error.to_string()))?;
    if let Some(reason) = file_aliases::mounted_alone(path) {
        return Err(unusable(path, reason).into());
    }
    if let Some(fault) = folder::foreign_log(path) {
        return Err(unusable(path, fault.to_string()).into());
    }
    check_log(path)?;
    // Without CREATE: `check_path` has created a missing file if `missing` says so. An absolute name is never read as a URI.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let has_log = std::fs::metadata(log(path)).is_ok();
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // If this is another program's file, its log must not be written back.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log)?;
    if connection.is_readonly("main")? {
        return Err(unusable(path, with_owner(path, READ_ONLY)).into());
    }
    let contents = schema::examine(&connection, path, tables.version)?;
    if missing == Missing::Refuse && matches!(contents, Contents::Free { .. }) {
        return Err(unusable(path, "it holds no tables of duly".into()).into());
    }
    if missing == Missing::CreateAlone && contents == (Contents::Free { foreign_tables: true }) {
        let reason = "it holds tables of another program and none of duly: name a file of duly's own, or have its tables made \
                      beside those (duly run --create)";
        return Err(unusable(path, reason.into()).into());
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    configure(&connection, path, durability)?;
    if contents != Contents::Ours(tables.version) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another program may have created them between the first check and the lock.
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
    let identity = platform::identity_at(path);
    Ok(Opened { connection, path: path.to_owned(), identity })
}

/// Opens a database in memory with the tables of this version, all of them empty.
#[cfg(feature = "postgres")]
pub(crate) fn in_memory() -> Result<Connection, Fault> {
    let connection = Connection::open_in_memory()?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // The server checks its foreign keys. An operation may need a run and not its task.
    connection.pragma_update(None, "foreign_keys", false)?;
    schema::create(&connection)?;
    connection.execute("DELETE FROM scheduler_meta", [])?;
    array::load_module(&connection)?;
    schema::watch_moves(&connection)?;
    Ok(connection)
}

/// Refuses a version of SQLite that is too old. Without the feature `bundled`, the application or the system provides the library.
fn check_library(number: i32, version: &str) -> Result<(), String> {
    if number >= LEAST_SQLITE {
        return Ok(());
    }
    let advice = "link a newer library, or build duly with its feature bundled";
    Err(format!("expected SQLite 3.51.3 or newer, found {version}, which can lose committed pages: {advice}"))
}

/// Returns the path of SQLite's write-ahead log of a database.
pub(crate) fn log(path: &Path) -> PathBuf {
    damage::beside(path, "-wal")
}

/// Puts the log aside that belongs to another file, which was replaced while no scheduler ran: SQLite would apply it to this one.
fn check_log(path: &Path) -> Result<(), Error> {
    let log = log(path);
    let name = log.file_name().unwrap_or_default().display();
    let to_use = format!("to use the file as it is, move {name} and the -shm file beside it away, and start again");
    match record::log_of(path) {
        LogOf::ThisFile => Ok(()),
        LogOf::FileBefore if damage::set_aside(path).is_some() => Ok(()),
        LogOf::FileBefore => {
            let reason = format!("it was replaced, and {name} belongs to the file that was there before: {to_use}");
            Err(unusable(path, reason))
        }
        LogOf::Unknown => {
            let reason = format!(
                "it was replaced, and {name} was that of the file before and has changed since: whose changes it holds is not \
                 known: {to_use}"
            );
            Err(unusable(path, reason))
        }
    }
}

/// Checks the path with `stat` alone: a database that is open elsewhere in this process would lose its locks if this function
/// opened and closed it. Creates a missing file, which is private from its first moment.
fn check_path(path: &Path, missing: Missing) -> Result<(), Error> {
    if path.as_os_str().is_empty() || path.as_os_str() == ":memory:" {
        return Err(unusable(path, "expected the name of a file: what is not on the disk is not durable".into()));
    }
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(unusable(path, "it is a folder: expected a file".into())),
        Ok(metadata) if !metadata.is_file() => {
            Err(unusable(path, "it is a pipe, a socket or a device: expected a file".into()))
        }
        Ok(metadata) => match (platform::writable(&metadata), file_aliases::hard_links(path, &metadata)) {
            (platform::Writable::Anyone, _) => Err(unusable(
                path,
                "anyone may write it, and so run commands as you: take that right away (chmod o-w)".into(),
            )),
            (_, Some(reason)) => Err(unusable(path, reason)),
            (platform::Writable::Group, None) => {
                warn_once(path);
                Ok(())
            }
            (platform::Writable::Owner, None) => Ok(()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && missing != Missing::Refuse => {
            match platform::create_private(path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    Err(denied(path, &error, format!("it cannot be made: {error}")))
                }
                _ => Ok(()),
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(unusable(path, "there is no such file".into()))
        }
        Err(error) => Err(denied(path, &error, error.to_string())),
    }
}

/// A scheduler opens its file more than once, and warns once.
fn warn_once(path: &Path) {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned()) {
        log::warn!("{} can be written by its group, who may run commands as you", path.display());
    }
}

/// Changes the settings that duly relies on, and reads them back: SQLite ignores an unknown or refused pragma silently.
pub(crate) fn configure(connection: &Connection, path: &Path, durability: Durability) -> Result<(), Fault> {
    let synchronous = match durability {
        Durability::Full => 2,
        Durability::MayRepeatAfterPowerLoss => 1,
    };
    let mode = use_wal(connection)?;
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
    // Without it SQLite prepares a statement again whenever a bound value might suit another plan, which costs 30 us each time;
    // and no test sees a plan that depends on a value.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Lists of ids as parameters.
    array::load_module(connection)?;
    Ok(())
}

/// How long the change of the mode of a file waits before it is tried again.
const MODE_PAUSE: Duration = Duration::from_millis(2);

/// Has the file use a write-ahead log, and returns the mode that it has now. SQLite refuses a change of the mode at once, without the
/// busy timeout, while another connection writes or changes the mode of a new file as well.
fn use_wal(connection: &Connection) -> rusqlite::Result<String> {
    let mode = || connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0));
    for _ in 0..BUSY_TIMEOUT.as_millis() / MODE_PAUSE.as_millis() {
        match mode() {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => std::thread::sleep(MODE_PAUSE),
            mode => return mode,
        }
    }
    mode()
}

/// How the reason of [`Class::Tables`] begins.
pub(crate) const OTHER_TABLES: &str = "its tables are not as duly made them";

const READ_ONLY: &str = "it is read-only: make the file and its folder writable";

/// Returns a reason why this user cannot use a file, with its owner if that is another user.
fn with_owner(path: &Path, reason: &str) -> String {
    folder::of_another_user(path).map_or_else(|| reason.to_owned(), |fault| format!("{reason}; {fault}"))
}

fn denied(path: &Path, error: &std::io::Error, reason: String) -> Error {
    let is_denied = error.kind() == std::io::ErrorKind::PermissionDenied;
    unusable(path, if is_denied { with_owner(path, &reason) } else { reason })
}

/// Returns what a fault means for a user of the file.
fn describe(path: &Path, fault: &Fault) -> String {
    let code = match fault {
        Fault::Store(Class::Tables, missing) => {
            return format!("{OTHER_TABLES} ({missing}): restore a backup; duly repairs nothing");
        }
        Fault::Store(Class::Corrupt | Class::Busy | Class::Other, source) => fault::code(source),
        _ => None,
    };
    match code {
        Some(ErrorCode::NotADatabase) => "it is not an SQLite database".into(),
        Some(ErrorCode::DatabaseCorrupt) => "it is corrupt: restore a backup; duly repairs nothing".into(),
        Some(ErrorCode::ReadOnly) => with_owner(path, READ_ONLY),
        Some(ErrorCode::CannotOpen) => {
            with_owner(path, "it cannot be opened: may you read and write it and its folder?")
        }
        Some(ErrorCode::DatabaseBusy) => "another program keeps it locked".into(),
        _ => fault.to_string(),
    }
}

/// Returns the error for a file that could not be opened.
pub(crate) fn open_error(path: &Path, fault: Fault) -> Error {
    match fault {
        Fault::Request(error) | Fault::Newer(error) | Fault::Damaged(error) | Fault::Restored(error) => error,
        fault => unusable(path, describe(path, &fault)),
    }
}

/// Returns the error for the caller of an operation. These faults are permanent: a file that is corrupt or no database, and a file
/// whose tables fit no statement, which one flipped bit in their definition can cause.
pub(crate) fn error(path: &Path, fault: Fault, doing: &'static str) -> Error {
    match fault {
        Fault::Store(Class::Tables | Class::Corrupt, _) => unusable(path, describe(path, &fault)),
        fault => fault.into_error(doing),
    }
}

pub(crate) fn unusable(path: &Path, reason: String) -> Error {
    Error::UnusableDatabase { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rusqlite::Connection;

    use super::{Durability, LEAST_SQLITE, Missing, check_library, open};
    use crate::store::sqlite::migration::Tables;

    #[test]
    fn an_old_library_is_refused_with_both_versions() {
        assert_eq!(check_library(3_051_003, "3.51.3"), Ok(()));
        let refused = check_library(3_051_002, "3.51.2").unwrap_err();
        assert!(refused.starts_with("expected SQLite 3.51.3 or newer, found 3.51.2"), "{refused}");
        // The guide quotes it in two lines.
        let quoted = format!("cannot use agent.db: {}", refused.replace("3.51.2", "3.40.1"));
        let guide = include_str!("../../../docs/linking.md").replace('\n', " ");
        assert!(guide.contains(&quoted), "{quoted}");
    }

    /// `.ci/rusqlite` also runs it with the library of the system, which may be older.
    #[test]
    fn a_file_opens_if_the_linked_library_is_new_enough() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("agent.db");
        let opened = open(&file, Missing::Create, Durability::Full, &Tables::CURRENT);
        assert_eq!(opened.is_ok(), rusqlite::version_number() >= LEAST_SQLITE, "with SQLite {}", rusqlite::version());
        assert_eq!(file.exists(), opened.is_ok());
    }

    #[test]
    fn the_change_of_the_mode_of_a_new_file_waits_for_another_that_writes() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("agent.db");
        let other = Connection::open(&file).unwrap();
        other.execute_batch("CREATE TABLE of_the_application (id INTEGER); BEGIN IMMEDIATE").unwrap();
        let (sender, ended) = mpsc::channel();
        let opens = std::thread::spawn(move || {
            sender.send(open(&file, Missing::Create, Durability::Full, &Tables::CURRENT).is_ok()).unwrap();
        });
        assert_eq!(ended.recv_timeout(Duration::from_millis(300)), Err(mpsc::RecvTimeoutError::Timeout));
        other.execute_batch("COMMIT").unwrap();
        assert!(ended.recv().unwrap());
        opens.join().unwrap();
    }
}
