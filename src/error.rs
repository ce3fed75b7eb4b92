//! Why a request could not be honoured.
//!
//! One type for every door: finer ones compose badly, and a caller tells the cases apart by variant. A handler's
//! failure is not an [`Error`]: it is an [`Outcome`](crate::Outcome), written down. A run that another owner has taken
//! is not one either: it is an answer.

use std::fmt;
use std::path::PathBuf;

/// Any error. `?` in a handler means: try again.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a caller can be told. Types of the libraries underneath stay out of it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a schedule, or names no moment that will ever come.
    InvalidSchedule {
        /// What was given.
        text: String,
        /// Which part of it is wrong, what was found, and what would do.
        reason: String,
    },
    /// A field of a task, other than its schedule, cannot be accepted.
    InvalidTask {
        /// The field, by its column name.
        field: &'static str,
        /// What was given, shortened.
        found: String,
        /// What would do.
        expected: String,
    },
    /// The zone data of this machine does not answer for a time zone: no file and no built-in rule has the name, or its file
    /// cannot be read. Another machine, or a later try, may know it.
    ZoneUnavailable {
        /// The name of the zone.
        zone: String,
        /// What would do, and why this does not.
        expected: String,
    },
    /// A task of this name exists and is defined differently.
    TaskDiffers {
        /// The name both share.
        name: String,
        /// The first field that differs, by its column name.
        field: &'static str,
        /// What is stored.
        stored: String,
        /// What was given.
        given: String,
    },
    /// There is no task of this name.
    UnknownTask {
        /// The name that was asked for.
        name: String,
    },
    /// There is no run with this id.
    UnknownRun {
        /// The id that was asked for.
        id: i64,
    },
    /// The request makes no sense for the state the task or run is in.
    Refused {
        /// What was asked, of whom: `remove task "digest"`.
        request: String,
        /// Why not, and what to do instead.
        reason: String,
    },
    /// The payload is not what the handler expects.
    InvalidPayload {
        /// The task whose payload it is.
        task: String,
        /// What the parser said.
        reason: String,
    },
    /// An earlier attempt began an effect, and nobody knows whether it was done. See
    /// [`Context::effect`](crate::Context::effect).
    InDoubt {
        /// The task.
        task: String,
        /// The run that came upon it.
        run: i64,
        /// The run under which the effect is kept in `task_effects`: the first, if this one is a retry.
        first: i64,
        /// The key of the effect.
        key: String,
    },
    /// The value of an effect cannot be stored, or what is stored is not of the type that is asked for.
    InvalidEffect {
        /// The task.
        task: String,
        /// The run.
        run: i64,
        /// The key of the effect.
        key: String,
        /// What was expected, and what was found.
        reason: String,
    },
    /// An attempt is no longer the one that its run belongs to: another owner has taken the run, or it is over. Nothing was
    /// written for it.
    Superseded {
        /// The task.
        task: String,
        /// The run.
        run: i64,
        /// The attempt.
        attempt: u32,
    },
    /// The scheduler was put together wrongly: a handler registered twice, no worker.
    InvalidConfig {
        /// The setting.
        field: &'static str,
        /// What was found and what would do.
        reason: String,
    },
    /// The file is not a database this version may use.
    UnusableDatabase {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do about it.
        reason: String,
    },
    /// SQLite or the file system refused; `doing` says what we were about, as in "claim due runs".
    Store {
        /// The promise that was being kept.
        doing: &'static str,
        /// What it said.
        source: BoxError,
    },
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps what a library said while we were `doing` something.
    pub(crate) fn store(doing: &'static str, source: impl Into<BoxError>) -> Self {
        Error::Store { doing, source: source.into() }
    }

    /// A schedule without any occurrence to come.
    pub(crate) fn never(text: String) -> Self {
        let reason = "it names no occurrence from now on, within starts_at and ends_at".to_owned();
        Error::InvalidSchedule { text, reason }
    }

    /// A field of a task that cannot be accepted. `found` is shortened, so that an error stays one line.
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
            Error::InvalidPayload { task, reason } => {
                write!(f, "the payload of task {task:?} is not what its handler expects: {reason}")
            }
            Error::InDoubt { task, run, first, key } => write!(
                f,
                "effect {key:?} of run {run} of {task:?} is in doubt: an attempt began it, and nobody knows whether it was \
                 done; look, then delete its row of task_effects (run_id {first}) if it was not, or set its state to 'done' \
                 and its value if it was, and retry the run; or let the handler look, with effect_or"
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

/// At most `limit` bytes of `text`, cut at a character, with a mark where something was left out.
pub(crate) fn excerpt(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let cut = (0..=limit).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}...", &text[..cut])
}

#[cfg(test)]
mod tests {
    use super::{Error, excerpt};

    #[test]
    fn an_excerpt_ends_at_a_character() {
        assert_eq!(excerpt("short", 5), "short");
        assert_eq!(excerpt("héllo", 2), "h...");
    }

    #[test]
    fn a_message_is_one_line_however_long_the_input() {
        let error = Error::invalid_task("name", "x\n".repeat(500), "a name");
        assert_eq!(error.to_string().lines().count(), 1);
        assert!(error.to_string().len() < 300, "{error}");
    }
}
