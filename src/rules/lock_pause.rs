//! Decides when the connections of a process leave the lock of their file to writers that have only SQLite's busy handler. Pure.

use std::time::Duration;

/// How long the lock is left. Longer than the busy handler waits between two looks: 100 ms.
pub(crate) const PAUSE: Duration = Duration::from_millis(110);
/// How long uses may follow each other without such a pause.
const SERIES: Duration = Duration::from_secs(2);
/// Needs no pause: a lock that was used for less than the fourth part of that time. Many looks in a row do not all miss it while it is free.
const SHARE: u32 = 4;

/// The uses of the lock since it was last left for as long as a pause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockPause {
    /// When the first use began, by the monotonic clock.
    since: Duration,
    /// How long all of them took.
    used: Duration,
    /// When the last one ended.
    ended: Duration,
}

impl LockPause {
    /// The lock was used, or waited for, from `began` to `ended`.
    pub(crate) fn used(&mut self, began: Duration, ended: Duration) {
        let was_left = began.saturating_sub(self.ended) >= PAUSE;
        // After a series, the lock was left, or was free for long enough.
        if was_left || self.series() >= SERIES {
            self.since = began;
            self.used = Duration::ZERO;
        }
        self.used += ended.saturating_sub(began);
        self.ended = ended;
    }

    /// Returns until when the lock is to be left. `None`: it may be used.
    pub(crate) fn until(&self, now: Duration) -> Option<Duration> {
        let end = self.ended.saturating_add(PAUSE);
        let is_due = self.series() >= SERIES && self.used * SHARE >= self.series();
        (is_due && now < end).then_some(end)
    }

    fn series(&self) -> Duration {
        self.ended.saturating_sub(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::{LockPause, PAUSE, SERIES};
    use std::time::Duration;

    const MILLI: Duration = Duration::from_millis(1);

    /// Uses the lock for `used`, with `free` after each use, as often as given. Returns the longest time without a pause, and how many
    /// pauses there were.
    fn longest_series(used: Duration, free: Duration, times: u32) -> (Duration, u32) {
        let (mut pause, mut pauses, mut longest) = (LockPause::default(), 0, Duration::ZERO);
        let (mut now, mut since) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..times {
            if let Some(until) = pause.until(now) {
                assert_eq!(until, now - free + PAUSE, "longer than a busy handler waits");
                now = until;
                since = until;
                pauses += 1;
                assert_eq!(pause.until(now), None);
            }
            pause.used(now, now + used);
            longest = longest.max(now + used - since);
            now += used + free;
        }
        (longest, pauses)
    }

    #[test]
    fn uses_that_follow_each_other_are_interrupted_every_two_seconds() {
        assert_eq!(longest_series(50 * MILLI, Duration::ZERO, 1_000).0, SERIES);
        // The last use began before.
        assert_eq!(longest_series(120 * MILLI, Duration::ZERO, 1_000).0, 2_040 * MILLI);
        for (used, free) in [(120, 10), (9, 1), (1, 1), (20, 30), (60, 40), (30, 89)] {
            let (longest, pauses) = longest_series(used * MILLI, free * MILLI, 10_000);
            assert!(longest <= SERIES + (used + free) * MILLI, "{used} {free}: {longest:?}");
            assert!(pauses >= 10_000 / (2_000 / (used + free) + 2), "{used} {free}: {pauses}");
        }
    }

    #[test]
    fn a_lock_that_is_mostly_free_is_never_left() {
        for (used, free) in
            [(MILLI, 4 * MILLI), (20 * MILLI, 100 * MILLI), (1_000 * MILLI, PAUSE), (MILLI, 1_000 * MILLI)]
        {
            assert_eq!(longest_series(used, free, 10_000).1, 0, "{used:?} {free:?}");
        }
    }

    /// What was free long ago does not count.
    #[test]
    fn a_burst_after_a_quiet_time_is_interrupted() {
        let mut pause = LockPause::default();
        let mut now = Duration::ZERO;
        for _ in 0..10_000 {
            pause.used(now, now + MILLI);
            now += 50 * MILLI;
        }
        let begin = now;
        while pause.until(now).is_none() {
            pause.used(now, now + 50 * MILLI);
            now += 50 * MILLI;
        }
        assert!(now - begin <= 2 * SERIES, "{:?}", now - begin);
    }

    /// All that ask meanwhile wait for the same moment.
    #[test]
    fn a_pause_ends_at_one_time_for_all() {
        let mut pause = LockPause::default();
        pause.used(Duration::ZERO, SERIES);
        let end = SERIES + PAUSE;
        assert_eq!([0, 50, 109].map(|later| pause.until(SERIES + later * MILLI)), [Some(end); 3]);
        assert_eq!(pause.until(end), None);
        pause.used(end, end + MILLI);
        assert_eq!(pause.until(end + MILLI), None);
    }
}
