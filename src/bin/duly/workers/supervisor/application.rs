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

use crate::exec::system;
use crate::output::units::count_of;
use crate::workers::attempts::Ended;
use crate::workers::leader::{LeaderOutput, Pipe, is_read};
use crate::workers::options::FILE;
use crate::workers::protocol::ToWorker;
use crate::workers::supervisor::{LATE, Order, PIPES, Supervisor, lock, spawn, wait_for};
use crate::workers::worker::Worker;

/// The role of a process that locks its standard input, a file that the application has open too, and ends: systems know locks of open
/// files, and Node.js has no call for them.
const ROLE: &str = "duly-lock-input";
/// How often the lock of an application that has closed its pipe is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// In the role of the locker: locks standard input. `None`: in another role.
pub(crate) fn lock_input(mut words: impl Iterator<Item = OsString>) -> Option<io::Result<()>> {
    words.nth(1).filter(|word| word == ROLE)?;
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let file = io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from);
        // Closing it does not unlock it: the application has the same open file.
        Some(file.and_then(|file| file.lock()))
    }
    #[cfg(not(unix))]
    Some(Err(io::ErrorKind::Unsupported.into()))
}

/// Returns standard input, without a buffer.
fn own_input() -> io::Result<impl io::Read + Pipe + Send + 'static> {
    #[cfg(unix)]
    return std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned().map(std::fs::File::from);
    #[cfg(not(unix))]
    Ok(io::stdin())
}

impl Supervisor {
    /// Serves the application until it has ended, or an order ends that.
    pub(super) fn serve_application(&self, waker: &Waker) {
        let application = system::parent();
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
            // While it reads nothing, it may still begin what is in its pipe.
            let reads = silent < 2 * self.times.ping || is_read(&io::stdout());
            if let Some(id) = worker.attempts.unbegun(awake, reads.then_some(self.times.begin)) {
                let limit = duration_text(self.times.begin);
                let how = format!("the application had not begun run {} {limit} after it was given to it", id.run);
                if worker.attempts.take_back(id, &how) {
                    log::warn!("{how}: the run is taken back");
                }
            }
            let late = worker.attempts.overdue(awake, self.times.cancel);
            if late.is_some() && self.drain_is_over() {
                return;
            }
            let problem = if silent >= self.times.silence {
                Some(format!("the application has been silent for {}: is its thread busy?", duration_text(silent)))
            } else {
                late.map(|id| {
                    format!("run {} of the application has not ended after its cancel; it is waited for", id.run)
                })
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
        // What it wrote before its end counts.
        wait_for(PIPES, || worker.output_ended());
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
