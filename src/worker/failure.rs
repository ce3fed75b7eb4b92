//! `Failure`: an error of a handler that says what follows.

use std::fmt;
use std::time::Duration;

use crate::error::BoxError;
use crate::model::retry::Retry;

/// A failure that says what follows. Any other error means: retry after the task's backoff. One error of duly gives up:
/// [`Error::InvalidPayload`](crate::Error::InvalidPayload), since the payload will be the same.
///
/// | | the run | the attempt counts | `on_dead`, consecutive failures |
/// |---|---|---|---|
/// | [`give_up`](Failure::give_up) | is dead | yes | yes |
/// | [`retry_after`](Failure::retry_after) | is retried, or dead after its last attempt | yes | only if it is dead |
/// | [`snooze`](Failure::snooze) | is retried | no | no |
/// | [`cancel`](Failure::cancel) | is cancelled | yes | no |
/// | [`skip`](Failure::skip) | is skipped | no | no |
/// | [`interrupted`](Failure::interrupted) | is retried | from the fourth in a row on | only if it is dead |
/// | [`not_started`](Failure::not_started) | returns to the queue | no | no |
///
/// ```
/// use duly::{Context, Failure};
/// fn send(run: &Context) -> Result<(), Failure> {
///     let address: String = run.payload().map_err(Failure::give_up)?;
///     if !address.contains('@') {
///         return Err(Failure::give_up(format!("{address} is no address")));
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Failure {
    retry: Retry,
    source: BoxError,
}

impl Failure {
    /// The run is dead: another attempt would fail again.
    pub fn give_up(error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::GiveUp, source: error.into() }
    }

    /// The next attempt, if one is left, begins after this wait.
    pub fn retry_after(wait: Duration, error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::After(wait), source: error.into() }
    }

    /// The attempt was cut short, as by a shutdown. It is retried after the backoff of the task, counted by the interruptions in a row
    /// ([`Run::interrupted`](crate::Run::interrupted)). Three in a row do not count as attempts; each later one does, and
    /// [`Client::check`](crate::Client::check) names a run with more than one. A run that may start only once is dead.
    ///
    /// Not needed after a shutdown has asked the handler to stop ([`StopReason::Shutdown`](crate::StopReason::Shutdown)): any error that it
    /// then returns is an interruption, unless it says `give_up`, `cancel` or `snooze`. The wait of `retry_after` is not used.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, Failure, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let work = |run: &Context| if run.attempt() == 1 { Err(Failure::interrupted("the tool was updated")) } else { Ok(()) };
    /// let mut stepper = Stepper::builder(&file, noon).handler("work", work).start()?;
    /// stepper.client().add(NewTask::once("twice", noon).handler("work").max_attempts(2))?;
    /// stepper.client().add(NewTask::once("once", noon).handler("work").max_attempts(1))?;
    /// stepper.run_until_idle(std::time::Duration::from_secs(60))?;
    /// let status = |task: &str| stepper.client().history(task, 1).map(|runs| runs[0].status);
    /// assert_eq!((status("twice")?, status("once")?), (RunStatus::Succeeded, RunStatus::Dead));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn interrupted(error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::Interrupted, source: error.into() }
    }

    /// The work was not begun for want of something that no task can repair, such as descriptors, memory, processes or a file in the
    /// folder beside the database. The run returns to the queue and the attempt does not count, also of a run that may start only
    /// once. The scheduler reports it ([`Event::CannotStart`](crate::Event::CannotStart), and `degraded` in
    /// [`Client::check`](crate::Client::check)), and starts nothing for a second, after each further failure for twice as long, up to
    /// a minute. Return it only if nothing of the work was done.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, Failure, NewTask};
    /// # use std::time::Duration;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let work = |run: &Context| match run.attempt() {
    ///     1..=3 => Err(Failure::not_started("no process can be started")),
    ///     _ => Ok("done"),
    /// };
    /// let mut stepper = Stepper::builder(&file, noon).handler("work", work).start()?;
    /// stepper.client().add(NewTask::once("work", noon).handler("work").at_most_once())?;
    /// stepper.run_until(noon + Duration::from_secs(60))?;
    /// let run = &stepper.client().history("work", 1)?[0];
    /// assert_eq!((run.attempt, run.forgiven, run.result.as_deref()), (4, 3, Some(r#""done""#)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn not_started(error: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::NotStarted, source: error.into() }
    }

    /// The work is not possible yet: the run is retried after this wait, and the attempt does not count. It is not an error: the log
    /// reports it as information, and the task has no failure more. A run that may start only once (`max_attempts` 1) is dead.
    ///
    /// Effects that are done stay done, and the idempotency key stays the same. While it waits, the run is unfinished, as its overlap
    /// policy and `duly status` (`failed`) see it. A wait of less than a second is a second. The time limit applies to each attempt, and
    /// [`expires`](crate::NewTask::expires) no longer does, since the run has begun. Nothing limits how often a run is snoozed: each
    /// time, [`Context::attempt`](crate::Context::attempt) grows by one, and one row of `task_attempts` is kept as long as the run. For a condition that is
    /// checked often and for a long time, use a task with an interval instead.
    ///
    /// ```
    /// use duly::{Context, Failure, NewTask, testing::Stepper};
    /// # use std::time::Duration;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon: duly::Timestamp = "2027-03-14T12:00:00Z".parse()?;
    /// let look = |run: &Context| match run.attempt() {
    ///     1..=3 => Err(Failure::snooze(Duration::from_secs(60))),
    ///     _ => Ok("the file has arrived"),
    /// };
    /// let mut stepper = Stepper::builder(&file, noon).handler("look", look).start()?;
    /// let client = stepper.client().clone();
    /// client.add(NewTask::once("look", noon).handler("look").max_attempts(2))?;
    /// stepper.run_until(noon + Duration::from_secs(180))?;
    /// let run = &client.history("look", 1)?[0];
    /// // Three of the four attempts do not count: two are allowed.
    /// assert_eq!((run.attempt, run.forgiven, run.result.as_deref()), (4, 3, Some(r#""the file has arrived""#)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn snooze(wait: Duration) -> Self {
        Failure { retry: Retry::Snooze(wait), source: "snoozed".into() }
    }

    /// As [`Failure::snooze`], with a reason, which is stored as the error of the run: `snoozed: the reason`.
    pub fn snooze_because(wait: Duration, reason: impl fmt::Display) -> Self {
        Failure { retry: Retry::Snooze(wait), source: format!("snoozed: {reason}").into() }
    }

    /// The work is not needed any more: the run ends as cancelled, with this reason as its error. It is not retried, its task has
    /// no failure more, and its `on_dead` task does not run. What waits for the run continues.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, Failure, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let remind = |_: &Context| Err::<(), _>(Failure::cancel("the customer has left"));
    /// let mut stepper = Stepper::builder(&file, noon).handler("remind", remind).start()?;
    /// stepper.client().add(NewTask::once("remind", noon).handler("remind"))?;
    /// stepper.run_until(noon)?;
    /// let run = &stepper.client().history("remind", 1)?[0];
    /// assert_eq!((run.status, run.error.as_deref()), (RunStatus::Cancelled, Some("the customer has left")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(reason: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::Cancel, source: reason.into() }
    }

    /// There is nothing to do this time: the run ends as skipped, with this reason as its error, and the attempt does not count. It is
    /// not retried, its task has no failure more, and no task follows it: neither `on_dead` nor `on_end`. Decide it first, before any
    /// other work: what was done before is not undone.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, Failure, NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let digest = |_: &Context| Err::<(), _>(Failure::skip("no new mail"));
    /// let mut stepper = Stepper::builder(&file, noon).handler("digest", digest).start()?;
    /// stepper.client().add(NewTask::once("digest", noon).handler("digest").max_attempts(1))?;
    /// stepper.run_until(noon)?;
    /// let run = &stepper.client().history("digest", 1)?[0];
    /// assert_eq!((run.status, run.error.as_deref()), (RunStatus::Skipped, Some("no new mail")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn skip(reason: impl Into<BoxError>) -> Self {
        Failure { retry: Retry::Skip, source: reason.into() }
    }

    /// Returns what follows.
    pub fn retry(&self) -> Retry {
        self.retry
    }

    /// Returns the error that it was made of.
    pub fn error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.source
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.source()
    }
}
