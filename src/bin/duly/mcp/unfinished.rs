//! The runs of a task that have not ended, when the task is changed.

use duly::{Run, RunFilter, RunStatus, Task, TaskStatus};

use crate::mcp::answer::ToolError;
use crate::mcp::desk::Desk;
use crate::mcp::grant::shown;
use crate::mcp::look::COMMAND;

/// Most runs of a task of each status that are looked at, and cancelled with it.
const MOST_RUNS: usize = 1000;

/// The runs of a task that wait or run.
pub(crate) fn unfinished(desk: &Desk, name: &str) -> Result<Vec<Run>, ToolError> {
    let mut unfinished = Vec::new();
    for status in [RunStatus::Queued, RunStatus::Failed, RunStatus::Running] {
        unfinished.extend(desk.client.runs(&RunFilter::newest(MOST_RUNS).of(name).status(status))?);
    }
    Ok(unfinished)
}

/// What is to be said of the runs of a task that wait when it is replaced, and of its occurrence that is due: they run with what is given
/// now. Refused if one has a payload of its own and would go to another handler or command: nobody has checked it for that one.
pub(crate) fn remarks_of_waiting(
    desk: &Desk,
    old: &Task,
    fields: &[(&'static str, String, String)],
) -> Result<Vec<String>, ToolError> {
    let changes = |field| fields.iter().any(|(changed, ..)| *changed == field);
    let is_other = changes("handler") || (old.definition.handler == COMMAND && changes("payload"));
    let mut remarks = Vec::new();
    for run in unfinished(desk, old.name())? {
        if run.status == RunStatus::Running && is_other {
            remarks.push(format!("run {} is running as the task was before", run.id));
        }
        if run.payload.is_some() && is_other {
            let reason = format!("run {} has a payload of its own, for {:?}", run.id, shown(&old.definition.handler));
            return Err(ToolError::Refused(format!("task {:?}: {reason}: cancel_run ends it first", old.name())));
        }
        if run.status != RunStatus::Running {
            let of = desk.zone.text_at(run.scheduled_for);
            remarks.push(format!("run {} of {of} waits, and runs with what is given now: cancel_run ends it", run.id));
        }
    }
    let due = old.next_run.filter(|next| old.status == TaskStatus::Active && *next <= desk.client.now());
    if let Some(due) = due {
        let of = desk.zone.text_at(due);
        remarks.push(format!(
            "its occurrence of {of} was due before, and runs with what is given now: cancel_run ends it"
        ));
    }
    Ok(remarks)
}
