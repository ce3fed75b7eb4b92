//! Custom backoff: a function of the application that says how long to wait after a failed attempt.

use std::time::Duration;

use crate::model::finished::Finished;
use crate::model::retry::Retry;
use crate::model::run::{Claim, FailureKind, Outcome};

/// A failed attempt that is to be retried, as a custom backoff receives it: see [`Builder::backoff`](crate::Builder::backoff).
///
/// ```
/// use std::time::Duration;
/// use duly::{FailedAttempt, FailureKind};
/// /// A minute after a timeout; the backoff of the task after anything else.
/// fn backoff(failed: &FailedAttempt<'_>) -> Option<Duration> {
///     (failed.how == FailureKind::TimedOut).then_some(Duration::from_secs(60))
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FailedAttempt<'a> {
    /// The attempt.
    pub claim: &'a Claim,
    /// The number of attempts that count so far, this one included; from 1. It is less than the maximum of the task.
    pub failures: u32,
    /// How it failed.
    pub how: FailureKind,
    /// The message of the error or of the panic.
    pub error: &'a str,
}

impl<'a> FailedAttempt<'a> {
    /// Returns the failed attempt, if it is retried, its handler has not said when, and it is no interruption.
    pub(crate) fn of(finished: &'a Finished) -> Option<Self> {
        let claim = &*finished.claim;
        let failures = claim.counted();
        match &finished.outcome {
            Outcome::Failed { how, error, retry: Retry::Backoff }
                if failures < claim.retry.max_attempts && !finished.is_interrupted =>
            {
                Some(FailedAttempt { claim, failures, how: *how, error })
            }
            _ => None,
        }
    }
}

/// A function that returns how long to wait. `None`: the backoff of the task.
pub(crate) type Backoff = dyn Fn(&FailedAttempt<'_>) -> Option<Duration> + Send + Sync;
