//! A manifest: many tasks that are to be as one file says, in one transaction. Or a source of another kind, from which tasks
//! are brought over as far as they can come.

use std::collections::HashSet;

use rusqlite::Transaction;

use crate::client::Client;
use crate::client::add::{Added, Existing, create, meet};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::new_task::NewTask;
use crate::model::progress_meter::Progress;
use crate::model::task::{Definition, TaskStatus};
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::add::Adder;
use crate::store::sqlite::{open, tasks};

/// How the tasks of a manifest are applied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Apply {
    /// Tasks that the manifest declared before and does not any more are removed, with their history. One of which a run is
    /// running is paused, and removed the next time; or resumed, if it is declared again by then.
    pub prune: bool,
    /// Nothing is written: the answer is what would be done.
    pub dry_run: bool,
    /// A declared task that another manifest or source had declared becomes this one's, as after a manifest was moved. Otherwise
    /// it is refused. What the other one declared beside it stays as it is.
    pub adopt: bool,
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
    /// It could not be brought over, and nothing was changed for it. Only [`Client::import`] answers so.
    Refused {
        /// Why not.
        reason: String,
    },
}

/// A task that is brought over from somewhere else.
#[derive(Clone, Debug)]
pub struct ImportItem {
    /// What it is.
    pub task: NewTask,
    /// It rests there, so a new one rests here: its schedule counts once it is resumed.
    pub paused: bool,
    /// Why it cannot come as it stands there, if that is known already. Of the task only the name counts then: one that came
    /// before stays as it is.
    pub refused: Option<String>,
}

impl ImportItem {
    /// A task that is there, and cannot come: it is answered so, and one of this name that came before is not pruned.
    pub fn refused(name: impl Into<String>, reason: impl Into<String>) -> Self {
        ImportItem { refused: Some(reason.into()), ..NewTask::cron(name, "").into() }
    }
}

impl From<NewTask> for ImportItem {
    fn from(task: NewTask) -> Self {
        ImportItem { task, paused: false, refused: None }
    }
}

/// Where declared tasks are from.
#[derive(Clone, Copy)]
struct Source<'a> {
    name: &'a str,
    kind: Kind,
    /// Whether it takes over tasks that another one declared.
    adopts: bool,
}

/// Whose word a source's tasks are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A manifest: all of it holds afterwards, or nothing does.
    Manifest,
    /// Written for another scheduler: what can come comes.
    Foreign,
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
        self.apply_watched(manifest, tasks, how, &Progress::default())
    }

    /// As [`Client::apply`], with somebody looking on: tasks that are declared, and those that are no longer.
    ///
    /// # Errors
    /// As [`Client::apply`].
    pub fn apply_watched(
        &self,
        manifest: &str,
        tasks: impl IntoIterator<Item = NewTask>,
        how: Apply,
        advance: &Progress,
    ) -> Result<Vec<Applied>> {
        let now = self.now();
        let tasks = tasks.into_iter().map(|task| definition(task.into(), manifest, now));
        let tasks = tasks.collect::<Result<Vec<_>, _>>().map_err(|(_, error)| error)?;
        advance.total_is(tasks.len() as u64);
        let apply = |tx: &Transaction<'_>, schedules: &mut Schedules| {
            let source = Source { name: manifest, kind: Kind::Manifest, adopts: how.adopt };
            let applied = apply(tx, source, tasks, advance, now)?;
            rest_of(tx, schedules, manifest, applied, how, advance, now)
        };
        if how.dry_run { self.rehearse("try a manifest", apply) } else { self.write("apply a manifest", apply) }
    }

    /// Brings tasks over that were written for another scheduler, in one transaction: as [`Client::apply`] does, but one that
    /// cannot be accepted keeps none of the others back. `source` names where they are from, and is kept with each of them;
    /// a task of the same name that is not from there, one that was added by hand too, is left alone, and the answer says so.
    ///
    /// ```
    /// use duly::{Apply, Client, Done, NewTask};
    /// # let home = tempfile::tempdir()?;
    /// # let file = home.path().join("agent.db");
    /// let client = Client::open(&file)?;
    /// client.add(NewTask::cron("backup", "0 2 * * *").handler("work"))?;
    /// let lines = [("backup", "0 3 * * *"), ("report", "0 6 * * *"), ("leap", "0 0 30 2 *")];
    /// let tasks = lines.map(|(name, line)| NewTask::cron(name, line).handler("work").into());
    /// let done = client.import("crontab", tasks, Apply::default())?;
    /// assert!(matches!(&done[0].done, Done::Refused { reason } if reason.contains("added by hand")));
    /// assert_eq!(done[1].done, Done::Created);
    /// assert!(matches!(done[2].done, Done::Refused { .. }), "there is no such day");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Only if the database cannot be written, or is not usable.
    pub fn import(
        &self,
        source: &str,
        tasks: impl IntoIterator<Item = ImportItem>,
        how: Apply,
    ) -> Result<Vec<Applied>> {
        self.import_watched(source, tasks, how, &Progress::default())
    }

    /// As [`Client::import`], with somebody looking on: tasks that come, and those that are no longer there.
    ///
    /// # Errors
    /// As [`Client::import`].
    pub fn import_watched(
        &self,
        source: &str,
        tasks: impl IntoIterator<Item = ImportItem>,
        how: Apply,
        advance: &Progress,
    ) -> Result<Vec<Applied>> {
        let now = self.now();
        let (mut good, mut refused) = (Vec::new(), Vec::new());
        for task in tasks {
            match definition(task, source, now) {
                Ok(definition) => good.push(definition),
                Err((name, error)) => refused.push(Applied::refused(name, reason(error))),
            }
        }
        advance.total_is(good.len() as u64);
        let import = |tx: &Transaction<'_>, schedules: &mut Schedules| {
            let foreign = Source { name: source, kind: Kind::Foreign, adopts: how.adopt };
            let mut applied = apply(tx, foreign, good, advance, now)?;
            applied.extend(refused);
            rest_of(tx, schedules, source, applied, how, advance, now)
        };
        if how.dry_run { self.rehearse("try an import", import) } else { self.write("import tasks", import) }
    }
}

impl Applied {
    fn refused(name: String, reason: String) -> Self {
        Applied { name, done: Done::Refused { reason }, next_run: None }
    }
}

/// What is to be stored of a task, and whether it rests; or its name, as far as it has one, and what is wrong with it.
fn definition(brought: ImportItem, source: &str, now: Timestamp) -> Result<(Definition, bool), (String, Error)> {
    let name = brought.task.name().unwrap_or_default().to_owned();
    if let Some(reason) = brought.refused {
        let error = Error::Refused { request: request(&name), reason };
        return Err((name, error));
    }
    let mut definition = brought.task.into_definition(now).map_err(|error| (name, error))?;
    definition.managed_by = Some(source.to_owned());
    Ok((definition, brought.paused))
}

fn apply(
    tx: &Transaction<'_>,
    source: Source<'_>,
    tasks: Vec<(Definition, bool)>,
    advance: &Progress,
    now: Timestamp,
) -> Result<Vec<Applied>, Fault> {
    // What is kept between transactions is for the lines of a turn: these are read once, and many are the same.
    let schedules = &mut Schedules::for_many();
    let mut adder = Adder::new(tx)?;
    let mut declared = HashSet::new();
    let mut applied = Vec::with_capacity(tasks.len());
    for (task, paused) in tasks {
        let name = task.name.clone();
        let done = if declared.insert(name.clone()) {
            apply_one(tx, &mut adder, schedules, source, task, paused, now)
        } else {
            Err(Error::Refused { request: request(&name), reason: "the manifest declares it twice".into() }.into())
        };
        applied.push(match done {
            Ok(applied) => applied,
            Err(Fault::Told(error)) if source.kind == Kind::Foreign => Applied::refused(name, reason(error)),
            Err(Fault::Told(error @ Error::Refused { .. })) => return Err(error.into()),
            Err(Fault::Told(error)) => {
                return Err(Error::Refused { request: request(&name), reason: error.to_string() }.into());
            }
            Err(fault) => return Err(fault),
        });
        advance.reach(applied.len() as u64);
    }
    Ok(applied)
}

fn apply_one(
    tx: &Transaction<'_>,
    adder: &mut Adder<'_>,
    schedules: &mut Schedules,
    source: Source<'_>,
    task: Definition,
    paused: bool,
    now: Timestamp,
) -> Result<Applied, Fault> {
    let request = request(&task.name);
    let Some(old) = tasks::by_name(tx, &task.name)? else {
        let Added { name, next_run, .. } = create(adder, schedules, task, now)?;
        if !paused {
            return Ok(Applied { name, done: Done::Created, next_run });
        }
        // What is due of it is not resolved first: it never counted here.
        tasks::rest(tx, &tasks::expect(tx, &name)?, "import: it was paused where it is from", now)?;
        return Ok(Applied { name, done: Done::Created, next_run: None });
    };
    match old.definition.managed_by.as_deref() {
        Some(manager) if manager == source.name || source.adopts => {}
        Some(other) => {
            let reason =
                format!("{other} declares it too: take it out of one of them, or use --adopt if that was moved here");
            return Err(Error::Refused { request, reason }.into());
        }
        None if source.kind == Kind::Foreign => {
            let reason = "a task of this name was added by hand: remove it, or have this one named otherwise";
            return Err(Error::Refused { request, reason: reason.into() }.into());
        }
        None => {}
    }
    let (Added { name, mut next_run, .. }, mut fields) = meet(tx, schedules, &old, task, Existing::Replace, now)?;
    // What was only to go once its run had ended is declared again.
    if old.paused_by.as_deref() == Some(UNDECLARED) && tasks::expect(tx, &name)?.status == TaskStatus::Paused {
        tasks::resume(tx, schedules, &name, now)?;
        let met = tasks::expect(tx, &name)?;
        fields.push(("status", TaskStatus::Paused.to_string(), met.status.to_string()));
        next_run = met.next_run;
    }
    let done = if fields.is_empty() { Done::Unchanged } else { Done::Replaced { fields } };
    Ok(Applied { name, done, next_run })
}

/// Why a task was paused that is to go once its run has ended.
const UNDECLARED: &str = "apply: it is no longer declared, and a run was running";

fn request(name: &str) -> String {
    format!("apply task {name:?}")
}

/// Why a task is refused, for whoever has it at hand.
fn reason(error: Error) -> String {
    match error {
        Error::Refused { reason, .. } | Error::InvalidSchedule { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// The same, with what was declared before and is not any more.
fn rest_of(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    source: &str,
    mut applied: Vec<Applied>,
    how: Apply,
    advance: &Progress,
    now: Timestamp,
) -> Result<Vec<Applied>, Fault> {
    let declared: HashSet<String> = applied.iter().map(|applied| applied.name.clone()).collect();
    let mut gone = tasks::managed_by(tx, source)?;
    gone.retain(|name| !declared.contains(name));
    gone.sort_unstable();
    // With what was refused before the transaction began.
    advance.set(applied.len() as u64, (applied.len() + gone.len()) as u64);
    for name in gone {
        applied.push(undeclared(tx, schedules, name, how, now)?);
        advance.reach(applied.len() as u64);
    }
    Ok(applied)
}

fn undeclared(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    name: String,
    how: Apply,
    now: Timestamp,
) -> Result<Applied, Fault> {
    let done = if !how.prune {
        Done::Left
    } else if open::any_running(tx, tasks::expect(tx, &name)?.id)? {
        match tasks::pause(tx, schedules, &name, Some(UNDECLARED), now) {
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
