//! The unfinished runs, counted for metrics. Reads indexes of unfinished runs, however long the history is.

use std::collections::BTreeMap;

use rusqlite::{Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::health::Queue;
use crate::model::limit::Limit;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{due, limit_requests, row};

/// What a waiting run may wait for.
const REASONS: [&str; 7] = ["time", "paused", "order", "starts", "key", "rate", "worker"];

const RUNNING: &str = "
    SELECT ifnull(locked_by, ''), count(*) FROM task_runs INDEXED BY task_runs_running WHERE status = 'running' GROUP BY locked_by";

const WAITING: &str = sql! {"
    SELECT status, blocked, count(*), sum(run_at > :now), min(run_at)
      FROM task_runs INDEXED BY task_runs_waiting
     WHERE {waiting} GROUP BY blocked, status"};

/// + run_at: with statistics SQLite would skip through the index of all handlers.
const LIMITED: &str = sql! {"
    SELECT count(*) FROM task_runs INDEXED BY task_runs_claimable
     WHERE {claimable} AND handler = :handler AND +run_at <= :now"};

/// Waiting runs with the same status and reason.
pub(crate) struct Group {
    pub(crate) is_failed: bool,
    pub(crate) blocked: Option<String>,
    pub(crate) count: u64,
    /// Those that are not due yet.
    pub(crate) later: u64,
    /// When the first of them was or is due.
    pub(crate) oldest: Timestamp,
}

/// Counts the unfinished runs.
pub(super) fn queue(store: &mut SqliteStore, now: Timestamp) -> Result<Queue> {
    store.read("count the waiting runs", |tx, _| {
        let running = |row: &Row<'_>| Ok((row::shown(row, 0)?, row::number(row, 1)?));
        let running = tx.prepare_cached(RUNNING)?.query_map([], running)?.collect::<rusqlite::Result<_>>()?;
        let group = |row: &Row<'_>| {
            Ok(Group {
                is_failed: row::shown(row, 0)? == "failed",
                blocked: row::shown_if_any(row, 1)?,
                count: row::number(row, 2)?,
                later: row::number(row, 3)?,
                oldest: row.get(4)?,
            })
        };
        let groups = row::all(tx, WAITING, named_params! { ":now": now }, group)?;
        Ok(sum(running, groups, limited(tx, now)?, due::next_due(tx)?, now))
    })
}

/// Sums up the runs: those that run, by owner, and those that wait. `limited`: of the latter, those that only a rate keeps.
/// `next_due`: when the next task is due.
pub(crate) fn sum(
    running: Vec<(String, u64)>,
    groups: Vec<Group>,
    limited: u64,
    next_due: Option<Timestamp>,
    now: Timestamp,
) -> Queue {
    let mut queue = Queue { oldest_due: next_due.filter(|at| *at <= now), running, ..Queue::default() };
    let mut waiting: BTreeMap<&str, u64> = BTreeMap::new();
    for Group { is_failed, blocked, count, later, oldest } in groups {
        *(if is_failed { &mut queue.failed } else { &mut queue.queued }) += count;
        if let Some(reason) = blocked.and_then(|blocked| REASONS.into_iter().find(|one| *one == blocked)) {
            *waiting.entry(reason).or_default() += count;
            continue;
        }
        *waiting.entry("time").or_default() += later;
        *waiting.entry("worker").or_default() += count - later;
        queue.oldest_due = queue.oldest_due.into_iter().chain(Some(oldest).filter(|at| *at <= now)).min();
    }
    *waiting.entry("rate").or_default() += limited;
    waiting.entry("worker").and_modify(|count| *count = count.saturating_sub(limited));
    queue.waiting = REASONS.map(|reason| (reason, waiting.get(reason).copied().unwrap_or_default())).into();
    queue
}

/// Counts the runs that only the rate limit of their handler keeps from starting.
fn limited(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<u64> {
    let mut count = 0;
    for state in limit_requests::states(tx, now)?.into_iter().filter(|state| state.next_start.is_some()) {
        let Limit::Rate { handler, .. } = state.limit else { continue };
        let parameters = named_params! { ":handler": handler, ":now": now };
        count += tx.prepare_cached(LIMITED)?.query_row(parameters, |row| row::number::<u64>(row, 0))?;
    }
    Ok(count)
}
