//! Claims waiting runs that may start: most urgent first, and every eighth by age.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rusqlite::{Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::rules::start_limit::Rate;
use crate::store::fault::Fault;
use crate::store::sqlite::limits::{self, InForce, Starting};
use crate::store::sqlite::marks;
use crate::store::sqlite::open::Change;
use crate::store::sqlite::row;
use crate::store::sqlite::runs::{self, Claimable, Claimer, Wrote};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{blocked, limited};
use crate::store::turn_io::Slots;

// INDEXED BY: after an ANALYZE of an empty file SQLite would choose another index, and read all runs of other handlers.
const CLAIMABLE: &str = sql! {"
    SELECT run_at, id FROM task_runs INDEXED BY task_runs_claimable
     WHERE {claimable} AND handler = :handler AND priority = :priority AND run_at <= :now
     ORDER BY run_at LIMIT :limit"};

/// As [`CLAIMABLE`], behind a run.
const CLAIMABLE_BEHIND: &str = sql! {"
    SELECT run_at, id FROM task_runs INDEXED BY task_runs_claimable
     WHERE {claimable} AND handler = :handler AND priority = :priority AND run_at <= :now
       AND (run_at, id) > (:at, :run)
     ORDER BY run_at, id LIMIT :limit"};

/// The last run of each handler and priority that was passed over because an attempt of an earlier history holds it back.
pub(crate) type PassedRuns = BTreeMap<(i64, String), (Timestamp, i64)>;

/// For each priority, most urgent first, a list with the time of each entry, oldest first.
pub(crate) type ByPriority<T> = [Vec<(Timestamp, T)>; 4];

/// Returns runs that may start here, with their handlers, by priority, each list oldest first. Reads no run that may not start, and
/// none that was passed over.
pub(crate) fn claimable<'h>(
    tx: &Transaction<'_>,
    handlers: &'h BTreeSet<String>,
    passed: &PassedRuns,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<ByPriority<(i64, &'h str)>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut lists = [const { Vec::new() }; 4];
    let mut statement = tx.prepare_cached(CLAIMABLE)?;
    for (priority, list) in (0_i64..).zip(&mut lists) {
        for handler in handlers {
            let read = |row: &Row<'_>| Ok((row.get(0)?, (row.get(1)?, handler.as_str())));
            let behind = if passed.is_empty() { None } else { passed.get(&(priority, handler.clone())) };
            if let Some((at, run)) = behind {
                let params = named_params! {
                    ":handler": handler, ":priority": priority, ":now": now, ":limit": limit, ":at": at, ":run": run,
                };
                let mut behind = tx.prepare_cached(CLAIMABLE_BEHIND)?;
                list.extend(behind.query_map(params, read)?.collect::<rusqlite::Result<Vec<_>>>()?);
                continue;
            }
            let params = named_params! { ":handler": handler, ":priority": priority, ":now": now, ":limit": limit };
            for row in statement.query_map(params, read)? {
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

/// Claims one waiting run, if a slot admits it. The rate of its handler allows a start.
pub(crate) fn claim(cx: &mut Change<'_>, claimer: &Claimer<'_>, slots: &mut Slots, run: i64) -> Result<(), Fault> {
    let (tx, now) = (cx.tx, cx.now);
    let Some(Claimable { mut claim, may_be_old, max_starts }) = runs::claimed(tx, run, now)? else { return Ok(()) };
    if may_be_old && marks::renew(tx, run)? {
        // It may have another handler now, or wait for something.
        cx.written.renewed += 1;
        cx.written.blocked = true;
        return Ok(claim.concurrency_key.map_or(Ok(()), |key| blocked::derive_key(tx, key, now))?);
    }
    if cx.written.relists() {
        return Ok(());
    }
    let key = claim.concurrency_key.as_deref();
    let rate = max_starts.as_deref().map(Rate::parse).transpose()?;
    let starting = Starting { handler: &claim.handler, key, task: claim.task_id, rate };
    if cx.written.limits.is_closed(tx, &starting, now)? {
        cx.written.postponed += 1;
        cx.written.blocked = true;
        blocked::await_start(tx, run, key, now)?;
        return Ok(limited::record_wait(tx, claim.task_id, run, now)?);
    }
    let subjects = cx.written.limits.subjects(tx, &starting)?;
    if !slots.admits(&claim.retry) || !limits::admit(&subjects, slots) {
        // It waits for an idle worker. If later runs were read ahead meanwhile, no worker would ever be idle.
        slots.room = 0;
        return Ok(());
    }
    // Another handler's run with the same key may have been claimed in this turn, or another program wrote the row: the reason is
    // derived again.
    let place = cx.written.limits.place(tx, key, now)?;
    if runs::claim(tx, run, claimer, (place, slots.started(now)), now)? == Wrote::Superseded {
        return Ok(blocked::place(tx, run, key, now)?);
    }
    let begins_by = cx.written.limits.record_start(tx, &subjects, slots, now)?;
    claim.attempt += 1;
    claim.read_ahead = slots.take();
    match key {
        // If no run is blocked, no run waits behind a task's own key.
        Some(key) if cx.written.blocked || !key.starts_with('#') => blocked::derive_key(tx, key, now)?,
        _ => {}
    }
    if rate.is_some() && cx.written.blocked {
        cx.written.released += usize::from(blocked::release_next(tx, claim.task_id, now)?);
    }
    claim.begins_by = begins_by;
    cx.written.claims.push(Arc::new(claim));
    Ok(())
}

/// Merges four lists into one, most urgent first; every eighth is the oldest of all, so that urgent ones cannot starve the
/// others. `counter` counts those taken, and continues from turn to turn.
pub(crate) fn by_urgency<T>(lists: ByPriority<T>, counter: &mut u64) -> ByUrgency<'_, T> {
    ByUrgency { lists: lists.map(VecDeque::from), counter }
}

/// What [`by_urgency`] returns.
pub(crate) struct ByUrgency<'a, T> {
    lists: [VecDeque<(Timestamp, T)>; 4],
    counter: &'a mut u64,
}

impl<T> ByUrgency<'_, T> {
    /// Does not count the last one, which was not taken.
    pub(crate) fn discount(&mut self) {
        *self.counter = self.counter.wrapping_sub(1);
    }

    /// Keeps what `may` accepts. What is dropped is not counted.
    pub(crate) fn retain(&mut self, may: impl Fn(&T) -> bool) {
        self.lists.iter_mut().for_each(|list| list.retain(|(_, one)| may(one)));
    }
}

impl<T: Copy + Ord> Iterator for ByUrgency<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let mut lists = self.lists.iter_mut().filter(|list| !list.is_empty());
        let list = if self.counter.wrapping_add(1).is_multiple_of(8) {
            lists.min_by_key(|list| list.front().copied())
        } else {
            lists.next()
        };
        let (_, next) = list?.pop_front()?;
        *self.counter = self.counter.wrapping_add(1);
        Some(next)
    }
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

    #[test]
    fn what_is_dropped_is_not_counted() {
        let at = Timestamp::from_millis;
        let mut counter = 6;
        let mut order =
            by_urgency([vec![(at(5), 1), (at(6), 2)], vec![(at(1), 3)], vec![(at(2), 4)], vec![]], &mut counter);
        assert_eq!(order.next(), Some(1));
        order.retain(|one| *one != 3);
        assert_eq!(order.collect::<Vec<_>>(), [4, 2], "the eighth is the oldest that is left");
    }
}
