//! One session with the server: the only place where its transactions begin, and where its statements are prepared.

use std::collections::HashMap;
use std::time::Duration;

use postgres::fallible_iterator::FallibleIterator;
use postgres::types::ToSql;
use postgres::{Client, NoTls, Row, Statement};

use crate::clock::Timestamp;
use crate::store::fault::Fault;
use crate::store::postgres::address::Address;

/// The class of duly's advisory locks of two integers: `(CLASS, oid of the schema)` is the lock of the schema.
pub(crate) const CLASS: i32 = 0x6475_6c79;

/// One statement locks, and the next reads: a statement that does both would read what was there before it waited.
const LOCK: &str = "SELECT pg_advisory_xact_lock($1, $2)";

const TIME: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// What a transaction may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read one snapshot.
    Read,
    /// Write, with the lock of the schema, which is held until its end.
    Write,
}

/// A connection, its prepared statements, and whether a transaction is open.
pub(crate) struct Server {
    client: Client,
    address: Address,
    prepared: HashMap<String, Statement>,
    /// The oid of the schema.
    schema: i32,
    open: bool,
    transactions: u64,
    /// Statements and other messages that waited for an answer.
    round_trips: u64,
}

impl Server {
    pub(crate) fn connect(address: &Address) -> Result<Self, Fault> {
        let client = address.config().connect(NoTls)?;
        let mut server = Server {
            client,
            address: address.clone(),
            prepared: HashMap::new(),
            schema: 0,
            open: false,
            transactions: 0,
            round_trips: 0,
        };
        server
            .batch(&format!("SET search_path = {}, pg_temp; SET duly.store = 'on'", server.address.quoted_schema()))?;
        Ok(server)
    }

    /// Reads the oid of the schema, after it exists.
    pub(crate) fn find_schema(&mut self) -> Result<(), Fault> {
        let schema = self.address.schema().to_owned();
        let rows = self.query("SELECT oid::bigint FROM pg_namespace WHERE nspname = $1", &[&schema])?;
        let oid: i64 = rows.first().map_or(0, |row| row.get(0));
        // The two halves of an oid's range: a lock's key is a signed number.
        self.schema = (oid as u32).cast_signed();
        Ok(())
    }

    /// Returns the oid of the schema, as the key of a lock.
    pub(crate) fn schema(&self) -> i32 {
        self.schema
    }

    /// Waits for a notification, at most for `limit`. Returns whether one came, with all that are there.
    pub(crate) fn wait_for_notification(&mut self, limit: Duration) -> Result<bool, Fault> {
        let mut notifications = self.client.notifications();
        let mut came = notifications.timeout_iter(limit).next()?.is_some();
        while notifications.iter().next()?.is_some() {
            came = true;
        }
        Ok(came)
    }

    /// Returns the history that the server is part of: another one after a replica was promoted.
    pub(crate) fn timeline(&mut self) -> Result<String, Fault> {
        let rows = self.query("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)", &[])?;
        Ok(rows[0].try_get(0)?)
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Begins a transaction, takes the lock if it writes, and returns the server's time.
    pub(crate) fn begin(&mut self, access: Access) -> Result<Timestamp, Fault> {
        match access {
            Access::Read => self.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?,
            Access::Write => self.batch("BEGIN ISOLATION LEVEL READ COMMITTED")?,
        }
        self.open = true;
        if access == Access::Write {
            self.transactions += 1;
            let schema = self.schema;
            self.query(LOCK, &[&CLASS, &schema])?;
        }
        self.time()
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, Fault> {
        let rows = self.query(TIME, &[])?;
        let millis: i64 = rows.first().map_or(0, |row| row.get(0));
        Ok(Timestamp::from_millis(millis))
    }

    /// Returns the server's identifier and the name of the database.
    pub(crate) fn identity(&mut self) -> Result<(String, String), Fault> {
        let rows =
            self.query("SELECT system_identifier::text, current_database()::text FROM pg_control_system()", &[])?;
        Ok((rows[0].try_get(0)?, rows[0].try_get(1)?))
    }

    pub(crate) fn commit(&mut self) -> Result<(), Fault> {
        self.batch("COMMIT")?;
        self.open = false;
        Ok(())
    }

    /// Ends the transaction, if one is open, without its changes.
    pub(crate) fn roll_back(&mut self) {
        if self.open {
            self.open = false;
            // A connection that cannot answer has no transaction any more.
            let _ = self.batch("ROLLBACK");
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn batch(&mut self, statements: &str) -> Result<(), Fault> {
        self.round_trips += 1;
        Ok(self.client.batch_execute(statements)?)
    }

    pub(crate) fn query(&mut self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Fault> {
        let prepared = self.prepared(statement)?;
        self.round_trips += 1;
        Ok(self.client.query(&prepared, params)?)
    }

    pub(crate) fn execute(&mut self, statement: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Fault> {
        let prepared = self.prepared(statement)?;
        self.round_trips += 1;
        Ok(self.client.execute(&prepared, params)?)
    }

    fn prepared(&mut self, statement: &str) -> Result<Statement, Fault> {
        if let Some(known) = self.prepared.get(statement) {
            return Ok(known.clone());
        }
        let new = self.client.prepare(statement)?;
        self.prepared.insert(statement.to_owned(), new.clone());
        Ok(new)
    }

    /// Returns a number that changes whenever another transaction has ended.
    pub(crate) fn data_version(&mut self) -> Result<i64, Fault> {
        let rows = self.query("SELECT hashtextextended(pg_current_snapshot()::text, 0)", &[])?;
        Ok(rows[0].try_get(0)?)
    }

    /// Makes the server refuse every write of this session from now on.
    #[cfg(feature = "page")]
    pub(crate) fn refuse_writes(&mut self) -> Result<(), Fault> {
        self.batch("SET default_transaction_read_only = on")
    }

    pub(crate) fn set_lock_timeout(&mut self, timeout: Duration) -> Result<(), Fault> {
        self.batch(&format!("SET lock_timeout = {}", timeout.as_millis().max(1)))
    }

    pub(crate) fn transactions(&self) -> u64 {
        self.transactions
    }

    pub(crate) fn forget_transactions(&mut self) {
        self.transactions = 0;
    }

    pub(crate) fn round_trips(&self) -> u64 {
        self.round_trips
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}
