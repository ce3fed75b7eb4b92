//! Looks up, removes and plans tasks.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::task::{Task, TaskStatus};
use crate::rules::resolve::{self, Next, Plan};
use crate::schedule::{Schedule, Schedules};
use crate::store::fault::Fault;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{blocked, marks, open, owners, row};
use crate::store::turn_io::MAX_ITEMS;

const BY_NAME: &str = sql! {"SELECT {task_columns} FROM scheduled_tasks WHERE name = :name"};

pub(crate) fn by_name(tx: &Transaction<'_>, name: &str) -> rusqlite::Result<Option<Task>> {
    tx.prepare_cached(BY_NAME)?.query_row(named_params! { ":name": name }, row::shown_task).optional()
}

/// Returns the task of this name.
///
/// Fails with [`Error::UnknownTask`] if there is none.
pub(crate) fn expect(tx: &Transaction<'_>, name: &str) -> Result<Task, Fault> {
    by_name(tx, name)?.ok_or_else(|| Error::UnknownTask { name: name.to_owned() }.into())
}

const BY_ID: &str = sql! {"SELECT {task_columns} FROM scheduled_tasks WHERE id = :task"};

/// Returns the task of this id. A task with text that is not UTF-8 is invalid, as in [`row::shown_task`].
pub(crate) fn by_id(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Option<Task>> {
    tx.prepare_cached(BY_ID)?.query_row(named_params! { ":task": task }, row::shown_task).optional()
}

/// Returns the task of this id for a list: see [`row::listed_task`].
#[cfg(feature = "page")]
pub(crate) fn listed(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Option<Task>> {
    tx.prepare_cached(BY_ID)?.query_row(named_params! { ":task": task }, row::listed_task).optional()
}

/// Returns the task of this id. Fails if a column cannot be read.
fn readable(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Option<Task>> {
    tx.prepare_cached(BY_ID)?.query_row(named_params! { ":task": task }, row::task).optional()
}

const NAME: &str = "SELECT name FROM scheduled_tasks WHERE id = :task";

pub(crate) fn name(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<String> {
    tx.prepare_cached(NAME)?.query_row(named_params! { ":task": task }, |row| row::shown(row, 0))
}

const ALL: &str = sql! {"SELECT {task_columns} FROM scheduled_tasks ORDER BY name LIMIT :limit"};

/// Returns all tasks for a list, by name: see [`row::listed_task`].
pub(crate) fn all(tx: &Transaction<'_>, limit: i64) -> rusqlite::Result<Vec<Task>> {
    row::all(tx, ALL, named_params! { ":limit": limit }, row::listed_task)
}

const NAMES: &str = "SELECT name FROM scheduled_tasks ORDER BY name LIMIT :limit";

pub(crate) fn names(tx: &Transaction<'_>, limit: i64) -> rusqlite::Result<Vec<String>> {
    tx.prepare_cached(NAMES)?.query_map(named_params! { ":limit": limit }, |row| row::shown(row, 0))?.collect()
}

const MANAGED_BY: &str = "SELECT name FROM scheduled_tasks WHERE managed_by = :manifest";

/// Returns the names of the tasks that a manifest declared. Names only: there may be many, and most have not changed.
pub(crate) fn managed_by(tx: &Transaction<'_>, manifest: &str) -> rusqlite::Result<Vec<String>> {
    tx.prepare_cached(MANAGED_BY)?
        .query_map(named_params! { ":manifest": manifest }, |row| row::shown(row, 0))?
        .collect()
}

/// Returns the columns `status` and `next_run`. `otherwise`: the status of a task that is not completed.
pub(crate) fn stored(next: Next, otherwise: TaskStatus) -> (TaskStatus, Option<Timestamp>) {
    match next {
        Next::At(at) => (otherwise, Some(at)),
        Next::AfterTheRun | Next::OnRequest => (otherwise, None),
        Next::Never => (TaskStatus::Completed, None),
    }
}

/// Returns `now`, or `before` + 1 ms if that is later: triggers recognize a change by the program by its new active_since.
pub(crate) fn after(now: Timestamp, before: Timestamp) -> Timestamp {
    now.max(Timestamp::from_millis(before.as_millis() + 1))
}

/// Keeps a task unplanned while SQL has requested one of its waiting runs to stop: planning the task cancels the run.
const RECALL: &str = sql! {"
    UPDATE scheduled_tasks SET planned = 0
     WHERE id = :task
       AND EXISTS (SELECT 1 FROM task_runs INDEXED BY task_runs_asked
                    WHERE task_id = :task AND {waiting} AND cancel_requested = 1)"};

pub(crate) fn recall(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(RECALL)?.execute(named_params! { ":task": task }).map(|_| ())
}

/// One statement, as that of a change of the definition.
pub(crate) const SET_STATUS: &str = "
    UPDATE scheduled_tasks
       SET status = :status, next_run = :next, planned = 1, active_since = :since, updated_at = :now, paused_by = :by
     WHERE id = :task";

/// Pauses a task whose due occurrences are resolved.
pub(crate) fn rest(tx: &Transaction<'_>, task: &Task, by: &str, now: Timestamp) -> Result<(), Fault> {
    tx.prepare_cached(SET_STATUS)?.execute(named_params! {
        ":task": task.id, ":status": TaskStatus::Paused, ":next": None::<Timestamp>,
        ":since": after(now, task.active_since), ":now": now, ":by": by,
    })?;
    blocked::mark(tx, task.id)?;
    recall(tx, task.id)?;
    owners::record(tx, now, "paused", Some(task.id), None, Some(by))?;
    Ok(())
}

const REMOVE: &str = "DELETE FROM scheduled_tasks WHERE id = :task";

/// The first runs of a task, one more than a removal deletes at once. On a server, all of these are read.
const RUNS: &str = sql! {"
SELECT id FROM task_runs WHERE task_id = :task ORDER BY task_id, {unscheduled_id}, scheduled_for LIMIT :limit"};

const DELETE_RUNS: &str = "DELETE FROM task_runs WHERE id IN (SELECT value FROM rarray(:runs))";

const INVALID_REASON: &str = "SELECT ifnull(invalid_reason = :reason, 0) FROM scheduled_tasks WHERE id = :task";

/// Why a task is invalid of which a part of the runs is deleted.
pub(crate) const BEING_REMOVED: &str = "it is being removed, and a part of its runs is deleted: remove it again";

/// Removes a task and its history. Refused while a run of it is running. Returns whether that was all: otherwise the caller repeats it.
pub(crate) fn remove(tx: &Transaction<'_>, name: &str, now: Timestamp) -> Result<bool, Fault> {
    let task = expect(tx, name)?;
    let refused = |reason: &str| Error::Refused { request: format!("remove task {name:?}"), reason: reason.into() };
    if open::any_running(tx, task.id)? {
        return Err(refused("a run of it is running: cancel it, or pause the task and wait").into());
    }
    match Removal::default().task(tx, task.id, name, now)? {
        Removed::All => Ok(true),
        Removed::Part => Ok(false),
        Removed::Kept => Err(refused(KEPT).into()),
    }
}

/// Why a task is left that is [`Removed::Kept`].
pub(crate) const KEPT: &str = "a trigger of the database keeps it";

/// What became of a task that is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    All,
    /// A part of its runs, or nothing after other tasks: the next transaction goes on with this task.
    Part,
    /// A trigger of the application has ignored the deletion.
    Kept,
}

/// The removals of one transaction, which delete at most [`MAX_ITEMS`] runs.
pub(crate) struct Removal {
    left: usize,
}

impl Default for Removal {
    fn default() -> Self {
        Removal { left: MAX_ITEMS }
    }
}

impl Removal {
    /// Removes a task without a running run, and its history. Of a task with more runs than one transaction deletes, deletes a part. Then no
    /// run of it starts.
    pub(crate) fn task(
        &mut self,
        tx: &Transaction<'_>,
        task: i64,
        name: &str,
        now: Timestamp,
    ) -> rusqlite::Result<Removed> {
        let params = named_params! { ":task": task, ":limit": bound(self.left + 1) };
        let mut statement = tx.prepare_cached(RUNS)?;
        let runs = statement.query_map(params, |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        if runs.len() <= self.left {
            self.left -= runs.len();
            if !delete(tx, task)? {
                return Ok(Removed::Kept);
            }
            owners::record(tx, now, "removed", None, None, Some(name))?;
            return Ok(Removed::All);
        }
        // After other tasks, it begins the next transaction, and may fit into that.
        if std::mem::take(&mut self.left) < MAX_ITEMS {
            return Ok(Removed::Part);
        }
        let params = named_params! { ":task": task, ":reason": BEING_REMOVED };
        if !tx.prepare_cached(INVALID_REASON)?.query_row(params, |row| row.get::<_, bool>(0))? {
            invalidate(tx, task, BEING_REMOVED, now)?;
        }
        let keys = marks::keys(tx, &runs[..MAX_ITEMS])?;
        let deleted = row::list(runs[..MAX_ITEMS].iter().copied());
        if tx.prepare_cached(DELETE_RUNS)?.execute(named_params! { ":runs": deleted })? == 0 {
            return Ok(Removed::Kept);
        }
        keys.iter().try_for_each(|key| blocked::derive_key(tx, key, now))?;
        Ok(Removed::Part)
    }
}

/// Deletes a task and its history. A trigger refuses this while a run is running. Returns whether the task is gone: a trigger of
/// the application may ignore the deletion.
pub(crate) fn delete(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<bool> {
    tx.prepare_cached(REMOVE)?.execute(named_params! { ":task": task }).map(|rows| rows == 1)
}

const UNPLANNED: &str = "SELECT id, time_zone FROM scheduled_tasks WHERE planned = 0 LIMIT :limit";

/// Returns the ids and time zones of tasks that SQL wrote and no scheduler has planned yet.
pub(crate) fn unplanned(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<(i64, String)>> {
    tx.prepare_cached(UNPLANNED)?
        .query_map(named_params! { ":limit": bound(limit) }, |row| Ok((row.get(0)?, row::shown(row, 1)?)))?
        .collect()
}

const ZONE: &str = "SELECT time_zone FROM scheduled_tasks WHERE id = :task";

/// Returns the time zone of a task.
pub(crate) fn zone(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<String> {
    tx.prepare_cached(ZONE)?.query_row(named_params! { ":task": task }, |row| row::shown(row, 0))
}

// INDEXED BY: the rows of one priority without a next_run, in the order of their ids, are one range of this index.
const PLANLESS: &str = sql! {"
    SELECT id, schedule_type <> 'manual'
               AND (schedule_type <> 'delay'
                    OR NOT EXISTS (SELECT 1 FROM task_runs r
                                    WHERE r.task_id = t.id
                                      AND {unfinished:r}))
      FROM scheduled_tasks t INDEXED BY scheduled_tasks_due
     WHERE {active_planned} AND priority = :priority AND next_run IS NULL AND id > :after
     ORDER BY id LIMIT :limit"};

/// Returns active tasks that are marked as planned, but have neither a next_run nor an unfinished run: only SQL writes such
/// a row. Manual tasks are left out, as they never have a next_run. Reads up to `limit` rows of each priority after the id
/// `after`, and advances `after`; 0 starts a new round.
pub(crate) fn planless(tx: &Transaction<'_>, after: &mut i64, limit: usize) -> rusqlite::Result<Vec<i64>> {
    let mut statement = tx.prepare_cached(PLANLESS)?;
    let (mut found, mut reached) = (Vec::new(), None);
    for priority in 0..=3_i64 {
        let params = named_params! { ":priority": priority, ":after": *after, ":limit": bound(limit) };
        let rows = statement.query_map(params, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?)))?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        if let Some((last, _)) = rows.last().filter(|_| rows.len() == limit) {
            reached = Some(reached.map_or(*last, |reached: i64| reached.min(*last)));
        }
        found.extend(rows.into_iter().filter(|(_, is_planless)| *is_planless).map(|(id, _)| id));
    }
    *after = reached.unwrap_or_default();
    Ok(found)
}

fn bound(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A task that becomes completed here gets `updated_at` now: retention counts from then, not from the time before a
/// scheduler ran.
const SET_PLAN: &str = "
    UPDATE scheduled_tasks
       SET planned = 1, status = :status, next_run = :next, active_since = :since, invalid_reason = NULL,
           paused_by = iif(:status = 'paused', ifnull(paused_by, 'sql'), NULL),
           updated_at = iif(:status = 'completed' AND status <> 'completed', :now, updated_at)
     WHERE id = :task";

/// The latest end of a run, or of a recorded occurrence, of a task.
const NEWEST_END: &str = "SELECT max(finished_at) FROM task_runs WHERE task_id = :task";

/// Plans a row that SQL wrote: stores when it is due, or that it is invalid. Returns the name and the reason of an invalid
/// task. Fails before anything is written if the zone data of this machine does not have its zone.
pub(crate) fn settle_plan(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    id: i64,
    now: Timestamp,
) -> Result<Option<(String, String)>, Fault> {
    let Some(task) = readable(tx, id)? else { return Ok(None) };
    let schedule = match task.definition.check(task.created_at, schedules) {
        Ok(schedule) => schedule,
        // The zone is unknown, the row is not invalid: another scheduler, or a later try, may find the zone.
        Err(error @ Error::ZoneUnavailable { .. }) => return Err(error.into()),
        Err(error) => {
            let reason = error.to_string();
            invalidate(tx, id, &reason, now)?;
            return Ok(Some((task.definition.name, reason)));
        }
    };
    // A repaired task counts from its repair, like a task whose schedule was changed.
    let since = if task.status == TaskStatus::Invalid { after(now, task.active_since) } else { task.active_since };
    let (status, next_run) = match (task.status, task.next_run) {
        // SQL set next_run.
        (TaskStatus::Active | TaskStatus::Completed, Some(at)) => (TaskStatus::Active, Some(at)),
        // A change of another column, or a request about a run, does not resume the task.
        (TaskStatus::Paused | TaskStatus::Completed, _) => (task.status, None),
        (TaskStatus::Active | TaskStatus::Invalid, _) => {
            let unfinished = open::any_unfinished(tx, id)?;
            // A run may have ended before the row was planned: a delay counts from its end.
            let counted = match schedule {
                Schedule::Delay(_) => newest_end(tx, id)?.map_or(since, |end| end.min(now).max(since)),
                _ => since,
            };
            let plan = Plan::new(&task.definition, schedule, now, task.resolved_until, counted);
            stored(resolve::first(&plan, unfinished), TaskStatus::Active)
        }
    };
    tx.prepare_cached(SET_PLAN)?.execute(named_params! {
        ":task": id, ":status": status, ":next": next_run, ":since": since, ":now": now,
    })?;
    if task.status == TaskStatus::Invalid {
        blocked::mark(tx, id)?;
    }
    blocked::derive_front(tx, id, now)?;
    Ok(None)
}

fn newest_end(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Option<Timestamp>> {
    tx.prepare_cached(NEWEST_END)?.query_row(named_params! { ":task": task }, |row| row.get(0))
}

const INVALIDATE: &str = "
    UPDATE scheduled_tasks
       SET planned = 1, status = 'invalid', next_run = NULL, invalid_reason = :reason, paused_by = NULL, updated_at = :now
     WHERE id = :task";

/// Marks a task as invalid, with the reason. An invalid task is not scheduled.
pub(crate) fn invalidate(tx: &Transaction<'_>, id: i64, reason: &str, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(INVALIDATE)?.execute(named_params! { ":task": id, ":reason": reason, ":now": now })?;
    blocked::mark(tx, id)?;
    recall(tx, id)
}
