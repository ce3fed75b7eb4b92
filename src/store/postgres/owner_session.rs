//! The session of an owner: a connection that holds the owner's advisory lock, sends its heartbeats, and is notified of changes.
//!
//! The server frees the lock when the connection ends. Observers read that as one half of the evidence of a death: see [`owners`].
//!
//! [`owners`]: crate::store::postgres::owners

use std::time::Duration;

use crate::clock::millis;
use crate::error::Error;
use crate::store::fault::Fault;
use crate::store::postgres::address::Address;
use crate::store::postgres::server::{CLASS, Server};
use crate::store::postgres::session::Timeline;
use crate::store::{Beat, OwnerSession};

/// The class of the locks of owners: `(CLASS_OF_OWNERS, key)`.
pub(crate) const CLASS_OF_OWNERS: i32 = CLASS + 1;

/// Returns the key of an owner's lock. Two owners of one key cannot be alive at the same time: the second is refused.
pub(crate) fn key(schema: i32, owner: &str) -> i32 {
    // FNV-1a, which is the same in every version of duly. With the schema: a copy of the tables is beside their original.
    let bytes = schema.to_be_bytes().into_iter().chain(owner.bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.cast_signed()
}

/// Returns the name of the channel on which changes are notified.
pub(crate) fn channel(schema: i32) -> String {
    format!("duly_{}", schema.cast_unsigned())
}

/// Whether the lock is held by this very session. A connection pool in between would hand the session to another client.
const HOLDS: &str = "
    SELECT EXISTS (SELECT FROM pg_locks l
                    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.pid = pg_backend_pid()
                      AND l.classid = ($1::bigint & 4294967295)::oid AND l.objid = ($2::bigint & 4294967295)::oid
                      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
       AND pg_backend_pid() = $3";

/// Ends the session that this one replaces, if the server has not noticed that its connection is broken.
const END_OLD: &str = "
    SELECT pg_terminate_backend(l.pid) FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.pid = $3
       AND l.classid = ($1::bigint & 4294967295)::oid AND l.objid = ($2::bigint & 4294967295)::oid
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())";

const LOCK: &str = "SELECT pg_try_advisory_lock($1, $2), pg_backend_pid()";

/// A heartbeat waits for no standby. If the standby is away, no turn can commit, and running commands go on until it is there again. If it
/// is promoted without the last heartbeats, an observer waits for a full lease from then on.
const LOCAL: &str =
    "SELECT set_config('synchronous_commit', 'local', false) WHERE current_setting('synchronous_commit') <> 'off'";

/// One statement: the instance and its runs, and nothing of an owner that counts as stopped. A run that another transaction has
/// locked is left to the next heartbeat: the lease of the instance counts for all.
const EXTEND: &str = "
    WITH t AS MATERIALIZED (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now),
         seen AS (UPDATE scheduler_instances i SET seen_at = greatest(i.seen_at, t.now) FROM t
                   WHERE i.id = $1 AND i.stopped_at IS NULL RETURNING 1),
         own AS (SELECT r.id FROM task_runs r WHERE r.status = 'running' AND r.locked_by = $1 FOR UPDATE SKIP LOCKED),
         extended AS (UPDATE task_runs r SET locked_until = greatest(r.locked_until, t.now + $2) FROM own, t
                       WHERE r.id = own.id RETURNING 1)
    SELECT count(*) FROM seen";

/// The session of one owner. It connects again when it must.
#[derive(Debug)]
pub(crate) struct OwnerConnection {
    address: Address,
    owner: String,
    lease: Duration,
    server: Option<Server>,
    /// The process of the server that had the lock last.
    pid: i32,
    /// The history of the server that the claims are part of: it changes when a replica is promoted.
    timeline: Option<Timeline>,
}

impl OwnerConnection {
    /// Takes the lock of a new owner.
    pub(crate) fn take(address: &Address, owner: &str, lease: Duration) -> Result<Self, Fault> {
        let (address, owner) = (address.clone(), owner.to_owned());
        let mut session = OwnerConnection { address, owner, lease, server: None, pid: 0, timeline: None };
        session.connect()?;
        Ok(session)
    }

    /// Sets the history on which the owner is registered: a heartbeat on another one extends nothing.
    pub(crate) fn keep_to_timeline(&mut self, timeline: Option<Timeline>) {
        self.timeline = timeline;
    }

    /// Has the lock held: takes it again if the connection was lost. Returns whether it was taken again.
    pub(crate) fn hold(&mut self) -> Result<bool, Fault> {
        if let Some(server) = &mut self.server {
            let (class, key) = (i64::from(CLASS_OF_OWNERS), i64::from(key(server.schema(), &self.owner)));
            let holds = server.query(HOLDS, &[&class, &key, &self.pid]).and_then(|rows| Ok(rows[0].try_get(0)?));
            if matches!(holds, Ok(true)) {
                return Ok(false);
            }
            self.server = None;
            holds?;
        }
        self.connect()?;
        Ok(true)
    }

    /// Frees the lock at once: the server may notice the end of a connection later.
    pub(crate) fn release(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.batch("SELECT pg_advisory_unlock_all()");
        }
    }

    fn connect(&mut self) -> Result<(), Fault> {
        let mut server = Server::connect_mute(&self.address, self.lease / 5)?;
        server.find_schema()?;
        let (schema, key) = (server.schema(), key(server.schema(), &self.owner));
        if self.pid != 0 {
            server.query(END_OLD, &[&i64::from(CLASS_OF_OWNERS), &i64::from(key), &self.pid])?;
        }
        let rows = server.query(LOCK, &[&CLASS_OF_OWNERS, &key])?;
        if !rows[0].try_get::<_, bool>(0)? {
            return Err(Error::store("take the lock of this scheduler", "another session has it").into());
        }
        self.pid = rows[0].try_get(1)?;
        server.batch(&format!("{LOCAL}; LISTEN {}", channel(schema)))?;
        self.server = Some(server);
        Ok(())
    }

    fn beat(&mut self) -> Result<Beat, Fault> {
        let again = self.hold()?;
        let Some(server) = &mut self.server else { return Ok(Beat::default()) };
        let timeline = server.timeline().cloned();
        let promoted = self.timeline.is_some() && self.timeline != timeline;
        self.timeline = timeline;
        if promoted {
            return Ok(Beat { again, promoted, ..Beat::default() });
        }
        let rows = server.query(EXTEND, &[&self.owner, &millis(self.lease)])?;
        let seen: i64 = rows[0].try_get(0)?;
        Ok(Beat { again, promoted, extended: seen > 0 })
    }
}

impl OwnerSession for OwnerConnection {
    fn heartbeat(&mut self) -> Result<Beat, Fault> {
        self.beat().inspect_err(|_| self.server = None)
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        let Some(server) = &mut self.server else { return Ok(false) };
        server.wait_for_notification(limit).inspect_err(|_| self.server = None)
    }
}

#[cfg(test)]
mod tests {
    use super::{channel, key};

    #[test]
    fn the_key_of_an_owner_is_the_same_in_every_process_and_depends_on_the_schema() {
        let owner = "0b9e7a51-2c7f-4a4e-8f6f-2f0b3f2a9c11";
        assert_eq!(key(16_384, owner), key(16_384, owner));
        assert_ne!(key(16_384, owner), key(16_385, owner));
        assert_eq!(key(0, ""), 0x4b95_f515, "it is written down in the versions that run beside this one");
        assert_eq!(channel(-1), "duly_4294967295");
    }
}
