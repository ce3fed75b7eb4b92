//! `Scheduler` runs tasks: handlers by name, settings, start, shutdown. It owns the threads.

mod ending;
mod idle;
#[cfg(feature = "postgres")]
mod on_server;
mod options;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use serde::Serialize;

use crate::client::Client;
use crate::client::wake::Wake;
#[cfg(feature = "postgres")]
use crate::clock::since_boot;
use crate::clock::{Clock, SystemClock};
use crate::engine::event_loop::EventLoop;
use crate::engine::lanes::Lanes;
use crate::engine::loop_state::{LoopState, Order};
use crate::engine::peers;
use crate::engine::poller::{Parts, Poller};
use crate::engine::told::Told;
use crate::error::{BoxError, Error, Result};
use crate::host::guard_lock::GuardPlace;
use crate::host::{folder, owner_lock};
use crate::model::ended::{Ending, Shutdown};
use crate::model::event::{Event, Observer};
use crate::model::settings::Settings;
use crate::model::vitals::Vitals;
#[cfg(feature = "page")]
use crate::page::{Page, Server};
use crate::store::place::Place;
use crate::store::sqlite::connection::Prepare;
use crate::store::sqlite::file::{Durability, Missing};
use crate::text::database_name::shown;
use crate::worker::backoff::FailedAttempt;
use crate::worker::connection::{ConnectionSettings, WorkerQueue};
use crate::worker::executor::{Executor, Waker};
use crate::worker::executor_lane;
#[cfg(feature = "postgres")]
use crate::worker::fence::OnLease;
#[cfg(feature = "tokio")]
use crate::worker::futures::Runtime;
use crate::worker::handed::HandedOver;
use crate::worker::handler::{Context, Handler, Handlers};
#[cfg(feature = "tokio")]
use crate::worker::handler::{FutureHandler, HandlerFuture, store_result};
#[cfg(feature = "tokio")]
use crate::worker::job::{AsyncJob, future_handler};
use crate::worker::job::{Job, JobHandler};
use crate::worker::pool::Pool;
use crate::worker::progress::Waiting;

/// Most problems that an application reports of its scheduler, and most characters of each.
const MAX_PROBLEMS: usize = 20;
const MAX_PROBLEM_CHARS: usize = 300;

/// Configures and starts a [`Scheduler`].
///
/// ```
/// use duly::{BoxError, Context, Error, Scheduler};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let greet = |_: &Context| Ok::<_, BoxError>("hello");
/// let builder = Scheduler::builder(&file).handler("greet", greet).workers(2);
/// // What is wrong is reported at the start, and no file is created.
/// let error = builder.handler("greet", greet).start().unwrap_err();
/// assert!(matches!(error, Error::InvalidConfig { field: "handler", .. }) && !file.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing runs until it is started"]
pub struct Builder {
    path: PathBuf,
    missing: Missing,
    handlers: Handlers,
    settings: Settings,
    durability: Durability,
    clock: Arc<dyn Clock>,
    observers: Vec<Arc<dyn Observer>>,
    prepare: Option<Arc<Prepare>>,
    #[cfg(feature = "postgres")]
    state: Option<PathBuf>,
    #[cfg(feature = "postgres")]
    on_lease: Option<Arc<OnLease>>,
    executors: Vec<Arc<dyn Executor>>,
    take_guard: Option<Box<dyn FnOnce(GuardPlace) + Send + Sync>>,
    #[cfg(feature = "page")]
    page: Option<Page>,
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Handle>,
    #[cfg(feature = "tokio")]
    async_limit: usize,
}

/// Async handlers at once, unless the builder sets another number.
#[cfg(feature = "tokio")]
const ASYNC_LIMIT: usize = 1000;

impl Builder {
    /// Registers a closure for tasks that name this handler. Its return value is stored as the run's result, as JSON of up to
    /// [`MAX_RESULT_BYTES`](crate::MAX_RESULT_BYTES). An error means retry, unless it is a [`Failure`](crate::Failure) that
    /// says otherwise.
    ///
    /// ```
    /// use duly::{BoxError, Context, NewTask, RunStatus, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let scheduler = Scheduler::builder(&file)
    ///     .handler("double", |run: &Context| Ok::<_, BoxError>(2 * run.payload::<i64>()?))
    ///     .start()?;
    /// scheduler.add(NewTask::manual("double").handler("double"))?;
    /// let (good, odd) = (scheduler.trigger_with("double", 21)?, scheduler.trigger_with("double", "x")?);
    /// # let over = |id| scheduler.run(id).map(|run| run.is_some_and(|run| run.status.is_final()));
    /// # while !(over(good)? && over(odd)?) { std::thread::yield_now() }
    /// assert_eq!(scheduler.run(good)?.and_then(|run| run.result).as_deref(), Some("42"));
    /// // A payload of another type: dead at once. Another error, or a panic, is retried.
    /// assert_eq!(scheduler.run(odd)?.map(|run| run.status), Some(RunStatus::Dead));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn handler<F, T, E>(self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(&Context) -> Result<T, E> + Send + Sync + 'static,
        T: Serialize + 'static,
        E: Into<BoxError> + 'static,
    {
        self.handler_type(name, handler)
    }

    /// Registers a [`Handler`] type.
    pub fn handler_type(mut self, name: impl Into<String>, handler: impl Handler) -> Self {
        self.handlers.add(name.into(), Arc::new(handler));
        self
    }

    /// Sets how long to wait after a failed attempt of this handler, instead of the backoff of the task: after an error, a panic or an
    /// exceeded time limit, while an attempt is left. `None`: the backoff of the task. A [`Failure`](crate::Failure) takes
    /// precedence, and an interruption waits the backoff of the task.
    ///
    /// The function is called on the thread of the attempt, outside of any transaction; keep it fast. If it panics, the error of the
    /// attempt says so, in its row and its event, and the backoff of the task applies. An attempt whose scheduler died is retried after the backoff of the task: the scheduler
    /// that recovers the run may not have this function.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{FailedAttempt, NewTask, testing::Stepper};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon: duly::Timestamp = "2027-03-14T12:00:00Z".parse()?;
    /// // One minute more after each failure; but a full disk is retried by the rule of the task.
    /// let linear = |failed: &FailedAttempt<'_>| {
    ///     (!failed.error.contains("disk")).then(|| Duration::from_secs(60) * failed.failures)
    /// };
    /// let builder = Stepper::builder(&file, noon).handler("mail", |_: &duly::Context| Err::<(), _>("no route to host"));
    /// let mut stepper = builder.backoff("mail", linear).start()?;
    /// let client = stepper.client().clone();
    /// client.add(NewTask::once("mail:anna", noon).handler("mail"))?;
    /// stepper.run_until(noon)?;
    /// assert_eq!(client.history("mail:anna", 1)?[0].run_at, noon + Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backoff(
        mut self,
        handler: impl Into<String>,
        backoff: impl Fn(&FailedAttempt<'_>) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.handlers.add_backoff(handler.into(), Arc::new(backoff));
        self
    }

    /// Registers a [`Job`] under its name.
    pub fn job<J: Job>(self, job: J) -> Self {
        self.handler_type(J::NAME, JobHandler(job))
    }

    /// Registers an async handler: each attempt is a future on the runtime of [`Builder::runtime`], and needs no thread of its
    /// own. Result and error are those of [`Builder::handler`], and so are panics, retries, time limits and requests to stop, with
    /// one difference: a future that has not returned ten seconds after the request to stop is dropped, and its attempt ends as
    /// timed out, cancelled or interrupted. What it has spawned is not ended.
    ///
    /// In an async handler use [`Context::cancelled`], [`Context::effect_async`] and [`Context::finish_async`]: the other forms
    /// block a thread of the runtime. If the runtime shuts down, the attempts on it fail, and the scheduler starts no more of them.
    ///
    /// ```
    /// use duly::{BoxError, Context, NewTask, RunStatus, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let scheduler = Scheduler::builder(&file)
    ///     .runtime(runtime.handle().clone())
    ///     .async_handler("greet", |run: Context| async move {
    ///         let name: String = run.payload()?;
    ///         tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    ///         Ok::<_, BoxError>(format!("hello {name}"))
    ///     })
    ///     .start()?;
    /// scheduler.add(NewTask::manual("greet").handler("greet").payload("world"))?;
    /// let run = scheduler.trigger("greet")?;
    /// # while !scheduler.run(run)?.unwrap().status.is_final() { std::thread::yield_now() }
    /// # assert_eq!(scheduler.run(run)?.unwrap().result.as_deref(), Some(r#""hello world""#));
    /// # assert_eq!(scheduler.run(run)?.unwrap().status, RunStatus::Succeeded);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn async_handler<F, R, T, E>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize + 'static,
        E: Into<BoxError> + 'static,
    {
        let boxed = move |context: Context| -> HandlerFuture {
            let future = handler(context);
            Box::pin(async move { store_result(future.await.map_err(Into::into)?) })
        };
        self.handlers.add_future(name.into(), FutureHandler { run: Arc::new(boxed), backoff: None });
        self
    }

    /// Registers an [`AsyncJob`] under its name. Its attempts run as those of [`Builder::async_handler`].
    #[cfg(feature = "tokio")]
    pub fn async_job<J: AsyncJob>(mut self, job: J) -> Self {
        self.handlers.add_future(J::NAME.to_owned(), future_handler(job));
        self
    }

    /// Returns the runtime of the async handlers and how many attempts may run on it; `None` without such a handler.
    #[cfg(feature = "tokio")]
    fn runtime_to_use(&self, wake: &Sender<()>) -> Result<Option<Runtime>> {
        let (Some(name), limit) = (self.handlers.future_names().into_iter().next(), self.async_limit) else {
            return Ok(None);
        };
        if !(1..=10_000).contains(&limit) {
            let reason = format!("expected 1 to 10000, found {limit}");
            return Err(Error::InvalidConfig { field: "async_limit", reason });
        }
        let missing = |_| {
            let reason = format!("expected a tokio runtime for the handler {name:?}: set it, or start within one");
            Error::InvalidConfig { field: "runtime", reason }
        };
        let handle = self.runtime.clone().map_or_else(tokio::runtime::Handle::try_current, Ok).map_err(missing)?;
        Ok(Some(Runtime { handle, limit, wake: wake.clone() }))
    }

    /// Opens the file, creates it if it is missing, recovers what a dead process left, and starts to run what is due.
    ///
    /// ```
    /// use duly::{Error, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// std::fs::write(&file, "no database")?;
    /// let error = Scheduler::builder(&file).start().unwrap_err();
    /// assert!(matches!(error, Error::UnusableDatabase { .. }));
    /// assert_eq!(std::fs::read(&file)?, b"no database", "it was not touched");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnusableDatabase`] if the file cannot be used, or if this process is root and the file belongs to another user;
    /// [`Error::InvalidConfig`] if a setting is out of range.
    pub fn start(self) -> Result<Scheduler> {
        let (wake, woken) = bounded(1);
        #[cfg(feature = "tokio")]
        let runtime = self.runtime_to_use(&wake);
        #[cfg(feature = "page")]
        let page = self.page.clone();
        #[cfg(feature = "postgres")]
        let (state, on_lease) = (self.state.clone(), self.on_lease.clone());
        let Builder {
            path,
            missing,
            handlers,
            settings,
            durability,
            clock,
            mut observers,
            prepare,
            executors,
            take_guard,
            ..
        } = self;
        handlers.check()?;
        settings.check()?;
        let mut place = Place::of(&path)?;
        #[cfg(feature = "postgres")]
        if let Place::Server(server) = &mut place {
            settings.check_on_server()?;
            server.require_primary();
            if state.is_some() {
                place.keep_state_in(state);
            }
        }
        let clock = place.keep_time(clock);
        let others = 0;
        #[cfg(feature = "tokio")]
        let runtime = runtime?;
        #[cfg(feature = "tokio")]
        let (others, handle) = runtime.as_ref().map_or((others, None), |one| (one.limit, Some(one.handle.clone())));
        let told = (!observers.is_empty()).then(|| Told::start(std::mem::take(&mut observers))).transpose()?;
        observers.extend(told.iter().map(|told| Arc::new(told.clone()) as Arc<dyn Observer>));
        #[cfg(feature = "page")]
        let page = page.map(|page| page.listen(&mut observers, &clock, &handlers.names())).transpose()?;
        observers.insert(0, Arc::new(|event: &Event| log::log!(event.level(), "{event}")));
        // Checked before the file is opened, and again with the owner's lock, which is taken when it is open.
        place.check_owner()?;
        let mut store = place.open(missing, durability)?;
        let mut own = place.open(Missing::Refuse, durability)?;
        if let Some(fault) = store.as_file().and_then(|file| folder::unsafe_parent(file.path())) {
            log::warn!("{fault}");
        }
        let file: Arc<Path> = place.anchor(&mut *store)?.into();
        let left = peers::remove_leftovers(&mut *own, &file, clock.now().wall)?;
        let mut random = fastrand::Rng::new();
        let (owner, names, database) = (owner_lock::new_owner(&mut random), handlers.names(), file.to_path_buf());
        let lanes = Lanes::new(names.difference(&handlers.future_names()).cloned().collect());
        let handler_names = names.clone();
        // Other processes see how many runs it takes at once.
        let registered = Settings { workers: settings.workers + others, ..settings };
        let parts = Parts { store, database, owner, handlers: handler_names, settings: registered, observers, random };
        let open = place.opener(file.clone(), durability, prepare)?;
        #[cfg(feature = "postgres")]
        let since = since_boot();
        #[cfg_attr(not(feature = "postgres"), expect(unused_mut))]
        let mut poller = Poller::new(parts, clock.now())?;
        let connections = ConnectionSettings { file, owner: poller.owner().into(), open, queue: WorkerQueue::new() };
        let (lock, observers) = (poller.lock(), poller.observers());
        // Before the first attempt.
        take_guard.into_iter().for_each(|take| take(GuardPlace::of(&lock)));
        let beside = others + executors.len() * executor_lane::MOST;
        let mut pool = Pool::start(settings.workers, beside, handlers, clock.clone(), lock, observers, connections)?;
        #[cfg(feature = "tokio")]
        runtime.into_iter().for_each(|runtime| pool.use_runtime(runtime));
        #[cfg(feature = "postgres")]
        let keeper = on_server::keep_alive(&mut poller, &pool, (settings.lease, since), on_lease, &wake)?;
        let waker = Waker::new(wake.clone(), &poller.lock());
        executors.iter().for_each(|executor| pool.use_executor(executor.clone(), waker.clone()));
        for worker in left {
            let waker = waker.clone();
            pool.end_worker(worker, move || waker.wake());
        }
        let problems: Arc<Mutex<Option<Vec<String>>>> = Arc::default();
        let (order, orders) = unbounded();
        let (report, reports) = bounded(1);
        let client = Client::new(own, clock.clone(), Some(Wake::new(wake.clone(), settings.poll)));
        let client = client.observed_by(poller.observers());
        let now = clock.now();
        let vitals = Arc::new(Vitals::new(now, settings.poll));
        let is_behind = poller.is_behind(now);
        #[cfg(feature = "page")]
        let page = match page {
            Some(page) => {
                let reader = place.open(Missing::Refuse, durability)?;
                Some(page.serve(reader, client.clone(), vitals.clone())?)
            }
            None => None,
        };
        let attempts = pool.attempts().handed_over();
        let event_loop = EventLoop {
            state: LoopState::new(lanes, settings.poll, now),
            poller,
            pool,
            clock,
            wake: wake.clone(),
            woken,
            orders,
            unfinished: report,
            vitals: vitals.clone(),
            taken: Vec::new(),
            reports: Waiting::default(),
            problems: problems.clone(),
            #[cfg(feature = "postgres")]
            keeper,
        };
        let ending = Ending::default();
        let of_thread = ending.clone();
        let thread = thread::Builder::new()
            .name("duly-poller".into())
            .spawn(move || of_thread.after(|| event_loop.run()))
            .map_err(|error| Error::store("start the poller thread", error))?;
        // It reads all tasks, and nothing that is due waits for it. Only a warning depends on it.
        if !is_behind {
            let (client, order) = (client.clone(), order.clone());
            aside(&place, move || {
                if let Ok(Some(newest)) = client.store().counted_beyond(now.wall) {
                    let _ = order.try_send(Order::CompareClock(newest));
                }
            });
        }
        Ok(Scheduler {
            client,
            order,
            reports,
            vitals,
            thread: Some(thread),
            ending,
            attempts,
            told,
            place,
            handlers: names,
            executors,
            wake,
            problems,
            #[cfg(feature = "tokio")]
            runtime: handle,
            #[cfg(feature = "page")]
            page,
        })
    }
}

/// Calls `f`, on a thread of its own if the database is on a server, which may not answer.
fn aside(place: &Place, f: impl FnOnce() + Send + 'static) {
    match place {
        Place::File(_) => f(),
        #[cfg(feature = "postgres")]
        Place::Server(_) => drop(thread::Builder::new().name("duly-clock".into()).spawn(f)),
    }
}

/// A running scheduler: it resolves what is due, claims it, and has its workers run it, until it is shut down or dropped. It is
/// also a [`Client`] of its file.
///
/// ```
/// use duly::{Context, NewTask, Scheduler};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let (sender, receiver) = std::sync::mpsc::channel();
/// let scheduler = Scheduler::builder(&file)
///     .handler("greet", move |run: &Context| sender.send(run.payload::<String>()?).map_err(duly::BoxError::from))
///     .start()?;
/// // An instant that has passed is due at once; a second `add` of the same name and meaning would change nothing.
/// scheduler.add(NewTask::once("greet:world", "2020-01-01T00:00:00Z".parse()?).handler("greet").payload("world"))?;
/// assert_eq!(receiver.recv()?, "world");
/// assert_eq!(scheduler.shutdown(std::time::Duration::from_secs(5))?.unfinished, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Fork without exec
/// Do not call `fork` without `exec` in a process that has a scheduler. The child has no threads and runs no handler, but it
/// inherits the open lock file of this owner: while the child lives, a scheduler that has died counts as alive, and its runs are
/// not recovered. Copies of the SQLite connections must not be used in the child either. Fork before the scheduler starts, or
/// start a program with [`std::process::Command`], which closes the file.
///
/// # Dropping
/// A scheduler that is dropped shuts down, and waits up to 30 seconds for its handlers. Within an async runtime, await
/// `shutdown_async` instead. On a runtime of one thread, async handlers cannot return while it is blocked: they are asked to stop as
/// soon as no closure and no attempt of an [`Executor`] runs, and the drop does not wait for them. A handler that drops its own scheduler
/// does not wait, either: the scheduler ends when its handlers have returned.
#[must_use = "a scheduler that is dropped shuts down"]
pub struct Scheduler {
    client: Client,
    order: Sender<Order>,
    reports: Receiver<Shutdown>,
    vitals: Arc<Vitals>,
    thread: Option<JoinHandle<Result<()>>>,
    ending: Ending,
    attempts: HandedOver,
    /// The observers of the application.
    told: Option<Told>,
    place: Place,
    handlers: BTreeSet<String>,
    executors: Vec<Arc<dyn Executor>>,
    wake: Sender<()>,
    problems: Arc<Mutex<Option<Vec<String>>>>,
    /// That of the async handlers.
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Handle>,
    #[cfg(feature = "page")]
    page: Option<Server>,
}

impl Scheduler {
    /// Begins to configure a scheduler for this file, or with the feature `postgres` for this address of a database on a server, as in
    /// `postgres://user@host/database?schema=duly`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder {
            path: path.as_ref().to_owned(),
            missing: Missing::Create,
            handlers: Handlers::default(),
            settings: Settings::default(),
            durability: Durability::default(),
            clock: Arc::new(SystemClock::new()),
            observers: Vec::new(),
            prepare: None,
            #[cfg(feature = "postgres")]
            state: None,
            #[cfg(feature = "postgres")]
            on_lease: None,
            executors: Vec::new(),
            take_guard: None,
            #[cfg(feature = "page")]
            page: None,
            #[cfg(feature = "tokio")]
            runtime: None,
            #[cfg(feature = "tokio")]
            async_limit: ASYNC_LIMIT,
        }
    }

    /// Returns a client of the same file, whose requests wake this scheduler unless its next look at the file comes in time.
    /// The client may outlive the scheduler.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Sets what is wrong with this scheduler, as its application finds, instead of what was set before: at most 20 problems, each
    /// of up to 300 characters; none if the list is empty. The next turn stores them, and while the scheduler is alive,
    /// [`Client::check`] reports each as [`ProblemKind::Worker`](crate::ProblemKind::Worker).
    ///
    /// ```
    /// use duly::{Limits, ProblemKind, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let scheduler = Scheduler::builder(&file).start()?;
    /// scheduler.set_problems(vec!["the mail server refuses the password".to_owned()]);
    /// # while scheduler.check(&Limits::default())?.is_empty() { std::thread::yield_now() }
    /// assert_eq!(scheduler.check(&Limits::default())?[0].kind, ProblemKind::Worker);
    /// // Repaired: an empty list.
    /// scheduler.set_problems(Vec::new());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_problems(&self, problems: Vec<String>) {
        let limited =
            problems.into_iter().take(MAX_PROBLEMS).map(|text| text.chars().take(MAX_PROBLEM_CHARS).collect());
        *self.problems.lock().unwrap_or_else(PoisonError::into_inner) = Some(limited.collect());
        let _ = self.wake.try_send(());
    }

    /// Returns whether it has stopped: after [`Scheduler::drain`] when no run was left, or by itself. [`Scheduler::shutdown`]
    /// returns why.
    ///
    /// ```
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let scheduler = duly::Scheduler::builder(&file).start()?;
    /// assert!(!scheduler.has_stopped());
    /// scheduler.drain();
    /// # while !scheduler.has_stopped() { std::thread::yield_now() }
    /// // Nothing was running. It cannot be started again: start another one.
    /// assert!(scheduler.has_stopped());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn has_stopped(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns how many turns its loop has ended. For a watchdog or a liveness probe, which compares two values: while the loop
    /// works, the number grows in every poll interval, also while the loop drains and while the database refuses writes. It does
    /// not grow while a turn is blocked: by a disk that does not answer, or for up to five seconds by the lock of another
    /// program; nor after the scheduler has stopped.
    pub fn turns(&self) -> u64 {
        self.vitals.turns()
    }

    /// Returns the address on which the page is served. `None` without [`Builder::page`].
    #[cfg(feature = "page")]
    pub fn page_address(&self) -> Option<std::net::SocketAddr> {
        self.page.as_ref().map(Server::address)
    }
}

impl Deref for Scheduler {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Shows the database, the names of the handlers and the settings.
impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("path", &shown(&self.path))
            .field("handlers", &self.handlers)
            .field("settings", &self.settings)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("path", &self.place.to_string()).finish_non_exhaustive()
    }
}
