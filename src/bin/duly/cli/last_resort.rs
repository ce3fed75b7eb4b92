//! The deadline of a process that was asked to stop: it ends then, even if a database that does not answer holds its threads. The guard
//! process ends the commands that run then, and the next scheduler recovers their runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use duly::{Clock, SystemClock};

/// How long the end may take beside the time of the drain. The log needs a part of the ten seconds, too.
const GRACE: Duration = Duration::from_secs(8);
/// How long a turn may take in a database that answers: it may wait five seconds for a lock. While turns end, the deadline leaves commands
/// that ignore SIGTERM their time.
const TURN: Duration = Duration::from_secs(6);

/// Writes the last line of the log, and ends the process with an exit code.
pub(crate) type End = Box<dyn Fn(&str, i32) + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    /// The monotonic time of the first request.
    asked: Option<Duration>,
    /// How many turns the scheduler has ended, and when that number was new. `None`: none has started, and nothing can be drained.
    turns: Option<(u64, Duration)>,
}

pub(crate) struct LastResort {
    state: Mutex<State>,
    drain: Duration,
    clock: SystemClock,
    end: End,
}

impl LastResort {
    pub(crate) fn new(drain: Duration, clock: SystemClock, end: End) -> Arc<Self> {
        Arc::new(LastResort { state: Mutex::default(), drain, clock, end })
    }

    /// A signal asks to stop. The deadline counts from the first one.
    pub(crate) fn asked(self: &Arc<Self>) {
        let mut state = self.state();
        if state.asked.is_none() {
            let now = self.now();
            state.asked = Some(now);
            let this = self.clone();
            // Without the thread, the process ends when the main thread can.
            drop(thread::Builder::new().name("duly-last-resort".into()).spawn(move || this.wait(now)));
        }
    }

    /// Returns the time of the first request.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.state().asked
    }

    /// Takes how many turns the scheduler has ended. One that has stopped waits for no database.
    pub(crate) fn look(&self, turns: u64, has_stopped: bool) {
        let now = self.now();
        let mut state = self.state();
        if has_stopped || state.turns.is_none_or(|(known, _)| known != turns) {
            state.turns = Some((turns, now));
        }
    }

    fn wait(&self, asked: Duration) {
        loop {
            let now = self.now();
            let (until, code) = match self.state().turns {
                None => (asked + GRACE, 1),
                Some((_, turned)) => ((asked + GRACE).saturating_add(self.drain).max(turned + TURN), 3),
            };
            if now >= until {
                let text = "error: asked to stop, and the database does not answer: what is not recorded, the next scheduler recovers";
                return (self.end)(text, code);
            }
            thread::sleep(until - now);
        }
    }

    fn now(&self) -> Duration {
        self.clock.now().monotonic
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
