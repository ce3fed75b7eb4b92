//! Limits across schedulers: runs of a key, starts of a handler.

use crate::client::Client;
use crate::error::Result;
use crate::model::limit::{Limit, LimitOn, LimitState};
use crate::model::request::Change;

impl Client {
    /// Sets a limit, in place of an earlier one on the same key or handler. It holds from the next turn of each scheduler on: a
    /// lower limit ends no run, and a change of a rate keeps the starts that it counts. Idempotent.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{Change, Client, Limit, LimitOn};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// assert_eq!(client.set_limit(Limit::key("smtp", 3))?, Change::Created);
    /// client.set_limit(Limit::rate("mail", 100, Duration::from_secs(60)))?;
    /// assert_eq!(client.limits()?[1].used, 0);
    /// assert!(client.remove_limit(&LimitOn::Key("smtp".to_owned()))?);
    /// let error = client.set_limit(Limit::key("smtp", 0)).unwrap_err();
    /// assert_eq!(error.to_string(), r#"invalid max_running: expected 1 to 1000, found "0""#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidTask`](crate::Error::InvalidTask), with the column, if a field cannot be accepted.
    pub fn set_limit(&self, limit: Limit) -> Result<Change> {
        limit.check()?;
        self.write(|store, _| store.set_limit(&limit))
    }

    /// Removes a limit. Returns whether there was one. A key without a limit runs one run at a time.
    ///
    /// # Errors
    /// Only if the database cannot be written.
    pub fn remove_limit(&self, on: &LimitOn) -> Result<bool> {
        self.write(|store, _| store.remove_limit(on))
    }

    /// Returns all limits with their use: those of keys, then those of handlers, by name.
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn limits(&self) -> Result<Vec<LimitState>> {
        self.store().limits(self.now())
    }
}
