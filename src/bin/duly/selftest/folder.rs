//! The folder in which all of it happens: new, and gone afterwards, unless somebody should look at what was found there.

use std::fs::DirBuilder;
use std::io;
use std::path::{Path, PathBuf};

/// A folder that goes away when it is let go.
pub(crate) struct Folder {
    path: PathBuf,
    is_kept: bool,
}

impl Folder {
    /// Makes one, with a name that nothing else has.
    pub(crate) fn make(beside: &Path) -> io::Result<Self> {
        // Its real name: mounts are told by it.
        let beside = std::fs::canonicalize(beside)?;
        loop {
            let path = beside.join(format!("duly-selftest-{:08x}", fastrand::u32(..)));
            match private().create(&path) {
                Ok(()) => return Ok(Folder { path, is_kept: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// A new folder in it.
    pub(crate) fn room(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        private().create(&path)?;
        Ok(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// It stays.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.path.clone()
    }

    /// It goes, now, and it is told if it does not.
    pub(crate) fn remove(mut self) -> io::Result<()> {
        self.is_kept = true;
        std::fs::remove_dir_all(&self.path)
    }
}

fn private() -> DirBuilder {
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
