//! Plans of local times by other zone data than that of this process.
//!
//! Local times are planned by the zone data of schedulers. A client with other data leaves them to a scheduler; a scheduler that starts
//! plans all of them by its own ([`replan`](crate::store::sqlite::replan)); and of two that run with different data, each checks the plans
//! of the other when they are due.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::model::task::Definition;
use crate::rules::resolve::{self, Plan};
use crate::schedule::{has_fixed_meaning, zone_data};
use crate::store::sqlite::row;
use crate::store::sqlite::sql::sql;

const ZONE_DATA: &str = "SELECT value FROM scheduler_meta WHERE key = 'zone_data'";

/// Returns the zone data of the scheduler that started last.
pub(crate) fn recorded(tx: &Transaction<'_>) -> rusqlite::Result<Option<String>> {
    tx.prepare_cached(ZONE_DATA)?.query_row([], |row| row.get(0)).optional()
}

const LEAVE: &str = sql! {"
    UPDATE scheduled_tasks SET planned = 0, next_run = NULL
     WHERE name = :name AND {active_planned} AND next_run > :now AND {local_time}"};

/// Leaves a task that a client has planned to the schedulers, if their zone data is another. Returns whether it does.
pub(crate) fn leave(tx: &Transaction<'_>, task: &Definition, now: Timestamp) -> rusqlite::Result<bool> {
    if has_fixed_meaning(&task.time_zone) || recorded(tx)?.is_none_or(|recorded| zone_data().is_as(&recorded)) {
        return Ok(false);
    }
    let left = tx.prepare_cached(LEAVE)?.execute(named_params! { ":name": task.name, ":now": now })?;
    Ok(left > 0)
}

const ZONE_DATA_OF_OTHERS: &str =
    "SELECT zone_data FROM scheduler_instances WHERE stopped_at IS NULL AND zone_data IS NOT NULL";

/// Checks the plan of a due task that a scheduler with other zone data may have made: sets when it is due by the zone data of this
/// process. Returns whether it is due now.
pub(crate) fn check(tx: &Transaction<'_>, task: i64, plan: &mut Plan, now: Timestamp) -> rusqlite::Result<bool> {
    // Else SQL has set next_run.
    let by_others = |tx: &Transaction<'_>| {
        let mut statement = tx.prepare_cached(ZONE_DATA_OF_OTHERS)?;
        let others = statement.query_map([], |row| row::shown(row, 0))?.collect::<rusqlite::Result<Vec<_>>>()?;
        Ok::<_, rusqlite::Error>(others.iter().any(|other| !zone_data().is_as(other)))
    };
    if !plan.schedule.may_be_of_other_zone_data(plan.next_run) || !by_others(tx)? {
        return Ok(true);
    }
    let Some(next) = resolve::planned_anew(plan) else { return Ok(true) };
    plan.next_run = next;
    if next > now {
        set(tx, task, Some(next))?;
    }
    Ok(next <= now)
}

const UNPLAN: &str = "UPDATE scheduled_tasks SET planned = 0, next_run = NULL WHERE id = :task";

const SET_PLAN: &str = "UPDATE scheduled_tasks SET planned = 1, next_run = :next WHERE id = :task";

/// Sets when a task is due; `None`: the next turn plans it.
pub(crate) fn set(tx: &Transaction<'_>, task: i64, next: Option<Timestamp>) -> rusqlite::Result<()> {
    // In two steps, neither of which the triggers take for a move of the task by SQL.
    tx.prepare_cached(UNPLAN)?.execute(named_params! { ":task": task })?;
    let Some(next) = next else { return Ok(()) };
    tx.prepare_cached(SET_PLAN)?.execute(named_params! { ":task": task, ":next": next }).map(drop)
}
