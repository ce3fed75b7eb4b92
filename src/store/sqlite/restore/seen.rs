//! What identifies the history of a file, as its rows show it.

use rusqlite::{Connection, OptionalExtension, Transaction, named_params};

use crate::store::sqlite::row;

/// What identifies the state that a connection knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// SQLite's schema cookie.
    pub(crate) cookie: i64,
    /// The id of the history; empty in a file that has none.
    pub(crate) id: String,
}

/// What a transaction finds at its begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) history: History,
    pub(crate) version: Option<String>,
    /// The row `held`.
    pub(crate) held: Option<String>,
    pub(crate) ids: HighestIds,
}

/// The highest ids that were given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HighestIds {
    pub(crate) runs: i64,
    pub(crate) tasks: i64,
}

impl HighestIds {
    pub(crate) fn max(self, other: Self) -> Self {
        HighestIds { runs: self.runs.max(other.runs), tasks: self.tasks.max(other.tasks) }
    }

    pub(crate) fn read(tx: &Connection) -> rusqlite::Result<Self> {
        tx.prepare_cached(IDS)?.query_row([], |row| Ok(HighestIds { runs: row.get(0)?, tasks: row.get(1)? }))
    }
}

const IDS: &str = "
    SELECT ifnull(max(iif(name = 'task_runs', seq, 0)), 0), ifnull(max(iif(name = 'scheduled_tasks', seq, 0)), 0)
      FROM sqlite_sequence";

const COOKIE: &str = "PRAGMA schema_version";

/// The version of the tables, too: it is compared in each transaction.
const SEEN: &str = "
    SELECT (SELECT value FROM scheduler_meta WHERE key = 'schema_version'),
           (SELECT value FROM scheduler_meta WHERE key = 'history'),
           (SELECT value FROM scheduler_meta WHERE key = 'held'),
           ifnull(max(iif(name = 'task_runs', seq, 0)), 0), ifnull(max(iif(name = 'scheduled_tasks', seq, 0)), 0)
      FROM sqlite_sequence";

pub(crate) fn cookie(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached(COOKIE)?.query_row([], |row| row.get(0))
}

impl Seen {
    pub(crate) fn read(tx: &Connection) -> rusqlite::Result<Self> {
        let cookie = cookie(tx)?;
        tx.prepare_cached(SEEN)?.query_row([], |row| {
            let id = row::shown_if_any(row, 1)?.unwrap_or_default();
            let ids = HighestIds { runs: row.get(3)?, tasks: row.get(4)? };
            let (version, held) = (row::shown_if_any(row, 0)?, row::shown_if_any(row, 2)?);
            Ok(Seen { history: History { cookie, id }, version, held, ids })
        })
    }
}

const SET: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES (:key, :value)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value";

const FORGET: &str = "DELETE FROM scheduler_meta WHERE key = :key";

/// Sets a row of `scheduler_meta`, or deletes it.
pub(crate) fn set(tx: &Transaction<'_>, key: &str, value: Option<&str>) -> rusqlite::Result<()> {
    match value {
        Some(value) => tx.prepare_cached(SET)?.execute(named_params! { ":key": key, ":value": value })?,
        None => tx.prepare_cached(FORGET)?.execute(named_params! { ":key": key })?,
    };
    Ok(())
}

const ATTEMPT: &str = "SELECT attempt FROM task_runs WHERE id = :run";

/// Returns whether a run has no such attempt yet. A run that was deleted shows nothing. `newest_run`: the highest id.
pub(crate) fn is_ahead(tx: &Transaction<'_>, (run, attempt): (i64, u32), newest_run: i64) -> rusqlite::Result<bool> {
    let mut statement = tx.prepare_cached(ATTEMPT)?;
    let stored: Option<u32> = statement.query_row(named_params! { ":run": run }, |row| row.get(0)).optional()?;
    Ok(stored.map_or(run > newest_run, |stored| stored < attempt))
}
