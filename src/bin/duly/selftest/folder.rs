//! The temporary folder of the selftest. It is kept if a check fails.

use std::io;
use std::path::{Path, PathBuf};

use crate::exec::machine::private_folder;

/// A folder that is removed when it is dropped.
pub(crate) struct Folder {
    path: PathBuf,
    is_kept: bool,
}

impl Folder {
    /// Creates a folder with a unique name in `parent`.
    pub(crate) fn create(parent: &Path) -> io::Result<Self> {
        // Mounts are found by the canonical path.
        let parent = std::fs::canonicalize(parent)?;
        loop {
            let path = parent.join(format!("duly-selftest-{:08x}", fastrand::u32(..)));
            match private_folder(&path) {
                Ok(()) => return Ok(Folder { path, is_kept: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates a folder in it.
    pub(crate) fn subfolder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        private_folder(&path)?;
        Ok(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the folder, and returns its path.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.path.clone()
    }

    /// Removes the folder, and reports an error.
    pub(crate) fn remove(mut self) -> io::Result<()> {
        self.is_kept = true;
        std::fs::remove_dir_all(&self.path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
