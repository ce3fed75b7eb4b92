//! The JSON form of a task: its columns, in the order of the table.

use serde::{Serialize, Serializer};

use crate::clock::{Timestamp, millis};
use crate::model::json;
use crate::model::task::Task;

/// Defines [`Row`]: its columns in order, and their values.
macro_rules! row {
    ($task:ident: $($(#[$attribute:meta])* $column:ident: $type:ty = $value:expr,)+) => {
        #[derive(Serialize)]
        struct Row<'a> { $($(#[$attribute])* $column: $type,)+ }

        impl Serialize for Task {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let $task = self;
                Row { $($column: $value,)+ }.serialize(to)
            }
        }
    };
}

row! {
    task:
    id: i64 = task.id,
    name: &'a str = &task.definition.name,
    handler: &'a str = &task.definition.handler,
    #[serde(with = "json::text")]
    payload: &'a str = &task.definition.payload,
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
    misfire_grace_ms: i64 = millis(task.definition.misfire_grace),
    catch_up_limit: u32 = task.definition.catch_up_limit,
    expires_ms: Option<i64> = task.definition.expires.map(millis),
    max_attempts: u32 = task.definition.retry.max_attempts,
    backoff_ms: i64 = millis(task.definition.retry.backoff),
    backoff_cap_ms: i64 = millis(task.definition.retry.max_backoff),
    timeout_ms: Option<i64> = task.definition.timeout.map(millis),
    jitter_ms: i64 = millis(task.definition.jitter),
    priority: u8 = task.definition.priority,
    concurrency_key: Option<&'a str> = task.definition.concurrency_key.as_deref(),
    on_dead: Option<&'a str> = task.definition.on_dead.as_deref(),
    pause_after_failures: Option<u32> = task.definition.pause_after_failures,
    last_run: Option<String> = optional_time(task.last_run),
    last_finished: Option<String> = optional_time(task.last_finished),
    last_status: Option<&'a str> = task.last_status.map(|status| status.as_str()),
    last_duration_ms: Option<i64> = task.last_duration.map(millis),
    last_error: Option<&'a str> = task.last_error.as_deref(),
    failure_count: u32 = task.failure_count,
    invalid_reason: Option<&'a str> = task.invalid_reason.as_deref(),
    paused_by: Option<&'a str> = task.paused_by.as_deref(),
    managed_by: Option<&'a str> = task.definition.managed_by.as_deref(),
    created_at: String = time(task.created_at),
    updated_at: String = time(task.updated_at),
}

/// Formats an instant. Unlike the serde form of a [`Timestamp`], it can be any that another program may have written.
fn time(at: Timestamp) -> String {
    at.to_string()
}

fn optional_time(at: Option<Timestamp>) -> Option<String> {
    at.map(time)
}
