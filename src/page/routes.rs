//! The route table: every path that is answered.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::{any, get};

use crate::page::state::State;
use crate::page::{actions, api, changes, html, monitor};

/// Returns the service of all requests.
pub(super) fn router(state: Arc<State>) -> Router {
    let actions = if state.page.has_actions() { actions::routes() } else { Router::new() };
    Router::new()
        .route("/", get(html::tasks::page))
        .route("/tasks/{name}", get(html::task::page))
        .route("/runs", get(html::runs::page))
        .route("/runs/{id}", get(html::run::page))
        .route("/runs/{id}/output/{attempt}", get(html::run::output))
        .route("/agenda", get(html::agenda::page))
        .route("/timeline", get(html::timeline::page))
        .route("/schedulers", get(html::schedulers::page))
        .route("/events", get(html::events::page))
        .route("/zone", get(html::zones::choose))
        .route("/icon.svg", get(html::icon))
        .route("/page.css", get(html::style))
        .route("/page.js", get(changes::script))
        .route("/changes", get(changes::stream))
        .route("/metrics", get(monitor::metrics))
        .route("/healthz", get(monitor::health))
        .route("/livez", get(monitor::life))
        .nest("/api", api::router())
        .route("/api/", any(api::unknown))
        .merge(actions)
        .fallback(html::unknown)
        .layer(from_fn(html::zones::read))
        .with_state(state)
}
