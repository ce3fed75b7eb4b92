//! Applies what a source declares, or a part of it, in one transaction: a manifest, or tasks of another scheduler.

use std::iter;

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::action::ACTORS;
use crate::model::declared::DeclaredTasks;
use crate::model::request::{Added, Applied, AppliedParts, Apply, Declaration, Done, Existing, SourceKind};
use crate::model::task::{Definition, TaskStatus};
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::add::{Adder, compare, create};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::tasks::{Removal, Removed};
use crate::store::sqlite::{followers, limit_requests, open, task_changes, tasks};

/// Why a task was paused that is to be removed once its run has ended.
const UNDECLARED: &str = "apply: it is no longer declared, and a run was running";

/// Where the declared tasks come from.
#[derive(Clone, Copy)]
struct Source<'a> {
    name: &'a str,
    kind: SourceKind,
    how: Apply,
}

/// Makes the tasks of a source what it declares; a dry run takes back what it wrote.
pub(super) fn apply(store: &mut SqliteStore, declared: Declaration<'_>, now: Timestamp) -> Result<AppliedParts> {
    let Declaration { source, kind, how, tasks, undeclared, limits } = declared;
    let source = Source { name: source, kind, how };
    let apply = |tx: &Transaction<'_>, schedules: &mut Schedules| {
        let tasks = apply_declared(tx, source, tasks, now)?;
        let (undeclared, left) = apply_undeclared(tx, schedules, source, undeclared, now)?;
        let limits = limits.map_or(Ok(Vec::new()), |limits| limit_requests::apply(tx, source.name, &limits, how))?;
        Ok(AppliedParts { tasks, undeclared, left, limits })
    };
    match (kind, how.dry_run) {
        (SourceKind::Manifest, true) => store.rehearse("try a manifest", apply),
        (SourceKind::Foreign, true) => store.rehearse("try an import", apply),
        (SourceKind::Manifest, false) => store.write("apply a manifest", apply),
        (SourceKind::Foreign, false) => store.write("import tasks", apply),
    }
}

fn apply_declared(
    tx: &Transaction<'_>,
    source: Source<'_>,
    tasks: DeclaredTasks,
    now: Timestamp,
) -> Result<Vec<Applied>, Fault> {
    // Not the cache of the connection: these texts are parsed once, and many are equal.
    let schedules = &mut Schedules::for_many();
    let mut adder = Adder::new(tx)?;
    let mut applied = Vec::with_capacity(tasks.len());
    let mut leading = Vec::new();
    for (task, paused) in tasks.into_definitions() {
        let name = task.name.clone();
        leading.extend(task.leads_on().then(|| task.clone()));
        applied.push(match apply_one(tx, &mut adder, schedules, source, task, paused, now) {
            Ok(applied) => applied,
            Err(Fault::Request(error)) if source.kind == SourceKind::Foreign => Applied::refused(name, error),
            Err(Fault::Request(error @ Error::Refused { .. })) => return Err(error.into()),
            Err(Fault::Request(error)) => return Err(Applied::refusal(&name, error.to_string()).into()),
            Err(fault) => return Err(fault),
        });
    }
    if let Some((task, error)) = followers::find_circle(tx, &leading)? {
        return Err(Applied::refusal(&task.name, error.to_string()).into());
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
    let Some(old) = tasks::by_name(tx, &task.name)? else {
        let Added { name, next_run, .. } = create(adder, schedules, task, now)?;
        if !paused {
            return Ok(Applied { name, done: Done::Created, next_run });
        }
        // What is due is not resolved first: the schedule never counted here.
        tasks::rest(tx, &tasks::expect(tx, &name)?, "import: it was paused where it is from", now)?;
        return Ok(Applied { name, done: Done::Created, next_run: None });
    };
    match old.definition.managed_by.as_deref() {
        Some(manager) if manager == source.name || source.how.adopt => {}
        Some(other) => {
            let reason = match other.starts_with(ACTORS) {
                true => format!("{other} added it: remove it, or use --adopt to have it declared here"),
                false => {
                    format!(
                        "{other} declares it too: take it out of one of them, or use --adopt if that was moved here"
                    )
                }
            };
            return Err(Applied::refusal(&task.name, reason).into());
        }
        None if source.kind == SourceKind::Foreign => {
            let reason = "a task of this name was added by hand: remove it, or have this one named otherwise";
            return Err(Applied::refusal(&task.name, reason.into()).into());
        }
        None => {}
    }
    let (Added { name, mut next_run, .. }, mut fields) = compare(tx, schedules, &old, task, Existing::Replace, now)?;
    // It was to be removed once its run had ended, and is declared again.
    if old.paused_by.as_deref() == Some(UNDECLARED) && tasks::expect(tx, &name)?.status == TaskStatus::Paused {
        task_changes::resume(tx, schedules, &name, now)?;
        let resumed = tasks::expect(tx, &name)?;
        fields.push(("status", TaskStatus::Paused.to_string(), resumed.status.to_string()));
        next_run = resumed.next_run;
    }
    let done = if fields.is_empty() { Done::Unchanged } else { Done::Replaced { fields } };
    Ok(Applied { name, done, next_run })
}

/// Removes, pauses or leaves tasks that the source declared before and no longer declares. Returns what became of them, and those that are
/// left to the next transaction, since they have too many runs.
fn apply_undeclared(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    source: Source<'_>,
    undeclared: Vec<String>,
    now: Timestamp,
) -> Result<(Vec<Applied>, Vec<String>), Fault> {
    let mut applied = Vec::with_capacity(undeclared.len());
    let mut removal = Removal::default();
    let mut names = undeclared.into_iter();
    while let Some(name) = names.next() {
        // Another program may have removed or adopted it since the names were read.
        let manager = tasks::by_name(tx, &name)?.and_then(|task| task.definition.managed_by);
        if manager.as_deref() == Some(source.name) {
            let done = match source.how.prune {
                true => prune(tx, schedules, &mut removal, &name, now)?,
                false => Some(Done::Left),
            };
            // A dry run removes nothing, in however many parts.
            let Some(done) = done.or(source.how.dry_run.then_some(Done::Removed)) else {
                return Ok((applied, iter::once(name).chain(names).collect()));
            };
            applied.push(Applied { name, done, next_run: None });
        }
    }
    Ok((applied, Vec::new()))
}

/// Removes a task, or pauses it while a run of it is running. `None`: it is not, or in part, removed.
fn prune(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    removal: &mut Removal,
    name: &str,
    now: Timestamp,
) -> Result<Option<Done>, Fault> {
    let task = tasks::expect(tx, name)?.id;
    if !open::any_running(tx, task)? {
        return Ok(match removal.task(tx, task, name, now)? {
            Removed::All => Some(Done::Removed),
            Removed::Part => None,
            Removed::Kept => Some(Done::Left),
        });
    }
    match task_changes::pause(tx, schedules, name, Some(UNDECLARED), now) {
        // A task that has no occurrence left needs no pause.
        Ok(()) | Err(Fault::Request(Error::Refused { .. })) => Ok(Some(Done::Paused)),
        Err(fault) => Err(fault),
    }
}
