//! Runs that are not worth beginning late: what has not begun when it expires never begins, and is told at once.

use duly::{Origin, RunStatus};

use crate::simulation::history::{Check, History, Step};
use crate::simulation::rows::RunRow;

/// Runs that a turn lets expire at least, if so many have expired.
const AT_ONCE: usize = 200;

impl RunRow {
    /// Whether it will be missed if it has not begun by then: nothing of it was ever begun.
    pub(crate) fn may_expire(&self) -> bool {
        self.status == RunStatus::Queued && self.counted() == 0
    }
}

impl History {
    /// Each run expires when its task says so; and a turn leaves none that has expired.
    pub(crate) fn check_expiry(&self, step: &Step<'_>) -> Check {
        for (before, after) in &step.changed {
            let (None, Some(run)) = (before, after) else { continue };
            if matches!(run.status, RunStatus::Skipped | RunStatus::Missed) && run.expires_at.is_none() {
                continue;
            }
            let Some(task) = step.before.tasks.get(&run.task) else { continue };
            let begin = match run.origin {
                Origin::Manual | Origin::OnDead => run.scheduled_for,
                _ => run.scheduled_for.max(task.active_since),
            };
            let expected = task.expires.map(|expires| begin + expires);
            if run.expires_at != expected && !step.rewound() {
                return Err(format!("run {} expires at {:?}, expected {expected:?}", run.id, run.expires_at));
            }
        }
        if step.turn().is_none_or(|turn| !turn.sees_to_all()) {
            return Ok(());
        }
        let expired = |run: &&RunRow| {
            run.may_expire() && !self.was_stuck(run.id) && run.expires_at.is_some_and(|at| at <= step.now)
        };
        let mut left = step.after.unfinished().filter(expired);
        match left.next() {
            Some(run) if left.count() < AT_ONCE => {
                Err(format!("run {} has expired, and a turn left it: {run:?}", run.id))
            }
            _ => Ok(()),
        }
    }
}
