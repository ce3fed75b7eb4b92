//! Async handlers of a [`Stepper`](crate::testing::Stepper): futures that run to their end on the thread of the test.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::error::BoxError;
use crate::worker::backoff::FailedAttempt;
use crate::worker::handler::{Context, FutureHandler, Handler};

/// The runtime of a stepper; built when it is first used, unless the test sets one.
pub(super) type SharedRuntime = Arc<OnceLock<Runtime>>;

/// Runs a future to its end on this thread.
#[expect(clippy::expect_used, reason = "an attempt that panics fails, and shows this")]
pub(super) fn block_on<F: Future>(runtime: &SharedRuntime, future: F) -> F::Output {
    let built = || Builder::new_current_thread().enable_all().build();
    runtime.get_or_init(|| built().expect("a runtime for async handlers")).block_on(future)
}

/// An async job as a handler.
pub(super) struct OnThread {
    pub(super) runtime: SharedRuntime,
    pub(super) handler: FutureHandler,
}

impl Handler for OnThread {
    fn run(&self, context: &Context) -> Result<Option<String>, BoxError> {
        block_on(&self.runtime, (self.handler.run)(context.clone()))
    }

    fn backoff(&self, failed: &FailedAttempt<'_>) -> Option<Duration> {
        self.handler.backoff.as_ref().and_then(|backoff| backoff(failed))
    }
}
