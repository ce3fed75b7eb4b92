//! Lock files that prove whether an owner is alive.
//!
//! Each owner holds an exclusive lock on a file of its own while it, or one of its worker threads, lives. The kernel
//! releases the lock when the process ends, however it ends, and at no other time: a process that acquires an owner's
//! lock has proof that the owner is dead. A missing file proves nothing, since cleaners remove files too.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use crate::clock::{Timestamp, millis};
use crate::error::{Error, Result};
use crate::host::attempt_slots::{self, BegunAttempts, ClaimedAttempt, Content, Mark, Place, Slots};
use crate::host::locked::Locked;
use crate::host::{folder, platform};

/// How long a worker relies on its last check of the folder of lock files.
const FOLDER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the folder of the lock files of a database.
pub(crate) fn folder(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-owners");
    PathBuf::from(name)
}

/// Draws the id of a new owner.
pub(crate) fn new_owner(random: &mut fastrand::Rng) -> String {
    uuid::Builder::from_random_bytes(std::array::from_fn(|_| random.u8(..))).into_uuid().to_string()
}

/// Returns whether a name is one that [`new_owner`] draws. Another file in the folder, of which nothing can be known, is no owner's.
pub(super) fn is_drawn(name: &str) -> bool {
    uuid::Uuid::try_parse(name).is_ok()
}

/// An owner's own lock. Dropping it, or the end of the process, releases the lock: the owner counts as dead.
#[derive(Debug)]
pub(crate) struct OwnerLock {
    database: PathBuf,
    folder: PathBuf,
    path: Mutex<PathBuf>,
    /// When the folder was last found safe, by the monotonic clock in milliseconds; `i64::MAX`: never.
    checked: AtomicI64,
    /// Whether [`OwnerLock::retire`] was called.
    retired: Arc<AtomicBool>,
    files: Mutex<LockedFiles>,
    /// Whether others may halt this owner: see [`OwnerLock::of_server`].
    may_be_halted: bool,
}

/// The locked file, the slots in it, and those of earlier ids.
#[derive(Debug, Default)]
struct LockedFiles {
    /// `None` until the lock is taken.
    file: Option<Arc<Locked>>,
    slots: Slots,
    /// The files of earlier ids, whose attempts may still run.
    former: Vec<(PathBuf, Arc<Locked>)>,
}

impl OwnerLock {
    /// Acquires the lock of a new owner. Refuses a folder that other users may write, or that another user created; and
    /// for root a database of another user.
    pub(crate) fn take(database: &Path, owner: &str) -> Result<Self> {
        let folder = folder(database);
        if let Some(fault) = folder::foreign(database).or_else(|| folder::unsafe_private(&folder, folder::this_user()))
        {
            return Err(Error::UnusableDatabase { path: database.to_owned(), reason: fault.to_string() });
        }
        let path = Mutex::new(folder.join(owner));
        let (database, checked) = (database.to_owned(), AtomicI64::new(i64::MAX));
        let retired = Arc::default();
        let lock = OwnerLock { database, folder, path, checked, retired, files: Mutex::default(), may_be_halted: true };
        lock.create(&mut lock.files()).map_err(|error| Error::store("take the owner's lock", error))?;
        Ok(lock)
    }

    /// Returns the lock of an owner whose database is on a server. No other program halts such an owner, so no attempt looks for that,
    /// which would be a system call.
    pub(crate) fn of_server(self) -> Self {
        OwnerLock { may_be_halted: false, ..self }
    }

    /// Returns the folder of the lock files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the database.
    pub(crate) fn database(&self) -> &Path {
        &self.database
    }

    /// Returns the id of the owner.
    pub(crate) fn id(&self) -> String {
        self.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns whether this is the id of the owner: asked for each attempt.
    fn is(&self, id: &str) -> bool {
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = path.as_os_str().as_encoded_bytes().strip_suffix(id.as_bytes());
        folder.and_then(<[u8]>::last).is_some_and(|byte| std::path::is_separator(char::from(*byte)))
    }

    /// Recreates the file if it is no longer the locked one, and rewrites its content if another program wrote into it.
    /// An observer never finds an unlocked file of this name: the new file is locked under another name and renamed
    /// into place. The old file stays locked until then. Fails in a folder that is not private to this user.
    pub(crate) fn keep(&self) -> io::Result<FileState> {
        folder::make_private(&self.folder)?;
        let mut files = self.files();
        let path = self.path();
        if let Some(file) = files.file.clone().filter(|file| names(&path, file)) {
            let repaired = files.slots.repair(&file, &path, &self.database)?;
            return Ok(if repaired { FileState::Recreated } else { FileState::Intact });
        }
        if let Some(file) = files.file.clone() {
            files.slots.keep_halted(&file)?;
        }
        self.create(&mut files)?;
        Ok(FileState::Recreated)
    }

    /// Fails if the folder of lock files is missing or not private to this user: then no attempt may begin.
    /// [`OwnerLock::keep`] recreates what is missing. A busy worker checks at most every [`FOLDER_CHECK_INTERVAL`],
    /// since each check is two system calls.
    pub(crate) fn check_folder(&self, now: Duration) -> io::Result<()> {
        let (now, checked) = (millis(now), self.checked.load(Ordering::Relaxed));
        if checked <= now && now - checked < millis(FOLDER_CHECK_INTERVAL) {
            return Ok(());
        }
        folder::check_private(&self.folder)?;
        self.checked.store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Marks the file: this owner is degraded, that is alive and unable to write the database. The byte is overwritten
    /// in place and without a sync, so that a full disk does not prevent it. If that fails, the next call tries again.
    pub(crate) fn degrade(&self) {
        self.mark_degraded(true);
    }

    /// Removes the mark of [`OwnerLock::degrade`], if the file has it.
    pub(crate) fn recover(&self) {
        self.mark_degraded(false);
    }

    fn mark_degraded(&self, degraded: bool) {
        let files = &mut *self.files();
        if let Some(file) = &files.file {
            let _ = files.slots.mark(file, degraded);
        }
    }

    /// Records in a slot of the file that a worker is about to begin this attempt. The attempt must not begin before:
    /// after a crash, an attempt that is in no slot counts as one that never began. Fails for one that was claimed under an earlier id,
    /// or in a history that has ended.
    pub(crate) fn begin(&self, attempt: ClaimedAttempt, claimed_by: Option<&str>) -> io::Result<Place> {
        // Written without holding the mutex of the slots, which the loop needs too.
        let (file, place) = {
            let files = &mut *self.files();
            if claimed_by.is_some_and(|owner| !self.is(owner)) {
                return Err(io::Error::other("it was claimed before this scheduler registered again"));
            }
            (files.file.clone().ok_or(io::ErrorKind::NotFound)?, files.slots.take(attempt))
        };
        // If the file is recreated meanwhile, the new file already holds the attempt.
        let ended = || io::Error::other("it was claimed before the database was restored");
        attempt_slots::write(&file, place, attempt)
            .and_then(|()| Ok(self.may_be_halted && attempt_slots::is_halted(&file)?))
            .and_then(|halted| if halted { Err(ended()) } else { Ok(()) })
            .inspect_err(|_| self.free_slots(std::iter::once(place)))?;
        Ok(place)
    }

    /// Records that this owner has compared its claims with rows whose schema has this cookie. If that fails, the next call tries again.
    pub(crate) fn compared(&self, cookie: i64) {
        let files = &mut *self.files();
        if let Some(file) = &files.file {
            let _ = files.slots.compared(file, cookie);
        }
    }

    /// This owner begins claims again: they are those of the rows. The caller holds the write lock of the database, as one that halts an
    /// owner does.
    pub(crate) fn resume(&self) -> io::Result<()> {
        let files = &mut *self.files();
        files.file.as_ref().map_or(Ok(()), |file| files.slots.resume(file))
    }

    /// Returns whether another program doubts this owner's claims, or their history has ended: none of them begins any more.
    pub(crate) fn is_halted(&self) -> bool {
        let file = self.files().file.clone().filter(|_| self.may_be_halted);
        file.is_some_and(|file| attempt_slots::is_halted(&file).unwrap_or(false))
    }

    /// Frees the slots of attempts whose end is recorded. Before that a slot must remain, as proof that its attempt
    /// began.
    pub(crate) fn free_slots(&self, places: impl Iterator<Item = Place>) {
        let mut files = self.files();
        places.for_each(|place| files.slots.free(place));
    }

    /// Removes the file of an owner that stops with no running attempt. An owner that is only dropped leaves its file
    /// unlocked, and its runs are recovered as after a crash.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        let path = self.path();
        if self.files().file.as_ref().is_some_and(|file| names(&path, file)) {
            let _ = std::fs::remove_file(&path);
        }
    }

    /// Returns a flag that [`OwnerLock::retire`] sets.
    pub(crate) fn retired(&self) -> Arc<AtomicBool> {
        self.retired.clone()
    }

    /// Continues under another id, with another file. The file of the id that is `registered` stays, and is locked until
    /// [`OwnerLock::release_former`]; that of an id whose registration failed is removed.
    pub(crate) fn change_owner(&self, owner: &str, registered: &str) -> Result<()> {
        let mut files = self.files();
        let (before, old, was_registered) = (self.path(), files.file.clone(), self.id() == registered);
        let set = |path| *self.path.lock().unwrap_or_else(PoisonError::into_inner) = path;
        set(self.folder.join(owner));
        let next = files.slots.of_next_file();
        let slots = std::mem::replace(&mut files.slots, next);
        if let Err(error) = self.create(&mut files) {
            set(before);
            files.slots = slots;
            return Err(Error::store("take the owner's lock", error));
        }
        if was_registered {
            files.former.extend(old.map(|file| (before, file)));
        } else {
            let _ = std::fs::remove_file(&before);
        }
        Ok(())
    }

    /// Unlocks the files of earlier ids, none of whose attempts runs any more. That proves that those owners are dead.
    #[cfg(feature = "postgres")]
    pub(crate) fn release_former(&self) {
        self.files().former.clear();
    }

    /// As [`OwnerLock::release_former`], and removes the files: nothing of these owners is left to recover.
    pub(crate) fn retire_former(&self) {
        for (path, file) in self.files().former.drain(..) {
            if names(&path, &file) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.path.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn files(&self) -> MutexGuard<'_, LockedFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create(&self, files: &mut LockedFiles) -> io::Result<()> {
        folder::make_private(&self.folder)?;
        let path = self.path();
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = platform::create_private(Path::new(&temporary))?;
        file.lock()?;
        let file = Locked::new(file);
        files.slots.write_all(&file, &self.database)?;
        platform::rename(Path::new(&temporary), &path)?;
        files.file = Some(Arc::new(file));
        Ok(())
    }
}

/// The result of [`OwnerLock::keep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    Intact,
    Recreated,
}

/// The state of another owner, as far as an observer can determine it.
#[derive(Debug)]
pub(crate) enum Standing {
    Alive {
        /// It has marked its file: it has been unable to write the database for ten seconds or longer.
        degraded: bool,
    },
    /// It is dead: its lock was acquired.
    Dead(DeadOwner),
    /// It is dead, and the owner with this id holds its lock while it recovers its runs.
    TakenOver(String),
    /// It has no lock file, or its file is a copy. That proves nothing; the lease decides.
    Missing,
    /// The check failed; with the reason.
    Unknown(String),
}

/// The lock of a dead owner, held by the owner that recovers its runs.
#[derive(Debug)]
pub(crate) struct DeadOwner {
    path: PathBuf,
    lock: Locked,
    begun: Option<Arc<BegunAttempts>>,
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "a server's owners may work on other hosts"))]
    is_of_this_boot: bool,
}

impl DeadOwner {
    /// Returns whether the owner created the file itself, since the last boot of this machine. Otherwise the file may be a copy of
    /// another host's, or shared with one that locks it elsewhere: in a folder beside a database in a file no owner works on another host.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.is_of_this_boot
    }

    /// Returns the attempts that its workers had begun, and perhaps ended: an attempt that is not among them never
    /// began. `None`: unknown.
    pub(crate) fn begun(&self) -> Option<Arc<BegunAttempts>> {
        self.begun.clone()
    }

    /// Marks the file with the id of the recovering owner, so that other observers do not mistake the holder of the
    /// lock for a living owner.
    pub(crate) fn mark_taken_over(self, by: &str) -> Self {
        // Without the mark the dead owner is shown as alive while its lock is held.
        let _ = attempt_slots::mark_dead(&self.lock, by);
        self
    }

    /// Removes the file of an owner that has nothing left to recover.
    pub(crate) fn remove(self) {
        if names(&self.path, &self.lock) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether a text has the form of an owner's id.
pub(crate) fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Determines the state of an owner from its lock. Never creates a file.
pub(crate) fn standing(database: &Path, owner: &str) -> Standing {
    // The name comes from the database: it must have the form of an owner's id, so that it cannot leave the folder.
    if !is_id(owner) {
        return Standing::Missing;
    }
    let path = folder(database).join(owner);
    let file = match platform::open_regular(&path, OpenOptions::new().read(true).write(true)) {
        Ok(file) => file,
        // A link, or what is no regular file, is not the file of the owner.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
            return Standing::Missing;
        }
        Err(error) => return Standing::Unknown(format!("its lock file {} cannot be opened: {error}", path.display())),
    };
    match file.try_lock() {
        Ok(()) => released(path, Locked::new(file), database),
        Err(TryLockError::WouldBlock) => match attempt_slots::read_mark(&file) {
            Mark::Dead { taken_over_by } => Standing::TakenOver(taken_over_by),
            mark => Standing::Alive { degraded: mark == Mark::Degraded },
        },
        Err(TryLockError::Error(error)) => {
            Standing::Unknown(format!("the lock of {} cannot be requested: {error}", path.display()))
        }
    }
}

/// Determines the state of an owner whose lock was acquired. The lock proves death only if the path still names the locked
/// file: the owner may be recreating it.
fn released(path: PathBuf, lock: Locked, database: &Path) -> Standing {
    if !names(&path, &lock) {
        return Standing::Unknown(format!("its lock file {} was replaced during the check", path.display()));
    }
    match attempt_slots::read(&lock, database) {
        Content::Slots { begun, is_of_this_boot } => {
            Standing::Dead(DeadOwner { path, lock, begun: begun.map(Arc::new), is_of_this_boot })
        }
        Content::Copy => Standing::Missing,
    }
}

/// Returns whether there is a lock file of an owner.
pub(crate) fn any_owner(database: &Path) -> bool {
    !owners_in(database).is_empty()
}

/// Returns the dead owners whose lock file exists, with their ids and locks. An owner that is not registered when it is
/// looked up after this call died between taking its lock and being registered: nothing else of it exists. An unsafe
/// folder proves no death.
pub(crate) fn dead_owners(database: &Path) -> Vec<(String, DeadOwner)> {
    let dead = owners_in(database).into_iter().filter_map(|name| match standing(database, &name) {
        Standing::Dead(dead) => Some((name, dead)),
        _ => None,
    });
    dead.collect()
}

/// Returns the attempts in the slots of each owner's lock file in the folder of a database, whether the owner is alive or dead: all that
/// their workers had begun and not ended, and some that have ended. A file that cannot be read, or is of another boot, has none.
pub(crate) fn begun(database: &Path) -> Vec<(String, BegunAttempts)> {
    let read = |owner: String| {
        let file = platform::open_regular(&folder(database).join(&owner), OpenOptions::new().read(true)).ok()?;
        match attempt_slots::read(&file, database) {
            Content::Slots { begun, .. } => Some((owner, begun.unwrap_or_default())),
            Content::Copy => None,
        }
    };
    owners_in(database).into_iter().filter_map(read).collect()
}

/// Returns whether an owner holds its lock.
pub(crate) fn is_alive(database: &Path, owner: &str) -> bool {
    matches!(standing(database, owner), Standing::Alive { .. })
}

/// Returns the names of the lock files in the folder of a database; none if it cannot be read.
fn owners_in(database: &Path) -> Vec<String> {
    list(database).unwrap_or_default()
}

/// As [`owners_in`], or the error. A missing or unsafe folder proves nothing.
pub(super) fn list(database: &Path) -> io::Result<Vec<String>> {
    let folder = folder(database);
    if folder::unsafe_private(&folder, folder::this_user()).is_some() {
        return Ok(Vec::new());
    }
    let files = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?.collect::<io::Result<Vec<_>>>()?,
    };
    let names = files.into_iter().filter_map(|file| file.file_name().into_string().ok());
    // The input files of commands and of workers, the files of guards, and the record of the history are in the same folder.
    let is_other = |name: &str| name.starts_with("run-") || name.starts_with("worker-") || name.contains('.');
    Ok(names.filter(|name| !is_other(name)).collect())
}

/// The age from which on a temporary lock file is stale: a living owner renames it at once.
const STALE_AFTER: Duration = Duration::from_secs(3600);

/// Removes temporary files of owners that died while they created their lock file: unlocked and stale ones.
pub(crate) fn remove_stale_temporaries(database: &Path, now: Timestamp) {
    let folder = folder(database);
    if folder::unsafe_private(&folder, folder::this_user()).is_some() {
        return;
    }
    let now = UNIX_EPOCH + Duration::from_millis(now.as_millis().unsigned_abs());
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()) {
        let Ok(file) = platform::open_regular(&path, OpenOptions::new().read(true).write(true)) else { continue };
        let changed = file.metadata().and_then(|metadata| metadata.modified());
        let is_old = changed.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > STALE_AFTER));
        if path.extension().is_some_and(|extension| extension == "new") && is_old && file.try_lock().is_ok() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns whether the path itself, and no link, names this open file. On a system without file identities: whether the path exists.
pub(crate) fn names(path: &Path, file: &File) -> bool {
    match (std::fs::symlink_metadata(path), file.metadata()) {
        (Ok(named), Ok(_)) => platform::is_named(file, path, &named),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{FileState, Locked, OwnerLock, Standing, dead_owners, folder, standing};

    #[test]
    fn a_lock_distinguishes_living_and_dead_owners() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        assert!(matches!(standing(&database, "unknown"), Standing::Missing));
        assert!(!folder(&database).exists(), "an observer creates nothing");

        let lock = OwnerLock::take(&database, "a-1").unwrap();
        assert!(matches!(standing(&database, "a-1"), Standing::Alive { degraded: false }));
        let path = folder(&database).join("a-1");
        drop(lock);
        let Standing::Dead(dead) = standing(&database, "a-1") else { panic!("a free lock is proof of death") };
        let dead = dead.mark_taken_over("a-3");
        let stands = standing(&database, "a-1");
        assert!(
            cfg!(windows) || matches!(stands, Standing::TakenOver(by) if by == "a-3"),
            "one recovering owner at a time"
        );
        // After the recovering owner releases the lock, the next owner finds the same proof.
        drop(dead);
        let Standing::Dead(dead) = standing(&database, "a-1") else { panic!("the mark changes nothing") };
        dead.remove();
        assert!(!path.exists());

        let lock = OwnerLock::take(&database, "a-2").unwrap();
        lock.retire();
        assert!(!folder(&database).join("a-2").exists(), "an owner that stops cleanly leaves no file");
    }

    #[test]
    fn a_lock_is_released_although_a_process_that_is_being_started_has_a_copy_of_the_file() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        let lock = OwnerLock::take(&database, "a-1").unwrap();
        let copy = |file: Option<&Locked>| file.unwrap().try_clone().unwrap();
        let first = copy(lock.files().file.as_deref());
        // The file is replaced while a worker writes its slot: it stays locked until the worker is done.
        let writes = lock.files().file.clone().unwrap();
        std::fs::rename(folder(&database).join("a-1"), folder(&database).join("a-2")).unwrap();
        assert_eq!(lock.keep().unwrap(), FileState::Recreated);
        assert!(matches!(standing(&database, "a-2"), Standing::Alive { .. }));
        drop(writes);
        assert!(!matches!(standing(&database, "a-2"), Standing::Alive { .. }));

        let second = copy(lock.files().file.as_deref());
        assert!(matches!(standing(&database, "a-1"), Standing::Alive { .. }));
        drop(lock);
        let Standing::Dead(dead) = standing(&database, "a-1") else { panic!("its lock is released") };
        let third = copy(Some(&dead.lock));
        drop(dead);
        let Standing::Dead(_) = standing(&database, "a-1") else { panic!("the next owner finds the same proof") };
        drop((first, second, third));
    }

    #[test]
    fn a_removed_lock_file_is_recreated_and_proves_nothing_meanwhile() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        let lock = OwnerLock::take(&database, "a-1").unwrap();
        assert_eq!(lock.keep().unwrap(), FileState::Intact);
        std::fs::remove_dir_all(folder(&database)).unwrap();
        assert!(matches!(standing(&database, "a-1"), Standing::Missing));
        assert_eq!(lock.keep().unwrap(), FileState::Recreated);
        assert!(matches!(standing(&database, "a-1"), Standing::Alive { degraded: false }));

        // Another file is in its place: its lock can be acquired, but it is not the owner's file.
        std::fs::remove_file(folder(&database).join("a-1")).unwrap();
        std::fs::write(folder(&database).join("a-1"), "").unwrap();
        assert_eq!(lock.keep().unwrap(), FileState::Recreated);
        assert!(matches!(standing(&database, "a-1"), Standing::Alive { degraded: false }));
    }

    #[test]
    fn an_owner_id_from_the_database_cannot_leave_the_folder() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::create_dir(folder(&database)).unwrap();
        std::fs::write(home.path().join("elsewhere"), "").unwrap();
        assert!(matches!(standing(&database, "../elsewhere"), Standing::Missing));
        assert!(matches!(standing(&database, ""), Standing::Missing));
    }

    #[test]
    fn an_error_during_the_check_means_unknown() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::create_dir_all(folder(&database).join("a-1")).unwrap();
        let Standing::Unknown(reason) = standing(&database, "a-1") else { panic!("a folder is no lock file") };
        assert!(reason.contains("a-1 cannot be opened: "), "{reason}");
        assert!(dead_owners(&database).is_empty());
    }
}
