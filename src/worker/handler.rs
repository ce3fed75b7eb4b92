//! Handlers: closures or types of the application, by name; their context and their answers.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::{Clock, Now, Timestamp};
use crate::error::{BoxError, Error, Result, excerpt};
use crate::host::orphan::Orphan;
use crate::host::panics;
use crate::model::finished::Finished;
use crate::model::retry::Retry;
use crate::model::run::{Claim, Origin, Outcome};
use crate::model::task::MAX_DURATION;
use crate::model::task::check_text;
use crate::worker::attempt::{Link, Notice, Reported, StopFlag, StopReason, Tools};
use crate::worker::backoff::{Backoff, FailedAttempt};
use crate::worker::connection::WorkerConnection;
use crate::worker::failure::Failure;
use crate::worker::progress::LatestReports;

/// Most bytes that are kept of an attempt's progress.
pub const MAX_PROGRESS_BYTES: usize = 1024;

/// Runs attempts. Closures are handlers: `Fn(&Context) -> Result<T, E>` of any result that JSON can hold and any error.
///
/// A panic is a failed attempt, and its worker continues, also if the payload of the panic panics when it is dropped. If the
/// result or the error that a handler returned panics when it is dropped, that is logged, and the answer stands. Two panics end
/// the process, since Rust cannot catch them: one in a destructor that runs while another panic unwinds, and any in a program
/// that is built with `panic = "abort"`.
///
/// ```
/// use std::time::Duration;
/// use duly::testing::Stepper;
/// use duly::{BoxError, Context, Handler, NewTask, RunStatus};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// /// A type, because a closure has no default of the time limit.
/// struct Fetch;
///
/// impl Handler for Fetch {
///     fn run(&self, run: &Context) -> Result<Option<String>, BoxError> {
///         if run.wait_cancelled(Duration::from_secs(60)) { Err("too slow".into()) } else { Ok(None) }
///     }
///
///     fn default_timeout(&self) -> Option<Duration> {
///         Some(Duration::from_secs(10))
///     }
/// }
///
/// let mut stepper = Stepper::builder(&file, noon).handler("fetch", Fetch).start()?;
/// stepper.client().add(NewTask::once("feed", noon).handler("fetch").at_most_once())?;
/// stepper.run_until(noon)?;
/// let run = &stepper.client().history("feed", 1)?[0];
/// assert_eq!((run.status, run.duration), (RunStatus::Dead, Some(Duration::from_secs(10))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Runs one attempt, and returns its result as JSON.
    ///
    /// # Errors
    /// Any error means: retry after the task's backoff. A [`Failure`] can say otherwise.
    fn run(&self, context: &Context) -> Result<Option<String>, BoxError>;

    /// Ends a command that a dead scheduler started with this handler and that still runs: its run waits for it. Called on a
    /// thread of its own, and again at later heartbeats if the command still runs when it has returned. Does nothing by
    /// default.
    fn end_orphan(&self, orphan: &Orphan) {
        let _ = orphan;
    }

    /// The time limit of an attempt where the task sets none. `None`, or zero: no limit.
    fn default_timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns how long to wait after a failed attempt. `None`: the backoff of the task, which is the default. Called as the
    /// function of [`Builder::backoff`](crate::Builder::backoff), which replaces it.
    fn backoff(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
        let _ = failed;
        None
    }
}

impl<F, T, E> Handler for F
where
    F: Fn(&Context) -> Result<T, E> + Send + Sync + 'static,
    T: Serialize,
    E: Into<BoxError>,
{
    fn run(&self, context: &Context) -> Result<Option<String>, BoxError> {
        let result = self(context).map_err(Into::into)?;
        store_result(result)
    }
}

/// Returns what is stored of the value that a handler returned.
pub(crate) fn store_result(result: impl Serialize) -> Result<Option<String>, BoxError> {
    // The handler's work is done: another attempt would repeat it, and return the same.
    let stored =
        as_result(&result).map_err(|error| Failure::give_up(format!("what it returned cannot be stored: {error}")));
    panics::dispose("the result of a handler", result);
    Ok(stored?)
}

/// Returns what is stored of a handler's result.
pub(crate) fn as_result(returned: &impl Serialize) -> serde_json::Result<Option<String>> {
    let json = serde_json::to_string(returned)?;
    // `()` is no result; storing it with every run would waste space.
    Ok((json != "null").then_some(json))
}

/// A future of an async handler.
#[cfg(feature = "tokio")]
pub(crate) type HandlerFuture = std::pin::Pin<Box<dyn Future<Output = Result<Option<String>, BoxError>> + Send>>;

/// An async handler: returns the future that runs one attempt.
#[cfg(feature = "tokio")]
pub(crate) type AsyncHandler = dyn Fn(Context) -> HandlerFuture + Send + Sync;

/// An async handler, and its own backoff.
#[cfg(feature = "tokio")]
#[derive(Clone)]
pub(crate) struct FutureHandler {
    pub(crate) run: Arc<AsyncHandler>,
    pub(crate) backoff: Option<Arc<Backoff>>,
}

/// Handlers by name.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_name: BTreeMap<String, Arc<dyn Handler>>,
    #[cfg(feature = "tokio")]
    futures: BTreeMap<String, FutureHandler>,
    /// Those that replace the handlers' own.
    backoffs: BTreeMap<String, Arc<Backoff>>,
    /// Field and reason of the first error: builders report it at the start.
    refused: Option<(&'static str, String)>,
}

impl Handlers {
    /// Adds a handler. A second one of the same name is refused.
    pub(crate) fn add(&mut self, name: String, handler: Arc<dyn Handler>) {
        if self.accepts(&name) {
            self.by_name.insert(name, handler);
        }
    }

    /// Adds an async handler. A second one of the same name is refused.
    #[cfg(feature = "tokio")]
    pub(crate) fn add_future(&mut self, name: String, handler: FutureHandler) {
        if self.accepts(&name) {
            self.futures.insert(name, handler);
        }
    }

    /// Sets the backoff of a handler. A second one is refused.
    pub(crate) fn add_backoff(&mut self, name: String, backoff: Arc<Backoff>) {
        match self.backoffs.entry(name) {
            Entry::Vacant(free) => {
                free.insert(backoff);
            }
            Entry::Occupied(taken) => {
                let reason = format!("that of {:?} is set twice", taken.key());
                self.refuse("backoff", reason);
            }
        }
    }

    /// Fails with the first error of what was added. Refuses a backoff of a handler that is not registered.
    pub(crate) fn check(&self) -> Result<()> {
        let names = self.names();
        let unknown = self.backoffs.keys().find(|name| !names.contains(*name));
        let unknown =
            unknown.map(|name| ("backoff", format!("expected the name of a registered handler, found {name:?}")));
        match self.refused.clone().or(unknown) {
            Some((field, reason)) => Err(Error::InvalidConfig { field, reason }),
            None => Ok(()),
        }
    }

    fn accepts(&mut self, name: &str) -> bool {
        // No task can have such a handler.
        if let Err(Error::InvalidTask { field, found, expected }) = check_text("handler", name) {
            self.refuse(field, format!("expected {expected}, found {found:?}"));
            return false;
        }
        if self.names().contains(name) {
            self.refuse("handler", format!("{name:?} is registered twice"));
            return false;
        }
        true
    }

    fn refuse(&mut self, field: &'static str, reason: String) {
        self.refused.get_or_insert((field, reason));
    }

    /// Sets when an attempt that has failed is retried, if its handler has a backoff of its own. Calls it on this thread; if it
    /// panics, the error of the attempt says so, and the backoff of the task applies.
    pub(crate) fn with_backoff(&self, mut finished: Finished) -> Finished {
        let wait = FailedAttempt::of(&finished).map(|failed| panics::contained(|| self.backoff(&failed)));
        match (wait, &mut finished.outcome) {
            (Some(Ok(Some(wait))), Outcome::Failed { retry, .. }) => *retry = Retry::After(wait),
            (Some(Err(panic)), Outcome::Failed { error, .. }) => {
                *error = format!("{error}; its backoff panicked: {panic}; that of the task applies");
            }
            _ => {}
        }
        finished
    }

    fn backoff(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
        let name = &failed.claim.handler;
        if let Some(backoff) = self.backoffs.get(name) {
            return backoff(failed);
        }
        #[cfg(feature = "tokio")]
        if let Some(handler) = self.futures.get(name) {
            return handler.backoff.as_ref().and_then(|backoff| backoff(failed));
        }
        self.by_name.get(name).and_then(|handler| handler.backoff(failed))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.by_name.get(name)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn future(&self, name: &str) -> Option<&Arc<AsyncHandler>> {
        self.futures.get(name).map(|handler| &handler.run)
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        let names = self.by_name.keys();
        #[cfg(feature = "tokio")]
        let names = names.chain(self.futures.keys());
        names.cloned().collect()
    }

    /// Returns the names of the async handlers.
    pub(crate) fn future_names(&self) -> BTreeSet<String> {
        self.names().into_iter().filter(|name| !self.by_name.contains_key(name)).collect()
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (name, handler) in std::mem::take(&mut self.by_name) {
            panics::dispose(format_args!("the handler {name:?}"), handler);
        }
        #[cfg(feature = "tokio")]
        for (name, handler) in std::mem::take(&mut self.futures) {
            panics::dispose(format_args!("the handler {name:?}"), handler.run);
            panics::dispose(format_args!("the backoff of the handler {name:?}"), handler.backoff);
        }
        for (name, backoff) in std::mem::take(&mut self.backoffs) {
            panics::dispose(format_args!("the backoff of the handler {name:?}"), backoff);
        }
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// What a handler knows of its run, and how it reports. Cheap to clone, for the threads and futures that a handler uses; when its
/// attempt has ended, a clone records nothing more, and [`Context::effect`] and [`Context::finish`] refuse.
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{Context, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let report = |run: &Context| {
///     run.progress("3 of 5");
///     Ok::<_, duly::Error>(format!("{}, attempt {}, for {}", run.task(), run.attempt(), run.scheduled_for()))
/// };
/// let mut stepper = Stepper::builder(&file, noon).handler("report", report).start()?;
/// // Due two hours ago: the occurrence is what the handler works for, and not the time at which it starts.
/// stepper.client().add(NewTask::once("daily", "2027-03-14T10:00:00Z".parse()?).handler("report"))?;
/// stepper.run_until(noon)?;
/// let run = &stepper.client().history("daily", 1)?[0];
/// assert_eq!(run.result.as_deref(), Some(r#""daily, attempt 1, for 2027-03-14T10:00:00.000Z""#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Context {
    claim: Arc<Claim>,
    clock: Arc<dyn Clock>,
    stop: Arc<StopFlag>,
    limit: Option<Duration>,
    /// By the monotonic clock, and by the wall clock as it stood at the start.
    pub(crate) deadline: Option<(Duration, Timestamp)>,
    began: Now,
    tools: Tools,
}

impl Context {
    pub(crate) fn new(
        claim: Arc<Claim>,
        clock: Arc<dyn Clock>,
        stop: Arc<StopFlag>,
        limit: Option<Duration>,
        tools: Tools,
    ) -> Self {
        let now = clock.now();
        let deadline = limit.map(|limit| (now.monotonic.saturating_add(limit), now.wall.plus(limit)));
        deadline.iter().for_each(|(at, _)| stop.limit_to(*at));
        Context { claim, clock, stop, limit, deadline, began: now, tools }
    }

    /// Returns the payload as the type that the handler expects: that of the run, or else that of the task.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, Error, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let (file, noon) = (home.path().join("agent.db"), "2027-03-14T12:00:00Z".parse()?);
    /// let handler = |run: &Context| run.payload::<u32>().map(|_| ());
    /// let mut stepper = Stepper::builder(&file, noon).handler("square", handler).start()?;
    /// stepper.client().add(NewTask::once("wrong", noon).handler("square").payload("seven"))?;
    /// stepper.run_for(std::time::Duration::from_secs(60))?;
    /// assert_eq!(stepper.client().history("wrong", 1)?[0].status, RunStatus::Dead, "it is not retried");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidPayload`] if it is of another type, with the field that is wrong. A handler that returns this error gives up:
    /// its run is dead, since another attempt would find the same payload. To retry it all the same, return another error.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        let payload = &self.claim.payload;
        serde_json::from_str(payload).map_err(|error| {
            // Looked for only now: it costs time, and few payloads are wrong.
            let path = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(payload));
            let path = path.err().map(|error| error.path().to_string()).filter(|path| path != ".");
            let path = path.map(|path| format!("{path}: ")).unwrap_or_default();
            Error::InvalidPayload { task: self.claim.task.clone(), reason: format!("{path}{error}") }
        })
    }

    /// Returns the payload as it is stored, JSON: that of the run, or else that of the task.
    pub fn payload_json(&self) -> &str {
        &self.claim.payload
    }

    /// Returns the payload of the task, JSON, whatever the payload of the run is.
    pub fn task_payload_json(&self) -> &str {
        self.claim.task_payload.as_ref().unwrap_or(&self.claim.payload)
    }

    /// Returns the payload of the run itself, JSON: from a trigger, or about a dead run. `None`: it has only that of its task.
    pub fn run_payload_json(&self) -> Option<&str> {
        self.claim.task_payload.as_ref().map(|_| self.claim.payload.as_str())
    }

    /// Returns the name of the task.
    pub fn task(&self) -> &str {
        &self.claim.task
    }

    /// Returns the name of the handler.
    pub fn handler(&self) -> &str {
        &self.claim.handler
    }

    /// Returns the id of the run.
    pub fn run_id(&self) -> i64 {
        self.claim.run_id
    }

    /// Returns the occurrence; for manual runs, when the run was requested. Not the time at which it starts.
    pub fn scheduled_for(&self) -> Timestamp {
        self.claim.scheduled_for
    }

    /// Returns the number of this attempt, from 1. Attempts that do not count against the maximum (returned
    /// un-started, snoozed, interrupted) have a number too.
    pub fn attempt(&self) -> u32 {
        self.claim.attempt
    }

    /// Returns why the run was opened.
    pub fn origin(&self) -> Origin {
        self.claim.origin
    }

    /// Returns a key that is the same for every attempt of this run, and differs for every other run, so that an outside
    /// service can detect a repeat: `<task>/<occurrence>`, or `<task>/run-<id>` for a manual run.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let key = |run: &duly::Context| Ok::<_, duly::Error>(run.idempotency_key());
    /// let mut stepper = Stepper::builder(&file, noon).handler("pay", key).start()?;
    /// stepper.client().add(duly::NewTask::once("rent", noon).handler("pay"))?;
    /// stepper.run_until(noon)?;
    /// let run = &stepper.client().history("rent", 1)?[0];
    /// assert_eq!(run.result.as_deref(), Some(r#""rent/2027-03-14T12:00:00.000Z""#));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn idempotency_key(&self) -> String {
        self.claim.idempotency_key()
    }

    /// Returns when the time limit passes, if there is one. The wall clock may step meanwhile; [`Context::is_cancelled`]
    /// measures the time that really passed.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline.map(|(_, wall)| wall)
    }

    /// Returns whether the handler should stop: a user asked for it, its time limit has passed, or the scheduler shuts down. Copies of the
    /// context of an attempt that has ended should stop, too. A handler
    /// that then returns an error ends its run as cancelled, or its attempt as timed out or interrupted. A handler that returns `Ok`
    /// has succeeded, however late; that it was late is reported.
    ///
    /// ```
    /// fn index(run: &duly::Context, files: &[String]) -> Result<(), duly::BoxError> {
    ///     for file in files {
    ///         if run.is_cancelled() {
    ///             return Err(format!("stopped before {file}").into()); // `Ok` would be a success
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn is_cancelled(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// Returns why the handler should stop, if it should.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop.raised().or_else(|| self.time_is_up().then_some(StopReason::TimeUp))
    }

    /// Waits until the handler should stop, at most for the given time. Returns whether it should. Use it instead of sleeping. Under
    /// a [`Stepper`](crate::testing::Stepper) it advances the test's clock, and returns at once.
    pub fn wait_cancelled(&self, limit: Duration) -> bool {
        let left = self.deadline.map(|(at, _)| self.clock.until(at));
        let limit = left.map_or(limit, |left| left.min(limit));
        match &self.tools.manual {
            Some(clock) => clock.advance(limit.min(MAX_DURATION)),
            None => _ = self.stop.wait(limit),
        }
        self.is_cancelled()
    }

    /// Resolves when the handler should stop, as [`Context::is_cancelled`] describes; for async handlers, instead of
    /// [`Context::wait_cancelled`], which blocks its thread. An async handler that has not returned ten seconds later is dropped.
    ///
    /// ```
    /// async fn fetch(run: duly::Context) -> Result<&'static str, duly::BoxError> {
    ///     tokio::select! {
    ///         () = tokio::time::sleep(std::time::Duration::from_secs(1)) => Ok("fetched"),
    ///         () = run.cancelled() => Err("asked to stop".into()),
    ///     }
    /// }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn cancelled(&self) {
        self.stop.requested().await;
    }

    /// Reports how far the attempt has come, for users who look at it while it runs: up to [`MAX_PROGRESS_BYTES`]. The newest
    /// report is recorded, at most once a second, so a handler may report as often as it likes; the last one is kept with the
    /// run until it is retried.
    pub fn progress(&self, words: impl AsRef<str>) {
        let words = excerpt(words.as_ref(), MAX_PROGRESS_BYTES);
        self.report(|latest| latest.progress(words));
    }

    /// Reports while the attempt runs. `keep`: returns whether the loop has to be notified.
    pub(crate) fn report(&self, keep: impl FnOnce(&LatestReports) -> bool) {
        let latest = {
            let mut reported = self.reported();
            let new = || Arc::new(LatestReports::new(self.claim.run_id, self.claim.attempt, self.claim.owner.clone()));
            reported.latest.get_or_insert_with(new).clone()
        };
        // Never waits: the end of the attempt brings the last report in any case.
        if keep(&latest)
            && let Some(link) = &self.tools.link
            && link.notices.try_send(Notice::Reports(latest.clone())).is_err()
        {
            latest.unannounced();
        }
    }

    pub(crate) fn reported(&self) -> MutexGuard<'_, Reported> {
        self.tools.reported()
    }

    /// Returns the link to the scheduler; `None` under a stepper.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.tools.link.as_ref()
    }

    /// Keeps the record of the process that the attempt runs in. `due`: when it is to be stored, by the monotonic clock.
    pub(crate) fn runs_in(&self, process: Arc<str>, due: Duration) {
        self.stop.runs_in(process, due);
    }

    pub(crate) fn connection(&self) -> MutexGuard<'_, WorkerConnection> {
        self.tools.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the path of the database.
    pub(crate) fn file(&self) -> &Path {
        &self.tools.file
    }

    /// Calls `f` on a thread for blocking calls, while it has the turn of its connection. If the future is dropped before, `f` is
    /// not called; once called, it is not interrupted. A panic of `f` is one of the caller.
    #[cfg(feature = "tokio")]
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Context, Turn) -> T + Send + 'static,
    ) -> Result<T> {
        let turn = self.tools.gate.clone().acquire_owned().await.map_err(|error| lost(error.into()))?;
        let context = self.clone();
        joined(tokio::task::spawn_blocking(move || f(&context, turn)).await)
    }

    /// As [`Context::blocking`], and `f` is called also if the future is dropped before.
    #[cfg(feature = "tokio")]
    pub(crate) async fn blocking_surely<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Context, Turn) -> T + Send + 'static,
    ) -> Result<T> {
        let context = self.clone();
        joined(tokio::spawn(async move { context.blocking(f).await }).await)?
    }

    /// The attempt has ended: has copies of this context read that.
    pub(crate) fn stop_copies(&self) {
        self.stop.raise(StopReason::Over);
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Returns when the handler was called.
    pub(crate) fn began(&self) -> Now {
        self.began
    }

    /// Returns the time limit, if the work has exceeded it.
    pub(crate) fn exceeded(&self) -> Option<Duration> {
        let recorded = self.reported().work_end.map(|end| end.is_late);
        self.limit.filter(|_| recorded.unwrap_or_else(|| self.time_is_up()))
    }

    pub(crate) fn time_is_up(&self) -> bool {
        // The loop judges the time limit of an async handler.
        let is_judged = self.stop.raised() == Some(StopReason::TimeUp);
        is_judged || self.deadline.is_some_and(|(at, _)| self.clock.until(at).is_zero())
    }
}

/// The right to use the connection that async handlers share, until it is dropped.
#[cfg(feature = "tokio")]
pub(crate) type Turn = tokio::sync::OwnedSemaphorePermit;

#[cfg(feature = "tokio")]
fn lost(error: BoxError) -> Error {
    Error::store("reach the database from an async handler", error)
}

/// Returns what a task of the runtime returned. Its panic is one of the caller.
#[cfg(feature = "tokio")]
fn joined<T>(ended: Result<T, tokio::task::JoinError>) -> Result<T> {
    ended.or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => Err(lost(error.into())),
    })
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("claim", &self.claim)
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
