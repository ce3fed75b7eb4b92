//! Requests that change something: trigger, pause, resume, cancel, retry.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use tokio::time::timeout;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::model::action::{Action, Target};
use crate::model::bulk::BulkAction;
use crate::page::answer::{panicked, permitted};
use crate::page::html::{Nav, links, machine_zone, rendered, runs};
use crate::page::state::State;
use crate::text::times::Times;

/// Names the page in the events of its actions.
const ACTOR: &str = "page";
/// Time to wait for another action. With the five seconds for which SQLite waits for a lock, less than the time to make an answer:
/// the answer then says whether the action was performed.
const PATIENCE: Duration = Duration::from_secs(3);

type Shared = extract::State<Arc<State>>;

/// Returns the routes of all actions.
pub(super) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/tasks/{name}/trigger", on_task(|on| Action::Trigger { on, payload: None, key: None }))
        .route("/tasks/{name}/pause", on_task(Action::Pause))
        .route("/tasks/{name}/resume", on_task(Action::Resume))
        .route("/runs/cancel", get(runs::cancel).merge(on_all(BulkAction::Cancel)))
        .route("/runs/retry", get(runs::retry).merge(on_all(BulkAction::Retry)))
        .route("/runs/{id}/cancel", on_run(Action::Cancel))
        .route("/runs/{id}/retry", on_run(Action::Retry))
}

fn on_task(action: fn(Target) -> Action) -> MethodRouter<Arc<State>> {
    post(move |extract::State(state), extract::Path(task), headers, body: Bytes| {
        let target = Target { task, id: number(&body, "task=") };
        act(state, action(target), headers, body)
    })
}

fn on_run(action: fn(i64) -> Action) -> MethodRouter<Arc<State>> {
    post(move |extract::State(state), extract::Path(id), headers, body| act(state, action(id), headers, body))
}

/// Performs an action with all runs that match, and shows what it did. The address has the conditions, and the form the newest run that was
/// counted.
fn on_all(action: BulkAction) -> MethodRouter<Arc<State>> {
    post(
        move |extract::State(state): Shared,
              extract::Query(query): extract::Query<runs::Query>,
              headers,
              body: Bytes| async move {
            let newest = number(&body, "newest=");
            let work = move |writer: &Client| {
                let refused = |reason| Error::Refused { request: format!("{action} all runs that match"), reason };
                let newest =
                    newest.ok_or_else(|| refused("the form does not say which runs were counted".to_owned()))?;
                let times = Times { now: writer.now(), zone: machine_zone()? };
                let (query, filter) = runs::change(query, action, &times).map_err(refused)?;
                Ok((query, writer.change_runs(ACTOR, action, &filter, newest)?))
            };
            match perform(&state, action.as_str(), headers, body, work).await {
                Ok((query, report)) => {
                    rendered(state, Nav::Runs, move |_| Ok(runs::changed(&query, action, &report))).await
                }
                Err(answer) => answer,
            }
        },
    )
}

/// Performs an action, and leads to the page that shows the result.
async fn act(state: Arc<State>, action: Action, headers: HeaderMap, form: Bytes) -> Response {
    let verb = action.verb();
    let work = move |writer: &Client| {
        let page = match (writer.act(ACTOR, &action)?, &action) {
            (Some(run), _) => links::run(run),
            (None, Action::Trigger { on, .. } | Action::Pause(on) | Action::Resume(on)) => links::task(&on.task),
            (None, Action::Cancel(id) | Action::Retry(id)) => links::run(*id),
            (None, Action::Add { task, .. }) => links::task(&task.name),
            (None, Action::Remove(_)) => "/".to_owned(),
        };
        Ok((StatusCode::SEE_OTHER, [(LOCATION, page)]).into_response())
    };
    perform(&state, verb, headers, form, work).await.unwrap_or_else(|answer| answer)
}

/// Does the work of an action if the form holds the token, one action at a time. Returns the answer if it cannot.
async fn perform<T: Send + 'static>(
    state: &Arc<State>,
    verb: &str,
    headers: HeaderMap,
    form: Bytes,
    work: impl FnOnce(&Client) -> Result<T> + Send + 'static,
) -> Result<T, Response> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let expected = "expected a form: application/x-www-form-urlencoded\n";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, expected).into_response());
    }
    if !has_token(&form, &state.token) {
        let reason = "the form is not of this start of the scheduler: load the page again".to_owned();
        let mut response = failed(state, Error::Refused { request: format!("{verb} by this form"), reason }).await;
        *response.status_mut() = StatusCode::FORBIDDEN;
        return Err(response);
    }
    let Ok(permit) = timeout(PATIENCE, state.actions.clone().acquire_owned()).await else {
        let request = format!("{verb} now");
        let reason = "another action waits for the database; nothing was changed, try again".to_owned();
        let mut response = failed(state, Error::Refused { request, reason }).await;
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        return Err(response);
    };
    let writer = state.writer.clone();
    match permitted(permit.ok(), move || work(&writer)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(failed(state, error).await),
        Err(error) => Err(panicked(&error)),
    }
}

async fn failed(state: &Arc<State>, error: Error) -> Response {
    rendered(state.clone(), Nav::Tasks, |_| Err(error)).await
}

/// Returns the id in a field of a form: `task=`, the task that its page showed. Another value than a number is the id of nothing.
fn number(form: &[u8], field: &str) -> Option<i64> {
    let id = form.split(|byte| *byte == b'&').find_map(|pair| pair.strip_prefix(field.as_bytes()))?;
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
