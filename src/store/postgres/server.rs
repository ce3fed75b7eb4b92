//! One session with the server: the only place where its transactions begin and end, and where its statements are prepared.

mod adding;
mod commit;
mod counts;
mod lend;
mod lock;
mod plans;
mod questions;
mod standby;

use std::collections::HashMap;
use std::time::Duration;

use postgres::config::TargetSessionAttrs;
use postgres::types::ToSql;
use postgres::{Error, Row, Statement};

use crate::clock::{Timestamp, since_boot};
use crate::store::fault::{Class, Fault};
use crate::store::postgres::address::Address;
use crate::store::postgres::client::Client;
use crate::store::postgres::connect::{Haste, connect};
use crate::store::postgres::outcome::{Number, Proof};
use crate::store::postgres::server::plans::{BY_INDEX, Plans};
use crate::store::postgres::session::{self, Session, Terms, Timeline, last, odd, text, typed};
use crate::store::postgres::stream::Limit;
use crate::store::postgres::{fault, holder};
use crate::store::sqlite::file::Durability;

/// The class of duly's advisory locks of two integers: `(CLASS, oid of the schema)` is the lock of the schema.
pub(crate) const CLASS: i32 = 0x6475_6c79;

const MILLIS: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// A session keeps at most this many prepared statements, and then forgets all of them.
const PREPARED: usize = 400;

/// How often the beginning of a transaction is repeated: with a new connection, for a schema created meanwhile.
const BEGINNINGS: usize = 4;

/// What a transaction may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read one snapshot.
    Read,
    /// Write, with the lock of the schema, which is held until its end.
    Write,
}

/// A live connection and what it knows.
struct Link {
    client: Client,
    session: Session,
    prepared: HashMap<String, Statement>,
}

/// An open transaction.
#[derive(Clone, Debug)]
struct Open {
    access: Access,
    /// The number of a transaction that writes.
    number: Option<Number>,
    /// Whether it holds the lock of the schema.
    has_lock: bool,
    /// Whether a statement failed, so that nothing can be committed.
    failed: bool,
}

/// A connection, its prepared statements, and whether a transaction is open.
///
/// A connection that breaks is made again when the next transaction begins.
pub(crate) struct Server {
    link: Option<Link>,
    address: Address,
    terms: Terms,
    /// How long an answer may take, on this connection and on those that follow.
    limit: Limit,
    /// The oid of the schema, 0 before it exists.
    schema: i64,
    open: Option<Open>,
    /// Whether no session but duly's own may serve.
    alone: bool,
    /// Whether look-ups may be served by a standby, or a server that refuses writes, while no other serves.
    looks: bool,
    /// While such a server serves: the time since boot at which a server that accepts writes is searched for.
    search_at: Option<Duration>,
    /// The history on which an owner has claimed runs: see [`Server::keep_to_timeline`].
    kept: Option<Timeline>,
    /// How long the holder of the lock may do nothing.
    stillness: Duration,
    /// Whether the loss of the connection was reported, and its recovery was not.
    lost: bool,
    /// Whether neither is reported.
    is_mute: bool,
    losses: u64,
    /// Whether the last transaction was undone for a reason that its repetition removes.
    repeat: bool,
    /// Whether the server has ended a transaction because this client said nothing, since the last commit.
    was_silent: bool,
    transactions: u64,
    /// Statements and other messages that waited for an answer.
    round_trips: u64,
    /// Statements that were prepared: each waited for an answer too.
    prepares: u64,
    plans: Plans,
}

impl Server {
    pub(crate) fn connect(address: &Address) -> Result<Self, Fault> {
        Self::connect_for(address, Durability::Full)
    }

    pub(crate) fn connect_for(address: &Address, durability: Durability) -> Result<Self, Fault> {
        let mut server = Server::new(address, durability);
        server.reconnect(Haste::default()).map(|()| server)
    }

    /// As [`Server::connect`], for a session of duly's own whose answers take at most this long. Its loss and its return are not reported.
    pub(crate) fn connect_mute(address: &Address, limit: Duration) -> Result<Self, Fault> {
        let mut server = Server { is_mute: true, alone: true, ..Server::new(address, Durability::Full) };
        server.limit.set(limit.min(address.answer_limit()));
        server.reconnect(Haste::default()).map(|()| server)
    }

    fn new(address: &Address, durability: Durability) -> Self {
        Server {
            link: None,
            address: address.clone(),
            limit: Limit::new(address.answer_limit()),
            terms: Terms {
                lock_timeout: session::LOCK,
                durability,
                read_only: false,
                target: TargetSessionAttrs::ReadWrite,
            },
            schema: 0,
            open: None,
            alone: false,
            looks: false,
            search_at: None,
            kept: None,
            stillness: holder::LIMIT,
            lost: false,
            is_mute: false,
            losses: 0,
            repeat: false,
            was_silent: false,
            transactions: 0,
            round_trips: 0,
            prepares: 0,
            plans: Plans::new(),
        }
    }

    /// Requires a session of duly's own from now on, as a scheduler does: its lock on a session would be another client's behind a pooler.
    pub(crate) fn require_session(&mut self) -> Result<(), Fault> {
        self.alone = true;
        if self.link.is_none() {
            return self.reconnect(Haste::default());
        }
        self.refuse_pooler()
    }

    fn refuse_pooler(&self) -> Result<(), Fault> {
        if self.alone && self.link.as_ref().is_some_and(|link| link.session.pooled) {
            let reason = "a connection pooler such as pgbouncer stands before the server, in whatever mode, and a scheduler needs a session \
                          of its own; name the address of PostgreSQL itself: clients that only add and look up may use the pooler";
            return Err(session::unusable(&self.address, reason.to_owned()));
        }
        Ok(())
    }

    /// Reads the oid of the schema, after it exists.
    pub(crate) fn find_schema(&mut self) -> Result<(), Fault> {
        let schema = self.address.schema().to_owned();
        let rows = self.query("SELECT oid::bigint FROM pg_namespace WHERE nspname = $1", &[&schema])?;
        self.schema = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        Ok(())
    }

    /// Returns the oid of the schema, as the key of a lock.
    pub(crate) fn schema(&self) -> i32 {
        // The two halves of an oid's range: a lock's key is a signed number.
        (self.schema as u32).cast_signed()
    }

    /// Waits for a notification, at most for `limit`. Returns whether one came, with all that are there.
    pub(crate) fn wait_for_notification(&mut self, limit: Duration) -> Result<bool, Fault> {
        let Some(link) = &mut self.link else { return Err(gone()) };
        Ok(link.client.wait_for_notification(limit)?)
    }

    /// Lets each answer take this long from now on.
    pub(crate) fn set_answer_limit(&mut self, limit: Duration) {
        self.limit.set(limit);
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the history of the database that the server continued when it was last asked.
    pub(crate) fn timeline(&self) -> Option<&Timeline> {
        self.link.as_ref().map(|link| &link.session.timeline)
    }

    /// Refuses to write from now on with [`Class::Lost`] as soon as the server continues another history than this one, until this is
    /// called again: an owner that has claimed runs calls it when it registers. Returns the one that was kept to.
    pub(crate) fn keep_to_timeline(&mut self, timeline: Option<Timeline>) -> Option<Timeline> {
        std::mem::replace(&mut self.kept, timeline)
    }

    /// Begins a transaction, takes the lock if it writes, and returns the server's time. A broken connection is made again.
    pub(crate) fn begin(&mut self, access: Access) -> Result<Timestamp, Fault> {
        self.roll_back();
        self.repeat = false;
        for _ in 0..BEGINNINGS {
            let fresh = self.link.is_none();
            self.ensure_session(access)?;
            let fault = match self.try_begin(access) {
                Ok(Some(now)) => {
                    self.transactions += u64::from(access == Access::Write);
                    return Ok(now);
                }
                // The schema was created or restored meanwhile, and has another lock.
                Ok(None) => {
                    self.roll_back();
                    continue;
                }
                Err(fault) => fault,
            };
            if self.link.is_some() || fresh {
                self.roll_back();
                return Err(fault);
            }
        }
        Err(odd("every time with another schema"))
    }

    /// Begins by a message that begins with these statements, and waits this long for the lock; `None`: takes it only if it is free. One
    /// message: a lock that is waited for has a statement of its own, for a statement that locks and reads would read what was before it
    /// waited. Returns `None` if the schema has another lock.
    fn begin_by(
        &mut self,
        access: Access,
        mut message: String,
        wait: Option<Duration>,
    ) -> Result<Option<Timestamp>, Fault> {
        let Server { link, address, terms, schema, plans, .. } = self;
        let Some(link) = link else { return Err(gone()) };
        if link.session.pooled {
            message = format!("{message}; {}", terms.for_transaction(address));
        }
        let mut tried = "1".to_owned();
        let number = match access {
            Access::Read => {
                message += &format!("; SET LOCAL idle_in_transaction_session_timeout = {}", session::IDLE_IN_READING);
                "SELECT '', ''"
            }
            Access::Write => {
                let key = u32::try_from(*schema).unwrap_or(0).cast_signed();
                let (row, renew) = (session::millis(terms.lock_timeout.min(session::ROW)), plans.renew());
                message = format!("{renew}{message}; {BY_INDEX}");
                match wait.map(session::millis) {
                    Some(wait) => {
                        message +=
                            &format!("; SET LOCAL lock_timeout = {wait}; SELECT pg_advisory_xact_lock({CLASS}, {key})");
                    }
                    None => tried = format!("pg_try_advisory_xact_lock({CLASS}, {key})::int"),
                }
                message += &format!("; SET LOCAL lock_timeout = {row}");
                "SELECT pg_current_xact_id(), substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
            }
        };
        let oid = format!("(SELECT oid::bigint FROM pg_namespace WHERE nspname = '{}')", address.schema());
        // The time is read after the lock.
        let message = format!("{message}; {number}, {tried}, {MILLIS}, pg_backend_pid(), coalesce({oid}, 0)");
        self.open = Some(Open { access, number: None, has_lock: false, failed: true });
        self.round_trips += 1;
        let answer = link.client.simple_query(&message);
        let answer = answer.map_err(|error| self.failed(error))?;
        let row = last(&answer);
        let (now, backend, oid) = (session::number(row, 3), session::number(row, 4), session::number(row, 5));
        let Some(link) = &mut self.link else { return Err(gone()) };
        if backend != link.session.backend && !link.session.pooled {
            // The settings are those of another session: the next beginning sets them for its transaction.
            link.session.pooled = true;
            self.refuse_pooler()?;
            return Ok(None);
        }
        if access == Access::Write {
            link.session.timeline.id = text(row, 1).to_owned();
            let (timeline, since) = (link.session.timeline.clone(), link.session.since.clone());
            let number = Number { id: text(row, 0).to_owned(), timeline, since, proof: None };
            self.check_timeline(&number.timeline)?;
            if std::mem::replace(&mut self.schema, oid) != oid {
                return Ok(None);
            }
            let has_lock = session::number(row, 2) == 1;
            self.open = Some(Open { access, number: Some(number), has_lock, failed: false });
        } else {
            self.open = Some(Open { access, number: None, has_lock: false, failed: false });
        }
        Ok(Some(Timestamp::from_millis(now)))
    }

    fn check_timeline(&self, found: &Timeline) -> Result<(), Fault> {
        match &self.kept {
            Some(kept) if kept != found => {
                let text = format!(
                    "the server continues {found}, and the runs were claimed on {kept}: the last commits may be lost"
                );
                Err(Fault::Store(Class::Lost, text.into()))
            }
            _ => Ok(()),
        }
    }

    /// Ends the transaction, if one is open, without its changes.
    pub(crate) fn roll_back(&mut self) {
        if self.open.take().is_none() {
            return;
        }
        let Some(link) = &mut self.link else { return };
        self.round_trips += 1;
        // A connection that cannot answer has no transaction any more.
        if let Err(error) = link.client.batch_execute("ROLLBACK") {
            self.lose(&error);
        }
    }

    /// Returns whether the last transaction was undone for a reason that its repetition removes, and forgets it.
    pub(crate) fn take_repeat(&mut self) -> bool {
        std::mem::take(&mut self.repeat)
    }

    /// Continues the open transaction after the fault of one item, whose savepoint was rolled back to.
    pub(crate) fn continue_after_fault(&mut self) {
        self.repeat = false;
        if let Some(open) = &mut self.open {
            open.failed = false;
        }
    }

    /// Notes a row that the open transaction has written, as it is.
    pub(crate) fn note_proof(&mut self, proof: Proof) {
        if let Some(number) = self.open.as_mut().and_then(|open| open.number.as_mut()) {
            number.proof = Some(proof);
        }
    }

    /// Runs statements without parameters, in one message.
    pub(crate) fn batch(&mut self, statements: &str) -> Result<(), Fault> {
        let own = self.wrap()?;
        let Some(link) = &mut self.link else { return Err(gone()) };
        self.round_trips += 1;
        let done = link.client.batch_execute(statements).map_err(|error| self.failed(error));
        self.unwrap(own, done)
    }

    pub(crate) fn query(&mut self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Fault> {
        self.run(statement, &mut |client, text| match text {
            Form::Prepared(statement) => client.query(*statement, params),
            Form::Text(text) => client.query_typed(text, &typed(params)),
        })
    }

    pub(crate) fn execute(&mut self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Fault> {
        self.run(statement, &mut |client, text| match text {
            Form::Prepared(statement) => client.execute(*statement, params),
            Form::Text(text) => client.execute_typed(text, &typed(params)),
        })
    }

    /// Outside of a transaction, a query that finds the connection broken is repeated once on a new one: it has changed nothing.
    fn run<T>(
        &mut self,
        statement: &str,
        send: &mut dyn FnMut(&mut Client, &Form<'_>) -> Result<T, Error>,
    ) -> Result<T, Fault> {
        let may_repeat = self.open.is_none() && self.link.is_some() && statement.trim_start().starts_with("SELECT");
        let done = self.run_once(statement, send);
        if done.is_err() && may_repeat && self.link.is_none() { self.run_once(statement, send) } else { done }
    }

    fn run_once<T>(
        &mut self,
        statement: &str,
        send: &mut dyn FnMut(&mut Client, &Form<'_>) -> Result<T, Error>,
    ) -> Result<T, Fault> {
        let own = self.wrap()?;
        let done = self.send(statement, send);
        self.unwrap(own, done)
    }

    fn send<T>(
        &mut self,
        statement: &str,
        send: &mut dyn FnMut(&mut Client, &Form<'_>) -> Result<T, Error>,
    ) -> Result<T, Fault> {
        for _ in 0..2 {
            let (prepared, known) = match self.prepared(statement) {
                Ok(prepared) => prepared,
                Err(error) => return Err(self.failed(error)),
            };
            let Some(link) = &mut self.link else { return Err(gone()) };
            self.round_trips += 1;
            let form = prepared.as_ref().map_or(Form::Text(statement), Form::Prepared);
            let begun = since_boot();
            match send(&mut link.client, &form) {
                Ok(answer) => {
                    if known {
                        self.plans.note(begun, since_boot());
                    }
                    return Ok(answer);
                }
                Err(error) if known && fault::is_stale(&error) => {
                    link.prepared.clear();
                    if self.open.is_some() {
                        self.repeat = true;
                        let Fault::Store(_, source) = self.failed(error) else { return Err(gone()) };
                        return Err(Fault::Store(Class::Busy, source));
                    }
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        Err(odd("every time that a statement is not prepared"))
    }

    /// Returns the prepared statement, and whether it was prepared before; no statement for a session that is not duly's own.
    fn prepared(&mut self, statement: &str) -> Result<(Option<Statement>, bool), Error> {
        let Some(link) = self.link.as_mut().filter(|link| !link.session.pooled) else { return Ok((None, false)) };
        if let Some(known) = link.prepared.get(statement) {
            return Ok((Some(known.clone()), true));
        }
        self.prepares += 1;
        let new = link.client.prepare(statement)?;
        if link.prepared.len() >= PREPARED {
            link.prepared.clear();
        }
        link.prepared.insert(statement.to_owned(), new.clone());
        Ok((Some(new), false))
    }

    /// Makes the connection again outside of a transaction; begins one of its own, and returns so, where settings hold only in one.
    fn wrap(&mut self) -> Result<bool, Fault> {
        match (&self.open, &self.link) {
            (Some(_), Some(_)) => return Ok(false),
            (Some(_), None) => return Err(gone()),
            (None, _) => self.ensure_session(Access::Read)?,
        }
        if !self.is_pooled() {
            return Ok(false);
        }
        self.begin_plainly()?;
        Ok(true)
    }

    /// Begins a transaction without the lock of the schema, as there may be none yet.
    pub(crate) fn begin_without_lock(&mut self) -> Result<(), Fault> {
        self.roll_back();
        self.repeat = false;
        self.ensure_session(Access::Write)?;
        self.begin_plainly()
    }

    fn begin_plainly(&mut self) -> Result<(), Fault> {
        let Some(link) = &mut self.link else { return Err(gone()) };
        let settings = if link.session.pooled { self.terms.for_transaction(&self.address) } else { String::new() };
        self.round_trips += 1;
        link.client.batch_execute(&format!("BEGIN; {settings}")).map_err(|error| self.failed(error))?;
        self.open = Some(Open { access: Access::Write, number: None, has_lock: false, failed: false });
        Ok(())
    }

    fn unwrap<T>(&mut self, own: bool, done: Result<T, Fault>) -> Result<T, Fault> {
        match (own, &done) {
            (false, _) => done,
            (true, Ok(_)) => self.commit().and(done),
            (true, Err(_)) => {
                self.roll_back();
                done
            }
        }
    }

    /// Notes that a statement failed.
    fn failed(&mut self, error: Error) -> Fault {
        if let Some(open) = &mut self.open {
            open.failed = true;
        }
        // This process, or the whole machine, stood still: the transaction is repeated. A second time, it takes too long.
        let again = fault::is_repeatable(&error)
            || fault::is_about_silence(&error) && !std::mem::replace(&mut self.was_silent, true);
        self.repeat |= self.open.is_some() && again;
        if fault::ends_connection(&error) || self.link.as_ref().is_some_and(|link| link.client.is_closed()) {
            self.lose(&error);
        }
        let has_lock = self.open.as_ref().is_some_and(|open| open.has_lock);
        match error.into() {
            // The lock of the schema is held: it was a row that could not be locked.
            fault if has_lock && fault::code(&fault).is_some_and(|code| code.code() == "55P03") => {
                Fault::Store(Class::Held, format!("another transaction holds its lock, until it ends: {fault}").into())
            }
            fault => fault,
        }
    }

    /// Gives up the connection. Its loss is reported once.
    fn lose(&mut self, error: &Error) {
        self.link = None;
        if !std::mem::replace(&mut self.lost, true) {
            self.losses += 1;
            if !self.is_mute {
                let cause = fault::text(error);
                log::warn!("lost the connection to {}: {cause}; the next operation connects again", self.address);
            }
        }
    }

    /// Connects to a server that accepts writes. A connection that serves look-ups stays if there is none.
    fn reconnect(&mut self, haste: Haste) -> Result<(), Fault> {
        let link = self.link(haste, self.terms.target)?;
        self.use_link(link, None)
    }

    fn link(&mut self, haste: Haste, target: TargetSessionAttrs) -> Result<Link, Fault> {
        let mut client = connect(&self.address, haste, target, &self.limit)?;
        self.round_trips += 2;
        let terms = Terms { target, ..self.terms };
        let session = session::prepare(&mut client, &self.address, &terms)?;
        Ok(Link { client, session, prepared: HashMap::new() })
    }

    /// Returns whether a pooler gives the session to others between transactions.
    pub(crate) fn is_pooled(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.session.pooled)
    }

    /// Makes the server refuse every write of this session from now on.
    #[cfg(feature = "page")]
    pub(crate) fn refuse_writes(&mut self) -> Result<(), Fault> {
        self.terms.read_only = true;
        self.set("default_transaction_read_only = on")
    }

    pub(crate) fn set_lock_timeout(&mut self, timeout: Duration) -> Result<(), Fault> {
        self.terms.lock_timeout = timeout;
        self.set(&format!("lock_timeout = {}", session::millis(timeout)))
    }

    /// Sets a setting of the session, now and after a loss. A session that is not duly's own has it in each transaction.
    fn set(&mut self, setting: &str) -> Result<(), Fault> {
        match &self.link {
            Some(link) if !link.session.pooled => match self.batch(&format!("SET {setting}")) {
                // The next connection begins with it.
                Err(_) if self.link.is_none() => Ok(()),
                done => done,
            },
            _ => Ok(()),
        }
    }
}

/// A statement as it is sent.
enum Form<'a> {
    Prepared(&'a Statement),
    Text(&'a str),
}

fn gone() -> Fault {
    Fault::Store(Class::Other, "the connection to the server broke within the transaction".into())
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).field("open", &self.open).finish_non_exhaustive()
    }
}
