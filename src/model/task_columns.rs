//! The definition of a task: one table, from which its type, its JSON forms, the statements of both stores, the rows and the comparison of
//! two definitions are derived.

/// Passes the table to a macro: of each field of a [`Definition`](crate::Definition) its type and default, and its columns, each with the
/// type of its value and how serde reads and writes it. To add a field, add it here and to both schemas.
macro_rules! task_columns {
    ($with:ident) => {
        $with! {
            /// The name. Unique; also the idempotency key of an enqueue.
            name: String = String::new() => [#[serde(skip_serializing_if = "String::is_empty")] name: String];
            /// The handler that runs it.
            handler: String = String::new() => [handler: String];
            /// The payload, JSON.
            payload: String = "null".to_owned() => [#[serde(with = "json::text")] payload: String];
            /// The kind of schedule.
            schedule_type: ScheduleKind = ScheduleKind::Manual => [schedule_type: ScheduleKind];
            /// The text of the schedule: an expression, a duration, or a date and time.
            schedule_value: String = String::new() => [schedule_value: String];
            /// The time zone, an IANA name.
            time_zone: String = "UTC".to_owned() => [time_zone: String];
            /// No occurrence is earlier; also the anchor of an interval's grid.
            starts_at: Option<Timestamp> = None => [starts_at: Option<Timestamp>];
            /// No occurrence is later.
            ends_at: Option<Timestamp> = None => [ends_at: Option<Timestamp>];
            /// The local times of the day within which an occurrence is run: `09:00-12:00, 13:00-17:30`. Others are skipped.
            only_between: Option<String> = None => [only_between: Option<String>];
            /// The local dates on which an occurrence is run: `2027-12-20..2027-12-31`. Others are skipped.
            only_on: Option<String> = None => [only_on: Option<String>];
            /// The local dates on which an occurrence is skipped: `holidays: 2027-12-25, 2028-01-01`.
            except_on: Option<String> = None => [except_on: Option<String>];
            /// See [`Overlap`].
            overlap: Overlap = Overlap::Skip => [overlap: Overlap];
            /// See [`Misfire`].
            misfire: Misfire = Misfire::RunOnce => [misfire: Misfire];
            /// An occurrence resolved later than this is a misfire.
            misfire_grace: Duration = DEFAULT_GRACE => [#[serde(with = "json::duration")] misfire_grace_ms: Duration];
            /// The maximum number of runs that wait or catch up.
            catch_up_limit: u32 = 100 => [catch_up_limit: u32];
            /// A run of which no attempt began within this time is missed.
            expires: Option<Duration> = None => [#[serde(with = "json::optional_duration")] expires_ms: Option<Duration>];
            /// The retry policy.
            retry: RetryPolicy = RetryPolicy::default() => [
                max_attempts: u32 = .max_attempts,
                #[serde(with = "json::duration")] backoff_ms: Duration = .backoff,
                #[serde(with = "json::duration")] backoff_cap_ms: Duration = .max_backoff
            ];
            /// The time limit of an attempt; zero: no limit; `None`: the default of the handler.
            timeout: Option<Duration> = None => [#[serde(with = "json::optional_duration")] timeout_ms: Option<Duration>];
            /// Each task starts later than it is due by a fixed part of this, derived from its name.
            jitter: Duration = Duration::ZERO => [#[serde(with = "json::duration")] jitter_ms: Duration];
            /// 0 (first) to 3.
            priority: u8 = 1 => [priority: u8];
            /// At most one run with this key runs at a time, across tasks, or as many as its limit says. `None`: the task's own key.
            concurrency_key: Option<String> = None => [concurrency_key: Option<String>];
            /// At most this number of starts of the task in any time of a length, retries included: `4/1d`. `None`: no limit.
            max_starts: Option<String> = None => [max_starts: Option<String>];
            /// See [`WhenLimited`].
            when_limited: WhenLimited = WhenLimited::Wait => [when_limited: WhenLimited];
            /// The tasks of which a run is opened when a run of this task dies, with the dead run as payload: names, separated by commas.
            on_dead: Option<String> = None => [on_dead: Option<String>];
            /// As `on_dead`, when a run of this task succeeds.
            on_success: Option<String> = None => [on_success: Option<String>];
            /// As `on_dead`, when a run of this task succeeds, dies, or is cancelled after an attempt began.
            on_end: Option<String> = None => [on_end: Option<String>];
            /// As `on_dead`, when occurrences of this task are missed and nothing runs for them.
            on_missed: Option<String> = None => [on_missed: Option<String>];
            /// The task is paused after this number of consecutive dead runs. `None`: never.
            pause_after_failures: Option<u32> = None => [pause_after_failures: Option<u32>];
            /// The manifest that declared it.
            managed_by: Option<String> = None => [managed_by: Option<String>];
        }
    };
}
pub(crate) use task_columns;
