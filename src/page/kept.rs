//! What monitors and pages read from the database, kept for a second.

use std::sync::{Arc, OnceLock, PoisonError};
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

/// What it costs much to read, by what was asked. It is used again for ten times as long as it took to read: at most a tenth of the
/// time is spent with it, however often pages are requested.
#[derive(Debug)]
pub(super) struct KeptByCost<T>(std::sync::Mutex<Vec<Costly<T>>>);

#[derive(Debug)]
struct Costly<T> {
    asked: String,
    until: Duration,
    value: Arc<T>,
}

/// What is read faster than this is not kept: pages show a change at once.
const CHEAP: Duration = Duration::from_millis(200);

impl<T> Default for KeptByCost<T> {
    fn default() -> Self {
        KeptByCost(std::sync::Mutex::default())
    }
}

impl<T> KeptByCost<T> {
    /// Returns the value, and for how long it is used again. One request reads at a time.
    pub(super) fn get(
        &self,
        clock: &dyn Clock,
        asked: String,
        read: impl FnOnce() -> crate::error::Result<T>,
    ) -> crate::error::Result<(Arc<T>, Duration)> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = clock.now().monotonic;
        kept.retain(|one| one.until > begin);
        if let Some(one) = kept.iter().find(|one| one.asked == asked) {
            return Ok((one.value.clone(), one.until - begin));
        }
        let value = Arc::new(read()?);
        let end = clock.now().monotonic;
        let cost = end.saturating_sub(begin);
        let kept_for = if cost < CHEAP { Duration::ZERO } else { cost * 10 };
        if !kept_for.is_zero() {
            kept.push(Costly { asked, until: end + kept_for, value: value.clone() });
        }
        Ok((value, kept_for))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn what_took_long_to_read_is_kept_ten_times_as_long_and_what_did_not_is_read_again() {
        let (clock, kept) = (ManualClock::new(Timestamp::from_millis(0)), KeptByCost::default());
        let ask = |asked: &str, value: u8, cost: u64| {
            let read = || {
                clock.advance(Duration::from_millis(cost));
                Ok(value)
            };
            let (value, left) = kept.get(&clock, asked.to_owned(), read).unwrap();
            (*value, left.as_millis())
        };
        assert_eq!((ask("day", 1, 199), ask("day", 2, 199)), ((1, 0), (2, 0)));
        assert_eq!((ask("day", 3, 500), ask("day", 4, 500)), ((3, 5000), (3, 5000)));
        assert_eq!(ask("week", 5, 1), (5, 0), "another question");
        clock.advance(Duration::from_millis(4998));
        assert_eq!(ask("day", 6, 500), (3, 1));
        clock.advance(Duration::from_millis(1));
        assert_eq!(ask("day", 7, 1), (7, 0));
    }
}
