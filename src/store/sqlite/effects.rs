//! Effects that are done once however often their run is tried: what was begun, what is done, and with what value.
//!
//! A row is kept under the first run of a chain of retries. It is an intent from before the deed until its end is known; an
//! intent that another attempt finds is in doubt.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::run::Effect;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::row;
use crate::store::sqlite::runs::{self, Fence, Wrote, judged};

const HOLDS: &str = "
    SELECT EXISTS (SELECT 1 FROM task_runs
                    WHERE id = :run AND locked_by = :owner AND attempt = :attempt AND status = 'running')";

/// Whether a claim still holds.
pub(crate) fn holds(tx: &Transaction<'_>, fence: &Fence<'_>) -> rusqlite::Result<bool> {
    let params = named_params! { ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt };
    tx.prepare_cached(HOLDS)?.query_row(params, |row| row.get(0))
}

/// What is known of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was begun.
    Intent,
    /// It was done, and this came of it: JSON.
    Done(String),
}

const KNOWN: &str =
    "SELECT state = 'done', ifnull(value, 'null') FROM task_effects WHERE run_id = :first AND key = :key";

pub(crate) fn known(tx: &Transaction<'_>, first: i64, key: &str) -> rusqlite::Result<Option<Known>> {
    let mut statement = tx.prepare_cached(KNOWN)?;
    let found = statement.query_row(named_params! { ":first": first, ":key": key }, |row| {
        Ok(if row.get(0)? { Known::Done(row.get(1)?) } else { Known::Intent })
    });
    found.optional()
}

/// Returns the effects of a run and of the runs that it retries, by key.
pub(super) fn of_run(store: &mut SqliteStore, run: i64, now: Timestamp) -> Result<Vec<Effect>> {
    store.read("read the effects", |tx, _| {
        let claim = runs::ending(tx, run, now)?.ok_or(Error::UnknownRun { id: run })?;
        Ok(of_chain(tx, claim.first_id())?)
    })
}

const OF_CHAIN: &str = "SELECT * FROM task_effects WHERE run_id = :first ORDER BY key";

/// Returns the effects that are stored under the first run of a chain, by key.
fn of_chain(tx: &Transaction<'_>, first: i64) -> rusqlite::Result<Vec<Effect>> {
    tx.prepare_cached(OF_CHAIN)?.query_map(named_params! { ":first": first }, row::effect)?.collect()
}

const INTEND: &str = "
    INSERT INTO task_effects (key, run_id, state, created_at) VALUES (:key, :first, 'intent', :now)";

/// (nothing) -> intent. The caller has looked: there is no row.
pub(crate) fn intend(tx: &Transaction<'_>, first: i64, key: &str, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(INTEND)?.execute(named_params! { ":first": first, ":key": key, ":now": now })?;
    Ok(())
}

/// Without a fence: a deed is done whoever holds the claim by now, and the next attempt must know.
const RECORD: &str = "
    UPDATE task_effects SET state = 'done', value = :value, done_at = :now
     WHERE run_id = :first AND key = :key AND state = 'intent'";

/// intent -> done. Superseded: it is done already, or its run is gone.
pub(crate) fn record(
    tx: &Transaction<'_>,
    first: i64,
    key: &str,
    value: &str,
    now: Timestamp,
) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(RECORD)?
        .execute(named_params! { ":first": first, ":key": key, ":value": value, ":now": now })
        .map(judged)
}

/// Fenced: the intent that is found may be another attempt's, which is at it now.
const TAKE_BACK: &str = "
    DELETE FROM task_effects
     WHERE run_id = :first AND key = :key AND state = 'intent'
       AND EXISTS (SELECT 1 FROM task_runs
                    WHERE id = :run AND locked_by = :owner AND attempt = :attempt AND status = 'running')";

/// intent -> (nothing): it failed, and was not done.
pub(crate) fn take_back(tx: &Transaction<'_>, fence: &Fence<'_>, first: i64, key: &str) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(TAKE_BACK)?
        .execute(named_params! {
            ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt, ":first": first, ":key": key,
        })
        .map(judged)
}
