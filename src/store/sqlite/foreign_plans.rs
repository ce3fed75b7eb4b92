//! Plans of local times by other rules of a time zone than those of this process.
//!
//! Local times are planned by the rules of schedulers, of which a row of `scheduler_meta` for each zone holds a digest. A client with other
//! rules leaves them to a scheduler; a scheduler that starts plans all of them by its own ([`replan`](crate::store::sqlite::replan)); and
//! of two that run with different rules, each checks the plans of the other when they are due.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::model::task::Definition;
use crate::rules::resolve::{self, Plan};
use crate::schedule::rules_of;
use crate::store::sqlite::row;
use crate::store::sqlite::sql::sql;

const ZONE_RULES: &str = "SELECT value FROM scheduler_meta WHERE key = 'zone_rules:' || :zone";

/// Returns by which rules the tasks of a zone are planned: a digest, and after it those of other running
/// schedulers with other rules, each with its owner.
pub(crate) fn recorded(tx: &Transaction<'_>, zone: &str) -> rusqlite::Result<Option<String>> {
    let shown = |row: &rusqlite::Row<'_>| row::shown(row, 0);
    tx.prepare_cached(ZONE_RULES)?.query_row(named_params! { ":zone": zone }, shown).optional()
}

/// Returns whether the first of the recorded rules are these.
pub(crate) fn is_first(recorded: &str, rules: &str) -> bool {
    recorded.split(' ').next() == Some(rules)
}

const LEAVE: &str = sql! {"
    UPDATE scheduled_tasks SET planned = 0, next_run = NULL
     WHERE name = :name AND {active_planned} AND next_run > :now AND {local_time}"};

/// Leaves a task that a client has planned to the schedulers, if they plan its zone by other rules. Returns whether it does. If none has
/// planned the zone yet, the first that does so plans the task again.
pub(crate) fn leave(tx: &Transaction<'_>, task: &Definition, now: Timestamp) -> rusqlite::Result<bool> {
    let Some(rules) = rules_of(&task.time_zone) else { return Ok(false) };
    if recorded(tx, &task.time_zone)?.is_none_or(|recorded| is_first(&recorded, &rules)) {
        return Ok(false);
    }
    let left = tx.prepare_cached(LEAVE)?.execute(named_params! { ":name": task.name, ":now": now })?;
    Ok(left > 0)
}

/// Checks the plan of a due task that a scheduler with other rules may have made: sets when it is due by the rules of this process.
/// Returns whether it is due now.
pub(crate) fn check(tx: &Transaction<'_>, task: i64, plan: &mut Plan, now: Timestamp) -> rusqlite::Result<bool> {
    let Some(zone) = plan.schedule.contradicting_zone(plan.next_run) else { return Ok(true) };
    let recorded = recorded(tx, zone)?;
    if recorded.is_none() || recorded == rules_of(zone) {
        // SQL has set next_run.
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
