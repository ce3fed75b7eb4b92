//! Creates and examines the tables of `schema.postgres.sql`.

use crate::store::fault::Fault;
use crate::store::postgres::server::Server;

/// Creates what is missing.
pub(crate) fn prepare(server: &mut Server) -> Result<(), Fault> {
    server.find_schema()
}
