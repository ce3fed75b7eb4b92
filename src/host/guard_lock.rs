//! The lock file of a guard, a process that ends the commands and workers of a scheduler that was killed.
//!
//! The scheduler locks the file `OWNER.guard` in the folder of the lock files before its first attempt, and the guard inherits the lock. It
//! is held until both have ended; the guard ends when every process group that it knows is gone. Into the file it writes which groups
//! it has seen gone: that is evidence for an observer that cannot read these groups.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::host::folder;
use crate::host::owner_lock::{self, OwnerLock};
use crate::host::platform::{self, Hold};

/// How the name of such a file ends.
const SUFFIX: &str = ".guard";
/// Longest file that is read, in bytes: some ten thousand groups.
const MAX_FILE: u64 = 1024 * 1024;

/// Where the guard of an owner has its lock file.
#[derive(Clone, Debug)]
pub struct GuardPlace {
    folder: PathBuf,
    owner: String,
    /// Whether the owner has stopped, and nothing of it is left to recover.
    is_retired: Arc<AtomicBool>,
}

/// A lock file that is locked.
#[derive(Debug)]
pub struct GuardLock {
    place: GuardPlace,
    file: File,
}

/// A process group of which a guard knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedGroup {
    /// The owner that gave its file its name.
    owner: String,
    /// The name by which the guard knows the group.
    group: String,
}

/// What an observer sees of the guard of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GuardSeen {
    /// No guard held its lock when the command started.
    NoGuard,
    /// It has seen that the group of the command is gone.
    SawGone,
    /// It has ended, and has not seen that.
    Free,
    /// It has not ended, and has not seen that.
    Held,
    /// Its file does not exist.
    Missing,
    /// The check failed; with the reason.
    Unknown(String),
}

impl GuardPlace {
    pub(crate) fn of(owner: &OwnerLock) -> Self {
        GuardPlace { folder: owner.folder().to_owned(), owner: owner.id(), is_retired: owner.retired() }
    }

    /// Creates the file and locks it. What has its name is not the file of this guard, and is removed.
    ///
    /// # Errors
    /// If the file cannot be created, or the folder is not private to this user.
    pub fn lock(&self) -> io::Result<GuardLock> {
        folder::make_private(&self.folder)?;
        let path = self.path();
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(GuardLock { place: self.clone(), file: platform::create_held(&path)? })
    }

    fn path(&self) -> PathBuf {
        path_of(&self.folder, &self.owner)
    }
}

impl GuardLock {
    /// Whether the path still names the locked file.
    pub fn is_intact(&self) -> bool {
        owner_lock::names(&self.place.path(), &self.file)
    }

    /// Returns a copy of the file for the guard: the lock belongs to both.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Returns the group with this name, for the record of its command.
    pub fn group(&self, name: &str) -> GuardedGroup {
        GuardedGroup { owner: self.place.owner.clone(), group: name.to_owned() }
    }

    /// Returns when the leader of the group with this name ended, as the time since the boot, if the guard has recorded that.
    pub fn ended_at(&self, group: &str) -> Option<Duration> {
        let text = read(&self.place.path()).ok()?;
        let millis = text.lines().find_map(|line| {
            let words = line.strip_prefix("ended ")?.strip_suffix('.')?.split_once(' ')?;
            (words.0 == group).then(|| words.1.parse().ok()).flatten()
        });
        millis.map(Duration::from_millis)
    }

    /// Removes all names of the file, if the owner has stopped and nothing of it is left to recover.
    pub fn retire(&self) {
        if self.place.is_retired.load(Ordering::SeqCst) {
            let paths = owners_in(&self.place.folder).into_iter().map(|owner| path_of(&self.place.folder, &owner));
            paths.filter(|path| owner_lock::names(path, &self.file)).for_each(|path| _ = std::fs::remove_file(path));
        }
    }
}

impl GuardedGroup {
    /// Returns the process group of the command of an attempt, as the guard of the owner knows it.
    pub(crate) fn of_attempt(owner: &str, run: i64, attempt: u32) -> Self {
        GuardedGroup { owner: owner.to_owned(), group: name_of_attempt(run, attempt) }
    }
}

/// The name by which a guard knows the process group of the command of an attempt.
pub fn name_of_attempt(run: i64, attempt: u32) -> String {
    format!("{run}-{attempt}")
}

/// Gives the file of the guard of an owner a second name, under which that owner goes on.
pub(crate) fn link(folder: &Path, before: &str, owner: &str) {
    match std::fs::hard_link(path_of(folder, before), path_of(folder, owner)) {
        // There is no guard.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => log::warn!("the lock file of the guard process has no name of scheduler {owner}: {error}"),
        Ok(()) => {}
    }
}

/// Writes that a guard has seen that the group with this name is gone. `file`: its lock file.
///
/// # Errors
/// If it cannot be written.
pub fn record_gone(mut file: &File, group: &str) -> io::Result<()> {
    // On a line of its own, also after a write that failed in the middle.
    file.write_all(format!("\n{}", gone_line(group)).as_bytes())
}

/// Writes when the leader of the group with this name ended, as the time since the boot. `file`: the lock file of the guard.
///
/// # Errors
/// If it cannot be written.
pub fn record_ended(mut file: &File, group: &str, at: Duration) -> io::Result<()> {
    file.write_all(format!("\nended {group} {}.\n", at.as_millis()).as_bytes())
}

/// The line of a group. A part of it is the line of no group.
fn gone_line(group: &str) -> String {
    format!("gone {group}.\n")
}

/// Observes the guard of a group. `folder`: that of the lock files.
pub(crate) fn seen(folder: &Path, group: Option<&GuardedGroup>) -> GuardSeen {
    let Some(GuardedGroup { owner, group }) = group else { return GuardSeen::NoGuard };
    // The name comes from the database.
    if !owner_lock::is_id(owner) {
        return GuardSeen::Missing;
    }
    let path = path_of(folder, owner);
    // The lock first: a guard writes before it ends.
    let hold = platform::held(&path).0;
    let read = match &hold {
        Hold::Missing => return GuardSeen::Missing,
        _ => read(&path),
    };
    match (read, hold) {
        (Ok(text), _) if text.split_inclusive('\n').any(|line| line == gone_line(group)) => GuardSeen::SawGone,
        (Err(error), _) => GuardSeen::Unknown(format!("{} cannot be read: {error}", path.display())),
        (_, Hold::Free) => GuardSeen::Free,
        (_, Hold::Held) => GuardSeen::Held,
        (_, Hold::Missing) => GuardSeen::Missing,
        (_, Hold::Unknown(reason)) => GuardSeen::Unknown(reason),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    platform::open_regular(path, File::options().read(true))?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it has more than {MAX_FILE} bytes")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn path_of(folder: &Path, owner: &str) -> PathBuf {
    folder.join(format!("{owner}{SUFFIX}"))
}

/// Returns the owners that gave such files their names, in the folder of a database.
pub(crate) fn owners(database: &Path) -> Vec<String> {
    owners_in(&owner_lock::folder(database))
}

fn owners_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(SUFFIX)?.to_owned())).collect()
}

/// Removes the file that has the name of this owner, of which nothing is left to recover, unless the lock is held.
pub(crate) fn remove_free(database: &Path, owner: &str) {
    // The name may come from the database.
    if !owner_lock::is_id(owner) {
        return;
    }
    let path = path_of(&owner_lock::folder(database), owner);
    if matches!(platform::held(&path).0, Hold::Free) {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use crate::host::guard_lock::{
        GuardPlace, GuardSeen, GuardedGroup, MAX_FILE, link, name_of_attempt, owners, record_ended, record_gone,
        remove_free, seen,
    };
    use crate::host::owner_lock::{OwnerLock, folder};

    // A single test: a child that starts in another test would briefly hold the lock.
    #[test]
    fn the_word_of_a_guard_and_its_lock_are_seen_and_nothing_else_counts() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        let owner = OwnerLock::take(&database, "a-1").unwrap();
        let place = GuardPlace::of(&owner);
        let (of_owners, path) = (folder(&database), folder(&database).join("a-1.guard"));
        let group = |group: u32| GuardedGroup { owner: "a-1".to_owned(), group: group.to_string() };
        let sees = |one: u32| seen(&of_owners, Some(&group(one)));
        assert_eq!(seen(&of_owners, None), GuardSeen::NoGuard);
        assert_eq!(sees(1), GuardSeen::Missing);
        let elsewhere = GuardedGroup { owner: "../t".to_owned(), group: "1".to_owned() };
        assert_eq!(seen(&of_owners, Some(&elsewhere)), GuardSeen::Missing);

        let outside = home.path().join("t.guard");
        std::fs::write(&outside, "").unwrap();
        remove_free(&database, "../t");
        assert!(outside.exists(), "no other folder is touched");

        let lock = place.lock().unwrap();
        assert_eq!(lock.group("1"), group(1));
        assert_eq!(sees(1), GuardSeen::Held);
        record_gone(&lock.share().unwrap(), "12").unwrap();
        assert_eq!((sees(12), sees(1), sees(2)), (GuardSeen::SawGone, GuardSeen::Held, GuardSeen::Held));
        assert_eq!(name_of_attempt(12, 3), "12-3", "a group of its own");
        // A write that failed in the middle names no group.
        std::io::Write::write_all(&mut lock.share().unwrap(), b"gone 3").unwrap();
        record_gone(&lock.share().unwrap(), "4").unwrap();
        assert_eq!((sees(3), sees(4)), (GuardSeen::Held, GuardSeen::SawGone));
        // The end of its leader does not show that a group is gone.
        std::io::Write::write_all(&mut lock.share().unwrap(), b"ended 5 6").unwrap();
        record_ended(&lock.share().unwrap(), "5", Duration::from_millis(1234)).unwrap();
        assert_eq!(
            (lock.ended_at("5"), lock.ended_at("6"), sees(5)),
            (Some(Duration::from_millis(1234)), None, GuardSeen::Held)
        );

        // It is held while one copy is open, and stays as long as it is held.
        let copy = lock.share().unwrap();
        remove_free(&database, "a-1");
        lock.retire();
        assert!(lock.is_intact() && owners(&database) == ["a-1"]);
        drop(lock);
        assert_eq!(sees(1), GuardSeen::Held);
        drop(copy);
        assert_eq!((sees(1), sees(12)), (GuardSeen::Free, GuardSeen::SawGone));

        // Another file of this name is not the locked one. A link, and a file without an end, are not read.
        let lock = place.lock().unwrap();
        assert_eq!(sees(12), GuardSeen::Held, "a new file");
        std::fs::remove_file(&path).unwrap();
        assert!(!lock.is_intact());
        symlink("/dev/zero", &path).unwrap();
        assert!(matches!(sees(12), GuardSeen::Unknown(_)));
        std::fs::remove_file(&path).unwrap();
        File::create(&path).unwrap().set_len(MAX_FILE + 1).unwrap();
        assert!(matches!(sees(12), GuardSeen::Unknown(reason) if reason.contains("more than")));
        // The owner goes on under another id.
        let lock = place.lock().unwrap();
        link(&of_owners, "a-1", "a-2");
        let of_next = GuardedGroup::of_attempt("a-2", 12, 3);
        assert_eq!(seen(&of_owners, Some(&of_next)), GuardSeen::Held);
        record_gone(&lock.share().unwrap(), "12-3").unwrap();
        assert_eq!(seen(&of_owners, Some(&of_next)), GuardSeen::SawGone);
        owner.retire();
        lock.retire();
        assert_eq!((sees(12), seen(&of_owners, Some(&of_next))), (GuardSeen::Missing, GuardSeen::Missing));
        link(&of_owners, "a-1", "a-2");
    }
}
