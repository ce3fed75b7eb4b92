//! The locked file of a long-lived process that runs attempts of many runs: each of its runs has a hard link to it, so that
//! an orphan is found as that of a command is.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::host::folder;
use crate::host::guard_lock::GuardedGroup;
use crate::host::orphan::{self, Input, WORKER};
use crate::host::owner_lock::{self, OwnerLock};
use crate::host::platform::{self, Hold};
use crate::host::process;

/// Numbers the files of this process.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// A locked file that a long-lived process inherits, as evidence that the process lives. While the process, or a child of it, has
/// the file open, other schedulers see that, and the runs that the process had wait until it is gone. Cheap to clone. The file
/// is removed when the last clone is dropped.
///
/// ```
/// use std::process::{Child, Command};
/// use duly::executor::{SharedInput, Waker};
///
/// fn start(waker: &Waker) -> std::io::Result<(Child, SharedInput)> {
///     let (input, file) = waker.share_input()?;
///     // The process gets the file, and this one keeps no copy: its lock lives as long as the process.
///     let mut worker = Command::new("worker");
///     worker.stdin(file);
///     #[cfg(unix)]
///     std::os::unix::process::CommandExt::process_group(&mut worker, 0);
///     let child = worker.spawn()?;
///     input.record_process(child.id());
///     Ok((child, input))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct SharedInput(Arc<SharedFile>);

#[derive(Debug)]
struct SharedFile {
    path: PathBuf,
    /// Device and inode.
    identity: Option<(u64, u64)>,
    database: PathBuf,
    /// What is recorded of the process.
    process: OnceLock<Arc<str>>,
}

impl SharedInput {
    /// Creates and locks a file of this owner. The caller passes the returned file to the process and keeps no copy.
    pub(crate) fn create(owner: &OwnerLock) -> io::Result<(Self, File)> {
        // A folder that was removed is created again; the loop does the same with the lock file, and reports that.
        folder::make_private(owner.folder())?;
        let path = Self::new_path(owner);
        let file = platform::create_held(&path)?;
        let identity = platform::identity_of(&file);
        Ok((
            SharedInput(Arc::new(SharedFile {
                path,
                identity,
                database: owner.database().to_owned(),
                process: OnceLock::new(),
            })),
            file,
        ))
    }

    /// Takes over a file that another process has open and locked, under a name of this owner.
    pub(crate) fn adopt(owner: &OwnerLock, file: &Path) -> io::Result<Self> {
        folder::make_private(owner.folder())?;
        match platform::held(file).0 {
            Hold::Held => {}
            Hold::Free => return Err(io::Error::other(format!("no process has locked {}", file.display()))),
            Hold::Missing => return Err(io::Error::other(format!("there is no {}", file.display()))),
            Hold::Unknown(reason) => return Err(io::Error::other(reason)),
        }
        let path = Self::new_path(owner);
        platform::rename(file, &path)?;
        let identity = platform::identity(&path.symlink_metadata()?, &path);
        let (database, process) = (owner.database().to_owned(), OnceLock::new());
        Ok(SharedInput(Arc::new(SharedFile { path, identity, database, process })))
    }

    fn new_path(owner: &OwnerLock) -> PathBuf {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        owner.folder().join(format!("{WORKER}{}-{number}", owner.id()))
    }

    /// Whether certainly no process has it locked any more.
    #[doc(hidden)]
    pub fn is_free(&self) -> bool {
        platform::held(&self.0.path).0 == Hold::Free
    }

    /// Returns the visible processes that have it open.
    #[doc(hidden)]
    pub fn holders(&self) -> Vec<u32> {
        if self.is_free() { Vec::new() } else { process::holders(&self.0.path, |name| name.starts_with(WORKER)) }
    }

    /// Records in the file which process inherited it, so that another scheduler can distinguish the process from any other with its
    /// number. The process must lead a process group of its own, and not have been waited for. Where the system does not distinguish
    /// processes, or if the record cannot be written, the lock of the file is the only evidence.
    pub fn record_process(&self, pid: u32) {
        self.record_guarded_process(pid, None);
    }

    /// As [`SharedInput::record_process`], with what a guard knows the process group as.
    #[doc(hidden)]
    pub fn record_guarded_process(&self, pid: u32, guard: Option<GuardedGroup>) {
        let SharedFile { path, identity, database, process } = &*self.0;
        let Some(record) = orphan::record_of(pid, *identity, database, guard) else { return };
        let record = &**process.get_or_init(|| record.into());
        // Nothing can write a file that another process has open without sharing it: the rows alone have the record there.
        if cfg!(windows) {
            return;
        }
        let file = platform::open_regular(path, File::options().write(true));
        let write = |file: File| file.set_len(0).and_then(|()| platform::write_at(&file, record.as_bytes(), 0));
        if let Err(error) = file.and_then(write) {
            log::warn!("the process {pid} cannot be recorded in {}: {error}", path.display());
        }
    }

    /// Returns what is recorded of the process.
    pub(crate) fn process(&self) -> Option<Arc<str>> {
        self.0.process.get().cloned()
    }

    /// Makes the file the input of an attempt.
    pub(crate) fn link(&self, run: i64, attempt: u32) -> io::Result<Input> {
        Input::link(&self.0.path, self.0.identity, run, attempt)
    }
}

/// Returns these files in the folder of a database, each with the id of its owner.
pub(crate) fn files(database: &Path) -> Vec<(String, PathBuf)> {
    let files = std::fs::read_dir(owner_lock::folder(database)).into_iter().flatten().flatten();
    let owner = |name: &str| Some(name.strip_prefix(WORKER)?.rsplit_once('-')?.0.to_owned());
    files.filter_map(|file| Some((owner(file.file_name().to_str()?)?, file.path()))).collect()
}

/// Removes such a file if no process has it any more.
pub(crate) fn remove_free(file: &Path) {
    if matches!(platform::held(file).0, Hold::Free) {
        let _ = std::fs::remove_file(file);
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use crate::host::orphan::{Orphan, Presence, inputs, remove_free_input};
    use crate::host::owner_lock::{OwnerLock, folder};
    use crate::host::shared_input::{SharedInput, files};
    use crate::waits::exited;

    /// A process that leads a group, inherits a file, and ends when its standard input does.
    fn start(input: File) -> Child {
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::from(input)).process_group(0).spawn().unwrap()
    }

    fn orphan(database: &Path, run: i64, process: Option<&str>) -> Orphan {
        Orphan::new(database, run, 1, "t".into(), "mail".into(), process)
    }

    // A single test: a child that starts in another test would briefly hold the file.
    #[test]
    fn the_runs_of_a_worker_are_found_by_links_to_its_file() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join("t.db");
        std::fs::write(&database, "").unwrap();
        let owner = OwnerLock::take(&database, "an-owner").unwrap();
        let (input, file) = SharedInput::create(&owner).unwrap();
        let shared = files(&database);
        assert_eq!((shared.len(), shared[0].0.as_str()), (1, "an-owner"));
        let links: Vec<_> = (7..10).map(|run| input.link(run, 1).unwrap()).collect();
        assert_eq!(input.link(7, 1).unwrap(), links[0], "repeating it changes nothing");

        // Held by this process, and no record: it is alive, and nothing may be signalled.
        let unrecorded = orphan(&database, 7, None);
        assert_eq!((unrecorded.presence(), unrecorded.group(), unrecorded.pid()), (Presence::Alive, None, None));
        assert_eq!(orphan(&database, 11, None).presence(), Presence::NoTrace, "it had another run");
        let mut worker = start(file);
        input.record_process(worker.id());
        let found = orphan(&database, 8, None);
        assert_eq!((found.presence(), found.group()), (Presence::Alive, Some(worker.id())));
        assert_eq!(found.holders(), [worker.id()]);
        let idle = Orphan::of_worker(&database, shared[0].1.clone(), 1);
        assert_eq!((idle.presence(), idle.group(), idle.run_id()), (Presence::Alive, Some(worker.id()), 0));

        // The record of the row counts before that of the file; one that cannot be read is none.
        let content = std::fs::read_to_string(&shared[0].1).unwrap();
        let declared = orphan(&database, 8, Some(crate::host::orphan::DECLARED_GONE));
        assert_eq!(declared.presence(), Presence::Gone);
        for unreadable in ["{", "[1]", &format!("{content}{}", " ".repeat(5000))] {
            std::fs::write(&shared[0].1, unreadable).unwrap();
            let found = orphan(&database, 8, None);
            assert_eq!((found.presence(), found.group()), (Presence::Alive, None), "{unreadable}");
        }
        let another = content.replace("\"started\":", "\"started\":1");
        assert_ne!(another, content);
        std::fs::write(&shared[0].1, &another).unwrap();
        assert_eq!(orphan(&database, 8, None).group(), None, "another process has its number");
        let elsewhere = content.replace("\"ino\":", "\"ino\":1");
        assert_ne!(elsewhere, content);
        std::fs::write(&shared[0].1, &elsewhere).unwrap();
        assert_eq!(orphan(&database, 8, None).group(), None, "it was recorded for another file");
        File::create(&shared[0].1).unwrap().write_all(content.as_bytes()).unwrap();

        // The last clone takes the file along; the links stay until the ends of their attempts are stored.
        drop((input.clone(), input));
        assert!(files(&database).is_empty());
        assert_eq!(orphan(&database, 8, None).group(), Some(worker.id()));
        assert_eq!(orphan(&database, 8, None).holders(), [worker.id()], "it has the file open under the removed name");
        links[0].remove();
        drop(worker.stdin.take());
        exited(&mut worker, "the worker");
        assert_eq!((orphan(&database, 8, None).presence(), orphan(&database, 8, None).group()), (Presence::Gone, None));
        let mut left = inputs(&database);
        left.sort_unstable();
        assert_eq!(left, [(8, 1), (9, 1)]);
        orphan(&database, 8, None).remove_files();
        remove_free_input(&database, (9, 1));
        assert_eq!(inputs(&database), []);
        drop(owner);
        assert_eq!(std::fs::read_dir(folder(&database)).unwrap().count(), 1, "the lock file");
    }
}
