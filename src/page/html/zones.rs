//! The zone in which a browser is shown times: that of the machine, or one that the reader has chosen. A cookie keeps it.

use axum::extract::{Query, Request};
use axum::http::header::{COOKIE, REFERER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;

use crate::error::Result;
use crate::page::html::machine_zone;
use crate::page::html::parts::show;
use crate::schedule::Zone;

tokio::task_local! {
    /// The zone that the reader of this request has chosen.
    static CHOSEN: Option<Zone>;
}

/// Reads the cookie of a request. A name that is no zone here counts as none.
pub(in crate::page) async fn read(request: Request, next: Next) -> Response {
    let chosen = cookie(request.headers()).and_then(|name| Zone::named(name).ok());
    CHOSEN.scope(chosen, next.run(request)).await
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let pairs =
        headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
    pairs.filter_map(|pair| pair.trim().strip_prefix("zone=")).next()
}

/// Returns the zone of the times of a page.
pub(super) fn of_request() -> Result<Zone> {
    CHOSEN.try_with(Clone::clone).ok().flatten().map_or_else(machine_zone, Ok)
}

/// The choice of a reader, as the address has it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::page) struct Choice {
    name: String,
}

/// Keeps a choice for a year, and returns to the page on which it was made. No name: the zone of the machine.
pub(in crate::page) async fn choose(headers: HeaderMap, Query(choice): Query<Choice>) -> Response {
    let from = headers.get(REFERER).and_then(|value| value.to_str().ok()?.parse::<Uri>().ok());
    // Only what follows the host: a page of this server. A browser takes what two slashes begin for a host.
    let back = from.as_ref().and_then(Uri::path_and_query).map_or("/", |target| target.as_str());
    let back = if back.starts_with("//") || back.starts_with("/\\") { "/" } else { back };
    let mut answer = Redirect::to(back).into_response();
    let known = Zone::named(&choice.name).ok();
    let kept = match &known {
        _ if choice.name.is_empty() => Some("zone=; Path=/; Max-Age=0; SameSite=Strict; HttpOnly".to_owned()),
        Some(zone) => Some(format!("zone={}; Path=/; Max-Age=31536000; SameSite=Strict; HttpOnly", zone.name())),
        None => None,
    };
    if let Some(kept) = kept.and_then(|kept| HeaderValue::try_from(kept).ok()) {
        answer.headers_mut().insert(SET_COOKIE, kept);
    }
    answer
}

/// Returns the form of the footer that switches the zone. With script, it also offers the zone of the browser.
pub(super) fn switch(zone: &Zone) -> Markup {
    let machine = machine_zone().ok();
    let machine = machine.as_ref().map_or("UTC", Zone::name);
    let is_chosen = zone.name() != machine;
    html! {
        form.zones method="get" action="/zone" {
            label {
                span { "Times in " }
                select name="name" {
                    option value="" selected[!is_chosen] { (show(machine, 60)) " (scheduler)" }
                    @if machine != "UTC" { option value="UTC" selected[zone.name() == "UTC"] { "UTC" } }
                    @if is_chosen && zone.name() != "UTC" { option value=(zone.name()) selected { (show(zone.name(), 60)) } }
                }
            }
            button type="submit" { "Switch" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cookie;
    use axum::http::{HeaderMap, HeaderValue, header::COOKIE};

    #[test]
    fn the_zone_is_found_among_other_cookies() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(COOKIE, HeaderValue::from_static(text));
            cookie(&headers).map(str::to_owned)
        };
        assert_eq!(of("a=b; zone=Europe/Rome; zones=x").as_deref(), Some("Europe/Rome"));
        assert_eq!(of("zone=").as_deref(), Some(""));
        assert_eq!(of("timezone=UTC"), None);
    }
}
