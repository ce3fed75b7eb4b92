//! What monitors read from the database, kept for a second.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Mutex;

use crate::client::check::Problem;
use crate::clock::{Clock, Timestamp};
use crate::model::health::Queue;
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
    pub(super) problems: Kept<Vec<Problem>>,
    pub(super) tables: Kept<(Status, Queue, Timestamp)>,
    /// The version of SQLite, when it is known.
    pub(super) sqlite: OnceLock<String>,
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
            let reading = tokio::task::spawn_blocking(move || {
                let now = clock.now().monotonic;
                match &*kept {
                    Some((at, value)) if now.saturating_sub(*at) < FRESH => value.clone(),
                    _ => {
                        let value = read().map(Arc::new).map_err(|error| escape::one_line(&error.to_string()).into());
                        *kept = Some((clock.now().monotonic, value.clone()));
                        value
                    }
                }
            });
            reading.await.unwrap_or_else(|_| Err("the reading thread panicked".into()))
        };
        let late = || Err(format!("no answer from the database within {}", duration_text(PATIENCE)).into());
        tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| late())
    }
}
