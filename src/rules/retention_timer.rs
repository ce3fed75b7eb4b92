//! When retention takes part in a turn: at each heartbeat that has nothing else to do; and, where there is always something
//! else to do, all the same, so that a scheduler that is never idle does not keep everything. Pure.

use std::time::Duration;

use crate::clock::Now;
use crate::model::settings::Retention;

/// How long it waits for an idle heartbeat.
const PATIENCE: Duration = Duration::from_secs(60);
/// How soon it goes on when a batch was not all.
const PACE: Duration = Duration::from_millis(100);

/// Its part in a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) keep: Retention,
    /// Only if the turn starts nothing, and leaves nothing due.
    pub(crate) if_idle: bool,
}

/// When it takes part next.
#[derive(Debug)]
pub(crate) struct RetentionTimer {
    keep: Retention,
    presses_at: Duration,
    /// The last batch was not all.
    behind: bool,
}

impl RetentionTimer {
    pub(crate) fn new(keep: Retention, now: Now) -> Self {
        RetentionTimer { keep, presses_at: now.monotonic + PATIENCE, behind: false }
    }

    /// Whether a turn that has nothing else to do is to be taken for it.
    pub(crate) fn is_due(&self, now: Now) -> bool {
        self.behind && now.monotonic >= self.presses_at
    }

    /// When such a turn is due.
    pub(crate) fn wake_at(&self, now: Now) -> Duration {
        if self.behind { self.presses_at.max(now.monotonic) } else { Duration::MAX }
    }

    /// Its part in a turn. `idle`: as far as is known before it, nothing else is to be done. `calm`: the clock can be gone by.
    pub(crate) fn part(&mut self, now: Now, idle: bool, calm: bool) -> Option<Part> {
        if !calm {
            self.behind = false;
            return None;
        }
        let presses = now.monotonic >= self.presses_at;
        (idle || presses).then_some(Part { keep: self.keep, if_idle: !presses })
    }

    /// It had this part; `more`: it took part, and whether it found more than one batch.
    pub(crate) fn took(&mut self, part: Option<Part>, more: Option<bool>, now: Now) {
        if part.is_none_or(|part| part.if_idle && more.is_none()) {
            return;
        }
        self.behind = more.unwrap_or_default();
        self.presses_at = now.monotonic + if self.behind { PACE } else { PATIENCE };
    }

    /// The turn could not be written. Where something else is to be done, that is tried without it: on a disk that is full there
    /// may be room for an outcome, and none for a batch.
    pub(crate) fn give_way(&mut self, now: Now) {
        self.behind = false;
        self.presses_at = now.monotonic + PATIENCE;
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
        let mut retention_timer = RetentionTimer::new(Retention::default(), at(0));
        assert!(retention_timer.part(at(59_999), false, true).is_none());
        let idle = retention_timer.part(at(59_999), true, true).expect("an idle heartbeat");
        assert!(idle.if_idle);
        retention_timer.took(Some(idle), None, at(59_999));
        let presses = retention_timer.part(at(60_000), false, true).expect("a minute has passed");
        assert!(!presses.if_idle, "it had no part in that heartbeat, which found something to do");
        retention_timer.took(Some(presses), Some(false), at(60_000));
        assert!(retention_timer.part(at(119_999), false, true).is_none());
        retention_timer.took(Some(idle), Some(false), at(119_999));
        assert!(retention_timer.part(at(179_998), false, true).is_none());
        assert!(
            !retention_timer.is_due(at(u64::MAX)) && retention_timer.wake_at(at(60_000)) == Duration::MAX,
            "a heartbeat comes soon enough"
        );
    }

    #[test]
    fn a_batch_that_was_not_all_is_followed_by_the_next() {
        let mut retention_timer = RetentionTimer::new(Retention::default(), at(0));
        let idle = retention_timer.part(at(10), true, true).expect("an idle heartbeat");
        retention_timer.took(Some(idle), Some(true), at(10));
        assert_eq!(retention_timer.wake_at(at(10)), Duration::from_millis(110));
        assert!(!retention_timer.is_due(at(109)) && retention_timer.part(at(109), false, true).is_none());
        assert!(retention_timer.is_due(at(110)));
        let next = retention_timer.part(at(110), false, true).expect("the next batch");
        retention_timer.took(Some(next), Some(true), at(110));
        assert!(retention_timer.is_due(at(210)));
        // It could not be written: that waits as long as it would if there were no more.
        retention_timer.took(Some(next), None, at(210));
        assert!(!retention_timer.is_due(at(310)) && retention_timer.part(at(60_209), false, true).is_none());
    }

    #[test]
    fn after_a_step_of_the_clock_nothing_presses() {
        let mut retention_timer = RetentionTimer::new(Retention::default(), at(0));
        let idle = retention_timer.part(at(10), true, true);
        retention_timer.took(idle, Some(true), at(10));
        assert!(retention_timer.part(at(200), true, false).is_none());
        assert!(
            !retention_timer.is_due(at(200)) && retention_timer.wake_at(at(200)) == Duration::MAX,
            "or the loop would spin for a day"
        );
        assert!(retention_timer.part(at(200), false, true).is_some_and(|part| !part.if_idle));
    }
}
