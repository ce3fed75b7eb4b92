//! A run: the keeping of one occurrence, or of one request by hand. Its row, its attempts, the claim under which a worker
//! carries it out, and how that ends.

use std::fmt;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::retry::{Retry, RetryPolicy};

/// Writes an enumeration that the tables spell as text: its variants, `ALL` of them, `as_str` and `parse`.
macro_rules! text_enum {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Each of them, in the order of their declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// As the tables spell it.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }

            /// From the spelling of the tables.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some($name::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use text_enum;

text_enum! {
    /// Where a run stands.
    RunStatus {
        /// Opened, waiting for a worker.
        Queued = "queued",
        /// Claimed by an owner.
        Running = "running",
        /// The last attempt failed; it will be tried again.
        Failed = "failed",
        /// Done.
        Succeeded = "succeeded",
        /// The attempts are spent; a person must look.
        Dead = "dead",
        /// Asked to stop before it succeeded.
        Cancelled = "cancelled",
        /// Not opened, because of the task's overlap policy.
        Skipped = "skipped",
        /// Never begun: resolved too late, or expired.
        Missed = "missed",
    }
}

impl RunStatus {
    /// Whether nothing can happen to the run any more.
    pub const fn is_final(self) -> bool {
        !matches!(self, RunStatus::Queued | RunStatus::Running | RunStatus::Failed)
    }
}

text_enum! {
    /// Why a run was opened.
    Origin {
        /// The schedule named its occurrence.
        Schedule = "schedule",
        /// The same, but later than the task's grace.
        CatchUp = "catch_up",
        /// A person or a program asked for it.
        Manual = "manual",
        /// Another task's run died.
        OnDead = "on_dead",
    }
}

impl Origin {
    /// Whether the run keeps an occurrence of the schedule.
    pub const fn is_scheduled(self) -> bool {
        matches!(self, Origin::Schedule | Origin::CatchUp)
    }
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The handler returned an error.
    Failed,
    /// The handler panicked.
    Panicked,
    /// The attempt exceeded its time limit.
    TimedOut,
}

impl From<FailureKind> for AttemptOutcome {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Failed => AttemptOutcome::Failed,
            FailureKind::Panicked => AttemptOutcome::Panicked,
            FailureKind::TimedOut => AttemptOutcome::TimedOut,
        }
    }
}

text_enum! {
    /// How an attempt ended that did not simply succeed.
    AttemptOutcome {
        /// The handler returned an error.
        Failed = "failed",
        /// The handler panicked.
        Panicked = "panicked",
        /// It took longer than it may.
        TimedOut = "timed_out",
        /// Its owner died.
        Lost = "lost",
        /// It ended after it had been asked to stop.
        Cancelled = "cancelled",
        /// It was given back before it was started.
        Released = "released",
        /// It ended when another owner had already taken the run.
        Superseded = "superseded",
    }
}

/// A row of `task_runs`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Run {
    /// Its id.
    pub id: i64,
    /// The name of its task.
    pub task: String,
    /// The handler that runs it.
    pub handler: String,
    /// The occurrence; for manual runs, when it was asked for.
    pub scheduled_for: Timestamp,
    /// Why it was opened.
    pub origin: Origin,
    /// The dead or cancelled run that a person retried with this one.
    pub retry_of: Option<i64>,
    /// The key of the request that opened it, if it had one.
    pub request_key: Option<String>,
    /// Where it stands.
    pub status: RunStatus,
    /// It does not start before this instant.
    pub run_at: Timestamp,
    /// If it has not begun by then, it is missed.
    pub expires_at: Option<Timestamp>,
    /// Why it may not start now: `paused`, `order` or `key`.
    pub blocked: Option<String>,
    /// Attempts claimed so far.
    pub attempt: u32,
    /// How many of them do not count.
    pub forgiven: u32,
    /// 0 (first) to 3.
    pub priority: u8,
    /// At most one run with this key runs at a time.
    pub concurrency_key: Option<String>,
    /// Its own payload, JSON; `None`: the task's.
    pub payload: Option<String>,
    /// The owner of the running attempt.
    pub locked_by: Option<String>,
    /// How long the owner is believed without a sign of life.
    pub locked_until: Option<Timestamp>,
    /// When the newest attempt began.
    pub started_at: Option<Timestamp>,
    /// When the newest attempt ended.
    pub finished_at: Option<Timestamp>,
    /// How long the newest attempt took, by the monotonic clock; `None` if that cannot be known.
    pub duration: Option<Duration>,
    /// What the newest attempt failed of, or why the occurrence was skipped or missed.
    pub error: Option<String>,
    /// Of a command.
    pub exit_code: Option<i32>,
    /// Of a command.
    pub output: Option<String>,
    /// What the handler returned, JSON.
    pub result: Option<String>,
    /// What the handler last said of its progress.
    pub progress: Option<String>,
    /// Whether it has been asked to stop.
    pub cancel_requested: bool,
    /// How many occurrences a missed or skipped row stands for.
    pub occurrences: u64,
    /// The newest of them, if there are several.
    pub last_scheduled_for: Option<Timestamp>,
}

/// Which runs somebody asks for, newest first.
///
/// ```
/// use duly::{RunFilter, RunStatus};
/// // A task that does not exist is an error when it is asked for, not an empty answer.
/// let dead = RunFilter::newest(20).of("digest").status(RunStatus::Dead).since("2027-03-14T00:00:00Z".parse()?);
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RunFilter {
    pub(crate) task: Option<String>,
    pub(crate) status: Option<RunStatus>,
    pub(crate) since: Option<Timestamp>,
    pub(crate) limit: usize,
}

impl RunFilter {
    /// The newest runs of all tasks, at most `limit`.
    pub fn newest(limit: usize) -> Self {
        RunFilter { task: None, status: None, since: None, limit }
    }

    /// Of this task alone.
    #[must_use]
    pub fn of(mut self, task: impl Into<String>) -> Self {
        self.task = Some(task.into());
        self
    }

    /// Those that stand so.
    #[must_use]
    pub fn status(mut self, status: RunStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Those whose occurrence, or the newest of whose occurrences, is not before this instant.
    #[must_use]
    pub fn since(mut self, at: Timestamp) -> Self {
        self.since = Some(at);
        self
    }
}

text_enum! {
    /// What is known of an effect.
    EffectState {
        /// It was begun. If no attempt is at it any more, nobody knows whether it was done: it is in doubt.
        Intent = "intent",
        /// It was done.
        Done = "done",
    }
}

/// A row of `task_effects`: see [`Context::effect`](crate::Context::effect).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Effect {
    /// Its name within the run.
    pub key: String,
    /// The run under which it is kept: the first of those that were retried one by another.
    pub run_id: i64,
    /// What is known of it.
    pub state: EffectState,
    /// What came of it, JSON.
    pub value: Option<String>,
    /// When it was begun.
    pub created_at: Timestamp,
    /// When it was known to be done.
    pub done_at: Option<Timestamp>,
}

/// A row of `task_attempts`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Attempt {
    /// The run it was an attempt of.
    pub run_id: i64,
    /// Its number, from 1.
    pub attempt: u32,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// What it failed of.
    pub error: Option<String>,
    /// What a command printed; of an attempt that succeeded too late, its result.
    pub output: Option<String>,
    /// What a command exited with.
    pub exit_code: Option<i32>,
    /// The owner that had claimed it.
    pub locked_by: String,
    /// When it began, if it did.
    pub started_at: Option<Timestamp>,
    /// When its end was known.
    pub finished_at: Timestamp,
    /// How long it took, by the monotonic clock; `None` if that cannot be known.
    pub duration: Option<Duration>,
}

/// The right to one attempt of a run: what a worker needs to carry it out, and what settles it afterwards.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Claim {
    /// The run.
    pub run_id: i64,
    /// The number of this attempt, from 1. It is the fence: only the holder of the newest may write.
    pub attempt: u32,
    /// The name of the task.
    pub task: String,
    /// Which handler runs it.
    pub handler: String,
    /// What the handler is given, JSON: the payload of the run, or where it has none of its own, that of the task.
    pub payload: String,
    /// The payload of the task, where the run has one of its own.
    pub(crate) task_payload: Option<String>,
    /// The occurrence; for manual runs, when it was asked for.
    pub scheduled_for: Timestamp,
    /// Why the run was opened.
    pub origin: Origin,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// The task's time-out: `None`, the handler's default; zero, none.
    pub timeout: Option<Duration>,
    pub(crate) task_id: i64,
    pub(crate) forgiven: u32,
    pub(crate) retry: RetryPolicy,
    pub(crate) concurrency_key: Option<String>,
    /// The run that was retried with this one, the first of them if that was a retry itself.
    pub(crate) first: Option<FirstRun>,
    /// Whether the task row keeps `last_*` columns: those of `once` tasks are read from the run.
    pub(crate) recurring: bool,
    /// Whether it was claimed before a worker was free for it. Its row does not yet say when it began.
    pub(crate) read_ahead: bool,
}

/// What a retried run's key is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstRun {
    pub(crate) id: i64,
    pub(crate) origin: Origin,
    pub(crate) scheduled_for: Timestamp,
}

impl Claim {
    /// The same for every attempt of a run and for whatever [retries](crate::Client::retry) it, and for no other run: what
    /// an outside service can tell a repeat by.
    pub fn idempotency_key(&self) -> String {
        let own = FirstRun { id: self.run_id, origin: self.origin, scheduled_for: self.scheduled_for };
        let first = self.first.unwrap_or(own);
        match first.origin {
            Origin::Schedule | Origin::CatchUp => format!("{}/{}", self.task, first.scheduled_for),
            _ => format!("{}/run-{}", self.task, first.id),
        }
    }

    /// The run under which effects are kept, so that a retry knows what was done before it.
    pub(crate) fn first_id(&self) -> i64 {
        self.first.map_or(self.run_id, |first| first.id)
    }

    /// How many attempts count, this one included.
    pub(crate) fn counted(&self) -> u32 {
        self.attempt.saturating_sub(self.forgiven)
    }
}

/// How an attempt ended, as its worker saw it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler returned `Ok`.
    Succeeded {
        /// What it returned, JSON.
        result: Option<String>,
    },
    /// The handler returned an error, panicked, or took too long.
    ///
    /// ```
    /// use duly::{FailureKind, Outcome, Retry};
    /// let _ = Outcome::Failed { how: FailureKind::Panicked, error: "no".into(), retry: Retry::Backoff };
    /// ```
    ///
    /// Only a failure can be named: the outcomes that the store records by itself, such as `lost` or `released`, are of another
    /// type.
    ///
    /// ```compile_fail,E0308
    /// use duly::{AttemptOutcome, Outcome, Retry};
    /// let _ = Outcome::Failed { how: AttemptOutcome::Released, error: "no".into(), retry: Retry::Backoff };
    /// ```
    Failed {
        /// Which of them.
        how: FailureKind,
        /// What it said.
        error: String,
        /// What it said about another try.
        retry: Retry,
    },
    /// The attempt was never started, and does not count.
    Released,
}

impl Outcome {
    /// An attempt that failed and is tried again after the policy's backoff.
    pub fn failed(error: impl fmt::Display) -> Self {
        Outcome::Failed { how: FailureKind::Failed, error: error.to_string(), retry: Retry::Backoff }
    }

    /// An attempt that succeeded and returned nothing.
    pub fn succeeded() -> Self {
        Outcome::Succeeded { result: None }
    }
}
