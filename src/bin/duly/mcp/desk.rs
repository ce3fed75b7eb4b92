//! What all tools use: the database, what they were given, and the time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use duly::text::times::Times;
use duly::{Actor, Client, Timestamp, Zone};
use serde_json::{Map, Value};

use crate::cli::zone;
use crate::manifest::template::{HandlerReference, Template};
use crate::mcp::answer::ToolError;
use crate::mcp::at_work::Cancellation;
use crate::mcp::grant::{Grant, shown};
use crate::mcp::versions::Caller;

/// What the tools of one server share.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) client: Client,
    pub(crate) grant: Grant,
    /// What `managed_by` of the tasks of the manifest says, if there is one.
    pub(crate) manifest: Option<String>,
    pub(crate) templates: Vec<Template>,
    pub(crate) handlers: BTreeMap<String, HandlerReference>,
    pub(crate) zone: Zone,
    pub(crate) max_tasks: usize,
    pub(crate) max_starts: usize,
    pub(crate) min_interval: Duration,
    /// `--as`.
    pub(crate) named: Option<String>,
    /// Identifies this server in recorded changes.
    pub(crate) session: String,
    /// When the last changes were made. Held during a change: limits are checked and used by one at a time.
    pub(crate) changes: Mutex<Vec<Timestamp>>,
}

/// A call of a tool, whose arguments match the schema of the tool.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) arguments: &'a Map<String, Value>,
    pub(crate) caller: &'a Caller,
    pub(crate) cancellation: &'a Cancellation,
}

impl Desk {
    pub(crate) fn times(&self) -> Times {
        Times { now: self.client.now(), zone: self.zone.clone() }
    }

    /// Returns who changes tasks for a call. The changes of a dry run are taken back.
    pub(crate) fn actor(&self, call: &Call<'_>) -> Result<Actor, ToolError> {
        let name = self.named.as_deref().unwrap_or(&call.caller.client);
        let actor = self.client.actor(&format!("mcp:{name}"), &self.session)?;
        Ok(if call.flag("dry_run") { actor.rehearsing() } else { actor })
    }
}

/// The instant of an argument, or the reason of the library, by the name that the tool has for it.
pub(crate) fn instant(argument: &str, text: &str, zone: &Zone) -> Result<Timestamp, ToolError> {
    let at = zone::day_or_instant(text, zone);
    at.map_err(|reason| ToolError::Refused(format!("{argument}: {reason}, found {:?}", shown(text))))
}

impl<'a> Call<'a> {
    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        self.arguments.get(name).and_then(Value::as_str)
    }

    /// The value of a required argument.
    pub(crate) fn required(&self, name: &str) -> Result<&'a str, ToolError> {
        self.text(name).ok_or_else(|| ToolError::Refused(format!("{name}: expected a string, found none")))
    }

    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        let value = self.arguments.get(name)?;
        // 5.0 is an integer for the schema.
        value.as_i64().or_else(|| value.as_f64().map(|number| number as i64))
    }

    pub(crate) fn count(&self, name: &str, default: usize) -> usize {
        self.number(name).and_then(|number| usize::try_from(number).ok()).unwrap_or(default)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.arguments.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    /// Fails if the client has cancelled the request.
    pub(crate) fn check(&self) -> Result<(), ToolError> {
        if self.cancellation.is_cancelled() { Err(ToolError::Cancelled) } else { Ok(()) }
    }
}
