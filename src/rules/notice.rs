//! Which occurrences without a run are reported. An event records them in the transaction that passes over them, so that alarms and
//! `check` find it however soon a later run succeeds.

use crate::model::task::Misfire;

/// A task is reported when this number of its occurrences in a row were skipped.
const SKIPPED_IN_A_ROW: u64 = 5;

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Nothing runs in the place of occurrences that were missed, or for a run that expired.
    Missed,
    /// Occurrences were missed, and by the policy of the task a later one is run in their place.
    CaughtUp,
    /// Five or more occurrences in a row were skipped.
    Skipped,
    /// No start was left: a run waits for one of its task, or occurrences were skipped. One event for each time in which none was.
    Limited,
}

impl Notice {
    /// The kind of the event.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Notice::Missed => "missed",
            Notice::CaughtUp => "caught_up",
            Notice::Skipped => "skipped",
            Notice::Limited => "limited",
        }
    }

    /// Returns the event for occurrences that a misfire policy has passed over. `opens`: whether a later occurrence is run, now or in the
    /// next turn; the overlap policy may skip it.
    pub(crate) fn of_misfire(policy: Misfire, opens: bool) -> Notice {
        if policy != Misfire::Skip && opens { Notice::CaughtUp } else { Notice::Missed }
    }

    /// Returns the event when the number of occurrences that were skipped in a row grows: at the fifth, and whenever it has doubled since,
    /// so that a long row has few events.
    ///
    /// `Notice::of_skips(4, 6)` is `Some(Notice::Skipped)`, `Notice::of_skips(5, 9)` is `None`.
    pub(crate) fn of_skips(before: u64, after: u64) -> Option<Notice> {
        let doublings = |skipped: u64| (skipped / SKIPPED_IN_A_ROW).checked_ilog2();
        (doublings(after) > doublings(before)).then_some(Notice::Skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::{Misfire, Notice};

    #[test]
    fn skips_are_told_of_at_the_fifth_in_a_row_and_when_they_have_doubled() {
        let told: Vec<u64> = (0..100).filter(|before| Notice::of_skips(*before, before + 1).is_some()).collect();
        assert_eq!(told, [4, 9, 19, 39, 79]);
        assert_eq!(Notice::of_skips(0, 90), Some(Notice::Skipped), "one turn may skip many");
        assert_eq!((Notice::of_skips(0, 4), Notice::of_skips(5, 9)), (None, None));
    }

    #[test]
    fn only_a_policy_that_runs_nothing_misses() {
        let told = [Misfire::Skip, Misfire::RunOnce, Misfire::RunAll].map(|policy| Notice::of_misfire(policy, true));
        assert_eq!(told, [Notice::Missed, Notice::CaughtUp, Notice::CaughtUp]);
        assert_eq!(Notice::of_misfire(Misfire::RunOnce, false), Notice::Missed, "an earlier run is unfinished");
    }
}
