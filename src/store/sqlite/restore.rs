//! A history that went back: the file was restored through SQLite, to an earlier state of it or to another database.
//!
//! A restore changes the schema cookie of the file, as a VACUUM and a change of any table do. So each transaction that writes compares
//! the cookie and the id of the history with those that its connection knows. If they differ, the file is compared with what is known
//! of it: the record beside the file, the attempts in the slots of lock files, and what the connection and its owner know. The first that
//! finds that the file went back begins a new history: another id, and ids of rows above all that were ever given out. All owners obey it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::OpenOptions;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, OptionalExtension, Transaction, named_params};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::host::attempt_slots::BegunAttempts;
use crate::host::orphan::Presence;
use crate::host::owner_lock::{self, Standing};
use crate::host::{folder, platform};
use crate::store::fault::Fault;
use crate::store::sqlite::damage::Stamp;
use crate::store::sqlite::{owners, row};
use crate::store::turn_io::{Lost, Stray};

/// How far the ids of a new history are above the highest that is known. The record beside the file may be behind by half of that.
pub(crate) const MARGIN: i64 = 10_000;

/// Longest record that is read.
const MAX_RECORD: u64 = 1024 * 1024;

/// What identifies the state that a connection knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// SQLite's schema cookie.
    pub(crate) cookie: i64,
    /// The id of the history; empty in a file that has none.
    pub(crate) id: String,
}

/// What a transaction finds at its begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) history: History,
    pub(crate) version: Option<String>,
    /// The row `held`: see [`Held`].
    pub(crate) held: Option<String>,
    pub(crate) ids: HighestIds,
}

/// The highest ids that were given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HighestIds {
    pub(crate) runs: i64,
    pub(crate) tasks: i64,
}

const COOKIE: &str = "PRAGMA schema_version";

/// The version of the tables, too: it is compared in each transaction.
const SEEN: &str = "
    SELECT (SELECT value FROM scheduler_meta WHERE key = 'schema_version'),
           (SELECT value FROM scheduler_meta WHERE key = 'history'),
           (SELECT value FROM scheduler_meta WHERE key = 'held'),
           ifnull(max(iif(name = 'task_runs', seq, 0)), 0), ifnull(max(iif(name = 'scheduled_tasks', seq, 0)), 0)
      FROM sqlite_sequence";

pub(crate) fn cookie(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached(COOKIE)?.query_row([], |row| row.get(0))
}

impl Seen {
    pub(crate) fn read(tx: &Connection) -> rusqlite::Result<Self> {
        let cookie = cookie(tx)?;
        tx.prepare_cached(SEEN)?.query_row([], |row| {
            let id = row::shown_if_any(row, 1)?.unwrap_or_default();
            let ids = HighestIds { runs: row.get(3)?, tasks: row.get(4)? };
            let (version, held) = (row::shown_if_any(row, 0)?, row::shown_if_any(row, 2)?);
            Ok(Seen { history: History { cookie, id }, version, held, ids })
        })
    }
}

/// The attempts that an owner knows to have: the number of each, and its task, by the run.
pub(crate) type Claims = HashMap<i64, (u32, i64)>;

/// What is known of a file beside its rows, at the last heartbeat of any owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    history: String,
    cookie: i64,
    stamp: Option<String>,
    /// The highest id of each table.
    ids: BTreeMap<String, i64>,
    /// Owners of earlier histories whose lock files were there when this history began.
    former: BTreeSet<String>,
    /// Device and inode of the database.
    pub(crate) file: Option<(u64, u64)>,
}

const STAMP: &str = "SELECT value FROM scheduler_meta WHERE key = 'stamp'";

const IDS: &str = "
    SELECT name, seq FROM sqlite_sequence
     WHERE name = 'scheduled_tasks' OR name = 'task_runs' OR name = 'task_attempts' OR name = 'scheduler_events'
        OR name = 'scheduler_alarms'";

impl Record {
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

    /// Reads what a record holds of the rows.
    pub(crate) fn of(tx: &Connection, seen: &Seen) -> rusqlite::Result<Self> {
        let stamp = tx.prepare_cached(STAMP)?.query_row([], |row| row::shown(row, 0)).optional()?;
        let ids = tx.prepare(IDS)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        let History { cookie, id } = seen.history.clone();
        Ok(Record { history: id, cookie, stamp, ids, ..Record::default() })
    }

    /// Returns the highest ids of tasks and runs that it holds.
    pub(crate) fn highest(&self) -> HighestIds {
        let highest = |table| self.ids.get(table).copied().unwrap_or_default();
        HighestIds { runs: highest("task_runs"), tasks: highest("scheduled_tasks") }
    }

    /// Writes it beside the database, in place of the one before. Not synced: after a crash of the machine an older one may be found.
    pub(crate) fn write(&self, database: &Path) -> std::io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = Self::path(database);
        folder::check_private(&owner_lock::folder(database))?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{number}.new", std::process::id()));
        let file = platform::create_private(&temporary)?;
        platform::write_at(&file, &serde_json::to_vec(self)?, 0)?;
        std::fs::rename(&temporary, path).inspect_err(|_| _ = std::fs::remove_file(&temporary))
    }

    /// Keeps which owners are of earlier histories, as long as their lock files exist.
    pub(crate) fn keep_former(&mut self, before: Option<Record>, database: &Path) {
        let before = before.filter(|before| before.history == self.history).unwrap_or_default();
        let folder = owner_lock::folder(database);
        self.former = before.former.into_iter().filter(|owner| folder.join(owner).exists()).collect();
    }
}

/// What a connection compares a file with.
#[derive(Clone, Copy)]
pub(crate) struct Knowledge<'a> {
    /// The file that the lock files and the record are beside.
    pub(crate) database: &'a Path,
    /// Device and inode of the database.
    pub(crate) identity: Option<(u64, u64)>,
    /// Of this connection, since its first transaction.
    pub(crate) known: Option<(&'a History, HighestIds)>,
    /// The attempts of the owner that takes its turn.
    pub(crate) expected: Option<(&'a str, &'a Claims)>,
}

/// The result of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// The history goes on: another program has changed tables, or VACUUM was run.
    GoesOn,
    /// The file went back to an earlier state, and no new history has begun since. The text says what shows it.
    WentBack(String),
}

const ATTEMPT: &str = "SELECT attempt FROM task_runs WHERE id = :run";

const RUNNING: &str = "
    SELECT id, attempt FROM task_runs INDEXED BY task_runs_running WHERE status = 'running' AND locked_by = :owner";

impl Knowledge<'_> {
    /// Compares the file with what is known of it.
    pub(crate) fn compare(&self, tx: &Transaction<'_>, seen: &Seen) -> rusqlite::Result<Compared> {
        let record = Record::read(self.database);
        if self.known.is_none() && self.is_another_database(seen, record.as_ref()) {
            return Ok(Compared::GoesOn);
        }
        let back = |what: String| Ok(Compared::WentBack(what));
        let now = Record::of(tx, seen)?;
        if let Some(record) = &record {
            if record.history != now.history {
                return back(format!("it is of another history than {}", record.history));
            }
            if let Some(what) = record.is_ahead_of(&now) {
                return back(what);
            }
        }
        let former = record.map(|record| record.former).unwrap_or_default();
        let begun = owner_lock::begun(self.database).into_iter().filter(|(owner, _)| !former.contains(owner));
        for ((run, attempt), _) in begun.flat_map(|(_, begun)| begun) {
            if is_ahead(tx, (run, attempt), seen)? {
                return back(format!("it does not have attempt {attempt} of run {run}"));
            }
        }
        // What is known of an earlier history is no evidence.
        let Some((known, ids)) = self.known.filter(|(known, _)| known.id == seen.history.id) else {
            return Ok(Compared::GoesOn);
        };
        if seen.ids.runs < ids.runs || seen.ids.tasks < ids.tasks {
            return back(format!("it had run {} and task {}", ids.runs, ids.tasks));
        }
        match self.expected {
            Some((owner, claims)) if known.cookie != seen.history.cookie => {
                self.has_other_claims(tx, owner, claims, seen)
            }
            _ => Ok(Compared::GoesOn),
        }
    }

    /// Returns whether the rows have other running attempts of an owner than it has.
    fn has_other_claims(
        &self,
        tx: &Transaction<'_>,
        owner: &str,
        claims: &Claims,
        seen: &Seen,
    ) -> rusqlite::Result<Compared> {
        let mut running = tx.prepare_cached(RUNNING)?;
        let rows = running.query_map(named_params! { ":owner": owner }, |row| Ok((row.get(0)?, row.get(1)?)))?;
        for row in rows {
            let (run, attempt): (i64, u32) = row?;
            if claims.get(&run).is_none_or(|(claimed, _)| *claimed != attempt) {
                return Ok(Compared::WentBack(format!("attempt {attempt} of run {run} is running again")));
            }
        }
        for (run, (attempt, _)) in claims {
            if is_ahead(tx, (*run, *attempt), seen)? {
                return Ok(Compared::WentBack(format!("it does not have attempt {attempt} of run {run}")));
            }
        }
        Ok(Compared::GoesOn)
    }

    /// Returns whether the record is that of another database, which was at this path before: then the file is a new one.
    fn is_another_database(&self, seen: &Seen, record: Option<&Record>) -> bool {
        let Some(record) = record.filter(|record| record.history != seen.history.id) else { return false };
        let is_empty = seen.ids == HighestIds::default();
        let has_begun =
            |(owner, begun): &(String, BegunAttempts)| !begun.is_empty() && owner_lock::is_alive(self.database, owner);
        (record.file != self.identity || is_empty) && !owner_lock::begun(self.database).iter().any(has_begun)
    }
}

/// Returns whether a run has no such attempt yet. A run that was deleted shows nothing.
fn is_ahead(tx: &Transaction<'_>, (run, attempt): (i64, u32), seen: &Seen) -> rusqlite::Result<bool> {
    let mut statement = tx.prepare_cached(ATTEMPT)?;
    let stored: Option<u32> = statement.query_row(named_params! { ":run": run }, |row| row.get(0)).optional()?;
    Ok(stored.map_or(run > seen.ids.runs, |stored| stored < attempt))
}

impl Record {
    /// Returns what shows that the file is older than this record.
    fn is_ahead_of(&self, now: &Record) -> Option<String> {
        let parsed = |stamp: &Option<String>| stamp.as_ref().map(|stamp| Stamp::parse(stamp.clone().into_bytes()));
        if let Some(stamp) = parsed(&self.stamp)
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

const SET: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES (:key, :value)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value";

const FORGET: &str = "DELETE FROM scheduler_meta WHERE key = :key";

const RAISE: &str = "UPDATE sqlite_sequence SET seq = :id WHERE name = :table AND seq < :id";

const BEGIN_SEQUENCE: &str = "
    INSERT INTO sqlite_sequence (name, seq) SELECT :table, 0
     WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :table)";

const NEW_ID: &str = "SELECT lower(hex(randomblob(16)))";

const HAS_TASK: &str = "SELECT EXISTS (SELECT 1 FROM scheduled_tasks WHERE id = :task)";

fn set(tx: &Transaction<'_>, key: &str, value: Option<&str>) -> rusqlite::Result<()> {
    match value {
        Some(value) => tx.prepare_cached(SET)?.execute(named_params! { ":key": key, ":value": value })?,
        None => tx.prepare_cached(FORGET)?.execute(named_params! { ":key": key })?,
    };
    Ok(())
}

/// Begins a new history. The caller commits it before it writes anything else.
///
/// What the schedulers of the history before had begun may still run: its tasks are held until their owners say that it has ended.
pub(crate) fn begin(
    tx: &Transaction<'_>,
    knowledge: &Knowledge<'_>,
    seen: &Seen,
    what: &str,
) -> Result<(History, HighestIds), Fault> {
    let id: String = tx.query_row(NEW_ID, [], |row| row.get(0))?;
    let before = Record::read(knowledge.database).unwrap_or_default();
    let begun = owner_lock::begun(knowledge.database);
    let mut ids = Record::of(tx, seen)?.ids;
    let mut raise = |table: &str, to: i64| {
        let id = ids.entry(table.to_owned()).or_default();
        *id = to.max(*id);
    };
    before.ids.iter().for_each(|(table, id)| raise(table, *id));
    for ((run, _), task) in begun.iter().flat_map(|(_, begun)| begun) {
        raise("task_runs", *run);
        raise("scheduled_tasks", *task);
    }
    if let Some((_, known)) = knowledge.known {
        raise("task_runs", known.runs);
        raise("scheduled_tasks", known.tasks);
    }
    for run in knowledge.expected.iter().flat_map(|(_, claims)| claims.keys()) {
        raise("task_runs", *run);
    }
    for (table, id) in &ids {
        tx.execute(BEGIN_SEQUENCE, named_params! { ":table": table })?;
        tx.execute(RAISE, named_params! { ":table": table, ":id": id.saturating_add(MARGIN).min(i64::MAX / 2) })?;
    }
    let mut held = Held::default();
    for (owner, begun) in &begun {
        for ((run, attempt), task) in begun {
            if tx.query_row(HAS_TASK, named_params! { ":task": task }, |row| row.get(0))? {
                held.0.entry(owner.clone()).or_default().push((*run, *attempt, *task));
            }
        }
    }
    held.store(tx)?;
    set(tx, "history", Some(&id))?;
    set(tx, "restored", Some(&format!("history {id} begins after {}: {what}", seen.history.id)))?;
    let now = Seen::read(tx)?;
    let former = begun.into_iter().map(|(owner, _)| owner).chain(before.former).collect();
    let record = Record { former, file: knowledge.identity, ..Record::of(tx, &now)? };
    // Before the commit: if that fails, the file is found to be of another history than the record, and yet another one begins. Without
    // it the slots of the owners of before would look like those of this history.
    if folder::check_private(&owner_lock::folder(knowledge.database)).is_ok() {
        record.write(knowledge.database).map_err(|error| Error::store("begin a new history of the database", error))?;
    }
    Ok((now.history, now.ids))
}

const TAKE_RESTORED: &str = "DELETE FROM scheduler_meta WHERE key = 'restored' RETURNING value";

/// Records the event of a new history, if that is not done. The first scheduler that registers in it does.
pub(crate) fn report(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let detail: Option<String> = {
        let mut statement = tx.prepare_cached(TAKE_RESTORED)?;
        let mut rows = statement.query_map([], |row| row::shown(row, 0))?;
        rows.next().transpose()?
    };
    detail.map_or(Ok(()), |detail| owners::record(tx, now, "restored", None, None, Some(&detail)))
}

/// Attempts of an earlier history that may still run, by the owner that began them: run, attempt and task. Their tasks and the keys of
/// these start nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Held(BTreeMap<String, Vec<(i64, u32, i64)>>);

const KEY_OF: &str = "SELECT ifnull(concurrency_key, '#' || id) FROM scheduled_tasks WHERE id = :task";

impl Held {
    /// Parses the row. One that another program has changed holds nothing.
    pub(crate) fn parse(row: &str) -> Self {
        serde_json::from_str(row).unwrap_or_default()
    }

    fn store(&self, tx: &Transaction<'_>) -> rusqlite::Result<()> {
        let row = (!self.0.is_empty()).then(|| serde_json::to_string(&self).unwrap_or_default());
        set(tx, "held", row.as_deref())
    }

    /// Stores which attempts of its earlier ids an owner still has, and removes those of dead owners that are gone. Returns which tasks
    /// and keys start nothing now.
    pub(crate) fn update(
        mut self,
        tx: &Transaction<'_>,
        database: &Path,
        former: &[String],
        strays: &[Stray],
    ) -> rusqlite::Result<(BTreeSet<i64>, BTreeSet<String>)> {
        let before = self.clone();
        for owner in former {
            let left = strays.iter().filter(|stray| stray.owner == *owner);
            let left = left.map(|stray| (stray.run, stray.attempt, stray.task)).collect();
            self.0.insert(owner.clone(), left);
        }
        for (owner, attempts) in self.0.iter_mut().filter(|(owner, _)| !former.contains(owner)) {
            if matches!(owner_lock::standing(database, owner), Standing::Dead(_) | Standing::Missing) {
                attempts.retain(|(run, attempt, task)| {
                    let (run, attempt, task_id) = (*run, *attempt, *task);
                    let (task, handler, process) = (String::new(), String::new(), None);
                    let lost = Lost { run, attempt, task_id, task, handler, process };
                    matches!(lost.orphan(database).presence(), Presence::Alive | Presence::Unknown(_))
                });
            }
        }
        self.0.retain(|_, attempts| !attempts.is_empty());
        if self != before {
            self.store(tx)?;
        }
        let tasks: BTreeSet<i64> = self.0.values().flatten().map(|(_, _, task)| *task).collect();
        let mut keys = BTreeSet::new();
        for task in &tasks {
            let mut statement = tx.prepare_cached(KEY_OF)?;
            keys.extend(statement.query_row(named_params! { ":task": task }, |row| row::shown(row, 0)).optional()?);
        }
        Ok((tasks, keys))
    }
}
