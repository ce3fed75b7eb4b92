//! What a session with a server is like.

use serde::Serialize;

/// What a session with a server is like: see [`Client::examine_server`](crate::Client::examine_server).
///
/// ```no_run
/// let report = duly::Client::open("postgres://duly@db.example/app")?.examine_server()?;
/// if !report.locks || report.pooled {
///     eprintln!("a pooler shares sessions: connect to PostgreSQL itself");
/// }
/// for (permission, grant) in report.missing.iter().zip(&report.grants) {
///     eprintln!("role {} lacks {permission}: {grant}", report.role);
/// }
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServerReport {
    /// The version of PostgreSQL, as in `15.18`.
    pub version: String,
    /// The role of the session.
    pub role: String,
    /// The schema of the tables.
    pub schema: String,
    /// Whether a connection pooler that shares sessions is before the server.
    pub pooled: bool,
    /// Whether the lock of one session excludes another.
    pub locks: bool,
    /// The setting of the session.
    pub synchronous_commit: String,
    /// Whether the server syncs its files.
    pub fsync: bool,
    /// Milliseconds by which the clock of the server is ahead of that of this host.
    pub clock_ahead_ms: i64,
    /// The median time of a round trip in microseconds.
    pub round_trip_us: u64,
    /// The number of round trips that were measured.
    pub round_trips: usize,
    /// Permissions that the role lacks of those that a scheduler needs, as in `INSERT, UPDATE on task_runs`.
    pub missing: Vec<String>,
    /// The statements that grant them.
    pub grants: Vec<String>,
    /// Sessions of all programs on the server.
    pub connections: u64,
    /// The most sessions that it accepts.
    pub max_connections: u64,
}
