//! Limits across processes: how many runs of a key run at once, and how many attempts of a handler start in a time.
//!
//! A running run holds a slot of its key; a unique index refuses a second run in a slot. A rate is an exact sliding window: the
//! newest starts of a handler are numbered, and the next one may follow when the start `max_starts` before it is `per_ms` ago. Both
//! are written in the transaction of the claim, so that a kill loses neither.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::Timestamp;
use crate::host::attempt_slots::hash;
use crate::store::sqlite::row::{self, raw};
use crate::store::sqlite::sql::{number, sql};
use crate::store::turn_io::Slots;

/// Most runs of one handler that may start behind a key at one time, however high its limit is: bounds what a claim derives again.
pub(crate) const WINDOW: usize = number("window") as usize;

/// How long after its claim a run may begin that was read ahead and whose handler has a rate limit. As much work is read ahead at most.
const BEGIN_WITHIN: Duration = Duration::from_millis(200);

/// The shortest time of a rate, in milliseconds, with which runs are read ahead.
const SHORTEST_READ_AHEAD: i64 = 1_000;

const ANY: &str = "SELECT EXISTS (SELECT 1 FROM concurrency_limits), EXISTS (SELECT 1 FROM rate_limits)";

const RATES: &str = "SELECT handler, max_starts, per_ms FROM rate_limits";

/// The limits that a turn obeys.
#[derive(Debug, Default)]
pub(crate) struct InForce {
    /// Whether any key has a limit.
    keys: bool,
    /// The handlers with a rate limit.
    rates: BTreeMap<String, Rate>,
    /// Hashes of keys whose runs wait for attempts of an earlier history.
    held: BTreeSet<u64>,
}

/// At most `max_starts` starts in any `per` milliseconds.
#[derive(Clone, Copy, Debug)]
struct Rate {
    max_starts: i64,
    per: i64,
}

impl InForce {
    pub(crate) fn read(tx: &Transaction<'_>) -> rusqlite::Result<Self> {
        let (keys, any_rate) = tx.prepare_cached(ANY)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut rates = BTreeMap::new();
        if any_rate {
            let mut statement = tx.prepare_cached(RATES)?;
            let read = |row: &Row<'_>| {
                Ok((row::shown(row, 0)?, Rate { max_starts: row.get::<_, i64>(1)?.max(1), per: row.get(2)? }))
            };
            for row in statement.query_map([], read)? {
                let (handler, rate) = row?;
                rates.insert(handler, rate);
            }
        }
        Ok(InForce { keys, rates, held: BTreeSet::new() })
    }

    /// Returns when the next attempt of a handler may start: an instant that may have passed, or `None` if no start limits it.
    pub(crate) fn opens_at(&self, tx: &Transaction<'_>, handler: &str) -> rusqlite::Result<Option<Timestamp>> {
        let Some(rate) = self.rates.get(handler) else { return Ok(None) };
        opens_at(tx, handler, rate)
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

    /// Returns whether the slots admit a run of a handler. With a rate of a short time it is not read ahead: its start would count up to
    /// [`BEGIN_WITHIN`] late.
    pub(crate) fn admit(&self, slots: &Slots, handler: &str) -> bool {
        slots.idle > 0 || self.rates.get(handler).is_none_or(|rate| rate.per >= SHORTEST_READ_AHEAD)
    }

    /// Records that an attempt of a handler starts in the next of the slots, if its starts are limited. One that is read ahead may begin
    /// later: its start counts as one of the latest time at which it may, which is returned.
    pub(crate) fn record_start(
        &self,
        tx: &Transaction<'_>,
        handler: &str,
        slots: &Slots,
        now: Timestamp,
    ) -> rusqlite::Result<Option<Timestamp>> {
        let Some(rate) = self.rates.get(handler) else { return Ok(None) };
        let begins_by = (slots.idle == 0).then(|| now.plus(BEGIN_WITHIN));
        let counted = begins_by.unwrap_or(now);
        tx.prepare_cached(RECORD)?.execute(named_params! { ":handler": handler, ":at": counted })?;
        tx.prepare_cached(FORGET)?.execute(named_params! { ":handler": handler, ":kept": rate.max_starts })?;
        Ok(begins_by)
    }

    /// Sets the keys whose runs wait, by their hashes.
    pub(crate) fn hold(&mut self, keys: BTreeSet<u64>) {
        self.held = keys;
    }

    /// Returns whether runs of a key wait for attempts of an earlier history.
    pub(crate) fn is_held(&self, key: &str) -> bool {
        !self.held.is_empty() && self.held.contains(&hash(key))
    }

    /// Returns whether any key has a limit.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys
    }

    /// Returns where the next run of a key goes. Reads nothing for a key that cannot have a limit.
    pub(crate) fn place(&self, tx: &Transaction<'_>, key: Option<&str>) -> rusqlite::Result<Place> {
        match key.filter(|key| self.keys && !key.starts_with('#')) {
            Some(key) => place(tx, key),
            None => Ok(Place::Alone),
        }
    }

    /// As [`InForce::place`], for a new run, which goes behind those that wait. The caller knows that a key without a limit is free.
    pub(crate) fn place_of_new(&self, tx: &Transaction<'_>, key: Option<&str>) -> rusqlite::Result<Place> {
        if key.is_some_and(|key| self.is_held(key)) {
            return Ok(Place::Full);
        }
        let place = self.place(tx, key)?;
        if let (Place::Slot(_), Some(key)) = (place, key)
            && tx.prepare_cached(ANY_WAITS)?.query_row(named_params! { ":key": key }, |row| row.get(0))?
        {
            return Ok(Place::Full);
        }
        Ok(place)
    }
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
    SELECT ifnull((SELECT max(max_running, 0) FROM concurrency_limits WHERE concurrency_key = :key), 1)
           - (SELECT count(*) FROM task_runs WHERE status = 'running' AND concurrency_key = :key)";

#[cfg(feature = "page")]
const LIMIT_OF_KEY: &str = "SELECT max_running FROM concurrency_limits WHERE concurrency_key = :key";

/// Returns how many runs with a key may run at once.
#[cfg(feature = "page")]
pub(super) fn of_key(tx: &Transaction<'_>, key: &[u8]) -> rusqlite::Result<u32> {
    let read = |row: &Row<'_>| row::saturating(row, 0);
    let limit = tx.prepare_cached(LIMIT_OF_KEY)?.query_row(named_params! { ":key": raw(key) }, read).optional()?;
    Ok(limit.unwrap_or(1))
}

/// Returns how many runs of each handler may start behind a key: at most as many as slots are free, and at most [`WINDOW`].
pub(crate) fn window(tx: &Transaction<'_>, key: &[u8]) -> rusqlite::Result<usize> {
    let free: i64 = tx.prepare_cached(FREE)?.query_row(named_params! { ":key": raw(key) }, |row| row.get(0))?;
    Ok(usize::try_from(free).unwrap_or(0).min(WINDOW))
}

/// Numbers that a CHECK refuses are ignored: another program may switch the checks off.
const PREVIOUS: &str = sql! {"
    SELECT started_at FROM rate_limit_starts
     WHERE handler = :handler
       AND number <= (SELECT max(number) FROM rate_limit_starts
                       WHERE handler = :handler AND number < {most_starts}) + 1 - :starts
     ORDER BY number DESC LIMIT 1"};

fn opens_at(tx: &Transaction<'_>, handler: &str, rate: &Rate) -> rusqlite::Result<Option<Timestamp>> {
    let params = named_params! { ":handler": handler, ":starts": rate.max_starts };
    let start: Option<i64> = tx.prepare_cached(PREVIOUS)?.query_row(params, |row| row.get(0)).optional()?;
    Ok(start.map(|start| {
        let at = start.saturating_add(rate.per);
        Timestamp::from_millis(at.clamp(Timestamp::MIN.as_millis(), Timestamp::MAX.as_millis()))
    }))
}

const RECORD: &str = sql! {"
    INSERT INTO rate_limit_starts (handler, number, started_at)
    VALUES (:handler, ifnull((SELECT max(number) FROM rate_limit_starts
                               WHERE handler = :handler AND number < {most_starts}), 0) + 1, :at)"};

const FORGET: &str = sql! {"
    DELETE FROM rate_limit_starts
     WHERE handler = :handler
       AND number <= (SELECT max(number) FROM rate_limit_starts
                       WHERE handler = :handler AND number < {most_starts}) - :kept"};
