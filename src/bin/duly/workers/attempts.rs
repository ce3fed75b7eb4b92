//! The attempts that one process of a worker has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duly::StopReason;
use duly::executor::Delegated;

use crate::workers::protocol::{AttemptId, Hello};

/// How many attempts that have ended are known.
const ENDED: usize = 1000;

/// What a process needs of the worker that it is a copy of.
pub(crate) trait Hub: Send + Sync {
    /// Registers the handlers of a copy.
    ///
    /// # Errors
    /// Which name cannot be used, and why.
    fn register(&self, copy: u32, hello: &Hello) -> Result<(), String>;
    /// The process of a copy has ended.
    fn unregister(&self, copy: u32);
    /// A copy is not started again.
    fn give_up(&self);
    /// Has the scheduler ask for handlers and free slots again.
    fn wake(&self);
    /// An attempt was ended because the scheduler stops.
    fn cut_short(&self);
}

/// The attempts of a process. The scheduler's loop, the threads of the process and its supervisor use them; none waits for another.
pub(crate) struct Attempts {
    hub: Arc<dyn Hub>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    concurrency: usize,
    attempts: BTreeMap<AttemptId, Attempt>,
    /// The newest that the worker has ended.
    ended: VecDeque<AttemptId>,
    /// Which rule it has broken.
    broken: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// It has not said hello.
    #[default]
    Starting,
    Ready,
    /// It gets no more runs.
    Leaving,
    Over(Ended),
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) how: String,
    /// Whether all that it wrote was read. Otherwise an attempt of which nothing was read may have begun.
    pub(crate) is_heard: bool,
}

/// How far an attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Queued,
    /// The worker may have read its message.
    Sent,
    Begun,
}

/// An attempt that the process has.
pub(crate) struct Attempt {
    /// `None` while a thread uses it.
    pub(crate) delegated: Option<Box<Delegated>>,
    stage: Stage,
    /// When the supervisor first saw that it was handed over.
    sent_seen: Option<Duration>,
    pub(crate) stop: Option<StopReason>,
    /// When the supervisor first saw that it is to stop.
    stop_seen: Option<Duration>,
}

impl Attempts {
    pub(crate) fn new(hub: Arc<dyn Hub>) -> Self {
        Attempts { hub, state: Mutex::default() }
    }

    /// Returns how many more it takes now.
    pub(crate) fn free(&self) -> usize {
        let state = self.state();
        if state.phase == Phase::Ready { state.concurrency.saturating_sub(state.attempts.len()) } else { 0 }
    }

    /// Returns how many it has.
    pub(crate) fn count(&self) -> usize {
        self.state().attempts.len()
    }

    /// Returns the runs that it has.
    pub(crate) fn runs(&self) -> BTreeSet<i64> {
        self.state().attempts.keys().map(|id| id.run).collect()
    }

    /// Whether the worker has said hello.
    pub(crate) fn said_hello(&self) -> bool {
        self.state().phase != Phase::Starting
    }

    /// The worker has said hello: it takes this number of attempts at once.
    pub(crate) fn accept(&self, concurrency: u32) {
        let mut state = self.state();
        if state.phase == Phase::Starting {
            state.phase = Phase::Ready;
        }
        state.concurrency = usize::try_from(concurrency).unwrap_or(usize::MAX);
    }

    /// Hands over no more runs.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Over(_)) {
            state.phase = Phase::Leaving;
        }
    }

    /// Records which rule the worker has broken. Returns whether that is the first.
    pub(crate) fn break_off(&self, rule: &str) -> bool {
        let mut state = self.state();
        let is_first = state.broken.is_none() && !matches!(state.phase, Phase::Over(_));
        if is_first {
            state.phase = Phase::Leaving;
            state.broken = Some(rule.to_owned());
        }
        is_first
    }

    /// Returns which rule the worker has broken.
    pub(crate) fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.state().broken.is_some()
    }

    /// Adds an attempt, or gives it back if there is no room.
    pub(crate) fn add(&self, id: AttemptId, delegated: Box<Delegated>) -> Result<(), Box<Delegated>> {
        let mut state = self.state();
        if state.phase != Phase::Ready || state.attempts.len() >= state.concurrency {
            return Err(delegated);
        }
        let attempt =
            Attempt { delegated: Some(delegated), stage: Stage::Queued, stop: None, sent_seen: None, stop_seen: None };
        state.attempts.insert(id, attempt);
        Ok(())
    }

    /// The attempt is to stop. Returns whether the worker has it.
    pub(crate) fn stop(&self, id: AttemptId, reason: StopReason) -> bool {
        let mut state = self.state();
        let attempt = state.attempts.get_mut(&id);
        attempt.map(|attempt| attempt.stop = Some(reason)).is_some()
    }

    /// The worker has begun the attempt. Returns whether it has it.
    pub(crate) fn begin(&self, id: AttemptId) -> bool {
        let mut state = self.state();
        let attempt = state.attempts.get_mut(&id);
        attempt.map(|attempt| attempt.stage = Stage::Begun).is_some()
    }

    /// Returns an attempt that has not ended `limit` after its cancel. `now`: a time of the supervisor.
    pub(crate) fn overdue(&self, now: Duration, limit: Duration) -> Option<AttemptId> {
        let mut state = self.state();
        let stopped = state.attempts.iter_mut().filter(|(_, attempt)| attempt.stop.is_some());
        let mut overdue = stopped.filter_map(|(id, attempt)| {
            let since = *attempt.stop_seen.get_or_insert(now);
            (now.saturating_sub(since) >= limit).then_some(*id)
        });
        let first = overdue.next();
        overdue.for_each(drop);
        first
    }

    /// Returns an attempt that was handed over `limit` ago and has not begun, although the worker has been at work on no other one since. A
    /// worker may begin its runs one after another. `now`: a time of the supervisor. No `limit`: the worker does not read its messages
    /// now, and the time begins anew.
    pub(crate) fn unbegun(&self, now: Duration, limit: Option<Duration>) -> Option<AttemptId> {
        let mut state = self.state();
        let is_at_work = state.attempts.values().any(|attempt| attempt.stage == Stage::Begun);
        let Some(limit) = limit.filter(|_| !is_at_work) else {
            state.attempts.values_mut().for_each(|attempt| attempt.sent_seen = None);
            return None;
        };
        let sent = state.attempts.iter_mut().filter(|(_, attempt)| attempt.stage == Stage::Sent);
        let mut unbegun = sent.filter_map(|(id, attempt)| {
            let since = *attempt.sent_seen.get_or_insert(now);
            (now.saturating_sub(since) >= limit).then_some(*id)
        });
        let first = unbegun.next();
        unbegun.for_each(drop);
        first
    }

    /// Ends the attempts that it has. The process must be gone.
    pub(crate) fn close(&self, ended: &Ended) {
        let mut state = self.state();
        state.phase = Phase::Over(ended.clone());
        let free = |attempt: &Attempt| attempt.delegated.is_some();
        let (unused, used) = mem::take(&mut state.attempts).into_iter().partition(|(_, attempt)| free(attempt));
        // The thread that uses one ends it.
        state.attempts = used;
        drop(state);
        let unused: BTreeMap<AttemptId, Attempt> = unused;
        for attempt in unused.into_values() {
            self.conclude(attempt, ended);
        }
    }

    /// Ends an attempt whose process has ended.
    fn conclude(&self, attempt: Attempt, ended: &Ended) {
        let Some(delegated) = attempt.delegated else { return };
        let how = ended.how.as_str();
        let may_have_begun = attempt.stage >= if ended.is_heard { Stage::Begun } else { Stage::Sent };
        if may_have_begun && attempt.stop == Some(StopReason::Shutdown) {
            self.hub.cut_short();
        }
        if may_have_begun || attempt.stop == Some(StopReason::Asked) {
            delegated.end(Err(how.into()));
        } else {
            delegated.release();
        }
    }

    /// Uses an attempt without holding the state, which the scheduler's loop needs. `None`: the worker does not have it.
    /// It has reached this stage.
    pub(crate) fn with<T>(&self, id: AttemptId, stage: Stage, use_it: impl FnOnce(&Delegated) -> T) -> Option<T> {
        let mut state = self.state();
        let attempt = state.attempts.get_mut(&id)?;
        attempt.stage = attempt.stage.max(stage);
        let delegated = attempt.delegated.take()?;
        drop(state);
        let used = use_it(&delegated);
        let mut state = self.state();
        if let Some(attempt) = state.attempts.get_mut(&id) {
            attempt.delegated = Some(delegated);
            if let Phase::Over(ended) = &state.phase {
                let ended = ended.clone();
                let attempt = state.attempts.remove(&id);
                drop(state);
                attempt.into_iter().for_each(|attempt| self.conclude(attempt, &ended));
            }
        }
        Some(used)
    }

    /// Takes an attempt from the worker.
    pub(crate) fn take(&self, id: AttemptId) -> Option<Attempt> {
        self.take_if(id, |_| true)
    }

    /// Takes an attempt that has not begun from the worker, and returns its run to the queue. Returns whether it had not begun. `how`: the
    /// error of a run that is to be cancelled.
    pub(crate) fn take_back(&self, id: AttemptId, how: &str) -> bool {
        let unbegun = self.take_if(id, |attempt| attempt.stage < Stage::Begun);
        let ended = Ended { how: how.to_owned(), is_heard: true };
        unbegun.map(|attempt| self.conclude(attempt, &ended)).is_some()
    }

    fn take_if(&self, id: AttemptId, accepts: impl Fn(&Attempt) -> bool) -> Option<Attempt> {
        let mut state = self.state();
        state.attempts.get(&id).filter(|attempt| attempt.delegated.is_some() && accepts(attempt))?;
        state.ended.push_back(id);
        if state.ended.len() > ENDED {
            state.ended.pop_front();
        }
        state.attempts.remove(&id)
    }

    /// Whether the worker has ended this attempt: what it says of it now is late.
    pub(crate) fn is_over(&self, id: AttemptId) -> bool {
        let state = self.state();
        !state.attempts.contains_key(&id) && state.ended.contains(&id)
    }

    /// Whether its hello was accepted.
    pub(crate) fn was_accepted(&self) -> bool {
        self.state().concurrency > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
