//! `Client::backup`: copies the whole file while it is in use.
//!
//! A copy is the file of another scheduler. In the copy, the schedulers of the original have stopped, and the runs that they ran
//! are lost attempts: a scheduler of the copy recovers these after one lease, as if their owners had died on another machine.
//! It never signals their commands.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::host::platform;
use crate::model::progress_meter::Progress;
use crate::store::FileStore;
use crate::store::place::{self, Place};
use crate::store::sqlite::file::{Durability, Missing};

const DOING: &str = "make a backup";

/// The result of a backup.
///
/// ```
/// use duly::{Client, NewTask};
/// # let home = tempfile::tempdir()?;
/// # let file = home.path().join("agent.db");
/// let client = Client::open(&file)?;
/// client.add(NewTask::manual("export").handler("export"))?;
/// client.trigger("export")?;
/// let copy = client.backup(home.path().join("copy.db"))?;
/// // The run waits: only running ones are lost attempts in the copy.
/// assert!(copy.bytes > 0 && copy.running == 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// The copy.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of runs that were running. A scheduler of the copy recovers them as lost.
    pub running: usize,
}

impl Client {
    /// Copies the whole file, including the tables of an application, to a path that does not exist. The copy holds all that was
    /// committed before this began, and only its owner may read it. No writer waits for the copy, but the log of the original grows
    /// meanwhile. The copy gets its name when it is complete and on the disk.
    ///
    /// A scheduler on the copy is a second scheduler: it runs every task, whatever the first does.
    ///
    /// ```
    /// use duly::{Client, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let (file, copy) = (home.path().join("agent.db"), home.path().join("copy.db"));
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("digest", "0 7 * * *").handler("digest"))?;
    /// client.backup(&copy)?;
    /// assert!(Client::open_existing(&copy)?.task("digest")?.is_some());
    /// // Nothing is ever overwritten.
    /// assert!(client.backup(&copy).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] if the path exists, or cannot be created, or if the database is on a server: the error names the command of
    /// PostgreSQL; [`Error::Store`] if the disk is full or fails.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<Backup> {
        self.backup_watched(path, &Progress::default())
    }

    /// As [`Client::backup`], and reports its progress: bytes that are copied.
    ///
    /// # Errors
    /// As [`Client::backup`].
    pub fn backup_watched(&self, path: impl AsRef<Path>, progress: &Progress) -> Result<Backup> {
        let path = path.as_ref();
        if let Some(command) = place::dump(&mut **self.store()) {
            return Err(refused(
                path,
                &format!("the database is on a server, which has its own program for that: {command}"),
            ));
        }
        let name = path.file_name().ok_or_else(|| refused(path, "expected the name of a file"))?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let folder = platform::real_path(folder).map_err(|error| refused(path, &format!("its folder: {error}")))?;
        let mut partial = name.to_owned();
        partial.push(".part");
        let (whole, part) = (folder.join(name), folder.join(partial));
        platform::create_private(&part).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let reason = "another backup is being made there, or was cut short: if not, remove";
                refused(path, &format!("{reason} {}", part.display()))
            }
            _ => refused(path, &error.to_string()),
        })?;
        let made = self.fill(&whole, &part, progress);
        if made.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        let (bytes, running) = made?;
        Ok(Backup { path: whole, bytes, running })
    }

    /// Writes the copy into `part`, and renames it `whole`.
    fn fill(&self, whole: &Path, part: &Path, progress: &Progress) -> Result<(u64, usize)> {
        // Also finds a symbolic link without a target.
        if whole.symlink_metadata().is_ok() {
            return Err(refused(whole, "there is such a file: nothing is overwritten"));
        }
        let (now, original) = (self.now(), self.path_in_place()?);
        // On its own connection: other threads that share this client do not wait.
        with_file(&original, |file| file.copy_into(part, progress))?;
        let running = with_file(part, |copy| copy.disown(&original, now))?;
        let store = |error: io::Error| Error::store(DOING, error);
        // Windows syncs no file that is open for reading alone.
        let written = File::options().read(true).write(true).open(part);
        let bytes = written.and_then(|file| file.sync_all().and_then(|()| file.metadata())).map_err(store)?.len();
        std::fs::rename(part, whole).map_err(store)?;
        progress.complete();
        Ok((bytes, running))
    }
}

/// Opens an existing database, and calls `f` with its [`FileStore`].
fn with_file<T>(path: &Path, f: impl FnOnce(&mut dyn FileStore) -> Result<T>) -> Result<T> {
    let mut store = Place::File(path.to_owned()).open(Missing::Refuse, Durability::Full)?;
    f(store.as_file().ok_or_else(|| refused(path, "it is not a file"))?)
}

fn refused(path: &Path, reason: &str) -> Error {
    Error::Refused { request: format!("make a backup {}", path.display()), reason: reason.to_owned() }
}
