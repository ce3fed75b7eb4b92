//! Claims waiting runs that may start: most urgent first, and every eighth by age.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;
use crate::store::fault::Fault;
use crate::store::sqlite::blocked;
use crate::store::sqlite::limits::InForce;
use crate::store::sqlite::open::Change;
use crate::store::sqlite::row;
use crate::store::sqlite::runs::{self, Claimer, Wrote};
use crate::store::sqlite::sql::sql;
use crate::store::turn_io::Slots;

// INDEXED BY: after an ANALYZE of an empty file SQLite would choose another index, and read all runs of other handlers.
const CLAIMABLE: &str = sql! {"
    SELECT run_at, id FROM task_runs INDEXED BY task_runs_claimable
     WHERE {claimable} AND handler = :handler AND priority = :priority AND run_at <= :now
     ORDER BY run_at LIMIT :limit"};

/// Returns runs that may start here, by priority, each list oldest first. Reads no run that may not start.
pub(crate) fn claimable(
    tx: &Transaction<'_>,
    handlers: &BTreeSet<String>,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<[Vec<(Timestamp, i64)>; 4]> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut lists = [const { Vec::new() }; 4];
    let mut statement = tx.prepare_cached(CLAIMABLE)?;
    for (priority, list) in (0_i64..).zip(&mut lists) {
        for handler in handlers {
            let rows = statement.query_map(
                named_params! { ":handler": handler, ":priority": priority, ":now": now, ":limit": limit },
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            for row in rows {
                list.push(row?);
            }
        }
        list.sort_unstable();
    }
    Ok(lists)
}

const ANY_CLAIMABLE: &str = sql! {"
SELECT EXISTS (SELECT 1 FROM task_runs INDEXED BY task_runs_claimable WHERE {claimable} AND handler > '')"};

// One statement for all priorities: starting a statement costs more than the search.
const NEXT_CLAIMABLE: &str = sql! {"
    SELECT (SELECT run_at FROM task_runs INDEXED BY task_runs_claimable
             WHERE {claimable} AND handler = :handler AND priority = 0 ORDER BY run_at LIMIT 1),
           (SELECT run_at FROM task_runs INDEXED BY task_runs_claimable
             WHERE {claimable} AND handler = :handler AND priority = 1 ORDER BY run_at LIMIT 1),
           (SELECT run_at FROM task_runs INDEXED BY task_runs_claimable
             WHERE {claimable} AND handler = :handler AND priority = 2 ORDER BY run_at LIMIT 1),
           (SELECT run_at FROM task_runs INDEXED BY task_runs_claimable
             WHERE {claimable} AND handler = :handler AND priority = 3 ORDER BY run_at LIMIT 1)"};

/// Returns when the next waiting run of a handler is due.
fn next_of(tx: &Transaction<'_>, handler: &str) -> rusqlite::Result<Option<Timestamp>> {
    let params = named_params! { ":handler": handler };
    Ok(tx.prepare_cached(NEXT_CLAIMABLE)?.query_row(params, row::of_each_priority)?.into_iter().flatten().min())
}

/// In most turns no run of any handler waits.
fn none_waits(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_CLAIMABLE)?.query_row([], |row| row.get(0)).map(|waits: bool| !waits)
}

/// Returns whether a waiting run may start here, of a handler whose rate allows it. Runs that become due are then queued behind it.
pub(crate) fn any(tx: &Transaction<'_>, handlers: &BTreeSet<String>, now: Timestamp) -> rusqlite::Result<bool> {
    if none_waits(tx)? {
        return Ok(false);
    }
    for handler in handlers {
        if next_of(tx, handler)?.is_some_and(|next| next <= now) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns when the next waiting run may start here: when it is due and the rate of its handler allows it.
pub(crate) fn next(
    tx: &Transaction<'_>,
    limits: &InForce,
    handlers: &BTreeSet<String>,
) -> rusqlite::Result<Option<Timestamp>> {
    let mut earliest = None;
    if none_waits(tx)? {
        return Ok(earliest);
    }
    for handler in handlers {
        if let Some(next) = next_of(tx, handler)? {
            let starts = next.max(limits.opens_at(tx, handler)?.unwrap_or(next));
            earliest = earliest.into_iter().chain([starts]).min();
        }
    }
    Ok(earliest)
}

/// Claims one waiting run, if a slot admits it.
pub(crate) fn claim(cx: &mut Change<'_>, claimer: &Claimer<'_>, slots: &mut Slots, run: i64) -> Result<(), Fault> {
    let (tx, now) = (cx.tx, cx.now);
    let Some(mut claim) = runs::claimed(tx, run, now)? else { return Ok(()) };
    let limits = &cx.written.limits;
    // The runs before it may have reached the rate of its handler.
    if !limits.is_open(tx, &claim.handler, now)? {
        return Ok(());
    }
    if !slots.admits(&claim.retry) || !limits.admit(slots, &claim.handler) {
        // It waits for an idle worker. If later runs were read ahead meanwhile, no worker would ever be idle.
        slots.room = 0;
        return Ok(());
    }
    let key = claim.concurrency_key.as_deref();
    // Another handler's run with the same key may have been claimed in this turn, or another program wrote the row: the reason is
    // derived again.
    let place = limits.place(tx, key)?;
    if runs::claim(tx, run, claimer, (place, slots.started(now)), now)? == Wrote::Superseded {
        return Ok(blocked::place(tx, run, key, now)?);
    }
    limits.record_start(tx, &claim.handler, now)?;
    claim.attempt += 1;
    claim.read_ahead = slots.take();
    match key {
        // If no run is blocked, no run waits behind a task's own key.
        Some(key) if cx.written.blocked || !key.starts_with('#') => blocked::derive_key(tx, key, now)?,
        _ => {}
    }
    cx.written.claims.push(Arc::new(claim));
    Ok(())
}

/// Merges four lists into one, most urgent first; every eighth run is the oldest of all, so that urgent runs cannot starve the
/// others. `counter` counts the runs taken, and continues from turn to turn.
pub(crate) fn by_urgency<'a>(
    lists: [Vec<(Timestamp, i64)>; 4],
    counter: &'a mut u64,
) -> impl Iterator<Item = i64> + use<'a> {
    let mut lists = lists.map(|list| list.into_iter().peekable());
    std::iter::from_fn(move || {
        let next = if counter.wrapping_add(1).is_multiple_of(8) {
            let heads = lists.iter_mut().filter_map(|list| list.peek().copied().map(|head| (head, list)));
            heads.min_by_key(|(head, _)| *head).and_then(|(_, list)| list.next())
        } else {
            lists.iter_mut().find_map(Iterator::next)
        };
        let (_, id) = next?;
        *counter = counter.wrapping_add(1);
        Some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::by_urgency;
    use crate::clock::Timestamp;

    #[test]
    fn urgent_first_and_every_eighth_by_age() {
        let list = |ids: std::ops::Range<i64>| ids.map(|id| (Timestamp::from_millis(id), id)).collect::<Vec<_>>();
        let mut counter = 0;
        let order: Vec<i64> = by_urgency([list(100..112), vec![], list(1..4), vec![]], &mut counter).collect();
        assert_eq!(order, [100, 101, 102, 103, 104, 105, 106, 1, 107, 108, 109, 110, 111, 2, 3]);
        assert_eq!(counter, 15, "the count continues in the next turn");
    }
}
