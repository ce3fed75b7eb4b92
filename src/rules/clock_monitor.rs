//! ClockMonitor of the wall clock, seen against the monotonic one. Pure.
//!
//! Forward is like downtime: what fell meanwhile has been missed. Back by a few hours is waited out, so that nothing falls
//! due twice. Back by more means that the clock was wrong before: whoever waited for it would wait for months.

use std::time::Duration;

use crate::clock::{Now, Timestamp};

/// Smaller differences are drift, and what network time does about it.
pub(crate) const NOTICED: Duration = Duration::from_secs(5);
/// Longest step back that is waited out.
pub(crate) const WAITED_OUT: Duration = Duration::from_secs(3 * 3600);

/// A step of which so much could be wrong that what it makes look old is not removed for as long again. A smaller one, as
/// a night's suspend is, makes nothing look older than this wait would.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// A start so long after anything was written down is taken for such a step.
const LONG_GONE: Duration = Duration::from_secs(30 * 24 * 3600);

/// What has been seen of the wall clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockMonitor {
    last: Now,
    /// The newest wall time ever believed.
    newest: Timestamp,
    /// When it last stepped by a day or more, by the monotonic clock.
    leapt: Option<Duration>,
}

/// A step of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What it would have shown.
    pub(crate) expected: Timestamp,
    /// What it shows.
    pub(crate) found: Timestamp,
}

impl ClockMonitor {
    /// `newest`: the newest wall time that was written down before.
    pub(crate) fn new(now: Now, newest: Option<Timestamp>) -> Self {
        let leapt = newest.filter(|newest| now.wall.since(*newest) >= LONG_GONE).map(|_| now.monotonic);
        ClockMonitor { last: now, newest: newest.unwrap_or(Timestamp::MIN), leapt }
    }

    /// Whether the machine's clock has been set at all. One that has not begins with 1970, and no table takes that.
    pub(crate) fn is_set(now: Now) -> bool {
        now.wall >= Timestamp::MIN
    }

    /// Looks at the clock. Answers with a step that is worth telling.
    pub(crate) fn look(&mut self, now: Now) -> Option<Step> {
        let passed = now.monotonic.saturating_sub(self.last.monotonic);
        let expected = self.last.wall.plus(passed);
        self.last = now;
        let by = now.wall.since(expected).max(expected.since(now.wall));
        if by >= DAY {
            self.leapt = Some(now.monotonic);
        }
        (by >= NOTICED).then_some(Step { expected, found: now.wall })
    }

    /// Whether what the clock makes look old may be removed.
    pub(crate) fn is_calm(&self, now: Now) -> bool {
        self.leapt.is_none_or(|at| now.monotonic.saturating_sub(at) >= DAY)
    }

    /// Whether the clock is so far behind what was believed before that it must have been wrong then.
    pub(crate) fn was_wrong(&self, now: Now) -> bool {
        self.newest.since(now.wall) > WAITED_OUT
    }

    pub(crate) fn newest(&self) -> Timestamp {
        self.newest
    }

    /// The newest time that was written down, if the clock is behind it by as much as is worth a warning.
    pub(crate) fn behind(newest: Option<Timestamp>, now: Now) -> Option<Timestamp> {
        newest.filter(|newest| ClockMonitor::is_set(now) && newest.since(now.wall) > NOTICED)
    }

    /// The time as far as it is known while the clock is not set: the newest that was believed, or what the clock would show
    /// by now.
    pub(crate) fn estimate(&self, now: Now) -> Timestamp {
        let passed = now.monotonic.saturating_sub(self.last.monotonic);
        self.newest.max(self.last.wall.plus(passed)).min(Timestamp::MAX)
    }

    /// From here on this is believed: it is written down, or all that was planned by a wrong clock has been planned anew.
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
    fn drift_is_no_step_and_a_step_is_told_once() {
        let mut steps = ClockMonitor::new(now("2027-03-14T12:00:00Z", 100), None);
        assert_eq!(steps.look(now("2027-03-14T12:00:14.900Z", 110)), None);
        let (expected, found): (Timestamp, Timestamp) =
            ("2027-03-14T12:00:24.900Z".parse().unwrap(), "2027-03-14T14:00:00Z".parse().unwrap());
        assert_eq!(steps.look(now("2027-03-14T14:00:00Z", 120)), Some(Step { expected, found }));
        assert_eq!(steps.look(now("2027-03-14T14:00:10Z", 130)), None);
        assert!(steps.look(now("2027-03-14T14:00:00Z", 140)).is_some(), "back");
    }

    #[test]
    fn three_hours_back_are_waited_out_in_one_step_or_in_many() {
        let mut steps = ClockMonitor::new(now("2027-03-14T12:00:00Z", 0), None);
        steps.believe(now("2027-03-14T12:00:00Z", 0));
        for (wall, wrong) in [("10:00:00", false), ("09:00:00", false), ("08:59:59", true)] {
            let now = now(&format!("2027-03-14T{wall}Z"), 0);
            assert_eq!(steps.was_wrong(now), wrong, "{wall}");
            if !wrong {
                steps.believe(now);
            }
        }
        let right = now("2027-03-14T08:59:59Z", 0);
        steps.believe(right);
        assert!(!steps.was_wrong(right) && !steps.was_wrong(now("2027-03-14T06:00:00Z", 0)));
        assert!(steps.was_wrong(now("2027-03-14T05:59:58Z", 0)));
    }

    #[test]
    fn a_clock_that_was_never_set_is_told_from_one_that_was() {
        assert!(!ClockMonitor::is_set(now("1970-01-01T00:01:00Z", 60)));
        assert!(ClockMonitor::is_set(now("2106-02-07T06:28:16Z", 60)));
        // What was written down before stands against a start with a wrong clock.
        let started = now("2027-01-01T00:00:00Z", 0);
        assert!(ClockMonitor::new(started, Some("2027-06-01T00:00:00Z".parse().unwrap())).was_wrong(started));
    }
}
