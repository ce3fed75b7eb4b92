//! The end of the threads for alarms: a request to stop, a deadline for the last messages, and waits that it ends.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duly::{Clock, Now, SystemClock};

/// Shared by the threads.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    state: Mutex<State>,
    changed: Condvar,
    /// The only clock of the threads: the monotonic times of two clocks cannot be compared.
    clock: SystemClock,
}

#[derive(Debug, Default)]
struct State {
    /// The monotonic time at which the last attempts end. Set: the threads stop.
    deadline: Option<Duration>,
    /// The last look is over.
    has_looked: bool,
    /// Threads that have not ended.
    running: usize,
}

impl Stop {
    /// Requests the threads to stop, and waits until they have ended: at most for `limit`, and a second in which a command that was
    /// ended at the deadline is reaped and recorded.
    pub(crate) fn request(&self, limit: Duration) {
        let deadline = self.clock.now().monotonic + limit;
        self.state().deadline = Some(deadline);
        self.changed.notify_all();
        self.wait_until(deadline + Duration::from_secs(1), |state| state.running == 0);
    }

    /// Returns the time, by the clock of the threads.
    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Returns when the last attempts end, if the threads must stop.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.state().deadline
    }

    /// Waits for a time. Returns true, at once, if the thread must stop.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        self.wait_until(self.clock.now().monotonic.saturating_add(time), |state| state.deadline.is_some())
    }

    /// Records that the last look is over.
    pub(crate) fn looked(&self) {
        self.state().has_looked = true;
        self.changed.notify_all();
    }

    /// Waits for the last look, at most until the deadline.
    pub(crate) fn wait_for_last_look(&self) {
        let deadline = self.deadline().unwrap_or_default();
        self.wait_until(deadline, |state| state.has_looked);
    }

    /// Counts a thread.
    pub(crate) fn begin(&self) {
        self.state().running += 1;
    }

    /// Records that a thread has ended.
    pub(crate) fn end(&self) {
        self.state().running -= 1;
        self.changed.notify_all();
    }

    fn wait_until(&self, until: Duration, holds: impl Fn(&State) -> bool) -> bool {
        let mut state = self.state();
        loop {
            if holds(&state) {
                return true;
            }
            let left = until.saturating_sub(self.clock.now().monotonic);
            if left.is_zero() {
                return false;
            }
            // One wait is limited: a suspend of the machine may not count.
            let left = left.min(Duration::from_secs(1));
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
