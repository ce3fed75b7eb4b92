//! `Client::check`: what is wrong with a file and its scheduler, and what to do about it. For those who watch; it asks the
//! tables, the kernel and the folder, and writes nothing.
//!
//! No table says which handlers a scheduler has. What can be known: a scheduler that lives and has a worker to spare begins
//! what may start in the same turn, if it has the handler.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Transaction;

use crate::client::Client;
use crate::client::status::{Instance, clock_wait, instances};
use crate::clock::Timestamp;
use crate::error::{Error, Result, excerpt};
use crate::host::folder;
use crate::host::orphan::{Orphan, Presence};
use crate::host::owner_lock::{self, Standing, standing};
use crate::host::platform::{self, Writable};
use crate::host::process::Group;
use crate::rules::clock_monitor::WAITED_OUT;
use crate::schedule::{Zone, duration_text};
use crate::store::fault::Fault;
use crate::store::sqlite::health::{self, Stuck};
use crate::store::sqlite::{invariants, owners};

/// Most problems of a kind that are told one by one.
const MOST: usize = 100;
/// A scheduler cuts its log beyond 16 MiB as soon as it is idle: with one much larger, it never is, or a reader never ends.
const LARGE_LOG: u64 = 64 * 1024 * 1024;
/// Dead runs older than this are history.
const LATELY: Duration = Duration::from_secs(24 * 60 * 60);
/// Where nobody can ask the kernel about a scheduler, it is believed for so long after a sign of life.
const BELIEVED: Duration = Duration::from_secs(5 * 60);
/// Longest part of an error that is told.
const MAX_ERROR: usize = 200;

/// What is too much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Work that has been due for longer is overdue. Default: 5 minutes.
    pub overdue: Duration,
    /// A task with so many dead runs in a row is failing. Default: 2.
    pub failures: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { overdue: Duration::from_secs(5 * 60), failures: 2 }
    }
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// Schedules wait for the clock: it is not set, or is behind what they count from.
    Clock,
    /// There is work, and no scheduler is alive.
    NoScheduler,
    /// A scheduler has not been able to write the database for ten seconds or longer: a full disk, an error of the device, a lock.
    Degraded,
    /// A task is due for too long, or runs that may start are not begun.
    Overdue,
    /// Runs may start, and whoever is alive and has workers to spare leaves them: nobody has their handler.
    UnknownHandler,
    /// A run is at work for longer than it may, or its owner gives no sign of life.
    Stuck,
    /// A worker thread of a scheduler that is alive ended within the last day, which no handler can cause.
    WorkerEnded,
    /// A scheduler died, and a command of its is at work, or is not known to be gone: its run is not tried again before that is
    /// known.
    Orphan,
    /// A run is running for an owner that is not registered: another program wrote that, or removed the owner's row.
    UnknownOwner,
    /// A final run was made to wait or to run again, or its attempt was changed, by another program.
    Reopened,
    /// A run waits for something that does not hold it back: it would wait for ever.
    Blocked,
    /// A task had too many dead runs in a row.
    Failing,
    /// A run has died within the last day, and nothing of its task has succeeded since.
    Dead,
    /// A task was written that cannot be scheduled.
    Invalid,
    /// The time zone of an active task is not known on this machine, or its file cannot be read.
    Zone,
    /// Dead runs of a task would be reported nowhere: the task that its `on_dead` names is missing, invalid, or a command without
    /// an argv.
    OnDead,
    /// The write-ahead log is larger than 64 MiB.
    Log,
    /// Another user may write one of the files or folders, or the folder of the lock files is another user's; or, for root, the
    /// database is another user's and no scheduler is alive: one that root starts refuses it.
    FileMode,
}

impl ProblemKind {
    /// One word for it, as in `no_scheduler`.
    pub fn as_str(self) -> &'static str {
        match self {
            ProblemKind::Clock => "clock",
            ProblemKind::NoScheduler => "no_scheduler",
            ProblemKind::Degraded => "degraded",
            ProblemKind::Overdue => "overdue",
            ProblemKind::UnknownHandler => "unknown_handler",
            ProblemKind::Stuck => "stuck",
            ProblemKind::WorkerEnded => "worker_ended",
            ProblemKind::Orphan => "orphan",
            ProblemKind::UnknownOwner => "unknown_owner",
            ProblemKind::Reopened => "reopened",
            ProblemKind::Blocked => "blocked",
            ProblemKind::Failing => "failing",
            ProblemKind::Dead => "dead",
            ProblemKind::Invalid => "invalid",
            ProblemKind::Zone => "zone",
            ProblemKind::OnDead => "on_dead",
            ProblemKind::Log => "log",
            ProblemKind::FileMode => "file_mode",
        }
    }
}

/// Something that is wrong. Its `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// What kind of thing.
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
    /// Looks for what is wrong now. Nothing is what a healthy file answers. Of each kind a hundred are told.
    ///
    /// ```
    /// use duly::{Client, Limits, NewTask, ProblemKind};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// assert!(client.check(&Limits::default())?.is_empty(), "nobody is at work, but nothing is due");
    /// client.trigger("digest")?;
    /// assert_eq!(client.check(&Limits::default())?[0].kind, ProblemKind::NoScheduler);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be read.
    pub fn check(&self, limits: &Limits) -> Result<Vec<Problem>> {
        let now = self.now();
        let (path, _, log_bytes) = self.sizes();
        let (mut found, any_alive) = self.read("look for problems", |tx, _| {
            let instances = instances(tx, &path)?;
            let look = Look { tx, now, path: &path, limits, instances, found: Vec::new() };
            let any_alive = look.living().next().is_some();
            Ok((look.all()?, any_alive))
        })?;
        if log_bytes > LARGE_LOG {
            let text = format!("the write-ahead log has {} MiB", log_bytes >> 20);
            let advice = "end whatever reads the file for hours; a scheduler that is idle cuts it";
            found.push(problem(ProblemKind::Log, text, advice));
        }
        found.extend(modes(&path));
        // A scheduler that is alive is its owner's: root's was refused.
        let foreign = folder::foreign(&path).filter(|_| !any_alive);
        found.extend(foreign.map(|fault| problem(ProblemKind::FileMode, fault.found, &fault.advice)));
        Ok(found)
    }
}

/// One look at the tables.
struct Look<'a> {
    tx: &'a Transaction<'a>,
    now: Timestamp,
    path: &'a Path,
    limits: &'a Limits,
    instances: Vec<Instance>,
    found: Vec<Problem>,
}

impl Look<'_> {
    fn all(mut self) -> Result<Vec<Problem>, Fault> {
        if let Some(wait) = clock_wait(self.tx, self.now)? {
            let newest = owners::newest_seen(self.tx)?;
            let advice = if wait.waiting.is_none() {
                "set the clock"
            } else if newest.is_some_and(|newest| newest.since(self.now) > WAITED_OUT) {
                "set the clock if it is wrong; if it is right, the next turn of a scheduler plans all schedules anew: duly run"
            } else {
                "set the clock if it is wrong; if it is right, schedules go on by themselves at that time"
            };
            self.found.push(problem(ProblemKind::Clock, wait.to_string(), advice));
        }
        self.schedulers()?;
        self.late()?;
        let ownerless = self.ownerless()?;
        self.stuck(&ownerless)?;
        self.ended_workers()?;
        self.blocked()?;
        for (run, task, why) in invariants::reopened(self.tx, MOST)? {
            let text = format!("run {run} of {task} {why}");
            let advice = format!("another program changed its row: duly cancel {run}; duly retry opens a new run");
            self.of_run(ProblemKind::Reopened, run, task, text, &advice);
        }
        self.failed()?;
        let invalid = health::invalid(self.tx, MOST)?.into_iter();
        for (task, reason) in invalid.chain(invariants::unreadable_tasks(self.tx, MOST)?) {
            let text = format!("{task} is invalid: {reason}");
            self.of_task(ProblemKind::Invalid, task, text, "mend its row, or add it again with --replace");
        }
        for (zone, task, count) in health::zones(self.tx)? {
            let Err(error @ Error::ZoneUnavailable { .. }) = Zone::named(&zone) else { continue };
            let others = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            let text = format!("the time zone of {task}{others} is not known here: {error}");
            let advice = "install zone data that has it, or mend the rows; schedulers elsewhere that know it go on";
            self.of_task(ProblemKind::Zone, task, text, advice);
        }
        for (task, target, why) in health::nobody_to_tell(self.tx, MOST)? {
            let text = format!("dead runs of {task} are to be told to {target}, and {why}");
            self.of_task(ProblemKind::OnDead, task, text, "add or mend the task that is to be told, or name another");
        }
        Ok(self.found)
    }

    fn of_task(&mut self, kind: ProblemKind, task: String, text: String, advice: &str) {
        self.found.push(Problem { task: Some(task), ..problem(kind, text, advice) });
    }

    fn of_run(&mut self, kind: ProblemKind, run: i64, task: String, text: String, advice: &str) {
        self.found.push(Problem { task: Some(task), run: Some(run), ..problem(kind, text, advice) });
    }

    /// Schedulers that are alive, as far as can be told.
    fn living(&self) -> impl Iterator<Item = &Instance> {
        let now = self.now;
        self.instances.iter().filter(move |one| one.alive.unwrap_or(now.since(one.seen_at) < BELIEVED))
    }

    fn schedulers(&mut self) -> Result<(), Fault> {
        if self.living().next().is_none() && health::any_work(self.tx, self.now)? {
            let text = "there is work, and no scheduler is alive".to_owned();
            let advice = "start one: duly run, or the application that has the handlers";
            self.found.push(problem(ProblemKind::NoScheduler, text, advice));
        }
        for one in self.instances.iter().filter(|one| one.degraded) {
            let (pid, host) = (one.pid, &one.host);
            let text = format!(
                "the scheduler with pid {pid} on {host} has not been able to write the database for ten seconds or longer"
            );
            let advice = "see its log for the cause; nothing starts until it can write again";
            self.found.push(problem(ProblemKind::Degraded, text, advice));
        }
        Ok(())
    }

    fn late(&mut self) -> Result<(), Fault> {
        let before = self.now.minus(self.limits.overdue);
        for (task, since) in health::overdue(self.tx, before, MOST)? {
            let text = format!("{task} is due since {since}, for {}", self.ago(since));
            self.of_task(ProblemKind::Overdue, task, text, "is a scheduler alive, and its log quiet? see duly status");
        }
        let waiting = health::waiting(self.tx, before, MOST)?;
        let (mut living, mut busy) = (0, 0);
        for one in self.living() {
            living += 1;
            busy += usize::from(health::at_work(self.tx, &one.id)? >= one.workers);
        }
        for waiting in waiting {
            let (handler, count) = (&waiting.handler, waiting.count);
            let text = format!("runs of handler {handler} that may start: {count}, for {}", self.ago(waiting.since));
            let (kind, advice) = if living == 0 {
                (ProblemKind::Overdue, "start a scheduler that has this handler".to_owned())
            } else if busy > 0 {
                let advice = format!("schedulers with all workers at work: {busy} of {living}; give them more workers");
                (ProblemKind::Overdue, advice)
            } else {
                let advice = "no scheduler that is alive has it: start one that does, or give the tasks another";
                (ProblemKind::UnknownHandler, advice.to_owned())
            };
            self.found.push(problem(kind, text, &advice));
        }
        Ok(())
    }

    /// Running runs whose owner is not registered. Returns them.
    fn ownerless(&mut self) -> Result<HashSet<i64>, Fault> {
        let mut runs = HashSet::new();
        for (run, task, owner) in invariants::ownerless(self.tx, MOST)? {
            let lease = "a scheduler recovers it when its lease has not changed for a full lease (duly run)";
            let (stands, advice) = match standing(self.path, &owner) {
                Standing::Alive { .. } => {
                    let advice = "its row was removed while it was at work; it registers again at its next heartbeat";
                    ("is alive".to_owned(), advice.to_owned())
                }
                Standing::Dead(_) | Standing::Inherited(_) => {
                    ("is dead".to_owned(), "the next turn of a scheduler recovers it: duly run".to_owned())
                }
                Standing::Missing => {
                    ("has no lock file".to_owned(), format!("{lease}; only schedulers may claim runs"))
                }
                Standing::Unknown(reason) => (
                    format!("cannot be asked: {reason}"),
                    "remove the cause; a scheduler recovers it if it is dead".into(),
                ),
            };
            let text =
                format!("run {run} of {task} is running for owner {owner}, which is not registered and {stands}");
            self.of_run(ProblemKind::UnknownOwner, run, task, text, &advice);
            runs.insert(run);
        }
        Ok(runs)
    }

    /// `named`: runs of which something has been said already.
    fn stuck(&mut self, named: &HashSet<i64>) -> Result<(), Fault> {
        let stuck = health::stuck(self.tx, self.now, MOST)?;
        for stuck in stuck.into_iter().filter(|stuck| !named.contains(&stuck.run)) {
            if let Some(waits) = self.stalled_heir(&stuck).or_else(|| self.orphan(&stuck)) {
                self.found.push(waits);
                continue;
            }
            let run = stuck.run;
            let since = stuck.started_at.map_or_else(|| "an unknown time".to_owned(), |at| self.ago(at));
            let owner = self.instances.iter().find(|one| one.id == stuck.owner);
            let alive = owner.and_then(|one| Some((one.pid, one.alive?)));
            let (text, advice) = if let Some((_, false)) = alive {
                let text = format!("run {run} of {} was lost with its scheduler", stuck.task);
                (text, "the next scheduler recovers it: duly run".to_owned())
            } else if !stuck.past_lease {
                let text = format!("run {run} of {} is at work for {since}, longer than its time-out", stuck.task);
                (text, format!("its handler does not hear that its time is up: duly cancel {run}, or end it"))
            } else if let Some((pid, true)) = alive {
                let text =
                    format!("run {run} of {} is past its lease: its scheduler is alive and stands still", stuck.task);
                (text, format!("nobody takes it from the living: let process {pid} go on, or end it"))
            } else if let Some((Instance { pid, host, .. }, doubt)) =
                owner.and_then(|one| Some((one, one.doubt.as_ref()?)))
            {
                let text = format!(
                    "run {run} of {} is past its lease, and whether its scheduler is alive cannot be known: {doubt}",
                    stuck.task
                );
                (
                    text,
                    format!(
                        "look for process {pid} on {host}, and remove the cause; a scheduler recovers the run if it is dead"
                    ),
                )
            } else {
                let text = format!("run {run} of {} is past its lease, at work for {since}", stuck.task);
                (text, "its scheduler hangs, or cannot write: look at its log; another recovers it".to_owned())
            };
            self.of_run(ProblemKind::Stuck, run, stuck.task, text, &advice);
        }
        Ok(())
    }

    /// A run whose scheduler is dead, and which another one is to recover that is alive and makes no progress.
    fn stalled_heir(&self, stuck: &Stuck) -> Option<Problem> {
        let Standing::Inherited(heir) = standing(self.path, &stuck.owner) else { return None };
        let stalls = |one: &&Instance| one.id == heir && self.now.since(one.seen_at) > one.lease;
        let Instance { pid, host, .. } = self.instances.iter().find(stalls)?;
        let (run, task) = (stuck.run, stuck.task.clone());
        let found = format!(
            "run {run} of {task} waits: its scheduler is dead, and the scheduler that recovers its runs is alive and makes no \
             progress (pid {pid} on {host})"
        );
        let problem = problem(ProblemKind::Stuck, found, &format!("let process {pid} go on, or end it"));
        Some(Problem { task: Some(task), run: Some(run), ..problem })
    }

    fn ended_workers(&mut self) -> Result<(), Fault> {
        for ended in health::ended_workers(self.tx, self.now.minus(LATELY), MOST)? {
            if !self.living().any(|one| one.id == ended.owner) {
                continue;
            }
            let before = if ended.count > 1 { format!(", and {} before it", ended.count - 1) } else { String::new() };
            let error = excerpt(&ended.error, MAX_ERROR);
            let text = format!(
                "a worker of scheduler {} (pid {}) ended at {}{before}: {error}",
                ended.owner, ended.pid, ended.at
            );
            let advice =
                "a new worker has its place, unless the log says otherwise; report it with the log of that time";
            self.found.push(problem(ProblemKind::WorkerEnded, text, advice));
        }
        Ok(())
    }

    /// What is to be said of a run whose scheduler is dead, and whose command is not known to be gone.
    fn orphan(&self, stuck: &Stuck) -> Option<Problem> {
        let (run, handler) = (stuck.run, &stuck.handler);
        let is_dead = self.instances.iter().any(|one| one.id == stuck.owner && one.alive == Some(false));
        if !is_dead {
            return None;
        }
        let task = stuck.task.clone();
        let orphan = Orphan::new(self.path, run, stuck.attempt, task, handler.clone(), stuck.process.as_deref());
        let declare = format!("duly cancel {run} --gone");
        let sight = orphan.look();
        let (found, advice) = match (sight.presence, sight.group) {
            (Presence::Gone | Presence::NoTrace | Presence::LeftGroup, _) => return None,
            (Presence::Unknown(reason), _) => {
                let pid = orphan.pid().map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                let found = format!("whether its command{pid} is gone cannot be known: {reason}");
                (found, format!("remove the cause; or, if the command is gone: {declare}"))
            }
            (Presence::Alive, Some(Group::Led)) => {
                let pid = orphan.pid().unwrap_or_default();
                let found = format!("its command lives ({})", pids(&[pid]));
                let end = format!("kill -- -{pid}");
                match sight.signalled {
                    Some(_) => (found, format!("a scheduler that has handler {handler} ends it, or end it: {end}")),
                    None => (found, format!("no scheduler ends it, since its input is not found; end it: {end}")),
                }
            }
            (Presence::Alive, Some(Group::Leaderless(members))) => {
                let (pids, end) = (pids(&members), format!("end them: {}", kill(&members)));
                match sight.signalled {
                    Some(_) => (
                        format!("of its command these processes live: {pids}"),
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

    fn blocked(&mut self) -> Result<(), Fault> {
        for held in invariants::held_for_nothing(self.tx, self.now.minus(self.limits.overdue), MOST)? {
            let text = format!("run {} of {} waits ({}) for nothing", held.run, held.task, held.reason);
            let advice = "a scheduler at work mends it within minutes; if it does not, duly doctor, and report it";
            self.of_run(ProblemKind::Blocked, held.run, held.task, text, advice);
        }
        Ok(())
    }

    fn failed(&mut self) -> Result<(), Fault> {
        for (task, count, error, paused) in health::failing(self.tx, self.limits.failures, MOST)? {
            let (rests, then) = if paused {
                (", and is paused", format!("mend it, then duly resume {task}"))
            } else {
                ("", "mend or pause it".to_owned())
            };
            let text = format!("{task} is dead {count} times in a row{rests}: {}", excerpt(&error, MAX_ERROR));
            let advice = format!("see duly history {task}, and {then}");
            self.of_task(ProblemKind::Failing, task, text, &advice);
        }
        for dead in health::dead(self.tx, self.now.minus(LATELY), self.limits.failures, MOST)? {
            let more = if dead.count > 1 { format!(", and {} before it", dead.count - 1) } else { String::new() };
            let error = excerpt(&dead.error, MAX_ERROR);
            let text = format!("run {} of {} is dead{more}: {error}", dead.run, dead.task);
            let advice = format!("see duly logs {0}, and duly retry {0} if it is still wanted", dead.run);
            self.of_run(ProblemKind::Dead, dead.run, dead.task, text, &advice);
        }
        Ok(())
    }

    fn ago(&self, at: Timestamp) -> String {
        duration_text(Duration::from_secs(self.now.since(at).as_secs()))
    }
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

/// The database, files beside it and folders that other users may write.
fn modes(path: &Path) -> Vec<Problem> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let files = [path.to_owned(), beside("-wal"), beside("-shm")];
    let open = files.iter().filter_map(|file| {
        let (who, letters) = match platform::writable(&std::fs::metadata(file).ok()?) {
            Writable::Owner => return None,
            Writable::Group => ("its group", "g-w"),
            Writable::Anyone => ("anyone", "go-w"),
        };
        let text = format!("{who} may write {}, and so run commands as you", file.display());
        Some(problem(ProblemKind::FileMode, text, &format!("chmod {letters} it")))
    });
    // The caller may be another user than the scheduler's, such as root: the folder must belong to the owner of the database.
    let user = std::fs::metadata(path).ok().and_then(|metadata| folder::owner(&metadata));
    let folders =
        folder::unsafe_private(&owner_lock::folder(path), user).into_iter().chain(folder::unsafe_parent(path));
    open.chain(folders.map(|fault| problem(ProblemKind::FileMode, fault.found, &fault.advice))).collect()
}

/// Names of handlers and errors are somebody else's text: a problem stays one line.
fn problem(kind: ProblemKind, found: String, advice: &str) -> Problem {
    let line = |text: &str| text.replace(char::is_control, " ");
    Problem { kind, task: None, run: None, found: line(&found), advice: line(advice) }
}
