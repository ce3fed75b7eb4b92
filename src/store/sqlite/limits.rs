//! Limits across processes: how many runs of a key run at once, and how many attempts start in a time.
//!
//! A running run holds a slot of its key; a unique index refuses a second run in a slot. A rate, of a handler, a key or a task, is an exact
//! sliding window of starts: see `starts`. Both are written in the transaction of the claim, so that a kill loses neither.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::host::attempt_slots::hash;
use crate::rules::start_limit::Rate;
use crate::store::sqlite::row::{self, raw};
use crate::store::sqlite::sql::{number, sql};
use crate::store::sqlite::starts::{self, Subject};
use crate::store::turn_io::Slots;

/// Most runs of one handler that may start behind a key at one time, however high its limit is: bounds what a claim derives again.
pub(crate) const WINDOW: usize = number("window") as usize;

/// How long after its claim a run may begin that was read ahead and whose starts are limited. As much work is read ahead at most.
const BEGIN_WITHIN: Duration = Duration::from_millis(200);

/// The shortest time of a rate, in milliseconds, with which runs are read ahead.
const SHORTEST_READ_AHEAD: i64 = 1_000;

const ANY: &str = "
    SELECT EXISTS (SELECT 1 FROM concurrency_limits), EXISTS (SELECT 1 FROM rate_limits),
           EXISTS (SELECT 1 FROM rate_limit_openings), EXISTS (SELECT 1 FROM scheduled_tasks WHERE max_starts IS NOT NULL)";

const RATES: &str = "SELECT handler, max_starts, per_ms FROM rate_limits";

/// The limits that a turn obeys.
#[derive(Debug, Default)]
pub(crate) struct InForce {
    /// Whether any key has a limit.
    keys: bool,
    /// The handlers with a rate limit.
    rates: BTreeMap<String, Rate>,
    /// Whether any task has a limit of starts.
    tasks: bool,
    /// Whether a key or a task may have no start left.
    any_closed: bool,
    /// Hashes of keys whose runs wait for attempts of an earlier history.
    held: BTreeSet<u64>,
}

/// What a start counts for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starting<'r> {
    pub(crate) handler: &'r str,
    pub(crate) key: Option<&'r str>,
    pub(crate) task: i64,
    /// The rate of the task.
    pub(crate) rate: Option<Rate>,
}

/// The subjects that a start counts for, each with its rate.
pub(crate) type Subjects = Vec<(Subject, Rate)>;

impl InForce {
    pub(crate) fn read(tx: &Transaction<'_>) -> rusqlite::Result<Self> {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let (keys, any_rate, any_closed, tasks) = tx.prepare_cached(ANY)?.query_row([], read)?;
        let mut rates = BTreeMap::new();
        if any_rate {
            let mut statement = tx.prepare_cached(RATES)?;
            let read = |row: &Row<'_>| {
                Ok((row::shown(row, 0)?, Rate { starts: row.get::<_, i64>(1)?.max(1), per: row.get(2)? }))
            };
            for row in statement.query_map([], read)? {
                let (handler, rate) = row?;
                rates.insert(handler, rate);
            }
        }
        Ok(InForce { keys, rates, tasks, any_closed, held: BTreeSet::new() })
    }

    /// Returns when the next attempt of a handler may start: an instant that may have passed, or `None` if no start limits it.
    pub(crate) fn opens_at(&self, tx: &Transaction<'_>, handler: &str) -> rusqlite::Result<Option<Timestamp>> {
        let Some(rate) = self.rates.get(handler) else { return Ok(None) };
        starts::opens_at(tx, &Subject::handler(handler), rate)
    }

    /// Returns those of the handlers of which an attempt may start now.
    pub(crate) fn open<'h>(
        &self,
        tx: &Transaction<'_>,
        handlers: &'h BTreeSet<String>,
        now: Timestamp,
    ) -> rusqlite::Result<Cow<'h, BTreeSet<String>>> {
        let mut open = Cow::Borrowed(handlers);
        for handler in self.rates.keys().filter(|handler| handlers.contains(*handler)) {
            if !self.is_open(tx, handler, now)? {
                open.to_mut().remove(handler);
            }
        }
        Ok(open)
    }

    /// Returns whether an attempt of a handler may start now.
    pub(crate) fn is_open(&self, tx: &Transaction<'_>, handler: &str, now: Timestamp) -> rusqlite::Result<bool> {
        Ok(self.opens_at(tx, handler)?.is_none_or(|at| at <= now))
    }

    /// Returns whether no start of a task is left. Reads nothing for a task without a rate.
    pub(crate) fn is_closed(
        &mut self,
        tx: &Transaction<'_>,
        of: &Starting<'_>,
        now: Timestamp,
    ) -> rusqlite::Result<bool> {
        let Some(rate) = of.rate else { return Ok(false) };
        let is_closed = starts::is_used_up(tx, &Subject::task(of.task), &rate, now)?;
        self.any_closed |= is_closed;
        Ok(is_closed)
    }

    /// Returns what a start counts for: its task, its key and its handler, as far as they have rates.
    pub(crate) fn subjects(&self, tx: &Transaction<'_>, of: &Starting<'_>) -> rusqlite::Result<Subjects> {
        let mut subjects = Vec::new();
        subjects.extend(of.rate.map(|rate| (Subject::task(of.task), rate)));
        if let Some(key) = of.key.filter(|key| self.keys && !key.starts_with('#')) {
            subjects.extend(starts::rate_of_key(tx, key)?.map(|rate| (Subject::key(key), rate)));
        }
        subjects.extend(self.rates.get(of.handler).map(|rate| (Subject::handler(of.handler), *rate)));
        Ok(subjects)
    }

    /// Records that an attempt starts in the next of the slots. One that is read ahead may begin later: its start counts as one of the latest
    /// time at which it may, which is returned.
    pub(crate) fn record_start(
        &mut self,
        tx: &Transaction<'_>,
        subjects: &Subjects,
        slots: &Slots,
        now: Timestamp,
    ) -> rusqlite::Result<Option<Timestamp>> {
        if subjects.is_empty() {
            return Ok(None);
        }
        let begins_by = (slots.idle == 0).then(|| now.plus(BEGIN_WITHIN));
        for (subject, rate) in subjects {
            self.any_closed |= starts::record(tx, subject, rate, begins_by.unwrap_or(now), now)?;
        }
        Ok(begins_by)
    }

    /// A key or a task may have no start left: those whose time has come are examined.
    pub(crate) fn examine(&mut self) {
        self.any_closed = true;
    }

    /// Returns whether a key or a task may have no start left.
    pub(crate) fn any_closed(&self) -> bool {
        self.any_closed
    }

    /// Sets the keys whose runs wait, by their hashes.
    pub(crate) fn hold(&mut self, keys: BTreeSet<u64>) {
        self.held = keys;
    }

    /// Returns whether runs of a key wait for attempts of an earlier history.
    pub(crate) fn is_held(&self, key: &str) -> bool {
        !self.held.is_empty() && self.held.contains(&hash(key))
    }

    /// Returns whether any task has a limit of starts.
    pub(crate) fn has_tasks(&self) -> bool {
        self.tasks
    }

    /// Returns whether any key has a limit.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys
    }

    /// Returns where the next run of a key goes. Reads nothing for a key that cannot have a limit.
    pub(crate) fn place(&mut self, tx: &Transaction<'_>, key: Option<&str>, now: Timestamp) -> rusqlite::Result<Place> {
        let Some(key) = key.filter(|key| self.keys && !key.starts_with('#')) else { return Ok(Place::Alone) };
        if let Some(rate) = starts::rate_of_key(tx, key)?
            && starts::is_used_up(tx, &Subject::key(key), &rate, now)?
        {
            self.any_closed = true;
            return Ok(Place::Full);
        }
        place(tx, key)
    }

    /// As [`InForce::place`], for a new run, which goes behind those that wait. The caller knows that a key without a limit is free.
    pub(crate) fn place_of_new(
        &mut self,
        tx: &Transaction<'_>,
        key: Option<&str>,
        now: Timestamp,
    ) -> rusqlite::Result<Place> {
        if key.is_some_and(|key| self.is_held(key)) {
            return Ok(Place::Full);
        }
        let place = self.place(tx, key, now)?;
        if let (Place::Slot(_), Some(key)) = (place, key)
            && tx.prepare_cached(ANY_WAITS)?.query_row(named_params! { ":key": key }, |row| row.get(0))?
        {
            return Ok(Place::Full);
        }
        Ok(place)
    }
}

/// Returns whether the slots admit a run whose start counts for these. With a rate of a short time it is not read ahead: its start would
/// count up to [`BEGIN_WITHIN`] late.
pub(crate) fn admit(subjects: &Subjects, slots: &Slots) -> bool {
    slots.idle > 0 || subjects.iter().all(|(_, rate)| rate.per >= SHORTEST_READ_AHEAD)
}

/// Where a run of a key goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The key has no limit, so its run runs alone.
    Alone,
    /// The lowest free slot.
    Slot(i64),
    /// No slot is free.
    Full,
}

const LIMIT: &str = "SELECT max_running FROM concurrency_limits WHERE concurrency_key = :key";

const TAKEN: &str = "SELECT slot FROM task_runs WHERE status = 'running' AND concurrency_key = :key ORDER BY slot";

fn place(tx: &Transaction<'_>, key: &str) -> rusqlite::Result<Place> {
    let limit = tx.prepare_cached(LIMIT)?.query_row(named_params! { ":key": key }, |row| row.get(0)).optional()?;
    let Some(limit) = limit else { return Ok(Place::Alone) };
    let mut statement = tx.prepare_cached(TAKEN)?;
    let taken = statement.query_map(named_params! { ":key": key }, |row| row.get(0))?;
    let taken = taken.collect::<rusqlite::Result<BTreeSet<i64>>>()?;
    // After the limit was lowered, runs may hold slots beyond it.
    let free = (0..limit).find(|slot| !taken.contains(slot));
    Ok(free.filter(|_| taken.len() < usize::try_from(limit).unwrap_or(0)).map_or(Place::Full, Place::Slot))
}

const ANY_WAITS: &str = sql! {"
    SELECT EXISTS (SELECT 1 FROM task_runs WHERE {claimable} AND concurrency_key = :key)
        OR EXISTS (SELECT 1 FROM task_runs WHERE {waiting} AND blocked = 'key' AND concurrency_key = :key)"};

const FREE: &str = "
    SELECT iif(EXISTS (SELECT 1 FROM rate_limit_openings WHERE subject = 'key:' || :key), 0,
               ifnull((SELECT max(max_running, 0) FROM concurrency_limits WHERE concurrency_key = :key), 1)
               - (SELECT count(*) FROM task_runs WHERE status = 'running' AND concurrency_key = :key))";

#[cfg(feature = "page")]
const LIMIT_OF_KEY: &str = "SELECT max_running FROM concurrency_limits WHERE concurrency_key = :key";

/// Returns how many runs with a key may run at once.
#[cfg(feature = "page")]
pub(super) fn of_key(tx: &Transaction<'_>, key: &[u8]) -> rusqlite::Result<u32> {
    let read = |row: &Row<'_>| row::saturating(row, 0);
    let limit = tx.prepare_cached(LIMIT_OF_KEY)?.query_row(named_params! { ":key": raw(key) }, read).optional()?;
    Ok(limit.unwrap_or(1))
}

/// Returns how many runs of each handler may start behind a key: none while no start of it is left, else at most as many as slots are free, and
/// at most [`WINDOW`].
pub(crate) fn window(tx: &Transaction<'_>, key: &[u8]) -> rusqlite::Result<usize> {
    let free: i64 = tx.prepare_cached(FREE)?.query_row(named_params! { ":key": raw(key) }, |row| row.get(0))?;
    Ok(usize::try_from(free).unwrap_or(0).min(WINDOW))
}
