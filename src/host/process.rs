//! What the kernel reports about processes: which process a pid identifies, which processes are in a group, and whether
//! all of them are visible to this process. Linux reports it in `/proc`. On other systems nothing is recorded, and no
//! group can be read.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::host::{fault_points, platform};

/// The leader of a process group, distinguished from any later process with the same pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    pub(crate) pid: u32,
    /// In the kernel's ticks since the machine booted.
    started: u64,
    /// The boot id of the machine.
    boot: String,
    /// The inode of the PID namespace of `pid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid_ns: Option<u64>,
    /// The session of the group, which never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u32>,
}

/// The observed state of a recorded process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Its leader is alive.
    Led,
    /// Its leader is gone. These processes are in a group with the same number and session.
    Leaderless(Vec<u32>),
    /// All processes of the namespace were read, and none is a member.
    Empty,
    /// It was recorded before the last boot of the machine, so none of its processes can be alive.
    OtherBoot,
    /// It cannot be read completely, and no member was found; with the reason.
    Unreadable(String),
}

impl Leader {
    /// Identifies a child that has not been waited for. `None` where the system does not report the data, and where
    /// `/proc` shows another PID namespace than that of this process.
    pub fn identify(pid: u32) -> Option<Self> {
        fault_points::reach("started");
        let (pid_ns, stat) = (own_namespace().ok()?, stat(pid).ok()??);
        Some(Leader {
            pid,
            started: stat.started,
            boot: boot_id().ok()?,
            pid_ns: Some(pid_ns),
            session: Some(stat.session),
        })
    }

    /// Returns its pid, which is also the number of its group.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether this is the process, alive or a zombie. Only for what `/proc` shows where [`Leader::is_local`].
    pub fn is(&self, process: &Process) -> bool {
        (self.pid, self.started) == (process.pid, process.started)
    }

    /// Whether it was recorded since the last boot, in the PID namespace of this process, which `/proc` shows.
    ///
    /// # Errors
    /// If that cannot be known.
    pub fn is_local(&self) -> io::Result<bool> {
        Ok(boot_id()? == self.boot && own_namespace().map_err(io::Error::other).map(|own| self.pid_ns == Some(own))?)
    }

    /// Whether it has ended and was not waited for. `false` if that cannot be read.
    pub fn has_ended(&self) -> bool {
        matches!(stat(self.pid), Ok(Some(stat)) if stat.started == self.started && stat.is_dead)
    }

    /// Whether all processes of the group are certainly gone.
    pub fn is_group_gone(&self) -> bool {
        matches!(self.group(), Group::Empty | Group::OtherBoot)
    }

    /// Observes the group.
    pub(crate) fn group(&self) -> Group {
        match boot_id() {
            Ok(boot) if boot != self.boot => Group::OtherBoot,
            Ok(_) => self.observe().unwrap_or_else(Group::Unreadable),
            Err(error) => Group::Unreadable(format!("the boot id of this machine cannot be read: {error}")),
        }
    }

    fn observe(&self) -> Result<Group, String> {
        let pid_ns = self.pid_ns.ok_or("the PID namespace of its process is not recorded")?;
        if own_namespace()? != pid_ns {
            return Err("its process is in another PID namespace".to_owned());
        }
        match stat(self.pid).map_err(|error| error.to_string())? {
            // The kernel does not reuse a pid while a group has that number.
            Some(stat) if stat.started != self.started => return Ok(Group::Empty),
            Some(stat) if !stat.is_dead => return Ok(Group::Led),
            _ => {}
        }
        // Twice: one pass can miss a process that forks and exits during the read.
        for _ in 0..2 {
            let members = self.members()?;
            if !members.is_empty() {
                return Ok(Group::Leaderless(members));
            }
        }
        hidden().map_or(Ok(Group::Empty), Err)
    }

    /// Returns the visible live members. An error if there is none and not all processes could be read.
    fn members(&self) -> Result<Vec<u32>, String> {
        let (visible, unread) = all().map_err(|error| error.to_string())?;
        let is_member = |process: &&Process| {
            let same_session = self.session.is_none_or(|session| session == process.session);
            process.group == self.pid && !process.is_dead && same_session
        };
        let members: Vec<u32> = visible.iter().filter(is_member).map(|process| process.pid).collect();
        match unread {
            Some(reason) if members.is_empty() => Err(reason.to_string()),
            _ => Ok(members),
        }
    }
}

/// Returns whether a process was started with all of these variables, each as `NAME=value`. `false` if it has ended.
///
/// # Errors
/// If its environment cannot be read.
pub fn was_started_with(pid: u32, variables: &[String]) -> io::Result<bool> {
    let environment = match std::fs::read(format!("/proc/{pid}/environ")) {
        Err(error) if has_ended(&error) => return Ok(false),
        read => read?,
    };
    let has = |variable: &String| environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes());
    Ok(variables.iter().all(has))
}

/// Whether this error of a file of a process shows that there is no such process.
fn has_ended(error: &io::Error) -> bool {
    const NO_SUCH_PROCESS: i32 = 3;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_PROCESS)
}

/// Returns the visible processes that have a file open, under a name that `is_named` accepts.
pub(crate) fn holders(path: &Path, is_named: impl Fn(&str) -> bool) -> Vec<u32> {
    let Some(identity) = platform::identity_at(path) else { return Vec::new() };
    let holds = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
        files.flatten().any(|file| {
            // The name first: `stat` on a file of an unreachable network file system may block forever.
            let to = std::fs::read_link(file.path()).unwrap_or_default();
            let named = to.file_name().and_then(|name| name.to_str()).is_some_and(&is_named);
            named && platform::identity_at(&file.path()) == Some(identity)
        })
    };
    pids().unwrap_or_default().into_iter().filter(holds).collect()
}

/// Returns whether the number of a live process that holds a lock is that of another PID namespace: the kernel lists the locks of the
/// processes that are visible here, and this number has none. `false` if that cannot be known. Looks twice: a list that changes while it is
/// read can lack a line.
pub(crate) fn is_elsewhere(pid: u32) -> bool {
    let is_missing = || read("/proc/locks").is_ok_and(|locks| !is_listed(&locks, pid));
    own_namespace().is_ok() && is_missing() && is_missing()
}

/// Whether a line as `1: FLOCK  ADVISORY  WRITE 7 08:01:5 0 EOF` names the process.
fn is_listed(locks: &str, pid: u32) -> bool {
    let holder = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK");
        words.nth(3)?.parse::<u32>().ok()
    };
    locks.lines().any(|line| holder(line) == Some(pid))
}

/// Returns the boot id of this machine: a new one after every boot.
pub(crate) fn boot_id() -> io::Result<String> {
    // Under Wine, this path leads to the system below.
    if cfg!(windows) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Returns the inode of this process's PID namespace. An error if `/proc` shows another namespace.
fn own_namespace() -> Result<u64, String> {
    let status = read("/proc/self/status").map_err(|error| format!("/proc/self/status cannot be read: {error}"))?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    if numbers.trim() != std::process::id().to_string() {
        return Err("/proc shows another PID namespace than this process's own".to_owned());
    }
    let path = Path::new("/proc/self/ns/pid");
    let namespace =
        path.metadata().map_err(|error| format!("the PID namespace of this process cannot be read: {error}"))?;
    platform::identity(&namespace, path)
        .map(|(_, inode)| inode)
        .ok_or_else(|| "this system has no PID namespaces".to_owned())
}

/// Returns why some processes are not visible in `/proc`; `None` if all are.
fn hidden() -> Option<String> {
    match read("/proc/self/mountinfo") {
        Ok(mounts) => hidden_by(&mounts),
        Err(error) => Some(format!("/proc/self/mountinfo cannot be read: {error}")),
    }
}

/// As [`hidden`], from the text of `mountinfo`.
fn hidden_by(mounts: &str) -> Option<String> {
    let mut options = None;
    for line in mounts.lines() {
        let (Some(point), Some((_, mounted))) = (line.split(' ').nth(4), line.split_once(" - ")) else { continue };
        let mut mounted = mounted.split(' ');
        match point {
            // The last mount hides the earlier ones.
            "/proc" => options = (mounted.next() == Some("proc")).then(|| mounted.nth(1).unwrap_or_default()),
            _ if point.strip_prefix("/proc/").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) => {
                return Some(format!("{point} is covered by another mount"));
            }
            _ => {}
        }
    }
    let Some(options) = options else { return Some("no proc file system is mounted at /proc".to_owned()) };
    let hides = |option: &&str| option.starts_with("hidepid=") && !matches!(&option[8..], "0" | "off");
    let option = options.split(',').find(hides)?;
    Some(format!("/proc is mounted with {option}, and so may hide processes"))
}

/// Returns the pids of all visible processes.
fn pids() -> io::Result<Vec<u32>> {
    let pid = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let listed = std::fs::read_dir("/proc").and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let entries = listed.map_err(|error| io::Error::new(error.kind(), format!("/proc cannot be read: {error}")))?;
    Ok(entries.into_iter().filter_map(pid).collect())
}

/// A process as `/proc` reports it.
///
/// ```
/// use duly::command::processes;
/// let own = processes()?.into_iter().find(|process| process.pid == std::process::id());
/// // `None` where the system has no `/proc`.
/// assert!(own.is_none_or(|own| !own.is_dead && own.parent != own.pid));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// The pid of its parent process.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Its session.
    pub session: u32,
    /// When it started, in the kernel's ticks since boot. A later process with the same pid has another value.
    pub started: u64,
    /// It is a zombie: it has exited, and its parent has not waited for it.
    pub is_dead: bool,
}

/// Returns the processes that are visible to this user, for handlers that start commands. Empty where the system has no
/// `/proc`. A process that starts or ends during the call may be missing.
///
/// ```
/// let own = duly::command::processes()?.into_iter().find(|process| process.pid == std::process::id());
/// assert_eq!(own.is_some(), cfg!(target_os = "linux"));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// If a process cannot be read for another reason than permissions: a failed read does not prove that there is no
/// process.
pub fn processes() -> io::Result<Vec<Process>> {
    match all() {
        Ok((_, Some(error))) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        Ok((visible, _)) => Ok(visible),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns all processes of the PID namespace of this process.
///
/// # Errors
/// If some may be hidden, or could not be read: then nothing shows that there is no other.
pub fn every_process() -> io::Result<Vec<Process>> {
    own_namespace().map_err(io::Error::other)?;
    match (all()?, hidden()) {
        ((visible, None), None) => Ok(visible),
        ((_, Some(error)), _) => Err(error),
        (_, Some(reason)) => Err(io::Error::other(reason)),
    }
}

/// Returns the visible processes, and the first error for the others; an error other than missing permission wins.
fn all() -> io::Result<(Vec<Process>, Option<io::Error>)> {
    let (mut visible, mut unread) = (Vec::new(), None::<io::Error>);
    for pid in pids()? {
        match stat(pid) {
            Ok(process) => visible.extend(process),
            Err(error) if unread.as_ref().is_none_or(|first| first.kind() == io::ErrorKind::PermissionDenied) => {
                unread = Some(error);
            }
            Err(_) => {}
        }
    }
    Ok((visible, unread))
}

/// Returns the process with this pid; `None` if there is none.
fn stat(pid: u32) -> io::Result<Option<Process>> {
    let path = format!("/proc/{pid}/stat");
    match read(&path) {
        Ok(line) => parse(pid, &line).map(Some).ok_or_else(|| io::Error::other(format!("{path} cannot be understood"))),
        Err(error) if has_ended(&error) => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{path} cannot be read: {error}"))),
    }
}

fn parse(pid: u32, line: &str) -> Option<Process> {
    // The name, in brackets, may contain any character: fields are counted from the closing bracket.
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace();
    let is_dead = matches!(fields.next()?, "Z" | "X");
    let (parent, group, session) =
        (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let started = fields.nth(15)?.parse().ok()?;
    Some(Process { pid, parent, group, session, started, is_dead })
}

/// Returns the text of a file of `/proc`. Process names need not be UTF-8.
fn read(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::{Process, hidden_by, is_listed, parse};

    #[test]
    fn the_list_of_locks_names_their_processes() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:01:5 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 08:01:6 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 9 08:01:6 0 EOF\n";
        let listed: Vec<u32> = (0..100).filter(|pid| is_listed(locks, *pid)).collect();
        assert_eq!(listed, [8, 9]);
    }

    #[test]
    fn stat_is_parsed_for_any_process_name() {
        let line = "71 (a) Z 1 (b\u{fffd}) S 1 70 69 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1";
        let one = Process { pid: 71, parent: 1, group: 70, session: 69, started: 12345, is_dead: false };
        assert_eq!(parse(71, line), Some(one));
        assert!(parse(71, "71 (a").is_none() && parse(71, "71 (a) S 1").is_none());
    }

    #[test]
    fn hidepid_is_detected_in_the_mount_options() {
        let mount =
            |at: &str, kind: &str, options: &str| format!("22 27 0:21 / {at} rw,nosuid - {kind} proc {options}\n");
        let plain = mount("/", "ext4", "rw") + &mount("/proc", "proc", "rw");
        assert_eq!(hidden_by(&plain), None);
        for shows in ["rw,hidepid=0", "rw,hidepid=off,gid=4"] {
            assert_eq!(hidden_by(&mount("/proc", "proc", shows)), None, "{shows}");
        }
        for hides in ["1", "2", "4", "noaccess", "invisible", "ptraceable"] {
            let covered = plain.clone() + &mount("/proc", "proc", &format!("rw,hidepid={hides},gid=4"));
            let expected = format!("/proc is mounted with hidepid={hides}, and so may hide processes");
            assert_eq!(hidden_by(&covered), Some(expected));
            // A mount that is covered by another one does not count.
            assert_eq!(hidden_by(&(covered + &mount("/proc", "proc", "rw"))), None);
        }
        for other in [mount("/", "ext4", "rw"), plain.clone() + &mount("/proc", "tmpfs", "rw")] {
            assert!(hidden_by(&other).is_some_and(|reason| reason.starts_with("no proc file system")), "{other}");
        }
        assert!(hidden_by(&(plain.clone() + &mount("/proc/71", "tmpfs", "rw"))).is_some());
        assert_eq!(hidden_by(&(plain + &mount("/proc/sys", "proc", "ro"))), None);
    }
}
