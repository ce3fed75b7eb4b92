//! Effects: actions that are performed once, even if their run is retried. Stores the intent of each, its completion and its value.
//!
//! A row belongs to the first run of a chain of retries. It is an intent until its outcome is known. An intent that another
//! attempt finds is in doubt.

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::finished::{EffectEnd, Finished};
use crate::model::run::{Claim, Effect};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::row;
use crate::store::sqlite::runs::{self, Fence, Wrote, judged};
use crate::store::sqlite::sql::sql;
use crate::store::turn_io::Begun;

/// Commits the intent of an effect, unless the effect is known.
pub(crate) fn begin(store: &mut SqliteStore, owner: &str, claim: &Claim, key: &str, now: Timestamp) -> Result<Begun> {
    let first = claim.first_id();
    store.write("begin an effect", |tx, _| {
        if !holds(tx, &fence(owner, claim))? {
            return Err(superseded(claim).into());
        }
        Ok(match known(tx, first, key)? {
            Some(Known::Done(value)) => Begun::Done(value),
            Some(Known::Intent) => Begun::InDoubt,
            None => {
                intend(tx, first, key, now.max(Timestamp::MIN))?;
                Begun::Now
            }
        })
    })
}

/// Fails if the claim is superseded.
pub(crate) fn check_claim(store: &mut SqliteStore, owner: &str, claim: &Claim) -> Result<()> {
    let holds = store.read("begin an effect", |tx, _| Ok(holds(tx, &fence(owner, claim))?))?;
    if holds { Ok(()) } else { Err(superseded(claim)) }
}

/// Records that an effect was performed. Returns the value that another attempt recorded before, if one did.
pub(crate) fn record(
    store: &mut SqliteStore,
    claim: &Claim,
    key: &str,
    value: &str,
    now: Timestamp,
) -> Result<Option<String>> {
    let first = claim.first_id();
    store.write("record an effect", |tx, _| {
        if set_done(tx, first, key, value, now.max(Timestamp::MIN))? == Wrote::Done {
            return Ok(None);
        }
        match known(tx, first, key)? {
            Some(Known::Done(value)) => Ok(Some(value)),
            _ => Err(superseded(claim).into()),
        }
    })
}

/// Deletes the intent of an effect that was not performed.
pub(crate) fn undo(store: &mut SqliteStore, owner: &str, claim: &Claim, key: &str) -> Result<()> {
    store.write("undo an effect", |tx, _| {
        // If the claim is superseded, the intent stays, in doubt.
        let _ = delete_intent(tx, &fence(owner, claim), claim.first_id(), key)?;
        Ok(())
    })
}

/// Stores what an attempt has left of its effects. Before its outcome, which ends the claim.
pub(crate) fn end(tx: &Transaction<'_>, owner: &str, finished: &Finished, now: Timestamp) -> rusqlite::Result<()> {
    let claim = &*finished.claim;
    let owner = claim.owner.as_deref().unwrap_or(owner);
    for EffectEnd { key, value } in &finished.effects {
        // If the claim is superseded, an intent stays, in doubt.
        let _ = match value {
            Some(value) => set_done(tx, claim.first_id(), key, value, now.max(Timestamp::MIN))?,
            None => delete_intent(tx, &fence(owner, claim), claim.first_id(), key)?,
        };
    }
    Ok(())
}

pub(crate) fn fence<'a>(owner: &'a str, claim: &Claim) -> Fence<'a> {
    Fence { run: claim.run_id, owner, attempt: claim.attempt }
}

pub(crate) fn superseded(claim: &Claim) -> Error {
    Error::Superseded { task: claim.task.clone(), run: claim.run_id, attempt: claim.attempt }
}

const HOLDS: &str = sql! {"SELECT EXISTS (SELECT 1 FROM task_runs WHERE {fenced})"};

/// Returns whether a claim is still valid.
pub(crate) fn holds(tx: &Transaction<'_>, fence: &Fence<'_>) -> rusqlite::Result<bool> {
    let params = named_params! { ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt };
    tx.prepare_cached(HOLDS)?.query_row(params, |row| row.get(0))
}

/// The row of an effect.
enum Known {
    Intent,
    /// With its value as JSON.
    Done(String),
}

const KNOWN: &str =
    "SELECT state = 'done', ifnull(value, 'null') FROM task_effects WHERE run_id = :first AND key = :key";

fn known(tx: &Transaction<'_>, first: i64, key: &str) -> rusqlite::Result<Option<Known>> {
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

const OF_CHAIN: &str = sql! {"SELECT {effect_columns} FROM task_effects WHERE run_id = :first ORDER BY key"};

/// Returns the effects that are stored under the first run of a chain, by key.
pub(super) fn of_chain(tx: &Transaction<'_>, first: i64) -> rusqlite::Result<Vec<Effect>> {
    row::all(tx, OF_CHAIN, named_params! { ":first": first }, row::effect)
}

const INTEND: &str = "
    INSERT INTO task_effects (key, run_id, state, created_at) VALUES (:key, :first, 'intent', :now)";

/// (nothing) -> intent. The caller has checked that no row exists.
fn intend(tx: &Transaction<'_>, first: i64, key: &str, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(INTEND)?.execute(named_params! { ":first": first, ":key": key, ":now": now })?;
    Ok(())
}

/// Without a fence: an effect was performed whichever owner holds the run now, and the next attempt must know.
const SET_DONE: &str = "
    UPDATE task_effects SET state = 'done', value = :value, done_at = :now
     WHERE run_id = :first AND key = :key AND state = 'intent'";

/// intent -> done. Superseded: it is done already, or its run was deleted.
fn set_done(tx: &Transaction<'_>, first: i64, key: &str, value: &str, now: Timestamp) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(SET_DONE)?
        .execute(named_params! { ":first": first, ":key": key, ":value": value, ":now": now })
        .map(judged)
}

/// Fenced: the intent can be that of another attempt, which performs the effect now.
const DELETE_INTENT: &str = sql! {"
    DELETE FROM task_effects
     WHERE run_id = :first AND key = :key AND state = 'intent'
       AND EXISTS (SELECT 1 FROM task_runs WHERE {fenced})"};

/// intent -> (nothing): it failed, and was not performed.
fn delete_intent(tx: &Transaction<'_>, fence: &Fence<'_>, first: i64, key: &str) -> rusqlite::Result<Wrote> {
    tx.prepare_cached(DELETE_INTENT)?
        .execute(named_params! {
            ":run": fence.run, ":owner": fence.owner, ":attempt": fence.attempt, ":first": first, ":key": key,
        })
        .map(judged)
}
