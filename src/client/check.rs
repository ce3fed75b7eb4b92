//! `Client::check`: finds what is wrong with a file and its schedulers, and what to do about it. For monitoring: it reads the
//! tables, the kernel and the folder, and writes nothing.
//!
//! No table stores which handlers a scheduler has. What can be known: a scheduler that is alive and has a free worker starts a
//! run that may start in the same turn, if it has the handler.

mod cannot_follow;
mod file;
mod held;
mod passed_over;
mod reported;
mod zones;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::{Client, details};
use crate::clock::Timestamp;
use crate::error::{Result, excerpt};
use crate::host::orphan::{Orphan, Presence};
use crate::host::process::{self, Group};
use crate::model::health::{Health, Limits, Liveness, Ownerless, Stuck};
use crate::model::report::Instance;
use crate::model::run::text_enum;
use crate::rules::clock_monitor::WAITED_OUT;
use crate::schedule::duration_text;
use crate::store::place;
use crate::text::units::being_marked;

/// If the kernel cannot report whether a scheduler is alive, it counts as alive for this time after a heartbeat.
const PRESUMED_ALIVE: Duration = Duration::from_secs(5 * 60);
/// What to do about a handler that no scheduler has.
const NO_HANDLER: &str = "no scheduler that is alive has it: start one that does, or give the tasks another";
/// Longest part of an error that a problem quotes.
const MAX_ERROR: usize = 200;

text_enum! {
    /// The kinds of problems.
    ///
    /// ```
    /// use duly::ProblemKind;
    /// assert_eq!("no_scheduler".parse::<ProblemKind>()?, ProblemKind::NoScheduler);
    /// assert_eq!(ProblemKind::parse("no scheduler"), None);
    /// # Ok::<(), duly::Error>(())
    /// ```
    ProblemKind, "kind" {
        /// Schedules wait for the clock: it is not set, or is behind what they count from.
        Clock = "clock",
        /// There is work, and no scheduler is alive.
        NoScheduler = "no_scheduler",
        /// A scheduler has not been able to write the database for ten seconds or longer: a full disk, an error of the device, a lock. Or
        /// it cannot start attempts, for want of files, descriptors, memory or processes.
        Degraded = "degraded",
        /// A task has been due for too long, or runs that may start are not started.
        Overdue = "overdue",
        /// Runs may start, and the schedulers that are alive and have free workers leave them: none has their handler.
        UnknownHandler = "unknown_handler",
        /// A run has been running for longer than its timeout, or its owner sends no heartbeat.
        Stuck = "stuck",
        /// A worker thread of a scheduler that is alive ended within the last day, which no handler can cause.
        WorkerEnded = "worker_ended",
        /// The application of a scheduler that is alive reports that something is wrong with its workers
        /// ([`Scheduler::set_problems`](crate::Scheduler::set_problems)). Or the runtime of its async handlers has shut down, or polls
        /// nothing.
        Worker = "worker",
        /// An orphan process: a scheduler died, and a command of its runs is alive, or is not known to be gone. The run is not retried
        /// before that is known.
        Orphan = "orphan",
        /// The file was restored, and what a scheduler had begun before may still run: its task, and others with its concurrency key,
        /// start nothing.
        Held = "held",
        /// A run is running for an owner that is not registered: another program wrote that, or removed the owner's row.
        UnknownOwner = "unknown_owner",
        /// Another program changed a final run to waiting or running, or changed its attempt.
        Reopened = "reopened",
        /// A run waits for something that does not block it, and would wait forever.
        Blocked = "blocked",
        /// A run was interrupted more than once in a row, by shutdowns, lost leases or its own handler. It needs longer than shutdowns
        /// leave it, or it causes them.
        Interrupted = "interrupted",
        /// A task had too many dead runs in a row.
        Failing = "failing",
        /// A run became dead within the last day, and no run of its task has succeeded since.
        Dead = "dead",
        /// Nothing ran for occurrences of a task within the last day: they were resolved later than its grace, or the run expired. No run
        /// of it has succeeded since.
        Missed = "missed",
        /// Five occurrences of a task in a row were skipped within the last day, since earlier runs took too long. It ends as `missed`.
        Skipped = "skipped",
        /// Within the last day, a limit left no start of a task: a run waits for one, or occurrences were skipped. No run of it has started since.
        Limited = "limited",
        /// A task cannot be scheduled.
        Invalid = "invalid",
        /// The time zone of an active task is not known on this machine, or its file cannot be read.
        Zone = "zone",
        /// The rules of time zones may be wrong: those that are built in are used and older than a year, a file contradicts the past, or
        /// a scheduler has other zone data than this process.
        ZoneData = "zone_data",
        /// Nothing would run after a run: a task that `on_dead`, `on_success`, `on_end` or `on_missed` names is missing, invalid, or a
        /// command without an argv.
        OnDead = "on_dead",
        /// The write-ahead log is larger than 64 MiB.
        Log = "log",
        /// Another user may write one of the files or folders, or owns the folder of the lock files. Or, for root: another user owns
        /// the database, and no scheduler is alive; a scheduler that root starts refuses it.
        FileMode = "file_mode",
    }
}

/// A problem. Its `Display` is one line.
///
/// ```
/// use duly::{Client, Limits, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("export").handler("export"))?;
/// client.trigger("export")?;
/// let problem = &client.check(&Limits::default())?[0];
/// assert_eq!(problem.found, "there is work, and no scheduler is alive");
/// assert!(problem.task.is_none() && problem.to_string().starts_with("no_scheduler: there is work, "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// The task that has it.
    pub task: Option<String>,
    /// The run that has it.
    pub run: Option<i64>,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub advice: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.kind.as_str(), self.found, self.advice)
    }
}

impl Client {
    /// Returns the problems that exist now, at most a hundred of each kind; none for a healthy file.
    ///
    /// ```
    /// use duly::{Client, Limits, NewTask, ProblemKind};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// assert!(client.check(&Limits::default())?.is_empty(), "no scheduler is running, but nothing is due");
    /// client.trigger("digest")?;
    /// assert_eq!(client.check(&Limits::default())?[0].kind, ProblemKind::NoScheduler);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn check(&self, limits: &Limits) -> Result<Vec<Problem>> {
        let now = self.now();
        let mut store = self.store();
        let mut health = store.health(limits, now)?;
        details::count_marked(&mut **store, &mut health)?;
        let file = store.as_file().map(|file| (file.path().to_owned(), file.sizes().1));
        let beside = place::beside(&mut **store);
        drop(store);
        let check =
            Check { now, is_file: file.is_some(), beside: beside.as_deref(), health: &health, found: Vec::new() };
        let any_alive = check.living().next().is_some();
        let mut found = check.all();
        if let Some((path, log_bytes)) = &file {
            found.extend(file::problems(path, *log_bytes, any_alive));
        }
        self.name_actors(&mut found);
        Ok(found)
    }

    /// Adds to the problem of a task that an [actor](Client::actor) has added who that was.
    fn name_actors(&self, found: &mut [Problem]) {
        let names = found.iter().filter_map(|problem| problem.task.clone()).collect();
        // Who added a task is not known if its row cannot be read.
        let Ok(actors) = self.store().actors(&names) else { return };
        for problem in found {
            if let Some(actor) = problem.task.as_ref().and_then(|task| actors.get(task)) {
                problem.found = format!("{} (added by {actor})", problem.found);
            }
        }
    }
}

/// Collects the problems of one snapshot.
struct Check<'a> {
    now: Timestamp,
    is_file: bool,
    /// What the local files of schedulers of this host are beside.
    beside: Option<&'a Path>,
    health: &'a Health,
    found: Vec<Problem>,
}

impl<'a> Check<'a> {
    fn all(mut self) -> Vec<Problem> {
        self.clock();
        self.schedulers();
        self.late();
        self.unhandled();
        self.held_back();
        self.ownerless();
        self.stuck();
        self.ended_workers();
        self.reported();
        for (run, task, reason) in &self.health.blocked {
            let text = format!("run {run} of {task} waits ({reason}) for nothing");
            let advice = "a running scheduler repairs it within minutes; if it does not, run duly doctor and report it";
            self.of_run(ProblemKind::Blocked, *run, task, text, advice);
        }
        for (run, task, reason) in &self.health.reopened {
            let text = format!("run {run} of {task} {reason}");
            let advice = format!("another program changed its row: duly cancel {run}; duly retry opens a new run");
            self.of_run(ProblemKind::Reopened, *run, task, text, &advice);
        }
        for (run, task, count) in &self.health.interrupted {
            let text = format!(
                "run {run} of {task} was interrupted {count} times in a row (by shutdowns, lost leases or its own handler)"
            );
            let advice = "give it more time (duly run --drain), or make it shorter; a command must not stop its own scheduler. After three, \
                          each interruption counts as an attempt";
            self.of_run(ProblemKind::Interrupted, *run, task, text, advice);
        }
        self.failed();
        self.passed_over();
        for (task, reason) in &self.health.invalid {
            let text = format!("{task} is invalid: {reason}");
            self.of_task(ProblemKind::Invalid, task, text, "repair its row, or add it again with --replace");
        }
        self.zones();
        self.cannot_follow();
        self.found
    }

    fn of_task(&mut self, kind: ProblemKind, task: &str, text: String, advice: &str) {
        self.found.push(Problem { task: Some(task.to_owned()), ..problem(kind, text, advice) });
    }

    fn of_run(&mut self, kind: ProblemKind, run: i64, task: &str, text: String, advice: &str) {
        self.found.push(Problem { task: Some(task.to_owned()), run: Some(run), ..problem(kind, text, advice) });
    }

    /// Returns the schedulers that are alive, as far as can be known, each with the number of its running runs.
    fn living(&self) -> impl Iterator<Item = &'a (Instance, u32)> + use<'a> {
        let now = self.now;
        let is_alive = move |one: &Instance| one.alive.unwrap_or(now.since(one.seen_at) < PRESUMED_ALIVE);
        self.health.instances.iter().filter(move |(one, _)| is_alive(one))
    }

    fn instance(&self, id: &str) -> Option<&'a Instance> {
        self.health.instances.iter().map(|(one, _)| one).find(|one| one.id == id)
    }

    fn clock(&mut self) {
        let Some(wait) = &self.health.clock else { return };
        let advice = if wait.waiting.is_none() {
            "set the clock"
        } else if self.health.newest_seen.is_some_and(|newest| newest.since(self.now) > WAITED_OUT) {
            "set the clock if it is wrong; if it is right, the next turn of a scheduler plans all schedules anew: duly run"
        } else {
            "set the clock if it is wrong; if it is right, schedules go on by themselves at that time"
        };
        self.found.push(problem(ProblemKind::Clock, wait.to_string(), advice));
    }

    fn schedulers(&mut self) {
        if self.living().next().is_none() && self.health.any_work {
            let text = "there is work, and no scheduler is alive".to_owned();
            let advice = "start one: duly run, or the application that has the handlers";
            self.found.push(problem(ProblemKind::NoScheduler, text, advice));
        }
        for (one, _) in self.health.instances.iter().filter(|(one, _)| one.degraded) {
            let (pid, host) = (pid_of(one), &one.host);
            let text = format!(
                "the scheduler with {pid} on {host} has not been able to write the database for ten seconds or longer"
            );
            let advice = "see its log for the cause; nothing starts until it can write again";
            self.found.push(problem(ProblemKind::Degraded, text, advice));
        }
        if self.is_file {
            return;
        }
        // Its session is there, and may be silent: the server learns of that late. With runs, those are named.
        let is_silent = |one: &Instance| one.alive == Some(true) && self.now.since(one.seen_at) > one.lease;
        for (one, _) in self.living().filter(|(one, running)| *running == 0 && !one.degraded && is_silent(one)) {
            let (pid, host, seen) = (pid_of(one), &one.host, one.seen_at);
            let text = format!(
                "the scheduler with {pid} on {host} is alive, and its lease has passed: its last heartbeat was at {seen}"
            );
            let advice =
                "look whether it is frozen, or cut off from the server; restart it if it does not go on by itself";
            self.found.push(problem(ProblemKind::Degraded, text, advice));
        }
    }

    fn late(&mut self) {
        for (task, since) in &self.health.overdue {
            let text = format!("{task} is due since {since}, for {}", self.ago(*since));
            self.of_task(ProblemKind::Overdue, task, text, "is a scheduler alive, and its log quiet? see duly status");
        }
        let living = self.living().count();
        let busy = self.living().filter(|(one, running)| *running >= one.workers).count();
        for waiting in &self.health.waiting {
            let (handler, count) = (&waiting.handler, waiting.count);
            let text = format!("runs of handler {handler} that may start: {count}, for {}", self.ago(waiting.since));
            let (kind, advice) = if living == 0 {
                (ProblemKind::Overdue, "start a scheduler that has this handler".to_owned())
            } else if self.is_hindered(&waiting.running) {
                let advice = "a scheduler that is alive reports why it starts nothing: remove the cause, and restart it; if it does not \
                              have this handler, start one that does";
                (ProblemKind::Overdue, advice.to_owned())
            } else if busy == 0 && self.living().any(|(one, _)| waiting.running.contains(&one.id)) {
                let advice = "a scheduler that is alive runs others of them: all workers busy; give it more workers";
                (ProblemKind::Overdue, advice.to_owned())
            } else if busy > 0 {
                let advice = format!("schedulers with all workers busy: {busy} of {living}; give them more workers");
                (ProblemKind::Overdue, advice)
            } else {
                (ProblemKind::UnknownHandler, NO_HANDLER.to_owned())
            };
            self.found.push(problem(kind, text, &advice));
        }
    }

    /// Adds handlers that no living scheduler has, although none of their runs is overdue yet.
    fn unhandled(&mut self) {
        let is_busy = self.living().any(|(one, running)| *running >= one.workers);
        if is_busy || self.living().next().is_none() {
            return;
        }
        for waiting in &self.health.unhandled {
            let is_named = self.health.waiting.iter().any(|overdue| overdue.handler == waiting.handler);
            if is_named || !waiting.running.is_empty() || self.is_hindered(&waiting.running) {
                continue;
            }
            let (handler, count) = (&waiting.handler, waiting.count);
            let text = format!("runs of handler {handler} that may start: {count}, for {}", self.ago(waiting.since));
            self.found.push(problem(ProblemKind::UnknownHandler, text, NO_HANDLER));
        }
    }

    fn ownerless(&mut self) {
        for Ownerless { run, task, owner, liveness } in &self.health.ownerless {
            let lease = "a scheduler recovers it when its lease has not changed for a full lease (duly run)";
            let (state, advice) = match liveness {
                Liveness::Alive { .. } => {
                    let advice = "its row was removed while it was running; it registers again at its next heartbeat";
                    ("is alive".to_owned(), advice.to_owned())
                }
                Liveness::Dead { .. } => {
                    ("is dead".to_owned(), "the next turn of a scheduler recovers it: duly run".to_owned())
                }
                Liveness::NoLock => ("has no lock file".to_owned(), format!("{lease}; only schedulers may claim runs")),
                Liveness::NoSession { .. } => {
                    let lease =
                        "a scheduler recovers it when its lease has passed and not changed for a full lease (duly run)";
                    ("has no session".to_owned(), format!("{lease}; only schedulers may claim runs"))
                }
                Liveness::Unknown(reason) => (
                    format!("cannot be asked: {reason}"),
                    "remove the cause; a scheduler recovers it if it is dead".into(),
                ),
            };
            let text = format!("run {run} of {task} is running for owner {owner}, which is not registered and {state}");
            self.of_run(ProblemKind::UnknownOwner, *run, task, text, &advice);
        }
    }

    fn stuck(&mut self) {
        let ownerless: HashSet<i64> = self.health.ownerless.iter().map(|one| one.run).collect();
        for stuck in self.health.stuck.iter().filter(|stuck| !ownerless.contains(&stuck.run)) {
            // A scheduler that cannot write is named as degraded: that is why its lease has passed.
            if stuck.past_lease && self.instance(&stuck.owner).is_some_and(|one| one.degraded) {
                continue;
            }
            if let Some(problem) = self.stalled_heir(stuck).or_else(|| self.orphan(stuck)) {
                self.found.push(problem);
                continue;
            }
            let (run, task) = (stuck.run, &stuck.task);
            let since = stuck.started_at.map_or_else(|| "an unknown time".to_owned(), |at| self.ago(at));
            let owner = self.instance(&stuck.owner);
            let alive = owner.and_then(|one| Some((pid_of(one), one.alive?)));
            let doubtful = owner.and_then(|one| Some((one, one.doubt.as_ref()?)));
            let (text, advice) = if let Some((_, false)) = alive {
                let text = format!("run {run} of {task} was lost with its scheduler");
                (text, "the next scheduler recovers it: duly run".to_owned())
            } else if !stuck.past_lease {
                let text = format!("run {run} of {task} has been running for {since}, longer than its timeout");
                (text, format!("its handler does not react to the timeout: duly cancel {run}, or end it"))
            } else if let Some((pid, true)) = alive {
                let text = format!(
                    "run {run} of {task} is past its lease: its scheduler ({pid}) is alive, and is stopped or cannot write"
                );
                let advice = "let it continue (kill -CONT), or free space or rights on the disk: see its log; do not end it, \
                              outcomes that are not stored yet would be lost";
                (text, advice.to_owned())
            } else if let Some((Instance { pid, host, .. }, doubt)) = doubtful {
                let text = format!(
                    "run {run} of {task} is past its lease, and whether its scheduler is alive cannot be known: {doubt}"
                );
                let advice = format!(
                    "look for process {pid} on {host}, and remove the cause; a scheduler recovers the run if it is dead"
                );
                (text, advice)
            } else {
                let text = format!("run {run} of {task} is past its lease, and has been running for {since}");
                (text, "its scheduler hangs, or cannot write: see its log; another scheduler recovers it".to_owned())
            };
            self.of_run(ProblemKind::Stuck, run, task, text, &advice);
        }
    }

    /// Returns the problem of a run whose scheduler is dead, and whose recovering scheduler is alive and makes no progress.
    fn stalled_heir(&self, stuck: &Stuck) -> Option<Problem> {
        let heir = self.instance(stuck.heir.as_ref()?)?;
        if heir.degraded || self.now.since(heir.seen_at) <= heir.lease {
            return None;
        }
        let (Stuck { run, task, .. }, pid, host) = (stuck, pid_of(heir), &heir.host);
        let found = format!(
            "run {run} of {task} waits: its scheduler is dead, and the scheduler that recovers its runs is alive and makes no \
             progress ({pid} on {host})"
        );
        let problem = problem(ProblemKind::Stuck, found, &format!("let the process with {pid} go on, or end it"));
        Some(Problem { task: Some(task.clone()), run: Some(*run), ..problem })
    }

    fn ended_workers(&mut self) {
        for ended in &self.health.ended_workers {
            if !self.living().any(|(one, _)| one.id == ended.owner) {
                continue;
            }
            let before = if ended.count > 1 { format!(", and {} before it", ended.count - 1) } else { String::new() };
            let error = excerpt(&ended.error, MAX_ERROR);
            let text = format!(
                "a worker of scheduler {} (pid {}) ended at {}{before}: {error}",
                ended.owner, ended.pid, ended.at
            );
            let advice =
                "a new worker has replaced it, unless the log says otherwise; report it with the log of that time";
            self.found.push(problem(ProblemKind::WorkerEnded, text, advice));
        }
    }

    /// Returns the problem of a run whose scheduler is dead, and whose command is not known to be gone.
    fn orphan(&self, stuck: &Stuck) -> Option<Problem> {
        let (run, handler) = (stuck.run, &stuck.handler);
        let owner = self.instance(&stuck.owner).filter(|one| one.alive == Some(false))?;
        // Schedulers on a server may be of other hosts.
        let is_here = self.is_file || (owner.boot_id.is_some() && owner.boot_id == process::boot_id().ok());
        let task = stuck.task.clone();
        let orphan = Orphan::new(
            self.beside.filter(|_| is_here)?,
            run,
            stuck.attempt,
            task,
            handler.clone(),
            stuck.process.as_deref(),
        )
        .started_by(Some(&stuck.owner));
        let declare = format!("duly cancel {run} --gone");
        let seen = orphan.observe();
        let (found, advice) = match (seen.presence, seen.group) {
            (Presence::Gone | Presence::NoTrace | Presence::LeftGroup, _) => return None,
            (Presence::Unknown(reason), _) => {
                let pid = orphan.pid().map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                let found = format!("whether its command{pid} is gone cannot be known: {reason}");
                (found, format!("remove the cause; or, if the command is gone: {declare}"))
            }
            (Presence::Alive, Some(Group::Led)) => {
                let pid = orphan.pid().unwrap_or_default();
                let found = format!("its command is alive ({})", pids(&[pid]));
                let end = format!("kill -- -{pid}");
                match seen.signal_group {
                    Some(_) => (found, format!("a scheduler that has handler {handler} ends it, or end it: {end}")),
                    None => (found, format!("no scheduler ends it, since its input is not found; end it: {end}")),
                }
            }
            (Presence::Alive, Some(Group::Leaderless(members))) => {
                let (pids, end) = (pids(&members), format!("end them: {}", kill(&members)));
                match seen.signal_group {
                    Some(_) => (
                        format!("these processes of its command are alive: {pids}"),
                        format!("a scheduler that has handler {handler} ends them, or {end}"),
                    ),
                    None => (
                        format!("{pids} are in the process group of its command, and cannot be identified"),
                        format!("{end}; or, if they are not of this run: {declare}"),
                    ),
                }
            }
            (Presence::Alive, group) => {
                let why = match group {
                    Some(Group::Unreadable(reason)) => format!("; no scheduler ends it, since {reason}"),
                    _ => "; no scheduler ends it, since its process is not recorded".to_owned(),
                };
                let holders = orphan.holders();
                if holders.is_empty() {
                    let found = format!("a process that cannot be seen from here holds its input{why}");
                    (found, format!("let it end; or, if the command is gone: {declare}"))
                } else {
                    let found = format!("its input is held by {}{why}", pids(&holders));
                    (found, format!("end it: {}; or, if that is not the command: {declare}", kill(&holders)))
                }
            }
        };
        let text = format!("run {run} of {} waits: its scheduler is dead, and {found}", stuck.task);
        let problem = problem(ProblemKind::Orphan, text, &advice);
        Some(Problem { task: Some(stuck.task.clone()), run: Some(run), ..problem })
    }

    fn failed(&mut self) {
        for failing in &self.health.failing {
            let (task, count) = (&failing.task, failing.count);
            let marked = failing.marked.map(|runs| format!(" ({})", being_marked(runs))).unwrap_or_default();
            let (paused, advice) = if failing.is_paused {
                (format!(", and is paused{marked}"), format!("repair it, then duly resume {task}"))
            } else {
                (marked, "repair or pause it".to_owned())
            };
            let error = excerpt(&failing.error, MAX_ERROR);
            let text = format!("{task} is dead {count} times in a row{paused}: {error}");
            self.of_task(ProblemKind::Failing, task, text, &format!("see duly history {task}, and {advice}"));
        }
        for dead in &self.health.dead {
            let more = if dead.count > 1 { format!(", and {} before it", dead.count - 1) } else { String::new() };
            let error = excerpt(&dead.error, MAX_ERROR);
            let text = format!("run {} of {} is dead{more}: {error}", dead.run, dead.task);
            let advice = format!("see duly logs {0}, and duly retry {0} if it is still wanted", dead.run);
            self.of_run(ProblemKind::Dead, dead.run, &dead.task, text, &advice);
        }
    }

    fn ago(&self, at: Timestamp) -> String {
        duration_text(Duration::from_secs(self.now.since(at).as_secs()))
    }
}

/// `pid 7`, or `pid 7 of another PID namespace`: there it names another process than here, or none.
fn pid_of(scheduler: &Instance) -> String {
    let is_here = scheduler.boot_id.is_some() && scheduler.boot_id == process::boot_id().ok();
    let is_elsewhere = is_here && scheduler.alive == Some(true) && process::is_elsewhere(scheduler.pid);
    format!("pid {}{}", scheduler.pid, if is_elsewhere { " of another PID namespace" } else { "" })
}

/// `pid 7`, `pids 7, 8`.
fn pids(pids: &[u32]) -> String {
    let all: Vec<String> = pids.iter().map(ToString::to_string).collect();
    format!("{} {}", if all.len() == 1 { "pid" } else { "pids" }, all.join(", "))
}

/// `kill 7 8`.
fn kill(pids: &[u32]) -> String {
    pids.iter().fold("kill".to_owned(), |line, pid| format!("{line} {pid}"))
}

/// Creates a problem of one line: names of handlers and errors may hold any text.
fn problem(kind: ProblemKind, found: String, advice: &str) -> Problem {
    let line = |text: &str| text.replace(char::is_control, " ");
    Problem { kind, task: None, run: None, found: line(&found), advice: line(advice) }
}
