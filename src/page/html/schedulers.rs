//! The page of the schedulers, the limits, the files and the problems.

use std::sync::Arc;

use axum::extract;
use axum::response::Response;
use maud::{Markup, html};

use crate::client::check::Problem;
use crate::model::limit::{Limit, LimitState};
use crate::model::report::Status;
use crate::model::start_rate::StartRate;
use crate::model::views::SchedulerView;
use crate::page::html::parts::{Tone, badge, definitions, empty, instant, none, plural, show, stacked, when};
use crate::page::html::{Content, Nav, View, links, rendered};
use crate::page::state::State;
use crate::schedule::duration_text;
use crate::text::units::bytes;

/// Most problems and limits that are listed.
const MAX_LISTED: usize = 100;

pub(in crate::page) async fn page(extract::State(state): extract::State<Arc<State>>) -> Response {
    rendered(state, Nav::Schedulers, move |view| {
        let schedulers = view.state.reader.schedulers()?;
        let status = view.state.reader.status()?;
        let (present, stopped): (Vec<_>, Vec<_>) = schedulers.iter().partition(|one| one.stopped_at.is_none());
        let main = html! {
            div.head { h1 { "Schedulers" } }
            @if let Some(wait) = &status.clock { p.lead { (badge(Tone::Bad, "clock")) " " (wait) } }
            @if present.is_empty() {
                (empty("No scheduler is running", &html! { "Nothing starts until one is: " code { "duly run" } "." }))
            } @else { (table("Schedulers", view, &present)) }
            (problems(view.problems))
            (limits(view, &status.limits))
            section {
                h2 { "Database" }
                div.card { (files(&status)) }
            }
            @if !stopped.is_empty() {
                section { h2 { "Stopped in order" } (table("Stopped schedulers", view, &stopped)) }
            }
        };
        Ok(Content::new("Schedulers", main))
    })
    .await
}

fn table(label: &str, view: &View<'_>, schedulers: &[&SchedulerView]) -> Markup {
    let columns = ["State", "Process", "Workers", "Heartbeat", "Started", "Version"];
    let rows = html! {
        @for one in schedulers.iter().take(MAX_LISTED) { (row(view, one)) }
    };
    html! {
        (stacked(label, &columns, &rows))
        @if schedulers.len() > MAX_LISTED { p.note { (schedulers.len() - MAX_LISTED) " more are not listed." } }
    }
}

fn row(view: &View<'_>, one: &SchedulerView) -> Markup {
    let SchedulerView { instance, running, stopped_at } = one;
    let (tone, state) = match (stopped_at, instance.alive) {
        (Some(_), _) => (Tone::Idle, "stopped"),
        (None, Some(true)) if instance.degraded => (Tone::Bad, "degraded"),
        (None, Some(true)) => (Tone::Good, "alive"),
        (None, Some(false)) => (Tone::Bad, "dead"),
        (None, None) => (Tone::Warn, "unknown"),
    };
    let remark = match (stopped_at, instance.alive) {
        (None, Some(true)) if instance.degraded => Some("it cannot write the database: nothing starts".to_owned()),
        (None, Some(false)) => Some("its runs are not yet recovered".to_owned()),
        (None, None) => instance.doubt.clone(),
        _ => None,
    };
    html! {
        tr id={ "scheduler-" (show(&instance.id, 100)) } {
            td data-label="State" {
                (badge(tone, state))
                @if let Some(remark) = remark { small.text { (show(&remark, 300)) } }
            }
            td data-label="Process" {
                span.nowrap { "pid " (instance.pid) } " on " span.text { (show(&instance.host, 100)) }
                small.text.mono { (show(&instance.id, 100)) }
            }
            td data-label="Workers" {
                @match stopped_at {
                    Some(_) => { (instance.workers) },
                    None => { (running) " of " (instance.workers) " busy" },
                }
            }
            td data-label="Heartbeat" {
                @match stopped_at {
                    Some(at) => { "stopped " (when(*at, &view.times)) },
                    None => { (when(instance.seen_at, &view.times)) small { "lease " (duration_text(instance.lease)) } },
                }
            }
            td data-label="Started" { (instant(instance.started_at, &view.times)) small { (when(instance.started_at, &view.times)) } }
            td data-label="Version" { (show(&instance.version, 40)) }
        }
    }
}

fn problems(found: Option<&[Problem]>) -> Markup {
    html! {
        section id="problems" {
            h2 { "Problems" }
            @match found {
                None => p.lead { "The problems cannot be read." },
                Some([]) => p { (badge(Tone::Good, "none")) span.muted { " duly check finds nothing." } },
                Some(found) => {
                    ul.problems {
                        @for problem in found.iter().take(MAX_LISTED) { (entry(problem)) }
                    }
                    @if found.len() > MAX_LISTED {
                        p.note { (found.len() - MAX_LISTED) " more: " code { "duly check" } " lists them." }
                    }
                },
            }
        }
    }
}

fn entry(problem: &Problem) -> Markup {
    html! {
        li {
            span.kind { (problem.kind.as_str().replace('_', " ")) }
            div {
                p { (show(&problem.found, 400)) }
                p.muted { (show(&problem.advice, 400)) }
                @if let Some(task) = &problem.task { a href=(links::task(task)) { (show(task, 200)) } " " }
                @if let Some(run) = problem.run { a href=(links::run(run)) { "run " (run) } }
            }
        }
    }
}

fn limits(view: &View<'_>, limits: &[LimitState]) -> Markup {
    html! {
        section {
            h2 { "Limits" }
            @if limits.is_empty() {
                p.muted { "None is set. Without a limit, one run of a concurrency key runs at a time, and starts are not counted." }
            } @else {
                (stacked("Limits", &["On", "Limit", "Used", "Waiting", "Next start", "Declared by"], &html! {
                    @for state in limits.iter().take(MAX_LISTED) { (limit(view, state)) }
                }))
                @if limits.len() > MAX_LISTED {
                    p.note { (limits.len() - MAX_LISTED) " more: " code { "duly limit" } " lists them." }
                }
            }
        }
    }
}

fn limit(view: &View<'_>, state: &LimitState) -> Markup {
    let (on, name, text, most) = match &state.limit {
        Limit::Key { key, running, rate } => {
            let starts =
                |rate: &StartRate| format!(", {} in {}", plural(rate.starts, "start"), duration_text(rate.per));
            let starts = rate.as_ref().map(starts).unwrap_or_default();
            ("key", key, format!("{running} at once{starts}"), u64::from(*running))
        }
        Limit::Rate { handler, starts, per } => {
            let text = format!("{} in {}", plural(*starts, "start"), duration_text(*per));
            ("handler", handler, text, u64::from(*starts))
        }
    };
    html! {
        tr {
            td data-label="On" { (on) " " span.text { (show(name, 200)) } }
            td data-label="Limit" { (text) }
            td data-label="Used" {
                @if state.used >= most { (badge(Tone::Warn, &format!("{} of {most}", state.used))) } @else { (state.used) " of " (most) }
                @if let Limit::Key { rate: Some(rate), .. } = &state.limit { ", " (state.started) " of " (plural(rate.starts, "start")) }
            }
            td data-label="Waiting" { (state.waiting) }
            td data-label="Next start" { @match state.next_start { Some(at) => (when(at, &view.times)), None => (none()) } }
            td.text data-label="Declared by" { @match &state.managed_by { Some(name) => (show(name, 200)), None => "by hand" } }
        }
    }
}

fn files(status: &Status) -> Markup {
    let path = status.path.to_string_lossy();
    let mut database = match (status.file_bytes, &status.server) {
        (Some(size), _) => vec![("File", html! { (show(&path, 400)) ", " (bytes(size)) })],
        (None, server) => {
            vec![("Server", html! { (show(&path, 400)) @if let Some(server) = server { ", " (server) } })]
        }
    };
    database.extend(status.log_bytes.map(|size| ("Write-ahead log", html! { (bytes(size)) })));
    if status.server.is_none() {
        database.push(("SQLite", html! { (status.sqlite) }));
    }
    database.extend([
        ("Time zones", html! { (show(&status.zone_data, 200)) }),
        (
            "Clock",
            match &status.clock {
                Some(wait) => html! { (wait) },
                None => html! { "no schedule waits for it" },
            },
        ),
    ]);
    definitions(&database)
}
