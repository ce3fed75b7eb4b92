//! Waiting: for a time, for something to come about, and always for somebody who has it stopped.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use duly::{Clock, Progress, SystemClock, Timestamp};

use crate::cli::signals::Request;

/// How often it is looked whether something has come about.
const LOOK: Duration = Duration::from_millis(5);

/// Why a check came to no answer.
#[derive(Clone, Debug)]
pub(crate) enum Halt {
    /// Somebody had it stopped, by the signal of this name.
    Told(&'static str),
    /// It could not be done, or did not come about.
    Failed(String),
}

/// What can be said of anything that went wrong.
pub(crate) fn failed<E: fmt::Display>(doing: &str) -> impl Fn(E) -> Halt {
    move |error| Halt::Failed(format!("{doing}: {error}"))
}

/// The time that there is, and whoever may cut it short.
pub(crate) struct Patience {
    clock: SystemClock,
    requests: Receiver<Request>,
    advance: Progress,
    whole: Duration,
}

impl Patience {
    /// Begins to count. `whole`: how long all is expected to take.
    pub(crate) fn new(requests: Receiver<Request>, advance: Progress, whole: Duration) -> Self {
        Patience { clock: SystemClock::new(), requests, advance, whole }
    }

    /// How long it has been since the beginning, to the nanosecond.
    pub(crate) fn passed(&self) -> Duration {
        Duration::MAX - self.clock.until(Duration::MAX)
    }

    /// What the clock on the wall shows.
    pub(crate) fn wall(&self) -> Timestamp {
        self.clock.now().wall
    }

    /// Lets some time pass.
    pub(crate) fn rest(&self, length: Duration) -> Result<(), Halt> {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        self.advance.set(millis(self.passed()).min(millis(self.whole)), millis(self.whole));
        match self.requests.recv_timeout(length) {
            Ok(Request::Leave(signal)) => Err(Halt::Told(signal)),
            Ok(Request::Reload) => Err(Halt::Told("SIGHUP")),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            // Nobody listens for signals any more: there is only time to wait for.
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(length);
                Ok(())
            }
        }
    }

    /// Waits until something has come about, and answers how long that took.
    pub(crate) fn until(
        &self,
        what: &str,
        limit: Duration,
        mut come_about: impl FnMut() -> Result<bool, Halt>,
    ) -> Result<Duration, Halt> {
        let begin = self.passed();
        loop {
            let done = come_about()?;
            let length = self.passed() - begin;
            if done {
                return Ok(length);
            }
            if length > limit {
                return Err(Halt::Failed(format!("waited {} s in vain until {what}", limit.as_secs())));
            }
            self.rest(LOOK)?;
        }
    }
}
