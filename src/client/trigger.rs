//! `Client::trigger`: a run that a person or a program requests, beside the schedule of its task.

use serde::Serialize;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::model::run::Origin;
use crate::model::task::{TaskStatus, check_payload, check_text};
use crate::schedule::ScheduleKind;
use crate::store::sqlite::manual::{self, Request};
use crate::store::sqlite::tasks;

/// A run to be opened: of which task, with which payload, under which key.
#[derive(Clone, Debug)]
pub struct NewRun {
    task: String,
    payload: Option<Result<String, String>>,
    key: Option<String>,
}

impl NewRun {
    /// A run of the task of this name.
    pub fn of(task: impl Into<String>) -> Self {
        NewRun { task: task.into(), payload: None, key: None }
    }

    /// What the handler is given, stored as JSON. Default: the payload of the task.
    #[must_use]
    pub fn payload(mut self, payload: impl Serialize) -> Self {
        self.payload = Some(serde_json::to_string(&payload).map_err(|error| error.to_string()));
        self
    }

    /// An idempotency key: of all requests with the same key for the same task, the first opens a run, and all others are
    /// answered with its id, however it ended. It holds as long as the run is kept (see [`Retention`](crate::Retention)).
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

/// The run that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Triggered {
    /// Its id.
    pub run_id: i64,
    /// Whether this request opened it. `false`: an earlier one with the same key did.
    pub is_new: bool,
}

impl Client {
    /// Opens a run of a task now, beside its schedule, and answers with the run's id. It waits for the task's concurrency
    /// key. A paused or completed task can be triggered, and stays what it is.
    ///
    /// # Errors
    /// [`Error::UnknownTask`]; [`Error::Refused`] if the task is invalid.
    pub fn trigger(&self, name: &str) -> Result<i64> {
        self.trigger_run(NewRun::of(name)).map(|run| run.run_id)
    }

    /// The same, with a payload of its own.
    ///
    /// # Errors
    /// As [`Client::trigger`]; [`Error::InvalidTask`] if JSON cannot hold the payload, or it is too large.
    pub fn trigger_with(&self, name: &str, payload: impl Serialize) -> Result<i64> {
        self.trigger_run(NewRun::of(name).payload(payload)).map(|run| run.run_id)
    }

    /// The same, for a run that is put together piece by piece. With a [key](NewRun::key) that was used, nothing is opened or
    /// changed, whatever else is given.
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
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::trigger_with`]; [`Error::InvalidTask`] if the key is empty, has more than 200 bytes, or holds control
    /// characters.
    pub fn trigger_run(&self, run: NewRun) -> Result<Triggered> {
        let NewRun { task: name, payload, key } = run;
        let unfit = |error| Error::invalid_task("payload", error, "a value that JSON can hold");
        let payload = payload.transpose().map_err(unfit)?;
        payload.as_deref().map(check_payload).transpose()?;
        key.as_deref().map(|key| check_text("request_key", key)).transpose()?;
        let now = self.now();
        self.write("trigger a task", |tx, schedules| {
            let mut task = tasks::expect(tx, &name)?;
            if let Some(key) = &key
                && let Some(run_id) = manual::requested(tx, task.id, key)?
            {
                return Ok(Triggered { run_id, is_new: false });
            }
            if task.definition.schedule_type == ScheduleKind::Delay {
                // Its schedule is about to wait for this run: what is due is resolved before.
                task = tasks::resolve_before_a_change(tx, schedules, task, now)?;
            }
            if task.status == TaskStatus::Invalid {
                let reason = task.invalid_reason.unwrap_or_default();
                let request = format!("trigger task {name:?}");
                return Err(Error::Refused { request, reason: format!("it is invalid: {reason}") }.into());
            }
            let payload = payload.as_deref();
            let asked = Request { origin: Origin::Manual, payload, retry_of: None, key: key.as_deref() };
            Ok(Triggered { run_id: manual::open(tx, &task, asked, now)?, is_new: true })
        })
    }
}
