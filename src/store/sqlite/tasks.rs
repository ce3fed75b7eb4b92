//! The promises: added, looked up, changed, planned. What is due is resolved under the old state before a change.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::{Timestamp, millis};
use crate::error::{Error, Result};
use crate::model::task::{Definition, Overlap, Task, TaskStatus};
use crate::rules::resolve::{self, Next, Plan, Rest};
use crate::schedule::{Schedule, Schedules};
use crate::store::fault::Fault;
use crate::store::sqlite::open::{self, Change, Written};
use crate::store::sqlite::{blocked, due, once, owners, row};

const BY_NAME: &str = "SELECT * FROM scheduled_tasks WHERE name = :name";

pub(crate) fn by_name(tx: &Transaction<'_>, name: &str) -> rusqlite::Result<Option<Task>> {
    tx.prepare_cached(BY_NAME)?.query_row(named_params! { ":name": name }, row::shown_task).optional()
}

/// The task of this name, which somebody has asked for.
pub(crate) fn expect(tx: &Transaction<'_>, name: &str) -> Result<Task, Fault> {
    by_name(tx, name)?.ok_or_else(|| Error::UnknownTask { name: name.to_owned() }.into())
}

const BY_ID: &str = "SELECT * FROM scheduled_tasks WHERE id = :task";

/// The task of this id. One with text that is not UTF-8 is invalid, as in [`row::shown_task`].
pub(crate) fn by_id(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Option<Task>> {
    tx.prepare_cached(BY_ID)?.query_row(named_params! { ":task": task }, row::shown_task).optional()
}

/// The task of this id, which must be readable in full.
fn readable(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Option<Task>> {
    tx.prepare_cached(BY_ID)?.query_row(named_params! { ":task": task }, row::task).optional()
}

const NAME: &str = "SELECT name FROM scheduled_tasks WHERE id = :task";

pub(crate) fn name(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<String> {
    tx.prepare_cached(NAME)?.query_row(named_params! { ":task": task }, |row| row::shown(row, 0))
}

const ALL: &str = "SELECT * FROM scheduled_tasks ORDER BY name LIMIT :limit";

pub(crate) fn all(tx: &Transaction<'_>, limit: i64) -> rusqlite::Result<Vec<Task>> {
    tx.prepare_cached(ALL)?.query_map(named_params! { ":limit": limit }, row::shown_task)?.collect()
}

const NAMES: &str = "SELECT name FROM scheduled_tasks ORDER BY name LIMIT :limit";

pub(crate) fn names(tx: &Transaction<'_>, limit: i64) -> rusqlite::Result<Vec<String>> {
    tx.prepare_cached(NAMES)?.query_map(named_params! { ":limit": limit }, |row| row::shown(row, 0))?.collect()
}

const MANAGED_BY: &str = "SELECT name FROM scheduled_tasks WHERE managed_by = :manifest";

/// The names of the tasks that a manifest declared: there may be many, and most are as they should be.
pub(crate) fn managed_by(tx: &Transaction<'_>, manifest: &str) -> rusqlite::Result<Vec<String>> {
    tx.prepare_cached(MANAGED_BY)?
        .query_map(named_params! { ":manifest": manifest }, |row| row::shown(row, 0))?
        .collect()
}

/// The columns `status` and `next_run` for what comes next. `otherwise`: the status of a task that has a next.
pub(crate) fn stored(next: Next, otherwise: TaskStatus) -> (TaskStatus, Option<Timestamp>) {
    match next {
        Next::At(at) => (otherwise, Some(at)),
        Next::AfterTheRun | Next::OnRequest => (otherwise, None),
        Next::Never => (TaskStatus::Completed, None),
    }
}

/// One statement: a change of the schedule that leaves active_since alone is taken for one made by SQL, and so is any that
/// leaves updated_at alone, as a second one in the same millisecond would: a trigger would read SQLite's clock for it.
const CHANGE: &str = "
    UPDATE scheduled_tasks
       SET handler = :handler, payload = :payload, schedule_type = :type, schedule_value = :value, time_zone = :zone,
           starts_at = :starts, ends_at = :ends, overlap = :overlap, misfire = :misfire, misfire_grace_ms = :grace,
           catch_up_limit = :limit, expires_ms = :expires, max_attempts = :attempts, backoff_ms = :backoff,
           backoff_cap_ms = :cap, timeout_ms = :timeout, jitter_ms = :jitter, priority = :priority,
           concurrency_key = :key, on_dead = :on_dead, pause_after_failures = :pause_after, managed_by = :manager,
           updated_at = :now + (updated_at = :now),
           status = :status, next_run = :next, planned = :planned, active_since = :since, invalid_reason = :reason
     WHERE id = :task";

/// Makes a stored task what another definition says. Its runs stay; a schedule with the same meaning moves nothing.
pub(crate) fn change(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    old: &Task,
    task: &Definition,
    schedule: &Schedule,
    now: Timestamp,
) -> Result<(), Fault> {
    let mut old = old.clone();
    let bounds = |task: &Definition| (task.starts_at, task.ends_at);
    let same = old.status != TaskStatus::Invalid
        && bounds(task) == bounds(&old.definition)
        && old.definition.check(old.created_at, schedules).is_ok_and(|stored| stored == *schedule);
    if !same {
        old = resolve_before_a_change(tx, schedules, old, now)?;
        let since = after(now, old.active_since);
        let next = match old.status {
            TaskStatus::Paused => Next::AfterTheRun,
            _ => {
                let unfinished = open::any_unfinished(tx, old.id)?;
                resolve::first(&Plan::new(task, schedule.clone(), now, old.resolved_until, since), unfinished)
            }
        };
        if next == Next::Never {
            return Err(Error::never(task.schedule_value.clone()).into());
        }
        let active = if old.status == TaskStatus::Paused { TaskStatus::Paused } else { TaskStatus::Active };
        (old.status, old.next_run) = stored(next, active);
        (old.active_since, old.planned, old.invalid_reason) = (since, true, None);
    }
    let stored = if same { &old.definition } else { task };
    tx.prepare_cached(CHANGE)?.execute(named_params! {
        ":task": old.id, ":handler": task.handler, ":payload": task.payload, ":type": task.schedule_type,
        ":value": stored.schedule_value, ":zone": stored.time_zone, ":starts": task.starts_at, ":ends": task.ends_at,
        ":overlap": task.overlap, ":misfire": task.misfire, ":grace": millis(task.misfire_grace),
        ":limit": task.catch_up_limit, ":expires": task.expires.map(millis), ":attempts": task.retry.max_attempts,
        ":backoff": millis(task.retry.backoff), ":cap": millis(task.retry.max_backoff),
        ":timeout": task.timeout.map(millis), ":jitter": millis(task.jitter), ":priority": task.priority,
        ":key": task.concurrency_key, ":on_dead": task.on_dead, ":pause_after": task.pause_after_failures,
        ":manager": task.managed_by, ":now": now, ":status": old.status,
        ":next": old.next_run, ":planned": old.planned, ":since": old.active_since, ":reason": old.invalid_reason,
    })?;
    blocked::derive_task(tx, old.id, old.status == TaskStatus::Paused, task.overlap != Overlap::Allow, now)?;
    Ok(recall(tx, old.id)?)
}

/// Resolves what is due of a task that is about to be changed, under its old state; answers with the task as it is then.
pub(crate) fn resolve_before_a_change(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    task: Task,
    now: Timestamp,
) -> Result<Task, Fault> {
    if task.status != TaskStatus::Active && !runs_again(&task) {
        return Ok(task);
    }
    if !task.planned {
        match settle_plan(tx, schedules, task.id, now) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(by_id(tx, task.id)?.unwrap_or(task)),
            // Nobody could say when it is due: that must not keep its zone from being put right.
            Err(fault) if fault.is_about_this_machine() => return Ok(task),
            Err(fault) => return Err(fault),
        }
    }
    let mut written = Written::default();
    let due = due::due(tx, schedules, &[task.id], now)?;
    let mut cx = Change { tx, now, schedules, written: &mut written };
    for (_, due) in due {
        open::resolve_due(&mut cx, &due?, None, Rest::Cut, None)?;
    }
    once::finish(&mut cx, None)?;
    recall(tx, task.id)?;
    Ok(by_id(tx, task.id)?.unwrap_or(task))
}

/// One that is over, and was given a next_run by SQL, is active as soon as somebody looks at it.
fn runs_again(task: &Task) -> bool {
    task.status == TaskStatus::Completed && task.next_run.is_some()
}

/// Now, or as soon after `before` as the clock allows: active_since tells the program's own change by having moved.
fn after(now: Timestamp, before: Timestamp) -> Timestamp {
    now.max(Timestamp::from_millis(before.as_millis() + 1))
}

/// A waiting run that was asked to stop by SQL is cancelled by whoever looks at its task next: that is still to be done.
const RECALL: &str = "
    UPDATE scheduled_tasks SET planned = 0
     WHERE id = :task
       AND EXISTS (SELECT 1 FROM task_runs
                    WHERE task_id = :task AND (status = 'queued' OR status = 'failed' OR status = 'running')
                      AND status <> 'running' AND cancel_requested = 1)";

fn recall(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(RECALL)?.execute(named_params! { ":task": task }).map(|_| ())
}

/// One statement, as above.
const SET_STATUS: &str = "
    UPDATE scheduled_tasks
       SET status = :status, next_run = :next, planned = 1, active_since = :since, updated_at = :now, paused_by = :by
     WHERE id = :task";

/// The `paused_by` of a task that a user paused.
const USER: &str = "user";

/// Stops a task for a while. What is due is resolved first; its waiting runs wait on, but for those asked for by hand.
/// `by`: who pauses it, and why, if it is not a user.
pub(crate) fn pause(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    name: &str,
    by: Option<&str>,
    now: Timestamp,
) -> Result<(), Fault> {
    let task = expect(tx, name)?;
    match task.status {
        TaskStatus::Paused => return Ok(()),
        TaskStatus::Active => {}
        TaskStatus::Completed if runs_again(&task) => {}
        TaskStatus::Completed | TaskStatus::Invalid => return Err(refused("pause", &task)),
    }
    let task = resolve_before_a_change(tx, schedules, task, now)?;
    // Written by SQL, and looked at just now.
    if task.status == TaskStatus::Invalid {
        return Err(refused("pause", &task));
    }
    rest(tx, &task, by.unwrap_or(USER), now)
}

/// Pauses a task of which all that is due has been resolved.
pub(crate) fn rest(tx: &Transaction<'_>, task: &Task, by: &str, now: Timestamp) -> Result<(), Fault> {
    tx.prepare_cached(SET_STATUS)?.execute(named_params! {
        ":task": task.id, ":status": TaskStatus::Paused, ":next": None::<Timestamp>,
        ":since": after(now, task.active_since), ":now": now, ":by": by,
    })?;
    blocked::derive_task(tx, task.id, true, true, now)?;
    recall(tx, task.id)?;
    owners::record(tx, now, "paused", Some(task.id), None, Some(by))?;
    Ok(())
}

const END_STREAK: &str = "UPDATE scheduled_tasks SET failure_count = 0 WHERE id = :task AND failure_count > 0";

/// Lets a paused task's schedule count again, from now. What fell meanwhile is neither run nor missed, but for a `once`
/// instant; an event says from when to when. Whoever resumes has looked: the streak of dead runs is over.
pub(crate) fn resume(tx: &Transaction<'_>, schedules: &mut Schedules, name: &str, now: Timestamp) -> Result<(), Fault> {
    let task = expect(tx, name)?;
    match task.status {
        TaskStatus::Active => return Ok(()),
        TaskStatus::Completed if runs_again(&task) => return Ok(()),
        TaskStatus::Paused => {}
        TaskStatus::Invalid => return repair(tx, schedules, "resume", &task, now),
        TaskStatus::Completed => return Err(refused("resume", &task)),
    }
    let schedule = task.definition.check(task.created_at, schedules)?;
    let since = after(now, task.active_since);
    let unfinished = open::any_unfinished(tx, task.id)?;
    let next = resolve::first(&Plan::new(&task.definition, schedule, now, task.resolved_until, since), unfinished);
    let (status, next_run) = stored(next, TaskStatus::Active);
    tx.prepare_cached(SET_STATUS)?.execute(named_params! {
        ":task": task.id, ":status": status, ":next": next_run, ":since": since, ":now": now, ":by": None::<&str>,
    })?;
    tx.prepare_cached(END_STREAK)?.execute(named_params! { ":task": task.id })?;
    blocked::derive_task(tx, task.id, false, task.definition.overlap != Overlap::Allow, now)?;
    recall(tx, task.id)?;
    let passed_over = || format!("occurrences from {} to {since} were passed over", task.active_since);
    let detail = (next != Next::OnRequest).then(passed_over);
    owners::record(tx, now, "resumed", Some(task.id), None, detail.as_deref())?;
    Ok(())
}

/// Looks again at an invalid task. Refused, with what is wrong now, if it still cannot be used.
pub(crate) fn repair(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    request: &str,
    task: &Task,
    now: Timestamp,
) -> Result<(), Fault> {
    if let Some((_, reason)) = settle_plan(tx, schedules, task.id, now)? {
        return Err(refused(request, &Task { invalid_reason: Some(reason), ..task.clone() }));
    }
    owners::record(tx, now, "edited", Some(task.id), None, Some("status: \"invalid\" became \"active\""))?;
    Ok(())
}

fn refused(request: &str, task: &Task) -> Fault {
    let reason = match &task.invalid_reason {
        Some(reason) => format!("it is invalid ({reason}): change its schedule first"),
        None => format!("it is {}: no occurrence is left; change its schedule first", task.status),
    };
    Error::Refused { request: format!("{request} task {:?}", task.name()), reason }.into()
}

const REMOVE: &str = "DELETE FROM scheduled_tasks WHERE id = :task";

/// Removes a task with its history. Refused while a run of it is running.
pub(crate) fn remove(tx: &Transaction<'_>, name: &str, now: Timestamp) -> Result<(), Fault> {
    let task = expect(tx, name)?;
    if open::any_running(tx, task.id)? {
        return Err(Error::Refused {
            request: format!("remove task {name:?}"),
            reason: "a run of it is running: cancel it, or pause the task and wait".into(),
        }
        .into());
    }
    delete(tx, task.id)?;
    owners::record(tx, now, "removed", None, None, Some(name))?;
    Ok(())
}

/// Deletes a task and its history. A trigger refuses it while a run is running.
pub(crate) fn delete(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(REMOVE)?.execute(named_params! { ":task": task }).map(|_| ())
}

const UNPLANNED: &str = "SELECT id, time_zone FROM scheduled_tasks WHERE planned = 0 LIMIT :limit";

/// Rows that somebody else wrote, and that a scheduler has still to look at: their ids and time zones.
pub(crate) fn unplanned(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<(i64, String)>> {
    tx.prepare_cached(UNPLANNED)?
        .query_map(named_params! { ":limit": bound(limit) }, |row| Ok((row.get(0)?, row::shown(row, 1)?)))?
        .collect()
}

const ZONE: &str = "SELECT time_zone FROM scheduled_tasks WHERE id = :task";

/// The time zone of a task.
pub(crate) fn zone(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<String> {
    tx.prepare_cached(ZONE)?.query_row(named_params! { ":task": task }, |row| row::shown(row, 0))
}

// By name: the rows of one priority without a next run, in the order of their ids, are one range of this index.
const PLANLESS: &str = "
    SELECT id, schedule_type <> 'manual'
               AND (schedule_type <> 'delay'
                    OR NOT EXISTS (SELECT 1 FROM task_runs r
                                    WHERE r.task_id = t.id
                                      AND (r.status = 'queued' OR r.status = 'failed' OR r.status = 'running')))
      FROM scheduled_tasks t INDEXED BY scheduled_tasks_due
     WHERE status = 'active' AND planned = 1 AND priority = :priority AND next_run IS NULL AND id > :after
     ORDER BY id LIMIT :limit";

/// Active tasks that count as planned, and have neither a next run nor a run to wait for: only SQL writes such a row (a manual
/// task never has a next run). Looks at up to `limit` rows of each priority after the id `after`, and moves `after` on; 0 begins a
/// new round.
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

/// What is found to be over is over from now on: whoever counts from its end does not count the time in which nobody looked.
const SET_PLAN: &str = "
    UPDATE scheduled_tasks
       SET planned = 1, status = :status, next_run = :next, active_since = :since, invalid_reason = NULL,
           paused_by = iif(:status = 'paused', ifnull(paused_by, 'sql'), NULL),
           updated_at = iif(:status = 'completed' AND status <> 'completed', :now, updated_at)
     WHERE id = :task";

/// When the newest of what became of a task came to its end.
const NEWEST_END: &str = "SELECT max(finished_at) FROM task_runs WHERE task_id = :task";

/// Looks at a row that somebody else wrote: when it is due, or why it is invalid, which is answered. Fails before anything is
/// written if the zone data of this machine does not answer for its zone.
pub(crate) fn settle_plan(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    id: i64,
    now: Timestamp,
) -> Result<Option<(String, String)>, Fault> {
    let Some(task) = readable(tx, id)? else { return Ok(None) };
    let schedule = match task.definition.check(task.created_at, schedules) {
        Ok(schedule) => schedule,
        // Nothing is known of the row: another scheduler may know the zone, or a later try.
        Err(error @ Error::ZoneUnavailable { .. }) => return Err(error.into()),
        Err(error) => {
            let reason = error.to_string();
            invalidate(tx, id, &reason, now)?;
            return Ok(Some((task.definition.name, reason)));
        }
    };
    let ordered = task.definition.overlap != Overlap::Allow;
    // A repaired row counts from its repair, as one does whose schedule was changed.
    let since = if task.status == TaskStatus::Invalid { after(now, task.active_since) } else { task.active_since };
    let (status, next_run) = match (task.status, task.next_run) {
        // Set by hand, to run then.
        (TaskStatus::Active | TaskStatus::Completed, Some(at)) => (TaskStatus::Active, Some(at)),
        // Neither is undone by a change of something else, or by a request about one of its runs.
        (TaskStatus::Paused | TaskStatus::Completed, _) => (task.status, None),
        (TaskStatus::Active | TaskStatus::Invalid, _) => {
            let unfinished = open::any_unfinished(tx, id)?;
            // A run may have ended while the row waited to be looked at: a delay counts from there.
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
    blocked::derive_task(tx, id, status == TaskStatus::Paused, ordered, now)?;
    Ok(None)
}

fn newest_end(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Option<Timestamp>> {
    tx.prepare_cached(NEWEST_END)?.query_row(named_params! { ":task": task }, |row| row.get(0))
}

const INVALIDATE: &str = "
    UPDATE scheduled_tasks
       SET planned = 1, status = 'invalid', next_run = NULL, invalid_reason = :reason, paused_by = NULL, updated_at = :now
     WHERE id = :task";

/// Takes a row out of the schedule that cannot be used, and says why.
pub(crate) fn invalidate(tx: &Transaction<'_>, id: i64, reason: &str, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(INVALIDATE)?.execute(named_params! { ":task": id, ":reason": reason, ":now": now })?;
    blocked::derive_task(tx, id, true, true, now)?;
    recall(tx, id)
}
