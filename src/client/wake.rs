//! How a client tells the scheduler of its own process that something was written. It only hastens: the loop polls.

use std::time::Duration;

use crossbeam_channel::Sender;

use crate::client::add::{Added, Change};
use crate::clock::Timestamp;

/// A scheduler that can be woken.
#[derive(Clone, Debug)]
pub(crate) struct Wake {
    sender: Sender<()>,
    /// How long it goes without a look at the file.
    poll: Duration,
}

impl Wake {
    pub(crate) fn new(sender: Sender<()>, poll: Duration) -> Self {
        Wake { sender, poll }
    }

    pub(crate) fn now(&self) {
        // A wake that is already waiting will do, and one that is lost only delays.
        let _ = self.sender.try_send(());
    }

    /// Wakes it, unless all that was added is due later than its next look at the file, which is soon enough. It would look
    /// in vain after every commit of whoever adds many one by one. `now`: after the commit.
    pub(crate) fn for_added(&self, added: &[Added], now: Timestamp) {
        // Twice the interval: a look may take its time.
        let seen = now.plus(self.poll.saturating_mul(2));
        if added.iter().any(|task| task.change == Change::Replaced || task.next_run.is_none_or(|at| at <= seen)) {
            self.now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossbeam_channel::bounded;

    use super::Wake;
    use crate::client::add::{Added, Change};
    use crate::clock::Timestamp;

    #[test]
    fn only_what_may_be_due_before_the_next_look_wakes() {
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
        assert!(wakes(&[added(Change::Created, None)]), "nobody knows when");
        assert!(wakes(&[added(Change::Replaced, Some(now + 9000))]), "what the loop knows of it holds no longer");
    }
}
