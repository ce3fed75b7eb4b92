//! Actions: requests that are recorded with who made them, a user of the status page or an [`Actor`](crate::Actor).

use crate::model::event::Event;
use crate::model::request::{Added, Existing, Triggered};
use crate::model::task::Definition;

/// The beginning of the names of all actors, which is also what the statements have: see `undeclared` in `store/sqlite/sql.rs`.
pub(crate) const ACTORS: &str = "mcp:";

/// A request that is recorded in `scheduler_events` in the transaction that performs it.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Adds this task. A stored task of its name keeps what it says of who added it.
    Add { task: Box<Definition>, existing: Existing },
    /// Removes this task with its history, or a part of it.
    Remove(Target),
    /// Opens a run of this task, with a payload of its own as JSON, or finds the run that the same key opened.
    Trigger { on: Target, payload: Option<String>, key: Option<String> },
    /// Pauses this task.
    Pause(Target),
    /// Resumes this task.
    Resume(Target),
    /// Cancels the run of this id, or asks it to stop.
    Cancel(i64),
    /// Opens a run that retries the run of this id.
    Retry(i64),
}

/// A task of a page, which may be old.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) task: String,
    /// The id that the page showed. Refused: a request without an id, and one whose id is not that of the task of this name.
    pub(crate) id: Option<i64>,
}

impl Action {
    /// Returns the verb for the event.
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Action::Add { existing: Existing::Replace, .. } => "replace",
            Action::Add { .. } => "add",
            Action::Remove(_) => "remove",
            Action::Trigger { .. } => "trigger",
            Action::Pause(_) => "pause",
            Action::Resume(_) => "resume",
            Action::Cancel(_) => "cancel",
            Action::Retry(_) => "retry",
        }
    }
}

/// What an action did.
#[derive(Debug, Default)]
pub(crate) struct Acted {
    /// The run that it opened.
    pub(crate) opened: Option<i64>,
    /// What became of a task that was added.
    pub(crate) added: Option<Added>,
    /// The run of an [`Action::Trigger`].
    pub(crate) triggered: Option<Triggered>,
    /// A part of the runs of a removed task is left: the caller repeats the action.
    pub(crate) is_part: bool,
    /// To be emitted after the commit.
    pub(crate) events: Vec<Event>,
}
