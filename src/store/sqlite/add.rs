//! Tasks that are added: two statements, prepared once for all of a transaction; or one, which is a transaction of its own.

use rusqlite::{CachedStatement, Connection, Transaction, params};

use crate::clock::{Timestamp, millis};
use crate::error::Error;
use crate::model::task::{Definition, TaskStatus};
use crate::rules::resolve::{self, Next, Plan};
use crate::schedule::Schedule;
use crate::store::fault::Fault;
use crate::store::sqlite::ids::Ids;
use crate::store::sqlite::tasks::stored;

const IS_TAKEN: &str = "SELECT 1 FROM scheduled_tasks WHERE name = ?1";

/// `:id` is NULL where SQLite chooses one. `:version` is NULL where the version of the tables has been looked at; else tables of
/// another one have the statement fail, whatever they would accept: `json('')` is an error.
const ADD: &str = "
    INSERT INTO scheduled_tasks
        (id, name, handler, payload, schedule_type, schedule_value, time_zone, starts_at, ends_at, status, next_run, planned,
         active_since, overlap, misfire, misfire_grace_ms, catch_up_limit, expires_ms, max_attempts, backoff_ms,
         backoff_cap_ms, timeout_ms, jitter_ms, priority, concurrency_key, on_dead, pause_after_failures, managed_by,
         created_at, updated_at)
    VALUES (:id, :name,
            iif(:version IS NULL OR :version = (SELECT value FROM scheduler_meta WHERE key = 'schema_version'), :handler, json('')),
            :payload, :type, :value, :zone, :starts, :ends, :status, :next, 1,
            :now, :overlap, :misfire, :grace, :limit, :expires, :attempts, :backoff,
            :cap, :timeout, :jitter, :priority, :key, :on_dead, :pause_after, :manager, :now, :now)";

/// Adds tasks, one after another.
pub(crate) struct Adder<'a> {
    is_taken: CachedStatement<'a>,
    add: CachedStatement<'a>,
}

impl<'a> Adder<'a> {
    pub(crate) fn new(tx: &'a Transaction<'_>) -> rusqlite::Result<Self> {
        Ok(Adder { is_taken: tx.prepare_cached(IS_TAKEN)?, add: tx.prepare_cached(ADD)? })
    }

    /// Whether there is a task of this name.
    pub(crate) fn is_taken(&mut self, name: &str) -> rusqlite::Result<bool> {
        self.is_taken.exists([name])
    }

    /// Adds a task that has been checked, and whose name is free. One that no occurrence awaits is refused, and leaves no row.
    pub(crate) fn add(
        &mut self,
        task: &Definition,
        schedule: Schedule,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Fault> {
        insert(&mut self.add, (None, None), task, schedule, now)
    }
}

/// Adds a task that has been checked, by one statement that is a transaction of its own. It is refused if its name is taken, or
/// the tables are of another version than this.
pub(crate) fn add_alone(
    connection: &Connection,
    ids: &mut Ids,
    version: i64,
    task: &Definition,
    schedule: Schedule,
    now: Timestamp,
) -> Result<Option<Timestamp>, Fault> {
    let id = ids.next(connection)?;
    let added = insert(&mut connection.prepare_cached(ADD)?, (id, Some(version)), task, schedule, now);
    ids.was_given(&added);
    added
}

fn insert(
    add: &mut CachedStatement<'_>,
    (id, version): (Option<i64>, Option<i64>),
    task: &Definition,
    schedule: Schedule,
    now: Timestamp,
) -> Result<Option<Timestamp>, Fault> {
    let next = resolve::first(&Plan::new(task, schedule, now, None, now), false);
    if next == Next::Never {
        return Err(Error::never(task.schedule_value.clone()).into());
    }
    let (status, next_run) = stored(next, TaskStatus::Active);
    // By their place in the statement: to look so many names up costs a seventh of adding a task.
    let rows = add.execute(params![
        id,
        task.name,
        version,
        task.handler,
        task.payload,
        task.schedule_type,
        task.schedule_value,
        task.time_zone,
        task.starts_at,
        task.ends_at,
        status,
        next_run,
        now,
        task.overlap,
        task.misfire,
        millis(task.misfire_grace),
        task.catch_up_limit,
        task.expires.map(millis),
        task.retry.max_attempts,
        millis(task.retry.backoff),
        millis(task.retry.max_backoff),
        task.timeout.map(millis),
        millis(task.jitter),
        task.priority,
        task.concurrency_key,
        task.on_dead,
        task.pause_after_failures,
        task.managed_by,
    ])?;
    if rows == 0 {
        let reason = "a trigger on scheduled_tasks passes it over, with RAISE(IGNORE)".to_owned();
        return Err(Error::Refused { request: format!("add task {:?}", task.name), reason }.into());
    }
    Ok(next_run)
}
