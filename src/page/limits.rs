//! The limits of the server.

use std::time::Duration;

/// Bytes of the path and query of a request.
pub(super) const MAX_TARGET_BYTES: usize = 8 * 1024;
/// Bytes of the request line and the headers of a request.
pub(super) const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Headers of a request.
pub(super) const MAX_HEADERS: usize = 64;
/// Bytes of the body of an action. No other request has a body.
pub(super) const MAX_BODY_BYTES: usize = 4 * 1024;
/// Answers that read the database at once.
pub(super) const MAX_ANSWERS: usize = 2;
/// Actions at once. They share a connection, and another program's lock may block each for five seconds.
pub(super) const MAX_ACTIONS: usize = 1;
/// Streams of `/changes` at once.
pub(super) const MAX_STREAMS: usize = 16;

/// Limits that a test shortens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Open connections.
    pub(super) connections: usize,
    /// Time for the head of a request, and for the next request of a connection to begin.
    pub(super) head: Duration,
    /// Time for the body of an action.
    pub(super) body: Duration,
    /// Time to make an answer.
    pub(super) answer: Duration,
    /// Time in which the client must take a whole answer, once it does not keep up.
    pub(super) write: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Limits { connections: 64, head: seconds(5), body: seconds(5), answer: seconds(10), write: seconds(10) }
    }
}
