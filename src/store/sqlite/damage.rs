//! Damage that bypasses SQLite while the database is open: the log removed or replaced, the file emptied, cut or overwritten.
//!
//! SQLite does not report it: it continues with its open files and cached pages. Only a checkpoint writes to the file, so the file
//! without its log is an earlier state of the same database, and never returns to an older one. The file is examined with `stat`;
//! if that changed, its header and its stamp are read through SQLite: closing the file otherwise would drop SQLite's locks.
//!
//! Not always noticed: a copy with a later schema, written while the log is empty, or between the begin of a log and the next check.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, named_params};

use crate::host::platform;
use crate::store::fault::Fault;
use crate::store::sqlite::wal::{self, Generation};
use crate::store::sqlite::{fault, schema};

/// Device and inode.
pub(crate) type Identity = (u64, u64);

/// The content of the file at the last check. All connections of this process to one file share it; `None`: no scheduler of this
/// process has the file open.
type SharedState = Arc<Mutex<Option<Known>>>;

/// The records of the files that are open in this process.
static OPEN: Mutex<BTreeMap<Identity, Weak<Mutex<Option<Known>>>>> = Mutex::new(BTreeMap::new());

/// The files of an open database, as they were when it was opened.
#[derive(Debug)]
pub(crate) struct Files {
    path: PathBuf,
    /// The log and its index, if the system reports their identities. Both exist while a connection is open.
    beside: Vec<(PathBuf, Identity)>,
    record: SharedState,
}

/// What is known of the file since the last check.
#[derive(Debug, Default)]
struct Known {
    version: Option<platform::Version>,
    /// The generation of the log at the last check.
    log: Option<Generation>,
    /// Whether that version is known to be a state of this database.
    sound: bool,
    base: Option<Base>,
    finding: Option<Finding>,
}

/// Damage that was found.
#[derive(Debug)]
struct Finding {
    how: &'static str,
    /// The database with its log at that time. Later a connection may read pages of the other file.
    live: Option<Facts>,
    /// Whether it was found again for some seconds.
    lasts: bool,
}

/// The result of the last check that found the file sound.
#[derive(Clone, Debug)]
struct Base {
    /// The facts of the file alone; `live`: with its log.
    file: Facts,
    live: Facts,
    /// The size that the file may not fall below while the schema stays the same.
    bytes: u64,
    /// The generation of the log, read before the file. While it lasts, each later change of the schema is in its frames.
    log: Option<Generation>,
}

/// The values by which two states of one database are ordered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    /// SQLite's schema cookie. It grows with each change of the schema, each VACUUM and each restore through SQLite.
    cookie: i64,
    stamp: Option<Stamp>,
}

/// The value of the row `stamp` of `scheduler_meta`: the owner that wrote the first stamp, and the number of heartbeats since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    lineage: Vec<u8>,
    count: i64,
}

/// The size of the database with its log.
#[derive(Clone, Copy, Debug)]
struct Size {
    cookie: i64,
    bytes: u64,
    /// Whether the file may become smaller without a change of the schema.
    shrinks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Sound,
    Unknown,
    Damaged(&'static str),
}

const EMPTIED: &str = "it was emptied while it was open";
const CUT: &str = "it was cut short while it was open";
const OVERWRITTEN: &str = "another database, or an older copy, was written over it while it was open";
const NO_DATABASE: &str = "it is not an SQLite database any more: it was overwritten while it was open";

impl Files {
    /// Records the log of a database that was just opened. `identity`: which file the database is.
    pub(crate) fn of(path: &Path, identity: Option<Identity>) -> Self {
        let beside = ["-wal", "-shm"].into_iter().filter_map(|suffix| {
            let name = beside(path, suffix);
            let identity = platform::identity_at(&name)?;
            Some((name, identity))
        });
        Files {
            path: path.to_owned(),
            beside: beside.collect(),
            record: identity.map_or_else(SharedState::default, shared),
        }
    }

    /// Begins to watch the content of the file, if this process does not yet: the next check reads it for the first time.
    pub(crate) fn watch(&self, connection: &Connection) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if record.is_none() {
            write_back(connection);
            *record = Some(Known::default());
        }
    }

    /// Records the stamp after a heartbeat: while the schema stays the same, it never decreases.
    pub(crate) fn stamped(&self, connection: &Connection) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(base) = record.as_mut().and_then(|known| known.base.as_mut()) else { return };
        if let Ok(live) = connection.unchecked_transaction().and_then(|snapshot| facts(&snapshot))
            && live.cookie == base.live.cookie
            && !has_gone_back(&live, &base.live)
        {
            base.live = live;
        }
    }

    /// Fails if the file or its log is damaged. An error during the check is no evidence of damage.
    pub(crate) fn check(&self, connection: &Connection) -> Result<(), Fault> {
        self.check_file(connection)?;
        self.check_log()
    }

    /// Returns whether the log may be written back when the connection is closed: SQLite does so if it is the last.
    ///
    /// Never into a file that is no longer the database, and never past a log that another connection has created. A log that
    /// was only removed is written back into a file that is known to be sound: otherwise its content would be lost.
    pub(crate) fn may_write_back(&self, connection: &Connection) -> bool {
        match (self.check_file(connection), self.check_log()) {
            (Err(_), _) => false,
            (Ok(_), Ok(())) => true,
            (Ok(sound), Err(_)) => {
                sound && self.beside.iter().all(|(name, known)| is_ours(name, *known) != Some(false))
            }
        }
    }

    /// Renames the log of a file that was found damaged for some seconds, or was replaced, so that no program applies it to the file that
    /// is there now. From then on no connection of this process uses the file. Returns the new name, if the log was there, or has it.
    pub(crate) fn set_log_aside(&self) -> Option<PathBuf> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(finding) = record.as_mut().and_then(|known| known.finding.as_mut()) {
            finding.lasts = true;
        }
        drop(record);
        let log = beside(&self.path, "-wal");
        let (_, known) = self.beside.iter().find(|(name, _)| *name == log)?;
        match is_ours(&log, *known) {
            Some(true) => set_aside(&self.path),
            // Another connection may have renamed it.
            _ => names_aside(&self.path).find(|aside| is_ours(aside, *known) == Some(true)),
        }
    }

    /// Returns whether the file is known to be sound. Fails if it is damaged.
    fn check_file(&self, connection: &Connection) -> Result<bool, Fault> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        // After the lock: the size of an earlier moment may be less than another thread has recorded.
        let Ok(metadata) = self.path.metadata() else { return Ok(false) };
        let Some(known) = record.as_mut() else {
            return if metadata.len() == 0 { Err(self.damaged(EMPTIED)) } else { Ok(false) };
        };
        let version = platform::version(&metadata);
        let log = beside(&self.path, "-wal");
        // Before the file: what older generations of the log held has been written back into the file that is examined.
        let generation = wal::generation(&log);
        if known.finding.is_none() && (known.version, known.log) == (Some(version), generation) {
            if known.base.is_some() {
                return Ok(known.sound);
            }
            // A reader of an older snapshot prevented a checkpoint: the file is compared as soon as one succeeds.
            write_back(connection);
        }
        known.sound = false;
        match known.examine(&self.path, (&log, generation), metadata.len(), connection) {
            None => return Ok(false),
            Some(Verdict::Damaged(how)) => return Err(self.damaged(how)),
            Some(verdict) => known.sound = verdict == Verdict::Sound,
        }
        (known.version, known.log, known.finding) = (Some(version), generation, None);
        Ok(known.sound)
    }

    fn check_log(&self) -> Result<(), Fault> {
        for (name, known) in &self.beside {
            let (how, then) = match is_ours(name, *known) {
                Some(true) => continue,
                Some(false) => ("replaced", "what it held and no checkpoint had written back is lost"),
                None => match std::fs::symlink_metadata(name) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        ("removed", "when the last program closes the database, what it held is written back")
                    }
                    _ => continue,
                },
            };
            let name = name.file_name().unwrap_or_default().display();
            let reason = format!(
                "{name}, which is part of it, was {how} while it was open: stop every program that uses the database, and run \
                 duly doctor before you start again; {then}"
            );
            return Err(schema::unusable(&self.path, reason));
        }
        Ok(())
    }

    fn damaged(&self, how: &str) -> Fault {
        let log = beside(&self.path, "-wal");
        let name = log.file_name().unwrap_or_default().display();
        let reason = format!(
            "{how}: stop every program that uses it, then restore a backup: put it in place and remove {name} and the -shm file \
             beside it; nothing was recorded since"
        );
        match schema::unusable(&self.path, reason) {
            Fault::Request(error) => Fault::Damaged(error),
            fault => fault,
        }
    }
}

impl Known {
    /// Compares the file with its last sound state. Returns `None` if it could not be read.
    fn examine(
        &mut self,
        path: &Path,
        (log, generation): (&Path, Option<Generation>),
        bytes: u64,
        connection: &Connection,
    ) -> Option<Verdict> {
        if let Some(Finding { how, lasts: true, .. }) = self.finding {
            return Some(Verdict::Damaged(how));
        }
        // The file first: the database with its log is never older than the file.
        let file = in_the_file(path);
        let snapshot = connection.unchecked_transaction().ok()?;
        let (size, live) = (Size::of(&snapshot), facts(&snapshot));
        let live = self.finding.as_ref().and_then(|finding| finding.live.clone()).or(live.ok());
        let verdict = match (file, &live) {
            // A database in WAL mode has at least one page, and SQLite never empties it.
            _ if bytes == 0 => Verdict::Damaged(EMPTIED),
            _ if self.base.as_ref().is_some_and(|base| is_cut(base, bytes, &size)) => Verdict::Damaged(CUT),
            (Err(error), _) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
                Verdict::Damaged(NO_DATABASE)
            }
            (Err(_), _) | (_, None) => return None,
            (Ok(file), Some(live)) => {
                let newest = self.base.as_ref().and_then(|base| base.newest_cookie(&file, log));
                let verdict = judge(self.base.as_ref(), &file, live, newest);
                if verdict == Verdict::Sound {
                    let bytes = bytes.min(size.ok()?.bytes);
                    self.base = Some(Base { file, live: live.clone(), bytes, log: generation });
                }
                verdict
            }
        };
        if let Verdict::Damaged(how) = verdict {
            let live = live.or_else(|| self.base.as_ref().map(|base| base.live.clone()));
            self.finding = Some(Finding { how, live, lasts: false });
        }
        Some(verdict)
    }
}

/// Writes back as much of the log as readers allow. Afterwards the file holds the stamp, and a file without it is another one.
fn write_back(connection: &Connection) {
    let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
}

/// Renames the log of a database, and removes its index: they belong to another file than the one that is at the path now. Returns the
/// new name.
pub(crate) fn set_aside(path: &Path) -> Option<PathBuf> {
    let log = beside(path, "-wal");
    let aside = names_aside(path).find(|name| name.symlink_metadata().is_err())?;
    // First: a program that opens the file would take the index for that of a log which is missing.
    let _ = std::fs::remove_file(beside(path, "-shm"));
    match std::fs::rename(&log, &aside) {
        Ok(()) => {
            let (path, aside) = (path.display(), aside.display());
            log::warn!("the log of {path} belongs to the file as it was: it was renamed {aside}");
        }
        Err(error) => {
            log::warn!("the log of {} cannot be renamed: {error}; remove it", path.display());
            return None;
        }
    }
    Some(aside)
}

/// Returns the names under which logs are put aside.
fn names_aside(path: &Path) -> impl Iterator<Item = PathBuf> {
    (1..100).map(|number| beside(path, &format!("-wal-aside-{number}")))
}

fn shared(identity: Identity) -> SharedState {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|_, record| record.strong_count() > 0);
    if let Some(record) = open.get(&identity).and_then(Weak::upgrade) {
        return record;
    }
    let record = SharedState::default();
    open.insert(identity, Arc::downgrade(&record));
    record
}

/// Returns the path of a file that SQLite keeps beside the database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Returns whether the name still refers to the same file; `None` if no such file exists, or it cannot be known.
fn is_ours(name: &Path, known: Identity) -> Option<bool> {
    let found = std::fs::symlink_metadata(name).ok()?;
    platform::identity(&found, name).map(|found| found == known)
}

/// Reads the file without its log. SQLite delays closing the file until that drops no lock.
fn in_the_file(path: &Path) -> rusqlite::Result<Facts> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let file = Connection::open_with_flags(format!("{}?mode=ro&immutable=1", uri(path)), flags)?;
    file.pragma_update(None, "trusted_schema", 0)?;
    facts(&file)
}

fn uri(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    if !path.as_os_str().as_encoded_bytes().starts_with(b"/") {
        uri.push('/');
    }
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'\\' if cfg!(windows) => uri.push('/'),
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => uri.push(char::from(*byte)),
            b':' if cfg!(windows) => uri.push(':'),
            _ => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri
}

const STAMP: &str = "SELECT CAST(value AS BLOB) FROM scheduler_meta WHERE key = 'stamp'";

fn facts(connection: &Connection) -> rusqlite::Result<Facts> {
    let cookie = connection.pragma_query_value(None, "schema_version", |row| row.get(0))?;
    let value = match connection.prepare_cached(STAMP) {
        Ok(mut statement) => statement.query_row([], |row| row.get::<_, Vec<u8>>(0)).optional()?,
        Err(error) if fault::missing(&error).is_some() => None,
        Err(error) => return Err(error),
    };
    Ok(Facts { cookie, stamp: value.map(Stamp::parse) })
}

impl Base {
    /// Returns the highest schema cookie that the database can have. `None`: the log has begun anew, so nothing is known, or the file has the
    /// cookie that it had.
    ///
    /// What SQLite reads is no evidence: if page 1 is not in the log, SQLite reads it from the file in question.
    fn newest_cookie(&self, file: &Facts, log: &Path) -> Option<i64> {
        if file.cookie == self.file.cookie {
            return None;
        }
        let in_the_log = wal::highest_cookie(log, self.log?).ok()?;
        Some(in_the_log.map_or(self.file.cookie, |highest| highest.max(self.file.cookie)))
    }
}

impl Stamp {
    pub(crate) fn parse(value: Vec<u8>) -> Self {
        let (lineage, count) = value.split_at(value.iter().position(|byte| *byte == b' ').unwrap_or(value.len()));
        let count = std::str::from_utf8(count).ok().and_then(|count| count.trim_start().parse().ok()).unwrap_or(0);
        Stamp { lineage: lineage.to_vec(), count }
    }

    /// Returns whether it was written later than `before`, or is the same.
    pub(crate) fn follows(&self, before: &Stamp) -> bool {
        self.lineage == before.lineage && self.count >= before.count
    }
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", String::from_utf8_lossy(&self.lineage), self.count)
    }
}

impl Size {
    fn of(snapshot: &Transaction<'_>) -> rusqlite::Result<Self> {
        let number = |pragma| snapshot.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let bytes = number("page_count")?.unsigned_abs() * number("page_size")?.unsigned_abs();
        Ok(Size { cookie: number("schema_version")?, bytes, shrinks: number("auto_vacuum")? != 0 })
    }
}

/// Returns whether the file has become smaller than SQLite would make it: only a VACUUM, or a restore, gives pages back.
/// `size`: of the database with its log; an error if SQLite itself finds pages missing.
fn is_cut(base: &Base, bytes: u64, size: &rusqlite::Result<Size>) -> bool {
    let for_no_reason = match size {
        Ok(size) => size.cookie == base.live.cookie && !size.shrinks,
        Err(error) => error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt),
    };
    bytes < base.bytes && for_no_reason
}

/// Returns whether the database shows an earlier stamp than before with the same schema: a restore through SQLite changes its
/// cookie.
fn has_gone_back(now: &Facts, before: &Facts) -> bool {
    let is_earlier = |now: &Stamp, before: &Stamp| now.lineage == before.lineage && now.count < before.count;
    now.cookie == before.cookie
        && matches!((&now.stamp, &before.stamp), (Some(now), Some(before)) if is_earlier(now, before))
}

/// Returns whether the content of the file can be an earlier state of the database. Each fact is on a separate page: a checkpoint
/// that is running, or was interrupted, leaves pages of several states. `newest`: the highest cookie that the database can have.
fn judge(base: Option<&Base>, file: &Facts, live: &Facts, newest: Option<i64>) -> Verdict {
    if let Some(base) = base {
        let is_newer = file.cookie > live.cookie || newest.is_some_and(|newest| file.cookie > newest);
        if file.cookie < base.file.cookie || is_newer || has_gone_back(live, &base.live) {
            return Verdict::Damaged(OVERWRITTEN);
        }
        // The stamp is on the same page as at the last check.
        if file.cookie == base.file.cookie && file.cookie == live.cookie && went_back(base, file, live) {
            return Verdict::Damaged(OVERWRITTEN);
        }
    }
    let fits = match (&file.stamp, &live.stamp) {
        (Some(file), Some(live)) => live.follows(file),
        (None, None) => base.is_none_or(|base| base.file.stamp.is_none()),
        (None, Some(_)) | (Some(_), None) => false,
    };
    if file.cookie == live.cookie && fits { Verdict::Sound } else { Verdict::Unknown }
}

/// Returns whether the stamp in the file is older than at the last check, or is another one while the database with its log keeps
/// its stamp.
fn went_back(base: &Base, file: &Facts, live: &Facts) -> bool {
    let kept = || matches!((&live.stamp, &base.live.stamp), (Some(live), Some(before)) if live.follows(before));
    match (&file.stamp, &base.file.stamp) {
        (Some(file), Some(before)) if file.lineage == before.lineage => file.count < before.count,
        (_, Some(_)) => kept(),
        (_, None) => false,
    }
}

const WRITE_STAMP: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES ('stamp', :owner || ' 1')
    ON CONFLICT (key) DO UPDATE
    SET value = substr(value, 1, instr(value, ' ')) || (CAST(substr(value, instr(value, ' ') + 1) AS INTEGER) + 1)";

/// Counts one more heartbeat. The lineage is the id of the first owner, which has no space.
pub(crate) fn stamp(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<()> {
    tx.prepare_cached(WRITE_STAMP)?.execute(named_params! { ":owner": owner }).map(|_| ())
}

const FORGET_STAMP: &str = "DELETE FROM scheduler_meta WHERE key = 'stamp'";

/// Deletes the stamp of a copy, so that it counts as another database.
pub(crate) fn forget_stamp(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.prepare_cached(FORGET_STAMP)?.execute([]).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Base, Facts, OVERWRITTEN, Size, Stamp, Verdict, is_cut, judge, uri};

    fn at(cookie: i64, stamp: &str) -> Facts {
        let stamp = (!stamp.is_empty()).then(|| Stamp::parse(stamp.as_bytes().to_vec()));
        Facts { cookie, stamp }
    }

    /// The file was last seen at stamp 5 of the database `a`, which was at 9 with its log.
    fn base() -> Base {
        Base { file: at(40, "a 5"), live: at(40, "a 9"), bytes: 8192, log: None }
    }

    fn judged(file: Facts, with_its_log: Facts) -> Verdict {
        judge(Some(&base()), &file, &with_its_log, None)
    }

    #[test]
    fn changes_through_sqlite_are_no_damage() {
        let sound = [
            ("nothing", at(40, "a 5"), at(40, "a 9")),
            ("a checkpoint", at(40, "a 9"), at(40, "a 9")),
            ("a VACUUM, written back", at(41, "a 10"), at(41, "a 10")),
            ("an older state restored through SQLite", at(41, "a 2"), at(41, "a 3")),
            ("another database restored through SQLite", at(41, "b 99"), at(41, "b 100")),
        ];
        for (what, file, live) in sound {
            assert_eq!(judged(file, live), Verdict::Sound, "{what}");
        }
        let unknown = [
            ("a VACUUM in the log", at(40, "a 5"), at(41, "a 9")),
            ("two, one written back", at(41, "a 5"), at(42, "a 9")),
            ("a restore, in part written back", at(41, "a 5"), at(41, "a 3")),
            ("another database, in part written back", at(41, "a 5"), at(41, "b 100")),
            ("the row removed through SQLite", at(40, "a 5"), at(40, "")),
            ("the row removed and written back; or a copy from before the first stamp", at(40, ""), at(40, "")),
        ];
        for (what, file, live) in unknown {
            assert_eq!(judged(file, live), Verdict::Unknown, "{what}");
        }
    }

    #[test]
    fn an_older_state_is_damage() {
        for (what, file, live) in [
            ("an older copy of the file", at(40, "a 4"), at(40, "a 9")),
            ("an older copy of the file, where the log has nothing", at(40, "a 4"), at(40, "a 4")),
            ("one that was made since the last check, where the log has nothing", at(40, "a 6"), at(40, "a 7")),
            ("a copy made by .backup", at(1, "a 9"), at(40, "a 9")),
            ("a copy made by VACUUM INTO", at(41, "a 9"), at(40, "a 9")),
            ("another database of duly", at(40, "b 99"), at(40, "a 9")),
            ("a database without duly's tables", at(40, ""), at(40, "a 9")),
        ] {
            assert_eq!(judged(file, live), Verdict::Damaged(OVERWRITTEN), "{what}");
        }
    }

    #[test]
    fn a_schema_that_the_log_does_not_tell_of_is_of_another_file() {
        let (file, live) = (at(41, ""), at(41, "a 9"));
        let judged = |newest| judge(Some(&base()), &file, &live, newest);
        assert_eq!(judged(Some(40)), Verdict::Damaged(OVERWRITTEN));
        assert_eq!([judged(Some(41)), judged(None)], [Verdict::Unknown; 2]);
    }

    #[test]
    fn a_file_shrinks_by_a_change_of_its_schema_only() {
        let base = base();
        let size = |cookie, shrinks| Ok(Size { cookie, bytes: 8192, shrinks });
        assert!(is_cut(&base, 4096, &size(40, false)) && !is_cut(&base, 8192, &size(40, false)));
        assert!(!is_cut(&base, 4096, &size(41, false)), "a VACUUM");
        assert!(!is_cut(&base, 4096, &size(40, true)), "auto_vacuum");
    }

    #[test]
    fn a_name_is_not_read_as_a_query() {
        assert_eq!(uri(Path::new("/data/my bot?/50%#1.db")), "file:///data/my%20bot%3f/50%25%231.db");
    }
}
