//! The marks of a clock that was wrong: since when that is known, and how far the starts of rate limits are set back, and tasks and waiting
//! runs planned again, of which there may be any number. A row of `scheduler_meta` keeps each. Correcting a row again changes nothing.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::store::sqlite::row::raw;
use crate::store::sqlite::sql::{number, sql};

/// Before the first row, and behind the last. A server reads numbers of at most 18 digits.
const FIRST: i64 = -999_999_999_999_999_999;
const LAST: i64 = 999_999_999_999_999_999;

/// Most rows that one turn looks at.
pub(crate) const MOST: usize = number("misplanned") as usize;

/// How far the rows are planned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockMark {
    /// When the clock was found wrong.
    pub(crate) since: Timestamp,
    /// The last task, in the order of ids.
    task: i64,
    run: Place,
}

impl ClockMark {
    /// Returns whether a task is still to be planned again.
    pub(crate) fn awaits(&self, task: i64) -> bool {
        self.task < task
    }
}

/// The place of a run in the index `task_runs_unfinished`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    task: i64,
    unscheduled: i64,
    scheduled_for: i64,
}

impl Place {
    const LAST: Place = Place { task: LAST, unscheduled: 0, scheduled_for: 0 };
}

/// Returns a time that the tables may hold.
fn time(millis: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millis(millis)).filter(|time| (Timestamp::MIN..=Timestamp::MAX).contains(time))
}

const READ: &str = "SELECT CAST(value AS BLOB) FROM scheduler_meta WHERE key = 'clock_mark'";

/// Returns the mark; `None`: all is planned by the clock as it is.
pub(crate) fn read(tx: &Transaction<'_>) -> rusqlite::Result<Option<ClockMark>> {
    let value: Option<Vec<u8>> = tx.prepare_cached(READ)?.query_row([], |row| row.get(0)).optional()?;
    let read = |value: &[u8]| {
        let numbers = std::str::from_utf8(value).ok()?.split(' ').map(|number| number.parse().ok());
        let [since, task, of, unscheduled, scheduled_for] = numbers.collect::<Option<Vec<i64>>>()?.try_into().ok()?;
        let run = Place { task: of, unscheduled, scheduled_for };
        Some(ClockMark { since: time(since)?, task, run })
    };
    // Something that another program wrote counts as the end.
    let end = ClockMark { since: Timestamp::MAX, task: LAST, run: Place::LAST };
    Ok(value.map(|value| read(&value).unwrap_or(end)))
}

const WRITE: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES ('clock_mark', :mark)
    ON CONFLICT (key) DO UPDATE SET value = :mark";

const REMOVE: &str = "DELETE FROM scheduler_meta WHERE key = 'clock_mark'";

/// Stores how far the rows are planned again; `None`: all are.
pub(crate) fn reach(tx: &Transaction<'_>, mark: Option<ClockMark>) -> rusqlite::Result<()> {
    let Some(ClockMark { since, task, run }) = mark else { return tx.prepare_cached(REMOVE)?.execute([]).map(drop) };
    let Place { task: of, unscheduled, scheduled_for } = run;
    let mark = format!("{} {task} {of} {unscheduled} {scheduled_for}", since.as_millis());
    tx.prepare_cached(WRITE)?.execute(named_params! { ":mark": mark }).map(drop)
}

/// Marks all rows: the clock was found wrong. A mark of before begins again.
pub(crate) fn begin(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let run = Place { task: FIRST, unscheduled: 0, scheduled_for: 0 };
    reach(tx, Some(ClockMark { since: now, task: FIRST, run }))?;
    reach_start(tx, Some(&StartMark { since: now, last: Start { subject: Vec::new(), number: 0 } }))
}

/// Until they are set back, starts in the future hold back their keys and tasks as well.
const CLOSE_AHEAD: &str = "
    INSERT INTO rate_limit_openings (subject, opens_at)
    SELECT subject, 1000000000000 FROM rate_limit_starts WHERE started_at > :now AND subject NOT GLOB 'handler:*'
    ON CONFLICT (subject) DO UPDATE SET opens_at = excluded.opens_at";

/// Has keys and tasks with starts in the future wait until these are set back.
pub(crate) fn close_ahead(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(CLOSE_AHEAD)?.execute(named_params! { ":now": now }).map(drop)
}

/// A start that counts for a limit. Its subject may be any text.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    subject: Vec<u8>,
    number: i64,
}

/// How far the starts of rate limits are set back. Behind it, a start in the future holds its subject back: too long, never too short.
#[derive(Clone, Debug)]
pub(crate) struct StartMark {
    /// When the clock was found wrong.
    pub(crate) since: Timestamp,
    /// The last start, in the order of subjects and numbers.
    last: Start,
}

const READ_START: &str = "SELECT CAST(value AS BLOB) FROM scheduler_meta WHERE key = 'clock_mark_starts'";

/// Returns the mark of starts; `None`: all are set back.
pub(crate) fn read_start(tx: &Transaction<'_>) -> rusqlite::Result<Option<StartMark>> {
    let value: Option<Vec<u8>> = tx.prepare_cached(READ_START)?.query_row([], |row| row.get(0)).optional()?;
    let read = |value: &[u8]| {
        let mut parts = value.splitn(3, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        let (since, number) = (time(number()?)?, number()?);
        Some(StartMark { since, last: Start { subject: parts.next()?.to_owned(), number } })
    };
    // Something that another program wrote counts as nothing.
    Ok(value.and_then(|value| read(&value)))
}

const WRITE_START: &str = "
    INSERT INTO scheduler_meta (key, value) VALUES ('clock_mark_starts', :mark)
    ON CONFLICT (key) DO UPDATE SET value = :mark";

const REMOVE_START: &str = "DELETE FROM scheduler_meta WHERE key = 'clock_mark_starts'";

/// Stores how far starts are set back; `None`: all are.
pub(crate) fn reach_start(tx: &Transaction<'_>, mark: Option<&StartMark>) -> rusqlite::Result<()> {
    let Some(StartMark { since, last }) = mark else { return tx.prepare_cached(REMOVE_START)?.execute([]).map(drop) };
    let mark = [format!("{} {} ", since.as_millis(), last.number).as_bytes(), &last.subject].concat();
    tx.prepare_cached(WRITE_START)?.execute(named_params! { ":mark": raw(&mark) }).map(drop)
}

const NEXT_STARTS: &str = "
    SELECT subject, number, started_at > :now FROM rate_limit_starts WHERE (subject, number) > (:subject, :number)
     ORDER BY subject, number LIMIT :limit";

/// The next starts.
pub(crate) struct StartBatch {
    /// Starts in the future.
    pub(crate) late: Vec<Start>,
    /// How many rows were looked at.
    pub(crate) looked_at: usize,
    /// The mark after them; `None` if they are the last.
    pub(crate) reached: Option<StartMark>,
}

/// Returns the starts behind a mark, at most `limit`.
pub(crate) fn start_batch(
    tx: &Transaction<'_>,
    mark: &StartMark,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<StartBatch> {
    let (StartMark { last, .. }, count) = (mark, i64::try_from(limit).unwrap_or(i64::MAX));
    let params = named_params! { ":subject": raw(&last.subject), ":number": last.number, ":now": now, ":limit": count };
    let mut statement = tx.prepare_cached(NEXT_STARTS)?;
    let mut rows = statement.query(params)?;
    let (mut late, mut looked_at, mut reached) = (Vec::new(), 0, mark.clone());
    while let Some(row) = rows.next()? {
        reached.last = Start { subject: row.get_ref(0)?.as_bytes()?.to_owned(), number: row.get(1)? };
        if row.get(2)? {
            late.push(reached.last.clone());
        }
        looked_at += 1;
    }
    Ok(StartBatch { late, looked_at, reached: (looked_at == limit).then_some(reached) })
}

const SET_BACK: &str =
    "UPDATE rate_limit_starts SET started_at = :at WHERE subject = :subject AND number = :number AND started_at > :at";

/// Has a turn examine when the next start of a key or a task is free: a start that is set back may count again. Any time that has passed
/// says so.
const EXAMINE: &str = "
    INSERT INTO rate_limit_openings (subject, opens_at) SELECT :subject, 1000000000000 WHERE :subject NOT GLOB 'handler:*'
    ON CONFLICT (subject) DO UPDATE SET opens_at = excluded.opens_at";

/// Sets a start back.
pub(crate) fn set_back(tx: &Transaction<'_>, start: &Start, at: Timestamp) -> rusqlite::Result<()> {
    let params = named_params! { ":subject": raw(&start.subject), ":number": start.number, ":at": at };
    tx.prepare_cached(SET_BACK)?.execute(params)?;
    tx.prepare_cached(EXAMINE)?.execute(named_params! { ":subject": raw(&start.subject) }).map(drop)
}

/// The next rows that are planned again.
pub(crate) struct Batch {
    pub(crate) tasks: Vec<i64>,
    /// Waiting runs that are due later.
    pub(crate) runs: Vec<i64>,
    /// How many rows were looked at.
    pub(crate) looked_at: usize,
    /// The mark after them; `None` if they are the last.
    pub(crate) reached: Option<ClockMark>,
}

const NEXT_TASKS: &str = "SELECT id FROM scheduled_tasks WHERE id > :task ORDER BY id LIMIT :limit";

// INDEXED BY: after an ANALYZE SQLite would choose the index that also holds all final runs.
const NEXT_SCHEDULED: &str = sql! {"
    SELECT id, task_id, {unscheduled_id}, scheduled_for, {waiting} AND run_at > :now FROM task_runs INDEXED BY task_runs_unfinished
     WHERE {unfinished} AND task_id = :task AND {unscheduled_id} = :unscheduled AND scheduled_for > :scheduled
     ORDER BY scheduled_for LIMIT :limit"};

const NEXT_OTHERS: &str = sql! {"
    SELECT id, task_id, {unscheduled_id}, scheduled_for, {waiting} AND run_at > :now FROM task_runs INDEXED BY task_runs_unfinished
     WHERE {unfinished} AND task_id = :task AND {unscheduled_id} > :unscheduled
     ORDER BY {unscheduled_id} LIMIT :limit"};

const NEXT_OF_TASKS: &str = sql! {"
    SELECT id, task_id, {unscheduled_id}, scheduled_for, {waiting} AND run_at > :now FROM task_runs INDEXED BY task_runs_unfinished
     WHERE {unfinished} AND task_id > :task
     ORDER BY task_id, {unscheduled_id}, scheduled_for LIMIT :limit"};

/// Returns the rows behind a mark, at most `limit`: all tasks, then the unfinished runs in the order of their index.
pub(crate) fn batch(tx: &Transaction<'_>, mark: ClockMark, now: Timestamp, limit: usize) -> rusqlite::Result<Batch> {
    let mut reached = mark;
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let params = named_params! { ":task": mark.task, ":limit": count(limit) };
    let mut statement = tx.prepare_cached(NEXT_TASKS)?;
    let tasks: Vec<i64> = statement.query_map(params, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    if tasks.len() == limit {
        reached.task = tasks.last().copied().unwrap_or(mark.task);
        return Ok(Batch { looked_at: tasks.len(), tasks, runs: Vec::new(), reached: Some(reached) });
    }
    reached.task = LAST;
    let (mut runs, mut looked_at) = (Vec::new(), tasks.len());
    let Place { task, unscheduled, scheduled_for } = mark.run;
    for (statement, of_task, of_kind) in
        [(NEXT_SCHEDULED, true, true), (NEXT_OTHERS, true, false), (NEXT_OF_TASKS, false, false)]
    {
        let left = count(limit - looked_at);
        let mut params: Vec<(&str, &dyn rusqlite::ToSql)> = vec![(":task", &task), (":now", &now), (":limit", &left)];
        if of_task {
            params.push((":unscheduled", &unscheduled));
        }
        if of_kind {
            params.push((":scheduled", &scheduled_for));
        }
        let mut statement = tx.prepare_cached(statement)?;
        let mut rows = statement.query(&*params)?;
        while let Some(row) = rows.next()? {
            if row.get(4)? {
                runs.push(row.get(0)?);
            }
            reached.run = Place { task: row.get(1)?, unscheduled: row.get(2)?, scheduled_for: row.get(3)? };
            looked_at += 1;
        }
    }
    Ok(Batch { tasks, runs, looked_at, reached: (looked_at == limit).then_some(reached) })
}
