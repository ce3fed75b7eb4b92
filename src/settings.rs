//! How a scheduler keeps time, and what it may be told.

use std::time::Duration;

use crate::error::{Error, Result};

/// How a scheduler keeps time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) workers: usize,
    /// How long the owner is believed without a sign of life. It gives one three times as often.
    pub(crate) lease: Duration,
    /// How often it looks for what others wrote.
    pub(crate) poll: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { workers: 4, lease: Duration::from_secs(60), poll: Duration::from_secs(1) }
    }
}

impl Settings {
    /// Whether each makes sense.
    pub(crate) fn check(&self) -> Result<()> {
        let Settings { workers, lease, poll } = *self;
        let wrong = |field, found: String, expected: &str| {
            Err(Error::InvalidConfig { field, reason: format!("expected {expected}, found {found}") })
        };
        if !(1..=256).contains(&workers) {
            return wrong("workers", workers.to_string(), "1 to 256");
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&lease) {
            return wrong("lease", format!("{lease:?}"), "one second to a day");
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&poll) {
            return wrong("poll", format!("{poll:?}"), "10 ms to an hour");
        }
        Ok(())
    }
}
