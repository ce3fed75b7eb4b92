//! Limits that hold across all schedulers of a database.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::task::{MAX_DURATION, check_text};
use crate::schedule::duration_text;

/// Most runs of a key that may run at once.
const MAX_RUNNING: u32 = 1000;
/// Most starts of a handler that a rate counts.
const MAX_STARTS: u32 = 10_000;

/// A limit that holds across all schedulers of a database, while some of them are killed, too.
///
/// ```
/// use std::time::Duration;
/// use duly::testing::Stepper;
/// use duly::{Limit, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let mut stepper = Stepper::builder(&file, noon).accept("mail").start()?;
/// stepper.client().set_limit(Limit::rate("mail", 2, Duration::from_secs(60)))?;
/// for name in ["anna", "bob", "carla"] {
///     stepper.client().add(NewTask::once(name, noon).handler("mail"))?;
/// }
/// assert_eq!(stepper.step()?.len(), 2, "the third waits");
/// stepper.clock().advance(Duration::from_secs(60));
/// assert_eq!(stepper.step()?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// At most `running` runs with this concurrency key run at a time. A key without a limit: one.
    Key {
        /// The [concurrency key](crate::NewTask::concurrency_key) of tasks.
        key: String,
        /// 1 to 1000.
        running: u32,
    },
    /// At most `starts` attempts of a handler are claimed in any time of this length, retries included. An attempt that was claimed
    /// and returned before it began counts as well.
    Rate {
        /// The name of the handler.
        handler: String,
        /// 1 to 10 000.
        starts: u32,
        /// The length of the time, in whole milliseconds.
        per: Duration,
    },
}

/// What a limit limits. Its `Display` is `key smtp` or `handler mail`.
///
/// ```
/// use duly::{Limit, LimitOn};
/// let limit = Limit::key("smtp", 3);
/// assert_eq!((limit.on(), limit.on().to_string()), (LimitOn::Key("smtp".into()), "key smtp".into()));
/// // A key and a handler of the same name are different.
/// assert_ne!(limit.on(), LimitOn::Handler("smtp".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LimitOn {
    /// The runs with a concurrency key.
    Key(String),
    /// The attempts of a handler.
    Handler(String),
}

impl fmt::Display for LimitOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitOn::Key(key) => write!(f, "key {key}"),
            LimitOn::Handler(handler) => write!(f, "handler {handler}"),
        }
    }
}

impl Limit {
    /// At most `running` runs with this concurrency key run at a time.
    ///
    /// ```
    /// use duly::{Client, Limit};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.set_limit(Limit::key("smtp", 3))?;
    /// let error = client.set_limit(Limit::key("#smtp", 3)).unwrap_err().to_string();
    /// assert!(error.contains("a key that does not begin with #"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn key(key: impl Into<String>, running: u32) -> Self {
        Limit::Key { key: key.into(), running }
    }

    /// At most `starts` attempts of a handler start in any time of the length `per`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{Client, Limit};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.set_limit(Limit::rate("mail", 100, Duration::from_secs(60)))?;
    /// assert!(client.set_limit(Limit::rate("mail", 100, Duration::ZERO)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rate(handler: impl Into<String>, starts: u32, per: Duration) -> Self {
        Limit::Rate { handler: handler.into(), starts, per }
    }

    /// Returns what it limits.
    pub fn on(&self) -> LimitOn {
        match self {
            Limit::Key { key, .. } => LimitOn::Key(key.clone()),
            Limit::Rate { handler, .. } => LimitOn::Handler(handler.clone()),
        }
    }

    /// Fails with [`Error::InvalidTask`] if a field cannot be accepted.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Limit::Key { key, running } => {
                check_text("concurrency_key", key)?;
                if key.starts_with('#') {
                    return Err(Error::invalid_task("concurrency_key", key, "a key that does not begin with #"));
                }
                check_number("max_running", *running, MAX_RUNNING)
            }
            Limit::Rate { handler, starts, per } => {
                check_text("handler", handler)?;
                check_number("max_starts", *starts, MAX_STARTS)?;
                if per.is_zero() || *per > MAX_DURATION || per.subsec_nanos() % 1_000_000 != 0 {
                    let expected = format!("whole milliseconds, 1ms to {}", duration_text(MAX_DURATION));
                    return Err(Error::invalid_task("per_ms", duration_text(*per), expected));
                }
                Ok(())
            }
        }
    }
}

fn check_number(field: &'static str, found: u32, most: u32) -> Result<()> {
    if (1..=most).contains(&found) { Ok(()) } else { Err(Error::invalid_task(field, found, format!("1 to {most}"))) }
}

/// A stored limit, and its use. Its JSON is that of `duly limit --json`: the columns of both tables, then the use.
///
/// ```
/// use duly::{Client, Limit};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.set_limit(Limit::key("smtp", 3))?;
/// let state = &client.limits()?[0];
/// assert_eq!((state.used, state.waiting, &state.managed_by), (0, 0, &None));
/// assert_eq!(serde_json::to_value(state)?["max_running"], 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "LimitJson", try_from = "LimitJson")]
#[non_exhaustive]
pub struct LimitState {
    /// The limit.
    pub limit: Limit,
    /// The manifest that declared it; `None` if it was set by hand.
    pub managed_by: Option<String>,
    /// Of a key: its running runs. Of a rate: its starts that still count.
    pub used: u64,
    /// Runs with the key, or of the handler, that wait for the limit or for their time. Runs that something else blocks, such as a
    /// paused task, are not counted.
    pub waiting: u64,
    /// Of a rate that is reached: when the next attempt may start.
    pub next_start: Option<Timestamp>,
}

/// The JSON form of a [`LimitState`].
#[derive(Serialize, Deserialize)]
struct LimitJson {
    concurrency_key: Option<String>,
    max_running: Option<u32>,
    handler: Option<String>,
    max_starts: Option<u32>,
    per_ms: Option<u64>,
    managed_by: Option<String>,
    used: u64,
    waiting: u64,
    next_start: Option<Timestamp>,
}

impl From<LimitState> for LimitJson {
    fn from(state: LimitState) -> Self {
        let (key, rate) = match state.limit {
            Limit::Key { key, running } => (Some((key, running)), None),
            Limit::Rate { handler, starts, per } => (None, Some((handler, (starts, per.as_millis() as u64)))),
        };
        let ((concurrency_key, max_running), (handler, rate)) = (key.unzip(), rate.unzip());
        let (max_starts, per_ms) = rate.unzip();
        let LimitState { managed_by, used, waiting, next_start, .. } = state;
        LimitJson { concurrency_key, max_running, handler, max_starts, per_ms, managed_by, used, waiting, next_start }
    }
}

impl TryFrom<LimitJson> for LimitState {
    type Error = &'static str;

    fn try_from(json: LimitJson) -> std::result::Result<Self, Self::Error> {
        let LimitJson { managed_by, used, waiting, next_start, .. } = json;
        let key = json.concurrency_key.zip(json.max_running);
        let rate = json.handler.zip(json.max_starts).zip(json.per_ms);
        let limit = match (key, rate) {
            (Some((key, running)), None) => Limit::Key { key, running },
            (None, Some(((handler, starts), per))) => Limit::Rate { handler, starts, per: Duration::from_millis(per) },
            _ => return Err("expected concurrency_key and max_running, or handler, max_starts and per_ms"),
        };
        Ok(LimitState { limit, managed_by, used, waiting, next_start })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Limit;

    #[test]
    fn an_error_names_the_field_and_what_is_expected() {
        let minute = Duration::from_secs(60);
        assert!(Limit::key("smtp", 1000).check().is_ok() && Limit::rate("mail", 10_000, minute).check().is_ok());
        for (limit, says) in [
            (Limit::key("", 1), "concurrency_key: expected 1 to 200 bytes"),
            (Limit::key("#7", 1), "concurrency_key: expected a key that does not begin with #, found \"#7\""),
            (Limit::key("smtp", 0), "max_running: expected 1 to 1000, found \"0\""),
            (Limit::rate("a\0b", 1, minute), "handler: expected 1 to 200 bytes without control"),
            (Limit::rate("mail", 10_001, minute), "max_starts: expected 1 to 10000, found \"10001\""),
            (Limit::rate("mail", 1, Duration::ZERO), "per_ms: expected whole milliseconds, 1ms to "),
            (Limit::rate("mail", 1, Duration::from_micros(1)), "per_ms: expected whole milliseconds"),
        ] {
            let error = limit.check().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
