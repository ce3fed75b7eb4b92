//! The tools: their names, what they say of themselves, the schemas of their arguments and answers. `tools.json` has the texts.

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::cli::mcp_args::Allow;
use crate::manifest::payload_schema::PayloadSchema;
use crate::mcp::answer::{Answer, ToolError};
use crate::mcp::desk::{Call, Desk};
use crate::mcp::{change, look};

/// For each tool `name`, `description`, `properties` and `required` of its arguments, `answer`, its fields, and `needs`, a word of
/// `--allow`, unless it looks. A name of a field that ends with `?` may be missing; its value is a word of [`schema_of`].
const TOOLS: &str = include_str!("tools.json");

/// What a tool does.
type Run = fn(&Desk, &Call<'_>) -> Result<Answer, ToolError>;

/// A tool.
pub(crate) struct Tool {
    name: String,
    description: String,
    /// The schema of its arguments.
    input: PayloadSchema,
    /// The schema of its answer.
    output: Value,
    /// What `--allow` must have; `None`: it looks.
    needs: Option<Allow>,
    pub(crate) run: Run,
}

impl Tool {
    /// Reads a tool of [`TOOLS`]. `None`: it is not one.
    fn read(row: &Value, shapes: &Value) -> Option<Tool> {
        let text = |key: &str| row.get(key).and_then(Value::as_str);
        let (properties, required) = (row.get("properties")?, row.get("required")?);
        let input =
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        Some(Tool {
            name: text("name")?.to_owned(),
            description: text("description")?.to_owned(),
            input: PayloadSchema::parse(&input).ok()?,
            output: object(&[row.get("answer")?, &json!({"next": "text[]", "notice?": "text"})], shapes),
            needs: text("needs").and_then(|word| Allow::from_str(word, false).ok()),
            run: run_of(text("name")?)?,
        })
    }

    /// Returns what `tools/list` says of it.
    fn listed(&self) -> Value {
        let looks = self.needs.is_none();
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input.text(),
            "outputSchema": self.output,
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
    let is_offered = |tool: &Tool| tool.needs.is_none_or(|change| desk.grant.allows(change));
    all().into_iter().flatten().filter(is_offered).collect()
}

/// Reads each row of [`TOOLS`].
fn all() -> Vec<Option<Tool>> {
    let table: Value = serde_json::from_str(TOOLS).unwrap_or_default();
    let rows = table["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter().map(|row| Tool::read(row, &table["shapes"])).collect()
}

/// Returns the schema of a word: `text`, `number`, `flag`, texts as in `added|removed`, or a shape. `[]` behind it: a list; `?`: or null.
fn schema_of(word: &str, shapes: &Value) -> Value {
    if let Some(one) = word.strip_suffix("[]") {
        return json!({"type": "array", "items": schema_of(one, shapes)});
    }
    if let Some(one) = word.strip_suffix('?') {
        let mut schema = schema_of(one, shapes);
        schema["type"] = json!([schema["type"].take(), "null"]);
        return schema;
    }
    match word {
        "text" => json!({"type": "string"}),
        "number" => json!({"type": "integer"}),
        "flag" => json!({"type": "boolean"}),
        texts if texts.contains('|') => json!({"type": "string", "enum": texts.split('|').collect::<Vec<_>>()}),
        shape => object(&[&shapes[shape]], shapes),
    }
}

/// Returns the schema of an object with these fields and no other.
fn object(fields: &[&Value], shapes: &Value) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, word) in fields.iter().filter_map(|fields| fields.as_object()).flatten() {
        let (name, is_required) = name.strip_suffix('?').map_or((name.as_str(), true), |name| (name, false));
        properties.insert(name.to_owned(), schema_of(word.as_str().unwrap_or_default(), shapes));
        required.extend(is_required.then_some(name));
    }
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
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
    use super::{TOOLS, all};
    use crate::manifest::payload_schema::PayloadSchema;
    use serde_json::{Value, json};

    #[test]
    fn each_tool_is_read_and_its_arguments_are_checked_completely() {
        let table: Value = serde_json::from_str(TOOLS).expect("JSON");
        let rows = table["tools"].as_array().expect("rows");
        assert_eq!(rows.len(), 13);
        for (row, tool) in rows.iter().zip(all()) {
            let tool = tool.unwrap_or_else(|| panic!("no tool: {row}"));
            // What is not known to be a change is offered to everyone.
            assert_eq!(tool.needs.is_none(), row.get("needs").is_none(), "{row}");
            let error = tool.check(&json!({"command": ["sh"]})).unwrap_err();
            assert!(error.starts_with("arguments."), "{row}: {error}");
        }
    }

    #[test]
    fn each_tool_has_a_schema_of_its_answer() {
        let schema = |name: &str| all().into_iter().flatten().find(|tool| tool.name == name).expect("a tool").output;
        let time = json!({"local": "a", "zone": "UTC", "utc": "b", "relative": "now"});
        let listed = PayloadSchema::parse(&schema("list_tasks")).expect("a schema");
        let answer = |tasks: Value| json!({"tasks": tasks, "now": time, "scope": null, "next": ["check"]});
        assert_eq!(listed.check(&answer(json!([])), "answer"), Ok(()));
        for (tasks, says) in
            [(json!(null), "answer.tasks: expected array, found null"), (json!([{"name": 1}]), "answer.tasks[0].")]
        {
            assert!(listed.check(&answer(tasks), "answer").unwrap_err().starts_with(says));
        }
        let removed = schema("cancel_task");
        assert_eq!(removed["properties"]["change"]["enum"], json!(["removed", "none"]));
        assert_eq!(removed["required"], json!(["change", "next"]));
        // A word that is no shape would be an object without properties.
        for tool in all().into_iter().flatten() {
            assert!(!tool.output.to_string().contains(r#""properties":{}"#), "{}: {}", tool.name, tool.output);
        }
    }
}
