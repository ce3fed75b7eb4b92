//! Reads the rows of NanoClaw's table. Its database may be in use, and is not written.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

/// Columns that the table must have.
const COLUMNS: [&str; 10] = [
    "id",
    "group_folder",
    "chat_jid",
    "prompt",
    "schedule_type",
    "schedule_value",
    "next_run",
    "last_run",
    "status",
    "created_at",
];
/// Columns that newer versions have too.
const OPTIONAL_COLUMNS: [&str; 2] = ["context_mode", "script"];
/// Time for which to wait for a writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A row with its columns as text; any may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    columns: Vec<Option<String>>,
}

impl Row {
    /// Returns the value of a column.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        let at = COLUMNS.iter().chain(&OPTIONAL_COLUMNS).position(|name| *name == column)?;
        self.columns.get(at)?.as_deref()
    }
}

/// Reads the table, oldest row first. An error is one line that says what was expected.
pub(crate) fn read(path: &Path) -> Result<Vec<Row>, String> {
    let in_file = |reason: String| format!("{}: {reason}", path.display());
    let file = std::fs::canonicalize(path).map_err(|error| in_file(error.to_string()))?;
    if file.is_dir() {
        return Err(in_file("expected NanoClaw's database, found a folder".into()));
    }
    // Opening a pipe would block until another process writes to it.
    if !file.is_file() {
        return Err(in_file("expected NanoClaw's database, found a pipe, a socket or a device".into()));
    }
    let connection = open(&file).map_err(|error| in_file(error.to_string()))?;
    rows(&connection).map_err(|error| {
        in_file(match error {
            ReadError::Foreign(reason) => reason,
            ReadError::Sqlite(error) => format!("expected NanoClaw's database, but it cannot be read: {error}"),
        })
    })
}

/// Opens the file read-only, together with its WAL. SQLite would create a missing WAL in order to read a file in WAL mode. Since
/// no process uses the database then, it is opened as immutable.
fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let is_unused = uses_wal(file) && !PathBuf::from(log).exists();
    let connection = if is_unused {
        Connection::open_with_flags(immutable_uri(file), flags | OpenFlags::SQLITE_OPEN_URI)?
    } else {
        Connection::open_with_flags(file, flags)?
    };
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Returns the URI of a file that does not change while it is open.
fn immutable_uri(file: &Path) -> String {
    let mut address = String::from("file:");
    for byte in file.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' => address.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => address.push(char::from(*byte)),
            byte => address.push_str(&format!("%{byte:02x}")),
        }
    }
    address + "?immutable=1"
}

/// Whether the header names WAL mode.
fn uses_wal(file: &Path) -> bool {
    let mut header = [0; 20];
    File::open(file).and_then(|mut file| file.read_exact(&mut header)).is_ok() && header[18] == 2
}

/// Why the rows cannot be read.
enum ReadError {
    Foreign(String),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        ReadError::Sqlite(error)
    }
}

const TABLES: &str = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
const COLUMN_NAMES: &str = "SELECT name FROM pragma_table_info('scheduled_tasks')";

fn rows(connection: &Connection) -> Result<Vec<Row>, ReadError> {
    let names = |query: &str| -> rusqlite::Result<BTreeSet<String>> {
        connection.prepare(query)?.query_map([], |row| row.get(0))?.collect()
    };
    let (tables, columns) = (names(TABLES)?, names(COLUMN_NAMES)?);
    let expected = format!("expected NanoClaw's table scheduled_tasks with {}", COLUMNS.join(", "));
    if !tables.contains("scheduled_tasks") {
        let hint = if tables.contains("messages_in") {
            "messages_in: this is a session of NanoClaw 2, which stores tasks in another way".to_owned()
        } else if tables.is_empty() {
            "no table".to_owned()
        } else {
            tables.into_iter().take(10).collect::<Vec<_>>().join(", ")
        };
        return Err(ReadError::Foreign(format!("{expected}; found {hint}")));
    }
    let missing: Vec<&str> = COLUMNS.into_iter().filter(|column| !columns.contains(*column)).collect();
    if !missing.is_empty() {
        return Err(ReadError::Foreign(format!("{expected}; the table lacks {}", missing.join(", "))));
    }
    let wanted = COLUMNS.iter().chain(&OPTIONAL_COLUMNS);
    let wanted: Vec<&str> = wanted.map(|column| if columns.contains(*column) { *column } else { "NULL" }).collect();
    let query = format!("SELECT {} FROM scheduled_tasks ORDER BY created_at, id", wanted.join(", "));
    let mut statement = connection.prepare(&query)?;
    let row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<Row> {
        let columns = (0..wanted.len()).map(|at| Ok(text(row.get_ref(at)?))).collect::<rusqlite::Result<_>>()?;
        Ok(Row { columns })
    };
    Ok(statement.query_map([], row)?.collect::<Result<_, _>>()?)
}

/// Returns a value as text. The columns have no fixed type.
fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
    }
}
