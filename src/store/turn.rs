//! The one transaction of a turn: settle what finished, extend leases, recover lost runs, end what never began, resolve what
//! is due, claim.
//!
//! It writes at most [`MAX_ITEMS`] items, outcomes first. If one item cannot be written, the whole is rolled back and
//! repeated with a savepoint around each: the bad one is set aside with an event, the others are written.

use std::collections::BTreeSet;

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::error::excerpt;
use crate::event::Event;
use crate::run::{AttemptOutcome, Finished, Outcome};
use crate::schedule::Schedules;
use crate::store::opening::{Claimer, Slots, Written};
use crate::store::runs::Fence;
use crate::store::waiting::Round;
use crate::store::{Fault, Store, claiming, database, due, opening, owners, settling, tasks, waiting};

/// Most items that one turn writes.
pub(crate) const MAX_ITEMS: usize = 500;
/// Most of them that are outcomes.
pub(crate) const MAX_OUTCOMES: usize = MAX_ITEMS / 2;
/// Keys and tasks whose waiting runs a full turn looks at again.
const SWEEP: usize = 500;

/// Room from which on runs are known to be short. What is due is then resolved as far as it can start, in one write instead
/// of two.
const QUICK: usize = 32;

/// What a turn is to do.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) now: Timestamp,
    pub(crate) owner: &'a str,
    pub(crate) handlers: &'a BTreeSet<String>,
    /// Until when the owner is believed if it is not heard of again.
    pub(crate) until: Timestamp,
    pub(crate) finished: &'a [Finished],
    /// Owners that are proved dead.
    pub(crate) dead: &'a [String],
    /// Whether leases are to be extended and the whole looked at.
    pub(crate) full: bool,
    pub(crate) slots: Slots,
    /// Most due tasks that are resolved although no worker is free for them.
    pub(crate) ahead: usize,
}

/// What goes on from turn to turn.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) random: fastrand::Rng,
    /// Counts what was resolved, and what was claimed, so that every eighth goes by age.
    pub(crate) resolved: u64,
    pub(crate) claimed: u64,
    pub(crate) round: Round,
}

/// What a turn did and saw.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) written: Written,
    /// Own runs that somebody has asked to stop.
    pub(crate) stop: Vec<i64>,
    /// Other owners that have running runs, and the newest value of their lease.
    pub(crate) others: Vec<(String, Timestamp)>,
    /// In a full turn: other owners that have not left in order, with running runs or without.
    pub(crate) not_stopped: Vec<String>,
    /// Dead owners of which nothing is left to recover.
    pub(crate) recovered: Vec<String>,
    /// How many own runs had their lease extended, in a full turn.
    pub(crate) extended: Option<usize>,
    /// Whether more is due than was resolved.
    pub(crate) more_due: bool,
    pub(crate) next_due: Option<Timestamp>,
    pub(crate) next_claimable: Option<Timestamp>,
    pub(crate) next_expiry: Option<Timestamp>,
    /// Of the snapshot that the turn saw.
    pub(crate) data_version: i64,
}

/// Carries out a turn. After a crash either all that it wrote is there, or none of it.
pub(crate) fn turn(store: &mut Store, work: &Work<'_>, memory: &mut Memory) -> Result<Done, Fault> {
    let before = (memory.resolved, memory.claimed);
    match store.try_write(|tx, schedules| run(tx, schedules, work, memory, Items::Together)) {
        Err(fault) if fault.is_about_the_item() => {
            (memory.resolved, memory.claimed) = before;
            store.try_write(|tx, schedules| run(tx, schedules, work, memory, Items::OneByOne))
        }
        done => done,
    }
}

/// How the items of a turn are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Items {
    /// One fails, all fail: the usual case, in which none does.
    Together,
    /// Each within a savepoint of its own.
    OneByOne,
}

impl Items {
    /// Writes one item. `Ok(Some(fault))`: it was undone, and the others go on.
    fn write(
        self,
        tx: &Transaction<'_>,
        written: &mut Written,
        slots: &mut Slots,
        item: impl FnOnce(&mut Written, &mut Slots) -> Result<(), Fault>,
    ) -> Result<Option<Fault>, Fault> {
        if self == Items::Together {
            return item(written, slots).map(|()| None);
        }
        let (claims, events, completed) = (written.claims.len(), written.events.len(), written.completed.len());
        let before = *slots;
        tx.prepare_cached("SAVEPOINT item")?.execute([])?;
        let failed = match item(written, slots) {
            Ok(()) => None,
            Err(fault) if fault.is_about_the_item() => {
                tx.prepare_cached("ROLLBACK TO item")?.execute([])?;
                written.claims.truncate(claims);
                written.events.truncate(events);
                written.completed.truncate(completed);
                *slots = before;
                Some(fault)
            }
            Err(fault) => return Err(fault),
        };
        tx.prepare_cached("RELEASE item")?.execute([])?;
        Ok(failed)
    }
}

fn run(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    work: &Work<'_>,
    memory: &mut Memory,
    items: Items,
) -> Result<Done, Fault> {
    let now = work.now;
    let mut slots = work.slots;
    let mut done = Done { data_version: database::data_version(tx)?, ..Done::default() };
    let written = &mut done.written;
    written.blocked = waiting::any_blocked(tx)?;

    for finished in work.finished {
        settle(tx, work, memory, items, finished, written)?;
    }
    if work.full {
        done.extended = Some(owners::extend(tx, work.owner, work.until, now)?);
        done.not_stopped = owners::not_stopped(tx, work.owner)?;
        waiting::sweep(tx, &mut memory.round, SWEEP, now)?;
    }
    let mut budget = MAX_ITEMS.saturating_sub(work.finished.len());
    for owner in work.dead {
        let lost = owners::claimed_by(tx, owner, budget)?;
        for (run, attempt) in &lost {
            let fence = Fence { run: *run, owner, attempt: *attempt };
            let failed = items.write(tx, written, &mut slots, |written, _| {
                settling::recover(tx, &fence, now, &mut memory.random, written)
            })?;
            set_aside(tx, written, failed, format!("the lost run {run}"), now)?;
        }
        budget -= lost.len();
        if owners::claimed_by(tx, owner, 1)?.is_empty() {
            owners::stopped(tx, owner, now)?;
            owners::record(tx, now, "owner_lost", None, None, Some(owner))?;
            done.recovered.push(owner.clone());
        }
    }
    expire(tx, now, items, &mut budget, written)?;
    for task in tasks::unplanned(tx, budget)? {
        budget -= 1;
        plan(tx, schedules, items, task, now, written)?;
    }

    slots.room = slots.room.min(budget);
    let claimer = Claimer { owner: work.owner, handlers: work.handlers, until: work.until };
    let mut batch = Batch { tx, schedules, now, items, memory, written, slots };
    // What falls due starts at once where nothing that waits goes before it. Otherwise it queues up, and is claimed with
    // the rest by urgency; that costs two writes, so no more of it than must be known in time.
    if slots.room == 0 || claiming::any(tx, work.handlers, now)? {
        done.more_due = batch.resolve(work.ahead.min(budget), None)?;
        batch.claim(&claimer)?;
    }
    if batch.slots.room > 0 && !claiming::any(tx, work.handlers, now)? {
        let limit = if batch.slots.room >= QUICK { batch.slots.room } else { batch.slots.room.max(work.ahead) };
        done.more_due = batch.resolve(limit.min(budget), Some(&claimer))?;
    }

    look_ahead(tx, work.owner, work.handlers, &mut done)?;
    Ok(done)
}

/// What is to come, as far as this owner is concerned.
fn look_ahead(tx: &Transaction<'_>, owner: &str, handlers: &BTreeSet<String>, done: &mut Done) -> rusqlite::Result<()> {
    done.stop = owners::asked_to_stop(tx, owner)?;
    done.others = owners::others(tx, owner)?;
    done.next_due = due::next_due(tx)?;
    done.next_claimable = claiming::next(tx, handlers)?;
    done.next_expiry = settling::next_expiry(tx)?;
    Ok(())
}

/// Reads what a turn would see, and whether there is something for it to write that no instant announces.
pub(crate) fn look(
    tx: &Transaction<'_>,
    owner: &str,
    handlers: &BTreeSet<String>,
    now: Timestamp,
) -> Result<(Done, bool), Fault> {
    let mut done = Done { data_version: database::data_version(tx)?, ..Done::default() };
    look_ahead(tx, owner, handlers, &mut done)?;
    let work = !settling::expiring(tx, now, 1)?.is_empty() || !tasks::unplanned(tx, 1)?.is_empty();
    Ok((done, work))
}

fn settle(
    tx: &Transaction<'_>,
    work: &Work<'_>,
    memory: &mut Memory,
    items: Items,
    finished: &Finished,
    written: &mut Written,
) -> Result<(), Fault> {
    let random = &mut memory.random;
    let failed = items.write(tx, written, &mut Slots::default(), |written, _| {
        settling::settle(tx, work.owner, finished, work.now, random, written)
    })?;
    let Some(fault) = failed else { return Ok(()) };
    // The outcome as the handler gave it cannot be stored. That it ended is stored all the same.
    let error = format!("its outcome could not be stored: {}", excerpt(&fault.to_string(), 500));
    let outcome = Outcome::Failed { how: AttemptOutcome::Failed, error, retry: crate::retry::Retry::Backoff };
    let plain = Finished { outcome, ..finished.clone() };
    let again = items.write(tx, written, &mut Slots::default(), |written, _| {
        settling::settle(tx, work.owner, &plain, work.now, &mut memory.random, written)
    })?;
    let item = format!("the outcome of run {}", finished.claim.run_id);
    set_aside(tx, written, Some(again.unwrap_or(fault)), item, work.now)
}

fn expire(
    tx: &Transaction<'_>,
    now: Timestamp,
    items: Items,
    budget: &mut usize,
    written: &mut Written,
) -> Result<(), Fault> {
    let expiring = settling::expiring(tx, now, *budget / 2)?;
    *budget -= expiring.len();
    for run in expiring {
        let failed =
            items.write(tx, written, &mut Slots::default(), |written, _| settling::expire(tx, run, now, written))?;
        set_aside(tx, written, failed, format!("the expiry of run {run}"), now)?;
    }
    Ok(())
}

/// Plans a row that somebody else wrote. One that cannot be planned becomes invalid, and nothing stops.
fn plan(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    items: Items,
    task: i64,
    now: Timestamp,
    written: &mut Written,
) -> Result<(), Fault> {
    let failed = items.write(tx, written, &mut Slots::default(), |written, _| {
        settling::cancel_asked(tx, task, now, written)?;
        if let Some((task, reason)) = tasks::settle_plan(tx, schedules, task, now)? {
            written.events.push(Event::Invalid { task, reason });
        }
        Ok(())
    })?;
    invalid(tx, written, failed, task, now)
}

/// The part of a turn that decides what starts.
struct Batch<'a, 'b> {
    tx: &'a Transaction<'a>,
    schedules: &'b mut Schedules,
    now: Timestamp,
    items: Items,
    memory: &'b mut Memory,
    written: &'b mut Written,
    slots: Slots,
}

impl Batch<'_, '_> {
    /// Resolves up to `limit` due tasks, most urgent first; whether more are due.
    fn resolve(&mut self, limit: usize, claimer: Option<&Claimer<'_>>) -> Result<bool, Fault> {
        let (tx, now, schedules) = (self.tx, self.now, &mut *self.schedules);
        let lists = due::due_lists(tx, now, limit + 1)?;
        let more = lists.iter().map(Vec::len).sum::<usize>() > limit;
        for task in claiming::by_urgency(lists, &mut self.memory.resolved).take(limit) {
            let failed = self.items.write(tx, self.written, &mut self.slots, |written, slots| {
                let claimer = claimer.map(|claimer| (claimer, slots));
                opening::resolve_due(tx, schedules, task, now, claimer, written)
            })?;
            invalid(tx, self.written, failed, task, now)?;
        }
        opening::complete(tx, self.written, now)?;
        Ok(more)
    }

    /// Claims waiting runs, as many as there are slots.
    fn claim(&mut self, claimer: &Claimer<'_>) -> Result<(), Fault> {
        let (tx, now, counter) = (self.tx, self.now, &mut self.memory.claimed);
        let failed = self.items.write(tx, self.written, &mut self.slots, |written, slots| {
            claiming::claim(tx, claimer, now, slots, counter, written)
        })?;
        set_aside(tx, self.written, failed, "the claims of this turn".to_owned(), now)
    }
}

/// A task whose item failed rests as invalid until somebody changes it.
fn invalid(
    tx: &Transaction<'_>,
    written: &mut Written,
    failed: Option<Fault>,
    task: i64,
    now: Timestamp,
) -> Result<(), Fault> {
    let Some(fault) = failed else { return Ok(()) };
    let reason = fault.to_string();
    tasks::invalidate(tx, task, &reason, now)?;
    let name = tasks::name(tx, task)?;
    owners::record(tx, now, "invalid", Some(task), None, Some(&reason))?;
    written.events.push(Event::Invalid { task: name, reason });
    Ok(())
}

fn set_aside(
    tx: &Transaction<'_>,
    written: &mut Written,
    failed: Option<Fault>,
    item: String,
    now: Timestamp,
) -> Result<(), Fault> {
    let Some(fault) = failed else { return Ok(()) };
    let reason = fault.to_string();
    owners::record(tx, now, "set_aside", None, None, Some(&format!("{item}: {reason}")))?;
    written.events.push(Event::SetAside { item, reason });
    Ok(())
}
