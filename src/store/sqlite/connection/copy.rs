//! Copies a database.

use std::path::Path;

use crate::error::{Error, Result};
use crate::model::progress_meter::Progress;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::file;

/// Steps of SQLite's virtual machine between two reports of a copy's progress: some milliseconds.
const STEPS_BETWEEN_LOOKS: i32 = 100_000;

impl SqliteStore {
    /// Writes a snapshot of the whole database into another file, which is empty. Writers do not wait for it. `progress` counts
    /// the bytes that are written.
    pub(crate) fn copy_into(&mut self, copy: &Path, progress: &Progress) -> Result<()> {
        let doing = "copy the database";
        let store = |error: rusqlite::Error| file::error(&self.path, error.into(), doing);
        let name = copy.to_str().ok_or_else(|| Error::store(doing, "the name of the copy is not Unicode"))?;
        let number = |pragma| self.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let pages = number("page_count").and_then(|pages| Ok(pages - number("freelist_count")?)).map_err(store)?;
        progress.set_total((pages * number("page_size").map_err(store)?).unsigned_abs());
        let (looks, file) = (progress.clone(), copy.to_owned());
        // SQLite reports no progress; it calls this function now and then.
        let look = move || {
            looks.set_done(std::fs::metadata(&file).map_or(0, |metadata| metadata.len()));
            false
        };
        self.connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(look)).map_err(store)?;
        let copied = self.connection.execute("VACUUM INTO ?1", [name]);
        self.connection.progress_handler(0, None::<fn() -> bool>).map_err(store)?;
        copied.map(|_| ()).map_err(store)
    }
}
