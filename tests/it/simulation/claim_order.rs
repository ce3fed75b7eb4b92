//! The order of claims: by priority, then by age; every eighth claim goes to the oldest run of all, so that no run starves.

use duly::{Overlap, RunStatus};

use crate::simulation::history::{Action, Check, History, Step, Turn};
use crate::simulation::rows::RunRow;
use crate::simulation::scenario::Scenario;

/// One of this many claims goes by age alone.
const BY_AGE: u32 = 8;

/// What the checker knows of the order in which an owner claims.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// Claims since one went before a more urgent run. `None`: there was none yet.
    since_age: Option<u32>,
    /// Claims in a row that went before an older run.
    by_urgency: u32,
}

/// Returns the sort key of the order of age.
fn age(run: &RunRow) -> (i64, i64) {
    (run.run_at, run.id)
}

fn waits(run: &RunRow) -> bool {
    matches!(run.status, RunStatus::Queued | RunStatus::Failed) && run.blocked.is_none()
}

impl History {
    /// Compares the claims of a turn, in their order, with the runs that could have been claimed instead.
    pub(crate) fn check_order(&mut self, step: &Step<'_>, turn: &Turn) -> Check {
        let handlers = &turn.handlers;
        // It could start before the turn and after it, and so at any moment between.
        let could = |run: &&RunRow| {
            let before = step.before.runs.get(&run.id);
            waits(run)
                && run.run_at <= step.now
                && !run.cancel_requested
                // It never begins. Turns of a few items take several to record that.
                && !(run.may_expire() && run.expires_at.is_some_and(|at| at <= step.now))
                && handlers.contains(&run.handler)
                && self.limits.opens_at(run, &step.after.tasks[&run.task]).is_none_or(|at| at <= step.now)
                && before.is_some_and(|before| waits(before) && before.attempt == run.attempt)
                && !step.after.tasks[&run.task].is_halted()
        };
        let left: Vec<&RunRow> = step.after.unfinished().filter(could).collect();
        let claimed: Vec<&RunRow> = turn.claims.iter().map(|claim| &*step.after.runs[&claim.run_id]).collect();
        let set_aside = |run: &RunRow| run.status != RunStatus::Running && self.was_set_aside(run);
        let any_set_aside = step.after.unfinished().any(set_aside);
        let order = &mut self.owners[turn.owner].order;
        // Two handlers' runs with one key may both be free and both selected; the second claim then fails.
        let in_vain = |run: &RunRow| {
            let rival = |one: &&RunRow| one.id != run.id && one.key == run.key && one.handler != run.handler;
            run.status != RunStatus::Running && run.key.is_some() && claimed.iter().any(rival)
        };
        if any_set_aside || step.after.unfinished().any(in_vain) {
            *order = Order::default();
            return Ok(());
        }
        for run in claimed {
            order.claimed(run, &left).map_err(|broken| format!("owner {}: {broken}", turn.owner))?;
        }
        Ok(())
    }
}

impl Order {
    fn claimed(&mut self, run: &RunRow, left: &[&RunRow]) -> Check {
        let older = left.iter().find(|other| age(other) < age(run));
        let urgent = left.iter().find(|other| other.priority < run.priority);
        if let Some(other) = left.iter().find(|other| other.priority == run.priority && age(other) < age(run)) {
            return Err(format!("run {} went before run {}, as urgent and older", run.id, other.id));
        }
        if let Some(urgent) = urgent {
            if let Some(older) = older {
                let (id, urgent, older) = (run.id, urgent.id, older.id);
                return Err(format!("run {id} went before run {urgent}, more urgent, and run {older}, older"));
            }
            if self.since_age.is_some_and(|since| since + 1 < BY_AGE) {
                return Err(format!("run {} went before run {}, and is not the eighth", run.id, urgent.id));
            }
            self.since_age = Some(0);
        } else {
            self.since_age = self.since_age.map(|since| since + 1);
        }
        self.by_urgency = if older.is_some() { self.by_urgency + 1 } else { 0 };
        if let Some(older) = older.filter(|_| self.by_urgency >= BY_AGE) {
            return Err(format!("{BY_AGE} claims in a row went before run {}, up to run {}", older.id, run.id));
        }
        Ok(())
    }
}

impl Scenario {
    /// Triggers tasks several times at once, more than there are workers.
    pub(crate) fn trigger_many(&mut self) -> Check {
        let tasks = self.history.tables.tasks.values().filter(|task| task.overlap == Overlap::Allow);
        let names: Vec<String> = tasks.map(|task| task.name.clone()).collect();
        for name in names.into_iter().take(3) {
            let times = self.rng.u32(3..10);
            let count = (0..times).filter(|_| self.database.client.trigger(&name).is_ok()).count();
            let action = if count > 0 { Action::Triggered(name.clone()) } else { Action::Nothing };
            self.record(&action, &format!("{name} is triggered {count} times"))?;
        }
        Ok(())
    }
}
