//! Requests about limits: set, remove, list; and the limits of a manifest.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, Row, Transaction, named_params};

use crate::clock::{Timestamp, millis};
use crate::error::{Error, Result};
use crate::model::limit::{Limit, LimitOn, LimitState};
use crate::model::request::{Applied, Apply, Change, Done};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::limits::InForce;
use crate::store::sqlite::row;
use crate::store::sqlite::sql::sql;

/// Sets a limit by hand.
pub(super) fn set(store: &mut SqliteStore, limit: &Limit) -> Result<Change> {
    store.write("set a limit", |tx, _| {
        let before = stored(tx, &limit.on())?;
        if let Some((before, None)) = &before
            && before == limit
        {
            return Ok(Change::Unchanged);
        }
        put(tx, limit, None)?;
        Ok(if before.is_some() { Change::Replaced } else { Change::Created })
    })
}

/// Removes a limit. Returns whether there was one.
pub(super) fn remove(store: &mut SqliteStore, on: &LimitOn) -> Result<bool> {
    store.write("remove a limit", |tx, _| Ok(delete(tx, on)?))
}

/// Returns all limits and their use, keys first, by name.
pub(super) fn list(store: &mut SqliteStore, now: Timestamp) -> Result<Vec<LimitState>> {
    store.read("list limits", |tx, _| Ok(states(tx, now)?))
}

const KEY: &str = "SELECT concurrency_key, max_running, managed_by, max_starts, per_ms FROM concurrency_limits WHERE concurrency_key = :name";

const RATE: &str = "SELECT handler, max_starts, per_ms, managed_by FROM rate_limits WHERE handler = :name";

fn key_limit(row: &Row<'_>) -> rusqlite::Result<(Limit, Option<String>)> {
    let limit = Limit::key(row::shown(row, 0)?, row::saturating(row, 1)?);
    let limit = match row.get::<_, Option<i64>>(3)? {
        Some(_) => limit.with_rate(row::saturating(row, 3)?, row::duration(row, 4)?),
        None => limit,
    };
    Ok((limit, row::shown_if_any(row, 2)?))
}

fn rate_limit(row: &Row<'_>) -> rusqlite::Result<(Limit, Option<String>)> {
    let limit = Limit::rate(row::shown(row, 0)?, row::saturating(row, 1)?, row::duration(row, 2)?);
    Ok((limit, row::shown_if_any(row, 3)?))
}

/// Returns a limit and the manifest that declared it.
fn stored(tx: &Transaction<'_>, on: &LimitOn) -> rusqlite::Result<Option<(Limit, Option<String>)>> {
    match on {
        LimitOn::Key(key) => tx.prepare_cached(KEY)?.query_row(named_params! { ":name": key }, key_limit),
        LimitOn::Handler(handler) => tx.prepare_cached(RATE)?.query_row(named_params! { ":name": handler }, rate_limit),
    }
    .optional()
}

const PUT_KEY: &str = "
    INSERT INTO concurrency_limits (concurrency_key, max_running, max_starts, per_ms, managed_by)
    VALUES (:name, :running, :starts, :per, :manager)
    ON CONFLICT (concurrency_key) DO UPDATE
       SET max_running = excluded.max_running, max_starts = excluded.max_starts, per_ms = excluded.per_ms,
           managed_by = excluded.managed_by";

const PUT_RATE: &str = "
    INSERT INTO rate_limits (handler, max_starts, per_ms, managed_by) VALUES (:name, :starts, :per, :manager)
    ON CONFLICT (handler) DO UPDATE
       SET max_starts = excluded.max_starts, per_ms = excluded.per_ms, managed_by = excluded.managed_by";

fn put(tx: &Transaction<'_>, limit: &Limit, manager: Option<&str>) -> rusqlite::Result<usize> {
    match limit {
        Limit::Key { key, running, rate } => tx.prepare_cached(PUT_KEY)?.execute(named_params! {
            ":name": key, ":running": running, ":starts": rate.map(|rate| rate.starts),
            ":per": rate.map(|rate| millis(rate.per)), ":manager": manager,
        }),
        Limit::Rate { handler, starts, per } => tx.prepare_cached(PUT_RATE)?.execute(named_params! {
            ":name": handler, ":starts": starts, ":per": millis(*per), ":manager": manager,
        }),
    }
}

const REMOVE_KEY: &str = "DELETE FROM concurrency_limits WHERE concurrency_key = :name";

const REMOVE_RATE: &str = "DELETE FROM rate_limits WHERE handler = :name";

fn delete(tx: &Transaction<'_>, on: &LimitOn) -> rusqlite::Result<bool> {
    let (statement, name) = match on {
        LimitOn::Key(key) => (REMOVE_KEY, key),
        LimitOn::Handler(handler) => (REMOVE_RATE, handler),
    };
    tx.prepare_cached(statement)?.execute(named_params! { ":name": name }).map(|rows| rows > 0)
}

const KEYS: &str = sql! {"
    SELECT l.concurrency_key, l.max_running, l.managed_by, l.max_starts, l.per_ms,
           (SELECT count(*) FROM task_runs r WHERE r.status = 'running' AND r.concurrency_key = l.concurrency_key),
           (SELECT count(*) FROM task_runs r WHERE {claimable:r} AND r.concurrency_key = l.concurrency_key)
           + (SELECT count(*) FROM task_runs r
               WHERE {waiting:r} AND r.blocked = 'key' AND r.concurrency_key = l.concurrency_key),
           (SELECT count(*) FROM rate_limit_starts s
             WHERE s.subject = 'key:' || l.concurrency_key AND s.started_at > :now - l.per_ms
               AND s.number > (SELECT max(n.number) FROM rate_limit_starts n WHERE n.subject = s.subject) - l.max_starts),
           (SELECT o.opens_at FROM rate_limit_openings o
             WHERE o.subject = 'key:' || l.concurrency_key AND o.opens_at > :now)
      FROM concurrency_limits l ORDER BY 1"};

const HANDLERS: &str = sql! {"
    SELECT l.handler, l.max_starts, l.per_ms, l.managed_by,
           (SELECT count(*) FROM rate_limit_starts s
             WHERE s.subject = 'handler:' || l.handler AND s.started_at > :now - l.per_ms
               AND s.number > (SELECT max(n.number) FROM rate_limit_starts n WHERE n.subject = s.subject) - l.max_starts),
           (SELECT count(*) FROM task_runs r WHERE {claimable:r} AND r.handler = l.handler)
      FROM rate_limits l ORDER BY 1"};

/// Returns all limits and their use.
pub(super) fn states(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<Vec<LimitState>> {
    let limits = InForce::read(tx)?;
    let mut statement = tx.prepare_cached(KEYS)?;
    let of_key = |row: &Row<'_>| {
        let (limit, managed_by) = key_limit(row)?;
        let (used, waiting, started) = (row::number(row, 5)?, row::number(row, 6)?, row::number(row, 7)?);
        Ok(LimitState { limit, managed_by, used, started, waiting, next_start: row.get(8)? })
    };
    let mut found =
        statement.query_map(named_params! { ":now": now }, of_key)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut statement = tx.prepare_cached(HANDLERS)?;
    let of_handler = |row: &Row<'_>| {
        let (limit, managed_by) = rate_limit(row)?;
        let next_start = limits.opens_at(tx, &row::shown(row, 0)?)?.filter(|at| *at > now);
        let (used, waiting) = (row::number(row, 4)?, row::number(row, 5)?);
        Ok(LimitState { limit, managed_by, used, started: used, waiting, next_start })
    };
    for state in statement.query_map(named_params! { ":now": now }, of_handler)? {
        found.push(state?);
    }
    Ok(found)
}

/// Returns the columns in which two limits on the same differ: name, stored and new value.
fn difference(before: &Limit, limit: &Limit) -> Vec<(&'static str, String, String)> {
    let columns = |limit: &Limit| match limit {
        Limit::Key { running, rate, .. } => vec![
            ("max_running", running.to_string()),
            ("max_starts", rate.map(|rate| rate.starts.to_string()).unwrap_or_default()),
            ("per_ms", rate.map(|rate| millis(rate.per).to_string()).unwrap_or_default()),
        ],
        Limit::Rate { starts, per, .. } => {
            vec![("max_starts", starts.to_string()), ("per_ms", millis(*per).to_string())]
        }
    };
    let pairs = columns(before).into_iter().zip(columns(limit));
    pairs.filter(|(before, after)| before != after).map(|((name, before), (_, after))| (name, before, after)).collect()
}

const MANAGED: &str = "
    SELECT concurrency_key, 1 FROM concurrency_limits WHERE managed_by = :manifest
    UNION ALL
    SELECT handler, 0 FROM rate_limits WHERE managed_by = :manifest
    ORDER BY 2 DESC, 1";

/// Makes limits be what a manifest declares, as its tasks.
pub(super) fn apply(tx: &Transaction<'_>, manifest: &str, limits: &[Limit], how: Apply) -> Result<Vec<Applied>, Fault> {
    let mut declared = BTreeSet::new();
    let mut applied = Vec::new();
    for limit in limits {
        let on = limit.on();
        let before = stored(tx, &on)?;
        let refused =
            |reason: &str| Error::Refused { request: format!("apply the limit on {on}"), reason: reason.into() };
        if !declared.insert(on.clone()) {
            return Err(refused("the manifest declares it twice").into());
        }
        if let Some((_, Some(other))) = &before
            && other != manifest
            && !how.adopt
        {
            let reason = "declares it too: take it out of one of them, or use --adopt if that was moved here";
            return Err(refused(&format!("{other} {reason}")).into());
        }
        let done = match &before {
            None => Done::Created,
            Some((before, manager)) => {
                let mut fields = difference(before, limit);
                if manager.as_deref() != Some(manifest) {
                    fields.push(("managed_by", manager.clone().unwrap_or_default(), manifest.to_owned()));
                }
                if fields.is_empty() { Done::Unchanged } else { Done::Replaced { fields } }
            }
        };
        if done != Done::Unchanged {
            put(tx, limit, Some(manifest))?;
        }
        applied.push(Applied { name: on.to_string(), done, next_run: None });
    }
    let mut statement = tx.prepare_cached(MANAGED)?;
    let managed = statement.query_map(named_params! { ":manifest": manifest }, |row| {
        let name = row::shown(row, 0)?;
        Ok(if row.get(1)? { LimitOn::Key(name) } else { LimitOn::Handler(name) })
    })?;
    for on in managed.collect::<rusqlite::Result<Vec<_>>>()? {
        if !declared.contains(&on) {
            let done = if how.prune && delete(tx, &on)? { Done::Removed } else { Done::Left };
            applied.push(Applied { name: on.to_string(), done, next_run: None });
        }
    }
    Ok(applied)
}
