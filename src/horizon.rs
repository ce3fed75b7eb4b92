//! What was last seen of the future. Pure.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::store::work::Done;

/// What a turn saw that is to come.
#[derive(Debug, Default)]
pub(crate) struct Horizon {
    next_due: Option<Timestamp>,
    next_claimable: Option<Timestamp>,
    next_expiry: Option<Timestamp>,
    /// Of the snapshot it was seen in; `None` before the first.
    pub(crate) data_version: Option<i64>,
}

impl Horizon {
    pub(crate) fn of(done: &Done) -> Self {
        Horizon {
            next_due: done.next_due,
            next_claimable: done.next_claimable,
            next_expiry: done.next_expiry,
            data_version: Some(done.data_version),
        }
    }

    /// Whether something that is known of is due; or nothing is known yet.
    pub(crate) fn is_due(&self, now: Timestamp, room: usize) -> bool {
        self.data_version.is_none() || self.next(room).is_some_and(|at| at <= now)
    }

    /// How long until then.
    pub(crate) fn wait(&self, now: Timestamp, room: usize) -> Duration {
        self.next(room).map_or(Duration::MAX, |at| at.since(now))
    }

    /// What could have been written and was not, waits for something else than time: an idle worker, or a look at the whole.
    /// It must not keep the loop spinning. `claimable`: what may be claimed as well, since nothing was.
    pub(crate) fn put_off(&mut self, now: Timestamp, later: Timestamp, claimable: bool) {
        let claimable = if claimable { &mut self.next_claimable } else { &mut None };
        for at in [&mut self.next_due, &mut self.next_expiry, claimable].into_iter().flatten() {
            if *at <= now {
                *at = later;
            }
        }
    }

    fn next(&self, room: usize) -> Option<Timestamp> {
        let claimable = self.next_claimable.filter(|_| room > 0);
        self.next_due.into_iter().chain(self.next_expiry).chain(claimable).min()
    }
}
