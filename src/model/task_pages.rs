//! What the pages `tasks` and `task` read.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::filter::NamePattern;
use crate::model::run::{Origin, RunStatus};
use crate::model::task::{Task, TaskStatus};

/// Selects a page of tasks, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskQuery {
    pub(crate) pattern: Option<NamePattern>,
    pub(crate) handler: Option<String>,
    pub(crate) status: Option<TaskStatus>,
    /// Also completed one-time tasks whose newest run is final and not dead.
    pub(crate) with_completed: bool,
    /// Only tasks after this one.
    pub(crate) after: Option<After>,
    pub(crate) skip: usize,
    pub(crate) limit: usize,
    /// Most runs of each task.
    pub(crate) marks: usize,
}

/// The last task of the page before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Name(String),
    /// The id of a task whose name cannot be shown as it is stored.
    Id(i64),
}

/// A page of tasks.
#[derive(Debug)]
pub(crate) struct TaskPage {
    /// Each with its last runs, oldest first.
    pub(crate) tasks: Vec<(Task, Vec<Mark>)>,
    /// Whether there are tasks after these.
    pub(crate) has_more: bool,
}

/// A run in the strip of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) run: i64,
    pub(crate) status: RunStatus,
    /// When it began; its occurrence, if it did not.
    pub(crate) at: Timestamp,
    pub(crate) duration: Option<Duration>,
}

/// Selects a page of the runs of one task, newest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunQuery {
    pub(crate) task: i64,
    pub(crate) status: Option<RunStatus>,
    pub(crate) skip: usize,
    pub(crate) limit: usize,
}

/// A run without its payload, result and output.
#[derive(Clone, Debug)]
pub(crate) struct RunLine {
    pub(crate) id: i64,
    pub(crate) scheduled_for: Timestamp,
    pub(crate) origin: Option<Origin>,
    /// `None`: no version of duly stores such a status.
    pub(crate) status: Option<RunStatus>,
    pub(crate) run_at: Timestamp,
    pub(crate) blocked: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) duration: Option<Duration>,
    /// The first [`RunLine::MAX_ERROR`] characters of its error.
    pub(crate) error: Option<String>,
    pub(crate) occurrences: u64,
}

impl RunLine {
    pub(crate) const MAX_ERROR: usize = 1000;
}
