//! The `blocked` column of waiting runs: reads what `rules::placement` must know, and stores its answer.
//!
//! A blocked run is not in the index of claimable runs, so that a hundred thousand of them cost a turn nothing. In return, every
//! operation that claims, ends, cancels, expires, delays or pauses a run derives the column again for the runs that depend on it.

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::model::run::Origin;
use crate::model::task::{Overlap, TaskStatus};
use crate::rules::placement::{self, Reason, Waiting};
use crate::store::sqlite::limits;
use crate::store::sqlite::row::{self, Raw, raw};
use crate::store::sqlite::sql::sql;

/// The priorities of runs.
const PRIORITIES: std::ops::RangeInclusive<i64> = 0..=3;

/// Returns whether any waiting run is blocked. If none is, the end of a run frees none.
const ANY_BLOCKED: &str = sql! {"SELECT EXISTS (SELECT 1 FROM task_runs WHERE {waiting} AND blocked > '')"};

pub(crate) fn any_blocked(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_BLOCKED)?.query_row([], |row| row.get(0))
}

/// A key without a limit is free if no run holds it or waits for it.
const KEY_IS_FREE: &str = sql! {"
    SELECT NOT EXISTS (SELECT 1 FROM task_runs WHERE status = 'running' AND concurrency_key = :key)
       AND NOT EXISTS (SELECT 1 FROM task_runs WHERE {claimable} AND concurrency_key = :key)
       AND NOT EXISTS (SELECT 1 FROM task_runs WHERE {waiting} AND blocked = 'key' AND concurrency_key = :key)"};

pub(crate) fn key_is_free(tx: &Transaction<'_>, key: &str) -> rusqlite::Result<bool> {
    tx.prepare_cached(KEY_IS_FREE)?.query_row(named_params! { ":key": key }, |row| row.get(0))
}

/// What [`placement`] must know of one waiting run. Whether its key is taken is derived for all runs of the key at once: see
/// [`derive_key`].
const FACTS: &str = sql! {"
    SELECT r.origin, t.status, t.overlap,
           EXISTS (SELECT 1 FROM task_runs o INDEXED BY task_runs_unfinished
                    WHERE o.task_id = r.task_id AND o.scheduled_for < r.scheduled_for AND o.id <> r.id
                      AND {unfinished:o} AND {unscheduled_id:o} = 0),
           r.concurrency_key IS NOT NULL
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.id = :run"};

/// Reads the facts from a row that begins with them. A value that only another program writes must not keep an outcome from
/// being stored: it neither pauses a task nor lets its runs overlap.
pub(crate) fn waiting(row: &Row<'_>) -> rusqlite::Result<Waiting> {
    Ok(Waiting {
        origin: row.get(0).unwrap_or(Origin::OnDead),
        status: row.get(1).unwrap_or(TaskStatus::Active),
        overlap: row.get(2).unwrap_or(Overlap::Skip),
        has_older: row.get(3)?,
        starts_are_used: false,
        key_is_taken: row.get(4)?,
    })
}

const SET_REASON: &str = sql! {"
    UPDATE task_runs SET blocked = :blocked
     WHERE id = :run AND {waiting} AND blocked IS NOT :blocked AND (blocked > '' OR :blocked IS NOT 'key')"};

/// Stores what blocks a waiting run, except that of its key only [`derive_key`] knows whether it may start. Returns whether that differs
/// from what was stored.
pub(crate) fn set_reason(tx: &Transaction<'_>, run: i64) -> rusqlite::Result<bool> {
    let facts = tx.prepare_cached(FACTS)?.query_row(named_params! { ":run": run }, waiting).optional()?;
    let Some(facts) = facts else { return Ok(false) };
    let params = named_params! { ":run": run, ":blocked": facts.reason().map(Reason::as_str) };
    tx.prepare_cached(SET_REASON)?.execute(params).map(|rows| rows > 0)
}

/// Derives the reason of one waiting run again, and with it which runs go first behind its key.
pub(crate) fn place(
    tx: &Transaction<'_>,
    run: i64,
    key: Option<impl AsRef<[u8]>>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    set_reason(tx, run)?;
    key.map_or(Ok(()), |key| derive_key(tx, key, now))
}

const HOLDS_KEY: &str = "SELECT EXISTS (SELECT 1 FROM task_runs WHERE status = 'running' AND concurrency_key = :key)";

const BLOCK_ALL: &str = sql! {"
    UPDATE task_runs SET blocked = 'key'
     WHERE {claimable} AND concurrency_key = :key"};

const NEXT_HANDLER: &str = sql! {"
    SELECT min(h) FROM (
        SELECT min(handler) AS h FROM task_runs
         WHERE {claimable} AND concurrency_key = :key AND handler > :after
        UNION ALL
        SELECT min(handler) FROM task_runs
         WHERE {waiting} AND blocked = 'key' AND concurrency_key = :key AND handler > :after)"};

// INDEXED BY: task_runs_claimable has the order, and SQLite would read all runs of the handler to find one of the key.
const FIRST_WAITING: &str = sql! {"
    SELECT id, run_at FROM (
        SELECT * FROM (SELECT id, run_at FROM task_runs INDEXED BY task_runs_waiting
         WHERE {claimable}
           AND concurrency_key = :key AND handler = :handler AND priority = :priority ORDER BY run_at LIMIT :limit)
        UNION ALL
        SELECT * FROM (SELECT id, run_at FROM task_runs
         WHERE {waiting} AND blocked = 'key'
           AND concurrency_key = :key AND handler = :handler AND priority = :priority ORDER BY run_at LIMIT :limit))
     ORDER BY run_at, id LIMIT :limit"};

const BLOCK_OTHERS: &str = sql! {"
    UPDATE task_runs SET blocked = 'key'
     WHERE {claimable} AND concurrency_key = :key AND handler = :handler AND id <> :run"};

const UNBLOCK: &str = sql! {"
    UPDATE task_runs SET blocked = NULL
     WHERE id = :run AND {waiting} AND blocked = 'key'"};

/// As [`BLOCK_OTHERS`] and [`UNBLOCK`], for several runs.
const BLOCK_ALL_OTHERS: &str = sql! {"
    UPDATE task_runs SET blocked = 'key'
     WHERE {claimable} AND concurrency_key = :key AND handler = :handler AND id NOT IN (SELECT value FROM rarray(:runs))"};

const UNBLOCK_ALL: &str = sql! {"
    UPDATE task_runs SET blocked = NULL
     WHERE id IN (SELECT value FROM rarray(:runs)) AND {waiting} AND blocked = 'key'"};

/// Returns how many runs of each handler may start behind a key. A task's own key, which begins with #, has no limit.
fn window(tx: &Transaction<'_>, key: &[u8]) -> rusqlite::Result<usize> {
    if key.starts_with(b"#") {
        let held: bool =
            tx.prepare_cached(HOLDS_KEY)?.query_row(named_params! { ":key": raw(key) }, |row| row.get(0))?;
        return Ok(usize::from(!held));
    }
    limits::window(tx, key)
}

/// Derives which runs may start behind a key. While no slot is free: none. Otherwise, for each free slot, one run of each
/// *handler*, since another process may have only one of them: the first that are due, then those that will be due first. Keys and
/// handlers are compared as bytes: a row whose text is not UTF-8 must not stop the other rows of its key.
pub(crate) fn derive_key(tx: &Transaction<'_>, key: impl AsRef<[u8]>, now: Timestamp) -> rusqlite::Result<()> {
    let window = window(tx, key.as_ref())?;
    let key = raw(key.as_ref());
    if window == 0 {
        tx.prepare_cached(BLOCK_ALL)?.execute(named_params! { ":key": key })?;
        return Ok(());
    }
    let limit = i64::try_from(window).unwrap_or(i64::MAX);
    let mut after = Raw::default();
    loop {
        let handler: Option<Raw> = tx
            .prepare_cached(NEXT_HANDLER)?
            .query_row(named_params! { ":key": key, ":after": raw(&after.0) }, |row| row.get(0))?;
        let Some(handler) = handler else { return Ok(()) };
        let mut head = tx.prepare_cached(FIRST_WAITING)?;
        let heads = PRIORITIES.map(|priority| {
            let params =
                named_params! { ":key": key, ":handler": raw(&handler.0), ":priority": priority, ":limit": limit };
            head.query_map(params, |row| Ok((row.get(1)?, row.get(0)?)))?.collect()
        });
        match placement::go_first(heads, window, now)?[..] {
            [] => {}
            // The usual case: without a list, SQLite needs no table for it.
            [run] => {
                tx.prepare_cached(BLOCK_OTHERS)?
                    .execute(named_params! { ":key": key, ":handler": raw(&handler.0), ":run": run })?;
                tx.prepare_cached(UNBLOCK)?.execute(named_params! { ":run": run })?;
            }
            ref runs => {
                let runs = row::list(runs.iter().copied());
                tx.prepare_cached(BLOCK_ALL_OTHERS)?
                    .execute(named_params! { ":key": key, ":handler": raw(&handler.0), ":runs": runs })?;
                tx.prepare_cached(UNBLOCK_ALL)?.execute(named_params! { ":runs": runs })?;
            }
        }
        after = handler;
    }
}

const AWAIT_START: &str = sql! {"
    UPDATE task_runs SET blocked = 'starts'
     WHERE id = :run AND {claimable}"};

/// Has a run wait that was about to start, since no start of its task is left. Its key is free for others.
pub(crate) fn await_start(tx: &Transaction<'_>, run: i64, key: Option<&str>, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(AWAIT_START)?.execute(named_params! { ":run": run })?;
    key.map_or(Ok(()), |key| derive_key(tx, key, now))
}

// INDEXED BY: it has the order, and only such runs.
const AWAITING: &str = "
    SELECT id, run_at FROM task_runs INDEXED BY task_runs_limited
     WHERE blocked = 'starts' AND task_id = :task AND priority = :priority ORDER BY run_at LIMIT 1";

const KEY_OF: &str = "SELECT concurrency_key FROM task_runs WHERE id = :run";

const MAY_RELEASE: &str = "
    SELECT EXISTS (SELECT 1 FROM task_runs INDEXED BY task_runs_limited WHERE blocked = 'starts' AND task_id = :task)
       AND NOT EXISTS (SELECT 1 FROM rate_limit_openings WHERE subject = 'task:' || :task)
       AND EXISTS (SELECT 1 FROM scheduled_tasks WHERE id = :task AND max_starts IS NOT NULL)";

/// Releases the first of the runs of a task that wait for one of its starts, if one is left. Returns whether there is such a run.
///
/// One at a time: when a run starts, it releases the next one, while there are more starts; and so does one that was released and will not
/// start, because it was cancelled or has expired. So no more runs are written than start.
pub(crate) fn release_next(tx: &Transaction<'_>, task: i64, now: Timestamp) -> rusqlite::Result<bool> {
    if !tx.prepare_cached(MAY_RELEASE)?.query_row(named_params! { ":task": task }, |row| row.get(0))? {
        return Ok(false);
    }
    let mut head = tx.prepare_cached(AWAITING)?;
    let heads = PRIORITIES.map(|priority| {
        let params = named_params! { ":task": task, ":priority": priority };
        head.query_map(params, |row| Ok((row.get(1)?, row.get(0)?)))?.collect()
    });
    for run in placement::go_first(heads, 1, now)? {
        let key: Option<Raw> = tx.prepare_cached(KEY_OF)?.query_row(named_params! { ":run": run }, |row| row.get(0))?;
        place(tx, run, key, now)?;
    }
    Ok(true)
}

const OLDEST_SCHEDULED: &str = sql! {"
    SELECT id, blocked, concurrency_key FROM task_runs INDEXED BY task_runs_unfinished
     WHERE task_id = :task AND {unfinished} AND {unscheduled_id} = 0
     ORDER BY scheduled_for LIMIT 1"};

/// Places the oldest scheduled run of a task, if it waited for an older one that has ended.
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

/// Unblocks the runs that waited for the end of a run.
pub(crate) fn after_the_end(
    tx: &Transaction<'_>,
    task: i64,
    key: Option<impl AsRef<[u8]>>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    derive_order(tx, task, now)?;
    release_next(tx, task, now)?;
    key.map_or(Ok(()), |key| derive_key(tx, key, now))
}

const MARK: &str = sql! {"
    UPDATE scheduled_tasks SET marked = 0
     WHERE id = :task AND EXISTS (SELECT 1 FROM task_runs WHERE task_id = :task AND {unfinished})"};

/// Has turns derive all waiting runs of a task again.
pub(crate) fn mark(tx: &Transaction<'_>, task: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(MARK)?.execute(named_params! { ":task": task }).map(drop)
}

const KEYS_OF_FRONT: &str = sql! {"
    SELECT DISTINCT concurrency_key
      FROM (SELECT concurrency_key FROM task_runs INDEXED BY task_runs_unfinished
             WHERE task_id = :task AND {unfinished} LIMIT {front})
     WHERE concurrency_key IS NOT NULL"};

/// Derives what the first unfinished runs of a task wait for. A sweep reaches the keys of the others.
pub(crate) fn derive_front(tx: &Transaction<'_>, task: i64, now: Timestamp) -> rusqlite::Result<()> {
    derive_order(tx, task, now)?;
    let mut statement = tx.prepare_cached(KEYS_OF_FRONT)?;
    let keys = statement.query_map(named_params! { ":task": task }, |row| row.get(0))?;
    let keys = keys.collect::<rusqlite::Result<Vec<Raw>>>()?;
    keys.iter().try_for_each(|key| derive_key(tx, key, now))
}

/// The key and the task that [`sweep`] reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    key: Raw,
    task: i64,
}

impl Round {
    /// Returns the key and the task, after which the sweep goes on.
    #[cfg(feature = "postgres")]
    pub(crate) fn reached(&self) -> (String, i64) {
        (String::from_utf8_lossy(&self.key.0).into_owned(), self.task)
    }
}

const NEXT_KEY: &str = sql! {"
    SELECT min(concurrency_key) FROM task_runs
     WHERE {waiting} AND blocked = 'key' AND concurrency_key > :key"};

const NEXT_TASK: &str = sql! {"
    SELECT min(task_id) FROM task_runs
     WHERE {unfinished} AND task_id > :task"};

/// Reads the first runs only. A later round reaches the others.
const WRONGLY_PAUSED: &str = sql! {"
    SELECT EXISTS (SELECT 1 FROM scheduled_tasks t
     WHERE t.id = :task AND t.status <> 'paused' AND t.status <> 'invalid' AND t.marked IS NULL
       AND EXISTS (SELECT 1 FROM (SELECT r.blocked FROM task_runs r INDEXED BY task_runs_unfinished
                                   WHERE r.task_id = :task
                                     AND {unfinished:r} LIMIT {front})
                    WHERE blocked = 'paused'))"};

/// Derives the reasons of up to `limit` keys and tasks again, round robin. This repairs rows that another program changed.
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
        let of_task = named_params! { ":task": round.task };
        let is_wrong = tx.prepare_cached(WRONGLY_PAUSED)?.query_row(of_task, |row| row.get(0))?;
        if is_wrong {
            mark(tx, round.task)?;
        }
        derive_order(tx, round.task, now)?;
        release_next(tx, round.task, now)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::store::sqlite::connection::SqliteStore;
    use crate::store::sqlite::file::{Durability, Missing};
    use crate::store::sqlite::marks;

    const NOON: i64 = 1_805_025_600_000;

    /// The state of the key of the run under test.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Key {
        None,
        Free,
        /// Another task's run holds it.
        Held,
        /// Another task's run waits for it, and starts first.
        Behind,
        /// Another task's run waits behind the run under test.
        First,
        /// The key has two slots, and another task's run holds one.
        HeldOfTwo,
        /// Both slots are held.
        FullOfTwo,
        /// The key has two slots, and another task's run waits, and starts first.
        BehindOfTwo,
    }

    const KEYS: [Key; 8] =
        [Key::None, Key::Free, Key::Held, Key::Behind, Key::First, Key::HeldOfTwo, Key::FullOfTwo, Key::BehindOfTwo];

    /// A task, the facts of its run under test, and the state of the key. Run ids begin at ten times the task's id.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        task: i64,
        waiting: Waiting,
        key: Key,
    }

    impl Case {
        fn all() -> Vec<Case> {
            let mut cases = Vec::new();
            for &status in TaskStatus::ALL {
                for &overlap in Overlap::ALL {
                    for &origin in Origin::ALL {
                        for has_older in [false, true] {
                            for key in KEYS {
                                let key_is_taken = matches!(key, Key::Held | Key::Behind | Key::FullOfTwo);
                                let waiting = Waiting {
                                    origin,
                                    status,
                                    overlap,
                                    has_older,
                                    starts_are_used: false,
                                    key_is_taken,
                                };
                                cases.push(Case { task: cases.len() as i64 + 2, waiting, key });
                            }
                        }
                    }
                }
            }
            cases
        }

        fn name(&self) -> Option<String> {
            (self.key != Key::None).then(|| format!("k{}", self.task))
        }

        fn insert(&self, into: &mut String) {
            let Case { task, waiting, key } = self;
            let next = if waiting.status == TaskStatus::Active { "32503680000000" } else { "NULL" };
            let name = self.name().map_or("NULL".to_owned(), |name| format!("'{name}'"));
            let run = |id: i64, of: i64, origin: &str, at: i64, rest: &str| {
                format!(
                    "INSERT INTO task_runs (id, task_id, handler, scheduled_for, run_at, origin, concurrency_key, status, blocked,
                                            locked_by, locked_until, slot)
                     VALUES ({}, {of}, 'work', {}, {at}, '{origin}', {rest}, {id});\n",
                    task * 10 + id,
                    at + task,
                )
            };
            writeln!(
                into,
                "INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, status, overlap, next_run, planned)
                 VALUES ({task}, 't{task}', 'work', 'interval', '1m', '{}', '{}', {next}, 1);",
                waiting.status, waiting.overlap
            )
            .expect("text");
            if matches!(key, Key::HeldOfTwo | Key::FullOfTwo | Key::BehindOfTwo) {
                *into +=
                    &format!("INSERT INTO concurrency_limits (concurrency_key, max_running) VALUES ({name}, 2);\n");
            }
            if waiting.has_older {
                *into += &run(1, *task, "schedule", NOON - 2_000, "NULL, 'queued', NULL, NULL, NULL");
            }
            *into += &run(5, *task, waiting.origin.as_str(), NOON, &format!("{name}, 'queued', 'key', NULL, NULL"));
            *into += &match key {
                Key::None | Key::Free => String::new(),
                Key::Held | Key::HeldOfTwo => {
                    run(7, 1, "manual", NOON, &format!("{name}, 'running', NULL, 'o', {NOON}"))
                }
                Key::FullOfTwo => {
                    let running = format!("{name}, 'running', NULL, 'o', {NOON}");
                    run(7, 1, "manual", NOON, &running) + &run(8, 1, "manual", NOON + 1, &running)
                }
                Key::Behind | Key::BehindOfTwo => {
                    run(7, 1, "manual", NOON - 1_000, &format!("{name}, 'queued', NULL, NULL, NULL"))
                }
                Key::First => run(7, 1, "manual", NOON + 1_000, &format!("{name}, 'queued', 'key', NULL, NULL")),
            };
        }
    }

    fn stored(tx: &Transaction<'_>, run: i64) -> Option<Reason> {
        let blocked = tx.query_row("SELECT blocked FROM task_runs WHERE id = ?1", [run], |row| row.get(0));
        blocked.expect("a run")
    }

    /// Compares the rows of a case with the rule.
    fn assert_placed(tx: &Transaction<'_>, case: &Case, when: &str) {
        let expected = case.waiting.reason();
        assert_eq!(stored(tx, case.task * 10 + 5), expected, "{case:?} {when}");
        if case.key == Key::First {
            // If it may not start, the run that waits behind it starts first.
            let behind = if expected.is_none() { Some(Reason::Key) } else { stored(tx, case.task * 10 + 7) };
            assert_eq!(stored(tx, case.task * 10 + 7), behind, "behind {case:?} {when}");
            assert!(expected != Some(Reason::Paused) || behind.is_none(), "behind {case:?} {when}: {behind:?}");
        }
    }

    /// Derives the runs of a marked task one by one, as turns do with more of them.
    fn derive_all(tx: &Transaction<'_>, task: i64, now: Timestamp) -> rusqlite::Result<()> {
        let mark = || tx.query_row("SELECT marked FROM scheduled_tasks WHERE id = ?1", [task], |row| row.get(0));
        let mut reached: Option<i64> = mark()?;
        assert_eq!(reached, Some(0), "task {task}");
        while let Some(mark) = reached {
            let batch = marks::batch(tx, task, mark, 1)?;
            marks::derive(tx, &batch.runs, now)?;
            marks::reach(tx, task, batch.reached)?;
            reached = batch.reached;
        }
        assert_eq!(mark()?, None);
        Ok(())
    }

    #[test]
    fn the_statements_and_triggers_agree_with_the_placement_rule() {
        let home = tempfile::tempdir().expect("a folder");
        let durability = Durability::MayRepeatAfterPowerLoss;
        let mut store = SqliteStore::open(&home.path().join("t.db"), Missing::Create, durability).expect("a store");
        let mut cases = Case::all();
        let mut rows = "INSERT INTO scheduled_tasks (id, name, handler, schedule_type, schedule_value, planned)
                        VALUES (1, 'other', 'work', 'manual', '', 1);\n"
            .to_owned();
        cases.iter().for_each(|case| case.insert(&mut rows));
        let now = Timestamp::from_millis(NOON + 5_000);
        let placed = store.write("place", |tx, _| {
            tx.execute_batch(&rows)?;
            for case in &cases {
                place(tx, case.task * 10 + 5, case.name(), now)?;
                assert_placed(tx, case, "placed");
            }
            tx.execute_batch("UPDATE scheduled_tasks SET status = 'paused' WHERE status = 'active' AND id > 1")?;
            for case in cases.iter_mut().filter(|case| case.waiting.status == TaskStatus::Active) {
                case.waiting.status = TaskStatus::Paused;
                derive_all(tx, case.task, now)?;
                assert_placed(tx, case, "paused by SQL");
            }
            tx.execute_batch("UPDATE scheduled_tasks SET status = 'active' WHERE status = 'paused'")?;
            for case in cases.iter_mut().filter(|case| case.waiting.status == TaskStatus::Paused) {
                case.waiting.status = TaskStatus::Active;
                derive_all(tx, case.task, now)?;
                assert_placed(tx, case, "resumed by SQL");
            }
            for case in &cases {
                mark(tx, case.task)?;
                derive_all(tx, case.task, now)?;
                assert_placed(tx, case, "derived");
            }
            Ok(())
        });
        placed.expect("rows");
    }
}
