//! Writes the items of a turn one by one: what cannot be written is set aside, or its task becomes invalid, and the others are written.

use crate::error::Result;
use crate::model::event::Event;
use crate::store::fault::Fault;
use crate::store::sqlite::connection::Whose;
use crate::store::sqlite::turn::{Mode, Turning};
use crate::store::sqlite::{followers, owners, tasks};
use crate::store::turn_io::Item;

impl Turning<'_> {
    /// Writes one item. Returns the fault if it could not be written: its changes are rolled back then.
    pub(super) fn attempt(
        &mut self,
        item: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Result<Option<Fault>, Fault> {
        self.budget = self.budget.saturating_sub(1);
        if self.mode == Mode::Together {
            item(self)?;
            self.spend_on_followers();
            return Ok(None);
        }
        let written = &self.written;
        let (claims, events, completed) = (written.claims.len(), written.events.len(), written.once.completed.len());
        let (passed, slots) = (written.passed.len(), self.slots);
        self.write_elsewhere(Whose::OfAll)?;
        self.tx.prepare_cached("SAVEPOINT item")?.execute([])?;
        let failed = match item(self).and_then(|()| self.write_elsewhere(Whose::OfItem)) {
            Ok(()) => None,
            Err(fault) if self.is_left_out(&fault) => {
                self.tx.prepare_cached("ROLLBACK TO item")?.execute([])?;
                self.backing.as_mut().map_or(Ok(()), |backing| backing.undone(self.tx))?;
                self.written.claims.truncate(claims);
                self.written.events.truncate(events);
                self.written.passed.truncate(passed);
                self.written.once.starting.clear();
                self.written.once.completed.truncate(completed);
                self.slots = slots;
                Some(fault)
            }
            Err(fault) => return Err(fault),
        };
        self.tx.prepare_cached("RELEASE item")?.execute([])?;
        self.spend_on_followers();
        Ok(failed)
    }

    /// The runs that were opened because they follow others are items, too.
    pub(super) fn spend_on_followers(&mut self) {
        let items = std::mem::take(&mut self.written.followers);
        self.follower_items += items;
        self.budget = self.budget.saturating_sub(items);
    }

    /// Returns whether a fault is one of the item alone. That an item takes too long is shown if it is the only one of the turn, or was set
    /// aside before.
    fn is_left_out(&self, fault: &Fault) -> bool {
        fault.is_about_the_item()
            || (self.work.newer && fault.is_about_the_tables())
            || (fault.is_too_long() && (self.work.most == 1 || !self.memory.retried.is_empty()))
    }

    /// As [`Turning::attempt`], for the end of a run. A server refuses all that an item writes at once: the reason may be the run of a
    /// task that follows, so the end is tried again without it.
    pub(super) fn attempt_end(
        &mut self,
        mut end: impl FnMut(&mut Self) -> Result<(), Fault>,
    ) -> Result<Option<Fault>, Fault> {
        self.written.tried_follower = false;
        let Some(fault) = self.attempt(&mut end)? else { return Ok(None) };
        if self.backing.is_none() || !self.written.tried_follower || self.is_transient(&fault) {
            return Ok(Some(fault));
        }
        self.written.follower_refused = Some(fault.to_string());
        let again = self.attempt(end);
        self.written.follower_refused = None;
        Ok(again?.map(|again| if self.is_transient(&again) { again } else { fault }))
    }

    /// Opens what follows from what was passed over, after all that is due is resolved: a task that follows may be due itself, and was read
    /// before that. Each may add to the queue.
    pub(super) fn follow_passed(&mut self) -> Result<(), Fault> {
        while let Some(passed) = self.written.passed.pop_front() {
            if let Some(fault) = self.attempt_end(|turn| followers::follow_one(&mut turn.change(), &passed))? {
                return Err(fault);
            }
        }
        Ok(())
    }

    /// Writes changed rows to where they are stored, if that is a server, so that a fault is attributed to the item that caused it.
    fn write_elsewhere(&mut self, whose: Whose) -> Result<(), Fault> {
        let tx = self.tx;
        self.backing.as_mut().map_or(Ok(()), |backing| backing.write(tx, whose))
    }

    /// As [`Turning::item`], for an item in which runs end.
    pub(super) fn end_item(
        &mut self,
        item: Item,
        end: impl FnMut(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if self.rests(item) {
            return Ok(());
        }
        self.attempt_end(end)?.map_or(Ok(()), |fault| self.set_aside(item, &fault))
    }

    /// Writes one item, or sets it aside.
    pub(super) fn item(&mut self, item: Item, write: impl FnOnce(&mut Self) -> Result<(), Fault>) -> Result<(), Fault> {
        if self.rests(item) {
            return Ok(());
        }
        self.attempt(write)?.map_or(Ok(()), |fault| self.set_aside(item, &fault))
    }

    pub(super) fn rests(&self, item: Item) -> bool {
        !self.work.full && self.memory.aside.contains(&item)
    }

    pub(super) fn set_aside(&mut self, item: Item, fault: &Fault) -> Result<(), Fault> {
        if self.memory.aside.insert(item) && !self.memory.retried.contains(&item) {
            let item = match item {
                Item::Task(task) => format!("task {:?}", tasks::name(self.tx, task)?),
                item => item.to_string(),
            };
            let reason = fault.to_string();
            if !self.work.newer {
                owners::record(self.tx, self.work.now, "set_aside", None, None, Some(&format!("{item}: {reason}")))?;
            }
            self.written.events.push(Event::SetAside { item, reason });
        }
        Ok(())
    }

    /// Returns whether the fault is not the item's: another program has locked a row, or has inserted a row with the id of a new one.
    /// Then the item as a whole is set aside, and nothing else is recorded of it.
    pub(super) fn is_transient(&self, fault: &Fault) -> bool {
        fault.is_about_a_lock() || (self.backing.is_some() && fault.is_about_the_id())
    }

    /// Writes an item of one task. A task whose item fails becomes invalid until it is changed. If this machine's zone data
    /// does not know the zone, the row stays as it is for schedulers that know it; this one tries again in its next full turn.
    pub(super) fn task(&mut self, task: i64, write: impl FnOnce(&mut Self) -> Result<(), Fault>) -> Result<(), Fault> {
        if self.rests(Item::Task(task)) {
            return Ok(());
        }
        let Some(fault) = self.attempt(write)? else { return Ok(()) };
        if fault.is_about_this_machine() {
            return self.leave(task, &fault);
        }
        if self.is_transient(&fault) {
            return self.set_aside(Item::Task(task), &fault);
        }
        let (tx, now, reason) = (self.tx, self.work.now, fault.to_string());
        self.item(Item::Task(task), |turn| {
            tasks::invalidate(tx, task, &reason, now)?;
            owners::record(tx, now, "invalid", Some(task), None, Some(&reason))?;
            turn.written.events.push(Event::Invalid { task: tasks::name(tx, task)?, reason });
            Ok(())
        })
    }

    /// Leaves a task to schedulers that know its time zone.
    fn leave(&mut self, task: i64, fault: &Fault) -> Result<(), Fault> {
        self.memory.zoneless.insert(task, tasks::zone(self.tx, task)?);
        self.set_aside(Item::Task(task), fault)
    }
}
