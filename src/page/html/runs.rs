//! The page `runs`: the runs of all tasks or of one, by conditions, and what can be done with all that match. Its table is also that of the
//! history of a task.

use std::sync::Arc;

use axum::extract;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use crate::clock::Timestamp;
use crate::error::{Error, Result, excerpt};
use crate::model::bulk::{BulkAction, BulkReport};
use crate::model::filter::{Filter, NamePattern};
use crate::model::run::RunStatus;
use crate::model::task_pages::{RunLine, RunPage, RunQuery};
use crate::page::html::parts::{self, PAGE, show};
use crate::page::html::{Content, Nav, View, actions, links, rendered};
use crate::page::state::State;
use crate::text::times::Times;
use crate::text::units::{parse_duration, short_duration};

/// Longest name, handler and error that a row shows, in characters.
const MAX_NAME: usize = 100;
const MAX_ERROR: usize = 160;
/// Runs that are counted before an action on all of them.
const MAX_COUNTED: usize = 5_000;
/// The status of each run that is not over, in a filter.
const UNFINISHED: &str = "unfinished";

/// The conditions, as the address has them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::page) struct Query {
    status: String,
    task: String,
    handler: String,
    error: String,
    since: String,
    until: String,
    before: String,
}

impl Query {
    /// Selects the runs of a task with a status.
    pub(super) fn of(task: &str, status: &str) -> Self {
        Query { task: task.to_owned(), status: status.to_owned(), ..Query::default() }
    }

    /// Returns a path with the conditions. `before`: of a later page.
    pub(super) fn path(&self, path: &str, before: Option<i64>) -> String {
        let before = before.map(|run| run.to_string()).unwrap_or_default();
        let [status, task, handler, error, since, until] =
            [&self.status, &self.task, &self.handler, &self.error, &self.since, &self.until].map(|text| text.as_str());
        links::with_query(
            path,
            &[
                ("status", status),
                ("task", task),
                ("handler", handler),
                ("error", error),
                ("since", since),
                ("until", until),
                ("before", &before),
            ],
        )
    }

    /// Returns the conditions, with instants in place of durations before now, and what they select. Fails with the name of a field whose
    /// value is invalid.
    fn read(mut self, times: &Times) -> Result<(Self, RunQuery), String> {
        for field in [&mut self.status, &mut self.task, &mut self.handler, &mut self.error, &mut self.before] {
            *field = field.trim().to_owned();
        }
        let text = |field: &String| (!field.is_empty()).then(|| field.clone());
        let since = instant("since", &self.since, times)?;
        let until = instant("until", &self.until, times)?;
        let is_unfinished = self.status == UNFINISHED;
        let status = match text(&self.status).filter(|_| !is_unfinished) {
            Some(text) => Some(RunStatus::parse(&text).ok_or_else(|| {
                let known: Vec<_> = statuses().collect();
                invalid("status", &known.join(", "), &text)
            })?),
            None => None,
        };
        let before =
            text(&self.before).map(|text| text.parse().map_err(|_| invalid("before", "the number of a run", &text)));
        let query = RunQuery {
            task: None,
            pattern: text(&self.task).map(NamePattern::new),
            handler: text(&self.handler),
            status,
            is_unfinished,
            since,
            until,
            error: text(&self.error),
            before: before.transpose()?,
            limit: PAGE,
            most: RunQuery::MOST,
        };
        let fixed = |at: Option<Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
        Ok((Query { since: fixed(since), until: fixed(until), ..self }, query))
    }

    fn is_used(&self) -> bool {
        !self.path("", None).is_empty()
    }
}

/// Returns the words that select a status.
fn statuses() -> impl Iterator<Item = &'static str> {
    [UNFINISHED].into_iter().chain(RunStatus::ALL.iter().map(|status| status.as_str()))
}

/// Returns the instant that a text names, or that is its duration before now.
fn instant(field: &str, text: &str, times: &Times) -> Result<Option<Timestamp>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(age) = parse_duration(text) {
        return Ok(Some(times.now.minus(age)));
    }
    let midnight = format!("{text}T00:00");
    let at = times.zone.instant(&midnight).or_else(|_| times.zone.instant(text));
    at.map(Some).map_err(|error| {
        let Error::InvalidSchedule { reason, .. } = error else { return error.to_string() };
        let or = if reason.starts_with("expected") { ", a date, or a duration before now such as 24h" } else { "" };
        format!("invalid {field} {:?}: {reason}{or}", excerpt(text, 80))
    })
}

fn invalid(field: &str, expected: &str, found: &str) -> String {
    format!("invalid {field}: expected {expected}, found {:?}", excerpt(found, 80))
}

/// Returns what can be done with all runs that match: a status decides it.
fn action(query: &RunQuery) -> Option<BulkAction> {
    let allows = |action: &BulkAction| match query.status {
        // A cancelled run was cancelled on purpose, and no index has all of these.
        Some(status) => status != RunStatus::Cancelled && action.run_statuses().1.contains(&status),
        None => query.is_unfinished && *action == BulkAction::Cancel,
    };
    [BulkAction::Retry, BulkAction::Cancel].into_iter().find(allows)
}

/// Returns a filter for the runs that match, of which a status is one condition.
fn filter(query: &RunQuery) -> Filter {
    let filter = query.status.into_iter().fold(Filter::all(), Filter::status);
    let filter = query.pattern.iter().cloned().fold(filter, Filter::name);
    let filter = query.handler.iter().cloned().fold(filter, Filter::handler);
    let filter = query.error.iter().cloned().fold(filter, Filter::error);
    let filter = query.since.into_iter().fold(filter, Filter::since);
    query.until.into_iter().fold(filter, Filter::before)
}

pub(in crate::page) async fn page(
    extract::State(state): extract::State<Arc<State>>,
    extract::Query(given): extract::Query<Query>,
) -> Response {
    rendered(state, Nav::Runs, move |view| content(view, &given)).await
}

fn content(view: &View<'_>, given: &Query) -> Result<Content> {
    let (fixed, mut query) = match given.clone().read(&view.times) {
        Ok(read) => read,
        Err(reason) => {
            return Ok(Content::new("Runs", page_of(given, &refused(&reason))).status(StatusCode::BAD_REQUEST));
        }
    };
    // One task has an index of its own.
    if let Some(name) = query.pattern.take_if(|pattern| pattern.is_name()) {
        let Some(task) = view.state.reader.task(name.as_str())? else {
            let reason = html! { "No task is named " code { (show(name.as_str(), MAX_NAME)) } ". " code { "*" } " stands for any text." };
            return Ok(Content::new("Runs", page_of(given, &parts::empty("No such task", &reason))));
        };
        query.task = Some(task.id);
    }
    let found = view.state.reader.run_page(&query)?;
    let action = action(&query).filter(|_| view.state.page.has_actions() && !found.runs.is_empty());
    let list = html! {
        @if let Some(action) = action {
            div.head {
                a.button href=(fixed.path(&format!("/runs/{action}"), None)) { (title(action)) " all that match …" }
            }
        }
        (listed(given, &query, &found, &view.times))
    };
    Ok(Content::new("Runs", page_of(given, &list)))
}

/// Returns the page with its form, also if a field of it is invalid.
fn page_of(given: &Query, list: &Markup) -> Markup {
    let fields = html! {
        (parts::choice("status", "Status", statuses(), &given.status))
        (parts::whole_field("task", "Task", "name or report-*", &given.task))
        (parts::whole_field("handler", "Handler", "any", &given.handler))
        (parts::text_field("error", "Error", "part of its text", &given.error))
        (parts::whole_field("since", "Due since", "24h or 2027-03-14", &given.since))
        (parts::whole_field("until", "Due until", "24h or 2027-03-14", &given.until))
    };
    html! {
        div.head { h1 { "Runs" } }
        (parts::filter("/runs", given.is_used(), &fields))
        (list)
    }
}

fn refused(reason: &str) -> Markup {
    html! { div.empty role="alert" { p.title { "The filter cannot be used" } p { (show(reason, 400)) } } }
}

fn listed(given: &Query, query: &RunQuery, found: &RunPage, times: &Times) -> Markup {
    html! {
        @if !found.runs.is_empty() {
            (table("Runs", &found.runs, Column::Task, times))
        } @else if !found.is_cut {
            @let advice = html! { @if given.is_used() { a href="/runs" { "Show all runs" } } @else { "A run appears here when a task is due or triggered." } };
            (parts::empty(if query.before.is_some() { "No older runs" } else { "No such runs" }, &advice))
        }
        @if found.is_cut {
            p.note { "Looked at " (query.most) @if query.before.is_some() { " older" } " runs, of which " (found.runs.len()) " match." }
        }
        (parts::key_paging(
            query.before.map(|_| given.path("/runs", None)),
            found.next.map(|run| given.path("/runs", Some(run))),
            if found.is_cut { "Continue with older runs →" } else { "Older →" },
        ))
    }
}

/// Asks whether an action is to be performed with all runs that match, and says how many there are.
pub(in crate::page) async fn retry(state: extract::State<Arc<State>>, given: extract::Query<Query>) -> Response {
    confirm(state, given, BulkAction::Retry).await
}

/// As [`retry`].
pub(in crate::page) async fn cancel(state: extract::State<Arc<State>>, given: extract::Query<Query>) -> Response {
    confirm(state, given, BulkAction::Cancel).await
}

async fn confirm(
    extract::State(state): extract::State<Arc<State>>,
    extract::Query(given): extract::Query<Query>,
    action: BulkAction,
) -> Response {
    rendered(state, Nav::Runs, move |view| {
        let (fixed, filter) = match change(given.clone(), action, &view.times) {
            Ok(change) => change,
            Err(reason) => {
                return Ok(Content::new("Runs", page_of(&given, &refused(&reason))).status(StatusCode::BAD_REQUEST));
            }
        };
        let (report, pass) = view.state.reader.count_some(action, &filter, MAX_COUNTED)?;
        let more = if pass.is_over() { "" } else { " or more" };
        let count = format!("{}{more}", action.counted(report.changed));
        let main = html! {
            h1 { (title(action)) " " (count) "?" }
            p.lead { "This " (show(&report.would(action), 400)) @if !pass.is_over() { ". More may match: these were counted" } "." }
            (left(action, &report))
            div.head {
                @if report.changed > 0 {
                    (actions::button_for_all(view.state, &fixed.path(&format!("/runs/{action}"), None), pass.until, &format!("{} {count}", title(action))))
                }
                a href=(fixed.path("/runs", None)) { "Show these runs" }
            }
        };
        Ok(Content::new(format!("{} runs", title(action)), main))
    })
    .await
}

/// Returns the filter of an action, and the conditions with instants. Fails if they do not select runs that the action can change.
pub(in crate::page) fn change(given: Query, change: BulkAction, times: &Times) -> Result<(Query, Filter), String> {
    let (fixed, query) = given.read(times)?;
    if action(&query) != Some(change) {
        let expected = if change == BulkAction::Retry { "dead" } else { "unfinished, queued, running or failed" };
        return Err(invalid("status", expected, &fixed.status));
    }
    Ok((fixed, filter(&query)))
}

/// Returns the page that says what an action did.
pub(in crate::page) fn changed(given: &Query, action: BulkAction, report: &BulkReport) -> Content {
    let main = html! {
        h1 { (title(action)) " runs" }
        p.lead { "Done: " (show(&report.done(action), 400)) "." }
        (left(action, report))
        p { a href=(given.path("/runs", None)) { "Show these runs" } }
    };
    Content::new(format!("{} runs", title(action)), main)
}

fn left(action: BulkAction, report: &BulkReport) -> Markup {
    html! { @if !report.left.is_empty() { ul { @for left in &report.left { li { "Left as they are: " (show(&left.text(action), 400)) } } } } }
}

fn title(action: BulkAction) -> &'static str {
    if action == BulkAction::Retry { "Retry" } else { "Cancel" }
}

/// Whether the table names the tasks of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Task,
    None,
}

/// Returns runs as a table.
pub(super) fn table(label: &str, runs: &[RunLine], task: Column, times: &Times) -> Markup {
    let rows = html! { @for run in runs { (row(run, task, times)) } };
    parts::stacked(label, &["Run", "Status", "Occurrence", "Started", "Duration", "Attempts", "Error"], &rows)
}

fn row(run: &RunLine, task: Column, times: &Times) -> Markup {
    html! {
        tr {
            th.full scope="row" {
                a.nowrap href=(links::run(run.id)) { "Run " (run.id) }
                @if task == Column::Task {
                    small.text { a href=(links::task(&run.task)) { (show(&run.task, MAX_NAME)) } " · " (show(&run.handler, MAX_NAME)) }
                }
            }
            td.nowrap {
                @match run.status { Some(status) => (parts::run_badge(status)), None => "unreadable" }
                @if run.occurrences > 1 { small { (run.occurrences) " occurrences" } }
                @if let Some(reason) = &run.blocked { small { "waits: " (show(reason, 40)) } }
                @if run.status == Some(RunStatus::Failed) && run.blocked.is_none() { small { "next attempt " (parts::distance(run.run_at, times.now)) } }
            }
            td.nowrap data-label="Occurrence" {
                (parts::instant(run.scheduled_for, times))
                @if let Some(origin) = run.origin.filter(|origin| origin.as_str() != "schedule") { small { (origin.as_str().replace('_', " ")) } }
            }
            td.nowrap data-label="Started" {
                @match run.started_at { Some(at) => (parts::when(at, times)), None => (parts::none()) }
                @if let Some(late) = lateness(run).filter(|late| late.as_secs() > 0) { small { (short_duration(late)) " late" } }
            }
            td.nowrap data-label="Duration" { (parts::duration(run.duration)) }
            td data-label="Attempts" { @if run.attempt == 0 { (parts::none()) } @else { (run.attempt) } }
            td.full.text { @match &run.error { Some(error) => (show(reason(error), MAX_ERROR)), None => (parts::none()) } }
        }
    }
}

/// Returns how long after its occurrence a run began; `None` if it did not, or its first attempt is unknown.
pub(super) fn lateness(run: &RunLine) -> Option<std::time::Duration> {
    run.started_at.filter(|_| run.attempt == 1).map(|at| at.since(run.scheduled_for))
}

/// Returns the last line of an error that has several: most programs end with the reason.
fn reason(error: &str) -> &str {
    error.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or(error)
}
