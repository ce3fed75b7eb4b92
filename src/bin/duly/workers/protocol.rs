//! The messages of docs/workers.md: parsed from the lines of a worker, and written for it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use duly::executor::check_text;
use duly::{Context, StopReason, Timestamp};
use log::Level;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::output::escape;

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;
/// Longest line in bytes, with its line end.
pub(crate) const MAX_LINE: usize = 1024 * 1024;
/// The type of the first message, as it stands in it.
const HELLO: &[u8] = b"\"hello\"";
/// Most handlers of a worker.
const MAX_HANDLERS: usize = 1000;
/// Most runs that a worker takes at once.
const MAX_CONCURRENCY: u32 = 1000;
/// Most characters of a line or a value that an error quotes.
const QUOTED: usize = 60;

/// An attempt, as messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttemptId {
    pub(crate) run: i64,
    pub(crate) attempt: u32,
}

/// A message from a worker.
#[derive(Debug, PartialEq)]
pub(crate) enum FromWorker<'a> {
    Hello(Hello),
    Log { level: Level, text: String, run: Option<i64> },
    Ping,
    Pong,
    Of(AttemptId, Step<'a>),
}

/// The first message of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) handlers: BTreeSet<String>,
    pub(crate) concurrency: u32,
}

/// A message about an attempt.
#[derive(Debug, PartialEq)]
pub(crate) enum Step<'a> {
    Begin,
    Progress(String),
    /// With the result as JSON; `None`: none.
    Done(Option<&'a str>),
    Failed {
        error: String,
        retry: WorkerRetry,
    },
    EffectBegin(String),
    /// The key, and the value as JSON.
    EffectDone(String, &'a str),
    EffectFailed(String),
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerRetry {
    Yes,
    No,
    /// The run is skipped.
    Skip,
    After(Duration),
}

/// The keys of all messages. Each is read only if its message has it: a key that a message does not have is ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(rename = "type", borrow, deserialize_with = "present")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    run: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    attempt: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    error: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    retry: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    text: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    key: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    level: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    protocol: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    handlers: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    concurrency: Option<&'a RawValue>,
}

/// Reads a value that may be `null`: a key with `null` is no absent key.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Whether a line without its line end is an object of JSON, as each message is, or would be a `hello`. Others may come before it.
pub(crate) fn may_be_message(line: &[u8]) -> bool {
    let names_hello = || line.windows(HELLO.len()).any(|part| part == HELLO);
    line.trim_ascii_start().starts_with(b"{") && (serde_json::from_slice::<IgnoredAny>(line).is_ok() || names_hello())
}

/// Parses a line without its line end. `None`: it is empty.
///
/// # Errors
/// What is wrong: the key, what was expected and what was found.
pub(crate) fn parse(line: &[u8]) -> Result<Option<FromWorker<'_>>, String> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    let no_message = |reason: &dyn std::fmt::Display| {
        let found = quoted(&String::from_utf8_lossy(&line[..line.len().min(4 * QUOTED)]));
        format!("expected a message, a JSON object on one line, found {found}: {reason}")
    };
    let text = std::str::from_utf8(line).map_err(|_| no_message(&"it is not UTF-8"))?;
    if !text.starts_with('{') {
        return Err(no_message(&"standard output carries messages only; write logs to standard error"));
    }
    let keys: Line<'_> = serde_json::from_str(text).map_err(|error| no_message(&error))?;
    let Some(kind) = keys.kind else { return Err(no_message(&"the key \"type\" is missing")) };
    let message = match kind.get() {
        "\"begin\"" => keys.of("begin", |_| Ok(Step::Begin)),
        "\"done\"" => keys.of("done", |keys| Ok(Step::Done(optional(keys.result).map(RawValue::get)))),
        "\"failed\"" => keys.of("failed", |keys| {
            Ok(Step::Failed { error: keys.text_of("failed", "error", keys.error)?, retry: keys.retry()? })
        }),
        "\"progress\"" => keys.of("progress", |keys| Ok(Step::Progress(keys.text_of("progress", "text", keys.text)?))),
        "\"effect_begin\"" => keys.of("effect_begin", |keys| Ok(Step::EffectBegin(keys.effect("effect_begin")?))),
        "\"effect_done\"" => keys.of("effect_done", |keys| {
            let value = keys.value.ok_or_else(|| missing("effect_done", "value"))?;
            Ok(Step::EffectDone(keys.effect("effect_done")?, value.get()))
        }),
        "\"effect_failed\"" => keys.of("effect_failed", |keys| Ok(Step::EffectFailed(keys.effect("effect_failed")?))),
        "\"ping\"" => Ok(FromWorker::Ping),
        "\"pong\"" => Ok(FromWorker::Pong),
        "\"log\"" => keys.log(),
        "\"hello\"" => keys.hello().map(FromWorker::Hello),
        other => Err(format!("unknown type {}: is the worker written for a newer duly?", quoted(other))),
    };
    message.map(Some)
}

impl<'a> Line<'a> {
    fn of(&self, kind: &str, step: impl FnOnce(&Self) -> Result<Step<'a>, String>) -> Result<FromWorker<'a>, String> {
        let run = value(kind, "run", self.run, "an integer")?;
        let attempt = value(kind, "attempt", self.attempt, "an integer from 1")?;
        Ok(FromWorker::Of(AttemptId { run, attempt }, step(self)?))
    }

    fn text_of(&self, kind: &str, key: &str, raw: Option<&RawValue>) -> Result<String, String> {
        value(kind, key, raw, "a text")
    }

    fn effect(&self, kind: &str) -> Result<String, String> {
        self.text_of(kind, "key", self.key)
    }

    fn retry(&self) -> Result<WorkerRetry, String> {
        const EXPECTED: &str = "true, false, \"skip\" or a duration such as \"30s\"";
        let Some(raw) = optional(self.retry) else { return Ok(WorkerRetry::Yes) };
        match raw.get() {
            "true" => return Ok(WorkerRetry::Yes),
            "false" => return Ok(WorkerRetry::No),
            _ => {}
        }
        let text: String = value("failed", "retry", Some(raw), EXPECTED)?;
        if text == "skip" {
            return Ok(WorkerRetry::Skip);
        }
        duly::parse_duration(&text)
            .map(WorkerRetry::After)
            .map_err(|_| format!("failed: retry: expected {EXPECTED}, found {}", quoted(raw.get())))
    }

    fn log(&self) -> Result<FromWorker<'a>, String> {
        const EXPECTED: &str = "error, warn, info, debug or trace";
        let found: String = value("log", "level", self.level, EXPECTED)?;
        let level = match found.as_str() {
            "error" => Level::Error,
            "warn" => Level::Warn,
            "info" => Level::Info,
            "debug" => Level::Debug,
            "trace" => Level::Trace,
            _ => return Err(format!("log: level: expected {EXPECTED}, found {}", quoted(&found))),
        };
        let run = optional(self.run).map(|raw| value("log", "run", Some(raw), "an integer")).transpose()?;
        Ok(FromWorker::Log { level, text: self.text_of("log", "text", self.text)?, run })
    }

    fn hello(&self) -> Result<Hello, String> {
        let protocol: u32 = value("hello", "protocol", self.protocol, "1")?;
        if protocol != PROTOCOL {
            return Err(format!("hello: protocol: expected {PROTOCOL}, found {protocol}"));
        }
        let names: Vec<String> = value("hello", "handlers", self.handlers, "an array of names")?;
        if names.is_empty() || names.len() > MAX_HANDLERS {
            let found = names.len();
            return Err(format!("hello: handlers: expected 1 to {MAX_HANDLERS} names, found {found}"));
        }
        if let Some(error) = names.iter().find_map(|name| check_text("handler", name).err()) {
            return Err(format!("hello: handlers: {error}; no task can have such a handler: rename it in the worker"));
        }
        let expected = "an integer from 1 to 1000";
        let concurrency: u32 = value("hello", "concurrency", self.concurrency, expected)?;
        if !(1..=MAX_CONCURRENCY).contains(&concurrency) {
            return Err(format!("hello: concurrency: expected {expected}, found {concurrency}"));
        }
        Ok(Hello { handlers: names.into_iter().collect(), concurrency })
    }
}

/// Returns the value of a key that a message may lack, and may give as `null`.
fn optional(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get() != "null")
}

fn value<T: DeserializeOwned>(kind: &str, key: &str, raw: Option<&RawValue>, expected: &str) -> Result<T, String> {
    let raw = raw.ok_or_else(|| missing(kind, key))?;
    serde_json::from_str(raw.get())
        .map_err(|_| format!("{kind}: {key}: expected {expected}, found {}", quoted(raw.get())))
}

fn missing(kind: &str, key: &str) -> String {
    format!("{kind}: the key {key:?} is missing")
}

/// Quotes the beginning of what a worker sent.
fn quoted(text: &str) -> String {
    let mut letters = text.chars();
    let beginning: String = letters.by_ref().take(QUOTED).collect();
    let rest = if letters.next().is_some() { "..." } else { "" };
    format!("{}{rest}", escape::one_line(&beginning))
}

/// A message to a worker.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToWorker<'a> {
    Welcome {
        protocol: u32,
        worker: &'a str,
        copy: u32,
        database: Cow<'a, str>,
    },
    Run {
        run: i64,
        attempt: u32,
        task: &'a str,
        handler: &'a str,
        payload: &'a RawValue,
        scheduled_for: String,
        origin: String,
        idempotency_key: String,
        deadline: Option<String>,
    },
    Cancel {
        run: i64,
        attempt: u32,
        reason: &'static str,
    },
    Effect {
        run: i64,
        attempt: u32,
        key: &'a str,
        #[serde(flatten)]
        answer: EffectAnswer<'a>,
    },
    Ping,
    Pong,
    Stop {
        deadline: String,
    },
    Error {
        error: &'a str,
    },
}

/// The answer about an effect.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum EffectAnswer<'a> {
    Begin,
    Done { value: &'a RawValue },
    InDoubt,
    Stored,
    Undone,
    Refused { error: String },
}

impl<'a> ToWorker<'a> {
    /// Returns the message that hands over an attempt.
    ///
    /// # Errors
    /// If its payload is no JSON.
    pub(crate) fn run(context: &'a Context, handler: &'a str) -> serde_json::Result<Self> {
        Ok(ToWorker::Run {
            run: context.run_id(),
            attempt: context.attempt(),
            task: context.task(),
            handler,
            payload: serde_json::from_str(context.payload_json())?,
            scheduled_for: context.scheduled_for().to_string(),
            origin: context.origin().to_string(),
            idempotency_key: context.idempotency_key(),
            deadline: context.deadline().map(|at| at.to_string()),
        })
    }

    /// Returns the message that asks for the end of an attempt.
    pub(crate) fn cancel(id: AttemptId, reason: StopReason) -> Self {
        let reason = match reason {
            StopReason::TimeUp => "timeout",
            StopReason::Shutdown | StopReason::LeaseLost => "shutdown",
            _ => "asked",
        };
        ToWorker::Cancel { run: id.run, attempt: id.attempt, reason }
    }

    pub(crate) fn stop(deadline: Timestamp) -> Self {
        ToWorker::Stop { deadline: deadline.to_string() }
    }

    /// Returns the line.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = Vec::new();
        self.write(&mut line);
        line
    }

    /// Appends the line.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let begin = to.len();
        // Neither a vector nor these texts can fail.
        let _ = serde_json::to_writer(&mut *to, self);
        // JSON that is passed on as it was stored may have several lines. Within its texts line ends are escaped.
        for byte in &mut to[begin..] {
            if matches!(*byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        to.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use duly::StopReason;
    use log::Level;
    use serde_json::value::RawValue;

    use super::{AttemptId, EffectAnswer, FromWorker, Hello, Step, ToWorker, WorkerRetry, parse};

    const ID: AttemptId = AttemptId { run: 81, attempt: 2 };

    fn parsed(line: &str) -> FromWorker<'_> {
        parse(line.as_bytes()).unwrap().unwrap()
    }

    fn step(rest: &'static str) -> Step<'static> {
        let line = format!("{{\"run\":81,\"attempt\":2,{rest}}}").leak();
        match parsed(line) {
            FromWorker::Of(ID, step) => step,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_message_is_parsed() {
        let hello = r#"{"type":"hello","protocol":1,"handlers":["b","a","b"],"concurrency":1000,"more":{"x":[1]}}"#;
        let handlers = ["a", "b"].map(String::from).into();
        assert_eq!(parsed(hello), FromWorker::Hello(Hello { handlers, concurrency: 1000 }));
        let log = |run| FromWorker::Log { level: Level::Warn, text: "a\nb".to_owned(), run };
        assert_eq!(parsed(r#"{"type":"log","level":"warn","text":"a\nb"}"#), log(None));
        assert_eq!(parsed(r#"{"type":"log","level":"warn","text":"a\nb","run":7}"#), log(Some(7)));
        assert_eq!(parsed(" {\"type\":\"ping\"}\r"), FromWorker::Ping);
        assert_eq!(parsed(r#"{"type":"pong","run":"a key that pong does not have"}"#), FromWorker::Pong);
        assert_eq!(step(r#""type":"begin","text":5"#), Step::Begin);
        assert_eq!(step(r#""type":"progress","text":"\u00e9""#), Step::Progress("\u{e9}".to_owned()));
        assert_eq!(step(r#""type":"done""#), Step::Done(None));
        assert_eq!(step(r#""type":"done","result":null"#), Step::Done(None));
        assert_eq!(step(r#""type":"done","result": {"n" : [1]} "#), Step::Done(Some(r#"{"n" : [1]}"#)));
        let failed = |retry| Step::Failed { error: "no".to_owned(), retry };
        assert_eq!(step(r#""type":"failed","error":"no""#), failed(WorkerRetry::Yes));
        assert_eq!(step(r#""type":"failed","error":"no","retry":true"#), failed(WorkerRetry::Yes));
        assert_eq!(step(r#""type":"failed","error":"no","retry":false"#), failed(WorkerRetry::No));
        assert_eq!(step(r#""type":"failed","error":"no","retry":"skip""#), failed(WorkerRetry::Skip));
        let after = failed(WorkerRetry::After(Duration::from_secs(5400)));
        assert_eq!(step(r#""type":"failed","error":"no","retry":"1h 30m""#), after);
        assert_eq!(step(r#""type":"effect_begin","key":"k""#), Step::EffectBegin("k".to_owned()));
        assert_eq!(step(r#""type":"effect_done","key":"k","value":null"#), Step::EffectDone("k".to_owned(), "null"));
        assert_eq!(step(r#""type":"effect_failed","key":"k""#), Step::EffectFailed("k".to_owned()));
        assert_eq!(parse(b" \t\r"), Ok(None));
    }

    #[test]
    fn an_error_names_the_key_and_what_was_expected_and_found() {
        for (line, expected) in [
            ("hello", "standard output carries messages only"),
            ("[\"begin\",1,1]", "a JSON object on one line, found [\"begin\",1,1]"),
            (r#"{"type":"begin""#, "EOF"),
            (r#"{"type":"ping"} {}"#, "trailing"),
            (r#"{"type":"done","run":1,"run":2,"attempt":1}"#, "duplicate field `run`"),
            ("{}", "the key \"type\" is missing"),
            (r#"{"type":7}"#, "unknown type 7"),
            (r#"{"type":"dane","run":1,"attempt":1}"#, "unknown type \"dane\""),
            (r#"{"type":"done","attempt":1}"#, "done: the key \"run\" is missing"),
            (r#"{"type":"done","run":"1","attempt":1}"#, "done: run: expected an integer, found \"1\""),
            (r#"{"type":"done","run":1,"attempt":1.5}"#, "done: attempt: expected an integer from 1, found 1.5"),
            (r#"{"type":"done","run":1,"attempt":-1}"#, "attempt: expected an integer from 1, found -1"),
            (r#"{"type":"failed","run":1,"attempt":1}"#, "failed: the key \"error\" is missing"),
            (r#"{"type":"failed","run":1,"attempt":1,"error":null}"#, "error: expected a text, found null"),
            (
                r#"{"type":"failed","run":1,"attempt":1,"error":"","retry":5}"#,
                "retry: expected true, false, \"skip\" or",
            ),
            (r#"{"type":"failed","run":1,"attempt":1,"error":"","retry":"soon"}"#, "found \"soon\""),
            (r#"{"type":"effect_done","run":1,"attempt":1,"key":"k"}"#, "effect_done: the key \"value\" is missing"),
            (r#"{"type":"log","level":"loud","text":""}"#, "log: level: expected error, warn, info"),
            (r#"{"type":"hello","protocol":2,"handlers":["a"],"concurrency":1}"#, "protocol: expected 1, found 2"),
            (r#"{"type":"hello","protocol":1,"handlers":[],"concurrency":1}"#, "expected 1 to 1000 names, found 0"),
            (r#"{"type":"hello","protocol":1,"handlers":[""],"concurrency":1}"#, "handler: expected 1 to 200 bytes"),
            (
                r#"{"type":"hello","protocol":1,"handlers":["a","b\n"],"concurrency":1}"#,
                r#"without control characters or U+FFFD, found "b\n"; no task can have such a handler: rename it"#,
            ),
            (r#"{"type":"hello","protocol":1,"handlers":["\u001b[2J"],"concurrency":1}"#, r#"found "\u{1b}[2J""#),
            ("{\"type\":\"hello\",\"protocol\":1,\"handlers\":[\"\u{fffd}\"],\"concurrency\":1}", "rename it"),
            (r#"{"type":"hello","protocol":1,"handlers":"a","concurrency":1}"#, "expected an array of names"),
            (r#"{"type":"hello","protocol":1,"handlers":["a"],"concurrency":0}"#, "from 1 to 1000, found 0"),
            ("{\"type\":\"\u{1b}[2J\"}", "control character"),
        ] {
            let error = parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\u{1b}'), "{line}: {error}");
        }
        assert!(parse(b"{\"type\":\"\xff\"}").unwrap_err().contains("not UTF-8"));
        let long = format!("{{\"type\":\"{}\"}}", "x".repeat(100_000));
        assert!(parse(long.as_bytes()).unwrap_err().len() < 300);
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse(format!("{{\"type\":\"ping\",\"x\":{deep}}}").as_bytes()).is_ok());
    }

    #[test]
    fn a_message_to_a_worker_is_one_line() {
        let line = |message: ToWorker<'_>| String::from_utf8(message.line()).unwrap();
        assert_eq!(line(ToWorker::Ping), "{\"type\":\"ping\"}\n");
        assert_eq!(
            line(ToWorker::Welcome { protocol: 1, worker: "mail", copy: 1, database: "/srv/a\nb".into() }),
            "{\"type\":\"welcome\",\"protocol\":1,\"worker\":\"mail\",\"copy\":1,\"database\":\"/srv/a\\nb\"}\n"
        );
        for (reason, text) in
            [(StopReason::Asked, "asked"), (StopReason::TimeUp, "timeout"), (StopReason::Shutdown, "shutdown")]
        {
            let expected = format!("{{\"type\":\"cancel\",\"run\":81,\"attempt\":2,\"reason\":\"{text}\"}}\n");
            assert_eq!(line(ToWorker::cancel(ID, reason)), expected);
        }
        let effect = |answer| line(ToWorker::Effect { run: 81, attempt: 2, key: "send", answer });
        let value: &RawValue = serde_json::from_str("{\n\"a\": 1}").unwrap();
        let begin = "{\"type\":\"effect\",\"run\":81,\"attempt\":2,\"key\":\"send\",\"state\":";
        assert_eq!(effect(EffectAnswer::Begin), format!("{begin}\"begin\"}}\n"));
        assert_eq!(effect(EffectAnswer::InDoubt), format!("{begin}\"in_doubt\"}}\n"));
        assert_eq!(effect(EffectAnswer::Done { value }), format!("{begin}\"done\",\"value\":{{ \"a\": 1}}}}\n"));
        let refused = EffectAnswer::Refused { error: "it is \"taken\"".to_owned() };
        assert_eq!(effect(refused), format!("{begin}\"refused\",\"error\":\"it is \\\"taken\\\"\"}}\n"));
    }
}
