//! How far a long piece of work has come, for somebody who looks on from another thread. The work never waits for whoever
//! looks: it has a transaction in its hands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a long piece of work has come. Clones look at the same one.
///
/// ```
/// use duly::{Progress, Apply, Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let advance = Progress::default();
/// // Of what has not begun, nobody knows how much there is.
/// assert_eq!(advance.share(), None);
/// let tasks = (0..100).map(|number| NewTask::cron(format!("task-{number}"), "@daily").handler("digest"));
/// Client::open(&file)?.apply_watched("tasks.toml", tasks, Apply::default(), &advance)?;
/// assert_eq!((advance.done(), advance.total(), advance.share()), (100, 100, Some(1.0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Progress {
    counts: Arc<[AtomicU64; 2]>,
}

impl Progress {
    /// How much is done: rows or bytes, as the work counts them.
    pub fn done(&self) -> u64 {
        self.counts[0].load(Ordering::Relaxed)
    }

    /// How much there is to do, as far as that is known; 0 before it begins.
    pub fn total(&self) -> u64 {
        self.counts[1].load(Ordering::Relaxed)
    }

    /// The part that is done, 0 to 1; `None` as long as nobody knows how much there is.
    pub fn share(&self) -> Option<f64> {
        let (done, total) = (self.done(), self.total());
        // A part of two counts that change one after the other may be more than the whole for a moment.
        (total > 0).then(|| (done as f64 / total as f64).min(1.0))
    }

    /// Says how far it has come; for somebody who shows work of their own beside ours.
    ///
    /// ```
    /// let advance = duly::Progress::default();
    /// advance.set(3, 2);
    /// // More than all is all.
    /// assert_eq!((advance.done(), advance.share()), (3, Some(1.0)));
    /// ```
    pub fn set(&self, done: u64, total: u64) {
        self.total_is(total);
        self.reach(done);
    }

    pub(crate) fn total_is(&self, total: u64) {
        self.counts[1].store(total, Ordering::Relaxed);
    }

    pub(crate) fn reach(&self, done: u64) {
        self.counts[0].store(done, Ordering::Relaxed);
    }

    /// All is done, whatever was expected.
    pub(crate) fn complete(&self) {
        self.reach(self.total());
    }
}
