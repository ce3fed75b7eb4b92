//! The page of one task: its state, its policies in words, what comes next, its history.

use std::sync::Arc;

use axum::extract;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;

use crate::client::check::Problem;
use crate::error::{Error, Result};
use crate::model::action::ACTORS;
use crate::model::limit::{Limit, LimitOn, LimitState};
use crate::model::start_rate::StartRate;
use crate::model::task::{Definition, Task, TaskStatus};
use crate::model::task_pages::{RunLine, RunQuery};
use crate::page::html::parts::{self, Tone, show};
use crate::page::html::plot::{self, Bar};
use crate::page::html::{Content, Nav, View, actions, links, rendered, runs, tasks, words};
use crate::page::state::State;
use crate::rules::forecast::Upcoming;
use crate::schedule::duration_text;
use crate::text::escape;
use crate::text::times::Times;
use crate::text::units::{being_marked, short_duration};

/// Occurrences that are listed.
const OCCURRENCES: usize = 10;
/// Runs in the charts and in the history.
const NEWEST: usize = 50;
/// Longest text of a cell, a command and a payload, in characters.
const MAX_CELL: usize = 160;
const MAX_COMMAND: usize = 2000;
const MAX_PAYLOAD: usize = 4000;

pub(in crate::page) async fn page(
    extract::State(state): extract::State<Arc<State>>,
    extract::Path(name): extract::Path<String>,
) -> Response {
    rendered(state, Nav::Tasks, move |view| content(view, &name)).await
}

fn content(view: &View<'_>, name: &str) -> Result<Content> {
    let reader = &view.state.reader;
    let task = reader.task(name)?.ok_or_else(|| Error::UnknownTask { name: name.to_owned() })?;
    let newest = reader.run_page(&RunQuery::of_task(task.id, NEWEST))?.runs;
    let limits = limits_of(reader.limits()?, &task.definition);
    let times = &view.times;
    let path = links::task(name);
    let main = html! {
        section aria-label="State" {
            p { a href="/" { "Tasks" } }
            div.head {
                h1 { (show(name, 200)) }
                (parts::task_badge(&task))
                div.actions { (buttons(view.state, &task, &path)) }
            }
            @if let Some(at) = reader.next_start(task.id)? {
                p.lead { "No start is left: the next one is free " (parts::when(at, times)) "." }
            }
            @if let Some(runs) = reader.marked_runs(task.id)? { p.lead { "Changed: " (being_marked(runs)) "." } }
            (problems(view, &task))
        }
        div.columns {
            section aria-labelledby="summary" { h2 #summary { "Summary" } div.card { (summary(&task, times)) } }
            section aria-labelledby="policies" {
                h2 #policies { "What happens when" }
                div.card { (policies(&task.definition, &limits, times)) }
            }
        }
        section aria-labelledby="next" {
            h2 #next { "Next occurrences" }
            (occurrences(&task, times))
            @if task.definition.time_zone != times.zone.name() {
                p.note { a href=(links::with_query("/zone", &[("name", &task.definition.time_zone)])) { "Show all times in the zone of this task" } }
            }
        }
        @if newest.iter().any(|run| run.duration.is_some()) {
            section aria-labelledby="charts" {
                h2 #charts { "Last runs" }
                div.card.columns { (charts(&newest, times)) }
            }
        }
        section aria-labelledby="history" {
            h2 #history { "History" }
            @if newest.is_empty() {
                (parts::empty("No runs yet", &html! { "A run appears here when the task is due or triggered." }))
            } @else {
                (runs::table("History", &newest, runs::Column::None, times))
                p { a href=(runs::Query::of(name, "").path("/runs", None)) { "All runs of this task" } ", by status, time and error" }
            }
        }
    };
    Ok(Content::new(name, main))
}

fn buttons(state: &State, task: &Task, path: &str) -> Markup {
    let button = |verb: &str, label| actions::button(state, &format!("{path}/{verb}"), Some(task.id), label);
    html! {
        @if task.status != TaskStatus::Invalid { (button("trigger", "Run now")) }
        @match task.status {
            TaskStatus::Active => (button("pause", "Pause")),
            TaskStatus::Paused => (button("resume", "Resume")),
            _ => {}
        }
    }
}

/// Returns what is wrong with the task.
fn problems(view: &View<'_>, task: &Task) -> Markup {
    let of_task = |problem: &&Problem| problem.task.as_deref() == Some(task.name());
    // A link to this page itself would be of no use.
    let own = view
        .problems
        .unwrap_or_default()
        .iter()
        .filter(of_task)
        .cloned()
        .map(|problem| Problem { task: None, ..problem });
    let own: Vec<Problem> = own.collect();
    html! {
        @if let Some(reason) = task.invalid_reason.as_ref().filter(|_| own.is_empty()) {
            p.lead { "It cannot be scheduled: " (show(reason, 500)) }
        }
        (tasks::problems(view.state, Some(&own)))
    }
}

fn summary(task: &Task, times: &Times) -> Markup {
    let definition = &task.definition;
    let mut rows =
        vec![("Schedule", schedule(task, times)), ("Next", tasks::next(task, times)), ("Last", last(task, times))];
    if let Some(by) = task.paused_by.as_ref().filter(|_| task.status == TaskStatus::Paused) {
        rows.push(("Paused by", html! { (show(by, MAX_CELL)) }));
    }
    rows.push(("Handler", html! { (show(&definition.handler, MAX_CELL)) }));
    rows.extend(work(definition));
    if let Some(manifest) = &definition.managed_by {
        let is_actor = manifest.starts_with(ACTORS);
        rows.push((if is_actor { "Added by" } else { "Managed by" }, html! { (show(manifest, MAX_CELL)) }));
    }
    rows.push(("Created", parts::instant(task.created_at, times)));
    if task.updated_at != task.created_at {
        rows.push(("Changed", parts::instant(task.updated_at, times)));
    }
    parts::definitions(&rows)
}

fn schedule(task: &Task, times: &Times) -> Markup {
    let definition = &task.definition;
    html! {
        code { (show(&words::schedule(definition), MAX_CELL)) }
        p.muted { (show(&words::schedule_sentence(task), 2 * MAX_CELL)) }
        @if let Some(at) = definition.starts_at { p.muted { "Not before " (parts::instant(at, times)) "." } }
        @if let Some(at) = definition.ends_at { p.muted { "Not after " (parts::instant(at, times)) "." } }
        @for (words, text) in [
            ("Only between ", &definition.only_between),
            ("Only on ", &definition.only_on),
            ("Not on ", &definition.except_on),
        ] {
            @if let Some(text) = text { p.muted { (words) (show(text, MAX_CELL)) "." } }
        }
    }
}

fn last(task: &Task, times: &Times) -> Markup {
    let Some(status) = task.last_status else { return parts::none() };
    html! {
        (parts::run_badge(status))
        @if let Some(at) = task.last_finished.or(task.last_run) { " " (parts::when(at, times)) }
        @if let Some(length) = task.last_duration { " after " (parts::duration(Some(length))) }
        @if task.failure_count > 0 { p { (task.failure_count) " dead in a row" } }
        @if let Some(error) = &task.last_error { p.muted { (show(error, 2 * MAX_CELL)) } }
    }
}

/// Returns what the task runs: a command, quoted for a shell, or the payload of a handler.
fn work(definition: &Definition) -> Vec<(&'static str, Markup)> {
    let payload = || html! { details { summary { "Show" } (parts::block(&definition.payload, MAX_PAYLOAD)) } };
    let parsed = (definition.handler == "command").then(|| serde_json::from_str::<Value>(&definition.payload).ok());
    let Some(command) = parsed.flatten() else { return vec![("Payload", payload())] };
    let row = |key: &str, name| {
        let words = command[key].as_array()?.iter().map(|word| word.as_str().map(escape::shell_word));
        let words = words.collect::<Option<Vec<String>>>()?;
        Some((name, html! { code { (show(&words.join(" "), MAX_COMMAND)) } }))
    };
    let Some(argv) = row("argv", "Command") else { return vec![("Payload", payload())] };
    let mut rows: Vec<_> = [argv].into_iter().chain(row("only_if", "Only if")).collect();
    for (key, name) in [("cwd", "Folder"), ("user", "User")] {
        rows.extend(command[key].as_str().map(|text| (name, html! { code { (show(text, MAX_CELL)) } })));
    }
    if ["env", "env_from", "stdin", "give_up_exit_codes", "skip_exit_codes"].iter().any(|key| !command[key].is_null()) {
        rows.push(("Payload", payload()));
    }
    rows
}

fn limits_of(mut limits: Vec<LimitState>, definition: &Definition) -> Vec<LimitState> {
    limits.retain(|state| match state.limit.on() {
        LimitOn::Key(key) => definition.concurrency_key.as_ref() == Some(&key),
        LimitOn::Handler(name) => name == definition.handler,
    });
    limits
}

fn policies(definition: &Definition, limits: &[LimitState], times: &Times) -> Markup {
    let sentences = words::policies(definition).into_iter();
    let mut rows: Vec<(&str, Markup)> =
        sentences.map(|(topic, sentence)| (topic, html! { (show(&sentence, 500)) })).collect();
    for state in limits {
        let (used, waiting) = (state.used, state.waiting);
        let text = match &state.limit {
            Limit::Key { key, running, rate } => {
                let starts = |rate: &StartRate| {
                    let (most, per) = (rate.starts, duration_text(rate.per));
                    format!(" At most {most} start in {per}; {} did.", state.started)
                };
                let starts = rate.as_ref().map(starts).unwrap_or_default();
                format!(
                    "At most {running} with the key {key} run at a time; now {used} run and {waiting} wait.{starts}"
                )
            }
            Limit::Rate { handler, starts, per } => format!(
                "The handler {handler} starts at most {starts} times in {}; it did {used} times, and {waiting} wait.",
                duration_text(*per)
            ),
        };
        rows.push((
            "Limit",
            html! {
                (show(&text, 500))
                @if let Some(at) = state.next_start { " The next start is possible " (parts::when(at, times)) "." }
            },
        ));
    }
    parts::definitions(&rows)
}

fn occurrences(task: &Task, times: &Times) -> Markup {
    let ahead = match task.ahead(OCCURRENCES) {
        Ok(ahead) => ahead,
        Err(error) => return parts::empty("Unknown", &html! { (show(&error.to_string(), 300)) }),
    };
    if ahead.is_empty() {
        let reason = match task.status {
            TaskStatus::Paused => "The task is paused: nothing is due until it is resumed.",
            TaskStatus::Completed => "No occurrence is left.",
            TaskStatus::Invalid => "The task is invalid.",
            _ => "None is known before the current run has ended, or the task is triggered.",
        };
        return parts::empty("No next occurrence", &html! { (reason) });
    }
    let zone = show(&task.definition.time_zone, 60);
    let has_notes = ahead.iter().any(|one| one.note.is_some() || one.skipped.is_some());
    let rows = html! {
        @for Upcoming { at, local, note, skipped } in &ahead {
            tr {
                td.nowrap.full { (spaced(local)) }
                td.nowrap data-label="UTC" { (parts::utc(*at).trim_end_matches(" UTC")) }
                td.nowrap data-label="From now" { (parts::distance(*at, times.now)) }
                @if has_notes {
                    td.full {
                        @if let Some(note) = note { (parts::badge(Tone::Warn, &note.to_string())) }
                        @if let Some(reason) = skipped { (parts::badge(Tone::Idle, &show(&format!("skipped: {reason}"), MAX_CELL))) }
                    }
                }
            }
        }
    };
    let local = format!("Local time, {zone}");
    let columns = [local.as_str(), "UTC", "From now", "Remark"];
    parts::stacked("Next occurrences", &columns[..if has_notes { 4 } else { 3 }], &rows)
}

/// Returns `2027-03-14T03:00:00-04:00` as `2027-03-14 03:00:00 -04:00`.
fn spaced(local: &str) -> String {
    match (local.get(..10), local.get(11..19), local.get(19..)) {
        (Some(date), Some(time), Some(offset)) => format!("{date} {time} {offset}"),
        _ => local.to_owned(),
    }
}

/// Returns the charts of durations and of late starts. `newest`: newest first.
fn charts(newest: &[RunLine], times: &Times) -> Markup {
    let bars = |length: fn(&RunLine) -> Option<std::time::Duration>, what: &str| -> Vec<Bar> {
        let bar = |run: &RunLine| Bar {
            length: length(run),
            tone: run.status.map_or(Tone::Idle, parts::run_tone),
            title: length(run).map_or_else(String::new, |length| {
                format!("Run {}, {}: {what} {}", run.id, times.brief(run.scheduled_for), short_duration(length))
            }),
        };
        newest.iter().rev().map(bar).collect()
    };
    let end = |run: Option<&RunLine>| html! { @if let Some(run) = run { (times.brief(run.scheduled_for)) } };
    let (oldest, latest) = (end(newest.last()), end(newest.first()));
    html! {
        (plot::durations("Duration", "of the newest attempt", &bars(|run| run.duration, "took"), (&oldest, &latest)))
        (plot::durations("Lateness", "from due to start", &bars(runs::lateness, "late by"), (&oldest, &latest)))
    }
}
