//! The pages: HTML that is complete without script.

pub(super) mod actions;
pub(super) mod agenda;
pub(super) mod events;
mod lanes;
pub(super) mod links;
pub(super) mod parts;
mod plot;
mod printed;
pub(super) mod run;
pub(super) mod runs;
pub(super) mod schedulers;
pub(super) mod task;
pub(super) mod tasks;
pub(super) mod timeline;
mod waits;
mod words;
pub(super) mod zones;

use std::sync::{Arc, OnceLock};

use axum::extract;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use crate::client::check::Problem;
use crate::error::{Error, Result};
use crate::page::answer::answered;
use crate::page::html::parts::{plural, show};
use crate::page::kept::{Checked, Read};
use crate::page::state::State;
use crate::schedule::Zone;
use crate::text::local_zone;
use crate::text::times::Times;

/// The entries of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nav {
    Tasks,
    Runs,
    Timeline,
    Schedulers,
    Events,
}

impl Nav {
    const ALL: [(Nav, &str, &str); 5] = [
        (Nav::Tasks, "/", "Tasks"),
        (Nav::Runs, "/runs", "Runs"),
        (Nav::Timeline, "/timeline", "Timeline"),
        (Nav::Schedulers, "/schedulers", "Schedulers"),
        (Nav::Events, "/events", "Events"),
    ];
}

/// What a page is rendered from.
pub(super) struct View<'a> {
    pub(super) state: &'a State,
    pub(super) times: Times,
    /// The problems that [`Client::check`](crate::Client::check) finds; `None` if they cannot be read.
    pub(super) problems: Option<&'a [Problem]>,
}

/// The title of a page, and what stands between its header and its footer.
pub(super) struct Content {
    pub(super) title: String,
    pub(super) main: Markup,
    pub(super) status: StatusCode,
}

impl Content {
    pub(super) fn new(title: impl Into<String>, main: Markup) -> Self {
        Content { title: title.into(), main, status: StatusCode::OK }
    }

    pub(super) fn status(self, status: StatusCode) -> Self {
        Content { status, ..self }
    }
}

/// Returns a whole page. `content` reads the database, on another thread. An unknown task or run becomes a page with the status 404.
pub(super) async fn rendered(
    state: Arc<State>,
    nav: Nav,
    content: impl FnOnce(&View<'_>) -> Result<Content> + Send + 'static,
) -> Response {
    let zone = zones::of_request();
    answered("text/html; charset=utf-8", move || {
        let checked = current_problems(&state);
        let view = View {
            state: &state,
            times: Times { now: state.clock.now().wall, zone: zone? },
            problems: checked.as_ref().ok().map(|checked| &checked.problems[..]),
        };
        let content = content(&view).unwrap_or_else(|error| failed(&error));
        Ok((content.status, layout(&view, nav, &content).into_string()))
    })
    .await
}

/// Returns what `check` finds. Pages that are requested within a second share it, unless another connection has written meanwhile.
fn current_problems(state: &State) -> Read<Checked> {
    let version = state.reader.data_version().ok();
    let is_current = |checked: &Checked| version == Some(checked.version);
    state.monitor.problems.current(&*state.clock, is_current, || Checked::read(&state.reader))
}

/// Returns the zone of the machine at the first request.
pub(super) fn machine_zone() -> Result<Zone> {
    static MACHINE: OnceLock<Zone> = OnceLock::new();
    match MACHINE.get() {
        Some(zone) => Ok(zone.clone()),
        None => local_zone::of_machine_or_utc().map(|zone| MACHINE.get_or_init(|| zone).clone()),
    }
}

/// Returns the page for an error.
fn failed(error: &Error) -> Content {
    let (status, title) = match error {
        Error::UnknownTask { .. } => (StatusCode::NOT_FOUND, "No such task"),
        Error::UnknownRun { .. } => (StatusCode::NOT_FOUND, "No such run"),
        Error::Refused { .. } => (StatusCode::CONFLICT, "Refused"),
        _ => {
            log::warn!("the status page cannot answer: {error}");
            (StatusCode::SERVICE_UNAVAILABLE, "The database cannot be used")
        }
    };
    let main = html! {
        h1 { (title) }
        p.lead { (show(&error.to_string(), 500)) }
        p { a href="/" { "All tasks" } }
    };
    Content::new(title, main).status(status)
}

fn layout(view: &View<'_>, nav: Nav, content: &Content) -> Markup {
    let file = view.state.reader.path_in_place().ok();
    let file = file.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
    let problems = view.problems.map_or(0, <[Problem]>::len);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title {
                    @if problems > 0 { "(" (problems) ") " }
                    (show(&content.title, 220))
                    @if let Some(file) = &file { " · " (show(file, 120)) }
                    " · duly"
                }
                link rel="icon" type="image/svg+xml" href=(if problems > 0 { "/icon.svg?problems" } else { "/icon.svg" });
                link rel="stylesheet" href="/page.css";
                script src="/page.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                header.top {
                    div.inner {
                        a.brand href="/" { (logo()) "duly" }
                        nav aria-label="Pages" {
                            @for (one, path, label) in Nav::ALL {
                                a href=(path) aria-current=[(one == nav).then_some("page")] { (label) }
                            }
                        }
                        (health(view.problems))
                    }
                }
                main #main tabindex="-1" { (content.main) }
                footer.bottom {
                    div.inner {
                        span { "duly " (env!("CARGO_PKG_VERSION")) }
                        @if let Some(file) = &file { span { (show(file, 120)) } }
                        span { "As of " time datetime=(view.times.now) { (view.times.local(view.times.now)) } " " (view.times.zone.name()) }
                        (zones::switch(&view.times.zone))
                    }
                }
            }
        }
    }
}

/// Returns the badge of the header, which links to the list of problems.
fn health(problems: Option<&[Problem]>) -> Markup {
    match problems {
        None => html! { a.health.badge.idle href="/#problems" { "Health unknown" } },
        Some([]) => html! { a.health.badge.ok href="/#problems" { "Healthy" } },
        Some(found) => html! { a.health.badge.bad href="/#problems" { (plural(found.len(), "problem")) } },
    }
}

fn logo() -> Markup {
    html! {
        svg.logo viewBox="0 0 20 20" width="20" height="20" aria-hidden="true" {
            circle cx="10" cy="10" r="8.25" fill="none" stroke="currentColor" stroke-width="2.5" {}
            path d="M10 5.5V10l3 2.25" fill="none" stroke="currentColor" stroke-width="2.5" stroke-linecap="round" stroke-linejoin="round" {}
        }
    }
}

/// Answers every path that is not in the route table.
pub(super) async fn unknown(extract::State(state): extract::State<Arc<State>>) -> Response {
    let main = html! {
        h1 { "No such page" }
        p { a href="/" { "All tasks" } }
    };
    let content = Content::new("No such page", main).status(StatusCode::NOT_FOUND);
    rendered(state, Nav::Tasks, |_| Ok(content)).await
}

/// The logo for the browser's tab; with the query `problems` in red. Without a style of its own, which the Content-Security-Policy refuses.
pub(super) async fn icon(extract::RawQuery(query): extract::RawQuery) -> Response {
    let colour = if query.as_deref() == Some("problems") { "#d33d3d" } else { "#3d78d3" };
    let icon = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 20 20" fill="none" stroke=(colour) stroke-width="2.5" stroke-linecap="round" stroke-linejoin="round" {
            circle cx="10" cy="10" r="8.25" {}
            path d="M10 5.5V10l3 2.25" {}
        }
    };
    ([(CONTENT_TYPE, "image/svg+xml")], icon.into_string()).into_response()
}

pub(super) async fn style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("page.css")).into_response()
}
