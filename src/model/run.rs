//! A run: the execution of one occurrence, or of one manual request. Its row, its attempts, the claim under which a
//! worker executes it, and its outcome.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::host::attempt_slots::{ClaimedAttempt, hash};
use crate::model::json;
use crate::model::retry::{Retry, RetryPolicy, Tally};
pub(crate) use crate::model::text_enum::text_enum;

text_enum! {
    /// The status of a run.
    ///
    /// ```
    /// use duly::RunStatus;
    /// assert_eq!("dead".parse::<RunStatus>()?, RunStatus::Dead);
    /// assert_eq!(serde_json::to_string(&RunStatus::Dead)?, r#""dead""#);
    /// let error = "Dead".parse::<RunStatus>().unwrap_err().to_string();
    /// assert!(error.starts_with("invalid status: expected queued, running, failed, "), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    RunStatus, "status" {
        /// Opened, waiting for a worker.
        Queued = "queued",
        /// Claimed by an owner.
        Running = "running",
        /// The last attempt failed; the run waits for the next one.
        Failed = "failed",
        /// The handler returned `Ok`.
        Succeeded = "succeeded",
        /// A dead letter: the attempts are spent, and a user must act.
        Dead = "dead",
        /// Cancelled by a user or by its handler before it succeeded.
        Cancelled = "cancelled",
        /// Not opened, because of the task's overlap policy.
        Skipped = "skipped",
        /// Never begun: resolved too late, or expired.
        Missed = "missed",
    }
}

impl RunStatus {
    /// Returns whether the status is final.
    pub const fn is_final(self) -> bool {
        !matches!(self, RunStatus::Queued | RunStatus::Running | RunStatus::Failed)
    }
}

text_enum! {
    /// Why a run was opened.
    ///
    /// ```
    /// use duly::Origin;
    /// assert!(Origin::CatchUp.is_scheduled() && !Origin::Manual.is_scheduled());
    /// assert!("by hand".parse::<Origin>().is_err());
    /// ```
    Origin, "origin" {
        /// An occurrence of the schedule was due.
        Schedule = "schedule",
        /// An occurrence was resolved later than the grace of the task.
        CatchUp = "catch_up",
        /// A user or a program requested it.
        Manual = "manual",
        /// A run of another task died.
        OnDead = "on_dead",
        /// A run of another task succeeded.
        OnSuccess = "on_success",
        /// A run of another task ended, however, after an attempt.
        OnEnd = "on_end",
        /// Occurrences of another task were missed, and nothing ran for them.
        OnMissed = "on_missed",
    }
}

impl Origin {
    /// Returns whether the run executes an occurrence of the schedule.
    pub const fn is_scheduled(self) -> bool {
        matches!(self, Origin::Schedule | Origin::CatchUp)
    }
}

text_enum! {
    /// How an attempt failed.
    ///
    /// ```
    /// use duly::{AttemptOutcome, FailureKind};
    /// assert_eq!(AttemptOutcome::from(FailureKind::Panicked), AttemptOutcome::Panicked);
    /// assert_eq!(FailureKind::parse("lost"), None, "an attempt without a scheduler did not fail");
    /// ```
    FailureKind, "outcome" {
        /// The handler returned an error.
        Failed = "failed",
        /// The handler panicked.
        Panicked = "panicked",
        /// The attempt exceeded its time limit.
        TimedOut = "timed_out",
    }
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
    /// The outcome of an attempt that did not simply succeed.
    ///
    /// ```
    /// use duly::AttemptOutcome;
    /// assert_eq!("timed_out".parse::<AttemptOutcome>()?, AttemptOutcome::TimedOut);
    /// assert_eq!(AttemptOutcome::parse("succeeded"), None, "such an attempt has no row");
    /// # Ok::<(), duly::Error>(())
    /// ```
    AttemptOutcome, "outcome" {
        /// The handler returned an error.
        Failed = "failed",
        /// The handler panicked.
        Panicked = "panicked",
        /// The attempt exceeded its time limit.
        TimedOut = "timed_out",
        /// Its owner died.
        Lost = "lost",
        /// It ended after its cancellation was requested, or its handler cancelled the run.
        Cancelled = "cancelled",
        /// It was returned to the queue before it started.
        Released = "released",
        /// Its handler postponed the run; the attempt does not count.
        Snoozed = "snoozed",
        /// Its handler or its gate found nothing to do, and skipped the run; the attempt does not count.
        Skipped = "skipped",
        /// It ended after another owner had claimed the run.
        Superseded = "superseded",
    }
}

/// A row of `task_runs`. Its JSON has the columns as keys: see [`Task`](crate::Task).
///
/// ```
/// use duly::{Client, NewTask, RunStatus};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("export").handler("export"))?;
/// let id = client.trigger("export")?;
/// let run = client.run(id)?.ok_or("no run")?;
/// assert_eq!((run.status, run.attempt, run.started_at), (RunStatus::Queued, 0, None));
/// assert!(client.run(id + 1)?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Run {
    /// Its id.
    pub id: i64,
    /// The name of its task.
    pub task: String,
    /// The handler that runs it.
    pub handler: String,
    /// The occurrence; for manual runs, when the run was requested.
    pub scheduled_for: Timestamp,
    /// Why it was opened.
    pub origin: Origin,
    /// The dead or cancelled run that a user retried with this one.
    pub retry_of: Option<i64>,
    /// The idempotency key of the request that opened it, if any. Of a run that follows another one: `#`, the id of that run, `/`, and
    /// how many runs led to it.
    pub request_key: Option<String>,
    /// Its status.
    pub status: RunStatus,
    /// It does not start before this instant.
    pub run_at: Timestamp,
    /// It is missed if it has not begun by then.
    pub expires_at: Option<Timestamp>,
    /// Why it may not start: `paused`, `order` or `key`.
    pub blocked: Option<String>,
    /// The number of attempts claimed so far.
    pub attempt: u32,
    /// The number of attempts that do not count.
    pub forgiven: u32,
    /// Interruptions in a row. An attempt that fails, is lost or is snoozed sets it to 0; one returned before it began does not change
    /// it. The first three are forgiven, unless the run may start only once.
    pub interrupted: u32,
    /// 0 (first) to 3.
    pub priority: u8,
    /// At most one run with this key runs at a time, or as many as its limit says.
    pub concurrency_key: Option<String>,
    /// Its own payload, JSON; `None`: the task's.
    #[serde(with = "json::optional_text")]
    pub payload: Option<String>,
    /// The owner of the running attempt.
    pub locked_by: Option<String>,
    /// The end of the owner's lease.
    pub locked_until: Option<Timestamp>,
    /// When the newest attempt began.
    pub started_at: Option<Timestamp>,
    /// When the newest attempt ended.
    pub finished_at: Option<Timestamp>,
    /// The duration of the newest attempt, by the monotonic clock; `None` if unknown.
    #[serde(rename = "duration_ms", with = "json::optional_duration")]
    pub duration: Option<Duration>,
    /// The error of the newest attempt, or why the occurrence was skipped or missed.
    pub error: Option<String>,
    /// Of a command.
    pub exit_code: Option<i32>,
    /// Of a command.
    pub output: Option<String>,
    /// What the handler returned, JSON.
    #[serde(with = "json::optional_text")]
    pub result: Option<String>,
    /// The last reported progress.
    pub progress: Option<String>,
    /// Whether its cancellation was requested.
    pub cancel_requested: bool,
    /// The number of occurrences that a missed or skipped row stands for.
    pub occurrences: u64,
    /// The newest of these occurrences, if there are several.
    pub last_scheduled_for: Option<Timestamp>,
}

/// Selects runs, newest first.
///
/// ```
/// use duly::{RunFilter, RunStatus};
/// // The query returns an error if the task does not exist, not an empty list.
/// let dead = RunFilter::newest(20).of("digest").status(RunStatus::Dead).since("2027-03-14T00:00:00Z".parse()?);
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RunFilter {
    pub(crate) task: Option<String>,
    pub(crate) status: Option<RunStatus>,
    pub(crate) since: Option<Timestamp>,
    pub(crate) before: Option<i64>,
    pub(crate) limit: usize,
}

impl RunFilter {
    /// Selects the newest runs of all tasks, at most `limit`.
    pub fn newest(limit: usize) -> Self {
        RunFilter { task: None, status: None, since: None, before: None, limit }
    }

    /// Selects only the runs of this task.
    #[must_use]
    pub fn of(mut self, task: impl Into<String>) -> Self {
        self.task = Some(task.into());
        self
    }

    /// Selects only the runs with this status.
    #[must_use]
    pub fn status(mut self, status: RunStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Selects only runs whose occurrence, or newest occurrence, is not before this instant.
    #[must_use]
    pub fn since(mut self, at: Timestamp) -> Self {
        self.since = Some(at);
        self
    }

    /// Selects only runs that were opened before the run with this id: the next page begins before the last run of this one.
    #[must_use]
    pub fn before(mut self, id: i64) -> Self {
        self.before = Some(id);
        self
    }
}

text_enum! {
    /// The state of an effect.
    ///
    /// ```
    /// use duly::EffectState;
    /// assert_eq!(EffectState::parse("intent"), Some(EffectState::Intent));
    /// assert_eq!(EffectState::parse("in doubt"), None, "the table has two words");
    /// ```
    EffectState, "state" {
        /// It was begun. If no attempt is executing it, the effect is in doubt: it is unknown whether it was done.
        Intent = "intent",
        /// It was done.
        Done = "done",
    }
}

/// A row of `task_effects`: see [`Context::effect`](crate::Context::effect).
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{BoxError, Context, EffectState, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let pay = |run: &Context| run.effect("charge", || Ok::<_, BoxError>(17));
/// let mut stepper = Stepper::builder(&file, noon).handler("pay", pay).start()?;
/// stepper.client().add(NewTask::once("rent", noon).handler("pay"))?;
/// let run = stepper.run_until(noon)?[0].claim.run_id;
/// let effect = &stepper.client().effects(run)?[0];
/// assert_eq!((effect.key.as_str(), effect.state, effect.value.as_deref()), ("charge", EffectState::Done, Some("17")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Effect {
    /// Its key within the run.
    pub key: String,
    /// The run under which it is kept: the first run of the retry chain.
    pub run_id: i64,
    /// Its state.
    pub state: EffectState,
    /// Its value, JSON.
    #[serde(with = "json::optional_text")]
    pub value: Option<String>,
    /// When its intent was stored.
    pub created_at: Timestamp,
    /// When its end was stored.
    pub done_at: Option<Timestamp>,
}

/// A run that was opened because another one ended: see [`RunDetails::followers`](crate::RunDetails::followers).
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{Context, Error, NewTask, Origin};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let mut stepper = Stepper::builder(&file, noon).handler("work", |_: &Context| Ok::<_, Error>(())).start()?;
/// stepper.client().add(NewTask::manual("post").handler("work"))?;
/// stepper.client().add(NewTask::manual("fetch").handler("work").on_success("post"))?;
/// let run = stepper.client().trigger("fetch")?;
/// stepper.run_until_over(run, std::time::Duration::from_secs(60))?;
/// let follower = &stepper.client().run_details(run)?.followers[0];
/// assert_eq!((follower.task.as_str(), follower.origin), ("post", Origin::OnSuccess));
/// assert_eq!(stepper.client().run_details(follower.id)?.follows, Some(run));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Follower {
    /// Its id.
    pub id: i64,
    /// The name of its task.
    pub task: String,
    /// Which column of the task of the other run names its task.
    pub origin: Origin,
    /// Its status.
    pub status: RunStatus,
}

/// A row of `task_attempts`.
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{AttemptOutcome, Context, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let panics = |_: &Context| -> Result<(), duly::Error> { panic!("index out of bounds") };
/// let mut stepper = Stepper::builder(&file, noon).handler("mail", panics).start()?;
/// stepper.client().add(NewTask::once("mail", noon).handler("mail").at_most_once())?;
/// let run = stepper.run_until(noon)?[0].claim.run_id;
/// let attempt = &stepper.client().attempts(run)?[0];
/// assert_eq!((attempt.attempt, attempt.outcome), (1, AttemptOutcome::Panicked));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// The run.
    pub run_id: i64,
    /// Its number, from 1.
    pub attempt: u32,
    /// Its outcome.
    pub outcome: AttemptOutcome,
    /// Its error.
    pub error: Option<String>,
    /// The output of a command; the result of an attempt that succeeded after its run was taken over.
    pub output: Option<String>,
    /// The exit code of a command.
    pub exit_code: Option<i32>,
    /// The owner that had claimed it.
    pub locked_by: String,
    /// When it began, if it did.
    pub started_at: Option<Timestamp>,
    /// When its end was recorded.
    pub finished_at: Timestamp,
    /// Its duration, by the monotonic clock; `None` if unknown.
    #[serde(rename = "duration_ms", with = "json::optional_duration")]
    pub duration: Option<Duration>,
}

/// The right to one attempt of a run, with all that a worker needs to execute it and to store its outcome.
///
/// ```
/// use duly::testing::Stepper;
/// use duly::{NewTask, Outcome};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// # let noon = "2027-03-14T12:00:00Z".parse()?;
/// let mut stepper = Stepper::builder(&file, noon).accept("mail").start()?;
/// stepper.client().add(NewTask::once("mail", noon).handler("mail"))?;
/// let first = stepper.step()?.remove(0);
/// stepper.finish(&first, Outcome::failed("no route to host"));
/// stepper.step()?;
/// stepper.clock().advance(std::time::Duration::from_secs(10));
/// let second = &stepper.step()?[0];
/// assert_eq!((first.attempt, second.attempt), (1, 2));
/// assert_eq!(second.idempotency_key(), first.idempotency_key());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Claim {
    /// The run.
    pub run_id: i64,
    /// The number of this attempt, from 1. It is the fencing token: only the holder of the newest attempt may write.
    pub attempt: u32,
    /// The name of the task.
    pub task: String,
    /// The handler that runs it.
    pub handler: String,
    /// The payload for the handler, JSON: that of the run, or of the task if the run has none.
    pub payload: String,
    /// The payload of the task, if the run has its own.
    pub(crate) task_payload: Option<String>,
    /// The occurrence; for manual runs, when the run was requested.
    pub scheduled_for: Timestamp,
    /// Why the run was opened.
    pub origin: Origin,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// The task's timeout. `None`: the default of the handler; zero: no limit.
    pub timeout: Option<Duration>,
    pub(crate) task_id: i64,
    pub(crate) forgiven: u32,
    /// How many interruptions of its run have preceded it since an attempt ended otherwise.
    pub(crate) interrupted: u32,
    pub(crate) retry: RetryPolicy,
    pub(crate) concurrency_key: Option<String>,
    /// The first run of the retry chain, if this run is a retry.
    pub(crate) first: Option<FirstRun>,
    /// Whether the task row has `last_*` columns; those of `once` tasks are read from the run.
    pub(crate) recurring: bool,
    /// Whether it was claimed before a worker was free. Its row does not yet record when it began.
    pub(crate) read_ahead: bool,
    /// The latest time at which it may begin, if it was read ahead and its handler has a rate limit: its start counts as one of this time.
    pub(crate) begins_by: Option<Timestamp>,
    /// On a server: the owner that claimed it. A scheduler that registers again has another id, and may claim the same attempt again.
    pub(crate) owner: Option<Arc<str>>,
}

/// The first run of a retry chain, from which the idempotency key is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstRun {
    pub(crate) id: i64,
    pub(crate) origin: Origin,
    pub(crate) scheduled_for: Timestamp,
}

impl Claim {
    /// Returns a claim of which only these values are known, for an event that is read from JSON.
    pub(crate) fn described(run_id: i64, attempt: u32, task: String, handler: String, at: Timestamp) -> Self {
        Claim {
            run_id,
            attempt,
            task,
            handler,
            payload: "null".to_owned(),
            task_payload: None,
            scheduled_for: at,
            origin: Origin::Schedule,
            claimed_at: at,
            timeout: None,
            task_id: 0,
            forgiven: 0,
            interrupted: 0,
            retry: RetryPolicy::default(),
            concurrency_key: None,
            first: None,
            recurring: false,
            read_ahead: false,
            begins_by: None,
            owner: None,
        }
    }

    /// Returns what identifies the attempt.
    #[cfg(feature = "postgres")]
    pub(crate) fn attempt_id(&self) -> (i64, u32) {
        (self.run_id, self.attempt)
    }

    /// Returns what identifies this attempt, and what it keeps from starting beside it.
    pub(crate) fn identified(&self) -> ClaimedAttempt {
        let key = self.concurrency_key.as_deref().map(hash);
        ClaimedAttempt { run: self.run_id, attempt: self.attempt, task: self.task_id, key }
    }

    /// Returns whether another owner has claimed it.
    pub(crate) fn is_of_other(&self, owner: &str) -> bool {
        self.owner.as_deref().is_some_and(|claimed_by| claimed_by != owner)
    }

    /// Returns the idempotency key: the same for every attempt of a run and of its [retries](crate::Client::retry), and
    /// different for every other run. An external service can detect a repetition by it.
    pub fn idempotency_key(&self) -> String {
        let own = FirstRun { id: self.run_id, origin: self.origin, scheduled_for: self.scheduled_for };
        let first = self.first.unwrap_or(own);
        match first.origin {
            Origin::Schedule | Origin::CatchUp => format!("{}/{}", self.task, first.scheduled_for),
            _ => format!("{}/run-{}", self.task, first.id),
        }
    }

    /// Returns the run under which effects are kept, so that a retry finds the effects of earlier runs.
    pub(crate) fn first_id(&self) -> i64 {
        self.first.map_or(self.run_id, |first| first.id)
    }

    /// Returns the number of counted attempts, this one included.
    pub(crate) fn counted(&self) -> u32 {
        self.attempt.saturating_sub(self.forgiven)
    }

    /// Returns the attempts after this one has failed, or was interrupted.
    pub(crate) fn tally(&self, is_interrupted: bool, unannounced: bool) -> Tally {
        let interrupted = if is_interrupted { self.interrupted.saturating_add(1) } else { 0 };
        Tally { counted: self.counted(), interrupted, unannounced: unannounced && self.forgiven == 0 }
    }
}

/// The outcome of an attempt, as observed by its worker.
///
/// ```
/// use duly::{Outcome, Retry};
/// // A failure is retried, unless it says otherwise.
/// assert!(matches!(Outcome::failed("no route to host"), Outcome::Failed { retry: Retry::Backoff, .. }));
/// assert_eq!(Outcome::succeeded(), Outcome::Succeeded { result: None });
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler returned `Ok`.
    Succeeded {
        /// Its result, JSON.
        result: Option<String>,
    },
    /// The handler returned an error, panicked, or exceeded its time limit.
    ///
    /// ```
    /// use duly::{FailureKind, Outcome, Retry};
    /// let _ = Outcome::Failed { how: FailureKind::Panicked, error: "no".into(), retry: Retry::Backoff };
    /// ```
    ///
    /// Only failures are accepted: the outcomes that only the store records, such as `lost` or `released`, have another
    /// type.
    ///
    /// ```compile_fail,E0308
    /// use duly::{AttemptOutcome, Outcome, Retry};
    /// let _ = Outcome::Failed { how: AttemptOutcome::Released, error: "no".into(), retry: Retry::Backoff };
    /// ```
    Failed {
        /// How it failed.
        how: FailureKind,
        /// The message.
        error: String,
        /// The handler's advice about a retry.
        retry: Retry,
    },
    /// The attempt was never started, and does not count.
    Released,
}

impl Outcome {
    /// Returns a failure that is retried after the backoff of the policy.
    pub fn failed(error: impl fmt::Display) -> Self {
        Outcome::Failed { how: FailureKind::Failed, error: error.to_string(), retry: Retry::Backoff }
    }

    /// Returns a success without a result.
    pub fn succeeded() -> Self {
        Outcome::Succeeded { result: None }
    }
}
