//! Platform differences: the process group of a command, and the description of its exit status.
//!
//! On Unix a command leads its own session and process group. It has no terminal: reading from one fails at once, and Ctrl-C
//! does not reach it. A leader cannot leave its session or its group.
//!
//! On Linux, which lists the members of a group, the command is not waited for until the group is empty: while the zombie holds
//! the PID, a signal to the group cannot reach other processes. Other Unix systems do not distinguish dead members from live
//! ones. On Windows the group is a [job object](crate::exec::job), which is ended at once: there is no signal that asks first.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
#[cfg(not(windows))]
use std::process::Child;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::OnceLock;
use std::time::Duration;

#[cfg(unix)]
use command_fds::{CommandFdExt, FdMapping};
use duly::command::Process;
#[cfg(unix)]
use process_wrap::std::{CommandWrap, CommandWrapper, ProcessSession};
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process_group};

#[cfg(not(windows))]
use crate::exec::children::{self, Own};
#[cfg(windows)]
use crate::exec::job::{self as children, JobChild as Child, Own};
use crate::output::escape;
use crate::output::units::first_of;

/// The descriptor on which commands and workers inherit their locked file. Shells and scripts use none of this number by habit.
#[cfg_attr(not(unix), allow(dead_code, reason = "other systems have no descriptors"))]
pub(crate) const LOCK: i32 = 41;
/// Time between SIGTERM and SIGKILL.
pub(crate) const TERM: Duration = Duration::from_secs(10);
/// Time for which to wait after SIGKILL.
pub(crate) const KILL: Duration = Duration::from_secs(5);
/// Most processes that a message lists.
const MEMBERS_SHOWN: usize = 10;

/// A command and the other processes of its group.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    is_over: bool,
    /// Dropped last: the command is registered until it was waited for.
    _own: Own,
}

impl Group {
    /// Starts a command as the leader of a new session and group.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        own_session(command)?;
        let (child, own) = children::start(command)?;
        Ok(Group { child, is_over: false, _own: own })
    }

    /// As [`Group::start`], and the command inherits this locked file as [`LOCK`], also if it replaces its standard input.
    pub(crate) fn start_with(command: &mut Command, locked: File) -> io::Result<Self> {
        inherit(command, locked)?;
        Self::start(command)
    }

    /// Returns the PID of the command, which is also the ID of the group.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns stdout and stderr, once.
    pub(crate) fn pipes(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Returns stdin, once, if it is a pipe.
    pub(crate) fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Whether the command itself has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::process::{WaitId, WaitIdOptions, waitid};
            let Some(pid) = pid(self.id()) else { return true };
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            // An error means that there is no such child any more.
            !matches!(waitid(WaitId::Pid(pid), options), Ok(None) | Err(rustix::io::Errno::INTR))
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether the command has ended and its group is empty.
    pub(crate) fn is_gone(&mut self) -> bool {
        #[cfg(windows)]
        return self.has_ended() && self.child.is_empty();
        #[cfg(not(windows))]
        return self.has_ended() && is_empty(self.id());
    }

    /// Lists the live members: `sleep (pid 7), sh (pid 8)`; `None` if none is visible.
    pub(crate) fn left(&self) -> Option<String> {
        #[cfg(windows)]
        return self.child.members().map_or_else(|_| Some("its job object".to_owned()), |pids| listed(&pids));
        #[cfg(not(windows))]
        {
            if !cfg!(any(target_os = "linux", target_os = "android")) {
                return Some("its process group".to_owned());
            }
            let members = members(self.id()).unwrap_or_default();
            listed(&members.iter().map(|member| member.pid).collect::<Vec<_>>())
        }
    }

    /// Sends SIGTERM to the group.
    pub(crate) fn terminate(&mut self) {
        #[cfg(unix)]
        terminate(self.id());
        #[cfg(not(unix))]
        self.kill();
    }

    /// Sends SIGKILL to the group.
    pub(crate) fn kill(&mut self) {
        #[cfg(unix)]
        kill(self.id());
        #[cfg(not(unix))]
        let _ = self.child.kill();
    }

    /// Waits for the command, which has ended, and returns its exit status.
    pub(crate) fn end(mut self) -> io::Result<ExitStatus> {
        self.is_over = true;
        self.child.wait()
    }
}

impl Drop for Group {
    /// Ends the group if the end of the command was not awaited.
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether a process or a thread was not started for want of something that no task can repair: descriptors, memory, processes, files.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        let short = [
            Errno::AGAIN,
            Errno::DQUOT,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOLCK,
            Errno::NOMEM,
            Errno::NOSPC,
        ];
        Errno::from_io_error(error).is_some_and(|error| short.contains(&error))
    }
    #[cfg(not(unix))]
    matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::WouldBlock)
}

/// Returns the command that a shell executes: `/bin/sh`, on Windows `cmd.exe`.
pub(crate) fn shell(line: String) -> Vec<String> {
    let shell = if cfg!(windows) { CMD } else { &["/bin/sh", "-c"] };
    shell.iter().copied().map(str::to_owned).chain([line]).collect()
}

/// Windows: the words before a line that `cmd.exe` reads as it is.
const CMD: &[&str] = &["cmd.exe", "/d", "/s", "/c"];

/// Returns a command with these arguments. Windows has one line, of which each program makes its own: these are quoted as C programs expect,
/// those of batch files are refused if `cmd.exe` could read them otherwise, and the line of [`shell`] is not quoted.
pub(crate) fn command(argv: &[String]) -> Command {
    let mut command = Command::new(&argv[0]);
    #[cfg(windows)]
    if let Some([line]) = argv.strip_prefix(CMD.iter().copied().map(str::to_owned).collect::<Vec<_>>().as_slice()) {
        // `/s` removes the outer quotes, and nothing else.
        std::os::windows::process::CommandExt::raw_arg(command.args(&CMD[1..]), format!("\"{line}\""));
        return command;
    }
    command.args(&argv[1..]);
    command
}

/// Has a process lead a new session and group.
pub(crate) fn own_session(command: &mut Command) -> io::Result<()> {
    // This only prepares the command. `CommandWrap::spawn` would wait for the group, and keep only the leader's status.
    #[cfg(unix)]
    return ProcessSession.pre_spawn(command, &CommandWrap::from(Command::new("")));
    #[cfg(not(unix))]
    {
        let _ = command;
        Ok(())
    }
}

/// Reserves the number [`LOCK`] in this process as long as the result lives, before it opens files. Between its fork and its program a
/// child would replace what has this number: that could be the pipe by which its parent learns that the program was not started.
pub(crate) fn reserve_lock() -> Option<File> {
    #[cfg(unix)]
    return rustix::io::fcntl_dupfd_cloexec(io::stdin(), LOCK).ok().map(File::from);
    #[cfg(not(unix))]
    None
}

/// Has a process inherit a file as [`LOCK`]. If the limit of descriptors is too low for this number, fails as if none were left.
#[cfg(unix)]
fn inherit(command: &mut Command, file: File) -> io::Result<()> {
    // The child would find that out too late to report it.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| limit <= u64::from(LOCK.unsigned_abs())) {
        return Err(rustix::io::Errno::MFILE.into());
    }
    let mapping = FdMapping { parent_fd: file.into(), child_fd: LOCK };
    command.fd_mappings(vec![mapping]).map(drop).map_err(io::Error::other)
}

/// Other systems have no descriptors: the file stays locked as long as this process or the standard input of the command has it.
#[cfg(not(unix))]
fn inherit(_: &mut Command, _: File) -> io::Result<()> {
    Ok(())
}

/// Opens a pipe. On Unix, a write returns at once when it is full.
pub(crate) fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let ends = io::pipe()?;
    #[cfg(unix)]
    rustix::io::ioctl_fionbio(&ends.1, true)?;
    Ok(ends)
}

/// Describes why a command failed; `None`: it succeeded.
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

/// Lists processes: `sleep (pid 7), sh (pid 8)`; `None` if there is none.
pub(crate) fn listed(pids: &[u32]) -> Option<String> {
    let listed = || first_of(pids.iter().map(|pid| named(*pid)), MEMBERS_SHOWN, pids.len());
    (!pids.is_empty()).then(listed)
}

/// `sleep (pid 7)`.
fn named(pid: u32) -> String {
    match std::fs::read(format!("/proc/{pid}/comm")) {
        // The process chooses its name, and a log line contains it.
        Ok(name) => format!("{} (pid {pid})", escape::one_line(String::from_utf8_lossy(&name).trim_end())),
        Err(_) => format!("pid {pid}"),
    }
}

/// Returns the live processes of a group that are visible. An error is no evidence that there are none.
pub(crate) fn members(group: u32) -> io::Result<Vec<Process>> {
    let mut members = duly::command::processes()?;
    members.retain(|one| one.group == group && !one.is_dead);
    Ok(members)
}

/// Whether a group certainly does not exist: it has no process, not even a dead one that was not waited for.
pub(crate) fn is_missing(group: u32) -> bool {
    #[cfg(unix)]
    return pid(group)
        .is_some_and(|group| rustix::process::test_kill_process_group(group) == Err(rustix::io::Errno::SRCH));
    #[cfg(not(unix))]
    {
        let _ = group;
        false
    }
}

/// Whether a group whose leader has ended has no other member.
#[cfg(not(windows))]
fn is_empty(group: u32) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return members(group).is_ok_and(|members| members.is_empty());
    #[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
    return pid(group).is_none_or(|group| rustix::process::test_kill_process_group(group).is_err());
}

/// Sends SIGTERM to a group.
pub(crate) fn terminate(group: u32) {
    #[cfg(unix)]
    signal(group, Signal::TERM);
    #[cfg(not(unix))]
    let _ = group;
}

/// Sends SIGKILL to a group.
pub(crate) fn kill(group: u32) {
    #[cfg(unix)]
    signal(group, Signal::KILL);
    #[cfg(not(unix))]
    let _ = group;
}

#[cfg(unix)]
fn signal(group: u32, signal: Signal) {
    // An error is ignored: the caller waits for the end of the group.
    let _ = pid(group).map(|group| kill_process_group(group, signal));
}

#[cfg(unix)]
fn pid(number: u32) -> Option<Pid> {
    // A group ID of 1 would signal every process.
    i32::try_from(number).ok().filter(|number| *number > 1).and_then(Pid::from_raw)
}

/// Returns the parent that this process had at the first call, which `main` makes.
pub(crate) fn first_parent() -> u32 {
    static FIRST: OnceLock<u32> = OnceLock::new();
    *FIRST.get_or_init(parent)
}

/// Returns the parent of this process; 0: one that is not visible here. Another one than before shows that the one before has ended.
pub(crate) fn parent() -> u32 {
    #[cfg(unix)]
    return rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid().unsigned_abs());
    #[cfg(not(unix))]
    0
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use crate::exec::system::named;

    #[test]
    fn the_name_of_a_process_is_escaped() {
        let mut command = Command::new("sh");
        command.args(["-c", r"printf 'a\n\033[2Jb' >/proc/$$/comm; echo; read end"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        assert_eq!(named(child.id()), format!(r"a\n\u{{1b}}[2Jb (pid {})", child.id()));
        drop(child.stdin.take());
        crate::waits::exited(&mut child, "the shell");
    }
}
