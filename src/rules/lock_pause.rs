//! Decides when a scheduler leaves the lock of its file to writers that have only SQLite's busy handler. Pure.

use std::time::Duration;

/// How long the lock is left. Longer than the busy handler waits between two looks: 100 ms.
pub(crate) const PAUSE: Duration = Duration::from_millis(110);
/// How long turns may follow each other without such a pause.
const SERIES: Duration = Duration::from_secs(2);

/// The use of the lock since the last pause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockPause {
    /// How long it was used, less the time in between. A file whose lock is free half of the time needs no pause: a look finds it free.
    used: Duration,
    /// When the last use ended, by the monotonic clock.
    ended: Duration,
}

impl LockPause {
    /// The lock was used, or waited for, from `began` to `ended`.
    pub(crate) fn used(&mut self, began: Duration, ended: Duration) {
        let free = began.saturating_sub(self.ended);
        let before = if free >= PAUSE { Duration::ZERO } else { self.used.saturating_sub(free) };
        self.used = before + ended.saturating_sub(began);
        self.ended = ended;
    }

    /// Returns until when the lock is to be left now, and counts anew. `None`: it may be used.
    pub(crate) fn take(&mut self, now: Duration) -> Option<Duration> {
        if self.used < SERIES {
            return None;
        }
        self.used = Duration::ZERO;
        let end = self.ended.saturating_add(PAUSE);
        (now < end).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::{LockPause, PAUSE, SERIES};
    use std::time::Duration;

    const MILLI: Duration = Duration::from_millis(1);

    /// Uses the lock for `used`, with `free` after each use, as often as given. Returns the longest time without a pause.
    fn longest_series(used: Duration, free: Duration, times: u32) -> Duration {
        let (mut pause, mut now, mut since, mut longest) =
            (LockPause::default(), Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for _ in 0..times {
            if let Some(until) = pause.take(now) {
                assert!(until >= now.saturating_sub(free) + PAUSE, "longer than a busy handler waits");
                (now, since) = (until, until);
            }
            pause.used(now, now + used);
            longest = longest.max(now + used - since);
            now += used + free;
        }
        longest
    }

    #[test]
    fn turns_that_follow_each_other_are_interrupted_every_two_seconds() {
        assert_eq!(longest_series(50 * MILLI, Duration::ZERO, 1_000), SERIES);
        // The last turn began before.
        assert_eq!(longest_series(120 * MILLI, Duration::ZERO, 1_000), 2_040 * MILLI);
        assert!(longest_series(120 * MILLI, 10 * MILLI, 1_000) < 2_500 * MILLI);
        assert!(longest_series(9 * MILLI, MILLI, 10_000) < 2_600 * MILLI);
    }

    #[test]
    fn a_lock_that_is_often_free_is_never_left() {
        for (used, free) in
            [(MILLI, MILLI), (20 * MILLI, 30 * MILLI), (Duration::from_secs(1), PAUSE), (MILLI, 1_000 * MILLI)]
        {
            let mut pause = LockPause::default();
            for turn in 0..100_000 {
                let began = (used + free) * turn;
                assert_eq!(pause.take(began), None, "{used:?} {free:?}");
                pause.used(began, began + used);
            }
        }
    }
}
