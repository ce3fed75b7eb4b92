//! When a task is due: five kinds of schedule behind two questions, `next_after` and `previous_before`.
//!
//! A schedule is a pure function of time. What was run, skipped or missed is none of its business.

mod cron;
mod dialect;
mod duration;
mod instant;
mod pattern;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod zone;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Timestamp, millis};
use crate::error::{Error, Result};
use crate::schedule::cron::Cron;
pub use crate::schedule::duration::{duration_text, parse_duration};
pub use crate::schedule::zone::data::{ZoneData, zone_data};
pub use crate::schedule::zone::{ClockNote, Zone};

/// How a task's schedule is to be read: the column `schedule_type`.
///
/// ```
/// use duly::ScheduleKind;
/// assert_eq!("interval".parse::<ScheduleKind>()?, ScheduleKind::Interval);
/// assert_eq!(ScheduleKind::Once.to_string(), "once");
/// // The column takes these five words and no others.
/// assert!("Interval".parse::<ScheduleKind>().is_err());
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleKind {
    /// A cron line, read in the task's time zone.
    Cron,
    /// A fixed grid in elapsed time, which daylight saving does not touch.
    Interval,
    /// So long after the end of the last run.
    Delay,
    /// One instant.
    Once,
    /// No occurrence: only a trigger or another task's `on_dead` opens a run.
    Manual,
}

impl ScheduleKind {
    /// The word in the table.
    pub const fn as_str(self) -> &'static str {
        match self {
            ScheduleKind::Cron => "cron",
            ScheduleKind::Interval => "interval",
            ScheduleKind::Delay => "delay",
            ScheduleKind::Once => "once",
            ScheduleKind::Manual => "manual",
        }
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
        use ScheduleKind::{Cron, Delay, Interval, Manual, Once};
        [Cron, Interval, Delay, Once, Manual]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| Error::invalid_task("schedule_type", text, "cron, interval, delay, once or manual"))
    }
}

/// When a task is due. Schedules of the same meaning are equal, however they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// Local times of a zone.
    Cron(Arc<Cron>),
    /// The instants `anchor`, `anchor + every`, `anchor + 2 * every` and so on.
    Interval {
        /// The width of the grid.
        every: Duration,
        /// Its first instant.
        anchor: Timestamp,
    },
    /// So long after the end of the last run.
    Delay(Duration),
    /// One instant.
    Once(Timestamp),
    /// No occurrence.
    Manual,
}

/// How many occurrences a stretch of time holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// So many, or at least so many.
    pub(crate) n: u64,
    /// False if counting stopped at the limit.
    pub(crate) exact: bool,
}

impl Schedule {
    /// Reads the columns `schedule_type`, `schedule_value` and `time_zone`. `anchor` is where an interval's grid begins:
    /// `starts_at`, else `created_at`.
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
            ScheduleKind::Cron => Schedule::Cron(Arc::new(Cron::parse(value, zone)?)),
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

    /// The first occurrence after `at`, never `at` itself; none when there is none left. A delay is counted from `at`.
    pub(crate) fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        let next = match self {
            Schedule::Cron(cron) => cron.next_after(at)?,
            Schedule::Interval { anchor, .. } if at < *anchor => *anchor,
            Schedule::Interval { every, anchor } => on_grid(*every, *anchor, at).plus(*every),
            Schedule::Delay(delay) => at.plus(*delay),
            Schedule::Once(instant) => *instant,
            Schedule::Manual => return None,
        };
        (at < next && next <= Timestamp::MAX).then_some(next)
    }

    /// The last occurrence before `at`, never `at` itself. A delay has none: it knows no grid.
    pub(crate) fn previous_before(&self, at: Timestamp) -> Option<Timestamp> {
        let last = at.minus(Duration::from_millis(1)).min(Timestamp::MAX);
        match self {
            Schedule::Cron(cron) => cron.previous_before(at),
            Schedule::Interval { every, anchor } => (*anchor <= last).then(|| on_grid(*every, *anchor, last)),
            Schedule::Delay(_) | Schedule::Manual => None,
            Schedule::Once(instant) => (*instant <= last).then_some(*instant),
        }
    }

    /// What the clock's being set forward or back has to do with an occurrence.
    pub(crate) fn note(&self, at: Timestamp) -> Option<ClockNote> {
        match self {
            Schedule::Cron(cron) => cron.note(at),
            _ => None,
        }
    }

    /// How many occurrences lie in `[first, last]`, both of them occurrences. A grid is counted by arithmetic; a cron
    /// line is walked, for at most `limit` steps, so that the cost is bounded however long the gap.
    pub(crate) fn count_between(&self, first: Timestamp, last: Timestamp, limit: u64) -> Count {
        let exact = |n| Count { n, exact: true };
        if last < first {
            return exact(0);
        }
        match self {
            Schedule::Cron(cron) => {
                let mut n = 1;
                let mut at = first;
                while let Some(next) = cron.next_after(at).filter(|next| *next <= last) {
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

/// The newest point of a grid that is not after `at`, which is not before `anchor`.
fn on_grid(every: Duration, anchor: Timestamp, at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis() - millis(at.since(anchor)) % width(every))
}

/// A grid's width in milliseconds; never zero, whoever made it.
fn width(every: Duration) -> i64 {
    millis(every).max(1)
}

/// Parsed cron lines, kept so that a turn of the loop does not parse them again: reading one costs a hundred times what
/// asking it does.
#[derive(Debug)]
pub(crate) struct Schedules {
    /// By zone and text.
    lines: HashMap<(String, String), Arc<Cron>>,
    most: usize,
}

/// So many lines are kept; asked for one more, the cache begins anew.
const LINES_KEPT: usize = 1024;
/// So many while a whole manifest is read: more than there are minutes in a week.
const LINES_KEPT_FOR_MANY: usize = 16 * 1024;

impl Default for Schedules {
    fn default() -> Self {
        Schedules { lines: HashMap::new(), most: LINES_KEPT }
    }
}

impl Schedules {
    /// For many tasks at once, and to be dropped after them: it may hold some 30 MiB.
    pub(crate) fn for_many() -> Self {
        Schedules { most: LINES_KEPT_FOR_MANY, ..Schedules::default() }
    }

    /// As [`Schedule::parse`], but a cron line that was read before is not read again. Errors are not kept.
    pub(crate) fn get(&mut self, kind: ScheduleKind, value: &str, zone: &str, anchor: Timestamp) -> Result<Schedule> {
        if kind != ScheduleKind::Cron {
            return Schedule::parse(kind, value, zone, anchor);
        }
        let key = (zone.to_owned(), value.to_owned());
        if let Some(cron) = self.lines.get(&key) {
            return Ok(Schedule::Cron(Arc::clone(cron)));
        }
        let cron = Arc::new(Cron::parse(value, Zone::named(zone)?)?);
        // Where tasks take turns, to forget the oldest would miss as often, and cost an order to keep.
        if self.lines.len() >= self.most {
            self.lines.clear();
        }
        self.lines.insert(key, Arc::clone(&cron));
        Ok(Schedule::Cron(cron))
    }
}
