//! Checks each request before a route sees it, and adds the headers of each answer.
//!
//! A page of another site may send requests to the loopback interface, and a name of another site may resolve to it. Such a page
//! can neither read nor change anything: requests with a foreign `Host`, `Origin` or `Sec-Fetch-Site` are refused, and no answer
//! allows another origin. A link on another site is refused too: the user opens the address itself.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY,
    TRANSFER_ENCODING, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::host::panics;
use crate::page::answer::ANSWERS;
use crate::page::connection::Answering;
use crate::page::limits::{Limits, MAX_ANSWERS, MAX_BODY_BYTES, MAX_TARGET_BYTES};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The headers of each answer. With the referrer policy `no-referrer`, browsers send forms with `Origin: null`.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "same-origin"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];
/// A proxy that believes a length which is stated beside chunks would take the rest for another request. No browser sends chunks.
const IN_CHUNKS: &str = "refused: an action states its length (Content-Length), and is not sent in chunks\n";
const LARGE: &str = "refused: the body is too large; only an action has one, of at most 4096 bytes\n";
const LONG: &str = "refused: the address is longer than 8192 bytes\n";
const LATE_BODY: &str = "refused: the body has not come within 5 seconds\n";
const LATE: &str = "the database does not answer in time\n";
const LATE_ACTION: &str =
    "the database does not answer in time; the action may still be performed: load the page again\n";
const FOREIGN: &str = "refused: the request comes from another site; open the address of the page itself\n";

/// What requests are checked against.
pub(super) struct Guard {
    /// The accepted values of `Host`.
    hosts: BTreeSet<String>,
    /// The answer to other values.
    misdirected: String,
    limits: Limits,
    answers: Arc<Semaphore>,
}

impl Guard {
    /// `addresses`: those that the server listens on.
    pub(super) fn new(addresses: &[SocketAddr], limits: Limits) -> Self {
        let mut hosts = BTreeSet::new();
        for address in addresses {
            let port = address.port();
            let names = ["localhost", "127.0.0.1", "[::1]"].map(|name| format!("{name}:{port}"));
            hosts.extend(names.into_iter().chain([address.to_string()]));
        }
        // Clients leave the default port out.
        let without_port: Vec<_> =
            hosts.iter().filter_map(|host| host.strip_suffix(":80").map(str::to_owned)).collect();
        hosts.extend(without_port);
        let address = addresses.first().map(ToString::to_string).unwrap_or_default();
        let misdirected = format!(
            "refused: the Host of the request is not this page; open http://{address}/ (a tunnel: with this port)\n"
        );
        Guard { hosts, misdirected, limits, answers: Arc::new(Semaphore::new(MAX_ANSWERS)) }
    }

    /// Puts the guard around all routes, and around the answer to unknown paths.
    pub(super) fn around(self, router: Router) -> Router {
        router.layer(from_fn_with_state(Arc::new(self), guarded))
    }

    /// Returns the answer to a request that is refused by its head.
    fn refusal(&self, request: &Request) -> Option<Response> {
        let headers = request.headers();
        // The target of a request to a proxy names a host, too.
        let target = request.uri().authority();
        if !self.is_own(single(headers, &HOST).unwrap_or_default())
            || target.is_some_and(|target| !self.is_own(target.as_str()))
        {
            return Some((StatusCode::MISDIRECTED_REQUEST, self.misdirected.clone()).into_response());
        }
        let is_own_origin = |origin: &str| origin.strip_prefix("http://").is_some_and(|host| self.is_own(host));
        if headers.contains_key(ORIGIN) && !single(headers, &ORIGIN).is_some_and(is_own_origin)
            || headers.contains_key(SEC_FETCH_SITE)
                && !single(headers, &SEC_FETCH_SITE).is_some_and(|site| site == "same-origin" || site == "none")
        {
            return Some((StatusCode::FORBIDDEN, FOREIGN).into_response());
        }
        if request.uri().path_and_query().is_some_and(|target| target.as_str().len() > MAX_TARGET_BYTES) {
            return Some((StatusCode::URI_TOO_LONG, LONG).into_response());
        }
        if !has_readable_body(request.method()) {
            return None;
        }
        let limit = if request.method() == Method::POST { MAX_BODY_BYTES as u64 } else { 0 };
        let length = headers.get(CONTENT_LENGTH).map(|length| length.to_str().ok()?.parse::<u64>().ok());
        let has_chunks = headers.contains_key(TRANSFER_ENCODING);
        if length.is_some_and(|length| length.is_none_or(|length| length > limit)) || (has_chunks && limit == 0) {
            return Some((StatusCode::PAYLOAD_TOO_LARGE, LARGE).into_response());
        }
        has_chunks.then(|| (StatusCode::LENGTH_REQUIRED, IN_CHUNKS).into_response())
    }

    fn is_own(&self, host: &str) -> bool {
        self.hosts.contains(host)
    }

    async fn answer(&self, request: Request, next: Next) -> Response {
        if let Some(refusal) = self.refusal(&request) {
            return refusal;
        }
        let (parts, body) = request.into_parts();
        let late = if parts.method == Method::POST { LATE_ACTION } else { LATE };
        let body = if has_readable_body(&parts.method) { body } else { Body::empty() };
        let body = match timeout(self.limits.body, to_bytes(body, MAX_BODY_BYTES)).await {
            Ok(Ok(body)) => body,
            Ok(Err(_)) => return (StatusCode::PAYLOAD_TOO_LARGE, LARGE).into_response(),
            Err(_) => return (StatusCode::REQUEST_TIMEOUT, LATE_BODY).into_response(),
        };
        let _answering = parts.extensions.get().map(Answering::begin);
        let request = Request::from_parts(parts, Body::from(body));
        let answer = ANSWERS.scope(self.answers.clone(), contained(next.run(request)));
        match timeout(self.limits.answer, answer).await {
            Ok(response) => response,
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, late).into_response(),
        }
    }
}

/// Returns whether a body of a request matters. Other methods are not allowed, whatever they send.
fn has_readable_body(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::POST].contains(method)
}

/// Returns the value of a header that occurs once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

async fn guarded(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = guard.answer(request, next).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Turns a panic into an answer.
async fn contained(answer: impl Future<Output = Response>) -> Response {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))).unwrap_or_else(|panic| {
            log::error!("an answer of the status page panicked: {}", panics::message(panic));
            Poll::Ready(StatusCode::INTERNAL_SERVER_ERROR.into_response())
        })
    })
    .await
}
