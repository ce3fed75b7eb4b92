//! Supervision of one copy of a worker: starts its process, watches it, ends it, and starts it again.

pub(crate) mod application;

use std::collections::BTreeSet;
use std::io;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use duly::executor::{SharedInput, Waker};
use duly::{Clock, SystemClock, Timestamp, duration_text};

use crate::exec::guard::Watched;
use crate::exec::leader::LeaderOutput;
use crate::exec::system::{self, Group, is_shortage};
use crate::workers::attempts::{Ended, Hub};
use crate::workers::bell::Bell;
use crate::workers::log_lines::WorkerLog;
use crate::workers::options::WorkerOptions;
use crate::workers::process::{self, NotStarted, Place, Started};
use crate::workers::protocol::ToWorker;
use crate::workers::times::Times;
use crate::workers::worker::Worker;

/// Stack of the threads of a process.
const STACK: usize = 256 * 1024;
/// Time for which a worker that was asked to end, or has broken a rule, may end by itself before SIGTERM.
const GRACE: Duration = Duration::from_secs(1);
/// How a process ended that reports no failure.
const SUCCESS: &str = "exit code 0";
/// Time for which other processes of the group may outlive the worker.
const LEFTOVER: Duration = Duration::from_secs(2);
/// Time for which to wait for the end of the pipes when the group is empty: a process that left the group may hold them.
const PIPES: Duration = Duration::from_millis(500);
const PIPE_POLL: Duration = Duration::from_millis(1);
/// Time that may pass between two ticks before the machine counts as suspended.
const LATE: Duration = Duration::from_secs(2);

/// What the copy is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Run,
    /// It gets no more runs, and is not started again. With the time at which it is ended.
    Drain(Timestamp),
    End,
}

/// One copy of a worker.
pub(crate) struct Supervisor {
    pub(crate) options: Arc<WorkerOptions>,
    pub(crate) copy: u32,
    pub(crate) times: Times,
    pub(crate) place: Place,
    pub(crate) hub: Arc<dyn Hub>,
    /// Called when the copy has said hello or failed for the first time, and when it is given up.
    pub(crate) on_change: Arc<dyn Fn() + Send + Sync>,
    pub(crate) bell: Arc<Bell>,
    order: Mutex<Order>,
    live: Mutex<Option<Arc<Worker>>>,
    is_settled: AtomicBool,
    problem: Mutex<Option<String>>,
    /// Of an application: why it is served no more.
    ended: Mutex<Option<Result<String, String>>>,
    /// Runs whose attempts are left to an application: nothing is heard of them any more.
    left: Mutex<BTreeSet<i64>>,
}

/// Why a process ended.
enum End {
    ByItself,
    /// It was ended, for this reason.
    Because(String),
    /// It has broken this rule, and was sent an `error`.
    Broken(String),
    Ordered,
}

/// How the life of a process was.
struct Life {
    how: String,
    /// Why it served nothing: its hello was not accepted.
    unserved: Option<String>,
    /// It begins a new row of starts.
    is_proof: bool,
    /// It was not started for want of resources, which says nothing about the worker.
    is_shortage: bool,
}

impl Supervisor {
    pub(crate) fn new(
        (options, copy): (Arc<WorkerOptions>, u32),
        (times, place): (Times, Place),
        hub: Arc<dyn Hub>,
        on_change: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        Supervisor {
            options,
            copy,
            times,
            place,
            hub,
            on_change,
            bell: Arc::default(),
            order: Mutex::new(Order::Run),
            live: Mutex::default(),
            is_settled: AtomicBool::new(false),
            problem: Mutex::default(),
            ended: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Starts the thread that supervises the copy.
    pub(crate) fn start(self: &Arc<Self>, waker: Waker) -> io::Result<JoinHandle<()>> {
        let this = self.clone();
        let work =
            move || if this.options.is_application { this.serve_application(&waker) } else { this.supervise(&waker) };
        thread::Builder::new().name("duly-worker".to_owned()).stack_size(STACK).spawn(work)
    }

    /// Gives an order. An earlier one is not taken back.
    pub(crate) fn order(&self, order: Order) {
        let mut current = lock(&self.order);
        if *current != Order::End {
            *current = order;
        }
        drop(current);
        self.bell.ring();
    }

    /// Returns the live process.
    pub(crate) fn live(&self) -> Option<Arc<Worker>> {
        lock(&self.live).clone()
    }

    /// Whether it has said hello, or its first start has failed.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::SeqCst)
    }

    /// Returns why it was given up, or serves nothing.
    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.problem).clone()
    }

    /// Returns why the application is served no more: it has ended, or, an error, could not be served.
    pub(crate) fn ended(&self) -> Option<Result<String, String>> {
        lock(&self.ended).clone()
    }

    /// Returns the runs that are left to an application.
    pub(crate) fn left(&self) -> BTreeSet<i64> {
        lock(&self.left).clone()
    }

    /// `worker mail`, with the number of the copy if there are several.
    fn label(&self) -> String {
        let name = &self.options.name;
        if self.options.copies == 1 { format!("worker {name}") } else { format!("worker {name} (copy {})", self.copy) }
    }

    /// Returns the worker of a life that begins.
    fn worker(&self) -> Arc<Worker> {
        let database = self.place.database.to_string_lossy().into_owned();
        let id = (self.options.name.as_str().into(), self.copy);
        let log = WorkerLog::new(&self.label());
        Arc::new(Worker::new(id, log, database, self.hub.clone(), self.bell.clone()))
    }

    /// `the worker "mail"`, for the errors of its attempts.
    fn subject(&self) -> String {
        let name = &self.options.name;
        if self.options.copies == 1 {
            format!("the worker {name:?}")
        } else {
            format!("copy {} of the worker {name:?}", self.copy)
        }
    }

    fn has_order(&self) -> Order {
        *lock(&self.order)
    }

    fn settle(&self) {
        if !self.is_settled.swap(true, Ordering::SeqCst) {
            (self.on_change)();
        }
    }

    fn report(&self, problem: Option<String>) {
        let is_new = *lock(&self.problem) != problem;
        *lock(&self.problem) = problem;
        if is_new {
            (self.on_change)();
        }
    }

    /// Starts processes until an order ends that, or the copy is given up.
    fn supervise(&self, waker: &Waker) {
        let (label, mut row, mut short) = (self.label(), 0, 0);
        while self.has_order() == Order::Run {
            let life = self.live_once(waker);
            (row, short) = if life.is_shortage { (row, short + 1) } else { (row + 1, 0) };
            if life.is_proof {
                row = 0;
            }
            if self.has_order() != Order::Run {
                log::info!("{label}: {}", life.how);
                break;
            }
            if row >= self.times.starts {
                let problem = format!(
                    "{} was given up after {row} starts in a row: {}; correct it, and start duly run again",
                    self.subject(),
                    life.how
                );
                log::error!("{problem}");
                self.report(Some(problem));
                self.hub.give_up();
                break;
            }
            if !life.is_shortage {
                let again = "it is started again, and serves nothing before its hello";
                self.report(life.unserved.map(|how| format!("{} {how}; {again}", self.subject())));
            }
            let delay = self.times.delay(row.max(short).max(1));
            log::warn!("{label}: {}; next start in {}", life.how, duration_text(delay));
            self.settle();
            self.rest(delay);
        }
        self.settle();
        // The scheduler asks for the handlers again: a copy that is given up may have been the last.
        (self.on_change)();
        self.hub.wake();
    }

    /// Waits, unless an order ends it.
    fn rest(&self, delay: Duration) {
        let clock = SystemClock::new();
        let until = clock.now().monotonic + delay;
        while self.has_order() == Order::Run {
            let left = until.saturating_sub(clock.now().monotonic);
            if left.is_zero() {
                break;
            }
            self.bell.wait(left);
        }
    }

    /// Starts a process, and returns when it is gone and its attempts have ended.
    fn live_once(&self, waker: &Waker) -> Life {
        let started = waker.share_input().map_err(|error| NotStarted {
            how: format!("it was not started: cannot lock its file: {error}"),
            is_shortage: is_shortage(&error),
        });
        let started = started.and_then(|(input, locked)| {
            let started = process::start(&self.options, self.copy, &self.place, &locked)?;
            // A path that is not Unicode cannot be told to the guard.
            let database = self.place.database.to_str().map(|path| format!("DULY_DB={path}"));
            let variables = process::variables(&self.options, self.copy).map(|(name, value)| format!("{name}={value}"));
            let variables = variables.into_iter().chain(database).collect();
            let watched = self.place.guard.announce(None, variables, self.times.term);
            watched.iter().for_each(|watched| watched.identify(started.group.id()));
            // From here on, only the process has the file.
            drop(locked);
            input.record_guarded_process(started.group.id(), watched.as_ref().and_then(Watched::group));
            Ok((started, input, watched))
        });
        let (started, input, watched) = match started {
            Ok(started) => started,
            Err(NotStarted { how, is_shortage }) => {
                // The scheduler may have stopped.
                (self.on_change)();
                let unserved = (!is_shortage).then(|| how.clone());
                return Life { how, unserved, is_proof: false, is_shortage };
            }
        };
        let Started { mut group, stdin, stdout, stderr } = started;
        let (label, pid) = (self.label(), group.id());
        log::info!("{label}: started, pid {pid}");
        let worker = self.worker();
        let threads = [
            spawn("duly-worker-in", &worker, {
                let input = input.clone();
                move |worker| worker.write(stdin, &input)
            }),
            spawn("duly-worker-out", &worker, move |worker| worker.read(LeaderOutput::new(stdout, pid))),
            spawn("duly-worker-err", &worker, move |worker| worker.log.drain(stderr)),
        ];
        *lock(&self.live) = Some(worker.clone());
        let mut is_proof = false;
        let mut short = false;
        let end = match threads.into_iter().collect::<io::Result<Vec<()>>>() {
            Ok(_) => self.watch(&worker, &mut group, &mut is_proof),
            Err(error) => {
                short = is_shortage(&error);
                End::Because(format!("a thread for it cannot be started: {error}"))
            }
        };
        let (reason, status) = self.end(&worker, (group, watched), &input, end);
        // What a worker printed last that has ended without a failure explains nothing.
        let last = worker.log.last().filter(|_| reason.is_some() || status != SUCCESS);
        let last = last.map(|line| format!(": {line}")).unwrap_or_default();
        let how = match (reason, status) {
            (Some(reason), _) => format!("was ended: {reason}{last}"),
            (None, how) => format!("ended: {how}{last}"),
        };
        let is_heard = worker.output_ended();
        worker.attempts.close(&Ended { how: format!("{} {how}", self.subject()), is_heard });
        *lock(&self.live) = None;
        self.hub.unregister(self.copy);
        // Not before its attempts have ended: while they are recorded as running, their link to it is evidence.
        drop::<SharedInput>(input);
        let is_proof = is_proof || worker.has_ended_a_run();
        let unserved = (!short && !worker.attempts.was_accepted()).then(|| how.clone());
        Life { how: format!("{how} (pid {pid})"), unserved, is_proof, is_shortage: short }
    }

    /// Watches the process until it ends or is to be ended.
    fn watch(&self, worker: &Worker, group: &mut Group, is_proof: &mut bool) -> End {
        let (clock, tick) = (SystemClock::new(), self.times.tick());
        // Time that this process was awake: while the machine was suspended, the worker could not answer either.
        let (mut seen, mut awake) = (clock.now().monotonic, Duration::ZERO);
        let (mut heard, mut hello, mut has_pinged, mut is_stopping) = (Duration::ZERO, None, false, false);
        loop {
            if let Some(rule) = worker.attempts.broken() {
                return End::Broken(rule);
            }
            if group.has_ended() {
                return End::ByItself;
            }
            if worker.is_useless() {
                return End::Because("the file that shows that it is alive was removed".to_owned());
            }
            if worker.output_ended() || worker.input_closed() {
                // The end of a process follows that of its pipes at once.
                let closed = if worker.output_ended() { "output" } else { "input" };
                return if wait_for(PIPES, || group.has_ended()) {
                    End::ByItself
                } else {
                    End::Because(format!("it has closed its standard {closed}"))
                };
            }
            let said_hello = worker.attempts.said_hello();
            match self.has_order() {
                Order::End => return End::Ordered,
                Order::Drain(_) if !said_hello => return End::Ordered,
                Order::Drain(deadline) if !is_stopping => {
                    is_stopping = true;
                    worker.send_stop(deadline);
                }
                _ => {}
            }
            if said_hello && hello.is_none() {
                hello = Some(awake);
                self.report(None);
                self.settle();
            }
            if worker.take_heard() {
                (heard, has_pinged) = (awake, false);
            }
            let silent = awake - heard;
            match hello {
                None if awake >= self.times.hello => {
                    let limit = duration_text(self.times.hello);
                    return End::Because(format!("it had not said hello {limit} after its start"));
                }
                Some(_) if silent >= self.times.silence => {
                    return End::Because(format!("it was silent for {}", duration_text(self.times.silence)));
                }
                Some(_) if silent >= self.times.ping && !has_pinged => {
                    has_pinged = true;
                    worker.outbox.push_line(ToWorker::Ping.line());
                }
                Some(since) if awake - since >= self.times.proof => *is_proof = true,
                _ => {}
            }
            if let Some(id) = worker.attempts.overdue(awake, self.times.cancel) {
                let (run, limit) = (id.run, duration_text(self.times.cancel));
                return End::Because(format!("run {run} had not ended {limit} after its cancel"));
            }
            if let Some(id) = worker.attempts.unbegun(awake, Some(self.times.begin)).first() {
                let (run, limit) = (id.run, duration_text(self.times.begin));
                return End::Because(format!("it had not begun run {run} {limit} after it was given to it"));
            }
            self.bell.wait(tick);
            let now = clock.now().monotonic;
            awake += now.saturating_sub(seen).min(tick + LATE);
            seen = now;
        }
    }

    /// Ends the process. Returns when its group is empty and what it wrote is read: why it was ended, and how it ended.
    fn end(
        &self,
        worker: &Worker,
        group: (Group, Option<Watched>),
        input: &SharedInput,
        end: End,
    ) -> (Option<String>, String) {
        let (mut group, watched) = group;
        worker.attempts.leave();
        worker.outbox.close(None);
        let (grace, reason) = match end {
            End::ByItself => (LEFTOVER, None),
            End::Because(reason) => (Duration::ZERO, Some(reason)),
            End::Broken(rule) => (GRACE, Some(rule)),
            End::Ordered => (GRACE, None),
        };
        let left = group.has_ended().then(|| group.left()).flatten();
        let is_gone = process::end(&mut group, grace.min(self.times.term), self.times.term);
        if !is_gone {
            let left = group.left().unwrap_or_default();
            log::warn!("{}: remaining processes of the worker could not be ended: {left}", self.label());
        } else if let Some(left) = left {
            log::info!("{}: ended remaining processes of the worker: {left}", self.label());
        }
        if is_gone && let Some(left) = system::listed(&input.holders()) {
            log::warn!("{}: left running, since they have left the process group of the worker: {left}", self.label());
        }
        hear_out(worker);
        wait_for(PIPES, || worker.log.has_ended());
        if is_gone {
            watched.iter().for_each(Watched::end);
        }
        let status = group.end().map_err(|error| error.to_string());
        let how = |status: ExitStatus| system::failure(status).unwrap_or_else(|| SUCCESS.to_owned());
        (reason, status.map_or_else(|error| error, how))
    }
}

/// Starts a thread of a process.
fn spawn(name: &str, worker: &Arc<Worker>, work: impl FnOnce(&Worker) + Send + 'static) -> io::Result<()> {
    let worker = worker.clone();
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK);
    thread.spawn(move || work(&worker)).map(drop)
}

/// Waits until what a worker wrote before its end is read: it counts.
fn hear_out(worker: &Worker) {
    worker.set_gone();
    // The reader may be at work on it, or wait for a process that has left the group, or was forked.
    while !worker.output_ended() && wait_for(PIPES, || worker.output_ended() || !worker.is_reading()) {
        thread::sleep(PIPE_POLL);
    }
}

/// Waits until a condition holds, at most for `limit`. Returns whether it does.
fn wait_for(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let clock = SystemClock::new();
    let until = clock.now().monotonic + limit;
    loop {
        if holds() {
            return true;
        }
        if clock.now().monotonic >= until {
            return false;
        }
        thread::sleep(PIPE_POLL);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
