//! What the loop is to do after a turn.

use std::sync::Arc;
use std::time::Duration;

use crate::host::orphan::Orphan;
use crate::model::run::Claim;

/// What a turn answers.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// To be started now. They are recorded.
    pub(crate) claims: Vec<Arc<Claim>>,
    /// Runs whose handler is to be asked to stop.
    pub(crate) stop: Vec<i64>,
    /// Commands of dead owners that are to be ended.
    pub(crate) orphans: Vec<Orphan>,
    /// When the next turn is due at the latest, by the monotonic clock.
    pub(crate) wake_at: Duration,
    /// Whether nothing more is claimed, since the tables are of a newer version: what runs is to come to its end.
    pub(crate) leaves: bool,
}
