//! The span of an attempt, with the feature `tracing`: events of its handler appear within it. Without the feature it is empty.

#[cfg(feature = "tracing")]
use tracing::field::Empty;

#[cfg(feature = "tracing")]
use crate::model::retry::Retry;
#[cfg(feature = "tracing")]
use crate::model::run::FailureKind;
use crate::model::run::{Claim, Outcome};

/// The span `duly.attempt`. It has no parent: what was entered where the attempt begins is of another attempt, or of the runtime.
#[derive(Clone, Debug)]
pub(crate) struct AttemptSpan(#[cfg(feature = "tracing")] tracing::Span);

#[cfg(feature = "tracing")]
impl AttemptSpan {
    pub(crate) fn new(claim: &Claim) -> Self {
        AttemptSpan(tracing::info_span!(
            target: "duly",
            parent: None,
            "duly.attempt",
            task = claim.task.as_str(),
            run = claim.run_id,
            attempt = claim.attempt,
            handler = claim.handler.as_str(),
            idempotency_key = %claim.idempotency_key(),
            outcome = Empty,
            error = Empty,
        ))
    }

    /// Calls `f` within the span.
    pub(crate) fn within<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.in_scope(f)
    }

    /// Records how the attempt ended, in the words of `task_attempts`.
    pub(crate) fn ended(&self, claim: &Claim, outcome: &Outcome) {
        match outcome {
            Outcome::Succeeded { .. } => self.0.record("outcome", "succeeded"),
            Outcome::Failed { how, error, retry } => {
                let outcome = match (how, retry) {
                    (FailureKind::Failed, Retry::Cancel) => "cancelled",
                    (FailureKind::Failed, Retry::Skip) => "skipped",
                    (FailureKind::Failed, Retry::Snooze(_)) if claim.retry.max_attempts > 1 => "snoozed",
                    _ => how.as_str(),
                };
                self.0.record("outcome", outcome).record("error", error.as_str())
            }
            Outcome::Released => self.0.record("outcome", "released"),
        };
    }
}

#[cfg(not(feature = "tracing"))]
impl AttemptSpan {
    #[inline(always)]
    pub(crate) fn new(_: &Claim) -> Self {
        AttemptSpan()
    }

    #[inline(always)]
    pub(crate) fn within<T>(&self, f: impl FnOnce() -> T) -> T {
        f()
    }

    #[inline(always)]
    pub(crate) fn ended(&self, _: &Claim, _: &Outcome) {}
}
