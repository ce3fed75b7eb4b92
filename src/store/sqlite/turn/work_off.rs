//! Works off marks: derives waiting runs again, whose task was changed, and plans tasks again, if the rules of a time zone were changed.

use crate::store::fault::Fault;
use crate::store::sqlite::replan::ZoneMarks;
use crate::store::sqlite::turn::Turning;
use crate::store::sqlite::{marks, replan};
use crate::store::turn_io::Item;

impl Turning<'_> {
    /// Derives runs of tasks that were marked before this turn, with half of the items that are left: the turn also starts runs.
    ///
    /// A run that cannot be written is set aside. The mark then stays: a full turn begins again with the first run.
    pub(super) fn work_off(&mut self, marked: &[(i64, i64)]) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        let mut most = self.budget.div_ceil(2).min(self.work.derived);
        for &(task, mark) in marked {
            if most == 0 {
                break;
            }
            // A task that this turn has marked again, or removed, has its runs derived by the next one.
            if self.rests(Item::Mark(task)) || !marks::marked(tx)?.contains(&(task, mark)) {
                continue;
            }
            let batch = marks::batch(tx, task, mark, most)?;
            let failed = self.divide(&batch.runs, |_, runs| Ok(marks::derive(tx, runs, now)?))?;
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

    /// Plans the next tasks again that other rules had planned. Returns whether the next turn must examine one of them.
    ///
    /// A full turn compares the rules; on a server afterwards, since it has not read the tasks of a zone that it marks.
    pub(super) fn replan_local(&mut self) -> Result<bool, Fault> {
        let (tx, now, is_file) = (self.tx, self.work.now, self.backing.is_none());
        let compare = |turn: &mut Self| -> Result<(), Fault> {
            let (owner, others) = (turn.work.owner, &turn.done.not_stopped);
            turn.written.events.extend(replan::compare_rules(tx, owner, others, now)?);
            Ok(())
        };
        if self.work.full && is_file {
            compare(self)?;
        }
        let (marks, tasks) = replan::pass_marks(tx, self.work.derived, self.budget.div_ceil(2))?;
        self.budget = self.budget.saturating_sub(tasks.len());
        let any_left = self.plan_again(&marks, &tasks)?;
        if self.work.full && !is_file {
            compare(self)?;
        }
        Ok(any_left)
    }

    /// Plans those of these tasks again that other rules had planned. A task that cannot be written is set aside. Returns whether the
    /// next turn must examine one of them.
    pub(super) fn plan_again(&mut self, marks: &ZoneMarks, tasks: &[i64]) -> Result<bool, Fault> {
        let (tx, mut any_left) = (self.tx, false);
        let failed = self.divide(tasks, |turn, tasks| {
            any_left |= replan::plan_again(tx, turn.schedules, marks, tasks)?;
            Ok(())
        })?;
        for (task, fault) in failed {
            self.set_aside(Item::Task(task), &fault)?;
        }
        Ok(any_left)
    }

    /// Returns whether the next turn has runs of marked tasks to derive, or tasks to plan again.
    pub(super) fn is_marked(&self) -> Result<bool, Fault> {
        if !replan::zone_marks(self.tx)?.is_empty() {
            return Ok(true);
        }
        Ok(marks::marked(self.tx)?.into_iter().any(|(task, _)| !self.memory.aside.contains(&Item::Mark(task))))
    }
}
