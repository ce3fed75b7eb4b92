//! What a scheduler reads of all rows, answered by the server: when the next task, run and expiry are due, and the other owners.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::host::orphan;
use crate::schedule::rules_of;
use crate::store::fault::Fault;
use crate::store::postgres::server::Server;
use crate::store::postgres::text;
use crate::store::sqlite::sql::sql;
use crate::store::turn_io::{Done, Other, Session};

/// `$1` the owner, `$2` its handlers, `$3` the time, `NULL`: the server's.
const LOOK_AHEAD: &str = sql!(file "look_ahead.sql");

/// A question about all rows.
#[derive(Clone, Debug)]
pub(crate) struct LookAhead {
    pub(crate) owner: String,
    pub(crate) handlers: Vec<String>,
    /// `None`: the server's time.
    pub(crate) now: Option<Timestamp>,
}

/// The answer.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) stop: Vec<i64>,
    pub(crate) others: Vec<Other>,
    pub(crate) declared_gone: Vec<i64>,
    pub(crate) next_due: Option<Timestamp>,
    pub(crate) next_claimable: Option<Timestamp>,
    pub(crate) next_expiry: Option<Timestamp>,
    pub(crate) next_opening: Option<Timestamp>,
    /// Whether a run has expired, or a row is to be planned.
    pub(crate) more_unplanned: bool,
    pub(crate) data_version: i64,
    /// The version of the tables.
    pub(crate) tables: Option<String>,
    pub(crate) now: Timestamp,
}

impl LookAhead {
    pub(crate) fn new(owner: &str, handlers: &BTreeSet<String>, now: Option<Timestamp>) -> Self {
        LookAhead { owner: owner.to_owned(), handlers: text::findable(handlers), now }
    }

    pub(crate) fn ask(&self, server: &mut Server) -> Result<Seen, Fault> {
        let now = self.now.map(Timestamp::as_millis);
        let rows = server.query(LOOK_AHEAD, &[&self.owner, &self.handlers, &now])?;
        let row = &rows[0];
        let time = |millis: Option<i64>| millis.map(Timestamp::from_millis);
        let clamped =
            |millis: i64| Timestamp::from_millis(millis.clamp(Timestamp::MIN.as_millis(), Timestamp::MAX.as_millis()));
        let (starts, opens): (Vec<Option<i64>>, Vec<Option<i64>>) = (row.try_get(2)?, row.try_get(3)?);
        let next_claimable = starts
            .into_iter()
            .zip(opens)
            .filter_map(|(starts, opens)| time(starts).map(|starts| opens.map_or(starts, |at| clamped(at).max(starts))))
            .min();
        let (owners, untils, leases): (Vec<String>, Vec<i64>, Vec<i64>) =
            (row.try_get(5)?, row.try_get(6)?, row.try_get(7)?);
        let others = owners.into_iter().zip(untils).zip(leases).map(|((owner, until), lease)| Other {
            owner,
            until: Timestamp::from_millis(until),
            lease: Duration::from_millis(u64::try_from(lease).unwrap_or_default()),
            session: Session::Held { here: false },
        });
        let (stopping, processes): (Vec<i64>, Vec<String>) = (row.try_get(8)?, row.try_get(9)?);
        let declared = stopping.into_iter().zip(processes).filter(|(_, process)| orphan::is_declaration(process));
        let (more_unplanned, zones, rules): (bool, Vec<String>, Vec<String>) =
            (row.try_get(10)?, row.try_get(11)?, row.try_get(12)?);
        let is_zone_marked = zones.iter().zip(rules).any(|(zone, rules)| rules_of(zone).as_ref() == Some(&rules));
        Ok(Seen {
            next_due: time(row.try_get(0)?),
            next_expiry: time(row.try_get(1)?),
            next_claimable,
            stop: row.try_get(4)?,
            others: others.collect(),
            declared_gone: declared.map(|(run, _)| run).collect(),
            more_unplanned: more_unplanned || is_zone_marked,
            data_version: row.try_get(13)?,
            tables: row.try_get(14)?,
            next_opening: time(row.try_get(15)?),
            now: Timestamp::from_millis(row.try_get(16)?),
        })
    }
}

impl Seen {
    /// Puts the answers into what a turn or a look returns, except whether more is due.
    pub(crate) fn into_done(self, done: Done) -> Done {
        let Seen { stop, others, declared_gone, next_due, next_claimable, next_expiry, data_version, .. } = self;
        let next_opening = self.next_opening;
        Done { stop, others, declared_gone, next_due, next_claimable, next_expiry, next_opening, data_version, ..done }
    }
}
