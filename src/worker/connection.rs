//! A worker's own connection: for what a handler writes down before and after a deed, and for an end that it commits
//! together with rows of its own.
//!
//! Opened when it is first needed, and kept. Every write is fenced by the claim, but for the record that a deed is done.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use rusqlite::{Connection, Transaction};

use crate::clock::Timestamp;
use crate::error::{BoxError, Error, Result};
use crate::host::panics;
use crate::model::event::Event;
use crate::model::finished::{Finished, Recorded};
use crate::model::run::Claim;
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::effects::{self, Known};
use crate::store::sqlite::file::{Durability, Missing};
use crate::store::sqlite::open::Written;
use crate::store::sqlite::runs::{Fence, Success, Wrote};
use crate::store::sqlite::{blocked, delays, settle};

/// How long a worker stands in line at most. Who is first by then is slow, and SQLite will say so.
const LINE: Duration = Duration::from_secs(30);

/// What an application does with each connection that its handlers are to write on.
pub(crate) type Prepare = dyn Fn(&Connection) -> Result<(), BoxError> + Send + Sync;

/// How the workers of one scheduler open theirs.
#[derive(Clone)]
pub(crate) struct ConnectionSettings {
    pub(crate) file: Arc<Path>,
    pub(crate) durability: Durability,
    /// The owner whose claims they work under.
    pub(crate) owner: Arc<str>,
    pub(crate) prepare: Option<Arc<Prepare>>,
    pub(crate) line: WriteQueue,
}

/// The workers of one scheduler write one after another. Of those who wait for its lock SQLite lets in whoever happens to
/// ask at the right moment: of many, one would wait in vain until its patience ends, and its attempt would fail.
#[derive(Clone)]
pub(crate) struct WriteQueue {
    /// Holds nothing while somebody writes.
    free: Receiver<()>,
    leave: Sender<()>,
}

/// A place at the head of the line, left when it is dropped.
struct WriteTurn(Sender<()>);

impl WriteQueue {
    pub(crate) fn new() -> Self {
        let (leave, free) = bounded(1);
        let _ = leave.try_send(());
        WriteQueue { free, leave }
    }

    fn wait(&self) -> Option<WriteTurn> {
        self.free.recv_timeout(LINE).ok().map(|()| WriteTurn(self.leave.clone()))
    }
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

/// One worker's.
#[derive(Debug)]
pub(crate) struct WorkerConnection {
    how: ConnectionSettings,
    store: Option<SqliteStore>,
}

/// What an attempt finds of an effect that it wants to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// Nothing. The intent is committed now: the deed may follow.
    Now,
    /// It is done, and this came of it: JSON.
    Done(String),
    /// It was begun before, and its end is not known.
    InDoubt,
}

impl WorkerConnection {
    pub(crate) fn new(how: ConnectionSettings) -> Self {
        WorkerConnection { how, store: None }
    }

    /// The file that is written to.
    pub(crate) fn file(&self) -> Arc<Path> {
        self.how.file.clone()
    }

    fn store(&mut self) -> Result<&mut SqliteStore> {
        let store = match self.store.take() {
            Some(store) => store,
            None => {
                let ConnectionSettings { file, durability, prepare, .. } = &self.how;
                let store = SqliteStore::open(file, Missing::Refuse, *durability)?;
                if let Some(prepare) = prepare {
                    store.prepare(*durability, &**prepare)?;
                }
                store
            }
        };
        Ok(self.store.insert(store))
    }

    /// As [`SqliteStore::write`], when it is this worker's turn.
    fn write<T>(
        &mut self,
        doing: &'static str,
        f: impl FnOnce(&Transaction<'_>, &mut Schedules) -> Result<T, Fault>,
    ) -> Result<T> {
        self.store()?;
        let _head = self.how.line.wait();
        self.store()?.write(doing, f)
    }

    /// Commits the intent of an effect, unless the effect is known.
    pub(crate) fn begin(&mut self, claim: &Claim, key: &str, now: Timestamp) -> Result<Begun> {
        let (owner, first) = (self.how.owner.clone(), claim.first_id());
        self.write("begin an effect", |tx, _| {
            if !effects::holds(tx, &fence(claim, &owner))? {
                return Err(superseded(claim).into());
            }
            Ok(match effects::known(tx, first, key)? {
                Some(Known::Done(value)) => Begun::Done(value),
                Some(Known::Intent) => Begun::InDoubt,
                None => {
                    effects::intend(tx, first, key, now.max(Timestamp::MIN))?;
                    Begun::Now
                }
            })
        })
    }

    /// Fails if the claim does not hold any more: what was in doubt may not be done under it.
    pub(crate) fn check(&mut self, claim: &Claim) -> Result<()> {
        let owner = self.how.owner.clone();
        let holds = |tx: &Transaction<'_>| Ok(effects::holds(tx, &fence(claim, &owner))?);
        match self.store()?.read("begin an effect", |tx, _| holds(tx))? {
            true => Ok(()),
            false => Err(superseded(claim)),
        }
    }

    /// Writes down that an effect is done. Answers with the value that is known from now on: another attempt may have been
    /// the first to say so.
    pub(crate) fn record(&mut self, claim: &Claim, key: &str, value: &str, now: Timestamp) -> Result<Option<String>> {
        let first = claim.first_id();
        self.write("record an effect", |tx, _| {
            if effects::record(tx, first, key, value, now.max(Timestamp::MIN))? == Wrote::Done {
                return Ok(None);
            }
            match effects::known(tx, first, key)? {
                Some(Known::Done(value)) => Ok(Some(value)),
                _ => Err(superseded(claim).into()),
            }
        })
    }

    /// Takes the intent of an effect back that was not done.
    pub(crate) fn take_back(&mut self, claim: &Claim, key: &str) -> Result<()> {
        let (owner, first) = (self.how.owner.clone(), claim.first_id());
        self.write("take an effect back", |tx, _| {
            // Under a claim that does not hold any more it stays, in doubt.
            let _ = effects::take_back(tx, &fence(claim, &owner), first, key)?;
            Ok(())
        })
    }

    /// Settles a run in one transaction with what `work` writes, which answers with how the attempt ended. Both are
    /// committed, or neither.
    pub(crate) fn finish(
        &mut self,
        claim: &Claim,
        work: impl FnOnce(&Transaction<'_>) -> Result<Finished, BoxError>,
    ) -> Result<Recorded, BoxError> {
        let owner = self.how.owner.clone();
        let mut theirs = None;
        let committed = self.write("finish a run", |tx, schedules| {
            if !effects::holds(tx, &fence(claim, &owner))? {
                return Err(superseded(claim).into());
            }
            let finished = match work(tx) {
                Ok(finished) => finished,
                Err(error) => {
                    theirs = Some(error);
                    return Err(superseded(claim).into());
                }
            };
            if tx.is_autocommit() {
                return Err(refused(claim, "its transaction was ended within: leave BEGIN and COMMIT to duly").into());
            }
            let (blocked, delayed) = (blocked::any_blocked(tx)?, delays::any(tx)?);
            let mut written = Written { blocked, delayed, ..Written::default() };
            // Nothing is drawn: a success is not tried again.
            let mut random = fastrand::Rng::with_seed(0);
            let now = finished.finished_at;
            let mut success = Success::new(tx)?;
            settle::settle(tx, &mut success, schedules, &owner, &finished, now, &mut random, &mut written)?;
            match written.events.pop() {
                Some(Event::Finished { error, next_due, .. }) => Ok(Recorded { error, next_due }),
                // What was written of our own tables within ended the claim.
                _ => Err(superseded(claim).into()),
            }
        });
        match theirs {
            Some(error) => Err(error),
            None => Ok(committed?),
        }
    }
}

fn fence<'a>(claim: &Claim, owner: &'a str) -> Fence<'a> {
    Fence { run: claim.run_id, owner, attempt: claim.attempt }
}

fn superseded(claim: &Claim) -> Error {
    Error::Superseded { task: claim.task.clone(), run: claim.run_id, attempt: claim.attempt }
}

fn refused(claim: &Claim, reason: &str) -> Error {
    Error::Refused { request: format!("finish run {} of {:?}", claim.run_id, claim.task), reason: reason.to_owned() }
}

impl Drop for ConnectionSettings {
    fn drop(&mut self) {
        panics::dispose("the closure given to on_connect", self.prepare.take());
    }
}

impl fmt::Debug for ConnectionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionSettings")
            .field("file", &self.file)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
