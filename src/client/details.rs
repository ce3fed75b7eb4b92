//! All that is shown of one task or one run, in the form that the commands print as JSON.

use serde::Serialize;

use crate::client::Client;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::health::Health;
use crate::model::limit::{LimitOn, LimitState};
use crate::model::report::Recent;
use crate::model::run::{Attempt, Effect, Follower, Run, RunFilter};
use crate::model::task::{Definition, Task};
use crate::rules::chain::Link;
use crate::store::Store;
use crate::text::units::MANY_MARKED;

/// A task in a list, with its last runs. Its JSON is an item of `duly list --json`: the columns of the task, and `recent`.
///
/// ```
/// use duly::{Client, ListedTask, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("export").handler("export"))?;
/// let (tasks, recent) = (client.tasks()?, client.recent(ListedTask::RECENT)?);
/// // A task without a run is not in `recent`.
/// let listed = ListedTask { task: &tasks[0], recent: recent.get(&tasks[0].id).map_or(&[], Vec::as_slice) };
/// let json = serde_json::to_value(listed)?;
/// assert_eq!((&json["name"], &json["recent"]), (&"export".into(), &serde_json::json!([])));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ListedTask<'a> {
    /// The task. In JSON, its columns are keys of this object.
    #[serde(flatten)]
    pub task: &'a Task,
    /// Its last runs, at most [`ListedTask::RECENT`], oldest first.
    pub recent: &'a [Recent],
}

impl ListedTask<'_> {
    /// The number of last runs of a task that a list shows.
    pub const RECENT: usize = 10;
}

/// A task with its next occurrences and last runs. Its JSON is that of `duly show --json`: the columns of the task, and these keys.
///
/// ```
/// use duly::{Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
/// client.pause("digest")?;
/// assert!(client.task_details("digest")?.occurrences.is_empty(), "it is paused");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TaskDetails {
    /// The task. In JSON, its columns are keys of this object.
    #[serde(flatten)]
    pub task: Task,
    /// Its next occurrences, at most 5; none while it is paused, completed or invalid.
    pub occurrences: Vec<Timestamp>,
    /// Its last runs in short, at most 20, oldest first.
    pub recent: Vec<Recent>,
    /// Its newest runs, at most 10, newest first.
    pub runs: Vec<Run>,
    /// The limits on its concurrency key and on its handler.
    pub limits: Vec<LimitState>,
    /// After a change of the task: how many of its waiting runs turns have still to write. 10 001 stands for more than 10 000. `None`:
    /// all are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked_runs: Option<usize>,
    /// While no start of the task is left by its own limit, `max_starts`: when the next one is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_start: Option<Timestamp>,
}

/// A run with its attempts, its effects and what follows it. Its JSON is that of `duly logs --json`: the columns of the run, and these keys.
///
/// ```
/// use duly::testing::{Stepper, fail_first};
/// use duly::{Context, Error, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let work = fail_first(1, |_: &Context| Ok::<_, Error>("sent"));
/// let mut stepper = Stepper::builder(&file, noon).handler("mail", work).start()?;
/// stepper.client().add(NewTask::manual("mail").handler("mail"))?;
/// let run = stepper.client().trigger("mail")?;
/// stepper.run_until_over(run, std::time::Duration::from_secs(60))?;
/// let details = stepper.client().run_details(run)?;
/// // The second attempt simply succeeded: its result is in the row of the run.
/// assert_eq!((details.attempts.len(), details.run.attempt), (1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RunDetails {
    /// The run. In JSON, its columns are keys of this object.
    #[serde(flatten)]
    pub run: Run,
    /// Its attempts that did not simply succeed, oldest first.
    pub attempts: Vec<Attempt>,
    /// Its effects and those of the runs that it retries, by key.
    pub effects: Vec<Effect>,
    /// The run that it follows, if it does.
    pub follows: Option<i64>,
    /// The runs that follow it, oldest first: of the tasks that its task names now, at most one each.
    pub followers: Vec<Follower>,
}

impl TaskDetails {
    const OCCURRENCES: usize = 5;
    const RECENT: usize = 20;
    const RUNS: usize = 10;
}

impl Client {
    /// Returns a task with its next occurrences, its last runs and its limits.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// client.trigger("digest")?;
    /// let details = client.task_details("digest")?;
    /// assert_eq!((details.occurrences.len(), details.runs.len()), (5, 1));
    /// let json = serde_json::to_value(&details)?;
    /// assert_eq!((&json["schedule_value"], &json["recent"][0]["status"]), (&"0 7 * * *".into(), &"queued".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownTask`].
    pub fn task_details(&self, name: &str) -> Result<TaskDetails> {
        let task = self.task(name)?.ok_or_else(|| Error::UnknownTask { name: name.to_owned() })?;
        let mut runs = self.runs(&RunFilter::newest(TaskDetails::RECENT).of(name))?;
        let recent = runs.iter().rev().map(Recent::from).collect();
        runs.truncate(TaskDetails::RUNS);
        let occurrences = match task.ahead(TaskDetails::OCCURRENCES) {
            Ok(ahead) => ahead.into_iter().map(|upcoming| upcoming.at).collect(),
            // An invalid row, written by another program.
            Err(_) => task.next_run.filter(|at| (Timestamp::MIN..=Timestamp::MAX).contains(at)).into_iter().collect(),
        };
        let Definition { concurrency_key, handler, .. } = &task.definition;
        let mut limits = self.limits()?;
        limits.retain(|state| match state.limit.on() {
            LimitOn::Key(key) => concurrency_key.as_ref() == Some(&key),
            LimitOn::Handler(name) => name == *handler,
        });
        let marked_runs = self.marked_runs(task.id)?;
        let next_start = self.next_start(task.id)?;
        Ok(TaskDetails { task, occurrences, recent, runs, limits, marked_runs, next_start })
    }

    /// See [`TaskDetails::next_start`].
    pub(crate) fn next_start(&self, task: i64) -> Result<Option<Timestamp>> {
        self.store().next_start(task)
    }

    /// See [`TaskDetails::marked_runs`].
    pub(crate) fn marked_runs(&self, task: i64) -> Result<Option<usize>> {
        self.store().marked_runs(task, MANY_MARKED)
    }

    /// Returns a run with its attempts and effects.
    ///
    /// ```
    /// use duly::{Client, Error};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// assert!(matches!(client.run_details(7), Err(Error::UnknownRun { id: 7 })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownRun`].
    pub fn run_details(&self, id: i64) -> Result<RunDetails> {
        let run = self.run(id)?.ok_or(Error::UnknownRun { id })?;
        let follows = run.request_key.as_deref().and_then(Link::parse).map(|link| link.parent);
        let (attempts, effects, followers) = (self.attempts(id)?, self.effects(id)?, self.store().followers(id)?);
        Ok(RunDetails { run, attempts, effects, follows, followers })
    }
}

/// Counts, for tasks that a look for problems names as failing, the waiting runs that are being marked.
pub(super) fn count_marked(store: &mut dyn Store, health: &mut Health) -> Result<()> {
    for failing in health.failing.iter_mut().filter(|_| health.any_marked) {
        let Some(task) = store.task(&failing.task)? else { continue };
        failing.marked = store.marked_runs(task.id, MANY_MARKED)?;
    }
    Ok(())
}
