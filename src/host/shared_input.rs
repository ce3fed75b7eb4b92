//! The locked file of a long-lived process that runs attempts of many runs: each of its runs has a hard link to it, so that
//! an orphan is found as that of a command is.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::host::orphan::{self, Input, WORKER};
use crate::host::owner_lock::{self, OwnerLock};
use crate::host::platform;

/// Numbers the files of this process.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// A locked file that a long-lived process inherits, as evidence that the process lives. While the process, or a child of it, has
/// the file open, other schedulers see that, and the runs that the process had wait until it is gone. Cheap to clone. The file
/// is removed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct SharedInput(Arc<SharedFile>);

#[derive(Debug)]
struct SharedFile {
    path: PathBuf,
    /// Device and inode.
    identity: Option<(u64, u64)>,
    database: PathBuf,
}

impl SharedInput {
    /// Creates and locks a file of this owner. The caller passes the returned file to the process and keeps no copy.
    pub(crate) fn create(owner: &OwnerLock) -> io::Result<(Self, File)> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let make = || {
            let path = owner.folder().join(format!("{WORKER}{}-{number}", owner.id()));
            platform::create_held(&path).map(|file| (path, file))
        };
        // A folder that was removed is created again.
        let (path, file) = make().or_else(|_| owner.keep().and_then(|_| make()))?;
        let identity = platform::identity(&file.metadata()?);
        Ok((SharedInput(Arc::new(SharedFile { path, identity, database: owner.database().to_owned() })), file))
    }

    /// Records in the file which process inherited it, so that another scheduler can distinguish the process from any other with its
    /// number. The process must lead a process group of its own, and not have been waited for. Where the system does not distinguish
    /// processes, or if the record cannot be written, the lock of the file is the only evidence.
    pub fn record_process(&self, pid: u32) {
        let SharedFile { path, identity, database } = &*self.0;
        let Some(record) = orphan::record_of(pid, *identity, database) else { return };
        let file = File::options().write(true).open(path);
        if let Err(error) = file.and_then(|file| platform::write_at(&file, record.as_bytes(), 0)) {
            log::warn!("the process {pid} cannot be recorded in {}: {error}", path.display());
        }
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

impl Drop for SharedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
