//! Adds many tasks without the checks that the program has made itself: the CHECKs of the tables and the trigger that refuses
//! `INSERT OR REPLACE` are two thirds of the cost of an INSERT.
//!
//! NOT NULL, UNIQUE and STRICT still hold. An application's own triggers must fire: if there is one, nothing is skipped.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction};

use crate::store::sqlite::schema;

/// Fewest tasks for which it is worth while: a change of either setting prepares all statements again.
pub(super) const BULK: usize = 1000;

/// A transaction that skips CHECKs and triggers until this is dropped.
pub(super) struct Bulk<'a>(&'a Connection);

const TRIGGERS: &str = "
    SELECT name, sql FROM main.sqlite_schema WHERE type = 'trigger' AND tbl_name = 'scheduled_tasks' COLLATE NOCASE
    UNION ALL
    SELECT name, sql FROM temp.sqlite_schema WHERE type = 'trigger' AND tbl_name = 'scheduled_tasks' COLLATE NOCASE";

impl<'a> Bulk<'a> {
    /// Begins to skip them. `None`: the table has a trigger that `schema.sql` does not create as it is. The transaction must hold the
    /// write lock, so that no trigger can appear before it ends.
    pub(super) fn begin(tx: &'a Transaction<'_>) -> rusqlite::Result<Option<Self>> {
        let mut triggers = tx.prepare_cached(TRIGGERS)?;
        let mut rows = triggers.query([])?;
        while let Some(row) = rows.next()? {
            if !schema::creates(row.get_ref(1)?.as_str()?) {
                return Ok(None);
            }
        }
        let bulk = Bulk(tx);
        bulk.skip(true)?;
        Ok(Some(bulk))
    }

    fn skip(&self, skip: bool) -> rusqlite::Result<()> {
        self.0.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, !skip)?;
        self.0.pragma_update(None, "ignore_check_constraints", skip)
    }
}

impl Drop for Bulk<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.skip(false) {
            log::error!("cannot enable triggers and CHECKs again: {error}");
        }
    }
}
