//! The span of an attempt, with the feature `tracing`: events of its handler appear within it. Without the feature it is empty.

#[cfg(feature = "tracing")]
use tracing::field::Empty;

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

    /// Records how the attempt ended.
    pub(crate) fn ended(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Succeeded { .. } => self.0.record("outcome", "succeeded"),
            Outcome::Failed { how, error, .. } => {
                self.0.record("outcome", how.as_str()).record("error", error.as_str())
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
    pub(crate) fn ended(&self, _: &Outcome) {}
}
