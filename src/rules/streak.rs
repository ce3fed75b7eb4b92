//! The streak of a task: how many of its runs became dead in a row. Pure.

use crate::model::run::RunStatus;
use crate::model::task::TaskStatus;

/// The effect of a run's end on the streak: it becomes zero unless `is_kept`, and then grows by `adds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streak {
    pub(crate) is_kept: bool,
    pub(crate) adds: u32,
}

impl Streak {
    /// A success ends the streak, a death adds to it. Nothing else changes it.
    pub(crate) fn after(status: RunStatus) -> Streak {
        Streak { is_kept: status != RunStatus::Succeeded, adds: u32::from(status == RunStatus::Dead) }
    }

    /// Returns whether the end of a run leaves the streak as it is.
    pub(crate) fn is_unchanged(self) -> bool {
        self.is_kept && self.adds == 0
    }
}

/// Returns whether a streak of `failures` pauses its task. `limit`: `pause_after_failures`.
pub(crate) fn pauses(status: TaskStatus, failures: u32, limit: Option<u32>) -> bool {
    status == TaskStatus::Active && limit.is_some_and(|limit| failures >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_adds_a_success_ends_and_nothing_else_counts() {
        let after = |failures: u32, status| {
            let Streak { is_kept, adds } = Streak::after(status);
            failures * u32::from(is_kept) + adds
        };
        assert_eq!((after(2, RunStatus::Dead), after(2, RunStatus::Succeeded)), (3, 0));
        for status in RunStatus::ALL.iter().filter(|status| !matches!(status, RunStatus::Dead | RunStatus::Succeeded)) {
            assert!(Streak::after(*status).is_unchanged(), "{status}");
        }
    }

    #[test]
    fn only_an_active_task_with_a_limit_is_paused() {
        assert!(pauses(TaskStatus::Active, 3, Some(3)) && pauses(TaskStatus::Active, 4, Some(3)));
        assert!(!pauses(TaskStatus::Active, 2, Some(3)) && !pauses(TaskStatus::Active, 9, None));
        assert!(!pauses(TaskStatus::Completed, 3, Some(3)) && !pauses(TaskStatus::Paused, 3, Some(3)));
    }
}
