//! `Client::examine_server`: what a session with the server is like.

use std::time::Duration;

use crate::client::Client;
use crate::clock::{Clock, Now, SystemClock};
use crate::error::{Error, Result};
use crate::model::server_report::ServerReport;
use crate::store::place;

impl Client {
    /// Examines a session with the server: whether its locks exclude other sessions, how long a round trip takes, how far its clock is
    /// from that of this host, and what the role may not do. Connects once more for that. Writes nothing.
    ///
    /// ```
    /// use duly::{Client, Error};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// // A file has no session.
    /// assert!(matches!(Client::open(&file)?.examine_server(), Err(Error::Refused { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] if the database is a file; [`Error::Store`] if the server cannot be asked.
    pub fn examine_server(&self) -> Result<ServerReport> {
        let clock = SystemClock::new();
        // To the nanosecond, where a reading is cut to milliseconds.
        let later = Duration::from_secs(3600);
        let now = || Now { monotonic: later.saturating_sub(clock.until(later)), ..clock.now() };
        let refused =
            || Error::Refused { request: "examine the server".into(), reason: "the database is a file".into() };
        place::examine(&mut **self.store(), &now).unwrap_or_else(|| Err(refused()))
    }
}
