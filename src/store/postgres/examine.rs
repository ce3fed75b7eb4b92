//! What a session with the server is like, and what its role may do.

use crate::clock::Now;
use crate::error::Result;
use crate::model::server_report::ServerReport;
use crate::store::fault::Fault;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::server::Server;
use crate::store::postgres::tables::TABLES;

/// Round trips that are measured.
const TRIPS: usize = 20;

/// The class of the lock that is tried: not that of a lock of duly.
const TRIED: i32 = 0x6475_6c7a;

const SESSION: &str = "
    SELECT current_user::text, current_setting('synchronous_commit'), current_setting('fsync') = 'on',
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), current_setting('max_connections')::bigint";

const MISSING: &str = "
    SELECT p || ' on ' || t AS missing FROM unnest($1::text[]) t, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
    WHERE NOT has_table_privilege(quote_ident($2) || '.' || t, p)
    UNION ALL
    SELECT p || ' on ' || c.relname FROM pg_class c, unnest(ARRAY['SELECT', 'USAGE']) p
    WHERE c.relkind = 'S' AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $2)
          AND c.relname = ANY (SELECT t || '_id_seq' FROM unnest($1::text[]) t) AND NOT has_sequence_privilege(c.oid, p)
    ORDER BY missing";

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
    let tables = TABLES.map(str::to_owned).to_vec();
    let missing = server.query(MISSING, &[&tables, &schema])?;
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
        missing: missing.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?,
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
