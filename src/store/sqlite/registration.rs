//! What a scheduler does on its connection beside its turns: it registers, looks, and shuts down.

use std::collections::HashSet;

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::replan::Misplanned;
use crate::store::sqlite::restore::Claims;
use crate::store::sqlite::restore::held::HeldBack;
use crate::store::sqlite::{damage, health, owners, prune, replan, restore};
use crate::store::turn_io::{ClockEvent, KnownOwners, Registered, Registration};

/// Returns which owners and attempts the tables know. What shows that the file was restored is compared before: the files of these owners
/// and attempts are a part of it.
pub(crate) fn known_owners(store: &mut SqliteStore) -> Result<KnownOwners> {
    let known = |tx: &Transaction<'_>, _: &mut Schedules| {
        let (mut not_ended, mut running) = (owners::not_ended(tx)?, owners::running(tx)?);
        // The files of an earlier history show whether what it had begun still runs.
        let held = HeldBack::read(tx)?;
        not_ended.extend(held.owners().cloned());
        running.extend(
            held.former().flat_map(|(_, _, attempts)| attempts.unwrap_or_default()).map(|claimed| claimed.id()),
        );
        let all = held != HeldBack::Damaged && held.former().all(|(_, _, attempts)| attempts.is_some());
        Ok(KnownOwners { not_ended, running, all })
    };
    let doing = "look up owners and running runs";
    if store.is_in_memory() { store.read(doing, known) } else { store.write(doing, known) }
}

/// Registers an owner on a connection that remembers nothing of an earlier owner.
pub(crate) fn register(
    store: &mut SqliteStore,
    new: &Registration,
    random: fastrand::Rng,
    now: Timestamp,
) -> Result<Registered> {
    store.reset(random);
    // On a server, only turns read the tasks that are planned again.
    let most = if store.is_in_memory() { 0 } else { replan::AT_ONCE };
    let (owner, no_claims) = (new.owner.as_str(), Claims::new());
    let registered = store.check_writable().and_then(|()| {
        store.try_write_items(Some((owner, &no_claims)), |tx, schedules, _, beginning| {
            let registered = registered(tx, new, beginning.map(|beginning| beginning.cookie), now)?;
            if most > 0 {
                let (marks, tasks) = replan::pass_marks(tx, most, most)?;
                // The first turn examines the rows that cannot be planned.
                replan::plan_again(tx, schedules, &marks, &tasks)?;
            }
            Ok(registered)
        })
    });
    let (registered, misplanned) = registered.map_err(|fault| store.error(fault, "register the scheduler"))?;
    store.claims();
    store.stamped();
    let mut memory = store.take_memory();
    memory.clock.planned = misplanned;
    memory.comparing = true;
    store.put_memory(memory);
    store.watch();
    Ok(registered)
}

fn registered(
    tx: &Transaction<'_>,
    new: &Registration,
    cookie: Option<i64>,
    now: Timestamp,
) -> Result<(Registered, Misplanned), Fault> {
    let newest_seen = owners::newest_seen(tx)?;
    let now = now.max(Timestamp::MIN);
    damage::stamp(tx, &new.owner)?;
    restore::report(tx, now)?;
    owners::register(tx, new, now)?;
    // Here, because a scheduler that always crashes early takes no turn in which retention has a part.
    prune::instances(tx, Timestamp::MIN)?;
    let (others, not_stopped) = (owners::others(tx, &new.owner)?, owners::not_stopped(tx, &new.owner)?);
    let zone_data_changed = replan::record_zone_data(tx, &new.owner, &new.zone_data, now)?;
    let registered = Registered { others, not_stopped, cookie, newest_seen, zone_data_changed };
    Ok((registered, replan::misplanned(tx)?))
}

/// Returns the newest time that a row counts from beyond the wall clock.
pub(crate) fn counted_beyond(store: &mut SqliteStore, now: Timestamp) -> Result<Option<Timestamp>> {
    let counted = store.read("compare the clock with the tasks", |tx, _| Ok(health::counted_beyond(tx, now)?.1));
    store.release_memory();
    counted
}

/// Returns the runs that an owner has claimed and not settled.
pub(crate) fn claimed_by(store: &mut SqliteStore, owner: &str) -> Result<HashSet<i64>> {
    store.read("count claims", |tx, _| Ok(owners::claimed_by(tx, owner)?))
}

/// Records events of the wall clock while no turn can be taken.
pub(crate) fn record_clock_events(store: &mut SqliteStore, events: &[ClockEvent]) -> Result<()> {
    store.write("record that the clock is not set", |tx, _| {
        Ok(events.iter().try_for_each(|event| owners::clock_event(tx, event))?)
    })
}

/// Records that an owner shut down.
pub(crate) fn stop(store: &mut SqliteStore, owner: &str, now: Timestamp) -> Result<()> {
    store.write("record the shutdown", |tx, _| Ok(owners::stopped(tx, owner, now)?))
}
