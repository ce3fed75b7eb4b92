//! The columns of the tables, as SQLite has them. Both schemas have the same tables with the same columns in any order.

use rusqlite::Connection;

/// The tables whose rows an operation may need, each after those that it refers to.
pub(crate) const TABLES: [&str; 13] = [
    "scheduler_meta",
    "scheduler_instances",
    "concurrency_limits",
    "rate_limits",
    "rate_limit_starts",
    "rate_limit_openings",
    "scheduled_tasks",
    "task_runs",
    "task_attempts",
    "task_effects",
    "scheduler_events",
    "scheduler_alarms",
    "scheduler_alarm_channels",
];

/// The tables whose ids the database assigns.
pub(super) const NUMBERED: [&str; 5] =
    ["scheduled_tasks", "task_runs", "task_attempts", "scheduler_events", "scheduler_alarms"];

/// Columns that are `jsonb` in PostgreSQL and text in SQLite.
pub(super) const JSON: [(&str, &str); 6] = [
    ("scheduled_tasks", "payload"),
    ("task_runs", "payload"),
    ("task_runs", "result"),
    ("task_runs", "process"),
    ("task_effects", "value"),
    ("scheduler_instances", "problems"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `bigint`.
    Integer,
    Text,
    /// `jsonb`.
    Json,
}

#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: Vec<Column>,
    /// The columns of the primary key, by position.
    pub(crate) key: Vec<usize>,
    /// Whether the key is a number that the database assigns.
    pub(crate) numbered: bool,
}

impl Table {
    /// Reads the columns of a table of duly from SQLite.
    pub(crate) fn read(memory: &Connection, name: &'static str) -> rusqlite::Result<Self> {
        let mut statement = memory.prepare("SELECT name, type, pk FROM pragma_table_info(?1) ORDER BY cid")?;
        let mut rows = statement.query([name])?;
        let (mut columns, mut key) = (Vec::new(), Vec::new());
        while let Some(row) = rows.next()? {
            let (column, of_type, pk): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let kind = match of_type.as_str() {
                "INTEGER" => Kind::Integer,
                _ if JSON.contains(&(name, column.as_str())) => Kind::Json,
                _ => Kind::Text,
            };
            if pk > 0 {
                key.push((pk, columns.len()));
            }
            columns.push(Column { name: column, kind });
        }
        key.sort_unstable();
        let key: Vec<usize> = key.into_iter().map(|(_, at)| at).collect();
        let numbered = matches!(key[..], [at] if columns[at].kind == Kind::Integer);
        Ok(Table { name, columns, key, numbered })
    }
}
