//! Opens runs that a user, a program or a dead run requests, outside of the schedule.

use rusqlite::{OptionalExtension, Row, Transaction, named_params};
use serde_json::Value;

use crate::clock::Timestamp;
use crate::error::{Error, excerpt};
use crate::model::json_value::same_value;
use crate::model::run::Origin;
use crate::model::task::{Overlap, Task};
use crate::rules::placement::Reason;
use crate::store::fault::Fault;
use crate::store::sqlite::blocked;
use crate::store::sqlite::runs::{self, Opening};
use crate::store::sqlite::sql::sql;

/// How much of a payload a message shows.
const SHOWN: usize = 200;

/// A delay task with an unfinished run has no known next_run: the next turn plans it again.
const DELAY_BEGINS: &str = "
    UPDATE scheduled_tasks SET next_run = NULL, planned = 0
     WHERE id = :task AND schedule_type = 'delay' AND status = 'active'";

const UNFINISHED_RETRY: &str = sql! {"
    SELECT id FROM task_runs
     WHERE task_id = :task AND {unfinished} AND retry_of = :run LIMIT 1"};

/// Returns an unfinished run that retries this run.
pub(crate) fn unfinished_retry(tx: &Transaction<'_>, task: i64, run: i64) -> rusqlite::Result<Option<i64>> {
    let params = named_params! { ":task": task, ":run": run };
    tx.prepare_cached(UNFINISHED_RETRY)?.query_row(params, |row| row.get(0)).optional()
}

const REQUESTED: &str = "SELECT id, payload FROM task_runs WHERE task_id = :task AND request_key = :key";

/// Returns the run that a request with this idempotency key has opened. Fails if that run has another payload than the request.
pub(crate) fn requested(
    tx: &Transaction<'_>,
    task: &Task,
    key: &str,
    payload: Option<&str>,
) -> Result<Option<i64>, Fault> {
    let params = named_params! { ":task": task.id, ":key": key };
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?));
    let Some((run, stored)) = tx.prepare_cached(REQUESTED)?.query_row(params, read).optional()? else {
        return Ok(None);
    };
    let [stored, given] = [stored.as_deref(), payload].map(|payload| payload.unwrap_or(&task.definition.payload));
    if same_value(stored, given) {
        return Ok(Some(run));
    }
    // A server keeps neither spaces nor the order of keys.
    let shown = |payload: &str| serde_json::from_str::<Value>(payload).map_or(payload.to_owned(), |it| it.to_string());
    let [stored, given] = [stored, given].map(|payload| excerpt(&shown(payload), SHOWN));
    Err(Error::Refused {
        request: format!("trigger task {:?} with the key {key:?}", task.definition.name),
        reason: format!("the key was used for run {run}, with another payload: stored {stored}, given {given}"),
    }
    .into())
}

/// A request for a run outside of the schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) origin: Origin,
    /// `None`: the payload of the task.
    pub(crate) payload: Option<&'a str>,
    pub(crate) retry_of: Option<i64>,
    /// The idempotency key of the request.
    pub(crate) key: Option<&'a str>,
}

/// Opens a requested run. It consumes no occurrence, and waits for its key; one of origin `on_dead` also waits while the
/// task is paused.
pub(crate) fn open(tx: &Transaction<'_>, task: &Task, request: Request<'_>, now: Timestamp) -> Result<i64, Fault> {
    let task_id = task.id;
    let task = &task.definition;
    let own_key = (task.overlap != Overlap::Allow).then(|| format!("#{task_id}"));
    let run = Opening {
        task: task_id,
        handler: &task.handler,
        scheduled_for: now,
        origin: request.origin,
        run_at: now,
        expires_at: task.expires.map(|expires| now.plus(expires).min(Timestamp::MAX)),
        priority: task.priority,
        key: task.concurrency_key.as_deref().or(own_key.as_deref()),
        payload: request.payload,
        retry_of: request.retry_of,
        request_key: request.key,
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
