//! Actions: requests that are recorded with who made them, in the transaction that performs them.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::action::{ACTORS, Acted, Action, By, Target};
use crate::model::request::{Added, Change, Existing};
use crate::model::task::{Definition, TaskStatus};
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::add::{Adder, Fields, compare, create};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::{followers, history, owners, requests, row, task_changes, tasks};

const MANAGER: &str = "SELECT managed_by FROM scheduled_tasks WHERE name = :name";

/// Returns who added those of these tasks that an actor has added, by the name of the task.
pub(super) fn actors(store: &mut SqliteStore, names: &BTreeSet<String>) -> Result<BTreeMap<String, String>> {
    store.read("look up who added tasks", |tx, _| {
        let (mut manager, mut actors) = (tx.prepare_cached(MANAGER)?, BTreeMap::new());
        for name in names {
            let found =
                manager.query_row(named_params! { ":name": name }, |row| row::shown_if_any(row, 0)).optional()?;
            if let Some(actor) = found.flatten().filter(|manager| manager.starts_with(ACTORS)) {
                actors.insert(name.clone(), actor);
            }
        }
        Ok(actors)
    })
}

const NEWEST: &str = "
    SELECT id FROM scheduler_events INDEXED BY scheduler_events_of_kind WHERE kind = 'action' ORDER BY id DESC LIMIT 1";

/// Performs an action and records it, in one transaction, or takes it back. What changes nothing is not recorded.
pub(super) fn act(store: &mut SqliteStore, by: By<'_>, action: &Action, now: Timestamp) -> Result<Acted> {
    let act = |tx: &Transaction<'_>, schedules: &mut Schedules| {
        by.check(|| Ok::<_, Fault>(tx.prepare_cached(NEWEST)?.query_row([], |row| row.get(0)).optional()?))?;
        let mut acted = Acted::default();
        if let Some(on) = target(action) {
            check_target(tx, (by, action), on)?;
        }
        let Some((task, run)) = perform(tx, schedules, (by.name, action), &mut acted, now)? else { return Ok(acted) };
        let mut detail = format!("{}: {}", by.name, action.verb());
        let task = match action {
            // Its events went with it.
            Action::Remove(_) => {
                detail = format!("{detail} {task}");
                None
            }
            _ => Some(tasks::expect(tx, &task)?.id),
        };
        owners::record(tx, now, "action", task, run, Some(&detail))?;
        Ok(acted)
    };
    match by.rehearses {
        true => store.rehearse("try an action", act),
        false => store.write("perform an action", act),
    }
}

/// The task that an action names by its id.
fn target(action: &Action) -> Option<&Target> {
    match action {
        Action::Trigger { on, .. } | Action::Pause(on) | Action::Resume(on) | Action::Remove(on) => Some(on),
        Action::Add { .. } | Action::Cancel(_) | Action::Retry(_) => None,
    }
}

/// Performs an action of an actor. Returns the task and the run to record; `None` if nothing is to be recorded.
fn perform(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    (actor, action): (&str, &Action),
    acted: &mut Acted,
    now: Timestamp,
) -> Result<Option<(String, Option<i64>)>, Fault> {
    let task_of = |run: i64| Ok::<_, Fault>(history::run(tx, run)?.ok_or(Error::UnknownRun { id: run })?.task);
    match action {
        Action::Add { task, existing } => {
            let (added, fields) = put(tx, schedules, task, *existing, now)?;
            acted.fields = fields;
            let name = added.name.clone();
            let is_changed = added.change != Change::Unchanged;
            acted.added = Some(added);
            Ok(is_changed.then_some((name, None)))
        }
        Action::Remove(Target { task, .. }) => {
            acted.is_part = !tasks::remove(tx, task, now)?;
            Ok((!acted.is_part).then(|| (task.clone(), None)))
        }
        Action::Trigger { on, payload, key } => {
            let request = (on.task.as_str(), payload.as_deref(), key.as_deref());
            let triggered = requests::trigger_in(tx, schedules, request, now)?;
            acted.opened = Some(triggered.run_id);
            acted.triggered = Some(triggered);
            Ok(triggered.is_new.then(|| (on.task.clone(), Some(triggered.run_id))))
        }
        Action::Pause(Target { task, .. }) => {
            // A user of the status page is one of the users, who have no name.
            task_changes::pause(tx, schedules, task, actor.contains(':').then_some(actor), now)?;
            Ok(Some((task.clone(), None)))
        }
        Action::Resume(Target { task, .. }) => {
            task_changes::resume(tx, schedules, task, now)?;
            Ok(Some((task.clone(), None)))
        }
        Action::Cancel(run) => {
            let task = task_of(*run)?;
            acted.events = requests::cancel_in(tx, schedules, *run, now)?.events;
            Ok(Some((task, Some(*run))))
        }
        Action::Retry(run) => {
            let task = task_of(*run)?;
            acted.opened = Some(requests::retry_in(tx, schedules, *run, now)?);
            Ok(Some((task, acted.opened)))
        }
    }
}

/// Adds a task of an actor, or compares it with the task of its name, which keeps who added it.
fn put(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    task: &Definition,
    existing: Existing,
    now: Timestamp,
) -> Result<(Added, Fields), Fault> {
    let leading = task.leads_on().then(|| task.clone());
    let Some(old) = tasks::by_name(tx, &task.name)? else {
        let added = create(&mut Adder::new(tx)?, schedules, task.clone(), now)?;
        followers::refuse_circles(tx, &leading)?;
        return Ok((added, Vec::new()));
    };
    let manager = old.definition.managed_by.clone();
    let is_of_an_actor = manager.as_ref().is_some_and(|manager| manager.starts_with(ACTORS));
    if existing == Existing::Replace && !is_of_an_actor {
        let request = format!("replace task {:?}", task.name);
        return Err(Error::Refused { request, reason: added_by(manager) }.into());
    }
    let task = Definition { managed_by: manager, ..task.clone() };
    let compared = compare(tx, schedules, &old, task, existing, now)?;
    followers::refuse_circles(tx, &leading)?;
    Ok(compared)
}

/// Refuses an action on another task than was shown, on one that the request does not identify, and what an [`Actor`](crate::Actor) may
/// not do: remove what no actor added, and resume what no actor paused.
fn check_target(tx: &Transaction<'_>, (by, action): (By<'_>, &Action), on: &Target) -> Result<(), Fault> {
    let found = tasks::expect(tx, &on.task)?;
    let is_of_an_actor = |who: &Option<String>| who.as_ref().is_some_and(|who| who.starts_with(ACTORS));
    let is_paused = found.status == TaskStatus::Paused;
    let reason = match (action, on.id) {
        (_, None) => {
            "the form does not say which task its page showed (the field task): load the page again".to_owned()
        }
        (_, Some(id)) if id != found.id => match by.is_actor() {
            true => "it was removed, and another task has its name: look again".to_owned(),
            false => "the task that the page showed was removed, and another one has its name: load the page again"
                .to_owned(),
        },
        (Action::Remove(_), _) if by.is_actor() && !is_of_an_actor(&found.definition.managed_by) => {
            added_by(found.definition.managed_by)
        }
        (Action::Resume(_), _) if by.is_actor() && is_paused && !is_of_an_actor(&found.paused_by) => {
            format!("{} paused it", found.paused_by.unwrap_or_else(|| "a user".to_owned()))
        }
        _ => return Ok(()),
    };
    Err(Error::Refused { request: format!("{} task {:?}", action.verb(), on.task), reason }.into())
}

/// Says who added a task that an actor may not change so.
fn added_by(manager: Option<String>) -> String {
    manager.map_or_else(|| "it was added by hand".to_owned(), |manager| format!("it was added by {manager}"))
}
