//! The one transaction of a turn: settle what finished, extend leases, recover lost runs, expire what never began, resolve what
//! is due, claim.
//!
//! It writes at most as many items as it is given, outcomes first. If one item cannot be written, the
//! transaction is rolled back and repeated with a savepoint around each item: the bad one is set aside with an event, the others are
//! written.

mod claims;
mod items;
mod openings;
mod outcomes;
mod work_off;
mod wrong_clock;

use std::collections::BTreeSet;

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::host::fault_points;
use crate::host::orphan::Presence;
use crate::model::event::Event;
use crate::model::report::Pruned;
use crate::model::task::MAX_FOLLOWERS;
use crate::rules::resolve::Rest;
use crate::rules::retention::Limits;
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::connection::{self, Backing, SqliteStore};
use crate::store::sqlite::limits::InForce;
use crate::store::sqlite::memory::Memory;
use crate::store::sqlite::open::{self, Change, Written};
use crate::store::sqlite::prune;
use crate::store::sqlite::runs::{Claimer, Fence};
use crate::store::sqlite::{
    attempts, blocked, claim, clock_mark, damage, delays, due, followers, foreign_plans, marks, once, owners, replan,
    settle, starts, tasks,
};
use crate::store::turn_io::{Dead, Done, Item, Lost, Orphaned, Proof, Slots, Work, presence};

/// Keys and tasks whose waiting runs a full turn checks again.
pub(crate) const SWEEP: usize = 500;

/// Waiting runs that a server reads although no slot is left for them: others of their key may start first, and some wait although they are
/// in the lists.
pub(crate) const SPARE: usize = 16;

/// Rows that retention deletes beside other work. The turn writes that many fewer items.
pub(crate) const PRESSING: usize = 200;

/// Free slots from which on runs are known to be short. What is due is then resolved as far as it can start, in one write
/// instead of two.
pub(crate) const QUICK: usize = 32;

/// Takes a turn. After a crash, either all that it wrote is stored, or nothing.
pub(crate) fn turn(store: &mut SqliteStore, work: &Work<'_>) -> Result<Done, Fault> {
    if work.newer {
        store.accept_newer();
    }
    let mut memory = store.take_memory();
    let done = write(store, work, &mut memory);
    store.put_memory(memory);
    if done.is_ok() && (work.full || store.has_outgrown_the_record()) {
        store.stamped();
    }
    // Idle retention reads thousands of tasks, which no other turn needs.
    if work.prune.is_some_and(|part| part.if_idle) && done.as_ref().is_ok_and(|done| done.pruned.is_some()) {
        store.release_memory();
    }
    done
}

fn write(store: &mut SqliteStore, work: &Work<'_>, memory: &mut Memory) -> Result<Done, Fault> {
    let is_in_memory = store.is_in_memory();
    let before = memory.before();
    if work.full {
        memory.retried.extend(memory.aside.drain());
        memory.zoneless.clear();
    }
    // A task whose zone is unknown here is not tried, so it cannot fail.
    let together = memory.aside.len() == memory.zoneless.len() && !work.newer && !memory.apart;
    let mode = if together { Mode::Together } else { Mode::OneByOne };
    let mut turn = |mode, memory: &mut Memory| -> Result<Done, Fault> {
        store.try_write_items(Some((work.owner, work.claimed)), |tx, schedules, backing, beginning| {
            let mut turning = Turning::new(tx, schedules, work, memory, mode, backing)?;
            if let Some(beginning) = beginning {
                turning.hold_back(beginning)?;
            }
            turning.run()
        })
    };
    let done = match turn(mode, memory) {
        // Rows that are stored elsewhere are read again first.
        Err(fault) if mode == Mode::Together && fault.is_about_the_item() && !is_in_memory => {
            memory.undo(before.clone());
            turn(Mode::OneByOne, memory)
        }
        done => done,
    };
    // Nothing was written: the next turn tries all of it again.
    let mut done = done.inspect_err(|_| memory.undo(before))?;
    if is_in_memory {
        done.items = 0;
    } else {
        done.held = store.held();
    }
    let Memory { aside, retried, .. } = memory;
    retried.retain(|item| aside.contains(item));
    Ok(done)
}

/// How the items of a turn are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// If one fails, all fail: the usual case, in which none does.
    Together,
    /// Each within a savepoint of its own.
    OneByOne,
}

struct Turning<'a> {
    tx: &'a Transaction<'a>,
    schedules: &'a mut Schedules,
    work: &'a Work<'a>,
    memory: &'a mut Memory,
    mode: Mode,
    /// Where the rows are stored, if that is elsewhere.
    backing: Option<&'a mut (dyn Backing + 'static)>,
    done: Done,
    written: Written,
    slots: Slots,
    /// Tasks of which attempts of an earlier history may still run, and how many waiting runs were passed over for such attempts.
    held_tasks: BTreeSet<i64>,
    passed_over: usize,
    /// Items that may still be written.
    budget: usize,
    /// How many items the runs that follow others were.
    follower_items: usize,
    /// Whether the next turn must follow at once, beside what is due.
    more: bool,
}

impl<'a> Turning<'a> {
    fn new(
        tx: &'a Transaction<'a>,
        schedules: &'a mut Schedules,
        work: &'a Work<'a>,
        memory: &'a mut Memory,
        mode: Mode,
        backing: Option<&'a mut (dyn Backing + 'static)>,
    ) -> Result<Self, Fault> {
        let done = Done { data_version: connection::data_version(tx)?, ..Done::default() };
        // Newer tables may not answer for all runs at once, so each run is looked at.
        let (blocked, delayed) = (work.newer || blocked::any_blocked(tx)?, work.newer || delays::any(tx)?);
        let limits = if work.newer { InForce::default() } else { InForce::read(tx)? };
        let followed = work.newer || followers::any(tx)?;
        let written = Written { blocked, delayed, followed, limits, ..Written::default() };
        let (slots, budget) = (work.slots, work.most);
        let (held_tasks, passed_over) = (BTreeSet::new(), 0);
        Ok(Turning {
            tx,
            schedules,
            work,
            memory,
            mode,
            backing,
            done,
            written,
            slots,
            held_tasks,
            passed_over,
            budget,
            follower_items: 0,
            more: false,
        })
    }

    fn run(mut self) -> Result<Done, Fault> {
        self.write()?;
        let Turning { memory, mut done, written, work, budget, .. } = self;
        done.items = work.most - budget;
        (done.claims, done.events, done.damaged) = (written.claims, written.events, memory.damaged);
        Ok(done)
    }

    fn write(&mut self) -> Result<(), Fault> {
        let (tx, now, handlers) = (self.tx, self.work.now, self.work.handlers);
        if !self.work.newer {
            self.work.clock_events.iter().try_for_each(|event| owners::clock_event(tx, event))?;
        }
        // Those that this turn marks are not among them: on a server it has not read their runs.
        let marked = if self.work.newer { Vec::new() } else { marks::marked(tx)? };
        if let Some(believed) = self.work.rewind {
            self.rewind(believed)?;
            if self.backing.is_some() {
                return Ok(());
            }
        }
        if !self.work.newer {
            // Before any run ends: a server has read the first unfinished runs.
            self.rewind_marked()?;
        }
        if self.work.full && !self.work.newer {
            self.rewind_again()?;
        }
        // Before anything is settled: no outcome is deleted in the turn in which it is written, however long it had to wait for
        // that.
        self.prune(false, PRESSING.min(self.budget / 2))?;
        self.settle_all()?;
        for report in self.work.reports {
            let fence = Fence { run: report.run, owner: self.work.owner, attempt: report.attempt };
            // Reports for finished attempts match no row and are ignored.
            self.item(Item::Report(report.run), |_| {
                let _ = attempts::keep(tx, &fence, &report.kind)?;
                Ok(())
            })?;
        }
        if !self.work.newer {
            for worker in self.work.ended {
                owners::worker_ended(tx, self.work.owner, worker, now)?;
            }
        }
        if !self.work.newer {
            self.move_starts()?;
        }
        if self.work.newer {
            return self.outlive();
        }
        if self.work.draining {
            return self.drain();
        }
        if self.work.full {
            damage::stamp(tx, self.work.owner)?;
            self.done.extended = Some(owners::extend(tx, self.work.registration, self.work.until, now)?);
            self.done.not_stopped = owners::not_stopped(tx, self.work.owner)?;
            self.item(Item::Sweep, |turn| Ok(blocked::sweep(tx, &mut turn.memory.round, SWEEP, now)?))?;
        }
        for dead in self.work.dead {
            if owners::is_dead(tx, self.work.owner, dead)? {
                self.recover(dead)?;
            }
        }
        for stalled in self.work.stalled {
            self.written.events.extend(owners::stalled(tx, self.work.owner, stalled, now)?);
        }
        self.expire()?;
        self.open_starts()?;
        let rows = tasks::unplanned(tx, self.budget + self.memory.aside.len() + 1)?;
        for (task, zone) in &rows {
            if self.memory.zoneless.get(task).is_some_and(|unknown| unknown != zone) {
                self.memory.zoneless.remove(task);
                self.memory.aside.remove(&Item::Task(*task));
            }
        }
        let mut unplanned: Vec<i64> = rows.into_iter().map(|(task, _)| task).collect();
        if self.work.full && self.written.delayed {
            unplanned.extend(tasks::planless(tx, &mut self.memory.planless, SWEEP)?);
        }
        unplanned.retain(|task| !self.rests(Item::Task(*task)));
        let mut more_unplanned = false;
        for task in unplanned {
            if self.budget == 0 {
                more_unplanned = true;
                break;
            }
            // By itself: requested cancellations are applied even if the row cannot be used.
            self.end_item(Item::Task(task), |turn| settle::cancel_asked(&mut turn.change(), task))?;
            // That and the plan are one item, beside what follows.
            self.budget += 1;
            self.task(task, |turn| turn.plan(task))?;
        }
        self.work_off(&marked)?;
        let any_left = self.replan_local()?;

        self.slots.room = self.slots.room.min(self.budget);
        // What falls due starts at once if no waiting run comes before it. Otherwise it is queued, and claimed with the rest by
        // urgency; that costs two writes, so only what must be recorded in time is resolved.
        let is_first = self.slots.room > 0 && !self.any_claimable()?;
        if !is_first {
            self.resolve(self.work.ahead, None)?;
            self.claim()?;
        }
        if is_first || (self.slots.room > 0 && !self.any_claimable()?) {
            let room = self.slots.room;
            let claimer = Claimer { owner: self.work.owner, handlers, until: self.work.until };
            self.resolve(if room >= QUICK { room } else { room.max(self.work.ahead) }, Some(&claimer))?;
            // A run that comes before another run of its key, which is not due yet, could not be started when it was opened.
            if self.slots.room > 0 && self.written.blocked {
                self.claim()?;
            }
        }
        // These rows have no due time, so the next turn runs immediately.
        let more_unplanned = more_unplanned || any_left || self.is_marked()?;
        let more_unplanned = more_unplanned || self.is_clock_marked()?;
        self.done.more_due |= more_unplanned || self.more;
        self.done.more_unplanned = more_unplanned;
        let is_full = self.budget == 0;
        if self.written.claims.is_empty() && !self.done.more_due {
            self.prune(true, self.budget)?;
        }
        look_ahead(tx, self.work.owner, handlers, &self.written.limits, &mut self.done)?;
        if is_full {
            // The turn had no item left for what is due: that does not wait for the next poll.
            let is_left = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
            let none_claimed = self.written.claims.is_empty();
            self.done.more_due |= is_left(self.done.next_expiry)
                || is_left(self.done.next_opening)
                || (none_claimed && is_left(self.done.next_claimable));
        }
        if !self.held_tasks.is_empty() {
            self.done.next_due = due::next_due_except(tx, &self.held_tasks)?;
            // With free slots, all that is left of what may start is held back.
            self.done.next_claimable = self.done.next_claimable.filter(|at| *at > now || self.slots.room == 0);
        }
        if !self.written.claims.is_empty() {
            fault_points::reach("claiming");
        }
        Ok(())
    }

    fn change(&mut self) -> Change<'_> {
        Change { tx: self.tx, now: self.work.now, schedules: self.schedules, written: &mut self.written }
    }

    /// Returns whether a waiting run may start here now.
    fn any_claimable(&self) -> rusqlite::Result<bool> {
        let (tx, now) = (self.tx, self.work.now);
        let open = self.written.limits.open(tx, self.work.handlers, now)?;
        claim::any(tx, &open, now)
    }

    /// Deletes a batch of expired history, if retention has its part now.
    fn prune(&mut self, idle: bool, limit: usize) -> Result<(), Fault> {
        let Some(part) = self.work.prune.filter(|part| part.if_idle == idle) else { return Ok(()) };
        self.item(Item::Prune, |turn| {
            let (limits, pass) = (Limits::new(&part.keep, turn.work.now), &mut turn.memory.pruned);
            let more = prune::batch(turn.tx, &limits, pass, limit, &mut Pruned::default());
            turn.memory.damaged = more.as_ref().is_err_and(Fault::is_damage);
            turn.done.pruned = Some(more?);
            turn.budget = turn.budget.saturating_sub(limit);
            Ok(())
        })
    }

    /// Writes what a draining scheduler still writes: its lease. Looks for running runs that are asked to stop.
    fn drain(&mut self) -> Result<(), Fault> {
        if self.work.full {
            let extended = owners::extend(self.tx, self.work.registration, self.work.until, self.work.now)?;
            self.done.extended = Some(extended);
        }
        self.done.stop = owners::asked_to_stop(self.tx, self.work.owner)?;
        Ok(())
    }

    /// Writes what newer tables may still accept: the lease. Looks for running runs that are asked to stop.
    fn outlive(&mut self) -> Result<(), Fault> {
        let work = self.work;
        self.item(Item::Sweep, |turn| {
            if work.full {
                owners::extend(turn.tx, work.registration, work.until, work.now)?;
            }
            turn.done.stop = owners::asked_to_stop(turn.tx, work.owner)?;
            Ok(())
        })
    }

    /// Recovers the runs of a dead owner, as far as the turn may write. A run that cannot be recovered is tried again in full
    /// turns. Until then its owner's lock file stays, because it says which attempts had begun.
    fn recover(&mut self, dead: &Dead) -> Result<(), Fault> {
        let (tx, now, owner) = (self.tx, self.work.now, &*dead.owner);
        let (mut all, mut rests) = (true, false);
        // All of them are read: those that wait or were set aside must not use up a limit.
        for lost in owners::lost(tx, owner)? {
            if self.budget == 0 {
                self.done.more_lost = true;
                all = false;
                break;
            }
            let doubt = self.work.doubts.get(&(lost.run, lost.attempt));
            // What still runs of an earlier history holds its task back, whatever becomes of the run.
            let is_restored = matches!(dead.proof, Proof::Restored);
            let presence = match is_restored {
                true => Presence::Gone,
                false => {
                    presence(&lost.orphan(self.work.database, Some(owner)), doubt.map(String::as_str), dead.dead_for)
                }
            };
            // The slots count only where nothing else shows that the attempt began.
            let never_began = presence == Presence::NoTrace && lost.process.is_none() && dead.never_began(&lost);
            if matches!(presence, Presence::Alive | Presence::Unknown(_)) {
                self.wait_for(owner, lost, presence)?;
                all = false;
                continue;
            }
            // The slots of another host cannot be read.
            let may_forgive = self.backing.is_some() && !is_restored && !dead.shows_its_slots();
            let fence = Fence { run: lost.run, owner, attempt: lost.attempt };
            let item = Item::Lost(lost.run);
            if !self.rests(item)
                && let Some(fault) = self.attempt_end(|turn| {
                    let mut cx = Change { tx, now, schedules: turn.schedules, written: &mut turn.written };
                    if never_began {
                        return settle::recover_unbegun(&mut cx, &fence);
                    }
                    if presence == Presence::LeftGroup {
                        owners::record(tx, now, "left_group", Some(lost.task_id), Some(lost.run), None)?;
                        let Lost { run, ref task, attempt, .. } = lost;
                        cx.written.events.push(Event::LeftGroup { run, task: task.clone(), attempt });
                    }
                    let why = if is_restored { settle::RESTORED } else { settle::DIED };
                    settle::recover(&mut cx, &fence, (why, may_forgive), &mut turn.memory.random)
                })?
            {
                self.set_aside(item, &fault)?;
            }
            rests |= self.memory.aside.contains(&item);
        }
        if rests {
            self.done.resting.insert(owner.to_owned());
        } else if all {
            owners::stopped(tx, owner, now)?;
            if !matches!(dead.proof, Proof::Restored) {
                owners::record(tx, now, "owner_lost", None, None, Some(owner))?;
            }
            self.done.recovered.push(owner.to_owned());
        }
        Ok(())
    }

    /// Leaves a lost run as it is: its command is not known to be gone.
    fn wait_for(&mut self, owner: &str, lost: Lost, presence: Presence) -> Result<(), Fault> {
        let doubt = if let Presence::Unknown(reason) = presence { Some(reason) } else { None };
        if let Some(reason) = doubt.as_deref().filter(|_| !self.work.doubted.contains(&(lost.run, lost.attempt))) {
            let (task, run) = (Some(lost.task_id), Some(lost.run));
            owners::record(self.tx, self.work.now, "orphan_unknown", task, run, Some(reason))?;
        }
        self.done.orphaned.push(Orphaned { owner: owner.to_owned(), lost, doubt });
        Ok(())
    }

    /// Plans a row that another program wrote. A row that cannot be used becomes invalid, and the turn continues.
    fn plan(&mut self, task: i64) -> Result<(), Fault> {
        if let Some((task, reason)) = tasks::settle_plan(self.tx, self.schedules, task, self.work.now)? {
            self.written.events.push(Event::Invalid { task, reason });
        }
        Ok(tasks::recall(self.tx, task)?)
    }

    /// Expires runs that never began.
    fn expire(&mut self) -> Result<(), Fault> {
        let (tx, now, most) = (self.tx, self.work.now, self.budget.div_ceil(2));
        let runs = settle::expiring(tx, now, most)?;
        // Behind runs that cannot be written, the others wait for the next poll.
        self.more |= runs.len() == most && runs.iter().any(|run| !self.rests(Item::Expiry(*run)));
        for run in runs {
            if self.budget == 0 {
                self.more = true;
                break;
            }
            self.end_item(Item::Expiry(run), |turn| {
                let seen = turn.work.seen;
                settle::expire(&mut turn.change(), run, seen)
            })?;
        }
        Ok(())
    }

    /// Resolves up to `limit` due tasks, most urgent first.
    fn resolve(&mut self, limit: usize, claimer: Option<&Claimer<'_>>) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let again = if self.work.full { self.memory.retried.len() } else { 0 };
        let limit = (limit + again).min(self.budget);
        let mut lists = due::due_lists(tx, now, limit + 1 + self.memory.aside.len() + self.held_tasks.len())?;
        let waits = |task: i64| self.rests(Item::Task(task)) || self.is_held(task);
        lists.iter_mut().for_each(|list| list.retain(|(_, task)| !waits(*task)));
        self.done.more_due = lists.iter().map(Vec::len).sum::<usize>() > limit;
        let mut order = std::mem::take(&mut self.memory.resolved);
        let mut chosen: Vec<i64> = claim::by_urgency(lists, &mut order).take(limit).collect();
        // What other rules had planned is planned again first: it may not be due.
        let marks = replan::zone_marks(tx)?;
        if !marks.is_empty() {
            let left = self.plan_again(&marks, &chosen)?;
            self.done.more_due |= left;
            chosen.retain(|task| !self.memory.aside.contains(&Item::Task(*task)));
        }
        for (task, due) in due::due(tx, self.schedules, &chosen, now)? {
            // What follows from all that is passed over is opened in this transaction.
            if self.written.passed.len() * MAX_FOLLOWERS >= self.budget {
                self.done.more_due = true;
                break;
            }
            self.task(task, |turn| {
                let mut due = due?;
                if !foreign_plans::check(tx, task, &mut due.plan, now)? {
                    return Ok(());
                }
                let mut cx = Change { tx, now, schedules: turn.schedules, written: &mut turn.written };
                let starter = claimer.map(|claimer| (claimer, &mut turn.slots));
                open::resolve_due(&mut cx, &due, turn.work.seen, Rest::Later, starter)?;
                // Together with the others, unless each item has its own savepoint.
                if turn.mode == Mode::OneByOne { once::finish(&mut cx, claimer) } else { Ok(()) }
            })?;
        }
        self.memory.resolved = order;
        self.done.more_due |= std::mem::take(&mut self.written.more);
        let mut cx = Change { tx, now, schedules: self.schedules, written: &mut self.written };
        once::finish(&mut cx, claimer)?;
        self.follow_passed()?;
        // A run that was resolved too late to begin would count as claimable.
        if self.written.expired > 0 {
            self.expire()?;
            self.follow_passed()?;
        }
        Ok(())
    }
}

/// Reads the next due times and the other owners.
fn look_ahead(
    tx: &Transaction<'_>,
    owner: &str,
    handlers: &BTreeSet<String>,
    limits: &InForce,
    done: &mut Done,
) -> rusqlite::Result<()> {
    let owners::Watched { stop, others, declared_gone } = owners::watched(tx, owner)?;
    (done.stop, done.others, done.declared_gone) = (stop, others, declared_gone);
    done.next_due = due::next_due(tx)?;
    done.next_claimable = claim::next(tx, limits, handlers)?;
    done.next_expiry = settle::next_expiry(tx)?;
    if limits.any_closed() {
        done.next_opening = starts::next_opening(tx)?;
    }
    Ok(())
}

/// Reads what a turn would see. `None`: nothing was committed since the snapshot with the data version `since`.
pub(crate) fn look(
    store: &mut SqliteStore,
    owner: &str,
    handlers: &BTreeSet<String>,
    since: Option<i64>,
    now: Timestamp,
) -> Result<Option<Done>> {
    if store.data_version().is_ok_and(|version| since == Some(version)) {
        return Ok(None);
    }
    if store.may_have_gone_back() {
        return Err(Error::store("look for changes", "the file may have been restored"));
    }
    store.read("look for changes", |tx, _| {
        let mut done = Done { data_version: connection::data_version(tx)?, ..Done::default() };
        look_ahead(tx, owner, handlers, &InForce::read(tx)?, &mut done)?;
        done.more_unplanned = done.next_opening.is_some_and(|at| at <= now)
            || !settle::expiring(tx, now, 1)?.is_empty()
            || !tasks::unplanned(tx, 1)?.is_empty()
            || marks::any(tx)?
            || clock_mark::read(tx)?.is_some()
            || !replan::zone_marks(tx)?.is_empty();
        done.more_due = done.more_unplanned;
        Ok(Some(done))
    })
}
