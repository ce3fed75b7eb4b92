//! What a request is answered from.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::{Semaphore, watch};

use crate::client::Client;
use crate::clock::Clock;
use crate::page::limits::MAX_STREAMS;
use crate::page::metrics::Metrics;
use crate::page::options::Page;

/// Shared by all requests.
pub(super) struct State {
    pub(super) page: Page,
    /// Has a connection of its own, on which SQLite refuses to write.
    pub(super) reader: Client,
    /// The client of the scheduler, for actions.
    pub(super) writer: Client,
    pub(super) metrics: Metrics,
    pub(super) clock: Arc<dyn Clock>,
    /// Number of turns that the scheduler has ended.
    pub(super) turns: Arc<AtomicU64>,
    /// A random token, another one after each start. An action must present it.
    pub(super) token: String,
    /// Wakes the streams of `/changes`.
    pub(super) changed: watch::Sender<()>,
    /// Limits the streams of `/changes`.
    pub(super) streams: Arc<Semaphore>,
}

impl State {
    pub(super) fn new(
        page: Page,
        clients: [Client; 2],
        metrics: Metrics,
        clock: Arc<dyn Clock>,
        turns: Arc<AtomicU64>,
        token: String,
    ) -> Self {
        let [reader, writer] = clients;
        let (changed, streams) = (watch::Sender::new(()), Arc::new(Semaphore::new(MAX_STREAMS)));
        State { page, reader, writer, metrics, clock, turns, token, changed, streams }
    }
}
