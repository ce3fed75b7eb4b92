//! Creates and examines the tables of `schema.postgres.sql`.

use crate::store::fault::Fault;
use crate::store::postgres::server::Server;
use crate::store::sqlite::file::Missing;

/// Creates what is missing, if `missing` says so.
pub(crate) fn prepare(server: &mut Server, _missing: Missing) -> Result<(), Fault> {
    server.find_schema()
}
