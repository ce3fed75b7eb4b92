//! Why a transaction did not commit. Inside the wing only: at the door a fault becomes an [`Error`].

use rusqlite::{ErrorCode, ffi};

use crate::error::Error;

/// Why a transaction did not commit: SQLite failed, or what was asked is impossible.
#[derive(Debug)]
pub(crate) enum Fault {
    Sqlite(rusqlite::Error),
    Told(Error),
    /// The tables are of a newer version by now: no more than outcomes may be written.
    Newer(Error),
    /// The file was damaged from outside of SQLite: see [`crate::store::sqlite::damage`].
    Damaged(Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sqlite(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Told(error)
    }
}

impl Fault {
    /// Whether it is about this one item, so that the others can be written without it. Trouble with the file, its locks
    /// or memory is not.
    pub(crate) fn is_about_the_item(&self) -> bool {
        match self {
            Fault::Told(_) => true,
            Fault::Newer(_) | Fault::Damaged(_) => false,
            Fault::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => {
                matches!(error.code, ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch)
            }
            Fault::Sqlite(error) => matches!(
                error,
                rusqlite::Error::FromSqlConversionFailure(..)
                    | rusqlite::Error::InvalidColumnType(..)
                    | rusqlite::Error::IntegralValueOutOfRange(..)
                    | rusqlite::Error::Utf8Error(..)
            ),
        }
    }

    /// Whether it says nothing about the row: this machine's zone data does not answer. The row stays as it is.
    pub(crate) fn is_about_this_machine(&self) -> bool {
        matches!(self, Fault::Told(Error::ZoneUnavailable { .. }))
    }

    /// Whether a row has the id that a new one was to have.
    pub(crate) fn is_about_the_id(&self) -> bool {
        matches!(self, Fault::Sqlite(rusqlite::Error::SqliteFailure(error, _))
            if error.extended_code == ffi::SQLITE_CONSTRAINT_PRIMARYKEY)
    }

    /// Whether there is no room for a row: none on the disk, or no id is left. What asks for none may go on.
    pub(crate) fn is_about_room(&self) -> bool {
        matches!(self, Fault::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull))
    }

    /// Whether SQLite calls the file no database, or a corrupt one, or its tables such as no statement of ours fits; or it was
    /// damaged from outside. A disk that returns other bytes for a moment looks the same.
    pub(crate) fn is_damage(&self) -> bool {
        let Fault::Sqlite(error) = self else { return matches!(self, Fault::Damaged(_)) };
        misfit(error).is_some()
            || matches!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
    }

    pub(crate) fn into_error(self, doing: &'static str) -> Error {
        match self {
            Fault::Told(error) | Fault::Newer(error) | Fault::Damaged(error) => error,
            Fault::Sqlite(source) => Error::store(doing, source),
        }
    }

    /// Whether the tables are not such as the statement was written for: those of a newer version may not be.
    pub(crate) fn is_about_the_tables(&self) -> bool {
        match self {
            Fault::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => error.code == ErrorCode::Unknown,
            Fault::Sqlite(error) => matches!(error, rusqlite::Error::SqlInputError { .. }),
            Fault::Told(_) | Fault::Newer(_) | Fault::Damaged(_) => false,
        }
    }
}

/// What SQLite misses in the tables for a statement of ours. One that had been prepared before they changed is prepared anew when
/// it is run: the same words come without the statement then.
pub(crate) fn misfit(error: &rusqlite::Error) -> Option<&str> {
    match error {
        rusqlite::Error::SqlInputError { msg, .. } => Some(msg),
        rusqlite::Error::SqliteFailure(error, Some(msg)) if error.code == ErrorCode::Unknown => {
            let misses = ["no such table: ", "no such column: ", "no such index: "];
            let known = misses.iter().any(|miss| msg.starts_with(miss)) || msg.contains(" has no column named ");
            known.then_some(msg.as_str())
        }
        _ => None,
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Without the statement, which has many lines.
            Fault::Sqlite(rusqlite::Error::SqlInputError { msg, .. }) => f.write_str(msg),
            Fault::Sqlite(error) => error.fmt(f),
            Fault::Told(error) | Fault::Newer(error) | Fault::Damaged(error) => error.fmt(f),
        }
    }
}
