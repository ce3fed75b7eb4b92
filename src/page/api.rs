//! `/api/..`: the JSON of the commands. `openapi.json` describes every path, parameter and answer.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{self, Query};
use axum::http::header::{CONTENT_TYPE, LINK};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{Router, get};
use serde::Serialize;
use serde_json::json;

use crate::client::Client;
use crate::client::details::ListedTask;
use crate::clock::Timestamp;
use crate::error::{Error, excerpt};
use crate::model::filter::NamePattern;
use crate::model::health::Limits;
use crate::model::recorded::EventFilter;
use crate::model::report::Recent;
use crate::model::run::{RunFilter, RunStatus};
use crate::model::task::{Task, TaskStatus, check_name};
use crate::model::task_pages::{After, Mark, TaskOrder, TaskQuery};
use crate::page::answer::{apart, panicked};
use crate::page::html::links::encoded;
use crate::page::state::State;
use crate::text::units::parse_duration;

/// Items of a list, unless `limit` names another number: as the commands print by default, or as many tasks as a page of HTML shows.
const TASKS: usize = 50;
const RUNS: usize = 20;
const EVENTS: usize = 50;
const OCCURRENCES: usize = 5;
/// Most items of a list.
const MAX_TASKS: usize = 500;
/// A run may hold an output and a payload of some hundred KiB.
const MAX_RUNS: usize = 200;
const MAX_EVENTS: usize = 500;
const MAX_OCCURRENCES: usize = 1000;

const JSON: &str = "application/json";
const DESCRIPTION: &str = include_str!("openapi.json");

type Shared = extract::State<Arc<State>>;
type Name = Result<extract::Path<String>, extract::rejection::PathRejection>;

/// Returns the routes below `/api`.
pub(super) fn router() -> Router<Arc<State>> {
    Router::new()
        .route("/openapi.json", get(openapi))
        .route("/status", get(status))
        .route("/tasks", get(tasks))
        .route("/tasks/{name}", get(task))
        .route("/tasks/{name}/next", get(next))
        .route("/runs", get(runs))
        .route("/runs/{id}", get(run))
        .route("/check", get(check))
        .route("/limits", get(limits))
        .route("/events", get(events))
        .fallback(unknown)
}

/// Answers every path below `/api` that is not in the route table.
pub(super) async fn unknown() -> Response {
    Refusal::missing("there is no such path: /api/openapi.json lists all".to_owned()).into_response()
}

async fn openapi(uri: Uri) -> Response {
    match Parameters::of(&uri, &[]) {
        Ok(_) => ([(CONTENT_TYPE, JSON)], DESCRIPTION).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn status(state: Shared, uri: Uri) -> Response {
    answered(state, uri, &[], |client, _| Ok(client.status()?)).await
}

async fn tasks(state: Shared, uri: Uri) -> Response {
    let known = &["status", "handler", "name", "after", "limit"];
    listed(state, uri, known, |client, parameters| {
        let query = TaskQuery {
            pattern: parameters.text("name").map(NamePattern::new),
            handler: parameters.text("handler").map(str::to_owned),
            status: parameters.parsed("status", &choices(TaskStatus::ALL))?,
            with_completed: true,
            order: TaskOrder::Name,
            after: parameters.text("after").map(after),
            skip: 0,
            limit: parameters.number("limit", TASKS, MAX_TASKS)?,
            marks: ListedTask::RECENT,
        };
        let page = client.task_page(&query)?;
        let next = page.tasks.last().filter(|_| page.has_more).map(|(last, _)| ("after", cursor(last)));
        let recent = |mark: &Mark| Recent { status: mark.status, duration: mark.duration };
        let recent: Vec<Vec<Recent>> = page.tasks.iter().map(|(_, marks)| marks.iter().map(recent).collect()).collect();
        let tasks = page.tasks.iter().zip(&recent).map(|((task, _), recent)| ListedTask { task, recent });
        Ok((to_json(&tasks.collect::<Vec<_>>())?, next))
    })
    .await
}

/// Returns the parameter by which the page after this task begins: its name, or `#` and its id if that is no name of a task.
fn cursor(task: &Task) -> String {
    match check_name(task.name()) {
        Ok(()) => task.name().to_owned(),
        Err(_) => format!("#{}", task.id),
    }
}

fn after(text: &str) -> After {
    let id = text.strip_prefix('#').and_then(|id| id.parse().ok());
    id.map_or_else(|| After::Name(text.to_owned()), After::Id)
}

async fn task(state: Shared, name: Name, uri: Uri) -> Response {
    answered(state, uri, &[], |client, _| Ok(client.task_details(&decoded(name)?)?)).await
}

async fn next(state: Shared, name: Name, uri: Uri) -> Response {
    answered(state, uri, &["n"], |client, parameters| {
        let (name, number) = (decoded(name)?, parameters.number("n", OCCURRENCES, MAX_OCCURRENCES)?);
        let task = client.task(&name)?.ok_or(Error::UnknownTask { name })?;
        task.ahead(number).map_err(|error| Refusal { status: StatusCode::CONFLICT, error: error.to_string() })
    })
    .await
}

async fn runs(state: Shared, uri: Uri) -> Response {
    let known = &["task", "status", "since", "before", "limit"];
    listed(state, uri, known, |client, parameters| {
        let limit = parameters.number("limit", RUNS, MAX_RUNS)?;
        let status: Option<RunStatus> = parameters.parsed("status", &choices(RunStatus::ALL))?;
        let filter = RunFilter::newest(limit + 1);
        let filter = parameters.text("task").into_iter().fold(filter, RunFilter::of);
        let filter = status.into_iter().fold(filter, RunFilter::status);
        let filter = parameters.since(client.now())?.into_iter().fold(filter, RunFilter::since);
        let filter = parameters.before()?.into_iter().fold(filter, RunFilter::before);
        let mut runs = client.runs(&filter)?;
        let more = runs.len() > limit;
        runs.truncate(limit);
        Ok((to_json(&runs)?, runs.last().filter(|_| more).map(|last| ("before", last.id.to_string()))))
    })
    .await
}

async fn run(state: Shared, id: Name, uri: Uri) -> Response {
    answered(state, uri, &[], |client, _| {
        let id = decoded(id)?;
        let id = id.parse().map_err(|_| Refusal::invalid("id", "the number of a run", &id))?;
        Ok(client.run_details(id)?)
    })
    .await
}

async fn check(state: Shared, uri: Uri) -> Response {
    answered(state, uri, &["overdue", "failures", "all_missed"], |client, parameters| {
        let default = Limits::default();
        let overdue = parameters
            .text("overdue")
            .map(|text| parse_duration(text).map_err(|_| Refusal::invalid("overdue", "a duration such as 5m", text)));
        let failures: Option<u32> = parameters.parsed("failures", "a number from 1")?;
        let caught_up: Option<bool> = parameters.parsed("all_missed", "true or false")?;
        let limits = Limits {
            overdue: overdue.transpose()?.unwrap_or(default.overdue),
            failures: failures.unwrap_or(default.failures),
            caught_up: caught_up.unwrap_or(default.caught_up),
        };
        if limits.failures == 0 {
            return Err(Refusal::invalid("failures", "a number from 1", "0"));
        }
        Ok(client.check(&limits)?)
    })
    .await
}

async fn limits(state: Shared, uri: Uri) -> Response {
    answered(state, uri, &[], |client, _| Ok(client.limits()?)).await
}

async fn events(state: Shared, uri: Uri) -> Response {
    let known = &["task", "kind", "before", "limit"];
    listed(state, uri, known, |client, parameters| {
        let limit = parameters.number("limit", EVENTS, MAX_EVENTS)?;
        let filter = EventFilter::newest(limit + 1);
        let filter = parameters.text("task").into_iter().fold(filter, EventFilter::of);
        let filter = parameters.text("kind").into_iter().fold(filter, EventFilter::kind);
        let filter = parameters.before()?.into_iter().fold(filter, EventFilter::before);
        let mut events = client.events(&filter)?;
        let more = events.len() > limit;
        events.truncate(limit);
        Ok((to_json(&events)?, events.last().filter(|_| more).map(|last| ("before", last.id.to_string()))))
    })
    .await
}

/// Answers with what `f` returns, as JSON. `known`: the parameters that the query may have.
async fn answered<T: Serialize>(
    state: Shared,
    uri: Uri,
    known: &'static [&'static str],
    f: impl FnOnce(&Client, &Parameters) -> Result<T, Refusal> + Send + 'static,
) -> Response {
    listed(state, uri, known, move |client, parameters| Ok((to_json(&f(client, parameters)?)?, None))).await
}

/// As [`answered`], with a list as JSON text, and the parameter by which the next page begins, if there is one.
async fn listed(
    extract::State(state): Shared,
    uri: Uri,
    known: &'static [&'static str],
    f: impl FnOnce(&Client, &Parameters) -> Result<(String, Option<(&'static str, String)>), Refusal> + Send + 'static,
) -> Response {
    let answer = apart(move || {
        let parameters = Parameters::of(&uri, known)?;
        let (text, next) = f(&state.reader, &parameters)?;
        let links = next.map(|(name, value)| [(LINK, format!("<{}>; rel=\"next\"", parameters.with(name, &value)))]);
        Ok::<_, Refusal>((links, [(CONTENT_TYPE, JSON)], text))
    });
    match answer.await {
        Ok(answer) => answer.into_response(),
        Err(error) => panicked(&error),
    }
}

fn to_json(value: &impl Serialize) -> Result<String, Refusal> {
    serde_json::to_string(value).map_err(|error| Error::store("write JSON", error).into())
}

/// Returns the segment of a path that names a task or a run.
fn decoded(segment: Name) -> Result<String, Refusal> {
    match segment {
        Ok(extract::Path(text)) => Ok(text),
        Err(_) => {
            Err(Refusal { status: StatusCode::BAD_REQUEST, error: "invalid path: expected text in UTF-8".into() })
        }
    }
}

/// Lists the values that a parameter accepts.
fn choices(all: &[impl Display]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    all.join(", ")
}

/// The query of a request.
struct Parameters {
    pairs: Vec<(String, String)>,
}

impl Parameters {
    /// Reads a query. Fails if a parameter is not in `known`, or is given twice.
    fn of(uri: &Uri, known: &[&str]) -> Result<Self, Refusal> {
        let bad = |error| Refusal { status: StatusCode::BAD_REQUEST, error };
        let Ok(Query(pairs)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
            return Err(bad("invalid query: expected name=value, with & between several".to_owned()));
        };
        for (place, (name, _)) in pairs.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let known = if known.is_empty() { "no parameter".to_owned() } else { known.join(", ") };
                return Err(bad(format!("unknown parameter: expected {known}, found {:?}", excerpt(name, 80))));
            }
            if pairs[..place].iter().any(|(other, _)| other == name) {
                return Err(bad(format!("parameter {name} is given twice: expected one value")));
            }
        }
        Ok(Parameters { pairs })
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a parameter. `expected` describes the values that can be parsed.
    fn parsed<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, Refusal> {
        self.text(name).map(|text| text.parse().map_err(|_| Refusal::invalid(name, expected, text))).transpose()
    }

    /// Returns the value of a parameter that limits a list.
    fn number(&self, name: &str, default: usize, most: usize) -> Result<usize, Refusal> {
        let expected = format!("a number from 1 to {most}");
        match self.parsed(name, &expected)? {
            Some(number) if (1..=most).contains(&number) => Ok(number),
            Some(number) => Err(Refusal::invalid(name, &expected, &number.to_string())),
            None => Ok(default),
        }
    }

    fn before(&self) -> Result<Option<i64>, Refusal> {
        self.parsed("before", "the number at which the last page ended")
    }

    /// Returns the instant that `since` names, or that is its duration before now.
    fn since(&self, now: Timestamp) -> Result<Option<Timestamp>, Refusal> {
        if let Some(age) = self.text("since").and_then(|text| parse_duration(text).ok()) {
            return Ok(Some(now.minus(age)));
        }
        let expected = "an instant such as 2027-03-14T12:00:00Z, or a duration before now, such as 2h";
        self.parsed("since", expected)
    }

    /// Returns this query as that of another page: with another value of a parameter.
    fn with(&self, name: &str, value: &str) -> String {
        let others = self.pairs.iter().filter(|(other, _)| other != name);
        let others = others.map(|(name, value)| format!("{}={}&", encoded(name), encoded(value)));
        format!("?{}{name}={}", others.collect::<String>(), encoded(value))
    }
}

/// A request that is not answered, and why.
struct Refusal {
    status: StatusCode,
    error: String,
}

impl Refusal {
    fn missing(error: String) -> Self {
        Refusal { status: StatusCode::NOT_FOUND, error }
    }

    fn invalid(name: &str, expected: &str, found: &str) -> Self {
        let error = format!("invalid {name}: expected {expected}, found {:?}", excerpt(found, 80));
        Refusal { status: StatusCode::BAD_REQUEST, error }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::UnknownTask { .. } | Error::UnknownRun { .. } => Refusal::missing(error.to_string()),
            other => {
                log::warn!("the status page cannot answer: {other}");
                Refusal { status: StatusCode::SERVICE_UNAVAILABLE, error: other.to_string() }
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal { status, error } = self;
        (status, [(CONTENT_TYPE, JSON)], json!({ "error": error }).to_string()).into_response()
    }
}
