//! The page `schedulers`.

use std::sync::Arc;

use axum::extract;
use axum::response::Response;
use maud::html;

use crate::page::html::rendered;
use crate::page::state::State;

pub(in crate::page) async fn page(extract::State(state): extract::State<Arc<State>>) -> Response {
    rendered("schedulers", move || {
        let status = state.reader.status()?;
        Ok(html! { p { (status.due) } })
    })
    .await
}
