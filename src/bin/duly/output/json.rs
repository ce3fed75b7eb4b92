//! Rows as JSON: keys are the column names, in table order; times are RFC 3339 in UTC with milliseconds.

use std::time::Duration;

use duly::{Attempt, Effect, Recent, Run, Task, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;

/// Defines rows, each with its columns in order and their values, read from a value of the library.
macro_rules! rows {
    ($($(#[$doc:meta])* $row:ident of $from:ident: $of:ty { $($column:ident: $type:ty = $value:expr,)+ })+) => { $(
        $(#[$doc])*
        #[derive(Serialize)]
        pub(crate) struct $row<'a> { $($column: $type,)+ }

        impl<'a> From<&'a $of> for $row<'a> {
            fn from($from: &'a $of) -> Self {
                $row { $($column: $value,)+ }
            }
        }
    )+ };
}

rows! {
    /// A row of `scheduled_tasks`.
    TaskRow of task: Task {
        id: i64 = task.id,
        name: &'a str = &task.definition.name,
        handler: &'a str = &task.definition.handler,
        payload: Json = json(&task.definition.payload),
        schedule_type: &'a str = task.definition.schedule_type.as_str(),
        schedule_value: &'a str = &task.definition.schedule_value,
        time_zone: &'a str = &task.definition.time_zone,
        starts_at: Option<String> = optional_time(task.definition.starts_at),
        ends_at: Option<String> = optional_time(task.definition.ends_at),
        status: &'a str = task.status.as_str(),
        next_run: Option<String> = optional_time(task.next_run),
        planned: bool = task.planned,
        resolved_until: Option<String> = optional_time(task.resolved_until),
        active_since: String = time(task.active_since),
        overlap: &'a str = task.definition.overlap.as_str(),
        misfire: &'a str = task.definition.misfire.as_str(),
        misfire_grace_ms: u64 = millis(task.definition.misfire_grace),
        catch_up_limit: u32 = task.definition.catch_up_limit,
        expires_ms: Option<u64> = task.definition.expires.map(millis),
        max_attempts: u32 = task.definition.retry.max_attempts,
        backoff_ms: u64 = millis(task.definition.retry.backoff),
        backoff_cap_ms: u64 = millis(task.definition.retry.max_backoff),
        timeout_ms: Option<u64> = task.definition.timeout.map(millis),
        jitter_ms: u64 = millis(task.definition.jitter),
        priority: u8 = task.definition.priority,
        concurrency_key: Option<&'a str> = task.definition.concurrency_key.as_deref(),
        on_dead: Option<&'a str> = task.definition.on_dead.as_deref(),
        pause_after_failures: Option<u32> = task.definition.pause_after_failures,
        last_run: Option<String> = optional_time(task.last_run),
        last_finished: Option<String> = optional_time(task.last_finished),
        last_status: Option<&'a str> = task.last_status.map(|status| status.as_str()),
        last_duration_ms: Option<u64> = task.last_duration.map(millis),
        last_error: Option<&'a str> = task.last_error.as_deref(),
        failure_count: u32 = task.failure_count,
        invalid_reason: Option<&'a str> = task.invalid_reason.as_deref(),
        paused_by: Option<&'a str> = task.paused_by.as_deref(),
        managed_by: Option<&'a str> = task.definition.managed_by.as_deref(),
        created_at: String = time(task.created_at),
        updated_at: String = time(task.updated_at),
    }

    /// A row of `task_runs`, with the name of its task.
    RunRow of run: Run {
        id: i64 = run.id,
        task: &'a str = &run.task,
        handler: &'a str = &run.handler,
        scheduled_for: String = time(run.scheduled_for),
        origin: &'a str = run.origin.as_str(),
        retry_of: Option<i64> = run.retry_of,
        request_key: Option<&'a str> = run.request_key.as_deref(),
        status: &'a str = run.status.as_str(),
        run_at: String = time(run.run_at),
        expires_at: Option<String> = optional_time(run.expires_at),
        blocked: Option<&'a str> = run.blocked.as_deref(),
        attempt: u32 = run.attempt,
        forgiven: u32 = run.forgiven,
        priority: u8 = run.priority,
        concurrency_key: Option<&'a str> = run.concurrency_key.as_deref(),
        payload: Option<Json> = run.payload.as_deref().map(json),
        locked_by: Option<&'a str> = run.locked_by.as_deref(),
        locked_until: Option<String> = optional_time(run.locked_until),
        started_at: Option<String> = optional_time(run.started_at),
        finished_at: Option<String> = optional_time(run.finished_at),
        duration_ms: Option<u64> = run.duration.map(millis),
        error: Option<&'a str> = run.error.as_deref(),
        exit_code: Option<i32> = run.exit_code,
        output: Option<&'a str> = run.output.as_deref(),
        result: Option<Json> = run.result.as_deref().map(json),
        progress: Option<&'a str> = run.progress.as_deref(),
        cancel_requested: bool = run.cancel_requested,
        occurrences: u64 = run.occurrences,
        last_scheduled_for: Option<String> = optional_time(run.last_scheduled_for),
    }

    /// A row of `task_attempts`.
    AttemptRow of attempt: Attempt {
        run_id: i64 = attempt.run_id,
        attempt: u32 = attempt.attempt,
        outcome: &'a str = attempt.outcome.as_str(),
        error: Option<&'a str> = attempt.error.as_deref(),
        output: Option<&'a str> = attempt.output.as_deref(),
        exit_code: Option<i32> = attempt.exit_code,
        locked_by: &'a str = &attempt.locked_by,
        started_at: Option<String> = optional_time(attempt.started_at),
        finished_at: String = time(attempt.finished_at),
        duration_ms: Option<u64> = attempt.duration.map(millis),
    }

    /// A row of `task_effects`.
    EffectRow of effect: Effect {
        key: &'a str = &effect.key,
        run_id: i64 = effect.run_id,
        state: &'a str = effect.state.as_str(),
        value: Option<Json> = effect.value.as_deref().map(json),
        created_at: String = time(effect.created_at),
        done_at: Option<String> = optional_time(effect.done_at),
    }
}

/// A run of a sparkline.
#[derive(Serialize)]
pub(crate) struct RecentRow {
    status: &'static str,
    duration_ms: Option<u64>,
}

/// A JSON column: its value, or its text if it is no valid JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Json {
    Value(Box<RawValue>),
    Text(String),
}

fn json(text: &str) -> Json {
    RawValue::from_string(text.to_owned()).map_or_else(|_| Json::Text(text.to_owned()), Json::Value)
}

/// Formats an instant.
pub(crate) fn time(at: Timestamp) -> String {
    at.to_string()
}

fn optional_time(at: Option<Timestamp>) -> Option<String> {
    at.map(time)
}

/// Returns a duration in milliseconds.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

impl From<&Recent> for RecentRow {
    fn from(run: &Recent) -> Self {
        RecentRow { status: run.status.as_str(), duration_ms: run.duration.map(millis) }
    }
}
