//! Decides when a turn includes retention: at each idle heartbeat, and at least once a minute, so that a scheduler that is
//! never idle also deletes expired history. Pure.

use std::time::Duration;

use crate::clock::Now;
use crate::model::settings::Retention;

/// Longest wait for an idle heartbeat.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Pause between batches while there is more to delete.
const BATCH_PAUSE: Duration = Duration::from_millis(100);

/// The retention of one turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) keep: Retention,
    /// Whether to delete only if the turn starts nothing and leaves nothing due.
    pub(crate) if_idle: bool,
}

/// When the next turn includes retention.
#[derive(Debug)]
pub(crate) struct RetentionTimer {
    keep: Retention,
    /// When a turn includes it even if the scheduler is not idle.
    due_at: Duration,
    /// Whether the last batch left more to delete.
    has_more: bool,
}

impl RetentionTimer {
    pub(crate) fn new(keep: Retention, now: Now) -> Self {
        RetentionTimer { keep, due_at: now.monotonic + MAX_WAIT, has_more: false }
    }

    /// Returns whether a turn must run for retention alone.
    pub(crate) fn is_due(&self, now: Now) -> bool {
        self.has_more && now.monotonic >= self.due_at
    }

    /// Returns when such a turn is due.
    pub(crate) fn wake_at(&self, now: Now) -> Duration {
        if self.has_more { self.due_at.max(now.monotonic) } else { Duration::MAX }
    }

    /// Returns the retention of a turn. `idle`: no other work is known before the turn. `calm`: the clock can be trusted.
    pub(crate) fn part(&mut self, now: Now, idle: bool, calm: bool) -> Option<Part> {
        if !calm {
            self.has_more = false;
            return None;
        }
        let due = now.monotonic >= self.due_at;
        (idle || due).then_some(Part { keep: self.keep, if_idle: !due })
    }

    /// Records the retention of a committed turn. `more`: whether more than one batch was found; `None` if nothing was
    /// looked up.
    pub(crate) fn took(&mut self, part: Option<Part>, more: Option<bool>, now: Now) {
        if part.is_none_or(|part| part.if_idle && more.is_none()) {
            return;
        }
        self.has_more = more.unwrap_or_default();
        self.due_at = now.monotonic + if self.has_more { BATCH_PAUSE } else { MAX_WAIT };
    }

    /// Defers retention after a turn that was not committed. Other work is retried without it: a full disk may have space
    /// for an outcome, but not for a batch.
    pub(crate) fn give_way(&mut self, now: Now) {
        self.has_more = false;
        self.due_at = now.monotonic + MAX_WAIT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn at(millis: u64) -> Now {
        Now { wall: Timestamp::MIN, monotonic: Duration::from_millis(millis) }
    }

    #[test]
    fn it_waits_a_minute_for_an_idle_heartbeat() {
        let mut timer = RetentionTimer::new(Retention::default(), at(0));
        assert!(timer.part(at(59_999), false, true).is_none());
        let idle = timer.part(at(59_999), true, true).expect("an idle heartbeat");
        assert!(idle.if_idle);
        timer.took(Some(idle), None, at(59_999));
        let due = timer.part(at(60_000), false, true).expect("a minute has passed");
        assert!(!due.if_idle, "the previous heartbeat was not idle");
        timer.took(Some(due), Some(false), at(60_000));
        assert!(timer.part(at(119_999), false, true).is_none());
        timer.took(Some(idle), Some(false), at(119_999));
        assert!(timer.part(at(179_998), false, true).is_none());
        assert!(
            !timer.is_due(at(u64::MAX)) && timer.wake_at(at(60_000)) == Duration::MAX,
            "a heartbeat comes soon enough"
        );
    }

    #[test]
    fn a_batch_that_leaves_more_is_followed_by_the_next() {
        let mut timer = RetentionTimer::new(Retention::default(), at(0));
        let idle = timer.part(at(10), true, true).expect("an idle heartbeat");
        timer.took(Some(idle), Some(true), at(10));
        assert_eq!(timer.wake_at(at(10)), Duration::from_millis(110));
        assert!(!timer.is_due(at(109)) && timer.part(at(109), false, true).is_none());
        assert!(timer.is_due(at(110)));
        let next = timer.part(at(110), false, true).expect("the next batch");
        timer.took(Some(next), Some(true), at(110));
        assert!(timer.is_due(at(210)));
        // The batch was not written: the next one waits a full minute.
        timer.took(Some(next), None, at(210));
        assert!(!timer.is_due(at(310)) && timer.part(at(60_209), false, true).is_none());
    }

    #[test]
    fn after_a_clock_step_retention_is_not_due() {
        let mut timer = RetentionTimer::new(Retention::default(), at(0));
        let idle = timer.part(at(10), true, true);
        timer.took(idle, Some(true), at(10));
        assert!(timer.part(at(200), true, false).is_none());
        assert!(!timer.is_due(at(200)) && timer.wake_at(at(200)) == Duration::MAX, "or the loop would spin for a day");
        assert!(timer.part(at(200), false, true).is_some_and(|part| !part.if_idle));
    }
}
