//! Who is alive: the kernel knows.
//!
//! Each owner holds an exclusive lock on a file of its own for as long as it, or a worker thread of its, lives. The kernel
//! drops the lock when the process ends, however it ends, and at no other moment: whoever can take an owner's lock has
//! proof that it is dead. A missing file proves nothing; files are removed by cleaners too.

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use crate::clock::{Timestamp, millis};
use crate::error::{Error, Result};
use crate::host::attempt_slots::{self, Content, Place, Says, Slots};
use crate::host::{folder, platform};

/// How long a worker relies on its last look at the folder of the lock files.
const FOLDER_HOLDS: Duration = Duration::from_millis(100);

/// The folder of the lock files that belong to a database.
pub(crate) fn folder(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-owners");
    PathBuf::from(name)
}

/// An owner's own lock. Dropping it, or the end of the process, is death.
#[derive(Debug)]
pub(crate) struct OwnerLock {
    database: PathBuf,
    folder: PathBuf,
    path: PathBuf,
    /// When the folder was last found safe, by the monotonic clock in milliseconds; `i64::MAX`: never.
    checked: AtomicI64,
    held: Mutex<Held>,
}

/// The locked file, and the slots in it.
#[derive(Debug, Default)]
struct Held {
    /// `None` until the lock is taken.
    file: Option<Arc<File>>,
    slots: Slots,
}

impl OwnerLock {
    /// Takes the lock of a new owner. Refuses a folder that other users may write, or that another user made; and for root a
    /// database of another user.
    pub(crate) fn take(database: &Path, owner: &str) -> Result<Self> {
        let folder = folder(database);
        if let Some(fault) = folder::foreign(database).or_else(|| folder::unsafe_private(&folder, folder::this_user()))
        {
            return Err(Error::UnusableDatabase { path: database.to_owned(), reason: fault.to_string() });
        }
        let path = folder.join(owner);
        let (database, checked) = (database.to_owned(), AtomicI64::new(i64::MAX));
        let lock = OwnerLock { database, folder, path, checked, held: Mutex::default() };
        lock.make(&mut lock.held()).map_err(|error| Error::store("take the owner's lock", error))?;
        Ok(lock)
    }

    /// The folder of the lock files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the file again if it is no longer the one that is locked, and writes what it holds again if another program wrote
    /// into it. An observer never sees an unlocked file of this name: the new file is locked under another name and renamed into
    /// place. The old one stays locked until then. Fails in a folder that is not this user's alone.
    pub(crate) fn keep(&self) -> io::Result<Kept> {
        folder::make_private(&self.folder)?;
        let mut held = self.held();
        if let Some(file) = held.file.clone().filter(|file| names(&self.path, file)) {
            let mended = held.slots.mend(&file, &self.path, &self.database)?;
            return Ok(if mended { Kept::MadeAgain } else { Kept::AsItWas });
        }
        self.make(&mut held)?;
        Ok(Kept::MadeAgain)
    }

    /// Fails if the folder of the lock files is missing or not this user's alone: then no attempt may begin. What is missing is
    /// made again by [`OwnerLock::keep`]. A busy worker looks at most every [`FOLDER_HOLDS`]: each look is two calls of the system.
    pub(crate) fn check_folder(&self, now: Duration) -> io::Result<()> {
        let (now, checked) = (millis(now), self.checked.load(Ordering::Relaxed));
        if checked <= now && now - checked < millis(FOLDER_HOLDS) {
            return Ok(());
        }
        folder::check_private(&self.folder)?;
        self.checked.store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Says in the file that this owner is degraded: it lives, and cannot write the database. The byte is written in its place and
    /// without a sync, so that a full disk does not prevent it. If that fails, the next call tries again.
    pub(crate) fn degrade(&self) {
        self.say(true);
    }

    /// Says in the file that this owner can write the database again, if the file says otherwise.
    pub(crate) fn recover(&self) {
        self.say(false);
    }

    fn say(&self, degraded: bool) {
        let held = &mut *self.held();
        if let Some(file) = &held.file {
            let _ = held.slots.mark(file, degraded);
        }
    }

    /// Notes in a slot of the file that a worker is about to begin this attempt. Until it is noted, the attempt must not
    /// begin: after a crash, an attempt that is in no slot counts as one that never began.
    pub(crate) fn begin(&self, run: i64, attempt: u32) -> io::Result<Place> {
        // Written without the lock of the slots, which the loop needs as well.
        let (file, place) = {
            let held = &mut *self.held();
            (held.file.clone().ok_or(io::ErrorKind::NotFound)?, held.slots.take(run, attempt))
        };
        // If the file is made again meanwhile, the attempt is in the new one already.
        attempt_slots::write(&file, place, run, attempt).inspect_err(|_| self.settled(std::iter::once(place)))?;
        Ok(place)
    }

    /// Frees the slots of attempts whose end is recorded. Before that a slot must stay: its attempt did begin.
    pub(crate) fn settled(&self, places: impl Iterator<Item = Place>) {
        let mut held = self.held();
        places.for_each(|place| held.slots.free(place));
    }

    /// Removes the file, for an owner that leaves with nothing running. One that is merely dropped leaves it behind with
    /// its lock free, and so is recovered like one that died.
    pub(crate) fn retire(&self) {
        if self.held().file.as_ref().is_some_and(|file| names(&self.path, file)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self, held: &mut Held) -> io::Result<()> {
        folder::make_private(&self.folder)?;
        let mut unborn = self.path.as_os_str().to_owned();
        unborn.push(".new");
        match std::fs::remove_file(&unborn) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = platform::create_private(Path::new(&unborn))?;
        file.lock()?;
        held.slots.write_all(&file, &self.database)?;
        std::fs::rename(&unborn, &self.path)?;
        held.file = Some(Arc::new(file));
        Ok(())
    }
}

/// Whether an owner's lock file had to be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    AsItWas,
    MadeAgain,
}

/// What an observer can say of another owner.
#[derive(Debug)]
pub(crate) enum Standing {
    Alive {
        /// It says that it has not been able to write the database for ten seconds or longer.
        degraded: bool,
    },
    /// It is dead: its lock was acquired.
    Dead(DeadOwner),
    /// It is dead, and another scheduler that recovers its runs has its lock: the owner of this id.
    Inherited(String),
    /// It has no lock file, or a copy lies in its place. That proves nothing; the lease decides.
    Missing,
    /// It could not be asked. Why.
    Unknown(String),
}

/// The lock of an owner that is dead, held by its heir.
#[derive(Debug)]
pub(crate) struct DeadOwner {
    path: PathBuf,
    lock: File,
    begun: Option<Arc<HashSet<(i64, u32)>>>,
}

impl DeadOwner {
    /// The attempts that its workers had begun, and perhaps ended: an attempt that is not among them never began. `None`:
    /// that cannot be known.
    pub(crate) fn begun(&self) -> Option<Arc<HashSet<(i64, u32)>>> {
        self.begun.clone()
    }

    /// Marks the file, so that other observers do not take the heir that keeps the lock for a living owner.
    pub(crate) fn inherit(self, heir: &str) -> Self {
        // Without the mark the owner is shown as alive as long as the heir has the lock.
        let _ = attempt_slots::mark_dead(&self.lock, heir);
        self
    }

    /// Removes the file; for when nothing of the dead is left to recover.
    pub(crate) fn bury(self) {
        if names(&self.path, &self.lock) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Asks the kernel about an owner. Never creates a file.
pub(crate) fn standing(database: &Path, owner: &str) -> Standing {
    // The name comes from the database: only what an owner would be called is looked up.
    if owner.is_empty() || !owner.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Standing::Missing;
    }
    let path = folder(database).join(owner);
    let file = match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Standing::Missing,
        Err(error) => return Standing::Unknown(format!("its lock file {} cannot be opened: {error}", path.display())),
    };
    match file.try_lock() {
        // The lock proves death only if the path still names the file that was locked: the owner may be making it again.
        Ok(()) if names(&path, &file) => match attempt_slots::read(&file, database) {
            Content::Slots(begun) => Standing::Dead(DeadOwner { path, lock: file, begun: begun.map(Arc::new) }),
            Content::Copy => Standing::Missing,
        },
        Ok(()) => Standing::Unknown(format!("its lock file {} was replaced while it was asked", path.display())),
        Err(TryLockError::WouldBlock) => match attempt_slots::says(&file) {
            Says::Dead { heir } => Standing::Inherited(heir),
            says => Standing::Alive { degraded: says == Says::Degraded },
        },
        Err(TryLockError::Error(error)) => {
            Standing::Unknown(format!("the lock of {} cannot be requested: {error}", path.display()))
        }
    }
}

/// The dead whose lock file lies there, by name, with their locks. One that is not registered when they are looked up after
/// this ended between taking its lock and being registered: nothing else is left of it. An unsafe folder is no proof of death.
pub(crate) fn left_behind(database: &Path) -> Vec<(String, DeadOwner)> {
    let folder = folder(database);
    if folder::unsafe_private(&folder, folder::this_user()).is_some() {
        return Vec::new();
    }
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    // The inputs of commands lie here too.
    let dead = names.filter(|name| !name.starts_with("run-")).filter_map(|name| match standing(database, &name) {
        Standing::Dead(dead) => Some((name, dead)),
        _ => None,
    });
    dead.collect()
}

/// How old a file must be to be swept that was to become a lock file: a living owner renames it at once.
const NEVER_RENAMED: Duration = Duration::from_secs(3600);

/// Removes what is left of owners that died while they made their lock file: files that are not locked, and old.
pub(crate) fn sweep_unnamed(database: &Path, now: Timestamp) {
    let folder = folder(database);
    if folder::unsafe_private(&folder, folder::this_user()).is_some() {
        return;
    }
    let now = UNIX_EPOCH + Duration::from_millis(now.as_millis().unsigned_abs());
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()) {
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
        let changed = file.metadata().and_then(|metadata| metadata.modified());
        let is_old = changed.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > NEVER_RENAMED));
        if path.extension().is_some_and(|extension| extension == "new") && is_old && file.try_lock().is_ok() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether the path names this open file. Where the system cannot tell, whether it names any.
fn names(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(named), Ok(open)) => platform::identity(&named) == platform::identity(&open),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{Kept, OwnerLock, Standing, folder, left_behind, standing};

    #[test]
    fn a_lock_tells_the_living_from_the_dead() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        assert!(matches!(standing(&database, "nobody"), Standing::Missing));
        assert!(!folder(&database).exists(), "an observer creates nothing");

        let lock = OwnerLock::take(&database, "a-1").unwrap();
        assert!(matches!(standing(&database, "a-1"), Standing::Alive { degraded: false }));
        let path = folder(&database).join("a-1");
        drop(lock);
        let Standing::Dead(dead) = standing(&database, "a-1") else { panic!("a free lock is proof of death") };
        let dead = dead.inherit("a-3");
        let stands = standing(&database, "a-1");
        assert!(cfg!(windows) || matches!(stands, Standing::Inherited(heir) if heir == "a-3"), "one heir at a time");
        // The heir lets go of it: the next one has the same proof.
        drop(dead);
        let Standing::Dead(dead) = standing(&database, "a-1") else { panic!("the mark changes nothing") };
        dead.bury();
        assert!(!path.exists());

        let lock = OwnerLock::take(&database, "a-2").unwrap();
        lock.retire();
        assert!(!folder(&database).join("a-2").exists(), "an owner that leaves in order leaves no file");
    }

    #[test]
    fn a_file_that_a_cleaner_removed_is_made_again_and_proves_nothing_meanwhile() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        let lock = OwnerLock::take(&database, "a-1").unwrap();
        assert_eq!(lock.keep().unwrap(), Kept::AsItWas);
        std::fs::remove_dir_all(folder(&database)).unwrap();
        assert!(matches!(standing(&database, "a-1"), Standing::Missing));
        assert_eq!(lock.keep().unwrap(), Kept::MadeAgain);
        assert!(matches!(standing(&database, "a-1"), Standing::Alive { degraded: false }));

        // Somebody put another file in its place: its lock can be had, but it is not the owner's.
        std::fs::remove_file(folder(&database).join("a-1")).unwrap();
        std::fs::write(folder(&database).join("a-1"), "").unwrap();
        assert_eq!(lock.keep().unwrap(), Kept::MadeAgain);
        assert!(matches!(standing(&database, "a-1"), Standing::Alive { degraded: false }));
    }

    #[test]
    fn a_name_from_the_database_cannot_lead_out_of_the_folder() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::create_dir(folder(&database)).unwrap();
        std::fs::write(home.path().join("elsewhere"), "").unwrap();
        assert!(matches!(standing(&database, "../elsewhere"), Standing::Missing));
        assert!(matches!(standing(&database, ""), Standing::Missing));
    }

    #[test]
    fn an_error_while_asking_is_unknown() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::create_dir_all(folder(&database).join("a-1")).unwrap();
        let Standing::Unknown(reason) = standing(&database, "a-1") else { panic!("a folder is no lock file") };
        assert!(reason.contains("a-1 cannot be opened: "), "{reason}");
        assert!(left_behind(&database).is_empty());
    }
}
