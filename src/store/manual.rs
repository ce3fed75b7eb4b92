//! Runs that a person or a program asked for: beside the schedule, and behind their key alone.

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Error;
use crate::run::Origin;
use crate::store::runs::{self, Opening};
use crate::store::{Fault, waiting};
use crate::task::{Overlap, Task};

/// While a run of a delay task is unfinished, nobody can say when it is due again: the next turn finds it so.
const DELAY_BEGINS: &str = "
    UPDATE scheduled_tasks SET next_run = NULL, planned = 0
     WHERE id = :task AND schedule_type = 'delay' AND status = 'active' AND planned = 1";

/// Opens a run that a person or a program asked for. It consumes no occurrence, and waits for its key alone.
pub(crate) fn open(tx: &Transaction<'_>, task: &Task, payload: Option<&str>, now: Timestamp) -> Result<i64, Fault> {
    let task_id = task.id;
    let task = &task.definition;
    let own_key = (task.overlap != Overlap::Allow).then(|| format!("#{task_id}"));
    let run = Opening {
        task: task_id,
        handler: &task.handler,
        scheduled_for: now,
        origin: Origin::Manual,
        run_at: now,
        expires_at: task.expires.map(|expires| now.plus(expires).min(Timestamp::MAX)),
        priority: task.priority,
        key: task.concurrency_key.as_deref().or(own_key.as_deref()),
        payload,
    };
    let blocked = run.key.map(|_| "key");
    tx.prepare_cached(DELAY_BEGINS)?.execute(named_params! { ":task": task_id })?;
    let id = runs::open(tx, &run, blocked)?.ok_or_else(|| Error::Refused {
        request: format!("trigger task {:?}", task.name),
        reason: "SQLite refused another manual run: try again".into(),
    })?;
    if let Some(key) = run.key {
        waiting::derive_key(tx, key, now)?;
    }
    Ok(id)
}
