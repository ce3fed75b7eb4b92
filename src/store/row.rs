//! Rows to values and back. A value in the file that no version of ours would write is an error that names its column.

use std::fmt::Write as _;
use std::time::Duration;

use rusqlite::Row;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, Type, ValueRef};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::retry::RetryPolicy;
use crate::run::{Attempt, AttemptOutcome, Effect, EffectState, Origin, Run, RunStatus};
use crate::schedule::ScheduleKind;
use crate::task::{Definition, Misfire, Overlap, Task, TaskStatus};

impl ToSql for Timestamp {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::from(self.as_millis()))
    }
}

impl FromSql for Timestamp {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(Timestamp::from_millis)
    }
}

/// Enumerations are stored as the text that the tables list.
macro_rules! stored_as_text {
    ($($name:ident),+) => { $(
        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(ToSqlOutput::from(self.as_str()))
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                let text = value.as_str()?;
                $name::parse(text).ok_or_else(|| {
                    FromSqlError::Other(format!("unknown {}: {text:?}", stringify!($name)).into())
                })
            }
        }
    )+ };
}
stored_as_text!(AttemptOutcome, EffectState, Misfire, Origin, Overlap, RunStatus, TaskStatus);

impl ToSql for ScheduleKind {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::from(self.as_str()))
    }
}

impl FromSql for ScheduleKind {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map_err(|error: Error| FromSqlError::Other(error.into()))
    }
}

/// A duration column, in milliseconds.
pub(crate) fn duration(row: &Row<'_>, column: &str) -> rusqlite::Result<Duration> {
    optional_duration(row, column).map(Option::unwrap_or_default)
}

/// The same, where NULL means something of its own.
pub(crate) fn optional_duration(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<Duration>> {
    let millis: Option<i64> = row.get(column)?;
    Ok(millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
}

/// A duration by the place of its column, where rows are read one by one for every run.
pub(crate) fn millis_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Duration>> {
    let millis: Option<i64> = row.get(column)?;
    Ok(millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
}

/// A count, which no version of ours stores below zero or beyond the type.
pub(crate) fn number<T: TryFrom<i64>>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let found: i64 = row.get(column)?;
    T::try_from(found).map_err(|_| {
        let reason = format!("{column} is out of range: {found}");
        rusqlite::Error::FromSqlConversionFailure(0, Type::Integer, reason.into())
    })
}

/// The same, where NULL means something of its own.
pub(crate) fn optional_number<T: TryFrom<i64>>(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => number(row, column).map(Some),
    }
}

/// The retry columns of a task.
pub(crate) fn retry_policy(row: &Row<'_>) -> rusqlite::Result<RetryPolicy> {
    Ok(RetryPolicy {
        max_attempts: number(row, "max_attempts")?,
        backoff: duration(row, "backoff_ms")?,
        cap: duration(row, "backoff_cap_ms")?,
    })
}

/// What a person says of a task, from a row with all columns.
fn definition(row: &Row<'_>) -> rusqlite::Result<Definition> {
    Ok(Definition {
        name: row.get("name")?,
        handler: row.get("handler")?,
        payload: row.get("payload")?,
        schedule_type: row.get("schedule_type")?,
        schedule_value: row.get("schedule_value")?,
        time_zone: row.get("time_zone")?,
        starts_at: row.get("starts_at")?,
        ends_at: row.get("ends_at")?,
        overlap: row.get("overlap")?,
        misfire: row.get("misfire")?,
        misfire_grace: duration(row, "misfire_grace_ms")?,
        catch_up_limit: number(row, "catch_up_limit")?,
        expires: optional_duration(row, "expires_ms")?,
        retry: retry_policy(row)?,
        timeout: optional_duration(row, "timeout_ms")?,
        jitter: duration(row, "jitter_ms")?,
        priority: number(row, "priority")?,
        concurrency_key: row.get("concurrency_key")?,
        on_dead: row.get("on_dead")?,
        pause_after_failures: optional_number(row, "pause_after_failures")?,
        managed_by: row.get("managed_by")?,
    })
}

/// The error of a column that cannot be read, with the column's name: rusqlite tells its place.
fn naming(row: &Row<'_>, error: rusqlite::Error) -> rusqlite::Error {
    let at = match &error {
        rusqlite::Error::FromSqlConversionFailure(at, ..) | rusqlite::Error::Utf8Error(at, _) => *at,
        _ => return error,
    };
    let column = row.as_ref().column_name(at).unwrap_or("a column").to_owned();
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, format!("invalid {column}: {error}").into())
}

/// A task, from a row with all columns.
pub(crate) fn task(row: &Row<'_>) -> rusqlite::Result<Task> {
    read_task(row).map_err(|error| naming(row, error))
}

fn read_task(row: &Row<'_>) -> rusqlite::Result<Task> {
    Ok(Task {
        id: row.get("id")?,
        definition: definition(row)?,
        status: row.get("status")?,
        next_run: row.get("next_run")?,
        planned: row.get("planned")?,
        resolved_until: row.get("resolved_until")?,
        active_since: row.get("active_since")?,
        last_run: row.get("last_run")?,
        last_finished: row.get("last_finished")?,
        last_status: row.get("last_status")?,
        last_duration: optional_duration(row, "last_duration_ms")?,
        last_error: row.get("last_error")?,
        failure_count: number(row, "failure_count")?,
        invalid_reason: row.get("invalid_reason")?,
        created_at: row.get("created_at")?,
        updated_at: row.get("updated_at")?,
    })
}

/// A run, from a row with all columns and the `name` of its task.
pub(crate) fn run(row: &Row<'_>) -> rusqlite::Result<Run> {
    Ok(Run {
        id: row.get("id")?,
        task: row.get("name")?,
        handler: row.get("handler")?,
        scheduled_for: row.get("scheduled_for")?,
        origin: row.get("origin")?,
        retry_of: row.get("retry_of")?,
        status: row.get("status")?,
        run_at: row.get("run_at")?,
        expires_at: row.get("expires_at")?,
        blocked: row.get("blocked")?,
        attempt: number(row, "attempt")?,
        forgiven: number(row, "forgiven")?,
        priority: number(row, "priority")?,
        concurrency_key: row.get("concurrency_key")?,
        payload: row.get("payload")?,
        locked_by: row.get("locked_by")?,
        locked_until: row.get("locked_until")?,
        started_at: row.get("started_at")?,
        finished_at: row.get("finished_at")?,
        error: row.get("error")?,
        exit_code: row.get("exit_code")?,
        output: row.get("output")?,
        result: row.get("result")?,
        progress: row.get("progress")?,
        cancel_requested: row.get("cancel_requested")?,
        occurrences: number(row, "occurrences")?,
        last_scheduled_for: row.get("last_scheduled_for")?,
    })
}

/// An attempt, from a row with all columns.
pub(crate) fn attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    Ok(Attempt {
        run_id: row.get("run_id")?,
        attempt: number(row, "attempt")?,
        outcome: row.get("outcome")?,
        error: row.get("error")?,
        output: row.get("output")?,
        exit_code: row.get("exit_code")?,
        locked_by: row.get("locked_by")?,
        started_at: row.get("started_at")?,
        finished_at: row.get("finished_at")?,
    })
}

/// An effect, from a row with all columns.
pub(crate) fn effect(row: &Row<'_>) -> rusqlite::Result<Effect> {
    Ok(Effect {
        key: row.get("key")?,
        run_id: row.get("run_id")?,
        state: row.get("state")?,
        value: row.get("value")?,
        created_at: row.get("created_at")?,
        done_at: row.get("done_at")?,
    })
}

/// Ids as a JSON array, for a statement that takes many.
pub(crate) fn list(ids: impl ExactSizeIterator<Item = i64>) -> String {
    let mut text = String::with_capacity(ids.len() * 8 + 2);
    text.push('[');
    for (place, id) in ids.enumerate() {
        // Nothing is refused by a String.
        let _ = write!(text, "{}{id}", if place > 0 { "," } else { "" });
    }
    text.push(']');
    text
}
