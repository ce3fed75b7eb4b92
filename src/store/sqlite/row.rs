//! Converts rows to values and back. A value that no version of duly writes is an error that names its column.

use std::rc::Rc;
use std::time::Duration;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, Type, Value, ValueRef};
use rusqlite::vtab::array::Array;
use rusqlite::{Params, Row, RowIndex, Transaction};

use crate::clock::Timestamp;
use crate::error::{Error, excerpt};
use crate::model::column::ColumnValue;
use crate::model::run::{Attempt, AttemptOutcome, Effect, EffectState, Origin, Run, RunStatus};
use crate::model::task::{Definition, Misfire, Overlap, Task, TaskStatus, WhenLimited};
use crate::model::task_columns::task_columns;
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

impl ToSql for ColumnValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match *self {
            ColumnValue::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            ColumnValue::Number(number) => ToSqlOutput::from(number),
            ColumnValue::Time(at) => ToSqlOutput::from(at.as_millis()),
            ColumnValue::Text(text) => ToSqlOutput::from(text),
        })
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
stored_as_text!(AttemptOutcome, EffectState, Misfire, Origin, Overlap, Reason, RunStatus, TaskStatus, WhenLimited);

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
pub(crate) fn duration(row: &Row<'_>, column: usize) -> rusqlite::Result<Duration> {
    millis_at(row, column).map(Option::unwrap_or_default)
}

/// As [`duration`], for a column where NULL has a meaning.
pub(crate) fn millis_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Duration>> {
    let millis: Option<i64> = row.get(column)?;
    Ok(millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
}

/// Reads a time for each priority, most urgent first.
pub(crate) fn of_each_priority(row: &Row<'_>) -> rusqlite::Result<[Option<Timestamp>; 4]> {
    Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])
}

/// Reads a number. Fails if it is out of the type's range, which no version of duly stores.
pub(crate) fn number<T: TryFrom<i64>>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let found: i64 = row.get(column)?;
    T::try_from(found).map_err(|_| {
        let column = row.as_ref().column_name(column).unwrap_or("a column");
        let reason = format!("{column} is out of range: {found}");
        rusqlite::Error::FromSqlConversionFailure(0, Type::Integer, reason.into())
    })
}

/// Reads a number for display only, clamped to the type's range: no table checks it.
pub(crate) fn saturating(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<u32> {
    Ok(u32::try_from(row.get::<_, i64>(column)?.max(0)).unwrap_or(u32::MAX))
}

/// As [`number`], for a column where NULL has a meaning.
fn optional_number<T: TryFrom<i64>>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => number(row, column).map(Some),
    }
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

/// Reads all rows of a statement.
pub(crate) fn all<T>(
    tx: &Transaction<'_>,
    statement: &str,
    params: impl Params,
    read: fn(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    tx.prepare_cached(statement)?.query_map(params, read)?.collect()
}

/// Declares the positions of columns, in the order of a list of `sql::SHARED`. The statements name their columns one by one: an
/// application may add columns, and in a damaged file a column may have a name that cannot be read.
macro_rules! columns {
    ($(#[$doc:meta])* $name:ident $at:ident: $($column:ident)+) => {
        $(#[$doc])*
        struct $name { $($column: usize),+ }

        const $at: $name = {
            let mut next = 0;
            $name { $($column: { next += 1; next - 1 }),+ }
        };

        #[cfg(test)]
        impl $name {
            const NAMES: &[&str] = &[$(stringify!($column)),+];
        }
    };
}

macro_rules! task_row {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $default:expr =>
        [$($(#[$attribute:meta])* $column:ident: $of:ty $(= .$part:ident)?),+];)+) => {
        columns! {
            /// `{task_columns}`.
            TaskColumns TASK:
            id $($($column)+)+ status next_run planned resolved_until active_since last_run last_finished last_status
            last_duration_ms last_error failure_count invalid_reason paused_by created_at updated_at
        }

        /// Reads the definition of a task from its columns. `T`: the type by which text is read.
        fn definition<T: FromSql + Into<String>>(row: &Row<'_>) -> rusqlite::Result<Definition> {
            let mut task = Definition::blank();
            $($(task.$field$(.$part)? = Stored::read::<T>(row, TASK.$column)?;)+)+
            Ok(task)
        }
    };
}
task_columns!(task_row);

columns! {
    /// `{run_columns}`, and the `name` of the task.
    RunColumns RUN:
    id handler scheduled_for origin retry_of request_key status run_at expires_at blocked attempt forgiven interrupted
    priority concurrency_key payload locked_by locked_until started_at finished_at duration_ms error exit_code output result
    progress cancel_requested occurrences last_scheduled_for name
}

columns! {
    /// `{attempt_columns}`.
    AttemptColumns ATTEMPT:
    run_id attempt outcome error output exit_code locked_by started_at finished_at duration_ms
}

columns! {
    /// `{effect_columns}`.
    EffectColumns EFFECT:
    key run_id state value created_at done_at
}

/// Reads the exit code of a command; `None` if it is no valid exit code.
fn exit_code(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<i32>> {
    Ok(row.get::<_, Option<i64>>(column)?.and_then(|code| i32::try_from(code).ok()))
}

/// The type of a field that a column holds.
trait Stored: Sized {
    fn read<T: FromSql + Into<String>>(row: &Row<'_>, column: usize) -> rusqlite::Result<Self>;
}

macro_rules! stored {
    ($($($type:ty),+ => |$row:ident, $column:ident| $read:expr;)+) => { $($(
        impl Stored for $type {
            fn read<T: FromSql + Into<String>>($row: &Row<'_>, $column: usize) -> rusqlite::Result<Self> {
                $read
            }
        }
    )+)+ };
}
stored! {
    String => |row, column| row.get::<_, T>(column).map(Into::into);
    Option<String> => |row, column| row.get::<_, Option<T>>(column).map(|text| text.map(Into::into));
    ScheduleKind, Overlap, Misfire, WhenLimited, Option<Timestamp> => |row, column| row.get(column);
    Duration => |row, column| duration(row, column);
    Option<Duration> => |row, column| millis_at(row, column);
    u8, u32 => |row, column| number(row, column);
    Option<u32> => |row, column| optional_number(row, column);
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

/// Reads a task from its columns.
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

/// As [`shown_task`], for a list, which one bad row must not hide: a value that cannot be read is that of a new task, and the task is
/// reported as invalid. For display only.
pub(crate) fn listed_task(row: &Row<'_>) -> rusqlite::Result<Task> {
    let error = match shown_task(row) {
        Ok(task) => return Ok(task),
        Err(error) => error,
    };
    let at = TASK;
    let schedule_type = row.get(at.schedule_type).unwrap_or(ScheduleKind::Manual);
    let definition = Definition {
        name: shown(row, at.name)?,
        handler: shown(row, at.handler)?,
        managed_by: shown_if_any(row, at.managed_by)?,
        ..Definition::new(schedule_type, shown(row, at.schedule_value)?)
    };
    Ok(Task {
        id: row.get(at.id)?,
        definition,
        status: TaskStatus::Invalid,
        next_run: None,
        planned: true,
        resolved_until: None,
        active_since: row.get(at.active_since)?,
        last_run: row.get(at.last_run)?,
        last_finished: row.get(at.last_finished)?,
        last_status: shown_if_any(row, at.last_status)?.as_deref().and_then(RunStatus::parse),
        last_duration: millis_at(row, at.last_duration_ms)?,
        last_error: shown_if_any(row, at.last_error)?,
        failure_count: saturating(row, at.failure_count)?,
        invalid_reason: Some(error.to_string()),
        paused_by: None,
        created_at: row.get(at.created_at)?,
        updated_at: row.get(at.updated_at)?,
    })
}

fn read_task<T: FromSql + Into<String>>(row: &Row<'_>) -> rusqlite::Result<Task> {
    let at = TASK;
    Ok(Task {
        id: row.get(at.id)?,
        definition: definition::<T>(row)?,
        status: row.get(at.status)?,
        next_run: row.get(at.next_run)?,
        planned: row.get(at.planned)?,
        resolved_until: row.get(at.resolved_until)?,
        active_since: row.get(at.active_since)?,
        last_run: row.get(at.last_run)?,
        last_finished: row.get(at.last_finished)?,
        last_status: shown_if_any(row, at.last_status)?.as_deref().and_then(RunStatus::parse),
        last_duration: millis_at(row, at.last_duration_ms)?,
        last_error: shown_if_any(row, at.last_error)?,
        failure_count: saturating(row, at.failure_count)?,
        invalid_reason: shown_if_any(row, at.invalid_reason)?,
        paused_by: shown_if_any(row, at.paused_by)?,
        created_at: row.get(at.created_at)?,
        updated_at: row.get(at.updated_at)?,
    })
}

/// Reads a run from its columns and the `name` of its task.
pub(crate) fn run(row: &Row<'_>) -> rusqlite::Result<Run> {
    let at = RUN;
    Ok(Run {
        id: row.get(at.id)?,
        task: shown(row, at.name)?,
        handler: shown(row, at.handler)?,
        scheduled_for: row.get(at.scheduled_for)?,
        origin: row.get(at.origin)?,
        retry_of: row.get(at.retry_of)?,
        request_key: shown_if_any(row, at.request_key)?,
        status: row.get(at.status)?,
        run_at: row.get(at.run_at)?,
        expires_at: row.get(at.expires_at)?,
        blocked: shown_if_any(row, at.blocked)?,
        attempt: saturating(row, at.attempt)?,
        forgiven: saturating(row, at.forgiven)?,
        interrupted: saturating(row, at.interrupted)?,
        priority: number(row, at.priority)?,
        concurrency_key: shown_if_any(row, at.concurrency_key)?,
        payload: shown_if_any(row, at.payload)?,
        locked_by: shown_if_any(row, at.locked_by)?,
        locked_until: row.get(at.locked_until)?,
        started_at: row.get(at.started_at)?,
        finished_at: row.get(at.finished_at)?,
        duration: millis_at(row, at.duration_ms)?,
        error: shown_if_any(row, at.error)?,
        exit_code: exit_code(row, at.exit_code)?,
        output: shown_if_any(row, at.output)?,
        result: shown_if_any(row, at.result)?,
        progress: shown_if_any(row, at.progress)?,
        cancel_requested: row.get(at.cancel_requested)?,
        occurrences: number(row, at.occurrences)?,
        last_scheduled_for: row.get(at.last_scheduled_for)?,
    })
}

/// Reads an attempt from its columns.
pub(crate) fn attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    let at = ATTEMPT;
    Ok(Attempt {
        run_id: row.get(at.run_id)?,
        attempt: saturating(row, at.attempt)?,
        outcome: row.get(at.outcome)?,
        error: shown_if_any(row, at.error)?,
        output: shown_if_any(row, at.output)?,
        exit_code: exit_code(row, at.exit_code)?,
        locked_by: shown(row, at.locked_by)?,
        started_at: row.get(at.started_at)?,
        finished_at: row.get(at.finished_at)?,
        duration: millis_at(row, at.duration_ms)?,
    })
}

/// Reads an effect from its columns.
pub(crate) fn effect(row: &Row<'_>) -> rusqlite::Result<Effect> {
    let at = EFFECT;
    Ok(Effect {
        key: shown(row, at.key)?,
        run_id: row.get(at.run_id)?,
        state: row.get(at.state)?,
        value: shown_if_any(row, at.value)?,
        created_at: row.get(at.created_at)?,
        done_at: row.get(at.done_at)?,
    })
}

/// Returns ids as a parameter of `rarray(..)`, for a statement that takes many.
pub(crate) fn list(ids: impl Iterator<Item = i64>) -> Array {
    Rc::new(ids.map(Value::Integer).collect())
}

#[cfg(test)]
mod tests {
    use super::{AttemptColumns, EffectColumns, RunColumns, TaskColumns};
    use crate::store::sqlite::sql::SHARED;

    #[test]
    fn the_positions_are_those_of_the_lists_in_the_statements() {
        let runs = RunColumns::NAMES.strip_suffix(&["name"]).expect("the task's name comes after the list");
        for (list, names) in [
            ("task_columns", TaskColumns::NAMES),
            ("run_columns", runs),
            ("attempt_columns", AttemptColumns::NAMES),
            ("effect_columns", EffectColumns::NAMES),
        ] {
            let (_, text) = SHARED.iter().find(|(name, _)| *name == list).expect("a shared list");
            assert_eq!(
                text.split(", ").map(|column| column.trim_start_matches('.')).collect::<Vec<_>>(),
                names,
                "{list}"
            );
        }
    }
}
