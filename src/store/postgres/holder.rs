//! The session that holds the lock of the schema, and does nothing.

use std::time::Duration;

use postgres::Row;

use crate::store::fault::Fault;

/// How long the holder may do nothing.
pub(crate) const LIMIT: Duration = Duration::from_secs(4);

/// The name of a session that may keep the lock while it does nothing: its client works on a file meanwhile.
pub(crate) const MIGRATES: &str = "duly migrate";

/// Ends the session that holds the lock of the schema, if it does nothing: its last statement ended more than `$3` milliseconds ago; or
/// began so long ago, and the client does not read the answer, which no timeout of the server ends. The age of the transaction shows
/// nothing: a long one may have taken the lock just now, and may work.
pub(crate) const END_FROZEN: &str = "
    WITH holder AS MATERIALIZED (
        SELECT a.pid, a.application_name, coalesce(host(a.client_addr), 'this machine') AS host, a.state, a.wait_event,
               (a.state LIKE 'idle in transaction%' OR a.state = 'active' AND a.wait_event = 'ClientWrite')
                   AND a.state_change < clock_timestamp() - $3::bigint * interval '1 ms' AND a.application_name <> $4::text AS frozen
        FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND l.classid::bigint = $1 AND l.objid::bigint = $2)
    SELECT pid, application_name, host, coalesce(state, 'unknown'), coalesce(wait_event, ''),
           CASE WHEN frozen THEN pg_terminate_backend(pid) ELSE false END
    FROM holder";

/// Reports the sessions that were ended. Returns whether any was.
pub(crate) fn report(rows: &[Row], schema: &str) -> Result<bool, Fault> {
    let mut any = false;
    for row in rows {
        let (pid, ended): (i32, Option<bool>) = (row.try_get(0)?, row.try_get(5)?);
        if ended == Some(true) {
            let column = |at: usize| row.try_get::<_, String>(at);
            let (application, host, state, event) = (column(1)?, column(2)?, column(3)?, column(4)?);
            log::warn!(
                "ended session {pid} of {application:?} on {host}: it held the lock of schema {schema:?} for more than 4 s without \
                 working ({state}, {event}); its transaction is undone"
            );
            any = true;
        }
    }
    Ok(any)
}
