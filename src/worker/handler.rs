//! Handlers: closures or types of the application, by name; their context and their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::{Clock, Now, Timestamp};
use crate::error::{BoxError, Error, Result, excerpt};
use crate::host::orphan::{self, Input, Orphan, PayloadFile};
use crate::host::{fault_points, panics};
use crate::model::finished::{Report, ReportKind};
use crate::model::retry::Retry;
use crate::model::run::{Claim, Origin};
use crate::worker::attempt::{Notice, Reported, StopFlag, StopReason, Tools};
use crate::worker::connection::WorkerConnection;
use crate::worker::progress::LatestProgress;

/// Most bytes that are kept of an attempt's output.
pub const MAX_OUTPUT_BYTES: usize = 256 * 1024;

/// Most bytes that are kept of an attempt's progress.
pub const MAX_PROGRESS_BYTES: usize = 1024;

/// Runs attempts. Closures are handlers: `Fn(&Context) -> Result<T, E>` of any result that JSON can hold and any error.
///
/// A panic is a failed attempt, and its worker continues, also if the payload of the panic panics when it is dropped. If the
/// result or the error that a handler returned panics when it is dropped, that is logged, and the answer stands. Two panics end
/// the process, since Rust cannot catch them: one in a destructor that runs while another panic unwinds, and any in a program
/// that is built with `panic = "abort"`.
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

    /// The time limit of an attempt where the task sets none. `None`: no limit.
    fn default_timeout(&self) -> Option<Duration> {
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

/// A failure that says what follows. Any other error means: retry after the task's backoff.
///
/// ```
/// use duly::{Context, Failure};
/// fn send(run: &Context) -> Result<(), Failure> {
///     let address: String = run.payload().map_err(Failure::give_up)?;
///     if !address.contains('@') {
///         return Err(Failure::give_up(format!("{address} is no address")));
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Failure {
    retry: Retry,
    source: BoxError,
}

impl Failure {
    /// The run is dead: another attempt would fail again.
    pub fn give_up(error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::GiveUp, source: error.into() }
    }

    /// The next attempt, if one is left, begins after this wait.
    pub fn retry_after(wait: Duration, error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::After(wait), source: error.into() }
    }

    /// The attempt was cut short, as by a shutdown: it does not count, and is retried as soon as possible. A run that may start
    /// only once is dead.
    pub fn interrupted(error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::Interrupted, source: error.into() }
    }

    /// Returns what follows.
    pub fn retry(&self) -> Retry {
        self.retry
    }

    /// Returns the error that it was made of.
    pub fn error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.source
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.source()
    }
}

/// A future of an async handler.
#[cfg(feature = "tokio")]
pub(crate) type HandlerFuture = std::pin::Pin<Box<dyn Future<Output = Result<Option<String>, BoxError>> + Send>>;

/// An async handler: returns the future that runs one attempt.
#[cfg(feature = "tokio")]
pub(crate) type AsyncHandler = dyn Fn(Context) -> HandlerFuture + Send + Sync;

/// Handlers by name.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_name: BTreeMap<String, Arc<dyn Handler>>,
    #[cfg(feature = "tokio")]
    futures: BTreeMap<String, Arc<AsyncHandler>>,
}

impl Handlers {
    /// Adds a handler. A second one of the same name is refused.
    pub(crate) fn add(&mut self, name: String, handler: Arc<dyn Handler>) -> Result<()> {
        self.check(&name)?;
        self.by_name.insert(name, handler);
        Ok(())
    }

    /// Adds an async handler. A second one of the same name is refused.
    #[cfg(feature = "tokio")]
    pub(crate) fn add_future(&mut self, name: String, handler: Arc<AsyncHandler>) -> Result<()> {
        self.check(&name)?;
        self.futures.insert(name, handler);
        Ok(())
    }

    fn check(&self, name: &str) -> Result<()> {
        if name.is_empty() || name.len() > crate::model::task::MAX_NAME_BYTES {
            let reason = format!("expected 1 to {} bytes, found {:?}", crate::model::task::MAX_NAME_BYTES, name);
            return Err(Error::InvalidConfig { field: "handler", reason });
        }
        if self.names().contains(name) {
            return Err(Error::InvalidConfig { field: "handler", reason: format!("{name:?} is registered twice") });
        }
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.by_name.get(name)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn future(&self, name: &str) -> Option<&Arc<AsyncHandler>> {
        self.futures.get(name)
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
            panics::dispose(format_args!("the handler {name:?}"), handler);
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
#[derive(Clone)]
pub struct Context {
    claim: Arc<Claim>,
    clock: Arc<dyn Clock>,
    stop: Arc<StopFlag>,
    limit: Option<Duration>,
    /// By the monotonic clock, and by the wall clock as it stood at the start.
    deadline: Option<(Duration, Timestamp)>,
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
        Context { claim, clock, stop, limit, deadline, began: now, tools }
    }

    /// Returns the payload as the type that the handler expects: that of the run, or else that of the task.
    ///
    /// # Errors
    /// [`Error::InvalidPayload`] if it is of another type.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.claim.payload)
            .map_err(|error| Error::InvalidPayload { task: self.claim.task.clone(), reason: error.to_string() })
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

    /// Returns the id of the run.
    pub fn run_id(&self) -> i64 {
        self.claim.run_id
    }

    /// Returns the occurrence; for manual runs, when the run was requested. Not the time at which it starts.
    pub fn scheduled_for(&self) -> Timestamp {
        self.claim.scheduled_for
    }

    /// Returns the number of this attempt, from 1. Attempts that were returned un-started count too.
    pub fn attempt(&self) -> u32 {
        self.claim.attempt
    }

    /// Returns why the run was opened.
    pub fn origin(&self) -> Origin {
        self.claim.origin
    }

    /// Returns a key that is the same for every attempt of this run, and differs for every other run, so that an outside
    /// service can detect a repeat: `<task>/<occurrence>`, or `<task>/run-<id>` for a manual run.
    pub fn idempotency_key(&self) -> String {
        self.claim.idempotency_key()
    }

    /// Returns when the time limit passes, if there is one. The wall clock may step meanwhile; [`Context::is_cancelled`]
    /// measures the time that really passed.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline.map(|(_, wall)| wall)
    }

    /// Returns whether the handler should stop: a user asked for it, or its time limit has passed. A handler that then returns
    /// an error ends its run as cancelled, or as timed out. A handler that returns `Ok` has succeeded, however late; that it
    /// was late is reported.
    pub fn is_cancelled(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// Returns why the handler should stop, if it should.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop.raised().or_else(|| self.time_is_up().then_some(StopReason::TimeUp))
    }

    /// Waits until the handler should stop, at most for the given time. Returns whether it should. Use it instead of sleeping.
    pub fn wait_cancelled(&self, limit: Duration) -> bool {
        let left = self.deadline.map(|(at, _)| self.clock.until(at));
        self.stop.wait(left.map_or(limit, |left| left.min(limit))) || self.time_is_up()
    }

    /// Resolves when the handler should stop, as [`Context::is_cancelled`] describes; for async handlers, instead of
    /// [`Context::wait_cancelled`], which blocks its thread. An async handler that has not returned ten seconds later is dropped.
    #[cfg(feature = "tokio")]
    pub async fn cancelled(&self) {
        self.stop.requested().await;
    }

    /// Keeps output with the run and, if it fails, with the attempt: up to [`MAX_OUTPUT_BYTES`] of it. The last call counts.
    pub fn record_output(&self, output: impl AsRef<str>) {
        self.reported().output = Some(excerpt(output.as_ref(), MAX_OUTPUT_BYTES));
    }

    /// Keeps the exit code of a command.
    pub fn record_exit_code(&self, code: i32) {
        self.reported().exit_code = Some(code);
    }

    /// Records a remark beside the outcome, for users: up to [`MAX_PROGRESS_BYTES`] in the column `error` of the run, after the
    /// error of an attempt that fails. The last call counts.
    pub fn record_remark(&self, remark: impl AsRef<str>) {
        self.reported().remark = Some(excerpt(remark.as_ref(), MAX_PROGRESS_BYTES));
    }

    /// Records that the work ends now. What the handler does afterwards, such as cleaning up, does not count against its time
    /// limit. The first call counts; without one, the work ends when the handler returns.
    pub fn record_end(&self) {
        let late = self.time_is_up();
        self.reported().late.get_or_insert(late);
    }

    /// Creates the file for the standard input of a command, with this content. The file is locked, and the lock lives as long
    /// as the command: if this process is killed, other schedulers see that the command still runs. Pass it to the command and
    /// keep no copy. It is removed when the end of the attempt is recorded.
    ///
    /// # Errors
    /// If the file cannot be created in the folder beside the database; or there is no scheduler, only a stepper.
    pub fn command_input(&self, content: &[u8]) -> io::Result<File> {
        let Some(link) = &self.tools.link else { return Err(io::ErrorKind::Unsupported.into()) };
        let make = || Input::create(link.alive.folder(), self.claim.run_id, self.claim.attempt, content);
        // A folder that was removed is created again.
        let (input, file) = make().or_else(|_| link.alive.keep().and_then(|_| make()))?;
        self.reported().input = Some(input);
        Ok(file)
    }

    /// Returns the path of a file that holds [`run_payload_json`](Context::run_payload_json), for a command to read; `None` if
    /// the run has no payload of its own. Only its owner may read it. It is created in the folder beside the database, and
    /// removed when the handler returns, or when the run is recovered if this process is killed.
    ///
    /// # Errors
    /// As [`Context::command_input`].
    pub fn payload_file(&self) -> io::Result<Option<PathBuf>> {
        let Some(payload) = self.run_payload_json() else { return Ok(None) };
        let Some(link) = &self.tools.link else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut reported = self.reported();
        if reported.payload.is_none() {
            let (run, attempt) = (self.claim.run_id, self.claim.attempt);
            reported.payload = Some(PayloadFile::create(link.alive.folder(), run, attempt, payload.as_bytes())?);
        }
        Ok(reported.payload.as_ref().map(|file| file.path().to_owned()))
    }

    /// Records which process the handler started, so that a scheduler that recovers this run can distinguish it from any
    /// other with its number. It must lead a process group of its own, have its input from [`Context::command_input`], and not
    /// have been waited for. Where the system does not distinguish processes, only its input is recorded.
    pub fn record_process(&self, pid: u32) {
        let Some(link) = &self.tools.link else { return };
        fault_points::reach("spawned");
        let record = orphan::record_of(pid, self.reported().input.as_ref(), self.file());
        if let Some(process) = record {
            let (run, attempt, kind) = (self.claim.run_id, self.claim.attempt, ReportKind::Process(process));
            // The loop lives as long as its workers.
            let _ = link.notices.send(Notice::Report(Report { run, attempt, kind }));
        }
    }

    /// Reports how far the attempt has come, for users who look at it while it runs: up to [`MAX_PROGRESS_BYTES`]. The newest
    /// report is recorded, at most once a second, so a handler may report as often as it likes; the last one is kept with the
    /// run until it is retried.
    pub fn progress(&self, words: impl AsRef<str>) {
        let words = excerpt(words.as_ref(), MAX_PROGRESS_BYTES);
        let progress = {
            let mut reported = self.reported();
            let new = || Arc::new(LatestProgress::new(self.claim.run_id, self.claim.attempt));
            reported.progress.get_or_insert_with(new).clone()
        };
        // Never waits: the end of the attempt brings the last report in any case.
        if progress.say(words)
            && let Some(link) = &self.tools.link
            && link.notices.try_send(Notice::Progress(progress.clone())).is_err()
        {
            progress.unannounced();
        }
    }

    pub(crate) fn reported(&self) -> MutexGuard<'_, Reported> {
        self.tools.reported()
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
        let recorded = self.reported().late;
        self.limit.filter(|_| recorded.unwrap_or_else(|| self.time_is_up()))
    }

    fn time_is_up(&self) -> bool {
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
