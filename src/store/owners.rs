//! Who is alive, as far as the tables know; and the events that no run tells.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;

const REGISTER: &str = "
    INSERT INTO scheduler_instances (id, host, pid, version, workers, started_at, seen_at)
    VALUES (:owner, :host, :pid, :version, :workers, :now, :now)";

/// A new owner, whose lock is already held.
#[derive(Clone, Debug)]
pub(crate) struct Registration<'a> {
    pub(crate) owner: &'a str,
    pub(crate) host: &'a str,
    pub(crate) workers: usize,
}

pub(crate) fn register(tx: &Transaction<'_>, new: &Registration<'_>, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(REGISTER)?.execute(named_params! {
        ":owner": new.owner, ":host": new.host, ":pid": std::process::id(), ":version": env!("CARGO_PKG_VERSION"),
        ":workers": i64::try_from(new.workers).unwrap_or(i64::MAX), ":now": now,
    })?;
    Ok(())
}

const NEWEST_SEEN: &str = "SELECT max(seen_at) FROM scheduler_instances";

/// The newest wall time at which any owner was heard of.
pub(crate) fn newest_seen(tx: &Transaction<'_>) -> rusqlite::Result<Option<Timestamp>> {
    tx.prepare_cached(NEWEST_SEEN)?.query_row([], |row| row.get(0))
}

const REGISTERED: &str = "SELECT id FROM scheduler_instances";

/// Every owner that was ever registered and is not forgotten.
pub(crate) fn registered(tx: &Transaction<'_>) -> rusqlite::Result<HashSet<String>> {
    tx.prepare_cached(REGISTERED)?.query_map([], |row| row.get(0))?.collect()
}

/// One that was taken for dead, and goes on, has not left: tables are not changed under it.
const SEEN: &str = "UPDATE scheduler_instances SET seen_at = :now, stopped_at = NULL WHERE id = :owner";

const EXTEND: &str = "
    UPDATE task_runs INDEXED BY task_runs_running SET locked_until = :until
     WHERE status = 'running' AND locked_by = :owner";

/// Extends the lease of all of an owner's runs, in one statement; answers how many there are.
pub(crate) fn extend(tx: &Transaction<'_>, owner: &str, until: Timestamp, now: Timestamp) -> rusqlite::Result<usize> {
    tx.prepare_cached(SEEN)?.execute(named_params! { ":owner": owner, ":now": now })?;
    tx.prepare_cached(EXTEND)?.execute(named_params! { ":owner": owner, ":until": until })
}

const STOP: &str = "UPDATE scheduler_instances SET stopped_at = :now WHERE id = :owner AND stopped_at IS NULL";

/// Writes down that an owner has left, or is known to be dead.
pub(crate) fn stopped(tx: &Transaction<'_>, owner: &str, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(STOP)?.execute(named_params! { ":owner": owner, ":now": now })?;
    Ok(())
}

const STOP_ALL: &str = "UPDATE scheduler_instances SET stopped_at = :now WHERE stopped_at IS NULL";

const FORGET_PROCESSES: &str = "
    UPDATE task_runs INDEXED BY task_runs_running SET process = NULL WHERE status = 'running'";

/// Makes a copy nobody's: owners and processes are the original's. Answers how many runs were at work.
pub(crate) fn disown(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<usize> {
    tx.prepare_cached(STOP_ALL)?.execute(named_params! { ":now": now })?;
    tx.prepare_cached(FORGET_PROCESSES)?.execute([])
}

const OTHERS: &str = "
    SELECT locked_by, max(locked_until) FROM task_runs INDEXED BY task_runs_running
     WHERE status = 'running' AND locked_by <> :owner
     GROUP BY locked_by";

/// Other owners that have running runs, and the newest value of their lease.
pub(crate) fn others(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Vec<(String, Timestamp)>> {
    tx.prepare_cached(OTHERS)?
        .query_map(named_params! { ":owner": owner }, |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// An owner that is taken for dead.
#[derive(Clone, Debug)]
pub(crate) struct Dead {
    pub(crate) owner: String,
    pub(crate) proof: Proof,
}

/// Why it is.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// Its lock is ours. The attempts that its workers had begun, where its slots tell.
    Lock(Option<Arc<HashSet<(i64, u32)>>>),
    /// Its lease has stood still at this value. Whoever saw that may have slept since, and the owner not.
    Lease(Option<Timestamp>),
}

impl Dead {
    /// Whether this attempt never began. An attempt of which that cannot be known counts as begun.
    pub(crate) fn never_began(&self, lost: &Lost) -> bool {
        match &self.proof {
            Proof::Lock(Some(begun)) => !begun.contains(&(lost.run, lost.attempt)),
            Proof::Lock(None) | Proof::Lease(_) => false,
        }
    }
}

/// Whether the proof holds in the snapshot of this transaction.
pub(crate) fn is_dead(tx: &Transaction<'_>, observer: &str, dead: &Dead) -> rusqlite::Result<bool> {
    let Proof::Lease(seen) = dead.proof else { return Ok(true) };
    let now = others(tx, observer)?.into_iter().find(|(owner, _)| *owner == dead.owner).map(|(_, lease)| lease);
    Ok(now.is_some() && now == seen)
}

const NOT_STOPPED: &str = "
    SELECT id FROM scheduler_instances WHERE stopped_at IS NULL AND id <> :owner";

/// Other owners that have not left in order, as far as is known.
pub(crate) fn not_stopped(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Vec<String>> {
    tx.prepare_cached(NOT_STOPPED)?.query_map(named_params! { ":owner": owner }, |row| row.get(0))?.collect()
}

const STILL_CLAIMED: &str = "
    SELECT id FROM task_runs INDEXED BY task_runs_running WHERE status = 'running' AND locked_by = :owner";

/// Runs that an owner has.
pub(crate) fn claimed_by(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<HashSet<i64>> {
    tx.prepare_cached(STILL_CLAIMED)?.query_map(named_params! { ":owner": owner }, |row| row.get(0))?.collect()
}

/// A run whose owner is dead.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) run: i64,
    pub(crate) attempt: u32,
    pub(crate) task: String,
    pub(crate) handler: String,
    /// What was recorded of its command.
    pub(crate) process: Option<String>,
}

const LOST: &str = "
    SELECT r.id, r.attempt, t.name, r.handler, r.process
      FROM task_runs r INDEXED BY task_runs_running JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'running' AND r.locked_by = :owner LIMIT :limit";

/// Runs that a dead owner had.
pub(crate) fn lost(tx: &Transaction<'_>, owner: &str, limit: usize) -> rusqlite::Result<Vec<Lost>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let read = |row: &rusqlite::Row<'_>| {
        let (run, attempt, task, handler) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        Ok(Lost { run, attempt, task, handler, process: row.get(4)? })
    };
    tx.prepare_cached(LOST)?.query_map(named_params! { ":owner": owner, ":limit": limit }, read)?.collect()
}

const ANY_RUNNING: &str = "
    SELECT EXISTS (SELECT 1 FROM task_runs INDEXED BY task_runs_running WHERE status = 'running')";

/// Whether anybody has a running run.
pub(crate) fn any_running(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_RUNNING)?.query_row([], |row| row.get(0))
}

const ASKED_TO_STOP: &str = "
    SELECT id FROM task_runs INDEXED BY task_runs_running
     WHERE status = 'running' AND locked_by = :owner AND cancel_requested = 1";

/// Runs of an owner that somebody has asked to stop.
pub(crate) fn asked_to_stop(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Vec<i64>> {
    tx.prepare_cached(ASKED_TO_STOP)?.query_map(named_params! { ":owner": owner }, |row| row.get(0))?.collect()
}

/// The two above in one look, for every turn: each of them goes through all that is running.
const WATCHED: &str = "
    SELECT id, locked_by, locked_until FROM task_runs INDEXED BY task_runs_running
     WHERE status = 'running' AND (cancel_requested = 1 OR locked_by <> ?1)";

/// What an owner looks out for among all that is running.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// As [`asked_to_stop`].
    pub(crate) stop: Vec<i64>,
    /// As [`others`].
    pub(crate) others: Vec<(String, Timestamp)>,
}

pub(crate) fn watched(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Watched> {
    let Watched { mut stop, mut others } = Watched::default();
    let mut statement = tx.prepare_cached(WATCHED)?;
    let mut rows = statement.query([owner])?;
    while let Some(row) = rows.next()? {
        let by = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
        let until: Timestamp = row.get(2)?;
        if by == owner {
            stop.push(row.get(0)?);
        } else if let Some((_, newest)) = others.iter_mut().find(|(other, _)| other == by) {
            *newest = until.max(*newest);
        } else {
            others.push((by.to_owned(), until));
        }
    }
    others.sort_unstable();
    Ok(Watched { stop, others })
}

const RECORD: &str = "
    INSERT INTO scheduler_events (at, kind, task_id, run_id, detail) VALUES (:now, :kind, :task, :run, :detail)";

/// Writes down what happened that no run tells.
pub(crate) fn record(
    tx: &Transaction<'_>,
    now: Timestamp,
    kind: &str,
    task: Option<i64>,
    run: Option<i64>,
    detail: Option<&str>,
) -> rusqlite::Result<()> {
    tx.prepare_cached(RECORD)?.execute(named_params! {
        ":now": now, ":kind": kind, ":task": task, ":run": run, ":detail": detail,
    })?;
    Ok(())
}

const IS_RECORDED: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduler_events
                    WHERE task_id = :task AND kind = :kind AND detail = :detail AND at = :at)";

/// Whether such an event of a task was recorded at that instant.
pub(crate) fn is_recorded(
    tx: &Transaction<'_>,
    at: Timestamp,
    kind: &str,
    task: i64,
    detail: &str,
) -> rusqlite::Result<bool> {
    tx.prepare_cached(IS_RECORDED)?
        .query_row(named_params! { ":at": at, ":kind": kind, ":task": task, ":detail": detail }, |row| row.get(0))
}
