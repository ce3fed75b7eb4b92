//! Quiet time: until when a scheduler would only poll and write heartbeats. For tests, which skip it and count transactions.

use std::time::Duration;

use crate::clock::Now;
use crate::engine::poller::Poller;
use crate::store::turn_io::Slots;

impl Poller {
    /// Returns how many write transactions were begun.
    pub(crate) fn transactions(&self) -> u64 {
        self.store.transactions()
    }

    /// Returns when the next turn is due that does more than poll and extend leases, by the monotonic clock. `None` if polls or
    /// heartbeats matter: a run is running, here or elsewhere, something waits to be written, or an owner to be recovered. True
    /// after a turn with these slots, and as long as no other connection writes.
    pub(crate) fn quiet_until(&self, now: Now, slots: Slots) -> Option<Duration> {
        let is_working = !self.claimed.is_empty() || self.has_reports() || self.behind_since.is_some() || self.draining;
        let is_troubled =
            self.refused.until().is_some() || !self.lock_is_kept || self.newer.is_some() || !self.clock.is_set;
        if is_working || is_troubled || !self.peers.is_empty() || self.horizon.is_due(now.wall, slots) {
            return None;
        }
        let due = now.monotonic.saturating_add(self.horizon.wait(now.wall, slots));
        Some(due.min(self.retention_timer.wake_at(now)))
    }
}
