//! `Filter`: selects the runs or tasks of an operation on many; `NamePattern`: a name with wildcards.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::bulk::BulkAction;
use crate::model::json;
use crate::model::run::RunStatus;
use crate::model::task::TaskStatus;

/// Selects runs or tasks for [`Client::cancel_matching`](crate::Client::cancel_matching) and the other operations on many. What is
/// selected matches all conditions.
///
/// A filter without a condition is refused. [`Filter::all`] selects everything.
///
/// ```
/// use std::time::Duration;
/// use duly::{Client, Filter, RunStatus};
/// # let home = tempfile::tempdir()?;
/// # let client = Client::open(home.path().join("agent.db"))?;
/// let stale = Filter::new().handler("mail").status(RunStatus::Queued).name("report-*").older_than(Duration::from_secs(7200));
/// assert_eq!(client.cancel_matching(&stale)?.changed, 0);
/// let error = client.cancel_matching(&Filter::new()).unwrap_err();
/// assert!(error.to_string().starts_with("cannot cancel runs by a filter: it has no condition"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    all: bool,
    handler: Option<String>,
    name: Option<NamePattern>,
    added_by: Option<NamePattern>,
    status: Option<RunStatus>,
    task_status: Option<TaskStatus>,
    #[serde(rename = "older_than_ms", with = "json::optional_duration")]
    older_than: Option<Duration>,
    before: Option<Timestamp>,
    since: Option<Timestamp>,
    error: Option<String>,
}

impl Filter {
    /// Returns a filter without a condition, to which at least one must be added.
    pub fn new() -> Self {
        Filter::default()
    }

    /// Returns a filter that selects everything, unless a condition is added.
    pub fn all() -> Self {
        Filter { all: true, ..Filter::default() }
    }

    /// Selects only the runs or tasks of this handler.
    #[must_use]
    pub fn handler(mut self, handler: impl Into<String>) -> Self {
        self.handler = Some(handler.into());
        self
    }

    /// Selects only the tasks, or the runs of the tasks, whose name matches a pattern.
    #[must_use]
    pub fn name(mut self, pattern: impl Into<NamePattern>) -> Self {
        self.name = Some(pattern.into());
        self
    }

    /// Selects only the tasks, or the runs of the tasks, that were added by what matches a pattern: an
    /// [actor](crate::Client::actor), as in `mcp:*`, or a manifest. See [`Definition::managed_by`](crate::Definition::managed_by).
    ///
    /// ```
    /// use duly::{Client, Filter, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("export").handler("export"))?;
    /// client.actor("mcp:claude-code", "7f3a")?.add(NewTask::manual("import").handler("import"))?;
    /// // What was added by hand matches no pattern, not even `*`.
    /// assert_eq!(client.remove_matching(&Filter::new().added_by("*"))?.changed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn added_by(mut self, pattern: impl Into<NamePattern>) -> Self {
        self.added_by = Some(pattern.into());
        self
    }

    /// Selects only runs with this status, for an operation on runs.
    #[must_use]
    pub fn status(mut self, status: RunStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Selects only tasks with this status, for an operation on tasks.
    #[must_use]
    pub fn task_status(mut self, status: TaskStatus) -> Self {
        self.task_status = Some(status);
        self
    }

    /// As [`Filter::before`], with a duration before the start of the operation.
    #[must_use]
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Selects only runs whose occurrence, or newest occurrence, is not later than this instant; and only tasks that were last
    /// changed, and whose last run ended, not later than it.
    ///
    /// ```
    /// use duly::{Client, Filter, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("export").handler("export"))?;
    /// client.trigger("export")?;
    /// let old = Filter::new().name("export").before(client.now() - std::time::Duration::from_secs(3600));
    /// assert_eq!(client.cancel_matching(&old)?.changed, 0, "it is younger than an hour");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn before(mut self, at: Timestamp) -> Self {
        self.before = Some(at);
        self
    }

    /// Selects only runs whose occurrence, or newest occurrence, is not before this instant, for an operation on runs.
    #[must_use]
    pub fn since(mut self, at: Timestamp) -> Self {
        self.since = Some(at);
        self
    }

    /// Selects only runs whose error contains a text, whatever the case of its ASCII letters, for an operation on runs.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{BoxError, Context, Filter, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mail = |_: &Context| Err::<(), _>(BoxError::from("Connection refused"));
    /// let mut stepper = Stepper::builder(&file, noon).handler("mail", mail).start()?;
    /// stepper.client().add(NewTask::once("mail", noon).handler("mail").max_attempts(1))?;
    /// stepper.run_until(noon)?;
    /// let refused = Filter::new().error("connection refused");
    /// assert_eq!(stepper.client().retry_matching(&refused)?.changed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Returns what the filter selects for an operation that starts now. Refuses a filter that has no condition, or a status that
    /// the operation cannot change.
    pub(crate) fn selection(&self, action: BulkAction, now: Timestamp) -> Result<Selection> {
        let refused = |reason: String| {
            let request = format!("{action} {}s by a filter", action.noun());
            Err(Error::Refused { request, reason })
        };
        let has_condition = self.handler.is_some()
            || self.name.is_some()
            || self.added_by.is_some()
            || self.status.is_some()
            || self.task_status.is_some()
            || self.older_than.is_some()
            || self.before.is_some()
            || self.since.is_some()
            || self.error.is_some();
        if !has_condition && !self.all {
            return refused("it has no condition; Filter::all() selects everything".to_owned());
        }
        let status = if action.is_about_runs() {
            if let Some(status) = self.task_status {
                return refused(format!("it has {status}, the status of a task: expected that of a run"));
            }
            selected(self.status, action.run_statuses(), RunStatus::as_str)
        } else {
            if let Some(status) = self.status {
                return refused(format!("it has {status}, the status of a run: expected that of a task"));
            }
            if self.since.is_some() || self.error.is_some() {
                return refused("it has a condition on runs: since or error".to_owned());
            }
            selected(self.task_status, action.task_statuses(), TaskStatus::as_str)
        };
        let status = match status {
            Ok(status) => status,
            Err(reason) => return refused(reason),
        };
        let aged = self.older_than.map(|age| now.minus(age));
        let before = aged.into_iter().chain(self.before).min();
        let Filter { handler, name, added_by, since, error, .. } = self.clone();
        let error = error.map(|text| text.to_ascii_lowercase());
        Ok(Selection { handler, name, added_by, status, before, since, error, ..Selection::all(action) })
    }
}

/// Returns the status by which rows are selected, or why the given one is refused. `allowed`: those that the operation changes, with
/// the default first; `None` as the default stands for all of them.
fn selected<S: Copy + PartialEq>(
    given: Option<S>,
    (default, allowed): (Option<S>, &[S]),
    text: fn(S) -> &'static str,
) -> Result<Option<&'static str>, String> {
    match given {
        Some(status) if !allowed.contains(&status) => {
            let allowed: Vec<_> = allowed.iter().map(|status| text(*status)).collect();
            Err(format!("expected the status {}, found {}", allowed.join(" or "), text(status)))
        }
        Some(status) => Ok(Some(text(status))),
        None => Ok(default.map(text)),
    }
}

/// The conditions of a filter for one operation.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) action: BulkAction,
    pub(crate) handler: Option<String>,
    pub(crate) name: Option<NamePattern>,
    pub(crate) added_by: Option<NamePattern>,
    /// `None`: every status that the operation can change.
    pub(crate) status: Option<&'static str>,
    pub(crate) before: Option<Timestamp>,
    pub(crate) since: Option<Timestamp>,
    /// A part of the error, without upper-case ASCII letters.
    pub(crate) error: Option<String>,
    /// The task whose runs are cancelled.
    pub(crate) task: Option<i64>,
    /// Each change of a run is recorded as an action of this name.
    pub(crate) actor: Option<&'static str>,
}

impl Selection {
    /// Everything that an operation can change.
    pub(crate) fn all(action: BulkAction) -> Self {
        let (handler, name, added_by, status, before, since) = Default::default();
        let (error, task, actor) = Default::default();
        Selection { action, handler, name, added_by, status, before, since, error, task, actor }
    }

    /// All unfinished runs of a task, to be cancelled.
    pub(crate) fn runs_of(task: i64) -> Self {
        Selection { task: Some(task), ..Selection::all(BulkAction::Cancel) }
    }

    /// Returns whether a name, a handler and who added the task match. A name that is not UTF-8 matches as it is displayed.
    pub(crate) fn accepts(&self, name: &str, handler: &[u8], manager: Option<&[u8]>) -> bool {
        let is_manager =
            |wanted: &NamePattern| manager.is_some_and(|manager| wanted.matches(&String::from_utf8_lossy(manager)));
        self.handler.as_ref().is_none_or(|wanted| wanted.as_bytes() == handler)
            && self.added_by.as_ref().is_none_or(is_manager)
            && self.name.as_ref().is_none_or(|pattern| pattern.matches(name))
    }
}

/// A pattern for names, in which `*` stands for any text and `?` for one character. Every other character stands for itself.
///
/// ```
/// use duly::NamePattern;
/// assert!(NamePattern::new("report-*").matches("report-2027"));
/// assert!(!NamePattern::new("report-?").matches("report-10"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NamePattern(String);

impl From<&str> for NamePattern {
    fn from(pattern: &str) -> Self {
        NamePattern::new(pattern)
    }
}

impl From<String> for NamePattern {
    fn from(pattern: String) -> Self {
        NamePattern::new(pattern)
    }
}

impl NamePattern {
    const WILDCARDS: [char; 2] = ['*', '?'];

    /// Returns this pattern.
    pub fn new(pattern: impl Into<String>) -> Self {
        NamePattern(pattern.into())
    }

    /// Returns whether the pattern has no wildcard: it then matches one name.
    pub fn is_name(&self) -> bool {
        !self.0.contains(Self::WILDCARDS)
    }

    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text before the first wildcard, with which every matching name begins.
    pub(crate) fn prefix(&self) -> &str {
        self.0.split(Self::WILDCARDS).next().unwrap_or_default()
    }

    /// Returns whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) = (self.0.chars().collect(), name.chars().collect());
        let (mut at, mut read) = (0, 0);
        // The position after the last star, and the end of the text that it stands for.
        let mut star = None;
        while read < name.len() {
            match (pattern.get(at), star) {
                (Some('*'), _) => {
                    at += 1;
                    star = Some((at, read));
                }
                (Some(letter), _) if *letter == '?' || *letter == name[read] => {
                    at += 1;
                    read += 1;
                }
                (_, Some((after, end))) => {
                    (at, read) = (after, end + 1);
                    star = Some((after, end + 1));
                }
                _ => return false,
            }
        }
        pattern[at..].iter().all(|letter| *letter == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::{Filter, NamePattern};
    use crate::clock::Timestamp;
    use crate::model::bulk::BulkAction;
    use crate::model::run::RunStatus;
    use crate::model::task::TaskStatus;
    use std::time::Duration;

    #[test]
    fn a_pattern_has_stars_and_question_marks() {
        for (pattern, name, is_match) in [
            ("backup", "backup", true),
            ("backup", "backups", false),
            ("backup*", "backup", true),
            ("*:anna", "digest:anna", true),
            ("*:anna", "digest:annas", false),
            ("d*t:?n*a", "digest:anna", true),
            ("d*t:?n*a", "digest:an", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", "", true),
            ("", "a", false),
            ("[ab]", "a", false),
            ("[ab]*", "[ab]c", true),
            ("a%", "abc", false),
            ("a_c", "abc", false),
            ("A*", "abc", false),
            ("a\\*", "a*", false),
        ] {
            assert_eq!(NamePattern::new(pattern).matches(name), is_match, "{pattern} {name}");
        }
        assert!(!NamePattern::new("*a".repeat(50)).matches(&"a".repeat(49)));
        assert_eq!(
            ["re-*", "*", "?x", "name"].map(|text| NamePattern::new(text).prefix().to_owned()),
            ["re-", "", "", "name"]
        );
    }

    fn refusal(filter: &Filter, action: BulkAction) -> String {
        filter.selection(action, Timestamp::MAX).unwrap_err().to_string()
    }

    #[test]
    fn a_filter_without_a_condition_or_with_a_status_that_cannot_match_is_refused() {
        for action in BulkAction::ALL {
            assert!(
                refusal(&Filter::new(), *action).ends_with("it has no condition; Filter::all() selects everything")
            );
            assert!(Filter::all().selection(*action, Timestamp::MAX).is_ok());
        }
        assert_eq!(
            refusal(&Filter::new().status(RunStatus::Dead), BulkAction::Cancel),
            "cannot cancel runs by a filter: expected the status queued or running or failed, found dead"
        );
        assert_eq!(
            refusal(&Filter::new().status(RunStatus::Missed), BulkAction::Retry),
            "cannot retry runs by a filter: expected the status dead or cancelled, found missed"
        );
        assert_eq!(
            refusal(&Filter::new().task_status(TaskStatus::Paused), BulkAction::Retry),
            "cannot retry runs by a filter: it has paused, the status of a task: expected that of a run"
        );
        assert_eq!(
            refusal(&Filter::new().status(RunStatus::Dead), BulkAction::Remove),
            "cannot remove tasks by a filter: it has dead, the status of a run: expected that of a task"
        );
    }

    #[test]
    fn the_default_status_is_that_of_the_careful_choice_and_the_earlier_limit_counts() {
        let status = |action| Filter::all().selection(action, Timestamp::MAX).unwrap().status;
        assert_eq!(
            [BulkAction::Retry, BulkAction::Pause, BulkAction::Resume].map(status).map(Option::unwrap),
            ["dead", "active", "paused"]
        );
        assert_eq!([BulkAction::Cancel, BulkAction::Remove].map(status), [None, None]);
        let now = Timestamp::from_millis(1_800_000_000_000);
        let both = Filter::new().older_than(Duration::from_secs(1)).before(now.minus(Duration::from_secs(2)));
        assert_eq!(both.selection(BulkAction::Cancel, now).unwrap().before, Some(now.minus(Duration::from_secs(2))));
    }

    #[test]
    fn a_filter_in_json_refuses_unknown_fields() {
        let filter = Filter::new()
            .handler("mail")
            .name("report-*")
            .status(RunStatus::Dead)
            .older_than(Duration::from_secs(7200));
        let text = serde_json::to_string(&filter).unwrap();
        assert_eq!(serde_json::from_str::<Filter>(&text).unwrap(), filter);
        let short = r#"{"handler": "mail", "name": "report-*", "status": "dead", "older_than_ms": 7200000}"#;
        assert_eq!(serde_json::from_str::<Filter>(short).unwrap(), filter);
        assert!(serde_json::from_str::<Filter>(r#"{"handlr": "mail", "all": true}"#).is_err());
    }
}
