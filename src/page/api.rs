//! `/api/..`: the JSON of the commands.

use std::sync::Arc;

use axum::extract;
use axum::response::Response;

use crate::error::Error;
use crate::page::answer::answered;
use crate::page::state::State;

pub(super) async fn status(extract::State(state): extract::State<Arc<State>>) -> Response {
    answered("application/json", move || {
        let status = state.reader.status()?;
        serde_json::to_string(&status).map_err(|error| Error::store("write the status", error))
    })
    .await
}
