//! The pauses between the transactions of an operation that takes many of them.

use std::thread;
use std::time::Duration;

use crate::client::Client;
use crate::rules::lock_pause::{LockPause, PAUSE};
use crate::rules::turn_size::TurnSize;

/// The transactions of one operation.
#[derive(Debug)]
pub(super) struct Batches {
    size: TurnSize,
    pause: LockPause,
    /// When the present transaction was begun.
    began: Duration,
    /// From when the lock counts as used.
    counted: Duration,
}

impl Batches {
    pub(super) fn of(client: &Client) -> Self {
        let began = client.monotonic();
        Batches { size: TurnSize::default(), pause: LockPause::default(), began, counted: began }
    }

    /// Returns how many items the next transaction changes at most.
    pub(super) fn size(&self) -> usize {
        self.size.items()
    }

    /// A transaction changed this many items, and held the lock for this long.
    pub(super) fn wrote(&mut self, items: usize, held: Duration) {
        self.size.wrote(items, held);
    }

    /// Waits after a transaction, for this many times as long as it took: a writer of another process looks only now and then whether the
    /// lock is free.
    pub(super) fn rest(&mut self, client: &Client, times: u32) {
        let now = client.monotonic();
        self.pause.used(self.counted, now);
        let took = now.saturating_sub(self.began);
        let rest = self.pause.take(now).map_or((took * times).min(PAUSE), |until| until.saturating_sub(now));
        thread::sleep(rest);
        self.began = client.monotonic();
        // Short rests count as used: they may all fall between two looks.
        self.counted = if rest < PAUSE { now } else { self.began };
    }
}
