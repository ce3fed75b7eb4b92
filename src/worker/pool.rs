//! Worker threads: a claim in, its outcome out. The pool runs the user's code and knows nothing of the store.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::clock::{Clock, Now};
use crate::error::{Error, Result};
use crate::host::orphan::Orphan;
use crate::host::owner_lock::OwnerLock;
use crate::host::panics;
use crate::host::shared_input;
use crate::model::finished::{AtWork, Finished, WorkerEnded};
use crate::model::observers::Observers;
use crate::model::run::{Claim, Outcome};
use crate::worker::attempt::{Link, Notice, StopFlag, StopReason, Tools};
use crate::worker::connection::{ConnectionSettings, WorkerConnection};
use crate::worker::executor::{Executor, Waker};
use crate::worker::executor_lane::ExecutorLane;
#[cfg(feature = "tokio")]
use crate::worker::futures::{Futures, Runtime};
use crate::worker::handed::{Attempts, Handed, UNNOTED, attempt};
use crate::worker::handler::Handlers;
use crate::worker::lane::{EndOrphan, Lane, LaneTools};

/// Claims that may be handed over and not begun; more are never read ahead.
pub(crate) const QUEUE: usize = 512;

/// How long after its time limit a handler may still hold its worker. A handler that heeds the stop request has returned by
/// then.
const GRACE: Duration = Duration::from_millis(250);

/// How soon the replacement of a worker that ended is retried.
const REPLACE_AGAIN: Duration = Duration::from_secs(1);

/// Attempts that have begun, have a time limit, and have not returned.
type Limited = Arc<Mutex<BTreeMap<(i64, u32), Limit>>>;

#[derive(Debug)]
struct Limit {
    claim: Arc<Claim>,
    /// By the monotonic clock: when its worker may be replaced.
    until: Duration,
    /// Whether its worker has been replaced.
    replaced: bool,
    /// Whether the loop looked late at that time.
    was_late: bool,
}

/// Attempts of the workers whose outcomes have returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Returned {
    pub(crate) all: usize,
    /// How many of them had begun.
    pub(crate) begun: usize,
    /// How long these took altogether.
    pub(crate) took: Duration,
}

impl Returned {
    /// Counts another one.
    pub(crate) fn add(self, finished: &Finished) -> Self {
        let Returned { all, begun, took } = Returned { all: self.all + 1, ..self };
        match (finished.slot, finished.duration) {
            (Some(_), Some(duration)) => Returned { all, begun: begun + 1, took: took.saturating_add(duration) },
            // It never began.
            _ => Returned { all, begun, took },
        }
    }
}

/// The workers of one scheduler. They end when it is dropped and their handlers have returned.
pub(crate) struct Pool {
    claims: Sender<Handed>,
    /// The workers' end of the queue, for taking back claims that no worker has begun.
    queue: Receiver<Handed>,
    finished: Receiver<Finished>,
    notices: Receiver<Notice>,
    handlers: Arc<Handlers>,
    limited: Limited,
    workers: usize,
    /// Attempts whose orphan is being ended; for worker processes, the negative pid.
    ending: Arc<Mutex<HashSet<(i64, u32)>>>,
    /// The template of a new worker.
    worker: Worker,
    done: Sender<Finished>,
    /// How many workers were ever started.
    started: usize,
    /// How many workers ended and are not replaced, and when that is retried.
    missing: usize,
    replace_at: Duration,
    threads: Vec<JoinHandle<()>>,
    /// The attempts of async handlers, if there are such handlers, and those of executors.
    lanes: Vec<Box<dyn Lane>>,
}

/// The state of every worker.
#[derive(Clone)]
struct Worker {
    handlers: Arc<Handlers>,
    attempts: Attempts,
    limited: Limited,
    connections: ConnectionSettings,
}

impl Pool {
    /// Starts the workers. `others`: how many attempts beside those of the workers may run at once.
    pub(crate) fn start(
        workers: usize,
        others: usize,
        handlers: Handlers,
        clock: Arc<dyn Clock>,
        alive: Arc<OwnerLock>,
        observers: Arc<Observers>,
        connections: ConnectionSettings,
    ) -> Result<Self> {
        // As many again may be running in place of those that are held.
        let most = QUEUE + 2 * workers;
        let (claims, queue) = bounded::<Handed>(most);
        let (done, finished) = bounded(most + others);
        let (notify, notices) = bounded(most);
        let (limited, handlers) = (Limited::default(), Arc::new(handlers));
        let attempts = Attempts::new(clock, observers, Link { notices: notify, alive });
        let worker = Worker { handlers: handlers.clone(), attempts, limited: limited.clone(), connections };
        let (started, missing, replace_at, threads) = (0, 0, Duration::ZERO, Vec::with_capacity(workers));
        let mut pool = Pool {
            claims,
            queue,
            finished,
            notices,
            handlers,
            limited,
            workers,
            ending: Arc::default(),
            worker,
            done,
            started,
            missing,
            replace_at,
            threads,
            lanes: Vec::new(),
        };
        for _ in 0..workers {
            pool.start_worker().map_err(|error| Error::store("start a worker thread", error))?;
        }
        Ok(pool)
    }

    fn start_worker(&mut self) -> std::io::Result<()> {
        let (worker, queue, done) = (self.worker.clone(), self.queue.clone(), self.done.clone());
        let thread = thread::Builder::new().name(format!("duly-worker-{}", self.started + 1));
        self.threads.push(thread.spawn(move || worker.work(&queue, &done))?);
        self.started += 1;
        Ok(())
    }

    /// Returns how many workers take claims, and how many are held past a time limit and have been replaced.
    pub(crate) fn workers(&self) -> usize {
        (self.workers + limits(&self.limited).values().filter(|limit| limit.replaced).count())
            .saturating_sub(self.missing)
    }

    /// Records that a worker ended. [`Pool::replace_ended`] replaces it.
    pub(crate) fn ended(&mut self, worker: &WorkerEnded) {
        self.missing += usize::from(!worker.replaced);
    }

    /// Starts a worker in place of each that ended.
    pub(crate) fn replace_ended(&mut self, now: Duration) {
        while self.missing > 0 && self.replace_at <= now {
            self.threads.retain(|thread| !thread.is_finished());
            if let Err(error) = self.start_worker() {
                let left = self.workers.saturating_sub(self.missing);
                log::error!("cannot start a worker in place of one that ended: {error}; {left} are left; retrying");
                self.replace_at = now + REPLACE_AGAIN;
                return;
            }
            self.missing -= 1;
        }
    }

    /// Returns when the next worker will have to be replaced, as far as is known, by the monotonic clock.
    pub(crate) fn next_replacement(&self) -> Option<Duration> {
        let limited = limits(&self.limited);
        let replaced = limited.values().filter(|limit| limit.replaced).count();
        let waiting = limited.values().filter(|limit| !limit.replaced && replaced < self.workers);
        waiting.map(|limit| limit.until).chain((self.missing > 0).then_some(self.replace_at)).min()
    }

    /// Starts a worker for each that a handler holds past its time limit, at most as many as there are workers. The held thread
    /// ends when its handler returns. Returns the attempts that hold one.
    pub(crate) fn replace_held(&mut self, now: Duration) -> Vec<Arc<Claim>> {
        let mut held = Vec::new();
        while self.next_replacement().is_some_and(|at| at <= now) {
            self.threads.retain(|thread| !thread.is_finished());
            // Locked until the new worker runs: the held handler must not return in between, or the count would be wrong.
            let limited = self.limited.clone();
            let mut limited = limits(&limited);
            let Some(late) = limited.values_mut().find(|limit| !limit.replaced && limit.until <= now) else { break };
            // The loop wakes at this time. If it looks much later, this process was stopped, and so was the handler, which has its grace now.
            // Once: a loop that is always late replaces the worker all the same.
            if now.saturating_sub(late.until) >= GRACE && !late.was_late {
                (late.until, late.was_late) = (now + GRACE, true);
                continue;
            }
            if let Err(error) = self.start_worker() {
                log::warn!("cannot start a worker in place of one that is held: {error}");
                late.until = now + GRACE;
                break;
            }
            late.replaced = true;
            held.push(late.claim.clone());
        }
        held
    }

    /// Runs the attempts of async handlers on a runtime.
    #[cfg(feature = "tokio")]
    pub(crate) fn use_runtime(&mut self, runtime: Runtime) {
        let futures = Futures::new(runtime, self.lane_tools());
        self.lanes.push(Box::new(futures));
    }

    /// Has an executor run attempts.
    pub(crate) fn use_executor(&mut self, executor: Arc<dyn Executor>, waker: Waker) {
        let lane = ExecutorLane::new(executor, waker, self.lane_tools());
        self.lanes.push(Box::new(lane));
    }

    fn lane_tools(&self) -> LaneTools {
        let Worker { handlers, attempts, connections, .. } = &self.worker;
        let connection = WorkerConnection::new(connections.clone());
        LaneTools::new(handlers.clone(), attempts.clone(), connection, self.done.clone())
    }

    /// Returns the handlers of each lane beside the workers, as they are now.
    pub(crate) fn lane_handlers(&mut self) -> Vec<Arc<BTreeSet<String>>> {
        self.lanes.iter_mut().map(|lane| lane.handlers()).collect()
    }

    /// Returns how many attempts are handed over beside the workers and have not ended.
    pub(crate) fn beside(&self) -> usize {
        self.lanes.iter().map(|lane| lane.running()).sum()
    }

    /// Returns how many of them are not those of async handlers.
    pub(crate) fn beside_runtime(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.needs_no_runtime()).map(|lane| lane.running()).sum()
    }

    /// Returns how many more attempts may be handed over now to each lane beside the workers.
    pub(crate) fn free_beside(&self, now: Duration) -> Vec<usize> {
        self.lanes.iter().map(|lane| lane.free(now)).collect()
    }

    /// Asks attempts beside the workers that exceed their time limit to stop. Takes back those that have not begun in time, or all that
    /// have not begun.
    pub(crate) fn check_lanes(&mut self, now: Now, recall_all: bool) -> Vec<Finished> {
        self.lanes.iter_mut().for_each(|lane| lane.expire(now.monotonic));
        self.lanes.iter_mut().flat_map(|lane| lane.recall(now, recall_all)).collect()
    }

    /// Returns why a lane beside the workers starts nothing, if something is wrong.
    pub(crate) fn trouble(&self, now: Duration) -> Option<&'static str> {
        self.lanes.iter().find_map(|lane| lane.trouble(now))
    }

    /// Returns when [`Pool::check_lanes`] has something to do, by the monotonic clock.
    pub(crate) fn next_check(&self, now: Duration) -> Option<Duration> {
        self.lanes.iter().filter_map(|lane| lane.next(now)).min()
    }

    /// Hands a claim to a lane, or to the workers. Their queue holds as many as a scheduler may claim ahead.
    pub(crate) fn submit(&mut self, claim: Arc<Claim>, lane: Option<usize>) {
        let flag = self.attempts().hand_over(&claim);
        // An earlier attempt of the run that is still running was asked to stop: its claim is superseded.
        self.lanes.iter_mut().for_each(|lane| lane.stop(Some(claim.run_id)));
        if let Some(lane) = lane.and_then(|lane| self.lanes.get_mut(lane)) {
            return lane.submit(claim, flag);
        }
        // The workers live as long as the pool: the queue cannot be closed.
        let sent = self.claims.send((claim, flag));
        debug_assert!(sent.is_ok(), "the workers are gone");
    }

    /// Removes attempts beside the workers whose outcomes have returned. Returns the others.
    pub(crate) fn returned(&mut self, finished: &[Finished]) -> Returned {
        let mut is_beside = |finished: &Finished| self.lanes.iter_mut().any(|lane| lane.returned(&finished.claim));
        finished.iter().filter(|finished| !is_beside(finished)).fold(Returned::default(), Returned::add)
    }

    /// Returns the channel of outcomes.
    pub(crate) fn finished(&self) -> &Receiver<Finished> {
        &self.finished
    }

    /// Returns the channel of workers' notices about running attempts.
    pub(crate) fn notices(&self) -> &Receiver<Notice> {
        &self.notices
    }

    /// Has the first executor end a worker of a dead scheduler, and removes its file. `then` is called afterwards: runs may wait for the
    /// worker.
    pub(crate) fn end_worker(&self, worker: Orphan, then: impl FnOnce() + Send + 'static) {
        let lane = self.lanes.iter().position(|lane| lane.end_orphan().is_some());
        let file = worker.input().to_owned();
        self.end(worker, lane, move || {
            shared_input::remove_free(&file);
            then();
        });
    }

    /// Has its handler, or the executor of its lane, end a command of a dead scheduler, on a thread of its own, unless it is doing so
    /// already. `then` is called when it has returned.
    pub(crate) fn end(&self, orphan: Orphan, lane: Option<usize>, then: impl FnOnce() + Send + 'static) {
        let end: EndOrphan = match self.handlers.get(orphan.handler()).cloned() {
            Some(handler) => Box::new(move |orphan| handler.end_orphan(orphan)),
            None => match lane.and_then(|lane| self.lanes.get(lane)?.end_orphan()) {
                Some(end) => end,
                None => return,
            },
        };
        // A worker process may have had a thousand runs: it is ended once.
        let process = orphan.pid().filter(|_| lane.is_some()).map(|pid| (-i64::from(pid), 0));
        let (attempt, ending) = (process.unwrap_or((orphan.run_id(), orphan.attempt())), self.ending.clone());
        if !ending.lock().unwrap_or_else(PoisonError::into_inner).insert(attempt) {
            return;
        }
        let thread = thread::Builder::new().name(format!("duly-orphan-{}", orphan.run_id()));
        let spawned = thread.spawn(move || {
            if let Err(panic) = panics::contained(|| end(&orphan)) {
                log::error!("the handler {:?} panicked where it should end an orphan: {panic:?}", orphan.handler());
            }
            panics::dispose("a handler", end);
            ending.lock().unwrap_or_else(PoisonError::into_inner).remove(&attempt);
            then();
        });
        if let Err(error) = spawned {
            self.ending.lock().unwrap_or_else(PoisonError::into_inner).remove(&attempt);
            log::warn!("cannot start a thread to end a command that a dead scheduler left: {error}; tried again later");
        }
    }

    /// Returns how many claims no worker has begun.
    pub(crate) fn unstarted(&self) -> usize {
        self.queue.len()
    }

    /// Takes back the claims that no worker has begun.
    pub(crate) fn recall(&self, now: Now) -> Vec<Finished> {
        let recalled = self.queue.try_iter().map(|(claim, _)| {
            self.attempts().end(&claim);
            Finished::new(claim, Outcome::Released, now, now)
        });
        recalled.collect()
    }

    /// Returns the attempts that are handed over.
    pub(crate) fn attempts(&self) -> &Attempts {
        &self.worker.attempts
    }

    /// Asks the handler of a run to stop, if it has begun and not returned.
    pub(crate) fn stop(&mut self, run: i64) {
        self.attempts().stop(run, StopReason::Asked);
        self.lanes.iter_mut().for_each(|lane| lane.stop(Some(run)));
    }

    /// Asks every handler to stop: see [`Attempts::stop_all`].
    pub(crate) fn stop_all(&mut self, reason: StopReason) {
        self.attempts().stop_all(reason);
        self.lanes.iter_mut().for_each(|lane| lane.stop(None));
    }

    /// Takes back the claims that have not begun, and asks every handler to stop: the scheduler has stopped by itself, and can
    /// record no outcome.
    pub(crate) fn abandon(&mut self, now: Now) {
        self.recall(now);
        self.check_lanes(now, true);
        self.stop_all(StopReason::Shutdown);
    }

    /// Ends the workers, and waits for them. For when none has a run.
    pub(crate) fn join(self) {
        drop((self.claims, self.queue));
        for thread in self.threads {
            if let Err(panic) = thread.join() {
                log::error!("a worker panicked as it left: {}", panics::message(panic));
            }
        }
    }
}

impl Worker {
    /// Runs the attempts that are handed over, until the pool is dropped or another worker has replaced this one.
    fn work(&self, queue: &Receiver<Handed>, done: &Sender<Finished>) {
        let connection = Arc::new(Mutex::new(WorkerConnection::new(self.connections.clone())));
        let mut at_work = AtWork::default();
        let ended = panics::contained(|| {
            for (claim, flag) in queue {
                let (finished, replaced) = self.carry_out(claim, flag, connection.clone(), &mut at_work);
                at_work = AtWork::default();
                if done.send(finished).is_err() || replaced {
                    break;
                }
            }
        });
        if let Err(error) = ended {
            let replaced = at_work.claim.as_ref().is_some_and(|claim| self.leave(claim));
            let _ = self.attempts.link.notices.send(Notice::WorkerEnded(WorkerEnded { at_work, error, replaced }));
        }
    }

    /// Runs an attempt, which it records in `at_work`. Returns its end, and whether another worker has replaced this one
    /// meanwhile.
    fn carry_out(
        &self,
        claim: Arc<Claim>,
        flag: Arc<StopFlag>,
        connection: Arc<Mutex<WorkerConnection>>,
        at_work: &mut AtWork,
    ) -> (Finished, bool) {
        at_work.claim = Some(claim.clone());
        let begins = |limit: Duration| {
            let until = self.attempts.clock.now().monotonic.saturating_add(limit).saturating_add(GRACE);
            let limit = Limit { claim: claim.clone(), until, replaced: false, was_late: false };
            limits(&self.limited).insert((claim.run_id, claim.attempt), limit);
        };
        let now = self.attempts.clock.now();
        let at_once = |outcome| Finished::new(claim.clone(), outcome, now, now);
        let finished = match self.handlers.get(&claim.handler) {
            // Its start counts as one that was earlier.
            Some(_) if claim.begins_by.is_some_and(|at| now.wall > at) => at_once(Outcome::Released),
            Some(handler) => match self.attempts.begin(&claim, &flag, now) {
                Some(place) => {
                    at_work.began = Some((now, place));
                    let tools = Tools::new(connection, Some(self.attempts.link.clone()));
                    let clock = self.attempts.clock.clone();
                    let run =
                        || self.handlers.with_backoff(attempt(&**handler, &claim, now, clock, flag, tools, begins));
                    Finished { slot: Some(place), ..self.attempts.within(run) }
                }
                None => {
                    flag.wait(UNNOTED);
                    at_once(Outcome::Released)
                }
            },
            // A scheduler claims only runs of handlers that it has.
            None => at_once(Outcome::failed(format!("no handler is named {:?} here", claim.handler))),
        };
        (finished, self.leave(&claim))
    }

    /// Forgets the time limit of an attempt that has ended. Returns whether another worker has replaced the one that ran it.
    fn leave(&self, claim: &Arc<Claim>) -> bool {
        limits(&self.limited).remove(&(claim.run_id, claim.attempt)).is_some_and(|limit| limit.replaced)
    }
}

fn limits(limited: &Limited) -> MutexGuard<'_, BTreeMap<(i64, u32), Limit>> {
    limited.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::Returned;
    use crate::clock::{Now, Timestamp};
    use crate::host::attempt_slots::Place;
    use crate::model::finished::Finished;
    use crate::model::run::{Claim, Outcome};

    #[test]
    fn an_attempt_that_never_began_does_not_count_as_brief() {
        let at =
            |millis| Now { wall: Timestamp::from_millis(1_805_025_600_000), monotonic: Duration::from_millis(millis) };
        let finished = |run: i64, outcome: Outcome, slot: Option<Place>| {
            let claim = Claim::described(run, 1, "t".to_owned(), "work".to_owned(), at(0).wall);
            Finished { slot, ..Finished::new(Arc::new(claim), outcome, at(0), at(30)) }
        };
        let returned = [
            finished(1, Outcome::succeeded(), Some(Place::default())),
            finished(2, Outcome::Released, None),
            finished(3, Outcome::failed("no handler"), None),
        ];
        let returned = returned.iter().fold(Returned::default(), Returned::add);
        assert_eq!(returned, Returned { all: 3, begun: 1, took: Duration::from_millis(30) });
    }
}
