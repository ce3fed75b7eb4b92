//! `duly run`: the scheduler as a program, until it is told to leave or nothing is left to do.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use duly::{Apply, Client, Clock, Error, Event, Progress, Scheduler, SystemClock};

use crate::cli::args::RunArgs;
use crate::cli::failure::Failure;
use crate::cli::signals::{self, Request};
use crate::commands::apply;
use crate::exec::{Commands, children};
use crate::manifest::{self, Manifest};
use crate::output::escape;

/// How long it may take until what has come to an end otherwise than by a message is noticed.
const LOOK: Duration = Duration::from_secs(1);
/// The same while the scheduler leaves.
const LOOK_LEAVING: Duration = Duration::from_millis(50);
/// Signals that follow the first one within this time are the same request: a terminal, a service manager or a wrapper may signal
/// the process group and the process.
const SAME_REQUEST: Duration = Duration::from_millis(500);
/// Longest that commands may take to end when they must, and what became of them to be written down. A database that
/// refuses to be written must not keep the program for ever.
const LAST_WAIT: Duration = Duration::from_secs(20);
/// How long a file may seem of no use before it is: of a page that the disk cannot read just now, SQLite says the same as of
/// one that is corrupt.
const UNUSABLE: Duration = Duration::from_secs(3);
/// Messages that may wait to be read.
const NOTICES: usize = 64;

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All that had begun came to its end.
    InOrder,
    /// Commands were ended before their time, and will run again.
    CutShort,
}

/// What the main thread waits for.
enum Notice {
    Signal(Request),
    /// Something may have come to an end.
    Change,
}

/// Runs the scheduler until a signal, or until nothing is left to do.
///
/// # Errors
/// If a manifest cannot be applied; if it cannot start; or had to stop by itself, since the file was removed, replaced or corrupt.
pub(crate) fn run(file: &Path, args: &RunArgs) -> Result<Ended, Failure> {
    if let Some(tasks) = &args.tasks {
        let manifest = manifest::read(tasks).map_err(Failure::Refused)?;
        let client = if args.create { Client::open(file)? } else { Client::open_own(file)? };
        apply_logged(&client, tasks, manifest)?;
    }
    let cannot = |doing, source: io::Error| Error::Store { doing, source: source.into() };
    let (notify, notices) = sync_channel(NOTICES);
    // Before anything can begin: a signal in between would end the program with commands at work.
    signals::send(notify.clone(), Notice::Signal).map_err(|error| cannot("listen for signals", error))?;
    let commands = Commands::default();
    let mut builder = Scheduler::builder(file)
        .workers(args.workers)
        .poll(args.poll)
        .lease(args.lease)
        .retention(args.keep.retention())
        .handler_type("command", commands.clone());
    if !args.create && args.tasks.is_none() {
        builder = builder.existing();
    }
    if args.until_idle {
        // If there is no room, there is a notice of it already.
        builder = builder.observe(move |_: &Event| drop(notify.try_send(Notice::Change)));
    }
    let scheduler = builder.start()?;
    let (path, workers) = (file.display().to_string(), args.workers);
    log::info!("scheduler of {path:?} started, with {workers} workers");
    let stay = Stay { scheduler, commands, notices, args };
    // Whatever ended the stay, nothing that was begun is left at work.
    let stayed = stay.until_told_to_leave();
    let ended = stay.leave()?;
    stayed?;
    Ok(ended)
}

/// Applies a manifest, and says what that changed. What it does not declare any more stays.
fn apply_logged(client: &Client, tasks: &Path, manifest: Manifest) -> Result<(), Failure> {
    let applied = apply::of(client, manifest, Apply::default(), &Progress::default())?;
    log::info!("tasks of {:?}: {}", tasks.display().to_string(), apply::sums(&applied));
    Ok(())
}

/// A scheduler at work.
struct Stay<'a> {
    scheduler: Scheduler,
    commands: Commands,
    notices: Receiver<Notice>,
    args: &'a RunArgs,
}

impl Stay<'_> {
    /// Waits for a signal, for the scheduler to stop by itself, or, if that is asked, until nothing is left to do.
    fn until_told_to_leave(&self) -> Result<(), Error> {
        let (clock, mut unusable) = (SystemClock::new(), None);
        while !self.scheduler.has_stopped() {
            if self.args.until_idle && self.is_idle(&mut unusable, clock.now().monotonic)? {
                log::info!("nothing is left to do; leaving");
                return Ok(());
            }
            match self.next(LOOK) {
                Some(Request::Leave(signal)) => {
                    let (drain, at_work) = (humantime::format_duration(self.args.drain), self.commands.at_work());
                    log::info!("{signal}: nothing more is started; commands at work: {at_work}, for {drain} at most");
                    return Ok(());
                }
                Some(Request::Reload) => self.reload(),
                None => {}
            }
        }
        Ok(())
    }

    /// Whether nothing is left to do. What cannot be read now may be read later: the scheduler goes on as well. A file that
    /// cannot be used for so long that it must be so is an error. `since`: when that was first seen, by the clock of `now`.
    fn is_idle(&self, since: &mut Option<Duration>, now: Duration) -> Result<bool, Error> {
        let told = self.scheduler.is_idle();
        if !matches!(told, Err(Error::UnusableDatabase { .. })) {
            *since = None;
            return Ok(told.unwrap_or_default());
        }
        if now.saturating_sub(*since.get_or_insert(now)) < UNUSABLE { Ok(false) } else { told }
    }

    /// Applies the manifest again. If that fails nothing has changed, and the work goes on.
    fn reload(&self) {
        let Some(tasks) = &self.args.tasks else {
            return log::info!("SIGHUP: there is nothing to read again without --tasks");
        };
        let manifest = manifest::read(tasks).map_err(Failure::Refused);
        if let Err(failure) = manifest.and_then(|manifest| apply_logged(&self.scheduler, tasks, manifest)) {
            let failure = escape::one_line(&failure.to_string());
            log::error!("SIGHUP: no task was changed: {failure}; mend the manifest, and send it again");
        }
    }

    /// Lets what runs come to its end, for as long as it may; then ends it.
    fn leave(self) -> Result<Ended, Error> {
        self.scheduler.drain();
        let clock = SystemClock::new();
        let began = clock.now().monotonic;
        let until = began.saturating_add(self.args.drain);
        while !self.scheduler.has_stopped() && clock.now().monotonic < until {
            let Some(Request::Leave(signal)) = self.next(LOOK_LEAVING.min(clock.until(until))) else { continue };
            if clock.now().monotonic - began >= SAME_REQUEST {
                log::warn!("{signal} once more: the wait is over");
                break;
            }
            log::info!("{signal}: taken as one request with the signal before it");
        }
        if !self.scheduler.has_stopped() {
            let at_work = self.commands.at_work();
            log::warn!("commands ended before their time: {at_work}; those that may start again will");
            self.scheduler.interrupt();
            let until = clock.now().monotonic + LAST_WAIT;
            while !self.scheduler.has_stopped() && clock.now().monotonic < until {
                let _ = self.next(LOOK_LEAVING);
            }
        }
        let stopped = self.scheduler.shutdown(Duration::ZERO);
        if stopped.is_err() {
            // It has stopped by itself. Its handlers have been asked to stop; nothing may be left at work.
            let until = clock.now().monotonic + LAST_WAIT;
            while self.commands.at_work() > 0 && clock.now().monotonic < until {
                thread::sleep(LOOK_LEAVING);
            }
        }
        let unfinished = stopped?.unfinished;
        if unfinished > 0 {
            log::error!("the ends of {unfinished} runs could not be written down; the next scheduler recovers them");
            return Ok(Ended::CutShort);
        }
        log::info!("scheduler stopped");
        Ok(if self.commands.was_cut_short() { Ended::CutShort } else { Ended::InOrder })
    }

    /// The next signal, if one comes within this time. Earlier changes are taken together. Children that were not started here
    /// are cleared away.
    fn next(&self, limit: Duration) -> Option<Request> {
        children::reap();
        let mut notice = match self.notices.recv_timeout(limit) {
            Ok(notice) => notice,
            Err(RecvTimeoutError::Timeout) => return None,
            // The thread that listens for signals is gone: there is only time to wait for.
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(limit);
                return None;
            }
        };
        loop {
            match notice {
                Notice::Signal(request) => return Some(request),
                Notice::Change => match self.notices.try_recv() {
                    Ok(next) => notice = next,
                    Err(_) => return None,
                },
            }
        }
    }
}
