//! What a connection knows of the history of its file: see [`restore`].

use std::path::Path;

use crate::error::{BoxError, Error};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::{Purpose, SqliteStore};
use crate::store::sqlite::restore::{self, HighestIds, Seen};

impl SqliteStore {
    /// Returns whether a change of the schema shows that the history may have ended, or it has. A transaction that writes finds out.
    pub(crate) fn may_have_gone_back(&self) -> bool {
        let Some((known, _)) = self.known.as_ref().filter(|_| self.backing.is_none()) else { return false };
        // An error shows nothing.
        Seen::read(&self.connection).is_ok_and(|seen| seen.history != *known)
    }

    /// An owner has registered on this connection: its claims are of the present history.
    pub(crate) fn claims(&mut self) {
        self.purpose = Purpose::Claims;
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
        let is_beyond = |ids: HighestIds| {
            ids.runs.saturating_sub(self.recorded.runs).max(ids.tasks.saturating_sub(self.recorded.tasks))
                > restore::MARGIN / 2
        };
        self.backing.is_none() && self.known.as_ref().is_some_and(|(_, ids)| is_beyond(*ids))
    }

    fn record(&mut self) -> Result<(), BoxError> {
        let mut record = {
            let snapshot = self.connection.transaction()?;
            let seen = Seen::read(&snapshot)?;
            // Otherwise the file was restored since: the record is what shows that.
            if self.known.as_ref().is_none_or(|(known, _)| *known != seen.history) {
                return Ok(());
            }
            restore::Record::of(&snapshot, &seen)?
        };
        record.keep_former(restore::Record::read(&self.path), &self.path);
        record.file = self.identity;
        record.write(&self.path)?;
        self.recorded = record.highest();
        Ok(())
    }
}

/// Returns the fault of a write for a claim of a history that has ended.
pub(super) fn ended(path: &Path) -> Fault {
    let reason = format!("{} was restored from a copy: what was begun before counts as lost", path.display());
    Fault::Restored(Error::store("write for a run", reason))
}
