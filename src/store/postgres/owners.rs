//! What a server shows of other owners. The lock of a session alone proves no death, because a network can fail; the lease alone
//! proves none either, because an owner can be slow. A lock file proves one on the machine of the owner, until it boots again.

use std::collections::HashMap;

use crate::clock::Timestamp;
use crate::host::process;
use crate::store::fault::Fault;
use crate::store::postgres::owner_session::{CLASS_OF_OWNERS, key};
use crate::store::postgres::server::Server;
use crate::store::turn_io::{Dead, Done, Other, Proof, Registered, Session};

/// Of each owner: whether its lease has passed, that of its heartbeat or of its runs; and whether it registered in this boot of this
/// machine, which is false if either boot is unknown. The running runs come first: together with their owner, the server would also read
/// the index of what waits.
macro_rules! ends {
    ($rest:literal) => {
        concat!(
            "WITH running AS MATERIALIZED (
                 SELECT r.locked_by, r.locked_until FROM task_runs r WHERE r.status = 'running'),
             o AS MATERIALIZED (
                 SELECT o.id, o.key, coalesce(greatest(i.seen_at + coalesce(i.lease_ms, 0),
                            (SELECT max(r.locked_until) FROM running r WHERE r.locked_by = o.id)), 0)
                            < coalesce($3::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS passed,
                        coalesce(i.boot_id = $5::text, false) AS here
                   FROM unnest($1::text[], $2::bigint[]) AS o(id, key) LEFT JOIN scheduler_instances i ON i.id = o.id)",
            $rest
        )
    };
}

const SESSIONS: &str = ends!(
    ", held AS MATERIALIZED (
         SELECT l.objid FROM pg_locks l
          WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.classid = ($4::bigint & 4294967295)::oid
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
     SELECT o.id, EXISTS (SELECT FROM held h WHERE h.objid = (o.key & 4294967295)::oid), o.here, o.passed FROM o"
);

/// Returns what the sessions of owners show. `now`: the time, if it is not the server's.
pub(crate) fn sessions(
    server: &mut Server,
    owners: &[String],
    now: Option<Timestamp>,
) -> Result<HashMap<String, Session>, Fault> {
    // A standby does not show the locks of sessions with the primary: what cannot be seen counts as held.
    if server.is_standby() {
        return Ok(owners.iter().map(|owner| (owner.clone(), Session::Held { here: false })).collect());
    }
    let keys: Vec<i64> = owners.iter().map(|owner| key(server.schema(), owner).into()).collect();
    let (now, class) = (now.map(Timestamp::as_millis), i64::from(CLASS_OF_OWNERS));
    let rows = server.query(SESSIONS, &[&owners, &keys, &now, &class, &process::boot_id().ok()])?;
    let session = |row: &postgres::Row| {
        let session = match row.try_get(1)? {
            true => Session::Held { here: row.try_get(2)? },
            false => Session::Free { here: row.try_get(2)?, passed: row.try_get(3)? },
        };
        Ok((row.try_get(0)?, session))
    };
    rows.iter().map(session).collect()
}

/// Sets what the sessions of other owners show. One that cannot be looked at counts as held.
fn annotate<'a>(server: &mut Server, others: impl Iterator<Item = &'a mut Other>, now: Option<Timestamp>) {
    let others: Vec<&mut Other> = others.collect();
    if others.is_empty() {
        return;
    }
    let owners: Vec<String> = others.iter().map(|other| other.owner.clone()).collect();
    let sessions = sessions(server, &owners, now).unwrap_or_default();
    for other in others {
        other.session = sessions.get(&other.owner).copied().unwrap_or(Session::Held { here: false });
    }
}

/// As [`sessions`], for what a turn or a look has seen.
pub(crate) fn annotate_done(server: &mut Server, done: &mut Done, now: Option<Timestamp>) {
    annotate(server, done.others.iter_mut().chain(&mut done.not_stopped), now);
}

/// As [`sessions`], for what a registration has seen.
pub(crate) fn annotate_registered(server: &mut Server, registered: &mut Registered, now: Option<Timestamp>) {
    annotate(server, registered.others.iter_mut().chain(&mut registered.not_stopped), now);
}

/// Takes the lock of each owner whose lease has passed, or whose lock file was acquired in the boot in which it registered, until the end
/// of the transaction: until then the owner cannot come back.
const TAKE: &str = ends!(
    " SELECT o.id FROM o WHERE CASE WHEN o.passed OR (o.here AND o.id = ANY ($6::text[]))
         THEN pg_try_advisory_xact_lock($4::bigint::integer, o.key::integer) ELSE false END"
);

/// Returns the owners of which it is still proved, in this transaction, that they are dead. The lock of the schema is held.
pub(crate) fn still_dead(server: &mut Server, dead: &[Dead], now: Option<Timestamp>) -> Result<Vec<Dead>, Fault> {
    if dead.is_empty() {
        return Ok(Vec::new());
    }
    let owners: Vec<String> = dead.iter().map(|dead| dead.owner.clone()).collect();
    let by_file = dead.iter().filter(|dead| matches!(dead.proof, Proof::Lock(_)));
    let by_file: Vec<String> = by_file.map(|dead| dead.owner.clone()).collect();
    let keys: Vec<i64> = owners.iter().map(|owner| key(server.schema(), owner).into()).collect();
    let now = now.map(Timestamp::as_millis);
    let class = i64::from(CLASS_OF_OWNERS);
    let rows = server.query(TAKE, &[&owners, &keys, &now, &class, &process::boot_id().ok(), &by_file])?;
    let taken: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok(dead.iter().filter(|dead| taken.contains(&dead.owner)).cloned().collect())
}

const NOT_ENDED: &str = "
    SELECT i.id FROM scheduler_instances i WHERE i.stopped_at IS NULL
     UNION SELECT r.locked_by FROM task_runs r WHERE r.status = 'running' AND r.locked_by IS NOT NULL";

/// Returns what the sessions of all owners show that have not stopped.
pub(crate) fn all_sessions(server: &mut Server, now: Option<Timestamp>) -> Result<HashMap<String, Session>, Fault> {
    let rows = server.query(NOT_ENDED, &[])?;
    let owners: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    sessions(server, &owners, now)
}
