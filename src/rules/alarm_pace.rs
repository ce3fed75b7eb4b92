//! When a message about alarms of one kind may be sent: conditions are gathered, and messages of one kind have a distance.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::alarm::AlarmPace;

/// What is stored of the messages of one channel and kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    /// When the last message was delivered.
    pub(crate) sent_at: Option<Timestamp>,
    /// Until when a message is claimed by a sender.
    pub(crate) claimed_until: Option<Timestamp>,
}

/// Returns how long a message must wait whose oldest condition was found at `found_at`. A time far in the future was written
/// before the clock was set back, and delays nothing; another process may be a moment ahead.
pub(crate) fn wait(found_at: Timestamp, slot: Slot, pace: &AlarmPace, now: Timestamp) -> Duration {
    let rest = |from: Timestamp, length: Duration| {
        if from.since(now) > length { Duration::ZERO } else { length.saturating_sub(now.since(from)) }
    };
    let claimed = slot.claimed_until.map(|until| until.since(now)).filter(|left| *left <= 2 * pace.lease);
    let sent = slot.sent_at.map(|sent| rest(sent, pace.interval));
    rest(found_at, pace.gather).max(sent.unwrap_or_default()).max(claimed.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Slot, wait};
    use crate::clock::Timestamp;
    use crate::model::alarm::AlarmPace;

    #[test]
    fn a_message_gathers_and_keeps_its_distance() {
        let pace = AlarmPace::default();
        let at = |seconds: i64| Timestamp::from_millis(1_805_000_000_000 + 1000 * seconds);
        let left = |found: i64, sent: Option<i64>, claimed: Option<i64>, now: i64| {
            let slot = Slot { sent_at: sent.map(at), claimed_until: claimed.map(at) };
            wait(at(found), slot, &pace, at(now)).as_secs()
        };
        assert_eq!(left(100, None, None, 100), 10, "it gathers");
        assert_eq!(left(100, None, None, 110), 0);
        assert_eq!(left(100, Some(90), None, 110), 40, "the last message was delivered 20 seconds ago");
        assert_eq!(left(100, Some(50), None, 110), 0);
        assert_eq!(left(100, None, Some(130), 110), 20, "another sender has claimed it");
        assert_eq!(left(100, None, Some(105), 110), 0, "and died");
        assert_eq!(left(100, Some(111), Some(171), 110), 61, "another process is a second ahead");
        // The clock was set back.
        assert_eq!(left(9_000, Some(9_000), Some(9_000), 110), 0);
    }

    /// One dead run a second for ten minutes, with a manual clock: never two messages within a minute, and each run in one of them.
    #[test]
    fn dead_runs_are_grouped_by_the_minute() {
        let (pace, mut slot) = (AlarmPace::default(), Slot::default());
        let (mut found_at, mut waiting, mut messages) = (None, 0, Vec::new());
        for second in 0..700 {
            let now = Timestamp::from_millis(1_805_000_000_000 + 1000 * second);
            if second < 600 {
                waiting += 1;
                found_at.get_or_insert(now);
            }
            if found_at.is_some_and(|found| wait(found, slot, &pace, now) == Duration::ZERO) {
                messages.push((second, waiting));
                (found_at, waiting, slot.sent_at) = (None, 0, Some(now));
            }
        }
        assert_eq!(messages[..3], [(10, 11), (70, 60), (130, 60)]);
        assert_eq!(messages.iter().map(|(_, count)| count).sum::<i32>(), 600);
        assert_eq!(messages.len(), 11);
    }
}
