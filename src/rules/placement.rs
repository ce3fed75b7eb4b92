//! Placement: which waiting run may start, and the first reason why another may not. Pure.
//!
//! The store reads the facts and keeps the answer in the column `blocked`. The triggers of `schema.sql` only ever block more
//! than this rule does.

use crate::clock::Timestamp;
use crate::model::run::Origin;
use crate::model::task::{Overlap, TaskStatus};

/// Why a waiting run may not start. The store keeps the first reason that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its task is paused or invalid.
    Paused,
    /// An older scheduled run of its task is unfinished.
    Order,
    /// A run holds its key, or another waiting run of its handler goes first behind the key.
    Key,
}

impl Reason {
    const ALL: [Reason; 3] = [Reason::Paused, Reason::Order, Reason::Key];

    /// Returns the text that the tables store.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Reason::Paused => "paused",
            Reason::Order => "order",
            Reason::Key => "key",
        }
    }

    /// Parses the text that the tables store.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Reason::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// The facts that decide whether a waiting run may start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) origin: Origin,
    /// Status of its task.
    pub(crate) status: TaskStatus,
    /// Overlap policy of its task.
    pub(crate) overlap: Overlap,
    /// Whether an older scheduled run of its task is unfinished.
    pub(crate) has_older: bool,
    /// Whether a run holds its key, or another waiting run goes first behind the key.
    pub(crate) key_is_taken: bool,
}

impl Waiting {
    /// Returns whether one reason keeps the run from starting.
    pub(crate) fn is_held_by(&self, reason: Reason) -> bool {
        match reason {
            Reason::Paused => {
                self.origin != Origin::Manual && matches!(self.status, TaskStatus::Paused | TaskStatus::Invalid)
            }
            Reason::Order => self.overlap != Overlap::Allow && self.origin.is_scheduled() && self.has_older,
            Reason::Key => self.key_is_taken,
        }
    }

    /// Returns the first reason that keeps the run from starting.
    pub(crate) fn reason(&self) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| self.is_held_by(*reason))
    }
}

/// Chooses the run that goes first behind a free key: the most urgent that is due, or the next to become due.
///
/// `heads`: of each priority, most urgent first, the run with the earliest `run_at`. Reads no more of them than it needs.
pub(crate) fn goes_first<E>(
    heads: impl Iterator<Item = Result<Option<(Timestamp, i64)>, E>>,
    now: Timestamp,
) -> Result<Option<i64>, E> {
    let mut earliest: Option<(Timestamp, i64)> = None;
    for head in heads {
        let Some((run_at, run)) = head? else { continue };
        if run_at <= now {
            return Ok(Some(run));
        }
        if earliest.is_none_or(|(at, _)| run_at < at) {
            earliest = Some((run_at, run));
        }
    }
    Ok(earliest.map(|(_, run)| run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_that_holds_is_given() {
        let all = Waiting {
            origin: Origin::Schedule,
            status: TaskStatus::Paused,
            overlap: Overlap::Skip,
            has_older: true,
            key_is_taken: true,
        };
        assert_eq!(all.reason(), Some(Reason::Paused));
        assert_eq!(Waiting { origin: Origin::Manual, ..all }.reason(), Some(Reason::Key), "it ignores a pause");
        assert_eq!(Waiting { origin: Origin::OnDead, ..all }.reason(), Some(Reason::Paused));
        let active = Waiting { status: TaskStatus::Completed, ..all };
        assert_eq!(active.reason(), Some(Reason::Order));
        assert_eq!(Waiting { overlap: Overlap::Allow, ..active }.reason(), Some(Reason::Key));
        assert_eq!(Waiting { origin: Origin::OnDead, ..active }.reason(), Some(Reason::Key));
        assert_eq!(Waiting { has_older: false, key_is_taken: false, ..active }.reason(), None);
    }

    #[test]
    fn the_most_urgent_that_is_due_goes_first_and_else_the_next_to_be_due() {
        let at = |heads: [Option<(i64, i64)>; 4], now: i64| {
            let heads = heads.map(|head| Ok::<_, ()>(head.map(|(at, run)| (Timestamp::from_millis(at), run))));
            goes_first(heads.into_iter(), Timestamp::from_millis(now)).expect("no fault")
        };
        let heads = [Some((9, 1)), None, Some((4, 2)), Some((5, 3))];
        assert_eq!([3, 4, 5, 9].map(|now| at(heads, now)), [Some(2), Some(2), Some(2), Some(1)]);
        assert_eq!(at([None; 4], 9), None);
        let failing = [Ok(Some((Timestamp::from_millis(1), 7))), Err("not reached")];
        assert_eq!(goes_first(failing.into_iter(), Timestamp::from_millis(1)), Ok(Some(7)));
    }
}
