//! Worker threads: a claim in, its outcome out. The pool runs the user's code and knows nothing of the store.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::clock::{Clock, Now};
use crate::error::{BoxError, Error, Result};
use crate::host::attempt_slots::Place;
use crate::host::orphan::{Input, Orphan};
use crate::host::owner_lock::OwnerLock;
use crate::host::panics;
use crate::model::event::{Event, Observers};
use crate::model::finished::{AtWork, Finished, Report, ReportKind, WorkerEnded};
use crate::model::retry::Retry;
use crate::model::run::{Claim, FailureKind, Outcome};
use crate::worker::attempt::{Link, Notice, OwnEnd, StopFlag, StopReason, Tools};
use crate::worker::connection::{ConnectionSettings, WorkerConnection};
use crate::worker::handler::{Context, Failure, Handler, Handlers};

/// Claims that may be handed over and not begun; more are never read ahead.
pub(crate) const QUEUE: usize = 512;

/// The attempts that are handed over and not finished, by run; of two attempts of one run, the newer.
type Flags = Arc<Mutex<HashMap<i64, Handed>>>;

/// A claim that is handed over, with its stop flag.
type Handed = (Arc<Claim>, Arc<StopFlag>);

/// How long after its time limit a handler may still hold its worker. A handler that heeds the stop request has returned by
/// then.
const GRACE: Duration = Duration::from_millis(250);

/// How long an attempt that was read ahead runs before its row says when it began. Most end before.
const LONG: Duration = Duration::from_millis(500);

/// How long a worker waits before it returns an attempt that it could not begin.
const UNNOTED: Duration = Duration::from_secs(1);

/// How soon the replacement of a worker that ended is retried.
const REPLACE_AGAIN: Duration = Duration::from_secs(1);

/// Attempts that have begun, have a time limit, and have not returned.
type Limited = Arc<Mutex<HashMap<(i64, u32), Limit>>>;

#[derive(Debug)]
struct Limit {
    claim: Arc<Claim>,
    /// By the monotonic clock: when its worker may be replaced.
    until: Duration,
    /// Whether its worker has been replaced.
    replaced: bool,
}

/// The workers of one scheduler. They end when it is dropped and their handlers have returned.
pub(crate) struct Pool {
    claims: Sender<Handed>,
    /// The workers' end of the queue, for taking back claims that no worker has begun.
    queue: Receiver<Handed>,
    finished: Receiver<Finished>,
    notices: Receiver<Notice>,
    handlers: Arc<Handlers>,
    flags: Flags,
    limited: Limited,
    workers: usize,
    /// Attempts whose orphan is being ended.
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
}

/// The state of every worker.
#[derive(Clone)]
struct Worker {
    handlers: Arc<Handlers>,
    clock: Arc<dyn Clock>,
    flags: Flags,
    limited: Limited,
    observers: Arc<Observers>,
    link: Link,
    connections: ConnectionSettings,
}

impl Pool {
    pub(crate) fn start(
        workers: usize,
        handlers: Handlers,
        clock: Arc<dyn Clock>,
        alive: Arc<OwnerLock>,
        observers: Arc<Observers>,
        connections: ConnectionSettings,
    ) -> Result<Self> {
        // As many again may be running in place of those that are held.
        let most = QUEUE + 2 * workers;
        let (claims, queue) = bounded::<Handed>(most);
        let (done, finished) = bounded(most);
        let (notify, notices) = bounded(most);
        let (flags, limited, handlers) = (Flags::default(), Limited::default(), Arc::new(handlers));
        let worker = Worker {
            handlers: handlers.clone(),
            clock,
            flags: flags.clone(),
            limited: limited.clone(),
            observers,
            link: Link { notices: notify, alive },
            connections,
        };
        let (started, missing, replace_at, threads) = (0, 0, Duration::ZERO, Vec::with_capacity(workers));
        let mut pool = Pool {
            claims,
            queue,
            finished,
            notices,
            handlers,
            flags,
            limited,
            workers,
            ending: Arc::default(),
            worker,
            done,
            started,
            missing,
            replace_at,
            threads,
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

    /// Hands a claim to the workers. The queue holds as many as a scheduler may claim ahead.
    pub(crate) fn submit(&self, claim: Arc<Claim>) {
        let flag = Arc::<StopFlag>::default();
        // A run that still runs under another flag was recovered by a scheduler that counted this owner as dead.
        if let Some((_, superseded)) = self.flags().insert(claim.run_id, (claim.clone(), flag.clone())) {
            superseded.raise(StopReason::Asked);
        }
        // The workers live as long as the pool: the queue cannot be closed.
        let sent = self.claims.send((claim, flag));
        debug_assert!(sent.is_ok(), "the workers are gone");
    }

    /// Returns the channel of outcomes.
    pub(crate) fn finished(&self) -> &Receiver<Finished> {
        &self.finished
    }

    /// Returns the channel of workers' notices about running attempts.
    pub(crate) fn notices(&self) -> &Receiver<Notice> {
        &self.notices
    }

    /// Has a handler end a command of a dead scheduler, on a thread of its own, unless it is doing so already. `then` is called
    /// when the handler has returned.
    pub(crate) fn end(&self, orphan: Orphan, then: impl FnOnce() + Send + 'static) {
        let Some(handler) = self.handlers.get(orphan.handler()).cloned() else { return };
        let (attempt, ending) = ((orphan.run_id(), orphan.attempt()), self.ending.clone());
        if !ending.lock().unwrap_or_else(PoisonError::into_inner).insert(attempt) {
            return;
        }
        let thread = thread::Builder::new().name(format!("duly-orphan-{}", orphan.run_id()));
        let spawned = thread.spawn(move || {
            if let Err(panic) = panics::contained(|| handler.end_orphan(&orphan)) {
                log::error!("the handler {:?} panicked where it should end an orphan: {panic:?}", orphan.handler());
            }
            panics::dispose("a handler", handler);
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
            self.flags().remove(&claim.run_id);
            Finished::new(claim, Outcome::Released, now, now)
        });
        recalled.collect()
    }

    /// Returns the begin of attempts that were read ahead and run for long: their rows do not show it yet.
    pub(crate) fn take_begun(&self, now: Duration) -> Vec<Report> {
        let flags = self.flags();
        let ahead = flags.values().filter(|(claim, _)| claim.read_ahead);
        let begun = ahead.filter_map(|(claim, flag)| {
            let at = flag.take_begun(|at| now.saturating_sub(at.monotonic) >= LONG)?;
            Some(Report { run: claim.run_id, attempt: claim.attempt, kind: ReportKind::Began(at.wall) })
        });
        begun.collect()
    }

    /// Asks the handler of a run to stop, if it has begun and not returned.
    pub(crate) fn stop(&self, run: i64) {
        if let Some((_, flag)) = self.flags().get(&run) {
            flag.raise(StopReason::Asked);
        }
    }

    /// Asks every handler to stop: the scheduler shuts down.
    pub(crate) fn stop_all(&self) {
        self.flags().values().for_each(|(_, flag)| flag.raise(StopReason::Shutdown));
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

    fn flags(&self) -> MutexGuard<'_, HashMap<i64, Handed>> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
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
            let _ = self.link.notices.send(Notice::WorkerEnded(WorkerEnded { at_work, error, replaced }));
        }
    }

    /// Records in the slots that the attempt begins, for a scheduler that recovers this one's runs. An attempt that cannot be
    /// recorded must not begin, and none may while the folder of the lock files is unsafe: it is returned to the queue after a
    /// while.
    fn begin(&self, claim: &Arc<Claim>, flag: &StopFlag, now: Now) -> Option<Place> {
        let Claim { run_id, task, attempt, .. } = &**claim;
        let alive = &self.link.alive;
        let place = match alive.check_folder(now.monotonic).and_then(|()| alive.begin(*run_id, *attempt)) {
            Ok(place) => place,
            Err(error) => {
                let reason = "its start cannot be noted in the lock file";
                log::warn!("run {run_id} of {task:?} is returned to the queue: {reason}: {error}");
                flag.wait(UNNOTED);
                return None;
            }
        };
        if claim.read_ahead {
            flag.begin(now);
        }
        self.observers.notify(&Event::Started { claim: claim.clone() });
        Some(place)
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
            let until = self.clock.now().monotonic.saturating_add(limit).saturating_add(GRACE);
            let limit = Limit { claim: claim.clone(), until, replaced: false };
            limits(&self.limited).insert((claim.run_id, claim.attempt), limit);
        };
        let now = self.clock.now();
        let at_once = |outcome| Finished::new(claim.clone(), outcome, now, now);
        let finished = match self.handlers.get(&claim.handler) {
            Some(handler) => match self.begin(&claim, &flag, now) {
                Some(place) => {
                    at_work.began = Some((now, place));
                    let tools = Tools::new(connection, Some(self.link.clone()));
                    let ended = attempt(&**handler, &claim, now, self.clock.clone(), flag, tools, begins);
                    Finished { slot: Some(place), ..ended }
                }
                None => at_once(Outcome::Released),
            },
            // A scheduler claims only runs of handlers that it has.
            None => at_once(Outcome::failed(format!("no handler is named {:?} here", claim.handler))),
        };
        (finished, self.leave(&claim))
    }

    /// Forgets an attempt that has ended. Returns whether another worker has replaced the one that ran it.
    fn leave(&self, claim: &Arc<Claim>) -> bool {
        let mut flags = self.flags.lock().unwrap_or_else(PoisonError::into_inner);
        if flags.get(&claim.run_id).is_some_and(|(newest, _)| Arc::ptr_eq(newest, claim)) {
            flags.remove(&claim.run_id);
        }
        drop(flags);
        limits(&self.limited).remove(&(claim.run_id, claim.attempt)).is_some_and(|limit| limit.replaced)
    }
}

fn limits(limited: &Limited) -> MutexGuard<'_, HashMap<(i64, u32), Limit>> {
    limited.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls the handler once. A panic of it is a failed attempt: the thread lives on. `begins` receives its time limit, if it has
/// one.
pub(crate) fn attempt(
    handler: &dyn Handler,
    claim: &Arc<Claim>,
    began: Now,
    clock: Arc<dyn Clock>,
    stop: Arc<StopFlag>,
    tools: Tools,
    begins: impl FnOnce(Duration),
) -> Finished {
    let mut exceeded = None;
    // The handler's own limit and the text of its error are application code as well.
    let ended = panics::contained(|| {
        let limit = limit(handler, claim);
        if let Some(limit) = limit {
            begins(limit);
        }
        let context = Context::new(claim.clone(), clock.clone(), stop, limit, tools.clone());
        let returned = handler.run(&context);
        exceeded = context.exceeded();
        judged(returned)
    });
    let outcome = ended.unwrap_or_else(|panic| {
        let error = format!("the handler panicked: {panic}");
        Outcome::Failed { how: FailureKind::Panicked, error, retry: Retry::Backoff }
    });
    let reported = std::mem::take(&mut *tools.reported());
    let input = reported.input;
    if let OwnEnd::Written(finished) = reported.end {
        if let Outcome::Failed { error, .. } = outcome {
            let Claim { run_id, task, .. } = &**claim;
            log::warn!(
                "run {run_id} of {task:?} was finished by its handler; what failed then changes nothing: {error:?}"
            );
        }
        input.iter().for_each(Input::remove);
        return *finished;
    }
    let (output, exit_code) = (reported.output, reported.exit_code);
    let progress = reported.progress.and_then(|progress| progress.newest());
    let finished =
        Finished::new(claim.clone(), outcome, began, clock.now()).exceeding(exceeded).with_remark(reported.remark);
    Finished { output, exit_code, progress, input, ..finished }
}

/// Returns the time limit of an attempt: the task's, else the handler's.
pub(crate) fn limit(handler: &dyn Handler, claim: &Claim) -> Option<Duration> {
    claim.timeout.or_else(|| handler.default_timeout()).filter(|limit| !limit.is_zero())
}

/// Returns the outcome for a handler's answer.
fn judged(returned: Result<Option<String>, BoxError>) -> Outcome {
    match returned {
        Ok(result) => Outcome::Succeeded { result },
        Err(error) => {
            let retry = error.downcast_ref::<Failure>().map_or(Retry::Backoff, Failure::retry);
            let failed = Outcome::Failed { how: FailureKind::Failed, error: error.to_string(), retry };
            panics::dispose("the error of a handler", error);
            failed
        }
    }
}
