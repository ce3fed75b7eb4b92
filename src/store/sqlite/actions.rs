//! Actions: requests that are recorded with who made them, in the transaction that performs them.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::action::{ACTORS, Acted, Action, By, Target, of_an_actor};
use crate::model::request::{Change, Done, Existing};
use crate::model::task::Definition;
use crate::rules::chain;
use crate::schedule::Schedules;
use crate::store::fault::Fault;
use crate::store::sqlite::add::{Adder, compare, create};
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::sql::sql;
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
        let (task, run, is_change) = perform(tx, schedules, (by, action), &mut acted, now)?;
        if by.is_actor() {
            check_unnamed(tx, action, &acted)?;
        }
        acted.task = tasks::by_name(tx, &task)?;
        if !is_change {
            return Ok(acted);
        }
        let mut detail = format!("{}: {}", by.name, action.verb());
        if let Action::Remove(_) = action {
            // Its events went with it.
            detail = format!("{detail} {task}");
        }
        owners::record(tx, now, "action", acted.task.as_ref().map(|task| task.id), run, Some(&detail))?;
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

/// Performs an action. Returns the task and the run to record, and whether there is a change to record.
fn perform(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    (by, action): (By<'_>, &Action),
    acted: &mut Acted,
    now: Timestamp,
) -> Result<(String, Option<i64>, bool), Fault> {
    let task_of = |run: i64| Ok::<_, Fault>(history::run(tx, run)?.ok_or(Error::UnknownRun { id: run })?.task);
    match action {
        Action::Add { task, existing } => {
            let done = acted.done.insert(put(tx, schedules, (by, task), *existing, now)?);
            Ok((task.name.clone(), None, *done != Done::Unchanged))
        }
        // A running run, which would prevent it, is for the caller to cancel once it knows that it may remove the task.
        Action::Remove(Target { task, .. }) if by.rehearses => Ok((task.clone(), None, false)),
        Action::Remove(Target { task, .. }) => {
            acted.is_part = !tasks::remove(tx, task, now)?;
            Ok((task.clone(), None, !acted.is_part))
        }
        Action::Trigger { on, payload, key } => {
            let request = (on.task.as_str(), payload.as_deref(), key.as_deref());
            let triggered = requests::trigger_in(tx, schedules, request, now)?;
            acted.opened = Some(triggered.run_id);
            acted.triggered = Some(triggered);
            Ok((on.task.clone(), Some(triggered.run_id), triggered.is_new))
        }
        Action::Pause(Target { task, .. }) => {
            // A user of the status page is one of the users, who have no name.
            let by = by.name.contains(':').then_some(by.name);
            task_changes::pause(tx, schedules, task, by, now)?;
            Ok((task.clone(), None, true))
        }
        Action::Resume(Target { task, .. }) => {
            task_changes::resume(tx, schedules, task, now)?;
            Ok((task.clone(), None, true))
        }
        Action::Cancel(run) => {
            let task = task_of(*run)?;
            acted.events = requests::cancel_in(tx, schedules, *run, now)?.events;
            Ok((task, Some(*run), true))
        }
        Action::Retry(run) => {
            let task = task_of(*run)?;
            if let Some(reason) = by.is_held_by(&tasks::expect(tx, &task)?) {
                return Err(Error::Refused { request: format!("retry run {run} of task {task:?}"), reason }.into());
            }
            acted.opened = Some(requests::retry_in(tx, schedules, *run, now)?);
            Ok((task, acted.opened, true))
        }
    }
}

/// Adds a task of an actor, or compares it with the task of its name, which keeps who added it.
fn put(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    (by, task): (By<'_>, &Definition),
    existing: Existing,
    now: Timestamp,
) -> Result<Done, Fault> {
    let leading = task.leads_on().then(|| task.clone());
    let done = match tasks::by_name(tx, &task.name)? {
        None => create(&mut Adder::new(tx)?, schedules, task.clone(), now).map(|_| Done::Created)?,
        Some(old) => {
            let managed_by = old.definition.managed_by.clone();
            let is_others = existing == Existing::Replace && !of_an_actor(&managed_by);
            let reason = if is_others { Some(added_by(managed_by.clone())) } else { by.is_held_by(&old) };
            let mut task = Definition { managed_by, ..task.clone() };
            if by.is_actor() {
                // A limit of starts is the user's: what an actor adds in the place of its task has it too.
                (task.max_starts, task.when_limited) = (old.definition.max_starts.clone(), old.definition.when_limited);
            }
            let (added, fields) = compare(tx, schedules, &old, task, existing, now)?;
            match (reason, added.change) {
                (None, Change::Replaced) => Done::Replaced { fields },
                (Some(reason), _) if is_others || added.change == Change::Replaced => {
                    let request = format!("replace task {:?}", old.definition.name);
                    return Err(Error::Refused { request, reason }.into());
                }
                _ => Done::Unchanged,
            }
        }
    };
    followers::refuse_circles(tx, &leading)?;
    Ok(done)
}

/// The names of tasks that follow those which no actor added, with this one among them or as a part of one.
const NAMING: &str = sql! {"
    SELECT {followers:t} FROM scheduled_tasks t
     WHERE (t.managed_by IS NULL OR t.managed_by NOT LIKE 'mcp:%') AND {followers:t} LIKE '%' || :name || '%'"};

/// Refuses that an actor adds, changes or removes a task that follows one which no actor added: it would read what that one printed, or
/// break its chain.
fn check_unnamed(tx: &Transaction<'_>, action: &Action, acted: &Acted) -> Result<(), Fault> {
    let name = match action {
        Action::Add { task, .. } if acted.done != Some(Done::Unchanged) => &task.name,
        Action::Remove(on) => &on.task,
        _ => return Ok(()),
    };
    let mut naming = tx.prepare_cached(NAMING)?;
    let names = naming.query_map(named_params! { ":name": name }, |row| row::shown(row, 0))?;
    for names in names {
        if chain::names(&names?).any(|one| one == name) {
            let reason = "another task names it in on_dead, on_success, on_end or on_missed".to_owned();
            return Err(Error::Refused { request: format!("{} task {name:?}", action.verb()), reason }.into());
        }
    }
    Ok(())
}

/// Refuses an action on another task than was shown, on one that the request does not identify, and what an [`Actor`](crate::Actor) may
/// not do: remove what no actor added or whose starts are limited, and start what no actor paused.
fn check_target(tx: &Transaction<'_>, (by, action): (By<'_>, &Action), on: &Target) -> Result<(), Fault> {
    let found = tasks::expect(tx, &on.task)?;
    let reason = match (action, on.id) {
        (_, None) => {
            Some("the form does not say which task its page showed (the field task): load the page again".to_owned())
        }
        (_, Some(id)) if id != found.id => Some(match by.is_actor() {
            true => "it was removed, and another task has its name: look again".to_owned(),
            false => "the task that the page showed was removed, and another one has its name: load the page again"
                .to_owned(),
        }),
        (Action::Pause(_), _) => None,
        (Action::Remove(_), _) if by.is_actor() && !of_an_actor(&found.definition.managed_by) => {
            Some(added_by(found.definition.managed_by))
        }
        (Action::Remove(_), _) if by.is_actor() && found.definition.max_starts.is_some() => Some(
            "its starts are limited (max_starts), and a new task of its name would have none: the user decides"
                .to_owned(),
        ),
        _ => by.is_held_by(&found),
    };
    reason.map_or(Ok(()), |reason| {
        Err(Error::Refused { request: format!("{} task {:?}", action.verb(), on.task), reason }.into())
    })
}

/// Says who added a task that an actor may not change so.
fn added_by(manager: Option<String>) -> String {
    manager.map_or_else(|| "it was added by hand".to_owned(), |manager| format!("it was added by {manager}"))
}
