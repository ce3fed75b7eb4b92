//! Actions: requests of a user of the status page.

use crate::model::event::Event;

/// A request that is recorded in `scheduler_events` in the transaction that performs it.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Opens a run of this task.
    Trigger(Target),
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
            Action::Trigger(_) => "trigger",
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
    /// To be emitted after the commit.
    pub(crate) events: Vec<Event>,
}
