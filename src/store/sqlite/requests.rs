//! Requests about runs: trigger, retry, cancel, declare the command of a dead scheduler gone.

use std::path::Path;

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::host::attempt_slots::ClaimedAttempt;
use crate::host::owner_lock::Standing;
use crate::model::request::{Cancelled, Runs, Triggered};
use crate::model::run::{Origin, Run, RunStatus};
use crate::model::task::{Task, TaskStatus};
use crate::schedule::{ScheduleKind, Schedules};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::manual::{self, Request};
use crate::store::sqlite::open::{Change, Written};
use crate::store::sqlite::restore::held::HeldBack;
use crate::store::sqlite::runs::{self, Fence};
use crate::store::sqlite::{followers, history, owners, settle, tasks};
use crate::store::turn_io::Session;

/// Opens a run of a task beside its schedule, or finds the run that the same key opened.
pub(super) fn trigger(
    store: &mut SqliteStore,
    name: &str,
    payload: Option<&str>,
    key: Option<&str>,
    now: Timestamp,
) -> Result<Triggered> {
    store.write("trigger a task", |tx, schedules| trigger_in(tx, schedules, (name, payload, key), now))
}

/// As [`trigger`]. `request`: the name of the task, the payload and the key.
pub(super) fn trigger_in(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    request: (&str, Option<&str>, Option<&str>),
    now: Timestamp,
) -> Result<Triggered, Fault> {
    let (name, payload, key) = request;
    let task = tasks::expect(tx, name)?;
    if let Some(key) = key
        && let Some(run_id) = manual::requested(tx, &task, key, payload)?
    {
        return Ok(Triggered { run_id, is_new: false });
    }
    let task = ready(tx, schedules, task, now)?;
    if task.status == TaskStatus::Invalid {
        let reason = format!("it is invalid: {}", task.invalid_reason.unwrap_or_default());
        return Err(Error::Refused { request: format!("trigger task {name:?}"), reason }.into());
    }
    let request = Request { origin: Origin::Manual, payload, retry_of: None, key };
    Ok(Triggered { run_id: manual::open(tx, &task, request, now)?, is_new: true })
}

/// Opens a run that retries a dead or cancelled one. Returns its id.
pub(super) fn retry(store: &mut SqliteStore, run: i64, now: Timestamp) -> Result<i64> {
    store.write("retry a run", |tx, schedules| retry_in(tx, schedules, run, now))
}

/// As [`retry`].
pub(super) fn retry_in(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    run: i64,
    now: Timestamp,
) -> Result<i64, Fault> {
    let old = history::run(tx, run)?.ok_or(Error::UnknownRun { id: run })?;
    let refused = |reason: String| Fault::from(Error::Refused { request: format!("retry run {run}"), reason });
    match old.status {
        RunStatus::Dead | RunStatus::Cancelled => {}
        RunStatus::Succeeded => return Err(refused("it succeeded".to_owned())),
        status if status.is_final() => {
            let reason = format!("it was {status}: trigger task {:?} instead", old.task);
            return Err(refused(reason));
        }
        status => return Err(refused(format!("it is not over: {status}"))),
    }
    let task = tasks::expect(tx, &old.task)?;
    if let Some(retry) = manual::unfinished_retry(tx, task.id, run)? {
        return Err(refused(format!("run {retry} retries it already")));
    }
    open_retry(tx, schedules, task, (run, old.payload.as_deref()), now)
}

/// Opens a run that retries a run of a task. `of`: the old run, and its own payload.
pub(super) fn open_retry(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    task: Task,
    of: (i64, Option<&str>),
    now: Timestamp,
) -> Result<i64, Fault> {
    let (run, payload) = of;
    let task = ready(tx, schedules, task, now)?;
    if task.status == TaskStatus::Invalid {
        let reason = task.invalid_reason.unwrap_or_default();
        let reason = format!("its task {:?} is invalid: {reason}", task.definition.name);
        return Err(Error::Refused { request: format!("retry run {run}"), reason }.into());
    }
    let request = Request { origin: Origin::Manual, payload, retry_of: Some(run), key: None };
    manual::open(tx, &task, request, now)
}

/// Resolves what is due of a delay task first: afterwards its schedule waits for the run that is about to be opened.
fn ready(tx: &Transaction<'_>, schedules: &mut Schedules, task: Task, now: Timestamp) -> Result<Task, Fault> {
    match task.definition.schedule_type {
        ScheduleKind::Delay => followers::resolve_before_a_change(tx, schedules, task, now),
        _ => Ok(task),
    }
}

/// Cancels a run that waits, or asks a running one to stop.
pub(super) fn cancel(store: &mut SqliteStore, run: i64, now: Timestamp) -> Result<Cancelled> {
    store.write("cancel a run", |tx, schedules| cancel_in(tx, schedules, run, now))
}

/// As [`cancel`].
pub(super) fn cancel_in(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    run: i64,
    now: Timestamp,
) -> Result<Cancelled, Fault> {
    let status = history::run(tx, run)?.ok_or(Error::UnknownRun { id: run })?.status;
    if status.is_final() {
        let request = format!("cancel run {run}");
        return Err(Error::Refused { request, reason: format!("it is over: {status}") }.into());
    }
    if status == RunStatus::Running {
        runs::ask_to_stop(tx, run)?;
        return Ok(Cancelled { asked: 1, ..Cancelled::default() });
    }
    let mut written = Written { followed: followers::any(tx)?, ..Written::default() };
    let mut cx = Change { tx, now, schedules, written: &mut written };
    settle::cancel_waiting(&mut cx, run)?;
    followers::follow_all(&mut cx)?;
    Ok(Cancelled { events: written.events, ..Cancelled::default() })
}

/// Records that the commands of running runs are gone, where their schedulers are not alive. Returns the number of these runs.
/// Of a task, other runs are left as they are.
pub(super) fn declare_gone(store: &mut SqliteStore, runs: Runs<'_>, now: Timestamp) -> Result<usize> {
    let path = store.path().to_owned();
    match runs {
        Runs::One(id) => store.write("declare a command gone", |tx, _| {
            let run = history::run(tx, id)?;
            let waits = run.as_ref().is_some_and(|run| run.status != RunStatus::Running && !run.status.is_final());
            let of_before = declare_held_gone(tx, &path, |claimed| claimed.run == id, waits, now)?;
            let Some(run) = run.filter(|run| of_before == 0 || run.status == RunStatus::Running) else {
                return if of_before > 0 { Ok(of_before) } else { Err(Error::UnknownRun { id }.into()) };
            };
            let request = format!("declare the command of run {id} gone");
            match declare_one_gone(tx, &path, &run, now)? {
                Some(reason) if of_before == 0 => Err(Error::Refused { request, reason }.into()),
                Some(_) => Ok(of_before),
                None => Ok(of_before + 1),
            }
        }),
        Runs::OfTask(task) => store.write("declare commands gone", |tx, _| {
            let task = tasks::expect(tx, task)?;
            // What is not known may be of any task, so it is declared gone for a run.
            let mut declared = declare_held_gone(tx, &path, |claimed| claimed.task == task.id, false, now)?;
            for (run, status) in history::unfinished(tx, task.id)? {
                if status == RunStatus::Running
                    && let Some(run) = history::run(tx, run)?
                {
                    declared += usize::from(declare_one_gone(tx, &path, &run, now)?.is_none());
                }
            }
            Ok(declared)
        }),
    }
}

/// Declares gone what was begun before the file was restored, and holds back its task. `or_unknown`: or else what is not known and holds
/// back every task. Returns the number of attempts, or of the schedulers that are not known.
fn declare_held_gone(
    tx: &Transaction<'_>,
    file: &Path,
    is_meant: impl Fn(&ClaimedAttempt) -> bool,
    or_unknown: bool,
    now: Timestamp,
) -> Result<usize, Fault> {
    let gone = HeldBack::read(tx)?.declare_gone(tx, file, is_meant, or_unknown)?;
    for what in &gone {
        let detail = format!("{what}, of before the database was restored");
        owners::record(tx, now, "declared_gone", None, None, Some(&detail))?;
    }
    Ok(gone.len())
}

/// Returns why the declaration is refused, if it is. An owner without a lock file may have lost it a moment ago.
fn declare_one_gone(tx: &Transaction<'_>, file: &Path, run: &Run, now: Timestamp) -> Result<Option<String>, Fault> {
    if run.status != RunStatus::Running {
        return Ok(Some(format!("it is not running: {}", run.status)));
    }
    let owner = run.locked_by.as_deref().unwrap_or_default();
    let session = owners::session(tx, owner)?;
    match session.standing(file, owner) {
        Standing::Alive { .. } => {
            return Ok(Some(format!("its scheduler is alive: duly cancel {} asks the command to stop", run.id)));
        }
        Standing::Missing | Standing::Dead(_) if session.is_held() => {
            return Ok(Some("its scheduler is alive, on another host: end the command there".to_owned()));
        }
        Standing::Missing if matches!(session, Session::Free { passed: false, .. }) => {
            return Ok(Some("the lease of its scheduler, on another host, is not over: wait for that".to_owned()));
        }
        Standing::Missing | Standing::Unknown(_) if owners::is_believed(tx, owner, now)? => {
            let reason = "its scheduler has no lock file that can be read, and its lease is not over: wait for that";
            return Ok(Some(reason.to_owned()));
        }
        Standing::Missing | Standing::Unknown(_) | Standing::Dead(_) | Standing::TakenOver(_) => {}
    }
    let (task, recorded) = runs::process(tx, run.id)?;
    // The row was read in this transaction: no other program can have changed it.
    runs::declare_gone(tx, &Fence { run: run.id, owner, attempt: run.attempt })?;
    owners::record(tx, now, "declared_gone", Some(task), Some(run.id), recorded.as_deref())?;
    Ok(None)
}
