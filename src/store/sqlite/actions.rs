//! What the status page needs of its connections: actions with their event, a reader that cannot write, a token.

use rusqlite::Transaction;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::model::action::{Acted, Action, Target};
use crate::store::fault::Fault;
use crate::store::sqlite::connection::SqliteStore;
use crate::store::sqlite::{history, owners, requests, task_changes, tasks};

/// Performs an action and records it, in one transaction.
pub(super) fn act(store: &mut SqliteStore, actor: &str, action: &Action, now: Timestamp) -> Result<Acted> {
    store.write("perform an action", |tx, schedules| {
        let mut acted = Acted::default();
        if let Action::Trigger(on) | Action::Pause(on) | Action::Resume(on) = action {
            check_target(tx, action.verb(), on)?;
        }
        let task = match action {
            Action::Trigger(Target { task, .. }) => {
                acted.opened = Some(requests::trigger_in(tx, schedules, (task, None, None), now)?.run_id);
                task.clone()
            }
            Action::Pause(Target { task, .. }) => {
                task_changes::pause(tx, schedules, task, None, now)?;
                task.clone()
            }
            Action::Resume(Target { task, .. }) => {
                task_changes::resume(tx, schedules, task, now)?;
                task.clone()
            }
            Action::Cancel(run) | Action::Retry(run) => {
                history::run(tx, *run)?.ok_or(Error::UnknownRun { id: *run })?.task
            }
        };
        let run = match action {
            Action::Cancel(run) => {
                acted.events = requests::cancel_in(tx, schedules, *run, now)?.events;
                Some(*run)
            }
            Action::Retry(run) => {
                acted.opened = Some(requests::retry_in(tx, schedules, *run, now)?);
                acted.opened
            }
            Action::Trigger(_) | Action::Pause(_) | Action::Resume(_) => acted.opened,
        };
        let (task, detail) = (tasks::expect(tx, &task)?.id, format!("{actor}: {}", action.verb()));
        owners::record(tx, now, "action", Some(task), run, Some(&detail))?;
        Ok(acted)
    })
}

/// Refuses an action on another task than the page showed, or on one that the request does not identify.
fn check_target(tx: &Transaction<'_>, verb: &str, on: &Target) -> Result<(), Fault> {
    let found = tasks::expect(tx, &on.task)?.id;
    let reason = match on.id {
        Some(id) if id == found => return Ok(()),
        Some(_) => "the task that the page showed was removed, and another one has its name: load the page again",
        None => "the form does not say which task its page showed (the field task): load the page again",
    };
    let (request, reason) = (format!("{verb} task {:?}", on.task), reason.to_owned());
    Err(Error::Refused { request, reason }.into())
}
