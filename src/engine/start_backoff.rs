//! When attempts are started again after one could not be started for want of resources. Pure.

use std::time::Duration;

use crate::store::turn_io::Slots;

/// The first and the longest wait.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long after a try that was not refused everything starts again.
const PROOF: Duration = Duration::from_secs(1);
/// After this time without a failure, the next wait is the first again.
const CALM: Duration = Duration::from_secs(60);

/// The wait of a scheduler that cannot start attempts. By the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct StartBackoff {
    phase: Phase,
    /// The last wait, and when the phase that followed a failure ended.
    wait: Duration,
    over: Duration,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Free,
    /// Nothing starts until then; afterwards one attempt.
    Waits(Duration),
    /// One attempt was claimed after the wait, at this time.
    Tries(Duration),
}

impl StartBackoff {
    /// An attempt could not be started. Returns whether the one before could.
    pub(crate) fn failed(&mut self, now: Duration) -> bool {
        // It was handed over together with one that has failed before.
        if matches!(self.phase, Phase::Waits(until) if now < until) {
            return false;
        }
        let was_free = matches!(self.phase, Phase::Free);
        let is_first = was_free && now.saturating_sub(self.over) >= CALM || self.wait.is_zero();
        self.wait = if is_first { WAIT.0 } else { (self.wait * 2).min(WAIT.1) };
        self.phase = Phase::Waits(now.saturating_add(self.wait));
        was_free
    }

    /// Returns how many of the free slots may be used now.
    pub(crate) fn admit(&self, now: Duration, slots: Slots) -> Slots {
        match self.phase {
            Phase::Free => slots,
            Phase::Waits(until) if now >= until => Slots { room: slots.room.min(1), idle: slots.idle.min(1) },
            Phase::Waits(_) | Phase::Tries(_) => Slots::default(),
        }
    }

    /// A turn claimed attempts.
    pub(crate) fn claimed(&mut self, now: Duration) {
        if matches!(self.phase, Phase::Waits(until) if now >= until) {
            self.phase = Phase::Tries(now);
        }
    }

    /// Ends the wait, if the attempt that was tried was not refused, or nothing was left to try. Returns whether it ended now.
    pub(crate) fn is_over(&mut self, now: Duration) -> bool {
        let is_over = match self.phase {
            Phase::Free => false,
            Phase::Waits(until) => now >= until.saturating_add(self.wait),
            Phase::Tries(since) => now >= since.saturating_add(PROOF),
        };
        if is_over {
            (self.phase, self.over) = (Phase::Free, now);
        }
        is_over
    }

    /// Returns when something may start again.
    pub(crate) fn next(&self) -> Option<Duration> {
        match self.phase {
            Phase::Free => None,
            Phase::Waits(until) => Some(until),
            Phase::Tries(since) => Some(since.saturating_add(PROOF)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::engine::start_backoff::StartBackoff;
    use crate::store::turn_io::Slots;

    const ALL: Slots = Slots { room: 8, idle: 4 };
    const ONE: Slots = Slots { room: 1, idle: 1 };
    const NONE: Slots = Slots { room: 0, idle: 0 };

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn one_attempt_is_tried_after_a_wait_that_doubles_up_to_a_minute() {
        let mut starts = StartBackoff::default();
        assert_eq!((starts.admit(at(0), ALL), starts.next()), (ALL, None));
        let (mut now, mut waits) = (5000, Vec::new());
        for failure in 0..9 {
            assert_eq!(starts.failed(at(now)), failure == 0, "reported once");
            assert!(!starts.failed(at(now)), "it was handed over with the first");
            let until = starts.next().unwrap();
            assert_eq!(starts.admit(until - at(1), ALL), NONE);
            assert_eq!(starts.admit(until, ALL), ONE);
            assert!(!starts.is_over(until));
            waits.push((until - at(now)).as_secs());
            starts.claimed(until);
            assert_eq!(starts.admit(until, ALL), NONE, "one at a time");
            now = u64::try_from(until.as_millis()).unwrap() + 3;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(!starts.is_over(at(now)) && starts.is_over(at(now + 1000)) && !starts.is_over(at(now + 1000)));
        assert_eq!((starts.admit(at(now + 1000), ALL), starts.next()), (ALL, None));
        // A failure that follows soon does not begin with the first wait, a later one does.
        assert!(starts.failed(at(now + 2000)));
        assert_eq!(starts.next(), Some(at(now + 62_000)));
        let idle = now + 62_000 + 60_000;
        assert!(!starts.is_over(at(idle - 1)) && starts.is_over(at(idle)), "nothing was left to try");
        assert!(starts.failed(at(idle + 60_000)));
        assert_eq!(starts.next(), Some(at(idle + 61_000)));
    }
}
