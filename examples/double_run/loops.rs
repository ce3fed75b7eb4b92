//! The loops that people write, each as what sets it apart: what it does before a run, and after. The poll and the queue
//! that they share are in `process`.
//!
//! They are written with care: conditions are part of the statement that writes, what is stored is moved before a lock is
//! given back, a key is set in one atomic statement. What breaks them is the idea.

use std::time::Duration;

use croner::Cron;
use duly::Timestamp;
use rusqlite::{Connection, OptionalExtension, named_params};

use super::day::Result;

/// The table as the loop's author had it. Times are ISO texts, which compare as the instants do.
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

/// A task as the query for due tasks found it: from here on it is a copy in memory.
#[derive(Clone, Debug)]
pub(crate) struct DueTask {
    pub(crate) id: String,
    schedule_type: String,
    schedule_value: String,
}

/// What a loop does with a task that is due.
#[derive(Debug, PartialEq)]
pub(crate) enum Take {
    /// It goes to the queue.
    Enqueue,
    /// It stays where it is, for this reason.
    Leave(&'static str),
}

/// What sets one loop apart from the others.
pub(crate) trait Loop {
    fn name(&self) -> &'static str;

    /// Tables and columns of its own.
    fn tables(&self) -> &'static str {
        ""
    }

    /// Its queue in memory.
    fn queue(&self) -> Queue {
        Queue { looks_at_pending: false, at_once: usize::MAX }
    }

    /// At the head of a poll: frees what seems stuck, and answers how many.
    fn clean_up(&self, _db: &Connection, _now: Timestamp) -> Result<usize> {
        Ok(0)
    }

    /// Before the task goes to the queue.
    fn before(&self, _db: &Connection, _task: &DueTask, _now: Timestamp) -> Result<Take> {
        Ok(Take::Enqueue)
    }

    /// After the run.
    fn after(&self, db: &Connection, task: &DueTask, now: Timestamp) -> Result<()> {
        move_on(db, task, now)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    /// Whether a task that is pending is not queued again.
    pub(crate) looks_at_pending: bool,
    /// How many run at once.
    pub(crate) at_once: usize,
}

/// `next_run` moves when the run has ended.
pub(crate) struct MoveAfter;

impl Loop for MoveAfter {
    fn name(&self) -> &'static str {
        "next_run moves after the run"
    }
}

/// The same, and a task that is pending in memory is not queued a second time.
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

/// The one-line fix: `next_run` moves before the run. A `once` task has no next, and where there is none the line does
/// nothing.
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

/// A status column: `running` is not due. What has been running for too long is taken for stuck.
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

/// A lock table with a timestamp. A lock that is too old is taken for stale.
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

/// `SET task:{id}:lock 1 EX 300 NX`, and `DEL` after the run. A table stands in for the key server; what it answers is
/// the same.
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

/// The tasks that are due.
pub(crate) fn due_tasks(db: &Connection, now: Timestamp) -> Result<Vec<DueTask>> {
    let mut statement = db.prepare_cached(DUE)?;
    let rows = statement.query_map(named_params! {":now": now.to_string()}, |row| {
        Ok(DueTask { id: row.get(0)?, schedule_type: row.get(1)?, schedule_value: row.get(2)? })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// What the file says is next.
pub(crate) fn stored_next_run(db: &Connection) -> Result<Option<Timestamp>> {
    let next_run: Option<Option<String>> =
        db.query_row("SELECT next_run FROM scheduled_tasks", [], |row| row.get(0)).optional()?;
    Ok(next_run.flatten().map(|text| text.parse()).transpose()?)
}

/// Writes the next occurrence, or that the task is complete. One statement, so that no poll sees a task that is active
/// again and still due.
fn move_on(db: &Connection, task: &DueTask, now: Timestamp) -> Result<()> {
    db.execute(
        "UPDATE scheduled_tasks SET next_run = :next, status = iif(:next IS NULL, 'completed', 'active') WHERE id = :id",
        named_params! {":next": next_run(task, now)?.map(|next| next.to_string()), ":id": task.id},
    )?;
    Ok(())
}

/// The occurrence after now; a `once` task has none.
fn next_run(task: &DueTask, now: Timestamp) -> Result<Option<Timestamp>> {
    if task.schedule_type != "cron" {
        return Ok(None);
    }
    let cron: Cron = task.schedule_value.parse()?;
    let now = now.to_datetime().ok_or("a time that no calendar holds")?;
    Ok(Some(cron.find_next_occurrence(&now, false)?.into()))
}
