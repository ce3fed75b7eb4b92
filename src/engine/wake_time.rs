//! When the next turn is due: what was last seen of the future, and when a refused write is retried. Pure.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::store::turn_io::{Done, Seen, Slots};

/// The first and the longest wait before a refused write is retried.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Attempts in a row that must report damage before it counts as real: some seconds. SQLite also reports damage for a page that
/// the disk failed to read.
const TRIES_IF_DAMAGED: u32 = 6;

/// A scheduler that could not write for this long reports it to others.
const DEGRADED: Duration = Duration::from_secs(10);

/// The retries of a database that refuses to be written.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    /// When to retry, and the wait after that.
    next: Option<(Duration, Duration)>,
    /// When it first refused since the last write.
    since: Option<Duration>,
    /// How many attempts in a row reported damage. A write that did not read the damaged page does not reset it.
    damaged: u32,
}

impl Refusal {
    /// Counts a refusal. Returns whether it is the first since the last write.
    pub(crate) fn happened(&mut self, now: Duration) -> bool {
        self.since.get_or_insert(now);
        let wait = self.next.map_or(RETRY.0, |(_, wait)| wait);
        self.next.replace((now + wait, (wait * 2).min(RETRY.1))).is_none()
    }

    /// Returns whether every attempt has failed for ten seconds or longer.
    pub(crate) fn lasts(&self, now: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) >= DEGRADED)
    }

    /// Counts whether an attempt reported damage. Returns whether the damage counts as real.
    pub(crate) fn is_damaged(&mut self, called: bool) -> bool {
        self.damaged = if called { self.damaged + 1 } else { 0 };
        self.damaged >= TRIES_IF_DAMAGED
    }

    /// Ends the retries. Returns whether there were any. `sound`: what was reported as damage was read without an error.
    pub(crate) fn is_over(&mut self, sound: bool) -> bool {
        if sound {
            self.damaged = 0;
        }
        self.since = None;
        self.next.take().is_some()
    }

    /// Returns when to retry.
    pub(crate) fn until(&self) -> Option<Duration> {
        self.next.map(|(at, _)| at)
    }
}

/// What a turn saw of the future.
#[derive(Debug, Default)]
pub(crate) struct WakeTime {
    next_due: Option<Timestamp>,
    next_claimable: Option<Timestamp>,
    next_expiry: Option<Timestamp>,
    next_opening: Option<Timestamp>,
    /// Of the snapshot that was seen; `None` before the first.
    data_version: Option<i64>,
    /// Whether the last turn did not look ahead: the poller looks before it waits.
    look_follows: bool,
    /// Whether a claimable run was put off while no worker was idle: some runs are never read ahead.
    waits_for_idle: bool,
    /// The look by which expired runs are judged: rows that it did not see were written since.
    pub(crate) seen: Option<Seen>,
}

impl WakeTime {
    pub(crate) fn of(done: &Done, now: Timestamp) -> Self {
        WakeTime {
            next_due: done.next_due,
            next_claimable: done.next_claimable,
            next_expiry: done.next_expiry,
            next_opening: done.next_opening,
            data_version: Some(done.data_version),
            look_follows: false,
            waits_for_idle: false,
            seen: Some(Seen { at: now, next_due: done.next_due }),
        }
    }

    /// Forgets what was seen, until the look that follows at once. Of `seen`, the turn has found nothing that has expired, and has not read
    /// when the next task is due: that stays as it was.
    pub(crate) fn expect_look(&mut self, now: Timestamp) {
        let seen = self.seen.map(|seen| Seen { at: now, ..seen });
        *self = WakeTime { look_follows: true, seen, ..WakeTime::default() };
    }

    /// Has the next turn read everything again: it claims for other handlers.
    pub(crate) fn forget(&mut self) {
        self.data_version = None;
    }

    /// Returns whether the last turn did not look ahead, and no look has followed.
    pub(crate) fn look_follows(&self) -> bool {
        self.look_follows
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

    /// Returns whether something that is known is due, or nothing is known yet.
    pub(crate) fn is_due(&self, now: Timestamp, slots: Slots) -> bool {
        (self.data_version.is_none() && !self.look_follows)
            || self.may_start_now(slots)
            || self.next(slots.room).is_some_and(|at| at <= now)
    }

    /// Returns whether a worker is idle, for which a run waits that was put off.
    fn may_start_now(&self, slots: Slots) -> bool {
        self.waits_for_idle && slots.idle > 0
    }

    /// Returns the time until something is due.
    pub(crate) fn wait(&self, now: Timestamp, slots: Slots) -> Duration {
        match self.next(slots.room) {
            _ if self.look_follows || self.may_start_now(slots) => Duration::ZERO,
            next => next.map_or(Duration::MAX, |at| at.since(now)),
        }
    }

    /// Puts off what is due and could not be written: it waits for an idle worker or a full turn, not for time, and must not
    /// keep the loop spinning. `claimable`: whether to put off claimable runs too, because none was claimed. `idle`: whether a worker was.
    pub(crate) fn put_off(&mut self, now: Timestamp, later: Timestamp, claimable: bool, idle: bool) {
        self.waits_for_idle = claimable && !idle && self.next_claimable.is_some_and(|at| at <= now);
        let claimable = if claimable { &mut self.next_claimable } else { &mut None };
        for at in [&mut self.next_due, &mut self.next_expiry, &mut self.next_opening, claimable].into_iter().flatten() {
            if *at <= now {
                *at = later;
            }
        }
    }

    fn next(&self, room: usize) -> Option<Timestamp> {
        let claimable = self.next_claimable.filter(|_| room > 0);
        self.next_due.into_iter().chain(self.next_expiry).chain(self.next_opening).chain(claimable).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_not_read_ahead_is_due_as_soon_as_a_worker_is_idle() {
        let (now, later) = (Timestamp::from_millis(1_805_025_600_000), Timestamp::from_millis(1_805_025_601_000));
        let seen = || WakeTime::of(&Done { next_claimable: Some(now), ..Done::default() }, now);
        let (busy, idle) = (Slots { room: 3, idle: 0 }, Slots { room: 1, idle: 1 });
        let mut wake = seen();
        wake.put_off(now, later, true, false);
        assert!(!wake.is_due(now, busy) && wake.is_due(now, idle));
        assert_eq!((wake.wait(now, busy), wake.wait(now, idle)), (Duration::from_secs(1), Duration::ZERO));
        // A worker was idle, and it was not claimed: it waits for the next full turn.
        let mut wake = seen();
        wake.put_off(now, later, true, true);
        assert!(!wake.is_due(now, idle));
    }
}
