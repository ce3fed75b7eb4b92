//! The days of the hosts: twelve occurrences each, on the hour from 06:00 to 17:00.

use std::fmt;
use std::time::Duration;

use duly::Timestamp;

use crate::bench::day::{due, minutes};
use crate::bench::journal::Journal;

pub(crate) const OCCURRENCES: usize = 12;
/// The occurrence at which faults are injected: 09:00.
pub(crate) const TROUBLED: usize = 3;
/// How long the work usually takes.
pub(crate) const TAKES: Duration = minutes(2);
/// How long it takes at 09:00 on a day of long work.
pub(crate) const LONG: Duration = minutes(12);
/// How far the clock of host C is behind.
pub(crate) const BEHIND: Duration = minutes(3);
/// After a minute of work, the process is frozen for this time.
pub(crate) const FROZEN: Duration = minutes(10);
/// The server ends a session that is idle in a transaction for this time.
pub(crate) const IDLE_TIMEOUT: Duration = minutes(10);
/// A host that has died is back after this time.
pub(crate) const BACK_AFTER: Duration = minutes(20);
/// The server notices a client without power by TCP keepalive, after two hours and eleven minutes with the defaults of Linux.
pub(crate) const KEEPALIVE: Duration = minutes(131);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Day {
    /// No fault; one host.
    OneHost,
    /// One host, on which a deploy restarts the cron daemon at 09:00.
    Deploy,
    /// No fault; three hosts, as on all days below.
    Quiet,
    /// The clock of host C is behind.
    Skew,
    /// All sessions go through a pool that hands out the sessions of the server for one transaction each.
    Pool,
    /// The process that takes the occurrence of 09:00 is killed before the work.
    KilledBefore,
    /// It is killed after a minute of the work.
    KilledDuring,
    /// Its host loses power after a minute of the work. The server gets no packet about it.
    PowerLost,
    /// The work of 09:00 takes longer.
    Long,
    /// The process that does the work of 09:00 is frozen after a minute, and goes on later.
    Frozen,
    /// The server ends the sessions of the process that does the work of 09:00.
    SessionsEnded,
}

impl Day {
    pub(crate) fn hosts(self) -> usize {
        if matches!(self, Day::OneHost | Day::Deploy) { 1 } else { 3 }
    }

    /// Returns how long the work of an occurrence takes.
    pub(crate) fn takes(self, occurrence: usize) -> Duration {
        if self == Day::Long && occurrence == TROUBLED { LONG } else { TAKES }
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Day::OneHost => "one host",
            Day::Deploy => "one host, a deploy at 09:00",
            Day::Quiet => "three hosts",
            Day::Skew => "C's clock is 3 min behind",
            Day::Pool => "behind a pool",
            Day::KilledBefore => "killed between claim and work",
            Day::KilledDuring => "killed during the work",
            Day::PowerLost => "power lost during the work",
            Day::Long => "09:00 takes 12 min",
            Day::Frozen => "frozen for 10 min in the work",
            Day::SessionsEnded => "the server ends its sessions",
        })
    }
}

/// Returns the time of an occurrence.
pub(crate) fn time_of(occurrence: usize) -> Timestamp {
    (0..occurrence).fold(due().minus(minutes(7 * 60)), |at, _| at.plus(minutes(60)))
}

/// The minutes of the day in which something can happen: the first six of each hour, and half an hour from 09:00.
pub(crate) fn moments() -> impl Iterator<Item = Timestamp> {
    let count = |occurrence| if occurrence == TROUBLED { 30 } else { 6 };
    (0..OCCURRENCES).flat_map(move |n| (0..count(n)).map(move |minute| time_of(n).plus(minutes(minute))))
}

/// The result of a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) due: usize,
    /// How often the work began.
    pub(crate) started: usize,
    /// Starts while another one of the same occurrence was running, or after one had ended.
    pub(crate) twice: usize,
    /// Occurrences without a start that was completed.
    pub(crate) lost: usize,
}

impl Counts {
    /// Counts a day: a journal for each occurrence.
    pub(crate) fn of(journals: &[Journal]) -> Self {
        let mut counts = Counts { due: journals.len(), ..Counts::default() };
        for judgement in journals.iter().map(Journal::judge) {
            counts.started += judgement.starts;
            counts.twice += judgement.doubled;
            counts.lost += usize::from(judgement.ended == 0);
        }
        counts
    }
}
