//! The process of the guard: its start, and what it does. It opens no database, and only ends processes that are certainly those of
//! its scheduler. Its standard output is its lock file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use duly::command::{Leader, Process, every_process, processes, record_ended, record_gone, was_started_with};
use duly::{Clock, SystemClock};

use crate::exec::children::{self, Own};
use crate::exec::guard::lines::{Group, Line, Starting};
use crate::exec::system::{self, KILL};
use crate::exec::user;

/// First argument of the program in its role as the guard.
const ROLE: &str = "--guard";
/// Its name in the list of processes.
const NAME: &str = "duly-guard";
/// Its name while it ends groups.
const ENDING: &str = "duly-guard-ends";
/// Prefixes of the variables that the dynamic loader reads, without which the program may not start.
const LOADER: [&str; 3] = ["LD_", "GLIBC_TUNABLES", "NIX_LD"];
/// Poll interval for the end of groups.
const POLL: Duration = Duration::from_millis(50);
/// The same after the last SIGKILL, for groups that may not be signalled, or cannot be ended.
const LATER: Duration = Duration::from_secs(1);
/// Longest sleep before a deadline: a sleep does not count the time in which the machine is suspended.
const NAP: Duration = Duration::from_millis(500);
/// Interval at which the guard looks, while there are groups, whether the scheduler is stopped: then it notes when their leaders end.
const LOOK: Duration = Duration::from_millis(100);
/// Wait for a line once a deadline has passed: if this process was stopped until then, a later deadline may wait in the pipe.
const READ: Duration = Duration::from_millis(200);
/// Groups that have ended which a guard remembers: their end may not be recorded with their run when the scheduler dies.
const ENDED: usize = 1000;
/// Lines that are read ahead.
const AHEAD: usize = 64;
/// Stack of the thread that reads.
const STACK: usize = 64 * 1024;

/// Starts a guard in a session of its own: no signal of a terminal reaches it. It inherits nothing but the pipe and its lock file.
pub(super) fn start(pipe: PipeReader, locked: Option<File>) -> io::Result<(Child, Own)> {
    let mut command = user::this_program();
    let locked = locked.map_or_else(Stdio::null, Stdio::from);
    command.arg(ROLE).env_clear().stdin(pipe).stdout(locked).stderr(Stdio::null());
    let of_loader =
        |name: &OsString| LOADER.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
    command.envs(std::env::vars_os().filter(|(name, _)| of_loader(name)));
    system::own_session(&mut command)?;
    children::start(&mut command)
}

/// In the role of the guard: returns when the scheduler has died and its groups are gone, or some time after its deadline has passed.
/// `false`: in another role.
pub(crate) fn is_guard(mut words: impl Iterator<Item = OsString>) -> bool {
    if words.nth(1).is_none_or(|word| word != ROLE) {
        return false;
    }
    let _ = user::close_inherited();
    take_name(NAME);
    // Not before: a path of the loader may be relative.
    let _ = std::env::set_current_dir("/");
    ignore_signals();
    let scheduler = system::parent();
    let (sender, lines) = sync_channel(AHEAD);
    let is_abroad = is_abroad();
    let read = move || {
        let lines = BufReader::new(io::stdin()).lines().map_while(Result::ok);
        let of_here = |line| if is_abroad { unnamed(line) } else { line };
        let _ = lines
            .filter_map(|line| Line::parse(&line))
            .map(of_here)
            .try_for_each(|line| sender.send(line).map_err(drop));
    };
    if thread::Builder::new().stack_size(STACK).spawn(read).is_ok() {
        let mut told = Told { scheduler, ..Told::default() };
        told.collect(&lines);
        take_name(ENDING);
        told.end(&lines);
    }
    true
}

/// Whether the scheduler is in another PID namespace than this process. The number of a process is another one there.
fn is_abroad() -> bool {
    #[cfg(unix)]
    return rustix::process::getppid().is_none();
    #[cfg(not(unix))]
    false
}

/// Whether the scheduler is stopped by a signal, such as that of Ctrl-Z.
fn is_scheduler_stopped() -> bool {
    #[cfg(unix)]
    {
        let scheduler = rustix::process::getppid().map(|pid| pid.as_raw_nonzero());
        let stat = scheduler.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        stat.is_some_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')))
    }
    #[cfg(not(unix))]
    false
}

/// Removes from a line what would name another process here. Whether such a group is gone is never known.
fn unnamed(line: Line) -> Line {
    match line {
        Line::Start(group) => Line::Start(Group { pid: 0, leader: None, ..group }),
        line => line,
    }
}

/// Returns whether a process is a scheduler or another guard: it executes this program, and certainly not as a command of the scheduler.
fn is_other_duly(pid: u32, variables: &[String]) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    program("self").is_some_and(|own| program(&pid.to_string()) == Some(own))
        && was_started_with(pid, variables).is_ok_and(|is_command| !is_command)
}

/// Returns the begin of the tick, one of the kernel's since the boot, that has this number.
fn ticks(count: u64) -> Duration {
    #[cfg(unix)]
    let a_second = rustix::param::clock_ticks_per_second();
    #[cfg(not(unix))]
    let a_second = 100;
    Duration::from_millis(count.saturating_mul(1000) / a_second.max(1))
}

/// Sets its name in the list of processes.
fn take_name(name: &str) {
    let _ = std::fs::write("/proc/self/comm", name);
}

/// Whether a guard of this user or of root is ending groups: its scheduler has died.
pub(crate) fn is_one_ending() -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use std::os::unix::fs::MetadataExt;
        let own = rustix::process::geteuid().as_raw();
        let is_ending = |one: &Process| {
            let folder = std::path::Path::new("/proc").join(one.pid.to_string());
            // Anyone may choose the name of a process.
            !one.is_dead
                && one.session == one.pid
                && std::fs::read(folder.join("comm")).is_ok_and(|name| name.trim_ascii_end() == ENDING.as_bytes())
                && std::fs::metadata(&folder).is_ok_and(|folder| [own, 0].contains(&folder.uid()))
        };
        processes().is_ok_and(|visible| visible.iter().any(is_ending))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    false
}

/// A service manager may signal all processes of a service. The guard is needed until the scheduler has ended.
fn ignore_signals() {
    use signal_hook::consts::{SIGINT, SIGTERM};
    #[cfg(unix)]
    let more = [signal_hook::consts::SIGHUP, signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2];
    #[cfg(not(unix))]
    let more: [i32; 0] = [];
    for signal in [SIGINT, SIGTERM].into_iter().chain(more) {
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
}

/// What the scheduler has told.
#[derive(Default)]
struct Told {
    /// The parent of its groups, if it has not died before this process asked.
    scheduler: u32,
    /// By name.
    groups: BTreeMap<String, Group>,
    /// Those that are about to be started, by name.
    starting: BTreeMap<String, Starting>,
    /// They were looked for once, after the death of the scheduler.
    has_looked: bool,
    /// When its death was seen, since the boot.
    closed_at: Duration,
    /// Names of the last groups that have ended.
    ended: VecDeque<String>,
    deadline: Option<(Duration, Duration)>,
    /// Names of groups whose leader has ended while the scheduler was stopped: that is recorded.
    recorded: BTreeSet<String>,
    /// The scheduler has died.
    is_closed: bool,
}

impl Told {
    /// Reads until the pipe is closed or a deadline has passed.
    fn collect(&mut self, lines: &Receiver<Line>) {
        let locked = lock_file();
        loop {
            let left = self.deadline.map(|(term, _)| term.saturating_sub(since_boot()));
            let nap = left.map(|left| left.clamp(READ, NAP));
            let nap = if self.groups.is_empty() { nap } else { Some(nap.map_or(LOOK, |nap| nap.min(LOOK))) };
            // Once a deadline has passed, as long as a later one may take to be read.
            let nap = if left == Some(Duration::ZERO) { Some(READ) } else { nap };
            let line = match nap {
                None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(nap) => lines.recv_timeout(nap),
            };
            match line {
                Ok(line) => self.take(line),
                Err(RecvTimeoutError::Timeout) if left.is_none_or(|left| !left.is_zero()) => {
                    locked.iter().for_each(|file| self.record_ends(file));
                }
                Err(error) => {
                    self.is_closed = error == RecvTimeoutError::Disconnected;
                    self.closed_at = since_boot();
                    return;
                }
            }
        }
    }

    /// Records, while the scheduler is stopped, which leaders have ended: it cannot see when.
    fn record_ends(&mut self, locked: &File) {
        if self.groups.len() == self.recorded.len() || !is_scheduler_stopped() {
            return;
        }
        let has_ended = |group: &Group| group.leader.as_ref().is_some_and(Leader::has_ended);
        for (name, _) in self.groups.iter().filter(|(_, group)| has_ended(group)) {
            if self.recorded.insert(name.clone()) {
                let _ = record_ended(locked, name, since_boot());
            }
        }
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Starting(starting) => {
                // An attempt that was not started is tried again.
                self.ended.retain(|name| *name != starting.name);
                self.starting.insert(starting.name.clone(), starting);
            }
            Line::Start(group) => {
                self.starting.remove(&group.name);
                self.groups.insert(group.name.clone(), group);
            }
            Line::End(name) => {
                self.starting.remove(&name);
                self.groups.remove(&name);
                self.recorded.remove(&name);
                self.ended.push_back(name);
                if self.ended.len() > ENDED {
                    self.ended.pop_front();
                }
            }
            // What is to be dead at a time is asked to end before it.
            Line::Deadline { term, kill } => self.deadline = Some((term.min(kill), kill)),
        }
    }

    /// Reads what the scheduler has told meanwhile. Returns whether it was alive before, and has died.
    fn read_on(&mut self, lines: &Receiver<Line>) -> bool {
        let was_closed = self.is_closed;
        loop {
            match lines.try_recv() {
                Ok(line) => self.take(line),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.closed_at = if self.is_closed { self.closed_at } else { since_boot() };
                    self.is_closed = true;
                    break;
                }
            }
        }
        self.is_closed && !was_closed
    }

    /// Takes the groups that are to be ended, and the time from SIGTERM to the end of the last.
    fn take_groups(&mut self) -> (Vec<Ending>, Duration) {
        let groups = std::mem::take(&mut self.groups).into_values();
        let left: Vec<Ending> = groups.map(|group| Ending::of(group, true)).collect();
        let starting = self.starting.values().map(|starting| starting.kill_after);
        let longest = left.iter().map(|ending| ending.group.kill_after).chain(starting).max().unwrap_or_default();
        (left, longest + KILL)
    }

    /// Adds to `left` what the dead scheduler may have started of the groups that it did not identify. Returns the names of those of which
    /// nothing runs. Each child has executed its program by now, or has ended: until then it keeps the pipe open. Looks twice: one look can
    /// miss a process that forks and exits meanwhile.
    fn take_starting(&mut self, left: &mut Vec<Ending>) -> Vec<String> {
        // What cannot be seen completely is looked for again.
        let Ok(visible) = every_process() else { return Vec::new() };
        // Asked after the look: what it has shown under another parent than the scheduler was adopted as this process was.
        let parents = [self.scheduler, system::parent()];
        let has_begun = |one: &Process, at: Duration| {
            let leads = one.pid == one.session || !visible.iter().any(|other| other.pid == one.session);
            let is_child = one.pid != std::process::id() && parents.contains(&one.parent);
            let (began, end_of_tick) = (ticks(one.started), ticks(one.started.saturating_add(1)));
            is_child && leads && one.group == one.session && end_of_tick >= at && began <= self.closed_at
        };
        for Starting { name, at, kill_after, variables } in self.starting.values() {
            let begun = visible.iter().filter(|one| has_begun(one, *at) && !is_other_duly(one.pid, variables));
            let groups: BTreeSet<u32> = begun.map(|one| one.group).collect();
            for pid in groups {
                // The groups of other names are known for certain.
                if !left.iter().any(|one| one.group.pid == pid && (one.is_certain || one.group.name == *name)) {
                    let (name, variables, leader) = (name.clone(), variables.clone(), Leader::identify(pid));
                    left.push(Ending::of(Group { name, pid, leader, kill_after: *kill_after, variables }, false));
                }
            }
        }
        if !std::mem::replace(&mut self.has_looked, true) {
            return Vec::new();
        }
        let names = std::mem::take(&mut self.starting).into_keys();
        names.filter(|name| !left.iter().any(|ending| ending.group.name == *name)).collect()
    }

    /// Sends SIGTERM to the groups, and SIGKILL to those that are left, by the deadline at the latest: a lease ends for all hosts when its
    /// time has passed, also if the scheduler has died before. Once the scheduler has died, it waits until all are gone. While the
    /// scheduler lives, it waits for a limited time: the scheduler holds the lock as well, and starts another guard.
    fn end(mut self, lines: &Receiver<Line>) {
        let locked = lock_file();
        let latest = self.deadline.map(|(_, kill)| kill);
        let (mut left, mut until) = self.take_groups();
        let clock = SystemClock::new();
        let mut poll = POLL;
        let mut unwritten: Vec<String> = Vec::new();
        loop {
            let now = clock.now().monotonic;
            if self.read_on(lines) {
                // What was started after the deadline ends with the scheduler.
                let (more, limit) = self.take_groups();
                left.extend(more);
                until = now + limit;
            }
            left.retain(|ending| !self.ended.contains(&ending.group.name));
            if self.is_closed {
                // While the scheduler lives, an attempt that was not started may be started again under its name.
                unwritten.extend(self.ended.drain(..));
                unwritten.extend(self.take_starting(&mut left));
            }
            let is_late = latest.is_some_and(|latest| since_boot() >= latest);
            // A failed look proves nothing: the next one may succeed.
            let visible = processes();
            let mut gone = Vec::new();
            left.retain_mut(|ending| {
                let is_gone = ending.is_gone(visible.as_deref().ok());
                if is_gone {
                    gone.push(ending.group.name.clone());
                } else if let Ok(visible) = &visible {
                    ending.proceed(visible, now, is_late);
                }
                !is_gone
            });
            // Several groups may be the one of a name.
            unwritten.extend(gone.into_iter().filter(|name| !left.iter().any(|ending| ending.group.name == *name)));
            // What cannot be written is tried again as long as this process waits. Its end shows the same.
            unwritten.retain(|group| locked.as_ref().is_some_and(|file| record_gone(file, group).is_err()));
            let is_over = now >= until;
            if left.is_empty() && (self.starting.is_empty() || !self.is_closed) || is_over && !self.is_closed {
                return;
            }
            if is_over && poll == POLL {
                // No scheduler waits for its signals any more.
                take_name(NAME);
                poll = LATER;
            }
            thread::sleep(poll);
        }
    }
}

/// A group that is being ended.
struct Ending {
    group: Group,
    /// Whether it is certainly one of the scheduler's. Otherwise it is waited for.
    is_certain: bool,
    /// Its members when it was last certain that it is the scheduler's: pid and start.
    members: Vec<(u32, u64)>,
    /// When its grace ends, by the monotonic clock: without the time in which the machine is suspended, in which it cannot end
    /// itself. `None`: it was not sent SIGTERM yet.
    grace: Option<Duration>,
}

/// Returns the standard output, if it is a file.
#[cfg(unix)]
fn lock_file() -> Option<File> {
    let file = File::from(std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned().ok()?);
    file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
}

/// Other systems have no guard.
#[cfg(not(unix))]
fn lock_file() -> Option<File> {
    None
}

impl Ending {
    fn of(group: Group, is_certain: bool) -> Self {
        Ending { group, is_certain, members: Vec::new(), grace: None }
    }

    /// Whether the group is certainly gone. `visible`: the processes that this one sees, if they could be read.
    fn is_gone(&self, visible: Option<&[Process]>) -> bool {
        let Group { pid, leader, .. } = &self.group;
        let is_local = |leader: &Leader| leader.is_local().unwrap_or(false);
        // In another PID namespace, the number is that of another group.
        if system::is_missing(*pid) && leader.as_ref().is_none_or(is_local) {
            return true;
        }
        let (Some(visible), Some(leader)) = (visible, leader) else { return false };
        // The kernel does not reuse the number while a member lives.
        if visible.iter().any(|one| one.pid == *pid && !leader.is(one)) && is_local(leader) {
            return true;
        }
        // Dead processes that are not waited for. While there is a live one, the closer look is spared.
        !visible.iter().any(|one| one.group == *pid && !one.is_dead) && leader.is_group_gone()
    }

    /// Signals the group, if it is certainly the one that was announced. `is_late`: nothing may be left.
    fn proceed(&mut self, visible: &[Process], now: Duration, is_late: bool) {
        // The variables of an attempt name no database: a copy of it may run the same.
        if !self.is_certain {
            return;
        }
        let Some(members) = members(&self.group, &self.members, visible) else { return };
        self.members = members;
        match self.grace {
            _ if self.members.is_empty() => {}
            Some(until) if is_late || now >= until => system::kill(self.group.pid),
            Some(_) => {}
            None => {
                self.grace = Some(now + self.group.kill_after);
                system::terminate(self.group.pid);
            }
        }
    }
}

/// Returns the live processes of a group, pid and start, if it is certainly the one that was announced. `known`: its members when it was
/// looked at before. The kernel does not reuse the number of a group while a member lives, or its leader is a zombie.
fn members(group: &Group, known: &[(u32, u64)], visible: &[Process]) -> Option<Vec<(u32, u64)>> {
    // The numbers are those of this machine, boot and namespace.
    let leader = group.leader.as_ref().filter(|leader| leader.is_local().unwrap_or(false))?;
    let number = group.pid;
    let member = |one: &&Process| one.group == number && one.session == number && !one.is_dead;
    let members: Vec<(u32, u64)> = visible.iter().filter(member).map(|one| (one.pid, one.started)).collect();
    if visible.iter().any(|one| one.pid == number && !leader.is(one)) {
        return None;
    }
    let is_announced = visible.iter().any(|one| leader.is(one))
        || members.iter().any(|one| known.contains(one))
        || members.iter().any(|(pid, _)| is_started_with(*pid, &group.variables));
    is_announced.then_some(members)
}

/// Whether a process was certainly started with all of the variables. Without variables: none.
fn is_started_with(pid: u32, variables: &[String]) -> bool {
    !variables.is_empty() && was_started_with(pid, variables).unwrap_or(false)
}

/// Returns the time since the machine was booted, in which it was awake or suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Other systems have no guard.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn since_boot() -> Duration {
    Duration::ZERO
}
