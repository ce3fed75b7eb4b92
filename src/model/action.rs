//! Actions: requests of a user of the status page.

use crate::model::event::Event;

/// A request that is recorded in `scheduler_events` in the transaction that performs it.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Opens a run of the task of this name.
    Trigger(String),
    /// Pauses the task of this name.
    Pause(String),
    /// Resumes the task of this name.
    Resume(String),
    /// Cancels the run of this id, or asks it to stop.
    Cancel(i64),
    /// Opens a run that retries the run of this id.
    Retry(i64),
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
