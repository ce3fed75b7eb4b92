//! The door for those who add, change and look up tasks. It has a connection of its own, and no threads.

pub(crate) mod add;
pub(crate) mod apply;
pub(crate) mod backup;
pub(crate) mod cancel;
pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod outbox;
pub(crate) mod prune;
pub(crate) mod recent;
pub(crate) mod retry;
pub(crate) mod status;
pub(crate) mod trigger;
pub(crate) mod wake;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Transaction;

use crate::client::add::{Added, Existing, put};
use crate::client::wake::Wake;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::{Error, Result};
use crate::model::event::Observers;
use crate::model::new_task::NewTask;
use crate::model::run::{Attempt, Effect, Run, RunFilter};
use crate::model::task::Task;
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::add::Adder;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::effects::of_chain;
use crate::store::sqlite::file::{Durability, Missing};
use crate::store::sqlite::open::Written;
use crate::store::sqlite::{claim, due, history, owners, runs, tasks};

/// Most tasks that one look-up answers.
pub(crate) const MAX_LISTED: i64 = 1_000_000;

/// Adds, changes and looks up tasks in one file, beside whatever scheduler runs them. Cheap to clone.
///
/// ```
/// use duly::{Change, Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// let digest = || NewTask::cron("digest", "0 7 * * *").handler("digest").time_zone("Europe/Paris");
/// assert_eq!(client.add(digest())?.change, Change::Created);
/// // A name is an idempotency key: the same again changes nothing, another meaning is an error.
/// assert_eq!(client.add(digest())?.change, Change::Unchanged);
/// let error = client.add(digest().priority(0)).unwrap_err();
/// assert_eq!(error.to_string(), r#"task "digest" exists with another priority: stored "1", given "0""#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    store: Arc<Mutex<SqliteStore>>,
    clock: Arc<dyn Clock>,
    wake: Option<Wake>,
    /// Of the scheduler that it belongs to.
    observers: Option<Arc<Observers>>,
}

impl Client {
    /// Opens a database, and makes it if there is none.
    ///
    /// # Errors
    /// [`Error::UnusableDatabase`] if the file is not, or cannot become, a database of this version of duly.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let store = SqliteStore::open(path.as_ref(), Missing::Create, Durability::Full)?;
        Ok(Client::new(store, Arc::new(SystemClock::new()), None))
    }

    /// As [`Client::open`], but a file in which another program keeps tables of its own, and none of duly's are, is left as it
    /// is: for whoever is told the file by hand.
    ///
    /// # Errors
    /// As [`Client::open`]; and if the file is such a one.
    pub fn open_own(path: impl AsRef<Path>) -> Result<Self> {
        let store = SqliteStore::open(path.as_ref(), Missing::CreateAlone, Durability::Full)?;
        Ok(Client::new(store, Arc::new(SystemClock::new()), None))
    }

    /// Opens a database that is there.
    ///
    /// # Errors
    /// As [`Client::open`]; and if there is none, or the file has no tables of duly.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self> {
        let store = SqliteStore::open(path.as_ref(), Missing::Refuse, Durability::Full)?;
        Ok(Client::new(store, Arc::new(SystemClock::new()), None))
    }

    pub(crate) fn new(store: SqliteStore, clock: Arc<dyn Clock>, wake: Option<Wake>) -> Self {
        Client { store: Arc::new(Mutex::new(store)), clock, wake, observers: None }
    }

    /// The same client, as that of a scheduler with these observers.
    pub(crate) fn observed_by(self, observers: Arc<Observers>) -> Self {
        Client { observers: Some(observers), ..self }
    }

    /// Adds a task. If one of this name exists with the same meaning, nothing changes.
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`] or [`Error::InvalidTask`] if a field cannot be accepted; [`Error::TaskDiffers`] if a task
    /// of this name exists and is defined differently.
    pub fn add(&self, task: NewTask) -> Result<Added> {
        let existing = Existing::refuse(&task);
        self.put(task, existing)
    }

    /// Adds a task, or leaves the one that has its name as it is.
    ///
    /// # Errors
    /// As [`Client::add`], but for [`Error::TaskDiffers`].
    pub fn add_if_absent(&self, task: NewTask) -> Result<Added> {
        self.put(task, Existing::Keep)
    }

    /// Adds a task, or makes the one that has its name what is given. What is due is resolved first, under the old
    /// definition; a schedule with the same meaning is not moved. The history stays.
    ///
    /// # Errors
    /// As [`Client::add`], but for [`Error::TaskDiffers`].
    pub fn replace(&self, task: NewTask) -> Result<Added> {
        self.put(task, Existing::Replace)
    }

    /// Adds many tasks in one transaction, as [`Client::add`] does: all of them, or none.
    ///
    /// # Errors
    /// As [`Client::add`], for the first that cannot be added.
    pub fn add_all(&self, tasks: impl IntoIterator<Item = NewTask>) -> Result<Vec<Added>> {
        let now = self.now();
        let definition = |task: NewTask| Ok((Existing::refuse(&task), task.into_definition(now)?));
        let definitions: Vec<_> = tasks.into_iter().map(definition).collect::<Result<_>>()?;
        let added: Vec<Added> = self.write_unheard("add tasks", |tx, schedules| {
            let mut adder = Adder::new(tx)?;
            let put = |(existing, task)| put(tx, &mut adder, schedules, task, existing, now);
            definitions.into_iter().map(put).collect()
        })?;
        self.wake_for(&added);
        Ok(added)
    }

    /// Has the scheduler that this client belongs to look at once at what was written beside it. It only hastens: within a
    /// poll interval it would have looked by itself.
    pub fn wake(&self) {
        let _ = self.wake.as_ref().map(Wake::now);
    }

    fn put(&self, task: NewTask, existing: Existing) -> Result<Added> {
        let now = self.now();
        let task = task.into_definition(now)?;
        self.check_clock()?;
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let added = add::add(&mut store, task, existing, now)?;
        drop(store);
        self.wake_for(std::slice::from_ref(&added));
        Ok(added)
    }

    /// What is due later than the scheduler's next look at the file wakes nobody.
    fn wake_for(&self, added: &[Added]) {
        let _ = self.wake.as_ref().map(|wake| wake.for_added(added, self.now()));
    }

    /// Stops a task's schedule for a while. What is due is resolved first; runs that are running go on, those that wait
    /// for their turn wait on. A paused task stays as it is.
    ///
    /// # Errors
    /// [`Error::UnknownTask`]; [`Error::Refused`] if it is completed or invalid.
    pub fn pause(&self, name: &str) -> Result<()> {
        let now = self.now();
        self.write("pause a task", |tx, schedules| tasks::pause(tx, schedules, name, None, now))
    }

    /// Lets a paused task's schedule count again, from now: what fell meanwhile is neither run nor missed, but for a
    /// `once` instant, which is met now. Its dead runs in a row are counted anew. An active task stays as it is.
    ///
    /// # Errors
    /// [`Error::UnknownTask`]; [`Error::Refused`] if it is completed or invalid.
    pub fn resume(&self, name: &str) -> Result<()> {
        let now = self.now();
        self.write("resume a task", |tx, schedules| tasks::resume(tx, schedules, name, now))
    }

    /// Removes a task with its whole history.
    ///
    /// # Errors
    /// [`Error::UnknownTask`]; [`Error::Refused`] while a run of it is running.
    pub fn remove(&self, name: &str) -> Result<()> {
        let now = self.now();
        self.write("remove a task", |tx, _| tasks::remove(tx, name, now))
    }

    /// Looks a task up.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn task(&self, name: &str) -> Result<Option<Task>> {
        self.read("look a task up", |tx, _| {
            Ok(tasks::by_name(tx, name)?.map(|task| history::with_last(tx, task)).transpose()?)
        })
    }

    /// All tasks, by name.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn tasks(&self) -> Result<Vec<Task>> {
        self.read("list tasks", |tx, _| {
            let tasks = tasks::all(tx, MAX_LISTED)?;
            Ok(tasks.into_iter().map(|task| history::with_last(tx, task)).collect::<Result<_, _>>()?)
        })
    }

    /// Looks a run up.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn run(&self, run: i64) -> Result<Option<Run>> {
        self.read("look a run up", |tx, _| Ok(history::run(tx, run)?))
    }

    /// The newest runs of a task, newest first.
    ///
    /// # Errors
    /// [`Error::UnknownTask`].
    pub fn history(&self, name: &str, limit: usize) -> Result<Vec<Run>> {
        self.runs(&RunFilter::newest(limit).of(name))
    }

    /// The newest runs of all tasks, newest first.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn newest_runs(&self, limit: usize) -> Result<Vec<Run>> {
        self.runs(&RunFilter::newest(limit))
    }

    /// The newest runs that a filter lets through, newest first.
    ///
    /// # Errors
    /// [`Error::UnknownTask`] if the filter names none that exists.
    pub fn runs(&self, filter: &RunFilter) -> Result<Vec<Run>> {
        self.read("read the history", |tx, _| {
            let task = filter.task.as_deref().map(|name| tasks::expect(tx, name)).transpose()?;
            Ok(history::newest(tx, task.map(|task| task.id), filter)?)
        })
    }

    /// The attempts of a run that did not simply succeed, oldest first.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn attempts(&self, run: i64) -> Result<Vec<Attempt>> {
        self.read("read the attempts", |tx, _| Ok(history::attempts(tx, run)?))
    }

    /// What a run has done once, or is in doubt about, and what the runs had that it retries; by key.
    ///
    /// # Errors
    /// [`Error::UnknownRun`].
    pub fn effects(&self, run: i64) -> Result<Vec<Effect>> {
        let now = self.now();
        self.read("read the effects", |tx, _| {
            let claim = runs::ending(tx, run, now)?.ok_or(Error::UnknownRun { id: run })?;
            Ok(of_chain(tx, claim.first_id())?)
        })
    }

    /// Whether nothing is left to do now for a scheduler with these handlers.
    pub(crate) fn is_idle(&self, handlers: &BTreeSet<String>) -> Result<bool> {
        let now = self.now();
        self.read("look what is left to do", |tx, _| {
            // What waits for a key, or for its turn, waits for one of these.
            let any = owners::any_running(tx)?
                || claim::next(tx, handlers)?.is_some()
                || !tasks::unplanned(tx, 1)?.is_empty()
                || due::next_due(tx)?.is_some_and(|at| at <= now);
            Ok(!any)
        })
    }

    /// The file, and how large it and its log are.
    pub(crate) fn sizes(&self) -> (PathBuf, u64, u64) {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, log) = store.sizes();
        (store.path().to_owned(), file, log)
    }

    /// The file, if it is still the one that is open.
    pub(crate) fn in_place(&self) -> Result<PathBuf> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.check_in_place().map_err(|fault| store.told(fault, "look at the database"))?;
        Ok(store.path().to_owned())
    }

    /// Has what is in the log stay there when this client closes the file: whoever looks writes nothing.
    pub(crate) fn leave_log(&self) -> Result<()> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).leave_log()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now().wall
    }

    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.now().monotonic
    }

    pub(crate) fn write<T>(
        &self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        let answer = self.write_unheard(doing, f)?;
        self.wake();
        Ok(answer)
    }

    /// As [`Client::write`], and reports the events that `f` has added to [`Written`] to the scheduler's observers, after the
    /// commit and on this thread.
    pub(crate) fn write_observed<T>(
        &self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Written) -> Result<T, Fault>,
    ) -> Result<T> {
        let mut written = Written::default();
        let answer = self.write(doing, |tx, _| f(tx, &mut written))?;
        if let Some(observers) = &self.observers {
            written.events.iter().for_each(|event| observers.tell(event));
        }
        Ok(answer)
    }

    /// The same, and wakes nobody.
    fn write_unheard<T>(
        &self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        self.check_clock()?;
        self.store.lock().unwrap_or_else(PoisonError::into_inner).write(doing, f)
    }

    /// No table takes the time of a clock that was never set.
    fn check_clock(&self) -> Result<()> {
        let now = self.now();
        if now >= Timestamp::MIN {
            return Ok(());
        }
        let reason = format!("the clock of this machine shows {now}: set it first");
        Err(Error::Refused { request: "change anything".into(), reason })
    }

    /// As [`Client::write`], but nothing stays written.
    pub(crate) fn rehearse<T>(
        &self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).rehearse(doing, f)
    }

    pub(crate) fn read<T>(
        &self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).read(doing, f)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
