//! The process of the guard: its start, and what it does. It opens no database, and only ends processes that are certainly those of
//! its scheduler.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use duly::command::{Process, processes, was_started_with};
use duly::{Clock, SystemClock};

use crate::exec::children::{self, Own};
use crate::exec::guard::lines::{Group, Line};
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
/// Longest sleep before a deadline: a sleep does not count the time in which the machine is suspended.
const NAP: Duration = Duration::from_millis(500);
/// Wait for a line once a deadline has passed: if this process was stopped until then, a later deadline may wait in the pipe.
const READ: Duration = Duration::from_millis(200);
/// Lines that are read ahead.
const AHEAD: usize = 64;
/// Stack of the thread that reads.
const STACK: usize = 64 * 1024;

/// Starts a guard in a session of its own: no signal of a terminal reaches it. It inherits nothing but the pipe.
pub(super) fn start(pipe: PipeReader) -> io::Result<(Child, Own)> {
    let mut command = user::this_program();
    command.arg(ROLE).env_clear().stdin(pipe).stdout(Stdio::null()).stderr(Stdio::null());
    let of_loader =
        |name: &OsString| LOADER.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
    command.envs(std::env::vars_os().filter(|(name, _)| of_loader(name)));
    system::own_session(&mut command)?;
    children::start(&mut command)
}

/// In the role of the guard: returns when the scheduler has died or its deadline has passed, and its groups are ended. `false`: in
/// another role.
pub(crate) fn is_guard(mut words: impl Iterator<Item = OsString>) -> bool {
    if words.nth(1).is_none_or(|word| word != ROLE) {
        return false;
    }
    let _ = user::close_inherited();
    let _ = std::fs::write("/proc/self/comm", NAME);
    // Not before: a path of the loader may be relative.
    let _ = std::env::set_current_dir("/");
    ignore_signals();
    let (sender, lines) = sync_channel(AHEAD);
    let read = move || {
        let lines = BufReader::new(io::stdin()).lines().map_while(Result::ok);
        let _ = lines.filter_map(|line| Line::parse(&line)).try_for_each(|line| sender.send(line));
    };
    if thread::Builder::new().stack_size(STACK).spawn(read).is_ok() {
        let (groups, kill) = collect(&lines);
        let _ = std::fs::write("/proc/self/comm", ENDING);
        end(groups, kill);
    }
    true
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

/// Reads until the pipe is closed or a deadline has passed. Returns the groups, and the time since the boot at which they are killed at
/// the latest: a lease ends for all hosts when its time has passed, also if the scheduler has died before.
fn collect(lines: &Receiver<Line>) -> (Vec<Group>, Option<Duration>) {
    let mut groups = BTreeMap::new();
    let mut deadline: Option<(Duration, Duration)> = None;
    loop {
        let left = deadline.map(|(term, _)| term.saturating_sub(since_boot()));
        let line = match left {
            None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(left) => lines.recv_timeout(left.clamp(READ, NAP)),
        };
        match line {
            Ok(Line::Start(group)) => drop(groups.insert(group.leader.pid(), group)),
            Ok(Line::End(pid)) => drop(groups.remove(&pid)),
            // What is to be dead at a time is asked to end before it.
            Ok(Line::Deadline { term, kill }) => deadline = Some((term.min(kill), kill)),
            Err(RecvTimeoutError::Timeout) if left.is_some_and(|left| !left.is_zero()) => {}
            Err(_) => return (groups.into_values().collect(), deadline.map(|(_, kill)| kill)),
        }
    }
}

/// A group that is being ended.
struct Ending {
    group: Group,
    /// Its members when it was last certain that it is the scheduler's: pid and start.
    members: Vec<(u32, u64)>,
    /// When its grace ends, by the monotonic clock: without the time in which the machine is suspended, in which it cannot end
    /// itself. `None`: it was not sent SIGTERM yet.
    grace: Option<Duration>,
}

/// What a look at a group has shown.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// It is certainly the one that was announced. Its live processes: pid and start.
    Announced(Vec<(u32, u64)>),
    /// It has ended, or cannot be told from another one.
    Other,
    /// The look has failed, which proves nothing.
    Unknown,
}

/// Sends SIGTERM to the groups, and SIGKILL to those that are left. `latest`: when they are killed at the latest, since the boot.
fn end(groups: Vec<Group>, latest: Option<Duration>) {
    let longest = groups.iter().map(|group| group.kill_after).max().unwrap_or_default();
    let (clock, until) = (SystemClock::new(), longest + KILL);
    let mut left: Vec<Ending> =
        groups.into_iter().map(|group| Ending { group, members: Vec::new(), grace: None }).collect();
    loop {
        let now = clock.now().monotonic;
        if left.is_empty() || now >= until {
            return;
        }
        let is_late = latest.is_some_and(|latest| since_boot() >= latest);
        // A failed look proves nothing: the next one may succeed.
        if let Ok(visible) = processes() {
            left.retain_mut(|ending| ending.proceed(&visible, now, is_late));
        }
        thread::sleep(POLL);
    }
}

impl Ending {
    /// Returns whether a process of the group is or may be left. `is_late`: nothing may be left.
    fn proceed(&mut self, visible: &[Process], now: Duration, is_late: bool) -> bool {
        let number = self.group.leader.pid();
        match look(&self.group, &self.members, visible) {
            Look::Announced(members) => self.members = members,
            Look::Other => return false,
            Look::Unknown => return true,
        }
        match self.grace {
            _ if self.members.is_empty() => return false,
            Some(until) if is_late || now >= until => system::kill(number),
            Some(_) => {}
            None => {
                self.grace = Some(now + self.group.kill_after);
                system::terminate(number);
            }
        }
        true
    }
}

/// Looks at a group. `known`: its members when it was looked at before. The kernel does not reuse the number of a group while a member
/// lives, or its leader is a zombie.
fn look(group: &Group, known: &[(u32, u64)], visible: &[Process]) -> Look {
    // The numbers are those of this machine, boot and namespace.
    match group.leader.is_local() {
        Ok(true) => {}
        Ok(false) => return Look::Other,
        Err(_) => return Look::Unknown,
    }
    let number = group.leader.pid();
    let member = |one: &&Process| one.group == number && one.session == number && !one.is_dead;
    let members: Vec<(u32, u64)> = visible.iter().filter(member).map(|one| (one.pid, one.started)).collect();
    if visible.iter().any(|one| one.pid == number && !group.leader.is(one)) {
        return Look::Other;
    }
    let is_led = visible.iter().any(|one| group.leader.is(one));
    if is_led || members.iter().any(|one| known.contains(one)) {
        return Look::Announced(members);
    }
    match any_started_with(&members, &group.variables) {
        Ok(true) => Look::Announced(members),
        Ok(false) => Look::Other,
        Err(_) => Look::Unknown,
    }
}

/// Whether one of the processes was certainly started with all of the variables. Without variables: none.
fn any_started_with(members: &[(u32, u64)], variables: &[String]) -> io::Result<bool> {
    let mut unread = None;
    for (pid, _) in members.iter().filter(|_| !variables.is_empty()) {
        match was_started_with(*pid, variables) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => unread = Some(error),
        }
    }
    unread.map_or(Ok(false), Err)
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
