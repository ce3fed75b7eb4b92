//! Signs of life of a scheduler's loop, which other threads read: a watchdog, the page, metrics.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Now, Timestamp, millis};

/// Why a turn wrote nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Another connection held the lock of the database for longer than the busy timeout.
    Busy,
    /// Any other fault of the database.
    Fault,
}

/// Signs of life of a scheduler's loop. Counts, each of which can be read without a lock.
#[derive(Debug)]
pub(crate) struct Vitals {
    poll: Duration,
    turns: AtomicU64,
    busy: AtomicU64,
    refused: AtomicU64,
    /// When the last turn ended, in milliseconds of the monotonic clock; negative after the loop has ended.
    ended: AtomicI64,
    /// When the last turn ended, by the wall clock.
    ended_at: AtomicI64,
}

impl Vitals {
    /// `poll`: the longest time from one turn to the next.
    pub(crate) fn new(now: Now, poll: Duration) -> Self {
        let (turns, busy, refused) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (ended, ended_at) = (AtomicI64::new(millis(now.monotonic)), AtomicI64::new(now.wall.as_millis()));
        Vitals { poll, turns, busy, refused, ended, ended_at }
    }

    /// Counts a turn that ended.
    pub(crate) fn turn_ended(&self, now: Now, refused: Option<Refused>) {
        self.refused.fetch_add(u64::from(refused.is_some()), Ordering::Relaxed);
        self.busy.fetch_add(u64::from(refused == Some(Refused::Busy)), Ordering::Relaxed);
        self.ended.store(millis(now.monotonic), Ordering::Relaxed);
        self.ended_at.store(now.wall.as_millis(), Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that no turn follows.
    pub(crate) fn loop_ended(&self) {
        self.ended.store(-1, Ordering::Relaxed);
    }

    /// Returns how many turns have ended.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

#[cfg_attr(not(feature = "page"), allow(dead_code))]
impl Vitals {
    /// Returns how many turns another connection's lock prevented from writing.
    pub(crate) fn busy_turns(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// Returns how many turns the database refused, busy ones included.
    pub(crate) fn refused_turns(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns when the last turn ended, by the wall clock; before the first turn, when the loop began.
    pub(crate) fn last_turn(&self) -> Timestamp {
        Timestamp::from_millis(self.ended_at.load(Ordering::Relaxed))
    }

    /// Returns the time since the last turn ended; `None` if no turn follows.
    pub(crate) fn silence(&self, monotonic: Duration) -> Option<Duration> {
        let ended = u64::try_from(self.ended.load(Ordering::Relaxed)).ok()?;
        Some(monotonic.saturating_sub(Duration::from_millis(ended)))
    }

    /// Returns the longest time from one turn to the next.
    pub(crate) fn poll(&self) -> Duration {
        self.poll
    }
}
