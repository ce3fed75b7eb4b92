//! Requests about runs: trigger, retry, cancel, declare the command of a dead scheduler gone.

use serde::Serialize;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::model::filter::Selection;
use crate::model::request::{Cancel, Runs, Triggered};
use crate::model::task::{check_payload, check_text};
use crate::model::to_json::to_json;

/// A run to be opened: its task, its payload, its idempotency key.
///
/// ```
/// use duly::{Client, NewRun, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("invoice").handler("invoice").payload(0))?;
/// // Without a key, each request opens a run; without a payload, the run has that of the task.
/// let (first, second) = (NewRun::of("invoice").payload(17), NewRun::of("invoice"));
/// let (first, second) = (client.trigger_run(first)?.run_id, client.trigger_run(second)?.run_id);
/// assert_eq!(client.run(first)?.and_then(|run| run.payload).as_deref(), Some("17"));
/// assert!(second != first && client.run(second)?.is_some_and(|run| run.payload.is_none()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NewRun {
    task: String,
    payload: Option<Result<String, String>>,
    key: Option<String>,
}

impl NewRun {
    /// Describes a run of the task of this name.
    pub fn of(task: impl Into<String>) -> Self {
        NewRun { task: task.into(), payload: None, key: None }
    }

    /// Sets the payload for the handler, stored as JSON. Default: the payload of the task.
    #[must_use]
    pub fn payload(mut self, payload: impl Serialize) -> Self {
        self.payload = Some(to_json(&payload).map_err(|error| error.to_string()));
        self
    }

    /// Sets an idempotency key: the first request with a key opens a run of the task, and all others return the id of that run,
    /// whatever its outcome. The key is kept as long as the run (see [`Retention`](crate::Retention)).
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Returns the task, the payload as JSON, and the key.
    pub(super) fn into_checked(self) -> Result<(String, Option<String>, Option<String>)> {
        let NewRun { task, payload, key } = self;
        let invalid = |error| Error::invalid_task("payload", error, "a value that JSON can hold");
        let payload = payload.transpose().map_err(invalid)?;
        payload.as_deref().map(check_payload).transpose()?;
        if let Some(key) = &key {
            check_text("request_key", key)?;
            if key.starts_with('#') {
                return Err(Error::invalid_task("request_key", key, "a key that does not begin with #"));
            }
        }
        Ok((task, payload, key))
    }
}

impl Client {
    /// Opens a run of a task now, beside its schedule, and returns the id of the run. The run waits for the concurrency key of the
    /// task. A paused or completed task can be triggered; its status does not change.
    ///
    /// ```
    /// use duly::{Client, Error, NewTask, Origin};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// client.pause("digest")?;
    /// let run = client.trigger("digest")?;
    /// assert_eq!(client.run(run)?.map(|run| run.origin), Some(Origin::Manual));
    /// assert!(matches!(client.trigger("digset"), Err(Error::UnknownTask { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownTask`]; [`Error::Refused`] if the task is invalid.
    pub fn trigger(&self, name: &str) -> Result<i64> {
        self.trigger_run(NewRun::of(name)).map(|run| run.run_id)
    }

    /// Triggers a task as [`Client::trigger`] does, with a payload for this run.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("invoice").handler("invoice").payload("default"))?;
    /// let run = client.trigger_with("invoice", "anna")?;
    /// assert_eq!(client.run(run)?.and_then(|run| run.payload).as_deref(), Some(r#""anna""#));
    /// // A payload that is too large is refused, and opens no run.
    /// assert!(client.trigger_with("invoice", "x".repeat(duly::MAX_PAYLOAD_BYTES)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::trigger`]; [`Error::InvalidTask`] if JSON cannot hold the payload, or it is too large.
    pub fn trigger_with(&self, name: &str, payload: impl Serialize) -> Result<i64> {
        self.trigger_run(NewRun::of(name).payload(payload)).map(|run| run.run_id)
    }

    /// Opens the described run as [`Client::trigger`] does. If its [key](NewRun::key) was used before, nothing is opened or changed.
    ///
    /// ```
    /// use duly::{Client, NewRun, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("shop.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("invoice").handler("invoice"))?;
    /// let request = || NewRun::of("invoice").payload(17).key("order-17");
    /// let first = client.trigger_run(request())?;
    /// let again = client.trigger_run(request())?;
    /// assert!(first.is_new && !again.is_new);
    /// assert_eq!(again.run_id, first.run_id);
    /// // Another payload is other work.
    /// assert!(client.trigger_run(request().payload(18)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::trigger_with`]; [`Error::Refused`] if the key was used with another payload; [`Error::InvalidTask`] if the key is empty, has more than 200 bytes, or contains control
    /// characters.
    pub fn trigger_run(&self, run: NewRun) -> Result<Triggered> {
        let (task, payload, key) = run.into_checked()?;
        self.write(|store, now| store.trigger(&task, payload.as_deref(), key.as_deref(), now))
    }

    /// Opens a new run that retries a dead or cancelled one, and returns its id. The new run has the payload and the
    /// [idempotency key](crate::Context::idempotency_key) of the old run: to other systems it is the same work. It consumes no
    /// occurrence, and all attempts of the retry policy are available to it.
    ///
    /// A skipped or missed row may stand for many occurrences, or for a run that had nothing to do: use [`Client::trigger`] for those.
    ///
    /// ```
    /// use duly::{Client, Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("invoice").handler("invoice"))?;
    /// let run = client.trigger("invoice")?;
    /// assert!(matches!(client.retry(run), Err(Error::Refused { .. })), "it is not over");
    /// client.cancel(run)?;
    /// let again = client.retry(run)?;
    /// assert_eq!(client.run(again)?.and_then(|run| run.retry_of), Some(run));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownRun`]; [`Error::Refused`] if the run is not over, succeeded, was skipped or missed, or is being
    /// retried already, and if its task is invalid.
    pub fn retry(&self, run: i64) -> Result<i64> {
        self.write(|store, now| store.retry(run, now))
    }

    /// Cancels a run, or asks it to stop if it is running.
    ///
    /// The observers of the scheduler that this client belongs to receive [`Event::Cancelled`](crate::Event::Cancelled) for a run
    /// that waited, on this thread, before this method returns.
    ///
    /// ```
    /// use duly::{Cancel, Client, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("invoice").handler("invoice"))?;
    /// let run = client.trigger("invoice")?;
    /// assert_eq!(client.cancel(run)?, Cancel::Done);
    /// assert_eq!(client.run(run)?.map(|run| run.status), Some(RunStatus::Cancelled));
    /// assert!(client.cancel(run).is_err(), "it is over");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownRun`]; [`Error::Refused`] if it is over.
    pub fn cancel(&self, run: i64) -> Result<Cancel> {
        let cancelled = self.write(|store, now| store.cancel(run, now))?;
        self.emit(&cancelled.events);
        Ok(if cancelled.asked > 0 { Cancel::Asked } else { Cancel::Done })
    }

    /// Cancels all unfinished runs of a task as [`Client::cancel`] does, the last one first, and returns their number. More than 500 are
    /// cancelled in several transactions, as by [`Client::cancel_matching`].
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("invoice").handler("invoice"))?;
    /// client.trigger("invoice")?;
    /// client.trigger("invoice")?;
    /// assert_eq!((client.cancel_all("invoice")?, client.cancel_all("invoice")?), (2, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownTask`]; [`Error::Refused`] if the row of a run cannot be changed: the others are cancelled.
    pub fn cancel_all(&self, name: &str) -> Result<usize> {
        let task = self.task(name)?.ok_or_else(|| Error::UnknownTask { name: name.to_owned() })?;
        let report = self.change_selected(&Selection::runs_of(task.id), None)?;
        match report.left.into_iter().next() {
            Some(left) => {
                Err(Error::Refused { request: format!("cancel all runs of task {name:?}"), reason: left.reason })
            }
            None => Ok(report.changed),
        }
    }

    /// Declares that the command of a running run is gone whose scheduler is dead, where duly cannot know it and the user has
    /// checked. No process is signalled. The run ends as cancelled at the next turn of any scheduler.
    ///
    /// If the command is alive after all, it continues beside later runs of the task.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("post").start()?;
    /// stepper.client().add(NewTask::once("post", noon).handler("post"))?;
    /// let run = stepper.step()?[0].run_id;
    /// let error = stepper.client().declare_gone(run).unwrap_err();
    /// assert!(matches!(error, Error::Refused { .. }), "its scheduler is alive");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownRun`]; [`Error::Refused`] if it is not running, if its scheduler is alive, or if the scheduler was within
    /// its lease and nothing shows that it has died since.
    pub fn declare_gone(&self, run: i64) -> Result<()> {
        self.write(|store, now| store.declare_gone(Runs::One(run), now)).map(|_| ())
    }

    /// As [`Client::declare_gone`], for all running runs of a task whose scheduler is not alive. Returns their number.
    ///
    /// # Errors
    /// [`Error::UnknownTask`].
    pub fn declare_all_gone(&self, name: &str) -> Result<usize> {
        self.write(|store, now| store.declare_gone(Runs::OfTask(name), now))
    }
}
