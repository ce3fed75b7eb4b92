//! Classifies the errors of SQLite.

use rusqlite::{Error, ErrorCode, ffi};

use crate::error::BoxError;
use crate::store::fault::Fault;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        if let Some(message) = missing(&error) {
            // Without the statement, which has many lines.
            return Fault::Tables(message.into());
        }
        let class: fn(BoxError) -> Fault = match &error {
            Error::SqliteFailure(code, _) => match code.code {
                _ if code.extended_code == ffi::SQLITE_CONSTRAINT_PRIMARYKEY => Fault::Id,
                ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch => Fault::Item,
                ErrorCode::DiskFull => Fault::Space,
                ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt => Fault::Corrupt,
                ErrorCode::Unknown => Fault::Statement,
                _ => Fault::Other,
            },
            Error::FromSqlConversionFailure(..)
            | Error::InvalidColumnType(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::Utf8Error(..) => Fault::Item,
            _ => Fault::Other,
        };
        class(error.into())
    }
}

/// Returns what the tables lack for a statement. SQLite prepares a statement again if the tables changed since it was prepared: the
/// message then comes without the statement.
pub(crate) fn missing(error: &Error) -> Option<&str> {
    match error {
        Error::SqlInputError { msg, .. } => Some(msg),
        Error::SqliteFailure(error, Some(msg)) if error.code == ErrorCode::Unknown => {
            let prefixes = ["no such table: ", "no such column: ", "no such index: "];
            let known = prefixes.iter().any(|prefix| msg.starts_with(prefix)) || msg.contains(" has no column named ");
            known.then_some(msg.as_str())
        }
        _ => None,
    }
}

/// Returns SQLite's code for a fault that SQLite reported.
pub(crate) fn code(source: &BoxError) -> Option<ErrorCode> {
    source.downcast_ref::<Error>()?.sqlite_error_code()
}
