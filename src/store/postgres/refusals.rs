//! What the tables in memory refuse because the server cannot store it: only of what an operation writes, not of the rows that were read
//! from the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, Transaction};

use crate::store::postgres::{json, text};

/// Whether the triggers of a connection refuse anything.
#[derive(Clone, Debug)]
pub(crate) struct Refusals(Arc<AtomicBool>);

impl Refusals {
    pub(crate) fn on(tables: &Connection) -> rusqlite::Result<Self> {
        let refusals = Refusals(Arc::new(AtomicBool::new(true)));
        let refuses = refusals.clone();
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
        tables.create_scalar_function("duly_refuses", 0, flags, move |_| Ok(refuses.0.load(Ordering::Relaxed)))?;
        json::refuse_unstorable(tables)?;
        text::refuse_unstorable(tables)?;
        // It recognizes INSERT OR REPLACE, which no operation uses, and has SQLite build each row twice.
        tables.execute_batch("DROP TRIGGER scheduled_tasks_no_replace")?;
        Ok(refusals)
    }

    /// Writes rows that were read from the server.
    pub(super) fn without<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.store(false, Ordering::Relaxed);
        let written = write();
        self.0.store(true, Ordering::Relaxed);
        written
    }
}

/// Has the tables in memory refuse each run that follows another until the transaction ends, for the reason for which the server did.
pub(super) fn refuse_followers(tables: &Transaction<'_>, reason: &str) -> rusqlite::Result<()> {
    tables.execute_batch(&format!(
        "CREATE TEMP TRIGGER task_runs_unfollowed BEFORE INSERT ON main.task_runs WHEN NEW.origin GLOB 'on_*'
         BEGIN SELECT RAISE(ABORT, '{}'); END",
        reason.replace('\'', "''")
    ))
}
