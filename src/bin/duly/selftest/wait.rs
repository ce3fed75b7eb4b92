//! Waiting with time limits. A signal interrupts every wait.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use duly::{Clock, Progress, SystemClock, Timestamp};

use crate::cli::signals::Request;

/// Poll interval of [`Timer::wait_until`].
const POLL: Duration = Duration::from_millis(5);

/// Why a check has no result.
#[derive(Clone, Debug)]
pub(crate) enum CheckError {
    /// Interrupted by the signal of this name.
    Interrupted(&'static str),
    /// An action failed or took too long.
    Failed(String),
}

/// Converts any error, with a description of the action.
pub(crate) fn failed<E: fmt::Display>(doing: &str) -> impl Fn(E) -> CheckError {
    move |error| CheckError::Failed(format!("{doing}: {error}"))
}

/// The clock of the selftest, which reports progress and receives signals.
pub(crate) struct Timer {
    clock: SystemClock,
    requests: Receiver<Request>,
    progress: Progress,
    expected: Duration,
}

impl Timer {
    /// Starts the timer. `expected`: the expected length of the selftest.
    pub(crate) fn start(requests: Receiver<Request>, progress: Progress, expected: Duration) -> Self {
        Timer { clock: SystemClock::new(), requests, progress, expected }
    }

    /// Returns the time since the start, with nanosecond precision.
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::MAX - self.clock.until(Duration::MAX)
    }

    /// Returns the wall clock time.
    pub(crate) fn wall(&self) -> Timestamp {
        self.clock.now().wall
    }

    /// Sleeps.
    pub(crate) fn sleep(&self, length: Duration) -> Result<(), CheckError> {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        self.progress.set(millis(self.elapsed()).min(millis(self.expected)), millis(self.expected));
        match self.requests.recv_timeout(length) {
            Ok(Request::Stop(signal)) => Err(CheckError::Interrupted(signal)),
            Ok(Request::Reload) => Err(CheckError::Interrupted("SIGHUP")),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            // The thread that receives signals has ended.
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(length);
                Ok(())
            }
        }
    }

    /// Waits until `condition` holds, and returns the time that it took.
    pub(crate) fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut() -> Result<bool, CheckError>,
    ) -> Result<Duration, CheckError> {
        let begin = self.elapsed();
        loop {
            let done = condition()?;
            let length = self.elapsed() - begin;
            if done {
                return Ok(length);
            }
            if length > limit {
                return Err(CheckError::Failed(format!("timeout: waited {} s until {what}", limit.as_secs())));
            }
            self.sleep(POLL)?;
        }
    }
}
