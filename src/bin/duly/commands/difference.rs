//! How a task that was typed differs from the stored one of its name, in words.

use std::fmt::Write as _;

use duly::{Error, Task, duration_text, parse_duration};

use crate::cli::typed::{Typed, option};
use crate::commands::list::schedule;
use crate::exec::payload::Payload;
use crate::output::escape::shell_word;

/// Says in which part of its definition a stored task differs from the typed one, and which option changes it.
pub(crate) fn in_words(error: &Error, typed: &Typed, task: Option<&Task>) -> Option<String> {
    let Error::TaskDiffers { name, field, stored, given } = error else { return None };
    let parts = match (*field, typed.schedule(), task) {
        ("schedule_type" | "schedule_value", Some(arg), Some(task)) => {
            let value = typed.typed(arg).map(|text| format!(" {}", shell_word(&text))).unwrap_or_default();
            difference("schedule", &schedule(task), &format!("{}{value}", option(arg)))
        }
        ("payload", ..) => payloads(stored, given),
        (field, ..) => {
            let part = typed.argument(field).map_or_else(|| field.to_owned(), option);
            difference(&part, &value(field, stored), &value(field, given))
        }
    };
    Some(format!(
        "task {name:?} exists with another {parts}; to change the task, add --replace; to leave it, --if-absent"
    ))
}

/// `key (stored: not set; given: a)`.
fn difference(part: &str, stored: &str, given: &str) -> String {
    let word = |text: &str| if text.is_empty() { "not set".to_owned() } else { text.to_owned() };
    format!("{part} (stored: {}; given: {})", word(stored), word(given))
}

/// A value of a column as options have it.
fn value(field: &str, text: &str) -> String {
    match parse_duration(text).ok().filter(|_| field.ends_with("_ms")) {
        Some(length) => duration_text(length),
        None => text.to_owned(),
    }
}

/// The parts of two payloads that differ: of two commands each part in its words.
fn payloads(stored: &str, given: &str) -> String {
    let (Ok(before), Ok(after)) = (Payload::parse(stored), Payload::parse(given)) else {
        return difference("payload", stored, given);
    };
    let (before, after) = (before.in_words(), after.in_words());
    let mut names: Vec<&str> = before.iter().chain(&after).map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    let text = |rows: &[(&'static str, String)], name: &str| {
        let values = rows.iter().filter(|(one, _)| *one == name).map(|(_, value)| value.as_str());
        values.collect::<Vec<_>>().join(", ")
    };
    let mut parts = String::new();
    for name in names {
        let (stored, given) = (text(&before, name), text(&after, name));
        if stored != given {
            let and = if parts.is_empty() { "" } else { " and " };
            let _ = write!(parts, "{and}{}", difference(name, &stored, &given));
        }
    }
    if parts.is_empty() { difference("payload", stored, given) } else { parts }
}

#[cfg(test)]
mod tests {
    use super::in_words;
    use crate::cli::args::Args;
    use crate::cli::typed::Typed;
    use duly::{Client, NewTask};
    use std::time::Duration;

    fn add(options: &[&str]) -> Typed {
        let words = [&["duly", "add", "t"], options, &["--", "true"]].concat();
        Args::parse_words(words.into_iter().map(Into::into)).expect("a command line").1
    }

    #[test]
    fn what_differs_is_said_in_words() {
        let home = tempfile::tempdir().unwrap();
        let client = Client::open(home.path().join("agent.db")).unwrap();
        let stored = |payload: &'static str| {
            NewTask::interval("t", Duration::from_secs(3600)).handler("command").payload(raw(payload))
        };
        client.add(stored(r#"{"argv":["true"],"cwd":"/"}"#)).unwrap();
        let task = client.task("t").unwrap();
        let says = |options: &[&str], given: NewTask| {
            in_words(&client.add(given).unwrap_err(), &add(options), task.as_ref()).unwrap()
        };
        let end = "; to change the task, add --replace; to leave it, --if-absent";
        assert_eq!(
            says(&["--every", "1h"], stored(r#"{"argv":["echo","a b"],"cwd":"/","user":"anna"}"#)),
            format!(
                "task \"t\" exists with another command (stored: true; given: echo 'a b') and user (stored: not set; given: anna){end}"
            )
        );
        let daily = NewTask::cron("t", "0 7 * * *").handler("command").payload(raw(r#"{"argv":["true"],"cwd":"/"}"#));
        assert_eq!(
            says(&["--cron", "0 7 * * *"], daily),
            format!("task \"t\" exists with another schedule (stored: interval 1h; given: --cron '0 7 * * *'){end}")
        );
        let slow = stored(r#"{"argv":["true"],"cwd":"/"}"#).timeout(Duration::from_secs(90));
        assert_eq!(
            says(&["--every", "1h", "--timeout", "90s"], slow),
            format!("task \"t\" exists with another --timeout (stored: not set; given: 1m 30s){end}")
        );
    }

    fn raw(json: &str) -> Box<serde_json::value::RawValue> {
        serde_json::value::RawValue::from_string(json.to_owned()).unwrap()
    }
}
