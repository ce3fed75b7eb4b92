//! Detects steps of the wall clock by comparing it with the monotonic clock. Pure.
//!
//! A step forward counts as downtime: the occurrences in between are late. After a step back of up to three hours the
//! scheduler waits until the clock has caught up, so that nothing falls due twice. After a larger step back it plans every
//! task again: the clock was wrong before, and waiting for it could take months.

use std::time::Duration;

use crate::clock::{Now, Timestamp};

/// Smallest difference that counts as a step. A smaller one is drift, or its correction by network time.
pub(crate) const NOTICED: Duration = Duration::from_secs(5);
/// Largest step back after which the scheduler waits for the clock to catch up.
pub(crate) const WAITED_OUT: Duration = Duration::from_secs(3 * 3600);

/// Smallest step after which retention removes nothing for the same length of time: the new time may be wrong. A smaller
/// step, such as a night's suspend, makes nothing look older than this wait would.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// A start that is this much later than the newest stored time counts as such a step.
const LONG_GAP: Duration = Duration::from_secs(30 * 24 * 3600);

/// The last reading of both clocks, and the newest time that was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockMonitor {
    last: Now,
    /// The newest wall time that was accepted.
    newest: Timestamp,
    /// Monotonic time of the last step of a day or more.
    large_step_at: Option<Duration>,
}

/// A step of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The time that the clock would show without the step.
    pub(crate) expected: Timestamp,
    /// The time that the clock shows.
    pub(crate) found: Timestamp,
}

impl ClockMonitor {
    /// `newest`: the newest wall time in the database.
    pub(crate) fn new(now: Now, newest: Option<Timestamp>) -> Self {
        let large_step_at = newest.filter(|newest| now.wall.since(*newest) >= LONG_GAP).map(|_| now.monotonic);
        ClockMonitor { last: now, newest: newest.unwrap_or(Timestamp::MIN), large_step_at }
    }

    /// Returns whether the machine's clock has been set. A clock that was never set starts in 1970, which no table accepts.
    pub(crate) fn is_set(now: Now) -> bool {
        now.wall >= Timestamp::MIN
    }

    /// Compares the clocks. Returns a step that must be reported.
    pub(crate) fn look(&mut self, now: Now) -> Option<Step> {
        let passed = now.monotonic.saturating_sub(self.last.monotonic);
        let expected = self.last.wall.plus(passed);
        self.last = now;
        let by = now.wall.since(expected).max(expected.since(now.wall));
        if by >= DAY {
            self.large_step_at = Some(now.monotonic);
        }
        (by >= NOTICED).then_some(Step { expected, found: now.wall })
    }

    /// Returns whether retention may remove what is old by this clock.
    pub(crate) fn is_calm(&self, now: Now) -> bool {
        self.large_step_at.is_none_or(|at| now.monotonic.saturating_sub(at) >= DAY)
    }

    /// Returns whether the clock is so far behind the accepted time that it must have been wrong before.
    pub(crate) fn was_wrong(&self, now: Now) -> bool {
        self.newest.since(now.wall) > WAITED_OUT
    }

    pub(crate) fn newest(&self) -> Timestamp {
        self.newest
    }

    /// Returns the newest stored time if the clock is far enough behind it for a warning.
    pub(crate) fn behind(newest: Option<Timestamp>, now: Now) -> Option<Timestamp> {
        newest.filter(|newest| ClockMonitor::is_set(now) && newest.since(now.wall) > NOTICED)
    }

    /// Estimates the time while the clock is not set: the newest accepted time, or what the clock would show by now if that
    /// is later.
    pub(crate) fn estimate(&self, now: Now) -> Timestamp {
        let passed = now.monotonic.saturating_sub(self.last.monotonic);
        self.newest.max(self.last.wall.plus(passed)).min(Timestamp::MAX)
    }

    /// Accepts this time: it is stored, or every task that a wrong clock planned has been planned again.
    pub(crate) fn believe(&mut self, now: Now) {
        self.newest = if self.was_wrong(now) { now.wall } else { self.newest.max(now.wall) };
    }
}

#[cfg(test)]
mod tests {
    use super::{ClockMonitor, Step};
    use crate::clock::{Now, Timestamp};
    use std::time::Duration;

    fn now(wall: &str, seconds: u64) -> Now {
        Now { wall: wall.parse().unwrap(), monotonic: Duration::from_secs(seconds) }
    }

    #[test]
    fn drift_is_no_step_and_a_step_is_reported_once() {
        let mut monitor = ClockMonitor::new(now("2027-03-14T12:00:00Z", 100), None);
        assert_eq!(monitor.look(now("2027-03-14T12:00:14.900Z", 110)), None);
        let (expected, found): (Timestamp, Timestamp) =
            ("2027-03-14T12:00:24.900Z".parse().unwrap(), "2027-03-14T14:00:00Z".parse().unwrap());
        assert_eq!(monitor.look(now("2027-03-14T14:00:00Z", 120)), Some(Step { expected, found }));
        assert_eq!(monitor.look(now("2027-03-14T14:00:10Z", 130)), None);
        assert!(monitor.look(now("2027-03-14T14:00:00Z", 140)).is_some(), "back");
    }

    #[test]
    fn three_hours_back_are_waited_out_in_one_step_or_in_many() {
        let mut monitor = ClockMonitor::new(now("2027-03-14T12:00:00Z", 0), None);
        monitor.believe(now("2027-03-14T12:00:00Z", 0));
        for (wall, wrong) in [("10:00:00", false), ("09:00:00", false), ("08:59:59", true)] {
            let now = now(&format!("2027-03-14T{wall}Z"), 0);
            assert_eq!(monitor.was_wrong(now), wrong, "{wall}");
            if !wrong {
                monitor.believe(now);
            }
        }
        let right = now("2027-03-14T08:59:59Z", 0);
        monitor.believe(right);
        assert!(!monitor.was_wrong(right) && !monitor.was_wrong(now("2027-03-14T06:00:00Z", 0)));
        assert!(monitor.was_wrong(now("2027-03-14T05:59:58Z", 0)));
    }

    #[test]
    fn a_clock_that_was_never_set_is_recognized() {
        assert!(!ClockMonitor::is_set(now("1970-01-01T00:01:00Z", 60)));
        assert!(ClockMonitor::is_set(now("2106-02-07T06:28:16Z", 60)));
        // A stored time that is far ahead of the clock means that the clock was wrong before.
        let started = now("2027-01-01T00:00:00Z", 0);
        assert!(ClockMonitor::new(started, Some("2027-06-01T00:00:00Z".parse().unwrap())).was_wrong(started));
    }
}
