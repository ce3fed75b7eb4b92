//! The door for those who run tasks: handlers by name, a few settings, start, shutdown. It owns the threads.

use std::collections::VecDeque;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, select};
use serde::Serialize;

use crate::client::Client;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::event::{Event, Observer};
use crate::handler::{BoxError, Context, Handler, Handlers};
use crate::poller::Poller;
use crate::pool::{Pool, QUEUE};
use crate::run::Finished;
use crate::settings::Settings;
use crate::store::opening::Slots;
use crate::store::turn::MAX_OUTCOMES;
use crate::store::{Durability, Missing, Store};

/// Claims that wait this long for a worker are given back.
const UNSTARTED: Duration = Duration::from_millis(500);
/// How long outcomes of short runs are gathered, to be written together.
const GATHER: Duration = Duration::from_millis(1);
/// How long a scheduler that is dropped waits for its running handlers.
const DRAIN: Duration = Duration::from_secs(30);

/// Puts a [`Scheduler`] together.
#[must_use = "nothing runs until it is started"]
pub struct Builder {
    path: PathBuf,
    handlers: Handlers,
    refused: Option<Error>,
    settings: Settings,
    durability: Durability,
    clock: Arc<dyn Clock>,
    observers: Vec<Arc<dyn Observer>>,
}

impl Builder {
    /// Registers a closure for tasks that name this handler. What it returns is stored as the run's result, as JSON; an
    /// error means: try again, unless it is a [`Failure`](crate::Failure) that says otherwise.
    pub fn handler<F, T, E>(self, name: impl Into<String>, handler: F) -> Self
    where
        F: Fn(&Context) -> Result<T, E> + Send + Sync + 'static,
        T: Serialize + 'static,
        E: Into<BoxError> + 'static,
    {
        self.handler_type(name, handler)
    }

    /// Registers a [`Handler`] of your own type.
    pub fn handler_type(mut self, name: impl Into<String>, handler: impl Handler) -> Self {
        if let Err(error) = self.handlers.add(name.into(), Arc::new(handler)) {
            self.refused.get_or_insert(error);
        }
        self
    }

    /// How many handlers run at once, 1 to 256. Default 4.
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// How long this scheduler is believed to move without a sign of life, at least a second. Default one minute. A dead
    /// process is found out at once all the same; this is for one that is alive and stands still.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How often the file is looked at for what other programs wrote, 10 ms to an hour. Default one second. Due tasks start
    /// on time however long this is.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.settings.poll = interval;
        self
    }

    /// What is given up for speed. Default: nothing.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Where the time comes from. Default: the machine.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Somebody who is told what happens, beside the log.
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Opens the file, makes it if there is none, recovers what a dead process left, and starts to run what is due.
    ///
    /// # Errors
    /// [`Error::UnusableDatabase`] if the file cannot be used; [`Error::InvalidConfig`] if a setting makes no sense.
    pub fn start(self) -> Result<Scheduler> {
        let Builder { path, handlers, refused, settings, durability, clock, mut observers } = self;
        if let Some(error) = refused {
            return Err(error);
        }
        settings.check()?;
        observers.insert(0, Arc::new(|event: &Event| log::log!(event.level(), "{event}")));
        let store = Store::open(&path, Missing::Create, durability)?;
        let own = Store::open(&path, Missing::Refuse, durability)?;
        let poller = Poller::new(store, handlers.names(), settings, observers, fastrand::Rng::new(), clock.now())?;
        let pool = Pool::start(settings.workers, handlers, clock.clone(), poller.lock())?;
        let (wake, woken) = bounded(1);
        let (order, orders) = bounded(2);
        let (report, reports) = bounded(1);
        let client = Client::new(own, clock.clone(), Some(wake));
        let turning =
            Turning { poller, pool, clock, settings, woken, orders, report, in_flight: 0, handed: VecDeque::new() };
        let thread = thread::Builder::new()
            .name("duly-poller".into())
            .spawn(move || turning.run())
            .map_err(|error| Error::store("start the poller thread", error))?;
        Ok(Scheduler { client, order, reports, thread: Some(thread), path })
    }
}

/// A running scheduler: it resolves what is due, claims it, and has its workers carry it out, until it is shut down or
/// dropped. It is a [`Client`] of its own file too.
///
/// ```
/// use duly::{Context, NewTask, Scheduler};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let (told, hears) = std::sync::mpsc::channel();
/// let scheduler = Scheduler::builder(&file)
///     .handler("greet", move |run: &Context| told.send(run.payload::<String>()?).map_err(duly::BoxError::from))
///     .start()?;
/// // An instant that has passed is due at once; a second `add` of the same name and meaning would change nothing.
/// scheduler.add(NewTask::once("greet:world", "2020-01-01T00:00:00Z".parse()?).handler("greet").payload("world"))?;
/// assert_eq!(hears.recv()?, "world");
/// assert_eq!(scheduler.shutdown(std::time::Duration::from_secs(5))?.unfinished, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a scheduler that is dropped shuts down"]
pub struct Scheduler {
    client: Client,
    order: Sender<Order>,
    reports: Receiver<usize>,
    thread: Option<JoinHandle<Result<()>>>,
    path: PathBuf,
}

/// What the poller thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Claim no more; end when nothing runs.
    Drain,
    /// Ask the handlers that still run to stop, and say how many there are.
    Cut,
}

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {
    /// Handlers that had not returned by the deadline. Each still records its outcome when it returns; if the process ends
    /// before, its run is recovered by the next scheduler.
    pub unfinished: usize,
}

impl Scheduler {
    /// Begins to put a scheduler together for this file.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder {
            path: path.as_ref().to_owned(),
            handlers: Handlers::default(),
            refused: None,
            settings: Settings::default(),
            durability: Durability::default(),
            clock: Arc::new(SystemClock::new()),
            observers: Vec::new(),
        }
    }

    /// A client of the same file, whose requests wake this scheduler. It can outlive it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Starts nothing more, gives back what no handler has begun, and waits for the running handlers, at most so long.
    /// Those that have not returned then are asked to stop.
    ///
    /// # Errors
    /// If the scheduler had stopped by itself: the file was removed or replaced.
    pub fn shutdown(mut self, deadline: Duration) -> Result<Shutdown> {
        self.end(deadline)
    }

    /// Waits until the scheduler stops by itself, which it does only when going on would be wrong.
    ///
    /// # Errors
    /// Why it stopped: the file was removed or replaced.
    pub fn wait(mut self) -> Result<()> {
        self.thread.take().map_or(Ok(()), joined)
    }

    fn end(&mut self, deadline: Duration) -> Result<Shutdown> {
        let Some(thread) = self.thread.take() else { return Ok(Shutdown { unfinished: 0 }) };
        let _ = self.order.send(Order::Drain);
        match self.reports.recv_timeout(deadline) {
            // The thread has let go of its end: it has stopped, in order or by itself.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                joined(thread)?;
                Ok(Shutdown { unfinished: 0 })
            }
            Err(RecvTimeoutError::Timeout) => {
                // The thread lives on, with its heartbeat, for the handlers that have not returned.
                let _ = self.order.send(Order::Cut);
                match self.reports.recv() {
                    Ok(unfinished) => Ok(Shutdown { unfinished }),
                    Err(_) => joined(thread).map(|()| Shutdown { unfinished: 0 }),
                }
            }
        }
    }
}

fn joined(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::store("keep the loop going", "the poller thread panicked")))
}

impl Deref for Scheduler {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        if let Err(error) = self.end(DRAIN) {
            log::error!("the scheduler of {} had stopped: {error}", self.path.display());
        }
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The loop: it joins poller and pool, which are strangers.
struct Turning {
    poller: Poller,
    pool: Pool,
    clock: Arc<dyn Clock>,
    settings: Settings,
    woken: Receiver<()>,
    orders: Receiver<Order>,
    report: Sender<usize>,
    /// Handed over and not come back.
    in_flight: usize,
    /// When, and how many at a time; the oldest that may still be un-started first.
    handed: VecDeque<(Duration, usize)>,
}

impl Turning {
    fn run(mut self) -> Result<()> {
        let mut finished: Vec<Finished> = Vec::new();
        let mut draining = false;
        loop {
            let now = self.clock.now();
            // What is taken back has not finished, and speaks for no reading ahead.
            let ended = finished.len();
            if draining || self.unstarted_since().is_some_and(|since| now.monotonic >= since + UNSTARTED) {
                let recalled = self.pool.recall(now.wall);
                self.in_flight -= recalled.len();
                finished.extend(recalled);
            }
            let slots = if draining { Slots::default() } else { self.slots(ended) };
            let turn = self.poller.turn(now, std::mem::take(&mut finished), slots)?;
            if !turn.claims.is_empty() {
                self.handed.push_back((now.monotonic, turn.claims.len()));
                self.in_flight += turn.claims.len();
            }
            turn.claims.into_iter().for_each(|claim| self.pool.submit(claim));
            turn.stop.into_iter().for_each(|run| self.pool.stop(run));
            if draining && self.in_flight == 0 && self.poller.unsettled() == 0 {
                break;
            }

            let give_back = self.unstarted_since().map_or(Duration::MAX, |since| since + UNSTARTED);
            select! {
                recv(self.pool.finished()) -> one => {
                    finished.extend(one);
                    self.gather(&mut finished);
                    self.in_flight -= finished.len();
                }
                recv(self.woken) -> _ => {}
                recv(self.orders) -> order => match order {
                    Ok(Order::Drain) => draining = true,
                    Ok(Order::Cut) => {
                        self.pool.stop_all();
                        let _ = self.report.try_send(self.in_flight);
                    }
                    // Nobody is left to give orders.
                    Err(_) => (draining, self.orders) = (true, crossbeam_channel::never()),
                },
                default(self.clock.until(turn.wake_at.min(give_back))) => {}
            }
        }
        self.poller.stop(self.clock.now())?;
        self.pool.join();
        Ok(())
    }

    /// How much may be claimed. Reading ahead goes only as far as what the last turn saw finished will carry: a claim that
    /// waits un-started is kept from every other process.
    fn slots(&self, finished: usize) -> Slots {
        let workers = self.settings.workers;
        let ahead = (finished * 4).min(MAX_OUTCOMES).min(QUEUE);
        Slots { room: (workers + ahead).saturating_sub(self.in_flight), idle: workers.saturating_sub(self.in_flight) }
    }

    /// When the oldest claim was handed over that no worker has begun.
    fn unstarted_since(&mut self) -> Option<Duration> {
        let mut begun = self.handed.iter().map(|(_, claims)| claims).sum::<usize>() - self.pool.unstarted();
        while let Some((_, claims)) = self.handed.front_mut() {
            if *claims > begun {
                *claims -= begun;
                break;
            }
            begun -= *claims;
            self.handed.pop_front();
        }
        self.handed.front().map(|(since, _)| *since)
    }

    /// Takes what else has finished; and while claims wait un-started, which says that runs are short, what finishes within
    /// a moment. Written together, outcomes cost a tenth of what they cost one by one.
    fn gather(&self, finished: &mut Vec<Finished>) {
        while finished.len() < MAX_OUTCOMES {
            let next = match self.pool.finished().try_recv() {
                Err(TryRecvError::Empty) if self.pool.unstarted() > 0 => self.pool.finished().recv_timeout(GATHER).ok(),
                next => next.ok(),
            };
            let Some(next) = next else { break };
            finished.push(next);
        }
    }
}
