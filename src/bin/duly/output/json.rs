//! Rows as JSON: keys are the column names, in table order; times are RFC 3339 in UTC with milliseconds.

use std::time::Duration;

use duly::{Attempt, Effect, Recent, Run, Task, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;

/// A row of `scheduled_tasks`.
#[derive(Serialize)]
pub(crate) struct TaskRow<'a> {
    id: i64,
    name: &'a str,
    handler: &'a str,
    payload: Json,
    schedule_type: &'a str,
    schedule_value: &'a str,
    time_zone: &'a str,
    starts_at: Option<String>,
    ends_at: Option<String>,
    status: &'a str,
    next_run: Option<String>,
    planned: bool,
    resolved_until: Option<String>,
    active_since: String,
    overlap: &'a str,
    misfire: &'a str,
    misfire_grace_ms: u64,
    catch_up_limit: u32,
    expires_ms: Option<u64>,
    max_attempts: u32,
    backoff_ms: u64,
    backoff_cap_ms: u64,
    timeout_ms: Option<u64>,
    jitter_ms: u64,
    priority: u8,
    concurrency_key: Option<&'a str>,
    on_dead: Option<&'a str>,
    pause_after_failures: Option<u32>,
    last_run: Option<String>,
    last_finished: Option<String>,
    last_status: Option<&'a str>,
    last_duration_ms: Option<u64>,
    last_error: Option<&'a str>,
    failure_count: u32,
    invalid_reason: Option<&'a str>,
    paused_by: Option<&'a str>,
    managed_by: Option<&'a str>,
    created_at: String,
    updated_at: String,
}

/// A row of `task_runs`, with the name of its task.
#[derive(Serialize)]
pub(crate) struct RunRow<'a> {
    id: i64,
    task: &'a str,
    handler: &'a str,
    scheduled_for: String,
    origin: &'a str,
    retry_of: Option<i64>,
    request_key: Option<&'a str>,
    status: &'a str,
    run_at: String,
    expires_at: Option<String>,
    blocked: Option<&'a str>,
    attempt: u32,
    forgiven: u32,
    priority: u8,
    concurrency_key: Option<&'a str>,
    payload: Option<Json>,
    locked_by: Option<&'a str>,
    locked_until: Option<String>,
    started_at: Option<String>,
    finished_at: Option<String>,
    duration_ms: Option<u64>,
    error: Option<&'a str>,
    exit_code: Option<i32>,
    output: Option<&'a str>,
    result: Option<Json>,
    progress: Option<&'a str>,
    cancel_requested: bool,
    occurrences: u64,
    last_scheduled_for: Option<String>,
}

/// A run of a sparkline.
#[derive(Serialize)]
pub(crate) struct RecentRow {
    status: &'static str,
    duration_ms: Option<u64>,
}

/// A row of `task_attempts`.
#[derive(Serialize)]
pub(crate) struct AttemptRow<'a> {
    run_id: i64,
    attempt: u32,
    outcome: &'a str,
    error: Option<&'a str>,
    output: Option<&'a str>,
    exit_code: Option<i32>,
    locked_by: &'a str,
    started_at: Option<String>,
    finished_at: String,
    duration_ms: Option<u64>,
}

/// A row of `task_effects`.
#[derive(Serialize)]
pub(crate) struct EffectRow<'a> {
    key: &'a str,
    run_id: i64,
    state: &'a str,
    value: Option<Json>,
    created_at: String,
    done_at: Option<String>,
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

impl<'a> From<&'a Task> for TaskRow<'a> {
    fn from(task: &'a Task) -> Self {
        let definition = &task.definition;
        TaskRow {
            id: task.id,
            name: &definition.name,
            handler: &definition.handler,
            payload: json(&definition.payload),
            schedule_type: definition.schedule_type.as_str(),
            schedule_value: &definition.schedule_value,
            time_zone: &definition.time_zone,
            starts_at: optional_time(definition.starts_at),
            ends_at: optional_time(definition.ends_at),
            status: task.status.as_str(),
            next_run: optional_time(task.next_run),
            planned: task.planned,
            resolved_until: optional_time(task.resolved_until),
            active_since: time(task.active_since),
            overlap: definition.overlap.as_str(),
            misfire: definition.misfire.as_str(),
            misfire_grace_ms: millis(definition.misfire_grace),
            catch_up_limit: definition.catch_up_limit,
            expires_ms: definition.expires.map(millis),
            max_attempts: definition.retry.max_attempts,
            backoff_ms: millis(definition.retry.backoff),
            backoff_cap_ms: millis(definition.retry.max_backoff),
            timeout_ms: definition.timeout.map(millis),
            jitter_ms: millis(definition.jitter),
            priority: definition.priority,
            concurrency_key: definition.concurrency_key.as_deref(),
            on_dead: definition.on_dead.as_deref(),
            pause_after_failures: definition.pause_after_failures,
            last_run: optional_time(task.last_run),
            last_finished: optional_time(task.last_finished),
            last_status: task.last_status.map(|status| status.as_str()),
            last_duration_ms: task.last_duration.map(millis),
            last_error: task.last_error.as_deref(),
            failure_count: task.failure_count,
            invalid_reason: task.invalid_reason.as_deref(),
            paused_by: task.paused_by.as_deref(),
            managed_by: definition.managed_by.as_deref(),
            created_at: time(task.created_at),
            updated_at: time(task.updated_at),
        }
    }
}

impl<'a> From<&'a Run> for RunRow<'a> {
    fn from(run: &'a Run) -> Self {
        RunRow {
            id: run.id,
            task: &run.task,
            handler: &run.handler,
            scheduled_for: time(run.scheduled_for),
            origin: run.origin.as_str(),
            retry_of: run.retry_of,
            request_key: run.request_key.as_deref(),
            status: run.status.as_str(),
            run_at: time(run.run_at),
            expires_at: optional_time(run.expires_at),
            blocked: run.blocked.as_deref(),
            attempt: run.attempt,
            forgiven: run.forgiven,
            priority: run.priority,
            concurrency_key: run.concurrency_key.as_deref(),
            payload: run.payload.as_deref().map(json),
            locked_by: run.locked_by.as_deref(),
            locked_until: optional_time(run.locked_until),
            started_at: optional_time(run.started_at),
            finished_at: optional_time(run.finished_at),
            duration_ms: run.duration.map(millis),
            error: run.error.as_deref(),
            exit_code: run.exit_code,
            output: run.output.as_deref(),
            result: run.result.as_deref().map(json),
            progress: run.progress.as_deref(),
            cancel_requested: run.cancel_requested,
            occurrences: run.occurrences,
            last_scheduled_for: optional_time(run.last_scheduled_for),
        }
    }
}

impl From<&Recent> for RecentRow {
    fn from(run: &Recent) -> Self {
        RecentRow { status: run.status.as_str(), duration_ms: run.duration.map(millis) }
    }
}

impl<'a> From<&'a Attempt> for AttemptRow<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        AttemptRow {
            run_id: attempt.run_id,
            attempt: attempt.attempt,
            outcome: attempt.outcome.as_str(),
            error: attempt.error.as_deref(),
            output: attempt.output.as_deref(),
            exit_code: attempt.exit_code,
            locked_by: &attempt.locked_by,
            started_at: optional_time(attempt.started_at),
            finished_at: time(attempt.finished_at),
            duration_ms: attempt.duration.map(millis),
        }
    }
}

impl<'a> From<&'a Effect> for EffectRow<'a> {
    fn from(effect: &'a Effect) -> Self {
        EffectRow {
            key: &effect.key,
            run_id: effect.run_id,
            state: effect.state.as_str(),
            value: effect.value.as_deref().map(json),
            created_at: time(effect.created_at),
            done_at: optional_time(effect.done_at),
        }
    }
}
