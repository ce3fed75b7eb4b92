//! Versions of the protocol: which one a request has, and what that means for its answer.
//!
//! Since 2026-07-28 each request names its version and its client. Before, a handshake did: `initialize`.

use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};

use crate::cli::values::truncated;
use crate::mcp::rpc::{INVALID_PARAMS, INVALID_REQUEST, RpcError, UNSUPPORTED_VERSION};

/// The current version.
pub(crate) const CURRENT: &str = "2026-07-28";
/// Versions with a handshake, newest first.
pub(crate) const WITH_HANDSHAKE: [&str; 2] = ["2025-11-25", "2025-06-18"];

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// Longest name of a client that is recorded.
const MAX_NAME: usize = 64;

/// Who makes a request, by what it says of itself. Nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Its name, as letters, digits and `. _ -`.
    pub(crate) client: String,
    /// Whether it uses the current version.
    pub(crate) is_current: bool,
}

/// What `initialize` has agreed upon.
#[derive(Debug, Default)]
pub(crate) struct Handshake(Mutex<Option<String>>);

impl Handshake {
    /// Answers `initialize`: with the version that the client names, or the newest one with a handshake.
    pub(crate) fn initialize(&self, params: &Map<String, Value>, instructions: &str) -> Result<Value, RpcError> {
        let Some(asked) = params.get("protocolVersion").and_then(Value::as_str) else {
            return Err(RpcError::new(INVALID_PARAMS, "protocolVersion: expected a string"));
        };
        let version = WITH_HANDSHAKE.into_iter().find(|version| *version == asked).unwrap_or(WITH_HANDSHAKE[0]);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_some() {
            // The trail would name two clients for one.
            return Err(RpcError::new(INVALID_REQUEST, "initialize was answered before"));
        }
        *known = Some(name_of(params.get("clientInfo")));
        Ok(json!({
            "protocolVersion": version,
            "capabilities": capabilities(),
            "serverInfo": server(),
            "instructions": instructions,
        }))
    }

    /// Returns who makes a request, or why it is refused.
    pub(crate) fn caller(&self, params: &Map<String, Value>) -> Result<Caller, RpcError> {
        let meta = params.get("_meta").and_then(Value::as_object);
        let Some(version) = meta.and_then(|meta| meta.get(VERSION)) else {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let missing = || {
                let message = format!("expected {VERSION} in _meta, or initialize before");
                RpcError::new(INVALID_PARAMS, message)
            };
            return Ok(Caller { client: known.ok_or_else(missing)?, is_current: false });
        };
        if version != CURRENT {
            let requested = truncated(version.as_str().unwrap_or_default());
            let data = Some(json!({"supported": supported(), "requested": requested}));
            return Err(RpcError {
                code: UNSUPPORTED_VERSION,
                message: "unsupported protocol version".to_owned(),
                data,
            });
        }
        if !meta.is_some_and(|meta| meta.get(CAPABILITIES).is_some_and(Value::is_object)) {
            return Err(RpcError::new(INVALID_PARAMS, format!("expected {CAPABILITIES} in _meta")));
        }
        Ok(Caller { client: name_of(meta.and_then(|meta| meta.get(CLIENT))), is_current: true })
    }
}

/// Whether a request names its version, as those of the current one do.
pub(crate) fn names_version(params: &Map<String, Value>) -> bool {
    params.get("_meta").is_some_and(|meta| meta.get(VERSION).is_some())
}

/// Answers `server/discover`.
pub(crate) fn discovered(instructions: &str) -> Value {
    json!({"supportedVersions": supported(), "capabilities": capabilities(), "instructions": instructions})
}

/// Completes a result for its version. `kept`: for how long a client may keep it, of a result that can be kept.
pub(crate) fn complete(mut result: Value, caller: &Caller, kept: Option<u64>) -> Value {
    if caller.is_current {
        result["resultType"] = json!("complete");
        result["_meta"] = json!({SERVER: server()});
        if let Some(milliseconds) = kept {
            result["ttlMs"] = json!(milliseconds);
            result["cacheScope"] = json!("private");
        }
    }
    result
}

/// A request that only versions with a handshake have.
pub(crate) fn only_with_handshake(caller: &Caller, method: &str) -> Result<(), RpcError> {
    match caller.is_current {
        false => Ok(()),
        true => Err(RpcError::new(INVALID_REQUEST, format!("{method} is not a method of {CURRENT}"))),
    }
}

fn supported() -> Vec<&'static str> {
    [CURRENT].into_iter().chain(WITH_HANDSHAKE).collect()
}

fn capabilities() -> Value {
    json!({"tools": {}, "resources": {}})
}

fn server() -> Value {
    json!({"name": "duly", "title": "duly, a scheduler", "version": env!("CARGO_PKG_VERSION")})
}

/// Returns the name of an `Implementation` in characters that `managed_by` accepts.
fn name_of(info: Option<&Value>) -> String {
    let name = info.and_then(|info| info.get("name")).and_then(Value::as_str).unwrap_or_default();
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '-' };
    let name: String = name.chars().take(MAX_NAME).map(plain).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::{Caller, Handshake, complete};
    use crate::mcp::rpc::{INVALID_PARAMS, INVALID_REQUEST, UNSUPPORTED_VERSION};
    use serde_json::{Map, Value, json};

    fn params(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn each_version_is_answered_as_it_expects() {
        let handshake = Handshake::default();
        let meta = |version: &str| {
            json!({"io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {}, "io.modelcontextprotocol/clientInfo": {"name": "a b\n"}})
        };
        let current = handshake.caller(&params(json!({"_meta": meta("2026-07-28")}))).unwrap();
        assert_eq!(current, Caller { client: "a-b-".to_owned(), is_current: true });
        assert_eq!(complete(json!({}), &current, Some(0))["resultType"], "complete");
        let error = handshake.caller(&params(json!({"_meta": meta("1900-01-01")}))).unwrap_err();
        assert_eq!((error.code, &error.data.unwrap()["supported"][0]), (UNSUPPORTED_VERSION, &json!("2026-07-28")));
        let without = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}});
        assert_eq!(handshake.caller(&params(without)).unwrap_err().code, INVALID_PARAMS);
        assert_eq!(handshake.caller(&Map::new()).unwrap_err().code, INVALID_PARAMS, "before the handshake");
        for (asked, answered) in
            [("2025-11-25", "2025-11-25"), ("2025-06-18", "2025-06-18"), ("2024-11-05", "2025-11-25")]
        {
            let asked = json!({"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "x"}});
            let handshake = Handshake::default();
            assert_eq!(handshake.initialize(&params(asked.clone()), "").unwrap()["protocolVersion"], answered);
            assert_eq!(handshake.initialize(&params(asked), "").unwrap_err().code, INVALID_REQUEST, "again");
        }
        let asked = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x"}});
        handshake.initialize(&params(asked), "").unwrap();
        let before = handshake.caller(&Map::new()).unwrap();
        assert_eq!(complete(json!({}), &before, Some(0)), json!({}), "{before:?}");
    }
}
