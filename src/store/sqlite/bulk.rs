//! Adds many tasks without the checks that the program has made itself: the CHECKs of the tables and the trigger that refuses
//! `INSERT OR REPLACE` are two thirds of the cost of an INSERT.
//!
//! NOT NULL, UNIQUE and STRICT still hold. An application's own triggers and CHECKs must hold too: if there is one, nothing is
//! skipped.

use rusqlite::{Connection, Transaction};

use crate::store::sqlite::{own_triggers, schema};

/// Smallest batch for which this pays: a change of either setting makes SQLite prepare all statements again.
pub(super) const BULK: usize = 1000;

/// A transaction that skips CHECKs and triggers until this is dropped.
pub(super) struct Bulk<'a>(&'a Connection);

/// The table itself too, because a column that an application has added may have a CHECK.
const TABLE_AND_TRIGGERS: &str = "
    SELECT sql FROM main.sqlite_schema
     WHERE (type = 'table' OR type = 'trigger') AND tbl_name = 'scheduled_tasks' COLLATE NOCASE
    UNION ALL
    SELECT sql FROM temp.sqlite_schema WHERE type = 'trigger' AND tbl_name = 'scheduled_tasks' COLLATE NOCASE";

impl<'a> Bulk<'a> {
    /// Begins to skip them. `None`: `schema.sql` does not create the table or one of its triggers as it is. The transaction must hold
    /// the write lock, so that neither can change before it ends.
    pub(super) fn begin(tx: &'a Transaction<'_>) -> rusqlite::Result<Option<Self>> {
        let mut statement = tx.prepare_cached(TABLE_AND_TRIGGERS)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if !row.get_ref(0)?.as_str().is_ok_and(schema::creates) {
                return Ok(None);
            }
        }
        let bulk = Bulk(tx);
        bulk.skip(true)?;
        Ok(Some(bulk))
    }

    fn skip(&self, skip: bool) -> rusqlite::Result<()> {
        own_triggers::set(self.0, !skip)?;
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
