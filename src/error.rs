//! The error type: why a request failed.
//!
//! One type for the whole API: callers tell the cases apart by variant. A handler's failure is not an [`Error`]: it is
//! an [`Outcome`](crate::Outcome), and is stored. A run that another owner has taken is not an [`Error`] either: it is
//! a normal answer.

use std::fmt;
use std::path::PathBuf;

/// Any error. A run whose handler returns one is retried.
///
/// ```
/// use duly::{BoxError, Context};
/// fn read(_: &Context) -> Result<usize, BoxError> {
///     let text = std::fs::read_to_string("/no/such/file")?;
///     if text.is_empty() { Err("the file is empty".into()) } else { Ok(text.len()) }
/// }
/// ```
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error of the public API. It exposes the types of underlying libraries only as a boxed source.
///
/// ```
/// use duly::{Client, Error, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// let task = |line: &str| NewTask::cron("digest", line).handler("digest");
/// match client.add(task("0 25 * * *")) {
///     Err(Error::InvalidSchedule { text, .. }) => assert_eq!(text, "0 25 * * *"),
///     other => panic!("{other:?}"),
/// }
/// client.add(task("0 7 * * *"))?;
/// assert!(matches!(client.add(task("0 8 * * *")), Err(Error::TaskDiffers { field: "schedule_value", .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a schedule, or the schedule has no occurrence.
    InvalidSchedule {
        /// The given value.
        text: String,
        /// What is wrong with it, and what is expected.
        reason: String,
    },
    /// The text is no instant.
    InvalidTime {
        /// The given value.
        text: String,
        /// What is wrong with it, and what is expected.
        reason: String,
    },
    /// A field of a task, other than its schedule, cannot be accepted.
    InvalidTask {
        /// The field, by its column name.
        field: &'static str,
        /// The given value, shortened.
        found: String,
        /// What is expected.
        expected: String,
    },
    /// The zone data of this machine has no usable entry for a time zone: no file and no built-in rule has the name, or
    /// its file cannot be read. Another machine, or a later attempt, may have it.
    ZoneUnavailable {
        /// The name of the zone.
        zone: String,
        /// What is expected, and why this zone is unusable.
        expected: String,
    },
    /// A task of this name exists and is defined differently.
    TaskDiffers {
        /// The name of the task.
        name: String,
        /// The first field that differs, by its column name.
        field: &'static str,
        /// The stored value.
        stored: String,
        /// The given value.
        given: String,
    },
    /// There is no task of this name.
    UnknownTask {
        /// The name of the request.
        name: String,
    },
    /// There is no run with this id.
    UnknownRun {
        /// The id of the request.
        id: i64,
    },
    /// The state of the task or run does not allow the request.
    Refused {
        /// The request and its object: `remove task "digest"`.
        request: String,
        /// Why not, and what to do instead.
        reason: String,
    },
    /// Another action was recorded since [`Actor::guarded`](crate::Actor::guarded). Nothing was changed.
    Overtaken,
    /// The payload does not have the type that the handler expects.
    InvalidPayload {
        /// The task whose payload it is.
        task: String,
        /// The message of the parser.
        reason: String,
    },
    /// An earlier attempt began an effect, and it is unknown whether the effect was done. See
    /// [`Context::effect`](crate::Context::effect).
    InDoubt {
        /// The task.
        task: String,
        /// The run whose attempt found the effect in doubt.
        run: i64,
        /// The run under which `task_effects` keeps the effect: the first run of the retry chain.
        first: i64,
        /// The key of the effect.
        key: String,
    },
    /// The value of an effect cannot be stored, or the stored value does not have the requested type.
    InvalidEffect {
        /// The task.
        task: String,
        /// The run.
        run: i64,
        /// The key of the effect.
        key: String,
        /// The expected and the found value.
        reason: String,
    },
    /// The attempt no longer owns its run: another owner has claimed the run, or the run has ended. Nothing was
    /// written.
    Superseded {
        /// The task.
        task: String,
        /// The run.
        run: i64,
        /// The attempt.
        attempt: u32,
    },
    /// The configuration of the scheduler is invalid: for example a handler registered twice, or no worker.
    InvalidConfig {
        /// The setting.
        field: &'static str,
        /// The found and the expected value.
        reason: String,
    },
    /// This version cannot use the file as a database.
    UnusableDatabase {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// SQLite or the file system returned an error.
    Store {
        /// The failed operation, as in "claim due runs".
        doing: &'static str,
        /// The cause.
        source: BoxError,
    },
}

/// Why a server cannot be used now. A later try may succeed.
#[derive(Debug)]
pub(crate) struct Unreachable(pub(crate) String);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreachable {}

/// A result with [`Error`] as its error type.
///
/// ```
/// fn next() -> duly::Result<duly::Timestamp> {
///     "2027-03-14 12:00".parse()
/// }
/// assert!(next().is_err(), "the zone is missing");
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns whether the server of the database could not be reached, or accepts no sessions or no writes now. A later try may succeed
    /// without a change by a person. False for a file.
    ///
    /// ```
    /// // Nothing listens there.
    /// # #[cfg(feature = "postgres")]
    /// # {
    /// let error = duly::Client::open("postgres://duly@127.0.0.1:1/app").unwrap_err();
    /// assert!(error.is_unreachable());
    /// # }
    /// ```
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Error::Store { source, .. } if source.is::<Unreachable>())
    }

    /// Wraps the error of a library that failed while `doing` something.
    pub(crate) fn store(doing: &'static str, source: impl Into<BoxError>) -> Self {
        Error::Store { doing, source: source.into() }
    }

    /// Returns the error for a schedule without a future occurrence.
    pub(crate) fn never(text: String) -> Self {
        let reason = "it names no occurrence from now on, within starts_at and ends_at".to_owned();
        Error::InvalidSchedule { text, reason }
    }

    /// Returns the error for an unacceptable field of a task. `found` is shortened, so that the message stays one line.
    pub(crate) fn invalid_task(field: &'static str, found: impl fmt::Display, expected: impl Into<String>) -> Self {
        Error::InvalidTask { field, found: excerpt(&found.to_string(), 80), expected: expected.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidSchedule { text, reason } => {
                write!(f, "invalid schedule {:?}: {reason}", excerpt(text, 80))
            }
            Error::InvalidTime { text, reason } => write!(f, "invalid time {:?}: {reason}", excerpt(text, 80)),
            Error::InvalidTask { field, found, expected } => {
                write!(f, "invalid {field}: expected {expected}, found {found:?}")
            }
            Error::ZoneUnavailable { zone, expected } => {
                write!(f, "invalid time_zone: expected {expected}, found {zone:?}")
            }
            Error::TaskDiffers { name, field, stored, given } => {
                write!(f, "task {name:?} exists with another {field}: stored {stored:?}, given {given:?}")
            }
            Error::UnknownTask { name } => write!(f, "no task is named {:?}", excerpt(name, 200)),
            Error::UnknownRun { id } => write!(f, "there is no run {id}"),
            Error::Refused { request, reason } => write!(f, "cannot {request}: {reason}"),
            Error::Overtaken => f.write_str("another actor has changed something in the meantime: examine it again"),
            Error::InvalidPayload { task, reason } => {
                write!(f, "the payload of task {task:?} is not what its handler expects: {reason}")
            }
            Error::InDoubt { task, run, first, key } => write!(
                f,
                "effect {key:?} of run {run} of {task:?} is in doubt: an attempt began it, and it is unknown whether it was \
                 done; check; if it was not done, delete its row of task_effects (run_id {first}); if it was, set its state \
                 to 'done' and its value; then retry the run; or let the handler check with effect_or"
            ),
            Error::InvalidEffect { task, run, key, reason } => {
                write!(f, "the value of effect {key:?} of run {run} of {task:?} cannot be used: {reason}")
            }
            Error::Superseded { task, run, attempt } => {
                write!(f, "run {run} of {task:?} no longer belongs to attempt {attempt}: nothing is written for it")
            }
            Error::InvalidConfig { field, reason } => write!(f, "invalid {field}: {reason}"),
            Error::UnusableDatabase { path, reason } => write!(f, "cannot use {}: {reason}", path.display()),
            Error::Store { doing, source } => write!(f, "cannot {doing}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Store { source, .. } => Some(source.as_ref()),
            _ => None,
        }
    }
}

/// Returns at most `limit` bytes of `text`, cut at a character boundary; `...` marks a cut.
pub(crate) fn excerpt(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let cut = (0..=limit).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}...", &text[..cut])
}

/// Returns at most the last `limit` bytes of `text`, cut at a character boundary; `...` marks a cut.
pub(crate) fn excerpt_of_end(text: &str, limit: usize) -> String {
    let Some(least) = text.len().checked_sub(limit).filter(|least| *least > 0) else { return text.to_owned() };
    let cut = (least..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    format!("...{}", &text[cut..])
}

#[cfg(test)]
mod tests {
    use super::{Error, excerpt, excerpt_of_end};

    #[test]
    fn an_excerpt_is_cut_at_a_character_boundary() {
        assert_eq!(excerpt("short", 5), "short");
        assert_eq!(excerpt("héllo", 2), "h...");
        assert_eq!(excerpt_of_end("short", 5), "short");
        assert_eq!(excerpt_of_end("short", 4), "...hort");
        assert_eq!(excerpt_of_end("hellé", 1), "...");
        assert_eq!(excerpt_of_end("", 0), "");
    }

    #[test]
    fn a_message_is_one_short_line_for_any_input() {
        let error = Error::invalid_task("name", "x\n".repeat(500), "a name");
        assert_eq!(error.to_string().lines().count(), 1);
        assert!(error.to_string().len() < 300, "{error}");
    }
}
