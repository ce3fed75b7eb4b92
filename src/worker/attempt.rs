//! What an attempt is carried out with: a way to be asked to stop, a connection of its worker's, a way to the loop; and what
//! its handler says meanwhile.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::clock::Now;
use crate::host::orphan::{Input, PayloadFile};
use crate::host::owner_lock::OwnerLock;
use crate::model::finished::{Finished, Report, WorkerEnded};
use crate::worker::connection::WorkerConnection;
use crate::worker::progress::LatestProgress;

/// Why a handler should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// Somebody asked for it, or another owner has taken the run.
    Asked,
    /// Its time is up.
    TimeUp,
    /// The scheduler leaves, and its deadline has passed.
    Shutdown,
}

/// A request to stop, which a handler can look at and wait for.
#[derive(Debug, Default)]
pub(crate) struct StopFlag {
    raised: Mutex<Option<StopReason>>,
    changed: Condvar,
    /// When the attempt began, until that is taken.
    begun: Mutex<Option<Now>>,
}

impl StopFlag {
    /// Notes when the attempt begins.
    pub(crate) fn begin(&self, now: Now) {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
    }

    /// Takes when the attempt began, once, if `when` holds of it.
    pub(crate) fn take_begun(&self, when: impl Fn(&Now) -> bool) -> Option<Now> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).take_if(|at| when(at))
    }

    /// Asks. What was asked first stands.
    pub(crate) fn raise(&self, reason: StopReason) {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.changed.notify_all();
    }

    pub(crate) fn raised(&self) -> Option<StopReason> {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is raised, at most so long; whether it is.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(raised, limit, |raised| raised.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }
}

/// What a handler says beside its result.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) output: Option<String>,
    pub(crate) exit_code: Option<i32>,
    /// What is recorded beside the outcome.
    pub(crate) remark: Option<String>,
    /// Whether the time limit had passed when the work ended, if the handler has said when that was.
    pub(crate) late: Option<bool>,
    pub(crate) progress: Option<Arc<LatestProgress>>,
    /// The file of its command's input.
    pub(crate) input: Option<Input>,
    /// The file of the payload of its run. Removed when it is dropped.
    pub(crate) payload: Option<PayloadFile>,
    pub(crate) end: OwnEnd,
    /// Effects that the attempt is at.
    pub(crate) at_work: BTreeSet<String>,
}

/// Whether the handler has recorded the end of its run by itself.
#[derive(Debug, Default)]
pub(crate) enum OwnEnd {
    #[default]
    NotYet,
    /// Its rows are being written.
    Writing,
    Written(Box<Finished>),
}

/// What an attempt is carried out with.
#[derive(Clone)]
pub(crate) struct Tools {
    /// What the handler says. It outlives a handler that panics.
    pub(crate) said: Arc<Mutex<Said>>,
    /// The worker's own connection.
    pub(crate) connection: Arc<Mutex<WorkerConnection>>,
    pub(crate) file: Arc<Path>,
    /// The way to the loop, and the owner's lock, which knows the database. None under a stepper.
    pub(crate) link: Option<Link>,
}

impl Tools {
    pub(crate) fn new(connection: Arc<Mutex<WorkerConnection>>, link: Option<Link>) -> Self {
        let file = connection.lock().unwrap_or_else(PoisonError::into_inner).file();
        Tools { said: Arc::default(), connection, file, link }
    }

    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker tells the loop while an attempt goes on.
#[derive(Debug)]
pub(crate) enum Notice {
    /// To be written down.
    Report(Report),
    /// There are new words about its progress.
    Progress(Arc<LatestProgress>),
    /// The worker itself ended.
    WorkerEnded(WorkerEnded),
}

/// What a worker has of its scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) notices: Sender<Notice>,
    /// The owner is alive as long as one of its workers is.
    pub(crate) alive: Arc<OwnerLock>,
}
