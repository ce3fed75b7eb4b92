//! Requests that change something: trigger, pause, resume, cancel, retry.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use tokio::time::timeout;

use crate::error::Error;
use crate::model::action::{Action, Target};
use crate::page::answer::{panicked, permitted};
use crate::page::html::{Nav, links, rendered};
use crate::page::state::State;

/// Names the page in the events of its actions.
const ACTOR: &str = "page";
/// Time to wait for another action. With the five seconds for which SQLite waits for a lock, less than the time to make an answer:
/// the answer then says whether the action was performed.
const PATIENCE: Duration = Duration::from_secs(3);

/// Returns the routes of all actions.
pub(super) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/tasks/{name}/trigger", on_task(|on| Action::Trigger { on, payload: None, key: None }))
        .route("/tasks/{name}/pause", on_task(Action::Pause))
        .route("/tasks/{name}/resume", on_task(Action::Resume))
        .route("/runs/{id}/cancel", on_run(Action::Cancel))
        .route("/runs/{id}/retry", on_run(Action::Retry))
}

fn on_task(action: fn(Target) -> Action) -> MethodRouter<Arc<State>> {
    post(move |extract::State(state), extract::Path(task), headers, body: Bytes| {
        let target = Target { task, id: task_id(&body) };
        perform(state, action(target), headers, body)
    })
}

fn on_run(action: fn(i64) -> Action) -> MethodRouter<Arc<State>> {
    post(move |extract::State(state), extract::Path(id), headers, body| perform(state, action(id), headers, body))
}

/// Performs an action if the form holds the token, and leads to the page that shows the result.
async fn perform(state: Arc<State>, action: Action, headers: HeaderMap, form: Bytes) -> Response {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, "expected a form: application/x-www-form-urlencoded\n")
            .into_response();
    }
    if !has_token(&form, &state.token) {
        let reason = "the form is not of this start of the scheduler: load the page again".to_owned();
        let mut response =
            failed(state, Error::Refused { request: format!("{} by this form", action.verb()), reason }).await;
        *response.status_mut() = StatusCode::FORBIDDEN;
        return response;
    }
    let Ok(permit) = timeout(PATIENCE, state.actions.clone().acquire_owned()).await else {
        let request = format!("{} now", action.verb());
        let reason = "another action waits for the database; nothing was changed, try again".to_owned();
        let mut response = failed(state, Error::Refused { request, reason }).await;
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        return response;
    };
    let writer = state.writer.clone();
    match permitted(permit.ok(), move || (writer.act(ACTOR, &action), action)).await {
        Ok((Ok(opened), action)) => {
            let page = match (opened, &action) {
                (Some(run), _) => links::run(run),
                (None, Action::Trigger { on, .. } | Action::Pause(on) | Action::Resume(on)) => links::task(&on.task),
                (None, Action::Cancel(id) | Action::Retry(id)) => links::run(*id),
                (None, Action::Add { task, .. }) => links::task(&task.name),
                (None, Action::Remove(_)) => "/".to_owned(),
            };
            (StatusCode::SEE_OTHER, [(LOCATION, page)]).into_response()
        }
        Ok((Err(error), _)) => failed(state, error).await,
        Err(error) => panicked(&error),
    }
}

async fn failed(state: Arc<State>, error: Error) -> Response {
    rendered(state, Nav::Tasks, |_| Err(error)).await
}

/// Returns the id of the task that the page of a form showed. Another value than a number is the id of no task.
fn task_id(form: &[u8]) -> Option<i64> {
    let id = form.split(|byte| *byte == b'&').find_map(|field| field.strip_prefix(b"task="))?;
    Some(std::str::from_utf8(id).ok().and_then(|id| id.parse().ok()).unwrap_or(0))
}

/// Returns whether a form has one field `token` with this value. A token consists of hexadecimal digits, which no form encodes.
fn has_token(form: &[u8], token: &str) -> bool {
    let mut tokens = form.split(|byte| *byte == b'&').filter_map(|field| field.strip_prefix(b"token="));
    match (tokens.next(), tokens.next()) {
        (Some(given), None) => is_equal(given, token.as_bytes()),
        _ => false,
    }
}

/// Compares in a time that depends on the length of `given` only.
fn is_equal(given: &[u8], expected: &[u8]) -> bool {
    let differences = given.iter().zip(expected).fold(0, |differences, (a, b)| differences | (a ^ b));
    given.len() == expected.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::has_token;

    #[test]
    fn exactly_the_token_is_accepted() {
        let token = "00ff".repeat(8);
        for (form, accepted) in [
            (format!("token={token}"), true),
            (format!("a=b&token={token}&c"), true),
            (format!("token={token}0"), false),
            (format!("token={}", &token[1..]), false),
            (format!("token=1{}", &token[1..]), false),
            (format!("token={token}&token={token}"), false),
            (format!("Token={token}"), false),
            ("token=".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(has_token(form.as_bytes(), &token), accepted, "{form}");
        }
    }
}
