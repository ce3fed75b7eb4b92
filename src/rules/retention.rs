//! Decides which runs of a task retention deletes. Pure.

use crate::clock::Timestamp;
use crate::model::run::RunStatus;
use crate::model::settings::Retention;

/// The retention settings, applied to an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Completed `once` tasks that ended before this may be deleted.
    pub(crate) once_before: Timestamp,
    /// Runs that ended before this may be deleted.
    pub(crate) runs_before: Timestamp,
    /// Events and stopped instances from before this may be deleted.
    pub(crate) events_before: Timestamp,
    /// Number of runs that each task keeps, whatever their age.
    pub(crate) least: usize,
    /// Most runs that a task keeps. Unfinished runs are never deleted.
    pub(crate) most: usize,
}

/// What retention needs of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OldRun {
    pub(crate) scheduled_for: Timestamp,
    pub(crate) id: i64,
    pub(crate) status: RunStatus,
    pub(crate) finished: Option<Timestamp>,
}

impl OldRun {
    /// Returns the sort key by age, oldest first.
    pub(crate) fn age(&self) -> (Timestamp, i64) {
        (self.scheduled_for, self.id)
    }
}

impl Limits {
    pub(crate) fn new(keep: &Retention, now: Timestamp) -> Self {
        let count = |runs| usize::try_from(runs).unwrap_or(usize::MAX);
        Limits {
            once_before: now.minus(keep.once),
            runs_before: now.minus(keep.runs),
            events_before: now.minus(keep.events),
            least: count(keep.least_runs),
            most: count(keep.most_runs),
        }
    }

    /// Returns how many of the oldest runs may be deleted, at most, of a task that has `runs`.
    pub(crate) fn spare(&self, runs: usize) -> usize {
        runs.saturating_sub(self.least)
    }

    /// Returns whether to delete a run of a task that has `runs`: it is final, not among the newest, and either old or more
    /// than `most` allows. `place`: how many runs of the task are older.
    pub(crate) fn removes(&self, run: &OldRun, place: usize, runs: usize) -> bool {
        run.status.is_final()
            && place < self.spare(runs)
            && (place < runs.saturating_sub(self.most) || run.finished.is_some_and(|at| at < self.runs_before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn old_and_surplus_runs_are_deleted_but_never_the_newest() {
        let day = |n: u64| Timestamp::MIN.plus(Duration::from_secs(n * 86_400));
        let keep = Retention { least_runs: 2, most_runs: 5, ..Retention::default() };
        let limits = Limits::new(&keep, day(100));
        let run = |status, finished| OldRun { scheduled_for: day(1), id: 1, status, finished: Some(finished) };
        let (old, young) = (run(RunStatus::Dead, day(69)), run(RunStatus::Dead, day(70)));
        assert!(limits.removes(&old, 0, 3) && !limits.removes(&young, 0, 3), "30 days are kept");
        assert!(!limits.removes(&old, 1, 3) && !limits.removes(&old, 0, 2), "the newest two stay");
        assert!(limits.removes(&young, 1, 7) && !limits.removes(&young, 2, 7), "five are kept at most");
        assert!(!limits.removes(&run(RunStatus::Failed, day(1)), 0, 7), "it is unfinished");
    }
}
