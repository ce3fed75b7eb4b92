//! Recorded events: rows of `scheduler_events`, and the filter that selects them.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// A row of `scheduler_events`: an event that no run records, such as a clock jump, a lost scheduler or an edited task. Its JSON
/// has these fields as keys.
///
/// ```
/// use duly::{Client, EventFilter, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("export").handler("export"))?;
/// client.pause("export")?;
/// let event = &client.events(&EventFilter::newest(1))?[0];
/// assert_eq!((event.kind.as_str(), event.task.as_deref(), event.run), ("paused", Some("export"), None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// Its id. A later event has a larger one.
    pub id: i64,
    /// When it was recorded.
    pub at: Timestamp,
    /// Its kind: `owner_lost`, `clock_forward`, `edited`. `schema.sql` lists the kinds.
    pub kind: String,
    /// The name of its task, if it belongs to one.
    pub task: Option<String>,
    /// The id of its run, if it belongs to one. Retention may have deleted the run.
    pub run: Option<i64>,
    /// What happened, as text.
    pub detail: Option<String>,
}

/// Selects recorded events, newest first: see [`Client::events`](crate::Client::events).
///
/// ```
/// use duly::{Client, Error, EventFilter};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// // A kind that does not exist selects nothing; a task that does not exist is an error.
/// assert!(client.events(&EventFilter::newest(9).kind("owner_lots"))?.is_empty());
/// let wrong = client.events(&EventFilter::newest(9).of("digset"));
/// assert!(matches!(wrong, Err(Error::UnknownTask { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct EventFilter {
    pub(crate) kind: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) before: Option<i64>,
    pub(crate) limit: usize,
}

impl EventFilter {
    /// Selects the newest events, at most `limit`.
    pub fn newest(limit: usize) -> Self {
        EventFilter { kind: None, task: None, before: None, limit }
    }

    /// Selects only the events of this task.
    #[must_use]
    pub fn of(mut self, task: impl Into<String>) -> Self {
        self.task = Some(task.into());
        self
    }

    /// Selects only the events of this kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Selects only events that are older than the one with this id: the next page begins before the last event of this one.
    #[must_use]
    pub fn before(mut self, id: i64) -> Self {
        self.before = Some(id);
        self
    }
}
