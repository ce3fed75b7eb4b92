//! Plans tasks again that other zone data had planned. An occurrence that already has a row does not run again.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::model::task::Task;
use crate::rules::resolve::{self, Plan};
use crate::schedule::{Schedules, zone_data};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{foreign_plans, owners, row};

const SET_ZONE_DATA: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES ('zone_data', :version)
    ON CONFLICT (key) DO UPDATE SET value = :version";

/// How far the tasks are planned again that other zone data had planned, of which there may be any number. A row of `scheduler_meta`
/// keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZoneMark {
    /// The last of them, in the order of their ids.
    after: i64,
    /// When the other zone data was found: an occurrence that was due then is resolved as it was planned.
    since: i64,
}

const ZONE_MARK: &str = "SELECT CAST(value AS BLOB) FROM scheduler_meta WHERE key = 'zone_mark'";

/// Returns how far the tasks are planned again; `None`: all are, or they are planned by other zone data than that of this process.
pub(crate) fn zone_mark(tx: &Transaction<'_>) -> rusqlite::Result<Option<ZoneMark>> {
    let value: Option<Vec<u8>> = tx.prepare_cached(ZONE_MARK)?.query_row([], |row| row.get(0)).optional()?;
    let Some(value) = value else { return Ok(None) };
    if !foreign_plans::recorded(tx)?.is_some_and(|recorded| zone_data().is_as(&recorded)) {
        return Ok(None);
    }
    // Something that another program wrote counts as the end.
    let read = |value: Vec<u8>| {
        let value = String::from_utf8(value).ok()?;
        let (after, since) = value.split_once(' ')?;
        Some(ZoneMark { after: after.parse().ok()?, since: since.parse().ok()? })
    };
    Ok(Some(read(value).unwrap_or(ZoneMark { after: i64::MAX, since: i64::MAX })))
}

const SET_ZONE_MARK: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES ('zone_mark', :mark)
    ON CONFLICT (key) DO UPDATE SET value = :mark";

const NO_ZONE_MARK: &str = "DELETE FROM scheduler_meta WHERE key = 'zone_mark'";

/// Stores how far the tasks are planned again.
pub(crate) fn set_zone_mark(tx: &Transaction<'_>, mark: Option<ZoneMark>) -> rusqlite::Result<()> {
    let Some(ZoneMark { after, since }) = mark else { return tx.prepare_cached(NO_ZONE_MARK)?.execute([]).map(drop) };
    let mark = format!("{after} {since}");
    tx.prepare_cached(SET_ZONE_MARK)?.execute(named_params! { ":mark": mark }).map(drop)
}

const NEXT_TASKS: &str = sql! {"
    SELECT id, iif({active_planned} AND next_run > :since, iif(time_zone <> 'UTC', {local_time}, 0), 0)
      FROM scheduled_tasks WHERE id > :after ORDER BY id LIMIT :limit"};

/// Returns the next tasks with a local time in the future behind a mark, at most `most`, and the mark after them. At most `looked_at` tasks
/// are looked at: most may have no local time, which costs little.
pub(crate) fn next_tasks(
    tx: &Transaction<'_>,
    mark: ZoneMark,
    looked_at: usize,
    most: usize,
) -> rusqlite::Result<(Vec<i64>, Option<ZoneMark>)> {
    let limit = i64::try_from(looked_at).unwrap_or(i64::MAX);
    let mut statement = tx.prepare_cached(NEXT_TASKS)?;
    let mut rows = statement.query(named_params! { ":after": mark.after, ":since": mark.since, ":limit": limit })?;
    let (mut tasks, mut left, mut looked) = (Vec::new(), mark, 0);
    while let Some(row) = rows.next()? {
        let (id, is_local) = (row.get(0)?, row.get::<_, Option<bool>>(1)?.unwrap_or(false));
        if is_local {
            if tasks.len() == most {
                return Ok((tasks, Some(left)));
            }
            tasks.push(id);
        }
        (left.after, looked) = (id, looked + 1);
    }
    Ok((tasks, (looked >= looked_at).then_some(left)))
}

/// Those of these tasks with a local time in the future, looked up by id. An occurrence that is already due is resolved as it was planned.
const LOCAL_TASKS: &str = sql! {"
    SELECT {task_columns} FROM scheduled_tasks NOT INDEXED
     WHERE id IN (SELECT value FROM rarray(:tasks)) AND +id > :after
       AND {active_planned} AND next_run > :since AND {local_time}"};

/// Plans those of these tasks again that other zone data had planned. Returns whether a row must be examined to be planned: the next turn
/// does. The others are planned at once: left unplanned, a scheduler with the data before would plan them in its next turn.
pub(crate) fn plan_again(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    mark: ZoneMark,
    tasks: &[i64],
) -> rusqlite::Result<bool> {
    let mut statement = tx.prepare_cached(LOCAL_TASKS)?;
    let tasks = row::list(tasks.iter().copied());
    let params = named_params! { ":tasks": tasks, ":after": mark.after, ":since": mark.since };
    let planned = statement.query_map(params, |row| Ok((row.get("id")?, row::task(row).ok())))?;
    let planned: Vec<(i64, Option<Task>)> = planned.collect::<rusqlite::Result<_>>()?;
    let mut any_left = false;
    for (id, task) in planned {
        let before = task.as_ref().and_then(|task| task.next_run);
        let next = task.and_then(|task| anew(schedules, &task));
        any_left |= next.is_none();
        if next.is_none() || next != before {
            foreign_plans::set(tx, id, next)?;
        }
    }
    Ok(any_left)
}

/// Returns when a task is due by the zone data of this process. `None`: its row must be examined.
fn anew(schedules: &mut Schedules, task: &Task) -> Option<Timestamp> {
    let schedule = task.definition.check(task.created_at, schedules).ok()?;
    let plan = Plan::new(&task.definition, schedule, task.next_run?, task.resolved_until, task.active_since);
    resolve::planned_anew(&plan)
}

/// Most tasks that a registration plans again. Turns go on with the others.
pub(crate) const AT_ONCE: usize = 250;

/// Records the zone data of this process. Returns the recorded zone data if it differs: local times are then planned again. They are
/// also if none was recorded: clients may have planned them with other data.
pub(crate) fn record_zone_data(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    version: &str,
    now: Timestamp,
) -> rusqlite::Result<Option<String>> {
    let before = foreign_plans::recorded(tx)?;
    if before.as_deref() == Some(version) {
        return Ok(None);
    }
    tx.prepare_cached(SET_ZONE_DATA)?.execute(named_params! { ":version": version })?;
    let mark = ZoneMark { after: i64::MIN, since: now.as_millis() };
    let (tasks, left) = next_tasks(tx, mark, AT_ONCE, AT_ONCE)?;
    // The first turn examines the rows that cannot be planned.
    plan_again(tx, schedules, mark, &tasks)?;
    set_zone_mark(tx, left)?;
    if let Some(before) = &before {
        owners::record(tx, now, "zone_data", None, None, Some(&format!("{before} became {version}")))?;
    }
    Ok(before)
}
