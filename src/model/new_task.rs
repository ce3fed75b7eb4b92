//! The builder of a task to be added.

mod followers;
mod starts;
mod windows;

use std::time::Duration;

use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::retry::RetryPolicy;
use crate::model::task::{Columns, Definition, Misfire, Overlap};
use crate::model::to_json::to_json;
use crate::schedule::{ScheduleKind, ZoneName, duration_text};

/// A task to be added: its name and schedule, and everything that differs from the defaults.
///
/// ```
/// use duly::{NewTask, Overlap};
/// let task = NewTask::cron("digest:anna", "0 7 * * *")
///     .time_zone("Europe/Paris")
///     .handler("digest")
///     .payload("anna@example.org")
///     .overlap(Overlap::BufferOne);
/// // Nothing is checked here: errors are returned when the task is added.
/// let nonsense = NewTask::cron("no spaces, please", "every day");
/// ```
///
/// It can be read from JSON whose keys are columns of `scheduled_tasks`. A missing `schedule_type` and an unknown key are errors;
/// everything else is checked when the task is added. `due_in_ms` instead of a `schedule_value` is [`NewTask::once_in`].
///
/// ```
/// use duly::NewTask;
/// let task = r#"{"name": "poll", "handler": "poll", "schedule_type": "interval", "schedule_value": "15m", "timeout_ms": 5000}"#;
/// let task: NewTask = serde_json::from_str(task)?;
/// assert_eq!(serde_json::to_value(&task)?["max_attempts"], 5);
/// let misspelt = r#"{"name": "poll", "schedule_type": "manual", "handlers": "poll"}"#;
/// assert!(serde_json::from_str::<NewTask>(misspelt).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Columns")]
pub struct NewTask {
    name: Option<String>,
    payload: Result<String, String>,
    /// The delay from adding it to its due time; replaces the schedule value in `rest`.
    due_in: Option<Duration>,
    /// Whether its runs start at most once, whatever policy is set.
    once: bool,
    rest: Box<Definition>,
}

impl NewTask {
    /// Returns a task with a cron expression: five fields, or six with leading seconds.
    ///
    /// ```
    /// use duly::NewTask;
    /// let now = "2027-03-14T12:00:00Z".parse()?;
    /// let weekdays = NewTask::cron("digest", "0 7 * * MON-FRI").time_zone("Europe/Paris").handler("digest");
    /// assert_eq!(weekdays.occurrences(now, 1)?, ["2027-03-15T06:00:00Z".parse()?]);
    /// // A line without an occurrence is an error.
    /// assert!(NewTask::cron("never", "0 0 30 2 *").handler("work").occurrences(now, 1).is_err());
    /// # Ok::<(), duly::Error>(())
    /// ```
    pub fn cron(name: impl Into<String>, expression: impl Into<String>) -> Self {
        NewTask::new(Some(name.into()), ScheduleKind::Cron, expression.into())
    }

    /// Returns a task with a calendar interval: every N days, weeks (on days of the week) or months (on days of the month), at local
    /// times. They are counted from the day of [`NewTask::starts_at`], else from that on which the task is added. Weeks begin on Monday.
    ///
    /// ```
    /// use duly::NewTask;
    /// let now = "2027-03-01T12:00:00Z".parse()?;
    /// let sprint = NewTask::calendar("sprint", "every 2 weeks on mon at 09:00").time_zone("America/New_York").handler("sprint");
    /// // Across the change to daylight saving, on the 14th: at nine by the clock.
    /// let first = ["2027-03-01T14:00:00Z".parse()?, "2027-03-15T13:00:00Z".parse()?];
    /// assert_eq!(sprint.occurrences(now, 2)?, first);
    /// // What is ambiguous is an error: not every month has that day.
    /// assert!(NewTask::calendar("rent", "every month on 31 at 09:00").handler("work").occurrences(now, 1).is_err());
    /// # Ok::<(), duly::Error>(())
    /// ```
    pub fn calendar(name: impl Into<String>, interval: impl Into<String>) -> Self {
        NewTask::new(Some(name.into()), ScheduleKind::Calendar, interval.into())
    }

    /// Returns a task that is due at a fixed interval, on a grid of elapsed time that neither drifts nor follows
    /// daylight saving.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::NewTask;
    /// let poll = NewTask::interval("poll", Duration::from_secs(900)).starts_at("2027-03-14T12:00:00Z".parse()?).handler("poll");
    /// // Added late: the grid stays.
    /// let occurrences = poll.occurrences("2027-03-14T12:20:00Z".parse()?, 2)?;
    /// assert_eq!(occurrences, ["2027-03-14T12:30:00Z".parse()?, "2027-03-14T12:45:00Z".parse()?]);
    /// # Ok::<(), duly::Error>(())
    /// ```
    pub fn interval(name: impl Into<String>, every: Duration) -> Self {
        NewTask::new(Some(name.into()), ScheduleKind::Interval, duration_text(every))
    }

    /// Returns a task that is due `after` the end of its last run.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::testing::Stepper;
    /// use duly::{Context, NewTask, Timestamp};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon: Timestamp = "2027-03-14T12:00:00Z".parse()?;
    /// let slow = |run: &Context| {
    ///     run.wait_cancelled(Duration::from_secs(600));
    ///     Ok::<_, duly::Error>(())
    /// };
    /// let mut stepper = Stepper::builder(&file, noon).handler("sync", slow).start()?;
    /// stepper.client().add(NewTask::delay("sync", Duration::from_secs(300)).handler("sync"))?;
    /// let runs = stepper.run_until_count("sync", 2, Duration::from_secs(7200))?;
    /// // Ten minutes of work, then five of rest.
    /// assert_eq!(runs[1].scheduled_for.since(runs[0].scheduled_for), Duration::from_secs(900));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn delay(name: impl Into<String>, after: Duration) -> Self {
        NewTask::new(Some(name.into()), ScheduleKind::Delay, duration_text(after))
    }

    /// Returns a task that is due at one instant. If that has passed, it is due at once.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::NewTask;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("post").start()?;
    /// // An hour too late: it runs now, once.
    /// stepper.client().add(NewTask::once("post", "2027-03-14T11:00:00Z".parse()?).handler("post"))?;
    /// assert_eq!(stepper.run_for(std::time::Duration::from_secs(86_400))?.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn once(name: impl Into<String>, at: Timestamp) -> Self {
        NewTask::new(Some(name.into()), ScheduleKind::Once, at.to_string())
    }

    /// Returns a task that is due once, `after` the time at which it is added. That time is not part of the definition:
    /// if the task is added again, waiting or completed, it stays unchanged.
    /// [`Client::replace`](crate::Client::replace) and [`Client::apply`](crate::Client::apply) restart the delay.
    ///
    /// ```
    /// use duly::{Change, Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let tea = || NewTask::once_in("tea", std::time::Duration::from_secs(180)).handler("ring");
    /// assert_eq!(client.add(tea())?.change, Change::Created);
    /// assert_eq!(client.add(tea())?.change, Change::Unchanged);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn once_in(name: impl Into<String>, after: Duration) -> Self {
        let task = NewTask::new(Some(name.into()), ScheduleKind::Once, String::new());
        NewTask { due_in: Some(after), ..task }
    }

    /// Returns a task without occurrences: only [`Client::trigger`](crate::Client::trigger), or another task's
    /// [`on_dead`](NewTask::on_dead), opens a run of it. It is never due, overdue or completed.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("alarm").handler("mail"))?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest").on_dead("alarm"))?;
    /// assert_eq!(client.task("alarm")?.and_then(|task| task.next_run), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn manual(name: impl Into<String>) -> Self {
        NewTask::new(Some(name.into()), ScheduleKind::Manual, String::new())
    }

    /// Returns a task with a schedule in the text form of the tables.
    ///
    /// ```
    /// use duly::{NewTask, ScheduleKind};
    /// let now = "2027-03-14T12:00:00Z".parse()?;
    /// let poll = NewTask::scheduled("poll", ScheduleKind::Interval, "1h 30m").handler("poll");
    /// assert_eq!(poll.occurrences(now, 1)?, ["2027-03-14T13:30:00Z".parse()?]);
    /// let odd = NewTask::scheduled("poll", ScheduleKind::Interval, "0 7 * * *").handler("poll");
    /// assert!(odd.occurrences(now, 1).is_err(), "no duration");
    /// # Ok::<(), duly::Error>(())
    /// ```
    pub fn scheduled(name: impl Into<String>, kind: ScheduleKind, value: impl Into<String>) -> Self {
        NewTask::new(Some(name.into()), kind, value.into())
    }

    /// Returns a `once` task for a handler, due at `at`, with a generated name.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let mail = || NewTask::enqueue("mail", client.now()).payload("anna@example.org");
    /// // Each has a name of its own: two equal ones are two tasks.
    /// assert_ne!(client.add(mail())?.name, client.add(mail())?.name);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enqueue(handler: impl Into<String>, at: Timestamp) -> Self {
        NewTask::new(None, ScheduleKind::Once, at.to_string()).handler(handler)
    }

    fn new(name: Option<String>, schedule_type: ScheduleKind, schedule_value: String) -> Self {
        let rest = Definition::new(schedule_type, schedule_value);
        NewTask { name, payload: Ok("null".to_owned()), due_in: None, once: false, rest: Box::new(rest) }
    }

    /// Returns a task that is due at a fixed interval: [`NewTask::interval`], named like the option of the program.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::every("poll", Duration::from_secs(900)).handler("poll").max_attempts(3))?;
    /// // The shortest interval of the grid is a millisecond.
    /// assert!(client.add(NewTask::every("spin", Duration::ZERO).handler("spin")).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn every(name: impl Into<String>, interval: Duration) -> Self {
        NewTask::interval(name, interval)
    }

    /// Returns the given name.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns whether its due time counts from when it is added.
    pub(crate) fn counts_from_adding(&self) -> bool {
        self.due_in.is_some()
    }

    /// Returns the definition to store, with the payload as JSON, and a generated name if none was given.
    pub(crate) fn into_definition(self, now: Timestamp) -> Result<Definition> {
        let NewTask { name, payload, due_in, mut rest, .. } = self;
        if let Some(after) = due_in {
            rest.schedule_value = now.plus(after).to_string();
        }
        let payload = payload.map_err(|reason| Error::invalid_task("payload", reason, "a value that JSON can hold"))?;
        let name = name.unwrap_or_else(|| generated_name(&rest.handler, now));
        rest.check_request()?;
        Ok(Definition { name, payload, ..*rest })
    }

    /// Sets the handler that runs it. Required.
    #[must_use]
    pub fn handler(mut self, name: impl Into<String>) -> Self {
        self.rest.handler = name.into();
        self
    }

    /// Sets the payload for the handler; stored as JSON. What JSON cannot hold, such as NaN, is refused when the task is added.
    #[must_use]
    pub fn payload(mut self, payload: impl Serialize) -> Self {
        self.payload = to_json(&payload).map_err(|error| error.to_string());
        // There may be a hundred thousand of these, and the text was made in a larger buffer.
        let _ = self.payload.as_mut().map(String::shrink_to_fit);
        self
    }

    /// Sets the time zone in which a cron expression, or a local date and time, is read: an IANA name. Default `UTC`.
    ///
    /// ```
    /// use duly::{Client, Error, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let digest = |zone: &str| NewTask::cron("digest", "0 7 * * *").handler("digest").time_zone(zone);
    /// let error = client.add(digest("Paris")).unwrap_err();
    /// assert!(matches!(error, Error::ZoneUnavailable { .. }));
    /// client.add(digest("Europe/Paris"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn time_zone(mut self, name: impl Into<ZoneName>) -> Self {
        self.rest.time_zone = name.into().into();
        self
    }

    /// Sets the earliest instant of an occurrence; an interval's grid begins there.
    #[must_use]
    pub fn starts_at(mut self, at: Timestamp) -> Self {
        self.rest.starts_at = Some(at);
        self
    }

    /// Sets the latest instant of an occurrence.
    ///
    /// ```
    /// use duly::NewTask;
    /// let now = "2027-03-14T12:00:00Z".parse()?;
    /// let advent = NewTask::cron("advent", "0 7 * * *").handler("work").starts_at("2027-12-01T00:00:00Z".parse()?);
    /// assert_eq!(advent.clone().ends_at("2027-12-24T23:59:59Z".parse()?).occurrences(now, 99)?.len(), 24);
    /// // An end before the start leaves no occurrence.
    /// assert!(advent.ends_at(now).occurrences(now, 1).is_err());
    /// # Ok::<(), duly::Error>(())
    /// ```
    #[must_use]
    pub fn ends_at(mut self, at: Timestamp) -> Self {
        self.rest.ends_at = Some(at);
        self
    }

    /// Sets what happens to an occurrence that is due while an earlier run is unfinished. Default [`Overlap::Skip`].
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.rest.overlap = overlap;
        self
    }

    /// Sets what happens to occurrences that are resolved later than `grace`. Default [`Misfire::RunOnce`], one minute.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{Misfire, NewTask};
    /// // After an outage of a week, no post is late: those that were due are rows that say "missed".
    /// let post = NewTask::cron("post", "0 * * * *").handler("post").misfire(Misfire::Skip, Duration::from_secs(300));
    /// let outage = post.outage("2027-03-07T00:30:00Z".parse()?, "2027-03-14T00:30:00Z".parse()?)?;
    /// assert_eq!((outage.projections.len(), outage.projections[0].count), (1, 168));
    /// # Ok::<(), duly::Error>(())
    /// ```
    #[must_use]
    pub fn misfire(mut self, misfire: Misfire, grace: Duration) -> Self {
        (self.rest.misfire, self.rest.misfire_grace) = (misfire, grace);
        self
    }

    /// Sets the maximum number of runs that wait or catch up, 1 to 200. Default 100.
    #[must_use]
    pub fn catch_up_limit(mut self, runs: u32) -> Self {
        self.rest.catch_up_limit = runs;
        self
    }

    /// Sets the time after which a run of which no attempt began is missed, counted from its occurrence. Default:
    /// never.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::testing::Stepper;
    /// use duly::{NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).workers(1).accept("post").start()?;
    /// let post = |name: &str| NewTask::once(name, noon).handler("post").expires(Duration::from_secs(60));
    /// stepper.client().add_all([post("first"), post("second")])?;
    /// stepper.step()?;
    /// // The only worker is busy for longer.
    /// stepper.clock().advance(Duration::from_secs(61));
    /// stepper.step()?;
    /// let second = &stepper.client().history("second", 1)?[0];
    /// assert_eq!((second.status, second.attempt), (RunStatus::Missed, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn expires(mut self, after: Duration) -> Self {
        self.rest.expires = Some(after);
        self
    }

    /// Sets the retry policy. A backoff above its cap is refused; a cap below the default backoff shortens that.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::testing::{Stepper, fail_first};
    /// use duly::{Context, Error, NewTask, RetryPolicy};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon: duly::Timestamp = "2027-03-14T12:00:00Z".parse()?;
    /// let work = fail_first(9, |_: &Context| Ok::<_, Error>(()));
    /// let mut stepper = Stepper::builder(&file, noon).handler("post", work).start()?;
    /// let minute = Duration::from_secs(60);
    /// let policy = RetryPolicy { max_attempts: 2, backoff: minute, max_backoff: minute };
    /// stepper.client().add(NewTask::once("post", noon).handler("post").retry(policy))?;
    /// assert_eq!(stepper.run_for(minute)?.len(), 2, "the wait is random in the upper half of the backoff");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.rest.retry = policy;
        if self.once { self.at_most_once() } else { self }
    }

    /// Sets only [`RetryPolicy::max_attempts`], 1 to 1 000 000; the backoff stays as it is.
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        let policy = RetryPolicy { max_attempts: attempts, ..self.rest.retry };
        self.retry(policy)
    }

    /// Starts the handler once or never: sets [`RetryPolicy::max_attempts`] to 1, whatever policy is set before or after.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{NewTask, RunStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("pay").start()?;
    /// stepper.client().add(NewTask::once("pay", noon).handler("pay").at_most_once())?;
    /// let run = stepper.step()?[0].run_id;
    /// // Killed during the attempt: it may have paid, and is not started again.
    /// let mut stepper = stepper.restart()?;
    /// stepper.step()?;
    /// assert_eq!(stepper.client().run(run)?.map(|run| run.status), Some(RunStatus::Dead));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn at_most_once(mut self) -> Self {
        (self.once, self.rest.retry.max_attempts) = (true, 1);
        self
    }

    /// Sets the time limit of an attempt; zero: no limit. Default: that of the handler.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::testing::Stepper;
    /// use duly::{AttemptOutcome, Context, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let work = |run: &Context| match run.wait_cancelled(Duration::from_secs(60)) {
    ///     true => Err("asked to stop"),
    ///     false => Ok(()),
    /// };
    /// let mut stepper = Stepper::builder(&file, noon).handler("sync", work).start()?;
    /// stepper.client().add(NewTask::once("sync", noon).handler("sync").timeout(Duration::from_secs(5)))?;
    /// let run = stepper.run_until(noon)?[0].claim.run_id;
    /// assert_eq!(stepper.client().attempts(run)?[0].outcome, AttemptOutcome::TimedOut);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        // Stored in milliseconds, and 0 means no limit.
        self.rest.timeout = Some(if limit.is_zero() { limit } else { limit.max(Duration::from_millis(1)) });
        self
    }

    /// Sets the jitter: the task starts later than it is due by a fixed part of this, derived from a hash of its name.
    /// At most one day, the expiry of its runs, and the interval of an interval task. Default zero. Of a cron task whose occurrences are
    /// closer together than its part of the jitter, those that come meanwhile fall under its overlap policy.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let task = NewTask::cron("sync", "0 * * * *").handler("sync").jitter(Duration::from_secs(600));
    /// client.add(task.clone())?;
    /// // A run could expire before it may start.
    /// assert!(client.replace(task.expires(Duration::from_secs(300))).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.rest.jitter = jitter;
        self
    }

    /// Sets the priority, 0 (first) to 3. Default 1.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::NewTask;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).workers(1).accept("post").start()?;
    /// stepper.client().add(NewTask::once("bulk", noon).handler("post").priority(3))?;
    /// stepper.client().add(NewTask::once("urgent", noon).handler("post").priority(0))?;
    /// assert_eq!(stepper.step()?[0].task, "urgent");
    /// assert!(stepper.client().add(NewTask::once("odd", noon).handler("post").priority(4)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.rest.priority = priority;
        self
    }

    /// Sets the concurrency key: at most one run with this key runs at a time, across tasks, or as many as its
    /// [limit](crate::Limit) says. Default: a key of the task's own.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::NewTask;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("import").start()?;
    /// for name in ["customers", "orders"] {
    ///     stepper.client().add(NewTask::once(name, noon).handler("import").concurrency_key("warehouse"))?;
    /// }
    /// assert_eq!(stepper.step()?.len(), 1, "the other one waits for the key");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn concurrency_key(mut self, key: impl Into<String>) -> Self {
        self.rest.concurrency_key = Some(key.into());
        self
    }

    /// Pauses the task after `runs` consecutive dead runs. [`Client::resume`](crate::Client::resume) starts a new
    /// count. Default: never. Not for tasks that are due once.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{Context, NewTask, TaskStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon = "2027-03-14T12:00:00Z".parse()?;
    /// let fails = |_: &Context| Err::<(), _>("no route to host");
    /// let mut stepper = Stepper::builder(&file, noon).handler("sync", fails).start()?;
    /// let sync = NewTask::cron("sync", "0 * * * *").handler("sync").max_attempts(1).pause_after_failures(3);
    /// stepper.client().add(sync)?;
    /// assert_eq!(stepper.run_for(std::time::Duration::from_secs(86_400))?.len(), 3);
    /// assert_eq!(stepper.client().task("sync")?.map(|task| task.status), Some(TaskStatus::Paused));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pause_after_failures(mut self, runs: u32) -> Self {
        self.rest.pause_after_failures = Some(runs);
        self
    }
}

impl Serialize for NewTask {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut columns = Columns::from((*self.rest).clone());
        columns.name = self.name.clone().unwrap_or_default();
        columns.payload = self.payload.clone().map_err(S::Error::custom)?;
        columns.due_in_ms = self.due_in;
        columns.serialize(to)
    }
}

impl TryFrom<Columns> for NewTask {
    type Error = Error;

    fn try_from(mut columns: Columns) -> Result<Self> {
        if let Some(source) = &columns.managed_by {
            return Err(Error::invalid_task("managed_by", source, "nothing: Client::apply sets it"));
        }
        let due_in = columns.due_in_ms.take();
        let mut rest = columns.into_definition()?;
        if due_in.is_some() && (rest.schedule_type != ScheduleKind::Once || !rest.schedule_value.is_empty()) {
            let found = format!("{} {:?}", rest.schedule_type, rest.schedule_value);
            return Err(Error::invalid_task("due_in_ms", found, "schedule_type once and no schedule_value beside it"));
        }
        let name = Some(std::mem::take(&mut rest.name)).filter(|name| !name.is_empty());
        let payload = Ok(std::mem::take(&mut rest.payload));
        Ok(NewTask { name, payload, due_in, once: false, rest: Box::new(rest) })
    }
}

/// Returns the handler's name, without characters that a task name may not have, and a version 7 UUID, so that names
/// sort by age.
fn generated_name(handler: &str, now: Timestamp) -> String {
    let kept: String = handler
        .chars()
        .skip_while(|c| !c.is_ascii_alphabetic())
        .filter(|c| c.is_ascii_alphanumeric() || "._:/@-".contains(*c))
        .take(160)
        .collect();
    let kept = if kept.is_empty() { "task".to_owned() } else { kept };
    let mut random = [0; 10];
    fastrand::fill(&mut random);
    let millis = u64::try_from(now.as_millis()).unwrap_or_default();
    format!("{kept}-{}", uuid::Builder::from_unix_timestamp_millis(millis, &random).as_uuid())
}
