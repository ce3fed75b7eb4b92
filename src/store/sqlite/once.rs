//! Starts the runs of due `once` tasks and completes the tasks: all tasks of a turn together, in two statements.
//!
//! With one statement per task, half of the time goes to statement start and end and to the triggers of the task's row.

use std::sync::Arc;

use rusqlite::{Transaction, params};

use crate::error::Error;
use crate::model::run::{Claim, Origin};
use crate::store::fault::Fault;
use crate::store::sqlite::first_claim::UNNUMBERED;
use crate::store::sqlite::open::{self, Change, Once};
use crate::store::sqlite::row;
use crate::store::sqlite::runs::Claimer;

/// (due) -> running, for the tasks that the rules have decided to start now; `next_run` is the only occurrence. An occurrence
/// that already has a row gets no second one.
const START_ALL: &str = "
    INSERT INTO task_runs (task_id, handler, scheduled_for, origin, status, run_at, priority, concurrency_key,
                           attempt, locked_by, locked_until, started_at)
    SELECT t.id, t.handler, t.next_run, ?5, 'running', t.next_run, t.priority,
           iif(t.overlap = 'allow', NULL, '#' || t.id), 1, ?1, ?2, iif(place.rowid <= ?6, ?3, NULL)
      FROM rarray(?4) place CROSS JOIN scheduled_tasks t ON t.id = place.value
     WHERE true
    ON CONFLICT DO NOTHING";

/// `next_run` is the only occurrence, which was resolved. `?1` and `?2`: the smallest and the largest of the ids.
// likely: after an ANALYZE of few rows SQLite would read all tasks, or all from the first on. It reads at most this range.
const COMPLETE_ALL: &str = "
    UPDATE scheduled_tasks NOT INDEXED
       SET resolved_until = iif(resolved_until > next_run, resolved_until, next_run), next_run = NULL, status = 'completed',
           updated_at = ?3
     WHERE likely(id >= ?1) AND id <= ?2 AND id IN (SELECT value FROM rarray(?4))";

/// As [`COMPLETE_ALL`], for consecutive ids: a list costs a fifteenth of the statement.
const COMPLETE_SPAN: &str = "
    UPDATE scheduled_tasks NOT INDEXED
       SET resolved_until = iif(resolved_until > next_run, resolved_until, next_run), next_run = NULL, status = 'completed',
           updated_at = ?3
     WHERE likely(id >= ?1) AND id <= ?2";

/// Starts and completes the `once` tasks that were resolved, and stores the id of each run with its claim.
pub(crate) fn finish(cx: &mut Change<'_>, claimer: Option<&Claimer<'_>>) -> Result<(), Fault> {
    let Once { starting, completed } = std::mem::take(&mut cx.written.once);
    if let Some(claimer) = claimer.filter(|_| !starting.is_empty()) {
        let (late, in_time): (Vec<_>, Vec<_>) =
            starting.into_iter().partition(|place| cx.written.claims[*place].origin == Origin::CatchUp);
        start(cx, claimer, Origin::Schedule, &in_time)?;
        start(cx, claimer, Origin::CatchUp, &late)?;
        cx.written.claims.retain(|claim| claim.run_id != UNNUMBERED);
    }
    if let [first, .., last] = completed[..]
        && completed.iter().copied().eq(first..=last)
    {
        cx.tx.prepare_cached(COMPLETE_SPAN)?.execute(params![first, last, cx.now])?;
    } else if let (Some(first), Some(last)) = (completed.iter().min(), completed.iter().max()) {
        let params = params![first, last, cx.now, row::list(completed.iter().copied())];
        cx.tx.prepare_cached(COMPLETE_ALL)?.execute(params)?;
    }
    Ok(())
}

/// Ids may have gaps: each occurrence that already has a row uses one up.
const NEWEST: &str = "SELECT ifnull(max(id), 0) FROM task_runs";

const STARTED: &str = "SELECT task_id, id FROM task_runs WHERE id > ?1 ORDER BY id";

/// Returns whether the runs with ids above `before` are those of these claims.
fn are_in_order<'c>(
    tx: &Transaction<'_>,
    before: i64,
    claims: impl Iterator<Item = &'c Claim>,
) -> rusqlite::Result<bool> {
    let mut statement = tx.prepare_cached(STARTED)?;
    let started = statement.query_map([before], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(started.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?.into_iter().eq(claims.map(|of| (of.task_id, of.run_id))))
}

/// Opens and claims the runs of one origin.
fn start(cx: &mut Change<'_>, claimer: &Claimer<'_>, origin: Origin, places: &[usize]) -> Result<(), Fault> {
    let (tx, now, claims) = (cx.tx, cx.now, &mut cx.written.claims);
    if places.is_empty() {
        return Ok(());
    }
    let tasks = row::list(places.iter().map(|place| claims[*place].task_id));
    // Idle workers start the first of them immediately; the others are read ahead.
    let at_once = places.iter().filter(|place| !claims[**place].read_ahead).count();
    let at_once = i64::try_from(at_once).unwrap_or(i64::MAX);
    let params = params![claimer.owner, claimer.until, now, tasks, origin, at_once];
    let before: i64 = tx.prepare_cached(NEWEST)?.query_row([], |row| row.get(0))?;
    let started = tx.prepare_cached(START_ALL)?.execute(params)?;
    if started == places.len() && i64::try_from(started) == Ok(tx.last_insert_rowid() - before) {
        // All of them, and nothing else: their ids follow one another, in the order of the list.
        places.iter().zip(before + 1..).for_each(|(place, id)| Arc::make_mut(&mut claims[*place]).run_id = id);
        debug_assert!(are_in_order(tx, before, places.iter().map(|place| &*claims[*place]))?);
        return Ok(());
    }
    let mut statement = tx.prepare_cached(STARTED)?;
    let mut rows = statement.query([before])?;
    let mut next = || -> rusqlite::Result<Option<(i64, i64)>> {
        rows.next()?.map(|row| Ok((row.get(0)?, row.get(1)?))).transpose()
    };
    // In the order of the list, without the occurrences that already had a row.
    let mut run = next()?;
    for place in places {
        let claim = Arc::make_mut(&mut claims[*place]);
        match run {
            Some((task, id)) if task == claim.task_id => {
                claim.run_id = id;
                run = next()?;
            }
            _ => open::already(tx, claim.task_id, claim.scheduled_for, now)?,
        }
    }
    match run {
        None => Ok(()),
        // A run without a claim would stay running. The turn is repeated with one run at a time.
        Some((_, id)) => Err(Error::store("start what is due", format!("run {id} was not in its place")).into()),
    }
}
