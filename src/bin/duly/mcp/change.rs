//! Tools that change tasks. Each is confined by the scope, counted, and recorded with who made it. A dry run is the same change, taken back.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use duly::{
    Actor, Done, Error, NewRun, NewTask, Origin, Run, RunFilter, RunStatus, ScheduleKind, Task, TaskStatus, Timestamp,
};
use serde_json::{Map, Value, json};

use crate::cli::mcp_args::Allow;
use crate::mcp::answer::{Answer, ToolError, quoted, untrusted};
use crate::mcp::desk::{Call, Desk, instant};
use crate::mcp::grant::{Sight, is_of_a_client, shown};
use crate::mcp::look::{COMMAND, payload_of, refused_schedule, understood, zone_of};
use crate::mcp::pace;
use crate::mcp::shapes;
use crate::mcp::unfinished::{remarks_of_waiting, unfinished};
use crate::mcp::words::Understood;

/// How often `cancel_task` looks whether running runs have ended, and how many times.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: usize = 100;
/// How many times a change is tried that others overtake: at each, one of them makes its change.
const TRIES: usize = 50;
/// What follows a dry run.
const DO_IT: &str = "the same call without dry_run does it";
/// Longest payload, in bytes of JSON.
const MAX_PAYLOAD: usize = 32 * 1024;

/// Waits until this call is alone among the changes of this server, unless it is not allowed or cancelled.
fn alone<'d>(desk: &'d Desk, call: &Call<'_>, kind: Allow) -> Result<MutexGuard<'d, Vec<Timestamp>>, ToolError> {
    if !desk.grant.allows(kind) {
        return Err(ToolError::Refused("this change is not allowed: the user decides that with --allow".to_owned()));
    }
    let changes = desk.changes.lock().unwrap_or_else(PoisonError::into_inner);
    call.check().map(|()| changes)
}

/// Counts a change among those of a minute.
fn count(desk: &Desk, call: &Call<'_>, mut changes: MutexGuard<'_, Vec<Timestamp>>) {
    if !call.flag("dry_run") {
        changes.push(desk.client.now());
    }
}

/// Makes a change alone. It counts among those of a minute if it is made.
fn changing(
    desk: &Desk,
    call: &Call<'_>,
    kind: Allow,
    f: impl Fn(Actor) -> Result<Answer, ToolError>,
) -> Result<Answer, ToolError> {
    let mut changes = alone(desk, call, kind)?;
    pace::check_changes(&mut changes, desk.client.now())?;
    let answer = guarded(desk, call, f)?;
    count(desk, call, changes);
    Ok(answer)
}

/// Examines and changes, again if another server has changed something in between: limits hold for all servers of a scope together.
fn guarded<T>(desk: &Desk, call: &Call<'_>, f: impl Fn(Actor) -> Result<T, ToolError>) -> Result<T, ToolError> {
    for _ in 1..TRIES {
        match f(desk.actor(call)?.guarded()?) {
            Err(ToolError::Overtaken) => call.check()?,
            done => return done,
        }
    }
    Err(ToolError::Overtaken)
}

/// Begins the answer to a change: a word for it, and what was changed.
fn changed(call: &Call<'_>, change: &str, what: &str) -> Answer {
    let mut answer = Answer::new();
    if call.flag("dry_run") {
        answer.field("change", "none");
        answer.field("dry_run", true);
        answer.line(format!("dry run, nothing was changed: would be {change}: {what}"));
        answer.next(DO_IT);
    } else {
        answer.field("change", change);
        answer.line(format!("{change}: {what}"));
    }
    answer
}

/// As [`changed`], with the task as it is then.
fn changed_task(desk: &Desk, call: &Call<'_>, change: &str, task: &Task) -> Answer {
    let (mut answer, times) = (changed(call, change, task.name()), desk.times());
    answer.line(shapes::task_line(task, &times));
    answer.field("task", shapes::task(task, Sight::Whole, &times));
    answer
}

pub(crate) fn schedule_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    changing(desk, call, Allow::Add, |actor| Addition::examined(desk, call, &actor)?.make(desk, call, &actor))
}

/// A task that may be added.
struct Addition {
    given: NewTask,
    old: Option<Task>,
    /// What adding it does, and the task as it is then.
    done: Done,
    task: Task,
    /// Whether it differs from the stored one, and `replace` is not given.
    is_refused: bool,
    remarks: Vec<String>,
}

impl Addition {
    fn examined(desk: &Desk, call: &Call<'_>, actor: &Actor) -> Result<Self, ToolError> {
        let name = call.required("name")?;
        desk.grant.check_new_name(name)?;
        let (given, after) = new_task(desk, call, name)?;
        let old = desk.client.task(name)?;
        if old.as_ref().is_some_and(|old| !is_of_a_client(old)) {
            let reason = "a task of this name exists that no client of duly mcp added: choose another name";
            return Err(ToolError::Refused(format!("name: {reason}")));
        }
        let trial = actor.clone().rehearsing();
        let tried = put(call, &trial, given.clone());
        let is_refused = call.flag("dry_run") && matches!(tried, Err(Error::TaskDiffers { .. }));
        let (done, task) = if is_refused { trial.replace(given.clone()) } else { tried }.map_err(refusal_of)?;
        let mut remarks = match (&done, &old) {
            _ if is_refused => Vec::new(),
            (Done::Unchanged, Some(old)) => remarks_of_stored(desk, old, after)?,
            _ => pace::check_task(desk, &task, old.as_ref())?,
        };
        if let (Done::Replaced { fields }, Some(old), false) = (&done, &old, is_refused) {
            remarks.extend(remarks_of_waiting(desk, old, fields)?);
        }
        Ok(Addition { given, old, done, task, is_refused, remarks })
    }

    fn make(mut self, desk: &Desk, call: &Call<'_>, actor: &Actor) -> Result<Answer, ToolError> {
        if call.flag("dry_run") {
            return Ok(self.would(desk, call));
        }
        (self.done, self.task) = put(call, actor, self.given).map_err(refusal_of)?;
        let change = match self.done {
            Done::Created => "added",
            Done::Replaced { .. } => "replaced",
            _ => "unchanged",
        };
        let mut answer = changed_task(desk, call, change, &self.task);
        answer.remark(&self.remarks);
        answer.next("tell the user when it runs, with the zone; history for its runs; cancel_task removes it");
        Ok(answer)
    }

    /// Answers a dry run: what the same call would do, and each field of the stored task that would change.
    fn would(self, desk: &Desk, call: &Call<'_>) -> Answer {
        let (name, times) = (self.task.name(), desk.times());
        let (would, text) = match &self.done {
            Done::Created => ("add", format!("would add {name}")),
            Done::Replaced { .. } if self.is_refused => {
                ("refuse", format!("{name} exists and differs: would be refused; with replace true it would change"))
            }
            Done::Replaced { .. } => ("change", format!("would change {name}")),
            _ => ("unchanged", format!("unchanged: {name} is stored as it is given")),
        };
        let mut answer = Answer::new();
        answer.field("change", "none");
        answer.field("dry_run", true);
        answer.field("would", would);
        answer.line(format!("dry run, nothing was changed: {text}"));
        answer.next(match would {
            "refuse" => "replace true, if the change is meant; or another name",
            "unchanged" => "show_task for what is stored",
            _ => DO_IT,
        });
        let differences = self.differences(call, &mut answer);
        answer.field("differences", differences);
        let ahead = self.task.ahead(3).unwrap_or_default();
        for next in &ahead {
            answer.line(format!("next {}", shapes::time_text(next.at, &times.zone, &times)));
        }
        answer.remark(&self.remarks);
        let next_runs = ahead.iter().map(|next| shapes::time(next.at, &times.zone, &times));
        answer.field("next_runs", next_runs.collect::<Vec<_>>());
        answer
    }

    /// Returns the fields that differ, and adds a line for each.
    fn differences(&self, call: &Call<'_>, answer: &mut Answer) -> Vec<Value> {
        let Done::Replaced { fields } = &self.done else { return Vec::new() };
        let stored_for = self.old.as_ref().map(|old| old.definition.handler.as_str()).unwrap_or_default();
        let given_for = call.text("handler").unwrap_or(COMMAND);
        let shown = |handler: &str, field: &str, text: &str| match field {
            "payload" => payload_of(handler, text),
            _ => text.to_owned(),
        };
        let mut differences = Vec::with_capacity(fields.len());
        for (field, stored, given) in fields {
            let (stored, given) = (shown(stored_for, field, stored), shown(given_for, field, given));
            answer.line(format!("{field}: {} \u{2192} {}", quoted(&stored), quoted(&given)));
            differences.push(json!({"field": field, "stored": untrusted(&stored), "given": untrusted(&given)}));
            answer.has_untrusted();
        }
        differences
    }
}

fn put(call: &Call<'_>, actor: &Actor, task: NewTask) -> duly::Result<(Done, Task)> {
    if call.flag("replace") { actor.replace(task) } else { actor.add(task) }
}

fn refusal_of(error: Error) -> ToolError {
    match error {
        Error::TaskDiffers { field, .. } => ToolError::Refused(format!(
            "a task of this name exists with another {field}: replace true changes it, another name adds a second one"
        )),
        Error::InvalidSchedule { .. } | Error::InvalidTime { .. } => refused_schedule(&error),
        other => other.into(),
    }
}

/// What is to be said of a stored task that a call leaves as it is. Refused if it has run, and does not run again. `is_relative`: the call
/// counts from now, and the stored task from when it was added.
fn remarks_of_stored(desk: &Desk, task: &Task, is_relative: bool) -> Result<Vec<String>, ToolError> {
    let (times, zone) = (desk.times(), shapes::zone_of(task, &desk.times()));
    let text = |at| shapes::time_text(at, &zone, &times);
    if task.status == TaskStatus::Completed {
        let ran = task.last_run.map(|at| format!(": it ran at {}", text(at))).unwrap_or_default();
        let advice = "replace true with a time to come runs it again, another name adds a second one";
        return Err(ToolError::Refused(format!("task {:?} is completed{ran}: {advice}", task.name())));
    }
    let stored = task.next_run.filter(|_| is_relative).map(text);
    let remark = |at| format!("it was added before, and runs at {at}: replace true counts from now");
    Ok(stored.map(remark).into_iter().collect())
}

/// Reads the task of a call, and whether its time counts from now. Nothing of it can name another task, a key, a command or a program.
fn new_task(desk: &Desk, call: &Call<'_>, name: &str) -> Result<(NewTask, bool), ToolError> {
    let (now, zone) = (desk.client.now(), zone_of(desk, call)?);
    let understood = understood(call, &now, &zone)?;
    let mut task = understood.task(name, &zone);
    task = match (call.text("handler"), call.text("template"), call.number("max_attempts")) {
        (Some(handler), None, attempts) => {
            let task = with_handler(desk, call, task, handler)?;
            let attempts = attempts.and_then(|attempts| u32::try_from(attempts).ok());
            attempts.into_iter().fold(task, NewTask::max_attempts)
        }
        (None, Some(_), Some(_)) => {
            return Err(ToolError::Refused("max_attempts: the template decides it, and no call".to_owned()));
        }
        (None, Some(template), None) => with_template(desk, call, task, template)?,
        _ => return Err(ToolError::Refused("expected one of handler and template: see duly://reference".to_owned())),
    };
    if let Some(until) = call.text("ends_at") {
        let ends_at = instant("ends_at", until, &zone)?;
        let ahead = task.upcoming(now, 1).map_err(|error| refused_schedule(&error))?;
        let first = ahead.first().map(|first| first.at);
        if first.is_none_or(|first| first > ends_at) {
            let first = first.map_or_else(|| "none is known in advance".to_owned(), |at| zone.text_at(at));
            let reason = format!("expected a time that is not before the first occurrence, {first}");
            return Err(ToolError::Refused(format!("ends_at: {reason}; found {}", zone.text_at(ends_at))));
        }
        task = task.ends_at(ends_at);
    }
    Ok((task, matches!(understood, Understood::In(_))))
}

fn with_handler(desk: &Desk, call: &Call<'_>, task: NewTask, handler: &str) -> Result<NewTask, ToolError> {
    if call.arguments.contains_key("parameters") {
        return Err(ToolError::Refused("parameters: only a template has them; a handler has a payload".to_owned()));
    }
    let payload = call.arguments.get("payload").unwrap_or(&Value::Null);
    check_payload(desk, handler, payload)?;
    Ok(task.handler(handler).payload(payload))
}

/// Refuses a handler that was not given, and a payload that does not match its schema.
fn check_payload(desk: &Desk, handler: &str, payload: &Value) -> Result<(), ToolError> {
    if !desk.grant.handlers.contains(handler) {
        let known: Vec<&str> = desk.grant.handlers.iter().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(ToolError::Refused(format!("handler: expected one of {known}, found {:?}", shown(handler))));
    }
    let length = payload.to_string().len();
    if length > MAX_PAYLOAD {
        return Err(ToolError::Refused(format!(
            "payload: expected at most {MAX_PAYLOAD} bytes of JSON, found {length}"
        )));
    }
    match desk.handlers.get(handler).and_then(|handler| handler.payload.as_ref()) {
        Some(schema) => schema.check(payload, "payload").map_err(ToolError::Refused),
        None => Ok(()),
    }
}

fn with_template(desk: &Desk, call: &Call<'_>, task: NewTask, name: &str) -> Result<NewTask, ToolError> {
    if call.arguments.contains_key("payload") {
        return Err(ToolError::Refused("payload: only a handler has one; a template has parameters".to_owned()));
    }
    let Some(template) = desk.templates.iter().find(|template| template.name == name) else {
        let known: Vec<&str> = desk.templates.iter().map(|template| template.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(ToolError::Refused(format!("template: expected one of {known}, found {:?}", shown(name))));
    };
    let nothing = Map::new();
    let given = call.arguments.get("parameters").and_then(Value::as_object).unwrap_or(&nothing);
    template.fill(task, given).map_err(ToolError::Refused)
}

/// The error of a key, by the name that the tool has for it.
fn refused_key(error: Error) -> ToolError {
    match error {
        Error::InvalidTask { field: "request_key", found, expected } => {
            ToolError::Refused(format!("key: expected {expected}, found {found:?}"))
        }
        other => other.into(),
    }
}

pub(crate) fn trigger_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    changing(desk, call, Allow::Trigger, |actor| {
        let name = call.required("name")?;
        let task = desk.grant.own_task(&desk.client, name)?;
        let mut run = NewRun::of(name);
        if let Some(payload) = call.arguments.get("payload") {
            if task.definition.handler == COMMAND {
                let reason = "the task is a command, and its input is not the model's to give";
                return Err(ToolError::Refused(format!("payload: {reason}")));
            }
            check_payload(desk, &task.definition.handler, payload)?;
            run = run.payload(payload);
        }
        run = call.text("key").into_iter().fold(run, NewRun::key);
        if actor.clone().rehearsing().trigger_run(run.clone()).map_err(refused_key)?.is_new {
            pace::check_starts(desk, &desk.grant.own_tasks(&desk.client)?, None, None)?;
        }
        let triggered = actor.trigger_run(run)?;
        if triggered.is_new {
            return Ok(opened(call, "triggered", triggered.run_id, name));
        }
        let mut answer = changed(call, "unchanged", &format!("run {} of {name} had this key before", triggered.run_id));
        answer.field("run", triggered.run_id);
        answer.remark(&[]);
        answer.next(format!("run_output with run {} and wait_seconds for its end", triggered.run_id));
        Ok(answer)
    })
}

/// Answers a change that opened a run, or would open one, which has no number yet.
fn opened(call: &Call<'_>, change: &str, run: i64, name: &str) -> Answer {
    let is_made = !call.flag("dry_run");
    let run = is_made.then_some(run);
    let what = run.map_or_else(|| "a run".to_owned(), |run| format!("run {run}"));
    let mut answer = changed(call, change, &format!("{what} of {name}, which starts as soon as a scheduler takes it"));
    if let Some(run) = run {
        answer.field("run", run);
        answer.next(format!("run_output with run {run} and wait_seconds for its end"));
    }
    answer.remark(&["it runs within a minute: now".to_owned()]);
    answer
}

pub(crate) fn retry_run(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    changing(desk, call, Allow::Trigger, |actor| {
        let id = call.number("run").unwrap_or_default();
        let run = desk.grant.own_run(&desk.client, id)?;
        check_retried(desk, &run)?;
        actor.clone().rehearsing().retry(id)?;
        pace::check_starts(desk, &desk.grant.own_tasks(&desk.client)?, None, None)?;
        Ok(opened(call, "retried", actor.retry(id)?, &run.task))
    })
}

/// Refuses a retry that would take a payload of its own to another handler than that for which it was checked.
fn check_retried(desk: &Desk, run: &Run) -> Result<(), ToolError> {
    let (Some(payload), Some(task)) = (&run.payload, desk.client.task(&run.task)?) else { return Ok(()) };
    let handler = &task.definition.handler;
    if run.handler != *handler {
        let reason =
            format!("its payload was for {:?}, and its task has {:?} now", shown(&run.handler), shown(handler));
        return Err(ToolError::Refused(format!(
            "run {}: {reason}: trigger_task with a payload starts another",
            run.id
        )));
    }
    // A run that follows another has a payload that duly has made.
    let is_given = !matches!(run.origin, Origin::OnDead | Origin::OnSuccess | Origin::OnEnd | Origin::OnMissed);
    if *handler == COMMAND || !is_given {
        return Ok(());
    }
    let payload = serde_json::from_str(payload).unwrap_or_default();
    check_payload(desk, handler, &payload)
}

/// It is no change too many: to stop is always possible.
pub(crate) fn pause_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let changes = alone(desk, call, Allow::Pause)?;
    let name = call.required("name")?;
    let task = desk.grant.own_task(&desk.client, name)?;
    if matches!(task.status, TaskStatus::Paused | TaskStatus::Invalid) {
        let mut answer = changed_task(desk, call, "unchanged", &task);
        answer.next("show_task says why it does not run");
        return Ok(answer);
    }
    let task = desk.actor(call)?.pause(name)?;
    count(desk, call, changes);
    let mut answer = changed_task(desk, call, "paused", &task);
    answer.next(match task.definition.schedule_type {
        ScheduleKind::Once => "resume_task lets it go on: if its time has come by then, it runs at once",
        _ => "resume_task lets it go on; what is due in the pause is not made up for",
    });
    Ok(answer)
}

pub(crate) fn resume_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    changing(desk, call, Allow::Pause, |actor| {
        let name = call.required("name")?;
        let old = desk.grant.own_task(&desk.client, name)?;
        let task = actor.resume(name)?;
        let change = if old.status == TaskStatus::Active { "unchanged" } else { "resumed" };
        let mut answer = changed_task(desk, call, change, &task);
        answer.remark(&pace::remarks(desk, &task));
        answer.next("show_task for its next runs");
        Ok(answer)
    })
}

/// As [`pause_task`], it is no change too many.
pub(crate) fn cancel_run(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let changes = alone(desk, call, Allow::Cancel)?;
    let id = call.number("run").unwrap_or_default();
    let run = desk.grant.own_run(&desk.client, id)?;
    let mut answer = if run.cancel_requested && !run.status.is_final() {
        changed(call, "unchanged", &format!("run {id} of {} was asked to stop before", run.task))
    } else {
        desk.actor(call)?.cancel(id)?;
        count(desk, call, changes);
        changed(call, "cancelled", &format!("run {id} of {}, or asked to stop if it is running", run.task))
    };
    answer.field("run", id);
    answer.next(format!("run_output with run {id} and wait_seconds for its end"));
    Ok(answer)
}

/// As [`pause_task`], it is no change too many. Others change while this waits for the end of running runs.
pub(crate) fn cancel_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let mut changes = alone(desk, call, Allow::Remove)?;
    let name = call.required("name")?;
    let task = desk.grant.own_task(&desk.client, name)?;
    // Before anything is cancelled: whether it may be removed.
    desk.actor(call)?.rehearsing().remove(name)?;
    let unfinished = unfinished(desk, name)?;
    if !unfinished.is_empty() && !desk.grant.allows(Allow::Cancel) {
        let reason = format!("task {name:?} has unfinished runs, and cancel is not allowed: wait for their end");
        return Err(ToolError::Refused(reason));
    }
    if !unfinished.is_empty() && !call.flag("dry_run") {
        cancel_runs(&desk.actor(call)?, &task, &unfinished)?;
        drop(changes);
        wait_for_runs(desk, call, name)?;
        changes = alone(desk, call, Allow::Remove)?;
    }
    guarded(desk, call, |actor| {
        let note = pace::note_of_removal(desk, name)?;
        let actor = note.map_or(Ok(actor.clone()), |note| actor.noting(&note))?;
        Ok(actor.remove(name)?)
    })?;
    count(desk, call, changes);
    let mut answer = changed(call, "removed", &format!("{name}, with its unfinished runs and its history"));
    answer.next("list_tasks for what is left");
    Ok(answer)
}

/// Cancels runs of a task whose schedule opens no more of them.
fn cancel_runs(actor: &Actor, task: &Task, runs: &[Run]) -> Result<(), ToolError> {
    if task.status == TaskStatus::Active {
        actor.pause(task.name())?;
    }
    for run in runs.iter().filter(|run| !run.cancel_requested) {
        match actor.cancel(run.id) {
            // It has ended in the meantime.
            Ok(()) | Err(Error::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Waits until running runs of a task have ended that were asked to stop.
fn wait_for_runs(desk: &Desk, call: &Call<'_>, name: &str) -> Result<(), ToolError> {
    let filter = || RunFilter::newest(1).of(name).status(RunStatus::Running);
    for _ in 0..LOOKS {
        if desk.client.runs(&filter())?.is_empty() {
            return Ok(());
        }
        if call.cancellation.wait(LOOK) {
            return Err(ToolError::Cancelled);
        }
    }
    Err(ToolError::Refused(format!(
        "task {name:?} is paused, and a run of it was asked to stop and has not ended: call cancel_task again"
    )))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use serde_json::{Map, Value, json};

    use super::{Addition, changing, guarded, schedule_task, trigger_task};
    use crate::cli::mcp_args::{Allow, McpArgs};
    use crate::mcp::answer::ToolError;
    use crate::mcp::at_work::Cancellation;
    use crate::mcp::desk::{Call, Desk};
    use crate::mcp::versions::Caller;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        mcp: McpArgs,
    }

    /// What a server of its own has.
    fn server(db: &Path) -> Desk {
        let scope = ["mcp", "--scope", "a/", "--allow", "add,trigger", "--handlers", "note"];
        let limits = ["--max-tasks", "1", "--max-starts-per-day", "1"];
        let options = Options::parse_from(scope.into_iter().chain(limits));
        crate::mcp::desk(db, &options.mcp).unwrap_or_else(|error| panic!("{error:?}"))
    }

    fn refusal<T: std::fmt::Debug>(answer: Result<T, ToolError>) -> String {
        match answer {
            Err(ToolError::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    /// The first server is held between its look and its change, and the second one is faster.
    #[test]
    fn of_two_servers_that_look_at_the_same_time_one_is_refused() {
        let home = tempfile::tempdir().expect("a folder");
        let (one, other) = (server(&home.path().join("agent.db")), server(&home.path().join("agent.db")));
        let (caller, cancellation) =
            (Caller { client: "tester".to_owned(), is_current: true }, Cancellation::default());
        let arguments = |value: Value| value.as_object().cloned().unwrap_or_default();
        let call = |arguments: &Map<String, Value>, f: &dyn Fn(&Call<'_>)| {
            f(&Call { arguments, caller: &caller, cancellation: &cancellation });
        };
        let task = |name: &str| arguments(json!({"name": name, "schedule": "manual", "handler": "note"}));
        call(&task("a/x"), &|call| {
            let actor = one.actor(call).unwrap().guarded().unwrap();
            let addition = Addition::examined(&one, call, &actor).unwrap();
            let faster = task("a/y");
            schedule_task(&other, &Call { arguments: &faster, ..*call }).unwrap();
            assert!(matches!(addition.make(&one, call, &actor), Err(ToolError::Overtaken)));
            assert!(refusal(schedule_task(&one, call)).starts_with("limit --max-tasks: there are 1 tasks"));
        });
        assert_eq!(one.client.names().unwrap(), ["a/y"]);
        call(&arguments(json!({"name": "a/y"})), &|call| {
            // The other server is faster once.
            let tries = std::cell::Cell::new(0);
            let triggered = guarded(&one, call, |actor| {
                tries.set(tries.get() + 1);
                crate::mcp::pace::check_starts(&one, &one.grant.own_tasks(&one.client)?, None, None)?;
                if tries.get() == 1 {
                    trigger_task(&other, call)?;
                }
                Ok(actor.trigger_run(duly::NewRun::of("a/y"))?)
            });
            assert!(refusal(triggered).starts_with("limit --max-starts-per-day: expected at most 1"));
            assert_eq!((tries.get(), one.client.newest_runs(9).unwrap().len()), (2, 1));
            let never = changing(&one, call, Allow::Add, |_| Err(ToolError::Overtaken));
            assert!(matches!(never, Err(ToolError::Overtaken)));
        });
    }
}
