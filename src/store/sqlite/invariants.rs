//! Invariants of the rows: each rule is a statement that finds the rows that break it.
//!
//! `doctor` checks a file against them; tests and the simulation call `doctor`; and debug builds check every transaction of duly
//! before it is committed.

use std::collections::HashMap;

use rusqlite::types::ValueRef;
use rusqlite::{Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::rules::placement::Reason;
use crate::store::sqlite::row::{Raw, raw};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{blocked, limits, row};

/// Each rule, and the statement that returns a text for each row that breaks it.
const RULES: [(&str, &str); 11] = [
    ("each run has a task", RUNS_WITHOUT_TASK),
    ("each attempt has a run", ATTEMPTS_WITHOUT_RUN),
    ("each occurrence has one run", OCCURRENCES_TWICE),
    ("each slot of a key has one running run", KEYS_TWICE),
    ("each active task has a next run, a run that it waits for, or is manual", TASKS_WITHOUT_NEXT),
    ("a completed task has no next run", TASKS_WITH_A_NEXT),
    ("a manual task is not completed", MANUAL_COMPLETED),
    ("each key has no more runs that go first than free slots", FREE_TWICE),
    ("each start that counts has a rate limit", STARTS_WITHOUT_LIMIT),
    ("attempts are counted", ATTEMPTS_BEYOND),
    ("occurrences are counted", OCCURRENCES_MISCOUNTED),
];

/// Rules that [`misplaced`] checks.
const FREE: &str = "a run that may start is held back by nothing";
const HELD: &str = "a run that is held back is so by something";

const RUNS_WITHOUT_TASK: &str = "
    SELECT 'run ' || r.id || ' is of task ' || r.task_id FROM task_runs r
     WHERE NOT EXISTS (SELECT 1 FROM scheduled_tasks t WHERE t.id = r.task_id) LIMIT :limit";

const ATTEMPTS_WITHOUT_RUN: &str = "
    SELECT 'attempt ' || a.id || ' is of run ' || a.run_id FROM task_attempts a
     WHERE NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.id = a.run_id) LIMIT :limit";

/// `NOT INDEXED`: such rows come from a damaged unique index, which would hide them.
const OCCURRENCES_TWICE: &str = "
    SELECT 'task ' || task_id || ' at ' || scheduled_for || ': runs ' || group_concat(id, ', ')
      FROM task_runs NOT INDEXED WHERE origin = 'schedule' OR origin = 'catch_up'
     GROUP BY task_id, scheduled_for HAVING count(*) > 1 LIMIT :limit";

const KEYS_TWICE: &str = "
    SELECT 'key ' || concurrency_key || ': runs ' || group_concat(id, ', ')
      FROM task_runs NOT INDEXED WHERE status = 'running' AND concurrency_key IS NOT NULL
     GROUP BY concurrency_key, slot HAVING count(*) > 1 LIMIT :limit";

const STARTS_WITHOUT_LIMIT: &str = "
    SELECT found FROM (SELECT subject, 'start ' || number || ' of ' || subject AS found FROM rate_limit_starts
                       UNION ALL SELECT subject, 'opening of ' || subject FROM rate_limit_openings) s
     WHERE CASE WHEN subject GLOB 'handler:*'
                THEN NOT EXISTS (SELECT 1 FROM rate_limits l WHERE l.handler = substr(s.subject, 9))
                WHEN subject GLOB 'key:*'
                THEN NOT EXISTS (SELECT 1 FROM concurrency_limits l
                                  WHERE l.concurrency_key = substr(s.subject, 5) AND l.max_starts IS NOT NULL)
                WHEN subject GLOB 'task:*'
                THEN NOT EXISTS (SELECT 1 FROM scheduled_tasks t
                                  WHERE t.id = CAST(substr(s.subject, 6) AS INTEGER) AND t.max_starts IS NOT NULL)
                ELSE true END
     LIMIT :limit";

/// A delay counts from the end of a run: a `delay` task with an unfinished run has no next run.
const TASKS_WITHOUT_NEXT: &str = sql! {"
    SELECT 'task ' || t.name FROM scheduled_tasks t
     WHERE {active_planned:t} AND t.next_run IS NULL AND t.schedule_type <> 'manual'
       AND (t.schedule_type <> 'delay'
            OR NOT EXISTS (SELECT 1 FROM task_runs r
                            WHERE r.task_id = t.id
                              AND {unfinished:r}))
     LIMIT :limit"};

const TASKS_WITH_A_NEXT: &str = "
    SELECT 'task ' || name FROM scheduled_tasks
     WHERE status = 'completed' AND planned = 1 AND next_run IS NOT NULL LIMIT :limit";

const MANUAL_COMPLETED: &str = "
    SELECT 'task ' || name FROM scheduled_tasks WHERE status = 'completed' AND schedule_type = 'manual' LIMIT :limit";

/// Reasons are not all derived yet while a changed task waits to be planned (`planned = 0`), or is marked.
const FREE_TWICE: &str = sql! {"
    SELECT 'key ' || concurrency_key || ': runs ' || group_concat(id, ', ') FROM task_runs
     WHERE {claimable} AND concurrency_key IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM scheduled_tasks WHERE planned = 0)
       AND NOT EXISTS (SELECT 1 FROM scheduled_tasks WHERE marked IS NOT NULL)
     GROUP BY concurrency_key, handler
    HAVING count(*) > 1
       AND count(*) > ifnull((SELECT max_running FROM concurrency_limits l
                               WHERE l.concurrency_key = task_runs.concurrency_key), 1)
                      - (SELECT count(*) FROM task_runs k
                          WHERE k.status = 'running' AND k.concurrency_key = task_runs.concurrency_key)
     LIMIT :limit"};

const ATTEMPTS_BEYOND: &str = "
    SELECT 'attempt ' || a.attempt || ' of run ' || r.id || ', which had ' || r.attempt
      FROM task_attempts a JOIN task_runs r ON r.id = a.run_id WHERE a.attempt > r.attempt LIMIT :limit";

const OCCURRENCES_MISCOUNTED: &str = "
    SELECT 'run ' || id || ' stands for ' || occurrences FROM task_runs
     WHERE (occurrences > 1 AND last_scheduled_for IS NULL) OR last_scheduled_for < scheduled_for LIMIT :limit";

/// The rule that [`reopened`] checks.
const FINAL: &str = "a final run stays final, and its attempt never decreases";

/// Each attempt that ended without success has a row, which records whether its run was final with it. A run that another
/// program reopened therefore has fewer such rows than attempts, or a row that was final. A run that was final without an attempt
/// has no such row: only its own row shows that it was reopened, until it is claimed.
const REOPENED: &str = "
    SELECT id, name,
           CASE WHEN was_final THEN 'was final after attempt ' || final || ', and is ' || status || ' at attempt ' || attempt
                WHEN has_end THEN 'is queued, with the end of an earlier attempt'
                ELSE 'is ' || status || ' at attempt ' || attempt || ', ended attempts on record: ' || kept END
      FROM (SELECT *, final IS NOT NULL AND (attempt > final OR (status <> 'dead' AND status <> 'cancelled' AND status <> 'skipped')) AS was_final
              FROM (SELECT r.id, r.status, r.attempt,
                           ifnull((SELECT t.name FROM scheduled_tasks t WHERE t.id = r.task_id), '') AS name,
                           r.status = 'queued'
                           AND (r.error IS NOT NULL OR r.duration_ms IS NOT NULL OR r.result IS NOT NULL) AS has_end,
                           (SELECT count(DISTINCT a.attempt) FROM task_attempts a
                             WHERE a.run_id = r.id AND a.attempt <= r.attempt AND a.outcome <> 'superseded') AS kept,
                           (SELECT max(a.attempt) FROM task_attempts a WHERE a.run_id = r.id AND a.final = 1) AS final
                      FROM task_runs r WHERE r.status > ''))
     WHERE was_final OR has_end OR kept <> attempt - (status = 'running' OR status = 'succeeded')
     ORDER BY id LIMIT :limit";

/// The runs that [`REOPENED`] reads, and the replacement that limits it to unfinished runs.
const ALL: &str = "r WHERE r.status > ''";
const UNFINISHED: &str = sql! {"r INDEXED BY task_runs_unfinished WHERE {unfinished:r}"};

/// A run, its task, and what is wrong with it.
pub(crate) type RunFinding = (i64, String, String);

/// Returns unfinished runs whose attempts show that the run was final, or had another attempt.
pub(crate) fn reopened(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<RunFinding>> {
    run_findings(tx, &REOPENED.replace(ALL, UNFINISHED), limit)
}

/// The rule that [`ownerless`] checks. Transactions are not checked against it: tests claim for owners that they do not register.
const OWNED: &str = "each running run has a registered owner";

const OWNERLESS: &str = "
    SELECT r.id, t.name, ifnull(r.locked_by, '') FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE r.status = 'running' AND NOT EXISTS (SELECT 1 FROM scheduler_instances i WHERE i.id = r.locked_by)
     LIMIT :limit";

/// Returns running runs whose owner is not registered: run, task and owner.
pub(crate) fn ownerless(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<RunFinding>> {
    run_findings(tx, OWNERLESS, limit)
}

fn run_findings(tx: &Transaction<'_>, statement: &str, limit: usize) -> rusqlite::Result<Vec<RunFinding>> {
    let read = |row: &Row<'_>| Ok((row.get(0)?, row::shown(row, 1)?, row::shown(row, 2)?));
    tx.prepare_cached(statement)?.query_map(named_params! { ":limit": sql_limit(limit) }, read)?.collect()
}

/// A violation: the rule, and the row that breaks it.
pub(crate) type Broken = (&'static str, String);

/// A waiting run, its task, and the reason in its row.
#[derive(Debug)]
pub(crate) struct MisplacedRun {
    pub(crate) run: i64,
    pub(crate) task: String,
    pub(crate) reason: Option<String>,
}

/// The facts of each waiting run, as [`blocked::waiting`] reads them, except whether its key is taken; and the reason in its row. An older scheduled run is found
/// by the expression of its index: a task may have any number of waiting manual runs.
const WAITING: &str = sql! {"
    SELECT r.origin, t.status, t.overlap,
           EXISTS (SELECT 1 FROM task_runs o INDEXED BY task_runs_unfinished
                    WHERE o.task_id = r.task_id AND o.scheduled_for < r.scheduled_for AND o.id <> r.id
                      AND {unfinished:o} AND {unscheduled_id:o} = 0),
           0, r.blocked, r.id, t.name, r.concurrency_key, r.handler, t.max_starts IS NOT NULL
      FROM task_runs r JOIN scheduled_tasks t ON t.id = r.task_id
     WHERE {waiting:r} AND (r.blocked IS NULL OR r.run_at < :before)
       AND NOT EXISTS (SELECT 1 FROM scheduled_tasks WHERE planned = 0)
       AND NOT EXISTS (SELECT 1 FROM scheduled_tasks WHERE marked IS NOT NULL)"};

/// The runs that [`WAITING`] reads, and the replacement that limits it to blocked runs.
const ALL_WAITING: &str = "(r.blocked IS NULL OR r.run_at < :before)";
const BLOCKED: &str = "r.blocked > '' AND r.run_at < :before";

const GO_FIRST: &str = sql! {"
    SELECT count(*) FROM (SELECT 1 FROM task_runs
                           WHERE {claimable} AND concurrency_key = :key AND handler = :handler LIMIT :window)"};

/// The state of each key, read once: a hundred thousand runs may wait behind one.
#[derive(Default)]
struct Keys {
    windows: HashMap<Vec<u8>, usize>,
    /// Whether as many runs of a handler as slots are free may start behind a key.
    full: HashMap<(Vec<u8>, Vec<u8>), bool>,
}

impl Keys {
    fn is_taken(&mut self, tx: &Transaction<'_>, key: Raw, handler: Raw, is_blocked: bool) -> rusqlite::Result<bool> {
        let window = match self.windows.get(&key.0) {
            Some(window) => *window,
            None => *self.windows.entry(key.0.clone()).or_insert(limits::window(tx, &key.0)?),
        };
        if window == 0 || !is_blocked {
            return Ok(window == 0);
        }
        let of = (key.0, handler.0);
        if let Some(full) = self.full.get(&of) {
            return Ok(*full);
        }
        let params = named_params! { ":key": raw(&of.0), ":handler": raw(&of.1), ":window": sql_limit(window) };
        let first: i64 = tx.prepare_cached(GO_FIRST)?.query_row(params, |row| row.get(0))?;
        Ok(*self.full.entry(of).or_insert(first >= sql_limit(window)))
    }
}

/// Returns waiting runs whose `blocked` differs from the placement rule: not blocked although they must be, or blocked since
/// before the given instant by a reason that does not apply.
fn misplaced(tx: &Transaction<'_>, statement: &str, before: Timestamp) -> rusqlite::Result<Vec<MisplacedRun>> {
    let mut found = Vec::new();
    let mut keys = Keys::default();
    let mut statement = tx.prepare_cached(statement)?;
    let mut rows = statement.query(named_params! { ":before": before })?;
    while let Some(row) = rows.next()? {
        let (mut waiting, reason) = (blocked::waiting(row)?, row::shown_if_any(row, 5)?);
        // When its task has a start again, only as many runs are released as may start.
        waiting.starts_are_used = reason.is_some() && row.get(10)?;
        if let Some(key) = row.get::<_, Option<Raw>>(8)? {
            waiting.key_is_taken = keys.is_taken(tx, key, row.get(9)?, reason.is_some())?;
        }
        let is_right = match &reason {
            None => waiting.reason().is_none(),
            Some(reason) => Reason::parse(reason).is_some_and(|reason| waiting.is_held_by(reason)),
        };
        if !is_right {
            found.push(MisplacedRun { run: row.get(6)?, task: row::shown(row, 7)?, reason });
        }
    }
    found.sort_unstable_by_key(|held| held.run);
    Ok(found)
}

/// Returns runs that are blocked since before an instant by a reason that does not apply.
pub(crate) fn held_for_nothing(
    tx: &Transaction<'_>,
    before: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<MisplacedRun>> {
    let mut held = misplaced(tx, &WAITING.replace(ALL_WAITING, BLOCKED), before)?;
    held.truncate(limit);
    Ok(held)
}

/// Transactions are not checked if a table has more rows: debug builds must stay usable with large tables.
const FEW: i64 = 300;
const FEW_ROWS: &str = "
    SELECT (SELECT count(*) FROM (SELECT 1 FROM scheduled_tasks LIMIT ?1 + 1)) <= ?1
       AND (SELECT count(*) FROM (SELECT 1 FROM task_runs LIMIT ?1 + 1)) <= ?1
       AND (SELECT count(*) FROM (SELECT 1 FROM task_attempts LIMIT ?1 + 1)) <= ?1";

fn are_few(tx: &Transaction<'_>) -> bool {
    tx.prepare_cached(FEW_ROWS).and_then(|mut few| few.query_row([FEW], |row| row.get(0))).unwrap_or(false)
}

/// Returns whether it is certain that no rule is broken. Also checks the rules that [`broken`] skips while a task is not planned:
/// otherwise such a violation would be attributed to the transaction that plans the task.
pub(crate) fn hold(tx: &Transaction<'_>) -> bool {
    are_few(tx) && violations(tx, 1, including_unplanned).is_ok_and(|broken| broken.is_empty())
}

/// Returns whether it is certain that a rule is broken, in a file that passes SQLite's integrity check. In a damaged file the rule
/// may have been broken before, unseen: an index that lacks a row hides it from a rule, or from the trigger that must delete it.
pub(crate) fn are_broken(tx: &Transaction<'_>) -> bool {
    are_few(tx) && broken(tx, 1).is_ok_and(|broken| !broken.is_empty()) && is_intact(tx)
}

fn is_intact(tx: &Transaction<'_>) -> bool {
    let first = tx.query_row("PRAGMA integrity_check(1)", [], |row| row::shown(row, 0));
    first.is_ok_and(|first| first == "ok")
}

/// Removes the condition by which a statement returns no rows while a task is not planned.
fn including_unplanned(statement: &str) -> String {
    statement.replace("AND NOT EXISTS (SELECT 1 FROM scheduled_tasks WHERE planned = 0)", "")
}

/// Returns the violations of the rules, at most `limit` for each.
pub(crate) fn broken(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<Broken>> {
    violations(tx, limit, str::to_owned)
}

fn violations(tx: &Transaction<'_>, limit: usize, rewrite: fn(&str) -> String) -> rusqlite::Result<Vec<Broken>> {
    let mut found = Vec::new();
    for (rule, statement) in RULES {
        let mut statement = tx.prepare_cached(&rewrite(statement))?;
        for row in statement.query_map(named_params! { ":limit": sql_limit(limit) }, |row| row::shown(row, 0))? {
            found.push((rule, row?));
        }
    }
    let misplaced = misplaced(tx, &rewrite(WAITING), Timestamp::MAX)?;
    let (held, free): (Vec<MisplacedRun>, Vec<MisplacedRun>) =
        misplaced.into_iter().partition(|held| held.reason.is_some());
    for (rule, runs) in [(FREE, free), (HELD, held)] {
        found.extend(runs.into_iter().take(limit).map(|MisplacedRun { run, task, reason }| {
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            (rule, format!("run {run} of task {task}{reason}"))
        }));
    }
    for (run, task, why) in run_findings(tx, REOPENED, limit)? {
        found.push((FINAL, format!("run {run} of task {task} {why}")));
    }
    Ok(found)
}

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The rule that [`unreadable`] checks.
const TEXT: &str = "each text is UTF-8, and in a task without NUL";

/// Rows whose text is checked, with the id and a name first. Runs, and the last error of a task, may hold NUL, which programs print.
const TASK_TEXT: &str = sql! {"SELECT id, name, {task_columns} FROM scheduled_tasks"};
const RUN_TEXT: &str = sql! {"SELECT id, task_id, {run_columns}, process FROM task_runs"};
/// Without tasks that are completed, or already marked as invalid.
const LIVE_TASK_TEXT: &str = sql! {"
SELECT id, name, {task_columns} FROM scheduled_tasks WHERE status = 'active' OR status = 'paused'"};

/// Returns rows with text that is not UTF-8 or, with `refuses_nul`, holds NUL: id, name, and what is wrong.
fn unreadable(
    tx: &Transaction<'_>,
    statement: &str,
    refuses_nul: bool,
    limit: usize,
) -> rusqlite::Result<Vec<(i64, String, String)>> {
    let mut found = Vec::new();
    let mut statement = tx.prepare(statement)?;
    let columns: Vec<String> = Vec::from_iter(statement.column_names()).into_iter().map(str::to_owned).collect();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        for (place, column) in columns.iter().enumerate().skip(2) {
            let ValueRef::Text(bytes) = row.get_ref(place)? else { continue };
            let fault = match std::str::from_utf8(bytes) {
                Err(_) => "is not UTF-8",
                Ok(text) if refuses_nul && column != "last_error" && text.contains('\0') => "holds NUL",
                Ok(_) => continue,
            };
            let name = row.get_ref(1)?.as_bytes().map(String::from_utf8_lossy).unwrap_or_default();
            found.push((row.get(0)?, name.into_owned(), format!("{column} {fault}")));
            if found.len() == limit {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

/// Returns active and paused tasks whose row cannot be read: name, and what is wrong with it.
pub(crate) fn unreadable_tasks(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<(String, String)>> {
    let found = unreadable(tx, LIVE_TASK_TEXT, true, limit)?;
    Ok(found.into_iter().map(|(_, name, fault)| (name, fault)).collect())
}

/// Returns the violations of the rule about text. Another program wrote it, so transactions are not checked against this rule.
pub(crate) fn unreadable_text(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<Broken>> {
    let tasks = unreadable(tx, TASK_TEXT, true, limit)?.into_iter();
    let tasks = tasks.map(|(id, name, fault)| format!("task {id}, {name}: {fault}"));
    let runs = unreadable(tx, RUN_TEXT, false, limit)?.into_iter();
    let runs = runs.map(|(id, _, fault)| format!("run {id}: {fault}"));
    Ok(tasks.chain(runs).map(|row| (TEXT, row)).collect())
}

/// Returns the violations of the rule about owners.
pub(crate) fn unowned(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<Broken>> {
    let runs = ownerless(tx, limit)?.into_iter();
    Ok(runs
        .map(|(run, task, owner)| (OWNED, format!("run {run} of task {task} is running for owner {owner}")))
        .collect())
}

/// Returns what SQLite's own checks find: damaged pages and indexes, broken constraints, dangling foreign keys.
pub(crate) fn damaged(tx: &Transaction<'_>, limit: usize) -> rusqlite::Result<Vec<Broken>> {
    let mut found = Vec::new();
    let mut check = tx.prepare(&format!("PRAGMA integrity_check({limit})"))?;
    for line in check.query_map([], |row| row::shown(row, 0))? {
        let line = line?;
        if line != "ok" {
            found.push(("integrity_check", line));
        }
    }
    let mut check = tx.prepare("PRAGMA foreign_key_check")?;
    let rows = check.query_map([], |row| {
        let (table, row, parent): (String, Option<i64>, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let row = row.map_or_else(String::new, |row| format!(" row {row}"));
        Ok(format!("{table}{row} refers to no row of {parent}"))
    })?;
    for row in rows.take(limit) {
        found.push(("foreign_key_check", row?));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{
        ALL, FINAL, FREE, FREE_TWICE, HELD, OWNED, REOPENED, RULES, TEXT, UNFINISHED, WAITING, including_unplanned,
    };

    #[test]
    fn every_rule_is_documented_in_testing_md() {
        // The package of the library is without this page.
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/testing.md");
        let Ok(documented) = std::fs::read_to_string(page) else { return };
        for rule in RULES.iter().map(|(rule, _)| *rule).chain([FREE, HELD, FINAL, OWNED, TEXT]) {
            assert!(documented.contains(&format!("* {rule}\n")), "{rule}");
        }
    }

    #[test]
    fn including_unplanned_removes_the_condition() {
        for statement in [FREE_TWICE, WAITING] {
            assert!(!including_unplanned(statement).contains("planned"), "{statement}");
        }
        assert!(REOPENED.replace(ALL, UNFINISHED).contains(UNFINISHED));
    }
}
