//! Runs that are not worth beginning late: what has not begun when it expires never begins, and is told at once.

use duly::{Origin, RunStatus};

use crate::simulation::history::{Check, History, Step};
use crate::simulation::rows::{RunRow, TaskRow};

/// Runs that a turn lets expire at least, if so many have expired.
const AT_ONCE: usize = 200;
/// How long a run may still begin that expired before a scheduler could see it.
const FIRST_LOOK: i64 = 100;

impl RunRow {
    /// Whether it will be missed if it has not begun by then: nothing of it was ever begun.
    pub(crate) fn may_expire(&self) -> bool {
        self.status == RunStatus::Queued && self.counted() == 0
    }
}

impl History {
    /// Whether a turn sees for the first time that a task is due: at the look before, every task was due later.
    fn is_first_look(&self, step: &Step<'_>, task: &TaskRow) -> bool {
        let seen = step.turn().and_then(|turn| self.owners[turn.owner].seen);
        // A task that this turn has planned was due at the oldest occurrence of which it has made a row.
        let new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|pair| pair.1);
        let new = new.filter(|run| run.task == task.id && run.is_scheduled());
        let next = task.next_run.or_else(|| new.map(|run| run.scheduled_for).min());
        seen.is_some_and(|(_, due)| due.is_none_or(|due| next.is_some_and(|next| next < due)))
    }

    /// Whether a turn sees a manual run for the first time.
    pub(crate) fn is_new_request(&self, step: &Step<'_>, run: &RunRow) -> bool {
        let seen = step.turn().and_then(|turn| self.owners[turn.owner].seen);
        let untouched = run.origin == Origin::Manual && run.attempt == 0;
        untouched && seen.is_some_and(|(at, _)| run.scheduled_for > at - FIRST_LOOK)
    }

    /// Whether the time at which a run expires is that of the row, or was put off for its first look.
    pub(crate) fn may_expire_at(&self, step: &Step<'_>, before: &RunRow, after: &RunRow) -> bool {
        before.expires_at == after.expires_at
            || self.is_new_request(step, before)
                && before.expires_at.is_some_and(|at| at <= step.now)
                && after.expires_at == Some(step.now + FIRST_LOOK)
    }

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
            let expected = match expected {
                Some(at) if at <= step.now && self.is_first_look(step, task) => Some(step.now + FIRST_LOOK),
                expected => expected,
            };
            if run.expires_at != expected && !step.rewound() {
                return Err(format!("run {} expires at {:?}, expected {expected:?}", run.id, run.expires_at));
            }
        }
        if step.turn().is_none_or(|turn| !turn.sees_to_all()) {
            return Ok(());
        }
        let expired = |run: &RunRow| run.may_expire() && run.expires_at.is_some_and(|at| at <= step.now);
        // One that has expired and cannot be written puts off when the others are looked at, to the next poll.
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
