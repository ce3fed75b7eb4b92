//! Changes, pauses and resumes tasks. A change first resolves what is due under the old state.

use rusqlite::{Transaction, named_params, params_from_iter};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::action::of_an_actor;
use crate::model::column::{Column, ColumnValue};
use crate::model::task::{Definition, Task, TaskStatus};
use crate::model::task_columns::task_columns;
use crate::rules::resolve::{self, Next, Plan};
use crate::schedule::{Schedule, ScheduleKind, Schedules};
use crate::store::fault::Fault;
use crate::store::sqlite::followers::{planned_again, resolve_before_a_change, runs_again};
use crate::store::sqlite::tasks::{SET_STATUS, after, expect, recall, rest, settle_plan, stored};
use crate::store::sqlite::{blocked, foreign_plans, marks, open, owners};

macro_rules! change {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $default:expr =>
        [$($(#[$attribute:meta])* $column:ident: $of:ty $(= .$part:ident)?),+];)+) => {
        concat!(
            "UPDATE scheduled_tasks
                SET updated_at = :now + (updated_at = :now), status = :status, next_run = :next, planned = :planned,
                    active_since = :since, invalid_reason = :reason",
            $($(", ", stringify!($column), " = :", stringify!($column),)+)+ " WHERE id = :task"
        )
    };
}

/// One statement, because triggers take two kinds of updates for changes by SQL: one of the schedule that does not change
/// active_since, and any that does not change updated_at (for which a trigger would read SQLite's clock). Hence a second
/// change in the same millisecond adds 1 to updated_at.
const CHANGE: &str = task_columns!(change);

/// Changes a stored task to another definition. Its runs stay; a schedule with the same meaning keeps next_run.
pub(crate) fn change(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    old: &Task,
    task: &Definition,
    schedule: &Schedule,
    now: Timestamp,
) -> Result<(), Fault> {
    let (mut old, was_invalid) = (old.clone(), old.status == TaskStatus::Invalid);
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
    let windows = |task: &Definition| [&task.only_between, &task.only_on, &task.except_on].map(Clone::clone);
    if let Some(next) = old.next_run.filter(|_| !same || windows(task) != windows(&old.definition)) {
        let plan = Plan::new(task, schedule.clone(), next, old.resolved_until, old.active_since);
        resolve::check_any_is_open(&plan, next)?;
    }
    let mut stored = task.clone();
    if same {
        (stored.schedule_value, stored.time_zone) = (old.definition.schedule_value, old.definition.time_zone);
    }
    let reason = old.invalid_reason.value();
    let planned = ColumnValue::Number(old.planned.into());
    let status = ColumnValue::Text(old.status.as_str());
    let given = [now.value(), status, old.next_run.value(), planned, old.active_since.value(), reason];
    let given = given.into_iter().chain(stored.values()).chain([ColumnValue::Number(old.id)]);
    tx.prepare_cached(CHANGE)?.execute(params_from_iter(given))?;
    if !same {
        foreign_plans::leave(tx, task, now)?;
    }
    // A trigger marks the task if its handler or its overlap policy has changed.
    if was_invalid && old.status != TaskStatus::Invalid {
        blocked::mark(tx, old.id)?;
    }
    marks::begin(tx, old.id, now)?;
    Ok(recall(tx, old.id)?)
}

/// The `paused_by` of a task that a user paused.
const USER: &str = "user";

/// Pauses a task after its due occurrences are resolved. Its waiting runs keep waiting, except manual runs, which may start.
/// `by`: what pauses it and why; `None` for a user.
pub(crate) fn pause(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    name: &str,
    by: Option<&str>,
    now: Timestamp,
) -> Result<(), Fault> {
    let task = expect(tx, name)?;
    match task.status {
        // The pause becomes that of the user, which no actor ends.
        TaskStatus::Paused if by.is_none() && of_an_actor(&task.paused_by) => return rest(tx, &task, USER, now),
        TaskStatus::Paused => return Ok(()),
        TaskStatus::Active => {}
        TaskStatus::Completed if runs_again(&task) => {}
        TaskStatus::Completed | TaskStatus::Invalid => return Err(refused("pause", &task)),
    }
    let task = resolve_before_a_change(tx, schedules, task, now)?;
    // Planning a row that SQL wrote may have found it invalid.
    if task.status == TaskStatus::Invalid {
        return Err(refused("pause", &task));
    }
    rest(tx, &task, by.unwrap_or(USER), now)?;
    Ok(marks::begin(tx, task.id, now)?)
}

const END_STREAK: &str = "UPDATE scheduled_tasks SET failure_count = 0 WHERE id = :task AND failure_count > 0";

/// Resumes a paused task: its schedule counts from now. Occurrences during the pause are neither run nor missed, except a
/// `once` instant; an event records the period. Resets the streak of dead runs.
pub(crate) fn resume(tx: &Transaction<'_>, schedules: &mut Schedules, name: &str, now: Timestamp) -> Result<(), Fault> {
    let task = expect(tx, name)?;
    match task.status {
        TaskStatus::Active => return Ok(()),
        TaskStatus::Completed if runs_again(&task) => return Ok(()),
        TaskStatus::Paused => {}
        TaskStatus::Invalid => return repair(tx, schedules, "resume", &task, now),
        TaskStatus::Completed => return Err(refused("resume", &task)),
    }
    let task = planned_again(tx, task, now)?;
    let schedule = task.definition.check(task.created_at, schedules)?;
    let since = after(now, task.active_since);
    let unfinished = open::any_unfinished(tx, task.id)?;
    let next = resolve::first(&Plan::new(&task.definition, schedule, now, task.resolved_until, since), unfinished);
    let (status, next_run) = stored(next, TaskStatus::Active);
    tx.prepare_cached(SET_STATUS)?.execute(named_params! {
        ":task": task.id, ":status": status, ":next": next_run, ":since": since, ":now": now, ":by": None::<&str>,
    })?;
    foreign_plans::leave(tx, &task.definition, now)?;
    tx.prepare_cached(END_STREAK)?.execute(named_params! { ":task": task.id })?;
    blocked::mark(tx, task.id)?;
    marks::begin(tx, task.id, now)?;
    recall(tx, task.id)?;
    let passed_over = || format!("occurrences from {} to {since} were passed over", task.active_since);
    // The time of a one-time task is never passed over.
    let is_once = task.definition.schedule_type == ScheduleKind::Once;
    let detail = (next != Next::OnRequest && !is_once).then(passed_over);
    owners::record(tx, now, "resumed", Some(task.id), None, detail.as_deref())?;
    Ok(())
}

/// Plans an invalid task again. Refused with the current reason if the task is still invalid.
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
