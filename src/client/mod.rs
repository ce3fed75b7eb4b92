//! `Client`: adds, changes and looks up tasks. It has its own connection and no threads.

pub(crate) mod actions;
pub(crate) mod alarms;
pub(crate) mod apply;
#[cfg(feature = "tokio")]
pub(crate) mod async_client;
pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod details;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod limits;
pub(crate) mod matching;
pub(crate) mod migrate;
pub(crate) mod outbox;
pub(crate) mod prune;
pub(crate) mod runs;
#[cfg(feature = "postgres")]
pub(crate) mod server;
pub(crate) mod status;
#[cfg(feature = "page")]
pub(crate) mod task_pages;
#[cfg(feature = "page")]
pub(crate) mod views;
pub(crate) mod wake;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::client::wake::Wake;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::new_task::NewTask;
use crate::model::observers::Observers;
use crate::model::request::{Added, Existing};
use crate::model::run::{Attempt, Effect, Run, RunFilter};
use crate::model::task::Task;
use crate::rules::lock_pause::PAUSE;
use crate::store::Store;
use crate::store::place::Place;
use crate::store::sqlite::file::{Durability, Missing};
use crate::worker::job::JobKind;

const LOOK: &str = "look at the database";

/// Adds, changes and looks up tasks in one file, beside the schedulers that run them. Cheap to clone.
///
/// ```
/// use duly::{Change, Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// let digest = || NewTask::cron("digest", "0 7 * * *").handler("digest").time_zone("Europe/Paris");
/// assert_eq!(client.add(digest())?.change, Change::Created);
/// // A name is an idempotency key: adding the same task again changes nothing, another definition is an error.
/// assert_eq!(client.add(digest())?.change, Change::Unchanged);
/// let error = client.add(digest().priority(0)).unwrap_err();
/// assert_eq!(error.to_string(), r#"task "digest" exists with another priority: stored "1", given "0""#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    store: Arc<Mutex<Box<dyn Store>>>,
    clock: Arc<dyn Clock>,
    wake: Option<Wake>,
    /// Those of the scheduler that it belongs to.
    observers: Option<Arc<Observers>>,
}

impl Client {
    /// Opens a database, and creates it if it does not exist. With the feature `postgres`, the text may also be the address of a
    /// database on a server, as in `postgres://user@host/database?schema=duly`.
    ///
    /// ```
    /// use duly::{Client, Error};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// assert!(Client::open(&file)?.tasks()?.is_empty(), "a new file");
    /// let folder = home.path();
    /// assert!(matches!(Client::open(folder), Err(Error::UnusableDatabase { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnusableDatabase`] if the file is not, or cannot become, a database of this version of duly.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Client::open_if(path, Missing::Create)
    }

    /// As [`Client::open`], but leaves a file as it is that holds tables of another program and none of duly: for a path that a
    /// user typed.
    ///
    /// ```
    /// use duly::rusqlite::Connection;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// Connection::open(&file)?.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)")?;
    /// // A path with a typing error does not get tables of duly.
    /// assert!(duly::Client::open_own(&file).is_err());
    /// assert!(duly::Client::open(&file).is_ok(), "with intent");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::open`]; and for such a file.
    pub fn open_own(path: impl AsRef<Path>) -> Result<Self> {
        Client::open_if(path, Missing::CreateAlone)
    }

    /// Opens an existing database.
    ///
    /// ```
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// assert!(duly::Client::open_existing(&file).is_err());
    /// assert!(!file.exists(), "nothing was created");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::open`]; and if it does not exist, or the file has no tables of duly.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self> {
        Client::open_if(path, Missing::Refuse)
    }

    fn open_if(path: impl AsRef<Path>, missing: Missing) -> Result<Self> {
        let mut place = Place::of(path.as_ref())?;
        let clock = place.keep_time(Arc::new(SystemClock::new()));
        Ok(Client::new(place.open(missing, Durability::Full)?, clock, None))
    }

    pub(crate) fn new(store: Box<dyn Store>, clock: Arc<dyn Clock>, wake: Option<Wake>) -> Self {
        Client { store: Arc::new(Mutex::new(store)), clock, wake, observers: None }
    }

    /// Returns the same client, as that of a scheduler with these observers.
    pub(crate) fn observed_by(self, observers: Arc<Observers>) -> Self {
        Client { observers: Some(observers), ..self }
    }

    /// Adds a task. Idempotent: if a task of this name exists with the same definition, nothing changes.
    ///
    /// ```
    /// use duly::{Change, Client, Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let digest = |line: &str| NewTask::cron("digest", line).handler("digest");
    /// client.add(digest("0 7 * * *"))?;
    /// assert_eq!(client.add(digest("0 7 * * *"))?.change, Change::Unchanged);
    /// assert!(matches!(client.add(digest("0 8 * * *")), Err(Error::TaskDiffers { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`] or [`Error::InvalidTask`] if a field cannot be accepted; [`Error::TaskDiffers`] if a task
    /// of this name exists and is defined differently.
    pub fn add(&self, task: NewTask) -> Result<Added> {
        let existing = Existing::refuse(&task);
        self.put(task, existing)
    }

    /// Adds a task, or leaves the task of its name as it is.
    ///
    /// ```
    /// use duly::{Change, Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// // A user may have changed the time: the default does not undo that.
    /// let added = client.add_if_absent(NewTask::cron("digest", "0 8 * * *").handler("digest"))?;
    /// assert_eq!(added.change, Change::Unchanged);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::add`], except [`Error::TaskDiffers`].
    pub fn add_if_absent(&self, task: NewTask) -> Result<Added> {
        self.put(task, Existing::Keep)
    }

    /// Adds a task, or gives the task of its name this definition. What is due is resolved first, under the old
    /// definition; a schedule with the same meaning is not moved. The history stays.
    ///
    /// ```
    /// use duly::{Change, Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// let later = || NewTask::cron("digest", "0 8 * * *").handler("digest");
    /// assert_eq!(client.replace(later())?.change, Change::Replaced);
    /// assert_eq!(client.replace(later())?.change, Change::Unchanged);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::add`], except [`Error::TaskDiffers`].
    pub fn replace(&self, task: NewTask) -> Result<Added> {
        self.put(task, Existing::Replace)
    }

    /// Adds a task that runs a job once, as soon as possible, with a generated name. [`Job`](crate::Job) is its handler.
    ///
    /// ```
    /// use duly::{Client, JobKind};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Mail {
    ///     to: String,
    /// }
    ///
    /// struct SendMail;
    ///
    /// impl JobKind for SendMail {
    ///     const NAME: &'static str = "mail";
    ///     type Payload = Mail;
    /// }
    /// # let home = tempfile::tempdir()?;
    /// let client = Client::open(home.path().join("agent.db"))?;
    /// let mail = || Mail { to: "anna@example.org".to_owned() };
    /// // Each call adds a task of its own.
    /// let (first, second) = (client.enqueue::<SendMail>(&mail())?, client.enqueue::<SendMail>(&mail())?);
    /// assert_ne!(first.name, second.name);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidTask`] if JSON cannot hold the payload, or it is larger than
    /// [`MAX_PAYLOAD_BYTES`](crate::MAX_PAYLOAD_BYTES).
    pub fn enqueue<J: JobKind>(&self, payload: &J::Payload) -> Result<Added> {
        self.add(NewTask::enqueue(J::NAME, self.now()).payload(payload))
    }

    /// Adds tasks in one transaction, as [`Client::add`] does: all of them, or none.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let mails = ["anna", "bob", "not a name"];
    /// let tasks = mails.map(|name| NewTask::cron(name, "0 7 * * *").handler("mail"));
    /// assert!(client.add_all(tasks).is_err());
    /// assert!(client.tasks()?.is_empty(), "all of them, or none");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::add`], for the first task that cannot be added.
    pub fn add_all(&self, tasks: impl IntoIterator<Item = NewTask>) -> Result<Vec<Added>> {
        let now = self.now();
        let definition = |task: NewTask| {
            let existing = Existing::refuse(&task);
            Ok((task.into_definition(now)?, existing))
        };
        let tasks = tasks.into_iter().map(definition).collect::<Result<_>>()?;
        check_clock(now)?;
        let added = self.store().add_all(tasks, now)?;
        self.wake_for(&added);
        Ok(added)
    }

    /// Wakes the scheduler that this client belongs to, so that it sees at once what was written beside it. This only reduces
    /// latency: the scheduler sees it within its poll interval.
    pub fn wake(&self) {
        let _ = self.wake.as_ref().map(Wake::now);
        #[cfg(feature = "postgres")]
        self.store().notify();
    }

    fn put(&self, task: NewTask, existing: Existing) -> Result<Added> {
        let now = self.now();
        let task = task.into_definition(now)?;
        check_clock(now)?;
        let added = self.store().add(task, existing, now)?;
        self.wake_for(slice::from_ref(&added));
        Ok(added)
    }

    /// Wakes the scheduler, unless all of these tasks are due after its next poll.
    fn wake_for(&self, added: &[Added]) {
        let now = self.now();
        let _ = self.wake.as_ref().map(|wake| wake.for_added(added, now));
        #[cfg(feature = "postgres")]
        if wake::hastens(added, now, POLL) {
            self.store().notify();
        }
    }

    /// Pauses a task: its schedule does not count until it is resumed. What is due is resolved first. Running runs go on, and
    /// waiting runs wait until the task is resumed, except those that were triggered. Idempotent. A task that an [`Actor`](crate::Actor)
    /// paused is then paused by the user, and no actor resumes it.
    ///
    /// ```
    /// use duly::{Client, NewTask, TaskStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// client.pause("digest")?;
    /// client.pause("digest")?;
    /// let task = client.task("digest")?.ok_or("no task")?;
    /// assert_eq!((task.status, task.next_run), (TaskStatus::Paused, None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownTask`]; [`Error::Refused`] if it is completed or invalid.
    pub fn pause(&self, name: &str) -> Result<()> {
        self.write(|store, now| store.pause(name, now))
    }

    /// Resumes a paused task: its schedule counts again, from now. Occurrences of the pause are neither run nor missed, except a
    /// `once` instant, which is due now. The count of dead runs in a row begins again at zero. Idempotent.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{NewTask, Timestamp};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon: Timestamp = "2027-03-14T12:00:00Z".parse()?;
    /// let stepper = Stepper::builder(&file, noon).start()?;
    /// let client = stepper.client();
    /// client.add(NewTask::cron("hourly", "0 * * * *").handler("work"))?;
    /// client.pause("hourly")?;
    /// stepper.clock().set_wall("2027-03-14T15:30:00Z".parse()?);
    /// client.resume("hourly")?;
    /// // 13:00 to 15:00 are neither run nor missed.
    /// assert_eq!(client.task("hourly")?.and_then(|task| task.next_run), Some("2027-03-14T16:00:00Z".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownTask`]; [`Error::Refused`] if it is completed or invalid.
    pub fn resume(&self, name: &str) -> Result<()> {
        self.write(|store, now| store.resume(name, now))
    }

    /// Removes a task with its whole history. More than 500 runs are deleted in parts. The first part makes the task invalid, so that no
    /// run of it starts; if the removal is interrupted then, repeat it.
    ///
    /// ```
    /// use duly::{Client, Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("export").handler("export"))?;
    /// client.trigger("export")?;
    /// client.remove("export")?;
    /// assert!(client.newest_runs(1)?.is_empty(), "its runs are removed, too");
    /// assert!(matches!(client.remove("export"), Err(Error::UnknownTask { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownTask`]; [`Error::Refused`] while a run of it is running.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.remove_in_parts(name)
    }

    /// Returns the task of this name.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn task(&self, name: &str) -> Result<Option<Task>> {
        self.store().task(name)
    }

    /// Returns all tasks, by name. A task with a value that cannot be read, which another program has written, is invalid here, with
    /// the values of a new task and the reason in `invalid_reason`: it hides no other task.
    ///
    /// ```
    /// use duly::{Client, NewTask, TaskStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("export").handler("export"))?;
    /// let plain = duly::rusqlite::Connection::open(&file)?;
    /// plain.execute("UPDATE scheduled_tasks SET payload = '{', status = 'active'", []).unwrap_err();
    /// assert_eq!(client.tasks()?[0].status, TaskStatus::Active, "the tables refuse what is not JSON");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn tasks(&self) -> Result<Vec<Task>> {
        self.store().tasks()
    }

    /// Returns the run of this id.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn run(&self, run: i64) -> Result<Option<Run>> {
        self.store().run(run)
    }

    /// Returns the newest runs of a task, newest first.
    ///
    /// ```
    /// use duly::{Client, Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("export").handler("export"))?;
    /// let (_, newest) = (client.trigger("export")?, client.trigger("export")?);
    /// assert_eq!(client.history("export", 1)?[0].id, newest);
    /// assert!(matches!(client.history("exprot", 1), Err(Error::UnknownTask { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownTask`].
    pub fn history(&self, name: &str, limit: usize) -> Result<Vec<Run>> {
        self.runs(&RunFilter::newest(limit).of(name))
    }

    /// Returns the newest runs of all tasks, newest first.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn newest_runs(&self, limit: usize) -> Result<Vec<Run>> {
        self.runs(&RunFilter::newest(limit))
    }

    /// Returns the newest runs that match a filter, newest first.
    ///
    /// ```
    /// use duly::{Client, NewTask, RunFilter, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("export").handler("export"))?;
    /// client.cancel(client.trigger("export")?)?;
    /// assert_eq!(client.runs(&RunFilter::newest(20).status(RunStatus::Cancelled))?.len(), 1);
    /// assert!(client.runs(&RunFilter::newest(20).status(RunStatus::Dead))?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownTask`] if the filter names a task that does not exist.
    pub fn runs(&self, filter: &RunFilter) -> Result<Vec<Run>> {
        self.store().runs(filter)
    }

    /// Returns the attempts of a run that did not simply succeed, oldest first.
    ///
    /// ```
    /// use duly::testing::{Stepper, fail_first};
    /// use duly::{AttemptOutcome, Context, Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let work = fail_first(1, |_: &Context| Ok::<_, Error>(()));
    /// let mut stepper = Stepper::builder(&file, noon).handler("mail", work).start()?;
    /// stepper.client().add(NewTask::once("mail", noon).handler("mail"))?;
    /// stepper.run_until_idle(std::time::Duration::from_secs(60))?;
    /// let client = stepper.client();
    /// let attempts = client.attempts(client.history("mail", 1)?[0].id)?;
    /// // The second one succeeded, and has no row.
    /// assert_eq!((attempts.len(), attempts[0].outcome), (1, AttemptOutcome::Failed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn attempts(&self, run: i64) -> Result<Vec<Attempt>> {
        self.store().attempts(run)
    }

    /// Returns the effects of a run and of the runs that it retries, done or in doubt, by key.
    ///
    /// ```
    /// use duly::{Client, Error};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// assert!(matches!(client.effects(7), Err(Error::UnknownRun { id: 7 })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownRun`].
    pub fn effects(&self, run: i64) -> Result<Vec<Effect>> {
        self.store().effects(run, self.now())
    }

    /// Returns a number that changes whenever another connection has written the database: a caller that polls reads more only
    /// after a change. Reads no table.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let (client, other) = (Client::open(&file)?, Client::open(&file)?);
    /// let before = client.data_version()?;
    /// client.add(NewTask::manual("a").handler("work"))?;
    /// assert_eq!(client.data_version()?, before, "its own writes do not count");
    /// other.add(NewTask::manual("b").handler("work"))?;
    /// assert_ne!(client.data_version()?, before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnusableDatabase`] if the path no longer names the open file.
    pub fn data_version(&self) -> Result<i64> {
        let mut store = self.store();
        store.as_file().map_or(Ok(()), |file| file.check_in_place()).map_err(|fault| fault.into_error(LOOK))?;
        store.data_version()
    }

    /// Reports whether a scheduler with these handlers has nothing to do now.
    pub(crate) fn is_idle(&self, handlers: &BTreeSet<String>) -> Result<bool> {
        self.store().is_idle(handlers, self.now())
    }

    /// Returns the path of the file, if it still names the open file.
    pub(crate) fn path_in_place(&self) -> Result<PathBuf> {
        let refused = || Error::Refused { request: LOOK.into(), reason: "it is on a server, and not a file".into() };
        let mut store = self.store();
        let file = store.as_file().ok_or_else(refused)?;
        file.check_in_place().map_err(|fault| fault.into_error(LOOK))?;
        Ok(file.path().to_owned())
    }

    /// Returns the time by which requests are made: that of the server, if the database is on one, else of the machine or of the
    /// [`Clock`] of the scheduler.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let stepper = Stepper::builder(&file, noon).start()?;
    /// // The clock of the scheduler, and not the machine's.
    /// assert_eq!(stepper.client().now(), noon);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(&self) -> Timestamp {
        self.clock.now().wall
    }

    fn monotonic(&self) -> Duration {
        self.clock.now().monotonic
    }

    /// Rests between two transactions of many, for this many times as long as the last one took: the scheduler of another process looks only
    /// now and then whether the lock is free.
    fn rest(&self, began: Duration, times: u32) {
        thread::sleep((self.monotonic().saturating_sub(began) * times).min(PAUSE));
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Box<dyn Store>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the time, and wakes the scheduler if it succeeds.
    pub(crate) fn write<T>(&self, f: impl FnOnce(&mut dyn Store, Timestamp) -> Result<T>) -> Result<T> {
        let now = self.now();
        check_clock(now)?;
        let answer = f(&mut **self.store(), now)?;
        self.wake();
        Ok(answer)
    }

    /// Reports committed events to the observers of the scheduler, on this thread.
    pub(crate) fn emit(&self, events: &[Event]) {
        if let Some(observers) = &self.observers {
            events.iter().for_each(|event| observers.notify(event));
        }
    }
}

/// How often the schedulers on a server look for changes, as far as is known.
#[cfg(feature = "postgres")]
const POLL: Duration = Duration::from_secs(1);

/// Refuses a time before any that the tables accept: that of a clock that was never set.
fn check_clock(now: Timestamp) -> Result<()> {
    if now >= Timestamp::MIN {
        return Ok(());
    }
    let reason = format!("the clock of this machine shows {now}: set it first");
    Err(Error::Refused { request: "change anything".into(), reason })
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
