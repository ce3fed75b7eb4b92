//! What a request is answered from.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::client::Client;
use crate::clock::Clock;
use crate::page::metrics::Metrics;
use crate::page::options::Page;

/// Shared by all requests.
pub(super) struct State {
    pub(super) page: Page,
    /// Has a connection that reads only.
    pub(super) reader: Client,
    /// The client of the scheduler, for actions.
    pub(super) writer: Client,
    pub(super) metrics: Metrics,
    pub(super) clock: Arc<dyn Clock>,
    /// Number of turns that the scheduler has ended.
    pub(super) turns: Arc<AtomicU64>,
    /// A random token, another one after each start. An action must present it.
    pub(super) token: String,
}
