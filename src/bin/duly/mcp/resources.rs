//! Resources: the reference of handlers and templates, and what a manifest declares. Commands, environments and paths are not shown.

use serde_json::{Map, Value, json};

use crate::mcp::answer::ToolError;
use crate::mcp::desk::Desk;
use crate::mcp::shapes;

const REFERENCE: &str = "duly://reference";
const MANIFEST: &str = "duly://manifest";

/// Returns what `resources/list` answers.
pub(crate) fn listed(desk: &Desk) -> Value {
    let mut resources = vec![json!({
        "uri": REFERENCE, "name": "reference", "mimeType": "application/json",
        "description": "Handlers with the schemas of their payloads, and templates with their parameters.",
    })];
    if desk.manifest.is_some() {
        resources.push(json!({
            "uri": MANIFEST, "name": "manifest", "mimeType": "application/json",
            "description": "The tasks that the manifest declares, as far as they are seen.",
        }));
    }
    json!({"resources": resources})
}

/// Returns a resource; `None` if there is none of this address.
pub(crate) fn read(desk: &Desk, uri: &str) -> Result<Option<Value>, ToolError> {
    let contents = match (uri, &desk.manifest) {
        (REFERENCE, _) => reference(desk),
        (MANIFEST, Some(manifest)) => declared(desk, manifest)?,
        _ => return Ok(None),
    };
    let text = serde_json::to_string_pretty(&contents).unwrap_or_default();
    Ok(Some(json!({"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]})))
}

fn reference(desk: &Desk) -> Value {
    let handlers: Map<String, Value> = desk
        .grant
        .handlers
        .iter()
        .map(|name| {
            let described = desk.handlers.get(name);
            let description = described.map(|handler| handler.description.as_str()).unwrap_or_default();
            let schema = described.and_then(|handler| handler.payload.as_ref()).map(|schema| schema.text());
            (name.clone(), json!({"description": description, "payload_schema": schema}))
        })
        .collect();
    let templates: Map<String, Value> = desk
        .templates
        .iter()
        .map(|one| (one.name.clone(), json!({"description": one.description, "parameters": one.schema()})))
        .collect();
    json!({
        "handlers": handlers,
        "templates": templates,
        "scope": desk.grant.scope(),
        "limits": {
            "max_tasks": desk.max_tasks,
            "max_starts_per_day": desk.max_starts,
            "min_interval": duly::duration_text(desk.min_interval),
        },
        "time_zone": desk.zone.name(),
    })
}

fn declared(desk: &Desk, manifest: &str) -> Result<Value, ToolError> {
    let times = desk.times();
    let tasks = desk.grant.seen_tasks(&desk.client)?;
    let declared = tasks.iter().filter(|task| task.definition.managed_by.as_deref() == Some(manifest));
    let declared: Vec<Value> = declared.map(|task| shapes::task(task, desk.grant.sight(task.name()), &times)).collect();
    Ok(json!({"tasks": declared}))
}
