//! Classifies the errors of PostgreSQL, and words them: the server's message and its code, without the statement.

use std::error::Error as _;
use std::io;

use postgres::Error;
use postgres::error::{DbError, Severity, SqlState};
use postgres::types::{WasNull, WrongType};

use crate::error::Unreachable;
use crate::store::fault::{Class, Fault};
use crate::store::postgres::stream::{Trouble, is_of};

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let class = error.as_db_error().map_or_else(|| class_of_client(&error), class);
        if is_temporary(&error) {
            return Fault::Store(class, Unreachable(text(&error)).into());
        }
        Fault::Store(class, Failure { text: text(&error), error }.into())
    }
}

/// An error of the server or of the connection to it.
#[derive(Debug)]
struct Failure {
    text: String,
    error: Error,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// Returns the server's code of a fault that the server reported.
pub(crate) fn code(fault: &Fault) -> Option<&SqlState> {
    match fault {
        Fault::Store(_, source) => source.downcast_ref::<Failure>()?.error.code(),
        _ => None,
    }
}

/// Returns whether an error ended the connection, so that nothing more can be asked over it.
pub(crate) fn ends_connection(error: &Error) -> bool {
    match error.as_db_error() {
        Some(answer) => {
            let ended = matches!(answer.severity(), "FATAL" | "PANIC")
                || matches!(answer.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
            ended
                // A server that refuses writes: another may accept them.
                || answer.code().code() == "25006"
                || matches!(answer.code().code(), "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04")
                || answer.code().code().starts_with("08")
        }
        None => error.is_closed() || error.source().is_some_and(|source| source.is::<io::Error>()),
    }
}

/// Returns whether the server cannot be reached, or accepts no sessions or no writes now: a later try may succeed without a change by a
/// person.
fn is_temporary(error: &Error) -> bool {
    match error.code() {
        // No session is free; a server that refuses writes.
        Some(code) => ends_connection(error) && !is_refusal(code) || matches!(code.code(), "53300" | "25006"),
        None => ends_connection(error) && !is_about_encryption(error),
    }
}

/// Returns whether the server does not encrypt as the address asks for it.
fn is_about_encryption(error: &Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|io| io.kind() == io::ErrorKind::Unsupported || is_of::<rustls::Error>(io))
}

/// Returns whether a person must change something before the server accepts a session: the role, its password, its rights, the name of
/// the database.
fn is_refusal(code: &SqlState) -> bool {
    code.code().starts_with("28") || matches!(code.code(), "3D000" | "42501")
}

/// Returns whether the client refuses a server for being a standby, or for refusing writes.
fn refuses_server(error: &Error) -> bool {
    error.source().is_some_and(|source| source.to_string().contains("does not allow writes"))
}

/// Returns whether a prepared statement is unknown to the session, or was prepared for other tables.
pub(crate) fn is_stale(error: &Error) -> bool {
    error.code().is_some_and(|code| matches!(code.code(), "26000" | "0A000" | "42P05"))
}

/// Returns whether the server ended a transaction that can be repeated at once: it was chosen to end a deadlock, or another program
/// has added or deleted a row that this one did not know of.
pub(crate) fn is_repeatable(error: &Error) -> bool {
    let Some(answer) = error.as_db_error() else { return false };
    match answer.code().code() {
        "40001" | "40P01" => true,
        "23505" | "23503" => answer.constraint().is_some_and(|name| OURS.contains(&name)),
        _ => false,
    }
}

/// Returns whether the server ended a transaction because its client said nothing for too long. Nothing of it is committed.
pub(crate) fn is_about_silence(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code() == "25P03")
}

/// The constraints of duly's tables that concern several rows. All of them hold in the tables in memory.
const OURS: [&str; 19] = [
    "scheduled_tasks_pkey",
    "scheduled_tasks_name_key",
    "task_runs_pkey",
    "task_runs_task_id_fkey",
    "task_runs_one_per_occurrence",
    "task_runs_running",
    "task_runs_requested",
    "task_attempts_pkey",
    "task_attempts_run_id_fkey",
    "task_effects_pkey",
    "concurrency_limits_pkey",
    "rate_limits_pkey",
    "rate_limit_starts_pkey",
    "rate_limit_openings_pkey",
    "scheduler_instances_pkey",
    "scheduler_events_pkey",
    "scheduler_alarms_pkey",
    "scheduler_alarms_open",
    "scheduler_alarm_channels_pkey",
];

fn class(answer: &DbError) -> Class {
    let code = answer.code().code();
    match code {
        // Not the key of a table of the application, to which one of its triggers adds a row: that is a refusal like others.
        "23505" if answer.constraint().is_some_and(|name| name.ends_with("_pkey") && OURS.contains(&name)) => Class::Id,
        // A full disk; a sequence without a next number.
        "53100" | "2200H" => Class::Space,
        // Missing tables, columns, and schemas.
        "42P01" | "42703" | "3F000" => Class::Tables,
        "40001" | "40P01" | "55P03" => Class::Busy,
        "57014" | "25P03" | "25P04" => Class::TooLong,
        "XX001" | "XX002" => Class::Corrupt,
        // The values of one row; a value that does not fit into an index; a trigger's refusal.
        _ if matches!(&code[..2], "22" | "23" | "54") || code == "P0001" => Class::Item,
        "25006" => Class::ReadOnly,
        "42501" => Class::Other,
        _ if matches!(&code[..2], "42" | "0A") => Class::Statement,
        _ => Class::Other,
    }
}

fn class_of_client(error: &Error) -> Class {
    match error.source() {
        Some(source) if source.is::<WrongType>() || source.is::<WasNull>() => Class::Item,
        Some(_) if refuses_server(error) => Class::ReadOnly,
        _ => Class::Other,
    }
}

pub(crate) fn text(error: &Error) -> String {
    let Some(answer) = error.as_db_error() else {
        return match error.source() {
            _ if error.is_closed() => "the server has closed the connection".to_owned(),
            Some(_) if refuses_server(error) => {
                "the server is a standby or refuses writes (default_transaction_read_only): name the primary".to_owned()
            }
            // It says all.
            Some(source) if source.downcast_ref().is_some_and(is_of::<Trouble>) => source.to_string(),
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
    };
    let mut text = match answer.code().code() {
        "22021" => "a text holds the character U+0000, which PostgreSQL cannot store".to_owned(),
        _ => answer.message().to_owned(),
    };
    if let Some(detail) = answer.detail() {
        text = format!("{text}: {}", detail.trim_end_matches('.'));
    }
    if let Some(hint) = answer.hint() {
        text = format!("{text} ({})", hint.trim_end_matches('.'));
    }
    text = format!("{text} [SQLSTATE {}]", answer.code().code());
    let advice = match answer.code().code() {
        "42501" => "; grant it to the role of the address: docs/postgres.md has the statements",
        "2200H" => {
            "; the sequence has given its last number: raise its MAXVALUE, or give it its type bigint again (the disk is not full)"
        }
        "53300" => "; max_connections of the server, or the limit of the role, must allow duly's connections",
        "53100" => "; free space on the server's disk",
        "3D000" => "; create the database with createdb, or name another",
        _ => "",
    };
    format!("{text}{advice}")
}
