#![doc = include_str!("../docs/testing-your-tasks.md")]

mod advance;
mod finish;
mod looped;
#[cfg(feature = "tokio")]
mod on_thread;
mod options;
mod restart;
mod tools;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;

pub use crate::clock::ManualClock;
#[doc(hidden)]
pub use crate::engine::loop_state::Order as LoopOrder;
#[doc(hidden)]
pub use looped::{Arrival, LoopLane, LoopStep, LoopTurn, Looped};
pub use tools::{clock_change_after, fail_first, local_time};

use crate::client::Client;
use crate::clock::{Clock, Now, Timestamp};
use crate::engine::poller::{Parts, Poller};
use crate::error::{BoxError, Error, Result};
use crate::host::attempt_slots::Place;
use crate::host::owner_lock;
use crate::model::event::{Event, Observer};
use crate::model::finished::Finished;
use crate::model::run::Claim;
use crate::model::settings::Settings;
use crate::schedule::Zone;
use crate::store::Store;
use crate::store::place;
use crate::store::sqlite::connection::Prepare;
use crate::store::sqlite::file::{Durability, Missing};
use crate::store::turn_io::Slots;
use crate::text::database_name::shown;
use crate::worker::backoff::FailedAttempt;
use crate::worker::connection::{ConnectionSettings, WorkerConnection, WorkerQueue};
use crate::worker::handler::{Context, Handler, Handlers};
#[cfg(feature = "tokio")]
use crate::worker::job::{AsyncJob, future_handler};
use crate::worker::job::{Job, JobHandler};
#[cfg(feature = "tokio")]
use on_thread::{OnThread, SharedRuntime};

/// A scheduler without threads, for tests.
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{Context, NewTask, Outcome, RunStatus};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let mut stepper = Stepper::builder(&file, "2027-03-14T12:59:00Z".parse()?).accept("post").start()?;
/// stepper.client().add(NewTask::cron("carousel", "0 13 * * *").handler("post"))?;
/// assert!(stepper.step()?.is_empty(), "not due yet");
///
/// stepper.clock().set_wall("2027-03-14T13:00:00Z".parse()?);
/// let claims = stepper.step()?;
/// assert_eq!(claims.len(), 1);
/// // It takes five minutes; a poll every minute sees nothing due meanwhile.
/// for _ in 0..5 {
///     stepper.clock().advance(std::time::Duration::from_secs(60));
///     assert!(stepper.step()?.is_empty());
/// }
/// stepper.finish(&claims[0], Outcome::succeeded());
/// stepper.step()?;
/// let runs = stepper.client().history("carousel", 10)?;
/// assert_eq!((runs.len(), runs[0].status), (1, RunStatus::Succeeded));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Stepper {
    poller: Poller,
    clock: ManualClock,
    /// The clock, or the server's time.
    time: Time,
    client: Client,
    handlers: Handlers,
    connection: Arc<Mutex<WorkerConnection>>,
    workers: usize,
    running: Vec<Arc<Claim>>,
    /// Attempts among them that have begun: their slots, and when they began.
    begun: HashMap<(i64, u32), (Place, Now)>,
    finished: Vec<Finished>,
    stopped: Vec<i64>,
    wake_at: Duration,
    /// When there is more to do than to poll and to write heartbeats; `None` if those matter.
    quiet_until: Option<Duration>,
    /// What a restart begins with.
    again: StepperBuilder,
}

/// Configures and starts a [`Stepper`].
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{Error, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let mut stepper = Stepper::builder(&file, noon).workers(1).accept("post").start()?;
/// // A task of which no handler is registered: another scheduler may have it, and its run waits.
/// stepper.client().add(NewTask::once("mail", noon).handler("mail"))?;
/// assert!(stepper.step()?.is_empty());
/// let twice = Stepper::builder(&file, noon).accept("post").accept("post").start();
/// assert!(matches!(twice, Err(Error::InvalidConfig { field: "handler", .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing happens until it is started"]
pub struct StepperBuilder {
    path: PathBuf,
    clock: ManualClock,
    handlers: Handlers,
    settings: Settings,
    seed: Option<u64>,
    busy_timeout: Option<Duration>,
    observers: Vec<Arc<dyn Observer>>,
    prepare: Option<Arc<Prepare>>,
    client: Option<Client>,
    after: Option<Crashed>,
    #[cfg(feature = "postgres")]
    state: Option<PathBuf>,
    #[cfg(feature = "postgres")]
    follows_server: bool,
    #[cfg(feature = "tokio")]
    runtime: SharedRuntime,
}

/// The source of the time of day. A `dyn Clock` has no `Debug`.
struct Time(Arc<dyn Clock>);

impl std::fmt::Debug for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Time").field(&self.0.now()).finish()
    }
}

/// The connection of a stepper that has crashed. See [`StepperBuilder::after`].
///
/// ```
/// use duly::testing::Stepper;
/// use duly::NewTask;
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let mut stepper = Stepper::builder(&file, noon).accept("post").start()?;
/// stepper.client().add(NewTask::once("post", noon).handler("post"))?;
/// let lost = stepper.step()?[0].run_id;
/// let crashed = stepper.crash();
/// // The next owner has other handlers, as a new version of the application.
/// let mut next = Stepper::builder(&file, noon).accept("post").accept("mail").after(crashed).start()?;
/// let run = next.run_until_over(lost, std::time::Duration::from_secs(60))?;
/// assert_eq!(run.attempt, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Crashed(Box<dyn Store>);

/// Shows the database, the names of the handlers and the settings.
impl std::fmt::Debug for StepperBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepperBuilder")
            .field("path", &shown(&self.path))
            .field("handlers", &self.handlers)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl StepperBuilder {
    /// Claims runs of this handler; the test decides how they end, with [`Stepper::finish`].
    pub fn accept(self, name: impl Into<String>) -> Self {
        self.handler(name, |_: &Context| Ok::<_, Error>(()))
    }

    /// Registers a handler, for [`Stepper::run_until`].
    pub fn handler(mut self, name: impl Into<String>, handler: impl Handler) -> Self {
        self.handlers.add(name.into(), Arc::new(handler));
        self
    }

    /// As [`Builder::job`](crate::Builder::job), for [`Stepper::run_until`].
    pub fn job<J: Job>(self, job: J) -> Self {
        self.handler(J::NAME, JobHandler(job))
    }

    /// As [`Builder::backoff`](crate::Builder::backoff).
    pub fn backoff(
        mut self,
        handler: impl Into<String>,
        backoff: impl Fn(&FailedAttempt<'_>) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.handlers.add_backoff(handler.into(), Arc::new(backoff));
        self
    }

    /// Registers an async handler, for [`Stepper::run_until`] as well. Its future is run to its end when it is called, on the
    /// thread of the test, so the test itself must not be async. What it spawns runs meanwhile. Requests to stop do not reach it.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{BoxError, Context, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon)
    ///     .async_handler("mail", |run: Context| async move {
    ///         run.effect_async("send", || async { Ok::<_, BoxError>("accepted".to_owned()) }).await
    ///     })
    ///     .start()?;
    /// stepper.client().add(NewTask::once("mail", noon).handler("mail"))?;
    /// stepper.run_until_idle(std::time::Duration::from_secs(60))?;
    /// assert_eq!(stepper.client().history("mail", 1)?[0].status, RunStatus::Succeeded);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn async_handler<F, R, T, E>(self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
        T: serde::Serialize + 'static,
        E: Into<BoxError> + 'static,
    {
        let runtime = self.runtime.clone();
        self.handler(name, move |run: &Context| on_thread::block_on(&runtime, handler(run.clone())).map_err(Into::into))
    }

    /// As [`Builder::async_job`](crate::Builder::async_job); its attempts run as those of [`StepperBuilder::async_handler`].
    #[cfg(feature = "tokio")]
    pub fn async_job<J: AsyncJob>(self, job: J) -> Self {
        let (runtime, handler) = (self.runtime.clone(), future_handler(job));
        self.handler(J::NAME, OnThread { runtime, handler })
    }

    /// As [`Builder::on_connect`](crate::Builder::on_connect).
    pub fn on_connect(mut self, prepare: impl Fn(&Connection) -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        self.prepare = Some(Arc::new(prepare));
        self
    }

    /// Returns the same configuration, for an owner that starts later.
    fn copy(&self) -> Self {
        StepperBuilder {
            path: self.path.clone(),
            clock: self.clock.clone(),
            handlers: self.handlers.clone(),
            settings: self.settings,
            // Another seed, or it would draw the same id.
            seed: self.seed.map(|seed| seed.wrapping_add(1)),
            busy_timeout: self.busy_timeout,
            observers: self.observers.clone(),
            prepare: self.prepare.clone(),
            client: None,
            after: None,
            #[cfg(feature = "postgres")]
            state: self.state.clone(),
            #[cfg(feature = "postgres")]
            follows_server: self.follows_server,
            #[cfg(feature = "tokio")]
            runtime: self.runtime.clone(),
        }
    }

    /// Opens the file, and registers an owner. The first step recovers what dead owners left.
    ///
    /// # Errors
    /// As [`Builder::start`](crate::Builder::start).
    pub fn start(self) -> Result<Stepper> {
        let again = self.copy();
        #[cfg(feature = "postgres")]
        let (state, follows_server) = (self.state.clone(), self.follows_server);
        let StepperBuilder { path, clock, handlers, settings, seed, .. } = self;
        let StepperBuilder { busy_timeout, observers, prepare, client, after, .. } = self;
        handlers.check()?;
        let time: Arc<dyn Clock> = Arc::new(clock.clone());
        #[cfg_attr(not(feature = "postgres"), expect(unused_mut, reason = "only a server has settings"))]
        let mut place = place::Place::of(&path)?;
        #[cfg(feature = "postgres")]
        place.keep_state_in(state);
        // By default the time is the test's, also on a server.
        #[cfg(feature = "postgres")]
        let time = if follows_server { place.keep_time(time) } else { time };
        // Relaxed: the process of a test may die, its machine does not.
        let durability = Durability::MayRepeatAfterPowerLoss;
        let open = |missing| {
            let mut store = place.open(missing, durability)?;
            busy_timeout.map_or(Ok(()), |timeout| store.set_busy_timeout(timeout))?;
            Ok::<_, Error>(store)
        };
        let mut store = match after {
            Some(Crashed(mut store)) => {
                busy_timeout.map_or(Ok(()), |timeout| store.set_busy_timeout(timeout))?;
                if !place.holds(&mut *store) {
                    let reason = format!("expected a stepper of {place}, found one of another database");
                    return Err(Error::InvalidConfig { field: "after", reason });
                }
                place.set_time_of(&mut *store)?;
                store
            }
            None => open(Missing::Create)?,
        };
        let database = place.anchor(&mut *store)?;
        let file: Arc<Path> = database.as_path().into();
        let client = match client {
            Some(client) => client,
            None => Client::new(open(Missing::Refuse)?, time.clone(), None),
        };
        // Two steppers of one test that sets no seed must not draw the same id.
        let owner = owner_lock::new_owner(&mut fastrand::Rng::with_seed(seed.unwrap_or_else(|| fastrand::u64(..))));
        let (names, random) = (handlers.names(), fastrand::Rng::with_seed(seed.unwrap_or_default()));
        let parts = Parts { store, database, owner, handlers: names, settings, observers, random };
        let mut poller = Poller::new(parts, time.now())?;
        let now = time.now();
        if !poller.is_behind(now) {
            let counted = client.store().counted_beyond(now.wall)?;
            poller.compare_clock(counted, now);
        }
        let client = client.observed_by(poller.observers());
        let workers = settings.workers;
        let open = place.opener(file.clone(), durability, prepare)?;
        let settings = ConnectionSettings { file, owner: poller.owner().into(), open, queue: WorkerQueue::new() };
        let connection = Arc::new(Mutex::new(WorkerConnection::new(settings)));
        let (running, finished, stopped) = (Vec::new(), Vec::new(), Vec::new());
        let (wake_at, quiet_until, begun) = (Duration::ZERO, None, HashMap::new());
        Ok(Stepper {
            poller,
            clock,
            time: Time(time),
            client,
            handlers,
            connection,
            workers,
            running,
            begun,
            finished,
            stopped,
            wake_at,
            quiet_until,
            again,
        })
    }
}

impl Stepper {
    /// Begins to configure a stepper for this file, or for this address of a database on a server, at this time.
    pub fn builder(path: impl AsRef<Path>, at: Timestamp) -> StepperBuilder {
        StepperBuilder {
            path: path.as_ref().to_owned(),
            clock: ManualClock::new(at),
            handlers: Handlers::default(),
            settings: Settings::default(),
            seed: None,
            busy_timeout: None,
            observers: Vec::new(),
            prepare: None,
            client: None,
            after: None,
            #[cfg(feature = "postgres")]
            state: None,
            #[cfg(feature = "postgres")]
            follows_server: false,
            #[cfg(feature = "tokio")]
            runtime: Arc::default(),
        }
    }

    /// Returns the clock.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Returns the current time as this scheduler sees it: that of its clock, or of the server.
    pub fn now(&self) -> Now {
        self.time.0.now()
    }

    /// Returns a client of the same file, on the same clock.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Takes one turn: records finished attempts, resolves what is due, claims what may start. Returns the claims, whose
    /// attempts have begun: after a [crash](Stepper::crash) they are lost. Calls no handler.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{NewTask, Outcome};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("post").start()?;
    /// stepper.client().add(NewTask::once("post", noon).handler("post"))?;
    /// let claims = stepper.step()?;
    /// assert!(stepper.step()?.is_empty(), "it is running");
    /// stepper.finish(&claims[0], Outcome::failed("no route to host"));
    /// stepper.step()?;
    /// assert_eq!(stepper.client().run(claims[0].run_id)?.map(|run| run.status), Some(duly::RunStatus::Failed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As a running scheduler: only if the file was removed or replaced, or is corrupt.
    pub fn step(&mut self) -> Result<Vec<Arc<Claim>>> {
        self.step_ahead(0)
    }

    /// As [`Stepper::step`], but reads ahead: claims up to `ahead` runs more than workers are free. These attempts have not
    /// begun: after a crash they do not count. [`Stepper::begin`], or their end, begins them.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{NewTask, RetryPolicy};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).workers(1).accept("post").start()?;
    /// let once = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
    /// stepper.client().add(NewTask::once("first", noon).handler("post"))?;
    /// stepper.client().add(NewTask::once("second", noon).handler("post").retry(once))?;
    /// // What may start only once is never read ahead.
    /// assert_eq!(stepper.step_ahead(1)?.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stepper::step`].
    pub fn step_ahead(&mut self, ahead: usize) -> Result<Vec<Arc<Claim>>> {
        let claims = self.claim(ahead)?;
        claims.iter().filter(|claim| !claim.read_ahead).for_each(|claim| self.begin(claim));
        Ok(claims)
    }

    /// As [`Stepper::step_ahead`], but begins no attempt, as if no worker had taken one yet.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("post").start()?;
    /// stepper.client().add(NewTask::once("first", noon).handler("post").at_most_once())?;
    /// let claims = stepper.claim(0)?;
    /// stepper.crash();
    /// // It may start only once, and did not: the next scheduler starts it.
    /// let mut next = Stepper::builder(&file, noon).accept("post").start()?;
    /// assert_eq!(next.step()?[0].run_id, claims[0].run_id);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stepper::step`].
    pub fn claim(&mut self, ahead: usize) -> Result<Vec<Arc<Claim>>> {
        let idle = self.workers.saturating_sub(self.running.len());
        self.turn(Some(Slots { room: idle + ahead, idle }))
    }

    /// Begins a claimed attempt, as a worker does before it calls the handler. Does nothing if it has begun.
    ///
    /// # Panics
    /// If the owner's lock file cannot be written.
    #[expect(clippy::expect_used, reason = "a test without a lock file proves nothing")]
    pub fn begin(&mut self, claim: &Arc<Claim>) {
        let now = self.now();
        if let Entry::Vacant(entry) = self.begun.entry((claim.run_id, claim.attempt)) {
            let begun = self.poller.lock().begin(claim.identified(), claim.owner.as_deref());
            entry.insert((begun.expect("a lock file that can be written"), now));
            self.poller.emit(&Event::Started { claim: claim.clone() });
        }
    }

    /// Takes a turn as a draining scheduler does: records finished attempts and extends leases. Resolves, skips, cancels and
    /// claims nothing.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{NewTask, Outcome, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let (file, noon) = (home.path().join("agent.db"), "2027-03-14T12:00:00Z".parse()?);
    /// let mut stepper = Stepper::builder(&file, noon).accept("post").start()?;
    /// stepper.client().add(NewTask::interval("post", std::time::Duration::from_secs(60)).handler("post"))?;
    /// stepper.client().trigger("post")?;
    /// let claims = stepper.step()?;
    /// stepper.finish(&claims[0], Outcome::succeeded());
    /// stepper.clock().advance(std::time::Duration::from_secs(60));
    /// stepper.settle()?;
    /// // The outcome is recorded; the occurrence that is due is left to the next scheduler.
    /// let runs = stepper.client().history("post", 10)?;
    /// assert_eq!((runs.len(), runs[0].status), (1, RunStatus::Succeeded));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stepper::step`].
    pub fn settle(&mut self) -> Result<()> {
        self.turn(None).map(|_| ())
    }

    fn turn(&mut self, slots: Option<Slots>) -> Result<Vec<Arc<Claim>>> {
        let finished = std::mem::take(&mut self.finished);
        let now = self.now();
        let turn = self.poller.turn(now, finished, slots)?;
        self.running.extend(turn.claims.iter().cloned());
        self.stopped.extend(turn.stop);
        self.wake_at = turn.wake_at;
        self.quiet_until = slots.and_then(|slots| self.poller.quiet_until(now, slots));
        Ok(turn.claims)
    }

    /// Returns the attempts that were claimed and are not finished.
    pub fn running(&self) -> &[Arc<Claim>] {
        &self.running
    }

    /// Returns the runs whose handler would have been asked to stop, so far.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::NewTask;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("post").start()?;
    /// stepper.client().add(NewTask::once("post", noon).handler("post"))?;
    /// let run = stepper.step()?[0].run_id;
    /// stepper.client().cancel(run)?;
    /// assert!(stepper.stopped().is_empty(), "the scheduler learns of it at its next turn");
    /// stepper.step()?;
    /// assert_eq!(stepper.stopped(), [run]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stopped(&self) -> &[i64] {
        &self.stopped
    }

    /// Returns how long the scheduler would sleep now.
    pub fn sleeps(&self) -> Duration {
        self.wake_at.saturating_sub(self.now().monotonic)
    }

    /// Returns how many write transactions were begun so far.
    pub fn transactions(&self) -> u64 {
        self.poller.transactions()
    }

    /// Returns the id of this owner.
    pub fn owner(&self) -> &str {
        self.poller.owner()
    }

    /// Returns when each run of a task began that has begun, oldest first, as local times of the zone:
    /// `2027-03-28T03:00:00+02:00`.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{BoxError, Context, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let handler = |_: &Context| Ok::<_, BoxError>(());
    /// let mut stepper = Stepper::builder(&file, "2027-03-27T12:00:00Z".parse()?).handler("work", handler).start()?;
    /// stepper.client().add(NewTask::cron("nightly", "30 2 * * *").time_zone("Europe/Rome").handler("work"))?;
    /// stepper.run_until("2027-03-29T12:00:00Z".parse()?)?;
    /// // The first night has no 02:30.
    /// let starts = stepper.local_starts("nightly", "Europe/Rome")?;
    /// assert_eq!(starts, ["2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the zone is unknown, or the file cannot be read.
    pub fn local_starts(&self, task: &str, zone: &str) -> Result<Vec<String>> {
        let (zone, runs) = (Zone::named(zone)?, self.client.history(task, usize::MAX)?);
        Ok(runs.iter().rev().filter_map(|run| Some(zone.text_at(run.started_at?))).collect())
    }

    /// Ends like a process that is killed: writes nothing more, and the kernel frees the owner's lock.
    pub fn crash(self) -> Crashed {
        #[cfg_attr(not(feature = "postgres"), expect(unused_mut, reason = "only an owner on a server has a session"))]
        let mut store = self.poller.into_store();
        #[cfg(feature = "postgres")]
        drop(store.take_session());
        Crashed(store)
    }

    /// Shuts down. Runs that are claimed and not finished stay with this owner.
    ///
    /// # Errors
    /// As [`Stepper::step`].
    pub fn stop(mut self) -> Result<()> {
        self.poller.stop(self.now())
    }
}
