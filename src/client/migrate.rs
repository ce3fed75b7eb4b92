//! `migrate`: from a file to a PostgreSQL server, and back.

use std::path::Path;

use crate::error::Result;
use crate::model::progress_meter::Progress;
use crate::model::report::Migrated;
use crate::store::place::{self, Place};

/// Copies all of duly's rows from a file to a PostgreSQL server, or from a server to a file: tasks, runs, attempts, effects, limits,
/// events, with their ids. `from` and `to` are a path and an address, as in `postgres://user@host/database`. The target must be new, or
/// hold no rows: its tables are created if they are missing. All is one transaction, which commits only after both sides were read again
/// and are equal; if anything fails, or the process is killed, the target holds no rows. The source is never changed.
///
/// Other programs cannot write on either side meanwhile. `progress` counts rows, each twice: copied, and compared.
///
/// A scheduler on the source runs every task, whatever one on the target does: remove or rename the source before one starts there.
///
/// ```no_run
/// # fn main() -> duly::Result<()> {
/// let migrated = duly::migrate("agent.db", "postgres://duly@db.example/app", &duly::Progress::default())?;
/// println!("{} tasks, {} runs", migrated.tasks, migrated.runs);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Refused`](crate::Error::Refused) if a scheduler of the source has not stopped, or a run is running there; if the target
/// holds rows; if both are files, or both on servers; if a row holds what the other side cannot store: the error names it.
/// [`Error::UnusableDatabase`](crate::Error::UnusableDatabase) if a side cannot be opened, or if this build lacks the feature `postgres`.
pub fn migrate(from: impl AsRef<Path>, to: impl AsRef<Path>, progress: &Progress) -> Result<Migrated> {
    place::migrate(&Place::of(from.as_ref())?, &Place::of(to.as_ref())?, progress)
}
