//! Owners and their leases, and events that belong to no run.

#[cfg(feature = "postgres")]
use std::collections::HashMap;
use std::collections::HashSet;
use std::time::Duration;

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::{Timestamp, millis};
use crate::host::{orphan, process};
use crate::model::event::Event;
use crate::model::finished::WorkerEnded;
use crate::store::sqlite::row;
use crate::store::turn_io::{ClockEvent, Dead, Lost, Other, Proof, Registration, Session, Stalled};

const REGISTER: &str = "
    INSERT INTO scheduler_instances (id, host, boot_id, pid, version, workers, lease_ms, started_at, seen_at, problems,
                                     zone_data)
    VALUES (:owner, :host, :boot_id, :pid, :version, :workers, :lease, :now, :now, :problems, :zone_data)";

pub(crate) fn register(tx: &Transaction<'_>, new: &Registration, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(REGISTER)?.execute(named_params! {
        ":owner": new.owner, ":host": new.host, ":pid": std::process::id(), ":version": env!("CARGO_PKG_VERSION"),
        ":workers": i64::try_from(new.workers).unwrap_or(i64::MAX), ":now": now,
        ":boot_id": process::boot_id().ok(), ":lease": millis(new.lease),
        ":problems": new.problems, ":zone_data": new.zone_data,
    })?;
    Ok(())
}

const NEWEST_SEEN: &str = "SELECT max(seen_at) FROM scheduler_instances";

/// Returns the newest heartbeat of any owner.
pub(crate) fn newest_seen(tx: &Transaction<'_>) -> rusqlite::Result<Option<Timestamp>> {
    tx.prepare_cached(NEWEST_SEEN)?.query_row([], |row| row.get(0))
}

const NOT_ENDED: &str = "
    SELECT i.id FROM scheduler_instances i
     WHERE i.stopped_at IS NULL
        OR EXISTS (SELECT 1 FROM task_runs r INDEXED BY task_runs_running WHERE r.status = 'running' AND r.locked_by = i.id)";

/// Returns every registered owner that is not known to have stopped, or has running runs.
pub(crate) fn not_ended(tx: &Transaction<'_>) -> rusqlite::Result<HashSet<String>> {
    tx.prepare_cached(NOT_ENDED)?.query_map([], |row| row::shown(row, 0))?.collect()
}

const IS_BELIEVED: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduler_instances
                    WHERE id = :owner AND stopped_at IS NULL AND boot_id IS :boot_id
                      AND seen_at <= :now AND seen_at > :now - lease_ms)";

/// Returns whether an owner of this boot of the machine has sent a heartbeat within its lease. A heartbeat in the future was
/// written by a wrong clock, and does not count.
pub(crate) fn is_believed(tx: &Transaction<'_>, owner: &str, now: Timestamp) -> rusqlite::Result<bool> {
    let boot = process::boot_id().ok();
    tx.prepare_cached(IS_BELIEVED)?
        .query_row(named_params! { ":owner": owner, ":boot_id": boot, ":now": now }, |row| row.get(0))
}

/// Clears `stopped_at`: an owner that counted as dead and continues is running, and tables are not migrated while it runs.
const SEEN: &str = "
    UPDATE scheduler_instances SET seen_at = :now, stopped_at = NULL, problems = :problems WHERE id = :owner";

const EXTEND: &str = "
    UPDATE task_runs INDEXED BY task_runs_running SET locked_until = :until
     WHERE status = 'running' AND locked_by = :owner";

/// Extends the lease of all of an owner's runs, in one statement. Returns how many there are. Registers an owner again whose
/// row is gone: it counted as dead, and its row expired or was removed.
pub(crate) fn extend(
    tx: &Transaction<'_>,
    registration: &Registration,
    until: Timestamp,
    now: Timestamp,
) -> rusqlite::Result<usize> {
    let owner = &registration.owner;
    let seen = named_params! { ":owner": owner, ":now": now, ":problems": registration.problems };
    if tx.prepare_cached(SEEN)?.execute(seen)? == 0 {
        register(tx, registration, now)?;
    }
    tx.prepare_cached(EXTEND)?.execute(named_params! { ":owner": owner, ":until": until })
}

#[cfg(feature = "postgres")]
#[cfg(feature = "postgres")]
const OWNER_SESSIONS: &str = "
    CREATE TEMP TABLE owner_sessions (owner TEXT PRIMARY KEY, session INTEGER NOT NULL) STRICT, WITHOUT ROWID";

/// Creates the table for what the sessions of owners show, in the memory of a store on a server. Not within its transactions: they are
/// rolled back, and SQLite prepares every statement again after a change of the schema.
#[cfg(feature = "postgres")]
pub(crate) fn create_sessions(memory: &rusqlite::Connection) -> rusqlite::Result<()> {
    memory.execute_batch(OWNER_SESSIONS)
}

/// Sets what the sessions of owners show, in the tables in memory of a store on a server.
#[cfg(feature = "postgres")]
pub(crate) fn show_sessions(tx: &Transaction<'_>, sessions: &HashMap<String, Session>) -> rusqlite::Result<()> {
    if sessions.is_empty() {
        return Ok(());
    }
    tx.prepare_cached("DELETE FROM temp.owner_sessions")?.execute([])?;
    for (owner, session) in sessions {
        let insert = "INSERT INTO temp.owner_sessions VALUES (?1, ?2)";
        tx.prepare_cached(insert)?.execute(rusqlite::params![owner, number(*session)])?;
    }
    Ok(())
}

const HAS_SESSIONS: &str = "SELECT EXISTS (SELECT 1 FROM temp.sqlite_schema WHERE name = 'owner_sessions')";
const SESSION: &str = "SELECT session FROM temp.owner_sessions WHERE owner = ?1";

/// Returns what the session of an owner shows, if that was looked at.
pub(crate) fn session(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Session> {
    if !tx.prepare_cached(HAS_SESSIONS)?.query_row([], |row| row.get(0))? {
        return Ok(Session::None);
    }
    let shown: Option<i64> = tx.prepare(SESSION)?.query_row([owner], |row| row.get(0)).optional()?;
    Ok(shown.map_or(Session::None, |number| match number {
        held if held & HELD != 0 => Session::Held { here: held & HERE != 0 },
        free => Session::Free { here: free & HERE != 0, passed: free & PASSED != 0 },
    }))
}

const HERE: i64 = 1;
const PASSED: i64 = 2;
const HELD: i64 = 4;

#[cfg(feature = "postgres")]
fn number(session: Session) -> i64 {
    match session {
        Session::None => HELD,
        Session::Held { here } => i64::from(here) * HERE + HELD,
        Session::Free { here, passed } => i64::from(here) * HERE + i64::from(passed) * PASSED,
    }
}

const STOP: &str = "UPDATE scheduler_instances SET stopped_at = :now WHERE id = :owner AND stopped_at IS NULL";

/// Records that an owner shut down, or is known to be dead.
pub(crate) fn stopped(tx: &Transaction<'_>, owner: &str, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(STOP)?.execute(named_params! { ":owner": owner, ":now": now })?;
    Ok(())
}

const STOP_ALL: &str = "UPDATE scheduler_instances SET stopped_at = :now WHERE stopped_at IS NULL";

const FORGET_PROCESSES: &str = "
    UPDATE task_runs INDEXED BY task_runs_running SET process = NULL WHERE status = 'running'";

/// Detaches a copy from the owners and processes of its original. Returns how many runs were running.
pub(crate) fn disown(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<usize> {
    tx.prepare_cached(STOP_ALL)?.execute(named_params! { ":now": now })?;
    tx.prepare_cached(FORGET_PROCESSES)?.execute([])
}

const OTHERS: &str = "
    SELECT locked_by, max(locked_until) FROM task_runs INDEXED BY task_runs_running
     WHERE status = 'running' AND locked_by <> :owner
     GROUP BY locked_by";

/// Returns the other owners that have running runs.
pub(crate) fn others(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Vec<Other>> {
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Other { owner: row::shown(row, 0)?, until: row.get(1)?, lease: Duration::ZERO, session: Session::None })
    };
    let mut others: Vec<Other> =
        tx.prepare_cached(OTHERS)?.query_map(named_params! { ":owner": owner }, read)?.collect::<Result<_, _>>()?;
    with_leases(tx, &mut others)?;
    Ok(others)
}

const LEASE: &str = "SELECT lease_ms FROM scheduler_instances WHERE id = :owner";

fn with_leases(tx: &Transaction<'_>, others: &mut [Other]) -> rusqlite::Result<()> {
    for other in others {
        let lease = tx
            .prepare_cached(LEASE)?
            .query_row(named_params! { ":owner": other.owner }, |row| row::millis_at(row, 0))
            .optional()?;
        other.lease = lease.flatten().unwrap_or_default();
    }
    Ok(())
}

const IS_SILENT: &str = "
    SELECT EXISTS (SELECT 1 FROM scheduler_instances WHERE id = :owner AND seen_at = :seen AND stopped_at IS NULL)
       AND NOT EXISTS (SELECT 1 FROM task_runs INDEXED BY task_runs_running
                        WHERE status = 'running' AND locked_by = :owner)";

/// Returns whether the proof of an owner's death is still valid in the snapshot of this transaction.
pub(crate) fn is_dead(tx: &Transaction<'_>, observer: &str, dead: &Dead) -> rusqlite::Result<bool> {
    let seen = match dead.proof {
        Proof::Lock(_) | Proof::Restored => return Ok(true),
        Proof::Silence(seen) => {
            let named = named_params! { ":owner": dead.owner, ":seen": seen };
            return tx.prepare_cached(IS_SILENT)?.query_row(named, |row| row.get(0));
        }
        Proof::Lease(seen) => seen,
    };
    let now = others(tx, observer)?.into_iter().find(|other| other.owner == dead.owner).map(|other| other.until);
    Ok(now.is_some() && now == seen)
}

/// With the time of the newest record of the same stall. A new stall begins after a newer heartbeat.
const STALLED: &str = "
    SELECT i.pid, i.host,
           (SELECT max(e.at) FROM scheduler_events e
             WHERE e.kind = 'owner_stalled' AND e.at >= i.seen_at AND e.detail GLOB i.id || ': *'),
           (SELECT o.started_at FROM scheduler_instances o WHERE o.id = :observer)
      FROM scheduler_instances i
     WHERE i.id = :owner
       AND :until = (SELECT max(r.locked_until) FROM task_runs r INDEXED BY task_runs_running
                      WHERE r.status = 'running' AND r.locked_by = :owner)";

/// Records that an owner is stalled, unless that is recorded or its lease has been extended meanwhile. Returns the event to
/// emit: none for a stall that was recorded before the observer started.
pub(crate) fn stalled(
    tx: &Transaction<'_>,
    observer: &str,
    stalled: &Stalled,
    now: Timestamp,
) -> rusqlite::Result<Option<Event>> {
    let Stalled { owner, until } = stalled;
    let params = named_params! { ":owner": owner, ":observer": observer, ":until": until };
    let read = |row: &rusqlite::Row<'_>| {
        let (recorded, started): (Option<Timestamp>, Option<Timestamp>) = (row.get(2)?, row.get(3)?);
        Ok((row::saturating(row, 0)?, row::shown(row, 1)?, recorded, started))
    };
    let found = tx.prepare_cached(STALLED)?.query_row(params, read).optional()?;
    let Some((pid, host, recorded, started)) = found else { return Ok(None) };
    if recorded.is_none() {
        let detail = format!("{owner}: pid {pid} on {host}, lease ended at {until}");
        record(tx, now, "owner_stalled", None, None, Some(&detail))?;
    }
    let event = Event::OwnerStalled { owner: owner.clone(), pid, host, until: *until };
    Ok(Some(event).filter(|_| recorded.is_none() || recorded >= started))
}

const MOVE_STARTS: &str = "
    UPDATE task_runs INDEXED BY task_runs_running
       SET started_at = max(min(started_at + :by, 64060588800000), 1000000000000)
     WHERE status = 'running' AND locked_by = :owner";

/// Moves the starts of an owner's running attempts by a step of the wall clock, so that the time since the start stays their
/// running time, by which other processes see that they exceed their timeout.
pub(crate) fn move_starts(tx: &Transaction<'_>, owner: &str, by: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(MOVE_STARTS)?.execute(named_params! { ":owner": owner, ":by": by })?;
    Ok(())
}

/// As [`move_starts`], for one run.
pub(crate) fn move_start(tx: &Transaction<'_>, owner: &str, run: i64, by: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(&format!("{MOVE_STARTS} AND id = :run"))?
        .execute(named_params! { ":owner": owner, ":run": run, ":by": by })?;
    Ok(())
}

const NOT_STOPPED: &str = "
    SELECT id, seen_at, lease_ms FROM scheduler_instances WHERE stopped_at IS NULL AND id <> :owner";

/// Returns other owners that are not known to have shut down, with the time of their last heartbeat.
pub(crate) fn not_stopped(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Vec<Other>> {
    let read = |row: &rusqlite::Row<'_>| {
        let lease = row::millis_at(row, 2)?.unwrap_or_default();
        Ok(Other { owner: row::shown(row, 0)?, until: row.get(1)?, lease, session: Session::None })
    };
    tx.prepare_cached(NOT_STOPPED)?.query_map(named_params! { ":owner": owner }, read)?.collect()
}

const STILL_CLAIMED: &str = "
    SELECT id FROM task_runs INDEXED BY task_runs_running WHERE status = 'running' AND locked_by = :owner";

/// Returns the running runs of an owner.
pub(crate) fn claimed_by(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<HashSet<i64>> {
    tx.prepare_cached(STILL_CLAIMED)?.query_map(named_params! { ":owner": owner }, |row| row.get(0))?.collect()
}

const RUNNING: &str = "SELECT id, attempt FROM task_runs INDEXED BY task_runs_running WHERE status = 'running'";

/// Returns all running runs, with the number of their attempt.
pub(crate) fn running(tx: &Transaction<'_>) -> rusqlite::Result<HashSet<(i64, u32)>> {
    tx.prepare_cached(RUNNING)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

const LOST: &str = "
    SELECT r.id, r.attempt, t.name, r.handler, r.process, t.id
      FROM task_runs r INDEXED BY task_runs_running JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'running' AND r.locked_by = :owner";

/// Returns the running runs of a dead owner.
pub(crate) fn lost(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Vec<Lost>> {
    let read = |row: &rusqlite::Row<'_>| {
        let (run, attempt, task, handler) = (row.get(0)?, row.get(1)?, row::shown(row, 2)?, row::shown(row, 3)?);
        Ok(Lost { run, attempt, task_id: row.get(5)?, task, handler, process: row::shown_if_any(row, 4)? })
    };
    tx.prepare_cached(LOST)?.query_map(named_params! { ":owner": owner }, read)?.collect()
}

const ANY_RUNNING: &str = "
    SELECT EXISTS (SELECT 1 FROM task_runs INDEXED BY task_runs_running WHERE status = 'running')";

/// Returns whether any owner has a running run.
pub(crate) fn any_running(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_RUNNING)?.query_row([], |row| row.get(0))
}

const ASKED_TO_STOP: &str = "
    SELECT id FROM task_runs INDEXED BY task_runs_running
     WHERE status = 'running' AND locked_by = :owner AND cancel_requested = 1";

/// Returns the running runs of an owner for which a stop is requested.
pub(crate) fn asked_to_stop(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Vec<i64>> {
    tx.prepare_cached(ASKED_TO_STOP)?.query_map(named_params! { ":owner": owner }, |row| row.get(0))?.collect()
}

/// [`ASKED_TO_STOP`] and [`OTHERS`] in one statement, for every turn: each of them reads all running runs.
const WATCHED: &str = "
    SELECT id, locked_by, locked_until, iif(cancel_requested = 1, process, NULL)
      FROM task_runs INDEXED BY task_runs_running
     WHERE status = 'running' AND (cancel_requested = 1 OR locked_by <> ?1)";

/// What an owner reads of all running runs.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// As [`asked_to_stop`].
    pub(crate) stop: Vec<i64>,
    /// As [`others`].
    pub(crate) others: Vec<Other>,
    /// Runs of other owners whose command a user has declared gone.
    pub(crate) declared_gone: Vec<i64>,
}

pub(crate) fn watched(tx: &Transaction<'_>, owner: &str) -> rusqlite::Result<Watched> {
    let Watched { mut stop, mut others, mut declared_gone } = Watched::default();
    let mut statement = tx.prepare_cached(WATCHED)?;
    let mut rows = statement.query([owner])?;
    while let Some(row) = rows.next()? {
        let by = row.get_ref(1)?.as_bytes().map_err(rusqlite::Error::from)?;
        let by = String::from_utf8_lossy(by);
        let until: Timestamp = row.get(2)?;
        if by == owner {
            stop.push(row.get(0)?);
            continue;
        }
        if row.get_ref(3)?.as_str().is_ok_and(orphan::is_declaration) {
            declared_gone.push(row.get(0)?);
        }
        if let Some(other) = others.iter_mut().find(|other| other.owner == by) {
            other.until = until.max(other.until);
        } else {
            others.push(Other { owner: by.into_owned(), until, lease: Duration::ZERO, session: Session::None });
        }
    }
    with_leases(tx, &mut others)?;
    others.sort_unstable();
    Ok(Watched { stop, others, declared_gone })
}

/// The kind of event by which `check` finds workers that ended.
const WORKER_ENDED: &str = "worker_ended";

const RECORD: &str = "
    INSERT INTO scheduler_events (at, kind, task_id, run_id, detail) VALUES (:now, :kind, :task, :run, :detail)";

/// Records an event that belongs to no run.
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

/// Records an event of the wall clock.
pub(crate) fn clock_event(tx: &Transaction<'_>, event: &ClockEvent) -> rusqlite::Result<()> {
    record(tx, event.at, event.kind, None, None, Some(&event.detail))
}

/// Records that a worker of an owner ended: `<owner>: <error>`.
pub(crate) fn worker_ended(
    tx: &Transaction<'_>,
    owner: &str,
    worker: &WorkerEnded,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let claim = worker.at_work.claim.as_ref();
    let (task, run) = claim.map(|claim| (claim.task_id, claim.run_id)).unzip();
    record(tx, now, WORKER_ENDED, task, run, Some(&format!("{owner}: {}", worker.error)))
}
