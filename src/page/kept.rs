//! The problems and the numbers that monitors and pages read from the database: each answer is used again for a second.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Mutex;

use crate::client::Client;
use crate::client::check::Problem;
use crate::clock::{Clock, Timestamp};
use crate::model::health::{Limits, Queue};
use crate::model::report::Status;
use crate::schedule::duration_text;
use crate::text::escape;

/// How long what was read is used again.
const FRESH: Duration = Duration::from_secs(1);
/// How long a request waits for what is read: less than the time limit of a scrape, which is ten seconds unless it is set.
const PATIENCE: Duration = Duration::from_secs(3);

/// What was read from the database.
#[derive(Debug)]
pub(super) struct Monitor {
    pub(super) problems: Kept<Checked>,
    pub(super) tables: Kept<(Status, Queue, Timestamp)>,
    /// The version of SQLite, when it is known.
    pub(super) sqlite: OnceLock<String>,
}

/// What `check` found, and the version of the data in which it looked, or an earlier one.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) version: i64,
    pub(super) problems: Vec<Problem>,
}

impl Checked {
    pub(super) fn read(reader: &Client) -> crate::error::Result<Self> {
        Ok(Checked { version: reader.data_version()?, problems: reader.check(&Limits::default())? })
    }
}

impl Monitor {
    pub(super) fn new() -> Self {
        Monitor { problems: Kept::default(), tables: Kept::default(), sqlite: OnceLock::new() }
    }
}

pub(super) type Read<T> = Result<Arc<T>, Arc<str>>;
/// The value, and when it was read.
type Slot<T> = Option<(Duration, Read<T>)>;

/// A value that is read again when it is no longer fresh.
#[derive(Debug)]
pub(super) struct Kept<T>(Arc<Mutex<Slot<T>>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Kept(Arc::default())
    }
}

impl<T: Send + Sync + 'static> Kept<T> {
    /// Returns the value, and reads it on another thread unless it is fresh.
    ///
    /// # Errors
    /// Why it cannot be read now.
    pub(super) async fn get(
        &self,
        clock: Arc<dyn Clock>,
        read: impl FnOnce() -> crate::error::Result<T> + Send + 'static,
    ) -> Read<T> {
        let kept = self.0.clone();
        let reading = async move {
            // The thread holds the lock while it reads, though the request may have ended.
            let mut kept = kept.lock_owned().await;
            let reading = tokio::task::spawn_blocking(move || fresh(&mut kept, &*clock, |_| true, read));
            reading.await.unwrap_or_else(|_| Err("the reading thread panicked".into()))
        };
        let late = || Err(format!("no answer from the database within {}", duration_text(PATIENCE)).into());
        tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| late())
    }

    /// As [`Kept::get`], on this thread, which must not be one of the runtime: also reads a value again for which `is_current` is false.
    pub(super) fn current(
        &self,
        clock: &dyn Clock,
        is_current: impl FnOnce(&T) -> bool,
        read: impl FnOnce() -> crate::error::Result<T>,
    ) -> Read<T> {
        fresh(&mut self.0.blocking_lock(), clock, is_current, read)
    }
}

fn fresh<T>(
    slot: &mut Slot<T>,
    clock: &dyn Clock,
    is_current: impl FnOnce(&T) -> bool,
    read: impl FnOnce() -> crate::error::Result<T>,
) -> Read<T> {
    let now = clock.now().monotonic;
    match slot {
        Some((at, value))
            if now.saturating_sub(*at) < FRESH && value.as_ref().map_or(true, |value| is_current(value)) =>
        {
            value.clone()
        }
        _ => {
            let value = read().map(Arc::new).map_err(|error| escape::one_line(&error.to_string()).into());
            *slot = Some((clock.now().monotonic, value.clone()));
            value
        }
    }
}
