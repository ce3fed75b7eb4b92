//! Actions: requests that are recorded with who made them, a user of the status page or an [`Actor`](crate::Actor).

use crate::error::Error;
use crate::model::event::Event;
use crate::model::request::{Done, Existing, Triggered};
use crate::model::task::{Definition, Task, TaskStatus};

/// The beginning of the names of all actors, which is also what the statements have: see `undeclared` in `store/sqlite/sql.rs`.
pub(crate) const ACTORS: &str = "mcp:";

/// Returns whether this is the name of an actor.
pub(crate) fn of_an_actor(name: &Option<String>) -> bool {
    name.as_ref().is_some_and(|name| name.starts_with(ACTORS))
}

/// Who acts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct By<'a> {
    /// What is recorded.
    pub(crate) name: &'a str,
    /// The action is refused if the trail is another one. `None`: it is performed whatever was recorded since.
    pub(crate) trail: Option<Trail>,
    /// Whether the action is taken back: the answer says what it would do.
    pub(crate) rehearses: bool,
}

/// How far the recorded actions have come: the id of the newest event of the kind `action`, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trail(pub(crate) Option<i64>);

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

impl By<'_> {
    /// Returns whether who acts is an [`Actor`](crate::Actor), and no user.
    pub(crate) fn is_actor(&self) -> bool {
        self.name.starts_with(ACTORS)
    }

    /// Returns why an actor may not start what a task does: what no actor has paused rests until a user resumes it.
    pub(crate) fn is_held_by(&self, task: &Task) -> Option<String> {
        let is_held = self.is_actor() && task.status == TaskStatus::Paused && !of_an_actor(&task.paused_by);
        is_held.then(|| format!("{} paused it: the user decides", task.paused_by.as_deref().unwrap_or("a user")))
    }

    /// Refuses an action that was decided by another trail than the stored one, which `newest` reads.
    pub(crate) fn check<E: From<Error>>(&self, newest: impl FnOnce() -> Result<Option<i64>, E>) -> Result<(), E> {
        match self.trail {
            Some(trail) if trail != Trail(newest()?) => Err(Error::Overtaken.into()),
            _ => Ok(()),
        }
    }
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
    pub(crate) done: Option<Done>,
    /// The task as it is afterwards, unless it was removed.
    pub(crate) task: Option<Task>,
    /// The run of an [`Action::Trigger`].
    pub(crate) triggered: Option<Triggered>,
    /// A part of the runs of a removed task is left: the caller repeats the action.
    pub(crate) is_part: bool,
    /// To be emitted after the commit.
    pub(crate) events: Vec<Event>,
}
