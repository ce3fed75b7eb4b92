//! What the server says of itself and of its databases.

use crate::store::fault::Fault;
use crate::store::postgres::server::Server;

impl Server {
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
}
