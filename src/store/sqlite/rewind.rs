//! Plans tasks and waiting runs again that a wrong clock had planned. An occurrence that already has a row does not run again.
//!
//! There may be any number of them, so a mark is written at once (`clock_mark` in `scheduler_meta`): since when all counts anew, and how
//! far turns have come. They correct the starts of rate limits, then the tasks, then the waiting runs, in batches. A row that was corrected,
//! or written since by the right clock, is left as it is: so a task that falls due before the mark has reached it is corrected first.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Transaction, named_params};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::model::event::Event;
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{marks, owners, row};

/// A `once` task keeps its time, and runs if its occurrence is not resolved: a next_run that a user has set since the step back
/// is not resolved. The grid of an interval may begin at created_at. What the right clock has resolved or changed since is planned by it,
/// except a `delay`, which may count from an end by the wrong one. What has become due since is due.
const TASKS: &str = "
    UPDATE scheduled_tasks NOT INDEXED
       SET planned = 0, next_run = iif(schedule_type = 'once' OR (next_run > :since AND next_run <= :now), next_run, NULL),
           resolved_until = iif(schedule_type = 'once', min(resolved_until, :since, ifnull(next_run - 1, :since)), :since),
           active_since = iif(active_since > :now, :since, active_since),
           created_at = iif(created_at > :now, :since, created_at)
     WHERE id IN (SELECT value FROM rarray(:rows))
       AND ((status = 'active' AND schedule_type <> 'once'
             AND (schedule_type = 'delay' OR :now = :since
                  OR (ifnull(resolved_until, 0) NOT BETWEEN :since AND :now AND active_since NOT BETWEEN :since AND :now)))
            OR active_since > :now OR created_at > :now OR resolved_until > :now
            OR (schedule_type = 'once' AND next_run <= resolved_until))";

/// Otherwise no later run would be the newest of its task.
const LAST_RUNS: &str = "
    UPDATE scheduled_tasks NOT INDEXED SET last_run = :since WHERE last_run > :now AND id IN (SELECT value FROM rarray(:rows))";

/// Tasks that the wrong clock completed become active again, within their bounds; a task that has really ended completes again
/// when it is planned. A completed `once` task has run. If active_since stayed the same, a trigger would set it from SQLite's
/// clock.
const ENDED: &str = "
    UPDATE scheduled_tasks NOT INDEXED
       SET status = 'active', planned = 0, next_run = NULL, resolved_until = :since,
           active_since = :since + (active_since = :since), created_at = iif(created_at > :now, :since, created_at)
     WHERE status = 'completed' AND schedule_type <> 'once' AND (ends_at IS NULL OR ends_at > :since)
       AND (:now = :since OR ifnull(resolved_until, 0) NOT BETWEEN :since AND :now)
       AND id IN (SELECT value FROM rarray(:rows))";

/// A run_at that was computed from the wrong clock is computed again: the backoff of a retry, the jitter of an occurrence begin when the
/// clock was found wrong. A run that was claimed and returned has waited already. A run_at computed from an earlier time stays.
/// If the wrong clock recorded the end, and a later clock computed the run_at, the wait is at most the longest backoff.
const WAITING: &str = sql! {"
    UPDATE task_runs NOT INDEXED
       SET run_at = CASE WHEN status = 'queued' THEN :since + iif(attempt = 0, max(run_at - scheduled_for, 0), 0)
                         WHEN run_at >= finished_at THEN :since + run_at - finished_at
                         ELSE min(run_at, :since + (SELECT backoff_cap_ms FROM scheduled_tasks t WHERE t.id = task_id))
                     END
     WHERE {waiting} AND run_at > :now
       AND CASE WHEN status = 'failed' THEN finished_at WHEN attempt = 0 THEN scheduled_for ELSE run_at END > :now
       AND id IN (SELECT value FROM rarray(:rows))"};

/// Otherwise the next start would take the clock for wrong again.
const INSTANCES: &str = "
    UPDATE scheduler_instances
       SET seen_at = min(seen_at, :now), started_at = min(started_at, :now), stopped_at = min(stopped_at, :now)
     WHERE seen_at > :now OR stopped_at > :now";

/// A start in the future would count until the clock has reached it.
const STARTS: &str = "
    UPDATE rate_limit_starts SET started_at = :since
     WHERE (handler, number) > (:handler, :number) AND (handler, number) <= (:last_handler, :last_number) AND started_at > :now";

/// Returns whether a heartbeat is ahead of the clock. If not, another scheduler has found the clock wrong already: occurrences that
/// became due since would be lost.
pub(crate) fn is_ahead(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<bool> {
    Ok(owners::newest_seen(tx)?.is_some_and(|newest| newest > now))
}

/// Begins to plan all again from now on: corrects the heartbeats, records the skipped time in an event, and writes the mark.
pub(crate) fn begin(tx: &Transaction<'_>, believed: Timestamp, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(INSTANCES)?.execute(named_params! { ":now": now })?;
    // All tasks are planned again: what an earlier turn could not write is among them.
    set(tx, "misplanned", None::<&Misplanned>)?;
    set_mark(tx, &ClockMark { since: now, at: Place::Starts(String::new(), 0) })?;
    let detail = Event::ClockWasWrong { believed, found: now }.to_string();
    owners::record(tx, now, "clock_wrong", None, None, Some(&detail))
}

/// How far turns have corrected what a wrong clock had planned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClockMark {
    /// When the clock was found wrong: all counts from then.
    pub(crate) since: Timestamp,
    pub(crate) at: Place,
}

/// The last row that was corrected. The phases follow each other in this order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Place {
    /// A start of a handler with a rate limit.
    Starts(String, i64),
    Tasks(i64),
    /// A task, and how far its unfinished runs are corrected, as in its column `marked`.
    Runs(i64, i64),
    End,
}

/// The next rows behind a place.
pub(crate) enum Batch {
    /// Behind the first of these starts, up to the second.
    Starts((String, i64), (String, i64)),
    Tasks(Vec<i64>),
    Runs(Vec<i64>),
}

impl ClockMark {
    /// Returns whether a task is not corrected yet.
    pub(crate) fn covers(&self, task: i64) -> bool {
        match self.at {
            Place::Starts(..) => true,
            Place::Tasks(after) => task > after,
            Place::Runs(..) | Place::End => false,
        }
    }

    /// Returns the next rows of one phase, at most `most`, and their number, and moves the mark behind them.
    pub(crate) fn next(&mut self, tx: &Transaction<'_>, most: usize) -> rusqlite::Result<Option<(Batch, usize)>> {
        let (batch, found, behind, next_phase) = match &self.at {
            Place::Starts(handler, number) => {
                let first = (handler.clone(), *number);
                let (found, last) = next_starts(tx, &first, most)?;
                let behind = Place::Starts(last.0.clone(), last.1);
                (Batch::Starts(first, last), found, behind, Place::Tasks(i64::MIN))
            }
            Place::Tasks(after) => {
                let tasks = next_tasks(tx, *after, most)?;
                let (found, last) = (tasks.len(), tasks.last().copied().unwrap_or(*after));
                (Batch::Tasks(tasks), found, Place::Tasks(last), Place::Runs(i64::MIN, 0))
            }
            Place::Runs(task, mark) => {
                let (runs, (task, mark)) = next_runs(tx, (*task, *mark), most)?;
                let found = runs.len();
                (Batch::Runs(runs), found, Place::Runs(task, mark), Place::End)
            }
            Place::End => return Ok(None),
        };
        self.at = if found == most { behind } else { next_phase };
        Ok(Some((batch, found)))
    }
}

const CLOCK_MARK: &str = "SELECT CAST(value AS BLOB) FROM scheduler_meta WHERE key = 'clock_mark'";

/// Returns how far turns have come; `None`: nothing is to be corrected.
pub(crate) fn mark(tx: &Transaction<'_>) -> rusqlite::Result<Option<ClockMark>> {
    let value: Option<Vec<u8>> = tx.prepare_cached(CLOCK_MARK)?.query_row([], |row| row.get(0)).optional()?;
    // Something that another program wrote counts as the end.
    let end = || ClockMark { since: Timestamp::MIN, at: Place::End };
    Ok(value.map(|value| serde_json::from_slice(&value).unwrap_or_else(|_| end())))
}

/// Stores how far turns have come.
pub(crate) fn set_mark(tx: &Transaction<'_>, mark: &ClockMark) -> rusqlite::Result<()> {
    set(tx, "clock_mark", Some(mark).filter(|mark| !matches!(mark.at, Place::End)))
}

const SET: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = :value";

const UNSET: &str = "DELETE FROM scheduler_meta WHERE key = :key";

fn set(tx: &Transaction<'_>, key: &str, value: Option<&impl Serialize>) -> rusqlite::Result<()> {
    let Some(value) = value else {
        return tx.prepare_cached(UNSET)?.execute(named_params! { ":key": key }).map(drop);
    };
    let value = serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    tx.prepare_cached(SET)?.execute(named_params! { ":key": key, ":value": value }).map(drop)
}

const NEXT_STARTS: &str = "
    SELECT handler, number FROM rate_limit_starts WHERE (handler, number) > (:handler, :number)
     ORDER BY handler, number LIMIT :limit";

/// Returns how many starts follow one, at most `most`, and the last of them.
fn next_starts(tx: &Transaction<'_>, after: &(String, i64), most: usize) -> rusqlite::Result<(usize, (String, i64))> {
    let mut statement = tx.prepare_cached(NEXT_STARTS)?;
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    let mut rows = statement.query(named_params! { ":handler": after.0, ":number": after.1, ":limit": limit })?;
    let (mut found, mut last) = (0, after.clone());
    while let Some(row) = rows.next()? {
        (found, last) = (found + 1, (row::shown(row, 0)?, row.get(1)?));
    }
    Ok((found, last))
}

const NEXT_TASKS: &str = "SELECT id FROM scheduled_tasks WHERE id > :after ORDER BY id LIMIT :limit";

fn next_tasks(tx: &Transaction<'_>, after: i64, most: usize) -> rusqlite::Result<Vec<i64>> {
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    let params = named_params! { ":after": after, ":limit": limit };
    tx.prepare_cached(NEXT_TASKS)?.query_map(params, |row| row.get(0))?.collect()
}

const NEXT_WITH_RUNS: &str = sql! {"
SELECT min(task_id) FROM task_runs INDEXED BY task_runs_unfinished WHERE {unfinished} AND task_id > :task"};

/// Returns the next unfinished runs in the order of their index, at most `most`, and the task and the mark of the last one.
fn next_runs(
    tx: &Transaction<'_>,
    (mut task, mut mark): (i64, i64),
    most: usize,
) -> rusqlite::Result<(Vec<i64>, (i64, i64))> {
    let mut runs = Vec::new();
    loop {
        let batch = marks::batch(tx, task, mark, most - runs.len())?;
        runs.extend(batch.runs);
        if let Some(reached) = batch.reached {
            return Ok((runs, (task, reached)));
        }
        let next = tx.prepare_cached(NEXT_WITH_RUNS)?.query_row(named_params! { ":task": task }, |row| row.get(0))?;
        let Some(next) = next else { return Ok((runs, (task, mark))) };
        (task, mark) = (next, 0);
    }
}

/// Corrects a range of starts of rate limits.
pub(crate) fn correct_starts(
    tx: &Transaction<'_>,
    (first, last): (&(String, i64), &(String, i64)),
    (since, now): (Timestamp, Timestamp),
) -> rusqlite::Result<()> {
    let params = named_params! {
        ":handler": first.0, ":number": first.1, ":last_handler": last.0, ":last_number": last.1, ":since": since, ":now": now,
    };
    tx.prepare_cached(STARTS)?.execute(params).map(drop)
}

/// Plans these tasks again from `since`, without their runs. The clock shows `now`.
pub(crate) fn correct_tasks(
    tx: &Transaction<'_>,
    tasks: &[i64],
    (since, now): (Timestamp, Timestamp),
) -> rusqlite::Result<()> {
    [ENDED, TASKS, LAST_RUNS].iter().try_for_each(|statement| correct(tx, statement, tasks, (since, now)))
}

/// As [`correct_tasks`], for these runs.
pub(crate) fn correct_runs(
    tx: &Transaction<'_>,
    runs: &[i64],
    (since, now): (Timestamp, Timestamp),
) -> rusqlite::Result<()> {
    correct(tx, WAITING, runs, (since, now))
}

fn correct(
    tx: &Transaction<'_>,
    statement: &str,
    rows: &[i64],
    (since, now): (Timestamp, Timestamp),
) -> rusqlite::Result<()> {
    let rows = row::list(rows.iter().copied());
    // The clock may have stepped back a little since.
    let now = now.max(since);
    tx.prepare_cached(statement)?.execute(named_params! { ":since": since, ":now": now, ":rows": rows }).map(drop)
}

/// Plans a task again, if the mark has not reached it. Returns whether it did: the task is then to be planned, and nothing of it is due.
pub(crate) fn correct_first(tx: &Transaction<'_>, task: i64, now: Timestamp) -> rusqlite::Result<bool> {
    let Some(mark) = mark(tx)?.filter(|mark| mark.covers(task)) else { return Ok(false) };
    correct_tasks(tx, &[task], (mark.since, now)).map(|()| true)
}

/// Most rows of each kind that are kept to be corrected later. Where so many cannot be written, further ones stay as the wrong clock had
/// planned them, and each has its event.
const MOST_MISPLANNED: usize = 500;

/// Tasks and runs that a wrong clock has planned and that could not be written yet, and the time from which they are planned again. The
/// tables keep them: a scheduler may end before it could write them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Misplanned {
    pub(crate) tasks: BTreeMap<i64, Timestamp>,
    pub(crate) runs: BTreeMap<i64, Timestamp>,
}

impl Misplanned {
    pub(crate) fn keep_task(&mut self, task: i64, since: Timestamp) {
        if self.tasks.len() < MOST_MISPLANNED {
            self.tasks.insert(task, since);
        }
    }

    pub(crate) fn keep_run(&mut self, run: i64, since: Timestamp) {
        if self.runs.len() < MOST_MISPLANNED {
            self.runs.insert(run, since);
        }
    }
}

const MISPLANNED: &str = "SELECT CAST(value AS BLOB) FROM scheduler_meta WHERE key = 'misplanned'";

/// Returns what still has to be planned again.
pub(crate) fn misplanned(tx: &Transaction<'_>) -> rusqlite::Result<Misplanned> {
    let value: Option<Vec<u8>> = tx.prepare_cached(MISPLANNED)?.query_row([], |row| row.get(0)).optional()?;
    // Something that another program wrote counts as nothing.
    Ok(value.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default())
}

/// Records what still has to be planned again.
pub(crate) fn set_misplanned(tx: &Transaction<'_>, rows: &Misplanned) -> rusqlite::Result<()> {
    set(tx, "misplanned", Some(rows).filter(|rows| **rows != Misplanned::default()))
}
