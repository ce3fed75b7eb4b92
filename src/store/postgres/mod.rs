//! The store in PostgreSQL: the same tables, rules and operations as in SQLite, on a server.
//!
//! An operation is one transaction. It reads the rows that it may need by a few statements, works on them in the tables of an SQLite
//! database in memory, and writes back by sets what changed: see [`workbench`]. Every transaction that writes holds the advisory lock of
//! the schema, except those that only end runs that succeeded ([`plain`]) or add new tasks ([`add`]).

mod add;
#[cfg(test)]
mod add_tests;
pub(crate) mod address;
#[cfg(test)]
mod address_tests;
mod client;
mod connect;
mod counts;
mod examine;
mod fault;
#[cfg(test)]
mod fault_tests;
mod finish;
mod holder;
#[cfg(test)]
mod holder_tests;
mod json;
mod look_ahead;
mod matching;
pub(crate) mod migrate;
mod operations;
mod outbox;
mod outcome;
mod owner_session;
mod owners;
mod password_file;
mod plain;
#[cfg(test)]
mod plain_tests;
mod prune;
mod reach;
mod refusals;
mod registration;
mod rights;
mod schema;
#[cfg(test)]
mod schema_tests;
mod server;
#[cfg(test)]
mod server_tests;
mod session;
mod sheets;
#[cfg(test)]
mod standby_tests;
mod stream;
mod tables;
#[cfg(test)]
pub(crate) mod testing;
mod text;
mod tls;
#[cfg(test)]
mod tls_tests;
mod turn;
#[cfg(test)]
mod turn_tests;
#[cfg(test)]
mod values_tests;
mod workbench;
mod write_back;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::clock::server::ServerClock;
use crate::error::{Error, Result};
use crate::model::bulk::BulkPass;
use crate::model::filter::Selection;
use crate::store::Store as _;
use crate::store::fault::Fault;
use crate::store::postgres::address::Address;
use crate::store::postgres::owner_session::OwnerConnection;
use crate::store::postgres::reach::Reach;
use crate::store::postgres::refusals::Refusals;
use crate::store::postgres::server::{Access, Server};
use crate::store::postgres::workbench::{Shared, Workbench};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::file::Missing;

/// How often a transaction is repeated because another program changed what it had read.
const TRIES: usize = 5;
/// Tasks that are listed at once, out of any number.
const LISTED_AT_ONCE: usize = 5_000;

/// Whose time the operations use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// The server's, read when the lock was granted.
    OfServer,
    /// That of the caller, for tests that step through a year in a second.
    Given,
}

/// A connection to the tables on a server.
#[derive(Debug)]
pub(crate) struct PostgresStore {
    memory: SqliteStore,
    bench: Shared,
    time: Time,
    /// Learns the server's time from each transaction.
    clock: Option<Arc<ServerClock>>,
    /// The server's time at the first transaction of the last turn, if operations use it.
    begun_at: Option<Timestamp>,
    address: Address,
    /// Whether each turn is rehearsed with all rows, and must do the same with those that it reads.
    rehearses: bool,
    /// Of the owner that registered on this connection, until a thread of its own takes it.
    session: Option<OwnerConnection>,
    /// What a wrong clock had shown, if all is planned again and the turn after that has not been taken, and how many of its clock
    /// events are recorded.
    rewound: Option<(Timestamp, usize)>,
    /// Attempts whose end is stored, and what follows from it is not.
    ended: HashSet<(i64, u32)>,
    plain: plain::Tries,
    /// Whether the last turn left the look after it to the poller, which has not looked since.
    owes_look: bool,
    /// Whether the last turn with outcomes was plain, and ends of its runs were stored while another scheduler held the lock. They take no
    /// place among its items.
    ends_beside: bool,
    /// Whether the task that is added next is likely to be new, as all were that were added last.
    adds_new: bool,
    /// Whether each operation reads all rows.
    #[cfg(test)]
    reads_all: bool,
}

impl PostgresStore {
    /// Connects, and creates the tables if `missing` says so.
    pub(crate) fn open(address: &Address, missing: Missing, time: Time) -> Result<Self> {
        Self::try_open(address, missing, time).map_err(|fault| refused(address, fault).into_error("open the database"))
    }

    /// Refuses a server that a scheduler cannot work on now: a pooler, a standby, a role without a right. Creates nothing.
    pub(crate) fn check_for_scheduler(address: &Address) -> Result<()> {
        let check = || {
            let mut server = Server::connect(address)?;
            server.require_session()?;
            if schema::exists(&mut server)? { rights::require(&mut server) } else { Ok(()) }
        };
        check().map_err(|fault| refused(address, fault).into_error("open the database"))
    }

    /// Lets the operations use the server's time, and corrects a clock by it, now and at each transaction. `None`: the caller gives the
    /// time.
    pub(crate) fn keep_time(&mut self, clock: Option<Arc<ServerClock>>) -> Result<()> {
        self.clock = None;
        let Some(clock) = clock else {
            self.time = Time::Given;
            return Ok(());
        };
        let before = clock.before();
        let now =
            self.bench.lock().rows.server.time().map_err(|fault| fault.into_error("ask the server for its time"))?;
        clock.learn(now, before);
        (self.time, self.clock) = (Time::OfServer, Some(clock));
        Ok(())
    }

    /// Returns whether the time of operations is the server's.
    fn follows_server(&self) -> bool {
        self.time == Time::OfServer
    }

    fn lock(&self) -> MutexGuard<'_, Workbench> {
        self.bench.lock()
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Sets the path beside which the lock files of schedulers of this host are.
    pub(crate) fn stand_beside(&mut self, anchor: PathBuf) {
        self.memory.stand_beside(anchor);
    }

    /// Returns the path that was set by [`PostgresStore::stand_beside`].
    pub(crate) fn beside(&mut self) -> Option<PathBuf> {
        let path = self.memory.as_file().map(|memory| memory.path().to_owned());
        // Before that it is the address.
        path.filter(|path| path.is_absolute())
    }

    /// Lets no standby serve look-ups from now on.
    pub(crate) fn require_primary(&mut self) {
        self.lock().rows.server.require_primary();
    }

    /// Returns the server's identifier and the name of the database, which together no other database has.
    pub(crate) fn identity(&mut self) -> Result<(String, String)> {
        let asked = self.bench.lock().rows.server.identity();
        asked.map_err(|fault| fault.into_error("ask the server for its identity"))
    }

    fn try_open(address: &Address, missing: Missing, time: Time) -> Result<Self, Fault> {
        let mut server = Server::connect_to_look(address)?;
        schema::prepare(&mut server, missing)?;
        let mut shared = None;
        let memory = SqliteStore::in_memory(PathBuf::from(address.to_string()), |tables| {
            let refusals = Refusals::on(tables)?;
            let bench = Shared::new(Workbench::new(server, tables, refusals)?);
            shared = Some(bench.clone());
            Ok(Box::new(bench))
        })?;
        let bench = shared.ok_or_else(|| Error::store("open the database", "no workbench"))?;
        Ok(PostgresStore {
            memory,
            bench,
            time,
            clock: None,
            begun_at: None,
            address: address.clone(),
            rehearses: turn::rehearses(),
            session: None,
            rewound: None,
            ended: HashSet::new(),
            plain: plain::Tries::default(),
            owes_look: false,
            ends_beside: false,
            adds_new: true,
            #[cfg(test)]
            reads_all: false,
        })
    }

    /// Runs an operation that writes. If the server refuses it, the reason may be a run that follows another: the operation is repeated
    /// without these runs, as it is on a file, where only they are left out.
    fn change<T>(
        &mut self,
        given: Timestamp,
        reach: impl Into<Reach>,
        mut f: impl FnMut(&mut SqliteStore, Timestamp) -> Result<T>,
    ) -> Result<T> {
        let reach = reach.into();
        self.try_change(given, reach.clone(), None, &mut f).unwrap_or_else(|refused| {
            let again = self.try_change(given, reach, Some(&refused), &mut f);
            again.unwrap_or_else(|_| Err(Error::store("write", refused)))
        })
    }

    /// Runs an operation that writes, again if another program changed what it had read, or if its rules look at other rows than foreseen.
    /// `unfollowed`: why it opens no run that follows another. An error: why the server has refused all, with such runs.
    fn try_change<T>(
        &mut self,
        given: Timestamp,
        mut reach: Reach,
        unfollowed: Option<&str>,
        f: &mut impl FnMut(&mut SqliteStore, Timestamp) -> Result<T>,
    ) -> Result<Result<T>, String> {
        let mut tries = 1;
        loop {
            let now = match self.begin(Access::Write, given, reach.clone()) {
                Ok(now) => now,
                Err(error) => return Ok(Err(error)),
            };
            self.lock().unfollowed = unfollowed.map(str::to_owned);
            let answer = f(&mut self.memory, now);
            // It is wider now if the rules went further than foreseen.
            reach = self.bench.lock().reach.take().unwrap_or(reach);
            let collided = self.end();
            if !collided || tries == TRIES {
                if let Some(refused) = self.lock().refused_followers.take() {
                    return Err(refused);
                }
                return Ok(rights::explained(&mut self.lock().rows.server, answer));
            }
            tries += 1;
        }
    }

    /// Runs an operation that reads, over one snapshot.
    fn look_up<T>(
        &mut self,
        given: Timestamp,
        reach: impl Into<Reach>,
        mut f: impl FnMut(&mut SqliteStore, Timestamp) -> Result<T>,
    ) -> Result<T> {
        let now = self.begin(Access::Read, given, reach.into())?;
        let answer = f(&mut self.memory, now);
        self.end();
        rights::explained(&mut self.lock().rows.server, answer)
    }

    /// Runs a query of the server over one snapshot.
    fn read_on_server<T>(&mut self, doing: &'static str, f: impl FnOnce(&mut Server) -> Result<T, Fault>) -> Result<T> {
        self.begin(Access::Read, Timestamp::MIN, Reach::Everything)?;
        let answer = f(&mut self.bench.lock().rows.server);
        self.end();
        answer.map_err(|fault| rights::explain(&mut self.lock().rows.server, fault).into_error(doing))
    }

    /// Selects the next batch of what a filter matches, unless one is selected. Returns whether there is one.
    fn select(&mut self, selection: &Selection, pass: &mut BulkPass) -> Result<bool> {
        if !self.counts_on_server() {
            return Ok(true);
        }
        if pass.selected.is_empty() {
            self.read_on_server("select by a filter", |server| matching::select(server, selection, pass))?;
        }
        Ok(!pass.selected.is_empty())
    }

    /// Returns whether the server counts: a test compares with what SQLite counts in all rows.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "a test sets it")]
    fn counts_on_server(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn counts_on_server(&self) -> bool {
        !self.reads_all
    }

    fn begin(&mut self, access: Access, given: Timestamp, reach: Reach) -> Result<Timestamp> {
        self.try_begin(access, given, reach).map_err(|fault| self.memory.error(fault, "begin a transaction"))
    }

    fn try_begin(&mut self, access: Access, given: Timestamp, reach: Reach) -> Result<Timestamp, Fault> {
        reach.refuse_unstorable()?;
        let before = self.clock.as_ref().map(|clock| clock.before());
        let now = self.bench.lock().rows.server.begin(access)?;
        Ok(self.begun(before, now, given, reach))
    }

    /// Begins a transaction that writes, if the lock is free. `None`: a transaction without the lock may be open.
    fn begin_if_free(&mut self, given: Timestamp) -> Option<Timestamp> {
        let before = self.clock.as_ref().map(|clock| clock.before());
        let now = self.bench.lock().rows.server.begin_if_free()?;
        Some(self.begun(before, now, given, Reach::Everything))
    }

    /// Prepares for the operation of a transaction that was begun at `now`. Returns the time of the operation.
    fn begun(&mut self, before: Option<Duration>, now: Timestamp, given: Timestamp, reach: Reach) -> Timestamp {
        #[cfg(test)]
        let reach = if self.reads_all { Reach::Everything } else { reach };
        self.bench.lock().aim(reach);
        self.time_of(before, now, given)
    }

    /// Returns the time of an operation whose transaction was begun at `now`. The clock learns it.
    fn time_of(&mut self, before: Option<Duration>, now: Timestamp, given: Timestamp) -> Timestamp {
        if let (Some(clock), Some(before)) = (&self.clock, before) {
            clock.learn(now, before);
            self.begun_at.get_or_insert(now);
        }
        if self.time == Time::Given { given } else { now }
    }

    /// Has the next operation know which owners have a session: it tells who is alive.
    fn look_at_sessions(&mut self, now: Timestamp) -> Result<()> {
        let given = self.given(now);
        let mut bench = self.bench.lock();
        let sessions = owners::all_sessions(&mut bench.rows.server, given);
        bench.sessions = sessions.map_err(|fault| fault.into_error("look at the sessions of schedulers"))?;
        Ok(())
    }

    /// Returns the time of the operations, if it is not the server's.
    fn given(&self, now: Timestamp) -> Option<Timestamp> {
        (self.time == Time::Given).then_some(now)
    }

    /// Ends the transaction. Returns whether it must be repeated.
    fn end(&mut self) -> bool {
        let mut bench = self.bench.lock();
        bench.end();
        std::mem::take(&mut bench.collided)
    }
}

/// Returns the fault of opening a database as that of an unusable one, if the role lacks a right: only a person can end it.
fn refused(address: &Address, fault: Fault) -> Fault {
    match &fault {
        Fault::Store(_, source) if fault::code(&fault).is_some_and(|code| code.code() == "42501") => {
            session::unusable(address, source.to_string())
        }
        _ => fault,
    }
}
