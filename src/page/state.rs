//! What a request is answered from.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::client::Client;
use crate::clock::Clock;
use crate::model::vitals::Vitals;
use crate::page::kept::Monitor;
use crate::page::limits::{MAX_ACTIONS, MAX_STREAMS};
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
    pub(super) monitor: Monitor,
    pub(super) clock: Arc<dyn Clock>,
    /// Of the scheduler's loop.
    pub(super) vitals: Arc<Vitals>,
    /// A random token, another one after each start. An action must present it.
    pub(super) token: String,
    /// Wakes the streams of `/changes` after each look at the database: the number of changes.
    pub(super) changed: watch::Sender<u64>,
    /// Limits the streams of `/changes`.
    pub(super) streams: Arc<Semaphore>,
    /// Limits the actions.
    pub(super) actions: Arc<Semaphore>,
}

impl State {
    pub(super) fn new(page: Page, clients: [Client; 2], metrics: Metrics, vitals: Arc<Vitals>, token: String) -> Self {
        let ([reader, writer], clock, monitor) = (clients, metrics.clock(), Monitor::new());
        let (changed, streams) = (watch::Sender::new(0), Arc::new(Semaphore::new(MAX_STREAMS)));
        let actions = Arc::new(Semaphore::new(MAX_ACTIONS));
        State { page, reader, writer, metrics, monitor, clock, vitals, token, changed, streams, actions }
    }
}
