//! What a connection knows of the history of its file: see [`restore`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::store::fault::Fault;
use crate::store::sqlite::connection::write_queue::WriteQueue;
use crate::store::sqlite::ids::Ids;
use crate::store::sqlite::own_triggers::{self, OwnTriggers};
use crate::store::sqlite::restore::held::HeldBack;
use crate::store::sqlite::restore::seen::{HighestIds, History, Seen};
use crate::store::sqlite::restore::{self, Claims, Compared, Knowledge};

/// What a connection is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Requests, which are as good in another history.
    Requests,
    /// Claims of one history.
    Claims,
    /// Claims of a history that has ended: it writes nothing until an owner registers on it.
    EndedClaims,
}

/// What a transaction of an owner finds at its begin.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// The schema cookie.
    pub(crate) cookie: i64,
    /// Whether the schema has changed since this owner compared its claims: by a restore that nothing shows, or otherwise.
    pub(crate) has_changed: bool,
    pub(crate) held_back: Option<HeldBack>,
    /// The highest id of a run.
    pub(crate) newest_run: i64,
}

/// A transaction that writes, and what it has found before it writes anything.
pub(super) struct Begun<'c> {
    connection: &'c Connection,
    tx: Transaction<'c>,
    pub(super) seen: Seen,
}

impl<'c> Begun<'c> {
    pub(super) fn new(connection: &'c Connection) -> rusqlite::Result<Self> {
        let tx = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
        let seen = Seen::read(&tx)?;
        Ok(Begun { connection, tx, seen })
    }
}

/// What the connections of this process to one file share.
#[derive(Debug, Default)]
struct Shared {
    /// The highest ids that they have given out or found, and the history that those are of.
    given_out: Mutex<(String, HighestIds)>,
    queue: Arc<WriteQueue>,
}

/// That of each open file, by its identity.
static OPEN: Mutex<BTreeMap<(u64, u64), Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// Returns what the connections to a file share.
fn shared(file: Option<(u64, u64)>) -> Arc<Shared> {
    let Some(file) = file else { return Arc::default() };
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|_, shared| shared.strong_count() > 0);
    open.get(&file).and_then(Weak::upgrade).unwrap_or_else(|| {
        let shared = Arc::default();
        open.insert(file, Arc::downgrade(&shared));
        shared
    })
}

/// What a connection knows of the history of its file.
#[derive(Debug)]
pub(super) struct KnownHistory {
    /// The history that the last transaction found, and the highest ids; `None` before the first one that writes.
    pub(super) known: Option<(History, HighestIds)>,
    /// The highest ids in the record beside the file, as this connection wrote it last.
    pub(super) recorded: HighestIds,
    /// What the connection is used for, and what follows from a restore.
    pub(super) purpose: Purpose,
    shared: Arc<Shared>,
    /// The ids that the next rows get.
    pub(super) ids: Ids,
    triggers: OwnTriggers,
    /// Whether a transaction has found that the schema changed, and no turn has compared the claims of its owner since.
    uncompared: bool,
}

impl KnownHistory {
    /// `file`: its identity.
    pub(super) fn new(file: Option<(u64, u64)>) -> Self {
        let (recorded, ids, shared) = (HighestIds::default(), Ids::default(), shared(file));
        let triggers = OwnTriggers::default();
        KnownHistory { known: None, recorded, purpose: Purpose::Requests, shared, ids, triggers, uncompared: false }
    }

    /// A transaction is committed, after which these are the highest ids. `compares`: it was that of an owner.
    pub(super) fn committed(&mut self, ids: HighestIds, compares: bool) {
        self.uncompared &= !compares;
        self.gave_out(ids);
    }

    /// These ids were given out, or found.
    pub(super) fn gave_out(&self, ids: HighestIds) {
        let (history, highest) = &mut *self.given_out();
        // Otherwise another history has begun since.
        if self.known.as_ref().is_some_and(|(known, _)| known.id == *history) {
            *highest = highest.max(ids);
        }
    }

    fn given_out(&self) -> MutexGuard<'_, (String, HighestIds)> {
        self.shared.given_out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the queue in which the connections to the file write.
    pub(super) fn queue(&self) -> Arc<WriteQueue> {
        self.shared.queue.clone()
    }

    /// Compares what a transaction has found at its begin with what is known. If the file went back, that is settled in this transaction,
    /// and another one is returned. Fails if the connection has claims of a history that has ended. `expected`: the attempts of the owner
    /// that takes its turn.
    pub(super) fn compare<'c>(
        &mut self,
        mut begun: Begun<'c>,
        database: &Path,
        expected: Option<(&str, &Claims)>,
    ) -> Result<(Transaction<'c>, Beginning), Fault> {
        if self.purpose == Purpose::EndedClaims {
            return Err(restore::ended(database));
        }
        let has_changed = self.known.as_ref().is_some_and(|(known, _)| *known != begun.seen.history);
        self.uncompared |= has_changed;
        if self.known.is_none() || has_changed || (self.uncompared && expected.is_some()) {
            let before = self.known.as_ref().map_or(&begun.seen.history, |(known, _)| known).id.clone();
            own_triggers::fire(&begun.tx)?;
            begun = self.settled(begun, database, expected)?;
            if begun.seen.history.id != before {
                self.ids = Ids::default();
                if self.purpose == Purpose::Claims {
                    self.purpose = Purpose::EndedClaims;
                }
            }
        }
        let Begun { tx, seen: Seen { history, held, ids, .. }, .. } = begun;
        self.triggers.decide(&tx, history.cookie, expected.is_some())?;
        let has_changed = expected.is_some() && self.uncompared;
        let held_back = held.as_deref().map(HeldBack::parse);
        let beginning = Beginning { cookie: history.cookie, has_changed, held_back, newest_run: ids.runs };
        if self.given_out().0 != history.id {
            *self.given_out() = (history.id.clone(), ids);
        }
        self.known = Some((history, ids));
        self.gave_out(ids);
        if self.purpose == Purpose::EndedClaims { Err(restore::ended(database)) } else { Ok((tx, beginning)) }
    }

    /// Compares the file with all that is known of it. What follows is committed before anything else is written.
    fn settled<'c>(
        &self,
        begun: Begun<'c>,
        database: &Path,
        expected: Option<(&str, &Claims)>,
    ) -> Result<Begun<'c>, Fault> {
        let registering = expected.map(|(owner, _)| owner).filter(|_| self.purpose == Purpose::Requests);
        let known = self.known.as_ref().map(|(known, ids)| (known, *ids));
        let Begun { connection, tx, seen } = &begun;
        let given_out =
            Some(&*self.given_out()).filter(|(history, _)| *history == seen.history.id).map(|(_, ids)| *ids);
        let given_out = given_out.unwrap_or_default();
        let knowledge = Knowledge { database, known, given_out, registering, expected };
        match knowledge.compare(tx, seen)? {
            Compared::GoesOn => return Ok(begun),
            Compared::WentBack(what) => restore::begin(tx, &knowledge, seen, &what)?,
            Compared::LostCommits(what) => restore::go_on(tx, &knowledge, seen, &what)?,
        }
        let connection = *connection;
        begun.tx.commit()?;
        Ok(Begun::new(connection)?)
    }

    /// Returns whether the schema is the one that is known.
    pub(super) fn is_at(&self, cookie: i64) -> bool {
        self.known.as_ref().is_some_and(|(known, _)| known.cookie == cookie)
    }

    pub(super) fn is(&self, history: &History) -> bool {
        self.known.as_ref().is_some_and(|(known, _)| known == history)
    }
}
