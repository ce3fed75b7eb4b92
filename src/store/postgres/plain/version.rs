//! Which version of a row was read, and where it is: a row that another transaction has changed since is another version, elsewhere.

use std::error::Error;

use postgres::Row;
use postgres::types::private::BytesMut;
use postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::store::fault::Fault;

/// A version of a row.
#[derive(Clone, Copy)]
pub(super) struct Version {
    /// Its `ctid`.
    pub(super) place: Raw<6>,
    /// Its `xmin`: the transaction that wrote it.
    pub(super) written_by: Raw<4>,
}

impl Version {
    /// Reads it from two columns.
    pub(super) fn read(row: &Row, written_by: usize, place: usize) -> Result<Self, Fault> {
        Ok(Version { place: row.try_get(place)?, written_by: row.try_get(written_by)? })
    }
}

/// The bytes of a `tid` or of an `xid`, as the server sends them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Raw<BYTES> {
    fn is_of(kind: &Type) -> bool {
        matches!((kind, BYTES), (&Type::TID, 6) | (&Type::XID, 4))
    }
}

impl<'a, const BYTES: usize> FromSql<'a> for Raw<BYTES> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Raw(raw.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        Self::is_of(kind)
    }
}

impl<const BYTES: usize> ToSql for Raw<BYTES> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        Self::is_of(kind)
    }

    to_sql_checked!();
}
