//! Tools that look: tasks, schedules, runs, output and problems. They write nothing.

use std::time::Duration;

use duly::{EventFilter, Limits, Problem, ProblemKind, Run, RunFilter, RunStatus, Task, Zone};
use serde_json::{Value, json};

use crate::mcp::answer::{Answer, ToolError, quoted, untrusted, untrusted_up_to};
use crate::mcp::desk::{Call, Desk, instant};
use crate::mcp::explain;
use crate::mcp::grant::{Sight, shown};
use crate::mcp::shapes;
use crate::mcp::words::{Understood, understand};

/// Runs that `show_task` lists.
const FEW_RUNS: usize = 5;
/// Events that `show_task` lists.
const FEW_EVENTS: usize = 10;
/// Most tasks of a scope whose histories are merged.
const MAX_MERGED: usize = 300;
/// How often a waiting call looks whether the run has ended.
const LOOK: Duration = Duration::from_millis(100);
/// Most bytes of an output in a line, quoted.
const MAX_QUOTED: usize = 3500;
/// The looks of a second.
const LOOKS: usize = 10;

pub(crate) fn list_tasks(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let (times, limit) = (desk.times(), call.count("limit", 50));
    let mut tasks = desk.grant.seen_tasks(&desk.client)?;
    if let Some(status) = call.text("status") {
        tasks.retain(|task| task.status.as_str() == status);
    }
    if let Some(after) = call.text("after") {
        tasks.retain(|task| task.name() > after);
    }
    let more = tasks.len() > limit;
    tasks.truncate(limit);
    let mut answer = Answer::new();
    let now = shapes::time_text(times.now, &times.zone, &times);
    let own = tasks.iter().filter(|task| desk.grant.contains(task.name())).count();
    let scope = desk.grant.scope().map(|scope| format!(", {own} of them in the scope {scope}")).unwrap_or_default();
    answer.line(format!("{} tasks{scope}; it is {now}", tasks.len()));
    for task in &tasks {
        answer.line(shapes::task_line(task, &times));
    }
    let listed = tasks.iter().map(|task| shapes::task(task, desk.grant.sight(task.name()), &times));
    answer.field("tasks", listed.collect::<Vec<_>>());
    answer.field("now", shapes::time(times.now, &times.zone, &times));
    answer.field("scope", desk.grant.scope());
    if let Some(last) = tasks.last().filter(|_| more) {
        answer.field("after", last.name());
        answer.next(format!("list_tasks with after {:?} for more", last.name()));
    }
    answer.next("show_task for one of them; history for its runs; check for problems");
    Ok(answer)
}

pub(crate) fn show_task(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let (times, name) = (desk.times(), call.required("name")?);
    let task = desk.grant.seen_task(&desk.client, name)?;
    let (sight, zone) = (desk.grant.sight(name), shapes::zone_of(&task, &times));
    let mut answer = Answer::new();
    answer.line(shapes::task_line(&task, &times));
    answer.field("task", shapes::task(&task, sight, &times));
    let next_runs = next_runs(&task, &zone, &mut answer, desk);
    answer.field("next_runs", next_runs);
    if let Some(reason) = sight.of(task.invalid_reason.as_deref()) {
        answer.line(format!("it cannot be scheduled: {}", quoted(reason)));
        answer.field("invalid_reason", untrusted(reason));
    }
    if sight == Sight::Whole {
        let payload = payload_of(&task.definition.handler, &task.definition.payload);
        answer.line(format!("payload: {}", quoted(&payload)));
        answer.field("payload", untrusted_up_to(&payload, 2000));
        answer.has_untrusted();
    }
    let runs = desk.client.runs(&RunFilter::newest(FEW_RUNS).of(name))?;
    for run in &runs {
        answer.line(shapes::run_line(run, sight, &zone, &times));
    }
    answer.field("runs", runs.iter().map(|run| shapes::run(run, sight, &zone, &times)).collect::<Vec<_>>());
    if sight == Sight::Whole {
        let events = desk.client.events(&EventFilter::newest(FEW_EVENTS).of(name))?;
        for event in &events {
            answer.line(shapes::event_line(event, &zone, &times));
        }
        answer.field("events", events.iter().map(|event| shapes::event(event, &zone, &times)).collect::<Vec<_>>());
    }
    answer.next("history with around, for why it did or did not run at a time; run_output for the output of a run");
    Ok(answer)
}

/// The next occurrences, with what local time does around them.
fn next_runs(task: &Task, zone: &Zone, answer: &mut Answer, desk: &Desk) -> Vec<Value> {
    let times = desk.times();
    // An invalid task has none.
    let ahead = task.ahead(3).unwrap_or_default();
    for upcoming in ahead.iter().filter(|upcoming| upcoming.note.is_some()) {
        let note = upcoming.note.map(|note| note.to_string()).unwrap_or_default();
        answer.line(format!("note: {}: {note}", upcoming.local));
    }
    ahead.iter().map(|upcoming| shapes::occurrence(upcoming, zone, &times)).collect()
}

/// The handler of commands.
pub(crate) const COMMAND: &str = "command";

/// What is shown of a payload; of a command only the program and its arguments: its environment and its input may hold secrets.
pub(crate) fn payload_of(handler: &str, payload: &str) -> String {
    if handler != COMMAND {
        return payload.to_owned();
    }
    let argv = serde_json::from_str::<Value>(payload).ok().and_then(|payload| payload.get("argv").cloned());
    argv.unwrap_or(Value::Null).to_string()
}

pub(crate) fn preview(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let (times, zone) = (desk.times(), zone_of(desk, call)?);
    let understood = understood(call, &times.now, &zone)?;
    let mut answer = Answer::new();
    let words = understood.words(&zone);
    answer.line(format!("understood: {words}"));
    answer.field("understood", words);
    answer.field("schedule", schedule_value(&understood, &zone));
    let task = understood.task("preview", &zone).handler("preview");
    let ahead = task.upcoming(times.now, call.count("count", 5)).map_err(|error| refused_schedule(&error))?;
    for upcoming in &ahead {
        let note = upcoming.note.map(|note| format!(" ({note})")).unwrap_or_default();
        answer.line(format!("{} {}, {}{note}", upcoming.local, zone.name(), times.relative(upcoming.at)));
    }
    if ahead.is_empty() {
        answer.line("no time is known in advance");
    }
    answer.field("occurrences", ahead.iter().map(|one| shapes::occurrence(one, &zone, &times)).collect::<Vec<_>>());
    answer.field("now", shapes::time(times.now, &zone, &times));
    answer.next("if this is what is meant, schedule_task with the same schedule and time_zone");
    Ok(answer)
}

/// Why a schedule was refused, without the name of a field that no tool has.
pub(crate) fn refused_schedule(error: &duly::Error) -> ToolError {
    ToolError::Refused(format!("schedule: {error}"))
}

/// The zone of the argument `time_zone`, or that of the server.
pub(crate) fn zone_of(desk: &Desk, call: &Call<'_>) -> Result<Zone, ToolError> {
    let Some(name) = call.text("time_zone") else { return Ok(desk.zone.clone()) };
    match name {
        "local" => {
            Err(ToolError::Refused("time_zone: expected an IANA name such as Europe/Rome, found \"local\"".into()))
        }
        name => Zone::named(name).map_err(|error| ToolError::Refused(format!("time_zone: {error}"))),
    }
}

/// The schedule of the argument `schedule`.
pub(crate) fn understood(call: &Call<'_>, now: &duly::Timestamp, zone: &Zone) -> Result<Understood, ToolError> {
    understand(call.required("schedule")?, *now, zone).map_err(ToolError::Refused)
}

fn schedule_value(understood: &Understood, zone: &Zone) -> Value {
    match understood {
        Understood::Schedule(kind, value) => json!({"kind": kind.as_str(), "value": value, "time_zone": zone.name()}),
        Understood::In(after) => {
            json!({"kind": "once", "value": format!("in {}", duly::duration_text(*after)), "time_zone": zone.name()})
        }
    }
}

pub(crate) fn history(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let (times, name) = (desk.times(), call.text("name"));
    let task = name.map(|name| desk.grant.seen_task(&desk.client, name)).transpose()?;
    if let Some(around) = call.text("around") {
        let Some(task) = &task else {
            return Err(ToolError::Refused("around: expected a name beside it: each task has its own ledger".into()));
        };
        return explain::around(desk, task, around, &times);
    }
    let mut filter = RunFilter::newest(call.count("limit", 20));
    if let Some(status) = call.text("status").and_then(RunStatus::parse) {
        filter = filter.status(status);
    }
    if let Some(since) = call.text("since") {
        filter = filter.since(instant("since", since, &times.zone)?);
    }
    let runs = match name {
        Some(name) => desk.client.runs(&filter.of(name))?,
        None => merged(desk, &filter, call.count("limit", 20))?,
    };
    let mut answer = Answer::new();
    answer.line(format!("{} runs, newest first", runs.len()));
    let mut values = Vec::with_capacity(runs.len());
    for run in &runs {
        let zone = task.as_ref().map_or_else(|| times.zone.clone(), |task| shapes::zone_of(task, &times));
        let sight = desk.grant.sight(&run.task);
        answer.line(shapes::run_line(run, sight, &zone, &times));
        values.push(shapes::run(run, sight, &zone, &times));
    }
    answer.field("runs", values);
    answer.has_untrusted();
    answer.next("run_output for what a run printed; history with name and around, for why nothing ran at a time");
    Ok(answer)
}

/// The newest runs of all tasks that are seen.
fn merged(desk: &Desk, filter: &RunFilter, limit: usize) -> Result<Vec<Run>, ToolError> {
    if desk.grant.sees("") {
        return Ok(desk.client.runs(filter)?);
    }
    let tasks = desk.grant.own_tasks(&desk.client)?;
    if tasks.len() > MAX_MERGED {
        let advice = format!("name: expected one, since the scope has more than {MAX_MERGED} tasks");
        return Err(ToolError::Refused(advice));
    }
    let mut runs = Vec::new();
    for task in &tasks {
        runs.extend(desk.client.runs(&filter.clone().of(task.name()))?);
    }
    runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.id));
    runs.truncate(limit);
    Ok(runs)
}

pub(crate) fn run_output(desk: &Desk, call: &Call<'_>) -> Result<Answer, ToolError> {
    let id = match (call.number("run"), call.text("name")) {
        (Some(id), None) => id,
        (None, Some(name)) => newest_run(desk, name)?,
        _ => return Err(ToolError::Refused("expected run, or name for the newest run of a task".to_owned())),
    };
    let mut run = desk.grant.seen_run(&desk.client, id)?;
    if !desk.grant.contains(&run.task) {
        return Err(ToolError::Refused(format!("run {id} is of a task outside of the scope: its output is not shown")));
    }
    run = ended(desk, call, run, call.count("wait_seconds", 0))?;
    let details = desk.client.run_details(id)?;
    let (times, most) = (desk.times(), call.count("max_characters", 4000));
    let zone = times.zone.clone();
    let mut answer = Answer::new();
    answer.line(shapes::run_line(&run, Sight::Whole, &zone, &times));
    answer.field("run", shapes::run(&run, Sight::Whole, &zone, &times));
    let output = tail(run.output.as_deref().unwrap_or_default(), most);
    answer.line(format!("output: {}", line_of(&output)));
    answer.field("output", output);
    let mut attempts = Vec::new();
    // Newest first: of what is too long for an answer, the end is left out.
    for attempt in details.attempts.iter().rev().take(5) {
        let output = tail(attempt.output.as_deref().unwrap_or_default(), most);
        answer.line(format!("attempt {}: {}, output: {}", attempt.attempt, attempt.outcome, line_of(&output)));
        let error = attempt.error.as_deref().map(untrusted);
        let (outcome, code) = (attempt.outcome.as_str(), attempt.exit_code);
        attempts.push(json!({"attempt": attempt.attempt, "outcome": outcome, "exit_code": code, "error": error, "output": output}));
    }
    answer.field("attempts", attempts);
    answer.field("exit_code", run.exit_code);
    answer.has_untrusted();
    if !run.status.is_final() {
        answer.next("the run has not ended: run_output with wait_seconds waits for its end");
    } else if run.status == RunStatus::Dead {
        answer.next("the run is dead after its attempts: retry_run, if it is allowed");
    } else {
        answer.next("tell the user the result; history for other runs of the task");
    }
    Ok(answer)
}

/// The newest run of a task that began.
fn newest_run(desk: &Desk, name: &str) -> Result<i64, ToolError> {
    desk.grant.seen_task(&desk.client, name)?;
    let runs = desk.client.history(name, 20)?;
    let began = runs.iter().find(|run| !matches!(run.status, RunStatus::Skipped | RunStatus::Missed));
    let run = began.or(runs.first());
    run.map(|run| run.id).ok_or_else(|| ToolError::Refused(format!("task {:?} has no run yet", shown(name))))
}

/// Waits until a run has ended, or for a number of seconds.
fn ended(desk: &Desk, call: &Call<'_>, mut run: Run, seconds: usize) -> Result<Run, ToolError> {
    for _ in 0..seconds * LOOKS {
        if run.status.is_final() {
            break;
        }
        if call.cancellation.wait(LOOK) {
            return Err(ToolError::Cancelled);
        }
        run = desk.grant.seen_run(&desk.client, run.id)?;
    }
    Ok(run)
}

/// The end of an output, marked.
fn tail(output: &str, most: usize) -> Value {
    let count = output.chars().count();
    let text: String = output.chars().skip(count.saturating_sub(most)).collect();
    json!({"untrusted": true, "text": text, "left_out_before": count.saturating_sub(most)})
}

/// The same in a line: as much of its end as fits in quotes.
fn line_of(output: &Value) -> String {
    let (text, mut bytes) = (output["text"].as_str().unwrap_or_default(), 0);
    let begins = text.char_indices().rev().take_while(|(_, letter)| {
        bytes += letter.escape_debug().map(char::len_utf8).sum::<usize>();
        bytes <= MAX_QUOTED
    });
    let begin = begins.last().map_or(text.len(), |(at, _)| at);
    format!("untrusted {:?}", &text[begin..])
}

pub(crate) fn check(desk: &Desk, _: &Call<'_>) -> Result<Answer, ToolError> {
    let problems = desk.client.check(&Limits::default())?;
    let problems: Vec<Value> = problems.iter().filter_map(|problem| seen_problem(desk, problem)).collect();
    let mut answer = Answer::new();
    answer.line(match problems.len() {
        0 => "no problems".to_owned(),
        count => format!("{count} problems"),
    });
    for problem in &problems {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let found = quoted(&text(&problem["found"]["text"]));
        answer.line(format!("{}: {found}: {}", text(&problem["kind"]), text(&problem["advice"])));
    }
    let next = match problems.is_empty() {
        true => "list_tasks for the tasks and their next runs",
        false => "show_task or run_output for what is named; tell the user what only they can repair",
    };
    answer.field("problems", problems);
    answer.has_untrusted();
    answer.next(next);
    Ok(answer)
}

/// A problem as far as it may be seen. Without a scope, all of it. In a scope, the problems of its tasks, in words that name no other
/// task, and that a scheduler is missing.
fn seen_problem(desk: &Desk, problem: &Problem) -> Option<Value> {
    let said = |found: &str, advice: &str| json!({"kind": problem.kind.as_str(), "task": problem.task, "run": problem.run, "found": untrusted(found), "advice": advice});
    let whole = || Some(said(&problem.found, &problem.advice));
    if desk.grant.scope().is_none() {
        return whole();
    }
    let is_own = problem.task.as_ref().map(|task| desk.grant.contains(task));
    let about = |found: &str, advice: &str| Some(said(found, advice));
    match (is_own, problem.kind) {
        (Some(false), _) => None,
        (
            Some(true),
            ProblemKind::Overdue
            | ProblemKind::Interrupted
            | ProblemKind::Failing
            | ProblemKind::Dead
            | ProblemKind::Invalid
            | ProblemKind::Zone,
        ) => whole(),
        (Some(true), _) => about("the task or its run has this problem", "tell the user: duly check says more"),
        (None, ProblemKind::NoScheduler) => {
            about("there is work, and no scheduler is alive", "tell the user to start one: duly run")
        }
        (None, ProblemKind::Clock) => {
            about("schedules wait for the clock of the machine", "tell the user: duly check says more")
        }
        (None, ProblemKind::Degraded) => {
            about("a scheduler cannot work as it should", "tell the user: duly check says more")
        }
        (None, _) => None,
    }
}
