//! Work on the database, on other threads than the connections.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

use crate::error::Result;

tokio::task_local! {
    /// Limits the reading of all requests of a server.
    pub(super) static ANSWERS: Arc<Semaphore>;
}

/// Returns what `f` renders: text, or a status and text. `f` reads the database on another thread, so that no other connection
/// waits for it.
pub(super) async fn answered<T: IntoResponse + Send + 'static>(
    kind: &'static str,
    f: impl FnOnce() -> Result<T> + Send + 'static,
) -> Response {
    match apart(f).await {
        Ok(Ok(text)) => ([(CONTENT_TYPE, kind)], text).into_response(),
        Ok(Err(error)) => {
            log::warn!("the status page cannot answer: {error}");
            (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response()
        }
        Err(error) => panicked(&error),
    }
}

/// Runs `f` on another thread. A request waits while as many others run as the limit allows, and queues nothing if its client
/// leaves before.
pub(super) async fn apart<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    let permit = match ANSWERS.try_with(Arc::clone) {
        Ok(answers) => answers.acquire_owned().await.ok(),
        Err(_) => None,
    };
    permitted(permit, f).await
}

/// Runs `f` on another thread, which returns the permit when `f` ends, also if the request has ended before.
pub(super) async fn permitted<T: Send + 'static>(
    permit: Option<OwnedSemaphorePermit>,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let work = move || {
        let answer = f();
        drop(permit);
        answer
    };
    tokio::task::spawn_blocking(work).await
}

/// Returns the answer to a request whose work panicked.
pub(super) fn panicked(error: &JoinError) -> Response {
    log::error!("an answer of the status page failed: {error}");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}
