//! `/changes`: a stream of server-sent events. Each look at the database, one in a second, is an event: it says whether the database
//! has changed. `/page.js`: the script that listens to it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use crate::page::answer::apart;
use crate::page::state::State;

/// The least time between two messages.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a comment is sent if no look at the database ended, so that both sides notice a connection that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn script() -> Response {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("html/page.js")).into_response()
}

pub(super) async fn stream(extract::State(state): extract::State<Arc<State>>) -> Response {
    let Ok(permit) = state.streams.clone().try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many streams: close other windows\n").into_response();
    };
    let stream = Stream { next: Box::pin(next(Seen::new(state.changed.subscribe()))), _permit: permit };
    ([(CONTENT_TYPE, "text/event-stream")], Body::new(stream)).into_response()
}

/// Looks for changes by other connections while a stream is open, and wakes the streams. Does not end.
///
/// The number of turns is no sign of a change: an idle scheduler takes one in each poll interval.
pub(super) async fn watch(state: Arc<State>) {
    let (mut last, mut changes) = (None, 0);
    loop {
        sleep(INTERVAL).await;
        if state.changed.receiver_count() > 0 {
            let look = state.clone();
            // A database that cannot be read is a change: the page then shows the error.
            let version = apart(move || look.reader.data_version().ok()).await.ok().flatten();
            changes += u64::from(last.replace(version) != Some(version));
            state.changed.send_replace(changes);
        }
    }
}

/// The looks at the database, and the number of changes of which the stream has told.
struct Seen {
    looks: Receiver<u64>,
    changes: u64,
}

impl Seen {
    fn new(looks: Receiver<u64>) -> Self {
        let changes = *looks.borrow();
        Seen { looks, changes }
    }
}

type Next = dyn Future<Output = Option<(&'static str, Seen)>> + Send;

/// Waits for a look and returns its message. `None` if there is no server any more.
async fn next(mut seen: Seen) -> Option<(&'static str, Seen)> {
    match timeout(KEEP_ALIVE, seen.looks.changed()).await {
        Ok(Ok(())) => {
            let changes = *seen.looks.borrow_and_update();
            let text = if changes == seen.changes { "event: alive\ndata: looked\n\n" } else { "data: changed\n\n" };
            Some((text, Seen { changes, ..seen }))
        }
        Ok(Err(_)) => None,
        Err(_) => Some((":\n\n", seen)),
    }
}

/// The body of an answer. It has no end.
struct Stream {
    next: Pin<Box<Next>>,
    _permit: OwnedSemaphorePermit,
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let message = ready!(self.next.as_mut().poll(cx));
        Poll::Ready(message.map(|(text, seen)| {
            self.next = Box::pin(next(seen));
            Ok(Frame::data(Bytes::from_static(text.as_bytes())))
        }))
    }
}
