//! What monitors ask for: `/metrics`.

use std::sync::Arc;

use axum::extract;
use axum::response::Response;

use crate::page::answer::answered;
use crate::page::state::State;

pub(super) async fn metrics(extract::State(state): extract::State<Arc<State>>) -> Response {
    answered("text/plain; version=0.0.4", move || state.metrics.text()).await
}
