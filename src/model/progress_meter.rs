//! The progress of a long operation, for an observer in another thread. The operation never waits for the observer,
//! since it may hold a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The progress of a long operation. Clones share the same counts.
///
/// ```
/// use duly::{Progress, Apply, Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let progress = Progress::default();
/// // Before the operation begins, its size is unknown.
/// assert_eq!(progress.share(), None);
/// let tasks = (0..100).map(|number| NewTask::cron(format!("task-{number}"), "@daily").handler("digest"));
/// Client::open(&file)?.apply_watched("tasks.toml", tasks, Apply::default(), &progress)?;
/// assert_eq!((progress.done(), progress.total(), progress.share()), (100, 100, Some(1.0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Progress {
    counts: Arc<[AtomicU64; 2]>,
}

impl Progress {
    /// Returns how much is done, in rows or bytes, depending on the operation.
    pub fn done(&self) -> u64 {
        self.counts[0].load(Ordering::Relaxed)
    }

    /// Returns the size of the operation in the same unit, as far as it is known; 0 before it begins.
    pub fn total(&self) -> u64 {
        self.counts[1].load(Ordering::Relaxed)
    }

    /// Returns the completed fraction, 0 to 1; `None` while the size is unknown.
    pub fn share(&self) -> Option<f64> {
        let (done, total) = (self.done(), self.total());
        // The two counts change one after the other, so their quotient may exceed 1 for a moment.
        (total > 0).then(|| (done as f64 / total as f64).min(1.0))
    }

    /// Sets both counts, for an application that reports an operation of its own.
    ///
    /// ```
    /// let progress = duly::Progress::default();
    /// progress.set(3, 2);
    /// // The fraction is at most 1.
    /// assert_eq!((progress.done(), progress.share()), (3, Some(1.0)));
    /// ```
    pub fn set(&self, done: u64, total: u64) {
        self.set_total(total);
        self.set_done(done);
    }

    pub(crate) fn set_total(&self, total: u64) {
        self.counts[1].store(total, Ordering::Relaxed);
    }

    pub(crate) fn set_done(&self, done: u64) {
        self.counts[0].store(done, Ordering::Relaxed);
    }

    /// Sets the done count to the total.
    pub(crate) fn complete(&self) {
        self.set_done(self.total());
    }
}
