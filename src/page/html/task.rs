//! The page of one task.

use std::sync::Arc;

use axum::extract;
use axum::response::Response;
use maud::html;

use crate::page::html::{Content, Nav, rendered};
use crate::page::state::State;

pub(in crate::page) async fn page(
    extract::State(state): extract::State<Arc<State>>,
    extract::Path(which): extract::Path<String>,
) -> Response {
    rendered(state, Nav::Tasks, move |view| {
        let status = view.state.reader.status()?;
        Ok(Content::new("Task", html! { p { (which) " " (status.due) } }))
    })
    .await
}
