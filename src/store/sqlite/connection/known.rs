//! What a connection knows of the history of its file: see [`restore`].

use std::path::Path;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::store::fault::Fault;
use crate::store::sqlite::ids::Ids;
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

/// Whether the schema has changed since the last transaction of a connection, by a restore that nothing shows, or otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schema {
    AsBefore,
    Changed,
}

/// What a transaction of an owner finds at its begin.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// The schema cookie.
    pub(crate) cookie: i64,
    pub(crate) schema: Schema,
    pub(crate) held: Option<HeldBack>,
    /// The highest id of a run.
    pub(crate) newest_run: i64,
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
    /// Whether a transaction has found that the schema changed, and no turn has compared the claims of its owner since.
    uncompared: bool,
}

impl KnownHistory {
    pub(super) fn new() -> Self {
        KnownHistory { known: None, recorded: HighestIds::default(), purpose: Purpose::Requests, uncompared: false }
    }

    /// Compares what a transaction has found at its begin with what is known, before it writes anything else. If the file went back, that
    /// is settled in this transaction, and another one is returned. Fails if the connection has claims of a history that has ended.
    pub(super) fn compare<'c>(
        &mut self,
        (connection, transaction): (&'c Connection, Transaction<'c>),
        mut seen: Seen,
        (database, expected): (&Path, Option<(&str, &Claims)>),
        ids: &mut Ids,
    ) -> Result<(Transaction<'c>, Seen, Schema), Fault> {
        if self.purpose == Purpose::EndedClaims {
            return Err(restore::ended(database));
        }
        let must_compare = self.uncompared && expected.is_some();
        if !must_compare && self.known.as_ref().is_some_and(|(known, _)| *known == seen.history) {
            self.known = Some((seen.history.clone(), seen.ids));
            return Ok((transaction, seen, Schema::AsBefore));
        }
        let registering = expected.map(|(owner, _)| owner).filter(|_| self.purpose == Purpose::Requests);
        let known = self.known.as_ref().map(|(known, ids)| (known, *ids));
        let knowledge = Knowledge { database, known, registering, expected, must_compare };
        let settled = match knowledge.compare(&transaction, &seen)? {
            Compared::GoesOn => None,
            Compared::WentBack(what) => Some(restore::begin(&transaction, &knowledge, &seen, &what)?),
            Compared::LostCommits(what) => Some(restore::go_on(&transaction, &knowledge, &seen, &what)?),
        };
        let now = settled.as_ref().map_or(&seen.history, |(history, _)| history);
        let is_another = self.known.as_ref().map_or(now.id != seen.history.id, |(known, _)| known.id != now.id);
        if is_another {
            *ids = Ids::default();
        }
        let mut transaction = transaction;
        if settled.is_some() {
            transaction.commit()?;
            transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            seen = Seen::read(&transaction)?;
        }
        if is_another && self.purpose == Purpose::Claims {
            self.purpose = Purpose::EndedClaims;
            self.known = Some(settled.unwrap_or((seen.history, seen.ids)));
            return Err(restore::ended(database));
        }
        let schema = if self.known.is_some() { Schema::Changed } else { Schema::AsBefore };
        self.known = Some((seen.history.clone(), seen.ids));
        self.uncompared = schema == Schema::Changed && expected.is_none();
        Ok((transaction, seen, schema))
    }

    /// Returns whether the schema is the one that is known.
    pub(super) fn is_at(&self, cookie: i64) -> bool {
        self.known.as_ref().is_some_and(|(known, _)| known.cookie == cookie)
    }

    pub(super) fn is(&self, history: &History) -> bool {
        self.known.as_ref().is_some_and(|(known, _)| known == history)
    }
}
