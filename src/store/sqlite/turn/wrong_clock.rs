//! Corrects what a wrong clock has written. Rows that cannot be written are set aside, and corrected in a later full turn.

use crate::clock::Timestamp;
use crate::store::fault::Fault;
use crate::store::sqlite::replan::Misplanned;
use crate::store::sqlite::turn::{Mode, Turning};
use crate::store::sqlite::{owners, replan};
use crate::store::turn_io::Item;

impl Turning<'_> {
    /// Plans again from now on: the clock had shown `believed`, far ahead.
    pub(super) fn rewind(&mut self, believed: Timestamp) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        if !replan::is_ahead(tx, now)? {
            return Ok(());
        }
        // All tasks are planned again: what an earlier turn could not write is among them.
        let mut left = Misplanned::default();
        if self.mode == Mode::Together {
            replan::rewind_all(tx, now)?;
        } else {
            let tasks = replan::all_tasks(tx)?;
            for (task, fault) in self.divide(&tasks, |_, tasks| Ok(replan::rewind_tasks(tx, tasks, now)?))? {
                left.tasks.insert(task, now);
                self.set_aside(Item::Task(task), &fault)?;
            }
            let runs = replan::later_runs(tx, now)?;
            for (run, fault) in self.divide(&runs, |_, runs| Ok(replan::rewind_runs(tx, runs, now)?))? {
                left.runs.insert(run, now);
                self.set_aside(Item::Wait(run), &fault)?;
            }
        }
        replan::set_misplanned(tx, &left)?;
        self.memory.clock.planned = left;
        Ok(replan::rewound(tx, believed, now)?)
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
            match self.attempt(|_| Ok(replan::rewind_tasks(tx, &[*task], now.min(*at))?))? {
                None => _ = left.tasks.remove(task),
                Some(fault) => self.set_aside(Item::Task(*task), &fault)?,
            }
        }
        for (run, at) in before.runs.iter().filter(|(run, _)| is_here || known.runs.contains_key(run)) {
            match self.attempt(|_| Ok(replan::rewind_runs(tx, &[*run], now.min(*at))?))? {
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
