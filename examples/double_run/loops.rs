//! Common poll loops, each defined by what it does before and after a run. The shared poll and queue are in `process`.
//!
//! They are written carefully: conditions are part of the statement that writes, state is stored before a lock is
//! released, a key is set in one atomic statement. The idea is what fails.

use std::time::Duration;

use croner::Cron;
use duly::Timestamp;
use rusqlite::{Connection, OptionalExtension, named_params};

use super::day::Result;

/// The table as the author of the loop wrote it. Times are ISO texts, which sort like the instants.
pub(crate) const TABLES: &str = "
    CREATE TABLE scheduled_tasks (
        id TEXT PRIMARY KEY,
        chat_jid TEXT NOT NULL,
        prompt TEXT NOT NULL,
        schedule_type TEXT NOT NULL,
        schedule_value TEXT NOT NULL,
        next_run TEXT,
        status TEXT NOT NULL DEFAULT 'active'
    )";

const DUE: &str = "
    SELECT id, schedule_type, schedule_value FROM scheduled_tasks
     WHERE status = 'active' AND next_run IS NOT NULL AND next_run <= :now
     ORDER BY next_run";

/// A task as found by the query for due tasks: a copy in memory.
#[derive(Clone, Debug)]
pub(crate) struct DueTask {
    pub(crate) id: String,
    schedule_type: String,
    schedule_value: String,
}

/// What a loop does with a task that is due.
#[derive(Debug, PartialEq)]
pub(crate) enum Take {
    /// Put it into the queue.
    Enqueue,
    /// Leave it, for this reason.
    Leave(&'static str),
}

/// The differences between the loops.
pub(crate) trait Loop {
    fn name(&self) -> &'static str;

    /// Returns additional tables and columns.
    fn tables(&self) -> &'static str {
        ""
    }

    /// Returns the settings of its queue in memory.
    fn queue(&self) -> Queue {
        Queue { looks_at_pending: false, at_once: usize::MAX }
    }

    /// Called at the start of a poll: frees what seems stuck, and returns how many.
    fn clean_up(&self, _db: &Connection, _now: Timestamp) -> Result<usize> {
        Ok(0)
    }

    /// Called before the task enters the queue.
    fn before(&self, _db: &Connection, _task: &DueTask, _now: Timestamp) -> Result<Take> {
        Ok(Take::Enqueue)
    }

    /// Called after the run.
    fn after(&self, db: &Connection, task: &DueTask, now: Timestamp) -> Result<()> {
        move_on(db, task, now)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    /// Whether a pending task is not queued again.
    pub(crate) looks_at_pending: bool,
    /// The maximum number of concurrent runs.
    pub(crate) at_once: usize,
}

/// `next_run` moves after the run.
pub(crate) struct MoveAfter;

impl Loop for MoveAfter {
    fn name(&self) -> &'static str {
        "next_run moves after the run"
    }
}

/// As [`MoveAfter`], but a task that is pending in memory is not queued again.
pub(crate) struct Deduplicate {
    pub(crate) at_once: usize,
}

impl Loop for Deduplicate {
    fn name(&self) -> &'static str {
        if self.at_once == 1 { "the same queue, one run at a time" } else { "the same, pending de-duplicated" }
    }

    fn queue(&self) -> Queue {
        Queue { looks_at_pending: true, at_once: self.at_once }
    }
}

/// The one-line fix: `next_run` moves before the run. A `once` task has no next occurrence, so for it nothing moves.
pub(crate) struct MoveBefore;

impl Loop for MoveBefore {
    fn name(&self) -> &'static str {
        "next_run moves before the run"
    }

    fn before(&self, db: &Connection, task: &DueTask, now: Timestamp) -> Result<Take> {
        if let Some(next_run) = next_run(task, now)? {
            db.execute(
                "UPDATE scheduled_tasks SET next_run = :next WHERE id = :id",
                named_params! {":next": next_run.to_string(), ":id": task.id},
            )?;
        }
        Ok(Take::Enqueue)
    }
}

/// A status column: a `running` task is not due. One that has been running for too long counts as stuck.
pub(crate) struct StatusColumn {
    pub(crate) stuck_after: Duration,
}

impl Loop for StatusColumn {
    fn name(&self) -> &'static str {
        "status column, clean-up at 10 min"
    }

    fn tables(&self) -> &'static str {
        "ALTER TABLE scheduled_tasks ADD COLUMN started_at TEXT"
    }

    fn clean_up(&self, db: &Connection, now: Timestamp) -> Result<usize> {
        Ok(db.execute(
            "UPDATE scheduled_tasks SET status = 'active' WHERE status = 'running' AND started_at <= :stuck",
            named_params! {":stuck": now.minus(self.stuck_after).to_string()},
        )?)
    }

    fn before(&self, db: &Connection, task: &DueTask, now: Timestamp) -> Result<Take> {
        let ours = db.execute(
            "UPDATE scheduled_tasks SET status = 'running', started_at = :now WHERE id = :id AND status = 'active'",
            named_params! {":now": now.to_string(), ":id": task.id},
        )?;
        Ok(if ours == 1 { Take::Enqueue } else { Take::Leave("its status is running") })
    }
}

/// A lock table with a timestamp. A lock that is too old counts as stale.
pub(crate) struct LockTable {
    pub(crate) stale_after: Duration,
}

impl Loop for LockTable {
    fn name(&self) -> &'static str {
        "lock table, stale at 10 min"
    }

    fn tables(&self) -> &'static str {
        "CREATE TABLE task_locks (task_id TEXT PRIMARY KEY, locked_at TEXT NOT NULL)"
    }

    fn clean_up(&self, db: &Connection, now: Timestamp) -> Result<usize> {
        Ok(db.execute(
            "DELETE FROM task_locks WHERE locked_at <= :stale",
            named_params! {":stale": now.minus(self.stale_after).to_string()},
        )?)
    }

    fn before(&self, db: &Connection, task: &DueTask, now: Timestamp) -> Result<Take> {
        let ours = db.execute(
            "INSERT INTO task_locks (task_id, locked_at) VALUES (:id, :now) ON CONFLICT DO NOTHING",
            named_params! {":id": task.id, ":now": now.to_string()},
        )?;
        Ok(if ours == 1 { Take::Enqueue } else { Take::Leave("it is locked") })
    }

    fn after(&self, db: &Connection, task: &DueTask, now: Timestamp) -> Result<()> {
        move_on(db, task, now)?;
        db.execute("DELETE FROM task_locks WHERE task_id = :id", named_params! {":id": task.id})?;
        Ok(())
    }
}

/// `SET task:{id}:lock 1 EX 300 NX`, and `DEL` after the run. A table replaces the key server, with the same results.
pub(crate) struct ExpiringKey {
    pub(crate) expires_after: Duration,
}

impl Loop for ExpiringKey {
    fn name(&self) -> &'static str {
        "SET task:{id}:lock 1 EX 300 NX"
    }

    fn tables(&self) -> &'static str {
        "CREATE TABLE keys (key TEXT PRIMARY KEY, expires_at TEXT NOT NULL)"
    }

    fn before(&self, db: &Connection, task: &DueTask, now: Timestamp) -> Result<Take> {
        let set = db.execute(
            "INSERT INTO keys (key, expires_at) VALUES (:key, :until)
             ON CONFLICT (key) DO UPDATE SET expires_at = :until WHERE expires_at <= :now",
            named_params! {
                ":key": key(task), ":until": now.plus(self.expires_after).to_string(), ":now": now.to_string()
            },
        )?;
        Ok(if set == 1 { Take::Enqueue } else { Take::Leave("the key is set") })
    }

    fn after(&self, db: &Connection, task: &DueTask, now: Timestamp) -> Result<()> {
        move_on(db, task, now)?;
        db.execute("DELETE FROM keys WHERE key = :key", named_params! {":key": key(task)})?;
        Ok(())
    }
}

fn key(task: &DueTask) -> String {
    format!("task:{}:lock", task.id)
}

/// Returns the due tasks.
pub(crate) fn due_tasks(db: &Connection, now: Timestamp) -> Result<Vec<DueTask>> {
    let mut statement = db.prepare_cached(DUE)?;
    let rows = statement.query_map(named_params! {":now": now.to_string()}, |row| {
        Ok(DueTask { id: row.get(0)?, schedule_type: row.get(1)?, schedule_value: row.get(2)? })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Returns the stored `next_run`.
pub(crate) fn stored_next_run(db: &Connection) -> Result<Option<Timestamp>> {
    let next_run: Option<Option<String>> =
        db.query_row("SELECT next_run FROM scheduled_tasks", [], |row| row.get(0)).optional()?;
    Ok(next_run.flatten().map(|text| text.parse()).transpose()?)
}

/// Stores the next occurrence, or that the task is completed. One statement, so that no poll finds the task active and
/// still due.
fn move_on(db: &Connection, task: &DueTask, now: Timestamp) -> Result<()> {
    db.execute(
        "UPDATE scheduled_tasks SET next_run = :next, status = iif(:next IS NULL, 'completed', 'active') WHERE id = :id",
        named_params! {":next": next_run(task, now)?.map(|next| next.to_string()), ":id": task.id},
    )?;
    Ok(())
}

/// Returns the next occurrence; a `once` task has none.
fn next_run(task: &DueTask, now: Timestamp) -> Result<Option<Timestamp>> {
    if task.schedule_type != "cron" {
        return Ok(None);
    }
    let cron: Cron = task.schedule_value.parse()?;
    let now = now.to_datetime().ok_or("the time is outside the calendar")?;
    Ok(Some(cron.find_next_occurrence(&now, false)?.into()))
}
