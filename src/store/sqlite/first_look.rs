//! Expiry and the poll interval: a run that was written since the last poll, and expired before a scheduler could see it,
//! can still be claimed by the next poll.

use std::time::Duration;

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;
use crate::store::sqlite::runs::{Wrote, judged};
use crate::store::turn_io::Seen;

/// How long such a run can still be claimed, counted from the first poll that finds it. Also how much earlier than the last
/// poll its writer may have read the clock.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// Returns when a run expires that a poll finds for the first time.
pub(crate) fn at_first_look(expires: Timestamp, now: Timestamp) -> Timestamp {
    if expires > now { expires } else { now.plus(FIRST_LOOK).min(Timestamp::MAX) }
}

const DEFER_EXPIRY: &str = "
    UPDATE task_runs SET expires_at = :until
     WHERE id = :run AND status = 'queued' AND attempt = 0 AND origin = 'manual' AND scheduled_for > :since
       AND expires_at <= :now";

/// Defers the expiry of a manual run that was requested since the last poll, so that it can be claimed.
pub(crate) fn defer_expiry(tx: &Transaction<'_>, run: i64, seen: &Seen, now: Timestamp) -> rusqlite::Result<Wrote> {
    let (since, until) = (seen.at.minus(FIRST_LOOK), at_first_look(now, now));
    let params = named_params! { ":run": run, ":since": since, ":until": until, ":now": now };
    tx.prepare_cached(DEFER_EXPIRY)?.execute(params).map(judged)
}
