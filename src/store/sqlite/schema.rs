//! The tables: `schema.sql`, its version, and whether a file's tables are duly's.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};

use crate::error::Error;
use crate::store::fault::Fault;

/// The version of `schema.sql`. Each released version keeps a fixture under `tests/fixtures/`.
pub(crate) const VERSION: i64 = 1;

const SCHEMA: &str = include_str!("../../../schema.sql");

/// Refuses every invalid transition of a run's status. For tests and debug builds only: it costs 15 to 20 % of the time of a drain.
#[cfg(debug_assertions)]
const WATCH: &str = "
    CREATE TEMP TRIGGER task_runs_moves BEFORE UPDATE ON main.task_runs
    WHEN NOT (OLD.status = NEW.status AND OLD.finished_at IS NULL
              OR OLD.status = 'failed' AND NEW.status = 'failed' AND NEW.attempt = OLD.attempt
              OR OLD.status = 'skipped' AND NEW.status = 'skipped' AND NEW.occurrences > OLD.occurrences
              OR (OLD.status = 'queued' OR OLD.status = 'failed') AND NEW.status = 'running'
                 AND NEW.attempt = OLD.attempt + 1 AND OLD.blocked IS NULL
              OR (OLD.status = 'queued' OR OLD.status = 'failed') AND NEW.status = 'cancelled'
              OR OLD.status = 'queued' AND NEW.status = 'missed' AND OLD.attempt = OLD.forgiven
              OR OLD.status = 'queued' AND NEW.status = 'queued' AND NEW.attempt = OLD.attempt
              OR OLD.status = 'running' AND NEW.status = 'queued' AND NEW.forgiven = OLD.forgiven + 1
              OR OLD.status = 'running' AND (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'dead'
                                             OR NEW.status = 'cancelled')
              OR OLD.status = 'running' AND NEW.status = 'skipped' AND NEW.forgiven = OLD.forgiven + 1)
      OR NEW.attempt < OLD.attempt
    BEGIN
        SELECT RAISE(ABORT, 'a run has no such transition');
    END";

/// Another program may migrate the tables at any time.
const STORED: &str = "SELECT value FROM scheduler_meta WHERE key = 'schema_version'";

/// The content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// No tables of duly, and none with their names.
    Free { foreign_tables: bool },
    /// Duly's tables, of this version.
    Ours(i64),
}

/// Examines a file's tables without writing. `known`: the newest version that is accepted. Refuses a file with
/// a table, view, index or trigger that has a name of duly's and is not duly's: it belongs to another program.
pub(crate) fn examine(connection: &Connection, path: &Path, known: i64) -> Result<Contents, Fault> {
    let encoding: String = connection.query_row("PRAGMA encoding", [], |row| row.get(0))?;
    if encoding != "UTF-8" {
        let reason = format!("its text is stored as {encoding}, expected UTF-8: give duly a file of its own");
        return Err(unusable(path, reason));
    }
    let ours = names();
    let mut found = Vec::new();
    let mut foreign_tables = false;
    let mut statement = connection.prepare("SELECT type, name FROM sqlite_master ORDER BY rowid")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
        if ours.iter().any(|(_, ours)| ours.eq_ignore_ascii_case(&name)) {
            found.push((kind, name));
        } else if kind == "table" && !name.starts_with("sqlite_") {
            foreign_tables = true;
        }
    }
    let Some((kind, name)) = found.first() else { return Ok(Contents::Free { foreign_tables }) };
    if let Some(version) = stored_version(connection)? {
        return match ours.iter().find(|(kind, name)| !found.iter().any(|(k, n)| k == kind && n == name)) {
            _ if version > known => Err(newer(path, version, known)),
            Some((kind, name)) if version == known => Err(unusable(
                path,
                format!(
                    "its {kind} {name} is missing: another program changed the tables; restore it from schema.sql or a backup"
                ),
            )),
            _ => Ok(Contents::Ours(version)),
        };
    }
    // Another program may have one or two of these names, not most of them.
    let reason = if is_marked(connection)? || found.len() * 2 > ours.len() {
        let damaged = "its table scheduler_meta is damaged: expected the rows program and schema_version";
        format!("{damaged}, as duly writes them; restore the file from a backup")
    } else {
        format!("it holds a {kind} {name} that is not duly's: give duly a file of its own, or rename that {kind}")
    };
    Err(unusable(path, reason))
}

/// Creates the tables, inside the caller's transaction.
pub(crate) fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(SCHEMA)
}

/// Returns whether `schema.sql` holds this statement, as `sqlite_schema` has it.
pub(crate) fn creates(statement: &str) -> bool {
    SCHEMA.contains(&format!("\n{statement};"))
}

/// Fails if another program has migrated the tables beyond this version since they were opened.
pub(crate) fn check_version(connection: &Connection, path: &Path, known: i64) -> Result<(), Fault> {
    let stored: Option<String> = connection.prepare_cached(STORED)?.query_row([], |row| row.get(0)).optional()?;
    compare_version(stored.as_deref(), path, known)
}

/// As [`check_version`], for a version that was read already.
pub(crate) fn compare_version(stored: Option<&str>, path: &Path, known: i64) -> Result<(), Fault> {
    match stored.and_then(|stored| stored.parse().ok()) {
        Some(version) if version > known => Err(newer(path, version, known)),
        _ => Ok(()),
    }
}

fn newer(path: &Path, version: i64, known: i64) -> Fault {
    let reason = format!(
        "its tables are of version {version}, written by a newer duly; this one knows version {known}: use the newer program"
    );
    Fault::Newer(Error::UnusableDatabase { path: path.to_owned(), reason })
}

/// Makes the database refuse transitions that this program must never make.
#[cfg(debug_assertions)]
pub(crate) fn watch_moves(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(WATCH)
}

#[cfg(not(debug_assertions))]
pub(crate) fn watch_moves(_connection: &Connection) -> rusqlite::Result<()> {
    Ok(())
}

/// Returns the version of the tables, or `None` if no row marks them as duly's.
fn stored_version(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    let marked = "SELECT value FROM scheduler_meta WHERE key = ?1";
    let Ok(mut statement) = connection.prepare(marked) else { return Ok(None) };
    let mut value = |key: &str| statement.query_row([key], |row| row.get::<_, String>(0)).optional();
    match (value("program"), value("schema_version")) {
        (Ok(Some(program)), Ok(Some(version))) if program == "duly" => {
            Ok(version.parse().ok().filter(|version| *version >= 0))
        }
        _ => Ok(None),
    }
}

/// Returns whether a row marks the tables as duly's, whatever the version says.
fn is_marked(connection: &Connection) -> rusqlite::Result<bool> {
    let marked = "SELECT 1 FROM scheduler_meta WHERE key = 'program' AND value = 'duly'";
    let Ok(mut statement) = connection.prepare(marked) else { return Ok(false) };
    statement.exists([])
}

/// Returns what `schema.sql` creates, read from it: kind and name.
fn names() -> Vec<(&'static str, &'static str)> {
    let mut names = Vec::new();
    for line in SCHEMA.lines() {
        let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
        if words.next() != Some("CREATE") {
            continue;
        }
        let kind = match words.next() {
            Some("TABLE") => "table",
            Some("VIEW") => "view",
            Some("TRIGGER") => "trigger",
            Some("UNIQUE") => words.next().map_or("", |_| "index"),
            Some("INDEX") => "index",
            _ => "",
        };
        if let Some(name) = words.next() {
            names.push((kind, name));
        }
    }
    names
}

pub(crate) fn unusable(path: &Path, reason: String) -> Fault {
    Fault::Request(Error::UnusableDatabase { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::{SCHEMA, names};

    #[test]
    fn every_name_of_the_schema_is_known() {
        let names = names();
        assert_eq!(names.len(), SCHEMA.matches("\nCREATE ").count());
        for expected in [
            ("table", "scheduled_tasks"),
            ("index", "task_runs_running"),
            ("trigger", "scheduled_tasks_no_replace"),
            ("view", "task_overview"),
        ] {
            assert!(names.contains(&expected), "{expected:?}");
        }
    }
}
