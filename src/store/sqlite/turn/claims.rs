//! Claims what waits and may start, and passes over what attempts of an earlier history hold back.

use crate::error::Error;
use crate::host::halting::{self, Laggard};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::known::Beginning;
use crate::store::sqlite::open::Change;
use crate::store::sqlite::runs::{self, Claimer};
use crate::store::sqlite::turn::{SPARE, SWEEP, Turning};
use crate::store::sqlite::{claim, restore};
use crate::store::turn_io::{Item, Slots, Work};

impl Turning<'_> {
    /// Holds back the tasks of which attempts of an earlier history may still run. After a change of the schema, nothing starts until each
    /// living owner has compared its claims with the rows: after a restore, only the owner of a claim that has not begun may be able to
    /// tell. An owner that has not compared them within a lease of this one is halted: it begins none of them before it has.
    pub(super) fn hold_back(&mut self, beginning: Beginning) -> Result<(), Fault> {
        let Beginning { cookie, has_changed, mut held_back, newest_run } = beginning;
        let Work { monotonic, owner, database, registration, .. } = *self.work;
        self.memory.comparing |= has_changed;
        // The observer that has halted this owner had waited for a lease. Within it, the observer's heartbeats have renewed the record beside
        // the file, so a file that went back since contradicts the record, which was compared at the begin of this transaction. If nothing
        // contradicts it, the rows are those on which the observer went on: it has started nothing that they show as running here. (An owner
        // that a new history has halted registers under another id before it comes here.) If this transaction is rolled back, the lock file
        // still says that this owner has compared nothing: others wait for it, and halt it again.
        if let Some(lock) = self.work.halted {
            restore::check_claims(self.tx, database, owner, self.work.claimed)?;
            lock.resume().map_err(|error| Error::store("resume in the owner's lock file", error))?;
        }
        self.done.cookie = Some(cookie);
        if self.memory.comparing {
            let since = *self.memory.comparing_since.get_or_insert(monotonic);
            let may_halt = monotonic >= since.saturating_add(registration.lease);
            let behind = halting::behind(database, owner, cookie).map_err(|error| self.done.not_compared = Some(error));
            let mut waits = behind.is_err();
            for Laggard { owner, is_halted } in behind.into_iter().flatten() {
                // The transaction of the one that halted it may have been rolled back, and what it had begun is stored nowhere.
                if is_halted && held_back.as_ref().is_some_and(|held_back| held_back.names(&owner)) {
                    continue;
                }
                if is_halted || may_halt {
                    held_back.get_or_insert_default().doubt(self.tx, database, owner, newest_run)?;
                } else {
                    waits = true;
                }
            }
            if waits {
                self.done.holds = true;
                self.slots = Slots::default();
            } else {
                (self.memory.comparing, self.memory.comparing_since) = (false, None);
            }
        }
        if held_back.is_none() && self.work.strays.is_empty() {
            return Ok(());
        }
        let holds = held_back.unwrap_or_default().update(self.tx, self.work)?;
        self.done.holds |= !holds.is_empty();
        if holds.everything {
            self.slots = Slots::default();
        }
        // What is held back no longer may be among the runs that were passed over.
        if self.work.full || holds != self.memory.holds {
            self.memory.passed.clear();
        }
        self.memory.holds = holds.clone();
        self.held_tasks = holds.tasks;
        self.written.limits.hold(holds.keys);
        Ok(())
    }

    /// Claims as many waiting runs as there are slots, most urgent first. Runs that were set aside may have kept others out of
    /// the lists, and claims behind a key with free slots unblock others, so it looks again. Of runs that attempts of an earlier history
    /// hold back, a turn passes over a limited number: the next one goes on behind them.
    pub(super) fn claim(&mut self) -> Result<(), Fault> {
        loop {
            // A server has not told of all runs that may start in the place of those that were renewed, or wait for a start.
            let replaced = self.written.renewed + self.written.postponed;
            self.more |= replaced > 0;
            if self.backing.is_some() && replaced >= SPARE {
                return Ok(());
            }
            let before = (self.changes(), self.written.claims.len());
            self.claim_first()?;
            let claimed = if self.written.limits.has_keys() { self.written.claims.len() } else { before.1 };
            if self.slots.room == 0 || self.budget == 0 {
                return Ok(());
            }
            if self.passed_over >= SWEEP {
                self.more = true;
                return Ok(());
            }
            if (self.changes(), claimed) == before {
                self.memory.passed.clear();
                return Ok(());
            }
        }
    }

    /// Counts what changes which runs the lists of the next ones hold.
    fn changes(&self) -> usize {
        let limited = self.written.postponed + self.written.released;
        self.memory.aside.len() + self.passed_over + self.written.renewed + limited
    }

    /// Returns whether an attempt of an earlier history holds a task back.
    pub(super) fn is_held(&self, task: i64) -> bool {
        self.held_tasks.contains(&task)
    }

    /// Returns whether an attempt of an earlier history holds back the task or the key of a run. The lists of the next runs then begin
    /// behind this one.
    fn is_held_back(&mut self, run: i64) -> Result<bool, Fault> {
        let Some(waiting) = runs::waiting(self.tx, run)? else { return Ok(false) };
        let is_key_held = waiting.key.as_deref().is_some_and(|key| self.written.limits.is_held(key));
        if !self.is_held(waiting.task) && !is_key_held {
            return Ok(false);
        }
        self.passed_over += 1;
        self.memory.passed.insert((waiting.priority, waiting.handler), (waiting.run_at, run));
        Ok(true)
    }

    fn claim_first(&mut self) -> Result<(), Fault> {
        let (tx, now, work) = (self.tx, self.work.now, self.work);
        let claimer = Claimer { owner: work.owner, handlers: work.handlers, until: work.until };
        let open = self.written.limits.open(tx, work.handlers, now)?;
        if self.held_tasks.is_empty() {
            self.memory.passed.clear();
        }
        self.written.listed = self.written.renewed;
        // Some of the list may wait for a start of their task. Behind more of them, the list is read again.
        let spare = if self.written.limits.has_tasks() { SPARE } else { 0 };
        let most_postponed = self.written.postponed + SPARE;
        let limit = self.slots.room + self.memory.aside.len() + self.written.expired + spare;
        let lists = claim::claimable(tx, &open, &self.memory.passed, now, limit)?;
        let mut order = std::mem::take(&mut self.memory.claimed);
        let mut runs = claim::by_urgency(lists, &mut order);
        while self.slots.room > 0
            && self.written.postponed < most_postponed
            && let Some((run, handler)) = runs.next()
        {
            if !self.held_tasks.is_empty() && self.is_held_back(run)? {
                continue;
            }
            let claimed = self.written.claims.len();
            self.item(Item::Claim(run), |turn| {
                let mut cx = Change { tx, now, schedules: turn.schedules, written: &mut turn.written };
                claim::claim(&mut cx, &claimer, &mut turn.slots, run)
            })?;
            let started = self.written.claims.len() > claimed;
            if !started {
                // It waits for an idle worker, or the list is out of date since a run was renewed. The next one is chosen as this one was.
                runs.discount();
            }
            // Runs that wait for the rate of their handler are not counted: otherwise the eighth would always be one of them.
            if started && !self.written.limits.is_open(tx, handler, now)? {
                runs.retain(|(_, of)| *of != handler);
            }
        }
        drop(runs);
        self.memory.claimed = order;
        Ok(())
    }
}
