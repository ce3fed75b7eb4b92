//! The requests at work: how many there may be, and which of them the client has cancelled.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::mcp::rpc::{BUSY, INVALID_REQUEST, Id, RpcError};

/// Most requests at work, and how many more of those that stop something: that is always possible.
const MAX_REQUESTS: usize = 16;
const MAX_STOPS: usize = 8;
/// The tools that stop something.
const STOPS: [&str; 3] = ["pause_task", "cancel_run", "cancel_task"];

/// Whether a request goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    GoesOn,
    /// The input has ended: what has begun is finished and answered, and nothing is waited for.
    Ends,
    Cancelled,
}

/// Whether a request was cancelled.
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    state: Mutex<State>,
    changed: Condvar,
}

impl Cancellation {
    pub(crate) fn is_cancelled(&self) -> bool {
        *lock(&self.state) == State::Cancelled
    }

    /// Waits for `limit`, or until the request is not to wait any longer. Returns whether it is not.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(lock(&self.state), limit, |state| *state == State::GoesOn);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != State::GoesOn
    }

    fn change(&self, to: State) {
        let mut state = lock(&self.state);
        if *state == State::GoesOn {
            *state = to;
        }
        self.changed.notify_all();
    }
}

/// The requests at work, by id.
#[derive(Debug, Default)]
pub(crate) struct AtWork(Mutex<BTreeMap<String, Arc<Cancellation>>>);

impl AtWork {
    /// Admits a request, or returns why it is refused.
    pub(crate) fn begin(&self, id: &Id, tool: Option<&str>) -> Result<Arc<Cancellation>, RpcError> {
        let mut requests = lock(&self.0);
        if requests.contains_key(&id.key()) {
            return Err(RpcError::new(INVALID_REQUEST, "id: a request with this id is at work"));
        }
        let more = if tool.is_some_and(|tool| STOPS.contains(&tool)) { MAX_STOPS } else { 0 };
        if requests.len() >= MAX_REQUESTS + more {
            let message = format!("expected at most {MAX_REQUESTS} requests at work: wait for an answer");
            return Err(RpcError::new(BUSY, message));
        }
        let cancellation = Arc::new(Cancellation::default());
        requests.insert(id.key(), Arc::clone(&cancellation));
        Ok(cancellation)
    }

    /// Ends a request. Returns whether it is to be answered: the answer of a cancelled one is dropped.
    pub(crate) fn end(&self, id: &Id) -> bool {
        lock(&self.0).remove(&id.key()).is_some_and(|cancellation| !cancellation.is_cancelled())
    }

    /// Cancels a request, if it is at work.
    pub(crate) fn cancel(&self, id: &Id) {
        if let Some(cancellation) = lock(&self.0).get(&id.key()) {
            cancellation.change(State::Cancelled);
        }
    }

    /// Ends what waits.
    pub(crate) fn end_waits(&self) {
        lock(&self.0).values().for_each(|cancellation| cancellation.change(State::Ends));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
