//! `Client::doctor`: whether a file is sound. SQLite's own checks, and our rules; it reads, one snapshot of a file that may be
//! in use, and repairs nothing.

use std::fmt;

use crate::client::Client;
use crate::error::Result;
use crate::store::sqlite::invariants;

/// Most rows that are told for one rule.
const MOST: usize = 100;

/// A rule that is broken. Its `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The rule; `integrity_check` and `foreign_key_check` are SQLite's.
    pub rule: &'static str,
    /// What breaks it.
    pub found: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.found)
    }
}

impl Client {
    /// Looks whether the file is sound: every page, every index, and what must be true of our rows, whatever happened. It
    /// reads all of the file, and writes nothing; nobody waits for it. A sound file answers with nothing.
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
        // A file whose scheduler died has its newest rows in the log: it stays as it was found.
        self.leave_log()?;
        self.read("look whether the file is sound", |tx, _| {
            let mut found = invariants::damaged(tx, MOST)?;
            let rules = [invariants::broken, invariants::unowned, invariants::unreadable_text];
            match rules.iter().map(|of_rules| of_rules(tx, MOST)).collect::<rusqlite::Result<Vec<_>>>() {
                Ok(broken) => found.extend(broken.into_iter().flatten()),
                // What is damaged may not be readable, which is no news.
                Err(_) if !found.is_empty() => {}
                Err(error) => return Err(error.into()),
            }
            // Names are somebody else's text: a finding stays one line.
            let told = |(rule, found): (_, String)| Finding { rule, found: found.replace(char::is_control, " ") };
            Ok(found.into_iter().map(told).collect())
        })
    }
}
