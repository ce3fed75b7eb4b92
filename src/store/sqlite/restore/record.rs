//! The record beside a database: what was known of the file at the last heartbeat of any owner.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};

use crate::host::{folder, owner_lock, platform, process};
use crate::store::sqlite::damage::{self, Stamp};
use crate::store::sqlite::restore::seen::{HighestIds, History, Seen};
use crate::store::sqlite::row;
use crate::store::sqlite::wal::{self, Generation};

/// Longest record that is read.
const MAX_RECORD: u64 = 1024 * 1024;

/// What identifies a file. An inode is used again after its file is removed, so the time of its creation counts too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    /// `None` where the system does not report it.
    born: Option<u64>,
}

impl FileId {
    /// Returns what identifies the file at a path.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let metadata = path.metadata().ok()?;
        let (device, inode) = platform::identity(&metadata, path)?;
        Some(FileId { device, inode, born: platform::born(&metadata) })
    }

    /// Returns device and inode.
    pub(crate) fn identity(self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Returns whether it can be the same file.
    fn may_be(self, other: FileId) -> bool {
        let born_apart = self.born.zip(other.born).is_some_and(|(one, other)| one != other);
        self.identity() == other.identity() && !born_apart
    }
}

/// What identifies a log, and its present content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LogId {
    file: FileId,
    generation: Generation,
}

impl LogId {
    /// Returns `None` for a log that is missing, empty or cannot be read.
    fn at(path: &Path) -> Option<Self> {
        Some(LogId { file: FileId::at(path)?, generation: wal::generation(path)? })
    }
}

/// What is known of a file beside its rows, at the last heartbeat of any owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HistoryRecord {
    history: String,
    cookie: i64,
    stamp: Option<String>,
    /// The highest id of each table.
    pub(super) ids: BTreeMap<String, i64>,
    /// Owners of earlier histories whose lock files were there when this history began.
    pub(super) former: BTreeSet<String>,
    /// The database.
    file: Option<FileId>,
    /// Its log.
    log: Option<LogId>,
    /// The boot of the machine in which the record was written.
    boot: Option<String>,
}

const STAMP: &str = "SELECT value FROM scheduler_meta WHERE key = 'stamp'";

const IDS: &str = "
    SELECT name, seq FROM sqlite_sequence
     WHERE name = 'scheduled_tasks' OR name = 'task_runs' OR name = 'task_attempts' OR name = 'scheduler_events'
        OR name = 'scheduler_alarms'";

impl HistoryRecord {
    fn path(database: &Path) -> PathBuf {
        // No owner has an id with a dot.
        owner_lock::folder(database).join("history.json")
    }

    /// Reads the record beside a database. `None`: there is none that can be read.
    pub(crate) fn read(database: &Path) -> Option<Self> {
        let (path, folder) = (Self::path(database), owner_lock::folder(database));
        // What another user may have written shows nothing.
        folder::check_private(&folder).ok()?;
        let file = platform::open_regular(&path, OpenOptions::new().read(true)).ok()?;
        let mut text = String::new();
        file.take(MAX_RECORD).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Returns the record of the present state of a file.
    pub(crate) fn of(tx: &Connection, seen: &Seen, database: &Path) -> rusqlite::Result<Self> {
        let stamp = tx.prepare_cached(STAMP)?.query_row([], |row| row::shown(row, 0)).optional()?;
        let ids = tx.prepare(IDS)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        let History { cookie, id } = seen.history.clone();
        let (file, log) = (FileId::at(database), LogId::at(&damage::beside(database, "-wal")));
        let (former, boot) = (BTreeSet::new(), process::boot_id().ok());
        Ok(HistoryRecord { history: id, cookie, stamp, ids, former, file, log, boot })
    }

    /// Returns the id of the history.
    pub(crate) fn history(&self) -> &str {
        &self.history
    }

    /// Returns the highest ids of tasks and runs that it holds.
    pub(crate) fn highest(&self) -> HighestIds {
        let highest = |table| self.ids.get(table).copied().unwrap_or_default();
        HighestIds { runs: highest("task_runs"), tasks: highest("scheduled_tasks") }
    }

    /// Returns whether it is of the file with this device and inode.
    pub(crate) fn is_of(&self, identity: Option<(u64, u64)>) -> bool {
        self.file.map(FileId::identity) == identity
    }

    /// Writes it beside the database, in place of the one before. Not synced: after a crash of the machine an older one may be found. The
    /// caller holds the write lock: the record of an older state never replaces that of a newer one.
    pub(crate) fn write(&self, database: &Path) -> std::io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = Self::path(database);
        folder::check_private(&owner_lock::folder(database))?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{number}.new", std::process::id()));
        let file = platform::create_private(&temporary)?;
        platform::write_at(&file, &serde_json::to_vec(self)?, 0)?;
        platform::rename(&temporary, &path).inspect_err(|_| _ = std::fs::remove_file(&temporary))
    }

    /// Keeps which owners are of earlier histories, as long as their lock files exist.
    pub(crate) fn keep_former(&mut self, before: Option<HistoryRecord>, database: &Path) {
        let before = before.filter(|before| before.history == self.history).unwrap_or_default();
        let folder = owner_lock::folder(database);
        self.former = before.former.into_iter().filter(|owner| folder.join(owner).exists()).collect();
    }

    /// Returns whether another file is at the path than the one that the record is of.
    pub(super) fn is_of_another_file(&self, now: &HistoryRecord) -> bool {
        match (self.file, now.file) {
            (Some(then), Some(now)) => !then.may_be(now),
            (then, now) => then.is_some() != now.is_some(),
        }
    }

    /// Returns whether the machine has certainly started again since it was written.
    pub(super) fn is_of_another_boot(&self, now: &HistoryRecord) -> bool {
        self.boot.as_ref().zip(now.boot.as_ref()).is_some_and(|(then, now)| then != now)
    }

    /// Returns what shows that the file is not in a later state than this record. A copy that `duly backup` made has no stamp. If nothing
    /// of before runs, it is no earlier state unless it lacks ids.
    pub(super) fn contradicts(&self, now: &HistoryRecord, nothing_runs: bool) -> Option<String> {
        if self.history != now.history {
            return Some(format!("it is of another history than {}", self.history));
        }
        let parsed = |stamp: &Option<String>| stamp.as_ref().map(|stamp| Stamp::parse(stamp.clone().into_bytes()));
        if let Some(stamp) = parsed(&self.stamp).filter(|_| !(nothing_runs && now.stamp.is_none()))
            && !parsed(&now.stamp).is_some_and(|now| now.follows(&stamp))
        {
            let shown = |stamp: &Option<String>| stamp.clone().unwrap_or_else(|| "none".to_owned());
            return Some(format!("its stamp is {}, and was {}", shown(&now.stamp), shown(&self.stamp)));
        }
        let mut ids = self.ids.iter();
        let (table, id) = ids.find(|(table, id)| now.ids.get(*table).is_none_or(|now| now < id))?;
        Some(format!("{table} had the id {id}"))
    }
}

/// Which file a log belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogOf {
    /// The file at the path, as far as anything shows.
    ThisFile,
    /// The file that was at the path before: that one was replaced while no scheduler ran.
    FileBefore,
    /// It was the log of the file before. What it holds now may be of either.
    Unknown,
}

/// Finds out which file the log at a path belongs to. SQLite would apply it to the file that is there.
pub(crate) fn log_of(database: &Path) -> LogOf {
    let Some(now) = LogId::at(&damage::beside(database, "-wal")) else { return LogOf::ThisFile };
    let Some(HistoryRecord { file: Some(file), log: Some(log), .. }) = HistoryRecord::read(database) else {
        return LogOf::ThisFile;
    };
    // A copy of all files has a log of its own.
    if FileId::at(database).is_none_or(|now| now.may_be(file)) || !now.file.may_be(log.file) {
        return LogOf::ThisFile;
    }
    if now.file.born.is_some() && now == log { LogOf::FileBefore } else { LogOf::Unknown }
}
