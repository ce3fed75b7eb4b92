//! The process of the guard: its start, and what it does. It opens no database, and only ends processes that are certainly those of
//! its scheduler.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use duly::command::{Process, processes, was_started_with};

use crate::exec::children::{self, Own};
use crate::exec::guard::lines::{Group, Line};
use crate::exec::system::{self, KILL};
use crate::exec::user;

/// First argument of the program in its role as the guard.
const ROLE: &str = "--guard";
/// Its name in the list of processes.
const NAME: &str = "duly-guard";
/// Poll interval for the end of groups.
const POLL: Duration = Duration::from_millis(50);
/// Longest sleep before a deadline: a sleep does not count the time in which the machine is suspended.
const NAP: Duration = Duration::from_millis(500);
/// Lines that are read ahead.
const AHEAD: usize = 64;
/// Stack of the thread that reads.
const STACK: usize = 64 * 1024;

/// Starts a guard in a session of its own: no signal of a terminal reaches it. It inherits nothing but the pipe.
pub(super) fn start() -> io::Result<(Child, ChildStdin, Own)> {
    let mut command = user::this_program();
    command.arg(ROLE).env_clear().current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    system::own_session(&mut command)?;
    let (mut child, own) = children::start(&mut command)?;
    let pipe = child.stdin.take().ok_or_else(|| io::Error::other("it has no pipe"))?;
    #[cfg(unix)]
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok((child, pipe, own))
}

/// In the role of the guard: returns when the scheduler has died or its deadline has passed, and its groups are ended. `false`: in
/// another role.
pub(crate) fn is_guard(mut words: impl Iterator<Item = OsString>) -> bool {
    if words.nth(1).is_none_or(|word| word != ROLE) {
        return false;
    }
    let _ = user::close_inherited();
    let _ = std::fs::write("/proc/self/comm", NAME);
    ignore_signals();
    let (sender, lines) = sync_channel(AHEAD);
    let read = move || {
        let lines = BufReader::new(io::stdin()).lines().map_while(Result::ok);
        let _ = lines.filter_map(|line| Line::parse(&line)).try_for_each(|line| sender.send(line));
    };
    if thread::Builder::new().stack_size(STACK).spawn(read).is_ok() {
        let (groups, kill) = collect(&lines);
        end(groups, kill);
    }
    true
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

/// Reads until the pipe is closed or a deadline has passed. Returns the groups, and the time at which they are killed at the latest.
fn collect(lines: &Receiver<Line>) -> (Vec<Group>, Option<Duration>) {
    let mut groups = BTreeMap::new();
    let mut deadline: Option<(Duration, Duration)> = None;
    loop {
        let left = deadline.map(|(term, _)| term.saturating_sub(since_boot()));
        let line = match left {
            None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(left) => lines.recv_timeout(left.min(NAP)),
        };
        match line {
            Ok(Line::Start(group)) => drop(groups.insert(group.leader.pid(), group)),
            Ok(Line::End(pid)) => drop(groups.remove(&pid)),
            Ok(Line::Deadline { term, kill }) => deadline = Some((term, kill)),
            Err(RecvTimeoutError::Timeout) if left.is_some_and(|left| left > NAP) => {}
            Err(RecvTimeoutError::Timeout) => return (groups.into_values().collect(), deadline.map(|(_, kill)| kill)),
            Err(RecvTimeoutError::Disconnected) => return (groups.into_values().collect(), None),
        }
    }
}

/// A group that is being ended.
struct Ending {
    group: Group,
    /// Its members when it was last certain that it is the scheduler's: pid and start.
    members: Vec<(u32, u64)>,
    /// When it is killed; `None`: it was not yet certain.
    kill: Option<Duration>,
}

/// Sends SIGTERM to the groups, and SIGKILL to those that are left. `kill`: the latest time for it.
fn end(groups: Vec<Group>, kill: Option<Duration>) {
    let longest = groups.iter().map(|group| group.kill_after).max().unwrap_or_default();
    let until = since_boot() + longest + KILL;
    let mut left: Vec<Ending> =
        groups.into_iter().map(|group| Ending { group, members: Vec::new(), kill: None }).collect();
    while !left.is_empty() && since_boot() < until {
        // A failed look proves nothing: the next one may succeed.
        if let Ok(visible) = processes() {
            left.retain_mut(|ending| ending.proceed(&visible, kill));
        }
        thread::sleep(POLL);
    }
}

impl Ending {
    /// Returns whether a process of the group is left.
    fn proceed(&mut self, visible: &[Process], latest: Option<Duration>) -> bool {
        let (number, now) = (self.group.leader.pid(), since_boot());
        let Some(members) = members(&self.group, &self.members, visible) else { return false };
        self.members = members;
        match self.kill {
            _ if self.members.is_empty() => return false,
            Some(at) if now >= at => system::kill(number),
            Some(_) => {}
            None => {
                let at = now + self.group.kill_after;
                self.kill = Some(latest.map_or(at, |latest| at.min(latest)));
                system::terminate(number);
            }
        }
        true
    }
}

/// Returns the live processes of a group, each with its start, if the group is certainly the one that was announced. `known`: what
/// this function returned before. The kernel does not reuse the number of a group while a member lives, or its leader is a zombie.
fn members(group: &Group, known: &[(u32, u64)], visible: &[Process]) -> Option<Vec<(u32, u64)>> {
    let number = group.leader.pid();
    let member = |one: &&Process| one.group == number && one.session == number && !one.is_dead;
    let members: Vec<(u32, u64)> = visible.iter().filter(member).map(|one| (one.pid, one.started)).collect();
    let is_reused = || visible.iter().any(|one| one.pid == number && !group.leader.is(one));
    let is_led = || visible.iter().any(|one| group.leader.is(one));
    let is_started_by_it =
        |(pid, _): &(u32, u64)| !group.variables.is_empty() && was_started_with(*pid, &group.variables);
    let is_known = || members.iter().any(|one| known.contains(one) || is_started_by_it(one));
    // Last, since it reads files: the numbers are those of this machine, boot and namespace.
    let is_certain = !is_reused() && (is_led() || is_known()) && group.leader.is_local();
    is_certain.then_some(members)
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
