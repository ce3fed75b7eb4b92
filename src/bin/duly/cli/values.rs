//! Parsers of option values. An error says what is expected. Pure, but for what `-` reads.

use std::fmt::Display;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, StringValueParser, TypedValueParser};
pub(crate) use duly::text::units::parse_duration as duration;
use duly::{Error, TaskStatus};
use serde_json::value::RawValue;

/// Shortest time after which a run may expire.
const SHORTEST_EXPIRY: Duration = Duration::from_secs(1);

/// The highest exit code of a program on Unix.
pub(crate) const MAX_EXIT_CODE: i32 = 255;

/// The form of a line of the log: time, level and message as text or as one JSON object; or, for the systemd journal, which has its own
/// times, the level as `<N>` and the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
    Journald,
}

/// Returns a parser of a whole number within a range.
pub(crate) fn number<N>(range: RangeInclusive<N>) -> impl TypedValueParser<Value = N>
where
    N: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    StringValueParser::new().try_map(move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    })
}

/// Checks the duration of an interval or delay schedule, and returns its text unchanged.
pub(crate) fn schedule_duration(text: &str) -> Result<String, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected a duration of 1ms to 10years".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// Parses the time after which a run expires.
pub(crate) fn expiry(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    if length < SHORTEST_EXPIRY {
        return Err("expected at least 1s: a scheduler looks for new tasks about once a second".to_owned());
    }
    Ok(length)
}

/// Returns the reason for which a duration or an instant was refused, without the text itself.
pub(crate) fn reason(error: Error) -> String {
    match error {
        Error::InvalidSchedule { reason, .. } | Error::InvalidTime { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// Most characters of a refused text in an error message.
const SHOWN: usize = 80;

/// Returns the beginning of a text, for an error message.
pub(crate) fn truncated(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns a parser of the status of a task.
pub(crate) fn task_status() -> impl TypedValueParser<Value = TaskStatus> {
    let words = PossibleValuesParser::new(TaskStatus::ALL.iter().map(|status| status.as_str()));
    words.try_map(|word| TaskStatus::parse(&word).ok_or("unknown status"))
}

/// Longest JSON that is read from standard input: a payload has at most 256 KiB.
const MAX_INPUT: u64 = 1024 * 1024;

/// Checks a JSON value, and returns its text unchanged. `-`: that of standard input, for values that are too long for an argument.
pub(crate) fn json_or_input(text: &str) -> Result<Box<RawValue>, String> {
    if text != "-" {
        return json(text);
    }
    let mut input = String::new();
    let read = io::stdin().take(MAX_INPUT).read_to_string(&mut input);
    read.map_err(|error| format!("standard input cannot be read: {error}"))?;
    json(input.trim_ascii())
}

/// Checks a JSON value, and returns its text unchanged.
pub(crate) fn json(text: &str) -> Result<Box<RawValue>, String> {
    RawValue::from_string(text.to_owned())
        .map_err(|error| format!("expected JSON, as in '{{\"to\": \"anna\"}}': {error}"))
}

/// Parses the number of a run.
pub(crate) fn run_number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "expected the number of a run, as history shows it".to_owned())
}

/// Checks a line for a shell.
pub(crate) fn command_line(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("expected a command line, as in 'sort in.txt > out.txt'".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// Parses `KEY=VALUE`. Everything after the first `=` is the value.
pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// Checks the name of an environment variable.
pub(crate) fn variable_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('=') {
        return Err("expected the name of a variable; its value is looked up when the command starts".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{expiry, json, schedule_duration, variable, variable_name};
    use std::time::Duration;

    #[test]
    fn values_are_parsed_or_refused_with_what_is_expected() {
        assert_eq!(schedule_duration(" 1h 30m"), Ok(" 1h 30m".into()));
        assert!(
            schedule_duration("15").is_err() && schedule_duration("0").is_err() && schedule_duration("-5s").is_err()
        );
        assert_eq!(expiry("1s"), Ok(Duration::from_secs(1)));
        assert!(expiry("999ms").unwrap_err().starts_with("expected at least 1s") && expiry("0").is_err());
        assert_eq!(json(" {\"b\":1, \"a\":0.10} ").unwrap().get(), "{\"b\":1, \"a\":0.10}");
        assert!(json("{'a': 1}").unwrap_err().starts_with("expected JSON"));
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(variable("=b").is_err() && variable("A").is_err());
        assert!(variable_name("A=b").is_err() && variable_name("A").is_ok());
    }
}
