//! The connection of the crate `postgres`, which waits for the server on a runtime of its own.
//!
//! On a thread that runs an async runtime of the application such a wait panics. There, and when it is dropped there, a connection is
//! used by a thread that is started for the call.

use std::io::Write;
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use postgres::fallible_iterator::FallibleIterator;
use postgres::types::{ToSql, Type};
use postgres::{Config, Error, IsolationLevel, NoTls, Row, SimpleQueryMessage, Statement, ToStatement, Transaction};
use tokio::runtime::Handle;

use crate::store::postgres::stream::Connector;

type Params<'a> = [&'a (dyn ToSql + Sync)];

/// A connection that may be used and dropped on every thread.
pub(crate) struct Client(Option<postgres::Client>);

impl Client {
    /// Connects through a connector, which sets the deadline of every answer.
    pub(crate) fn connect(config: &Config, connector: Connector) -> Result<Self, Error> {
        outside_of_runtimes(|| config.connect(connector)).map(|client| Client(Some(client)))
    }

    /// Connects over a Unix socket where [`Connector::over_socket`] cannot: answers have no deadline.
    pub(crate) fn connect_plainly(config: &Config) -> Result<Self, Error> {
        outside_of_runtimes(|| config.connect(NoTls)).map(|client| Client(Some(client)))
    }

    fn with<T: Send>(&mut self, f: impl FnOnce(&mut postgres::Client) -> T + Send) -> T {
        let Client(Some(client)) = self else { unreachable!("only a drop takes it") };
        outside_of_runtimes(|| f(client))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.as_ref().is_none_or(postgres::Client::is_closed)
    }

    pub(crate) fn simple_query(&mut self, text: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
        self.with(|client| client.simple_query(text))
    }

    pub(crate) fn batch_execute(&mut self, text: &str) -> Result<(), Error> {
        self.with(|client| client.batch_execute(text))
    }

    pub(crate) fn prepare(&mut self, text: &str) -> Result<Statement, Error> {
        self.with(|client| client.prepare(text))
    }

    pub(crate) fn query<S: ToStatement + Sync>(
        &mut self,
        statement: &S,
        params: &Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        self.with(|client| client.query(statement, params))
    }

    pub(crate) fn query_typed(
        &mut self,
        text: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.with(|client| client.query_typed(text, params))
    }

    pub(crate) fn execute<S: ToStatement + Sync>(&mut self, statement: &S, params: &Params<'_>) -> Result<u64, Error> {
        self.with(|client| client.execute(statement, params))
    }

    pub(crate) fn execute_typed(&mut self, text: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<u64, Error> {
        self.with(|client| client.execute_typed(text, params))
    }

    /// Begins a transaction for a closure of the application, which the application calls outside of its runtimes.
    pub(crate) fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        let Client(Some(client)) = self else { unreachable!("only a drop takes it") };
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start()
    }

    /// Runs a `COPY .. FROM STDIN` with these lines.
    pub(crate) fn copy_in(&mut self, statement: &str, lines: &str) -> Result<(), Error> {
        self.with(|client| {
            let mut writer = client.copy_in(statement)?;
            // An error of the server is that of the end.
            let _ = writer.write_all(lines.as_bytes());
            writer.finish().map(|_| ())
        })
    }

    /// Calls `each` with every row while the server still sends the answer: at most a few rows are in memory. It must not be called on a
    /// thread of an async runtime.
    pub(crate) fn stream<E: From<Error>>(
        &mut self,
        text: &str,
        mut each: impl FnMut(&Row) -> Result<(), E>,
    ) -> Result<(), E> {
        let Client(Some(client)) = self else { unreachable!("only a drop takes it") };
        let mut rows = client.query_typed_raw(text, std::iter::empty::<(i64, Type)>())?;
        while let Some(row) = rows.next()? {
            each(&row)?;
        }
        Ok(())
    }

    /// Waits for a notification, at most for `limit`. Returns whether one came, with all that are there.
    pub(crate) fn wait_for_notification(&mut self, limit: Duration) -> Result<bool, Error> {
        self.with(|client| {
            let mut notifications = client.notifications();
            let mut came = notifications.timeout_iter(limit).next()?.is_some();
            while notifications.iter().next()?.is_some() {
                came = true;
            }
            Ok(came)
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It says goodbye to the server, and waits until that is sent.
        outside_of_runtimes(|| drop(self.0.take()));
    }
}

/// Calls `f`, which waits: on this thread, or on another one if this thread has to do with an async runtime.
pub(crate) fn outside_of_runtimes<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    if Handle::try_current().is_err() {
        return f();
    }
    thread::scope(|scope| scope.spawn(f).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
