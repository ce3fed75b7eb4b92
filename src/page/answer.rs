//! Answers that read the database.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use crate::error::Result;

/// Returns what `f` renders: text, or a status and text. `f` reads the database on another thread, so that no other connection waits for it.
pub(super) async fn answered<T: IntoResponse + Send + 'static>(
    kind: &'static str,
    f: impl FnOnce() -> Result<T> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(f).await {
        Ok(Ok(text)) => ([(CONTENT_TYPE, kind)], text).into_response(),
        Ok(Err(error)) => {
            log::warn!("the page cannot be read: {error}");
            (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
