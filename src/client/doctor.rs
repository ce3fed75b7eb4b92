//! `Client::doctor`: examines whether a file is sound, by SQLite's own checks and by the rules for duly's rows. It reads one
//! snapshot of a file that may be in use, and repairs nothing.

use crate::client::Client;
use crate::error::Result;
use crate::model::report::Finding;

impl Client {
    /// Returns what is broken in the file: pages, indexes, and rules that the rows of duly must meet at all times; nothing for a
    /// sound file. Reads all of the file, writes nothing, and blocks no writer.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// assert!(client.doctor()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn doctor(&self) -> Result<Vec<Finding>> {
        self.store().doctor()
    }
}
