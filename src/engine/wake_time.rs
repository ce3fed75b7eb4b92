//! What was last seen of the future, and when what was refused is tried again. Pure.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::store::turn_io::{Done, Seen};

/// The first and the longest wait before a refused write is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Tries in a row after which a database that is called damaged is so: some seconds. SQLite says it of a page that the disk
/// could not read just now, too.
const TRIES_IF_DAMAGED: u32 = 6;

/// A scheduler that could not write for so long says so, for others to see.
const DEGRADED: Duration = Duration::from_secs(10);

/// A database that refuses to be written is tried again with growing waits.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    /// When to try again, and the wait after that.
    next: Option<(Duration, Duration)>,
    /// When it was first refused since it was last written.
    since: Option<Duration>,
    /// At how many tries in a row it was called damaged. A success that has not read the same is none of them.
    damaged: u32,
}

impl Refusal {
    /// Whether this is the first since it was last written.
    pub(crate) fn happened(&mut self, now: Duration) -> bool {
        self.since.get_or_insert(now);
        let wait = self.next.map_or(RETRY.0, |(_, wait)| wait);
        self.next.replace((now + wait, (wait * 2).min(RETRY.1))).is_none()
    }

    /// Whether every try has failed for ten seconds or longer.
    pub(crate) fn lasts(&self, now: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) >= DEGRADED)
    }

    /// Takes whether this time it was called damaged. Whether it is, as far as can be known.
    pub(crate) fn is_damaged(&mut self, called: bool) -> bool {
        self.damaged = if called { self.damaged + 1 } else { 0 };
        self.damaged >= TRIES_IF_DAMAGED
    }

    /// Whether it had been refused. `sound`: what had been called damaged is not.
    pub(crate) fn is_over(&mut self, sound: bool) -> bool {
        if sound {
            self.damaged = 0;
        }
        self.since = None;
        self.next.take().is_some()
    }

    /// When to try again.
    pub(crate) fn until(&self) -> Option<Duration> {
        self.next.map(|(at, _)| at)
    }
}

/// What a turn saw that is to come.
#[derive(Debug, Default)]
pub(crate) struct WakeTime {
    next_due: Option<Timestamp>,
    next_claimable: Option<Timestamp>,
    next_expiry: Option<Timestamp>,
    /// Of the snapshot it was seen in; `None` before the first.
    data_version: Option<i64>,
    /// What a run that expires is judged by: what is not in here was written since.
    pub(crate) seen: Option<Seen>,
}

impl WakeTime {
    pub(crate) fn of(done: &Done, now: Timestamp) -> Self {
        WakeTime {
            next_due: done.next_due,
            next_claimable: done.next_claimable,
            next_expiry: done.next_expiry,
            data_version: Some(done.data_version),
            seen: Some(Seen { at: now, next_due: done.next_due }),
        }
    }

    /// Returns the data version of the snapshot that was seen last.
    pub(crate) fn data_version(&self) -> Option<i64> {
        self.data_version
    }

    /// Nothing was committed since: what was seen is still true.
    pub(crate) fn looked_again(&mut self, now: Timestamp) {
        if let Some(seen) = &mut self.seen {
            seen.at = now;
        }
    }

    /// Whether something that is known of is due; or nothing is known yet.
    pub(crate) fn is_due(&self, now: Timestamp, room: usize) -> bool {
        self.data_version.is_none() || self.next(room).is_some_and(|at| at <= now)
    }

    /// How long until then.
    pub(crate) fn wait(&self, now: Timestamp, room: usize) -> Duration {
        self.next(room).map_or(Duration::MAX, |at| at.since(now))
    }

    /// What could have been written and was not, waits for something else than time: an idle worker, or a look at the whole.
    /// It must not keep the loop spinning. `claimable`: what may be claimed as well, since nothing was.
    pub(crate) fn put_off(&mut self, now: Timestamp, later: Timestamp, claimable: bool) {
        let claimable = if claimable { &mut self.next_claimable } else { &mut None };
        for at in [&mut self.next_due, &mut self.next_expiry, claimable].into_iter().flatten() {
            if *at <= now {
                *at = later;
            }
        }
    }

    fn next(&self, room: usize) -> Option<Timestamp> {
        let claimable = self.next_claimable.filter(|_| room > 0);
        self.next_due.into_iter().chain(self.next_expiry).chain(claimable).min()
    }
}
