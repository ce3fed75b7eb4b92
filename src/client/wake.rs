//! Wakes the scheduler of the same process after a write. This only reduces latency: the scheduler polls.

use std::time::Duration;

use crossbeam_channel::Sender;

use crate::clock::Timestamp;
use crate::model::request::{Added, Change};

/// A scheduler that can be woken.
#[derive(Clone, Debug)]
pub(crate) struct Wake {
    sender: Sender<()>,
    /// Its poll interval.
    poll: Duration,
}

impl Wake {
    pub(crate) fn new(sender: Sender<()>, poll: Duration) -> Self {
        Wake { sender, poll }
    }

    pub(crate) fn now(&self) {
        // A pending wake is sufficient, and a lost one only delays.
        let _ = self.sender.try_send(());
    }

    /// Wakes the scheduler, unless all added tasks are due after its next poll: a caller that adds many tasks one by one would
    /// otherwise cause a useless turn after each commit. `now`: after the commit.
    pub(crate) fn for_added(&self, added: &[Added], now: Timestamp) {
        if hastens(added, now, self.poll) {
            self.now();
        }
    }
}

/// Returns whether a scheduler with this poll interval would see one of these tasks too late by itself.
pub(crate) fn hastens(added: &[Added], now: Timestamp, poll: Duration) -> bool {
    // Twice the interval: a poll may be late.
    let seen = now.plus(poll.saturating_mul(2));
    added.iter().any(|task| task.change == Change::Replaced || task.next_run.is_none_or(|at| at <= seen))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::bounded;

    use super::Wake;
    use crate::clock::Timestamp;
    use crate::model::request::{Added, Change};

    #[test]
    fn only_tasks_that_may_be_due_before_the_next_poll_wake() {
        let (sender, woken) = bounded(1);
        let wake = Wake::new(sender, Duration::from_secs(1));
        let added = |change, next_run: Option<i64>| Added {
            name: "digest".to_owned(),
            change,
            next_run: next_run.map(Timestamp::from_millis),
        };
        let now = 1_805_025_600_000;
        let wakes = |added: &[Added]| {
            wake.for_added(added, Timestamp::from_millis(now));
            woken.try_recv().is_ok()
        };
        assert!(!wakes(&[]));
        assert!(!wakes(&[added(Change::Created, Some(now + 2001)), added(Change::Unchanged, Some(now + 9000))]));
        assert!(wakes(&[added(Change::Created, Some(now + 2001)), added(Change::Created, Some(now + 2000))]));
        assert!(wakes(&[added(Change::Created, Some(now - 1))]), "overdue");
        assert!(wakes(&[added(Change::Created, None)]), "the next run is unknown");
        assert!(wakes(&[added(Change::Replaced, Some(now + 9000))]), "the scheduler knows the old schedule");
    }
}
