//! Classifies the errors of PostgreSQL.

use postgres::Error;
use postgres::error::SqlState;

use crate::store::fault::{Class, Fault};

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let class = match error.code() {
            Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE || *code == SqlState::T_R_DEADLOCK_DETECTED => {
                Class::Busy
            }
            Some(code) if matches!(&code.code()[..2], "22" | "23") => Class::Item,
            Some(code) if *code == SqlState::UNDEFINED_TABLE || *code == SqlState::UNDEFINED_COLUMN => Class::Tables,
            Some(code) if *code == SqlState::DISK_FULL => Class::Space,
            _ => Class::Other,
        };
        Fault::Store(class, error.into())
    }
}
