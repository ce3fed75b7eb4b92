//! A worker's own connection: for effects, and for an end of a run that is committed together with rows of its handler.
//!
//! It is opened when it is first needed, and kept.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::{Error, Result};
use crate::model::run::Claim;
use crate::store::{Open, Store};

/// How long a worker waits in the queue at most. Then the worker that writes is slow, and the store reports a busy database.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How the workers of one scheduler open their connections.
#[derive(Clone)]
pub(crate) struct ConnectionSettings {
    pub(crate) file: Arc<Path>,
    pub(crate) owner: Arc<str>,
    pub(crate) open: Arc<Open>,
    pub(crate) queue: WorkerQueue,
}

impl ConnectionSettings {
    /// Returns the owner that has claimed a run, perhaps an earlier id of this scheduler.
    fn owner_of<'a>(&'a self, claim: &'a Claim) -> &'a str {
        claim.owner.as_deref().unwrap_or(&self.owner)
    }
}

/// Lets the workers of one scheduler write one after another. SQLite gives its lock to a waiting connection by chance: one of many
/// would wait in vain until its busy timeout ends, and its attempt would fail.
#[derive(Clone)]
pub(crate) struct WorkerQueue {
    /// Empty while a worker writes.
    free: Receiver<()>,
    release: Sender<()>,
}

/// The turn of one worker to write, which ends when it is dropped.
struct WriteTurn(Sender<()>);

impl WorkerQueue {
    pub(crate) fn new() -> Self {
        let (release, free) = bounded(1);
        let _ = release.try_send(());
        WorkerQueue { free, release }
    }

    fn wait(&self) -> Option<WriteTurn> {
        self.free.recv_timeout(LONGEST_WAIT).ok().map(|()| WriteTurn(self.release.clone()))
    }
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

/// The connection of one worker.
#[derive(Debug)]
pub(crate) struct WorkerConnection {
    settings: ConnectionSettings,
    /// With the owner for whose claims it was opened: after a restore of the file it writes nothing for them.
    store: Option<(String, Box<dyn Store>)>,
}

impl WorkerConnection {
    pub(crate) fn new(settings: ConnectionSettings) -> Self {
        WorkerConnection { settings, store: None }
    }

    /// Returns the file of the database.
    pub(crate) fn file(&self) -> Arc<Path> {
        self.settings.file.clone()
    }

    /// Runs `f` when it is this worker's turn to write, with the connection and the id of the owner that has claimed the run.
    pub(crate) fn write<T, E: From<Error>>(
        &mut self,
        claim: &Claim,
        f: impl FnOnce(&mut dyn Store, &str) -> Result<T, E>,
    ) -> Result<T, E> {
        let store = opened(&mut self.store, &self.settings, claim)?;
        let _turn = self.settings.queue.wait();
        f(store, self.settings.owner_of(claim))
    }

    /// As [`WorkerConnection::write`], beside other workers, on a server.
    #[cfg(feature = "postgres")]
    pub(crate) fn write_beside_others<T, E: From<Error>>(
        &mut self,
        claim: &Claim,
        f: impl FnOnce(&mut dyn Store, &str) -> Result<T, E>,
    ) -> Result<T, E> {
        f(opened(&mut self.store, &self.settings, claim)?, self.settings.owner_of(claim))
    }

    /// Fails if the claim is superseded.
    pub(crate) fn check(&mut self, claim: &Claim) -> Result<()> {
        opened(&mut self.store, &self.settings, claim)?.check_claim(self.settings.owner_of(claim), claim)
    }
}

fn opened<'a>(
    store: &'a mut Option<(String, Box<dyn Store>)>,
    settings: &ConnectionSettings,
    claim: &Claim,
) -> Result<&'a mut dyn Store> {
    let owner = settings.owner_of(claim);
    let opened = match store.take() {
        Some(opened) if opened.0 == owner => opened,
        _ => (owner.to_owned(), (settings.open)()?),
    };
    Ok(&mut *store.insert(opened).1)
}

impl fmt::Debug for ConnectionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionSettings")
            .field("file", &self.file)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
