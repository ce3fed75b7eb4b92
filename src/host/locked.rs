//! A locked file whose lock ends with its value.

use std::fs::File;
use std::ops::Deref;

/// A file with an acquired lock. Dropping it releases the lock. Closing the file alone does not release it at once: a process that
/// another thread starts at that moment holds a copy of the descriptor until it executes its program, and the lock belongs to
/// all copies.
#[derive(Debug)]
pub(crate) struct Locked {
    file: File,
    /// The process that acquired the lock. A fork of it has a copy of this value, and must not release the lock of its parent.
    process: u32,
}

impl Locked {
    /// `file`: this process has just acquired its lock.
    pub(crate) fn new(file: File) -> Self {
        Locked { file, process: std::process::id() }
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // If this fails, the lock ends when the last copy of the descriptor is closed.
            let _ = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Locked;

    #[test]
    fn dropping_releases_the_lock_of_all_copies_except_in_a_fork() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let take = || {
            let file = file.reopen().unwrap();
            file.try_lock().map(|()| Locked::new(file))
        };
        let locked = take().unwrap();
        // As the child of another thread, before it executes its program.
        let copy = locked.try_clone().unwrap();
        assert!(take().is_err());
        drop(locked);
        let mut forked = take().expect("released for all copies");
        drop(copy);

        let parent = forked.try_clone().unwrap();
        forked.process += 1;
        drop(forked);
        assert!(take().is_err(), "the lock of the parent");
        drop(parent);
        assert!(take().is_ok());
    }
}
