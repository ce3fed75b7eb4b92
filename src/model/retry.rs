//! When a failed attempt is tried again, or that it is not. Pure.

use std::time::Duration;

/// How often and how patiently a run is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts that count until the run is dead; 1: at most once.
    pub max_attempts: u32,
    /// The wait after the first failure; it doubles with each further one.
    pub backoff: Duration,
    /// The longest wait.
    pub max_backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { max_attempts: 5, backoff: Duration::from_secs(10), max_backoff: Duration::from_secs(3600) }
    }
}

/// What the handler said about another try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// After the policy's backoff.
    #[default]
    Backoff,
    /// After this wait.
    After(Duration),
    /// Not at all: it would fail again.
    GiveUp,
    /// At once, and the attempt does not count: it was cut short, and can say nothing about another. A run that may start
    /// only once is dead all the same.
    Interrupted,
}

/// What becomes of a run whose attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    TryAgainIn(Duration),
    /// At once; the attempt is forgiven.
    TryAgain,
    Dead,
}

impl RetryPolicy {
    /// Judges a run of which `counted` attempts have failed, the last of them now.
    ///
    /// The wait is drawn from the upper half of the backoff, so that runs which failed together do not return together;
    /// it is never zero.
    pub(crate) fn judge(&self, counted: u32, asked: Retry, random: &mut fastrand::Rng) -> Verdict {
        if asked == Retry::Interrupted && self.max_attempts > 1 {
            return Verdict::TryAgain;
        }
        if asked == Retry::GiveUp || counted >= self.max_attempts {
            return Verdict::Dead;
        }
        let wait = match asked {
            Retry::After(wait) => wait,
            _ => {
                let doublings = counted.saturating_sub(1).min(63);
                let full =
                    self.backoff.as_millis().saturating_mul(1u128 << doublings).min(self.max_backoff.as_millis());
                let full = u64::try_from(full).unwrap_or(u64::MAX);
                Duration::from_millis(random.u64(full / 2..=full))
            }
        };
        Verdict::TryAgainIn(wait.max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Retry, RetryPolicy, Verdict};
    use std::time::Duration;

    fn wait(policy: RetryPolicy, counted: u32, asked: Retry, seed: u64) -> Option<u64> {
        match policy.judge(counted, asked, &mut fastrand::Rng::with_seed(seed)) {
            Verdict::TryAgainIn(wait) => Some(u64::try_from(wait.as_millis()).unwrap()),
            Verdict::TryAgain => Some(0),
            Verdict::Dead => None,
        }
    }

    #[test]
    fn the_wait_doubles_up_to_the_cap_and_stays_in_its_upper_half() {
        let policy = RetryPolicy { max_attempts: 100, ..RetryPolicy::default() };
        for seed in 0..200 {
            for (counted, full) in
                [(1, 10_000), (2, 20_000), (3, 40_000), (9, 2_560_000), (10, 3_600_000), (99, 3_600_000)]
            {
                let wait = wait(policy, counted, Retry::Backoff, seed).unwrap();
                assert!((full / 2..=full).contains(&wait), "attempt {counted}: {wait}");
            }
        }
    }

    #[test]
    fn no_number_overflows_and_no_wait_is_zero() {
        let huge = RetryPolicy { max_attempts: u32::MAX, backoff: Duration::MAX, max_backoff: Duration::MAX };
        assert!(wait(huge, u32::MAX - 1, Retry::Backoff, 7).unwrap() > 0);
        let tiny =
            RetryPolicy { max_attempts: 3, backoff: Duration::from_millis(1), max_backoff: Duration::from_millis(1) };
        assert!((0..50).all(|seed| wait(tiny, 1, Retry::Backoff, seed) == Some(1)));
        assert_eq!(wait(tiny, 1, Retry::After(Duration::ZERO), 1), Some(1));
    }

    #[test]
    fn the_last_attempt_and_a_handler_that_gives_up_end_it() {
        let policy = RetryPolicy::default();
        assert!(wait(policy, 4, Retry::Backoff, 1).is_some());
        assert_eq!(wait(policy, 5, Retry::Backoff, 1), None);
        assert_eq!(wait(policy, 5, Retry::After(Duration::from_secs(1)), 1), None);
        assert_eq!(wait(policy, 1, Retry::GiveUp, 1), None);
        assert_eq!(wait(policy, 1, Retry::After(Duration::from_secs(90)), 1), Some(90_000));
        assert_eq!(wait(policy, 5, Retry::Interrupted, 1), Some(0), "it does not count");
        let once = RetryPolicy { max_attempts: 1, ..policy };
        assert_eq!(wait(once, 1, Retry::Interrupted, 1), None);
    }
}
