//! Requests that change tasks and runs, and the answers to them.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::model::declared::DeclaredTasks;
use crate::model::event::Event;
use crate::model::limit::Limit;
use crate::model::new_task::NewTask;

/// What a request to add a task did.
///
/// ```
/// use duly::{Change, Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// let poll = |handler: &str| NewTask::manual("poll").handler(handler);
/// assert_eq!(client.replace(poll("poll"))?.change, Change::Created);
/// assert_eq!(client.replace(poll("poll"))?.change, Change::Unchanged);
/// assert_eq!(client.replace(poll("poll.v2"))?.change, Change::Replaced);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// The task is new.
    Created,
    /// A task of this name exists, and stays as it was.
    Unchanged,
    /// A task of this name exists, and now has the given definition.
    Replaced,
}

/// The answer to a request to add a task.
///
/// ```
/// use duly::{Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// let added = client.add(NewTask::manual("alarm").handler("mail"))?;
/// assert_eq!((added.name.as_str(), added.next_run), ("alarm", None), "it is never due");
/// // A name that was generated begins with the handler.
/// let added = client.add(NewTask::enqueue("mail", client.now()))?;
/// assert!(added.name.starts_with("mail-") && added.next_run.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Added {
    /// The name of the task.
    pub name: String,
    /// What the request did.
    pub change: Change,
    /// The next occurrence of the task, if one is known.
    pub next_run: Option<Timestamp>,
}

/// What to do if a task of the same name exists and differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Refuse,
    /// As `Refuse`, for a task that counts from the time at which it is added: another instant is no difference.
    RefuseOtherWork,
    Keep,
    Replace,
}

impl Existing {
    /// Returns the form of `Refuse` that suits a task.
    pub(crate) fn refuse(task: &NewTask) -> Self {
        if task.counts_from_adding() { Existing::RefuseOtherWork } else { Existing::Refuse }
    }
}

/// How the tasks of a manifest are applied.
///
/// ```
/// use duly::{Apply, Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// let tasks = || [NewTask::cron("digest", "0 7 * * *").handler("digest")];
/// client.apply("old.toml", tasks(), Apply::default())?;
/// // The file was renamed: without `adopt` its tasks belong to another manifest.
/// assert!(client.apply("new.toml", tasks(), Apply::default()).is_err());
/// client.apply("new.toml", tasks(), Apply { adopt: true, ..Apply::default() })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Apply {
    /// Removes tasks that the manifest declared before and no longer declares, with their history. A task that has a running run
    /// is paused instead: it is removed by a later apply, or resumed if it is declared again by then.
    pub prune: bool,
    /// Writes nothing: the answer says what would be done.
    pub dry_run: bool,
    /// Takes over declared tasks that another manifest or source declared, as after a manifest was moved. Otherwise they are
    /// refused. Other tasks of that manifest or source stay as they are.
    pub adopt: bool,
}

/// What applying a manifest did to one task or limit.
///
/// ```
/// use duly::{Apply, Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// let tasks = [NewTask::cron("digest", "0 7 * * *").handler("digest")];
/// let applied = &client.apply("tasks.toml", tasks, Apply::default())?[0];
/// assert!(applied.name == "digest" && applied.next_run.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// The name of the task; of a limit: `key smtp` or `handler mail`.
    pub name: String,
    /// What was done.
    pub done: Done,
    /// The next occurrence of the task, if one is known.
    pub next_run: Option<Timestamp>,
}

impl Applied {
    /// Returns the error for a declared task that cannot be applied.
    pub(crate) fn refusal(name: &str, reason: String) -> Error {
        Error::Refused { request: format!("apply task {name:?}"), reason }
    }

    /// Returns the answer for a task that `error` refuses.
    pub(crate) fn refused(name: String, error: Error) -> Self {
        let reason = match error {
            Error::Refused { reason, .. } | Error::InvalidSchedule { reason, .. } => reason,
            other => other.to_string(),
        };
        Applied { name, done: Done::Refused { reason }, next_run: None }
    }
}

/// What applying a manifest did to a task.
///
/// ```
/// use duly::{Apply, Client, Done, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.apply("tasks.toml", [NewTask::manual("export").handler("export")], Apply::default())?;
/// // The manifest no longer declares it. It stays, unless pruning is requested.
/// assert_eq!(client.apply("tasks.toml", [], Apply::default())?[0].done, Done::Left);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Done {
    /// The task is new.
    Created,
    /// The task was as the manifest says.
    Unchanged,
    /// The task is now as the manifest says.
    Replaced {
        /// Each field that differed: its column name, the stored value, the new value.
        fields: Vec<(&'static str, String, String)>,
    },
    /// The manifest no longer declares the task; it was removed with its history.
    Removed,
    /// The manifest no longer declares the task, and a run of it is running: it is paused, and a later apply removes it.
    Paused,
    /// The manifest no longer declares the task; it stays, because pruning was not requested.
    Left,
    /// The task could not be imported, and nothing was changed for it. Only [`Client::import`](crate::Client::import) answers so.
    Refused {
        /// Why not.
        reason: String,
    },
}

/// A task that is imported from another scheduler.
///
/// ```
/// use duly::{Apply, Client, Done, ImportItem, NewTask, TaskStatus};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// let paused = ImportItem { paused: true, ..NewTask::cron("backup", "0 2 * * *").handler("work").into() };
/// let unreadable = ImportItem::refused("report", "line 3 has four fields");
/// let done = client.import("crontab", [paused, unreadable], Apply::default())?;
/// assert_eq!(client.task("backup")?.map(|task| task.status), Some(TaskStatus::Paused));
/// assert_eq!(done[1].done, Done::Refused { reason: "line 3 has four fields".into() });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImportItem {
    /// Its definition.
    pub task: NewTask,
    /// Whether it is paused at its source. A new task is then paused here too: its schedule counts once it is resumed.
    pub paused: bool,
    /// Why it cannot be imported, if that is known already. Then only the name of `task` counts: a task of this name that was
    /// imported before stays as it is.
    pub refused: Option<String>,
}

impl ImportItem {
    /// Describes a task that exists at the source and cannot be imported. It is reported as refused, and a task of this name that
    /// was imported before is not pruned.
    pub fn refused(name: impl Into<String>, reason: impl Into<String>) -> Self {
        ImportItem { refused: Some(reason.into()), ..NewTask::cron(name, "").into() }
    }
}

impl From<NewTask> for ImportItem {
    fn from(task: NewTask) -> Self {
        ImportItem { task, paused: false, refused: None }
    }
}

/// What a source declares, or a part of that, and how it is applied.
#[derive(Clone, Debug)]
pub(crate) struct Declaration<'a> {
    /// The name of the source; it is stored with each of its tasks.
    pub(crate) source: &'a str,
    pub(crate) kind: SourceKind,
    pub(crate) how: Apply,
    pub(crate) tasks: DeclaredTasks,
    /// Tasks that it declared before and no longer declares.
    pub(crate) undeclared: Vec<String>,
    /// Limits, which were checked. `None`: limits stay as they are.
    pub(crate) limits: Option<Vec<Limit>>,
}

/// What applying a declaration did.
#[derive(Debug, Default)]
pub(crate) struct AppliedParts {
    pub(crate) tasks: Vec<Applied>,
    pub(crate) undeclared: Vec<Applied>,
    /// Undeclared tasks that the next transaction removes: they have more runs than one deletes.
    pub(crate) left: Vec<String>,
    pub(crate) limits: Vec<Applied>,
}

/// What kind of source declares tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    /// If one of its tasks is refused, none is applied.
    Manifest,
    /// Written for another scheduler: what cannot be imported is refused, and the rest is imported.
    Foreign,
}

/// The run that answers a request to trigger a task.
///
/// ```
/// use duly::{Client, NewRun, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("invoice").handler("invoice"))?;
/// let first = client.trigger_run(NewRun::of("invoice").key("order-17"))?;
/// client.cancel(first.run_id)?;
/// // The key stands for this run, whatever its outcome.
/// let again = client.trigger_run(NewRun::of("invoice").key("order-17"))?;
/// assert!(again.run_id == first.run_id && !again.is_new);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Triggered {
    /// Its id.
    pub run_id: i64,
    /// Whether this request opened it. `false`: an earlier request with the same key did.
    pub is_new: bool,
}

/// The runs that a request is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Runs<'a> {
    /// The run of this id.
    One(i64),
    /// All unfinished runs of the task of this name.
    OfTask(&'a str),
}

/// What a request to cancel a run did.
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{Cancel, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let mut stepper = Stepper::builder(&file, noon).accept("mail").start()?;
/// stepper.client().add(NewTask::once("mail", noon).handler("mail"))?;
/// let run = stepper.step()?[0].run_id;
/// // It is running: its handler learns of the request, and may succeed all the same.
/// assert_eq!(stepper.client().cancel(run)?, Cancel::Asked);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cancel {
    /// The run was waiting, and is cancelled.
    Done,
    /// The run is running: its handler is asked to stop. If it then fails, the run is cancelled.
    Asked,
}

/// What a request to cancel runs did.
#[derive(Debug, Default)]
pub(crate) struct Cancelled {
    /// How many runs are running, and are asked to stop.
    pub(crate) asked: usize,
    /// To be emitted after the commit.
    pub(crate) events: Vec<Event>,
}
