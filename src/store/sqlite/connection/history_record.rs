//! The record beside the file, written by the connection of an owner: see [`restore`].

use rusqlite::{Transaction, TransactionBehavior};

use crate::error::BoxError;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::connection::known::Purpose;
use crate::store::sqlite::restore;
use crate::store::sqlite::restore::record::HistoryRecord;
use crate::store::sqlite::restore::seen::{HighestIds, Seen};

impl SqliteStore {
    /// Returns whether a change of the schema shows that the history may have ended, or it has. A transaction that writes finds out.
    pub(crate) fn may_have_gone_back(&self) -> bool {
        // An error shows nothing.
        self.backing.is_none()
            && self.history.known.is_some()
            && Seen::read(&self.connection).is_ok_and(|seen| !self.history.is(&seen.history))
    }

    /// An owner has registered on this connection: its claims are of the present history.
    pub(crate) fn claims(&mut self) {
        self.history.purpose = Purpose::Claims;
    }

    /// Records the stamp of a heartbeat that was committed, and what is known of the file, in the record beside it.
    pub(crate) fn stamped(&mut self) {
        if self.backing.is_some() {
            return;
        }
        self.files.stamped(&self.connection);
        if let Err(error) = self.record() {
            log::debug!("the record beside {} is not written: {error}", self.path.display());
        }
    }

    /// Returns whether more ids were given out since the last record than one may be behind.
    pub(crate) fn has_outgrown_the_record(&self) -> bool {
        let recorded = self.history.recorded;
        let is_beyond = |ids: HighestIds| {
            ids.runs.saturating_sub(recorded.runs).max(ids.tasks.saturating_sub(recorded.tasks)) > restore::MARGIN / 2
        };
        self.backing.is_none() && self.history.known.as_ref().is_some_and(|(_, ids)| is_beyond(*ids))
    }

    /// Holds the write lock meanwhile: otherwise the record of an older state could replace that of a newer one.
    fn record(&mut self) -> Result<(), BoxError> {
        // Without its place, as SQLite refuses the lock.
        let Ok(place) = self.history.queue().wait(self.busy_timeout) else { return Err("database is locked".into()) };
        let begin = |connection| Transaction::new_unchecked(connection, TransactionBehavior::Immediate);
        let snapshot = place.lock(&self.connection, begin)?;
        let seen = Seen::read(&snapshot)?;
        // Otherwise the file was restored since: the record is what shows that.
        if !self.history.is(&seen.history) {
            return Ok(());
        }
        let mut record = HistoryRecord::of(&snapshot, &seen, &self.path)?;
        // Of a file that was replaced nothing is known.
        if record.is_of(self.identity) {
            record.keep_former(HistoryRecord::read(&self.path), &self.path);
            record.write(&self.path)?;
            self.history.recorded = record.highest();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::Connection;

    use crate::host::owner_lock::OwnerLock;
    use crate::store::sqlite::connection::SqliteStore;
    use crate::store::sqlite::file::{Durability, Missing};
    use crate::store::sqlite::restore::Claims;
    use crate::store::sqlite::restore::record::HistoryRecord;

    #[test]
    fn the_record_is_written_while_nothing_else_is() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let mut store = SqliteStore::open(&database, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap();
        let _lock = OwnerLock::take(&database, "a-1").unwrap();
        store.write("look", |_, _| Ok(())).unwrap();
        store.set_busy_timeout(Duration::ZERO).unwrap();
        // A program that begins another history.
        let other = Connection::open(&database).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        store.stamped();
        assert_eq!(HistoryRecord::read(&database), None);
        other.execute_batch("COMMIT").unwrap();
        store.stamped();
        assert!(HistoryRecord::read(&database).is_some());
    }

    #[test]
    fn a_change_that_another_write_has_found_is_compared_in_the_next_turn() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        let mut store = SqliteStore::open(&database, Missing::Create, Durability::MayRepeatAfterPowerLoss).unwrap();
        store.write("look", |_, _| Ok(())).unwrap();
        store.claims();
        Connection::open(&database).unwrap().execute_batch("CREATE TABLE notes (text)").unwrap();
        store.write("look", |_, _| Ok(())).unwrap();
        let mut turn = || {
            let claims = Claims::new();
            let found =
                store.try_write_items(Some(("a-1", &claims)), |_, _, _, beginning| Ok(beginning.unwrap().has_changed));
            found.unwrap()
        };
        assert_eq!([turn(), turn()], [true, false]);
    }
}
