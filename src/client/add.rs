//! What becomes of a task that is to be added: a name is an idempotency key.

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::new_task::NewTask;
use crate::model::task::{Definition, Task, TaskStatus};
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::add::{Adder, add_alone};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::{owners, tasks};

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
    /// As `Refuse`, of a task that counts from when it is added: another instant is no difference.
    RefuseOtherWork,
    Keep,
    Replace,
}

impl Existing {
    /// As `Refuse`, as far as it suits the task.
    pub(crate) fn refuse(task: &NewTask) -> Self {
        if task.counts_from_adding() { Existing::RefuseOtherWork } else { Existing::Refuse }
    }
}

/// Adds a task in a transaction of its own, or has the one of its name meet it.
pub(crate) fn add(store: &mut SqliteStore, task: Definition, existing: Existing, now: Timestamp) -> Result<Added> {
    let doing = "add a task";
    // Whoever adds what is there already, at each start, is better served by a look first.
    if store.adds_new() && existing != Existing::Replace {
        let checked = store.check_writable();
        let added = checked.and_then(|()| alone(store, &task, now)).map_err(|fault| store.told(fault, doing))?;
        if let Some(added) = added {
            return Ok(added);
        }
    }
    store.added(false);
    let added = store.write(doing, |tx, schedules| put(tx, &mut Adder::new(tx)?, schedules, task, existing, now))?;
    store.added(added.change == Change::Created);
    Ok(added)
}

/// Adds a task by one statement, if nothing is in its way. What is in its way, a transaction can tell.
fn alone(store: &mut SqliteStore, task: &Definition, now: Timestamp) -> Result<Option<Added>, Fault> {
    let added = store.write_alone(|connection, schedules, ids, version| {
        let schedule = task.check(now, schedules)?;
        add_alone(connection, ids, version, task, schedule, now)
    });
    match added {
        Ok(next_run) => Ok(Some(Added { name: task.name.clone(), change: Change::Created, next_run })),
        Err(fault) if fault.is_about_the_item() || fault.is_about_the_tables() || fault.is_about_room() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Adds a task, or has the one of its name meet it.
pub(crate) fn put(
    tx: &Transaction<'_>,
    adder: &mut Adder<'_>,
    schedules: &mut Schedules,
    task: Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<Added, Fault> {
    if !adder.is_taken(&task.name)? {
        return create(adder, schedules, task, now);
    }
    let old = tasks::expect(tx, &task.name)?;
    meet(tx, schedules, &old, task, existing, now).map(|(added, _)| added)
}

/// Adds a task whose name is free.
pub(crate) fn create(
    adder: &mut Adder<'_>,
    schedules: &mut Schedules,
    task: Definition,
    now: Timestamp,
) -> Result<Added, Fault> {
    let schedule = task.check(now, schedules)?;
    let next_run = adder.add(&task, schedule, now)?;
    Ok(Added { name: task.name, change: Change::Created, next_run })
}

/// Each field in which two definitions differ, by its column name: what was stored, and what is given.
pub(crate) type Fields = Vec<(&'static str, String, String)>;

/// Looks again at an invalid task that is as given: what was wrong with its row may be repaired, as may have been the zone data.
fn look_afresh(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    old: &Task,
    now: Timestamp,
) -> Result<(Added, Fields), Fault> {
    tasks::repair(tx, schedules, "add", old, now)?;
    let task = tasks::expect(tx, old.name())?;
    let fields = vec![("status", old.status.to_string(), task.status.to_string())];
    Ok((Added { name: task.definition.name, change: Change::Replaced, next_run: task.next_run }, fields))
}

/// Has a task of the same name meet a definition, and answers with the fields in which they differed.
pub(crate) fn meet(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    old: &Task,
    task: Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<(Added, Fields), Fault> {
    let unchanged = |next_run| Added { name: old.name().to_owned(), change: Change::Unchanged, next_run };
    // The same text that was accepted before, and that nobody else has written since, need not be read again: it is most of
    // what applying a long manifest once more would cost.
    if old.planned && old.status != TaskStatus::Invalid && old.definition == task {
        return Ok((unchanged(old.next_run), Vec::new()));
    }
    let schedule = task.check(old.created_at, schedules)?;
    let is_of_its_kind = old.status != TaskStatus::Invalid && old.definition.schedule_type == task.schedule_type;
    let same = (existing == Existing::RefuseOtherWork && is_of_its_kind)
        || old.definition.check(old.created_at, schedules).is_ok_and(|stored| stored == schedule);
    let fields = old.definition.differences(&task, same);
    if fields.is_empty() && old.status == TaskStatus::Invalid {
        return look_afresh(tx, schedules, old, now);
    }
    match (fields.first(), existing) {
        (None, _) | (Some(_), Existing::Keep) => Ok((unchanged(old.next_run), Vec::new())),
        (Some((field, stored, given)), Existing::Refuse | Existing::RefuseOtherWork) => {
            let (stored, given) = (stored.clone(), given.clone());
            Err(Error::TaskDiffers { name: task.name, field, stored, given }.into())
        }
        (Some((field, stored, given)), Existing::Replace) => {
            tasks::change(tx, schedules, old, &task, &schedule, now)?;
            let detail = format!("{field}: {stored:?} became {given:?}");
            owners::record(tx, now, "edited", Some(old.id), None, Some(&detail))?;
            let next_run = tasks::expect(tx, &task.name)?.next_run;
            Ok((Added { name: task.name, change: Change::Replaced, next_run }, fields))
        }
    }
}
