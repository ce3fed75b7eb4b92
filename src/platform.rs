//! What differs between systems: file modes and the identity of a file. Each has the least that works elsewhere.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

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

/// Makes a folder that only its owner may enter, unless it exists.
pub(crate) fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
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

/// The name of this machine, for people who look at `scheduler_instances`.
pub(crate) fn host() -> String {
    let named = std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME")).ok();
    named
        .or_else(|| std::fs::read_to_string("/etc/hostname").ok())
        .map(|name| name.trim().chars().take(100).collect::<String>())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}
