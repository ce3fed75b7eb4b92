//! The message about an alarm: its JSON, and one line of text.

use duly::{AlarmItem, AlarmKind, AlarmMessage, AlarmState};
use serde::Serialize;

use crate::output::escape;

/// Version of the JSON. It grows only if a field changes its meaning or is removed.
const VERSION: u32 = 1;

/// What all messages of this process have in common.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) host: String,
    pub(crate) database: String,
}

/// The JSON of a message. See docs/alarms.md.
#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    id: &'a str,
    kind: &'static str,
    state: &'static str,
    count: u64,
    since: String,
    text: String,
    first: Option<&'a AlarmItem>,
    items: &'a [AlarmItem],
    host: &'a str,
    database: &'a str,
}

/// Returns the JSON of a message.
pub(crate) fn json(message: &AlarmMessage, origin: &Origin) -> String {
    let json = Json {
        version: VERSION,
        id: &message.id,
        kind: message.kind.as_str(),
        state: message.state.as_str(),
        count: message.count,
        since: message.since.to_string(),
        text: text(message),
        first: message.items.first(),
        items: &message.items,
        host: &origin.host,
        database: &origin.database,
    };
    // Texts, numbers and lists always have a JSON form.
    serde_json::to_string(&json).unwrap_or_default()
}

/// Returns a message as one line.
pub(crate) fn text(message: &AlarmMessage) -> String {
    let what = match message.kind {
        AlarmKind::Dead => "dead runs",
        AlarmKind::Missed => "missed occurrences",
        AlarmKind::Skipped => "tasks that are skipped",
        AlarmKind::Limited => "tasks without a start left",
        AlarmKind::Overdue => "overdue work",
        AlarmKind::Invalid => "invalid tasks",
        AlarmKind::SchedulerLost => "lost schedulers",
        _ => "the database cannot be written",
    };
    let over = if message.state == AlarmState::Ended { "over: " } else { "" };
    let found = message.items.first().map_or("", |item| item.found.as_str());
    let more = if message.count > 1 { format!("{}, first: ", message.count) } else { String::new() };
    escape::one_line(&format!("{over}{what}: {more}{found}"))
}
