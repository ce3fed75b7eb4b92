//! What differs between systems: file modes, and the identity of a file and of a process. Each has the least that works
//! elsewhere.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Which file this is, however it is named; `None` where the system does not tell.
#[cfg(unix)]
pub(crate) fn identity(metadata: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
pub(crate) fn identity(_metadata: &Metadata) -> Option<(u64, u64)> {
    None
}

/// Makes a new file that only its owner may read and write; an error if there is one already.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Writes all of `bytes` at this place, wherever the file's own position is.
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::write_all_at(file, bytes, offset);
    #[cfg(not(unix))]
    {
        use std::io::{Seek, Write};
        let mut file = file;
        file.seek(io::SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }
}

/// The one name of an existing file, whatever links and folders it was reached by: two owners that open it by two names must
/// find each other's locks. Elsewhere than on Unix such names are not for every library, and links are left alone.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    if cfg!(unix) { std::fs::canonicalize(path) } else { std::path::absolute(path) }
}

/// Who else may write the file: what its mode says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writable {
    Owner,
    Group,
    Anyone,
}

#[cfg(unix)]
pub(crate) fn writable(metadata: &Metadata) -> Writable {
    use std::os::unix::fs::PermissionsExt;
    match metadata.permissions().mode() {
        mode if mode & 0o002 != 0 => Writable::Anyone,
        mode if mode & 0o020 != 0 => Writable::Group,
        _ => Writable::Owner,
    }
}

#[cfg(not(unix))]
pub(crate) fn writable(_metadata: &Metadata) -> Writable {
    Writable::Owner
}

/// The name of this machine, as the kernel has it, for people who look at `scheduler_instances`.
pub(crate) fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    if name.is_empty() { "localhost".to_owned() } else { name.chars().take(100).collect() }
}

/// Makes a private file that is held for as long as it, or a copy that a child inherits, is open.
pub(crate) fn create_held(path: &Path) -> io::Result<File> {
    // Locks are not inherited on Windows; there nobody else can open the file while it is open.
    #[cfg(windows)]
    return std::os::windows::fs::OpenOptionsExt::share_mode(OpenOptions::new().read(true).write(true), 0)
        .create_new(true)
        .open(path);
    #[cfg(not(windows))]
    {
        let file = create_private(path)?;
        file.lock()?;
        Ok(file)
    }
}

/// Whether somebody holds such a file. A missing one is held by nobody.
pub(crate) fn is_held(path: &Path) -> bool {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => matches!(file.try_lock(), Err(TryLockError::WouldBlock)),
        Err(error) => cfg!(windows) && error.kind() != io::ErrorKind::NotFound,
    }
}

/// A process that leads a group of its own, told from any later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leader {
    pub(crate) pid: u32,
    /// Since the machine was started, in the kernel's ticks.
    started: u64,
    /// Another one after every start of the machine.
    boot: String,
}

/// What can be said of a process group that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Its leader lives.
    Led,
    /// Its leader is gone, and there are processes in a group of its number.
    Leaderless,
    /// It has no member.
    Gone,
    /// This system does not tell.
    Unknown,
}

impl Leader {
    /// A process of ours that has not been waited for. `None` where the system does not tell.
    pub(crate) fn identify(pid: u32) -> Option<Self> {
        Some(Leader { pid, started: stat(pid)?.started, boot: boot()? })
    }

    pub(crate) fn group(&self) -> Group {
        let Some(now) = boot() else { return Group::Unknown };
        if now != self.boot {
            return Group::Gone;
        }
        match stat(self.pid) {
            Some(stat) if stat.started != self.started => Group::Gone,
            Some(stat) if !stat.is_dead => Group::Led,
            _ if members(self.pid) > 0 => Group::Leaderless,
            _ => Group::Gone,
        }
    }
}

/// What `/proc/PID/stat` tells of a process.
struct Stat {
    /// It has ended, and nobody has waited for it.
    is_dead: bool,
    group: u32,
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything: fields are counted from its end.
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(16)?.parse().ok()?;
    Some(Stat { is_dead: matches!(state, "Z" | "X"), group, started })
}

/// How many live processes a group has.
fn members(group: u32) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(stat).filter(|stat| stat.group == group && !stat.is_dead).count()
}

/// Which start of the machine this is: another id after each. `None` where the system does not say.
pub(crate) fn boot() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}
