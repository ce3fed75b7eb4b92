//! Expiry: a run that has not begun when it expires never begins, and is recorded at once.

use duly::{Origin, RunStatus};

use crate::simulation::history::{Check, History, Step};
use crate::simulation::rows::{RunRow, TaskRow};

/// Minimum number of expired runs that a turn records.
const AT_ONCE: usize = 200;
/// How long after the first look a run may still begin that expired before any scheduler could see it.
const FIRST_LOOK: i64 = 100;

impl RunRow {
    /// Whether it is missed unless it begins in time: no attempt of it has counted.
    pub(crate) fn may_expire(&self) -> bool {
        self.status == RunStatus::Queued && self.counted() == 0
    }
}

impl History {
    /// Whether a turn sees for the first time that a task is due: at the turn before, every task was due later.
    fn is_first_look(&self, step: &Step<'_>, task: &TaskRow) -> bool {
        let seen = step.turn().and_then(|turn| self.owners[turn.owner].seen);
        // A task that this turn has planned was due at the oldest occurrence for which it wrote a row.
        let new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|pair| pair.1);
        let new = new.filter(|run| run.task == task.id && run.is_scheduled());
        let next = task.next_run.or_else(|| new.map(|run| run.scheduled_for).min());
        seen.is_some_and(|(_, due)| due.is_none_or(|due| next.is_some_and(|next| next < due)))
    }

    /// Whether a turn has resolved what is due of a task because it changed the task: paused it, or opened a run of a delay task that
    /// follows. A run that such a resolution opens is not deferred.
    fn is_resolved_before_a_change(step: &Step<'_>, task: &TaskRow) -> bool {
        let is_paused = task.is_active() && step.after.tasks.get(&task.id).is_some_and(|task| task.status == "paused");
        let new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|pair| pair.1);
        let mut reports = new.filter(|run| run.task == task.id && run.follows());
        is_paused || task.kind == "delay" && reports.next().is_some()
    }

    /// Whether a turn sees a manual run for the first time.
    pub(crate) fn is_new_request(&self, step: &Step<'_>, run: &RunRow) -> bool {
        let seen = step.turn().and_then(|turn| self.owners[turn.owner].seen);
        let untouched = run.origin == Origin::Manual && run.attempt == 0;
        untouched && seen.is_some_and(|(at, _)| run.scheduled_for > at - FIRST_LOOK)
    }

    /// Whether the expiry is that of the row, or was postponed by the first look.
    pub(crate) fn may_expire_at(&self, step: &Step<'_>, before: &RunRow, after: &RunRow) -> bool {
        before.expires_at == after.expires_at
            || self.is_new_request(step, before)
                && before.expires_at.is_some_and(|at| at <= step.now)
                && after.expires_at == Some(step.now + FIRST_LOOK)
    }

    /// Checks that each run expires as its task says, and that a turn leaves no expired run.
    pub(crate) fn check_expiry(&self, step: &Step<'_>) -> Check {
        for (before, after) in &step.changed {
            let (None, Some(run)) = (before, after) else { continue };
            if matches!(run.status, RunStatus::Skipped | RunStatus::Missed) && run.expires_at.is_none() {
                continue;
            }
            let Some(task) = step.before.tasks.get(&run.task) else { continue };
            let begin = match run.origin {
                Origin::Schedule | Origin::CatchUp => run.scheduled_for.max(task.active_since),
                _ => run.scheduled_for,
            };
            let expected = task.expires.map(|expires| begin + expires);
            let is_deferred = self.is_first_look(step, task) && !Self::is_resolved_before_a_change(step, task);
            let expected = match expected {
                Some(at) if at <= step.now && is_deferred => Some(step.now + FIRST_LOOK),
                expected => expected,
            };
            let awaits = self.models.get(&run.task).is_some_and(|model| model.awaits);
            if run.expires_at != expected && !step.rewound() && !awaits {
                return Err(format!("run {} expires at {:?}, expected {expected:?}", run.id, run.expires_at));
            }
        }
        if step.turn().is_none_or(|turn| !turn.sees_to_all()) {
            return Ok(());
        }
        let expired = |run: &RunRow| run.may_expire() && run.expires_at.is_some_and(|at| at <= step.now);
        // An expired run that cannot be written postpones the others to the next poll.
        if step.after.unfinished().any(|run| expired(run) && self.was_stuck(run.id)) {
            return Ok(());
        }
        let mut left = step.after.unfinished().filter(|run| expired(run));
        match left.next() {
            Some(run) if left.count() < AT_ONCE => {
                Err(format!("run {} has expired, and a turn left it: {run:?}", run.id))
            }
            _ => Ok(()),
        }
    }
}
