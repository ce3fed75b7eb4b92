//! After a clock that was far ahead: what was planned by it is planned anew. What has a row keeps it, and so does not run
//! again.

use rusqlite::{Transaction, named_params};

use crate::clock::Timestamp;
use crate::store::owners;

/// A `once` instant stands, whatever the clock showed. An interval's grid may begin at created_at.
const TASKS: &str = "
    UPDATE scheduled_tasks
       SET planned = 0, next_run = iif(schedule_type = 'once', next_run, NULL), resolved_until = :now,
           active_since = min(active_since, :now), created_at = min(created_at, :now)
     WHERE (status = 'active' AND schedule_type <> 'once')
        OR active_since > :now OR created_at > :now OR resolved_until > :now";

/// Nothing waits longer than its longest backoff for a time that was counted by that clock.
const WAITING: &str = "
    UPDATE task_runs
       SET run_at = :now + (SELECT backoff_cap_ms FROM scheduled_tasks t WHERE t.id = task_id)
     WHERE (status = 'queued' OR status = 'failed')
       AND run_at > :now + (SELECT backoff_cap_ms FROM scheduled_tasks t WHERE t.id = task_id)";

/// Or the next start would take the clock for wrong again.
const INSTANCES: &str = "
    UPDATE scheduler_instances
       SET seen_at = min(seen_at, :now), started_at = min(started_at, :now), stopped_at = min(stopped_at, :now)
     WHERE seen_at > :now OR stopped_at > :now";

/// Plans anew from now on. What would have fallen until the old clock's time is told in an event.
pub(crate) fn rewind(tx: &Transaction<'_>, believed: Timestamp, now: Timestamp) -> rusqlite::Result<()> {
    for statement in [TASKS, WAITING, INSTANCES] {
        tx.prepare_cached(statement)?.execute(named_params! { ":now": now })?;
    }
    let detail = format!("the clock had shown {believed}; all schedules count from {now}");
    owners::record(tx, now, "clock_back", None, None, Some(&detail))
}
