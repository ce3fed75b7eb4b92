//! Works off marks: derives waiting runs again, whose task was changed.

use crate::store::fault::Fault;
use crate::store::sqlite::marks;
use crate::store::sqlite::turn::Turning;
use crate::store::turn_io::Item;

impl Turning<'_> {
    /// Derives runs of tasks that were marked before this turn, with half of the items that are left: the turn also starts runs.
    ///
    /// A run that cannot be written is set aside. The mark then stays: a full turn begins again with the first run.
    pub(super) fn work_off(&mut self, marked: &[(i64, i64)]) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let mut most = self.budget / 2;
        for &(task, mark) in marked {
            if most == 0 {
                break;
            }
            // A task that this turn has marked again, or removed, has its runs derived by the next one.
            if self.rests(Item::Mark(task)) || !marks::marked(tx)?.contains(&(task, mark)) {
                continue;
            }
            let batch = marks::batch(tx, task, mark, most)?;
            let failed = self.divide(&batch.runs, |runs| Ok(marks::derive(tx, runs, now)?))?;
            (most, self.budget) = (most - batch.runs.len(), self.budget.saturating_sub(batch.runs.len()));
            self.written.blocked = true;
            for (run, fault) in failed {
                self.memory.refused.insert(task);
                self.set_aside(Item::Wait(run), &fault)?;
            }
            let begins_again = batch.reached.is_none() && self.memory.refused.remove(&task);
            let reached = if begins_again { Some(0) } else { batch.reached };
            self.item(Item::Mark(task), |_| Ok(marks::reach(tx, task, reached)?))?;
            if begins_again {
                self.memory.aside.insert(Item::Mark(task));
            }
        }
        Ok(())
    }

    /// Returns whether the next turn has runs of marked tasks to derive.
    pub(super) fn is_marked(&self) -> Result<bool, Fault> {
        Ok(marks::marked(self.tx)?.into_iter().any(|(task, _)| !self.memory.aside.contains(&Item::Mark(task))))
    }
}
