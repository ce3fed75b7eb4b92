//! Child mode, `--worker -`: the application is the parent of this process, and serves handlers over its standard input and output.
//!
//! The application is no process of this scheduler: it is never signalled. When it has ended, which the system reports of the parent of this
//! process, nothing more is read. What becomes of its runs is decided by the lock of a file that it has open: while a process holds the
//! lock, it may run handlers, so the runs stay `running`, also when this process has ended.

use std::ffi::OsString;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::time::Duration;

use duly::executor::{SharedInput, Waker};
use duly::{Clock, SystemClock, duration_text};

use crate::exec::leader::{LeaderOutput, lock_own_input, own_input};
use crate::exec::system;
use crate::output::units::count_of;
use crate::workers::attempts::Ended;
use crate::workers::options::FILE;
use crate::workers::protocol::ToWorker;
use crate::workers::supervisor::{LATE, Order, Supervisor, hear_out, lock, spawn};
use crate::workers::worker::Worker;

/// The role of a process that locks its standard input, a file that the application has open too, and ends: systems know locks of open
/// files, and Node.js has no call for them.
const ROLE: &str = "duly-lock-input";
/// How often the lock of an application that has closed its pipe is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// In the role of the locker: locks standard input. `None`: in another role.
pub(crate) fn lock_input(mut words: impl Iterator<Item = OsString>) -> Option<io::Result<()>> {
    words.nth(1).filter(|word| word == ROLE)?;
    Some(lock_own_input())
}

impl Supervisor {
    /// Serves the application until it has ended, or an order ends that.
    pub(super) fn serve_application(&self, waker: &Waker) {
        let application = system::first_parent();
        let path = std::env::var_os(FILE).map(PathBuf::from).unwrap_or_default();
        let input = match waker.adopt_input(&path) {
            Ok(input) => input,
            Err(error) => return self.leave_application(Err(format!("its file cannot be used as its lock: {error}"))),
        };
        let messages = match own_input() {
            Ok(messages) => LeaderOutput::new(messages, application),
            Err(error) => return self.leave_application(Err(format!("standard input cannot be read: {error}"))),
        };
        let worker = self.worker();
        let threads = [
            spawn("duly-worker-in", &worker, {
                let input = input.clone();
                move |worker| worker.write(io::stdout(), &input)
            }),
            spawn("duly-worker-out", &worker, move |worker| worker.read(messages)),
        ];
        *lock(&self.live) = Some(worker.clone());
        match threads.into_iter().collect::<io::Result<Vec<()>>>() {
            Ok(_) => self.watch_application(&worker, &input, application),
            Err(error) => self.leave_application(Err(format!("a thread for it cannot be started: {error}"))),
        }
        let is_gone = self.await_end(&worker, &input, application);
        worker.attempts.leave();
        worker.outbox.close(None);
        let left = worker.attempts.runs();
        if is_gone {
            worker.attempts.close(&Ended { how: "the application ended".to_owned(), is_heard: worker.output_ended() });
        } else if !left.is_empty() {
            let runs = count_of(left.len(), "run");
            log::warn!(
                "{}: {runs} left to it: they start nowhere else before it has ended, or has closed the file of its lock",
                self.label()
            );
            self.hub.cut_short();
            *lock(&self.left) = left;
            // Dropping an attempt would end it.
            mem::forget(worker.clone());
        }
        *lock(&self.live) = None;
        self.hub.unregister(self.copy);
    }

    /// Has `duly run` end: the application has ended, or, an error, cannot be served.
    fn leave_application(&self, how: Result<String, String>) {
        lock(&self.ended).get_or_insert(how);
        self.settle();
        (self.on_change)();
        self.hub.wake();
    }

    /// Watches the application until its messages have ended, or an order ends that. It is not ended, whatever it does: what it neglects is
    /// a problem of this scheduler.
    fn watch_application(&self, worker: &Worker, input: &SharedInput, application: u32) {
        let (clock, tick) = (SystemClock::new(), self.times.tick());
        // Time that this process was awake.
        let (mut seen, mut awake) = (clock.now().monotonic, Duration::ZERO);
        let (mut heard, mut has_pinged, mut is_stopping) = (Duration::ZERO, false, false);
        // A process that the application has forked may hold its pipe, and its lock.
        let has_ended = || input.is_free() || system::parent() != application;
        while !worker.output_ended() && !has_ended() {
            let said_hello = worker.attempts.said_hello();
            match self.has_order() {
                Order::End => return,
                Order::Drain(deadline) if !is_stopping => {
                    is_stopping = true;
                    worker.send_stop(deadline);
                }
                _ => {}
            }
            if let Some(rule) = worker.attempts.broken() {
                self.leave_application(Err(rule));
            } else if worker.is_useless() || worker.input_closed() {
                self.leave_application(Err("it does not read, or the file of its lock was removed".to_owned()));
            } else if said_hello {
                self.settle();
            } else if awake >= self.times.hello {
                self.leave_application(Err(format!("it had not said hello after {}", duration_text(self.times.hello))));
            }
            if worker.take_heard() {
                (heard, has_pinged) = (awake, false);
            }
            let silent = awake - heard;
            if silent >= self.times.ping && !has_pinged {
                has_pinged = true;
                worker.outbox.push_line(ToWorker::Ping.line());
            }
            // One that it reads no message of is not lost. A recalled one keeps its slot: the application may still begin it.
            let reads = silent < 2 * self.times.ping;
            let unbegun = worker.attempts.unbegun(awake, reads.then_some(self.times.begin));
            unbegun.iter().for_each(|id| worker.recall(*id));
            let late = worker.attempts.overdue(awake, self.times.cancel);
            if late.is_some() && self.drain_is_over() {
                return;
            }
            let problem = if silent >= self.times.silence {
                Some(format!("the application has been silent for {}: is its thread busy?", duration_text(silent)))
            } else {
                let late = late.map(|id| (id.run, "ended after its cancel".to_owned()));
                let limit = duration_text(self.times.begin);
                let unbegun = unbegun.first().map(|id| (id.run, format!("begun {limit} after it was given to it")));
                late.or(unbegun)
                    .map(|(run, what)| format!("run {run} of the application has not {what}; it is waited for"))
            };
            let is_new = problem.is_some() != lock(&self.problem).is_some();
            if let Some(problem) = problem.as_ref().filter(|_| is_new) {
                log::warn!("{problem}");
            }
            *lock(&self.problem) = problem;
            self.bell.wait(tick);
            let now = clock.now().monotonic;
            awake += now.saturating_sub(seen).min(tick + LATE);
            seen = now;
        }
        let how = if has_ended() { "it has ended" } else { "it has closed its pipe" };
        hear_out(worker);
        // It may have closed its pipe at the `error`.
        self.leave_application(worker.attempts.broken().map_or_else(|| Ok(how.to_owned()), Err));
    }

    /// Whether the time has passed that running attempts have at the end.
    fn drain_is_over(&self) -> bool {
        matches!(self.has_order(), Order::Drain(deadline) if SystemClock::new().now().wall >= deadline)
    }

    /// Waits until the application is gone, or is not waited for any more. Returns whether it is gone.
    fn await_end(&self, worker: &Worker, input: &SharedInput, application: u32) -> bool {
        // Also when no attempt is left: the application may need a moment to end after its pipe.
        while !input.is_free() {
            let has_ended = || worker.output_ended() || system::parent() != application;
            let is_idle = || worker.attempts.count() == 0;
            if self.has_order() == Order::End || self.drain_is_over() || has_ended() && is_idle() {
                return false;
            }
            self.bell.wait(LOOK);
        }
        true
    }
}
