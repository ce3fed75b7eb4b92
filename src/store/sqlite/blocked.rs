//! Why a waiting run may not start: its `blocked` column, kept true by whoever changes what it depends on.
//!
//! A run that may not start is in no claimable index, so that a hundred thousand of them cost a turn nothing. The price is
//! paid here: whatever claims, ends, cancels, expires, delays or pauses a run looks who is next. The first reason that
//! holds is stored: `paused`, `order`, `key`.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::store::sqlite::row::{self, Raw, raw};

/// Priorities a run may have.
const PRIORITIES: std::ops::RangeInclusive<i64> = 0..=3;

/// Whether any waiting run is blocked; if none is, nobody has to be looked for when a run ends.
const ANY_BLOCKED: &str = "
    SELECT EXISTS (SELECT 1 FROM task_runs WHERE (status = 'queued' OR status = 'failed') AND blocked > '')";

pub(crate) fn any_blocked(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_BLOCKED)?.query_row([], |row| row.get(0))
}

/// Whether a key is neither held nor waited for.
const KEY_IS_FREE: &str = "
    SELECT NOT EXISTS (SELECT 1 FROM task_runs WHERE status = 'running' AND concurrency_key = :key)
       AND NOT EXISTS (SELECT 1 FROM task_runs WHERE (status = 'queued' OR status = 'failed')
                          AND blocked IS NULL AND concurrency_key = :key)
       AND NOT EXISTS (SELECT 1 FROM task_runs WHERE (status = 'queued' OR status = 'failed')
                          AND blocked = 'key' AND concurrency_key = :key)";

pub(crate) fn key_is_free(tx: &Transaction<'_>, key: &str) -> rusqlite::Result<bool> {
    tx.prepare_cached(KEY_IS_FREE)?.query_row(named_params! { ":key": key }, |row| row.get(0))
}

/// The first reason that may hold one waiting run back. `key` stands for "look at the key": see [`derive_key`].
const REASON: &str = "
    SELECT iif(r.origin <> 'manual' AND (t.status = 'paused' OR t.status = 'invalid'), 'paused',
           iif(t.overlap <> 'allow' AND (r.origin = 'schedule' OR r.origin = 'catch_up')
               AND EXISTS (SELECT 1 FROM task_runs o INDEXED BY task_runs_unfinished
                            WHERE o.task_id = r.task_id AND o.scheduled_for < r.scheduled_for AND o.id <> r.id
                              AND (o.status = 'queued' OR o.status = 'failed' OR o.status = 'running')
                              AND (iif(o.origin = 'schedule' OR o.origin = 'catch_up', 0, o.id)) = 0), 'order',
           iif(r.concurrency_key IS NOT NULL, 'key', NULL)))
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.id = :run";

const SET_REASON: &str = "
    UPDATE task_runs SET blocked = :blocked
     WHERE id = :run AND (status = 'queued' OR status = 'failed') AND blocked IS NOT :blocked";

/// Derives the reason of one waiting run anew, and with it who else goes first behind its key.
pub(crate) fn place(
    tx: &Transaction<'_>,
    run: i64,
    key: Option<impl AsRef<[u8]>>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let reason: Option<Option<String>> =
        tx.prepare_cached(REASON)?.query_row(named_params! { ":run": run }, |row| row.get(0)).optional()?;
    if let Some(blocked) = reason {
        tx.prepare_cached(SET_REASON)?.execute(named_params! { ":run": run, ":blocked": blocked })?;
    }
    key.map_or(Ok(()), |key| derive_key(tx, key, now))
}

const HOLDS_KEY: &str = "SELECT EXISTS (SELECT 1 FROM task_runs WHERE status = 'running' AND concurrency_key = :key)";

const BLOCK_ALL: &str = "
    UPDATE task_runs SET blocked = 'key'
     WHERE (status = 'queued' OR status = 'failed') AND blocked IS NULL AND concurrency_key = :key";

const NEXT_HANDLER: &str = "
    SELECT min(h) FROM (
        SELECT min(handler) AS h FROM task_runs
         WHERE (status = 'queued' OR status = 'failed') AND blocked IS NULL AND concurrency_key = :key AND handler > :after
        UNION ALL
        SELECT min(handler) FROM task_runs
         WHERE (status = 'queued' OR status = 'failed') AND blocked = 'key' AND concurrency_key = :key AND handler > :after)";

const FIRST_WAITING: &str = "
    SELECT id, run_at FROM (
        SELECT * FROM (SELECT id, run_at FROM task_runs
         WHERE (status = 'queued' OR status = 'failed') AND blocked IS NULL
           AND concurrency_key = :key AND handler = :handler AND priority = :priority ORDER BY run_at LIMIT 1)
        UNION ALL
        SELECT * FROM (SELECT id, run_at FROM task_runs
         WHERE (status = 'queued' OR status = 'failed') AND blocked = 'key'
           AND concurrency_key = :key AND handler = :handler AND priority = :priority ORDER BY run_at LIMIT 1))
     ORDER BY run_at, id LIMIT 1";

const BLOCK_OTHERS: &str = "
    UPDATE task_runs SET blocked = 'key'
     WHERE (status = 'queued' OR status = 'failed') AND blocked IS NULL
       AND concurrency_key = :key AND handler = :handler AND id <> :run";

const UNBLOCK: &str = "
    UPDATE task_runs SET blocked = NULL
     WHERE id = :run AND (status = 'queued' OR status = 'failed') AND blocked = 'key'";

/// Derives who may start behind a key. While a run holds it: nobody. Otherwise the first due run of each *handler*, since
/// another process may have only one of them; if none is due, the one that will be first. Keys and handlers are compared as
/// bytes: a row whose text is not UTF-8 must not stop the other rows of its key.
pub(crate) fn derive_key(tx: &Transaction<'_>, key: impl AsRef<[u8]>, now: Timestamp) -> rusqlite::Result<()> {
    let key = raw(key.as_ref());
    if tx.prepare_cached(HOLDS_KEY)?.query_row(named_params! { ":key": key }, |row| row.get(0))? {
        tx.prepare_cached(BLOCK_ALL)?.execute(named_params! { ":key": key })?;
        return Ok(());
    }
    let mut after = Raw::default();
    loop {
        let handler: Option<Raw> = tx
            .prepare_cached(NEXT_HANDLER)?
            .query_row(named_params! { ":key": key, ":after": raw(&after.0) }, |row| row.get(0))?;
        let Some(handler) = handler else { return Ok(()) };
        let mut first: Option<(bool, Timestamp, i64)> = None;
        for priority in PRIORITIES {
            let found = tx
                .prepare_cached(FIRST_WAITING)?
                .query_row(named_params! { ":key": key, ":handler": raw(&handler.0), ":priority": priority }, |row| {
                    Ok((row.get::<_, i64>(0)?, row.get::<_, Timestamp>(1)?))
                })
                .optional()?;
            let Some((run, run_at)) = found else { continue };
            if run_at <= now {
                first = Some((true, run_at, run));
                break;
            }
            if first.is_none_or(|(_, earliest, _)| run_at < earliest) {
                first = Some((false, run_at, run));
            }
        }
        if let Some((_, _, run)) = first {
            tx.prepare_cached(BLOCK_OTHERS)?
                .execute(named_params! { ":key": key, ":handler": raw(&handler.0), ":run": run })?;
            tx.prepare_cached(UNBLOCK)?.execute(named_params! { ":run": run })?;
        }
        after = handler;
    }
}

const OLDEST_SCHEDULED: &str = "
    SELECT id, blocked, concurrency_key FROM task_runs INDEXED BY task_runs_unfinished
     WHERE task_id = :task AND (status = 'queued' OR status = 'failed' OR status = 'running')
       AND (iif(origin = 'schedule' OR origin = 'catch_up', 0, id)) = 0
     ORDER BY scheduled_for LIMIT 1";

/// Lets the oldest scheduled run of a task go on, when the one before it has ended.
pub(crate) fn derive_order(tx: &Transaction<'_>, task: i64, now: Timestamp) -> rusqlite::Result<()> {
    let oldest = tx
        .prepare_cached(OLDEST_SCHEDULED)?
        .query_row(named_params! { ":task": task }, |row| {
            Ok((row.get::<_, i64>(0)?, row::shown_if_any(row, 1)?, row.get::<_, Option<Raw>>(2)?))
        })
        .optional()?;
    match oldest {
        Some((run, Some(reason), key)) if reason == "order" => place(tx, run, key, now),
        _ => Ok(()),
    }
}

/// Lets whoever waits for the end of a run go on.
pub(crate) fn after_the_end(
    tx: &Transaction<'_>,
    task: i64,
    key: Option<impl AsRef<[u8]>>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    derive_order(tx, task, now)?;
    key.map_or(Ok(()), |key| derive_key(tx, key, now))
}

const KEYS_OF_TASK: &str = "
    SELECT DISTINCT concurrency_key FROM task_runs
     WHERE task_id = :task AND (status = 'queued' OR status = 'failed' OR status = 'running')
       AND concurrency_key IS NOT NULL";

const PAUSE: &str = "
    UPDATE task_runs SET blocked = 'paused'
     WHERE task_id = :task AND (status = 'queued' OR status = 'failed' OR status = 'running') AND status <> 'running'
       AND origin <> 'manual' AND blocked IS NOT 'paused'";

const RESUME: &str = "
    UPDATE task_runs
       SET blocked = iif(:ordered AND (origin = 'schedule' OR origin = 'catch_up'), 'order',
                         iif(concurrency_key IS NULL, NULL, 'key'))
     WHERE task_id = :task AND (status = 'queued' OR status = 'failed' OR status = 'running') AND status <> 'running'";

/// Derives the reasons of all waiting runs of a task, after its status, handler or overlap policy has changed.
pub(crate) fn derive_task(
    tx: &Transaction<'_>,
    task: i64,
    resting: bool,
    ordered: bool,
    now: Timestamp,
) -> rusqlite::Result<()> {
    if resting {
        tx.prepare_cached(PAUSE)?.execute(named_params! { ":task": task })?;
    } else {
        tx.prepare_cached(RESUME)?.execute(named_params! { ":task": task, ":ordered": ordered })?;
        derive_order(tx, task, now)?;
    }
    keys_of(tx, task)?.iter().try_for_each(|key| derive_key(tx, key, now))
}

/// The keys of a task's unfinished runs, as they stood when each was opened.
pub(crate) fn keys_of(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<Vec<Raw>> {
    let mut statement = tx.prepare_cached(KEYS_OF_TASK)?;
    statement.query_map(named_params! { ":task": task }, |row| row.get(0))?.collect()
}

/// How far the round of [`sweep`] has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    key: Raw,
    task: i64,
}

const NEXT_KEY: &str = "
    SELECT min(concurrency_key) FROM task_runs
     WHERE (status = 'queued' OR status = 'failed') AND blocked = 'key' AND concurrency_key > :key";

const NEXT_TASK: &str = "
    SELECT min(task_id) FROM task_runs
     WHERE (status = 'queued' OR status = 'failed' OR status = 'running') AND task_id > :task";

/// Among the first of its runs; when they have gone, it is the turn of the next.
const WRONGLY_PAUSED: &str = "
    SELECT t.overlap <> 'allow' FROM scheduled_tasks t
     WHERE t.id = :task AND t.status <> 'paused' AND t.status <> 'invalid'
       AND EXISTS (SELECT 1 FROM (SELECT r.blocked FROM task_runs r INDEXED BY task_runs_unfinished
                                   WHERE r.task_id = :task
                                     AND (r.status = 'queued' OR r.status = 'failed' OR r.status = 'running') LIMIT 100)
                    WHERE blocked = 'paused')";

/// Derives the reasons of up to `limit` keys and tasks anew, going round. All should be as they are; this is what mends a
/// row that somebody changed by hand.
pub(crate) fn sweep(tx: &Transaction<'_>, round: &mut Round, limit: usize, now: Timestamp) -> rusqlite::Result<()> {
    for _ in 0..limit {
        let key: Option<Raw> =
            tx.prepare_cached(NEXT_KEY)?.query_row(named_params! { ":key": raw(&round.key.0) }, |row| row.get(0))?;
        round.key = key.unwrap_or_default();
        if round.key.0.is_empty() {
            break;
        }
        derive_key(tx, &round.key, now)?;
    }
    for _ in 0..limit {
        let task: Option<i64> =
            tx.prepare_cached(NEXT_TASK)?.query_row(named_params! { ":task": round.task }, |row| row.get(0))?;
        round.task = task.unwrap_or_default();
        if round.task == 0 {
            break;
        }
        let ordered: Option<bool> = tx
            .prepare_cached(WRONGLY_PAUSED)?
            .query_row(named_params! { ":task": round.task }, |row| row.get(0))
            .optional()?;
        match ordered {
            Some(ordered) => derive_task(tx, round.task, false, ordered, now)?,
            None => derive_order(tx, round.task, now)?,
        }
    }
    Ok(())
}
