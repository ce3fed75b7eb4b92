//! Requests that are recorded with who made them: of the status page, and of an [`Actor`].

use crate::client::Client;
use crate::client::runs::NewRun;
use crate::error::{Error, Result};
use crate::model::action::{ACTORS, Acted, Action, By, Target, Trail};
use crate::model::new_task::NewTask;
use crate::model::recorded::EventFilter;
use crate::model::request::{Done, Existing, Triggered};
use crate::model::task::{Definition, Task, check_text};

impl Client {
    /// Performs an action, and records it as an event that names `actor`, in one transaction. Returns the run that it opened.
    ///
    /// # Errors
    /// As [`Client::trigger`], [`Client::pause`], [`Client::resume`], [`Client::cancel`] or [`Client::retry`]. Then nothing is
    /// recorded.
    #[cfg(feature = "page")]
    pub(crate) fn act(&self, actor: &str, action: &Action) -> Result<Option<i64>> {
        self.acted(By { name: actor, trail: None, rehearses: false }, action).map(|acted| acted.opened)
    }

    fn acted(&self, by: By<'_>, action: &Action) -> Result<Acted> {
        let mut acted = self.write(|store, now| store.act(by, action, now))?;
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
        let recorded = format!("{name} session {session}");
        Ok(Actor { client: self.clone(), name: name.to_owned(), recorded, trail: None, rehearses: false })
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
    trail: Option<Trail>,
    rehearses: bool,
}

impl Actor {
    /// Returns the name, which the tasks that it adds have in [`Definition::managed_by`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same actor, whose next change fails with [`Error::Overtaken`] if another action is recorded first: of an actor, or
    /// of a user of the status page. So a caller of several processes examines a limit and changes what it limits: it looks after this
    /// call, and begins again if it is overtaken. The change is compared in its own transaction.
    ///
    /// ```
    /// use duly::{Client, Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let (one, other) = (client.actor("mcp:one", "1")?.guarded()?, client.actor("mcp:other", "2")?.guarded()?);
    /// // Both find that there is no task yet.
    /// assert!(client.tasks()?.is_empty());
    /// one.add(NewTask::manual("a").handler("work"))?;
    /// assert!(matches!(other.add(NewTask::manual("b").handler("work")), Err(Error::Overtaken)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn guarded(&self) -> Result<Actor> {
        let newest = self.client.events(&EventFilter::newest(1).kind("action"))?;
        Ok(Actor { trail: Some(Trail(newest.first().map(|event| event.id))), ..self.clone() })
    }

    /// Returns the same actor, with a note that is recorded behind the session.
    ///
    /// # Errors
    /// [`Error::InvalidTask`] if the note is empty, has control characters or more than 200 bytes.
    pub fn noting(self, note: &str) -> Result<Actor> {
        check_text("note", note)?;
        Ok(Actor { recorded: format!("{}, {note}", self.recorded), ..self })
    }

    /// Returns the same actor, whose changes are examined and answered as ever, and then taken back. The id of a run that it would open is
    /// not that of a later one. Of a removal it says whether the actor may remove the task: a running run, which would prevent it, does
    /// not count.
    ///
    /// ```
    /// use duly::{Client, Done, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let agent = Client::open(&file)?.actor("mcp:claude-code", "7f3a")?;
    /// let digest = |line: &str| NewTask::cron("digest", line).handler("digest");
    /// agent.add(digest("0 7 * * *"))?;
    /// let (Done::Replaced { fields }, task) = agent.clone().rehearsing().replace(digest("0 8 * * *"))? else { panic!() };
    /// assert_eq!(fields, [("schedule_value", "0 7 * * *".to_owned(), "0 8 * * *".to_owned())]);
    /// assert_eq!(task.definition.schedule_value, "0 8 * * *");
    /// // It is as it was.
    /// assert_eq!(agent.add(digest("0 7 * * *"))?.0, Done::Unchanged);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rehearsing(self) -> Actor {
        Actor { rehearses: true, ..self }
    }

    /// Adds a task as [`Client::add`] does. Idempotent: what is stored already is not changed, and keeps who added it. Returns what was
    /// done, and the task as it is then.
    ///
    /// # Errors
    /// As [`Client::add`]; [`Error::Refused`] if a task that no actor added names it as one that follows, in `on_dead`, `on_success`,
    /// `on_end` or `on_missed`: its runs would have the output of that one.
    pub fn add(&self, task: NewTask) -> Result<(Done, Task)> {
        let existing = Existing::refuse(&task);
        self.put(task, existing)
    }

    /// Adds a task, or changes the task of its name as [`Client::replace`] does. Returns what was done, and the task as it is then.
    ///
    /// # Errors
    /// As [`Client::replace`] and [`Actor::add`]; [`Error::Refused`] if the task was added by hand or by a manifest, or if a user, or duly,
    /// has paused it.
    pub fn replace(&self, task: NewTask) -> Result<(Done, Task)> {
        self.put(task, Existing::Replace)
    }

    fn put(&self, task: NewTask, existing: Existing) -> Result<(Done, Task)> {
        let definition = task.into_definition(self.client.now())?;
        let task = Box::new(Definition { managed_by: Some(self.name.clone()), ..definition });
        let acted = self.act(&Action::Add { task, existing })?;
        acted.done.zip(acted.task).ok_or_else(|| unanswered("add a task"))
    }

    fn by(&self) -> By<'_> {
        By { name: &self.recorded, trail: self.trail, rehearses: self.rehearses }
    }

    /// Removes a task as [`Client::remove`] does.
    ///
    /// # Errors
    /// As [`Client::remove`]; [`Error::Refused`] if the task was added by hand or by a manifest, if a user, or duly, has paused it, or if
    /// a task that no actor added names it as one that follows.
    pub fn remove(&self, name: &str) -> Result<()> {
        let action = Action::Remove(self.target(name)?);
        let mut actor = self.clone();
        while actor.act(&action)?.is_part {
            // No run starts of what is left: it is removed whatever others do.
            actor.trail = None;
            self.client.rest(self.client.monotonic(), 1);
        }
        Ok(())
    }

    /// Opens a run as [`Client::trigger_run`] does.
    ///
    /// # Errors
    /// As [`Client::trigger_run`]; [`Error::Refused`] if a user, or duly, has paused the task.
    pub fn trigger_run(&self, run: NewRun) -> Result<Triggered> {
        let (task, payload, key) = run.into_checked()?;
        let triggered = self.act(&Action::Trigger { on: self.target(&task)?, payload, key })?.triggered;
        triggered.ok_or_else(|| unanswered("trigger a task"))
    }

    /// Pauses a task as [`Client::pause`] does. Returns the task as it is then.
    ///
    /// # Errors
    /// As [`Client::pause`].
    pub fn pause(&self, name: &str) -> Result<Task> {
        self.act(&Action::Pause(self.target(name)?))?.task.ok_or_else(|| unanswered("pause a task"))
    }

    /// Resumes a task as [`Client::resume`] does. Returns the task as it is then.
    ///
    /// # Errors
    /// As [`Client::resume`]; [`Error::Refused`] if a user, or duly, has paused it.
    pub fn resume(&self, name: &str) -> Result<Task> {
        self.act(&Action::Resume(self.target(name)?))?.task.ok_or_else(|| unanswered("resume a task"))
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
    /// As [`Client::retry`]; [`Error::Refused`] if a user, or duly, has paused the task.
    pub fn retry(&self, run: i64) -> Result<i64> {
        self.act(&Action::Retry(run))?.opened.ok_or_else(|| unanswered("retry a run"))
    }

    fn act(&self, action: &Action) -> Result<Acted> {
        match self.rehearses {
            true => self.client.store().act(self.by(), action, self.client.now()),
            false => self.client.acted(self.by(), action),
        }
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
