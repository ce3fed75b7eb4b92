//! Tools that change tasks. Each is confined by the scope, counted, and recorded with who made it; each has a dry run.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use duly::{
    Actor, Added, Change, Definition, Done, NewRun, NewTask, Run, RunFilter, RunStatus, ScheduleKind, Task, TaskStatus,
    Timestamp,
};
use serde_json::{Map, Value, json};

use crate::cli::mcp_args::Allow;
use crate::mcp::answer::{Answer, ToolError, quoted, untrusted};
use crate::mcp::desk::{Call, Desk};
use crate::mcp::grant::{CLIENTS, Sight, is_of_a_client, shown};
use crate::mcp::look::{COMMAND, payload_of, understood, zone_of};
use crate::mcp::pace::{self, Pace};
use crate::mcp::shapes;
use crate::mcp::words::Understood;

/// How often `cancel_task` looks whether running runs have ended, and how many times.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: usize = 100;
/// Most runs of a task that are searched for a key, or cancelled with it.
const KEYS: usize = 1000;
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
    if !call.flag("dry_run") {
        changes.push(desk.client.now());
    }
    Ok(answer)
}

/// Examines and changes, again if another server has changed something in between: limits hold for all servers of a scope together.
fn guarded<T>(desk: &Desk, call: &Call<'_>, f: impl Fn(Actor) -> Result<T, ToolError>) -> Result<T, ToolError> {
    for _ in 1..TRIES {
        match f(desk.actor(call.caller)?.guarded()?) {
            Err(ToolError::Overtaken) => call.check()?,
            done => return done,
        }
    }
    Err(ToolError::Overtaken)
}

/// Refuses what would go around a pause: what a user, or duly, has paused rests until the user decides.
fn check_not_held(task: &Task) -> Result<(), ToolError> {
    match task.paused_by.as_ref().filter(|by| task.status == TaskStatus::Paused && !by.starts_with(CLIENTS)) {
        None => Ok(()),
        Some(by) => Err(ToolError::Refused(format!(
            "task {:?} was not paused by a client of duly mcp, but by {by:?}: the user decides",
            task.name()
        ))),
    }
}

pub(crate) fn schedule_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    changing(desk, call, Allow::Add, |actor| Addition::examined(desk, call)?.make(desk, call, &actor))
}

/// A task that may be added.
struct Addition {
    task: NewTask,
    old: Option<Task>,
    remarks: Vec<String>,
}

impl Addition {
    fn examined(desk: &Desk, call: &Call<'_>) -> Result<Self, ToolError> {
        let name = call.required("name")?;
        desk.grant.check_new_name(name)?;
        let (task, pace) = new_task(desk, call, name)?;
        let old = desk.client.task(name)?;
        if old.as_ref().is_some_and(|old| !is_of_a_client(old)) {
            let reason = "a task of this name exists that no client of duly mcp added: choose another name";
            return Err(ToolError::Refused(format!("name: {reason}")));
        }
        let remarks = match &old {
            // It is the same task, and nothing changes, or it is refused.
            Some(_) if !call.flag("replace") => Vec::new(),
            old => {
                old.as_ref().map_or(Ok(()), check_not_held)?;
                pace::check_task(desk, (&task, &pace), old.as_ref())?
            }
        };
        Ok(Addition { task, old, remarks })
    }

    fn make(self, desk: &Desk, call: &Call<'_>, actor: &Actor) -> Result<Answer, ToolError> {
        if call.flag("dry_run") {
            return self.rehearse(desk, call, actor);
        }
        let added = if call.flag("replace") { actor.replace(self.task) } else { actor.add(self.task) };
        let added = added.map_err(|error| match error {
            duly::Error::TaskDiffers { field, .. } => ToolError::Refused(format!(
                "a task of this name exists with another {field}: replace true changes it, another name adds a second one"
            )),
            other => other.into(),
        })?;
        done(desk, &added, &self.remarks)
    }

    /// Answers a dry run: what the same call would do, and each field of the stored task that would change.
    fn rehearse(self, desk: &Desk, call: &Call<'_>, actor: &Actor) -> Result<Answer, ToolError> {
        let name = call.required("name")?;
        let added = (!call.flag("replace")).then(|| actor.would_add(self.task.clone()));
        let is_refused = matches!(added, Some(Err(duly::Error::TaskDiffers { .. })));
        let added = added.filter(|_| !is_refused);
        let done = added.unwrap_or_else(|| actor.would_replace(self.task.clone()))?;
        let (would, next) = match &done {
            Done::Created => ("add", DO_IT),
            Done::Replaced { .. } if is_refused => ("refuse", "replace true, if the change is meant; or another name"),
            Done::Replaced { .. } => ("change", DO_IT),
            _ => ("unchanged", "show_task for what is stored"),
        };
        let text = match would {
            "refuse" => format!("{name} exists and differs: would be refused; with replace true it would change"),
            "unchanged" => format!("unchanged: {name} is stored as it is given"),
            would => format!("would {would} {name}"),
        };
        let mut answer = rehearsed(text, next);
        answer.field("would", would);
        let fields = if let Done::Replaced { fields } = done { fields } else { Vec::new() };
        let differences = self.differences(&fields, call, &mut answer);
        answer.field("differences", differences);
        let (times, ahead) = (desk.times(), self.task.occurrences(desk.client.now(), 3).unwrap_or_default());
        for at in &ahead {
            answer.line(format!("next {}", shapes::time_text(*at, &times.zone, &times)));
        }
        answer.remark(&self.remarks);
        answer.field("next_runs", ahead.iter().map(|at| shapes::time(*at, &times.zone, &times)).collect::<Vec<_>>());
        Ok(answer)
    }

    /// Returns the fields that differ, and adds a line for each.
    fn differences(&self, fields: &[(&str, String, String)], call: &Call<'_>, answer: &mut Answer) -> Vec<Value> {
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

/// Reads the task of a call. Nothing of it can name another task, a key, a command or a program.
fn new_task(desk: &Desk, call: &Call<'_>, name: &str) -> Result<(NewTask, Pace), ToolError> {
    let (now, zone) = (desk.client.now(), zone_of(desk, call)?);
    let understood = understood(call, &now, &zone)?;
    let (schedule, once) = match &understood {
        Understood::In(after) => ((ScheduleKind::Once, "", zone.name()), Some(now.plus(*after))),
        Understood::Schedule(kind, value) => {
            let at = (*kind == ScheduleKind::Once).then(|| zone.instant(value).ok()).flatten();
            ((*kind, value.as_str(), zone.name()), at)
        }
    };
    let pace = Pace::of_new(desk, schedule, once);
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
        let at = zone.instant(until);
        task = task.ends_at(at.map_err(|error| ToolError::Refused(format!("ends_at: {error}")))?);
    }
    Ok((task, pace))
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

/// Answers an addition.
fn done(desk: &Desk, added: &Added, remarks: &[String]) -> Result<Answer, ToolError> {
    let mut answer = Answer::new();
    let change = match added.change {
        Change::Created => "added",
        Change::Replaced => "replaced",
        _ => "unchanged",
    };
    answer.field("change", change);
    answer.line(format!("{change}: {}", added.name));
    describe(desk, &added.name, &mut answer)?;
    answer.remark(remarks);
    answer.next("tell the user when it runs, with the zone; history for its runs; cancel_task removes it");
    Ok(answer)
}

/// Adds what a task is now.
fn describe(desk: &Desk, name: &str, answer: &mut Answer) -> Result<(), ToolError> {
    let times = desk.times();
    if let Some(task) = desk.client.task(name)? {
        answer.line(shapes::task_line(&task, &times));
        answer.field("task", shapes::task(&task, Sight::Whole, &times));
    }
    Ok(())
}

fn dry_run(what: String) -> Answer {
    rehearsed(what, DO_IT)
}

fn rehearsed(what: String, next: &str) -> Answer {
    let mut answer = Answer::new();
    answer.next(next);
    answer.field("change", "none");
    answer.field("dry_run", true);
    answer.line(format!("dry run, nothing was changed: {what}"));
    answer
}

pub(crate) fn trigger_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    changing(desk, call, Allow::Trigger, |actor| {
        let name = call.required("name")?;
        let task = desk.grant.own_task(&desk.client, name)?;
        check_not_held(&task)?;
        let mut run = NewRun::of(name);
        if let Some(payload) = call.arguments.get("payload") {
            if task.definition.handler == COMMAND {
                let reason = "the task is a command, and its input is not the model's to give";
                return Err(ToolError::Refused(format!("payload: {reason}")));
            }
            check_payload(desk, &task.definition.handler, payload)?;
            run = run.payload(payload);
        }
        if let Some(key) = call.text("key") {
            if key.is_empty() || key.contains(char::is_control) {
                let reason = format!("expected a text without control characters, found {:?}", shown(key));
                return Err(ToolError::Refused(format!("key: {reason}")));
            }
            run = run.key(key);
        }
        if !has_key(desk, call, name)? {
            pace::check_starts(desk, &desk.grant.own_tasks(&desk.client)?, None, None)?;
        }
        if call.flag("dry_run") {
            return Ok(dry_run(format!("would start a run of {name} now, unless one has this key")));
        }
        let triggered = actor.trigger_run(run)?;
        let mut answer = Answer::new();
        answer.field("change", if triggered.is_new { "triggered" } else { "unchanged" });
        answer.field("run", triggered.run_id);
        let word = if triggered.is_new { "starts as soon as a scheduler takes it" } else { "had this key before" };
        answer.line(format!("run {} of {name} {word}", triggered.run_id));
        answer.remark(&starts_now(triggered.is_new));
        answer.next(format!("run_output with run {} and wait_seconds for its end", triggered.run_id));
        Ok(answer)
    })
}

/// Whether one of the newest runs of a task has the key of the call: then nothing starts.
fn has_key(desk: &Desk, call: &Call<'_>, name: &str) -> Result<bool, ToolError> {
    let Some(key) = call.text("key") else { return Ok(false) };
    let runs = desk.client.history(name, KEYS)?;
    Ok(runs.iter().any(|run| run.request_key.as_deref() == Some(key)))
}

fn starts_now(is_new: bool) -> Vec<String> {
    if is_new { vec!["it runs within a minute: now".to_owned()] } else { Vec::new() }
}

pub(crate) fn retry_run(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    changing(desk, call, Allow::Trigger, |actor| {
        let id = call.number("run").unwrap_or_default();
        let run = desk.grant.own_run(&desk.client, id)?;
        if !matches!(run.status, RunStatus::Dead | RunStatus::Cancelled) {
            let reason = format!("run {id} is {}: only a dead or cancelled run is retried", run.status);
            return Err(ToolError::Refused(reason));
        }
        check_not_held(&desk.grant.own_task(&desk.client, &run.task)?)?;
        pace::check_starts(desk, &desk.grant.own_tasks(&desk.client)?, None, None)?;
        if call.flag("dry_run") {
            return Ok(dry_run(format!("would retry run {id} of {}, which is {}", run.task, run.status)));
        }
        let new = actor.retry(id)?;
        let mut answer = Answer::new();
        answer.field("change", "retried");
        answer.field("run", new);
        answer.line(format!("run {new} of {} retries run {id}", run.task));
        answer.remark(&starts_now(true));
        answer.next(format!("run_output with run {new} and wait_seconds for its end"));
        Ok(answer)
    })
}

/// It is no change too many: to stop is always possible.
pub(crate) fn pause_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let mut changes = alone(desk, call, Allow::Pause)?;
    let name = call.required("name")?;
    let task = desk.grant.own_task(&desk.client, name)?;
    if matches!(task.status, TaskStatus::Paused | TaskStatus::Invalid) {
        return changed(desk, name, "unchanged", "show_task says why it does not run");
    }
    if call.flag("dry_run") {
        return Ok(dry_run(format!("would pause {name}")));
    }
    desk.actor(call.caller)?.pause(name)?;
    changes.push(desk.client.now());
    changed(desk, name, "paused", "resume_task lets it go on; what is due in the pause is not made up for")
}

pub(crate) fn resume_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    changing(desk, call, Allow::Pause, |actor| {
        let name = call.required("name")?;
        let task = desk.grant.own_task(&desk.client, name)?;
        check_not_held(&task)?;
        if call.flag("dry_run") {
            return Ok(dry_run(format!("would resume {name}")));
        }
        actor.resume(name)?;
        let mut answer = changed(desk, name, "resumed", "show_task for its next runs")?;
        let task = desk.grant.own_task(&desk.client, name)?;
        answer.remark(&pace::remarks_of(desk, &task));
        Ok(answer)
    })
}

fn changed(desk: &Desk, name: &str, change: &str, next: &str) -> Result<Answer, ToolError> {
    let mut answer = Answer::new();
    answer.field("change", change);
    answer.line(format!("{change}: {name}"));
    describe(desk, name, &mut answer)?;
    answer.next(next);
    Ok(answer)
}

/// As [`pause_task`], it is no change too many.
pub(crate) fn cancel_run(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let mut changes = alone(desk, call, Allow::Cancel)?;
    let id = call.number("run").unwrap_or_default();
    let run = desk.grant.own_run(&desk.client, id)?;
    if run.status.is_final() {
        return Err(ToolError::Refused(format!("run {id} is {}: it has ended", run.status)));
    }
    if call.flag("dry_run") {
        return Ok(dry_run(format!("would cancel run {id} of {}, which is {}", run.task, run.status)));
    }
    let mut answer = Answer::new();
    answer.field("run", id);
    answer.next(format!("run_output with run {id} and wait_seconds for its end"));
    if run.cancel_requested {
        answer.field("change", "unchanged");
        answer.line(format!("run {id} of {} was asked to stop before", run.task));
        return Ok(answer);
    }
    desk.actor(call.caller)?.cancel(id)?;
    changes.push(desk.client.now());
    answer.field("change", "cancelled");
    answer.line(format!("run {id} of {} is cancelled, or asked to stop if it is running", run.task));
    Ok(answer)
}

/// As [`pause_task`], it is no change too many. Others change while this waits for the end of running runs.
pub(crate) fn cancel_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let mut changes = alone(desk, call, Allow::Remove)?;
    let name = call.required("name")?;
    let task = removable(desk, name)?;
    let unfinished = unfinished(desk, name)?;
    if !unfinished.is_empty() && !desk.grant.allows(Allow::Cancel) {
        let reason = format!("task {name:?} has unfinished runs, and cancel is not allowed: wait for their end");
        return Err(ToolError::Refused(reason));
    }
    if call.flag("dry_run") {
        return Ok(dry_run(format!("would cancel the unfinished runs of {name}, and remove it with its history")));
    }
    if !unfinished.is_empty() {
        cancel_runs(&desk.actor(call.caller)?, &task, &unfinished)?;
        drop(changes);
        wait_for_runs(desk, call, name)?;
        changes = alone(desk, call, Allow::Remove)?;
    }
    guarded(desk, call, |actor| {
        let note = pace::note_of_removal(desk, &removable(desk, name)?)?;
        let actor = note.map_or(Ok(actor.clone()), |note| actor.noting(&note))?;
        Ok(actor.remove(name)?)
    })?;
    changes.push(desk.client.now());
    let mut answer = Answer::new();
    answer.field("change", "removed");
    answer.line(format!("removed: {name}, with its history"));
    answer.next("list_tasks for what is left");
    Ok(answer)
}

/// Returns a task that a client may remove: one that a client added, that no user has paused, and that follows no other task.
fn removable(desk: &Desk, name: &str) -> Result<Task, ToolError> {
    let task = desk.grant.own_task(&desk.client, name)?;
    let refused = |reason: &str| {
        Err(ToolError::Refused(format!("task {name:?}: {reason}: pause_task stops its schedule, the user removes it")))
    };
    if !is_of_a_client(&task) {
        return refused("no client of duly mcp added it");
    }
    check_not_held(&task)?;
    // No tool declares what follows: such a chain is the user's, and may begin outside of the scope.
    if desk.client.tasks()?.iter().any(|other| other.id != task.id && leads_to(other, name)) {
        return refused("another task names it in on_dead, on_success, on_end or on_missed");
    }
    Ok(task)
}

/// Whether runs of a task follow those of another one.
fn leads_to(task: &Task, name: &str) -> bool {
    let Definition { on_dead, on_success, on_end, on_missed, .. } = &task.definition;
    let mut names = [on_dead, on_success, on_end, on_missed].into_iter().flatten().flat_map(|names| names.split(','));
    names.any(|other| other.trim() == name)
}

/// The runs of a task that wait or run.
fn unfinished(desk: &Desk, name: &str) -> Result<Vec<Run>, ToolError> {
    let mut unfinished = Vec::new();
    for status in [RunStatus::Queued, RunStatus::Failed, RunStatus::Running] {
        unfinished.extend(desk.client.runs(&RunFilter::newest(KEYS).of(name).status(status))?);
    }
    Ok(unfinished)
}

/// Cancels runs of a task whose schedule opens no more of them.
fn cancel_runs(actor: &Actor, task: &Task, runs: &[Run]) -> Result<(), ToolError> {
    if task.status == TaskStatus::Active {
        actor.pause(task.name())?;
    }
    for run in runs.iter().filter(|run| !run.cancel_requested) {
        match actor.cancel(run.id) {
            // It has ended in the meantime.
            Ok(()) | Err(duly::Error::Refused { .. }) => {}
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
            let actor = one.actor(call.caller).unwrap().guarded().unwrap();
            let addition = Addition::examined(&one, call).unwrap();
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
