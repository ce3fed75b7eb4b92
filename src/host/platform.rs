//! What differs between systems: file modes, the identity of a file, and held files. Each function has a minimal
//! fallback for other systems.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Returns device and inode: the identity of a file under any name. `path`: where these metadata were read. On Windows, volume and index, for
/// which the file is opened again: `None` if that fails.
pub(crate) fn identity(metadata: &Metadata, path: &Path) -> Option<(u64, u64)> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let _ = path;
        Some((metadata.dev(), metadata.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        known_volume(information_at(path)?.0)
    }
}

/// As [`identity`], of the file at a path; links are followed.
pub(crate) fn identity_at(path: &Path) -> Option<(u64, u64)> {
    identity(&path.metadata().ok()?, path)
}

/// As [`identity`], of an open file.
pub(crate) fn identity_of(file: &File) -> Option<(u64, u64)> {
    #[cfg(unix)]
    return identity(&file.metadata().ok()?, Path::new(""));
    #[cfg(not(unix))]
    known_volume(information(file)?.0)
}

/// Returns whether a file that is found now may be the one that was found before: `true` if the system does not say.
pub(crate) fn may_be(found: Option<(u64, u64)>, before: Option<(u64, u64)>) -> bool {
    if cfg!(unix) { found == before } else { found.zip(before).is_none_or(|(found, before)| found == before) }
}

/// Returns whether a path, where these metadata were read, names this open file. On Windows by the index alone: both are in one folder, and
/// Wine loses the volume of an open file that is renamed.
pub(crate) fn is_named(file: &File, path: &Path, named: &Metadata) -> bool {
    #[cfg(unix)]
    return identity(named, path) == identity_of(file);
    #[cfg(not(unix))]
    {
        let _ = named;
        let index = |found: Option<((u64, u64), u64)>| found.map(|((_, index), _)| index);
        index(information_at(path)) == index(information(file))
    }
}

/// Returns the number of names (hard links) of a file. `path`: where these metadata were read.
pub(crate) fn names(metadata: &Metadata, path: &Path) -> u64 {
    #[cfg(unix)]
    {
        let _ = path;
        std::os::unix::fs::MetadataExt::nlink(metadata)
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        information_at(path).map_or(1, |(_, names)| names)
    }
}

/// Windows numbers its volumes from 1. Wine does not always find the number.
#[cfg(windows)]
fn known_volume(identity: (u64, u64)) -> Option<(u64, u64)> {
    Some(identity).filter(|(volume, _)| *volume != 0)
}

/// Returns the identity of a file, and the number of its names.
#[cfg(windows)]
fn information(file: &File) -> Option<((u64, u64), u64)> {
    let found = winapi_util::file::information(file).ok()?;
    Some(((found.volume_serial_number(), found.file_index()), found.number_of_links()))
}

#[cfg(windows)]
fn information_at(path: &Path) -> Option<((u64, u64), u64)> {
    information(winapi_util::Handle::from_path_any(path).ok()?.as_file())
}

/// A value that changes whenever the file does: its size, and the times of its last content and inode change.
#[cfg(unix)]
pub(crate) type Version = (u64, (i64, i64), (i64, i64));

#[cfg(unix)]
pub(crate) fn version(metadata: &Metadata) -> Version {
    use std::os::unix::fs::MetadataExt;
    (metadata.len(), (metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec()))
}

#[cfg(not(unix))]
pub(crate) type Version = (u64, Option<std::time::SystemTime>);

#[cfg(not(unix))]
pub(crate) fn version(metadata: &Metadata) -> Version {
    (metadata.len(), metadata.modified().ok())
}

/// Opens a file that another process made, or may have replaced: only a regular file, and no link to one. Any other file, which may
/// have no end or never be ready, is [`io::ErrorKind::InvalidInput`].
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options, flags.cast_signed());
    }
    let is_link = || path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    if !cfg!(unix) && is_link() {
        return Err(refused());
    }
    let file = options.open(path).map_err(|error| if is_link() { refused() } else { error })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused()) }
}

/// Returns whether a file was not opened for want of descriptors or memory, which shows nothing of the file.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        Errno::from_io_error(error).is_some_and(|error| [Errno::MFILE, Errno::NFILE, Errno::NOMEM].contains(&error))
    }
    #[cfg(not(unix))]
    {
        error.kind() == io::ErrorKind::OutOfMemory
    }
}

/// Creates a new file that only its owner may read and write. Fails if the file exists.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Renames a file. On Windows, again for a second as long as another program, such as one that looks for viruses, has one of them open.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(windows)]
    for pause in [1, 4, 15, 60, 250, 650].map(std::time::Duration::from_millis) {
        match std::fs::rename(from, to) {
            Err(error) if is_held_by_another(&error) => std::thread::sleep(pause),
            done => return done,
        }
    }
    std::fs::rename(from, to)
}

/// Windows: whether a file cannot be used now because another process has it open.
#[cfg(windows)]
fn is_held_by_another(error: &io::Error) -> bool {
    const ACCESS_DENIED: i32 = 5;
    const LOCK_VIOLATION: i32 = 33;
    [ACCESS_DENIED, SHARING_VIOLATION, LOCK_VIOLATION].map(Some).contains(&error.raw_os_error())
}

/// Windows: another process has the file open without sharing it.
#[cfg(windows)]
const SHARING_VIOLATION: i32 = 32;

/// Creates a folder that only its owner may enter. Fails if it exists.
pub(crate) fn create_private_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(path);
    #[cfg(not(unix))]
    std::fs::create_dir(path)
}

/// Writes all of `bytes` at `offset`, independent of the file's own position.
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

/// Returns the byte at `offset`, independent of the file's own position; `None` behind its end. On Windows no other process can write
/// into a locked file, and the byte counts as missing.
pub(crate) fn byte_at(file: &File, offset: u64) -> io::Result<Option<u8>> {
    #[cfg(unix)]
    {
        let mut byte = [0];
        let read = std::os::unix::fs::FileExt::read_at(file, &mut byte, offset)?;
        Ok((read == 1).then_some(byte[0]))
    }
    #[cfg(not(unix))]
    {
        let _ = (file, offset);
        Ok(None)
    }
}

/// Returns when a file was created, in nanoseconds since the Unix epoch. `None` where the system does not report it.
pub(crate) fn born(metadata: &Metadata) -> Option<u64> {
    // Windows gives a new file the time of the one whose name it takes within seconds. The index of a file is not used again there.
    if cfg!(windows) {
        return None;
    }
    let since = metadata.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Returns the canonical path of an existing file: two owners that open it by two names must use the same lock files.
/// On Windows the path is only made absolute, since many libraries reject canonical Windows paths; links are not
/// resolved there.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    if cfg!(unix) { std::fs::canonicalize(path) } else { std::path::absolute(path) }
}

/// Who may write a file, by its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(unix), allow(dead_code, reason = "other systems have no modes"))]
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

/// Returns whether other users may read a file.
pub(crate) fn is_read(metadata: &Metadata) -> bool {
    has_mode(metadata, 0o004)
}

/// Returns whether other users may open the files of a folder.
pub(crate) fn is_open(metadata: &Metadata) -> bool {
    !cfg!(unix) || has_mode(metadata, 0o001)
}

fn has_mode(metadata: &Metadata, bits: u32) -> bool {
    #[cfg(unix)]
    return std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & bits != 0;
    #[cfg(not(unix))]
    {
        let _ = (metadata, bits);
        false
    }
}

/// Returns the kernel's name for this machine, for the column `scheduler_instances.host`.
pub(crate) fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    if name.is_empty() { "localhost".to_owned() } else { name.chars().take(100).collect() }
}

/// Creates a private file that is held while it, or a copy that a child inherits, is open.
pub(crate) fn create_held(path: &Path) -> io::Result<File> {
    // Locks are not inherited on Windows; instead no other process can open the file while it is open.
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

/// The state of a file that [`create_held`] created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// A process has it open, or a copy that it inherited.
    Held,
    /// Its lock could be acquired.
    Free,
    /// The file does not exist.
    Missing,
    /// The check failed; with the reason.
    Unknown(String),
}

/// Returns whether such a file is held, and its identity. Requests a shared lock, so that two observers do not mistake
/// each other for the holder.
pub(crate) fn held(path: &Path) -> (Hold, Option<(u64, u64)>) {
    let file = match open_regular(path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (Hold::Missing, None),
        #[cfg(windows)]
        Err(error) if error.raw_os_error() == Some(SHARING_VIOLATION) => return (Hold::Held, None),
        Err(error) => return (Hold::Unknown(format!("{} cannot be opened: {error}", path.display())), None),
    };
    let hold = match file.try_lock_shared() {
        Ok(()) => {
            // Closing alone does not release it while a process that is being started has a copy of the descriptor.
            let _ = file.unlock();
            Hold::Free
        }
        Err(TryLockError::WouldBlock) => Hold::Held,
        Err(TryLockError::Error(error)) => {
            Hold::Unknown(format!("the lock of {} cannot be requested: {error}", path.display()))
        }
    };
    (hold, identity_of(&file))
}
