//! Opens the keys and tasks that had no start left, and have one again.

use crate::store::fault::Fault;
use crate::store::sqlite::blocked;
use crate::store::sqlite::sql::number;
use crate::store::sqlite::starts::{self, Of, Subject};
use crate::store::sqlite::turn::Turning;
use crate::store::turn_io::Item;

/// Most keys and tasks that one turn opens.
const OPENINGS: usize = number("openings") as usize;

impl Turning<'_> {
    /// Opens the keys and tasks whose time has come, with at most half of the items that are left, and releases the first of their waiting runs.
    pub(super) fn open_starts(&mut self) -> Result<(), Fault> {
        let most = OPENINGS.min(self.budget.div_ceil(2));
        if !self.written.limits.any_closed() || most == 0 {
            return Ok(());
        }
        let due = starts::due(self.tx, self.work.now, most)?;
        if due.is_empty() {
            return Ok(());
        }
        self.more |= due.len() == most;
        self.budget = self.budget.saturating_sub(due.len());
        self.item(Item::Openings, |turn| {
            // The item itself.
            turn.budget += 1;
            due.iter().try_for_each(|subject| turn.open_subject(subject))
        })
    }

    fn open_subject(&mut self, subject: &Subject) -> Result<(), Fault> {
        let (tx, now) = (self.tx, self.work.now);
        match subject.of() {
            Some(Of::Key(key)) => {
                let rate = starts::rate_of_key(tx, key)?;
                if starts::open(tx, subject, rate.as_ref(), now)? {
                    blocked::derive_key(tx, key, now)?;
                }
            }
            Some(Of::Task(task)) => {
                let rate = starts::rate_of_task(tx, task)?;
                if starts::open(tx, subject, rate.as_ref(), now)? {
                    blocked::release_next(tx, task, now)?;
                }
            }
            // A row that another program wrote.
            None => _ = starts::open(tx, subject, None, now)?,
        }
        Ok(())
    }
}
