//! The unfinished runs, counted for metrics. Reads indexes of unfinished runs, however long the history is.

use std::collections::BTreeMap;

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::health::Queue;
use crate::model::limit::Limit;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{due, limit_requests, row};

/// What a waiting run may wait for.
const REASONS: [&str; 6] = ["time", "paused", "order", "key", "rate", "worker"];

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

/// Counts the unfinished runs.
pub(super) fn queue(store: &mut SqliteStore, now: Timestamp) -> Result<Queue> {
    store.read("count the waiting runs", |tx, _| {
        let mut queue = Queue { oldest_due: due::next_due(tx)?.filter(|at| *at <= now), ..Queue::default() };
        let running = |row: &rusqlite::Row<'_>| Ok((row::shown(row, 0)?, row::number(row, 1)?));
        queue.running = tx.prepare_cached(RUNNING)?.query_map([], running)?.collect::<rusqlite::Result<_>>()?;
        let mut waiting: BTreeMap<&str, u64> = BTreeMap::new();
        let mut statement = tx.prepare_cached(WAITING)?;
        let mut rows = statement.query(named_params! { ":now": now })?;
        while let Some(row) = rows.next()? {
            let (status, count): (_, u64) = (row::shown(row, 0)?, row::number(row, 2)?);
            *(if status == "failed" { &mut queue.failed } else { &mut queue.queued }) += count;
            let blocked = row::shown_if_any(row, 1)?;
            if let Some(reason) = blocked.and_then(|blocked| REASONS.into_iter().find(|one| *one == blocked)) {
                *waiting.entry(reason).or_default() += count;
                continue;
            }
            let later: u64 = row::number(row, 3)?;
            *waiting.entry("time").or_default() += later;
            *waiting.entry("worker").or_default() += count - later;
            let oldest = Some(row.get(4)?).filter(|at: &Timestamp| *at <= now);
            queue.oldest_due = queue.oldest_due.into_iter().chain(oldest).min();
        }
        let limited = limited(tx, now)?;
        *waiting.entry("rate").or_default() += limited;
        waiting.entry("worker").and_modify(|count| *count = count.saturating_sub(limited));
        queue.waiting = REASONS.map(|reason| (reason, waiting.get(reason).copied().unwrap_or_default())).into();
        Ok(queue)
    })
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
