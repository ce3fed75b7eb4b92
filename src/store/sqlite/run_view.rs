//! Reads one run with all that belongs to it, and what it waits for.

use std::path::Path;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::report::Instance;
use crate::model::run::{Attempt, Run, RunStatus};
use crate::model::task::{Task, TaskStatus};
use crate::model::views::{Other, RunView, WaitsFor};
use crate::rules::placement::Reason;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::limits::InForce;
use crate::store::sqlite::row::{Raw, raw};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::starts::{self, Subject};
use crate::store::sqlite::{effects, followers, health, history, limits, row, runs, tasks};

/// A run that has been due for less is about to start.
const SETTLED: Duration = Duration::from_secs(10);

/// Returns a run with its attempts, effects and retries, and why it has not started. Reads a bounded number of rows.
pub(super) fn run_view(store: &mut SqliteStore, run: i64, now: Timestamp) -> Result<Option<RunView>> {
    let file = store.path().to_owned();
    store.read("look a run up", |tx, _| {
        let Some(found) = history::run(tx, run)? else { return Ok(None) };
        let (task, key) = task_and_key(tx, run)?;
        let Some(task) = tasks::by_id(tx, task)? else { return Ok(None) };
        let mut attempts = newest_attempts(tx, run)?;
        let has_older_attempts = attempts.len() > RunView::MAX_LISTED;
        attempts.truncate(RunView::MAX_LISTED);
        attempts.reverse();
        let first = runs::ending(tx, run, now)?.map_or(run, |claim| claim.first_id());
        let mut effects = effects::of_chain(tx, first)?;
        effects.truncate(RunView::MAX_LISTED);
        let waiting = matches!(found.status, RunStatus::Queued | RunStatus::Failed);
        let waits = if waiting { waits_for(tx, &file, (&found, &task, &key), now)? } else { Vec::new() };
        let owner = match &found.locked_by {
            Some(owner) => health::instances(tx, &file)?.into_iter().find(|one| one.id == *owner),
            None => None,
        };
        let (retries, followers) = (retries(tx, task.id, run)?, followers::following(tx, (run, task.id))?);
        Ok(Some(RunView { run: found, task, attempts, has_older_attempts, effects, retries, followers, waits, owner }))
    })
}

const TASK_AND_KEY: &str = "SELECT task_id, concurrency_key FROM task_runs WHERE id = :run";

/// Returns the id of a run's task, and the key of the run as it is stored: a name or a key need not be UTF-8.
fn task_and_key(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<(i64, Raw)> {
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, Option<Raw>>(1)?.unwrap_or_default()));
    tx.prepare_cached(TASK_AND_KEY)?.query_row(named_params! { ":run": run }, read)
}

const NEWEST_ATTEMPTS: &str = sql! {"
    SELECT {attempt_columns} FROM task_attempts INDEXED BY task_attempts_of_run
     WHERE run_id = :run ORDER BY attempt DESC, id DESC LIMIT :limit"};

/// Returns the newest attempts of a run, newest first, one more than are listed if there are more.
fn newest_attempts(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<Vec<Attempt>> {
    let limit = RunView::MAX_LISTED as i64 + 1;
    row::all(tx, NEWEST_ATTEMPTS, named_params! { ":run": run, ":limit": limit }, row::attempt)
}

const RETRIES: &str = "
    SELECT id, status FROM task_runs INDEXED BY task_runs_retried
     WHERE task_id = :task AND retry_of = :run ORDER BY id LIMIT :limit";

fn retries(tx: &Transaction<'_>, task: i64, run: i64) -> rusqlite::Result<Vec<(i64, RunStatus)>> {
    let params = named_params! { ":task": task, ":run": run, ":limit": RunView::MAX_LISTED as i64 };
    // A retry whose status no version of duly stores is left out: only another program writes it.
    let read = |row: &Row<'_>| {
        let status = row::shown_if_any(row, 1)?.as_deref().and_then(RunStatus::parse);
        Ok((row.get(0)?, status))
    };
    let found = row::all(tx, RETRIES, params, read)?.into_iter();
    Ok(found.filter_map(|(id, status)| Some((id, status?))).collect())
}

/// Returns why a waiting run has not started: first what is stored, then what holds for every run that may start.
fn waits_for(
    tx: &Transaction<'_>,
    file: &Path,
    (run, task, key): (&Run, &Task, &Raw),
    now: Timestamp,
) -> rusqlite::Result<Vec<WaitsFor>> {
    let mut waits = Vec::new();
    if run.cancel_requested {
        waits.push(WaitsFor::Cancellation);
    }
    match run.blocked.as_deref().map(|stored| (stored, Reason::parse(stored))) {
        Some((_, Some(Reason::Paused))) if task.status == TaskStatus::Invalid => {
            waits.push(WaitsFor::Invalid { reason: task.invalid_reason.clone() });
        }
        Some((_, Some(Reason::Paused))) => waits.push(WaitsFor::Paused { by: task.paused_by.clone() }),
        Some((_, Some(Reason::Order))) => waits.push(WaitsFor::Older(older(tx, task.id, run)?)),
        Some((_, Some(Reason::Starts))) => {
            let until = starts::closed_until(tx, &Subject::task(task.id))?;
            waits.push(WaitsFor::Starts { key: None, until });
        }
        Some((_, Some(Reason::Key))) => waits.push(behind_key(tx, run, key)?),
        Some((stored, None)) => waits.push(WaitsFor::Unknown { stored: stored.to_owned() }),
        None => {}
    }
    if run.run_at > now {
        waits.push(WaitsFor::Time(run.run_at));
    }
    if let Some(until) = InForce::read(tx)?.opens_at(tx, &run.handler)?.filter(|until| *until > now) {
        waits.push(WaitsFor::Rate { handler: run.handler.clone(), until });
    }
    // A clock that is behind delays schedules only, unless it is not set.
    if let Some(clock) = health::clock_wait(tx, now)?.filter(|clock| clock.waiting.is_none()) {
        waits.push(WaitsFor::Clock(clock));
    }
    let instances = health::instances(tx, file)?;
    waits.extend(of_the_schedulers(tx, &instances, run, now, waits.is_empty())?);
    Ok(waits)
}

/// Returns why no scheduler starts a run. `may_start`: whether nothing else keeps it.
fn of_the_schedulers(
    tx: &Transaction<'_>,
    instances: &[Instance],
    run: &Run,
    now: Timestamp,
    may_start: bool,
) -> rusqlite::Result<Option<WaitsFor>> {
    let alive: Vec<&Instance> = instances.iter().filter(|one| one.alive == Some(true)).collect();
    if alive.is_empty() {
        let doubt = instances.iter().find_map(|one| one.doubt.clone().filter(|_| one.alive.is_none()));
        return Ok(Some(doubt.map_or(WaitsFor::NoScheduler, |doubt| WaitsFor::UnknownScheduler { doubt })));
    }
    if alive.iter().all(|one| one.degraded) {
        return Ok(Some(WaitsFor::Degraded));
    }
    if !may_start {
        return Ok(None);
    }
    let mut any_free = false;
    for one in &alive {
        any_free |= health::at_work(tx, &one.id)? < one.workers;
    }
    if !any_free {
        let workers = alive.iter().map(|one| u64::from(one.workers)).sum();
        return Ok(Some(WaitsFor::Workers { workers, busy_with: others(tx, RUNNING, None)? }));
    }
    let due_for = now.since(run.run_at);
    let handler = || WaitsFor::Handler { handler: run.handler.clone(), due_for };
    Ok(Some(if due_for > SETTLED { handler() } else { WaitsFor::NextTurn }))
}

const OLDER: &str = sql! {"
    SELECT o.id, t.name, o.status
      FROM task_runs o INDEXED BY task_runs_unfinished JOIN scheduled_tasks t ON t.id = o.task_id
     WHERE o.task_id = :task AND o.scheduled_for < :at AND o.id <> :run AND {unfinished:o} AND {unscheduled_id:o} = 0
     ORDER BY o.scheduled_for LIMIT 1"};

/// Returns the oldest unfinished scheduled run of a task, if it is older than a run.
fn older(tx: &Transaction<'_>, task: i64, run: &Run) -> rusqlite::Result<Option<Other>> {
    let params = named_params! { ":task": task, ":at": run.scheduled_for, ":run": run.id };
    tx.prepare_cached(OLDER)?.query_row(params, other).optional()
}

const HOLDERS: &str = "
    SELECT r.id, t.name, r.status FROM task_runs r INDEXED BY task_runs_running JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'running' AND r.concurrency_key = :key ORDER BY r.slot LIMIT :limit";

const FIRST_OF_KEY: &str = sql! {"
    SELECT r.id, t.name, r.status FROM task_runs r INDEXED BY task_runs_waiting JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE {claimable:r} AND r.concurrency_key = :key LIMIT :limit"};

const RUNNING: &str = "
    SELECT r.id, t.name, r.status FROM task_runs r INDEXED BY task_runs_running JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'running' LIMIT :limit";

/// Returns what holds the key of a run.
fn behind_key(tx: &Transaction<'_>, run: &Run, key: &Raw) -> rusqlite::Result<WaitsFor> {
    let shown = run.concurrency_key.clone().unwrap_or_default();
    if limits::window(tx, key.as_ref())? > 0 {
        return Ok(WaitsFor::Behind { key: shown, first: others(tx, FIRST_OF_KEY, Some(key))? });
    }
    if let Some(until) = starts::closed_until(tx, &Subject::key(&shown))? {
        return Ok(WaitsFor::Starts { key: Some(shown), until: Some(until) });
    }
    let limit = limits::of_key(tx, key.as_ref())?;
    Ok(WaitsFor::Key { key: shown, limit, holders: others(tx, HOLDERS, Some(key))? })
}

/// Reads runs that others wait for, at most [`RunView::MAX_LISTED`].
fn others(tx: &Transaction<'_>, statement: &str, key: Option<&Raw>) -> rusqlite::Result<Vec<Other>> {
    let limit = RunView::MAX_LISTED as i64;
    match key {
        Some(key) => row::all(tx, statement, named_params! { ":key": raw(key.as_ref()), ":limit": limit }, other),
        None => row::all(tx, statement, named_params! { ":limit": limit }, other),
    }
}

fn other(row: &Row<'_>) -> rusqlite::Result<Other> {
    Ok(Other { id: row.get(0)?, task: row::shown(row, 1)?, status: row.get(2)? })
}
