//! Applies `on_dead` and `pause_after_failures` in the transaction in which a run becomes dead.
//!
//! Neither can prevent that the run becomes dead: if no `on_dead` run can be opened, an event records why.

use rusqlite::{OptionalExtension, named_params};
use serde_json::json;

use crate::clock::{Timestamp, millis};
use crate::error::excerpt;
use crate::model::event::Event;
use crate::model::run::{Claim, Origin, Run};
use crate::model::task::TaskStatus;
use crate::rules::streak;
use crate::schedule::ScheduleKind;
use crate::store::fault::Fault;
use crate::store::sqlite::manual::{self, Request};
use crate::store::sqlite::open::Change;
use crate::store::sqlite::{history, owners, row, tasks};

/// Longest part of the error, and of the output, in the payload of an `on_dead` run, in bytes. Escaped, both fit a payload.
const MAX_TEXT: usize = 16 * 1024;
/// Longest payload of the dead run that the payload of the `on_dead` run includes, in bytes.
const MAX_PAYLOAD: usize = 48 * 1024;

/// The failure count of a `once` task is always 0.
const POLICY: &str = "
    SELECT on_dead, status, failure_count, pause_after_failures FROM scheduled_tasks WHERE id = :task";

/// Applies `on_dead` and `pause_after_failures` of the task of a dead run. Returns the events, and whether the task was paused.
pub(crate) fn follow(cx: &mut Change<'_>, dead: &Claim) -> Result<(Vec<Event>, bool), Fault> {
    let (tx, now) = (cx.tx, cx.now);
    let policy = tx.prepare_cached(POLICY)?.query_row(named_params! { ":task": dead.task_id }, |row| {
        let failures = row::saturating(row, 2)?;
        // A value that only another program writes pauses nothing, and must not keep the outcome from being stored.
        let status = row.get(1).unwrap_or(TaskStatus::Completed);
        let pauses = streak::pauses(status, failures, row.get(3).unwrap_or_default());
        Ok((row::shown_if_any(row, 0)?, pauses.then_some(failures)))
    });
    let Some((on_dead, failures)) = policy.optional()? else { return Ok((Vec::new(), false)) };
    let mut events = Vec::new();
    // A dead run of origin on_dead opens no further run: the chain might never end.
    if let Some(target) = on_dead.filter(|_| dead.origin != Origin::OnDead)
        && let Some(reason) = try_open(cx, dead, &target)?
    {
        let detail = format!("the on_dead task {target:?} cannot run: {reason}");
        owners::record(tx, now, "on_dead", Some(dead.task_id), Some(dead.run_id), Some(&detail))?;
        events.push(Event::OnDeadFailed { run: dead.run_id, task: dead.task.clone(), on_dead: target, reason });
    }
    let mut paused = false;
    if let Some(failures) = failures
        && let Some(task) = tasks::by_id(tx, dead.task_id)?
    {
        let task = tasks::resolve_before_a_change(tx, cx.schedules, task, now)?;
        if task.status == TaskStatus::Active {
            let runs = if failures == 1 { "run" } else { "runs" };
            tasks::rest(tx, &task, &format!("pause_after_failures: {failures} dead {runs} in a row"), now)?;
            (cx.written.blocked, paused) = (true, true);
            events.push(Event::Paused { task: dead.task.clone(), failures });
        }
    }
    Ok((events, paused))
}

/// Opens a run of the `on_dead` task, or returns why it cannot. A failure undoes only what this function wrote.
fn try_open(cx: &mut Change<'_>, dead: &Claim, target: &str) -> Result<Option<String>, Fault> {
    if let Some(reason) = &cx.written.on_dead_refused {
        return Ok(Some(reason.clone()));
    }
    let tx = cx.tx;
    cx.written.tried_on_dead = true;
    tx.prepare_cached("SAVEPOINT on_dead")?.execute([])?;
    let refused = match open(cx, dead, target) {
        Ok(None) => {
            // A run that ends later in this transaction may hold the key of the new run.
            cx.written.blocked = true;
            None
        }
        Ok(refused) => refused,
        Err(fault) if fault.is_about_the_item() => {
            tx.prepare_cached("ROLLBACK TO on_dead")?.execute([])?;
            Some(fault.to_string())
        }
        Err(fault) => return Err(fault),
    };
    tx.prepare_cached("RELEASE on_dead")?.execute([])?;
    Ok(refused)
}

fn open(cx: &mut Change<'_>, dead: &Claim, target: &str) -> Result<Option<String>, Fault> {
    let (tx, now) = (cx.tx, cx.now);
    let Some(mut target) = tasks::by_name(tx, target)? else { return Ok(Some("there is no such task".to_owned())) };
    if target.definition.schedule_type == ScheduleKind::Delay {
        // Its schedule will wait for this run, so what is due is resolved first.
        target = tasks::resolve_before_a_change(tx, cx.schedules, target, now)?;
    }
    if target.status == TaskStatus::Invalid {
        let reason = target.invalid_reason.unwrap_or_default();
        return Ok(Some(format!("it is invalid: {reason}")));
    }
    let Some(run) = history::run(tx, dead.run_id)? else { return Ok(Some("the run is gone".to_owned())) };
    let payload = describe(&run, &dead.payload).to_string();
    let request = Request { origin: Origin::OnDead, payload: Some(&payload), retry_of: None, key: None };
    manual::open(tx, &target, request, now)?;
    Ok(None)
}

/// Returns the payload of the `on_dead` run: the dead run as JSON. Keys are column names, times RFC 3339.
fn describe(run: &Run, payload: &str) -> serde_json::Value {
    let payload: serde_json::Value = match payload.len() {
        ..=MAX_PAYLOAD => serde_json::from_str(payload).unwrap_or_default(),
        _ => serde_json::Value::Null,
    };
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    json!({
        "id": run.id,
        "task": run.task,
        "handler": run.handler,
        "scheduled_for": run.scheduled_for.to_string(),
        "origin": run.origin.as_str(),
        "retry_of": run.retry_of,
        "status": run.status.as_str(),
        "attempt": run.attempt,
        "forgiven": run.forgiven,
        "interrupted": run.interrupted,
        "payload": payload,
        "started_at": time(run.started_at),
        "finished_at": time(run.finished_at),
        "duration_ms": run.duration.map(millis),
        "error": run.error.as_ref().map(|error| excerpt(error, MAX_TEXT)),
        "exit_code": run.exit_code,
        "output": run.output.as_ref().map(|output| excerpt(output, MAX_TEXT)),
    })
}
