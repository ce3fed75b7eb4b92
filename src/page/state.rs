//! What a request is answered from.

use std::sync::Arc;

use crate::client::Client;
use crate::clock::Clock;
use crate::model::vitals::Vitals;
use crate::page::kept::Monitor;
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
    pub(super) monitor: Monitor,
    pub(super) clock: Arc<dyn Clock>,
    /// Of the scheduler's loop.
    pub(super) vitals: Arc<Vitals>,
    /// A random token, another one after each start. An action must present it.
    pub(super) token: String,
}
