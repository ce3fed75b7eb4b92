//! `run`: runs the scheduler until a signal, or until it is idle.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

#[cfg(feature = "page")]
use duly::page::Page;
use duly::text::database_name::{is_address, shown};
use duly::{Apply, Client, Clock, Error, Event, Progress, Scheduler, Shutdown, SystemClock, duration_text};

use crate::alarms::Alarms;
use crate::cli::args::RunArgs;
use crate::cli::failure::Failure;
use crate::cli::last_resort::{End, LastResort, within};
use crate::cli::service_manager::ServiceManager;
use crate::cli::signals::{self, Request};
use crate::commands::apply;
use crate::exec::environment::Environment;
use crate::exec::guard::Guard;
use crate::exec::{Commands, children, system};
use crate::manifest::{self, Manifest};
use crate::output::escape;
use crate::output::forward::Forward;
use crate::output::units::count_of;
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
/// How long a server may not answer after the drain before nothing is expected of it any more. A living one may need as long for its lock.
const UNANSWERED: Duration = Duration::from_secs(5);
/// How long the scheduler's own end may take then: the guard and the log need a part of the ten seconds, too.
const LAST_ANSWER: Duration = Duration::from_secs(1);
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
    /// The server did not answer: outcomes may not be recorded.
    Unanswered,
}

/// A message to the main thread.
enum Notice {
    Signal(Request),
    /// The scheduler may have become idle.
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
    let cannot = |doing, source: io::Error| Error::Store { doing, source: source.into() };
    let (notify, notices) = sync_channel(NOTICES);
    // Before the scheduler starts: an earlier signal would end the program while commands are running.
    let last_resort = LastResort::new(args.drain, end);
    let asked = last_resort.clone();
    let notice = move |request| {
        if let Request::Stop(_) = request {
            asked.asked();
        }
        Notice::Signal(request)
    };
    signals::forward(notify.clone(), notice).map_err(|error| cannot("listen for signals", error))?;
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
            move |place| guard.take_lock(place)
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
        // If the channel is full, a notice is pending already.
        builder = builder.observe(move |_: &Event| drop(notify.try_send(Notice::Change)));
    }
    let unrecorded = Unrecorded::default();
    let followed = unrecorded.clone();
    builder = builder.observe(move |event: &Event| followed.follow(event));
    #[cfg(feature = "page")]
    if let Some(page) = page(args) {
        builder = builder.page(page);
    }
    let scheduler = builder.start().map_err(|error| match error {
        Error::InvalidConfig { field: "page", reason } => Failure::Refused(format!("invalid --http: {reason}")),
        other => other.into(),
    })?;
    last_resort.started();
    // Not before the database is opened: a run that is refused starts no process.
    guard.start();
    #[cfg(feature = "page")]
    if let Some(address) = scheduler.page_address() {
        log::info!("status page on http://{address}/");
    }
    let (path, workers) = (shown(file), args.workers);
    log::info!("scheduler started, with {}, on {path:?}", count_of(workers, "worker"));
    let times = [args.poll, args.lease, args.drain].map(duration_text);
    log::debug!("poll interval {}, lease {}, drain {}, {:?}", times[0], times[1], times[2], args.keep.retention());
    let status = format!("on {path:?}, with {}", count_of(workers, "worker"));
    let alarms = Alarms::start(file, alarms, started)?;
    programs.start().map_err(|error| cannot("start a thread for a worker", error))?;
    let problems = RefCell::default();
    let session = Session {
        scheduler,
        commands,
        programs,
        problems,
        notices,
        args,
        declared,
        clock,
        manager,
        status,
        guard: guard.clone(),
        is_on_server: is_address(file),
        last_resort,
        unrecorded,
    };
    // Also after an error, running commands are ended.
    let waited = session.wait_for_stop();
    let exit = session.shut_down();
    if let Some(alarms) = alarms.filter(|_| !matches!(exit, Ok(Exit::Unanswered))) {
        alarms.finish();
    }
    guard.finish();
    let exit = exit?;
    waited?;
    Ok(exit)
}

/// Returns the workers that the arguments name, and their time limits.
fn worker_options(args: &RunArgs) -> Result<(Vec<WorkerOptions>, Times), Failure> {
    let usage = |name: &'static str| move |reason: String| Failure::Usage(format!("{name}: {reason}"));
    let workers = args.worker.iter().map(|text| WorkerOptions::parse(text)).collect::<Result<Vec<_>, _>>();
    let workers = workers.map_err(usage("--worker"))?;
    check_workers(&workers)?;
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
    check_workers(workers)
}

/// Refuses too many workers, and two of one name, before anything is written.
fn check_workers(workers: &[WorkerOptions]) -> Result<(), Failure> {
    if workers.len() > MAX_WORKERS {
        return Err(Failure::Refused(format!("expected at most {MAX_WORKERS} workers, found {}", workers.len())));
    }
    let mut names = BTreeSet::new();
    match workers.iter().find(|worker| !names.insert(&worker.name)) {
        Some(twice) => Err(Failure::Refused(format!("--worker: two workers have the name {:?}", twice.name))),
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

/// Stops a scheduler that has drained. `None`: its server does not answer.
fn stop(scheduler: Scheduler, is_silent: bool) -> Option<Result<Shutdown, Error>> {
    if !is_silent {
        return Some(scheduler.shutdown(Duration::ZERO));
    }
    within(LAST_ANSWER, move || scheduler.shutdown(Duration::ZERO))
        .unwrap_or_else(|error| Some(Err(Error::Store { doing: "start a thread", source: error.into() })))
}

/// A running scheduler.
struct Session<'a> {
    scheduler: Scheduler,
    commands: Commands,
    programs: Workers,
    /// The problems that the scheduler knows.
    problems: RefCell<Vec<String>>,
    notices: Receiver<Notice>,
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
    unrecorded: Unrecorded,
}

/// The runs that have begun here and whose outcomes are not recorded: the names of their tasks.
#[derive(Clone, Default)]
struct Unrecorded(Arc<Mutex<BTreeMap<i64, String>>>);

impl Unrecorded {
    fn follow(&self, event: &Event) {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Started { claim } => _ = runs.insert(claim.run_id, claim.task.clone()),
            Event::Finished { claim, .. }
            | Event::Snoozed { claim, .. }
            | Event::Interrupted { claim, .. }
            | Event::Superseded { claim } => _ = runs.remove(&claim.run_id),
            _ => {}
        }
    }
}

impl fmt::Display for Unrecorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let named = runs.iter().take(RUNS_NAMED).map(|(run, task)| format!("run {run} of {task:?}"));
        f.write_str(&named.collect::<Vec<_>>().join(", "))?;
        if runs.len() > RUNS_NAMED { write!(f, " and {} more", runs.len() - RUNS_NAMED) } else { Ok(()) }
    }
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
            let limit = if self.scheduler.turns() == 0 { DRAIN_POLL } else { POLL };
            match self.next_request(limit) {
                Some(Request::Stop(signal)) => {
                    let (drain, running) = (humantime::format_duration(self.args.drain), self.running());
                    log::info!("{signal}: no more runs are started; {running}, for up to {drain}");
                    return Ok(());
                }
                Some(Request::Reload) => self.reload(),
                None => {}
            }
        }
        Ok(())
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
        let is_idle = self.scheduler.is_idle();
        if self.is_on_server || !matches!(is_idle, Err(Error::UnusableDatabase { .. })) {
            *since = None;
            return Ok(is_idle.unwrap_or_default());
        }
        if now.saturating_sub(*since.get_or_insert(now)) < UNUSABLE { Ok(false) } else { is_idle }
    }

    /// Applies the manifest again. If that fails, nothing has changed and the scheduler continues.
    fn reload(&self) {
        self.manager.report_reload();
        let Some(tasks) = &self.args.tasks else {
            self.manager.report_reloaded(&self.status);
            return log::info!("SIGHUP: ignored, because --tasks was not given");
        };
        let manifest = manifest::read(tasks).map_err(Failure::Refused);
        let applied = manifest.and_then(|manifest| {
            let changed = manifest.workers != self.declared;
            apply_logged(&self.scheduler, tasks, manifest).map(|()| changed)
        });
        match applied {
            Ok(changed) => {
                self.manager.report_reloaded(&self.status);
                if changed {
                    log::warn!("SIGHUP: the workers of the manifest have changed: restart duly run to apply that");
                }
            }
            Err(failure) => {
                let failure = escape::one_line(&failure.to_string());
                self.manager.report_reloaded(&format!("{}; SIGHUP: no task was changed: {failure}", self.status));
                log::error!("SIGHUP: no task was changed: {failure}; correct the manifest and send SIGHUP again");
            }
        }
    }

    /// Drains the scheduler, ends the commands that are left after the drain, and stops it.
    fn shut_down(self) -> Result<Exit, Error> {
        let drain = humantime::format_duration(self.args.drain);
        self.manager.report_stop(&format!("no more runs are started; running commands may continue for up to {drain}"));
        self.scheduler.drain();
        let clock = self.clock;
        let began = clock.now().monotonic;
        // A request that came while the main thread waited for a server has used a part of the time.
        let until = began.saturating_add(self.args.drain.saturating_sub(self.last_resort.taken()));
        self.programs.drain(clock.now().wall + self.args.drain);
        while !self.scheduler.has_stopped() && clock.now().monotonic < until {
            let Some(Request::Stop(signal)) = self.next_request(DRAIN_POLL.min(clock.until(until))) else { continue };
            // Of two readings in one millisecond, the later one may be a little smaller.
            if clock.now().monotonic.saturating_sub(began) >= SAME_REQUEST {
                log::warn!("second {signal}: running commands are ended now");
                break;
            }
            log::info!("{signal}: ignored, it belongs to the signal before it");
        }
        let mut is_silent = false;
        if !self.scheduler.has_stopped() {
            let running = self.running();
            log::warn!("ending {running}; their runs are retried later, except at-most-once runs");
            self.scheduler.interrupt();
            let limit = if self.programs.running() > 0 { WORKER_LIMIT } else { SHUTDOWN_LIMIT };
            let (interrupted, turns) = (clock.now().monotonic, self.scheduler.turns());
            while !self.scheduler.has_stopped() && !is_silent && clock.now().monotonic < interrupted + limit {
                let _ = self.next_request(DRAIN_POLL);
                // Commands are asked to stop after the turn that waits for the server. Those that still run, the guard ends.
                is_silent = self.is_on_server
                    && self.scheduler.turns() == turns
                    && clock.now().monotonic.saturating_sub(interrupted) >= UNANSWERED;
            }
        }
        // Before the scheduler ends: the runs that a worker still has are recorded.
        self.programs.end();
        let until = clock.now().monotonic + if is_silent { Duration::ZERO } else { WORKER_LIMIT };
        while !self.programs.have_ended() && clock.now().monotonic < until {
            let _ = self.next_request(WORKER_POLL);
        }
        let Some(stopped) = stop(self.scheduler, is_silent) else {
            log::error!(
                "the server does not answer: the next scheduler recovers the runs whose outcomes are not recorded"
            );
            return Ok(Exit::Unanswered);
        };
        if stopped.is_err() {
            // It stopped by itself, and has asked its handlers to stop. No command may be left running.
            let until = clock.now().monotonic + SHUTDOWN_LIMIT;
            while self.commands.running() > 0 && clock.now().monotonic < until {
                thread::sleep(DRAIN_POLL);
            }
        }
        let unfinished = stopped?.unfinished;
        if unfinished > 0 {
            log::error!(
                "the outcomes of {unfinished} runs could not be recorded ({}); the next scheduler recovers these runs",
                self.unrecorded
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

    /// Returns the next request of a signal that arrives within `limit`, reaps orphan processes, looks after the guard, and reports to
    /// the service manager.
    fn next_request(&self, limit: Duration) -> Option<Request> {
        self.guard.check();
        children::reap();
        self.report_problems();
        self.manager.report_turns(self.scheduler.turns(), self.clock.now().monotonic, || self.status.clone());
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
                Notice::Signal(request) => return Some(request),
                Notice::Change => match self.notices.try_recv() {
                    Ok(next) => notice = next,
                    Err(_) => return None,
                },
            }
        }
    }
}
