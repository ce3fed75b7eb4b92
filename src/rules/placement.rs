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
    /// No start of its task was left when it was about to start.
    Starts,
    /// No slot or no start of its key is free, or other waiting runs of its handler go first behind the key.
    Key,
}

impl Reason {
    const ALL: [Reason; 4] = [Reason::Paused, Reason::Order, Reason::Starts, Reason::Key];

    /// Returns the text that the tables store.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Reason::Paused => "paused",
            Reason::Order => "order",
            Reason::Starts => "starts",
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
    /// Whether no start of its task is left. Asked when a run is about to start, and of one that waits for it: a run that waits for something
    /// else is not looked at when its task uses up its starts, nor when it has some again.
    pub(crate) starts_are_used: bool,
    /// Whether no slot or no start of its key is free, or other waiting runs go first behind the key.
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
            Reason::Starts => self.starts_are_used,
            Reason::Key => self.key_is_taken,
        }
    }

    /// Returns the first reason that keeps the run from starting.
    pub(crate) fn reason(&self) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| self.is_held_by(*reason))
    }
}

/// Chooses up to `window` runs that go first behind a key with free slots: the most urgent that are due, then the next to become due.
///
/// `heads`: of each priority, most urgent first, the runs with the earliest `run_at`, at most `window`. Reads no more of them than
/// it needs.
pub(crate) fn go_first<E>(
    heads: impl Iterator<Item = Result<Vec<(Timestamp, i64)>, E>>,
    window: usize,
    now: Timestamp,
) -> Result<Vec<i64>, E> {
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for head in heads {
        for (run_at, run) in head? {
            if run_at > now {
                later.push((run_at, run));
            } else if first.len() < window {
                first.push(run);
            }
        }
        if first.len() == window {
            return Ok(first);
        }
    }
    // Stable: of runs that are due at the same time, the more urgent goes first.
    later.sort_by_key(|(run_at, _)| *run_at);
    first.extend(later.into_iter().map(|(_, run)| run).take(window - first.len()));
    Ok(first)
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
            starts_are_used: true,
            key_is_taken: true,
        };
        assert_eq!(all.reason(), Some(Reason::Paused));
        assert_eq!(Waiting { origin: Origin::Manual, ..all }.reason(), Some(Reason::Starts), "it ignores a pause");
        assert_eq!(Waiting { origin: Origin::OnDead, ..all }.reason(), Some(Reason::Paused));
        let active = Waiting { status: TaskStatus::Completed, ..all };
        assert_eq!(active.reason(), Some(Reason::Order));
        assert_eq!(Waiting { overlap: Overlap::Allow, ..active }.reason(), Some(Reason::Starts));
        let active = Waiting { starts_are_used: false, ..active };
        assert_eq!(Waiting { overlap: Overlap::Allow, ..active }.reason(), Some(Reason::Key));
        assert_eq!(Waiting { origin: Origin::OnDead, ..active }.reason(), Some(Reason::Key));
        assert_eq!(Waiting { has_older: false, key_is_taken: false, ..active }.reason(), None);
    }

    #[test]
    fn the_most_urgent_that_are_due_go_first_and_then_the_next_to_be_due() {
        let at = |heads: &[Vec<(i64, i64)>], window: usize, now: i64| {
            let head = |head: &Vec<(i64, i64)>| {
                Ok::<_, ()>(head.iter().map(|(at, run)| (Timestamp::from_millis(*at), *run)).collect())
            };
            go_first(heads.iter().map(head), window, Timestamp::from_millis(now)).expect("no fault")
        };
        let heads = [vec![(9, 1), (9, 4)], vec![], vec![(4, 2), (7, 5)], vec![(5, 3)]];
        assert_eq!([3, 4, 5, 9].map(|now| at(&heads, 1, now)), [[2], [2], [2], [1]]);
        assert_eq!([3, 5, 9].map(|now| at(&heads, 2, now)), [[2, 3], [2, 3], [1, 4]]);
        assert_eq!(at(&heads, 9, 8), [2, 5, 3, 1, 4]);
        assert!(at(&[vec![], vec![]], 1, 9).is_empty());
        let failing = [Ok(vec![(Timestamp::from_millis(1), 7)]), Err("not reached")];
        assert_eq!(go_first(failing.into_iter(), 1, Timestamp::from_millis(1)), Ok(vec![7]));
    }
}
