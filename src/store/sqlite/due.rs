//! Reads which tasks are due, and when the next task is due.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Rows, Transaction, named_params, params};

use crate::clock::{Timestamp, millis};
use crate::host::attempt_slots::hash;
use crate::model::retry::RetryPolicy;
use crate::model::task::{DEFAULT_GRACE, Misfire, Overlap, WhenLimited};
use crate::rules::resolve::Plan;
use crate::rules::start_limit::Rate;
use crate::schedule::{Schedule, ScheduleKind, Schedules, Windows};
use crate::store::fault::Fault;
use crate::store::sqlite::limits::Starting;
use crate::store::sqlite::row;
use crate::store::sqlite::sql::sql;

/// A due task, with what its runs need.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) handler: String,
    pub(crate) payload: String,
    pub(crate) kind: ScheduleKind,
    pub(crate) plan: Plan,
    pub(crate) expires: Option<Duration>,
    pub(crate) retry: RetryPolicy,
    pub(crate) timeout: Option<Duration>,
    pub(crate) jitter: Duration,
    pub(crate) priority: u8,
    pub(crate) key: Option<String>,
    pub(crate) rate: Option<Rate>,
    pub(crate) when_limited: WhenLimited,
    pub(crate) any_unfinished: bool,
}

impl Due {
    /// Returns what a start of its runs counts for.
    pub(crate) fn starting(&self) -> Starting<'_> {
        Starting { handler: &self.handler, key: self.key.as_deref(), task: self.id, rate: self.rate }
    }

    /// Returns when a run of an occurrence expires.
    pub(crate) fn expires_at(&self, scheduled_for: Timestamp) -> Option<Timestamp> {
        let counted = scheduled_for.max(self.plan.active_since);
        self.expires.map(|expires| counted.plus(expires).min(Timestamp::MAX))
    }
}

// Reads many tasks in one statement, in the order of the list: starting and ending a statement costs a third as much as its
// reads. NOT INDEXED looks tasks up by id: after an ANALYZE of an empty file SQLite would scan every due task for each id.
const DUE: &str = sql! {"
    SELECT t.name, t.handler, t.payload, t.schedule_type, t.schedule_value, t.time_zone, t.starts_at, t.ends_at, t.next_run,
           t.resolved_until, t.active_since, t.overlap, t.misfire, t.misfire_grace_ms, t.catch_up_limit, t.expires_ms,
           t.max_attempts, t.backoff_ms, t.backoff_cap_ms, t.timeout_ms, t.jitter_ms, t.priority, t.concurrency_key,
           t.created_at,
           EXISTS (SELECT 1 FROM task_runs r
                    WHERE r.task_id = t.id AND {unfinished:r}),
           t.id, t.only_between, t.only_on, t.except_on, t.max_starts, t.when_limited
      FROM rarray(?1) CROSS JOIN scheduled_tasks t NOT INDEXED ON t.id = value
     WHERE {active_planned:t} AND t.next_run <= ?2"};

/// As [`DUE`], of the `once` tasks with default policies that were never resolved: of 25 columns only 8 differ. Most queued work is such.
const PLAIN: &str = sql! {"
    SELECT t.id, t.name, t.handler, t.payload, t.next_run, t.active_since, t.catch_up_limit, t.priority,
           EXISTS (SELECT 1 FROM task_runs r
                    WHERE r.task_id = t.id AND {unfinished:r})
      FROM rarray(?1) CROSS JOIN scheduled_tasks t NOT INDEXED ON t.id = value
     WHERE {active_planned:t} AND t.next_run <= ?2
       AND t.schedule_type = 'once' AND t.overlap = 'skip' AND t.misfire = 'run_once' AND t.misfire_grace_ms = ?3
       AND t.expires_ms IS NULL AND t.max_attempts = ?4 AND t.backoff_ms = ?5 AND t.backoff_cap_ms = ?6
       AND t.timeout_ms IS NULL AND t.jitter_ms = 0 AND t.concurrency_key IS NULL AND t.starts_at IS NULL
       AND t.ends_at IS NULL AND t.resolved_until IS NULL AND t.max_starts IS NULL AND t.when_limited = 'wait'"};

/// A task, or why its row cannot be read.
type Read = (i64, Result<Due, Fault>);

/// Returns those of the tasks that are due, in their order. A row that cannot be read yields its fault.
pub(crate) fn due(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    ids: &[i64],
    now: Timestamp,
) -> rusqlite::Result<Vec<Read>> {
    let mut plain = plain(tx, ids, now)?;
    if plain.len() == ids.len() {
        return Ok(plain);
    }
    let known: HashSet<i64> = plain.iter().map(|(id, _)| *id).collect();
    let others = row::list(ids.iter().copied().filter(|id| !known.contains(id)));
    let others = read(tx.prepare_cached(DUE)?.query(params![others, now])?, ids.len() - plain.len(), |row| {
        let id = row.get(25)?;
        Ok((id, read_due(row, id, schedules)))
    })?;
    if plain.is_empty() {
        return Ok(others);
    }
    plain.extend(others);
    let places: HashMap<i64, usize> = ids.iter().copied().zip(0..).collect();
    plain.sort_by_key(|(id, _)| places.get(id).copied());
    Ok(plain)
}

fn plain(tx: &Transaction<'_>, ids: &[i64], now: Timestamp) -> rusqlite::Result<Vec<Read>> {
    let RetryPolicy { max_attempts, backoff, max_backoff } = RetryPolicy::default();
    let (tasks, grace) = (row::list(ids.iter().copied()), millis(DEFAULT_GRACE));
    let params = params![tasks, now, grace, max_attempts, millis(backoff), millis(max_backoff)];
    read(tx.prepare_cached(PLAIN)?.query(params)?, ids.len(), |row| {
        let id = row.get(0)?;
        Ok((id, read_plain(row, id)))
    })
}

fn read(
    mut rows: Rows<'_>,
    most: usize,
    mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<Read>,
) -> rusqlite::Result<Vec<Read>> {
    let mut due = Vec::with_capacity(most);
    while let Some(row) = rows.next()? {
        due.push(read(row)?);
    }
    Ok(due)
}

fn read_plain(row: &Row<'_>, id: i64) -> Result<Due, Fault> {
    let next_run: Timestamp = row.get(4)?;
    Ok(Due {
        id,
        name: row.get(1)?,
        handler: row.get(2)?,
        payload: row.get(3)?,
        kind: ScheduleKind::Once,
        plan: Plan {
            schedule: Schedule::Once(next_run),
            next_run,
            resolved_until: None,
            active_since: row.get(5)?,
            starts_at: None,
            ends_at: None,
            windows: None,
            starts_left: None,
            overlap: Overlap::Skip,
            misfire: Misfire::RunOnce,
            grace: DEFAULT_GRACE,
            catch_up_limit: row.get::<_, u32>(6)? as usize,
        },
        expires: None,
        retry: RetryPolicy::default(),
        timeout: None,
        jitter: Duration::ZERO,
        priority: row.get(7)?,
        key: Some(format!("#{id}")),
        rate: None,
        when_limited: WhenLimited::Wait,
        any_unfinished: row.get(8)?,
    })
}

/// Reads columns by position, which is faster than by name: this runs for every run.
fn read_due(row: &Row<'_>, id: i64, schedules: &mut Schedules) -> Result<Due, Fault> {
    let length = |column| row::millis_at(row, column).map(Option::unwrap_or_default);
    let kind: ScheduleKind = row.get(3)?;
    let starts_at: Option<Timestamp> = row.get(6)?;
    let (next_run, resolved_until): (Timestamp, Option<Timestamp>) = (row.get(8)?, row.get(9)?);
    let overlap: Overlap = row.get(11)?;
    let schedule = match kind {
        // next_run is its one occurrence, and the text was checked when it was planned. If SQL set next_run to an instant
        // that is already resolved, the occurrence must be read from the text.
        ScheduleKind::Once if resolved_until.is_none_or(|until| next_run > until) => Schedule::Once(next_run),
        _ => {
            let (value, zone) = (row.get_ref(4)?.as_str(), row.get_ref(5)?.as_str());
            let (value, zone) = (value.map_err(rusqlite::Error::from)?, zone.map_err(rusqlite::Error::from)?);
            let anchor = starts_at.map_or_else(|| row.get(23), Ok)?;
            schedules.get(kind, value, zone, anchor)?
        }
    };
    let key: Option<String> = row.get(22)?;
    let own_key = || (overlap != Overlap::Allow).then(|| format!("#{id}"));
    Ok(Due {
        id,
        name: row.get(0)?,
        handler: row.get(1)?,
        payload: row.get(2)?,
        kind,
        plan: Plan {
            schedule,
            next_run,
            resolved_until,
            active_since: row.get(10)?,
            starts_at,
            ends_at: row.get(7)?,
            windows: windows(row)?,
            starts_left: None,
            overlap,
            misfire: row.get(12)?,
            grace: length(13)?,
            catch_up_limit: row.get::<_, u32>(14)? as usize,
        },
        expires: row::millis_at(row, 15)?,
        retry: RetryPolicy { max_attempts: row.get(16)?, backoff: length(17)?, max_backoff: length(18)? },
        timeout: row::millis_at(row, 19)?,
        jitter: length(20)?,
        priority: row.get(21)?,
        key: key.or_else(own_key),
        rate: row.get::<_, Option<String>>(29)?.as_deref().map(Rate::parse).transpose()?,
        when_limited: row.get(30)?,
        any_unfinished: row.get(24)?,
    })
}

fn windows(row: &Row<'_>) -> Result<Option<Box<Windows>>, Fault> {
    let texts: [Option<String>; 3] = [row.get(26)?, row.get(27)?, row.get(28)?];
    if texts.iter().all(Option::is_none) {
        return Ok(None);
    }
    let zone: String = row.get(5)?;
    Ok(Windows::parse(&zone, texts.each_ref().map(Option::as_deref))?.map(Box::new))
}

/// Returns a part of `whole` that depends only on the name, spread evenly over names.
pub(crate) fn part_of(whole: Duration, name: &str) -> Duration {
    match u64::try_from(whole.as_millis()).unwrap_or(u64::MAX) {
        0 => Duration::ZERO,
        millis => Duration::from_millis(hash(name) % millis),
    }
}

const DUE_LIST: &str = sql! {"
    SELECT next_run, id FROM scheduled_tasks
     WHERE {active_planned} AND priority = :priority AND next_run <= :now
     ORDER BY next_run LIMIT :limit"};

/// Returns the due tasks, one list per priority, each oldest first.
pub(crate) fn due_lists(
    tx: &Transaction<'_>,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<[Vec<(Timestamp, i64)>; 4]> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut lists = [const { Vec::new() }; 4];
    for ((priority, list), next) in (0_i64..).zip(&mut lists).zip(next_of_each_priority(tx)?) {
        if next.is_none_or(|next| next > now) {
            continue;
        }
        let mut statement = tx.prepare_cached(DUE_LIST)?;
        let rows = statement
            .query_map(named_params! { ":priority": priority, ":now": now, ":limit": limit }, |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        *list = rows.collect::<Result<_, _>>()?;
    }
    Ok(lists)
}

// One statement for all priorities: starting a statement costs more than the search.
const NEXT_DUE: &str = sql! {"
    SELECT (SELECT min(next_run) FROM scheduled_tasks WHERE {active_planned} AND priority = 0 AND next_run IS NOT NULL),
           (SELECT min(next_run) FROM scheduled_tasks WHERE {active_planned} AND priority = 1 AND next_run IS NOT NULL),
           (SELECT min(next_run) FROM scheduled_tasks WHERE {active_planned} AND priority = 2 AND next_run IS NOT NULL),
           (SELECT min(next_run) FROM scheduled_tasks WHERE {active_planned} AND priority = 3 AND next_run IS NOT NULL)"};

fn next_of_each_priority(tx: &Transaction<'_>) -> rusqlite::Result<[Option<Timestamp>; 4]> {
    tx.prepare_cached(NEXT_DUE)?.query_row([], row::of_each_priority)
}

/// Returns when the next task is due.
pub(crate) fn next_due(tx: &Transaction<'_>) -> rusqlite::Result<Option<Timestamp>> {
    Ok(next_of_each_priority(tx)?.into_iter().flatten().min())
}

const NEXT_OTHER: &str = sql! {"
    SELECT next_run FROM scheduled_tasks
     WHERE {active_planned} AND priority = :priority AND next_run IS NOT NULL AND id NOT IN rarray(:held)
     ORDER BY next_run LIMIT 1"};

/// As [`next_due`], without tasks that start nothing now.
pub(crate) fn next_due_except(tx: &Transaction<'_>, held: &BTreeSet<i64>) -> rusqlite::Result<Option<Timestamp>> {
    let mut statement = tx.prepare_cached(NEXT_OTHER)?;
    let mut earliest = None;
    for priority in 0..4 {
        let held = row::list(held.iter().copied());
        let params = named_params! { ":priority": priority, ":held": held };
        let next: Option<Timestamp> = statement.query_row(params, |row| row.get(0)).optional()?;
        earliest = earliest.into_iter().chain(next).min();
    }
    Ok(earliest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::connection::SqliteStore;
    use crate::store::sqlite::file::{Durability, Missing};

    const NOON: i64 = 1_805_025_600_000;

    #[test]
    fn a_plain_task_is_read_as_any_other_and_one_changed_policy_makes_it_not_plain() {
        let home = tempfile::tempdir().expect("a folder");
        let durability = Durability::MayRepeatAfterPowerLoss;
        let mut store = SqliteStore::open(&home.path().join("t.db"), Missing::Create, durability).expect("a store");
        let changes = [
            ("starts_at", "1700000000000"),
            ("ends_at", "1900000000000"),
            ("resolved_until", "1700000000000"),
            ("overlap", "'allow'"),
            ("misfire", "'skip'"),
            ("misfire_grace_ms", "1"),
            ("expires_ms", "90000000"),
            ("max_attempts", "1"),
            ("backoff_ms", "1"),
            ("backoff_cap_ms", "1"),
            ("timeout_ms", "0"),
            ("jitter_ms", "1"),
            ("concurrency_key", "'k'"),
            ("max_starts", "'1/1m'"),
            ("when_limited", "'skip'"),
        ];
        let insert = |name: &str, kind: &str, value: &str, (column, changed): (&str, &str)| {
            format!(
                "INSERT INTO scheduled_tasks (name, handler, schedule_type, schedule_value, next_run, planned, {column})
                 VALUES ('{name}', 'work', '{kind}', '{value}', {NOON}, 1, {changed});\n"
            )
        };
        let mut rows = insert("plain", "once", "2027-03-14T12:00:00Z", ("priority", "3"));
        rows += &insert("other", "interval", "1m", ("priority", "3"));
        changes.iter().for_each(|change| rows += &insert(change.0, "once", "2027-03-14T12:00:00Z", *change));
        let checked = store.write("check", |tx, schedules| {
            tx.execute_batch(&rows)?;
            // Not in the order of their ids.
            let ids: Vec<i64> = (1..=changes.len() as i64 + 2).rev().collect();
            let now = Timestamp::from_millis(NOON);
            let mut statement = tx.prepare(DUE)?;
            let each = read(statement.query(params![row::list(ids.iter().copied()), now])?, 0, |row| {
                let id = row.get(25)?;
                Ok((id, read_due(row, id, schedules)))
            })?;
            let all = due(tx, schedules, &ids, now)?;
            assert_eq!((all.len(), format!("{all:?}")), (ids.len(), format!("{each:?}")));
            let is_plain = |tx, id: i64| Ok::<_, rusqlite::Error>(plain(tx, &[id], now)?.len() == 1);
            for id in ids {
                assert_eq!(is_plain(tx, id)?, id == 1, "{id}");
            }
            Ok(())
        });
        checked.expect("rows");
    }
}
