//! What becomes of a task that is to be added: a name is an idempotency key.

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::resolve::Next;
use crate::schedule::Schedules;
use crate::store::{Fault, owners, tasks};
use crate::task::{Definition, TaskStatus};

/// What became of a request to add a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// It is new.
    Created,
    /// A task of this name was there, and stays as it was.
    Unchanged,
    /// A task of this name was there, and is now what was given.
    Replaced,
}

/// A task that was added, or was there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Added {
    /// Its name.
    pub name: String,
    /// Whether it is new.
    pub change: Change,
    /// Its next occurrence, if one is known.
    pub next_run: Option<Timestamp>,
}

/// What to do if a task of the name exists and differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Refuse,
    Keep,
    Replace,
}

/// Adds a task, or has the one of its name meet it.
pub(crate) fn put(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    task: Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<Added, Fault> {
    let schedule = task.check(now, schedules)?;
    if let Some((_, next)) = tasks::add(tx, &task, &schedule, now)? {
        if next == Next::Never {
            return Err(Error::never(task.schedule_value.clone()).into());
        }
        let (_, next_run) = tasks::stored(next, TaskStatus::Active);
        return Ok(Added { name: task.name, change: Change::Created, next_run });
    }
    let old = tasks::expect(tx, &task.name)?;
    let schedule = task.check(old.created_at, schedules)?;
    let same = old.definition.check(old.created_at, schedules).is_ok_and(|stored| stored == schedule);
    let change = match (old.definition.differences(&task, same).into_iter().next(), existing) {
        (None, _) | (Some(_), Existing::Keep) => Change::Unchanged,
        (Some((field, stored, given)), Existing::Refuse) => {
            return Err(Error::TaskDiffers { name: task.name, field, stored, given }.into());
        }
        (Some((field, stored, given)), Existing::Replace) => {
            tasks::change(tx, schedules, &old, &task, &schedule, now)?;
            let detail = format!("{field}: {stored:?} became {given:?}");
            owners::record(tx, now, "edited", Some(old.id), None, Some(&detail))?;
            Change::Replaced
        }
    };
    let next_run = tasks::expect(tx, &task.name)?.next_run;
    Ok(Added { name: task.name, change, next_run })
}
