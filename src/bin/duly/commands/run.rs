//! `run`: runs the scheduler until a signal, or until it is idle.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

#[cfg(feature = "page")]
use duly::page::Page;
use duly::text::database_name::{is_address, shown};
use duly::{Apply, Client, Clock, Error, Event, Progress, Scheduler, Shutdown, SystemClock, duration_text};

use crate::alarms::Alarms;
use crate::cli::args::RunArgs;
use crate::cli::failure::Failure;
use crate::cli::last_resort::{End, LastResort};
use crate::cli::service_manager::ServiceManager;
use crate::cli::signals::{self, Request};
use crate::commands::apply;
use crate::exec::environment::Environment;
use crate::exec::guard::Guard;
use crate::exec::{Commands, children, system};
use crate::manifest::{self, Manifest};
use crate::output::escape;
use crate::output::forward::Forward;
use crate::output::units::{count_of, first_of};
use crate::workers::options::MAX_WORKERS;
use crate::workers::times::Times;
use crate::workers::{Place, WorkerOptions, Workers};

/// Most runs that the last message names.
const RUNS_NAMED: usize = 10;
/// Interval at which changes that send no message are noticed.
const POLL: Duration = Duration::from_secs(1);
/// The same while the scheduler drains.
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// The same while workers end, which takes milliseconds.
const WORKER_POLL: Duration = Duration::from_millis(5);
/// A signal that follows the first one within this time is the same request: a terminal, a service manager or a wrapper may
/// signal both the process group and the process.
const SAME_REQUEST: Duration = Duration::from_millis(500);
/// Time limit for ending commands and recording their outcomes after the drain. A database that cannot be written must not
/// keep the program running for ever.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(20);
/// The same for workers: an attempt has ten seconds after its cancel, and its worker ten seconds after SIGTERM.
const WORKER_LIMIT: Duration = Duration::from_secs(30);
/// Time for which a file must be unusable before the program gives up: SQLite reports a page that is temporarily unreadable
/// like a corrupt one.
const UNUSABLE: Duration = Duration::from_secs(3);
/// Capacity of the channel of notices.
const NOTICES: usize = 64;

/// How the scheduler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Every run that had started has ended, and its outcome is recorded.
    Clean,
    /// Commands were ended early, or outcomes are not recorded.
    CutShort,
}

/// A message to the main thread.
enum Notice {
    /// A signal asks to stop; its name.
    Stop(&'static str),
    /// The scheduler may have become idle, a signal asks for a reload, or an answer has come.
    Change,
}

/// Runs the scheduler until a signal, or with `--until-idle` until it is idle. `forward`: where the output of commands is copied
/// to.
///
/// # Errors
/// If the manifest cannot be applied, if the scheduler cannot start, or if it stops by itself because the file was removed,
/// replaced or is corrupt.
pub(crate) fn run(file: &Path, args: &RunArgs, forward: Option<Forward>, end: End) -> Result<Exit, Failure> {
    let _reserved = system::reserve_lock();
    let alarms = args.alarms.options()?;
    let (mut workers, times) = worker_options(args)?;
    let clock = SystemClock::new();
    let started = clock.now().wall;
    let mut declared = Vec::new();
    if let Some(tasks) = &args.tasks {
        let mut manifest = manifest::read(tasks).map_err(Failure::Refused)?;
        declared = std::mem::take(&mut manifest.workers);
        add_declared(&mut workers, &declared, tasks)?;
        #[cfg(feature = "postgres")]
        drop(Scheduler::builder(file).check_server()?);
        let client = if args.create { Client::open(file)? } else { Client::open_own(file)? };
        apply_logged(&client, tasks, manifest)?;
    }
    let (notify, notices) = sync_channel(NOTICES);
    // Before the scheduler starts: an earlier signal would end the program while commands are running.
    let last_resort = LastResort::new(args.drain, clock, end);
    let reloads = Arc::<AtomicBool>::default();
    let (asked, wanted, notified) = (last_resort.clone(), reloads.clone(), notify.clone());
    let take = move |request| match request {
        Request::Stop(signal) => {
            asked.asked();
            notified.send(Notice::Stop(signal)).is_ok()
        }
        // However many are pending, they are one, and hide no other signal.
        Request::Reload => {
            wanted.store(true, Ordering::SeqCst);
            drop(notified.try_send(Notice::Change));
            true
        }
    };
    signals::forward(take).map_err(|error| cannot("listen for signals", error))?;
    let environment = if args.clean_env { Environment::Clean } else { Environment::Inherited };
    let guard = Guard::new();
    let commands = Commands::new(environment, forward, guard.clone());
    let manager = ServiceManager::from_env();
    let on_change = notify.clone();
    // If the channel is full, a notice is pending already.
    let on_change = move || drop(on_change.try_send(Notice::Change));
    let place = Place::new(file, environment, guard.clone()).map_err(Failure::Refused)?;
    let mut programs = Workers::new(workers, times, place, on_change).map_err(Failure::Refused)?;
    let mut builder = Scheduler::builder(file)
        .workers(args.workers)
        .poll(manager.interval().map_or(args.poll, |turns| turns.min(args.poll)))
        .lease(args.lease)
        .retention(args.keep.retention())
        .handler_type("command", commands.clone())
        .guarded({
            let guard = guard.clone();
            // Before the first attempt, and not before the database is opened: a run that is refused starts no process.
            move |place| {
                guard.take_lock(place);
                guard.start();
            }
        });
    #[cfg(feature = "postgres")]
    {
        let guard = guard.clone();
        builder = builder.on_lease(move |term, kill| guard.set_deadline(term, kill));
    }
    if !args.create && args.tasks.is_none() {
        builder = builder.existing();
    }
    for executor in programs.executors() {
        builder = builder.executor(executor);
    }
    if args.until_idle {
        let notify = notify.clone();
        // If the channel is full, a notice is pending already.
        builder = builder.observe(move |_: &Event| drop(notify.try_send(Notice::Change)));
    }
    #[cfg(feature = "page")]
    if let Some(page) = page(args) {
        builder = builder.page(page);
    }
    let scheduler = builder.start().inspect_err(|_| guard.finish())?;
    last_resort.look(scheduler.turns(), false);
    #[cfg(feature = "page")]
    if let Some(address) = scheduler.page_address() {
        log::info!("status page on http://{address}/");
    }
    let (path, workers) = (shown(file), args.workers);
    log::info!("scheduler started, with {}, on {path:?}", count_of(workers, "worker"));
    let times = [args.poll, args.lease, args.drain].map(duration_text);
    log::debug!("poll interval {}, lease {}, drain {}, {:?}", times[0], times[1], times[2], args.keep.retention());
    let status = format!("on {path:?}, with {}", count_of(workers, "worker"));
    programs.start().map_err(|error| cannot("start a thread for a worker", error))?;
    let problems = RefCell::default();
    let session = Session {
        scheduler,
        commands,
        programs,
        problems,
        notify,
        notices,
        reloads,
        stop: Cell::default(),
        args,
        declared,
        clock,
        manager,
        status,
        guard: guard.clone(),
        is_on_server: is_address(file),
        last_resort,
    };
    let (database, of_alarms) = (file.to_owned(), guard.clone());
    let alarms = session.unless_stopped(move || Alarms::start(&database, alarms, started, &of_alarms));
    let (alarms, waited) = match alarms.and_then(Option::transpose) {
        Ok(alarms) => (alarms.flatten(), session.wait_for_stop()),
        Err(error) => (None, Err(error)),
    };
    // Also after an error, running commands are ended.
    let exit = session.shut_down();
    if let Some(alarms) = alarms {
        alarms.finish();
    }
    guard.finish();
    let exit = exit?;
    waited?;
    Ok(exit)
}

fn cannot(doing: &'static str, source: io::Error) -> Error {
    Error::Store { doing, source: source.into() }
}

/// Returns the workers that the arguments name, and their time limits.
fn worker_options(args: &RunArgs) -> Result<(Vec<WorkerOptions>, Times), Failure> {
    let usage = |name: &'static str| move |reason: String| Failure::Usage(format!("{name}: {reason}"));
    let workers = args.worker.iter().map(|text| WorkerOptions::parse(text)).collect::<Result<Vec<_>, _>>();
    let workers = workers.map_err(usage("--worker"))?;
    check_workers(&workers).map_err(usage("--worker"))?;
    if args.forward_output && workers.iter().any(|worker| worker.is_application) {
        return Err(Failure::Usage("--forward-output: with --worker -, standard output carries messages".to_owned()));
    }
    let times = args.worker_times.as_deref().map(str::parse).transpose().map_err(usage("--worker-times"))?;
    Ok((workers, times.unwrap_or_default()))
}

/// Adds the workers that a manifest declares to those of the arguments.
fn add_declared(workers: &mut Vec<WorkerOptions>, declared: &[WorkerOptions], tasks: &Path) -> Result<(), Failure> {
    let is_declared = |worker: &&WorkerOptions| declared.iter().any(|other| other.name == worker.name);
    if let Some(worker) = workers.iter().find(is_declared) {
        let (name, tasks) = (&worker.name, tasks.display());
        let reason = format!("--worker: {tasks} declares a worker {name:?}, too: expected one of this name");
        return Err(Failure::Refused(reason));
    }
    workers.extend_from_slice(declared);
    check_workers(workers).map_err(|reason| Failure::Refused(format!("--worker: {reason}")))
}

/// Refuses too many workers, and two of one name, before anything is written.
fn check_workers(workers: &[WorkerOptions]) -> Result<(), String> {
    if workers.len() > MAX_WORKERS {
        return Err(format!("expected at most {MAX_WORKERS} workers, found {}", workers.len()));
    }
    let mut names = BTreeSet::new();
    match workers.iter().find(|worker| !names.insert(&worker.name)) {
        Some(twice) => Err(format!("two workers have the name {:?}", twice.name)),
        None => Ok(()),
    }
}

/// Returns the page that the arguments ask for.
#[cfg(feature = "page")]
fn page(args: &RunArgs) -> Option<Page> {
    let mut page = Page::on(args.http.as_ref()?);
    if args.http_actions {
        page = page.actions();
    }
    Some(if args.metrics_per_task { page.metrics_per_task() } else { page })
}

/// Applies the manifest and logs the changes. Tasks that it no longer declares are left.
fn apply_logged(client: &Client, tasks: &Path, manifest: Manifest) -> Result<(), Failure> {
    let applied = apply::apply_manifest(client, manifest, Apply::default(), &Progress::default())?;
    log::info!("applied {:?}: {}", tasks.display().to_string(), apply::summary(&applied));
    Ok(())
}

/// A running scheduler.
struct Session<'a> {
    scheduler: Scheduler,
    commands: Commands,
    programs: Workers,
    /// The problems that the scheduler knows.
    problems: RefCell<Vec<String>>,
    notify: SyncSender<Notice>,
    notices: Receiver<Notice>,
    /// Whether a signal asks for a reload.
    reloads: Arc<AtomicBool>,
    /// The signal that asked to stop while an answer was awaited.
    stop: Cell<Option<&'static str>>,
    args: &'a RunArgs,
    /// The workers that the manifest declared at the start.
    declared: Vec<WorkerOptions>,
    clock: SystemClock,
    manager: ServiceManager,
    /// What the service manager shows while the scheduler runs.
    status: String,
    guard: Guard,
    is_on_server: bool,
    last_resort: Arc<LastResort>,
}

impl Session<'_> {
    /// Waits for a signal, for the scheduler to stop by itself, or with `--until-idle` until it is idle.
    fn wait_for_stop(&self) -> Result<(), Error> {
        let mut unusable = None;
        while !self.scheduler.has_stopped() {
            if self.args.until_idle && self.is_idle(&mut unusable, self.clock.now().monotonic)? {
                log::info!("idle; stopping");
                return Ok(());
            }
            if let Some(how) = self.programs.ended_application() {
                let (drain, running) = (humantime::format_duration(self.args.drain), self.running());
                let reason = how.as_ref().unwrap_or_else(|reason| reason);
                log::info!("application: {reason}; no more runs are started; {running}, for up to {drain}");
                let cannot = |reason: String| Error::Store { doing: "serve the application", source: reason.into() };
                return how.map(drop).map_err(cannot);
            }
            let limit = if self.scheduler.turns() == 0 { DRAIN_POLL } else { POLL };
            match self.next_request(limit) {
                Some(Request::Stop(signal)) => {
                    let (drain, running) = (humantime::format_duration(self.args.drain), self.running());
                    log::info!("{signal}: no more runs are started; {running}, for up to {drain}");
                    return Ok(());
                }
                Some(Request::Reload) => self.reload()?,
                None => {}
            }
        }
        Ok(())
    }

    /// Calls `f`, which asks the database. A server may not answer: then on a thread of its own. `None`: a signal asks to stop, and the call
    /// goes on.
    fn unless_stopped<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Result<Option<T>, Error> {
        if !self.is_on_server {
            return Ok(Some(f()));
        }
        let ((report, answer), notify) = (sync_channel(1), self.notify.clone());
        let call = move || {
            drop(report.send(f()));
            drop(notify.try_send(Notice::Change));
        };
        let doing = "ask the database beside the main thread";
        thread::Builder::new().name("duly-asks".into()).spawn(call).map_err(|error| cannot(doing, error))?;
        loop {
            match answer.try_recv() {
                Ok(answer) => return Ok(Some(answer)),
                Err(TryRecvError::Disconnected) => return Err(cannot(doing, io::Error::other("its thread panicked"))),
                Err(TryRecvError::Empty) => {}
            }
            if let Some(signal) = self.next_stop(POLL) {
                self.stop.set(Some(signal));
                return Ok(None);
            }
        }
    }

    /// Describes what is running: `running commands: 2`.
    fn running(&self) -> String {
        let commands = format!("running commands: {}", self.commands.running());
        if self.programs.are_any() {
            format!("{commands}, runs of workers: {}", self.programs.running())
        } else {
            commands
        }
    }

    /// Whether the scheduler is idle. An error while reading counts as not idle, because the next read may succeed; a file that
    /// is unusable for [`UNUSABLE`] is an error. A server may be usable again, as after a GRANT. `since`: the monotonic time at which the
    /// file was first unusable.
    fn is_idle(&self, since: &mut Option<Duration>, now: Duration) -> Result<bool, Error> {
        if !self.programs.are_settled() {
            // The handlers of a worker are not known yet.
            return Ok(false);
        }
        let Some(is_idle) = self.unless_stopped(self.scheduler.idleness())? else { return Ok(false) };
        if self.is_on_server || !matches!(is_idle, Err(Error::UnusableDatabase { .. })) {
            *since = None;
            return Ok(is_idle.unwrap_or_default());
        }
        if now.saturating_sub(*since.get_or_insert(now)) < UNUSABLE { Ok(false) } else { is_idle }
    }

    /// Applies the manifest again. If it is refused, nothing has changed. The scheduler continues.
    fn reload(&self) -> Result<(), Error> {
        self.manager.report_reload();
        let Some(tasks) = self.args.tasks.clone() else {
            self.manager.report_reloaded(&self.status);
            log::info!("SIGHUP: ignored, because --tasks was not given");
            return Ok(());
        };
        let (client, declared) = (self.scheduler.client().clone(), self.declared.clone());
        let applied = self.unless_stopped(move || {
            let manifest = manifest::read(&tasks).map_err(Failure::Refused)?;
            let changed = manifest.workers != declared;
            apply_logged(&client, &tasks, manifest).map(|()| changed)
        });
        match applied? {
            None => log::warn!("SIGHUP: the manifest is not applied yet, and may not be: a signal asks to stop"),
            Some(Ok(changed)) => {
                self.manager.report_reloaded(&self.status);
                if changed {
                    log::warn!("SIGHUP: the workers of the manifest have changed: restart duly run to apply that");
                }
            }
            Some(Err(failure)) => {
                let failure = escape::one_line(&failure.to_string());
                self.manager.report_reloaded(&format!("{}; SIGHUP: no task was changed: {failure}", self.status));
                log::error!("SIGHUP: no task was changed: {failure}; correct the manifest and send SIGHUP again");
            }
        }
        Ok(())
    }

    /// Drains the scheduler, ends the commands that are left after the drain, and stops it.
    fn shut_down(self) -> Result<Exit, Error> {
        let drain = humantime::format_duration(self.args.drain);
        self.manager.report_stop(&format!("no more runs are started; running commands may continue for up to {drain}"));
        self.scheduler.drain();
        let clock = self.clock;
        let began = clock.now().monotonic;
        // A signal that came while the scheduler started has used a part of the time.
        let until = self.last_resort.since().unwrap_or(began).saturating_add(self.args.drain);
        self.programs.drain(clock.now().wall + self.args.drain);
        while !self.scheduler.has_stopped() && clock.now().monotonic < until {
            let Some(signal) = self.next_stop(DRAIN_POLL.min(clock.until(until))) else { continue };
            // Of two readings in one millisecond, the later one may be a little smaller.
            if clock.now().monotonic.saturating_sub(began) >= SAME_REQUEST {
                log::warn!("second {signal}: running commands are ended now");
                break;
            }
            log::info!("{signal}: ignored, it belongs to the signal before it");
        }
        if !self.scheduler.has_stopped() {
            let running = self.running();
            if self.programs.have_application() {
                log::warn!("{running}: commands are ended, and the application is asked to end its runs");
            } else {
                log::warn!("ending {running}; their runs are retried later, except at-most-once runs");
            }
            self.scheduler.interrupt();
            let limit = if self.programs.running() > 0 { WORKER_LIMIT } else { SHUTDOWN_LIMIT };
            let until = clock.now().monotonic + limit;
            // Of what is left to an application, nothing is heard any more.
            let has_work = || self.commands.running() + self.programs.running() > 0 || self.programs.left().is_empty();
            while !self.scheduler.has_stopped() && has_work() && clock.now().monotonic < until {
                let _ = self.next_stop(DRAIN_POLL);
            }
        }
        // Before the scheduler ends: the runs that a worker still has are recorded.
        self.programs.end();
        let until = clock.now().monotonic + WORKER_LIMIT;
        while !self.programs.have_ended() && clock.now().monotonic < until {
            let _ = self.next_stop(WORKER_POLL);
        }
        let stopped = self.scheduler.shutdown(Duration::ZERO);
        if stopped.is_err() {
            // It stopped by itself, and has asked its handlers to stop. No command may be left running.
            let until = clock.now().monotonic + SHUTDOWN_LIMIT;
            while self.commands.running() > 0 && clock.now().monotonic < until {
                thread::sleep(DRAIN_POLL);
            }
        }
        let Shutdown { unfinished, mut attempts, .. } = stopped?;
        // The runs that are left to an application go on: nothing could be recorded of them.
        let left = self.programs.left();
        attempts.retain(|claim| !left.contains(&claim.run_id));
        let unrecorded = unfinished.saturating_sub(left.len());
        if unrecorded > 0 {
            let named = attempts.iter().map(|claim| format!("run {} of {:?}", claim.run_id, claim.task));
            let named = first_of(named, RUNS_NAMED, attempts.len());
            log::error!(
                "the outcomes of {unrecorded} runs could not be recorded ({named}); the next scheduler recovers these runs"
            );
            return Ok(Exit::CutShort);
        }
        log::info!("scheduler stopped");
        Ok(if self.commands.was_cut_short() || self.programs.was_cut_short() { Exit::CutShort } else { Exit::Clean })
    }

    /// Has the scheduler report workers that were given up, and a guard that does not start.
    fn report_problems(&self) {
        let (mut problems, mut known) = (self.programs.problems(), self.problems.borrow_mut());
        problems.extend(self.guard.problem());
        if problems != *known {
            self.scheduler.set_problems(problems.clone());
            *known = problems;
        }
    }

    /// Returns the next request of a signal that arrives within `limit`.
    fn next_request(&self, limit: Duration) -> Option<Request> {
        let stop = self.stop.take().or_else(|| self.next_stop(limit)).map(Request::Stop);
        stop.or_else(|| self.reloads.swap(false, Ordering::SeqCst).then_some(Request::Reload))
    }

    /// Returns the next signal that asks to stop and arrives within `limit`, reaps orphan processes, looks after the guard and the
    /// deadline, and reports to the service manager.
    fn next_stop(&self, limit: Duration) -> Option<&'static str> {
        self.guard.check();
        children::reap();
        self.report_problems();
        let turns = self.scheduler.turns();
        self.last_resort.look(turns, self.scheduler.has_stopped());
        self.manager.report_turns(turns, self.clock.now().monotonic, || self.status.clone());
        let limit = self.manager.interval().map_or(limit, |interval| interval.min(limit));
        let mut notice = match self.notices.recv_timeout(limit) {
            Ok(notice) => notice,
            Err(RecvTimeoutError::Timeout) => return None,
            // The thread that receives signals has ended.
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(limit);
                return None;
            }
        };
        loop {
            match notice {
                Notice::Stop(signal) => return Some(signal),
                Notice::Change => match self.notices.try_recv() {
                    Ok(next) => notice = next,
                    Err(_) => return None,
                },
            }
        }
    }
}
