//! The page `tasks`: health at a glance, and the tasks with their last runs, by name in groups, or in another order.

use std::sync::Arc;

use axum::extract;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use crate::client::check::{Problem, ProblemKind};
use crate::error::Result;
use crate::model::filter::NamePattern;
use crate::model::report::Status;
use crate::model::run::RunStatus;
use crate::model::task::{Task, TaskStatus};
use crate::model::task_pages::{Mark, TaskOrder, TaskPage, TaskQuery};
use crate::page::html::parts::{self, Head, PAGE, show};
use crate::page::html::words;
use crate::page::html::{Content, Nav, View, actions, links, rendered, runs};
use crate::page::state::State;
use crate::text::times::Times;

/// Runs in the strip of a task.
const MARKS: usize = 20;
/// Problems that are listed.
const MAX_PROBLEMS: usize = 20;
/// Longest name, schedule and error that a row shows, in characters.
const MAX_NAME: usize = 200;
const MAX_SCHEDULE: usize = 80;

/// The filter of the table, as the address has it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::page) struct Query {
    name: String,
    handler: String,
    status: String,
    completed: String,
    order: String,
    page: Option<String>,
}

/// The orders that the page offers, as the address and the form name them.
const ORDERS: [(TaskOrder, &str, &str); 4] = [
    (TaskOrder::Name, "", "name"),
    (TaskOrder::Failing, "failing", "failing first"),
    (TaskOrder::Next, "next", "next run"),
    (TaskOrder::Last, "last", "last run"),
];

impl Query {
    fn is_used(&self) -> bool {
        [&self.name, &self.handler, &self.status, &self.completed].iter().any(|field| !field.is_empty())
    }

    fn has_completed(&self) -> bool {
        !self.completed.is_empty()
    }

    fn pairs(&self) -> [(&str, &str); 5] {
        let Query { name, handler, status, completed, order, .. } = self;
        [("name", name), ("handler", handler), ("status", status), ("completed", completed), ("order", order)]
    }

    fn order(&self) -> TaskOrder {
        ORDERS.iter().find(|(_, word, _)| *word == self.order).map_or(TaskOrder::Name, |(order, ..)| *order)
    }

    /// Returns the address of the same tasks in another order.
    fn ordered(&self, word: &str) -> String {
        let [name, handler, status, completed, _] = self.pairs();
        links::with_query("/", &[name, handler, status, completed, ("order", word)])
    }

    /// Returns the address of the tasks of a group.
    fn of_group(group: &str) -> String {
        links::with_query("/", &[("name", &format!("{group}*"))])
    }

    /// Returns the selection of a page, from 1. Text without a wildcard matches any part of a name.
    fn selection(&self, page: usize) -> TaskQuery {
        let (name, handler) = (self.name.trim(), self.handler.trim());
        let pattern = NamePattern::new(name);
        let pattern = if pattern.is_name() { NamePattern::new(format!("*{name}*")) } else { pattern };
        TaskQuery {
            pattern: (!name.is_empty()).then_some(pattern),
            handler: (!handler.is_empty()).then(|| handler.to_owned()),
            status: TaskStatus::parse(&self.status),
            with_completed: self.has_completed(),
            order: self.order(),
            after: None,
            skip: (page - 1) * PAGE,
            limit: PAGE,
            marks: MARKS,
        }
    }
}

pub(in crate::page) async fn page(
    extract::State(state): extract::State<Arc<State>>,
    extract::Query(query): extract::Query<Query>,
) -> Response {
    rendered(state, Nav::Tasks, move |view| content(view, &query)).await
}

fn content(view: &View<'_>, query: &Query) -> Result<Content> {
    let number = parts::page_number(query.page.as_deref());
    let status = view.state.reader.status()?;
    let found = view.state.reader.task_page(&query.selection(number))?;
    let main = html! {
        h1.hidden { "Tasks" }
        (glance(&status, view))
        section #problems aria-label="Problems" { (problems(view.state, view.problems)) }
        section aria-labelledby="tasks" {
            h2 #tasks { "Tasks" }
            (parts::filter("/", query.is_used(), &fields(query)))
            @if found.tasks.is_empty() { (no_tasks(&status, query)) } @else { (table(&found, query, &view.times)) }
            (parts::paging("/", &query.pairs(), number, found.has_more))
        }
    };
    Ok(Content::new("Tasks", main))
}

fn fields(query: &Query) -> Markup {
    html! {
        (parts::text_field("name", "Name", "report-* or part of it", &query.name))
        (parts::whole_field("handler", "Handler", "any", &query.handler))
        (parts::choice("status", "Status", TaskStatus::ALL.iter().map(|status| status.as_str()), &query.status))
        label {
            span { "Order" }
            select name="order" {
                @for (order, word, label) in ORDERS { option value=(word) selected[order == query.order()] { (label) } }
            }
        }
        (parts::switch("completed", "Completed one-time tasks", query.has_completed()))
    }
}

fn no_tasks(status: &Status, query: &Query) -> Markup {
    if query.is_used() || query.page.is_some() {
        parts::empty("No such tasks", &html! { a href="/" { "Show all tasks" } })
    } else if status.tasks.is_empty() {
        parts::empty("No tasks yet", &html! { "Add one: " code { "duly add hello --every 15m -- echo hello" } })
    } else {
        parts::empty("No open tasks", &html! { a href="/?completed=1" { "Show completed one-time tasks" } })
    }
}

/// Returns the numbers that show whether work proceeds.
fn glance(status: &Status, view: &View<'_>) -> Markup {
    let count = |of: RunStatus| status.runs.iter().find(|(one, _)| *one == of).map_or(0, |(_, count)| *count);
    let waiting = count(RunStatus::Queued) + count(RunStatus::Failed) + status.blocked;
    let alive = status.instances.iter().filter(|one| one.alive == Some(true)).count();
    let problems = view.problems.map(<[_]>::len);
    let due_class = if status.overdue > 0 { "is-warn" } else { class_of(status.due) };
    html! {
        dl.glance {
            div class=(match problems { Some(0) => "is-zero", Some(_) => "is-bad", None => "" }) {
                dt { "Problems" }
                dd { @match problems {
                    Some(0) => "0",
                    Some(count) => { a href="#problems" { (count) } },
                    None => "?",
                } }
            }
            div class=(due_class) { dt { "Due" } dd { (status.due) } }
            div class=(class_of(count(RunStatus::Running))) {
                dt { "Running" }
                dd { a href="/runs?status=running" { (count(RunStatus::Running)) } }
            }
            div class=(class_of(waiting)) { dt { "Waiting" } dd { a href="/runs?status=unfinished" { (waiting) } } }
            div class=(if alive == 0 { "is-warn" } else { "" }) {
                dt { "Schedulers alive" }
                dd { a href="/schedulers" { (alive) } }
            }
            div.wide {
                dt { a href="/agenda" { "Next" } }
                dd { @match &status.next {
                    None => (parts::none()),
                    Some((name, at)) => {
                        (parts::when(*at, &view.times))
                        small { a href=(links::task(name)) { (show(name, 60)) } }
                    }
                } }
            }
        }
    }
}

fn class_of(count: u64) -> &'static str {
    if count == 0 { "is-zero" } else { "" }
}

/// Returns a list of problems; empty without any.
pub(super) fn problems(state: &State, found: Option<&[Problem]>) -> Markup {
    let Some(found) = found else { return html! { p.muted { "The problems could not be read." } } };
    html! {
        @if !found.is_empty() {
            ul.problems {
                @for problem in found.iter().take(MAX_PROBLEMS) {
                    li {
                        span.kind { (problem.kind.as_str().replace('_', " ")) }
                        div {
                            p {
                                (show(&problem.found, 400)) " "
                                @if let Some(run) = problem.run { a.nowrap href=(links::run(run)) { "Run " (run) } @if problem.task.is_some() { " · " } }
                                @if let Some(task) = &problem.task {
                                    a href=(links::task(task)) { "Task " (show(task, 60)) }
                                    @if matches!(problem.kind, ProblemKind::Dead | ProblemKind::Failing) {
                                        " · " a href=(runs::Query::of(task, "dead").path("/runs", None)) { "Dead runs" }
                                    }
                                }
                            }
                            p.muted { (show(&problem.advice, 400)) }
                            @if let Some((run, verb, label)) = remedy(problem) {
                                (actions::button(state, &format!("{}/{verb}", links::run(run)), None, &format!("{label} run {run}")))
                            }
                        }
                    }
                }
                @if found.len() > MAX_PROBLEMS {
                    li { span.muted { "And " (found.len() - MAX_PROBLEMS) " more: see " code { "duly check" } } }
                }
            }
        }
    }
}

/// Returns what the advice of a problem says to do with its run, if a button can do it: the run, the action, and the label of the button.
fn remedy(problem: &Problem) -> Option<(i64, &'static str, &'static str)> {
    let run = problem.run?;
    match problem.kind {
        ProblemKind::Dead => Some((run, "retry", "Retry")),
        ProblemKind::Stuck | ProblemKind::Reopened if problem.advice.contains(&format!("duly cancel {run}")) => {
            Some((run, "cancel", "Cancel"))
        }
        _ => None,
    }
}

fn table(found: &TaskPage, query: &Query, times: &Times) -> Markup {
    let order = query.order();
    let groups: Vec<&[(Task, Vec<Mark>)]> = match order {
        TaskOrder::Name => found.tasks.chunk_by(|one, next| group(&one.0) == group(&next.0)).collect(),
        _ => vec![&found.tasks],
    };
    let bodies = html! {
        @for tasks in groups {
            tbody {
                @if order == TaskOrder::Name && let Some(group) = heading(tasks, query) {
                    tr.group { th.full colspan="5" scope="rowgroup" { a href=(Query::of_group(group)) { (show(group, MAX_NAME)) } } }
                }
                @for (task, marks) in tasks { (row(task, marks, times)) }
            }
        }
    };
    let head = |text, one: TaskOrder, sorted| {
        let word = ORDERS.iter().find(|(order, ..)| *order == one).map(|(_, word, _)| *word);
        Head { text, order: word, sorted: (order == one).then_some(sorted) }
    };
    let columns = [
        head("Task", TaskOrder::Name, "ascending"),
        head("Status", TaskOrder::Failing, "other"),
        head("Next", TaskOrder::Next, "ascending"),
        head("Last", TaskOrder::Last, "descending"),
        Head { text: "Last runs", order: None, sorted: None },
    ];
    parts::ordered("Tasks", &columns, |word| query.ordered(word), &bodies)
}

/// Returns the heading of tasks of one group, if there are several, and the page shows others beside them.
fn heading<'t>(tasks: &'t [(Task, Vec<Mark>)], query: &Query) -> Option<&'t str> {
    let group = group(&tasks.first()?.0)?;
    (tasks.len() > 1 && query.name != format!("{group}*")).then_some(group)
}

/// Returns the group of a name: `backup/` of `backup/home`.
fn group(task: &Task) -> Option<&str> {
    let name = task.name();
    name.find('/').map(|at| &name[..=at])
}

fn row(task: &Task, marks: &[Mark], times: &Times) -> Markup {
    html! {
        tr {
            th.full scope="row" {
                a.text href=(links::task(task.name())) { (show(task.name(), MAX_NAME)) }
                small.text { (show(&words::schedule_in_short(task), MAX_SCHEDULE)) " · " (show(&task.definition.handler, MAX_SCHEDULE)) }
            }
            td.nowrap data-label="Status" { (parts::task_badge(task)) }
            td.nowrap data-label="Next" { (next(task, times)) }
            td.nowrap data-label="Last" { (last(task, times)) }
            td.full data-label="Last runs" { @if marks.is_empty() { (parts::none()) } @else { (parts::marks(marks, times)) } }
        }
    }
}

/// Returns the next run of a task, or why it has none.
pub(super) fn next(task: &Task, times: &Times) -> Markup {
    match task.next_run {
        Some(at) => parts::instant_and_distance(at, times),
        None => match words::no_next(task) {
            "" => parts::none(),
            reason => html! { span.muted { (reason) } },
        },
    }
}

fn last(task: &Task, times: &Times) -> Markup {
    let Some(status) = task.last_status else { return parts::none() };
    html! {
        span.nowrap { (parts::run_badge(status)) }
        small {
            @if let Some(at) = task.last_finished.or(task.last_run) { (parts::when(at, times)) }
            @if let Some(length) = task.last_duration { " · " (parts::duration(Some(length))) }
            @if task.failure_count > 1 { span.streak { (task.failure_count) " dead in a row" } }
        }
    }
}
