//! Requests that are recorded with who made them: of the status page, and of an [`Actor`].

use crate::client::Client;
use crate::client::runs::NewRun;
use crate::error::{Error, Result};
use crate::model::action::{ACTORS, Acted, Action, Target};
use crate::model::new_task::NewTask;
use crate::model::request::{Added, Existing, Triggered};
use crate::model::task::{Definition, check_text};

impl Client {
    /// Performs an action, and records it as an event that names `actor`, in one transaction. Returns the run that it opened.
    ///
    /// # Errors
    /// As [`Client::trigger`], [`Client::pause`], [`Client::resume`], [`Client::cancel`] or [`Client::retry`]. Then nothing is
    /// recorded.
    #[cfg(feature = "page")]
    pub(crate) fn act(&self, actor: &str, action: &Action) -> Result<Option<i64>> {
        self.acted(actor, action).map(|acted| acted.opened)
    }

    fn acted(&self, actor: &str, action: &Action) -> Result<Acted> {
        let mut acted = self.write(|store, now| store.act(actor, action, now))?;
        self.emit(&std::mem::take(&mut acted.events));
        Ok(acted)
    }

    /// Returns a client whose changes are recorded with who makes them: `name` is `mcp:` and the name of a client of the Model Context
    /// Protocol, as in `mcp:claude-code`, and `session` identifies one use.
    ///
    /// A task that it adds has the name in [`Definition::managed_by`]. Each change is an event of the kind `action`, in the transaction
    /// of the change; its detail is the name, `session`, the session, and the verb. [Retention](crate::Retention) removes completed
    /// one-time tasks, as it does those that were added by hand.
    ///
    /// ```
    /// use duly::{Client, EventFilter, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let agent = client.actor("mcp:claude-code", "7f3a")?;
    /// agent.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// assert_eq!(client.task("digest")?.and_then(|task| task.definition.managed_by).as_deref(), Some("mcp:claude-code"));
    /// agent.pause("digest")?;
    /// let event = &client.events(&EventFilter::newest(1))?[0];
    /// assert_eq!((event.kind.as_str(), event.detail.as_deref()), ("action", Some("mcp:claude-code session 7f3a: pause")));
    /// // Another name could be that of a manifest.
    /// assert!(client.actor("tasks.toml", "7f3a").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidTask`] if the name is not `mcp:` and 1 to 100 letters, digits or `. _ -`, or if the session is empty, has control
    /// characters or more than 200 bytes.
    pub fn actor(&self, name: &str, session: &str) -> Result<Actor> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_name = |name: &str| (1..=100).contains(&name.len()) && name.chars().all(allowed);
        if !name.strip_prefix(ACTORS).is_some_and(is_name) {
            let expected = "mcp: and 1 to 100 letters, digits or . _ -";
            return Err(Error::invalid_task("managed_by", name, expected));
        }
        check_text("session", session)?;
        Ok(Actor { client: self.clone(), name: name.to_owned(), recorded: format!("{name} session {session}") })
    }
}

/// Changes tasks, and records each change with who makes it: see [`Client::actor`].
///
/// ```
/// use duly::{Client, NewRun, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("export").handler("export"))?;
/// let agent = client.actor("mcp:claude-code", "7f3a")?;
/// let run = agent.trigger_run(NewRun::of("export").payload(17))?.run_id;
/// agent.cancel(run)?;
/// // What was not added by an actor is not replaced.
/// assert!(agent.replace(NewTask::cron("export", "@daily").handler("export")).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Actor {
    client: Client,
    name: String,
    recorded: String,
}

impl Actor {
    /// Returns the name, which the tasks that it adds have in [`Definition::managed_by`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a task as [`Client::add`] does. Idempotent: what is stored already is not changed, and keeps who added it.
    ///
    /// # Errors
    /// As [`Client::add`].
    pub fn add(&self, task: NewTask) -> Result<Added> {
        let existing = Existing::refuse(&task);
        self.put(task, existing)
    }

    /// Adds a task, or changes the task of its name as [`Client::replace`] does.
    ///
    /// # Errors
    /// As [`Client::replace`]; [`Error::Refused`] if the task was added by hand or by a manifest.
    pub fn replace(&self, task: NewTask) -> Result<Added> {
        self.put(task, Existing::Replace)
    }

    fn put(&self, task: NewTask, existing: Existing) -> Result<Added> {
        let definition = task.into_definition(self.client.now())?;
        let task = Box::new(Definition { managed_by: Some(self.name.clone()), ..definition });
        let added = self.act(&Action::Add { task, existing })?.added;
        added.ok_or_else(|| unanswered("add a task"))
    }

    /// Removes a task as [`Client::remove`] does.
    ///
    /// # Errors
    /// As [`Client::remove`]; [`Error::Refused`] if the task was added by hand or by a manifest.
    pub fn remove(&self, name: &str) -> Result<()> {
        let action = Action::Remove(self.target(name)?);
        while self.act(&action)?.is_part {
            self.client.rest(self.client.monotonic(), 1);
        }
        Ok(())
    }

    /// Opens a run as [`Client::trigger_run`] does.
    ///
    /// # Errors
    /// As [`Client::trigger_run`].
    pub fn trigger_run(&self, run: NewRun) -> Result<Triggered> {
        let (task, payload, key) = run.into_checked()?;
        let triggered = self.act(&Action::Trigger { on: self.target(&task)?, payload, key })?.triggered;
        triggered.ok_or_else(|| unanswered("trigger a task"))
    }

    /// Pauses a task as [`Client::pause`] does.
    ///
    /// # Errors
    /// As [`Client::pause`].
    pub fn pause(&self, name: &str) -> Result<()> {
        self.act(&Action::Pause(self.target(name)?)).map(|_| ())
    }

    /// Resumes a task as [`Client::resume`] does.
    ///
    /// # Errors
    /// As [`Client::resume`]; [`Error::Refused`] if a user, or duly, has paused it.
    pub fn resume(&self, name: &str) -> Result<()> {
        self.act(&Action::Resume(self.target(name)?)).map(|_| ())
    }

    /// Cancels a run as [`Client::cancel`] does.
    ///
    /// # Errors
    /// As [`Client::cancel`].
    pub fn cancel(&self, run: i64) -> Result<()> {
        self.act(&Action::Cancel(run)).map(|_| ())
    }

    /// Opens a run that retries a dead or cancelled one, as [`Client::retry`] does. Returns its id.
    ///
    /// # Errors
    /// As [`Client::retry`].
    pub fn retry(&self, run: i64) -> Result<i64> {
        self.act(&Action::Retry(run))?.opened.ok_or_else(|| unanswered("retry a run"))
    }

    fn act(&self, action: &Action) -> Result<Acted> {
        self.client.acted(&self.recorded, action)
    }

    fn target(&self, name: &str) -> Result<Target> {
        let task = self.client.task(name)?.ok_or_else(|| Error::UnknownTask { name: name.to_owned() })?;
        Ok(Target { task: name.to_owned(), id: Some(task.id) })
    }
}

/// A store that performs an action always says what became of it: this stands for a fault of the store.
fn unanswered(request: &str) -> Error {
    Error::Refused { request: request.to_owned(), reason: "the store gave no answer".to_owned() }
}
