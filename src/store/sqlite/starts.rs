//! The starts that count for the rate of a handler, a key or a task, and which keys and tasks have none left.
//!
//! The newest starts of a subject are numbered, and the next one may follow when the start `max_starts` before it is `per_ms` ago. A start
//! that uses up the rate of a key or a task writes a row of `rate_limit_openings`, with the time at which the next start is free: until a
//! turn deletes that row, the subject is closed. A claim compares the starts of its own key and task as well, since the clock may have been
//! set back. No turn goes through all limits.

use rusqlite::{OptionalExtension, Row, ToSql, Transaction, named_params};

use crate::clock::Timestamp;
use crate::rules::start_limit::Rate;
use crate::store::fault::Fault;
use crate::store::sqlite::row;
use crate::store::sqlite::sql::sql;

/// What starts are counted of, as the tables name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject(String);

impl Subject {
    pub(crate) fn handler(name: &str) -> Self {
        Subject(format!("handler:{name}"))
    }

    pub(crate) fn key(name: &str) -> Self {
        Subject(format!("key:{name}"))
    }

    pub(crate) fn task(id: i64) -> Self {
        Subject(format!("task:{id}"))
    }

    /// Returns the key or the task of a row of `rate_limit_openings`.
    pub(crate) fn of(&self) -> Option<Of<'_>> {
        match self.0.split_once(':')? {
            ("key", key) => Some(Of::Key(key)),
            ("task", id) => id.parse().ok().map(Of::Task),
            _ => None,
        }
    }
}

impl ToSql for Subject {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

/// A subject that may be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of<'s> {
    Key(&'s str),
    Task(i64),
}

/// Numbers that a CHECK refuses are ignored: another program may switch the checks off.
const PREVIOUS: &str = sql! {"
    SELECT started_at FROM rate_limit_starts
     WHERE subject = :subject
       AND number <= (SELECT max(number) FROM rate_limit_starts
                       WHERE subject = :subject AND number < {most_starts}) + 1 - :starts
     ORDER BY number DESC LIMIT 1"};

/// Returns when the next start is free: an instant that may have passed, or `None` if no start limits it.
pub(crate) fn opens_at(tx: &Transaction<'_>, subject: &Subject, rate: &Rate) -> rusqlite::Result<Option<Timestamp>> {
    let params = named_params! { ":subject": subject, ":starts": rate.starts };
    let start: Option<i64> = tx.prepare_cached(PREVIOUS)?.query_row(params, |row| row.get(0)).optional()?;
    Ok(rate.opens_at(start))
}

/// The starts that the next ones are compared with, and the place of each.
const COMPARED: &str = sql! {"
    SELECT number - (SELECT max(number) FROM rate_limit_starts WHERE subject = :subject AND number < {most_starts}) + :starts AS place,
           started_at
      FROM rate_limit_starts
     WHERE subject = :subject
       AND number > (SELECT max(number) FROM rate_limit_starts WHERE subject = :subject AND number < {most_starts}) - :starts
       AND number <= (SELECT max(number) FROM rate_limit_starts WHERE subject = :subject AND number < {most_starts})
                     - :starts + :most
     ORDER BY number"};

/// Returns how many starts are free now, at most `most`.
pub(crate) fn left(
    tx: &Transaction<'_>,
    subject: &Subject,
    rate: &Rate,
    most: i64,
    now: Timestamp,
) -> rusqlite::Result<i64> {
    let params = named_params! { ":subject": subject, ":starts": rate.starts, ":most": most };
    let mut statement = tx.prepare_cached(COMPARED)?;
    let compared = statement.query_map(params, |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rate.left(&compared.collect::<rusqlite::Result<Vec<_>>>()?, most, now))
}

const RECORD: &str = sql! {"
    INSERT INTO rate_limit_starts (subject, number, started_at)
    VALUES (:subject, ifnull((SELECT max(number) FROM rate_limit_starts
                               WHERE subject = :subject AND number < {most_starts}), 0) + 1, :at)"};

const FORGET: &str = sql! {"
    DELETE FROM rate_limit_starts
     WHERE subject = :subject
       AND number <= (SELECT max(number) FROM rate_limit_starts
                       WHERE subject = :subject AND number < {most_starts}) - :kept"};

const CLOSE: &str = "
    INSERT INTO rate_limit_openings (subject, opens_at) VALUES (:subject, :at)
    ON CONFLICT (subject) DO UPDATE SET opens_at = excluded.opens_at";

/// Records a start that counts as one of the time `at`. Returns whether it has used up the rate of a key or a task, which is then closed.
pub(crate) fn record(
    tx: &Transaction<'_>,
    subject: &Subject,
    rate: &Rate,
    at: Timestamp,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    tx.prepare_cached(RECORD)?.execute(named_params! { ":subject": subject, ":at": at })?;
    tx.prepare_cached(FORGET)?.execute(named_params! { ":subject": subject, ":kept": rate.starts })?;
    if subject.of().is_none() {
        return Ok(false);
    }
    close(tx, subject, rate, now)
}

/// Closes a subject if no start of it is free now. Returns whether it is closed.
fn close(tx: &Transaction<'_>, subject: &Subject, rate: &Rate, now: Timestamp) -> rusqlite::Result<bool> {
    let opens_at = opens_at(tx, subject, rate)?.filter(|opens_at| *opens_at > now);
    let Some(opens_at) = opens_at else { return Ok(false) };
    tx.prepare_cached(CLOSE)?.execute(named_params! { ":subject": subject, ":at": opens_at })?;
    Ok(true)
}

const IS_CLOSED: &str = "SELECT EXISTS (SELECT 1 FROM rate_limit_openings WHERE subject = :subject)";

/// Returns whether no start of a key or a task is left.
fn is_closed(tx: &Transaction<'_>, subject: &Subject) -> rusqlite::Result<bool> {
    tx.prepare_cached(IS_CLOSED)?.query_row(named_params! { ":subject": subject }, |row| row.get(0))
}

/// Returns whether no start of a key or a task is left, and closes it if nothing shows that yet: its row was deleted before the clock was set
/// back.
pub(crate) fn is_used_up(
    tx: &Transaction<'_>,
    subject: &Subject,
    rate: &Rate,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    Ok(is_closed(tx, subject)? || close(tx, subject, rate, now)?)
}

const CLOSED_UNTIL: &str = "SELECT opens_at FROM rate_limit_openings WHERE subject = :subject";

/// Returns until when no start of a key or a task is left, if none is.
pub(crate) fn closed_until(tx: &Transaction<'_>, subject: &Subject) -> rusqlite::Result<Option<Timestamp>> {
    tx.prepare_cached(CLOSED_UNTIL)?.query_row(named_params! { ":subject": subject }, |row| row.get(0)).optional()
}

const RATE_OF_KEY: &str = "
    SELECT max_starts, per_ms FROM concurrency_limits WHERE concurrency_key = :key AND max_starts IS NOT NULL AND per_ms IS NOT NULL";

/// Returns the rate of a key.
pub(crate) fn rate_of_key(tx: &Transaction<'_>, key: &str) -> rusqlite::Result<Option<Rate>> {
    let read = |row: &Row<'_>| Ok(Rate { starts: row.get::<_, i64>(0)?.max(1), per: row.get(1)? });
    tx.prepare_cached(RATE_OF_KEY)?.query_row(named_params! { ":key": key }, read).optional()
}

const RATE_OF_TASK: &str = "SELECT max_starts FROM scheduled_tasks WHERE id = :task";

/// Returns the rate of a task. A text that is no rate makes its task invalid, and holds up no other.
pub(crate) fn rate_of_task(tx: &Transaction<'_>, task: i64) -> Result<Option<Rate>, Fault> {
    let text: Option<Option<String>> =
        tx.prepare_cached(RATE_OF_TASK)?.query_row(named_params! { ":task": task }, |row| row.get(0)).optional()?;
    Ok(text.flatten().as_deref().and_then(|text| Rate::parse(text).ok()))
}

const NEXT_OPENING: &str = "SELECT min(opens_at) FROM rate_limit_openings";

/// Returns when the next key or task may have a start again.
pub(crate) fn next_opening(tx: &Transaction<'_>) -> rusqlite::Result<Option<Timestamp>> {
    tx.prepare_cached(NEXT_OPENING)?.query_row([], |row| row.get(0))
}

const DUE: &str =
    "SELECT subject FROM rate_limit_openings WHERE opens_at <= :now ORDER BY opens_at, subject LIMIT :limit";

/// Returns the subjects whose time has come, at most `limit`.
pub(crate) fn due(tx: &Transaction<'_>, now: Timestamp, limit: usize) -> rusqlite::Result<Vec<Subject>> {
    let mut statement = tx.prepare_cached(DUE)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let read = |row: &Row<'_>| row::shown(row, 0).map(Subject);
    statement.query_map(named_params! { ":now": now, ":limit": limit }, read)?.collect()
}

const ANY_WAITS: &str = sql! {"
    SELECT EXISTS (SELECT 1 FROM rate_limit_openings)
       AND (EXISTS (SELECT 1 FROM task_runs WHERE {waiting} AND blocked = 'starts')
            OR EXISTS (SELECT 1 FROM task_runs WHERE {waiting} AND blocked = 'key'))"};

/// Returns whether a run may wait for a start of its key or of its task.
pub(crate) fn any_waits(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY_WAITS)?.query_row([], |row| row.get(0))
}

const OPEN: &str = "DELETE FROM rate_limit_openings WHERE subject = :subject";

/// Opens a subject whose time has come, if a start of it is free now: another limit, or a clock that was wrong, may have another time. Returns
/// whether it opens.
pub(crate) fn open(
    tx: &Transaction<'_>,
    subject: &Subject,
    rate: Option<&Rate>,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    if let Some(rate) = rate
        && close(tx, subject, rate, now)?
    {
        return Ok(false);
    }
    tx.prepare_cached(OPEN)?.execute(named_params! { ":subject": subject })?;
    Ok(true)
}
