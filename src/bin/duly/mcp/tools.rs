//! The tools: their names, what they say of themselves, the schemas of their arguments and answers. `tools.json` has the texts.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::cli::mcp_args::Allow;
use crate::manifest::payload_schema::PayloadSchema;
use crate::mcp::answer::{Answer, ToolError};
use crate::mcp::desk::{Call, Desk};
use crate::mcp::{change, look};

/// For each tool `name`, `description`, `properties` and `required` of its arguments, and `needs`, a word of `--allow`, unless it looks.
const TOOLS: &str = include_str!("tools.json");

/// What a tool does.
type Run = fn(&Desk, &Call<'_>) -> Result<Answer, ToolError>;

/// A tool.
pub(crate) struct Tool {
    name: String,
    description: String,
    /// The schema of its arguments.
    input: PayloadSchema,
    /// What `--allow` must have; `None`: it looks.
    needs: Option<Allow>,
    pub(crate) run: Run,
}

impl Tool {
    /// Reads a tool of [`TOOLS`]. `None`: it is not one.
    fn read(row: &Value) -> Option<Tool> {
        let text = |key: &str| row.get(key).and_then(Value::as_str);
        let (properties, required) = (row.get("properties")?, row.get("required")?);
        let input =
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        Some(Tool {
            name: text("name")?.to_owned(),
            description: text("description")?.to_owned(),
            input: PayloadSchema::parse(&input).ok()?,
            needs: text("needs").and_then(|word| Allow::from_str(word, false).ok()),
            run: run_of(text("name")?)?,
        })
    }

    /// Returns what `tools/list` says of it.
    fn listed(&self) -> Value {
        let looks = self.needs.is_none();
        let texts = json!({"type": "array", "items": {"type": "string"}, "description": "What may be done next."});
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input.text(),
            "outputSchema": {"type": "object", "properties": {"next": texts, "notice": {"type": "string"}}, "required": ["next"]},
            "annotations": {
                "readOnlyHint": looks,
                "destructiveHint": matches!(self.needs, Some(Allow::Remove | Allow::Cancel)),
                "idempotentHint": looks || !matches!(self.needs, Some(Allow::Trigger)),
                "openWorldHint": false,
            },
        })
    }

    /// Refuses arguments that do not match.
    pub(crate) fn check(&self, arguments: &Value) -> Result<(), String> {
        self.input.check(arguments, "arguments")
    }
}

/// Returns the tools that are offered, in order.
pub(crate) fn offered(desk: &Desk) -> Vec<Tool> {
    let rows: Vec<Value> = serde_json::from_str(TOOLS).unwrap_or_default();
    let is_offered = |tool: &Tool| tool.needs.is_none_or(|change| desk.grant.allows(change));
    rows.iter().filter_map(Tool::read).filter(is_offered).collect()
}

/// Returns what `tools/list` answers.
pub(crate) fn listed(tools: &[Tool]) -> Value {
    json!({"tools": tools.iter().map(Tool::listed).collect::<Vec<Value>>()})
}

/// Returns the tool of a name.
pub(crate) fn named<'a>(tools: &'a [Tool], name: &str) -> Option<&'a Tool> {
    tools.iter().find(|tool| tool.name == name)
}

fn run_of(name: &str) -> Option<Run> {
    Some(match name {
        "list_tasks" => look::list_tasks,
        "show_task" => look::show_task,
        "preview" => look::preview,
        "history" => look::history,
        "run_output" => look::run_output,
        "check" => look::check,
        "schedule_task" => change::schedule_task,
        "trigger_task" => change::trigger_task,
        "retry_run" => change::retry_run,
        "pause_task" => change::pause_task,
        "resume_task" => change::resume_task,
        "cancel_run" => change::cancel_run,
        "cancel_task" => change::cancel_task,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{TOOLS, Tool};
    use serde_json::{Value, json};

    #[test]
    fn each_tool_is_read_and_its_arguments_are_checked_completely() {
        let rows: Vec<Value> = serde_json::from_str(TOOLS).expect("JSON");
        assert_eq!(rows.len(), 13);
        for row in rows {
            let tool = Tool::read(&row).unwrap_or_else(|| panic!("no tool: {row}"));
            // What is not known to be a change is offered to everyone.
            assert_eq!(tool.needs.is_none(), row.get("needs").is_none(), "{row}");
            let error = tool.check(&json!({"command": ["sh"]})).unwrap_err();
            assert!(error.starts_with("arguments."), "{row}: {error}");
        }
    }
}
