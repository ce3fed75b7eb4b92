//! The page of one run: what happened in its attempts, and what it waits for.

use std::sync::Arc;
use std::time::Duration;

use axum::extract;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use axum::http::header::CONTENT_DISPOSITION;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::model::run::{Attempt, AttemptOutcome, Effect, EffectState, Origin, Run, RunStatus};
use crate::model::views::RunView;
use crate::page::answer::answered;
use crate::page::html::actions::button;
use crate::page::html::parts::{
    Tone, badge, definitions, duration, filter, instant, instant_and_distance, plural, run_badge, show, stacked,
    text_field, when,
};
use crate::page::html::printed::Budget;
use crate::page::html::{Content, Nav, View, links, rendered, unknown, waits};
use crate::page::state::State;
use crate::rules::chain::Link;
use crate::schedule::{Zone, duration_text};

/// Bytes of a page that stored text may fill: outputs, errors, values. The rest of a page is far below 200 KB together with it.
const MAX_TEXT: usize = 130_000;
/// Time limit of a command whose task sets none.
const COMMAND_LIMIT: Duration = Duration::from_secs(3600);

/// What is looked for in the outputs of a run, as the address has it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::page) struct Query {
    find: String,
}

pub(in crate::page) async fn page(
    extract::State(state): extract::State<Arc<State>>,
    which: Result<extract::Path<i64>, PathRejection>,
    extract::Query(query): extract::Query<Query>,
) -> Response {
    let Ok(extract::Path(which)) = which else { return unknown(extract::State(state)).await };
    rendered(state, Nav::Runs, move |view| {
        let found = view.state.reader.run_view(which)?.ok_or(Error::UnknownRun { id: which })?;
        let title = format!("Run {} of {}", found.run.id, found.run.task);
        Ok(Content::new(title, main(view, &found, query.find.trim())))
    })
    .await
}

/// Returns the whole output of an attempt as a file of plain text.
pub(in crate::page) async fn output(
    extract::State(state): extract::State<Arc<State>>,
    which: Result<extract::Path<(i64, u32)>, PathRejection>,
) -> Response {
    let Ok(extract::Path((run, number))) = which else { return unknown(extract::State(state)).await };
    answered("text/plain; charset=utf-8", move || {
        let found = state.reader.run_view(run)?;
        let attempts = found.as_ref().map(shown_attempts).unwrap_or_default();
        let output = attempts.iter().find(|one| one.number == number).and_then(|one| one.output).map(str::to_owned);
        let status = if output.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
        let name = format!("attachment; filename=\"run-{run}-attempt-{number}.txt\"");
        Ok((status, [(CONTENT_DISPOSITION, name)], output.unwrap_or_else(|| "There is no such output.\n".to_owned())))
    })
    .await
}

/// `find`: only the lines of outputs that contain it; all if it is empty.
fn main(view: &View<'_>, found: &RunView, find: &str) -> Markup {
    let RunView { run, effects, .. } = found;
    let mut budget = Budget::new(MAX_TEXT);
    // In the order of their worth: the text that is shown first may use the whole budget.
    let error = of_the_run(found).map(|text| budget.start_of(text, 8_000));
    let result = run.result.as_deref().map(|text| budget.start_of(text, 8_000));
    let progress = run.progress.as_deref().map(|text| budget.start_of(text, 4_000));
    let attempts = attempts(view, found, find, &mut budget);
    let effects = (!effects.is_empty()).then(|| effect_table(view, run, effects, &mut budget));
    let payload = run.payload.as_deref().unwrap_or(&found.task.definition.payload);
    let payload = budget.start_of(payload, 16_000);
    html! {
        div.head {
            h1 { "Run " (run.id) " of " a.text href=(links::task(&run.task)) { (show(&run.task, 200)) } }
            (run_badge(run.status))
            @if run.cancel_requested && !run.status.is_final() { (badge(Tone::Warn, "asked to stop")) }
            div.actions {
                @if !run.status.is_final() { (button(view.state, &format!("{}/cancel", links::run(run.id)), None, "Cancel")) }
                @if matches!(run.status, RunStatus::Dead | RunStatus::Cancelled) {
                    (button(view.state, &format!("{}/retry", links::run(run.id)), None, "Retry"))
                }
            }
        }
        @if !found.waits.is_empty() { (waits::section(&found.waits, run, &view.times)) }
        div.columns {
            section {
                h2 { "Times" }
                div.card { (definitions(&times(view, found))) }
            }
            section {
                h2 { "Facts" }
                div.card { (definitions(&facts(view, found))) }
            }
        }
        @if let Some(error) = error { section { h2 { "Reason" } (error) } }
        @if let Some(progress) = progress { section { h2 { "Progress" } (progress) } }
        @if let Some(result) = result { section { h2 { "Result" } (result) } }
        (attempts)
        @if let Some(effects) = effects { (effects) }
        section {
            details {
                summary { "Payload" @if run.payload.is_none() { " (of the task)" } }
                (payload)
            }
        }
    }
}

/// Returns why there was no attempt, or no further one. The error of an attempt is shown with the attempt.
fn of_the_run(found: &RunView) -> Option<&str> {
    let RunView { run, attempts, .. } = found;
    let mut newest = attempts.iter().filter(|attempt| attempt.attempt == run.attempt).peekable();
    let differs = run.status.is_final() && newest.peek().is_some() && newest.all(|attempt| attempt.error != run.error);
    run.error.as_deref().filter(|_| run.attempt == 0 || differs)
}

fn times(view: &View<'_>, found: &RunView) -> Vec<(&'static str, Markup)> {
    let RunView { run, task, attempts, has_older_attempts, .. } = found;
    let times = &view.times;
    let both = |at: Timestamp| instant_and_distance(at, times);
    let of_task = Zone::named(&task.definition.time_zone).ok().filter(|zone| zone.name() != "UTC");
    let mut rows = vec![(
        "Scheduled for",
        html! {
            (both(run.scheduled_for))
            br; span.muted { (crate::page::html::parts::utc(run.scheduled_for)) }
            @if let Some(there) = of_task.and_then(|zone| times.elsewhere(&zone, run.scheduled_for)) {
                br; span.muted { (there) }
            }
        },
    )];
    if let Some(last) = run.last_scheduled_for {
        rows.push(("Up to", html! { (both(last)) ", " (plural(run.occurrences, "occurrence")) }));
    }
    let first = match run.attempt {
        1 => run.started_at,
        _ => attempts.first().filter(|one| one.attempt == 1 && !has_older_attempts).and_then(|one| one.started_at),
    };
    if let Some(first) = first.filter(|_| run.origin.is_scheduled()) {
        rows.push(("Lateness", duration(Some(first.since(run.scheduled_for)))));
    }
    let waits = matches!(run.status, RunStatus::Queued | RunStatus::Failed);
    if waits {
        rows.push(("Not before", both(run.run_at)));
    }
    if let Some(expires) = run.expires_at.filter(|_| run.status == RunStatus::Queued && run.attempt == 0) {
        rows.push(("Expires", both(expires)));
    }
    if let Some(started) = run.started_at {
        rows.push(("Started", both(started)));
    }
    if let Some(finished) = run.finished_at {
        rows.push((if waits { "Last attempt ended" } else { "Ended" }, both(finished)));
    }
    match run.duration {
        Some(length) => rows.push(("Took", duration(Some(length)))),
        None if run.status == RunStatus::Running => {
            let so_far = run.started_at.map(|started| times.now.since(started));
            rows.push(("Runs for", duration(so_far)));
        }
        None => {}
    }
    let limit = task.definition.timeout.or((run.handler == "command").then_some(COMMAND_LIMIT));
    let limit = limit.filter(|limit| !limit.is_zero());
    rows.push((
        "Time limit",
        match (limit, run.started_at) {
            (Some(limit), Some(started)) if run.status == RunStatus::Running => {
                html! { (duration_text(limit)) ", ends " (when(started.plus(limit), times)) }
            }
            (Some(limit), _) => html! { (duration_text(limit)) },
            (None, _) if task.definition.timeout.is_some() => html! { "none" },
            (None, _) => html! { "the default of the handler" },
        },
    ));
    rows
}

fn facts(view: &View<'_>, found: &RunView) -> Vec<(&'static str, Markup)> {
    let RunView { run, task, retries, followers, owner, .. } = found;
    let origin = match run.origin {
        Origin::Schedule => "an occurrence of the schedule",
        Origin::CatchUp => "an occurrence that was resolved late (catch-up)",
        Origin::Manual if run.retry_of.is_some() => "a retry by hand",
        Origin::Manual => "a trigger",
        Origin::OnDead => "a dead run of another task (on_dead)",
        Origin::OnSuccess => "a success of another task (on_success)",
        Origin::OnEnd => "the end of a run of another task (on_end)",
        Origin::OnMissed => "missed occurrences of another task (on_missed)",
    };
    let counted = run.attempt.saturating_sub(run.forgiven);
    let mut rows = vec![
        ("Origin", html! { (origin) }),
        ("Handler", html! { (show(&run.handler, 200)) }),
        (
            "Attempts",
            html! {
                (counted) " of " (task.definition.retry.max_attempts)
                @if run.forgiven > 0 { span.muted { ", and " (run.forgiven) " that do not count" } }
            },
        ),
        ("Priority", html! { (run.priority) @if run.priority == 0 { " (first)" } }),
    ];
    // A task's own key begins with #.
    if let Some(key) = run.concurrency_key.as_deref().filter(|key| !key.starts_with('#')) {
        rows.push(("Key", html! { (show(key, 200)) }));
    }
    match (&run.request_key, run.request_key.as_deref().and_then(Link::parse)) {
        (_, Some(Link { parent, length })) => {
            let place = if length > 1 { format!(", number {length} of a chain") } else { String::new() };
            rows.push(("Follows", html! { a href=(links::run(parent)) { "run " (parent) } (place) }));
        }
        (Some(key), None) => rows.push(("Request key", html! { (show(key, 200)) })),
        (None, None) => {}
    }
    if let Some(first) = run.retry_of {
        rows.push(("Retry of", html! { a href=(links::run(first)) { "run " (first) } }));
    }
    if !retries.is_empty() {
        let links = html! {
            @for (number, (id, status)) in retries.iter().enumerate() {
                @if number > 0 { ", " }
                a href=(links::run(*id)) { "run " (id) } " (" (status) ")"
            }
        };
        rows.push(("Retried by", links));
    }
    if !followers.is_empty() {
        let links = html! {
            @for (number, follower) in followers.iter().enumerate() {
                @if number > 0 { ", " }
                a href=(links::run(follower.id)) { "run " (follower.id) }
                " of " (show(&follower.task, 200)) " (" (follower.status) ")"
            }
        };
        rows.push(("Followed by", links));
    }
    if let Some(id) = &run.locked_by {
        let state = match owner.as_ref().map(|one| one.alive) {
            Some(Some(true)) => "",
            Some(Some(false)) => " It is dead: another scheduler recovers the run.",
            Some(None) => " It is unknown whether it is alive.",
            None => " It is not registered.",
        };
        let process = owner.as_ref().map(|one| format!("pid {} on {}", one.pid, show(&one.host, 100)));
        rows.push((
            "Runs on",
            html! {
                a href={ "/schedulers#scheduler-" (show(id, 100)) } { (process.unwrap_or_else(|| show(id, 100))) } (state)
                @if let Some(until) = run.locked_until { br; span.muted { "lease ends " (when(until, &view.times)) } }
            },
        ));
    }
    rows
}

/// One attempt, from its row or from that of its run.
struct Shown<'a> {
    number: u32,
    outcome: &'a str,
    tone: Tone,
    error: Option<&'a str>,
    is_remark: bool,
    output: Option<&'a str>,
    exit_code: Option<i32>,
    owner: Option<&'a str>,
    started_at: Option<Timestamp>,
    duration: Option<Duration>,
}

fn shown_attempts(found: &RunView) -> Vec<Shown<'_>> {
    let RunView { run, attempts, .. } = found;
    let mut shown: Vec<Shown<'_>> = attempts.iter().rev().map(recorded).collect();
    if run.attempt > 0 && !attempts.iter().any(|attempt| attempt.attempt == run.attempt) {
        let newest = Shown {
            number: run.attempt,
            outcome: run.status.as_str(),
            tone: crate::page::html::parts::run_tone(run.status),
            error: run.error.as_deref(),
            is_remark: run.status == RunStatus::Succeeded,
            output: run.output.as_deref(),
            exit_code: run.exit_code,
            owner: run.locked_by.as_deref(),
            started_at: run.started_at,
            duration: run.duration,
        };
        shown.insert(0, newest);
    }
    shown
}

fn recorded(attempt: &Attempt) -> Shown<'_> {
    let tone = match attempt.outcome {
        AttemptOutcome::Released | AttemptOutcome::Snoozed | AttemptOutcome::Skipped | AttemptOutcome::Cancelled => {
            Tone::Idle
        }
        AttemptOutcome::Lost | AttemptOutcome::Superseded => Tone::Warn,
        _ => Tone::Bad,
    };
    Shown {
        number: attempt.attempt,
        outcome: attempt.outcome.as_str(),
        tone,
        error: attempt.error.as_deref(),
        is_remark: false,
        output: attempt.output.as_deref(),
        exit_code: attempt.exit_code,
        owner: Some(&attempt.locked_by),
        started_at: attempt.started_at,
        duration: attempt.duration,
    }
}

fn attempts(view: &View<'_>, found: &RunView, find: &str, budget: &mut Budget) -> Markup {
    let shown = shown_attempts(found);
    let has_output = shown.iter().any(|one| one.output.is_some_and(|text| !text.is_empty()));
    html! {
        @if !shown.is_empty() {
            section {
                h2 { "Attempts" }
                @if has_output || !find.is_empty() {
                    (filter(&links::run(found.run.id), !find.is_empty(), &text_field("find", "Find in output", "part of a line", find)))
                }
                @for (place, one) in shown.iter().enumerate() { (attempt(view, one, place == 0, (&found.run, find), budget)) }
                @if found.has_older_attempts {
                    p.note { "Earlier attempts: " code { "duly logs " (found.run.id) } "." }
                }
            }
        }
    }
}

fn attempt(
    view: &View<'_>,
    one: &Shown<'_>,
    is_newest: bool,
    (run, find): (&Run, &str),
    budget: &mut Budget,
) -> Markup {
    let error = one.error.map(|text| budget.start_of(text, 8_000));
    let output = one.output.filter(|text| !text.is_empty());
    let length = output.map_or(0, str::len);
    let limit = if is_newest { 90_000 } else { 24_000 };
    // The end of an output says why it failed.
    let output = output.map(|text| match find {
        "" => budget.end_of(text, limit),
        find => budget.lines_with(text, find, limit),
    });
    html! {
        article.card.attempt {
            div.head {
                h3 { "Attempt " (one.number) }
                (badge(one.tone, one.outcome))
                span.muted {
                    @if let Some(started) = one.started_at { "started " (instant(started, &view.times)) }
                    @if let Some(length) = one.duration { ", took " (duration(Some(length))) }
                    @if let Some(code) = one.exit_code { ", exit code " (code) }
                }
                @if let Some(owner) = one.owner { small.text.muted { "by " (show(owner, 100)) } }
            }
            @if let Some(error) = error { p.note { (if one.is_remark { "Remark" } else { "Error" }) } (error) }
            @if let Some(output) = output {
                details.output open[is_newest || !find.is_empty()] {
                    summary {
                        @if is_newest && run.status == RunStatus::Running { "Output so far" } @else { "Output" }
                        span.muted { " " (crate::text::units::bytes(length as u64)) }
                    }
                    (output)
                    p { a href={ (links::run(run.id)) "/output/" (one.number) } download { "Download" } }
                }
            }
        }
    }
}

fn effect_table(view: &View<'_>, run: &Run, effects: &[Effect], budget: &mut Budget) -> Markup {
    let mut in_doubt = None;
    let mut effects: Vec<&Effect> = effects.iter().collect();
    effects.sort_by_key(|effect| effect.created_at);
    let rows: Vec<Markup> = effects
        .iter()
        .map(|effect| {
            let value = effect.value.as_deref().map(|text| budget.start_of(text, 2_000));
            let state = match effect.state {
                EffectState::Done => badge(Tone::Good, "done"),
                // The attempt may be executing it now.
                EffectState::Intent if run.status == RunStatus::Running => badge(Tone::Busy, "begun"),
                EffectState::Intent => {
                    in_doubt = Some(effect.run_id);
                    badge(Tone::Bad, "in doubt")
                }
            };
            html! {
                tr {
                    td.text data-label="Key" { (show(&effect.key, 200)) }
                    td data-label="State" { (state) }
                    td.nowrap data-label="Begun" { (instant(effect.created_at, &view.times)) }
                    td.nowrap data-label="Done" { @if let Some(at) = effect.done_at { (instant(at, &view.times)) } }
                    td.full data-label="Value" { @if let Some(value) = value { (value) } }
                }
            }
        })
        .collect();
    html! {
        section {
            h2 { "Effects" }
            (stacked("Effects", &["Key", "State", "Begun", "Done", "Value"], &html! { @for row in &rows { (row) } }))
            @if let Some(first) = in_doubt {
                p.note {
                    "In doubt: an attempt began it, and it is unknown whether it was done. Find that out. If it was not done, delete its row of "
                    code { "task_effects" } " (run_id " (first) "); if it was, set its state to " code { "'done'" }
                    " and its value. Then retry the run."
                }
            }
            @if effects.len() == RunView::MAX_LISTED { p.note { "More may exist: " code { "duly logs " (run.id) } "." } }
        }
    }
}
