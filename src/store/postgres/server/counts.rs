//! What a session counts, and what tests ask of it.

use crate::store::postgres::server::Server;

impl Server {
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns how often the connection was lost, and whether it is.
    #[cfg_attr(not(test), allow(dead_code, reason = "counted for tests"))]
    pub(crate) fn losses(&self) -> (u64, bool) {
        (self.losses, self.lost)
    }

    pub(crate) fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Counts transactions from now on.
    pub(crate) fn count_anew(&mut self) {
        self.transactions = 0;
    }

    /// Returns how many messages waited for an answer, except those that prepared a statement.
    #[cfg_attr(not(test), allow(dead_code, reason = "counted for tests"))]
    pub(crate) fn round_trips(&self) -> u64 {
        self.round_trips
    }

    #[cfg_attr(not(test), allow(dead_code, reason = "counted for tests"))]
    pub(crate) fn prepares(&self) -> u64 {
        self.prepares
    }
}
