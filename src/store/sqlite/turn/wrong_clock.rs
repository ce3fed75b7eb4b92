//! Corrects what a wrong clock has written. Rows that cannot be written are set aside, and corrected in a later full turn.

use crate::clock::Timestamp;
use crate::store::fault::Fault;
use crate::store::sqlite::rewind::{Batch, Misplanned};
use crate::store::sqlite::turn::{Mode, Turning};
use crate::store::sqlite::{owners, rewind};
use crate::store::turn_io::Item;

impl Turning<'_> {
    /// Begins to plan all again from now on: the clock had shown `believed`, far ahead.
    pub(super) fn rewind(&mut self, believed: Timestamp) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        if rewind::is_ahead(tx, now)? {
            rewind::begin(tx, believed, now)?;
            self.memory.clock.planned = Misplanned::default();
        }
        Ok(())
    }

    /// Corrects the next rows that a wrong clock had planned, with half of the items of the turn. Rows that cannot be written are kept for a
    /// full turn.
    pub(super) fn correct(&mut self) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let Some(mut mark) = rewind::mark(tx)? else { return Ok(()) };
        let mut most = self.budget.div_ceil(2);
        while most > 0
            && let Some((batch, found)) = mark.next(tx, most)?
        {
            most -= found;
            self.budget = self.budget.saturating_sub(found);
            match batch {
                Batch::Starts(first, last) => rewind::correct_starts(tx, (&first, &last), (mark.since, now))?,
                Batch::Tasks(tasks) => self.correct_tasks(&tasks, mark.since)?,
                Batch::Runs(runs) => self.correct_runs(&runs, mark.since)?,
            }
        }
        Ok(rewind::set_mark(tx, &mark)?)
    }

    /// Corrects those of the tasks that are due, and that a mark has not reached: they may not be due. Returns whether there are any.
    pub(super) fn correct_due(&mut self, due: &mut Vec<i64>) -> Result<bool, Fault> {
        let Some(mark) = rewind::mark(self.tx)? else { return Ok(false) };
        let (early, others): (Vec<i64>, Vec<i64>) = due.iter().partition(|task| mark.covers(**task));
        *due = others;
        self.correct_tasks(&early, mark.since)?;
        Ok(!early.is_empty())
    }

    fn correct_tasks(&mut self, tasks: &[i64], since: Timestamp) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let failed = self.divide(tasks, |_, tasks| Ok(rewind::correct_tasks(tx, tasks, (since, now))?))?;
        let mut left = rewind::misplanned(tx)?;
        for (task, fault) in &failed {
            left.keep_task(*task, since);
            self.set_aside(Item::Task(*task), fault)?;
        }
        self.keep(left, !failed.is_empty())
    }

    fn correct_runs(&mut self, runs: &[i64], since: Timestamp) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let failed = self.divide(runs, |_, runs| Ok(rewind::correct_runs(tx, runs, (since, now))?))?;
        let mut left = rewind::misplanned(tx)?;
        for (run, fault) in &failed {
            left.keep_run(*run, since);
            self.set_aside(Item::Wait(*run), fault)?;
        }
        self.keep(left, !failed.is_empty())
    }

    fn keep(&mut self, left: Misplanned, has_changed: bool) -> Result<(), Fault> {
        if has_changed {
            rewind::set_misplanned(self.tx, &left)?;
            self.memory.clock.planned = left;
        }
        Ok(())
    }

    /// Corrects what could not be written before, from the time at which the clock was found wrong: also what another scheduler could
    /// not write, which may have ended since.
    pub(super) fn correct_again(&mut self) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let mut left = rewind::misplanned(tx)?;
        let before = left.clone();
        // Rows that are stored elsewhere are there if they were known before the turn. The others have their turn the next time.
        let known = std::mem::take(&mut self.memory.clock.planned);
        let is_here = self.backing.is_none();
        for (task, at) in before.tasks.iter().filter(|(task, _)| is_here || known.tasks.contains_key(task)) {
            match self.attempt(|_| Ok(rewind::correct_tasks(tx, &[*task], (now.min(*at), now))?))? {
                None => _ = left.tasks.remove(task),
                Some(fault) => self.set_aside(Item::Task(*task), &fault)?,
            }
        }
        for (run, at) in before.runs.iter().filter(|(run, _)| is_here || known.runs.contains_key(run)) {
            match self.attempt(|_| Ok(rewind::correct_runs(tx, &[*run], (now.min(*at), now))?))? {
                None => _ = left.runs.remove(run),
                Some(fault) => self.set_aside(Item::Wait(*run), &fault)?,
            }
        }
        if left != before {
            rewind::set_misplanned(tx, &left)?;
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
    pub(super) fn divide(
        &mut self,
        rows: &[i64],
        mut write: impl FnMut(&mut Self, &[i64]) -> Result<(), Fault>,
    ) -> Result<Vec<(i64, Fault)>, Fault> {
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
