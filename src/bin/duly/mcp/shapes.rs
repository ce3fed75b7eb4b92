//! How tasks, runs, events and times look in answers.

use duly::text::times::Times;
use duly::{RecordedEvent, Run, ScheduleKind, Task, Timestamp, Upcoming, Zone};
use serde_json::{Value, json};

use crate::mcp::answer::{quoted, untrusted};
use crate::mcp::grant::Sight;

/// A time with its zone and offset.
pub(crate) fn time(at: Timestamp, zone: &Zone, times: &Times) -> Value {
    json!({"local": zone.text_at(at), "zone": zone.name(), "utc": at, "relative": times.relative(at)})
}

/// A time that may be missing.
pub(crate) fn optional_time(at: Option<Timestamp>, zone: &Zone, times: &Times) -> Value {
    at.map_or(Value::Null, |at| time(at, zone, times))
}

/// The same in a line: `2027-03-14T13:00:00+01:00 Europe/Rome (in 5m)`.
pub(crate) fn time_text(at: Timestamp, zone: &Zone, times: &Times) -> String {
    format!("{} {} ({})", zone.text_at(at), zone.name(), times.relative(at))
}

/// The zone of a task, or that of the answers if it is not known here.
pub(crate) fn zone_of(task: &Task, times: &Times) -> Zone {
    let elapsed = [ScheduleKind::Interval, ScheduleKind::Delay, ScheduleKind::Manual];
    let has_zone = !elapsed.contains(&task.definition.schedule_type);
    let zone = has_zone.then(|| Zone::named(&task.definition.time_zone).ok()).flatten();
    zone.unwrap_or_else(|| times.zone.clone())
}

/// The schedule in a line: `cron 0 7 * * * (Europe/Rome)`.
pub(crate) fn schedule_text(task: &Task) -> String {
    let definition = &task.definition;
    match definition.schedule_type {
        ScheduleKind::Manual => "only when triggered".to_owned(),
        kind => format!("{kind} {} ({})", definition.schedule_value, definition.time_zone),
    }
}

/// What a list says of a task.
pub(crate) fn task(task: &Task, sight: Sight, times: &Times) -> Value {
    let (definition, zone) = (&task.definition, zone_of(task, times));
    json!({
        "name": task.name(),
        "schedule": {
            "kind": definition.schedule_type.as_str(), "value": definition.schedule_value, "time_zone": definition.time_zone,
        },
        "status": task.status.as_str(),
        "paused_by": task.paused_by,
        "handler": definition.handler,
        "next_run": optional_time(task.next_run, &zone, times),
        "ends_at": optional_time(definition.ends_at, &zone, times),
        "max_attempts": definition.retry.max_attempts,
        "last": task.last_status.map(|status| json!({
            "status": status.as_str(), "ended": optional_time(task.last_finished, &zone, times),
        })),
        "added_by": sight.of(definition.managed_by.as_ref()),
        "may_be_changed": sight == Sight::Whole,
    })
}

/// The same in a line.
pub(crate) fn task_line(task: &Task, times: &Times) -> String {
    let zone = zone_of(task, times);
    let next =
        task.next_run.map_or_else(|| "no next run".to_owned(), |at| format!("next {}", time_text(at, &zone, times)));
    let by = task.paused_by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let ends = task.definition.ends_at.map(|at| format!(", ends {}", time_text(at, &zone, times))).unwrap_or_default();
    let last = task.last_status.map(|status| format!(", last {status}")).unwrap_or_default();
    format!("{}: {}, {}{by}, {next}{ends}{last}", task.name(), schedule_text(task), task.status)
}

/// A run.
pub(crate) fn run(run: &Run, sight: Sight, zone: &Zone, times: &Times) -> Value {
    json!({
        "run": run.id,
        "task": run.task,
        "status": run.status.as_str(),
        "origin": run.origin.as_str(),
        "scheduled_for": time(run.scheduled_for, zone, times),
        "occurrences": run.occurrences,
        "attempt": run.attempt,
        "started": optional_time(run.started_at, zone, times),
        "ended": optional_time(run.finished_at, zone, times),
        "waits_for": run.blocked.as_deref().map(waits_for),
        "error": sight.of(run.error.as_deref()).map(untrusted),
        "result": sight.of(run.result.as_deref()).map(untrusted),
        "progress": sight.of(run.progress.as_deref()).map(untrusted),
    })
}

/// The same in a line.
pub(crate) fn run_line(run: &Run, sight: Sight, zone: &Zone, times: &Times) -> String {
    let texts = [("error", &run.error), ("result", &run.result), ("progress", &run.progress)];
    let texts = texts.into_iter().filter_map(|(name, text)| Some((name, sight.of(text.as_deref())?)));
    let waits = run.blocked.as_deref().map(|blocked| format!(", waits: {}", waits_for(blocked)));
    let many = (run.occurrences > 1).then(|| format!(", {} occurrences", run.occurrences));
    let texts = texts.map(|(name, text)| format!(", {name}: {}", quoted(text)));
    let extra: String = texts.chain(waits).chain(many).collect();
    format!(
        "run {} of {}: {} ({}), scheduled for {}{extra}",
        run.id,
        run.task,
        run.status,
        run.origin,
        time_text(run.scheduled_for, zone, times)
    )
}

/// Why a run waits, without what it waits for: that may be outside of the scope.
fn waits_for(blocked: &str) -> &'static str {
    match blocked {
        "paused" => "its task is paused",
        "order" => "an earlier run of its task is unfinished",
        "starts" => "no start of its task is left (max_starts)",
        "key" => "no slot of its concurrency key is free",
        _ => "something else",
    }
}

/// An event of a task. Details that quote definitions are left out: they may name other tasks.
pub(crate) fn event(event: &RecordedEvent, zone: &Zone, times: &Times) -> Value {
    json!({"at": time(event.at, zone, times), "kind": event.kind, "detail": detail(event)})
}

/// The same in a line.
pub(crate) fn event_line(event: &RecordedEvent, zone: &Zone, times: &Times) -> String {
    let detail = detail(event).map(|detail| format!(": {detail}")).unwrap_or_default();
    format!("{}: {}{detail}", time_text(event.at, zone, times), event.kind)
}

fn detail(event: &RecordedEvent) -> Option<String> {
    let detail = event.detail.as_deref()?;
    match event.kind.as_str() {
        "paused" | "resumed" | "action" => Some(detail.to_owned()),
        "edited" => detail.split_once(':').map(|(field, _)| field.to_owned()),
        _ => None,
    }
}

/// An occurrence of a schedule.
pub(crate) fn occurrence(upcoming: &Upcoming, zone: &Zone, times: &Times) -> Value {
    let mut value = time(upcoming.at, zone, times);
    if let Some(note) = upcoming.note {
        value["note"] = json!(note.to_string());
    }
    if let Some(reason) = &upcoming.skipped {
        value["skipped"] = json!(reason);
    }
    value
}
