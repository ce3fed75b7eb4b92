//! Messages of JSON-RPC 2.0, one a line, and their errors.

use serde_json::{Map, Value, json};

use crate::cli::values::truncated;

pub(crate) const PARSE_ERROR: i64 = -32700;
pub(crate) const INVALID_REQUEST: i64 = -32600;
pub(crate) const UNKNOWN_METHOD: i64 = -32601;
pub(crate) const INVALID_PARAMS: i64 = -32602;
pub(crate) const INTERNAL_ERROR: i64 = -32603;
pub(crate) const UNSUPPORTED_VERSION: i64 = -32022;
/// A code of duly, outside of the reserved ones: too many requests are at work.
pub(crate) const BUSY: i64 = 1;

/// Longest id of a request that is a string, in bytes.
const MAX_ID: usize = 200;

/// The id of a request: a string or a whole number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Id(Value);

/// A message of the client.
#[derive(Debug)]
pub(crate) enum Message {
    Request {
        id: Id,
        method: String,
        params: Map<String, Value>,
    },
    Notification {
        method: String,
        params: Map<String, Value>,
    },
    /// An answer to a request of the server, which makes none.
    Answer,
}

/// Why a request is not answered with a result.
#[derive(Debug)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) data: Option<Value>,
}

impl RpcError {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        RpcError { code, message: message.into(), data: None }
    }
}

impl Id {
    /// Returns the id that a value is, if it is one.
    pub(crate) fn of(value: &Value) -> Option<Id> {
        let is_id = match value {
            Value::String(text) => text.len() <= MAX_ID,
            Value::Number(number) => number.is_i64() || number.is_u64(),
            _ => false,
        };
        is_id.then(|| Id(value.clone()))
    }

    /// Returns the id as JSON.
    pub(crate) fn value(&self) -> &Value {
        &self.0
    }

    /// Returns a text that no other id has.
    pub(crate) fn key(&self) -> String {
        self.0.to_string()
    }
}

/// Parses a line. The error has the id of the request, if it could be read.
pub(crate) fn parse(line: &[u8]) -> Result<Message, (Option<Id>, RpcError)> {
    let value: Value = serde_json::from_slice(line).map_err(|error| {
        let message = format!("expected one JSON object a line: {error}");
        (recovered_id(line), RpcError::new(PARSE_ERROR, message))
    })?;
    let invalid = |id: Option<Id>, message: &str| Err((id, RpcError::new(INVALID_REQUEST, message)));
    let Value::Object(mut fields) = value else { return invalid(None, "expected a JSON object") };
    let id = fields.get("id").and_then(Id::of);
    if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return invalid(id, "jsonrpc: expected \"2.0\"");
    }
    if !fields.contains_key("method") && (fields.contains_key("result") || fields.contains_key("error")) {
        return Ok(Message::Answer);
    }
    let Some(Value::String(method)) = fields.remove("method") else { return invalid(id, "method: expected a string") };
    let params = match fields.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return invalid(id, "params: expected an object"),
    };
    match (fields.contains_key("id"), id) {
        (false, _) => Ok(Message::Notification { method, params }),
        (true, Some(id)) => Ok(Message::Request { id, method, params }),
        (true, None) => invalid(None, "id: expected a string of at most 200 bytes or a whole number"),
    }
}

/// Returns the id of a request that is no JSON as a whole, so that its client does not wait for an answer: the value of the first key
/// `id` of the outermost object.
pub(crate) fn recovered_id(line: &[u8]) -> Option<Id> {
    let (mut depth, mut at) = (0_usize, 0);
    while at < line.len() {
        match line[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = end_of_string(line, at)?;
                let value = line[end..].trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start);
                if let Some(value) = value.filter(|_| depth == 1 && &line[at..end] == br#""id""#) {
                    let length = match value.first() {
                        Some(b'"') => end_of_string(value, 0)?,
                        _ => value.iter().position(|byte| !(byte.is_ascii_digit() || *byte == b'-'))?,
                    };
                    return Id::of(&serde_json::from_slice(&value[..length]).ok()?);
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Returns the place after a string that begins at `at`.
fn end_of_string(text: &[u8], at: usize) -> Option<usize> {
    let mut end = at + 1;
    while *text.get(end)? != b'"' {
        end += if text[end] == b'\\' { 2 } else { 1 };
    }
    Some(end + 1)
}

/// Returns the line of a result.
pub(crate) fn result_line(id: &Id, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id.value(), "result": result}).to_string()
}

/// Returns the line of an error. The id is null if it could not be read, as JSON-RPC defines it.
pub(crate) fn error_line(id: Option<&Id>, error: &RpcError) -> String {
    let mut fields = json!({"code": error.code, "message": truncate_message(&error.message)});
    if let Some(data) = &error.data {
        fields["data"] = data.clone();
    }
    json!({"jsonrpc": "2.0", "id": id.map(Id::value), "error": fields}).to_string()
}

/// Bounds a message that quotes what a client sent.
fn truncate_message(message: &str) -> String {
    if message.len() <= 1000 { message.to_owned() } else { truncated(message) }
}

#[cfg(test)]
mod tests {
    use super::{INVALID_REQUEST, Message, PARSE_ERROR, parse};

    #[test]
    fn what_is_no_request_is_refused_with_its_id_if_it_has_one() {
        for (line, code, id) in [
            ("", PARSE_ERROR, None),
            ("{", PARSE_ERROR, None),
            ("\u{0}", PARSE_ERROR, None),
            (r#"{"jsonrpc": "2.0", "id": 7, "method": "\ud800"}"#, PARSE_ERROR, Some("7")),
            (r#"{"params": {"id": 8, "a": "\"id\": 8"}, "id" : "a", "method": x"#, PARSE_ERROR, Some("\"a\"")),
            (r#"{"params": {"id": 8}, "id": {}, x"#, PARSE_ERROR, None),
            (r#"{"id": "a"#, PARSE_ERROR, None),
            ("[]", INVALID_REQUEST, None),
            ("7", INVALID_REQUEST, None),
            (r#"{"id": 7, "method": "ping"}"#, INVALID_REQUEST, Some("7")),
            (r#"{"jsonrpc": "2.0", "id": "a", "method": 7}"#, INVALID_REQUEST, Some("\"a\"")),
            (r#"{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": []}"#, INVALID_REQUEST, Some("7")),
            (r#"{"jsonrpc": "2.0", "id": null, "method": "ping"}"#, INVALID_REQUEST, None),
            (r#"{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}"#, INVALID_REQUEST, None),
        ] {
            let (found, error) = parse(line.as_bytes()).unwrap_err();
            assert_eq!((error.code, found.map(|id| id.key()).as_deref()), (code, id), "{line}");
        }
        assert!(parse(&"[".repeat(100_000).into_bytes()).is_err(), "too deep");
        assert!(matches!(parse(br#"{"jsonrpc":"2.0","method":"a"}"#), Ok(Message::Notification { .. })));
        assert!(matches!(parse(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#), Ok(Message::Answer)));
        assert!(matches!(parse(br#"{"jsonrpc":"2.0","id":1,"method":"a"}"#), Ok(Message::Request { .. })));
    }
}
