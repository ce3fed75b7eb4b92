//! What is known of the end of a scheduler.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::model::run::Claim;

/// The result of a shutdown.
///
/// ```
/// use std::time::Duration;
/// use duly::Scheduler;
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let scheduler = Scheduler::builder(&file).start()?;
/// // Nothing is running: it does not wait for the deadline.
/// assert_eq!(scheduler.shutdown(Duration::from_secs(30))?.unfinished, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Shutdown {
    /// Runs whose handler had not returned by the deadline, or whose end could not be recorded. Each is still recorded when
    /// that is possible; if the process ends before, the next scheduler recovers the run.
    pub unfinished: usize,
    /// Their attempts, in the order of the runs.
    pub attempts: Vec<Arc<Claim>>,
}

impl Shutdown {
    pub(crate) fn new(mut attempts: Vec<Arc<Claim>>) -> Self {
        attempts.sort_unstable_by_key(|claim| (claim.run_id, claim.attempt));
        Shutdown { unfinished: attempts.len(), attempts }
    }
}

/// Waits for the end of a scheduler, on any thread, also while another thread shuts it down. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use duly::Scheduler;
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let scheduler = Scheduler::builder(&file).start()?;
/// let ending = scheduler.ending();
/// assert_eq!(ending.wait_timeout(Duration::ZERO), None, "it runs");
/// let supervisor = std::thread::spawn(move || ending.wait());
/// scheduler.shutdown(Duration::from_secs(5))?;
/// // It ended in order. If it had stopped by itself, this would say why.
/// assert_eq!(supervisor.join().unwrap(), Ok(()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<(Mutex<Option<Ended>>, Condvar)>);

/// How a scheduler ended: in order, or by itself, with the reason.
type Ended = std::result::Result<(), String>;

impl Ending {
    /// Waits until the scheduler has stopped: in order, or by itself, with the reason as the error ([`Scheduler::wait`](crate::Scheduler::wait)).
    ///
    /// # Errors
    /// Why it stopped by itself.
    pub fn wait(&self) -> Ended {
        let (ended, told) = &*self.0;
        let ended = told.wait_while(lock(ended), |ended| ended.is_none()).unwrap_or_else(PoisonError::into_inner);
        ended.clone().unwrap_or(Ok(()))
    }

    /// As [`Ending::wait`], for this long at most. `None`: it has not stopped.
    pub fn wait_timeout(&self, limit: Duration) -> Option<Ended> {
        let (ended, told) = &*self.0;
        let waited = told.wait_timeout_while(lock(ended), limit, |ended| ended.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Calls `f` on the thread of the scheduler, and records how it ended.
    pub(crate) fn after<T>(self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut at_end = AtEnd { ending: self, ended: Err("its thread panicked".to_owned()) };
        let done = f();
        at_end.ended = done.as_ref().map(|_| ()).map_err(Error::to_string);
        done
    }
}

/// Records an end, also after a panic.
struct AtEnd {
    ending: Ending,
    ended: Ended,
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        let (ended, told) = &*self.ending.0;
        *lock(ended) = Some(self.ended.clone());
        told.notify_all();
    }
}

fn lock(ended: &Mutex<Option<Ended>>) -> MutexGuard<'_, Option<Ended>> {
    ended.lock().unwrap_or_else(PoisonError::into_inner)
}
