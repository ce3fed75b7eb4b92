//! The executor of one worker: its copies, their handlers, and which of them gets an attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use duly::StopReason;
use duly::executor::{Delegated, Executor, Orphan, Waker};

use crate::exec::orphans;
use crate::output::units::first_of;
use crate::workers::attempts::Hub;
use crate::workers::options::WorkerOptions;
use crate::workers::process::Place;
use crate::workers::protocol::{AttemptId, Hello};
use crate::workers::supervisor::{Order, Supervisor};
use crate::workers::times::Times;
use crate::workers::worker::Worker;

/// The handler of duly itself.
const OWN_HANDLER: &str = "command";

/// What all workers share.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// The worker that has each handler.
    names: Mutex<BTreeMap<String, String>>,
    was_cut_short: AtomicBool,
}

impl Common {
    /// Whether an attempt was ended because the scheduler stopped.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.was_cut_short.load(Ordering::SeqCst)
    }
}

/// The copies of one worker.
pub(crate) struct Fleet {
    shared: Arc<Shared>,
    copies: Vec<Arc<Supervisor>>,
}

/// What the copies of one worker share.
struct Shared {
    name: String,
    waker: OnceLock<Waker>,
    common: Arc<Common>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    handlers: Arc<BTreeSet<String>>,
    /// The copies that have said hello and live.
    live: BTreeSet<u32>,
    /// The number of copies that are or may be started.
    left: u32,
}

impl Fleet {
    pub(crate) fn new(
        options: WorkerOptions,
        times: Times,
        place: &Place,
        common: Arc<Common>,
        on_change: &Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        let state = Mutex::new(State { left: options.copies, ..State::default() });
        let shared = Arc::new(Shared { name: options.name.clone(), waker: OnceLock::new(), common, state });
        let options = Arc::new(options);
        let supervisor = |copy| {
            let (copy, settings) = ((options.clone(), copy), (times, place.clone()));
            Arc::new(Supervisor::new(copy, settings, shared.clone(), on_change.clone()))
        };
        let copies = (1..=options.copies).map(supervisor).collect();
        Fleet { shared, copies }
    }

    /// Starts the supervision of all copies. The scheduler must have started.
    pub(crate) fn start(&self) -> io::Result<Vec<JoinHandle<()>>> {
        let waker =
            self.shared.waker.get().ok_or_else(|| io::Error::other("the scheduler does not know the workers"))?;
        self.copies.iter().map(|copy| copy.start(waker.clone())).collect()
    }

    /// Gives an order to all copies.
    pub(crate) fn order(&self, order: Order) {
        self.copies.iter().for_each(|copy| copy.order(order));
    }

    /// Returns how many attempts it has.
    pub(crate) fn running(&self) -> usize {
        self.live().map(|worker| worker.attempts.count()).sum()
    }

    /// Whether every copy has said hello, or its first start has failed.
    pub(crate) fn is_settled(&self) -> bool {
        self.copies.iter().all(|copy| copy.is_settled())
    }

    /// Returns why copies were given up.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.copies.iter().filter_map(|copy| copy.problem())
    }

    /// Returns why an application is served no more.
    pub(crate) fn ended(&self) -> Option<Result<String, String>> {
        self.copies.iter().find_map(|copy| copy.ended())
    }

    /// Whether the application that started this program serves it.
    pub(crate) fn is_application(&self) -> bool {
        self.copies.iter().any(|copy| copy.options.is_application)
    }

    /// Returns the runs that are left to an application.
    pub(crate) fn left(&self) -> impl Iterator<Item = i64> {
        self.copies.iter().flat_map(|copy| copy.left())
    }

    fn live(&self) -> impl Iterator<Item = Arc<Worker>> {
        self.copies.iter().filter_map(|copy| copy.live())
    }
}

impl Executor for Fleet {
    fn attach(&self, waker: Waker) {
        let _ = self.shared.waker.set(waker);
    }

    fn handlers(&self) -> Arc<BTreeSet<String>> {
        self.shared.state().handlers.clone()
    }

    fn free(&self) -> usize {
        self.live().map(|worker| worker.free()).sum()
    }

    fn start(&self, attempt: Delegated) {
        let mut copies: Vec<(usize, Arc<Worker>)> = self.live().map(|worker| (worker.free(), worker)).collect();
        copies.sort_by_key(|(free, _)| std::cmp::Reverse(*free));
        let mut attempt = Box::new(attempt);
        for (_, worker) in copies {
            match worker.hand(attempt) {
                Ok(()) => return,
                Err(returned) => attempt = returned,
            }
        }
        // The worker has ended since it was asked.
        attempt.release();
    }

    fn stop(&self, run: i64, attempt: u32, reason: StopReason) {
        let _ = self.live().any(|worker| worker.stop(AttemptId { run, attempt }, reason));
    }

    fn end_orphan(&self, orphan: &Orphan) {
        orphans::end(orphan, "worker");
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.common.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the handlers of this worker. `names`: those of all workers.
    fn set_handlers(&self, state: &mut State, names: &mut BTreeMap<String, String>, handlers: BTreeSet<String>) {
        names.retain(|_, worker| *worker != self.name);
        names.extend(handlers.iter().map(|handler| (handler.clone(), self.name.clone())));
        state.handlers = Arc::new(handlers);
    }

    /// Returns why a handler cannot be one of this worker.
    fn conflict(&self, names: &BTreeMap<String, String>, handler: &str) -> Option<String> {
        if handler == OWN_HANDLER {
            return Some(format!("hello: handlers: {handler:?} is a handler of duly itself"));
        }
        let other = names.get(handler).filter(|worker| **worker != self.name)?;
        Some(format!("hello: handlers: {handler:?} is a handler of the worker {other:?} already"))
    }
}

impl Hub for Shared {
    fn register(&self, copy: u32, hello: &Hello) -> Result<(), String> {
        let (mut state, mut names) = (self.state(), self.names());
        if let Some(conflict) = hello.handlers.iter().find_map(|handler| self.conflict(&names, handler)) {
            return Err(conflict);
        }
        if let Some(sibling) = state.live.iter().find(|_| *state.handlers != hello.handlers) {
            let differs = state.handlers.symmetric_difference(&hello.handlers).next().cloned().unwrap_or_default();
            return Err(format!(
                "hello: handlers: expected those of copy {sibling} of this worker, found others: they differ in {differs:?}"
            ));
        }
        state.live.insert(copy);
        if *state.handlers != hello.handlers {
            self.set_handlers(&mut state, &mut names, hello.handlers.clone());
        }
        drop((state, names));
        let (count, handlers) = (hello.concurrency, listed(&hello.handlers));
        let at_once = if count == 1 { "one run".to_owned() } else { format!("{count} runs") };
        log::info!("worker {} (copy {copy}): ready, {at_once} at once, handlers: {handlers}", self.name);
        Ok(())
    }

    fn unregister(&self, copy: u32) {
        self.state().live.remove(&copy);
    }

    fn give_up(&self) {
        let mut state = self.state();
        state.left = state.left.saturating_sub(1);
        if state.left == 0 {
            self.set_handlers(&mut state, &mut self.names(), BTreeSet::new());
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    fn cut_short(&self) {
        self.common.was_cut_short.store(true, Ordering::SeqCst);
    }
}

/// Lists the first names.
fn listed(handlers: &BTreeSet<String>) -> String {
    const SHOWN: usize = 10;
    first_of(handlers.iter().map(|name| format!("{name:?}")), SHOWN, handlers.len())
}
