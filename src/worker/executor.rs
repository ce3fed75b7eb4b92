//! For applications that run attempts outside of the threads of the scheduler: in long-lived processes, or on other threads.
//!
//! An [`Executor`] has handlers, whose names may change while it runs, and takes as many attempts at once as it says. The scheduler
//! hands each attempt over as a [`Delegated`], which carries its end back. Retries, time limits, leases, effects and recovery are
//! those of every other handler.
//!
//! A long-lived process can outlive a scheduler that is killed. [`Waker::share_input`] makes a locked file for it, and
//! [`Delegated::use_input`] makes that the input of an attempt: another scheduler then sees whether the process still runs, and
//! until it is gone, its runs wait. [`Executor::end_orphan`] may end it.
//!
//! ```
//! use std::collections::BTreeSet;
//! use std::sync::Arc;
//! use std::thread;
//!
//! use duly::executor::{Delegated, Executor, Waker};
//! use duly::{NewTask, RetryPolicy, Scheduler, StopReason};
//! # let home = tempfile::tempdir()?;
//! # let file = home.path().join("agent.db");
//!
//! /// Starts a thread for each attempt.
//! struct Threads(Arc<BTreeSet<String>>);
//!
//! impl Executor for Threads {
//!     fn attach(&self, _: Waker) {}
//!     fn handlers(&self) -> Arc<BTreeSet<String>> {
//!         self.0.clone()
//!     }
//!     fn free(&self) -> usize {
//!         usize::MAX
//!     }
//!     fn start(&self, attempt: Delegated) {
//!         thread::spawn(move || match attempt.context().attempt() {
//!             // The first attempt has failed: this thread drops it.
//!             1 => panic!("no route to host"),
//!             _ => attempt.end(Ok(Some("\"sent\"".to_owned()))),
//!         });
//!     }
//!     fn stop(&self, _: i64, _: u32, _: StopReason) {}
//! }
//!
//! let threads = Threads(Arc::new(["send".to_owned()].into()));
//! let scheduler = Scheduler::builder(&file).executor(Arc::new(threads)).start()?;
//! let retry = RetryPolicy { backoff: std::time::Duration::from_millis(10), ..RetryPolicy::default() };
//! scheduler.add(NewTask::once("mail", "2020-01-01T00:00:00Z".parse()?).handler("send").retry(retry))?;
//! # while !scheduler.history("mail", 1)?.first().is_some_and(|run| run.status.is_final()) { thread::yield_now() }
//! let run = &scheduler.history("mail", 1)?[0];
//! assert_eq!((run.attempt, run.result.as_deref()), (2, Some("\"sent\"")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use crossbeam_channel::Sender;

use crate::error::BoxError;
pub use crate::host::orphan::Orphan;
use crate::host::owner_lock::OwnerLock;
pub use crate::host::shared_input::SharedInput;
use crate::model::run::Outcome;
#[doc(hidden)]
pub use crate::model::task::check_text;
use crate::store::turn_io::Begun;
use crate::worker::attempt::StopReason;
use crate::worker::handed::LONG;
use crate::worker::handler::Context;
use crate::worker::lane::{Began, LaneTools, outcome_of};

/// Runs attempts outside of the scheduler's threads, for example in other processes.
///
/// Except [`Executor::end_orphan`], its functions are called on the thread of the scheduler's loop and must not block. A panic of one
/// of them is logged. [`Scheduler::is_idle`](crate::Scheduler::is_idle) calls [`Executor::handlers`], too.
///
/// ```
/// use std::collections::BTreeSet;
/// use std::sync::Arc;
/// use duly::StopReason;
/// use duly::executor::{Delegated, Executor, Waker};
///
/// /// Ends each attempt at once: there is nothing to stop.
/// struct Counts;
///
/// impl Executor for Counts {
///     fn attach(&self, _: Waker) {}
///     fn handlers(&self) -> Arc<BTreeSet<String>> {
///         Arc::new(["count".to_owned()].into())
///     }
///     fn free(&self) -> usize {
///         1
///     }
///     fn start(&self, attempt: Delegated) {
///         let length = attempt.context().payload_json().len();
///         attempt.end(Ok(Some(length.to_string())));
///     }
///     fn stop(&self, _: i64, _: u32, _: StopReason) {}
/// }
/// # let home = tempfile::tempdir()?;
/// # let scheduler = duly::Scheduler::builder(home.path().join("agent.db")).executor(Arc::new(Counts)).start()?;
/// # scheduler.add(duly::NewTask::manual("count").handler("count").payload("four"))?;
/// # let run = scheduler.trigger("count")?;
/// # while !scheduler.run(run)?.is_some_and(|run| run.status.is_final()) { std::thread::yield_now() }
/// assert_eq!(scheduler.run(run)?.and_then(|run| run.result).as_deref(), Some("6"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Executor: Send + Sync + 'static {
    /// Receives how it wakes the scheduler. Called once, before every other function.
    fn attach(&self, waker: Waker);

    /// Returns the names of its handlers now, also those that cannot take a run at the moment, as while a process is started again. If
    /// the set changes, wake the scheduler. A name that the [`Builder`](crate::Builder)'s own handlers have is ignored, and of
    /// two executors the first that was added has it.
    fn handlers(&self) -> Arc<BTreeSet<String>>;

    /// Returns how many more attempts it takes now. If the number grows, wake the scheduler. A scheduler has at most 1024
    /// attempts at one executor.
    fn free(&self) -> usize;

    /// Takes an attempt. Its begin is recorded: if this process is killed, the attempt counts.
    fn start(&self, attempt: Delegated);

    /// Requests that an attempt stops, once for each attempt: a user asked for it, its time limit has passed, the scheduler shuts down,
    /// or another scheduler has taken the run over. The executor then ends the attempt; nothing else does. It may have just ended it.
    fn stop(&self, run: i64, attempt: u32, reason: StopReason);

    /// Ends a process that a dead scheduler left and that still runs: the runs that it had wait for it. Called on a thread of its
    /// own, not twice at the same time for one process, and again at later heartbeats if the process still runs. Does nothing by
    /// default.
    ///
    /// Called for each run of a handler that this executor has. Of the first executor it is also called once at the start for each
    /// process that holds a [`SharedInput`] of a dead scheduler, with runs or without, whatever their handlers: its
    /// [`Orphan::run_id`] is 0, its [`Orphan::attempt`] a number, and it has no task and no handler.
    fn end_orphan(&self, orphan: &Orphan) {
        let _ = orphan;
    }
}

/// Wakes the loop of a scheduler. Cheap to clone. It does nothing when the scheduler has ended.
///
/// ```
/// use std::sync::OnceLock;
/// use duly::executor::Waker;
///
/// static WAKER: OnceLock<Waker> = OnceLock::new();
///
/// /// A process is ready for another attempt. Before `attach`, and after the scheduler has ended, this does nothing.
/// fn ready() {
///     WAKER.get().map(Waker::wake);
/// }
/// ready();
/// ```
#[derive(Clone)]
pub struct Waker {
    wake: Sender<()>,
    /// Not a strong one: the owner lives as long as its scheduler, not as long as an executor.
    owner: Weak<OwnerLock>,
}

impl Waker {
    pub(crate) fn new(wake: Sender<()>, owner: &Arc<OwnerLock>) -> Self {
        Waker { wake, owner: Arc::downgrade(owner) }
    }

    /// Has the loop ask for handlers and free slots again.
    pub fn wake(&self) {
        let _ = self.wake.try_send(());
    }

    /// Creates a locked file for a process to inherit, in the folder beside the database. Pass the file on to the process, under any
    /// descriptor, and keep no copy of it: its lock lives as long as the process.
    ///
    /// # Errors
    /// If the file cannot be created, or the scheduler has ended.
    pub fn share_input(&self) -> io::Result<(SharedInput, File)> {
        let Some(owner) = self.owner.upgrade() else {
            return Err(io::Error::other("create a file for a worker process: its scheduler has ended"));
        };
        SharedInput::create(&owner)
    }

    /// As [`Waker::share_input`], with a file that a process which this one has not started has open and locked: it is moved to the folder
    /// beside the database, and counts as the input of the attempts that the process has.
    #[doc(hidden)]
    pub fn adopt_input(&self, file: &Path) -> io::Result<SharedInput> {
        let Some(owner) = self.owner.upgrade() else {
            return Err(io::Error::other("use the file of an application: its scheduler has ended"));
        };
        SharedInput::adopt(&owner, file)
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").finish_non_exhaustive()
    }
}

/// What an attempt finds of an effect that it wants to begin.
///
/// ```
/// use duly::executor::{Delegated, EffectState};
/// use duly::{BoxError, Failure};
///
/// fn charge(attempt: &Delegated) -> Result<String, BoxError> {
///     match attempt.begin_effect("charge")? {
///         EffectState::Done(receipt) => Ok(receipt),
///         EffectState::InDoubt => Err(Failure::give_up("an earlier attempt may have charged").into()),
///         EffectState::Begin => {
///             let receipt = r#""receipt 1""#.to_owned();
///             attempt.record_effect("charge", &receipt)?;
///             Ok(receipt)
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectState {
    /// The intent is stored: perform it, then call [`Delegated::record_effect`] or [`Delegated::undo_effect`].
    Begin,
    /// An earlier attempt has performed it, with this value: JSON. Do not perform it.
    Done(String),
    /// An earlier attempt began it, and it is not known whether it was performed. Find out, or perform it, and call
    /// [`Delegated::record_effect`]; or end the attempt with a [`Failure`](crate::Failure) that gives up.
    InDoubt,
}

/// An attempt that an executor runs. If it is dropped without an end, the attempt has failed.
///
/// ```
/// use duly::executor::Delegated;
///
/// fn take(attempt: Delegated, is_ready: bool) {
///     if !is_ready {
///         // No process is ready: the run returns to the queue, and the attempt does not count.
///         return attempt.release();
///     }
///     match attempt.context().payload::<u64>() {
///         Ok(number) => attempt.end(Ok(Some((number + 1).to_string()))),
///         Err(error) => attempt.end(Err(error.into())),
///     }
/// }
/// ```
#[must_use = "an attempt that is dropped has failed"]
pub struct Delegated {
    context: Context,
    /// `None`: it has ended.
    began: Option<Began>,
    tools: Arc<LaneTools>,
}

impl Delegated {
    pub(crate) fn new(began: Began, tools: Arc<LaneTools>) -> Self {
        Delegated { context: began.context.clone(), began: Some(began), tools }
    }

    /// Returns what is known of the run, and how to report progress.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Makes the file of a process the input of this attempt, before the process gets the run: if this scheduler is killed, the run
    /// waits until the process is gone. It is not needed for an executor whose attempts end with this process.
    ///
    /// # Errors
    /// If the link cannot be created in the folder beside the database: then the process must not get the run.
    pub fn use_input(&self, input: &SharedInput) -> io::Result<()> {
        let linked = input.link(self.context.run_id(), self.context.attempt())?;
        self.context.reported().input = Some(linked);
        // A link can be removed. The row of a run that lasts says as well which process has it.
        if let Some(process) = input.process() {
            self.context.runs_in(process, self.context.began().monotonic.saturating_add(LONG));
        }
        Ok(())
    }

    /// Begins an effect: commits the intent, unless it was begun or performed before. As [`Context::effect`] for handlers; blocks on
    /// the database.
    ///
    /// # Errors
    /// [`Error::Superseded`](crate::Error::Superseded) if another owner has taken the run. [`Error::Refused`](crate::Error::Refused), in a
    /// [`Failure`](crate::Failure) that gives up, if the key is empty or too long, or the attempt is performing this effect already. An
    /// error of the database. In each case the effect must not be performed.
    pub fn begin_effect(&self, key: &str) -> Result<EffectState, BoxError> {
        Ok(match self.context.begin_effect_apart(key)? {
            Begun::Now => EffectState::Begin,
            Begun::Done(value) => EffectState::Done(value),
            Begun::InDoubt => EffectState::InDoubt,
        })
    }

    /// Stores the value of an effect that was performed, JSON of up to [`MAX_EFFECT_VALUE_BYTES`](crate::MAX_EFFECT_VALUE_BYTES). A value
    /// that another attempt has stored meanwhile stays. Blocks on the database.
    ///
    /// # Errors
    /// If the attempt has not begun this effect. If the value cannot be stored: then the effect is in doubt.
    pub fn record_effect(&self, key: &str, json: &str) -> Result<(), BoxError> {
        self.context.record_effect_apart(key, json)
    }

    /// Removes the intent of an effect that was certainly not performed. Blocks on the database.
    ///
    /// # Errors
    /// If the attempt has not begun this effect. If the intent cannot be removed: then the effect is in doubt.
    pub fn undo_effect(&self, key: &str) -> Result<(), BoxError> {
        self.context.undo_effect_apart(key)
    }

    /// Ends the attempt, as a handler does that returns: with its result as JSON, or with an error, which may be a
    /// [`Failure`](crate::Failure).
    pub fn end(mut self, returned: Result<Option<String>, BoxError>) {
        self.end_with(outcome_of(returned));
    }

    /// Returns the run to the queue: the attempt had not begun, and does not count.
    pub fn release(mut self) {
        self.end_with(Outcome::Released);
    }

    fn end_with(&mut self, outcome: Outcome) {
        if let Some(began) = self.began.take() {
            self.tools.end(began, outcome);
        }
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        self.end_with(Outcome::failed("the executor dropped it before it ended"));
    }
}

impl fmt::Debug for Delegated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delegated").field("context", &self.context).finish_non_exhaustive()
    }
}
