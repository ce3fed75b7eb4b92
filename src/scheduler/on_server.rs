//! What a scheduler needs beside that for a database on a server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::clock::since_boot;
use crate::engine::keeper::Keeper;
use crate::engine::poller::Poller;
use crate::error::Result;
use crate::scheduler::Builder;
use crate::store::place::Place;
use crate::worker::fence::{Fence, OnLease};
use crate::worker::pool::Pool;

/// Starts what keeps the owner alive. `None` for a file. `since`: before the owner was registered.
pub(super) fn keep_alive(
    poller: &mut Poller,
    pool: &Pool,
    (lease, since): (Duration, Duration),
    on_lease: Option<Arc<OnLease>>,
    wake: &Sender<()>,
) -> Result<Option<Keeper>> {
    let Some(session) = poller.take_session() else { return Ok(None) };
    let fence = Arc::new(Fence::new(Arc::new(since_boot), lease, since, on_lease));
    let attempts = pool.attempts().clone();
    let _ = attempts.fence.set(fence.clone());
    Keeper::start(session, fence, attempts, wake.clone()).map(Some)
}

impl Builder {
    /// With a database on a server: calls `extended` whenever the lease is extended, with the times at which the processes of attempts must
    /// be asked to end and be dead, if the lease is not extended again. Both count from the start of the machine, with the time in
    /// which it was suspended. For a guard process, which works while this one is frozen. The function must not block.
    ///
    /// ```no_run
    /// let builder = duly::Scheduler::builder("postgres://duly@db.example/app").on_lease(|ask, dead| {
    ///     // Write both to the guard process. It ends the attempts then, unless this is called again before.
    ///     println!("ask {} dead {}", ask.as_millis(), dead.as_millis());
    /// });
    /// builder.start()?;
    /// # Ok::<(), duly::Error>(())
    /// ```
    pub fn on_lease(mut self, extended: impl Fn(Duration, Duration) + Send + Sync + 'static) -> Self {
        self.on_lease = Some(Arc::new(extended));
        self
    }

    /// Refuses a server that a scheduler cannot work on, as [`Builder::start`] does, before anything is created there.
    #[doc(hidden)]
    pub fn check_server(self) -> Result<Self> {
        Place::of(&self.path)?.check_owner()?;
        Ok(self)
    }

    /// Sets the folder of the files of this host, if the database is on a server: lock files, and what its commands inherit. All
    /// schedulers of a host need the same one, to know at once which of them ended. Default: `DULY_STATE_DIR`, else `duly` in
    /// `XDG_STATE_HOME`, else `/var/lib/duly` for root and `~/.local/state/duly` for other users.
    ///
    /// ```no_run
    /// // All schedulers of this host use the same folder.
    /// let builder = duly::Scheduler::builder("postgres://duly@db.example/app").state_folder("/var/lib/agent");
    /// builder.start()?;
    /// # Ok::<(), duly::Error>(())
    /// ```
    pub fn state_folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.state = Some(folder.as_ref().to_owned());
        self
    }
}
