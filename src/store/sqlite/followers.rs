//! Opens the runs that follow from the end of a run (`on_dead`, `on_success`, `on_end`, `on_missed`), in the transaction in which it ends,
//! and applies `pause_after_failures`.
//!
//! Nothing of that can prevent that the run ends: if a run that follows cannot be opened, an event records why. Each is opened once: its
//! idempotency key names the run that it follows.

use rusqlite::{OptionalExtension, Row, Transaction, named_params};
use serde_json::{Value, json};

use crate::clock::{Timestamp, millis};
use crate::error::{Error, excerpt, excerpt_of_end};
use crate::model::event::Event;
use crate::model::run::{Claim, Origin, Run, RunStatus};
use crate::model::task::{Definition, Task, TaskStatus};
use crate::rules::chain::{self, Ending, Link};
use crate::rules::resolve::Rest;
use crate::rules::streak;
use crate::schedule::{ScheduleKind, Schedules};
use crate::store::fault::Fault;
use crate::store::sqlite::manual::{self, Request};
use crate::store::sqlite::open::{self, Change, Passed, Written};
use crate::store::sqlite::sql::sql;
use crate::store::sqlite::{clock_mark, due, history, once, owners, replan, row, runs, tasks};

/// Longest part of the error (its beginning), and of the output (its end), in the payload of a run that follows, in bytes. Escaped, both
/// fit a payload.
const MAX_TEXT: usize = 16 * 1024;
/// Longest payload, and longest result, of the ended run that this payload includes, in bytes. If all together is longer than
/// [`MAX_DESCRIPTION`], the payload of the ended run is left out, and then its result.
const MAX_VALUE: usize = 48 * 1024;
const MAX_DESCRIPTION: usize = 240 * 1024;

const ANY: &str = sql! {"SELECT EXISTS (SELECT 1 FROM scheduled_tasks WHERE {followed})"};

/// Returns whether another task than that of `on_dead` follows any task. If not, the end of a run looks up none.
pub(crate) fn any(tx: &Transaction<'_>) -> rusqlite::Result<bool> {
    tx.prepare_cached(ANY)?.query_row([], |row| row.get(0))
}

/// The failure count of a `once` task is always 0.
const POLICY: &str = "
    SELECT on_dead, on_success, on_end, on_missed, status, failure_count, pause_after_failures
      FROM scheduled_tasks WHERE id = :task";

/// What follows from the ends of the runs of a task.
#[derive(Default)]
struct Policy {
    /// Of each column, the names that it holds.
    names: [(Option<Origin>, Option<String>); 4],
    /// The streak of dead runs, if it pauses the task.
    pauses: Option<u32>,
}

impl Policy {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let origins = [Origin::OnDead, Origin::OnSuccess, Origin::OnEnd, Origin::OnMissed];
        let mut names: [(Option<Origin>, Option<String>); 4] = Default::default();
        for (at, (held, origin)) in names.iter_mut().zip(origins).enumerate() {
            *held = (Some(origin), row::shown_if_any(row, at)?);
        }
        // A value that only another program writes pauses nothing, and must not keep the outcome from being stored.
        let (status, failures) = (row.get(4).unwrap_or(TaskStatus::Completed), row::saturating(row, 5)?);
        let pauses = streak::pauses(status, failures, row.get(6).unwrap_or_default()).then_some(failures);
        Ok(Policy { names, pauses })
    }

    /// Returns each task that follows, once, with the first of these columns that names it.
    fn targets(&self, opens: &'static [Origin]) -> Vec<(Origin, &str)> {
        let mut targets: Vec<(Origin, &str)> = Vec::new();
        for origin in opens {
            let column = self.names.iter().find(|(of, _)| *of == Some(*origin)).and_then(|(_, names)| names.as_deref());
            for name in column.into_iter().flat_map(chain::names) {
                if !targets.iter().any(|(_, known)| *known == name) {
                    targets.push((*origin, name));
                }
            }
        }
        targets
    }
}

/// Opens what follows from the end of a run, and applies `pause_after_failures` if it is dead. `began`: an attempt of it has begun. Returns
/// the events, and whether the task was paused.
pub(crate) fn follow(
    cx: &mut Change<'_>,
    ended: &Claim,
    status: RunStatus,
    began: bool,
) -> Result<(Vec<Event>, bool), Fault> {
    let (tx, now, mut events) = (cx.tx, cx.now, Vec::new());
    if status != RunStatus::Dead && !cx.written.followed {
        return Ok((events, false));
    }
    let policy = tx.prepare_cached(POLICY)?.query_row(named_params! { ":task": ended.task_id }, Policy::read);
    let policy = policy.optional()?.unwrap_or_default();
    let targets = policy.targets(Ending { status, origin: ended.origin, began }.opens());
    if !targets.is_empty()
        && let Some(run) = history::run(tx, ended.run_id)?
    {
        let payload = describe(&run, &ended.payload);
        let parent = Parent { run: run.id, key: run.request_key.as_deref(), task: (ended.task_id, &ended.task) };
        for (origin, target) in targets {
            events.extend(try_open(cx, &parent, (origin, target), &payload)?);
        }
    }
    let mut paused = false;
    if let Some(failures) = policy.pauses.filter(|_| status == RunStatus::Dead)
        && let Some(task) = tasks::by_id(tx, ended.task_id)?
    {
        let task = resolve_before_a_change(tx, cx.schedules, task, now)?;
        if task.status == TaskStatus::Active {
            let runs = if failures == 1 { "run" } else { "runs" };
            tasks::rest(tx, &task, &format!("pause_after_failures: {failures} dead {runs} in a row"), now)?;
            (cx.written.blocked, paused) = (true, true);
            events.push(Event::Paused { task: ended.task.clone(), failures });
        }
    }
    Ok((events, paused))
}

/// Opens what follows from what the resolution of a task has passed over or cancelled.
pub(crate) fn follow_one(cx: &mut Change<'_>, passed: &Passed) -> Result<(), Fault> {
    match passed {
        Passed::Missed { row, task, name, span, reason } => {
            let payload = json!({
                "id": row, "task": name, "status": RunStatus::Missed.as_str(), "from": span.first.to_string(),
                "to": span.last.to_string(), "count": span.count, "exact": span.exact, "error": reason,
            });
            let policy = cx.tx.prepare_cached(POLICY)?.query_row(named_params! { ":task": task }, Policy::read)?;
            let missed = Ending { status: RunStatus::Missed, origin: Origin::Schedule, began: false };
            for target in policy.targets(missed.opens()) {
                let parent = Parent { run: *row, key: None, task: (*task, name) };
                let event = try_open(cx, &parent, target, &payload.to_string())?;
                cx.written.events.extend(event);
            }
        }
        Passed::Cancelled { run } => {
            let Some(claim) = runs::ending(cx.tx, *run, cx.now)? else { return Ok(()) };
            let (follows, _) = follow(cx, &claim, RunStatus::Cancelled, true)?;
            cx.written.events.extend(follows);
        }
    }
    Ok(())
}

/// The run that another one follows.
struct Parent<'a> {
    run: i64,
    /// Its own idempotency key.
    key: Option<&'a str>,
    /// The id and the name of its task.
    task: (i64, &'a str),
}

/// Opens a run that follows, or records why it cannot and returns the event. A failure undoes only what this function wrote.
fn try_open(
    cx: &mut Change<'_>,
    parent: &Parent<'_>,
    (origin, target): (Origin, &str),
    payload: &str,
) -> Result<Option<Event>, Fault> {
    let tx = cx.tx;
    let refused = if let Some(reason) = &cx.written.follower_refused {
        Some(reason.clone())
    } else {
        cx.written.tried_follower = true;
        tx.prepare_cached("SAVEPOINT follower")?.execute([])?;
        let refused = match open(cx, parent, (origin, target), payload) {
            Ok(None) => {
                // A run that ends later in this transaction may hold the key of the new run.
                cx.written.blocked = true;
                None
            }
            Ok(refused) => refused,
            Err(fault) if fault.is_about_the_item() => {
                tx.prepare_cached("ROLLBACK TO follower")?.execute([])?;
                Some(fault.to_string())
            }
            Err(fault) => return Err(fault),
        };
        tx.prepare_cached("RELEASE follower")?.execute([])?;
        refused
    };
    let Some(reason) = refused else { return Ok(None) };
    let (run, (task_id, task), target) = (parent.run, parent.task, target.to_owned());
    let detail = format!("the {origin} task {target:?} cannot run: {reason}");
    let kind = if origin == Origin::OnDead { "on_dead" } else { "not_followed" };
    owners::record(tx, cx.now, kind, Some(task_id), Some(run), Some(&detail))?;
    let task = task.to_owned();
    Ok(Some(match origin {
        Origin::OnDead => Event::OnDeadFailed { run, task, on_dead: target, reason },
        _ => Event::NotFollowed { run, task, origin, target, reason },
    }))
}

const IS_OPENED: &str = "SELECT 1 FROM task_runs WHERE task_id = :task AND request_key = :key";

/// Returns why no run is opened, if none is and none was.
fn open(
    cx: &mut Change<'_>,
    parent: &Parent<'_>,
    (origin, target): (Origin, &str),
    payload: &str,
) -> Result<Option<String>, Fault> {
    let (tx, now) = (cx.tx, cx.now);
    let Some(link) = Link::after(parent.run, parent.key) else {
        return Ok(Some(format!("{} runs have followed one after another, the most", chain::MAX_LENGTH)));
    };
    let Some(mut target) = tasks::by_name(tx, target)? else { return Ok(Some("there is no such task".to_owned())) };
    let key = link.key();
    if tx.prepare_cached(IS_OPENED)?.exists(named_params! { ":task": target.id, ":key": key })? {
        return Ok(None);
    }
    if target.definition.schedule_type == ScheduleKind::Delay {
        // Its schedule will wait for this run, so what is due is resolved first.
        target = resolve_before_a_change(tx, cx.schedules, target, now)?;
    }
    if target.status == TaskStatus::Invalid {
        let reason = target.invalid_reason.unwrap_or_default();
        return Ok(Some(format!("it is invalid: {reason}")));
    }
    let request = Request { origin, payload: Some(payload), retry_of: None, key: Some(&key) };
    manual::open(tx, &target, request, now)?;
    Ok(None)
}

/// Returns the payload of a run that follows: the ended run as JSON. Keys are column names, times RFC 3339.
fn describe(run: &Run, payload: &str) -> String {
    let value = |text: &str| match text.len() {
        ..=MAX_VALUE => serde_json::from_str(text).unwrap_or_default(),
        _ => Value::Null,
    };
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let mut described = json!({
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
        "payload": value(payload),
        "started_at": time(run.started_at),
        "finished_at": time(run.finished_at),
        "duration_ms": run.duration.map(millis),
        "error": run.error.as_ref().map(|error| excerpt(error, MAX_TEXT)),
        "exit_code": run.exit_code,
        "output": run.output.as_ref().map(|output| excerpt_of_end(output, MAX_TEXT)),
        "result": run.result.as_deref().map(value),
    });
    if run.status == RunStatus::Missed {
        described["from"] = json!(run.scheduled_for.to_string());
        described["to"] = json!(run.scheduled_for.to_string());
        described["count"] = json!(run.occurrences);
    }
    for long in ["payload", "result"] {
        if described.to_string().len() > MAX_DESCRIPTION {
            described[long] = Value::Null;
        }
    }
    described.to_string()
}

/// Resolves the due occurrences of a task that is about to be changed, under its old state. Returns the task after that.
pub(crate) fn resolve_before_a_change(
    tx: &Transaction<'_>,
    schedules: &mut Schedules,
    task: Task,
    now: Timestamp,
) -> Result<Task, Fault> {
    let task = planned_again(tx, task, now)?;
    if task.status != TaskStatus::Active && !runs_again(&task) {
        return Ok(task);
    }
    if !task.planned {
        match tasks::settle_plan(tx, schedules, task.id, now) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(tasks::by_id(tx, task.id)?.unwrap_or(task)),
            // Its zone is unknown here, so when it is due is too. The change may correct the zone, so it must not fail.
            Err(fault) if fault.is_about_this_machine() => return Ok(task),
            Err(fault) => return Err(fault),
        }
    }
    replan::plan_again(tx, schedules, &replan::zone_marks(tx)?, &[task.id])?;
    let mut written = Written { followed: any(tx)?, ..Written::default() };
    let due = due::due(tx, schedules, &[task.id], now)?;
    let mut cx = Change { tx, now, schedules, written: &mut written };
    for (_, due) in due {
        open::resolve_due(&mut cx, &due?, None, Rest::Cut, None)?;
    }
    once::finish(&mut cx, None)?;
    let passed = std::mem::take(&mut cx.written.passed);
    passed.iter().try_for_each(|passed| follow_one(&mut cx, passed))?;
    tasks::recall(tx, task.id)?;
    Ok(tasks::by_id(tx, task.id)?.unwrap_or(task))
}

/// Plans a task again first, if a wrong clock has planned it and turns have not come to it yet. Returns the task as it is then.
pub(crate) fn planned_again(tx: &Transaction<'_>, task: Task, now: Timestamp) -> Result<Task, Fault> {
    let Some(mark) = clock_mark::read(tx)?.filter(|mark| mark.awaits(task.id)) else { return Ok(task) };
    replan::rewind_tasks(tx, &[task.id], mark.since, now)?;
    Ok(tasks::by_id(tx, task.id)?.unwrap_or(task))
}

/// Returns whether SQL set the next_run of a completed task. Planning makes such a task active.
pub(crate) fn runs_again(task: &Task) -> bool {
    task.status == TaskStatus::Completed && task.next_run.is_some()
}

const LEADS_TO: &str = "SELECT on_success, on_end FROM scheduled_tasks WHERE name = :name";

/// Refuses tasks that `on_success` and `on_end` lead back to. `written`: tasks that this transaction has written.
pub(crate) fn refuse_circles<'d>(
    tx: &Transaction<'_>,
    written: impl IntoIterator<Item = &'d Definition>,
) -> Result<(), Fault> {
    for task in written.into_iter().filter(|task| task.leads_on()) {
        let next = |name: &str| -> rusqlite::Result<Vec<String>> {
            let read = |row: &Row<'_>| Ok([row::shown_if_any(row, 0)?, row::shown_if_any(row, 1)?]);
            let found = tx.prepare_cached(LEADS_TO)?.query_row(named_params! { ":name": name }, read).optional()?;
            let found = found.into_iter().flatten().flatten();
            Ok(found.flat_map(|names| chain::names(&names).map(str::to_owned).collect::<Vec<_>>()).collect())
        };
        if let Some(circle) = chain::circle(&task.name, next)? {
            let field = if task.on_success.is_some() { "on_success" } else { "on_end" };
            let expected = "tasks whose on_success and on_end do not lead back to this one";
            return Err(Error::invalid_task(field, circle.join(" -> "), expected).into());
        }
    }
    Ok(())
}
