//! Applies the tasks that a source declares, in one transaction: a manifest, or tasks of another scheduler.

use std::collections::HashSet;

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::declared::DeclaredTasks;
use crate::model::progress_meter::Progress;
use crate::model::request::{Added, Applied, Apply, Declaration, Done, Existing, SourceKind};
use crate::model::task::{Definition, TaskStatus};
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::add::{Adder, compare, create};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::{limit_requests, open, tasks};

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
pub(super) fn apply(
    store: &mut SqliteStore,
    declared: Declaration<'_>,
    progress: &Progress,
    now: Timestamp,
) -> Result<Vec<Applied>> {
    let Declaration { source, kind, how, tasks, limits, refused } = declared;
    let source = Source { name: source, kind, how };
    let apply = |tx: &Transaction<'_>, schedules: &mut Schedules| {
        let mut applied = apply_declared(tx, source, tasks, progress, now)?;
        applied.extend(refused);
        apply_undeclared(tx, schedules, source, &mut applied, progress, now)?;
        if kind == SourceKind::Manifest {
            applied.extend(limit_requests::apply(tx, source.name, &limits, how)?);
        }
        Ok(applied)
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
    progress: &Progress,
    now: Timestamp,
) -> Result<Vec<Applied>, Fault> {
    // Not the cache of the connection: these texts are parsed once, and many are equal.
    let schedules = &mut Schedules::for_many();
    let mut adder = Adder::new(tx)?;
    let mut names = HashSet::with_capacity(tasks.len());
    let is_repeated = |(place, name)| (!names.insert(name)).then_some(place);
    let repeated: HashSet<usize> = tasks.names().enumerate().filter_map(is_repeated).collect();
    drop(names);
    let mut applied = Vec::with_capacity(tasks.len());
    for (place, (task, paused)) in tasks.into_definitions().enumerate() {
        let name = task.name.clone();
        let done = if repeated.contains(&place) {
            Err(refused(&name, "the manifest declares it twice".into()).into())
        } else {
            apply_one(tx, &mut adder, schedules, source, task, paused, now)
        };
        applied.push(match done {
            Ok(applied) => applied,
            Err(Fault::Request(error)) if source.kind == SourceKind::Foreign => Applied::refused(name, error),
            Err(Fault::Request(error @ Error::Refused { .. })) => return Err(error.into()),
            Err(Fault::Request(error)) => return Err(refused(&name, error.to_string()).into()),
            Err(fault) => return Err(fault),
        });
        progress.set_done(applied.len() as u64);
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
            let reason =
                format!("{other} declares it too: take it out of one of them, or use --adopt if that was moved here");
            return Err(refused(&task.name, reason).into());
        }
        None if source.kind == SourceKind::Foreign => {
            let reason = "a task of this name was added by hand: remove it, or have this one named otherwise";
            return Err(refused(&task.name, reason.into()).into());
        }
        None => {}
    }
    let (Added { name, mut next_run, .. }, mut fields) = compare(tx, schedules, &old, task, Existing::Replace, now)?;
    // It was to be removed once its run had ended, and is declared again.
    if old.paused_by.as_deref() == Some(UNDECLARED) && tasks::expect(tx, &name)?.status == TaskStatus::Paused {
        tasks::resume(tx, schedules, &name, now)?;
        let resumed = tasks::expect(tx, &name)?;
        fields.push(("status", TaskStatus::Paused.to_string(), resumed.status.to_string()));
        next_run = resumed.next_run;
    }
    let done = if fields.is_empty() { Done::Unchanged } else { Done::Replaced { fields } };
    Ok(Applied { name, done, next_run })
}

fn refused(name: &str, reason: String) -> Error {
    Error::Refused { request: format!("apply task {name:?}"), reason }
}

/// Adds to `applied` the tasks that the source declared before and no longer declares.
fn apply_undeclared(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    source: Source<'_>,
    applied: &mut Vec<Applied>,
    progress: &Progress,
    now: Timestamp,
) -> Result<(), Fault> {
    let declared: HashSet<&str> = applied.iter().map(|applied| applied.name.as_str()).collect();
    let mut undeclared = tasks::managed_by(tx, source.name)?;
    undeclared.retain(|name| !declared.contains(name.as_str()));
    undeclared.sort_unstable();
    // Including the tasks that were refused before the transaction began.
    progress.set(applied.len() as u64, (applied.len() + undeclared.len()) as u64);
    for name in undeclared {
        let done = if source.how.prune { prune(tx, schedules, &name, now)? } else { Done::Left };
        applied.push(Applied { name, done, next_run: None });
        progress.set_done(applied.len() as u64);
    }
    Ok(())
}

/// Removes a task, or pauses it while a run of it is running.
fn prune(tx: &Transaction<'_>, schedules: &mut Schedules, name: &str, now: Timestamp) -> Result<Done, Fault> {
    if !open::any_running(tx, tasks::expect(tx, name)?.id)? {
        tasks::remove(tx, name, now)?;
        return Ok(Done::Removed);
    }
    match tasks::pause(tx, schedules, name, Some(UNDECLARED), now) {
        // A task that has no occurrence left needs no pause.
        Ok(()) | Err(Fault::Request(Error::Refused { .. })) => Ok(Done::Paused),
        Err(fault) => Err(fault),
    }
}
