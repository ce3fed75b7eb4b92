//! Expiry and the poll interval: what was written since the last look, and has expired before a scheduler could see it, may be
//! claimed in the first look.

use std::time::Duration;

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;
use crate::store::sqlite::runs::{Wrote, judged};
use crate::store::turn_io::Seen;

/// How long such a run may still be claimed, counted from the first look; also how much earlier than the last look its writer
/// may have read the clock.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// When a run expires that is claimable for the first time.
pub(crate) fn at_first_look(expires: Timestamp, now: Timestamp) -> Timestamp {
    if expires > now { expires } else { now.plus(FIRST_LOOK).min(Timestamp::MAX) }
}

const DEFER_EXPIRY: &str = "
    UPDATE task_runs SET expires_at = :until
     WHERE id = :run AND status = 'queued' AND attempt = 0 AND origin = 'manual' AND scheduled_for > :since
       AND expires_at <= :now";

/// Lets a manual run that has expired be claimed, if it was requested since the last look.
pub(crate) fn defer_expiry(tx: &Transaction<'_>, run: i64, seen: &Seen, now: Timestamp) -> rusqlite::Result<Wrote> {
    let (since, until) = (seen.at.minus(FIRST_LOOK), at_first_look(now, now));
    let params = named_params! { ":run": run, ":since": since, ":until": until, ":now": now };
    tx.prepare_cached(DEFER_EXPIRY)?.execute(params).map(judged)
}
