//! What differs between systems: the process group that a command and its children are, and what the end of one is called.
//!
//! On Unix a command leads a session, and so a group of the same number. It has no terminal: what it wants to read from one fails
//! at once, and Ctrl-C does not reach it. A leader cannot leave its session or its group.
//!
//! Where the kernel tells who is in a group (Linux), the command is not waited for until the group is empty: as long as its
//! number is taken, no signal to the group can reach another. Other Unix systems cannot tell the dead from the living, and
//! elsewhere there are no groups: a command is its one process.

use std::io;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};

use duly::Process;
#[cfg(unix)]
use process_wrap::std::{CommandWrap, CommandWrapper, ProcessSession};
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process_group};

use crate::exec::children::{self, Own};

/// Most processes that are listed by name.
const MEMBERS_SHOWN: usize = 10;

/// A command and those of its children that stayed in its group.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    is_over: bool,
    /// Dropped last: until the command was waited for, it is registered.
    _own: Own,
}

impl Group {
    /// Starts a command at the head of a session and a group of its own.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        // Only prepares the command. Its own `spawn` would wait for the group, and keep no more than the leader's status.
        #[cfg(unix)]
        ProcessSession.pre_spawn(command, &CommandWrap::from(Command::new("")))?;
        let (child, own) = children::start(command)?;
        Ok(Group { child, is_over: false, _own: own })
    }

    /// The number of the command, and of its group.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where it prints; once.
    pub(crate) fn pipes(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Whether the command itself has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::process::{WaitId, WaitIdOptions, waitid};
            let Some(pid) = pid(self.id()) else { return true };
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            // An error says that there is no such child: the system has cleared it away.
            !matches!(waitid(WaitId::Pid(pid), options), Ok(None) | Err(rustix::io::Errno::INTR))
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether the command has ended and nothing is left of its group.
    pub(crate) fn is_gone(&mut self) -> bool {
        self.has_ended() && is_empty(self.id())
    }

    /// What is left of it, as text: `sleep (pid 7), sh (pid 8)`. `None`: nothing, as far as can be seen.
    pub(crate) fn left(&self) -> Option<String> {
        if !cfg!(any(target_os = "linux", target_os = "android")) {
            return Some("its process group".to_owned());
        }
        let members = members(self.id()).unwrap_or_default();
        let mut shown: Vec<String> = members.iter().take(MEMBERS_SHOWN).map(|member| named(member.pid)).collect();
        if members.len() > shown.len() {
            shown.push(format!("and {} more", members.len() - shown.len()));
        }
        (!shown.is_empty()).then(|| shown.join(", "))
    }

    /// Asks all of it to end.
    pub(crate) fn terminate(&mut self) {
        #[cfg(unix)]
        terminate(self.id());
        #[cfg(not(unix))]
        self.kill();
    }

    /// Ends all of it.
    pub(crate) fn kill(&mut self) {
        #[cfg(unix)]
        kill(self.id());
        #[cfg(not(unix))]
        let _ = self.child.kill();
    }

    /// Waits for the command, which has ended, and tells how.
    pub(crate) fn end(mut self) -> io::Result<ExitStatus> {
        self.is_over = true;
        self.child.wait()
    }
}

impl Drop for Group {
    /// Whoever lets go of it without having seen its end, ends it.
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Why a command did not succeed; `None`: it did.
pub(crate) fn failure(status: ExitStatus) -> Option<String> {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return Some(match signal_hook::low_level::signal_name(signal) {
            Some(name) => format!("killed by {name}"),
            None => format!("killed by signal {signal}"),
        });
    }
    match status.code() {
        Some(0) => None,
        Some(code) => Some(format!("exit code {code}")),
        None => Some("ended without an exit code".to_owned()),
    }
}

/// `sleep (pid 7)`.
fn named(pid: u32) -> String {
    match std::fs::read(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{} (pid {pid})", String::from_utf8_lossy(&name).trim_end()),
        Err(_) => format!("pid {pid}"),
    }
}

/// The live processes of a group, as far as they can be seen. An error while looking is no evidence that there are none.
pub(crate) fn members(group: u32) -> io::Result<Vec<Process>> {
    let mut members = duly::processes()?;
    members.retain(|one| one.group == group && !one.is_dead);
    Ok(members)
}

/// Whether a group whose leader has ended has no other member.
fn is_empty(group: u32) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return members(group).is_ok_and(|members| members.is_empty());
    #[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
    return pid(group).is_none_or(|group| rustix::process::test_kill_process_group(group).is_err());
    #[cfg(not(unix))]
    {
        let _ = group;
        true
    }
}

/// Asks a group to end.
pub(crate) fn terminate(group: u32) {
    #[cfg(unix)]
    signal(group, Signal::TERM);
    #[cfg(not(unix))]
    let _ = group;
}

/// Ends a group.
pub(crate) fn kill(group: u32) {
    #[cfg(unix)]
    signal(group, Signal::KILL);
    #[cfg(not(unix))]
    let _ = group;
}

#[cfg(unix)]
fn signal(group: u32, signal: Signal) {
    // Those that are gone, or are another user's by now, cannot be reached; who waits for them finds out.
    let _ = pid(group).map(|group| kill_process_group(group, signal));
}

#[cfg(unix)]
fn pid(number: u32) -> Option<Pid> {
    // 1 would be everybody.
    i32::try_from(number).ok().filter(|number| *number > 1).and_then(Pid::from_raw)
}
