//! The runs of a task that have not ended, when the task is changed.

use duly::{Run, RunFilter, RunStatus, Task, TaskStatus};

use crate::mcp::answer::ToolError;
use crate::mcp::desk::Desk;
use crate::mcp::grant::shown;
use crate::mcp::look::COMMAND;

/// Most runs of a task of each status that are looked at, and cancelled with it.
const MOST_RUNS: usize = 1000;
/// Waiting runs that are named.
const NAMED: usize = 3;

/// The runs of a task that wait or run.
pub(crate) fn unfinished(desk: &Desk, name: &str) -> Result<Vec<Run>, ToolError> {
    let mut unfinished = Vec::new();
    for status in [RunStatus::Queued, RunStatus::Failed, RunStatus::Running] {
        unfinished.extend(desk.client.runs(&RunFilter::newest(MOST_RUNS).of(name).status(status))?);
    }
    Ok(unfinished)
}

/// Returns what to say of the waiting runs of a task that is replaced, and of its due occurrence: they run with what is given now. Fails
/// if a run has a payload of its own and the task gets another handler or command, for which that payload was not checked.
pub(crate) fn remarks_of_waiting(
    desk: &Desk,
    old: &Task,
    fields: &[(&'static str, String, String)],
) -> Result<Vec<String>, ToolError> {
    let changes = |field| fields.iter().any(|(changed, ..)| *changed == field);
    let is_other = changes("handler") || (old.definition.handler == COMMAND && changes("payload"));
    let unfinished = unfinished(desk, old.name())?;
    if is_other {
        let given = unfinished.iter().find(|run| run.payload.is_some());
        let reason = match given {
            Some(run) => format!("run {} has a payload of its own, for {:?}", run.id, shown(&old.definition.handler)),
            None if unfinished.len() < MOST_RUNS => String::new(),
            None => format!("{MOST_RUNS} runs or more wait, and not all were looked at"),
        };
        if !reason.is_empty() {
            return Err(ToolError::Refused(format!("task {:?}: {reason}: cancel_run ends it first", old.name())));
        }
    }
    let mut remarks = Vec::new();
    let (waiting, running): (Vec<&Run>, Vec<&Run>) =
        unfinished.iter().partition(|run| run.status != RunStatus::Running);
    for run in waiting.iter().take(NAMED) {
        let of = desk.zone.text_at(run.scheduled_for);
        remarks.push(format!("run {} of {of} waits, and runs with what is given now: cancel_run ends it", run.id));
    }
    if waiting.len() > NAMED {
        remarks.push(format!("so do {} others: history names them", waiting.len() - NAMED));
    }
    if let Some(run) = running.first() {
        remarks.push(format!("run {} is running with what was given before", run.id));
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
