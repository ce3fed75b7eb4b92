//! Operations on all runs or tasks that a filter selects: which there are, what they report, how far one has come.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::model::run::RunStatus;
use crate::model::task::TaskStatus;
use crate::model::text_enum::text_enum;
use crate::text::units::{count_of, first_of};

/// Most examples in a report, and in each reason of it.
const MAX_EXAMPLES: usize = 10;
/// Most reasons in a report. Further ones are counted together.
const MAX_REASONS: usize = 20;
/// Most examples in a line.
const SHOWN: usize = 3;
const OTHER_REASONS: &str = "other reasons";

text_enum! {
    /// An operation on all runs or tasks that a [`Filter`](crate::Filter) selects.
    ///
    /// ```
    /// use duly::BulkAction;
    /// let action: BulkAction = "retry".parse()?;
    /// assert_eq!((action, action.noun()), (BulkAction::Retry, "run"));
    /// assert!("restart".parse::<BulkAction>().is_err());
    /// # Ok::<(), duly::Error>(())
    /// ```
    BulkAction, "action" {
        /// [`Client::cancel_matching`](crate::Client::cancel_matching).
        Cancel = "cancel",
        /// [`Client::retry_matching`](crate::Client::retry_matching).
        Retry = "retry",
        /// [`Client::remove_matching`](crate::Client::remove_matching).
        Remove = "remove",
        /// [`Client::pause_matching`](crate::Client::pause_matching).
        Pause = "pause",
        /// [`Client::resume_matching`](crate::Client::resume_matching).
        Resume = "resume",
    }
}

impl BulkAction {
    /// Returns whether it changes runs. The others change tasks.
    pub(crate) fn is_about_runs(self) -> bool {
        matches!(self, BulkAction::Cancel | BulkAction::Retry)
    }

    /// Returns what it changes: `run` or `task`.
    pub fn noun(self) -> &'static str {
        if self.is_about_runs() { "run" } else { "task" }
    }

    /// Returns the status of the runs that it selects by default (`None`: any of those that it can change), and those.
    pub(crate) fn run_statuses(self) -> (Option<RunStatus>, &'static [RunStatus]) {
        match self {
            // A cancelled run was cancelled on purpose.
            BulkAction::Retry => (Some(RunStatus::Dead), &[RunStatus::Dead, RunStatus::Cancelled]),
            _ => (None, &[RunStatus::Queued, RunStatus::Running, RunStatus::Failed]),
        }
    }

    /// The number of runs or tasks, with what else goes: `2 tasks and their history`.
    #[doc(hidden)]
    pub fn counted(self, count: usize) -> String {
        let history = match (self, count) {
            (BulkAction::Remove, 1) => " and its history",
            (BulkAction::Remove, _) => " and their history",
            _ => "",
        };
        format!("{}{history}", count_of(count, self.noun()))
    }

    /// As [`BulkAction::run_statuses`], of tasks.
    pub(crate) fn task_statuses(self) -> (Option<TaskStatus>, &'static [TaskStatus]) {
        match self {
            BulkAction::Pause => (Some(TaskStatus::Active), &[TaskStatus::Active]),
            BulkAction::Resume => (Some(TaskStatus::Paused), &[TaskStatus::Paused, TaskStatus::Invalid]),
            _ => (None, TaskStatus::ALL),
        }
    }
}

/// A run or a task in a report.
///
/// ```
/// use duly::{Client, Filter, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("invoice").handler("invoice"))?;
/// client.trigger("invoice")?;
/// let all = Filter::new().handler("invoice");
/// assert_eq!(client.cancel_matching(&all)?.examples[0].to_string(), "run 1 of invoice");
/// assert_eq!(client.remove_matching(&all)?.examples[0].to_string(), "invoice", "a task has no run");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkItem {
    /// The name of the task.
    pub task: String,
    /// The id of the run; `None`: the item is the task.
    pub run: Option<i64>,
}

impl fmt::Display for BulkItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.run {
            Some(run) => write!(f, "run {run} of {}", self.task),
            None => f.write_str(&self.task),
        }
    }
}

/// Matching runs or tasks that were left as they were, for one reason.
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{Filter, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let mut stepper = Stepper::builder(&file, noon).accept("mail").start()?;
/// stepper.client().add(NewTask::once("mail", noon).handler("mail"))?;
/// stepper.step()?;
/// let report = stepper.client().remove_matching(&Filter::new().handler("mail"))?;
/// // A task that has a running run stays.
/// assert_eq!((report.changed, report.left[0].count), (0, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkLeft {
    /// The reason.
    pub reason: String,
    /// Their number.
    pub count: usize,
    /// The first of them, at most 10.
    pub examples: Vec<BulkItem>,
}

impl BulkLeft {
    /// `2 runs: it was retried before: run 1 of a, run 2 of b`.
    #[doc(hidden)]
    pub fn text(&self, action: BulkAction) -> String {
        format!("{}: {}: {}", count_of(self.count, action.noun()), self.reason, examples(&self.examples, self.count))
    }
}

/// What an operation on many runs or tasks did, or would do.
///
/// ```
/// use duly::{Client, Filter};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// // Nothing matches: that is no error.
/// let report = client.cancel_matching(&Filter::new().handler("mail"))?;
/// assert_eq!((report.changed, report.left_count()), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkReport {
    /// The number of runs or tasks that were changed.
    pub changed: usize,
    /// Of these, running runs that were asked to stop. Zero unless runs were cancelled.
    pub asked: usize,
    /// The first of those that were changed, at most 10.
    pub examples: Vec<BulkItem>,
    /// What matched and was left as it was.
    pub left: Vec<BulkLeft>,
}

/// What becomes of one matching item.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Changed,
    /// A running run is asked to stop.
    Asked,
    Left(String),
}

impl BulkReport {
    /// Counts an item.
    pub(crate) fn count(&mut self, item: BulkItem, verdict: Verdict) {
        let examples = match verdict {
            Verdict::Changed | Verdict::Asked => {
                self.changed += 1;
                self.asked += usize::from(matches!(verdict, Verdict::Asked));
                &mut self.examples
            }
            Verdict::Left(reason) => {
                let left = self.left_for(reason);
                left.count += 1;
                &mut left.examples
            }
        };
        if examples.len() < MAX_EXAMPLES {
            examples.push(item);
        }
    }

    fn left_for(&mut self, mut reason: String) -> &mut BulkLeft {
        let known = |left: &[BulkLeft], reason: &str| left.iter().position(|left| left.reason == reason);
        let mut at = known(&self.left, &reason);
        if at.is_none() && self.left.len() >= MAX_REASONS {
            reason = OTHER_REASONS.to_owned();
            at = known(&self.left, &reason);
        }
        let at = at.unwrap_or_else(|| {
            self.left.push(BulkLeft { reason, count: 0, examples: Vec::new() });
            self.left.len() - 1
        });
        &mut self.left[at]
    }

    /// What would be done: `would cancel 310 runs, of which 2 are running: run 1 of a, run 2 of b, run 3 of c and 307 more`.
    #[doc(hidden)]
    pub fn would(&self, action: BulkAction) -> String {
        if self.changed == 0 {
            return format!("would {action} no {}", action.noun());
        }
        let running = self.running().map(|are| format!(", of which {are}")).unwrap_or_default();
        format!("would {action} {}{running}: {}", action.counted(self.changed), examples(&self.examples, self.changed))
    }

    /// What was done.
    #[doc(hidden)]
    pub fn done(&self, action: BulkAction) -> String {
        let done = match action {
            BulkAction::Cancel => "cancelled",
            BulkAction::Retry => "retried",
            BulkAction::Remove => "removed",
            BulkAction::Pause => "paused",
            BulkAction::Resume => "resumed",
        };
        match (self.changed, self.running()) {
            (0, _) => format!("{done} no {}", action.noun()),
            (changed, None) => format!("{done} {}", action.counted(changed)),
            (changed, Some(are)) => format!("{done} {}, of which {are} and asked to stop", action.counted(changed)),
        }
    }

    /// How many of the runs are running.
    fn running(&self) -> Option<String> {
        match self.asked {
            0 => None,
            1 => Some("1 is running".to_owned()),
            several => Some(format!("{several} are running")),
        }
    }

    /// Returns the number of matching runs or tasks that were left as they were.
    pub fn left_count(&self) -> usize {
        self.left.iter().map(|left| left.count).sum()
    }
}

/// A few of the items.
fn examples(items: &[BulkItem], count: usize) -> String {
    first_of(items.iter().map(ToString::to_string), SHOWN, count)
}

/// How far an operation on many has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct BulkPass {
    /// The newest id when it began: what was added later is not selected. `None` before the first step.
    pub(crate) until: Option<i64>,
    /// The position of the last row that was read; `None` before the first one.
    pub(crate) position: Option<Position>,
    /// Whether every row was read.
    pub(crate) is_read: bool,
    /// How many of them the next transaction on a file changes at most. `None`: all that are selected.
    pub(crate) most: Option<usize>,
    /// How long the last one held the lock before its commit.
    pub(crate) held: Duration,
    /// Ids that were selected, and are not yet changed.
    pub(crate) selected: Vec<i64>,
}

impl BulkPass {
    pub(crate) fn is_over(&self) -> bool {
        self.is_read && self.selected.is_empty()
    }
}

/// A position in the order in which rows are read.
#[derive(Clone, Debug)]
pub(crate) enum Position {
    /// Tasks, by name.
    Name(Vec<u8>),
    /// Runs, by id.
    Run(i64),
    /// Dead runs, by when they died.
    Dead { at: i64, run: i64 },
    /// Unfinished runs, by the columns of their index.
    Unfinished { task: i64, unscheduled: i64, at: i64 },
}

#[cfg(test)]
mod tests {
    use super::{BulkItem, BulkReport, MAX_EXAMPLES, MAX_REASONS, OTHER_REASONS, Verdict};

    #[test]
    fn a_report_is_bounded() {
        let mut report = BulkReport::default();
        for number in 0..1000 {
            let item = || BulkItem { task: format!("t{number}"), run: None };
            report.count(item(), Verdict::Changed);
            report.count(item(), Verdict::Left(format!("reason {}", number % 100)));
        }
        assert_eq!((report.changed, report.examples.len(), report.left_count()), (1000, MAX_EXAMPLES, 1000));
        assert_eq!(report.left.len(), MAX_REASONS + 1);
        assert!(report.left.iter().all(|left| left.examples.len() == MAX_EXAMPLES));
        assert_eq!((report.left[0].count, report.left[MAX_REASONS].reason.as_str()), (10, OTHER_REASONS));
    }
}
