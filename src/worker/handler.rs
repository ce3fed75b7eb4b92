//! What a task runs: a closure or a type of yours, by name; what it is told, and what it can answer.

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
use crate::worker::attempt::{Notice, Said, StopFlag, StopReason, Tools};
use crate::worker::connection::WorkerConnection;
use crate::worker::progress::LatestProgress;

/// Most that is kept of what an attempt printed.
pub const MAX_OUTPUT_BYTES: usize = 256 * 1024;

/// Most that is kept of what an attempt says of its progress.
pub const MAX_PROGRESS_BYTES: usize = 1024;

/// Carries out runs. Closures are handlers: `Fn(&Context) -> Result<T, E>` of any result that JSON can hold and any error.
///
/// A panic is a failed attempt, and its worker continues, also if the payload of the panic panics when it is dropped. If the
/// result or the error that a handler returned panics when it is dropped, that is logged, and the answer stands. Two panics end
/// the process, since Rust cannot catch them: one in a destructor that runs while another panic unwinds, and any in a program
/// that is built with `panic = "abort"`.
pub trait Handler: Send + Sync + 'static {
    /// Carries out one attempt, and answers with what it came to, as JSON.
    ///
    /// # Errors
    /// Any error means: try again after the task's backoff. A [`Failure`] says something else.
    fn run(&self, context: &Context) -> Result<Option<String>, BoxError>;

    /// Ends what a scheduler that died had begun with this handler and that is still at work: its run waits for it. Called on
    /// a thread of its own, and again at later heartbeats if the command is still at work when it has returned. By default
    /// nothing is done.
    fn end_orphan(&self, orphan: &Orphan) {
        let _ = orphan;
    }

    /// Longest an attempt may take where the task does not say. `None`: no limit.
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
        // What the handler did is done: another attempt would do it again, and return the same.
        let stored =
            as_result(&result).map_err(|error| Failure::give_up(format!("what it returned cannot be stored: {error}")));
        panics::dispose("the result of a handler", result);
        Ok(stored?)
    }
}

/// What is stored of what a handler returns.
pub(crate) fn as_result(returned: &impl Serialize) -> serde_json::Result<Option<String>> {
    let json = serde_json::to_string(returned)?;
    // `()` is no result; it would be stored with every run.
    Ok((json != "null").then_some(json))
}

/// A failure that says what is to follow. Any other error means: try again after the task's backoff.
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
    /// The run is dead now: another attempt would fail again.
    pub fn give_up(error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::GiveUp, source: error.into() }
    }

    /// The next attempt comes after this wait, if one is left.
    pub fn retry_after(wait: Duration, error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::After(wait), source: error.into() }
    }

    /// The attempt was cut short, as by a shutdown: it does not count, and is made again as soon as may be. A run that may
    /// start only once is dead.
    pub fn interrupted(error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::Interrupted, source: error.into() }
    }

    /// What it says about another try.
    pub fn retry(&self) -> Retry {
        self.retry
    }

    /// The error that it was made of.
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

/// Handlers by name.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_name: BTreeMap<String, Arc<dyn Handler>>,
}

impl Handlers {
    /// Adds one. A second of the same name is refused.
    pub(crate) fn add(&mut self, name: String, handler: Arc<dyn Handler>) -> Result<()> {
        if name.is_empty() || name.len() > crate::model::task::MAX_NAME_BYTES {
            let reason = format!("expected 1 to {} bytes, found {:?}", crate::model::task::MAX_NAME_BYTES, name);
            return Err(Error::InvalidConfig { field: "handler", reason });
        }
        if self.by_name.contains_key(&name) {
            return Err(Error::InvalidConfig { field: "handler", reason: format!("{name:?} is registered twice") });
        }
        self.by_name.insert(name, handler);
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.by_name.get(name)
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.by_name.keys().cloned().collect()
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (name, handler) in std::mem::take(&mut self.by_name) {
            panics::dispose(format_args!("the handler {name:?}"), handler);
        }
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

/// What a handler is told of the run it carries out.
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

    /// The payload, as the type the handler expects: that of the run, or where it has none of its own, that of the task.
    ///
    /// # Errors
    /// [`Error::InvalidPayload`] if it is another.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.claim.payload)
            .map_err(|error| Error::InvalidPayload { task: self.claim.task.clone(), reason: error.to_string() })
    }

    /// The payload as it is stored, JSON: that of the run, or where it has none of its own, that of the task.
    pub fn payload_json(&self) -> &str {
        &self.claim.payload
    }

    /// The payload of the task, JSON, whatever the run was given.
    pub fn task_payload_json(&self) -> &str {
        self.claim.task_payload.as_ref().unwrap_or(&self.claim.payload)
    }

    /// The payload of the run itself, JSON: what a trigger gave it, or the dead run of which it tells. `None`: it has only
    /// that of its task.
    pub fn run_payload_json(&self) -> Option<&str> {
        self.claim.task_payload.as_ref().map(|_| self.claim.payload.as_str())
    }

    /// The name of the task.
    pub fn task(&self) -> &str {
        &self.claim.task
    }

    /// The id of the run.
    pub fn run_id(&self) -> i64 {
        self.claim.run_id
    }

    /// The occurrence that is kept; for manual runs, when it was asked for. Not the time at which it starts.
    pub fn scheduled_for(&self) -> Timestamp {
        self.claim.scheduled_for
    }

    /// The number of this attempt, from 1. Attempts that were given back un-started are counted too.
    pub fn attempt(&self) -> u32 {
        self.claim.attempt
    }

    /// Why the run was opened.
    pub fn origin(&self) -> Origin {
        self.claim.origin
    }

    /// The same for every attempt of this run, and for no other run: what an outside service can tell a repeat by.
    /// `<task>/<occurrence>`, or `<task>/run-<id>` for a manual run.
    pub fn idempotency_key(&self) -> String {
        self.claim.idempotency_key()
    }

    /// When the attempt's time is up, if it has a limit. The wall clock may jump meanwhile; [`Context::is_cancelled`]
    /// goes by the time that really passed.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline.map(|(_, wall)| wall)
    }

    /// Whether the handler should stop: somebody asked for it, or its time is up. A handler that returns an error then
    /// ends its run as cancelled, or as timed out. One that returns `Ok` has succeeded, however late; that it was late is
    /// reported.
    pub fn is_cancelled(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// Why the handler should stop, if it should.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop.raised().or_else(|| self.time_is_up().then_some(StopReason::TimeUp))
    }

    /// Waits until the handler should stop, at most so long; whether it should. Instead of sleeping.
    pub fn wait_cancelled(&self, limit: Duration) -> bool {
        let left = self.deadline.map(|(at, _)| self.clock.until(at));
        self.stop.wait(left.map_or(limit, |left| left.min(limit))) || self.time_is_up()
    }

    /// Keeps what was printed, with the run and, if it fails, with the attempt: up to [`MAX_OUTPUT_BYTES`] of it. The last
    /// call counts.
    pub fn record_output(&self, output: impl AsRef<str>) {
        self.said().output = Some(excerpt(output.as_ref(), MAX_OUTPUT_BYTES));
    }

    /// Keeps what a command exited with.
    pub fn record_exit_code(&self, code: i32) {
        self.said().exit_code = Some(code);
    }

    /// Records a remark beside the outcome, for people: up to [`MAX_PROGRESS_BYTES`] in the column `error` of the run, where it
    /// follows the error of an attempt that fails. The last call counts.
    pub fn record_remark(&self, remark: impl AsRef<str>) {
        self.said().remark = Some(excerpt(remark.as_ref(), MAX_PROGRESS_BYTES));
    }

    /// Records that the work ends now. What the handler does afterwards, such as cleaning up, does not count against its time
    /// limit. The first call counts; without one, the work ends when the handler returns.
    pub fn record_end(&self) {
        let late = self.time_is_up();
        self.said().late.get_or_insert(late);
    }

    /// Makes the file that a command is to have as its standard input, with this content. It is locked, and the lock lives
    /// as long as the command: so others know, should this process be killed, that the command is still at work. Give it to
    /// the command and keep no copy. It is removed when the end of the attempt is written down.
    ///
    /// # Errors
    /// If the file cannot be made in the folder beside the database; or there is no scheduler, but a stepper.
    pub fn command_input(&self, content: &[u8]) -> io::Result<File> {
        let Some(link) = &self.tools.link else { return Err(io::ErrorKind::Unsupported.into()) };
        let make = || Input::create(link.alive.folder(), self.claim.run_id, self.claim.attempt, content);
        // A folder that was removed is made again.
        let (input, file) = make().or_else(|_| link.alive.keep().and_then(|_| make()))?;
        self.said().input = Some(input);
        Ok(file)
    }

    /// The path of a file that holds [`run_payload_json`](Context::run_payload_json), for a command to read; `None` if the run
    /// has no payload of its own. Only its owner may read it. It is made in the folder beside the database, and removed when
    /// the handler returns, or when the run is recovered if this process is killed.
    ///
    /// # Errors
    /// As [`Context::command_input`].
    pub fn payload_file(&self) -> io::Result<Option<PathBuf>> {
        let Some(payload) = self.run_payload_json() else { return Ok(None) };
        let Some(link) = &self.tools.link else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut said = self.said();
        if said.payload.is_none() {
            let (run, attempt) = (self.claim.run_id, self.claim.attempt);
            said.payload = Some(PayloadFile::create(link.alive.folder(), run, attempt, payload.as_bytes())?);
        }
        Ok(said.payload.as_ref().map(|file| file.path().to_owned()))
    }

    /// Records which process the handler started, so that a scheduler that recovers this run can distinguish it from any
    /// other with its number. It must lead a process group of its own, have its input from [`Context::command_input`], and not
    /// have been waited for. Where the system does not distinguish processes, only its input is recorded.
    pub fn record_process(&self, pid: u32) {
        let Some(link) = &self.tools.link else { return };
        fault_points::reach("spawned");
        let record = orphan::record_of(pid, self.said().input.as_ref(), self.file());
        if let Some(process) = record {
            let (run, attempt, kind) = (self.claim.run_id, self.claim.attempt, ReportKind::Process(process));
            // The loop lives as long as its workers.
            let _ = link.notices.send(Notice::Report(Report { run, attempt, kind }));
        }
    }

    /// Says how far the attempt has come, for people who look at it while it runs: up to [`MAX_PROGRESS_BYTES`]. The newest
    /// words are written down, once a second at most, so that a handler may say them as often as it likes; the last ones
    /// are kept with the run, until it is tried again.
    pub fn progress(&self, words: impl AsRef<str>) {
        let words = excerpt(words.as_ref(), MAX_PROGRESS_BYTES);
        let progress = {
            let mut said = self.said();
            let new = || Arc::new(LatestProgress::new(self.claim.run_id, self.claim.attempt));
            said.progress.get_or_insert_with(new).clone()
        };
        // Never waited for: the end of the attempt brings the last words in any case.
        if progress.say(words)
            && let Some(link) = &self.tools.link
            && link.notices.try_send(Notice::Progress(progress.clone())).is_err()
        {
            progress.unannounced();
        }
    }

    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.tools.said()
    }

    pub(crate) fn connection(&self) -> MutexGuard<'_, WorkerConnection> {
        self.tools.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database.
    pub(crate) fn file(&self) -> &Path {
        &self.tools.file
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    /// When the handler was entered.
    pub(crate) fn began(&self) -> Now {
        self.began
    }

    /// The time limit, if the work has exceeded it.
    pub(crate) fn exceeded(&self) -> Option<Duration> {
        let recorded = self.said().late;
        self.limit.filter(|_| recorded.unwrap_or_else(|| self.time_is_up()))
    }

    fn time_is_up(&self) -> bool {
        self.deadline.is_some_and(|(at, _)| self.clock.until(at).is_zero())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("claim", &self.claim)
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
