//! The rows of NanoClaw's table, read from its database: which may be in use, and is not written.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

/// What a table of that name must have to be NanoClaw's.
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
/// What newer versions have beside these.
const LATER: [&str; 2] = ["context_mode", "script"];
/// How long a writer may be at work before it is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// A row: its columns as text, of which any may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    columns: Vec<Option<String>>,
}

impl Row {
    /// A column that the table has.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        let at = COLUMNS.iter().chain(&LATER).position(|name| *name == column)?;
        self.columns.get(at)?.as_deref()
    }
}

/// Reads the table, oldest row first. An error is one line, which says what was expected.
pub(crate) fn read(path: &Path) -> Result<Vec<Row>, String> {
    let in_file = |reason: String| format!("{}: {reason}", path.display());
    let file = std::fs::canonicalize(path).map_err(|error| in_file(error.to_string()))?;
    if file.is_dir() {
        return Err(in_file("expected NanoClaw's database, found a folder".into()));
    }
    // Whoever opened a pipe would wait for somebody to write.
    if !file.is_file() {
        return Err(in_file("expected NanoClaw's database, found a pipe, a socket or a device".into()));
    }
    let connection = open(&file).map_err(|error| in_file(error.to_string()))?;
    rows(&connection).map_err(|error| {
        in_file(match error {
            Unread::Foreign(reason) => reason,
            Unread::Sqlite(error) => format!("expected NanoClaw's database, and it cannot be read: {error}"),
        })
    })
}

/// Without the right to write. A log beside the file is read with it. Where there is none, SQLite would make one to read a file
/// that is kept in that mode; nobody is at work on it then, so that it is told that nobody will be.
fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let at_rest = keeps_a_log(file) && !PathBuf::from(log).exists();
    let connection = if at_rest {
        Connection::open_with_flags(unchanging(file), flags | OpenFlags::SQLITE_OPEN_URI)?
    } else {
        Connection::open_with_flags(file, flags)?
    };
    connection.busy_timeout(PATIENCE)?;
    Ok(connection)
}

/// The address of a file that nobody changes meanwhile.
fn unchanging(file: &Path) -> String {
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

/// Whether the header says that changes go to a write-ahead log.
fn keeps_a_log(file: &Path) -> bool {
    let mut header = [0; 20];
    File::open(file).and_then(|mut file| file.read_exact(&mut header)).is_ok() && header[18] == 2
}

/// Why there are no rows.
enum Unread {
    Foreign(String),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Unread {
    fn from(error: rusqlite::Error) -> Self {
        Unread::Sqlite(error)
    }
}

const TABLES: &str = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
const COLUMNS_THERE: &str = "SELECT name FROM pragma_table_info('scheduled_tasks')";

fn rows(connection: &Connection) -> Result<Vec<Row>, Unread> {
    let names = |query: &str| -> rusqlite::Result<BTreeSet<String>> {
        connection.prepare(query)?.query_map([], |row| row.get(0))?.collect()
    };
    let (tables, there) = (names(TABLES)?, names(COLUMNS_THERE)?);
    let expected = format!("expected NanoClaw's table scheduled_tasks with {}", COLUMNS.join(", "));
    if !tables.contains("scheduled_tasks") {
        let hint = if tables.contains("messages_in") {
            "messages_in: this is a session of NanoClaw 2, whose tasks are kept otherwise".to_owned()
        } else if tables.is_empty() {
            "no table".to_owned()
        } else {
            tables.into_iter().take(10).collect::<Vec<_>>().join(", ")
        };
        return Err(Unread::Foreign(format!("{expected}; found {hint}")));
    }
    let lacking: Vec<&str> = COLUMNS.into_iter().filter(|column| !there.contains(*column)).collect();
    if !lacking.is_empty() {
        return Err(Unread::Foreign(format!("{expected}; the table there lacks {}", lacking.join(", "))));
    }
    let wanted = COLUMNS.iter().chain(&LATER);
    let wanted: Vec<&str> = wanted.map(|column| if there.contains(*column) { *column } else { "NULL" }).collect();
    let query = format!("SELECT {} FROM scheduled_tasks ORDER BY created_at, id", wanted.join(", "));
    let mut statement = connection.prepare(&query)?;
    let row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<Row> {
        let columns = (0..wanted.len()).map(|at| Ok(text(row.get_ref(at)?))).collect::<rusqlite::Result<_>>()?;
        Ok(Row { columns })
    };
    Ok(statement.query_map([], row)?.collect::<Result<_, _>>()?)
}

/// A value as text. The table's columns take any kind.
fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
    }
}
