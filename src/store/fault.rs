//! Why a transaction did not commit, in terms that every store shares. Outside of the store a fault becomes an [`Error`].

use crate::error::{BoxError, Error};

/// Why a transaction did not commit.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The request cannot be met: the error is the answer to the caller.
    Request(Error),
    /// The tables are of a newer version: only outcomes and leases may be written.
    Newer(Error),
    /// The database was damaged from outside: see [`crate::store::sqlite::damage`].
    Damaged(Error),
    /// The file was restored through SQLite, to another history than that of the claims: see [`crate::store::sqlite::restore`].
    Restored(Error),
    /// The database refuses a statement, or cannot be read or written.
    Store(Class, BoxError),
}

/// What the error of a database concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The database cannot store or read one item: a constraint, its size or its type. Other items can be written without it.
    Item,
    /// A row has the id that a new row was to have. Also a fault of one item.
    Id,
    /// No space for another row, or no id is left. Statements that add no row may succeed.
    Space,
    /// The tables lack what a statement names.
    Tables,
    /// The database refuses a statement without a more exact reason. Tables of a newer version can be the cause.
    Statement,
    /// The file is corrupt or no database. A disk that returns other bytes for a moment looks the same.
    Corrupt,
    /// Another connection holds the lock of the database.
    Busy,
    /// Another program holds the lock of a row. Also a fault of one item: the others can be written without it.
    #[cfg(feature = "postgres")]
    Held,
    /// The server ended a statement or a transaction because it took too long.
    #[cfg(feature = "postgres")]
    TooLong,
    /// Whether a transaction was committed is unknown, or what was committed before may be lost, because a standby was promoted. The
    /// claims of an owner count as lost.
    #[cfg(feature = "postgres")]
    Lost,
    /// The server is a standby, or refuses writes: it serves look-ups only. Another server, or this one later, may accept writes.
    #[cfg(feature = "postgres")]
    ReadOnly,
    /// Anything else: the disk, memory. A later try can succeed.
    Other,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Request(error)
    }
}

impl Fault {
    /// Returns whether the fault concerns one item only, so that the others can be written without it.
    pub(crate) fn is_about_the_item(&self) -> bool {
        matches!(self, Fault::Request(_) | Fault::Store(Class::Item | Class::Id, _)) || self.is_about_a_lock()
    }

    /// Returns whether another program holds the lock of a row.
    pub(crate) fn is_about_a_lock(&self) -> bool {
        #[cfg(feature = "postgres")]
        return matches!(self, Fault::Store(Class::Held, _));
        #[cfg(not(feature = "postgres"))]
        false
    }

    /// Returns whether the zone data of this machine is the cause. The fault says nothing about the row, which stays as it is.
    pub(crate) fn is_about_this_machine(&self) -> bool {
        matches!(self, Fault::Request(Error::ZoneUnavailable { .. }))
    }

    /// Returns whether a row has the id that a new row was to have.
    pub(crate) fn is_about_the_id(&self) -> bool {
        matches!(self, Fault::Store(Class::Id, _))
    }

    /// Returns whether there is no space or no id for another row.
    pub(crate) fn is_about_room(&self) -> bool {
        matches!(self, Fault::Store(Class::Space, _))
    }

    /// Returns whether the database is corrupt or damaged, or its tables lack what a statement names.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Fault::Damaged(_) | Fault::Store(Class::Tables | Class::Corrupt, _))
    }

    /// Returns whether another connection's lock, or the load of the server, is the cause.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Fault::Store(Class::Busy, _)) || self.is_about_a_lock() || self.is_too_long()
    }

    /// Returns whether a time limit of the server is the cause.
    pub(crate) fn is_too_long(&self) -> bool {
        #[cfg(feature = "postgres")]
        return matches!(self, Fault::Store(Class::TooLong, _));
        #[cfg(not(feature = "postgres"))]
        false
    }

    /// Returns whether what the owner has committed may be lost: its claims count as lost.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Fault::Store(Class::Lost, _))
    }

    /// Returns whether the server serves look-ups only.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_about_a_read_only_server(&self) -> bool {
        matches!(self, Fault::Store(Class::ReadOnly, _))
    }

    /// Returns whether the tables may differ from those that the statement was written for, as tables of a newer version do.
    pub(crate) fn is_about_the_tables(&self) -> bool {
        matches!(self, Fault::Store(Class::Tables | Class::Statement, _))
    }

    /// Returns the error for the caller. `doing`: the request, as in "claim due runs".
    pub(crate) fn into_error(self, doing: &'static str) -> Error {
        match self {
            Fault::Request(error) | Fault::Newer(error) | Fault::Damaged(error) | Fault::Restored(error) => error,
            Fault::Store(_, source) => Error::store(doing, source),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Request(error) | Fault::Newer(error) | Fault::Damaged(error) | Fault::Restored(error) => {
                error.fmt(f)
            }
            Fault::Store(_, source) => source.fmt(f),
        }
    }
}
