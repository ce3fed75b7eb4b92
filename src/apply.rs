//! A manifest: many tasks that are to be as one file says, in one transaction.

use std::collections::BTreeSet;

use rusqlite::Transaction;

use crate::adding::{Existing, put};
use crate::client::Client;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::new_task::NewTask;
use crate::schedule::Schedules;
use crate::store::{Fault, opening, tasks};
use crate::task::{Definition, Task};

/// How the tasks of a manifest are applied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Apply {
    /// Tasks that the manifest declared before and does not any more are removed, with their history. One of which a run is
    /// running is paused, and removed the next time.
    pub prune: bool,
    /// Nothing is written: the answer is what would be done.
    pub dry_run: bool,
}

/// What became of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// Its name.
    pub name: String,
    /// What was done.
    pub done: Done,
    /// Its next occurrence, if one is known.
    pub next_run: Option<Timestamp>,
}

/// What applying a manifest did to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Done {
    /// It is new.
    Created,
    /// It was as the manifest says.
    Unchanged,
    /// It is now as the manifest says.
    Replaced {
        /// Each field that differed, by its column name: what was stored, and what is now.
        fields: Vec<(&'static str, String, String)>,
    },
    /// It is not in the manifest any more, and went with its history.
    Removed,
    /// It is not in the manifest any more, and a run of it is running: it is paused, and goes the next time.
    Paused,
    /// It is not in the manifest any more, and stays, since nothing is to be pruned.
    Left,
}

impl Client {
    /// Makes tasks be what a manifest says: all of it in one transaction, or nothing. `manifest` names it, and is kept with
    /// each of its tasks. A task that was added by hand under the same name becomes the manifest's.
    ///
    /// ```
    /// use duly::{Apply, Client, Done, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// let tasks = |cron: &str| [NewTask::cron("digest", cron).handler("digest")];
    /// let done = client.apply("tasks.toml", tasks("0 7 * * *"), Apply::default())?;
    /// assert_eq!(done[0].done, Done::Created);
    /// // What would be done is told without doing it.
    /// let dry = Apply { dry_run: true, ..Apply::default() };
    /// let done = client.apply("tasks.toml", tasks("0 8 * * *"), dry)?;
    /// assert!(matches!(&done[0].done, Done::Replaced { fields } if fields[0].0 == "schedule_value"));
    /// // A manifest that declares nothing more takes with it, if asked, what it had declared.
    /// let done = client.apply("tasks.toml", [], Apply { prune: true, ..Apply::default() })?;
    /// assert_eq!(done[0].done, Done::Removed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`], naming the task, if one cannot be accepted, is declared twice, or belongs to another manifest.
    pub fn apply(&self, manifest: &str, tasks: impl IntoIterator<Item = NewTask>, how: Apply) -> Result<Vec<Applied>> {
        let now = self.now();
        let definitions: Vec<Definition> = tasks
            .into_iter()
            .map(|task| {
                let mut definition = task.into_definition(now)?;
                definition.managed_by = Some(manifest.to_owned());
                Ok(definition)
            })
            .collect::<Result<_>>()?;
        let apply =
            |tx: &Transaction<'_>, schedules: &mut Schedules| apply(tx, schedules, manifest, definitions, how, now);
        if how.dry_run { self.rehearse("try a manifest", apply) } else { self.write("apply a manifest", apply) }
    }
}

fn apply(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    manifest: &str,
    definitions: Vec<Definition>,
    how: Apply,
    now: Timestamp,
) -> Result<Vec<Applied>, Fault> {
    let mut declared = BTreeSet::new();
    let mut applied = Vec::with_capacity(definitions.len());
    for definition in definitions {
        let name = definition.name.clone();
        let refused = |reason: String| Error::Refused { request: format!("apply task {name:?}"), reason };
        if !declared.insert(name.clone()) {
            return Err(refused("the manifest declares it twice".into()).into());
        }
        let old = tasks::by_name(tx, &name)?;
        if let Some(other) = old.as_ref().and_then(|old| old.definition.managed_by.as_ref())
            && other != manifest
        {
            return Err(refused(format!("{other} declares it too: take it out of one of them")).into());
        }
        let added = put(tx, schedules, definition.clone(), Existing::Replace, now).map_err(|fault| match fault {
            Fault::Told(error) => Fault::Told(refused(error.to_string())),
            fault => fault,
        })?;
        let done = match old {
            None => Done::Created,
            Some(old) => match differences(&old, &definition, schedules) {
                fields if fields.is_empty() => Done::Unchanged,
                fields => Done::Replaced { fields },
            },
        };
        applied.push(Applied { name, done, next_run: added.next_run });
    }
    for old in tasks::managed_by(tx, manifest)? {
        if !declared.contains(old.name()) {
            applied.push(undeclared(tx, schedules, &old, how, now)?);
        }
    }
    Ok(applied)
}

/// Every field in which a stored task and a new definition differ, a schedule by its meaning.
fn differences(old: &Task, new: &Definition, schedules: &mut Schedules) -> Vec<(&'static str, String, String)> {
    let meaning = |task: &Definition, schedules: &mut Schedules| task.check(old.created_at, schedules).ok();
    let same = match (meaning(&old.definition, schedules), meaning(new, schedules)) {
        (Some(stored), Some(given)) => stored == given,
        _ => false,
    };
    old.definition.differences(new, same)
}

fn undeclared(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    old: &Task,
    how: Apply,
    now: Timestamp,
) -> Result<Applied, Fault> {
    let name = old.name().to_owned();
    let done = if !how.prune {
        Done::Left
    } else if opening::any_running(tx, old.id)? {
        match tasks::pause(tx, schedules, &name, now) {
            // What has no schedule left needs no pause.
            Ok(()) | Err(Fault::Told(Error::Refused { .. })) => Done::Paused,
            Err(fault) => return Err(fault),
        }
    } else {
        tasks::remove(tx, &name, now)?;
        Done::Removed
    };
    Ok(Applied { name, done, next_run: None })
}
