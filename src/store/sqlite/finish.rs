//! The end of a run that is committed in one transaction with rows of its handler.

use rusqlite::Transaction;

use crate::error::{BoxError, Error};
use crate::model::event::Event;
use crate::model::finished::{Finished, Recorded};
use crate::model::run::Claim;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::effects::{fence, holds, superseded};
use crate::store::sqlite::open::{Change, Written};
use crate::store::sqlite::runs::Success;
use crate::store::sqlite::{blocked, delays, followers, settle};

/// Settles a run in one transaction with what `work` writes, which returns how the attempt ended. Both are committed, or neither.
pub(crate) fn finish(
    store: &mut SqliteStore,
    owner: &str,
    claim: &Claim,
    work: impl FnOnce(&Transaction<'_>) -> Result<Finished, BoxError>,
) -> Result<Recorded, BoxError> {
    let mut failed = None;
    let committed = store.write("finish a run", |tx, schedules| {
        if !holds(tx, &fence(owner, claim))? {
            return Err(superseded(claim).into());
        }
        let finished = match work(tx) {
            Ok(finished) => finished,
            Err(error) => {
                failed = Some(error);
                return Err(superseded(claim).into());
            }
        };
        if tx.is_autocommit() {
            return Err(refused(claim, "its transaction was ended within: leave BEGIN and COMMIT to duly").into());
        }
        let (blocked, delayed) = (blocked::any_blocked(tx)?, delays::any(tx)?);
        let mut written = Written { blocked, delayed, followed: followers::any(tx)?, ..Written::default() };
        // A success draws no backoff.
        let mut random = fastrand::Rng::with_seed(0);
        let now = finished.finished_at;
        let mut success = Success::new(tx)?;
        let mut cx = Change { tx, now, schedules, written: &mut written };
        settle::settle(&mut cx, &mut success, owner, &finished, &mut random)?;
        followers::follow_all(&mut cx)?;
        let recorded = written.events.into_iter().find_map(|event| match event {
            Event::Finished { error, next_due, .. } => Some(Recorded { error, next_due }),
            _ => None,
        });
        // None: `work` wrote to duly's tables and ended the claim.
        recorded.ok_or_else(|| superseded(claim).into())
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(committed?),
    }
}

fn refused(claim: &Claim, reason: &str) -> Error {
    Error::Refused { request: format!("finish run {} of {:?}", claim.run_id, claim.task), reason: reason.to_owned() }
}
