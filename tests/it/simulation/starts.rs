//! What may start, and that all that may start does: claims, keys, order, time.

use std::collections::BTreeMap;
use std::time::Duration;

use duly::{Origin, Overlap, RunStatus};

use crate::simulation::history::{Attempt, Check, History, Step, Turn};
use crate::simulation::rows::{RunRow, Tables, TaskRow};
use crate::simulation::unusable_rows::UNKNOWN_ZONE;

/// How long after its claim an attempt may begin, in milliseconds, that was read ahead and whose starts are limited.
const BEGIN_WITHIN: i64 = 200;

impl History {
    pub(crate) fn check_claims(&mut self, step: &Step<'_>, turn: &Turn) -> Check {
        let name = self.owners[turn.owner].name.clone();
        let begun = step.changed.iter().filter(|(before, after)| {
            let began = |run: &&RunRow| before.is_none_or(|before| before.attempt < run.attempt);
            after.is_some_and(|run| run.status == RunStatus::Running && began(&run))
        });
        if begun.count() != turn.claims.len() {
            return Err(format!("{} claims were returned, which the rows do not show", turn.claims.len()));
        }
        for claim in &turn.claims {
            let (id, number) = (claim.run_id, claim.attempt);
            let Some(run) = step.after.runs.get(&id) else {
                return Err(format!("run {id} was claimed and has no row"));
            };
            if run.status != RunStatus::Running || run.attempt != number || run.owner.as_deref() != Some(&*name) {
                return Err(format!("attempt {number} of run {id} was claimed; its row says {run:?}"));
            }
            let task = &step.after.tasks[&run.task];
            let before = step.before.runs.get(&id).map(AsRef::as_ref);
            self.check_start(step, turn, task, before, run)?;
            // What was read ahead may begin later, and its start counts as of then.
            let counted = step.now + if run.is_announced { 0 } else { BEGIN_WITHIN };
            self.limits.started(run, task, counted)?;
            let begins_by = (!run.is_announced && self.limits.has_rate(run, task)).then_some(counted);
            let policy = (task.max_attempts, task.backoff, task.cap);
            let (owner, key, recurring) = (turn.owner, run.key.clone(), task.kind != "once");
            let limit = claim.timeout.filter(|limit| !limit.is_zero());
            let (began, outcome, took, taken_over) = (None, None, None, false);
            let attempt = Attempt {
                owner,
                key,
                policy,
                recurring,
                limit,
                begins_by,
                began,
                outcome,
                took,
                returned: None,
                arrived: false,
                taken_over,
            };
            if self.attempts.insert((id, number), attempt).is_some() {
                return Err(format!("attempt {number} of run {id} was claimed twice"));
            }
            self.open.insert((id, number));
        }
        self.check_ahead(step, turn)?;
        self.check_order(step, turn)
    }

    fn check_start(
        &mut self,
        step: &Step<'_>,
        turn: &Turn,
        task: &TaskRow,
        before: Option<&RunRow>,
        run: &RunRow,
    ) -> Check {
        let id = run.id;
        let wrong = |what: &str| Err(format!("run {id} of {:?} started {what}", task.name));
        if run.run_at > step.now {
            return wrong("before its run_at");
        }
        if task.is_halted() && run.origin != Origin::Manual {
            return wrong("though its task is paused or invalid");
        }
        if before.is_some_and(|before| before.cancel_requested) {
            return wrong("though it was asked to stop");
        }
        let has_begun = before.is_some_and(|run| run.counted() > 0 || run.status == RunStatus::Failed);
        if !has_begun && run.expires_at.is_some_and(|at| at <= step.now) {
            return wrong("after it had expired");
        }
        if !self.owners[turn.owner].handlers.contains(&&*run.handler) || run.handler != task.handler {
            return wrong(&format!("with handler {:?}, which is not its task's or not this owner's", run.handler));
        }
        let counted = run.attempt - self.forgiven.get(&id).copied().unwrap_or_default();
        if counted != run.counted() || counted > self.most_attempts.get(&run.task).copied().unwrap_or_default() {
            return wrong(&format!("as counted attempt {counted}; its row says {}", run.counted()));
        }
        // Runs from the time of a wrong clock are not in order with the others.
        let rewound = step.rewound() || self.models.get(&run.task).is_some_and(|model| model.rewound);
        if let Some(older) = holds_back(step.after, task, run).filter(|_| !rewound) {
            return wrong(&format!("before the older run {older}"));
        }
        // In real time: what the handlers do, whatever the rows say.
        let mut others = Vec::new();
        for key in &self.open {
            let attempt = &self.attempts[key];
            let at_work = attempt.outcome.is_none() && self.owners[attempt.owner].is_alive && !attempt.taken_over;
            if at_work && key.0 == id {
                return wrong(&format!("while its attempt {} was executing", key.1));
            }
            if at_work && run.key.is_some() && attempt.key == run.key && (key.0, key.1) != (id, run.attempt) {
                others.push(key.0);
            }
        }
        let limit = run.key.as_deref().map_or(usize::MAX, |key| self.limits.running(key));
        if others.len() >= limit {
            return wrong(&format!("while runs {others:?} with the same key were executing, of at most {limit}"));
        }
        let same_key = |other: &&RunRow| {
            other.id != id && other.status == RunStatus::Running && run.key.is_some() && other.key == run.key
        };
        let others: Vec<i64> = step.after.unfinished().filter(same_key).map(|other| other.id).collect();
        if others.len() >= limit { wrong(&format!("while runs {others:?} held its key")) } else { Ok(()) }
    }

    /// Checks that an owner with an idle worker wakes at the next instant at which something is due.
    pub(crate) fn check_wakes(&self, step: &Step<'_>) -> Check {
        let Some(turn) = step.turn().filter(|turn| !turn.refused && turn.idle > 0) else { return Ok(()) };
        let handlers = &turn.handlers;
        // A task that is not planned after the turn was set aside: its zone is unknown here.
        let due = step.after.tasks.values().filter(|task| task.is_active() && task.planned);
        let due = due.filter_map(|task| task.next_run);
        let may_start = |run: &&RunRow| {
            let is_limited = run.blocked.as_deref() == Some("starts");
            run.status != RunStatus::Running && (run.blocked.is_none() || is_limited) && handlers.contains(&run.handler)
        };
        let starts = step.after.unfinished().filter(may_start);
        let opens = |run: &RunRow| self.limits.opens_at(run, &step.after.tasks[&run.task]).unwrap_or_default();
        let starts = starts.map(|run| run.run_at.max(opens(run)));
        let expires = step.after.unfinished().filter(|run| run.may_expire()).filter_map(|run| run.expires_at);
        // Behind a run that cannot be claimed the others are seen at the next poll.
        if step.after.unfinished().any(|run| self.was_set_aside(run)) {
            return Ok(());
        }
        let next = due.chain(starts).chain(expires).filter(|at| *at > step.now).min();
        match next.map(|at| Duration::from_millis(at.abs_diff(step.now))).filter(|wait| turn.sleeps > *wait) {
            Some(wait) => Err(format!("owner {} sleeps for {:?}, and must wake in {wait:?}", turn.owner, turn.sleeps)),
            None => Ok(()),
        }
    }

    /// Checks that an owner that goes to sleep leaves nothing that it could start.
    pub(crate) fn check_nothing_waits(&self, step: &Step<'_>) -> Check {
        let Some(turn) = step.turn().filter(|turn| turn.sees_to_all() && turn.idle > 0 && !turn.sleeps.is_zero())
        else {
            return Ok(());
        };
        let handlers = &turn.handlers;
        // Runs from the time of a wrong clock may count as older until the next full turn.
        let rewound = |run: &RunRow| self.models.get(&run.task).is_some_and(|model| model.rewound);
        let other = |run: &RunRow| {
            step.after.unfinished().any(|other| other.task == run.task && other.is_scheduled() && other.id != run.id)
        };
        // Behind a run that cannot be claimed the others are seen in the turn that finds it so, and then at the next poll.
        let is_stuck = |run: &&RunRow| run.status != RunStatus::Running && self.was_set_aside(run);
        let stuck: Vec<&RunRow> = step.after.unfinished().filter(is_stuck).collect();
        let is_found = step
            .fresh
            .events
            .iter()
            .any(|(_, _, detail)| detail.as_ref().is_some_and(|it| it.contains("the claim of")));
        if !stuck.is_empty() && !is_found {
            return Ok(());
        }
        let behind_stuck =
            |run: &RunRow| stuck.iter().any(|other| other.id == run.id || run.key.is_some() && other.key == run.key);
        // There may be thousands of runs: comparing each with all others would take too long.
        let at_work = step.after.unfinished().filter(|run| run.status == RunStatus::Running);
        let mut held = BTreeMap::<&String, usize>::new();
        at_work.filter_map(|run| run.key.as_ref()).for_each(|key| *held.entry(key).or_default() += 1);
        let waits = |run: &&RunRow| {
            let task = &step.after.tasks[&run.task];
            // After an edit of a task whose zone is unknown here, its runs are placed in the next full turn.
            let waits_for_full = !task.planned && task.zone == UNKNOWN_ZONE;
            run.status != RunStatus::Running
                && !waits_for_full
                && run.run_at <= step.now
                && !behind_stuck(run)
                && !run.cancel_requested
                && handlers.contains(&run.handler)
                && !(task.is_halted() && run.origin != Origin::Manual)
                && run.key.as_ref().is_none_or(|key| held.get(key).is_none_or(|n| *n < self.limits.running(key)))
                && self.limits.opens_at(run, task).is_none_or(|at| at <= step.now)
                && holds_back(step.after, task, run).is_none()
                && !(rewound(run) && other(run))
        };
        match step.after.unfinished().find(waits) {
            Some(run) => Err(format!("run {} could start, and owner {} goes to sleep: {run:?}", run.id, turn.owner)),
            None => Ok(()),
        }
    }
}

/// Returns the older scheduled run of its task that a run must wait for.
fn holds_back(tables: &Tables, task: &TaskRow, run: &RunRow) -> Option<i64> {
    if task.overlap == Overlap::Allow || !run.is_scheduled() {
        return None;
    }
    let older = |other: &&RunRow| {
        other.task == run.task && other.is_scheduled() && other.scheduled_for < run.scheduled_for && other.id != run.id
    };
    tables.unfinished().find(older).map(|run| run.id)
}
