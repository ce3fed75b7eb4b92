//! Folders that no other user may write: the folder of the lock files, and the one that holds the database.
//!
//! A lock file proves that a scheduler is alive or dead. If another user can replace it, it proves nothing.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::path::Path;

use crate::host::platform;

/// What is wrong with a folder, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) found: String,
    pub(crate) advice: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.found, self.advice)
    }
}

/// Creates a folder that only its owner may enter. Accepts an existing folder if it is safe.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    match platform::create_private_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_private(path),
        other => other,
    }
}

/// Fails if a folder is missing, or is not private to this user.
pub(crate) fn check_private(path: &Path) -> io::Result<()> {
    path.symlink_metadata()?;
    unsafe_private(path, this_user()).map_or(Ok(()), |fault| Err(io::Error::other(fault.to_string())))
}

/// Returns why an existing folder is not private to `user`: it is a link, it is not a folder, another user owns it, or
/// other users may write it. Returns `None` for a folder that is missing or cannot be examined: it cannot be used
/// either.
pub(crate) fn unsafe_private(path: &Path, user: Option<u32>) -> Option<Fault> {
    let metadata = path.symlink_metadata().ok()?;
    let name = path.display();
    let fault = |found: String, advice: String| Some(Fault { found, advice });
    if metadata.is_symlink() {
        return fault(format!("{name} is a symbolic link"), "remove the link; duly makes the folder itself".into());
    }
    if !metadata.is_dir() {
        return fault(format!("{name} is not a folder"), "move it away; duly makes the folder itself".into());
    }
    let owner = owner(&metadata);
    if let (Some(owner), Some(user)) = (owner, user)
        && owner != user
    {
        let advice = format!("run duly as user {owner}, or remove the folder while no scheduler runs");
        return fault(format!("{name} belongs to user {owner}, expected user {user}"), advice);
    }
    if mode(&metadata) & 0o022 != 0 {
        let found = format!("other users may write {name}, and so decide which scheduler counts as dead");
        return fault(found, "chmod go-w it".into());
    }
    None
}

/// Returns why this process must not run the tasks of a database: the process is root, and another user, who decides
/// what the commands are, owns the file. Returns `None` for a file that is missing or cannot be examined: it cannot be
/// used either.
pub(crate) fn foreign(database: &Path) -> Option<Fault> {
    let owner = owner(&database.metadata().ok()?)?;
    (this_user() == Some(0) && owner != 0).then(|| Fault {
        found: format!("{} belongs to user {owner}, and its commands would run as root", database.display()),
        advice: format!(
            "start the scheduler as that user (sudo -u '#{owner}' duly run), or give the file to root (chown root)"
        ),
    })
}

/// Returns which user a database belongs to, or the innermost of its folders that can be examined, if that is not the user of this process:
/// why it cannot be used. `None` for root, who may use all files.
pub(crate) fn of_another_user(database: &Path) -> Option<Fault> {
    let (path, metadata) = database.ancestors().find_map(|path| Some((path, path.metadata().ok()?)))?;
    let (owner, user) = (owner(&metadata)?, this_user()?);
    (user != 0 && owner != user).then(|| Fault {
        found: format!("{} belongs to user {}, and this is user {}", path.display(), named(owner), named(user)),
        advice: format!("run duly as that user (sudo -u '#{owner}' duly ..)"),
    })
}

/// Returns the number of a user, with its name if this machine lists it: `65534 (nobody)`.
fn named(user: u32) -> String {
    let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name_of = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    };
    list.lines().find_map(name_of).map_or_else(|| user.to_string(), |name| format!("{user} ({name})"))
}

/// Returns why root must not open its database: another user owns a file beside it from which SQLite restores pages, and so
/// decides what the tasks are. A database that its group may write has no such protection.
pub(crate) fn foreign_log(database: &Path) -> Option<Fault> {
    let metadata = database.metadata().ok()?;
    if this_user() != Some(0) || owner(&metadata) != Some(0) || mode(&metadata) & 0o020 != 0 {
        return None;
    }
    ["-wal", "-shm", "-journal"].into_iter().find_map(|suffix| {
        let mut file = database.as_os_str().to_owned();
        file.push(suffix);
        let file = Path::new(&file);
        // The owner of a link, not that of its target.
        let owner = owner(&file.symlink_metadata().ok()?).filter(|owner| *owner != 0)?;
        Some(Fault {
            found: format!("{} belongs to user {owner}, and would change a database of root", file.display()),
            advice: "find out what wrote it, move it away, and give the folder to root alone".into(),
        })
    })
}

/// Returns why other users could replace a database: a user who is neither its owner nor root owns its folder; or
/// anyone may write the folder, and no sticky bit protects the files.
pub(crate) fn unsafe_parent(database: &Path) -> Option<Fault> {
    let folder = database.parent()?;
    let metadata = folder.metadata().ok()?;
    let user = database.metadata().ok().and_then(|metadata| owner(&metadata));
    if let Some(owner) = owner(&metadata).filter(|owner| *owner != 0 && Some(*owner) != user) {
        return Some(Fault {
            found: format!("user {owner} owns the folder {}, and so may replace the database", folder.display()),
            advice: "give the folder to the owner of the database (chown), or move the database".into(),
        });
    }
    let mode = mode(&metadata);
    (mode & 0o1002 == 0o002).then(|| Fault {
        found: format!("anyone may write the folder {}, and so replace the database", folder.display()),
        advice: "chmod o-w it, or set its sticky bit (chmod +t)".into(),
    })
}

/// Returns the effective user of this process; `None` where the system has no user numbers.
pub(crate) fn this_user() -> Option<u32> {
    #[cfg(unix)]
    return Some(rustix::process::geteuid().as_raw());
    #[cfg(not(unix))]
    None
}

/// Returns the user that owns a file.
pub(crate) fn owner(metadata: &Metadata) -> Option<u32> {
    #[cfg(unix)]
    return Some(std::os::unix::fs::MetadataExt::uid(metadata));
    #[cfg(not(unix))]
    {
        let _ = metadata;
        None
    }
}

fn mode(metadata: &Metadata) -> u32 {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::mode(metadata);
    #[cfg(not(unix))]
    {
        let _ = metadata;
        0
    }
}
