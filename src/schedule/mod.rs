//! Computes when a task is due: six kinds of schedule with two operations, `next_after` and `previous_before`.
//!
//! A schedule is a pure function of time. It does not know which occurrences were run, skipped or missed.

mod calendar;
#[cfg(test)]
mod calendar_dates;
mod dialect;
mod duration;
mod instant;
mod local_times;
mod pattern;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod windows;
mod zone;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDateTime;
use serde::{Deserialize, Serialize};

use crate::clock::{Timestamp, millis};
use crate::error::{Error, Result};
pub use crate::schedule::duration::{duration_text, parse_duration};
use crate::schedule::local_times::LocalTimes;
pub(crate) use crate::schedule::windows::{Closed, Windows};
#[cfg(test)]
pub(crate) use crate::schedule::zone::data::built_in as zone_file;
pub use crate::schedule::zone::data::{ZoneData, zone_data};
pub(crate) use crate::schedule::zone::fixed::is_fixed as has_fixed_meaning;
pub use crate::schedule::zone::name::ZoneName;
pub(crate) use crate::schedule::zone::rules_of;
pub use crate::schedule::zone::{ClockNote, Zone};

/// The kind of a schedule: the column `schedule_type`.
///
/// ```
/// use duly::ScheduleKind;
/// assert_eq!("interval".parse::<ScheduleKind>()?, ScheduleKind::Interval);
/// assert_eq!(ScheduleKind::Once.to_string(), "once");
/// // The column accepts only these six words.
/// assert!("Interval".parse::<ScheduleKind>().is_err());
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// A cron expression in the task's time zone.
    Cron,
    /// Every N days, weeks or months, on certain days at certain times, in the task's time zone.
    Calendar,
    /// A fixed grid of elapsed time, independent of daylight saving.
    Interval,
    /// A duration after the end of the last run.
    Delay,
    /// One instant.
    Once,
    /// No occurrence: only a trigger or another task's `on_dead` opens a run.
    Manual,
}

impl ScheduleKind {
    /// Returns the word in the table.
    pub const fn as_str(self) -> &'static str {
        match self {
            ScheduleKind::Cron => "cron",
            ScheduleKind::Calendar => "calendar",
            ScheduleKind::Interval => "interval",
            ScheduleKind::Delay => "delay",
            ScheduleKind::Once => "once",
            ScheduleKind::Manual => "manual",
        }
    }

    /// Returns whether its occurrences follow each other, whatever the runs do.
    pub(crate) fn has_occurrences(self) -> bool {
        matches!(self, ScheduleKind::Cron | ScheduleKind::Calendar | ScheduleKind::Interval)
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ScheduleKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        use ScheduleKind::{Calendar, Cron, Delay, Interval, Manual, Once};
        [Cron, Calendar, Interval, Delay, Once, Manual].into_iter().find(|kind| kind.as_str() == text).ok_or_else(
            || Error::invalid_task("schedule_type", text, "cron, calendar, interval, delay, once or manual"),
        )
    }
}

/// The schedule of a task. Equivalent schedules are equal, even if they were written differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// Local times in a zone.
    Local(Arc<LocalTimes>),
    /// The instants `anchor`, `anchor + every`, `anchor + 2 * every` and so on.
    Interval {
        /// The interval of the grid.
        every: Duration,
        /// Its first instant.
        anchor: Timestamp,
    },
    /// A duration after the end of the last run.
    Delay(Duration),
    /// One instant.
    Once(Timestamp),
    /// No occurrence.
    Manual,
}

/// The number of occurrences in a range of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// The number, or a lower bound.
    pub(crate) n: u64,
    /// Whether `n` is exact; false if counting stopped at the limit.
    pub(crate) exact: bool,
}

impl Schedule {
    /// Returns the local times of a schedule in words, without the zone; `None` for other schedules, and for times that a few words cannot
    /// say.
    pub(crate) fn words(&self) -> Option<String> {
        let Schedule::Local(times) = self else { return None };
        times.words()
    }

    /// Parses the columns `schedule_type`, `schedule_value` and `time_zone`. `anchor` is the start of an interval's
    /// grid and the days of a calendar interval: `starts_at`, else `created_at`.
    ///
    /// ```text
    /// once      2027-03-14T02:30         in New York: refused, as the clock skips it, with the nearest that exist
    /// once      2027-11-07 01:30         in New York: the first of two
    /// interval  1h 30m                   every 90 minutes of elapsed time, whatever the clock does
    /// delay     90000                    90 seconds
    /// ```
    pub(crate) fn parse(kind: ScheduleKind, value: &str, zone: &str, anchor: Timestamp) -> Result<Self> {
        let zone = Zone::named(zone)?;
        Ok(match kind {
            ScheduleKind::Cron => Schedule::Local(Arc::new(LocalTimes::cron(value, zone)?)),
            ScheduleKind::Calendar => Schedule::Local(Arc::new(LocalTimes::calendar(value, zone, anchor)?)),
            ScheduleKind::Interval => Schedule::Interval { every: parse_duration(value)?, anchor },
            ScheduleKind::Delay => Schedule::Delay(parse_duration(value)?),
            ScheduleKind::Once => Schedule::Once(zone.instant(value)?),
            ScheduleKind::Manual if value.is_empty() => Schedule::Manual,
            ScheduleKind::Manual => {
                return Err(Error::invalid_task(
                    "schedule_value",
                    value,
                    "an empty text, since schedule_type is manual",
                ));
            }
        })
    }

    /// Returns the first occurrence after `at`, never `at` itself; `None` if there is none. A delay is counted from
    /// `at`.
    pub(crate) fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        let next = match self {
            Schedule::Local(times) => times.next_after(at)?,
            Schedule::Interval { anchor, .. } if at < *anchor => *anchor,
            Schedule::Interval { every, anchor } => on_grid(*every, *anchor, at).plus(*every),
            Schedule::Delay(delay) => at.plus(*delay),
            Schedule::Once(instant) => *instant,
            Schedule::Manual => return None,
        };
        (at < next && next <= Timestamp::MAX).then_some(next)
    }

    /// Returns the last occurrence before `at`, never `at` itself. A delay has none.
    pub(crate) fn previous_before(&self, at: Timestamp) -> Option<Timestamp> {
        let last = at.minus(Duration::from_millis(1)).min(Timestamp::MAX);
        match self {
            Schedule::Local(times) => times.previous_before(at),
            Schedule::Interval { every, anchor } => (*anchor <= last).then(|| on_grid(*every, *anchor, last)),
            Schedule::Delay(_) | Schedule::Manual => None,
            Schedule::Once(instant) => (*instant <= last).then_some(*instant),
        }
    }

    /// Returns how daylight saving affects an occurrence.
    pub(crate) fn note(&self, at: Timestamp) -> Option<ClockNote> {
        match self {
            Schedule::Local(times) => times.note(at),
            _ => None,
        }
    }

    /// Returns the local times that occur together at an instant because the clock skips one of them or more.
    pub(crate) fn gathered(&self, at: Timestamp) -> impl Iterator<Item = NaiveDateTime> {
        let times = if let Schedule::Local(times) = self { Some(times) } else { None };
        times.into_iter().flat_map(move |times| times.gathered(at))
    }

    /// Returns the zone by whose rules an instant is no occurrence of local times: other rules may have planned it.
    pub(crate) fn contradicting_zone(&self, at: Timestamp) -> Option<&str> {
        let Schedule::Local(times) = self else { return None };
        let contradicts = !times.is_in_fixed_zone() && times.next_after(at.minus(Duration::from_millis(1))) != Some(at);
        contradicts.then(|| times.zone_name())
    }

    /// Counts the occurrences in `[first, last]`, both of which are occurrences. A grid is counted by arithmetic; local
    /// times by at most `limit` steps, so that the cost is bounded.
    pub(crate) fn count_between(&self, first: Timestamp, last: Timestamp, limit: u64) -> Count {
        let exact = |n| Count { n, exact: true };
        if last < first {
            return exact(0);
        }
        match self {
            Schedule::Local(times) => {
                let mut n = 1;
                let mut at = first;
                while let Some(next) = times.next_after(at).filter(|next| *next <= last) {
                    if n >= limit {
                        return Count { n, exact: false };
                    }
                    n += 1;
                    at = next;
                }
                exact(n)
            }
            Schedule::Interval { every, .. } => exact(1 + (millis(last.since(first)) / width(*every)).unsigned_abs()),
            Schedule::Delay(_) | Schedule::Once(_) | Schedule::Manual => exact(1),
        }
    }
}

/// Returns the newest point of a grid that is not after `at`, which is not before `anchor`.
fn on_grid(every: Duration, anchor: Timestamp, at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis() - millis(at.since(anchor)) % width(every))
}

/// Returns the interval of a grid in milliseconds, at least 1.
fn width(every: Duration) -> i64 {
    millis(every).max(1)
}

/// A cache of parsed cron expressions: parsing one costs a hundred times what computing its next occurrence does.
#[derive(Debug)]
pub(crate) struct Schedules {
    /// Keyed by zone and text.
    lines: HashMap<(String, String), Arc<LocalTimes>>,
    capacity: usize,
}

/// The capacity of the cache. One more entry clears it.
const CAPACITY: usize = 1024;
/// The capacity for a whole manifest: more than the minutes of a week.
const LARGE_CAPACITY: usize = 16 * 1024;

impl Default for Schedules {
    fn default() -> Self {
        Schedules { lines: HashMap::new(), capacity: CAPACITY }
    }
}

impl Schedules {
    /// Returns a large cache for many tasks at once. It may take 30 MiB: drop it afterwards.
    pub(crate) fn for_many() -> Self {
        Schedules { capacity: LARGE_CAPACITY, ..Schedules::default() }
    }

    /// As [`Schedule::parse`], but parses each cron expression once. Errors are not cached.
    pub(crate) fn get(&mut self, kind: ScheduleKind, value: &str, zone: &str, anchor: Timestamp) -> Result<Schedule> {
        if kind != ScheduleKind::Cron {
            return Schedule::parse(kind, value, zone, anchor);
        }
        let key = (zone.to_owned(), value.to_owned());
        if let Some(cron) = self.lines.get(&key) {
            return Ok(Schedule::Local(Arc::clone(cron)));
        }
        let cron = Arc::new(LocalTimes::cron(value, Zone::named(zone)?)?);
        // Tasks use the entries in turn: evicting the oldest entry would miss as often, and tracking the order would
        // cost more.
        if self.lines.len() >= self.capacity {
            self.lines.clear();
        }
        self.lines.insert(key, Arc::clone(&cron));
        Ok(Schedule::Local(cron))
    }
}
