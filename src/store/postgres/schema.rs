//! The tables on a server: `schema.postgres.sql`, its version, and whether the tables of a schema are duly's.

use std::path::PathBuf;

use crate::error::Error;
use crate::store::fault::{Class, Fault};
use crate::store::postgres::server::{CLASS, Server};
use crate::store::postgres::{TRIES, rights};
use crate::store::sqlite::file::Missing;
use crate::store::sqlite::schema::VERSION;

const SCHEMA: &str = include_str!("../../../schema.postgres.sql");

/// The oldest release of PostgreSQL, as its `server_version_num`.
const OLDEST: i32 = 140_000;

/// The class of the locks of those who create tables: the schema may have no oid yet.
pub(super) const CLASS_OF_CREATIONS: i32 = CLASS + 3;
/// Only those who create the tables of the same schema wait for each other.
const CREATION: &str = "SELECT pg_advisory_xact_lock($1, hashtext($2))";
const CREATION_IF_FREE: &str = "SELECT pg_try_advisory_xact_lock($1, hashtext($2))";
/// Waits until the tables are created. The lock is shared, so that all who wait go on at once: with an exclusive lock, each would also wait
/// while those before it examine the tables.
const END_OF_CREATION: &str = "SELECT pg_advisory_xact_lock_shared($1, hashtext($2))";

const DATABASE: &str = "
    SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding'),
           EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)";

/// What a schema holds: kind and name. Triggers that enforce foreign keys are internal.
const HELD: &str = "
    SELECT CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'table' WHEN 'v' THEN 'view' WHEN 'i' THEN 'index'
                          WHEN 'S' THEN 'sequence' ELSE 'relation' END AS kind, c.relname::text AS name
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1
    UNION ALL
    SELECT 'function', p.proname::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1
    UNION ALL
    SELECT 'trigger', t.tgname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
      JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND NOT t.tgisinternal
    ORDER BY kind DESC, name";

const MARKS: &str = "
    SELECT (SELECT value FROM scheduler_meta WHERE key = 'program'),
           (SELECT value FROM scheduler_meta WHERE key = 'schema_version')";

/// The content of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    /// No tables of duly, and nothing with their names.
    Free { exists: bool, foreign_tables: bool },
    /// Duly's tables, of this version.
    Ours,
}

/// Examines the tables, and creates them if `missing` says so.
pub(crate) fn prepare(server: &mut Server, missing: Missing) -> Result<(), Fault> {
    match examine(server)? {
        Contents::Ours => {}
        Contents::Free { .. } if missing == Missing::Refuse => {
            return Err(unusable(server, "it holds no tables of duly".into()));
        }
        Contents::Free { foreign_tables: true, .. } if missing == Missing::CreateAlone => {
            let reason = "its schema holds tables of another program and none of duly: name a schema of duly's own (?schema=), or have \
                          its tables made beside those (duly run --create)";
            return Err(unusable(server, reason.into()));
        }
        Contents::Free { .. } => {
            let mut tries = 1;
            loop {
                server.begin_without_lock()?;
                match create(server).and_then(|()| server.commit()) {
                    Ok(()) => break,
                    Err(_) if server.take_repeat() && tries < TRIES => tries += 1,
                    Err(fault) => {
                        server.roll_back();
                        return Err(fault);
                    }
                }
            }
        }
    }
    server.find_schema()
}

/// Returns whether the schema holds duly's tables. Refuses what [`examine`] refuses.
pub(crate) fn exists(server: &mut Server) -> Result<bool, Fault> {
    Ok(examine(server)? == Contents::Ours)
}

/// Creates the tables, inside the caller's transaction.
pub(super) fn create(server: &mut Server) -> Result<(), Fault> {
    let name = server.address().schema().to_owned();
    let is_first: bool = server.query(CREATION_IF_FREE, &[&CLASS_OF_CREATIONS, &name])?[0].try_get(0)?;
    if !is_first {
        server.batch("SAVEPOINT wait")?;
        server.query(END_OF_CREATION, &[&CLASS_OF_CREATIONS, &name])?;
        if exists(server)? {
            return Ok(());
        }
        // The holder of the lock has created nothing. The shared lock is released first: two sessions that keep it would deadlock.
        server.batch("ROLLBACK TO wait")?;
        server.query(CREATION, &[&CLASS_OF_CREATIONS, &name])?;
    }
    // Another program may have created them between the first look and the lock.
    let Contents::Free { exists, .. } = examine(server)? else { return Ok(()) };
    if !exists {
        // Without IF NOT EXISTS, as the role may have the right to use a schema and not the right to create one.
        let schema = server.address().quoted_schema();
        server.batch(&format!("CREATE SCHEMA {schema}"))?;
    }
    server.batch(SCHEMA)
}

/// Examines what the schema holds without writing. Refuses a schema in which something has a name of duly's and is not duly's: it
/// belongs to another program.
fn examine(server: &mut Server) -> Result<Contents, Fault> {
    let schema = server.address().schema().to_owned();
    let database = server.query(DATABASE, &[&schema])?;
    let (number, release): (i32, String) = (database[0].try_get(0)?, database[0].try_get(1)?);
    if number < OLDEST {
        return Err(unusable(server, format!("expected PostgreSQL 14 or newer, found {release}")));
    }
    let encoding: String = database[0].try_get(2)?;
    if encoding != "UTF8" {
        let reason = format!("its encoding is {encoding}, expected UTF8: create the database with ENCODING 'UTF8'");
        return Err(unusable(server, reason));
    }

    let ours = names();
    let mut found = Vec::new();
    let mut foreign_tables = false;
    for row in server.query(HELD, &[&schema])? {
        let (kind, name): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        if ours.iter().any(|(_, ours)| *ours == name) {
            found.push((kind, name));
        } else if kind == "table" {
            foreign_tables = true;
        }
    }
    let Some((kind, name)) = found.first() else {
        return Ok(Contents::Free { exists: database[0].try_get(3)?, foreign_tables });
    };
    let foreign = format!("; if that {kind} {name} is another program's, give duly a schema of its own (?schema=)");
    rights::require_to_look(server, if found.len() * 2 > ours.len() { "" } else { &foreign })?;
    let marks = match found.iter().any(|(kind, name)| kind == "table" && name == "scheduler_meta") {
        true => read_marks(server)?,
        false => (None, None),
    };
    if let (Some("duly"), Some(version)) = (marks.0.as_deref(), marks.1) {
        return match ours.iter().find(|(kind, name)| !found.iter().any(|(k, n)| k == kind && n == name)) {
            _ if version > VERSION => Err(newer(server, version)),
            Some((kind, name)) => Err(unusable(
                server,
                format!(
                    "its {kind} {name} is missing: another program changed the tables; restore it from schema.postgres.sql or a backup"
                ),
            )),
            None => Ok(Contents::Ours),
        };
    }
    // Another program may have one or two of these names, not most of them.
    let reason = if marks.0.as_deref() == Some("duly") || found.len() * 2 > ours.len() {
        let damaged = "its table scheduler_meta is damaged: expected the rows program and schema_version";
        format!("{damaged}, as duly writes them; restore the schema from a backup")
    } else {
        let advice = "give duly a schema of its own (?schema=)";
        format!("its schema {schema} holds a {kind} {name} that is not duly's: {advice}, or rename that {kind}")
    };
    Err(unusable(server, reason))
}

/// Returns the program and the version that the tables are marked with. A foreign table may have other columns.
fn read_marks(server: &mut Server) -> Result<(Option<String>, Option<i64>), Fault> {
    let rows = match server.query(MARKS, &[]) {
        Err(Fault::Store(Class::Tables | Class::Item | Class::Statement, _)) => return Ok((None, None)),
        rows => rows?,
    };
    let Ok(program) = rows[0].try_get(0) else { return Ok((None, None)) };
    let version: Option<String> = rows[0].try_get(1).unwrap_or_default();
    Ok((program, version.and_then(|version| version.parse().ok()).filter(|version| *version >= 0)))
}

/// Returns what `schema.postgres.sql` creates, read from it: kind and name.
fn names() -> Vec<(&'static str, String)> {
    let mut names = Vec::new();
    let mut table = "";
    for line in SCHEMA.lines() {
        if line.contains(" AS IDENTITY") {
            names.push(("sequence", format!("{table}_id_seq")));
        }
        let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
        if !line.starts_with("CREATE") || words.next() != Some("CREATE") {
            continue;
        }
        let kind = match words.next() {
            Some("TABLE") => "table",
            Some("VIEW") => "view",
            Some("TRIGGER") => "trigger",
            Some("FUNCTION") => "function",
            Some("UNIQUE") => words.next().map_or("", |_| "index"),
            Some("INDEX") => "index",
            _ => "",
        };
        if let Some(name) = words.next() {
            if kind == "table" {
                table = name;
            }
            names.push((kind, name.to_owned()));
        }
    }
    names
}

fn newer(server: &Server, version: i64) -> Fault {
    let reason = format!(
        "its tables are of version {version}, written by a newer duly; this one knows version {VERSION}: use the newer program"
    );
    Fault::Newer(Error::UnusableDatabase { path: place(server), reason })
}

fn unusable(server: &Server, reason: String) -> Fault {
    Fault::Request(Error::UnusableDatabase { path: place(server), reason })
}

fn place(server: &Server) -> PathBuf {
    PathBuf::from(server.address().to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{SCHEMA, names};

    #[test]
    fn every_name_of_the_schema_is_known() {
        let names = names();
        let sequences = names.iter().filter(|(kind, _)| *kind == "sequence").count();
        assert_eq!(names.len() - sequences, SCHEMA.matches("\nCREATE ").count());
        for expected in [
            ("table", "scheduled_tasks"),
            ("sequence", "scheduled_tasks_id_seq"),
            ("index", "task_runs_running"),
            ("trigger", "scheduled_tasks_edited"),
            ("function", "scheduled_tasks_edited"),
            ("view", "task_overview"),
        ] {
            assert!(names.iter().any(|(kind, name)| (*kind, name.as_str()) == expected), "{expected:?}");
        }
    }

    /// The definitions of the columns in both files, without types and checks.
    #[test]
    fn both_files_have_the_same_tables_columns_indexes_and_views() {
        let parts = |schema: &'static str| {
            let mut parts = BTreeSet::new();
            let mut table = "";
            for line in schema.lines() {
                let words: Vec<&str> = line.split([' ', '(', ',']).filter(|word| !word.is_empty()).collect();
                match words[..] {
                    ["CREATE", "TABLE", name, ..] => table = name,
                    [")", ..] | [");", ..] => table = "",
                    ["CREATE", "VIEW" | "INDEX", name, ..] | ["CREATE", "UNIQUE", "INDEX", name, ..] => {
                        parts.insert(name.to_owned());
                    }
                    [name, "INTEGER" | "TEXT" | "bigint" | "text" | "jsonb", ..] if !table.is_empty() => {
                        parts.insert(format!("{table}.{name}"));
                    }
                    _ => {}
                }
            }
            parts
        };
        let sqlite = parts(include_str!("../../../schema.sql"));
        assert!(sqlite.len() > 120, "{}", sqlite.len());
        assert_eq!(parts(SCHEMA), sqlite);
    }
}
