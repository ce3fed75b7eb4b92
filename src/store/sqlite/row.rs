//! Converts rows to values and back. A value that no version of duly writes is an error that names its column.

use std::rc::Rc;
use std::time::Duration;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, Type, Value, ValueRef};
use rusqlite::vtab::array::Array;
use rusqlite::{Row, RowIndex};

use crate::clock::Timestamp;
use crate::error::{Error, excerpt};
use crate::model::retry::RetryPolicy;
use crate::model::run::{Attempt, AttemptOutcome, Effect, EffectState, Origin, Run, RunStatus};
use crate::model::task::{Definition, Misfire, Overlap, Task, TaskStatus};
use crate::rules::placement::Reason;
use crate::schedule::ScheduleKind;

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

/// Stores enumerations as the text that the tables list.
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
                    FromSqlError::Other(format!("unknown {}: {:?}", stringify!($name), excerpt(text, 80)).into())
                })
            }
        }
    )+ };
}
stored_as_text!(AttemptOutcome, EffectState, Misfire, Origin, Overlap, Reason, RunStatus, TaskStatus);

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

/// Reads a duration column, in milliseconds.
pub(crate) fn duration(row: &Row<'_>, column: &str) -> rusqlite::Result<Duration> {
    optional_duration(row, column).map(Option::unwrap_or_default)
}

/// As [`duration`], for a column where NULL has a meaning.
pub(crate) fn optional_duration(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<Duration>> {
    let millis: Option<i64> = row.get(column)?;
    Ok(millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
}

/// Reads a duration by the position of its column, for rows that are read for every run.
pub(crate) fn millis_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Duration>> {
    let millis: Option<i64> = row.get(column)?;
    Ok(millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
}

/// Reads a number. Fails if it is out of the type's range, which no version of duly stores.
pub(crate) fn number<T: TryFrom<i64>>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let found: i64 = row.get(column)?;
    T::try_from(found).map_err(|_| {
        let reason = format!("{column} is out of range: {found}");
        rusqlite::Error::FromSqlConversionFailure(0, Type::Integer, reason.into())
    })
}

/// Reads a number for display only, clamped to the type's range: no table checks it.
pub(crate) fn saturating(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<u32> {
    Ok(u32::try_from(row.get::<_, i64>(column)?.max(0)).unwrap_or(u32::MAX))
}

/// As [`number`], for a column where NULL has a meaning.
pub(crate) fn optional_number<T: TryFrom<i64>>(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => number(row, column).map(Some),
    }
}

/// Reads the retry columns of a task.
pub(crate) fn retry_policy(row: &Row<'_>) -> rusqlite::Result<RetryPolicy> {
    Ok(RetryPolicy {
        max_attempts: number(row, "max_attempts")?,
        backoff: duration(row, "backoff_ms")?,
        max_backoff: duration(row, "backoff_cap_ms")?,
    })
}

/// Text for display, with bytes that are not UTF-8 replaced. SQLite accepts any bytes in a column of text.
pub(crate) struct Replaced(String);

impl FromSql for Replaced {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Text(bytes) => Ok(Replaced(String::from_utf8_lossy(bytes).into_owned())),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

impl From<Replaced> for String {
    fn from(text: Replaced) -> Self {
        text.0
    }
}

/// Text as it is stored, UTF-8 or not, to pass back to SQLite: keys and handlers, by which runs of several tasks wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl FromSql for Raw {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Text(bytes) => Ok(Raw(bytes.to_vec())),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

impl AsRef<[u8]> for Raw {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Returns a parameter of type TEXT from bytes that need not be UTF-8.
pub(crate) fn raw(text: &[u8]) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Text(text))
}

/// Reads text for display only, with bytes that are not UTF-8 replaced.
pub(crate) fn shown(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<String> {
    row.get::<_, Replaced>(column).map(String::from)
}

/// As [`shown`], for a column that may be NULL.
pub(crate) fn shown_if_any(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Option<String>> {
    Ok(row.get::<_, Option<Replaced>>(column)?.map(String::from))
}

/// Reads the exit code of a command; `None` if it is no valid exit code.
fn exit_code(row: &Row<'_>) -> rusqlite::Result<Option<i32>> {
    Ok(row.get::<_, Option<i64>>("exit_code")?.and_then(|code| i32::try_from(code).ok()))
}

/// Reads the definition of a task from a row with all columns. `T`: the type by which text is read.
fn definition<T: FromSql + Into<String>>(row: &Row<'_>) -> rusqlite::Result<Definition> {
    let text = |column| row.get::<_, T>(column).map(Into::into);
    let optional = |column| row.get::<_, Option<T>>(column).map(|text| text.map(Into::into));
    Ok(Definition {
        name: text("name")?,
        handler: text("handler")?,
        payload: text("payload")?,
        schedule_type: row.get("schedule_type")?,
        schedule_value: text("schedule_value")?,
        time_zone: text("time_zone")?,
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
        concurrency_key: optional("concurrency_key")?,
        on_dead: optional("on_dead")?,
        pause_after_failures: optional_number(row, "pause_after_failures")?,
        managed_by: optional("managed_by")?,
    })
}

/// Adds the column's name to the error of a column that cannot be read: rusqlite reports the position only.
fn with_column_name(row: &Row<'_>, error: rusqlite::Error) -> rusqlite::Error {
    let at = match &error {
        rusqlite::Error::FromSqlConversionFailure(at, ..) | rusqlite::Error::Utf8Error(at, _) => *at,
        _ => return error,
    };
    let column = row.as_ref().column_name(at).unwrap_or("a column").to_owned();
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, format!("invalid {column}: {error}").into())
}

/// Reads a task from a row with all columns.
pub(crate) fn task(row: &Row<'_>) -> rusqlite::Result<Task> {
    read_task::<String>(row).map_err(|error| with_column_name(row, error))
}

/// As [`task`], for display and for a look-up by name: a bad row must hide neither the other rows nor itself. Text that cannot
/// be read is replaced, and the task is reported as invalid, even if no scheduler has seen it yet.
pub(crate) fn shown_task(row: &Row<'_>) -> rusqlite::Result<Task> {
    let error = match task(row) {
        Ok(task) => return Ok(task),
        Err(error) => error,
    };
    let mut shown = read_task::<Replaced>(row).map_err(|other| with_column_name(row, other))?;
    shown.status = TaskStatus::Invalid;
    shown.next_run = None;
    shown.invalid_reason.get_or_insert_with(|| error.to_string());
    Ok(shown)
}

fn read_task<T: FromSql + Into<String>>(row: &Row<'_>) -> rusqlite::Result<Task> {
    Ok(Task {
        id: row.get("id")?,
        definition: definition::<T>(row)?,
        status: row.get("status")?,
        next_run: row.get("next_run")?,
        planned: row.get("planned")?,
        resolved_until: row.get("resolved_until")?,
        active_since: row.get("active_since")?,
        last_run: row.get("last_run")?,
        last_finished: row.get("last_finished")?,
        last_status: shown_if_any(row, "last_status")?.as_deref().and_then(RunStatus::parse),
        last_duration: optional_duration(row, "last_duration_ms")?,
        last_error: shown_if_any(row, "last_error")?,
        failure_count: saturating(row, "failure_count")?,
        invalid_reason: shown_if_any(row, "invalid_reason")?,
        paused_by: shown_if_any(row, "paused_by")?,
        created_at: row.get("created_at")?,
        updated_at: row.get("updated_at")?,
    })
}

/// Reads a run from a row with all columns and the `name` of its task.
pub(crate) fn run(row: &Row<'_>) -> rusqlite::Result<Run> {
    Ok(Run {
        id: row.get("id")?,
        task: shown(row, "name")?,
        handler: shown(row, "handler")?,
        scheduled_for: row.get("scheduled_for")?,
        origin: row.get("origin")?,
        retry_of: row.get("retry_of")?,
        request_key: shown_if_any(row, "request_key")?,
        status: row.get("status")?,
        run_at: row.get("run_at")?,
        expires_at: row.get("expires_at")?,
        blocked: shown_if_any(row, "blocked")?,
        attempt: saturating(row, "attempt")?,
        forgiven: saturating(row, "forgiven")?,
        priority: number(row, "priority")?,
        concurrency_key: shown_if_any(row, "concurrency_key")?,
        payload: shown_if_any(row, "payload")?,
        locked_by: shown_if_any(row, "locked_by")?,
        locked_until: row.get("locked_until")?,
        started_at: row.get("started_at")?,
        finished_at: row.get("finished_at")?,
        duration: optional_duration(row, "duration_ms")?,
        error: shown_if_any(row, "error")?,
        exit_code: exit_code(row)?,
        output: shown_if_any(row, "output")?,
        result: shown_if_any(row, "result")?,
        progress: shown_if_any(row, "progress")?,
        cancel_requested: row.get("cancel_requested")?,
        occurrences: number(row, "occurrences")?,
        last_scheduled_for: row.get("last_scheduled_for")?,
    })
}

/// Reads an attempt from a row with all columns.
pub(crate) fn attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    Ok(Attempt {
        run_id: row.get("run_id")?,
        attempt: saturating(row, "attempt")?,
        outcome: row.get("outcome")?,
        error: shown_if_any(row, "error")?,
        output: shown_if_any(row, "output")?,
        exit_code: exit_code(row)?,
        locked_by: shown(row, "locked_by")?,
        started_at: row.get("started_at")?,
        finished_at: row.get("finished_at")?,
        duration: optional_duration(row, "duration_ms")?,
    })
}

/// Reads an effect from a row with all columns.
pub(crate) fn effect(row: &Row<'_>) -> rusqlite::Result<Effect> {
    Ok(Effect {
        key: shown(row, "key")?,
        run_id: row.get("run_id")?,
        state: row.get("state")?,
        value: shown_if_any(row, "value")?,
        created_at: row.get("created_at")?,
        done_at: row.get("done_at")?,
    })
}

/// Returns ids as a parameter of `rarray(..)`, for a statement that takes many.
pub(crate) fn list(ids: impl Iterator<Item = i64>) -> Array {
    Rc::new(ids.map(Value::Integer).collect())
}
