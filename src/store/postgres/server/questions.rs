//! What is asked of a server outside of the operations, and how rows get there in bulk.

use postgres::Row;

use crate::clock::Timestamp;
use crate::store::fault::Fault;
use crate::store::postgres::server::{MILLIS, Server, gone};

impl Server {
    pub(crate) fn time(&mut self) -> Result<Timestamp, Fault> {
        let rows = self.query(&format!("SELECT {MILLIS}"), &[])?;
        Ok(Timestamp::from_millis(rows.first().map_or(Ok(0), |row| row.try_get(0))?))
    }

    /// Returns the version of the server, as in `15.18`.
    pub(crate) fn version(&mut self) -> Result<String, Fault> {
        let rows = self.query("SELECT split_part(current_setting('server_version'), ' ', 1)", &[])?;
        Ok(rows[0].try_get(0)?)
    }

    /// Returns the server's identifier and the name of the database.
    pub(crate) fn identity(&mut self) -> Result<(String, String), Fault> {
        let rows =
            self.query("SELECT system_identifier::text, current_database()::text FROM pg_control_system()", &[])?;
        Ok((rows[0].try_get(0)?, rows[0].try_get(1)?))
    }

    /// Returns a number that changes whenever another transaction has ended.
    pub(crate) fn data_version(&mut self) -> Result<i64, Fault> {
        let rows = self.query("SELECT hashtextextended(pg_current_snapshot()::text, 0)", &[])?;
        Ok(rows.first().map_or(Ok(0), |row| row.try_get(0))?)
    }

    /// Streams the rows of a statement of the open transaction: see [`Client::stream`](crate::store::postgres::client::Client::stream).
    pub(crate) fn stream(&mut self, statement: &str, each: impl FnMut(&Row) -> Result<(), Fault>) -> Result<(), Fault> {
        self.round_trips += 1;
        self.link.as_mut().ok_or_else(gone)?.client.stream(statement, each)
    }

    /// Runs a `COPY .. FROM STDIN` with these lines.
    pub(crate) fn copy_in(&mut self, statement: &str, lines: &str) -> Result<(), Fault> {
        Ok(self.link.as_mut().ok_or_else(gone)?.client.copy_in(statement, lines)?)
    }
}
