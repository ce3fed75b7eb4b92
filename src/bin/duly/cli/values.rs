//! Values as they are typed: what each becomes, and what would do where one does not. Pure.

use std::time::Duration;

use duly::Error;
use serde_json::value::RawValue;

/// What a duration looks like.
const EXPECTED: &str = "expected a duration such as 15m or 1h 30m";

/// The shortest time in which a run may expire.
const SHORTEST_EXPIRY: Duration = Duration::from_secs(1);

/// A length of time with its unit; zero too, where the library lets it stand.
pub(crate) fn length(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if ["0", "0s", "0ms"].contains(&text) {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("expected a unit, as in {text}s or {text}m"));
    }
    duly::parse_duration(text).map_err(|error| match reason(error) {
        reason if reason.starts_with("expected a duration such as") => EXPECTED.to_owned(),
        reason => reason,
    })
}

/// How often, or how long after its last run, a task is due: kept as it was typed.
pub(crate) fn rhythm(text: &str) -> Result<String, String> {
    match length(text)? {
        Duration::ZERO => Err("expected a duration of 1ms to 10years".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// In what time a run expires.
pub(crate) fn expiry(text: &str) -> Result<Duration, String> {
    let length = length(text)?;
    if length < SHORTEST_EXPIRY {
        return Err("expected at least 1s: a scheduler looks for new tasks about once a second".to_owned());
    }
    Ok(length)
}

/// What is wrong with a duration or an instant, without the text, which whoever reports it names too.
pub(crate) fn reason(error: Error) -> String {
    match error {
        Error::InvalidSchedule { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// Longest that a text is shown beside what is wrong with it.
const SHOWN: usize = 80;

/// The beginning of a text, for a message that stays one line to read.
pub(crate) fn brief(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// JSON, kept as it was typed.
pub(crate) fn json(text: &str) -> Result<Box<RawValue>, String> {
    RawValue::from_string(text.to_owned())
        .map_err(|error| format!("expected JSON, as in '{{\"to\": \"anna\"}}': {error}"))
}

/// The number of a run.
pub(crate) fn run_number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "expected the number of a run, as history shows it".to_owned())
}

/// `KEY=VALUE`. Everything after the first `=` is the value.
pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// The name of a variable.
pub(crate) fn variable_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('=') {
        return Err("expected the name of a variable; its value is looked up when the command starts".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{expiry, json, length, rhythm, variable, variable_name};
    use std::time::Duration;

    #[test]
    fn values_are_read_or_refused_with_what_would_do() {
        assert_eq!(length("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(length("0"), Ok(Duration::ZERO));
        assert_eq!(length("soon"), Err("expected a duration such as 15m or 1h 30m".into()));
        assert_eq!(length("15"), Err("expected a unit, as in 15s or 15m".into()));
        assert_eq!(rhythm(" 1h 30m"), Ok(" 1h 30m".into()));
        assert!(rhythm("15").is_err() && rhythm("0").is_err() && rhythm("-5s").is_err());
        assert_eq!(expiry("1s"), Ok(Duration::from_secs(1)));
        assert!(expiry("999ms").unwrap_err().starts_with("expected at least 1s") && expiry("0").is_err());
        assert_eq!(json(" {\"b\":1, \"a\":0.10} ").unwrap().get(), "{\"b\":1, \"a\":0.10}");
        assert!(json("{'a': 1}").unwrap_err().starts_with("expected JSON"));
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(variable("=b").is_err() && variable("A").is_err());
        assert!(variable_name("A=b").is_err() && variable_name("A").is_ok());
    }
}
