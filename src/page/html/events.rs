//! The page of the recorded events.

use std::sync::Arc;

use axum::extract;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::model::recorded::{EventFilter, RecordedEvent};
use crate::page::html::parts::{PAGE, badge, choice, empty, filter, instant, none, show, stacked, when, whole_field};
use crate::page::html::{Content, Nav, View, links, parts, rendered};
use crate::page::state::State;

/// The kinds that duly records, each in words.
const KINDS: &[(&str, parts::Tone, &str)] = {
    use parts::Tone::{Bad, Good, Idle, Warn};
    &[
        ("action", Idle, "an action on the status page"),
        ("caught_up", Idle, "occurrences were missed, and a later one ran in their place"),
        ("clock_back", Warn, "the clock stepped back"),
        ("clock_behind", Warn, "the clock is behind the times in the file"),
        ("clock_forward", Idle, "the clock stepped forward, or the machine was suspended"),
        ("clock_not_set", Bad, "the clock was not set: no run started"),
        ("clock_set", Good, "the clock was set"),
        ("clock_wrong", Bad, "the clock had been hours ahead: schedules count from here"),
        ("copied", Idle, "this file was made from a copy"),
        ("declared_gone", Warn, "a user declared that the command of a lost run is gone"),
        ("edited", Idle, "a task was changed"),
        ("invalid", Bad, "a task cannot be scheduled"),
        ("late_outcome", Warn, "an outcome arrived after its run was taken over"),
        ("left_group", Warn, "a command ended, and a process of it lives on"),
        ("missed", Bad, "nothing ran for occurrences that were missed"),
        ("not_followed", Bad, "a run that follows another one could not be opened"),
        ("on_dead", Bad, "the run that reports a dead run could not be opened"),
        ("orphan_unknown", Warn, "unknown whether the command of a lost run has ended"),
        ("owner_lost", Bad, "a scheduler died; its runs were recovered"),
        ("owner_stalled", Warn, "a scheduler lives, and did not extend its lease in time"),
        ("passed_over", Idle, "occurrences were passed over"),
        ("paused", Warn, "a task was paused"),
        ("removed", Idle, "a task was removed with its history"),
        ("restored", Warn, "the file went back to an earlier state, or became another database"),
        ("resumed", Good, "a task was resumed"),
        ("set_aside", Bad, "one item could not be stored and was set aside"),
        ("limited", Warn, "no start of a task was left by a limit"),
        ("skipped", Warn, "five occurrences in a row were skipped"),
        ("stall_ended", Warn, "a scheduler goes on that did nothing for longer than its lease"),
        ("worker_ended", Bad, "a worker ended; a new one replaced it"),
        ("zone_data", Idle, "the time zone data changed"),
    ]
};

/// Most characters of the detail of an event.
const MAX_DETAIL: usize = 400;

/// The query of the page.
#[derive(Debug, Default, Deserialize)]
pub(in crate::page) struct Query {
    /// Events before the one with this id.
    before: Option<String>,
    kind: Option<String>,
    task: Option<String>,
}

pub(in crate::page) async fn page(
    extract::State(state): extract::State<Arc<State>>,
    extract::Query(query): extract::Query<Query>,
) -> Response {
    rendered(state, Nav::Events, move |view| {
        let kind = query.kind.as_deref().map(str::trim).unwrap_or_default();
        let task = query.task.as_deref().map(str::trim).unwrap_or_default();
        let before: Option<i64> = query.before.as_deref().and_then(|id| id.parse().ok());
        let mut wanted = EventFilter::newest(PAGE + 1);
        wanted = if kind.is_empty() { wanted } else { wanted.kind(kind) };
        wanted = if task.is_empty() { wanted } else { wanted.of(task) };
        wanted = before.map_or(wanted.clone(), |id| wanted.before(id));
        // A name that no task has is an empty list here: a user may be typing it.
        let (mut events, is_known) = match view.state.reader.events(&wanted) {
            Ok(events) => (events, true),
            Err(Error::UnknownTask { .. }) => (Vec::new(), false),
            Err(error) => return Err(error),
        };
        let has_more = events.len() > PAGE;
        events.truncate(PAGE);
        Ok(Content::new("Events", main(view, &events, (kind, task), (before.is_some(), has_more), is_known)?))
    })
    .await
}

fn main(
    view: &View<'_>,
    events: &[RecordedEvent],
    (kind, task): (&str, &str),
    (is_later, has_more): (bool, bool),
    is_known: bool,
) -> Result<Markup> {
    // A kind that another version records can be selected too: it is in the address.
    let kinds = KINDS.iter().map(|(kind, ..)| *kind);
    let unlisted = (!kind.is_empty() && kinds.clone().all(|one| one != kind)).then_some(kind);
    let path = |before: Option<i64>| {
        let mut path = format!("/events?kind={}&task={}", links::encoded(kind), links::encoded(task));
        before.into_iter().for_each(|id| path += &format!("&before={id}"));
        path
    };
    let fields = html! {
        (whole_field("task", "Task", "name of a task", task))
        (choice("kind", "Kind", kinds.chain(unlisted), kind))
    };
    Ok(html! {
        div.head { h1 { "Events" } }
        p.lead { "What no run records: clock steps, lost schedulers, pauses, edits, removals. Runs have their own pages." }
        (filter("/events", !kind.is_empty() || !task.is_empty(), &fields))
        @if events.is_empty() {
            @if is_known { (empty("No events", &html! { "Nothing of this kind has been recorded, or retention has deleted it." })) }
            @else { (empty("No such task", &html! { "No task is named " code { (show(task, 200)) } "." })) }
        } @else {
            (stacked("Events", &["When", "Kind", "Task and run", "Detail"], &html! {
                @for event in events { (row(view, event)) }
            }))
        }
        (parts::key_paging(
            is_later.then(|| path(None)),
            events.last().filter(|_| has_more).map(|last| path(Some(last.id))),
            "Older →",
        ))
    })
}

fn row(view: &View<'_>, event: &RecordedEvent) -> Markup {
    let (tone, words) = KINDS
        .iter()
        .find(|(kind, ..)| *kind == event.kind)
        .map_or((parts::Tone::Idle, ""), |(_, tone, words)| (*tone, *words));
    html! {
        tr id={ "event-" (event.id) } {
            td.nowrap data-label="When" { (instant(event.at, &view.times)) small { (when(event.at, &view.times)) } }
            td data-label="Kind" { (badge(tone, &show(&event.kind, 40))) small { (words) } }
            td.full data-label="Task and run" {
                @if let Some(task) = &event.task { a.text href=(links::task(task)) { (show(task, 200)) } }
                @if let Some(run) = event.run { small { a href=(links::run(run)) { "run " (run) } } }
                @if event.task.is_none() && event.run.is_none() { (none()) }
            }
            td.text.full data-label="Detail" {
                @match &event.detail { Some(detail) => (show(detail, MAX_DETAIL)), None => (none()) }
            }
        }
    }
}
