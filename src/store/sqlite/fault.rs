//! Classifies the errors of SQLite.

use rusqlite::{Error, ErrorCode, ffi};

use crate::error::BoxError;
use crate::store::fault::{Class, Fault};

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        if let Some(message) = missing(&error) {
            // Without the statement, which has many lines.
            return Fault::Store(Class::Tables, message.into());
        }
        let class = match &error {
            Error::SqliteFailure(code, _) => match code.code {
                _ if code.extended_code == ffi::SQLITE_CONSTRAINT_PRIMARYKEY => Class::Id,
                ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch => Class::Item,
                ErrorCode::DiskFull => Class::Space,
                ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt => Class::Corrupt,
                ErrorCode::Unknown => Class::Statement,
                ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Class::Busy,
                _ => Class::Other,
            },
            Error::FromSqlConversionFailure(..)
            | Error::InvalidColumnType(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::Utf8Error(..) => Class::Item,
            _ => Class::Other,
        };
        Fault::Store(class, error.into())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::Connection;

    use crate::store::fault::{Class, Fault};

    #[test]
    fn each_error_of_sqlite_has_its_class() {
        let home = tempfile::tempdir().unwrap();
        let open = |name: &str| Connection::open(home.path().join(name)).unwrap();
        let connection = open("a.db");
        connection.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER CHECK (n > 0)) STRICT").unwrap();
        let fault = |connection: &Connection, sql: &str| Fault::from(connection.execute_batch(sql).unwrap_err());

        assert!(matches!(fault(&connection, "INSERT INTO t VALUES (1, 0)"), Fault::Store(Class::Item, _)));
        assert!(matches!(fault(&connection, "INSERT INTO t VALUES (1, 'text')"), Fault::Store(Class::Item, _)));
        assert!(matches!(fault(&connection, "INSERT INTO t VALUES (1, 1), (1, 2)"), Fault::Store(Class::Id, _)));
        connection.execute_batch("PRAGMA max_page_count = 2").unwrap();
        assert!(matches!(
            fault(&connection, "CREATE TABLE more AS SELECT zeroblob(9000)"),
            Fault::Store(Class::Space, _)
        ));
        assert!(matches!(fault(&connection, "RELEASE none"), Fault::Store(Class::Statement, _)));
        let missing = Fault::from(connection.prepare("SELECT\n m FROM t").unwrap_err());
        assert!(matches!(missing, Fault::Store(Class::Tables, _)) && missing.is_damage());
        assert_eq!(missing.to_string(), "no such column: m", "without the statement");

        let other = open("a.db");
        other.busy_timeout(Duration::ZERO).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert!(matches!(fault(&other, "BEGIN IMMEDIATE"), Fault::Store(Class::Busy, _)));
        std::fs::write(home.path().join("b.db"), vec![7; 8192]).unwrap();
        assert!(matches!(fault(&open("b.db"), "SELECT * FROM sqlite_master"), Fault::Store(Class::Corrupt, _)));
    }
}
