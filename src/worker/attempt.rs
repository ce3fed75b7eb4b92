//! What an attempt runs with: its stop flag, the connection of its worker, the channel to the loop, and what its handler
//! reports.

use std::cell::Cell;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::clock::{ManualClock, Now};
use crate::host::orphan::{Input, PayloadFile};
use crate::host::owner_lock::OwnerLock;
use crate::model::finished::{EffectEnd, Finished, Report, WorkerEnded};
use crate::worker::connection::WorkerConnection;
use crate::worker::effect_steps::Effects;
use crate::worker::progress::LatestReports;

/// Why a handler should stop.
///
/// ```
/// use duly::{BoxError, Context, Failure, StopReason};
/// fn convert(run: &Context) -> Result<(), BoxError> {
///     for page in 1..=500 {
///         match run.stop_reason() {
///             None => println!("page {page}"),
///             Some(StopReason::TimeUp) => return Err(Failure::give_up("too many pages").into()),
///             // After a shutdown or a lost lease this error is an interruption.
///             Some(reason) => return Err(format!("stopped at page {page}: {reason:?}").into()),
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// A user asked for it, or another owner has taken the run.
    Asked,
    /// The time limit has passed.
    TimeUp,
    /// The scheduler shuts down, and its deadline has passed. An error that the handler returns is an interruption:
    /// [`Failure::interrupted`](crate::Failure::interrupted).
    Shutdown,
    /// The attempt has ended. A copy of its [`Context`](crate::Context) that something else keeps reads this.
    Over,
    /// The scheduler could not extend its lease, because the server did not answer for long: another scheduler may take the run over. An
    /// error is an interruption, as after a shutdown.
    LeaseLost,
}

impl StopReason {
    /// Returns whether an error of a handler that was asked to stop for this reason is an interruption.
    pub(crate) fn interrupts(self) -> bool {
        matches!(self, StopReason::Shutdown | StopReason::LeaseLost)
    }
}

/// A request to stop, which a handler can read and wait for.
#[derive(Debug, Default)]
pub(crate) struct StopFlag {
    raised: Mutex<Raised>,
    changed: Condvar,
    #[cfg(feature = "tokio")]
    notify: tokio::sync::Notify,
    /// When the time limit of the attempt passes, by the monotonic clock. Unset before it begins, and without a limit.
    deadline: OnceLock<Duration>,
    /// When the attempt began, until that is taken.
    begun: Mutex<Option<Now>>,
    /// The record of the process that it runs in, and when that is due to be stored, until it is taken.
    process: Mutex<Option<(Duration, Arc<str>)>>,
}

#[derive(Debug, Default)]
struct Raised {
    reason: Option<StopReason>,
    /// How many threads wait for it: to notify none is a system call, too, and the end of each attempt raises the flag.
    waiting: usize,
}

impl StopFlag {
    /// Records when the attempt begins.
    pub(crate) fn begin(&self, now: Now) {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
    }

    /// Records when the time limit of the attempt passes, by the monotonic clock.
    pub(crate) fn limit_to(&self, deadline: Duration) {
        let _ = self.deadline.set(deadline);
    }

    /// Returns when the time limit of the attempt passes, if it has begun and has one.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.deadline.get().copied()
    }

    /// Takes the time at which the attempt began, once, if `when` returns true for it.
    pub(crate) fn take_begun(&self, when: impl Fn(&Now) -> bool) -> Option<Now> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).take_if(|at| when(at))
    }

    /// Keeps the record of the process that the attempt runs in. `due`: when it is to be stored, by the monotonic clock.
    pub(crate) fn runs_in(&self, process: Arc<str>, due: Duration) {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).replace((due, process));
    }

    /// Takes the record of the process, once, when it is due.
    pub(crate) fn take_process(&self, now: Duration) -> Option<Arc<str>> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.take_if(|(due, _)| *due <= now).map(|(_, process)| process)
    }

    /// Requests the stop. The first reason stands.
    pub(crate) fn raise(&self, reason: StopReason) {
        let mut raised = self.lock();
        raised.reason.get_or_insert(reason);
        if raised.waiting > 0 {
            self.changed.notify_all();
        }
        drop(raised);
        #[cfg(feature = "tokio")]
        self.notify.notify_waiters();
    }

    /// Resolves when a stop is requested.
    #[cfg(feature = "tokio")]
    pub(crate) async fn requested(&self) {
        let mut notified = std::pin::pin!(self.notify.notified());
        // Before the flag is read, so that no request in between is missed.
        notified.as_mut().enable();
        if self.raised().is_none() {
            notified.await;
        }
    }

    pub(crate) fn raised(&self) -> Option<StopReason> {
        self.lock().reason
    }

    /// Waits until a stop is requested, at most for `limit`. Returns whether it is.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let mut raised = self.lock();
        raised.waiting += 1;
        let waited = self.changed.wait_timeout_while(raised, limit, |raised| raised.reason.is_none());
        let (mut raised, _) = waited.unwrap_or_else(PoisonError::into_inner);
        raised.waiting -= 1;
        raised.reason.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Raised> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a handler reports beside its result.
#[derive(Default)]
pub(crate) struct Reported {
    pub(crate) output: Option<String>,
    pub(crate) exit_code: Option<i32>,
    /// What is recorded beside the outcome.
    pub(crate) remark: Option<String>,
    /// What held when the work ended, if the handler has reported when that was.
    pub(crate) work_end: Option<WorkEnd>,
    /// What it has reported while it runs.
    pub(crate) latest: Option<Arc<LatestReports>>,
    /// The file of its command's input.
    pub(crate) input: Option<Input>,
    /// The file of the payload of its run. Removed when it is dropped.
    pub(crate) payload: Option<PayloadFile>,
    pub(crate) end: OwnEnd,
    pub(crate) effects: Effects,
}

/// What held when the work of an attempt ended, such as its command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkEnd {
    /// Whether the time limit had passed.
    pub(crate) is_late: bool,
    /// Why the handler had been asked to stop, if it had.
    pub(crate) stop: Option<StopReason>,
    /// When it ended, if that was while this process was stopped.
    pub(crate) at: Option<Now>,
}

/// Whether the handler has recorded the end of its run by itself.
#[derive(Debug, Default)]
pub(crate) enum OwnEnd {
    #[default]
    NotYet,
    /// Its rows are being written.
    Writing,
    Written(Box<Finished>),
    /// The attempt has ended while its rows are being written. If they are committed, that is its end.
    Ending,
    /// The attempt has ended: a copy of its context records nothing more.
    Over,
}

impl Reported {
    /// Returns whether a write is under way that decides how the attempt ended, or what its end has to store.
    pub(crate) fn is_writing(&self) -> bool {
        self.effects.is_beginning() || matches!(self.end, OwnEnd::Writing | OwnEnd::Ending)
    }

    /// Takes what the attempt has left.
    fn take_left(&mut self) -> Left {
        let written = match &mut self.end {
            OwnEnd::Written(_) => match std::mem::replace(&mut self.end, OwnEnd::Over) {
                OwnEnd::Written(finished) => Some(finished),
                _ => None,
            },
            _ => None,
        };
        Left { effects: self.effects.take_left(), written }
    }
}

/// What an attempt has left that has ended, when none of its writes is under way.
pub(crate) struct Left {
    /// What its end has to store of its effects.
    effects: Vec<EffectEnd>,
    /// The end that its handler has stored, since the attempt ended.
    written: Option<Box<Finished>>,
}

impl Left {
    /// Returns the end of the attempt.
    pub(crate) fn of(self, finished: Finished) -> Finished {
        let Left { effects, written } = self;
        let finished = match written {
            Some(written) => {
                finished.remove_input();
                Finished { slot: finished.slot, ..*written }
            }
            None => finished,
        };
        Finished { effects, ..finished }
    }
}

/// What an attempt runs with.
#[derive(Clone)]
pub(crate) struct Tools {
    /// What the handler reports. It outlives a handler that panics.
    pub(crate) reported: Arc<Mutex<Reported>>,
    /// The worker's own connection.
    pub(crate) connection: Arc<Mutex<WorkerConnection>>,
    pub(crate) file: Arc<Path>,
    /// The channel to the loop, and the owner's lock, which knows the database. `None` under a stepper.
    pub(crate) link: Option<Link>,
    /// The clock of a stepper, which a handler that waits advances.
    pub(crate) manual: Option<ManualClock>,
    /// Held while a thread of the runtime uses the connection for this attempt.
    #[cfg(feature = "tokio")]
    pub(crate) gate: Arc<tokio::sync::Semaphore>,
}

impl Tools {
    pub(crate) fn new(connection: Arc<Mutex<WorkerConnection>>, link: Option<Link>) -> Self {
        let file = connection.lock().unwrap_or_else(PoisonError::into_inner).file();
        Tools {
            reported: Arc::default(),
            connection,
            file,
            link,
            manual: None,
            #[cfg(feature = "tokio")]
            gate: Arc::new(tokio::sync::Semaphore::new(1)),
        }
    }

    /// Returns those of another attempt, which shares the connection.
    pub(crate) fn anew(&self) -> Self {
        Tools { reported: Arc::default(), ..self.clone() }
    }

    pub(crate) fn reported(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with what the attempt has left: at once, or when the write of an intent or of its rows has ended that is under way. The
    /// attempt is over, and begins none any more.
    pub(crate) fn with_left(&self, f: impl FnOnce(Left) + Send + 'static) {
        let mut held = self.reported();
        if held.is_writing() {
            let reported = self.reported.clone();
            let take = move || reported.lock().unwrap_or_else(PoisonError::into_inner).take_left();
            held.effects.then = Some(Box::new(move || f(take())));
            return;
        }
        let left = held.take_left();
        drop(held);
        f(left);
    }

    /// As [`Tools::with_left`], and waits. Returns the end of the attempt.
    pub(crate) fn left_of(&self, finished: Finished) -> Finished {
        let left = {
            let mut reported = self.reported();
            (!reported.is_writing()).then(|| reported.take_left())
        };
        // Nearly every attempt ends here, and a channel for it is allocated.
        if let Some(left) = left {
            return left.of(finished);
        }
        let (send, left) = crossbeam_channel::bounded(1);
        self.with_left(move |left| drop(send.send(left)));
        match left.recv() {
            Ok(left) => left.of(finished),
            Err(_) => finished,
        }
    }
}

/// What a worker sends to the loop while an attempt runs.
#[derive(Debug)]
pub(crate) enum Notice {
    /// To be recorded.
    Report(Report),
    /// The attempt has new progress or output.
    Reports(Arc<LatestReports>),
    /// The worker itself ended.
    WorkerEnded(WorkerEnded),
}

/// A worker's link to its scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) notices: Sender<Notice>,
    /// The owner is alive as long as one of its workers is.
    pub(crate) alive: Arc<OwnerLock>,
}

thread_local! {
    /// The attempts of the scheduler of which this thread runs a handler, by their address.
    static RUNS_FOR: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Ends what [`within`] has begun.
struct Within(Option<usize>);

impl Drop for Within {
    fn drop(&mut self) {
        RUNS_FOR.set(self.0);
    }
}

/// Returns the attempts of the scheduler of which this thread runs a handler, by their address.
pub(crate) fn runs_for() -> Option<usize> {
    RUNS_FOR.get()
}

/// Calls code of a handler of the scheduler with these attempts.
pub(crate) fn within<T>(attempts: Option<usize>, f: impl FnOnce() -> T) -> T {
    let _within = Within(RUNS_FOR.replace(attempts));
    f()
}

/// Returns `f` for another thread: called there, it can be told from other callers as [`within`] on this thread.
#[cfg(feature = "tokio")]
pub(crate) fn carried<T>(f: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let owner = runs_for();
    move || within(owner, f)
}
