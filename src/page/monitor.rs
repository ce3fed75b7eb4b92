//! What monitors request: `/metrics`, `/healthz`, `/livez`.
//!
//! What is read from the database is kept for a second, and at most one request reads it at a time: a monitor may ask as often as it
//! likes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::client::check::ProblemKind;
use crate::clock::Timestamp;
use crate::model::health::Queue;
use crate::model::report::Status;
use crate::page::exposition::{Format, Sheet};
use crate::page::kept::{Checked, Read};
use crate::page::state::State;
use crate::schedule::duration_text;

/// A turn that takes longer than this counts as blocked. The lock of another program may block a turn for five seconds.
const LONGEST_TURN: Duration = Duration::from_secs(30);

async fn problems(state: &Arc<State>) -> Read<Checked> {
    let reader = state.reader.clone();
    state.monitor.problems.get(state.clock.clone(), move || Checked::read(&reader)).await
}

async fn tables(state: &Arc<State>) -> Read<(Status, Queue, Timestamp)> {
    let reader = state.reader.clone();
    let read = move || Ok((reader.status()?, reader.queue()?, reader.now()));
    state.monitor.tables.get(state.clock.clone(), read).await
}

/// Answers with all metrics. Without the database, with those that this process counts itself.
pub(super) async fn metrics(extract::State(state): extract::State<Arc<State>>, headers: HeaderMap) -> Response {
    let format = Format::accepted(accepted(&headers));
    let tables = tables(&state).await;
    // A database that does not answer is waited for once.
    let problems = match &tables {
        Ok(_) => problems(&state).await,
        Err(reason) => Err(reason.clone()),
    };
    let mut sheet = Sheet::default();
    sheet.add_counts(state.metrics.counts());
    sheet.add_turns(&state.vitals);
    sheet.add_readable(tables.is_ok() && problems.is_ok());
    match &tables {
        Ok(tables) => {
            state.monitor.sqlite.get_or_init(|| tables.0.sqlite.clone());
            sheet.add_tables(&tables.0, &tables.1, tables.2);
        }
        Err(reason) => log::warn!("metrics without those of the tables: {reason}"),
    }
    if let Ok(problems) = &problems {
        let count = |kind: &ProblemKind| problems.problems.iter().filter(|one| one.kind == *kind).count() as u64;
        sheet.add_problems(ProblemKind::ALL.iter().map(|kind| (kind.as_str(), count(kind))));
    }
    sheet.add_build(state.monitor.sqlite.get().map_or("", String::as_str));
    match sheet.text(format) {
        Ok(text) => ([(CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Answers whether `check` finds a problem or the loop takes no turns, and which.
pub(super) async fn health(extract::State(state): extract::State<Arc<State>>, headers: HeaderMap) -> Response {
    let found = problems(&state).await;
    let (mut lines, problems, error): (Vec<String>, _, _) = match found.as_deref() {
        Ok(Checked { problems, .. }) => (problems.iter().map(ToString::to_string).collect(), &problems[..], None),
        Err(reason) => (vec![format!("the database cannot be read: {reason}")], &[][..], Some(reason)),
    };
    let standstill = standstill(&state);
    lines.extend(standstill.clone());
    let is_healthy = lines.is_empty();
    let code = if is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if accepted(&headers).contains("application/json") {
        let answer = json!({ "ok": is_healthy, "problems": problems, "error": error.map(|reason| &**reason).or(standstill.as_deref()) });
        return (code, [(CONTENT_TYPE, "application/json")], answer.to_string()).into_response();
    }
    if is_healthy {
        lines.push("ok".to_owned());
    }
    (code, lines.join("\n") + "\n").into_response()
}

/// Answers whether the loop of the scheduler takes turns. Reads no database.
pub(super) async fn life(extract::State(state): extract::State<Arc<State>>) -> Response {
    match standstill(&state) {
        Some(line) => (StatusCode::SERVICE_UNAVAILABLE, line + "\n").into_response(),
        None => (StatusCode::OK, "ok\n").into_response(),
    }
}

/// Returns why the loop of the scheduler takes no turns; `None`: it does.
fn standstill(state: &State) -> Option<String> {
    let limit = state.vitals.poll().saturating_add(LONGEST_TURN);
    match state.vitals.silence(state.clock.now().monotonic) {
        None => Some("the scheduler has stopped".to_owned()),
        Some(silence) if silence > limit => {
            let [silence, limit] = [silence, limit].map(|time| duration_text(Duration::from_secs(time.as_secs())));
            Some(format!("no turn has ended for {silence}; expected one within {limit}"))
        }
        Some(_) => None,
    }
}

/// Returns the formats that a request accepts.
fn accepted(headers: &HeaderMap) -> &str {
    headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
