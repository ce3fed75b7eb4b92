//! How a scheduler ends: in order, by itself, or dropped.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::clock::instant;
use crate::engine::loop_state::Order;
use crate::error::{Error, Result};
use crate::host::panics;
use crate::model::ended::{Ending, Shutdown};
use crate::scheduler::Scheduler;
use crate::worker::attempt::StopReason;

/// How long a scheduler that is dropped waits for its running handlers.
const DRAIN: Duration = Duration::from_secs(30);
/// How long the loop may take to say what is unfinished. If it is blocked, the count is that of the workers.
const ANSWER: Duration = Duration::from_millis(250);
/// How long a runtime of one thread may take to poll a future. Then the caller blocks that thread. An application may be busy for a moment.
const POLLED: Duration = Duration::from_secs(3);

impl Scheduler {
    /// Starts nothing more, returns un-started claims to the queue, and waits for the running handlers until the deadline.
    /// Handlers that have not returned by then are asked to stop. If the database does not answer for 250 ms after the deadline, this
    /// returns before the end of the scheduler is recorded.
    ///
    /// An error that a handler returns after that request is an interruption: three in a row do not count as attempts
    /// ([`Failure::interrupted`](crate::Failure::interrupted)). It is recorded if the handler returns before the process ends. If the
    /// process ends first, the attempt is lost, and counts. To have handlers return within the deadline, call
    /// [`Scheduler::interrupt`] before.
    ///
    /// Called by one of its own handlers, it returns at once, since it would wait for that handler. At the deadline all handlers are asked
    /// to stop, that one as well, and the scheduler ends when they have returned. On the only thread of the runtime of its async handlers,
    /// these cannot return meanwhile: it waits for the others, asks the async ones to stop after some seconds, and returns them as
    /// unfinished. Await `shutdown_async` there. Both are logged.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{BoxError, Context, NewTask, RunStatus, Scheduler};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # let (begun, begins) = std::sync::mpsc::channel();
    /// let scheduler = Scheduler::builder(&file)
    ///     .handler("wait", move |run: &Context| {
    ///         # begun.send(())?;
    ///         if run.wait_cancelled(Duration::from_secs(60)) { Err(BoxError::from("asked to stop")) } else { Ok(()) }
    ///     })
    ///     .start()?;
    /// let client = scheduler.client().clone();
    /// client.add(NewTask::manual("wait").handler("wait"))?;
    /// let run = client.trigger("wait")?;
    /// # begins.recv_timeout(Duration::from_secs(60))?;
    /// scheduler.interrupt();
    /// assert_eq!(scheduler.shutdown(Duration::from_secs(10))?.unfinished, 0);
    /// // The attempt was asked to stop, and does not count. The run is not over: the next scheduler retries it.
    /// let run = client.run(run)?.expect("the run");
    /// assert_eq!((run.status, run.attempt, run.forgiven), (RunStatus::Failed, 1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the scheduler had stopped by itself: the file or its log was removed or replaced, the file was overwritten or is
    /// corrupt; or a newer duly has migrated its tables.
    pub fn shutdown(mut self, deadline: Duration) -> Result<Shutdown> {
        self.end(self.polled(), deadline)
    }

    /// As [`Scheduler::shutdown`], and waits without blocking a thread of the runtime, on which async handlers may have to return.
    /// If its future is dropped once it was polled, the shutdown goes on.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::Scheduler;
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let scheduler = Scheduler::builder(&file).start()?;
    /// let client = scheduler.client().clone();
    /// assert_eq!(scheduler.shutdown_async(Duration::from_secs(30)).await?.unfinished, 0);
    /// // The client may outlive the scheduler.
    /// assert!(client.tasks()?.is_empty());
    /// # Ok::<(), duly::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Scheduler::shutdown`]; and if the runtime shuts down meanwhile.
    #[cfg(feature = "tokio")]
    pub async fn shutdown_async(mut self, deadline: Duration) -> Result<Shutdown> {
        if self.attempts.are_on_this_thread() {
            return self.end(None, deadline);
        }
        let shutdown = tokio::task::spawn_blocking(move || self.end(None, deadline)).await;
        shutdown.unwrap_or_else(|error| Err(Error::store("shut the scheduler down", error)))
    }

    /// Starts nothing more, and returns un-started claims to the queue. Does not wait: the scheduler stops when the running
    /// handlers have returned.
    pub fn drain(&self) {
        let _ = self.order.send(Order::Drain);
    }

    /// As [`Scheduler::drain`], and asks the running handlers to stop. An error that a handler then returns is an interruption:
    /// [`Failure::interrupted`](crate::Failure::interrupted).
    pub fn interrupt(&self) {
        // The loop may wait for a server that does not answer.
        self.attempts.stop_all(StopReason::Shutdown);
        let _ = self.order.send(Order::Interrupt);
    }

    /// Returns what waits for the end of this scheduler on another thread, while this one may shut it down.
    pub fn ending(&self) -> Ending {
        self.ending.clone()
    }

    /// Waits until the scheduler stops by itself, which it does only when going on would be wrong. The event
    /// [`Event::Stopped`](crate::Event::Stopped) says it, too.
    ///
    /// ```no_run
    /// let scheduler = duly::Scheduler::builder("agent.db").start()?;
    /// if let Err(error) = scheduler.wait() {
    ///     // As after a removal of the file. A service manager may start the program again.
    ///     eprintln!("the scheduler stopped: {error}");
    ///     std::process::exit(1);
    /// }
    /// # Ok::<(), duly::Error>(())
    /// ```
    ///
    /// # Errors
    /// Why it stopped: the file or its log was removed or replaced, the file was overwritten or is corrupt; or a newer duly has
    /// migrated its tables, and all runs of this scheduler have ended. Drop the scheduler and all its clients before you open
    /// the database again.
    pub fn wait(mut self) -> Result<()> {
        let ended = self.thread.take().map_or(Ok(()), joined);
        self.flush(DRAIN);
        ended
    }

    /// Waits until the observers have the last events.
    fn flush(&self, limit: Duration) {
        self.told.iter().for_each(|told| told.flush(limit));
    }

    /// If this thread may be the only one of the runtime of the async handlers, has the runtime poll a task, and returns the channel on
    /// which the task reports that it was polled. A thread for blocking calls is within the runtime as well, but does not block it.
    fn polled(&self) -> Option<Receiver<()>> {
        #[cfg(feature = "tokio")]
        if let Some(runtime) = &self.runtime
            && runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::CurrentThread
            && tokio::runtime::Handle::try_current().is_ok()
            && !self.attempts.claims().is_empty()
        {
            let (polled, polls) = crossbeam_channel::bounded(1);
            runtime.spawn(async move { polled.send(()) });
            return Some(polls);
        }
        None
    }

    /// Waits for the report, or the end of the loop. If the runtime polls nothing, no async handler can return while this thread waits.
    fn reported(
        &self,
        polled: Option<Receiver<()>>,
        deadline: Duration,
    ) -> std::result::Result<Shutdown, RecvTimeoutError> {
        let began = instant();
        if let Some(polled) = polled {
            crossbeam_channel::select! {
                recv(self.reports) -> report => return report.map_err(RecvTimeoutError::from),
                recv(polled) -> _ => {}
                default(deadline.min(POLLED)) => {
                    log::warn!(
                        "the scheduler of {} is shut down on the only thread of its async handlers, which cannot return meanwhile: they \
                         are not waited for; await `shutdown_async` instead",
                        self.place
                    );
                    let _ = self.order.send(Order::DrainWorkers);
                }
            }
        }
        self.reports.recv_timeout(deadline.saturating_sub(began.elapsed()))
    }

    /// Asks the running handlers to stop at the deadline, if the loop has not ended by then.
    fn cut_at(&self, deadline: Duration) {
        let (order, reports) = (self.order.clone(), self.reports.clone());
        let cut = move || {
            if reports.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
                let _ = order.send(Order::Cut);
            }
        };
        if let Err(error) = thread::Builder::new().name("duly-ending".to_owned()).spawn(cut) {
            log::warn!(
                "the handlers of {} are asked to stop now, since nothing can wait for the deadline: {error}",
                self.place
            );
            let _ = self.order.send(Order::Cut);
        }
    }

    /// `polled`: as [`Scheduler::polled`] returns it.
    fn end(&mut self, polled: Option<Receiver<()>>, deadline: Duration) -> Result<Shutdown> {
        let Some(thread) = self.thread.take() else { return Ok(Shutdown::default()) };
        let began = instant();
        let _ = self.order.send(Order::Drain);
        if self.attempts.are_on_this_thread() {
            log::warn!(
                "one of its own handlers shuts down the scheduler of {}: it ends when its handlers have returned, and this one must not \
                 wait for that",
                self.place
            );
            self.cut_at(deadline);
            return Ok(Shutdown::new(self.attempts.claims()));
        }
        let mut reported = self.reported(polled, deadline);
        if reported == Err(RecvTimeoutError::Timeout) {
            let _ = self.order.send(Order::Cut);
            reported = self.reports.recv_timeout(ANSWER);
        }
        match reported {
            // The thread continues, with its heartbeat, for the handlers that have not returned.
            Ok(shutdown) => Ok(shutdown),
            // So it does when it can: the lock of another program, or code of the application, holds it.
            Err(RecvTimeoutError::Timeout) => Ok(Shutdown::new(self.attempts.claims())),
            // The thread dropped its sender: it has stopped, in order or by itself.
            Err(RecvTimeoutError::Disconnected) => {
                let ended = joined(thread).map(|()| Shutdown::default());
                self.flush(deadline.saturating_sub(began.elapsed()));
                ended
            }
        }
    }
}

fn joined(thread: JoinHandle<Result<()>>) -> Result<()> {
    let panicked = |panic| format!("the poller thread panicked: {}", panics::message(panic));
    thread.join().unwrap_or_else(|panic| Err(Error::store("keep the loop going", panicked(panic))))
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        if self.thread.is_none() {
            return;
        }
        if let Err(error) = self.end(self.polled(), DRAIN) {
            log::error!("the scheduler of {} had stopped: {error}", self.place);
        }
    }
}
