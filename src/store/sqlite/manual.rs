//! Runs that a person or a program asked for: beside the schedule, and behind their key alone.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::model::run::Origin;
use crate::model::task::{Overlap, Task};
use crate::rules::placement::Reason;
use crate::store::fault::Fault;
use crate::store::sqlite::blocked;
use crate::store::sqlite::runs::{self, Opening};

/// While a run of a delay task is unfinished, nobody can say when it is due again: the next turn finds it so.
const DELAY_BEGINS: &str = "
    UPDATE scheduled_tasks SET next_run = NULL, planned = 0
     WHERE id = :task AND schedule_type = 'delay' AND status = 'active'";

const UNFINISHED_RETRY: &str = "
    SELECT id FROM task_runs
     WHERE task_id = :task AND (status = 'queued' OR status = 'failed' OR status = 'running') AND retry_of = :run LIMIT 1";

/// An unfinished run that retries this one.
pub(crate) fn unfinished_retry(tx: &Transaction<'_>, task: i64, run: i64) -> rusqlite::Result<Option<i64>> {
    let params = named_params! { ":task": task, ":run": run };
    tx.prepare_cached(UNFINISHED_RETRY)?.query_row(params, |row| row.get(0)).optional()
}

const REQUESTED: &str = "SELECT id FROM task_runs WHERE task_id = :task AND request_key = :key";

/// The run that a request with this key has opened.
pub(crate) fn requested(tx: &Transaction<'_>, task: i64, key: &str) -> rusqlite::Result<Option<i64>> {
    let params = named_params! { ":task": task, ":key": key };
    tx.prepare_cached(REQUESTED)?.query_row(params, |row| row.get(0)).optional()
}

/// Why a run is opened that keeps no occurrence, and with what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) origin: Origin,
    /// `None`: the task's.
    pub(crate) payload: Option<&'a str>,
    pub(crate) retry_of: Option<i64>,
    /// Of a request that may be repeated.
    pub(crate) key: Option<&'a str>,
}

/// Opens a run that was asked for. It consumes no occurrence, and waits for its key; one that a dead run asked for waits
/// for a paused task too.
pub(crate) fn open(tx: &Transaction<'_>, task: &Task, asked: Request<'_>, now: Timestamp) -> Result<i64, Fault> {
    let task_id = task.id;
    let task = &task.definition;
    let own_key = (task.overlap != Overlap::Allow).then(|| format!("#{task_id}"));
    let run = Opening {
        task: task_id,
        handler: &task.handler,
        scheduled_for: now,
        origin: asked.origin,
        run_at: now,
        expires_at: task.expires.map(|expires| now.plus(expires).min(Timestamp::MAX)),
        priority: task.priority,
        key: task.concurrency_key.as_deref().or(own_key.as_deref()),
        payload: asked.payload,
        retry_of: asked.retry_of,
        request_key: asked.key,
    };
    let blocked = run.key.map(|_| Reason::Key);
    tx.prepare_cached(DELAY_BEGINS)?.execute(named_params! { ":task": task_id })?;
    let id = runs::open(tx, &run, blocked)?.ok_or_else(|| Error::Refused {
        request: format!("trigger task {:?}", task.name),
        reason: "SQLite refused another manual run: try again".into(),
    })?;
    blocked::place(tx, id, run.key, now)?;
    Ok(id)
}
