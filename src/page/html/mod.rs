//! The pages: HTML that is complete without script.

pub(super) mod actions;
pub(super) mod events;
pub(super) mod links;
pub(super) mod run;
pub(super) mod schedulers;
pub(super) mod task;
pub(super) mod tasks;
pub(super) mod timeline;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use crate::error::Result;
use crate::page::answer::answered;

/// Returns a whole page.
pub(super) async fn rendered(title: &'static str, main: impl FnOnce() -> Result<Markup> + Send + 'static) -> Response {
    answered("text/html; charset=utf-8", move || Ok(layout(title, &main()?).into_string())).await
}

fn layout(title: &str, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (title) }
                link rel="stylesheet" href="/page.css";
            }
            body { main { (main) } }
        }
    }
}

pub(super) async fn style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("page.css")).into_response()
}
