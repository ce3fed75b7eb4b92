//! The waits for the lock of the schema, and the end of a holder that is frozen.

use std::time::Duration;

use crate::clock::{Timestamp, millis};
use crate::store::fault::Fault;
use crate::store::postgres::fault;
use crate::store::postgres::holder::{self, Holder, Waits};
use crate::store::postgres::server::{Access, CLASS, Server};

impl Server {
    /// Begins on the connection that is there. `None`: the schema has another lock.
    pub(super) fn try_begin(&mut self, access: Access) -> Result<Option<Timestamp>, Fault> {
        let begin = match access {
            Access::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Access::Write => "BEGIN ISOLATION LEVEL READ COMMITTED",
        };
        let mut waits = Waits::new(self.terms.lock_timeout, self.stillness);
        loop {
            let begun = self.begin_by(access, begin.to_owned(), Some(waits.next()));
            let waited =
                begun.as_ref().is_err_and(|fault| fault::code(fault).is_some_and(|code| code.code() == "55P03"));
            if !waited {
                return begun;
            }
            self.roll_back();
            if self.link.is_none() || !waits.go_on(self.look_at_holder(self.stillness)) {
                return begun;
            }
        }
    }

    /// As [`Server::begin`] of a transaction that writes, if no other session holds the lock. `None`: begins a transaction without the lock,
    /// or none if that is not possible.
    pub(crate) fn begin_if_free(&mut self) -> Option<Timestamp> {
        self.roll_back();
        self.repeat = false;
        let begun = self.begin_by(Access::Write, "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned(), None);
        match begun {
            Ok(Some(now)) if self.open.as_ref().is_some_and(|open| open.has_lock) => {
                self.transactions += 1;
                Some(now)
            }
            Ok(Some(_)) => None,
            // The transaction that waits for the lock finds it out.
            Ok(None) | Err(_) => {
                self.roll_back();
                None
            }
        }
    }

    /// Looks at the holder of the lock, and ends it if it has done nothing for this long.
    pub(crate) fn look_at_holder(&mut self, limit: Duration) -> Holder {
        let (schema, limit) = (self.schema, millis(limit));
        let rows = self.query(holder::END_FROZEN, &[&i64::from(CLASS), &schema, &limit, &holder::MIGRATES]);
        rows.and_then(|rows| holder::report(&rows, self.address.schema())).unwrap_or_else(|fault| {
            log::warn!("cannot look for the holder of the lock of schema {:?}: {fault}", self.address.schema());
            Holder::Works
        })
    }

    /// Sets how long the holder of the lock may do nothing.
    #[cfg(test)]
    pub(crate) fn set_stillness(&mut self, limit: Duration) {
        self.stillness = limit;
    }
}
