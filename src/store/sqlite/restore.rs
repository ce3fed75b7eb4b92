//! A history that went back: the file was restored through SQLite, to an earlier state of it or to another database.
//!
//! A restore changes the schema cookie of the file, as a VACUUM and a change of any table do. So each transaction that writes compares
//! the cookie and the id of the history with those that its connection knows. If they differ, the file is compared with what is known
//! of it: the record beside the file, the attempts in the slots of lock files, and what the process and the owner know. The first that
//! finds that the file went back begins a new history: another id, and ids of rows above all that were ever given out. All owners obey it.

pub(crate) mod held;
pub(crate) mod record;
pub(crate) mod seen;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::host::attempt_slots::{BegunAttempts, ClaimedAttempt};
use crate::host::{folder, halting, owner_lock};
use crate::store::fault::Fault;
use crate::store::sqlite::restore::held::HeldBack;
use crate::store::sqlite::restore::record::HistoryRecord;
use crate::store::sqlite::restore::seen::{HighestIds, History, Seen, is_ahead, set};
use crate::store::sqlite::{owners, row};

/// How far the ids of a new history are above the highest that is known. The record beside the file may be behind by half of that.
pub(crate) const MARGIN: i64 = 10_000;

/// The attempts that an owner knows to have, by the run.
pub(crate) type Claims = BTreeMap<i64, ClaimedAttempt>;

/// What a connection compares a file with.
#[derive(Clone, Copy)]
pub(crate) struct Knowledge<'a> {
    /// The file that the lock files and the record are beside.
    pub(crate) database: &'a Path,
    /// Of this connection, since its first transaction.
    pub(crate) known: Option<(&'a History, HighestIds)>,
    /// The highest ids that connections of this process have given out or found in the history that the file has.
    pub(crate) given_out: HighestIds,
    /// The owner that registers, and has no claims yet.
    pub(crate) registering: Option<&'a str>,
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
    /// As [`Compared::WentBack`], while the machine started again and nothing of before can run: a crash of the machine has lost the
    /// last commits, or a copy was put in place. The history goes on, above the ids that were given out.
    LostCommits(String),
}

const RUNNING: &str = "
    SELECT id, attempt FROM task_runs INDEXED BY task_runs_running WHERE status = 'running' AND locked_by = :owner";

impl Knowledge<'_> {
    /// Compares the file with what is known of it.
    pub(crate) fn compare(&self, tx: &Transaction<'_>, seen: &Seen) -> rusqlite::Result<Compared> {
        let record = HistoryRecord::read(self.database);
        let now = HistoryRecord::of(tx, seen, self.database)?;
        if self.known.is_none() && self.is_another_database(seen, record.as_ref(), &now) {
            return Ok(Compared::GoesOn);
        }
        let back = |what: String| Ok(Compared::WentBack(what));
        let nothing_runs = || self.known.is_none() && !self.any_runs();
        if let Some(record) = &record
            && let Some(what) = record.contradicts(&now, nothing_runs())
        {
            let lost = record.is_of_another_boot(&now) && nothing_runs();
            return if lost { Ok(Compared::LostCommits(what)) } else { back(what) };
        }
        let former = record.map(|record| record.former).unwrap_or_default();
        let begun = owner_lock::begun(self.database).into_iter().filter(|(owner, _)| !former.contains(owner));
        for ((run, attempt), _) in begun.flat_map(|(_, begun)| begun) {
            if is_ahead(tx, (run, attempt), seen.ids.runs)? {
                return back(format!("it does not have attempt {attempt} of run {run}"));
            }
        }
        // What is known of an earlier history is no evidence.
        let known = self.known.filter(|(known, _)| known.id == seen.history.id);
        let ids = known.map_or(self.given_out, |(_, ids)| self.given_out.max(ids));
        if seen.ids.runs < ids.runs || seen.ids.tasks < ids.tasks {
            return back(format!("it had run {} and task {}", ids.runs, ids.tasks));
        }
        match self.expected.filter(|_| known.is_some()) {
            Some((owner, claims)) => has_other_claims(tx, owner, claims, seen),
            None => Ok(Compared::GoesOn),
        }
    }

    /// Returns whether the record is that of another database, which was at this path before: then the file is a new one.
    fn is_another_database(&self, seen: &Seen, record: Option<&HistoryRecord>, now: &HistoryRecord) -> bool {
        let Some(record) = record.filter(|record| record.history() != seen.history.id) else { return false };
        if record.is_of_another_file(now) {
            return !self.any_runs();
        }
        let is_other = |owner: &str| self.registering != Some(owner) && owner_lock::is_alive(self.database, owner);
        seen.ids == HighestIds::default() && !owner_lock::begun(self.database).iter().any(|(owner, _)| is_other(owner))
    }

    /// Returns whether a living owner has begun an attempt, or may have.
    fn any_runs(&self) -> bool {
        let has_begun =
            |(owner, begun): &(String, BegunAttempts)| !begun.is_empty() && owner_lock::is_alive(self.database, owner);
        owner_lock::begun(self.database).iter().any(has_begun)
    }
}

/// Compares the attempts of an owner with its running rows, as sets.
fn has_other_claims(tx: &Transaction<'_>, owner: &str, claims: &Claims, seen: &Seen) -> rusqlite::Result<Compared> {
    let claimed = |run: &i64| claims.get(run).map(|claimed| claimed.attempt);
    if let Some((run, attempt)) = running(tx, owner)?.into_iter().find(|(run, attempt)| claimed(run) != Some(*attempt))
    {
        return Ok(Compared::WentBack(format!("attempt {attempt} of run {run} is running again")));
    }
    for ClaimedAttempt { run, attempt, .. } in claims.values() {
        if is_ahead(tx, (*run, *attempt), seen.ids.runs)? {
            return Ok(Compared::WentBack(format!("it does not have attempt {attempt} of run {run}")));
        }
    }
    Ok(Compared::GoesOn)
}

/// Fails if an owner has a claim that is not among its running rows: it is of another history, or was taken over.
pub(crate) fn check_claims(tx: &Transaction<'_>, database: &Path, owner: &str, claims: &Claims) -> Result<(), Fault> {
    let rows = running(tx, owner)?;
    match claims.values().all(|claimed| rows.get(&claimed.run) == Some(&claimed.attempt)) {
        true => Ok(()),
        false => Err(ended(database)),
    }
}

/// Returns the running attempts of an owner, by run.
fn running(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<HashMap<i64, u32>> {
    let mut running = tx.prepare_cached(RUNNING)?;
    running.query_map(named_params! { ":owner": owner }, |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Returns the fault of a write for a claim of a history that has ended.
pub(crate) fn ended(path: &Path) -> Fault {
    let reason = format!("{} was restored from a copy: what was begun before counts as lost", path.display());
    Fault::Restored(Error::store("write for a run", reason))
}

const RAISE: &str = "UPDATE sqlite_sequence SET seq = :id WHERE name = :table AND seq < :id";

const BEGIN_SEQUENCE: &str = "
    INSERT INTO sqlite_sequence (name, seq) SELECT :table, 0
     WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :table)";

const NEW_ID: &str = "SELECT lower(hex(randomblob(16)))";

/// Begins a new history. The caller commits it before it writes anything else.
///
/// What the schedulers of the history before had begun may still run: its tasks are held until their owners say that it has ended. What
/// they had claimed and not begun, they do not begin any more.
pub(crate) fn begin(tx: &Transaction<'_>, knowledge: &Knowledge<'_>, seen: &Seen, what: &str) -> Result<(), Fault> {
    let id: String = tx.query_row(NEW_ID, [], |row| row.get(0))?;
    let begun = halting::halt_all(knowledge.database, knowledge.registering)
        .map_err(|error| Error::store("look for schedulers", error))?;
    let before = HistoryRecord::read(knowledge.database).unwrap_or_default();
    let attempts: Vec<ClaimedAttempt> =
        begun.iter().filter_map(|(_, begun)| begun.as_ref()).flat_map(|begun| begun.values().copied()).collect();
    raise_ids(tx, knowledge, seen, &before, &attempts)?;
    HeldBack::of(&begun).store(tx)?;
    set(tx, "history", Some(&id))?;
    let after = if seen.history.id.is_empty() { String::new() } else { format!(" after {}", seen.history.id) };
    set(tx, "restored", Some(&format!("history {id} begins{after}: {what}")))?;
    let former = begun.into_iter().map(|(owner, _)| owner).chain(before.former).collect();
    // Before the commit: if that fails, the file is found to be of another history than the record, and yet another one begins. Without
    // it the slots of the owners of before would look like those of this history.
    write_record(tx, knowledge, |record| record.former = former)
}

/// Goes on in the same history, above all ids that were given out. The caller commits it before it writes anything else.
pub(crate) fn go_on(tx: &Transaction<'_>, knowledge: &Knowledge<'_>, seen: &Seen, what: &str) -> Result<(), Fault> {
    let before = HistoryRecord::read(knowledge.database).unwrap_or_default();
    raise_ids(tx, knowledge, seen, &before, &[])?;
    let text =
        format!("the last commits were lost when the machine went down, or a copy was put in place then: {what}");
    set(tx, "restored", Some(&text))?;
    write_record(tx, knowledge, |record| record.former = before.former)
}

/// Writes the record of what a transaction has written.
fn write_record(
    tx: &Transaction<'_>,
    knowledge: &Knowledge<'_>,
    complete: impl FnOnce(&mut HistoryRecord),
) -> Result<(), Fault> {
    let now = Seen::read(tx)?;
    let mut record = HistoryRecord::of(tx, &now, knowledge.database)?;
    complete(&mut record);
    if folder::check_private(&owner_lock::folder(knowledge.database)).is_ok() {
        let doing = "write the record beside the database";
        record.write(knowledge.database).map_err(|error| Error::store(doing, error))?;
    }
    Ok(())
}

/// Raises the sequences of ids above all that are known to have been given out.
fn raise_ids(
    tx: &Transaction<'_>,
    knowledge: &Knowledge<'_>,
    seen: &Seen,
    before: &HistoryRecord,
    begun: &[ClaimedAttempt],
) -> rusqlite::Result<()> {
    let mut ids: BTreeMap<String, i64> = HistoryRecord::of(tx, seen, knowledge.database)?.ids;
    let mut raise = |table: &str, to: i64| {
        let id = ids.entry(table.to_owned()).or_default();
        *id = to.max(*id);
    };
    before.ids.iter().for_each(|(table, id)| raise(table, *id));
    let claims = knowledge.expected.iter().flat_map(|(_, claims)| claims.values());
    for claimed in begun.iter().chain(claims) {
        raise("task_runs", claimed.run);
        raise("scheduled_tasks", claimed.task);
    }
    let known = knowledge.known.map_or(knowledge.given_out, |(_, ids)| knowledge.given_out.max(ids));
    raise("task_runs", known.runs);
    raise("scheduled_tasks", known.tasks);
    for (table, id) in &ids {
        tx.execute(BEGIN_SEQUENCE, named_params! { ":table": table })?;
        tx.execute(RAISE, named_params! { ":table": table, ":id": id.saturating_add(MARGIN).min(i64::MAX / 2) })?;
    }
    Ok(())
}

const TAKE_RESTORED: &str = "DELETE FROM scheduler_meta WHERE key = 'restored' RETURNING value";

/// Records the event of a file that went back, if that is not done. The first scheduler that registers in it does.
pub(crate) fn report(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let detail: Option<String> = {
        let mut statement = tx.prepare_cached(TAKE_RESTORED)?;
        let mut rows = statement.query_map([], |row| row::shown(row, 0))?;
        rows.next().transpose()?
    };
    detail.map_or(Ok(()), |detail| owners::record(tx, now, "restored", None, None, Some(&detail)))
}
