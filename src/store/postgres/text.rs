//! Text that SQLite accepts and PostgreSQL refuses: it cannot hold the character U+0000. What names something is refused, with the
//! field; what a handler, a command or an error says is stored with U+FFFD instead.

use std::borrow::Cow;
use std::collections::BTreeSet;

use rusqlite::Connection;

use crate::error::Error;
use crate::store::fault::Fault;

/// Columns that name something, which another text would not.
const NAMES: [(&str, &[&str]); 8] = [
    (
        "scheduled_tasks",
        &[
            "handler",
            "schedule_value",
            "time_zone",
            "concurrency_key",
            "max_starts",
            "on_dead",
            "on_success",
            "on_end",
            "on_missed",
            "paused_by",
            "managed_by",
        ],
    ),
    ("task_runs", &["handler", "request_key", "concurrency_key", "locked_by"]),
    ("task_effects", &["key"]),
    ("concurrency_limits", &["concurrency_key", "managed_by"]),
    ("rate_limits", &["handler", "managed_by"]),
    ("rate_limit_starts", &["subject"]),
    ("rate_limit_openings", &["subject"]),
    ("scheduler_alarm_channels", &["channel", "claimed_by"]),
];

/// As [`NAMES`], of texts that duly makes itself: another program may have written others into a file.
const IDS: [(&str, &[&str]); 5] = [
    ("task_attempts", &["locked_by"]),
    ("scheduler_instances", &["id", "host", "boot_id"]),
    ("scheduler_alarms", &["channel", "kind", "subject"]),
    ("scheduler_alarm_channels", &["kind"]),
    ("scheduler_meta", &["key", "value"]),
];

/// Makes the tables in memory refuse names that the server cannot store, as a fault of the item that they belong to.
pub(crate) fn refuse_unstorable(tables: &Connection) -> rusqlite::Result<()> {
    for (table, columns) in NAMES {
        let named = columns.iter().map(|column| format!("WHEN instr(NEW.{column}, char(0)) > 0 THEN '{column}'"));
        let named = format!("CASE {} END", named.collect::<Vec<_>>().join(" "));
        for (event, name) in [("INSERT", "inserted"), (&*format!("UPDATE OF {}", columns.join(", ")), "updated")] {
            tables.execute_batch(&format!(
                "CREATE TRIGGER {table}_names_{name} BEFORE {event} ON {table}
                 WHEN duly_refuses() AND {named} IS NOT NULL
                 BEGIN SELECT RAISE(ABORT, 'the ' || {named} || ' {HOLDS}'); END"
            ))?;
        }
    }
    Ok(())
}

/// Returns whether a column names something: another text would name something else.
pub(super) fn is_name(table: &str, column: &str) -> bool {
    NAMES.iter().chain(&IDS).any(|(of, columns)| *of == table && columns.contains(&column))
}

const HOLDS: &str = "holds the character U+0000, which PostgreSQL cannot store";

/// Returns the text as the server stores it.
pub(crate) fn storable(text: Cow<'_, str>) -> String {
    if text.contains('\0') { text.replace('\0', "\u{FFFD}") } else { text.into_owned() }
}

/// Returns the handlers that a row can name.
pub(crate) fn findable(handlers: &BTreeSet<String>) -> Vec<String> {
    handlers.iter().filter(|handler| !handler.contains('\0')).cloned().collect()
}

/// Refuses a text of a request that is to be found on the server. `field`: its column.
pub(crate) fn refuse(field: &'static str, text: &str) -> Result<(), Fault> {
    if text.contains('\0') {
        let expected = "a text without the character U+0000, which PostgreSQL cannot store";
        return Err(Error::invalid_task(field, text, expected).into());
    }
    Ok(())
}
