//! The guard: a process that ends the commands and workers of this scheduler when the scheduler is killed.
//!
//! `duly run` starts this program once more, in the role of the guard ([`process`]), and tells it over a pipe which process groups
//! start and end. The kernel closes the pipe when the scheduler dies, however it dies; the guard then ends what is left, and exits.
//! What runs already is written to the pipe before its guard is started, as much as fits: a guard knows of it from its start.
//! A group is announced before its process is started, and identified right after that, before the process is recorded with the run. If
//! the scheduler is killed between the two, the guard looks for the children that it may have started, and waits until they are gone. It
//! ends none of them: which are the scheduler's is not certain.
//!
//! A guard is also evidence for a scheduler that cannot read these groups. It holds the lock of a file ([`GuardLock`]), which this
//! process took before its first attempt, until all of them are gone, and writes there which are gone.

mod lines;
pub(crate) mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use duly::command::{GuardLock, GuardPlace, GuardedGroup, Leader};
use duly::{Clock, SystemClock};

use crate::exec::children::Own;
use crate::exec::guard::lines::{Group, Line, Starting};
use crate::exec::system;

/// Life after which the end of a guard is reported again, and the longest delay before the next start.
const PROOF: Duration = Duration::from_secs(60);
/// Time for which the pipe may be full before the guard is replaced.
const FULL: Duration = Duration::from_secs(1);
/// Longest time for which the start or the end of the guard is waited for.
const WAIT: Duration = Duration::from_secs(1);
/// Delay before the second restart in a row. It doubles.
const BACKOFF: Duration = Duration::from_secs(1);
/// Failures in a row from which on there is a problem.
const PROBLEM: u32 = 3;
/// What happens without a guard.
const WITHOUT: &str = "commands outlive a scheduler that is killed, until the next one ends them";
/// Logged when a guard is replaced because the file in the place of its lock file is not the one that it holds locked.
const LOST: &str = "the lock file of the guard process was removed or replaced; the guard is started again";
/// Interval at which that place is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Stack of the thread that starts a guard.
const STACK: usize = 256 * 1024;

/// The guard of this process. Cheap to clone. The default one guards nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard(Option<Arc<Mutex<Keeper>>>);

/// A process group for which the guard waits if this process is killed, and which it ends once it is identified, unless
/// [`Watched::end`] was called.
#[derive(Debug)]
pub(crate) struct Watched {
    guard: Arc<Mutex<Keeper>>,
    name: String,
    group: Option<GuardedGroup>,
}

impl Guard {
    /// Returns a guard that is not started yet. On other systems than Linux it guards nothing; on Windows the system ends all that this process
    /// starts from now on with this process.
    pub(crate) fn new() -> Self {
        #[cfg(windows)]
        if let Err(error) = crate::exec::job::end_with_this_process() {
            log::warn!("the scheduler cannot have a job object: {error}; {WITHOUT}");
        }
        let is_able = cfg!(any(target_os = "linux", target_os = "android"));
        Guard(is_able.then(Arc::default))
    }

    /// Takes the lock of the guard. Called before the first attempt.
    pub(crate) fn take_lock(&self, place: GuardPlace) {
        let Some(keeper) = &self.0 else { return };
        let taken = place.lock().map(Arc::new);
        let mut keeper = lock(keeper);
        keeper.place = Some(place);
        keeper.take_lock(taken);
    }

    /// Starts the guard, which is told what was announced before. If it cannot be started, that is logged, and tried again by
    /// [`Guard::check`].
    pub(crate) fn start(&self) {
        let Some(keeper) = &self.0 else { return };
        let Some(pipe) = lock(keeper).open() else { return };
        // A start takes milliseconds. Without the limit, a file system that does not answer would block the main thread.
        if launch(keeper, pipe).recv_timeout(WAIT) == Err(RecvTimeoutError::Timeout) {
            log::warn!("the guard process has not started yet; without it, {WITHOUT}");
        }
    }

    /// Announces a group that is about to be started, with the variables that its processes will have. `name`: that of its attempt; without
    /// one it gets another. `None`: there are no guards.
    pub(crate) fn announce(
        &self,
        name: Option<String>,
        variables: Vec<String>,
        kill_after: Duration,
    ) -> Option<Watched> {
        let guard = self.0.clone()?;
        let mut keeper = lock(&guard);
        keeper.last += 1;
        let name = name.unwrap_or_else(|| keeper.last.to_string());
        let starting = Starting { name: name.clone(), at: process::since_boot(), kill_after, variables };
        keeper.groups.insert(name.clone(), Line::Starting(starting));
        keeper.tell(&name);
        // Also while no guard lives: this process holds the lock, and the next guard is told of the group.
        let group = keeper.lock.as_ref().map(|held| held.group(&name));
        drop(keeper);
        Some(Watched { guard, name, group })
    }

    /// Sets when the guard ends the groups although this process lives: SIGTERM at `term`, SIGKILL at `kill`, both as
    /// [`process::since_boot`]. A later call replaces them.
    #[cfg(feature = "postgres")]
    pub(crate) fn set_deadline(&self, term: Duration, kill: Duration) {
        let Some(guard) = &self.0 else { return };
        let mut keeper = lock(guard);
        keeper.deadline = Some((term, kill));
        keeper.is_deadline_untold = keeper.live.as_ref().is_some_and(|live| live.process.is_some());
        keeper.flush();
    }

    /// Starts the guard again if it has ended. Called at least once a second. Does not block.
    pub(crate) fn check(&self) {
        let Some(keeper) = &self.0 else { return };
        look_at_lock(keeper);
        let pipe = lock(keeper).check();
        if let Some(pipe) = pipe {
            drop(launch(keeper, pipe));
        }
    }

    /// Returns why there is no guard now, or none that lasts.
    pub(crate) fn problem(&self) -> Option<String> {
        let keeper = lock(self.0.as_ref()?);
        let is_one_missing = keeper.live.is_none() && !keeper.is_finished;
        let of_process = keeper.problem.clone().filter(|_| is_one_missing || keeper.failures >= PROBLEM);
        of_process.or_else(|| keeper.unlocked.clone())
    }

    /// Ends the guard, before this process does. If groups are left, the guard ends them.
    pub(crate) fn finish(&self) {
        let Some(keeper) = &self.0 else { return };
        lock(keeper).finish();
        let clock = SystemClock::new();
        while lock(keeper).has_unreaped() && clock.now().monotonic < WAIT {
            thread::sleep(Duration::from_millis(1));
        }
        let keeper = lock(keeper);
        keeper.lock.iter().filter(|_| keeper.groups.is_empty()).for_each(|lock| lock.retire());
    }
}

impl Watched {
    /// Tells the guard which child leads the group. The child was not waited for. If it cannot be distinguished from other processes, the
    /// guard signals nothing, and only sees when the group is gone.
    pub(crate) fn identify(&self, pid: u32) {
        let leader = Leader::identify(pid);
        let mut keeper = lock(&self.guard);
        if let Some(Line::Starting(Starting { name, kill_after, variables, .. })) = keeper.groups.remove(&self.name) {
            keeper.groups.insert(name.clone(), Line::Start(Group { name, pid, leader, kill_after, variables }));
            keeper.tell(&self.name);
        }
    }

    /// Returns the group, for the record of its command. `None`: no guard holds its lock.
    pub(crate) fn group(&self) -> Option<GuardedGroup> {
        self.group.clone()
    }

    /// Returns when the leader of the group ended, as [`process::since_boot`], if that was while this process was stopped.
    pub(crate) fn ended_at(&self) -> Option<Duration> {
        let held = lock(&self.guard).lock.clone();
        held?.ended_at(&self.name)
    }

    /// Tells the guard that the group is gone. Called before its leader is waited for: until then, no other process can have its number.
    pub(crate) fn end(&self) {
        let mut keeper = lock(&self.guard);
        keeper.groups.remove(&self.name);
        keeper.tell(&self.name);
    }
}

/// What the scheduler knows of its guard. No method blocks.
#[derive(Debug, Default)]
struct Keeper {
    live: Option<Live>,
    /// Guards that were killed or have ended, and were not waited for.
    unreaped: Vec<Live>,
    /// Where its lock file is. `None`: no scheduler has started.
    place: Option<GuardPlace>,
    lock: Option<Arc<GuardLock>>,
    /// Why the lock could not be taken.
    unlocked: Option<String>,
    /// The locked file is no longer in its place.
    is_lock_lost: bool,
    next_look: Duration,
    /// The line that tells the guard of each group, by name.
    groups: BTreeMap<String, Line>,
    /// How many groups were announced.
    last: u64,
    deadline: Option<(Duration, Duration)>,
    /// The names of groups of which the guard does not know whether they run.
    untold: BTreeSet<String>,
    is_deadline_untold: bool,
    clock: SystemClock,
    is_finished: bool,
    /// Guards in a row that have ended early, and the time of the next start.
    failures: u32,
    next_start: Duration,
    problem: Option<String>,
}

#[derive(Debug)]
struct Live {
    /// The guard ends the groups when it is closed.
    pipe: PipeWriter,
    /// What is left to write of a line.
    rest: Vec<u8>,
    full_since: Option<Duration>,
    /// `None` while a thread starts it.
    process: Option<Started>,
}

#[derive(Debug)]
struct Started {
    child: Child,
    at: Duration,
    /// Dropped last: the guard is registered until it was waited for.
    _own: Own,
}

/// Starts a guard that reads the pipe, in a thread of its own. What it returns is disconnected when the guard was started, or has
/// failed.
fn launch(keeper: &Arc<Mutex<Keeper>>, pipe: PipeReader) -> Receiver<()> {
    let ((done, is_done), of_thread) = (sync_channel(1), keeper.clone());
    let start = move || {
        let started = locked_file(&of_thread, GuardLock::share).and_then(|locked| process::start(pipe, locked));
        lock(&of_thread).take_started(started);
        drop::<SyncSender<()>>(done);
    };
    let thread = thread::Builder::new().name("duly-guard".to_owned()).stack_size(STACK).spawn(start);
    if let Err(error) = thread {
        lock(keeper).take_started(Err(error));
    }
    is_done
}

/// Returns the locked file for a guard. If it is not in its place, another one is made. `None`: none can be made. If it cannot be shared,
/// no guard is started: the scheduler alone would hold the lock.
fn locked_file(keeper: &Mutex<Keeper>, share: impl FnOnce(&GuardLock) -> io::Result<File>) -> io::Result<Option<File>> {
    let (place, held) = {
        let keeper = lock(keeper);
        (keeper.place.clone(), keeper.lock.clone())
    };
    let Some(place) = place else { return Ok(None) };
    let held = held.filter(|held| held.is_intact()).map_or_else(|| place.lock().map(Arc::new), Ok);
    let shared = held.as_ref().ok().map(|held| share(held)).transpose();
    lock(keeper).take_lock(held);
    shared
}

/// Looks whether the locked file is in its place, and makes one if there is none. Then the guard is started again.
fn look_at_lock(keeper: &Mutex<Keeper>) {
    let (place, held) = {
        let mut keeper = lock(keeper);
        let now = keeper.now();
        // A thread that starts a guard looks itself.
        let is_started = keeper.live.as_ref().is_some_and(|live| live.process.is_some());
        if !is_started || now < keeper.next_look {
            return;
        }
        keeper.next_look = now + LOOK;
        let Some(place) = keeper.place.clone() else { return };
        (place, keeper.lock.clone())
    };
    // File systems may take their time: the mutex is not held.
    if held.as_ref().is_some_and(|held| held.is_intact()) {
        return;
    }
    let made = if held.is_none() { place.lock().ok().map(Arc::new) } else { None };
    let mut keeper = lock(keeper);
    keeper.is_lock_lost |= held.is_some() || made.is_some();
    if made.is_some() {
        (keeper.lock, keeper.unlocked) = (made, None);
    }
}

impl Keeper {
    fn take_lock(&mut self, taken: io::Result<Arc<GuardLock>>) {
        self.is_lock_lost = false;
        let failed = |error: &io::Error| format!("the guard process has no lock file, and so is no evidence: {error}");
        self.unlocked = taken.as_ref().err().map(failed);
        if let Some(unlocked) = &self.unlocked {
            log::warn!("{unlocked}");
        }
        self.lock = taken.ok();
    }

    /// Opens the pipe of a new guard, and writes to it which groups run, as many as fit. Returns its read end, for [`launch`]. `None`:
    /// there is no pipe.
    fn open(&mut self) -> Option<PipeReader> {
        match system::pipe() {
            Ok((reader, pipe)) => {
                self.live = Some(Live { pipe, rest: Vec::new(), full_since: None, process: None });
                self.untold = self.groups.keys().cloned().collect();
                // Told when the guard has started: if the start took long, this one would be out of date.
                self.is_deadline_untold = false;
                self.flush();
                Some(reader)
            }
            Err(error) => {
                self.not_started(&error);
                None
            }
        }
    }

    fn take_started(&mut self, started: io::Result<(Child, Own)>) {
        match started {
            Ok((child, own)) => {
                let process = Some(Started { child, at: self.now(), _own: own });
                // Until now, no process could read the pipe.
                self.live = self.live.take().map(|live| Live { full_since: None, process, ..live });
                self.is_deadline_untold = true;
                self.flush();
                if self.is_finished {
                    self.finish();
                }
            }
            Err(error) => self.not_started(&error),
        }
    }

    fn not_started(&mut self, error: &io::Error) {
        self.live = None;
        self.failed(Duration::ZERO, &format!("the guard process cannot be started: {error}; it is tried again"));
    }

    /// Tells the guard whether a group runs.
    fn tell(&mut self, name: &str) {
        if self.live.is_some() {
            self.untold.insert(name.to_owned());
            self.flush();
        }
    }

    fn next_line(&mut self) -> Option<Line> {
        if std::mem::take(&mut self.is_deadline_untold)
            && let Some((term, kill)) = self.deadline
        {
            return Some(Line::Deadline { term, kill });
        }
        let name = self.untold.pop_first()?;
        Some(self.groups.get(&name).cloned().unwrap_or(Line::End(name)))
    }

    /// Writes what the guard was not told, as far as its pipe takes it. The rest follows with the next line or [`Keeper::check`].
    fn flush(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        let written = loop {
            if live.rest.is_empty() {
                let Some(line) = self.next_line() else { break Ok(()) };
                live.rest = line.to_text().into_bytes();
            }
            match live.pipe.write(&live.rest) {
                Ok(written) => {
                    live.rest.drain(..written);
                    live.full_since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let now = self.now();
        let full_since = live.full_since.unwrap_or(now);
        live.full_since = written.is_err().then_some(full_since);
        self.live = Some(live);
        match written {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock || now.saturating_sub(full_since) >= FULL => {
                self.lose(&error.to_string());
            }
            _ => {}
        }
    }

    /// Looks after the guard. If a new one is due, opens its pipe, for [`launch`].
    fn check(&mut self) -> Option<PipeReader> {
        self.has_unreaped();
        let now = self.now();
        if let Some(live) = &mut self.live {
            let Some(process) = &mut live.process else { return None };
            if now.saturating_sub(process.at) >= PROOF {
                self.problem = None;
            }
            match process.is_running() {
                true if self.is_lock_lost => {
                    log::warn!("{LOST}");
                    self.kill();
                    self.next_start = now;
                }
                true => self.flush(),
                false => self.lose(""),
            }
        }
        let is_due = self.live.is_none() && !self.is_finished && self.now() >= self.next_start;
        is_due.then(|| self.open()).flatten()
    }

    /// Gives up a guard that has ended or does not read. Its pipe stays open until it is dead: it would end the groups.
    fn lose(&mut self, error: &str) {
        let Some(process) = self.live.as_mut().and_then(|live| live.process.as_mut()) else { return };
        let how = match process.child.try_wait() {
            Ok(Some(status)) => system::failure(status).unwrap_or_else(|| "exit code 0".to_owned()),
            _ => format!("it does not read: {error}"),
        };
        let at = process.at;
        self.kill();
        let lived = self.now().saturating_sub(at);
        self.failed(lived, &format!("the guard process ended: {how}; it is started again"));
    }

    /// Has the next guard started at once, or after a delay if several have failed in a row, which is logged ever more rarely.
    fn failed(&mut self, lived: Duration, what: &str) {
        self.failures = if lived >= PROOF { 1 } else { self.failures.saturating_add(1) };
        let delay = BACKOFF.saturating_mul(1 << self.failures.saturating_sub(2).min(6)).min(PROOF);
        self.next_start = self.now() + if self.failures == 1 { Duration::ZERO } else { delay };
        let what = format!("{what}; without it, {WITHOUT}");
        // The first, fourth, 16th, ..
        if self.failures.is_power_of_two() && self.failures.trailing_zeros().is_multiple_of(2) {
            log::warn!("{what}");
        }
        self.problem = Some(what);
    }

    fn finish(&mut self) {
        self.is_finished = true;
        match &self.live {
            Some(Live { process: None, .. }) => {}
            _ if self.groups.is_empty() => self.kill(),
            _ => self.live = None,
        }
    }

    fn kill(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        if let Some(process) = &mut live.process {
            let _ = process.child.kill();
        }
        self.unreaped.push(live);
    }

    /// Reaps what has ended. Returns whether guards are left.
    fn has_unreaped(&mut self) -> bool {
        self.unreaped.retain_mut(|live| live.process.as_mut().is_some_and(Started::is_running));
        !self.unreaped.is_empty()
    }

    fn now(&self) -> Duration {
        self.clock.now().monotonic
    }
}

impl Started {
    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

fn lock(keeper: &Mutex<Keeper>) -> MutexGuard<'_, Keeper> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{self, Read};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use duly::Scheduler;
    use duly::command::{GuardLock, Leader};

    use crate::exec::guard::lines::{Group, Line};
    use crate::exec::guard::{Guard, Keeper, lock, locked_file};

    #[test]
    fn a_guard_whose_lock_cannot_be_shared_is_not_started_and_its_lock_stays() {
        let home = tempfile::tempdir().expect("a folder");
        let (sender, places) = channel();
        let builder =
            Scheduler::builder(home.path().join("t.db")).handler("work", |_: &duly::Context| Ok::<_, String>(()));
        let scheduler =
            builder.guarded(move |place| sender.send(place).expect("a receiver")).start().expect("a scheduler");
        let place = places.recv().expect("a place");
        let keeper = Mutex::new(Keeper { place: Some(place), ..Keeper::default() });
        let failed = locked_file(&keeper, |_| Err(io::Error::other("no descriptor is left")));
        assert!(failed.is_err_and(|error| error.to_string() == "no descriptor is left"));
        // What starts meanwhile records a guard whose lock the scheduler holds.
        let held = lock(&keeper).lock.clone().expect("the lock");
        assert!(held.is_intact() && lock(&keeper).unlocked.is_none());
        assert!(locked_file(&keeper, GuardLock::share).expect("a copy").is_some() && held.is_intact());
        drop(scheduler);
    }

    #[test]
    fn a_guard_that_is_missing_is_a_problem_while_it_lasts() {
        let guard = Guard(Some(Arc::default()));
        let keeper = guard.0.as_ref().expect("a keeper");
        let fail = || lock(keeper).not_started(&io::Error::other("no program"));
        let start = || lock(keeper).open().expect("a pipe");
        assert_eq!(guard.problem(), None, "none is started yet");
        fail();
        assert!(guard.problem().is_some_and(|problem| problem.contains("no program")));
        let _pipe = start();
        assert_eq!(guard.problem(), None, "one is being started");
        fail();
        fail();
        let _pipe = start();
        assert!(guard.problem().is_some(), "none has lasted");
    }

    #[test]
    fn what_runs_is_in_the_pipe_before_the_guard_is_started() {
        let pid = std::process::id();
        let leader = Leader::identify(pid).expect("this process");
        let group = Group {
            name: "7".to_owned(),
            pid,
            leader: Some(leader),
            kill_after: Duration::ZERO,
            variables: Vec::new(),
        };
        let deadline = Some((Duration::ZERO, Duration::ZERO));
        let groups = BTreeMap::from([("7".to_owned(), Line::Start(group))]);
        let mut keeper = Keeper { groups, deadline, ..Keeper::default() };
        let mut pipe = keeper.open().expect("a pipe");
        // It ends while the guard is being started.
        keeper.groups.clear();
        keeper.tell("7");
        keeper.live = None;
        let mut text = String::new();
        pipe.read_to_string(&mut text).expect("its lines");
        let lines: Vec<Line> = text.lines().filter_map(Line::parse).collect();
        assert!(matches!(&lines[..], [Line::Start(_), Line::End(name)] if name == "7"), "{text}");
    }
}
