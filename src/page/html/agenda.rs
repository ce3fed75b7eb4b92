//! The page `agenda`: what runs in the next day or week, over all tasks.

use std::sync::Arc;
use std::time::Duration;

use axum::extract;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::model::task::{Task, TaskStatus};
use crate::model::task_pages::{TaskOrder, TaskQuery};
use crate::page::html::parts::{self, Tone, show};
use crate::page::html::{Content, Nav, View, links, rendered, words};
use crate::page::state::State;
use crate::rules::forecast::Upcoming;

/// Tasks that are looked at: those that run next.
const TASKS: usize = 300;
/// A task with more occurrences in the window has one row.
const EACH: usize = 8;
/// Rows of the table.
const ROWS: usize = 300;
/// Longest name and schedule that a row shows, in characters.
const MAX_NAME: usize = 200;

/// The window, as the address has it: a day or a week.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::page) struct Query {
    span: String,
}

pub(in crate::page) async fn page(
    extract::State(state): extract::State<Arc<State>>,
    extract::Query(query): extract::Query<Query>,
) -> Response {
    rendered(state, Nav::Tasks, move |view| content(view, &query)).await
}

/// What a task does in the window.
enum Entry {
    One(Upcoming),
    /// The first of many.
    Often(Upcoming),
}

impl Entry {
    fn first(&self) -> &Upcoming {
        match self {
            Entry::One(upcoming) | Entry::Often(upcoming) => upcoming,
        }
    }
}

fn content(view: &View<'_>, query: &Query) -> Result<Content> {
    let is_week = query.span == "week";
    let (title, days) = if is_week { ("Next 7 days", 7) } else { ("Next 24 hours", 1) };
    let until = view.times.now.plus(Duration::from_secs(days * 86_400));
    let selected =
        TaskQuery { status: Some(TaskStatus::Active), order: TaskOrder::Next, limit: TASKS, ..TaskQuery::default() };
    let found = view.state.reader.task_page(&selected)?;
    let mut entries: Vec<(&Task, Entry)> = Vec::new();
    for (task, _) in &found.tasks {
        // A task that cannot be forecast is named by its problem.
        entries.extend(of_task(task, until).unwrap_or_default().into_iter().map(|entry| (task, entry)));
    }
    entries.sort_by_key(|(_, entry)| entry.first().at);
    let last = found.tasks.last().and_then(|(task, _)| task.next_run).filter(|at| found.has_more && *at <= until);
    let main = html! {
        div.head {
            h1 { (title) }
            div.actions {
                nav.zoom aria-label="Length" {
                    a.button href="/agenda" aria-current=[(!is_week).then_some("true")] { "24 hours" }
                    a.button href="/agenda?span=week" aria-current=[is_week.then_some("true")] { "7 days" }
                }
            }
        }
        @if entries.is_empty() {
            (parts::empty("Nothing is due", &html! { "No active task has an occurrence in this time that is known now." }))
        } @else {
            (table(view, &entries))
        }
        @if entries.len() > ROWS { p.note { (entries.len() - ROWS) " later occurrences are not shown." } }
        @if let Some(at) = last { p.note { "Of more than " (TASKS) " tasks, those are shown that run before " (parts::instant(at, &view.times)) "." } }
        p.note { "What follows from the end of a run is not known before: delays, retries, tasks that follow others." }
    };
    Ok(Content::new(title, main))
}

fn of_task(task: &Task, until: Timestamp) -> Result<Vec<Entry>> {
    let mut ahead = task.ahead(EACH + 1)?;
    ahead.retain(|upcoming| upcoming.at <= until);
    if ahead.len() > EACH {
        ahead.truncate(1);
        return Ok(ahead.into_iter().map(Entry::Often).collect());
    }
    Ok(ahead.into_iter().map(Entry::One).collect())
}

fn table(view: &View<'_>, entries: &[(&Task, Entry)]) -> Markup {
    let entries = &entries[..entries.len().min(ROWS)];
    let is_remarkable = |upcoming: &Upcoming| upcoming.note.is_some() || upcoming.skipped.is_some();
    let has_remarks = entries.iter().any(|(_, entry)| is_remarkable(entry.first()));
    let rows = html! {
        @for (task, entry) in entries {
            @let Upcoming { at, note, skipped, .. } = entry.first();
            tr {
                td.nowrap.full { (parts::instant_and_distance(*at, &view.times)) }
                th.full scope="row" { a.text href=(links::task(task.name())) { (show(task.name(), MAX_NAME)) } }
                td.full {
                    (show(&words::schedule_in_short(task), MAX_NAME))
                    @if matches!(entry, Entry::Often(_)) { small { "and further ones: more than " (EACH) " in this time" } }
                }
                @if has_remarks {
                    td.full {
                        @if let Some(note) = note { (parts::badge(Tone::Warn, &note.to_string())) }
                        @if let Some(reason) = skipped { (parts::badge(Tone::Idle, &show(&format!("skipped: {reason}"), MAX_NAME))) }
                    }
                }
            }
        }
    };
    let columns = ["Due", "Task", "Schedule", "Remark"];
    parts::stacked("Agenda", &columns[..if has_remarks { 4 } else { 3 }], &rows)
}
