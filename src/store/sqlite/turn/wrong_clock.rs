//! Corrects what a wrong clock has written, in batches. Rows that cannot be written are set aside, and corrected in a later full turn.

use crate::clock::Timestamp;
use crate::store::fault::Fault;
use crate::store::sqlite::replan::{MOST_MISPLANNED, Misplanned};
use crate::store::sqlite::turn::{Mode, Turning};
use crate::store::sqlite::{clock_mark, owners, replan};
use crate::store::turn_io::Item;

impl Turning<'_> {
    /// Marks all that is planned: the clock had shown `believed`, far ahead.
    pub(super) fn rewind(&mut self, believed: Timestamp) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        if !replan::is_ahead(tx, now)? {
            return Ok(());
        }
        // All tasks are planned again: what an earlier turn could not write is among them.
        replan::set_misplanned(tx, &Misplanned::default())?;
        self.memory.clock.planned = Misplanned::default();
        self.written.limits.examine();
        clock_mark::begin(tx, now)?;
        // A server has not read them: it sets them back in the next turn, before anything starts.
        if self.backing.is_none() {
            clock_mark::close_ahead(tx, now)?;
        }
        Ok(replan::rewound(tx, believed, now)?)
    }

    /// Sets back the next starts of rate limits, at most `most`. Returns at how many it has looked. If one of them cannot be written, a full
    /// turn begins with the same again.
    fn rewind_starts(&mut self, most: usize) -> Result<usize, Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let Some(mark) = clock_mark::read_start(tx)?.filter(|_| most > 0 && !self.rests(Item::ClockStarts)) else {
            return Ok(0);
        };
        self.written.limits.examine();
        let batch = clock_mark::start_batch(tx, &mark, now, most)?;
        let rows: Vec<usize> = (0..batch.late.len()).collect();
        let at = mark.since.min(now);
        let set_back = |rows: &[usize]| rows.iter().try_for_each(|row| clock_mark::set_back(tx, &batch.late[*row], at));
        let failed = self.divide(&rows, |_, rows| Ok(set_back(rows)?))?;
        self.budget = self.budget.saturating_sub(batch.looked_at);
        match failed.first() {
            Some((_, fault)) => self.set_aside(Item::ClockStarts, fault)?,
            None => self.item(Item::ClockStarts, |_| Ok(clock_mark::reach_start(tx, batch.reached.as_ref())?))?,
        }
        Ok(batch.looked_at)
    }

    /// Sets back the next starts of rate limits, and then plans the next tasks and waiting runs again, that a wrong clock had written, with
    /// half of the items that are left.
    pub(super) fn rewind_marked(&mut self) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let most = self.budget.div_ceil(2).min(clock_mark::MOST);
        let most = most.saturating_sub(self.rewind_starts(most)?);
        let Some(mark) = clock_mark::read(tx)?.filter(|_| !self.rests(Item::ClockMark)) else { return Ok(()) };
        if most == 0 {
            return Ok(());
        }
        let batch = clock_mark::batch(tx, mark, now, most)?;
        let mut left = replan::misplanned(tx)?;
        let before = left.clone();
        for (task, fault) in
            self.divide(&batch.tasks, |_, tasks| Ok(replan::rewind_tasks(tx, tasks, mark.since, now)?))?
        {
            left.tasks.insert(task, mark.since.min(now));
            self.set_aside(Item::Task(task), &fault)?;
        }
        for (run, fault) in self.divide(&batch.runs, |_, runs| Ok(replan::rewind_runs(tx, runs, mark.since, now)?))? {
            left.runs.insert(run, mark.since.min(now));
            self.set_aside(Item::Wait(run), &fault)?;
        }
        self.budget = self.budget.saturating_sub(batch.looked_at);
        if left.tasks.len() + left.runs.len() > MOST_MISPLANNED {
            // A full turn tries these rows again before any other.
            self.memory.aside.insert(Item::ClockMark);
            return Ok(());
        }
        if left != before {
            replan::set_misplanned(tx, &left)?;
            self.memory.clock.planned = left;
        }
        self.item(Item::ClockMark, |_| Ok(clock_mark::reach(tx, batch.reached)?))
    }

    /// Returns whether the next turn has more to plan again that a wrong clock had planned.
    pub(super) fn is_clock_marked(&self) -> Result<bool, Fault> {
        let rests = |item| self.memory.aside.contains(&item);
        Ok((!rests(Item::ClockMark) && clock_mark::read(self.tx)?.is_some())
            || (!rests(Item::ClockStarts) && clock_mark::read_start(self.tx)?.is_some()))
    }

    /// Plans again what could not be written before, from the time at which the clock was found wrong: also what another scheduler could
    /// not write, which may have ended since.
    pub(super) fn rewind_again(&mut self) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let mut left = replan::misplanned(tx)?;
        let before = left.clone();
        // Rows that are stored elsewhere are there if they were known before the turn. The others have their turn the next time.
        let known = std::mem::take(&mut self.memory.clock.planned);
        let is_here = self.backing.is_none();
        for (task, at) in before.tasks.iter().filter(|(task, _)| is_here || known.tasks.contains_key(task)) {
            match self.attempt(|_| Ok(replan::rewind_tasks(tx, &[*task], *at, now)?))? {
                None => _ = left.tasks.remove(task),
                Some(fault) => self.set_aside(Item::Task(*task), &fault)?,
            }
        }
        for (run, at) in before.runs.iter().filter(|(run, _)| is_here || known.runs.contains_key(run)) {
            match self.attempt(|_| Ok(replan::rewind_runs(tx, &[*run], *at, now)?))? {
                None => _ = left.runs.remove(run),
                Some(fault) => self.set_aside(Item::Wait(*run), &fault)?,
            }
        }
        if left != before {
            replan::set_misplanned(tx, &left)?;
        }
        self.memory.clock.planned = left;
        Ok(())
    }

    /// Moves the starts of own runs by the step of the clock, and those that could not be moved before.
    pub(super) fn move_starts(&mut self) -> Result<(), Fault> {
        let (tx, owner, by) = (self.tx, self.work.owner, self.work.stepped);
        if by != 0 && self.mode == Mode::Together {
            owners::move_starts(tx, owner, by)?;
        } else if by != 0 {
            for run in owners::claimed_by(tx, owner)? {
                *self.memory.clock.starts.entry(run).or_default() += by;
            }
        }
        if !self.work.full && by == 0 {
            return Ok(());
        }
        for (run, by) in self.memory.clock.starts.clone() {
            match self.attempt(|_| Ok(owners::move_start(tx, owner, run, by)?))? {
                None => _ = self.memory.clock.starts.remove(&run),
                Some(fault) => self.set_aside(Item::Start(run), &fault)?,
            }
        }
        Ok(())
    }

    /// Writes rows together; if that fails, halves of them, down to the rows that cannot be written. Returns those.
    pub(super) fn divide<R: Copy>(
        &mut self,
        rows: &[R],
        mut write: impl FnMut(&mut Self, &[R]) -> Result<(), Fault>,
    ) -> Result<Vec<(R, Fault)>, Fault> {
        let (mut parts, mut failed) = (vec![rows], Vec::new());
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let Some(fault) = self.attempt(|turn| write(turn, part))? else { continue };
            if let [row] = part {
                failed.push((*row, fault));
                continue;
            }
            let (first, second) = part.split_at(part.len() / 2);
            parts.extend([second, first]);
        }
        Ok(failed)
    }
}
