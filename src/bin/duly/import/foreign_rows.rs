//! Reads the rows of NanoClaw's tables, of both versions. Its databases may be in use, and are not written.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

/// The table of tasks of version 1.
const TASKS: Layout = Layout {
    table: "scheduled_tasks",
    columns: &[
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
    ],
    optional: &["context_mode", "script"],
    instants: &[],
    rows: "ORDER BY created_at, id",
};
/// The table of messages of a session of version 2, in the order of insertion. As in NanoClaw, SQLite reads the times.
const MESSAGES: Layout = Layout {
    table: "messages_in",
    columns: &["id", "kind", "timestamp", "status", "process_after", "recurrence", "content"],
    optional: &["series_id", "channel_type", "platform_id", "thread_id"],
    instants: &["timestamp", "process_after"],
    rows: "WHERE kind = 'task' ORDER BY rowid",
};
/// The name of the database of a session.
const INBOUND: &str = "inbound.db";
/// Time for which to wait for a writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The columns of a table.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    table: &'static str,
    /// Columns that the table must have.
    columns: &'static [&'static str],
    /// Columns that some versions have.
    optional: &'static [&'static str],
    /// Columns that are read as instants, in UTC unless they name an offset.
    instants: &'static [&'static str],
    /// The rows, and their order.
    rows: &'static str,
}

/// A row with its columns as text; any may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    layout: &'static Layout,
    columns: Vec<Option<String>>,
}

impl Row {
    /// Returns the value of a column.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        let at = self.layout.columns.iter().chain(self.layout.optional).position(|name| *name == column)?;
        self.columns.get(at)?.as_deref()
    }
}

/// The rows of NanoClaw.
pub(crate) enum Source {
    /// Version 1: the tasks.
    Tasks(Vec<Row>),
    /// Version 2: the sessions with their tasks.
    Sessions(Vec<Session>),
}

/// A session of version 2.
pub(crate) struct Session {
    /// The folders of the agent group and of the session, if the database is in its place.
    pub(crate) folders: Option<(String, String)>,
    /// The name of the zone that the agent group has of its own, if it has one.
    pub(crate) zone: Option<String>,
    /// Its messages of kind `task`, oldest first.
    pub(crate) rows: Vec<Row>,
}

/// Reads a database of either version, or all databases of sessions below a folder. An error is one line that says what was
/// expected.
pub(crate) fn read(path: &Path) -> Result<Source, String> {
    let file = std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !file.is_dir() {
        return read_file(&file, path);
    }
    let mut files = Vec::new();
    let found = find_sessions(&file, 2, &mut files);
    found.map_err(|error| format!("{}: {error}", path.display()))?;
    if files.is_empty() {
        return Err(format!(
            "{}: expected NanoClaw's database, or the folder data/v2-sessions of NanoClaw 2, found a folder without {INBOUND}",
            path.display()
        ));
    }
    files.sort();
    let mut sessions = Vec::new();
    for file in files {
        match read_file(&file, &file)? {
            Source::Sessions(more) => sessions.extend(more),
            Source::Tasks(_) => return Err(format!("{}: expected a session of NanoClaw 2", file.display())),
        }
    }
    Ok(Source::Sessions(sessions))
}

/// Finds the databases of sessions in a folder, and below it to a depth.
fn find_sessions(folder: &Path, depth: u32, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if depth > 0 {
                find_sessions(&path, depth - 1, files)?;
            }
        } else if path.ends_with(INBOUND) {
            files.push(path);
        }
    }
    Ok(())
}

/// Reads one database. `path`: for messages.
fn read_file(file: &Path, path: &Path) -> Result<Source, String> {
    let in_file = |reason: String| format!("{}: {reason}", path.display());
    // Opening a pipe would block until another process writes to it.
    if !file.is_file() {
        return Err(in_file("expected NanoClaw's database, found a pipe, a socket or a device".into()));
    }
    let connection = open(file).map_err(|error| in_file(error.to_string()))?;
    source(&connection, file).map_err(|error| {
        in_file(match error {
            ReadError::Foreign(reason) => reason,
            ReadError::Sqlite(error) => format!("expected NanoClaw's database, but it cannot be read: {error}"),
        })
    })
}

/// Returns the last two folders of the path of a database of a session.
fn folders(file: &Path) -> Option<(String, String)> {
    let name = |folder: &Path| folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let session = file.parent().filter(|_| file.ends_with(INBOUND))?;
    Some((name(session.parent()?)?, name(session)?))
}

/// The central database of NanoClaw 2, in the folder of that of all sessions.
const CENTRAL: &str = "v2.db";
/// A database of an older version has no such column.
const HAS_ZONES: &str =
    "SELECT count(*) = 2 FROM pragma_table_info('container_configs') WHERE name IN ('agent_group_id', 'timezone')";
const ZONE_OF_GROUP: &str = "SELECT timezone FROM container_configs WHERE agent_group_id = ?1";

/// Returns the zone that the agent group of a session has of its own, by the central database beside the folder of all sessions.
fn zone_of_group(session: &Path, group: &str) -> Result<Option<String>, ReadError> {
    // data/v2.db and data/v2-sessions/GROUP/SESSION/inbound.db.
    let Some(central) = session.ancestors().nth(4).map(|data| data.join(CENTRAL)).filter(|file| file.is_file()) else {
        return Ok(None);
    };
    let connection = open(&central)?;
    if !connection.query_row(HAS_ZONES, [], |row| row.get(0))? {
        return Ok(None);
    }
    let mut found = connection.prepare(ZONE_OF_GROUP)?;
    let mut rows = found.query([group])?;
    Ok(rows.next()?.map(|row| row.get_ref(0).map(text)).transpose()?.flatten())
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
const COLUMN_NAMES: &str = "SELECT name FROM pragma_table_info(?1)";

fn source(connection: &Connection, file: &Path) -> Result<Source, ReadError> {
    let tables: BTreeSet<String> =
        connection.prepare(TABLES)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    if !tables.contains(TASKS.table) && tables.contains(MESSAGES.table) {
        let folders = folders(file);
        let zone = folders.as_ref().map(|(group, _)| zone_of_group(file, group)).transpose()?.flatten();
        let session = Session { folders, zone, rows: rows(connection, &MESSAGES)? };
        return Ok(Source::Sessions(vec![session]));
    }
    if tables.contains(TASKS.table) {
        return Ok(Source::Tasks(rows(connection, &TASKS)?));
    }
    let found = if tables.is_empty() {
        "no table".to_owned()
    } else if tables.contains("messaging_groups") {
        "the central database of NanoClaw 2: import the folder of its sessions, data/v2-sessions".to_owned()
    } else {
        tables.into_iter().take(10).collect::<Vec<_>>().join(", ")
    };
    Err(ReadError::Foreign(format!("{}; found {found}", TASKS.expected())))
}

impl Layout {
    fn expected(&self) -> String {
        format!("expected NanoClaw's table {} with {}", self.table, self.columns.join(", "))
    }
}

fn rows(connection: &Connection, layout: &'static Layout) -> Result<Vec<Row>, ReadError> {
    let names: BTreeSet<String> = connection
        .prepare(COLUMN_NAMES)?
        .query_map([layout.table], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let missing: Vec<&str> = layout.columns.iter().filter(|column| !names.contains(**column)).copied().collect();
    if !missing.is_empty() {
        return Err(ReadError::Foreign(format!("{}; the table lacks {}", layout.expected(), missing.join(", "))));
    }
    let wanted = layout.columns.iter().chain(layout.optional).map(|column| {
        if layout.instants.contains(column) {
            format!("strftime('%Y-%m-%dT%H:%M:%fZ', {column})")
        } else if names.contains(*column) {
            (*column).to_owned()
        } else {
            "NULL".to_owned()
        }
    });
    let wanted: Vec<String> = wanted.collect();
    let query = format!("SELECT {} FROM {} {}", wanted.join(", "), layout.table, layout.rows);
    let mut statement = connection.prepare(&query)?;
    let row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<Row> {
        let columns = (0..wanted.len()).map(|at| Ok(text(row.get_ref(at)?))).collect::<rusqlite::Result<_>>()?;
        Ok(Row { layout, columns })
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
