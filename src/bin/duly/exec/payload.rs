//! The payload of the handler `command`. It is checked when a task is added and before a command is started.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use duly::Retry;

use crate::cli::values::{MAX_EXIT_CODE, truncated};
use crate::output::escape::shell_word;

/// A valid payload. As JSON it contains the given fields in this order, so that the same command always has the same text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Payload {
    /// The program and its arguments; never empty.
    pub(crate) argv: Vec<String>,
    /// The working directory; `None`: that of the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
    /// The user that runs it, if the scheduler runs as root; `None`: the user of the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// Variables that are added to the environment of the scheduler.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    /// Variables that the environment of the scheduler must have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) env_from: Vec<String>,
    /// The standard input.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) stdin: String,
    /// The gate: a program and its arguments, which decide whether a run is worth starting; empty: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) only_if: Vec<String>,
    /// Exit codes of the command after which the run is dead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) give_up_exit_codes: Vec<i32>,
    /// Exit codes of the command after which the run is skipped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) skip_exit_codes: Vec<i32>,
}

/// The names of all fields.
const FIELDS: [&str; 9] =
    ["argv", "cwd", "user", "env", "env_from", "stdin", "only_if", "give_up_exit_codes", "skip_exit_codes"];
/// The exit code of a program that is not configured: it would fail again. Its name in sysexits.h; `EX_TEMPFAIL`, 75, is a failure that is
/// retried, as all others.
const EX_CONFIG: i32 = 78;

impl Payload {
    /// Parses a payload. An error names the field, and what is expected and found.
    pub(crate) fn parse(json: &str) -> Result<Self, String> {
        let value = serde_json::from_str(json).map_err(|error| format!("the payload is not JSON: {error}"))?;
        let Value::Object(fields) = value else {
            return Err(format!("the payload of a command: expected an object with argv, found {}", kind(&value)));
        };
        if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            return Err(format!(
                "the payload of a command has no field {:?}, only {}",
                truncated(unknown),
                FIELDS.join(", ")
            ));
        }
        let payload = Payload {
            argv: texts(&fields, "argv")?,
            cwd: text(&fields, "cwd")?,
            user: text(&fields, "user")?,
            env: pairs(&fields, "env")?,
            env_from: texts(&fields, "env_from")?,
            stdin: match field(&fields, "stdin") {
                None => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => return Err(format!("stdin: expected a string, found {}", kind(other))),
            },
            only_if: texts(&fields, "only_if")?,
            give_up_exit_codes: exit_codes(&fields, "give_up_exit_codes")?,
            skip_exit_codes: exit_codes(&fields, "skip_exit_codes")?,
        };
        if payload.argv.first().is_none_or(String::is_empty) {
            return Err("argv: expected a program and its arguments, found none".to_owned());
        }
        if payload.only_if.first().is_some_and(String::is_empty) {
            return Err("only_if: expected a program and its arguments, found an empty program".to_owned());
        }
        if let Some(code) = payload.skip_exit_codes.iter().find(|code| payload.give_up_exit_codes.contains(code)) {
            return Err(format!("skip_exit_codes: {code} is one of give_up_exit_codes too: name it in one of them"));
        }
        if payload.cwd.as_ref().is_some_and(String::is_empty) {
            return Err("cwd: expected a folder, found an empty string".to_owned());
        }
        if payload.user.as_ref().is_some_and(String::is_empty) {
            return Err("user: expected the name of a user, found an empty string".to_owned());
        }
        let names = payload.env.keys().map(|name| ("env", name));
        for (field, name) in names.chain(payload.env_from.iter().map(|name| ("env_from", name))) {
            if name.is_empty() || name.contains('=') {
                return Err(format!("{field}: expected the name of a variable, found {:?}", truncated(name)));
            }
        }
        Ok(payload)
    }

    /// Returns the payload as JSON, after checking it.
    pub(crate) fn checked(&self) -> Result<Box<RawValue>, String> {
        let json = |payload: &Payload| serde_json::value::to_raw_value(payload).map_err(|error| error.to_string());
        json(&Payload::parse(json(self)?.get())?)
    }

    /// Returns the parts for people, each with its name; words are quoted for a shell.
    pub(crate) fn in_words(self) -> Vec<(&'static str, String)> {
        let quoted = |argv: &[String]| argv.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ");
        let mut rows = vec![("command", quoted(&self.argv))];
        rows.extend((!self.only_if.is_empty()).then(|| ("only if", quoted(&self.only_if))));
        rows.extend(self.cwd.map(|folder| ("cwd", folder)));
        rows.extend(self.user.map(|name| ("user", name)));
        rows.extend(self.env.iter().map(|(key, value)| ("env", format!("{key}={}", shell_word(value)))));
        rows.extend(self.env_from.into_iter().map(|name| ("env from", name)));
        rows.extend((!self.stdin.is_empty()).then_some(("stdin", self.stdin)));
        for (name, codes) in [("give up after", &self.give_up_exit_codes), ("skip after", &self.skip_exit_codes)] {
            let codes = codes.iter().map(i32::to_string).collect::<Vec<_>>();
            rows.extend((!codes.is_empty()).then(|| (name, format!("exit code {}", codes.join(", ")))));
        }
        rows
    }

    /// Returns what follows an exit code of the command that is not 0.
    pub(crate) fn after_exit(&self, code: i32) -> Retry {
        if self.skip_exit_codes.contains(&code) {
            return Retry::Skip;
        }
        let gives_up = code == EX_CONFIG || self.give_up_exit_codes.contains(&code);
        if gives_up { Retry::GiveUp } else { Retry::Backoff }
    }

    /// Returns the first variable of `env_from` that is not set.
    pub(crate) fn missing_variable(&self, is_set: impl Fn(&str) -> bool) -> Option<&str> {
        self.env_from.iter().map(String::as_str).find(|name| !is_set(name))
    }
}

/// Variable that names the file with the payload of the run.
pub(crate) const PAYLOAD_FILE: &str = "DULY_PAYLOAD_FILE";

/// The variables that describe a dead run.
pub(crate) const DEAD_RUN: [&str; 4] = ["DULY_DEAD_TASK", "DULY_DEAD_RUN_ID", "DULY_DEAD_STATUS", "DULY_DEAD_ERROR"];

/// Returns these variables with their values if the payload is a dead run. It is one in runs of origin `on_dead`, their
/// retries, and triggers that pass one for a test.
pub(crate) fn dead_run(payload: &str) -> Option<[(&'static str, String); 4]> {
    let run: Value = serde_json::from_str(payload).ok()?;
    let (task, id, status) = (run["task"].as_str()?, run["id"].as_i64()?, run["status"].as_str()?);
    if status != "dead" {
        return None;
    }
    let values = [task, &id.to_string(), status, run["error"].as_str().unwrap_or_default()];
    // A variable cannot contain NUL; an error can.
    let values = values.map(|value| value.replace('\0', "\u{fffd}"));
    let mut pairs = DEAD_RUN.into_iter().zip(values);
    Some(std::array::from_fn(|_| pairs.next().unwrap_or_default()))
}

/// Returns a field, unless it is null.
fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    field(fields, name).map(|value| string(value, name)).transpose()
}

fn texts(fields: &Map<String, Value>, name: &str) -> Result<Vec<String>, String> {
    match field(fields, name) {
        None => Ok(Vec::new()),
        Some(Value::Array(values)) => {
            values.iter().enumerate().map(|(at, value)| string(value, &format!("{name}[{at}]"))).collect()
        }
        Some(other) => Err(format!("{name}: expected an array of strings, found {}", kind(other))),
    }
}

fn pairs(fields: &Map<String, Value>, name: &str) -> Result<BTreeMap<String, String>, String> {
    match field(fields, name) {
        None => Ok(BTreeMap::new()),
        Some(Value::Object(values)) => {
            let pair = |(key, value): (&String, &Value)| {
                let field = format!("{name}.{}", truncated(key));
                Ok((string(&Value::String(key.clone()), &field)?, string(value, &field)?))
            };
            values.iter().map(pair).collect()
        }
        Some(other) => Err(format!("{name}: expected an object of strings, found {}", kind(other))),
    }
}

fn exit_codes(fields: &Map<String, Value>, name: &str) -> Result<Vec<i32>, String> {
    let code = |value: &Value| match value.as_i64().and_then(|code| i32::try_from(code).ok()) {
        Some(code @ 1..=MAX_EXIT_CODE) => Ok(code),
        _ => Err(format!(
            "{name}: expected an exit code from 1 to {MAX_EXIT_CODE}, found {}",
            truncated(&value.to_string())
        )),
    };
    match field(fields, name) {
        None => Ok(Vec::new()),
        // A set: two payloads with the same codes are the same.
        Some(Value::Array(values)) => {
            Ok(values.iter().map(code).collect::<Result<BTreeSet<_>, _>>()?.into_iter().collect())
        }
        Some(other) => Err(format!("{name}: expected an array of exit codes, found {}", kind(other))),
    }
}

/// Returns a string that is valid as an argument, a directory or a variable.
fn string(value: &Value, field: &str) -> Result<String, String> {
    match value {
        Value::String(text) if text.contains('\0') => {
            Err(format!("{field}: a NUL character cannot be passed to a command"))
        }
        Value::String(text) => Ok(text.clone()),
        other => Err(format!("{field}: expected a string, found {}", kind(other))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::{Payload, dead_run};
    use duly::Retry;

    #[test]
    fn all_fields_are_parsed() {
        let json = r#"{"argv": ["sh", "-c", ""], "cwd": "/srv", "user": "anna", "env": {"A": "1"}, "env_from": ["HOME"], "stdin": "x\u0000"}"#;
        let payload = Payload::parse(json).unwrap();
        assert_eq!(payload.argv, ["sh", "-c", ""]);
        assert_eq!(payload.user.as_deref(), Some("anna"));
        assert_eq!((payload.cwd.as_deref(), payload.env["A"].as_str(), &*payload.stdin), (Some("/srv"), "1", "x\0"));
        assert_eq!(payload.missing_variable(|_| false), Some("HOME"));
        assert_eq!(payload.missing_variable(|name| name == "HOME"), None);
        let least = Payload::parse(r#"{"argv": ["true"], "cwd": null}"#).unwrap();
        assert!(least.cwd.is_none() && least.user.is_none() && least.env.is_empty() && least.stdin.is_empty());
    }

    #[test]
    fn an_exit_code_says_what_follows() {
        let json = r#"{"argv": ["x"], "give_up_exit_codes": [3, 75], "skip_exit_codes": [4, 78]}"#;
        let listed = Payload::parse(json).unwrap();
        let plain = Payload::parse(r#"{"argv": ["x"]}"#).unwrap();
        let cases = [
            (1, Retry::Backoff, Retry::Backoff),
            (3, Retry::Backoff, Retry::GiveUp),
            (4, Retry::Backoff, Retry::Skip),
            (75, Retry::Backoff, Retry::GiveUp),
            // The list comes before what the code means elsewhere.
            (78, Retry::GiveUp, Retry::Skip),
        ];
        for (code, without, with) in cases {
            assert_eq!((plain.after_exit(code), listed.after_exit(code)), (without, with), "{code}");
        }
    }

    #[test]
    fn the_order_of_exit_codes_makes_no_other_payload() {
        let checked = |codes: &str| {
            let json = format!(r#"{{"argv": ["x"], "skip_exit_codes": [{codes}]}}"#);
            Payload::parse(&json).unwrap().checked().unwrap().get().to_owned()
        };
        assert_eq!(checked("5, 4, 5"), checked("4, 5"));
        let given = Payload { skip_exit_codes: vec![5, 4], ..Payload::parse(r#"{"argv": ["x"]}"#).unwrap() };
        assert_eq!(given.checked().unwrap().get(), checked("4, 5"));
    }

    #[test]
    fn a_dead_run_is_recognized_by_its_fields() {
        let variables = dead_run(r#"{"id": 7, "task": "t", "status": "dead", "error": "no\u0000luck\n"}"#).unwrap();
        let names = ["DULY_DEAD_TASK", "DULY_DEAD_RUN_ID", "DULY_DEAD_STATUS", "DULY_DEAD_ERROR"];
        let values = ["t", "7", "dead", "no\u{fffd}luck\n"];
        let found = variables.iter().map(|(name, value)| (*name, &**value));
        assert!(found.eq(names.into_iter().zip(values)), "{variables:?}");
        assert!(dead_run(r#"{"id": 7, "task": "t", "status": "dead", "error": null}"#).unwrap()[3].1.is_empty());
        for other in ["null", "[]", "7", r#"{"id": 7, "task": "t"}"#, r#"{"id": 7, "task": "t", "status": "queued"}"#] {
            assert_eq!(dead_run(other), None, "{other}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        for (json, expected) in [
            ("null", "expected an object with argv, found null"),
            ("{}", "argv: expected a program"),
            (r#"{"argv": []}"#, "argv: expected a program"),
            (r#"{"argv": [""]}"#, "argv: expected a program"),
            (r#"{"argv": "ls -l"}"#, "argv: expected an array of strings, found a string"),
            (r#"{"argv": ["ls", 7]}"#, "argv[1]: expected a string, found a number"),
            (r#"{"argv": ["a\u0000b"]}"#, "argv[0]: a NUL character cannot be passed"),
            (r#"{"argv": ["ls"], "cwd": ["/"]}"#, "cwd: expected a string, found an array"),
            (r#"{"argv": ["ls"], "cwd": ""}"#, "cwd: expected a folder"),
            (r#"{"argv": ["ls"], "user": ""}"#, "user: expected the name of a user"),
            (r#"{"argv": ["ls"], "user": 0}"#, "user: expected a string, found a number"),
            (r#"{"argv": ["ls"], "env": ["A"]}"#, "env: expected an object of strings, found an array"),
            (r#"{"argv": ["ls"], "env": {"A": true}}"#, "env.A: expected a string, found a boolean"),
            (r#"{"argv": ["ls"], "env": {"A=B": ""}}"#, "env: expected the name of a variable"),
            (r#"{"argv": ["ls"], "env_from": [""]}"#, "env_from: expected the name of a variable"),
            (r#"{"argv": ["ls"], "stdin": {}}"#, "stdin: expected a string, found an object"),
            (r#"{"argv": ["ls"], "only_if": "test"}"#, "only_if: expected an array of strings, found a string"),
            (r#"{"argv": ["ls"], "only_if": ["", "x"]}"#, "only_if: expected a program"),
            (
                r#"{"argv": ["ls"], "skip_exit_codes": [0]}"#,
                "skip_exit_codes: expected an exit code from 1 to 255, found 0",
            ),
            (r#"{"argv": ["ls"], "give_up_exit_codes": [1.5]}"#, "give_up_exit_codes: expected an exit code"),
            (r#"{"argv": ["ls"], "give_up_exit_codes": 3}"#, "expected an array of exit codes, found a number"),
            (
                r#"{"argv": ["ls"], "give_up_exit_codes": [3], "skip_exit_codes": [2, 3]}"#,
                "3 is one of give_up_exit_codes",
            ),
            (r#"{"argv": ["ls"], "comand": "x"}"#, "no field \"comand\""),
        ] {
            let error = Payload::parse(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}
