//! The payload of a run that follows another: what ended, or what was missed, as JSON. Keys are column names, times RFC 3339. Pure.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::clock::{Timestamp, millis};
use crate::error::{excerpt, excerpt_of_end};
use crate::model::run::{Origin, Run, RunStatus};
use crate::rules::resolve::Span;

/// Longest part of the error (its beginning), and of the output (its end), in bytes. Escaped, both fit a payload.
const MAX_TEXT: usize = 16 * 1024;
/// Longest payload, and longest result, of the run that is described, in bytes. If all together is longer than [`MAX_DESCRIPTION`], its
/// payload is left out, and then its result.
const MAX_VALUE: usize = 48 * 1024;
const MAX_DESCRIPTION: usize = 240 * 1024;

/// Returns the description of a run that has ended.
pub(crate) fn of_run(run: &Run, payload: &str) -> String {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let fields = json!({
        "id": run.id,
        "task": run.task,
        "handler": run.handler,
        "scheduled_for": run.scheduled_for.to_string(),
        "origin": run.origin.as_str(),
        "retry_of": run.retry_of,
        "status": run.status.as_str(),
        "attempt": run.attempt,
        "forgiven": run.forgiven,
        "interrupted": run.interrupted,
        "started_at": time(run.started_at),
        "finished_at": time(run.finished_at),
        "duration_ms": run.duration.map(millis),
        "error": run.error.as_ref().map(|error| excerpt(error, MAX_TEXT)),
        "exit_code": run.exit_code,
        "output": run.output.as_ref().map(|output| excerpt_of_end(output, MAX_TEXT)),
    });
    with_values(fields, &[("payload", Some(payload)), ("result", run.result.as_deref())])
}

/// What was missed: occurrences for which nothing runs, or a run that has expired.
pub(crate) struct Missed<'a> {
    /// The row of the occurrences, or the run.
    pub(crate) id: i64,
    pub(crate) task: &'a str,
    pub(crate) handler: &'a str,
    pub(crate) origin: Origin,
    pub(crate) span: Span,
    pub(crate) error: Option<&'a str>,
    /// The payload of the run.
    pub(crate) payload: Option<&'a str>,
}

/// Returns the description of what was missed.
pub(crate) fn of_missed(missed: &Missed<'_>) -> String {
    let Missed { span, .. } = missed;
    let fields = json!({
        "id": missed.id,
        "task": missed.task,
        "handler": missed.handler,
        "scheduled_for": span.first.to_string(),
        "origin": missed.origin.as_str(),
        "status": RunStatus::Missed.as_str(),
        "from": span.first.to_string(),
        "to": span.last.to_string(),
        "count": span.count,
        "exact": span.exact,
        "error": missed.error.map(|error| excerpt(error, MAX_TEXT)),
    });
    with_values(fields, &[("payload", missed.payload)])
}

/// A field of a description.
#[derive(Serialize)]
#[serde(untagged)]
enum Field<'a> {
    Own(Value),
    /// As it is stored: as a value, a number of more than 64 bits would be rounded.
    Stored(&'a RawValue),
}

/// Adds stored values to the fields, and `left_out`: which of them are too long.
fn with_values(fields: Value, values: &[(&'static str, Option<&str>)]) -> String {
    let Value::Object(fields) = fields else { return fields.to_string() };
    let mut fields: BTreeMap<String, Field<'_>> =
        fields.into_iter().map(|(name, value)| (name, Field::Own(value))).collect();
    let mut left_out = Vec::new();
    for &(name, text) in values {
        let is_long = text.is_some_and(|text| text.len() > MAX_VALUE);
        left_out.extend(is_long.then_some(name));
        // Text that is no JSON: another program wrote it.
        let value = text.filter(|_| !is_long).and_then(|text| serde_json::from_str(text).ok());
        fields.insert(name.to_owned(), value.map_or(Field::Own(Value::Null), Field::Stored));
    }
    for &(name, _) in values {
        if text(&fields).len() > MAX_DESCRIPTION && matches!(fields[name], Field::Stored(_)) {
            fields.insert(name.to_owned(), Field::Own(Value::Null));
            left_out.push(name);
        }
    }
    if !left_out.is_empty() {
        fields.insert("left_out".to_owned(), Field::Own(json!(left_out)));
    }
    text(&fields)
}

/// Texts and numbers are always JSON.
fn text(fields: &BTreeMap<String, Field<'_>>) -> String {
    serde_json::to_string(fields).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{MAX_DESCRIPTION, MAX_TEXT, MAX_VALUE, with_values};
    use serde_json::{Value, json};

    #[test]
    fn values_stay_as_they_are_stored() {
        let payload = r#"{"account": 340282366920938463463374607431768211455, "price": 0.10000000000000000001}"#;
        let described = with_values(json!({"id": 7}), &[("payload", Some(payload)), ("result", None)]);
        assert_eq!(described, format!(r#"{{"id":7,"payload":{payload},"result":null}}"#));
        assert_eq!(with_values(json!({}), &[("payload", Some("{no json"))]), r#"{"payload":null}"#);
    }

    #[test]
    fn what_is_too_long_is_left_out_and_named() {
        let long = |bytes: usize| format!("\"{}\"", "a".repeat(bytes - 2));
        let (fits, too_long) = (long(MAX_VALUE), long(MAX_VALUE + 1));
        // Six bytes for each in JSON.
        let (output, longest) = ("\u{1}".repeat(15_000), "\u{1}".repeat(MAX_TEXT));
        for (fields, payload, result, left_out) in [
            (json!({}), &fits, &fits, json!(null)),
            (json!({}), &too_long, &fits, json!(["payload"])),
            (json!({}), &fits, &too_long, json!(["result"])),
            (json!({}), &too_long, &too_long, json!(["payload", "result"])),
            (json!({"error": output, "output": output}), &fits, &fits, json!(["payload"])),
            (json!({"error": longest, "output": longest}), &fits, &fits, json!(["payload", "result"])),
        ] {
            let described = with_values(fields, &[("payload", Some(payload)), ("result", Some(result))]);
            assert!(described.len() <= MAX_DESCRIPTION, "{}", described.len());
            let described: Value = serde_json::from_str(&described).unwrap();
            assert_eq!(described["left_out"], left_out);
            for name in ["payload", "result"] {
                let is_named = left_out.as_array().is_some_and(|names| names.contains(&json!(name)));
                assert_eq!(described[name].is_null(), is_named, "{name}, {left_out}");
            }
        }
    }
}
