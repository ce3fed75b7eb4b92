//! Tasks: the user's [`Definition`], its validation, and the stored [`Task`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::{Timestamp, millis};
use crate::error::{Error, Result};
use crate::model::column::{Column, ColumnValue, columns_of};
use crate::model::json;
use crate::model::retry::RetryPolicy;
use crate::model::run::RunStatus;
use crate::model::task_columns::task_columns;
use crate::model::text_enum::text_enum;
use crate::schedule::{Schedule, ScheduleKind, Schedules, Windows, duration_text, parse_duration};
use crate::text::units::without_month;

/// The maximum length of a name, handler or concurrency key, in bytes.
pub const MAX_NAME_BYTES: usize = 200;
/// The maximum size of a payload, in bytes of JSON.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
/// The maximum duration in a policy: ten years.
pub const MAX_DURATION: Duration = Duration::from_millis(315_576_000_000);
/// The maximum number of tasks that `on_dead`, `on_success`, `on_end` or `on_missed` names.
pub(crate) const MAX_FOLLOWERS: usize = 4;
/// The maximum jitter: one day.
pub const MAX_JITTER: Duration = Duration::from_secs(86_400);
/// The maximum number of runs that one catch-up opens.
pub const MAX_CATCH_UP: u32 = 200;
/// The misfire grace of a task that names none.
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(60);

text_enum! {
    /// The status of a task.
    ///
    /// ```
    /// use duly::{Client, NewTask, TaskStatus};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::manual("export").handler("export"))?;
    /// // Another program may change it by SQL; the word must be one of these.
    /// duly::rusqlite::Connection::open(&file)?.execute("UPDATE scheduled_tasks SET status = 'paused'", [])?;
    /// assert_eq!(client.task("export")?.map(|task| task.status), Some(TaskStatus::Paused));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    TaskStatus, "status" {
        /// Its occurrences are executed.
        Active = "active",
        /// Paused: no occurrence is due until it is resumed.
        Paused = "paused",
        /// No occurrence is left.
        Completed = "completed",
        /// Written by another program, and unusable.
        Invalid = "invalid",
    }
}

text_enum! {
    /// What happens to an occurrence that is due while an earlier run of the task is unfinished.
    ///
    /// ```
    /// use duly::testing::Stepper;
    /// use duly::{NewTask, Overlap, RunStatus, Timestamp};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let noon: Timestamp = "2027-03-14T12:00:00Z".parse()?;
    /// let mut stepper = Stepper::builder(&file, noon).accept("work").start()?;
    /// for (name, overlap) in [("skips", Overlap::Skip), ("waits", Overlap::BufferOne)] {
    ///     stepper.client().add(NewTask::cron(name, "* * * * *").handler("work").overlap(overlap))?;
    /// }
    /// // The first occurrences are running when the second ones are due.
    /// for time in ["2027-03-14T12:01:00Z", "2027-03-14T12:02:00Z"] {
    ///     stepper.clock().set_wall(time.parse()?);
    ///     stepper.step()?;
    /// }
    /// let newest = |name: &str| stepper.client().history(name, 1).map(|runs| runs[0].status);
    /// assert_eq!((newest("skips")?, newest("waits")?), (RunStatus::Skipped, RunStatus::Queued));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Overlap, "overlap" {
        /// It is skipped, and the skip is recorded.
        Skip = "skip",
        /// It waits if no other run waits; otherwise it is skipped.
        BufferOne = "buffer_one",
        /// It waits behind at most `catch_up_limit` other runs.
        BufferAll = "buffer_all",
        /// It runs concurrently.
        Allow = "allow",
        /// The older run is cancelled, then it runs.
        CancelRunning = "cancel_running",
    }
}

text_enum! {
    /// What happens to occurrences that are resolved later than the grace.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{Misfire, NewTask, Overlap, RunStatus};
    /// let (since, until) = ("2027-03-14T00:30:00Z".parse()?, "2027-03-14T05:30:00Z".parse()?);
    /// let runs = |misfire, overlap| {
    ///     let task = NewTask::cron("hourly", "0 * * * *").handler("work").overlap(overlap);
    ///     let outage = task.misfire(misfire, Duration::from_secs(60)).outage(since, until)?;
    ///     let queued = outage.projections.iter().filter(|one| one.status == RunStatus::Queued);
    ///     Ok::<u64, duly::Error>(queued.map(|one| one.count).sum())
    /// };
    /// // Five occurrences pass while no scheduler runs.
    /// assert_eq!(runs(Misfire::RunOnce, Overlap::Skip)?, 1);
    /// assert_eq!(runs(Misfire::Skip, Overlap::Skip)?, 0);
    /// assert_eq!(runs(Misfire::RunAll, Overlap::BufferAll)?, 5);
    /// assert!(runs(Misfire::RunAll, Overlap::Skip).is_err(), "four of them would be skipped");
    /// # Ok::<(), duly::Error>(())
    /// ```
    Misfire, "misfire" {
        /// The newest one runs; the others become one missed row.
        RunOnce = "run_once",
        /// All of them become one missed row.
        Skip = "skip",
        /// The newest `catch_up_limit` ones run, oldest first; occurrences within the grace, and under `buffer_all`
        /// runs that already wait, count towards the limit. The others become one missed row. Requires
        /// [`Overlap::BufferAll`] or [`Overlap::Allow`].
        RunAll = "run_all",
    }
}

columns_of! {
    Overlap, true, |policy| ColumnValue::Text(policy.as_str());
    Misfire, true, |policy| ColumnValue::Text(policy.as_str());
}

/// A row of `scheduled_tasks`.
///
/// Its JSON has the columns as keys, like that of the program: times are RFC 3339 in UTC, durations are milliseconds (`timeout_ms`),
/// and the payload is the value itself. It can be read from JSON too, also from that of the program, whose further keys are ignored;
/// with `serde_json` only: other formats cannot hold a payload as it was written.
///
/// ```
/// use duly::{Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest").payload([1, 2]))?;
/// let json = serde_json::to_value(client.task("digest")?)?;
/// assert_eq!((&json["payload"][1], &json["misfire_grace_ms"], &json["ends_at"]), (&2.into(), &60_000.into(), &().into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Row")]
#[non_exhaustive]
pub struct Task {
    /// Its id.
    pub id: i64,
    /// Its definition. In JSON, its columns are keys of the task.
    pub definition: Definition,
    /// Its status.
    pub status: TaskStatus,
    /// The next occurrence, if one is known.
    pub next_run: Option<Timestamp>,
    /// Whether `next_run` is valid; false if a scheduler has still to compute it, after another program wrote the row.
    pub planned: bool,
    /// The newest occurrence ever resolved.
    pub resolved_until: Option<Timestamp>,
    /// The time from which its schedule counts.
    pub active_since: Timestamp,
    /// When the newest attempted run began.
    pub last_run: Option<Timestamp>,
    /// When it ended.
    pub last_finished: Option<Timestamp>,
    /// Its status.
    pub last_status: Option<RunStatus>,
    /// Its duration.
    pub last_duration: Option<Duration>,
    /// Its error.
    pub last_error: Option<String>,
    /// The current number of consecutive dead runs.
    pub failure_count: u32,
    /// Why it is invalid.
    pub invalid_reason: Option<String>,
    /// What paused it, if it is paused: `user`, `sql`, `pause_after_failures: 3 dead runs in a row`, `apply: ..`,
    /// `import: ..`, `mcp: ..`.
    pub paused_by: Option<String>,
    /// When it was added.
    pub created_at: Timestamp,
    /// When its definition or status last changed.
    pub updated_at: Timestamp,
}

impl Task {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.definition.name
    }
}

/// The columns of a task, as they are read from JSON. (A flattened field cannot hold a value as it was written.)
#[derive(Deserialize)]
#[serde(transparent)]
struct Row(BTreeMap<String, Box<RawValue>>);

impl Row {
    /// Reads a column. One that is missing is read as NULL.
    fn column<T: DeserializeOwned>(&self, name: &str) -> serde_json::Result<T> {
        let value = self.0.get(name).map_or("null", |value| value.get());
        serde_json::from_str(value).map_err(|error| serde_json::Error::custom(format!("column {name}: {error}")))
    }

    fn definition(&self) -> serde_json::Result<Definition> {
        let columns: BTreeMap<_, _> =
            self.0.iter().filter(|(name, _)| Definition::COLUMNS.contains(&name.as_str())).collect();
        serde_json::from_str(&serde_json::to_string(&columns)?)
    }
}

impl TryFrom<Row> for Task {
    type Error = serde_json::Error;

    fn try_from(row: Row) -> serde_json::Result<Self> {
        Ok(Task {
            id: row.column("id")?,
            definition: row.definition()?,
            status: row.column("status")?,
            next_run: row.column("next_run")?,
            planned: row.column("planned")?,
            resolved_until: row.column("resolved_until")?,
            active_since: row.column("active_since")?,
            last_run: row.column("last_run")?,
            last_finished: row.column("last_finished")?,
            last_status: row.column("last_status")?,
            last_duration: row.column::<Option<u64>>("last_duration_ms")?.map(Duration::from_millis),
            last_error: row.column("last_error")?,
            failure_count: row.column("failure_count")?,
            invalid_reason: row.column("invalid_reason")?,
            paused_by: row.column("paused_by")?,
            created_at: row.column("created_at")?,
            updated_at: row.column("updated_at")?,
        })
    }
}

/// The JSON of a definition may leave out `schedule_type`, which is an error that names it.
macro_rules! given {
    (type schedule_type $type:ty) => { Option<$type> };
    (type $column:ident $type:ty) => { $type };
    (from schedule_type $value:expr) => { Some($value) };
    (from $column:ident $value:expr) => { $value };
    (value schedule_type $value:expr) => {
        $value.ok_or_else(|| Error::invalid_task("schedule_type", "", "cron, calendar, interval, delay, once or manual"))?
    };
    (value $column:ident $value:expr) => { $value };
}

/// Defines what follows from the table of columns.
macro_rules! define {
    ($(
        $(#[$doc:meta])*
        $field:ident: $type:ty = $default:expr =>
        [$($(#[$attribute:meta])* $column:ident: $of:ty $(= .$part:ident)?),+];
    )+) => {
        /// The complete definition of a task. Tasks with equal definitions are equivalent.
        ///
        /// ```
        /// use duly::{Client, NewTask};
        /// # let home = tempfile::tempdir()?;
        /// # let file = home.path().join("agent.db");
        /// let client = Client::open(&file)?;
        /// client.add(NewTask::interval("poll", std::time::Duration::from_secs(5400)).handler("poll"))?;
        /// let poll = client.task("poll")?.ok_or("no task")?.definition;
        /// assert_eq!((poll.schedule_value.as_str(), poll.retry.max_attempts, poll.timeout), ("1h 30m", 5, None));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(into = "Columns", try_from = "Columns")]
        #[non_exhaustive]
        pub struct Definition {
            $($(#[$doc])* pub $field: $type,)+
        }

        /// The JSON form of a definition.
        #[derive(Clone, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(crate) struct Columns {
            /// The delay from adding a task to its due time, which replaces `schedule_value`. Only a new task has it.
            #[serde(skip_serializing_if = "Option::is_none", with = "json::optional_duration")]
            pub(crate) due_in_ms: Option<Duration>,
            $($($(#[$attribute])* pub(crate) $column: given!(type $column $of),)+)+
        }

        impl From<Definition> for Columns {
            fn from(task: Definition) -> Self {
                Columns { due_in_ms: None, $($($column: given!(from $column task.$field$(.$part)?),)+)+ }
            }
        }

        impl Columns {
            pub(crate) fn into_definition(self) -> Result<Definition> {
                let mut task = Definition::blank();
                $($(task.$field$(.$part)? = given!(value $column self.$column);)+)+
                Ok(task)
            }
        }

        impl Definition {
            /// Returns a definition with the defaults, without a name, a handler and a schedule.
            pub(crate) fn blank() -> Self {
                Definition { $($field: $default,)+ }
            }

            /// The columns of a definition that is stored.
            pub(crate) const COLUMNS: &[&str] = &[$($(stringify!($column)),+),+];

            /// Of each column, whether it holds text, and whether it may hold NULL.
            #[cfg(feature = "postgres")]
            pub(crate) const KINDS: &[(bool, bool)] = &[$($((<$of>::IS_TEXT, <$of>::IS_OPTIONAL)),+),+];

            /// Returns what its columns hold.
            pub(crate) fn values(&self) -> [ColumnValue<'_>; Definition::COLUMNS.len()] {
                [$($(self.$field$(.$part)?.value()),+),+]
            }
        }
    };
}
task_columns!(define);

impl Default for Columns {
    fn default() -> Self {
        let mut columns = Columns::from(Definition::blank());
        columns.schedule_type = None;
        columns
    }
}

impl TryFrom<Columns> for Definition {
    type Error = Error;

    fn try_from(columns: Columns) -> Result<Self> {
        if let Some(due_in) = columns.due_in_ms {
            return Err(Error::invalid_task("due_in_ms", millis(due_in), "nothing, since only a new task has it"));
        }
        columns.into_definition()
    }
}

impl Definition {
    /// Returns a definition with the defaults, without a name and a handler.
    pub(crate) fn new(schedule_type: ScheduleKind, schedule_value: String) -> Self {
        Definition { schedule_type, schedule_value, ..Definition::blank() }
    }

    /// Checks every field, and returns the schedule for a task created at `created_at`.
    pub(crate) fn check(&self, created_at: Timestamp, schedules: &mut Schedules) -> Result<Schedule> {
        check_name(&self.name)?;
        check_text("handler", &self.handler)?;
        check_payload(&self.payload)?;
        if let Some(key) = &self.concurrency_key {
            check_text("concurrency_key", key)?;
            if key.starts_with('#') {
                return Err(Error::invalid_task("concurrency_key", key, "a key that does not begin with #"));
            }
        }
        for (field, names) in self.followers() {
            names.map_or(Ok(()), |names| check_followers(field, names))?;
        }
        if let Some(runs) = self.pause_after_failures.filter(|runs| !(1..=1_000_000).contains(runs)) {
            return Err(Error::invalid_task("pause_after_failures", runs, "1 to 1000000"));
        }
        for (field, at) in [("starts_at", self.starts_at), ("ends_at", self.ends_at)] {
            check_time(field, at)?;
        }
        if let (Some(starts), Some(ends)) = (self.starts_at, self.ends_at)
            && ends < starts
        {
            return Err(Error::invalid_task("ends_at", ends, format!("an instant not before starts_at, {starts}")));
        }
        if self.misfire == Misfire::RunAll && !matches!(self.overlap, Overlap::BufferAll | Overlap::Allow) {
            let expected = "buffer_all or allow, since misfire is run_all";
            return Err(Error::invalid_task("overlap", self.overlap, expected));
        }
        if !(1..=MAX_CATCH_UP).contains(&self.catch_up_limit) {
            return Err(Error::invalid_task("catch_up_limit", self.catch_up_limit, format!("1 to {MAX_CATCH_UP}")));
        }
        if self.priority > 3 {
            return Err(Error::invalid_task("priority", self.priority, "0 (first) to 3"));
        }
        if !(1..=1_000_000).contains(&self.retry.max_attempts) {
            return Err(Error::invalid_task("max_attempts", self.retry.max_attempts, "1 to 1000000"));
        }
        let some = Duration::from_millis(1);
        check_duration("misfire_grace_ms", self.misfire_grace, Duration::ZERO, MAX_DURATION)?;
        check_duration("backoff_ms", self.retry.backoff, some, MAX_DURATION)?;
        check_duration("backoff_cap_ms", self.retry.max_backoff, some, MAX_DURATION)?;
        check_duration("jitter_ms", self.jitter, Duration::ZERO, MAX_JITTER)?;
        check_duration("timeout_ms", self.timeout.unwrap_or_default(), Duration::ZERO, MAX_DURATION)?;
        check_duration("expires_ms", self.expires.unwrap_or(some), some, MAX_DURATION)?;
        // A task's part of a longer jitter could exceed the expiry, and then none of its runs could ever begin.
        if let Some(expires) = self.expires.filter(|expires| *expires < self.jitter) {
            let expected = format!("at most {}, the time in which a run expires", duration_text(expires));
            return Err(Error::invalid_task("jitter_ms", duration_text(self.jitter), expected));
        }
        if self.windows()?.is_some() && !self.schedule_type.has_occurrences() {
            let expected =
                "cron, calendar or interval, since only_between, only_on and except_on choose among occurrences";
            return Err(Error::invalid_task("schedule_type", self.schedule_type, expected));
        }
        let anchor = self.starts_at.unwrap_or(created_at);
        let schedule = schedules.get(self.schedule_type, &self.schedule_value, &self.time_zone, anchor)?;
        if let Schedule::Once(at) = &schedule {
            check_time("schedule_value", Some(*at))?;
        }
        Ok(schedule)
    }

    /// Returns the times and dates at which occurrences are run; `None`: at all.
    pub(crate) fn windows(&self) -> Result<Option<Windows>> {
        let texts = [&self.only_between, &self.only_on, &self.except_on].map(Option::as_deref);
        Windows::parse(&self.time_zone, texts)
    }

    /// Returns the columns that name tasks which follow, and what they hold.
    pub(crate) fn followers(&self) -> [(&'static str, Option<&str>); 4] {
        [
            ("on_dead", self.on_dead.as_deref()),
            ("on_success", self.on_success.as_deref()),
            ("on_end", self.on_end.as_deref()),
            ("on_missed", self.on_missed.as_deref()),
        ]
    }

    /// Returns whether tasks follow whatever a run of this one ends with, or its success: they must not lead back to it.
    pub(crate) fn leads_on(&self) -> bool {
        self.on_success.is_some() || self.on_end.is_some()
    }

    /// Checks what a request must not ask for, although a row that another program writes may have it: a setting that would silently do less
    /// than it says. [`Definition::check`] checks the rest.
    pub(crate) fn check_request(&self) -> Result<()> {
        let RetryPolicy { backoff, max_backoff, .. } = self.retry;
        // A cap that is set alone shortens the default backoff.
        if backoff > max_backoff && backoff != RetryPolicy::default().backoff {
            let expected = format!("at most its cap (backoff_cap_ms), {}", duration_text(max_backoff));
            return Err(Error::invalid_task("backoff_ms", duration_text(backoff), expected));
        }
        if matches!(self.schedule_type, ScheduleKind::Interval | ScheduleKind::Delay) {
            let refused = |reason| Error::InvalidSchedule { text: self.schedule_value.clone(), reason };
            without_month(&self.schedule_value).map_err(refused)?;
        }
        let interval = Some(&self.schedule_value).filter(|_| self.schedule_type == ScheduleKind::Interval);
        // If it is no interval, `check` says what is wrong with it.
        if let Some(interval) = interval.and_then(|text| parse_duration(text).ok()).filter(|one| *one < self.jitter) {
            let expected = format!("at most the interval, {}", duration_text(interval));
            return Err(Error::invalid_task("jitter_ms", duration_text(self.jitter), expected));
        }
        Ok(())
    }

    /// Returns every field in which `other` differs from this stored definition: its column, and both values as text.
    /// `same_schedule`: the two schedules are equivalent, even if they are written differently. `same_payload`: compares two payloads.
    pub(crate) fn differences(
        &self,
        other: &Definition,
        same_schedule: bool,
        same_payload: fn(&str, &str) -> bool,
    ) -> Vec<(&'static str, String, String)> {
        let pairs = self.values().into_iter().zip(other.values());
        let pairs = pairs.map(|(stored, given)| (stored.shown(), given.shown()));
        (Definition::COLUMNS.iter().copied().zip(pairs))
            .filter(|(column, _)| !(same_schedule && matches!(*column, "schedule_value" | "time_zone")))
            .filter(|(column, (stored, given))| {
                stored != given && !(*column == "payload" && same_payload(stored, given))
            })
            .map(|(column, (stored, given))| (column, stored, given))
            .collect()
    }
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:/@-".contains(c);
    if name.len() <= MAX_NAME_BYTES && name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(allowed)
    {
        return Ok(());
    }
    Err(Error::invalid_task("name", name, "a letter, then up to 199 letters, digits or . _ : / @ -"))
}

/// Checks the names of tasks that follow.
fn check_followers(field: &'static str, names: &str) -> Result<()> {
    let found = names.split(',').count();
    if found > MAX_FOLLOWERS {
        return Err(Error::invalid_task(field, format!("{found} names"), format!("at most {MAX_FOLLOWERS} names")));
    }
    match names.split(',').all(|name| check_text(field, name.trim_matches(' ')).is_ok()) {
        true => Ok(()),
        false => Err(Error::invalid_task(field, names, "names of tasks, separated by commas")),
    }
}

/// Checks a handler name, the name of a task that follows, or a key.
pub fn check_text(field: &'static str, text: &str) -> Result<()> {
    let refused = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
    if (1..=MAX_NAME_BYTES).contains(&text.len()) && !text.contains(refused) {
        return Ok(());
    }
    Err(Error::invalid_task(field, text, format!("1 to {MAX_NAME_BYTES} bytes without control characters or U+FFFD")))
}

/// Checks that a payload is JSON that a handler can read, and is not too large. It is parsed completely, since a lone
/// surrogate, a number out of range or more than 127 levels are valid by the grammar of JSON, and no reader accepts
/// them.
pub(crate) fn check_payload(payload: &str) -> Result<()> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        let found = format!("{} bytes", payload.len());
        return Err(Error::invalid_task("payload", found, format!("at most {MAX_PAYLOAD_BYTES} bytes of JSON")));
    }
    match serde_json::from_str::<serde_json::Value>(payload) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::invalid_task("payload", payload, format!("JSON that a handler can read ({error})"))),
    }
}

fn check_time(field: &'static str, at: Option<Timestamp>) -> Result<()> {
    match at {
        Some(at) if !(Timestamp::MIN..=Timestamp::MAX).contains(&at) => {
            Err(Error::invalid_task(field, at, "an instant from September 2001 to the year 4000"))
        }
        _ => Ok(()),
    }
}

fn check_duration(field: &'static str, length: Duration, least: Duration, most: Duration) -> Result<()> {
    if (least..=most).contains(&length) {
        return Ok(());
    }
    let (least, most) = (duration_text(least), duration_text(most));
    Err(Error::invalid_task(field, duration_text(length), format!("{least} to {most}")))
}
