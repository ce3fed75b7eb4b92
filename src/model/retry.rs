//! Decides whether and when a failed attempt is retried. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::json;

/// The retry policy of a task: number of attempts and backoff.
///
/// Its JSON has the names of the columns, and absent keys have their defaults.
///
/// ```
/// use duly::RetryPolicy;
/// let policy: RetryPolicy = serde_json::from_str(r#"{"backoff_ms": 500}"#)?;
/// assert_eq!(policy, RetryPolicy { backoff: std::time::Duration::from_millis(500), ..RetryPolicy::default() });
/// assert!(serde_json::from_str::<RetryPolicy>(r#"{"backoff_ms": -1}"#).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// The number of counted attempts after which the run is dead; 1: at most once.
    pub max_attempts: u32,
    /// The wait after the first failure. It doubles with each further failure.
    #[serde(rename = "backoff_ms", with = "json::duration")]
    pub backoff: Duration,
    /// The longest wait.
    #[serde(rename = "backoff_cap_ms", with = "json::duration")]
    pub max_backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { max_attempts: 5, backoff: Duration::from_secs(10), max_backoff: Duration::from_secs(3600) }
    }
}

/// The handler's advice about a retry.
///
/// ```
/// use duly::{Failure, Retry};
/// use std::time::Duration;
/// let busy = Failure::retry_after(Duration::from_secs(60), "429 Too Many Requests");
/// assert_eq!(busy.retry(), Retry::After(Duration::from_secs(60)));
/// assert_eq!(Failure::give_up("no address").retry(), Retry::GiveUp);
/// assert_eq!(Retry::default(), Retry::Backoff, "any other error");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// Retry after the backoff of the policy.
    #[default]
    Backoff,
    /// Retry after this wait.
    After(Duration),
    /// Do not retry: it would fail again.
    GiveUp,
    /// The attempt was cut short: retry after the backoff of the policy. The first three interruptions in a row do not
    /// count. A run with `max_attempts` 1 is dead all the same.
    Interrupted,
    /// Retry after this wait, a second or more, and do not count the attempt: its work is not possible yet. A run with `max_attempts` 1
    /// is dead all the same.
    Snooze(Duration),
    /// Do not retry: the work is not needed any more. The run is cancelled, not dead.
    Cancel,
    /// Do not retry: there was nothing to do this time. The run is skipped, and the attempt does not count.
    Skip,
    /// Nothing was started, for want of files, descriptors, memory or processes: the run returns to the queue, the attempt does not
    /// count, also of a run with `max_attempts` 1, and the scheduler waits before it starts anything more.
    NotStarted,
}

/// How many interruptions of a run in a row do not count as attempts.
const FORGIVEN_INTERRUPTIONS: u32 = 3;

/// The shortest wait of a snoozed run.
const SHORTEST_SNOOZE: Duration = Duration::from_secs(1);

/// The attempts of a run, the one that has failed now included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many of them count, if this one does.
    pub(crate) counted: u32,
    /// How many interruptions in a row; 0 if this attempt was not interrupted.
    pub(crate) interrupted: u32,
    /// Whether the host of this attempt died, nothing shows that it began, and none before was forgiven: so the run begins at most one
    /// attempt more than it may.
    pub(crate) unannounced: bool,
}

/// What happens to a run whose attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    TryAgainIn(Duration),
    /// As `TryAgainIn`; the attempt is forgiven.
    Forgive(Duration),
    Cancel,
    Skip,
    Dead,
}

impl RetryPolicy {
    /// Decides about a run whose attempt has failed. The wait is never zero.
    pub(crate) fn judge(&self, tally: Tally, advice: Retry, random: &mut fastrand::Rng) -> Verdict {
        let Tally { counted, interrupted, unannounced } = tally;
        let may_start_again = self.max_attempts > 1;
        let mut wait_after = |failures| match advice {
            Retry::After(wait) if interrupted == 0 => wait.max(Duration::from_millis(1)),
            _ => self.backoff_after(failures, random),
        };
        match advice {
            Retry::Cancel => Verdict::Cancel,
            Retry::Skip => Verdict::Skip,
            Retry::GiveUp => Verdict::Dead,
            Retry::Snooze(wait) if may_start_again => Verdict::Forgive(wait.max(SHORTEST_SNOOZE)),
            _ if may_start_again && (1..=FORGIVEN_INTERRUPTIONS).contains(&interrupted) => {
                Verdict::Forgive(wait_after(interrupted))
            }
            _ if may_start_again && unannounced => Verdict::Forgive(wait_after(counted)),
            _ if counted >= self.max_attempts => Verdict::Dead,
            _ => Verdict::TryAgainIn(wait_after(counted)),
        }
    }

    /// Returns the wait after a number of failures: random in the upper half of the backoff, so that runs which failed together are not
    /// retried together.
    fn backoff_after(&self, failures: u32, random: &mut fastrand::Rng) -> Duration {
        let doublings = failures.saturating_sub(1).min(63);
        let full = self.backoff.as_millis().saturating_mul(1u128 << doublings).min(self.max_backoff.as_millis());
        let full = u64::try_from(full).unwrap_or(u64::MAX);
        Duration::from_millis(random.u64(full / 2..=full).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::{FORGIVEN_INTERRUPTIONS, Retry, RetryPolicy, Tally, Verdict};
    use std::time::Duration;

    fn wait(policy: RetryPolicy, counted: u32, advice: Retry, seed: u64) -> Option<u64> {
        match policy.judge(
            Tally { counted, interrupted: 0, unannounced: false },
            advice,
            &mut fastrand::Rng::with_seed(seed),
        ) {
            Verdict::TryAgainIn(wait) | Verdict::Forgive(wait) => Some(u64::try_from(wait.as_millis()).unwrap()),
            Verdict::Cancel | Verdict::Skip | Verdict::Dead => None,
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
    fn a_run_is_dead_after_its_last_attempt_or_when_its_handler_gives_up() {
        let policy = RetryPolicy::default();
        assert!(wait(policy, 4, Retry::Backoff, 1).is_some());
        assert_eq!(wait(policy, 5, Retry::Backoff, 1), None);
        assert_eq!(wait(policy, 5, Retry::After(Duration::from_secs(1)), 1), None);
        assert_eq!(wait(policy, 1, Retry::GiveUp, 1), None);
        assert_eq!(wait(policy, 1, Retry::After(Duration::from_secs(90)), 1), Some(90_000));
    }

    #[test]
    fn three_interruptions_in_a_row_are_forgiven_with_backoff_and_later_ones_count() {
        let policy = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
        let hour = Duration::from_secs(3600);
        for advice in [Retry::Interrupted, Retry::Backoff, Retry::After(hour)] {
            let judge = |policy: RetryPolicy, counted, interrupted| {
                policy.judge(
                    Tally { counted, interrupted, unannounced: false },
                    advice,
                    &mut fastrand::Rng::with_seed(7),
                )
            };
            for (interrupted, full) in (1..=FORGIVEN_INTERRUPTIONS).zip([10, 20, 40]) {
                let Verdict::Forgive(wait) = judge(policy, 2, interrupted) else { panic!("{interrupted}") };
                assert!((full / 2..=full).contains(&wait.as_secs()), "{advice:?}, {interrupted}: {wait:?}");
            }
            assert!(matches!(judge(policy, 1, FORGIVEN_INTERRUPTIONS + 1), Verdict::TryAgainIn(_)));
            assert_eq!(judge(policy, 2, FORGIVEN_INTERRUPTIONS + 2), Verdict::Dead);
            let once = RetryPolicy { max_attempts: 1, ..policy };
            assert_eq!(judge(once, 1, 1), Verdict::Dead, "it may start only once");
        }
    }

    #[test]
    fn an_attempt_that_nothing_shows_to_have_begun_is_forgiven_unless_the_run_may_start_only_once() {
        let judge = |max_attempts, counted| {
            let policy = RetryPolicy { max_attempts, ..RetryPolicy::default() };
            let tally = Tally { counted, interrupted: 0, unannounced: true };
            policy.judge(tally, Retry::Backoff, &mut fastrand::Rng::new())
        };
        assert!(matches!(judge(2, 1), Verdict::Forgive(wait) if (5..=10).contains(&wait.as_secs())));
        assert!(matches!(judge(2, 2), Verdict::Forgive(wait) if (10..=20).contains(&wait.as_secs())));
        assert_eq!(judge(1, 1), Verdict::Dead);
    }

    #[test]
    fn a_skip_is_no_failure_also_of_a_run_that_may_start_only_once() {
        for max_attempts in [1, 5] {
            let policy = RetryPolicy { max_attempts, ..RetryPolicy::default() };
            let tally = Tally { counted: 1, interrupted: 0, unannounced: false };
            let verdict = policy.judge(tally, Retry::Skip, &mut fastrand::Rng::new());
            assert_eq!(verdict, Verdict::Skip);
        }
    }

    #[test]
    fn a_snooze_is_forgiven_unless_the_run_may_start_only_once() {
        let policy = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
        let judge = |policy: RetryPolicy, counted, advice| {
            policy.judge(Tally { counted, interrupted: 0, unannounced: false }, advice, &mut fastrand::Rng::new())
        };
        let hour = Duration::from_secs(3600);
        for counted in [1, 2, 9] {
            assert_eq!(judge(policy, counted, Retry::Snooze(hour)), Verdict::Forgive(hour));
            assert_eq!(judge(policy, counted, Retry::Cancel), Verdict::Cancel);
        }
        assert_eq!(judge(policy, 1, Retry::Snooze(Duration::ZERO)), Verdict::Forgive(Duration::from_secs(1)));
        let once = RetryPolicy { max_attempts: 1, ..policy };
        assert_eq!(judge(once, 1, Retry::Snooze(hour)), Verdict::Dead);
        assert_eq!(judge(once, 1, Retry::Cancel), Verdict::Cancel);
    }
}
