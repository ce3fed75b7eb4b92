//! The tools: their names, what they say of themselves, the schemas of their arguments and answers.

use serde_json::{Value, json};

use crate::cli::mcp_args::Allow;
use crate::manifest::payload_schema::PayloadSchema;
use crate::mcp::answer::{Answer, ToolError};
use crate::mcp::desk::{Call, Desk};
use crate::mcp::{change, look};

/// A tool.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    description: &'static str,
    /// The properties of its arguments.
    properties: Value,
    required: &'static [&'static str],
    /// What `--allow` must have; `None`: it looks.
    needs: Option<Allow>,
    pub(crate) run: fn(&Desk, &Call<'_>) -> Result<Answer, ToolError>,
}

impl Tool {
    /// Whether the tool is offered.
    fn is_offered(&self, desk: &Desk) -> bool {
        self.needs.is_none_or(|change| desk.grant.allows(change))
    }

    /// Returns what `tools/list` says of it.
    fn listed(&self) -> Value {
        let looks = self.needs.is_none();
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input(),
            "outputSchema": {"type": "object", "properties": {
                "next": {"type": "array", "items": {"type": "string"}, "description": "What may be done next."},
                "notice": {"type": "string"},
            }, "required": ["next"]},
            "annotations": {
                "readOnlyHint": looks,
                "destructiveHint": matches!(self.needs, Some(Allow::Remove | Allow::Cancel)),
                "idempotentHint": looks || !matches!(self.needs, Some(Allow::Trigger)),
                "openWorldHint": false,
            },
        })
    }

    fn input(&self) -> Value {
        json!({"type": "object", "properties": self.properties, "required": self.required, "additionalProperties": false})
    }

    /// Refuses arguments that do not match.
    pub(crate) fn check(&self, arguments: &Value) -> Result<(), String> {
        PayloadSchema::parse(&self.input())?.check(arguments, "arguments")
    }
}

/// Returns what `tools/list` answers.
pub(crate) fn listed(desk: &Desk) -> Value {
    let tools: Vec<Value> = tools().iter().filter(|tool| tool.is_offered(desk)).map(Tool::listed).collect();
    json!({"tools": tools})
}

/// Returns the tool of a name, if it is offered.
pub(crate) fn named(desk: &Desk, name: &str) -> Option<Tool> {
    tools().into_iter().find(|tool| tool.name == name && tool.is_offered(desk))
}

fn tools() -> Vec<Tool> {
    looking().into_iter().chain(changing()).collect()
}

fn text(description: &str) -> Value {
    json!({"type": "string", "maxLength": 300, "description": description})
}

fn number(least: i64, most: i64, description: &str) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": most, "description": description})
}

fn dry_run() -> Value {
    json!({"type": "boolean", "description": "Say what would be changed, and change nothing."})
}

fn schedule() -> Value {
    text(
        "Cron expression (\"0 7 * * 1-5\"), or words: \"every 15m\", \"every weekday at 7:30\", \"in 2 hours\", \"tomorrow at 9\", \
          \"2027-03-14T12:00\", \"manual\". Use preview first.",
    )
}

fn time_zone() -> Value {
    text(
        "Time zone of the schedule, an IANA name such as Europe/Rome. Default: that of the server, which answers name.",
    )
}

fn looking() -> [Tool; 6] {
    [list_tasks(), show_task(), preview(), history(), run_output(), check()]
}

fn list_tasks() -> Tool {
    Tool {
        name: "list_tasks",
        description: "Lists scheduled tasks with their next and last runs.",
        properties: json!({
            "status": {"enum": ["active", "paused", "completed", "invalid"], "description": "Only tasks with this status."},
            "limit": number(1, 200, "Most tasks. Default: 50."),
            "after": text("Only tasks whose name is after this one: the field after of the answer before."),
        }),
        required: &[],
        needs: None,
        run: look::list_tasks,
    }
}

fn show_task() -> Tool {
    Tool {
        name: "show_task",
        description: "Shows one task: schedule, next runs, payload, last runs, and who changed it.",
        properties: json!({"name": text("Name of the task.")}),
        required: &["name"],
        needs: None,
        run: look::show_task,
    }
}

fn preview() -> Tool {
    Tool {
        name: "preview",
        description: "Says how a schedule in words or as a cron expression is understood, and when it would run, with notes about \
                      daylight saving. Adds nothing. Use it before schedule_task.",
        properties: json!({"schedule": schedule(), "time_zone": time_zone(), "count": number(1, 50, "Number of times. Default: 5.")}),
        required: &["schedule"],
        needs: None,
        run: look::preview,
    }
}

fn history() -> Tool {
    Tool {
        name: "history",
        description: "Lists runs, newest first. With name and around, explains why the task did or did not run at that time: skipped, \
                      missed, paused, failed.",
        properties: json!({
            "name": text("Name of a task. Default: all tasks."),
            "around": text("A time: 13:00 (today, in the zone of the task), 2027-03-14T13:00, or with an offset."),
            "status": {
                "enum": ["queued", "running", "succeeded", "failed", "dead", "cancelled", "skipped", "missed"],
                "description": "Only runs with this status.",
            },
            "since": text("Only runs scheduled since this date or time."),
            "limit": number(1, 100, "Most runs. Default: 20."),
        }),
        required: &[],
        needs: None,
        run: look::history,
    }
}

fn run_output() -> Tool {
    Tool {
        name: "run_output",
        description: "Shows the end of the output of a run, its result, its error and its attempts.",
        properties: json!({
            "run": number(1, i64::MAX, "Number of the run."),
            "name": text("Name of a task, for its newest run."),
            "max_characters": number(1, 16_000, "Most characters of each output. Default: 4000, the last ones."),
            "wait_seconds": number(0, 60, "Wait until the run has ended, at most for this time. Default: 0."),
        }),
        required: &[],
        needs: None,
        run: look::run_output,
    }
}

fn check() -> Tool {
    Tool {
        name: "check",
        description: "Finds problems: overdue, failing or invalid tasks, no scheduler. Says what to do.",
        properties: json!({}),
        required: &[],
        needs: None,
        run: look::check,
    }
}

fn changing() -> [Tool; 7] {
    [schedule_task(), trigger_task(), retry_run(), pause_task(), resume_task(), cancel_run(), cancel_task()]
}

fn schedule_task() -> Tool {
    Tool {
        name: "schedule_task",
        description: "Adds a task. Idempotent by name: the same call again changes nothing. The resource duly://reference lists the \
                      handlers with the schemas of their payloads, and the templates with their parameters. A command cannot be given.",
        properties: json!({
            "name": text("Name of the task. It begins with the scope; then letters, digits or . _ : / @ -"),
            "schedule": schedule(),
            "time_zone": time_zone(),
            "handler": text("Handler that does the work. Or give template."),
            "payload": {"description": "Payload of the handler: any JSON that matches its schema."},
            "template": text("Template of a command. Or give handler."),
            "parameters": {"type": "object", "description": "Parameters of the template."},
            "max_attempts": number(1, 10, "Most attempts of a run. 1: never start a run twice."),
            "ends_at": text("No run after this time."),
            "replace": {"type": "boolean", "description": "Change a task of this name that a client added."},
            "dry_run": dry_run(),
        }),
        required: &["name", "schedule"],
        needs: Some(Allow::Add),
        run: change::schedule_task,
    }
}

fn trigger_task() -> Tool {
    Tool {
        name: "trigger_task",
        description: "Starts a run of a task now. Its schedule does not change.",
        properties: json!({
            "name": text("Name of the task."),
            "payload": {"description": "Payload of this run, instead of that of the task. Not for commands."},
            "key": text("Idempotency key: only the first call with a key starts a run."),
            "dry_run": dry_run(),
        }),
        required: &["name"],
        needs: Some(Allow::Trigger),
        run: change::trigger_task,
    }
}

fn retry_run() -> Tool {
    Tool {
        name: "retry_run",
        description: "Starts a new run in place of a dead or cancelled one, with the same payload.",
        properties: json!({"run": number(1, i64::MAX, "Number of the run."), "dry_run": dry_run()}),
        required: &["run"],
        needs: Some(Allow::Trigger),
        run: change::retry_run,
    }
}

fn pause_task() -> Tool {
    Tool {
        name: "pause_task",
        description: "Pauses a task: its schedule starts no runs until resume_task.",
        properties: json!({"name": text("Name of the task."), "dry_run": dry_run()}),
        required: &["name"],
        needs: Some(Allow::Pause),
        run: change::pause_task,
    }
}

fn resume_task() -> Tool {
    Tool {
        name: "resume_task",
        description: "Resumes a task that a client paused. What was due in the pause is not made up for.",
        properties: json!({"name": text("Name of the task."), "dry_run": dry_run()}),
        required: &["name"],
        needs: Some(Allow::Pause),
        run: change::resume_task,
    }
}

fn cancel_run() -> Tool {
    Tool {
        name: "cancel_run",
        description: "Cancels a run that waits, or asks a running one to stop.",
        properties: json!({"run": number(1, i64::MAX, "Number of the run."), "dry_run": dry_run()}),
        required: &["run"],
        needs: Some(Allow::Cancel),
        run: change::cancel_run,
    }
}

fn cancel_task() -> Tool {
    Tool {
        name: "cancel_task",
        description: "Cancels a task that a client added: ends its unfinished runs, and removes it with its history. To stop it for a \
                      time, use pause_task.",
        properties: json!({"name": text("Name of the task."), "dry_run": dry_run()}),
        required: &["name"],
        needs: Some(Allow::Remove),
        run: change::cancel_task,
    }
}

#[cfg(test)]
mod tests {
    use super::tools;
    use crate::manifest::payload_schema::PayloadSchema;
    use serde_json::json;

    #[test]
    fn the_schema_of_each_tool_is_checked_completely() {
        for tool in tools() {
            PayloadSchema::parse(&tool.input()).unwrap_or_else(|error| panic!("{}: {error}", tool.name));
            let error = tool.check(&json!({"command": ["sh"]})).unwrap_err();
            assert!(error.starts_with("arguments."), "{}: {error}", tool.name);
        }
    }
}
