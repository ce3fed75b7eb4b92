//! The days that the loops run through. Each has one occurrence, at 13:00, of one task.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use duly::Timestamp;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Once a day, at one o'clock.
pub(crate) const CRON: &str = "0 13 * * *";
/// The poll interval of a loop.
pub(crate) const POLL: Duration = minutes(1);

/// A day: from a minute before the occurrence to two minutes before tomorrow's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Day {
    pub(crate) schedule: Schedule,
    /// How long the task takes.
    pub(crate) takes: Duration,
    pub(crate) trouble: Trouble,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Schedule {
    Cron,
    Once,
}

/// The fault that the processes suffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    Nothing,
    /// The only process is killed at `at`, and restarted on the same file at `back`.
    Killed {
        at: Timestamp,
        back: Timestamp,
    },
    /// Of two processes, the first stalls (a suspended laptop, a slow disk) as soon as it has found the task due, and
    /// continues from there at this instant.
    Stalled {
        until: Timestamp,
    },
}

impl Day {
    /// The day of the double run: a task of five minutes, and no fault.
    pub(crate) fn quiet() -> Self {
        Day { schedule: Schedule::Cron, takes: minutes(5), trouble: Trouble::Nothing }
    }

    /// The same day with a `once` task.
    pub(crate) fn once() -> Self {
        Day { schedule: Schedule::Once, ..Day::quiet() }
    }

    /// The same day with a task that takes unusually long.
    pub(crate) fn slow(takes: Duration) -> Self {
        Day { takes, ..Day::quiet() }
    }

    /// The process is killed during the run, and its supervisor restarts it a minute later.
    pub(crate) fn killed() -> Self {
        Day { trouble: Trouble::Killed { at: due().plus(minutes(2)), back: due().plus(minutes(3)) }, ..Day::quiet() }
    }

    /// A short task, two processes, and one of them is two minutes late.
    pub(crate) fn stalled() -> Self {
        let trouble = Trouble::Stalled { until: due().plus(minutes(2)) };
        Day { takes: minutes(1), trouble, ..Day::quiet() }
    }

    pub(crate) fn begin(&self) -> Timestamp {
        due().minus(minutes(1))
    }

    pub(crate) fn end(&self) -> Timestamp {
        due().plus(minutes(24 * 60 - 2))
    }

    /// The minutes of the day, one poll each.
    pub(crate) fn minutes(&self) -> impl Iterator<Item = Timestamp> {
        let end = self.end();
        std::iter::successors(Some(self.begin()), |at| Some(at.plus(POLL))).take_while(move |at| *at <= end)
    }

    /// How many processes share the file.
    pub(crate) fn processes(&self) -> usize {
        if matches!(self.trouble, Trouble::Stalled { .. }) { 2 } else { 1 }
    }
}

/// A short description.
impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let takes = self.takes.as_secs() / 60;
        match (self.trouble, self.schedule) {
            (Trouble::Killed { at, .. }, _) => write!(f, "killed at {}", clock(at)),
            (Trouble::Stalled { .. }, _) => f.write_str("two processes, one late"),
            (Trouble::Nothing, Schedule::Once) => write!(f, "a once task of {takes} min"),
            (Trouble::Nothing, Schedule::Cron) => write!(f, "a run of {takes} min"),
        }
    }
}

/// The occurrence.
pub(crate) fn due() -> Timestamp {
    // 2026-03-14T13:00:00Z; a constant, since parsing a text may fail.
    Timestamp::from_millis(1_773_493_200_000)
}

pub(crate) const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Formats the time of day, with seconds only if they are not zero.
pub(crate) fn clock(at: Timestamp) -> String {
    let text = at.to_string();
    let time = text.get(11..19).unwrap_or(&text);
    time.strip_suffix(":00").unwrap_or(time).to_owned()
}
