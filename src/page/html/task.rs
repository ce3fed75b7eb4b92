//! The page of one task.

use std::sync::Arc;

use axum::extract;
use axum::response::Response;
use maud::html;

use crate::page::html::actions::button;
use crate::page::html::{Content, Nav, links, rendered};
use crate::page::state::State;

pub(in crate::page) async fn page(
    extract::State(state): extract::State<Arc<State>>,
    extract::Path(which): extract::Path<String>,
) -> Response {
    rendered(state, Nav::Tasks, move |view| {
        let status = view.state.reader.status()?;
        let trigger = button(view.state, &format!("{}/trigger", links::task(&which)), "Trigger");
        Ok(Content::new("Task", html! { p { (which) " " (status.due) } (trigger) }))
    })
    .await
}
