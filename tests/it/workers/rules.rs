//! The rules of docs/workers.md for a message of a worker: its keys and their types.

use serde_json::Value;

/// The result of a check: an error says which rule the worker has broken.
pub(crate) type Checked<T> = Result<T, String>;

/// A run and the number of its attempt.
pub(crate) type Id = (i64, u32);

/// The greatest length of a message with its line end.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// A message of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) kind: String,
    /// The attempt that it is about.
    pub(crate) id: Option<Id>,
    pub(crate) body: Value,
}

impl Message {
    /// Reads a line without its line end.
    pub(crate) fn read(line: &[u8]) -> Checked<Self> {
        let text = std::str::from_utf8(line)
            .map_err(|_| format!("a line that is not UTF-8: {:?}", String::from_utf8_lossy(start(line))))?;
        let shown = String::from_utf8_lossy(start(line));
        let body: Value =
            serde_json::from_str(text).map_err(|error| format!("a line that is no JSON: {shown:?}: {error}"))?;
        let kind = body["type"].as_str().ok_or_else(|| format!("a message without a type: {shown}"))?.to_owned();
        let (_, keys) = KEYS
            .iter()
            .find(|(name, _)| *name == kind)
            .ok_or_else(|| format!("a message with the unknown type {kind:?}: {shown}"))?;
        for (key, needed, fits) in *keys {
            match body.get(key) {
                None if *needed => return Err(format!("{kind:?} lacks the key {key:?}: {shown}")),
                Some(value) if !fits(value) => return Err(format!("{kind:?} has an invalid {key:?}: {shown}")),
                _ => {}
            }
        }
        let id = is_run(&body["run"]).then(|| (body["run"].as_i64(), body["attempt"].as_u64()));
        let id = id.and_then(|(run, attempt)| Some((run?, u32::try_from(attempt?).ok()?)));
        Ok(Message { kind, id: id.filter(|_| keys.iter().any(|key| key.0 == "attempt")), body })
    }

    /// Returns the text of a key.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.body[key].as_str().unwrap_or_default()
    }
}

/// The beginning of a line, for messages.
fn start(line: &[u8]) -> &[u8] {
    &line[..line.len().min(200)]
}

/// A key, whether a message must have it, and whether a value fits.
type Key = (&'static str, bool, fn(&Value) -> bool);

const RUN: Key = ("run", true, is_run);
const ATTEMPT: Key =
    ("attempt", true, |value| value.as_u64().is_some_and(|attempt| (1..=u32::MAX.into()).contains(&attempt)));
const EFFECT: &[Key] = &[RUN, ATTEMPT, ("key", true, Value::is_string)];

/// The messages of a worker.
const KEYS: &[(&str, &[Key])] = &[
    (
        "hello",
        &[
            ("protocol", true, |value| value.as_u64() == Some(1)),
            ("handlers", true, are_handlers),
            ("concurrency", true, |value| value.as_u64().is_some_and(|number| (1..=1000).contains(&number))),
        ],
    ),
    ("begin", &[RUN, ATTEMPT]),
    ("progress", &[RUN, ATTEMPT, ("text", true, Value::is_string)]),
    ("done", &[RUN, ATTEMPT]),
    ("failed", &[RUN, ATTEMPT, ("error", true, Value::is_string), ("retry", false, is_retry)]),
    ("effect_begin", EFFECT),
    ("effect_done", &[RUN, ATTEMPT, ("key", true, Value::is_string), ("value", true, |_| true)]),
    ("effect_failed", EFFECT),
    ("log", &[("level", true, is_level), ("text", true, Value::is_string), ("run", false, is_run)]),
    ("ping", &[]),
    ("pong", &[]),
];

fn is_run(value: &Value) -> bool {
    value.as_i64().is_some_and(|run| run > 0)
}

fn are_handlers(value: &Value) -> bool {
    let names = value.as_array().into_iter().flatten().filter_map(Value::as_str).filter(|name| !name.is_empty());
    let names: std::collections::BTreeSet<_> = names.collect();
    value.as_array().is_some_and(|all| all.len() == names.len() && (1..=1000).contains(&all.len()))
}

fn is_level(value: &Value) -> bool {
    value.as_str().is_some_and(|level| ["error", "warn", "info", "debug", "trace"].contains(&level))
}

fn is_retry(value: &Value) -> bool {
    value.is_boolean() || value.as_str().is_some_and(|text| humantime::parse_duration(text).is_ok())
}

/// Whether two values are the same JSON. Numbers are compared by their value: a language may write 1.0 as 1.
pub(crate) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len() && one.iter().all(|(key, value)| other.get(key).is_some_and(|of| same(value, of)))
        }
        _ => one == other,
    }
}

/// Fails with a text unless a condition holds.
pub(crate) fn ensure(holds: bool, rule: impl FnOnce() -> String) -> Checked<()> {
    if holds { Ok(()) } else { Err(rule()) }
}
