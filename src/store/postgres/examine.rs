//! What a session with the server is like, and what its role may do.

use crate::clock::Now;
use crate::error::Result;
use crate::model::report::Finding;
use crate::model::server_report::ServerReport;
use crate::store::fault::Fault;
use crate::store::postgres::server::Server;
use crate::store::postgres::tables::NUMBERED;
use crate::store::postgres::{PostgresStore, rights};

/// Round trips that are measured.
const TRIPS: usize = 20;

/// The class of the lock that is tried: not that of a lock of duly.
const TRIED: i32 = 0x6475_6c7a;

const SESSION: &str = "
    SELECT current_user::text, current_setting('synchronous_commit'), current_setting('fsync') = 'on',
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), current_setting('max_connections')::bigint";

/// The rule that [`sequences_behind`] checks.
const NUMBERS: &str = "each new row gets a number above all that were given";

/// Returns the sequences that are behind the rows of their tables, as after a copy of rows: the next new row fails.
pub(super) fn sequences_behind(server: &mut Server) -> Result<Vec<Finding>, Fault> {
    let schema = server.address().quoted_schema();
    let look = |table: &str| {
        format!(
            "SELECT '{table}', (SELECT coalesce(max(id), 0) FROM {table}), (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END
               FROM {table}_id_seq)"
        )
    };
    let rows = server.query(&NUMBERED.map(look).join(" UNION ALL "), &[])?;
    let mut findings = Vec::new();
    for row in rows {
        let (table, newest, last): (String, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        if newest > last {
            let set = format!("SELECT setval('{schema}.{table}_id_seq', {newest})");
            let found = format!("the sequence of {table} is at {last}, and a row has the number {newest}: {set}");
            findings.push(Finding { rule: NUMBERS, found });
        }
    }
    Ok(findings)
}

impl PostgresStore {
    /// Examines the session and the role. Writes nothing. `now`: the clocks of this host.
    pub(crate) fn examine(&mut self, now: &dyn Fn() -> Now) -> Result<ServerReport> {
        let address = self.address().clone();
        let mut bench = self.lock();
        let examined = examine(&mut bench.rows.server, || Server::connect(&address), now);
        examined.map_err(|fault| fault.into_error("examine the server"))
    }
}

fn examine(
    server: &mut Server,
    another: impl FnOnce() -> Result<Server, Fault>,
    now: &dyn Fn() -> Now,
) -> Result<ServerReport, Fault> {
    let rows = server.query(SESSION, &[])?;
    let session = &rows[0];
    let count = |at| Ok::<_, Fault>(session.try_get::<_, i64>(at)?.unsigned_abs());
    let schema = server.address().schema().to_owned();
    let lacking = rights::lacking(server)?;
    let (round_trip_us, clock_ahead_ms) = measure(server, now)?;
    Ok(ServerReport {
        version: server.version()?,
        role: session.try_get(0)?,
        schema,
        pooled: server.is_pooled(),
        locks: excludes(server, &mut another()?)?,
        synchronous_commit: session.try_get(1)?,
        fsync: session.try_get(2)?,
        clock_ahead_ms,
        round_trip_us,
        round_trips: TRIPS,
        missing: lacking.iter().map(|one| format!("{} on {}", one.rights, one.object)).collect(),
        grants: lacking.into_iter().map(|one| one.grant).collect(),
        connections: count(3)?,
        max_connections: count(4)?,
    })
}

/// Returns the median of round trips in microseconds, and the milliseconds by which the server is ahead: by the shortest of them.
fn measure(server: &mut Server, now: &dyn Fn() -> Now) -> Result<(u64, i64), Fault> {
    let mut trips = Vec::with_capacity(TRIPS);
    // The first prepares the statement.
    server.time()?;
    for _ in 0..TRIPS {
        let before = now();
        let there = server.time()?.as_millis();
        let length = now().monotonic.saturating_sub(before.monotonic);
        let half = i64::try_from(length.as_millis() / 2).unwrap_or(i64::MAX);
        trips.push((length, there - before.wall.as_millis() - half));
    }
    trips.sort_unstable();
    let (median, ahead) = (trips[TRIPS / 2].0, trips[0].1);
    Ok((u64::try_from(median.as_micros()).unwrap_or(u64::MAX), ahead))
}

/// Returns whether a lock of one session excludes another session until it is given up.
fn excludes(one: &mut Server, other: &mut Server) -> Result<bool, Fault> {
    let key = fastrand::i32(..);
    let take = |session: &mut Server| -> Result<bool, Fault> {
        Ok(session.query("SELECT pg_try_advisory_lock($1, $2)", &[&TRIED, &key])?[0].try_get(0)?)
    };
    let give_up = |session: &mut Server| session.query("SELECT pg_advisory_unlock($1, $2)", &[&TRIED, &key]);
    let (first, second) = (take(one)?, take(other)?);
    give_up(one)?;
    let third = take(other)?;
    give_up(other)?;
    Ok(first && !second && third)
}
