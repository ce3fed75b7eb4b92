//! `Client::backup`: the whole file, copied while it is in use.
//!
//! A copy is a second scheduler's file. Those who are at work on the original are not at work on it: in the copy they have
//! left, and what they ran is a lost attempt, which a scheduler of the copy recovers after one lease, as if its owner had
//! died on another machine. It never touches a command of theirs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::host::platform;
use crate::model::progress_meter::Progress;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::file::{Durability, Missing};
use crate::store::sqlite::{damage, owners};

const DOING: &str = "make a backup";

/// A copy that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// The copy.
    pub path: PathBuf,
    /// How large it is, in bytes.
    pub bytes: u64,
    /// Runs that were at work, and that a scheduler of the copy will take for lost.
    pub running: usize,
}

impl Client {
    /// Copies the whole file, an application's own tables too, to one that does not exist. It holds all that was committed
    /// before this began, and only its owner may read it. Nobody waits for it, though the log of the original grows
    /// meanwhile. It is given its name when it is whole and on the disk.
    ///
    /// A scheduler on the copy is a second one: it runs every task, whatever the first does.
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
    /// [`Error::Refused`] if the file exists, or cannot be made; [`Error::Store`] if the disk is full, or an error of its.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<Backup> {
        self.backup_watched(path, &Progress::default())
    }

    /// As [`Client::backup`], with somebody looking on: bytes that are copied.
    ///
    /// # Errors
    /// As [`Client::backup`].
    pub fn backup_watched(&self, path: impl AsRef<Path>, advance: &Progress) -> Result<Backup> {
        let path = path.as_ref();
        let name = path.file_name().ok_or_else(|| refused(path, "expected the name of a file"))?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let folder = platform::real_path(folder).map_err(|error| refused(path, &format!("its folder: {error}")))?;
        let mut unborn = name.to_owned();
        unborn.push(".part");
        let (whole, part) = (folder.join(name), folder.join(unborn));
        platform::create_private(&part).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let reason = "another backup is being made there, or was cut short: if not, remove";
                refused(path, &format!("{reason} {}", part.display()))
            }
            _ => refused(path, &error.to_string()),
        })?;
        let made = self.fill(&whole, &part, advance);
        if made.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        let (bytes, running) = made?;
        Ok(Backup { path: whole, bytes, running })
    }

    /// Writes the copy under another name, and gives it its own.
    fn fill(&self, whole: &Path, part: &Path, advance: &Progress) -> Result<(u64, usize)> {
        // A link that leads nowhere is in the way, too.
        if whole.symlink_metadata().is_ok() {
            return Err(refused(whole, "there is such a file: nothing is overwritten"));
        }
        let (now, original) = (self.now(), self.in_place()?);
        // A connection of its own: others that share this client do not wait.
        SqliteStore::open(&original, Missing::Refuse, Durability::Full)?.copy_into(part, advance)?;
        let running = SqliteStore::open(part, Missing::Refuse, Durability::Full)?.write(DOING, |tx, _| {
            let detail = original.display().to_string();
            owners::record(tx, now, "copied", None, None, Some(&detail))?;
            damage::forget_stamp(tx)?;
            Ok(owners::disown(tx, now)?)
        })?;
        let store = |error: io::Error| Error::store(DOING, error);
        let bytes =
            File::open(part).and_then(|file| file.sync_all().and_then(|()| file.metadata())).map_err(store)?.len();
        std::fs::rename(part, whole).map_err(store)?;
        advance.complete();
        Ok((bytes, running))
    }
}

fn refused(path: &Path, reason: &str) -> Error {
    Error::Refused { request: format!("make a backup {}", path.display()), reason: reason.to_owned() }
}
