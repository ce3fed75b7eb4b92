//! Ends a process that was asked to stop, if its main thread does not take the request: a server that does not answer may hold it. The guard
//! process ends the commands that run then, and the next scheduler recovers their runs.

use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use duly::{Clock, SystemClock};

/// How long the main thread may take, beside the time in which commands may go on.
const GRACE: Duration = Duration::from_secs(8);

/// Writes the last line of the log, and ends the process with an exit code.
pub(crate) type End = Box<dyn Fn(&str, i32) + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing runs that could be drained.
    Starting,
    Running,
    /// The main thread has taken the request, or ends by itself.
    Ending,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// The monotonic time of the first request.
    asked: Option<Duration>,
}

/// Calls `f` on a thread of its own, which may wait for a server. `None`: it has not returned within the time, and goes on.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    f: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (report, done) = sync_channel(1);
    thread::Builder::new().name("duly-last-resort".into()).spawn(move || drop(report.send(f())))?;
    Ok(done.recv_timeout(limit).ok())
}

pub(crate) struct LastResort {
    state: Mutex<State>,
    changed: Condvar,
    drain: Duration,
    clock: SystemClock,
    end: End,
}

impl LastResort {
    pub(crate) fn new(drain: Duration, end: End) -> Arc<Self> {
        let state = Mutex::new(State { stage: Stage::Starting, asked: None });
        Arc::new(LastResort { state, changed: Condvar::new(), drain, clock: SystemClock::new(), end })
    }

    /// A signal asks to stop. Only the first one counts.
    pub(crate) fn asked(self: &Arc<Self>) {
        let mut state = self.state();
        if state.stage != Stage::Ending && state.asked.is_none() {
            state.asked = Some(self.clock.now().monotonic);
            let this = self.clone();
            // Without the thread, the main thread takes the request when it can.
            drop(thread::Builder::new().name("duly-last-resort".into()).spawn(move || this.wait()));
        }
    }

    /// The scheduler has started: it is drained before the process ends.
    pub(crate) fn started(&self) {
        self.state().stage = Stage::Running;
        self.changed.notify_all();
    }

    /// The main thread ends the scheduler. Returns how long a request has waited for that.
    pub(crate) fn taken(&self) -> Duration {
        let mut state = self.state();
        state.stage = Stage::Ending;
        self.changed.notify_all();
        state.asked.map_or(Duration::ZERO, |asked| self.clock.now().monotonic.saturating_sub(asked))
    }

    fn wait(&self) {
        let mut state = self.state();
        loop {
            let (limit, code) = match state.stage {
                Stage::Starting => (GRACE, 1),
                Stage::Running => (self.drain.saturating_add(GRACE), 3),
                Stage::Ending => return,
            };
            let until = state.asked.unwrap_or_default().saturating_add(limit);
            let left = until.saturating_sub(self.clock.now().monotonic);
            if left.is_zero() {
                let text = "error: asked to stop while the server does not answer: what is not recorded, the next scheduler recovers";
                return (self.end)(text, code);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
