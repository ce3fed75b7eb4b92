//! Deaths: another task receives the dead run, once; and a task whose runs keep dying is paused.

use duly::{Origin, Outcome, RunStatus};

use crate::simulation::history::{Action, Check, History, Step};
use crate::simulation::rows::{RunRow, TaskRow};

/// Runs of one task that ended in one step, and count in its streak.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    dead: u32,
    succeeded: u32,
}

impl History {
    /// Checks what follows from a death. `gone`: runs that died and were deleted in the same step.
    pub(crate) fn check_dead(&self, step: &Step<'_>, gone: &[(&RunRow, RunStatus)]) -> Check {
        let at_once = gone.iter().filter(|(run, status)| !run.status.is_final() && *status == RunStatus::Dead);
        let died: Vec<&RunRow> = step.died.iter().copied().chain(at_once.map(|(run, _)| *run)).collect();
        self.check_on_dead_runs(step, &died)?;
        let by_turn = step.turn().is_some();
        for (id, after) in &step.after.tasks {
            let Some(before) = step.before.tasks.get(id) else { continue };
            if before == after && died.is_empty() {
                continue;
            }
            let ends = self.ends(step, gone, *id);
            check_streak(step, before, after, ends).map_err(|broken| format!("task {:?}: {broken}", after.name))?;
            let most = after.pause_after.filter(|_| died.iter().any(|run| run.task == *id));
            if after.is_active() && after.kind != "once" && most.is_some_and(|most| after.failures >= most) {
                return Err(format!("{:?} has died {} times in a row and is not paused", after.name, after.failures));
            }
            let limit_reached = most.is_some_and(|most| before.failures + ends.dead >= most);
            if by_turn && before.is_active() && after.status == "paused" && !limit_reached {
                return Err(format!(
                    "{:?} was paused without a reason, after {} deaths",
                    after.name,
                    before.failures + ends.dead
                ));
            }
        }
        Ok(())
    }

    /// Checks that each death opens one run of the task's `on_dead`, or that an event says why not.
    fn check_on_dead_runs(&self, step: &Step<'_>, died: &[&RunRow]) -> Check {
        let new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|pair| pair.1);
        let new = new.filter(|run| run.origin == Origin::OnDead);
        let mut found: Vec<(i64, i64)> = new.map(|run| (run.task, self.observer.dead_run_of(run.id))).collect();
        let mut expected = Vec::new();
        for run in died.iter().filter(|run| run.origin != Origin::OnDead) {
            let Some(target) = step.after.tasks[&run.task].on_dead.as_deref() else { continue };
            let task = step.after.named(target);
            // A task that becomes invalid in this turn may have received the run before.
            if let Some(task) = task.filter(|task| task.status != "invalid" || found.contains(&(task.id, run.id))) {
                let was_invalid = step.before.named(target).is_some_and(|task| task.status == "invalid");
                if task.status != "invalid" || !was_invalid {
                    expected.push((task.id, run.id));
                }
                continue;
            }
            let is_report = |(kind, of, _): &(String, Option<i64>, _)| kind == "on_dead" && *of == Some(run.id);
            if step.fresh.events.iter().filter(|event| is_report(event)).count() != 1 {
                return Err(format!("run {} died, {target:?} cannot run, and no event says so", run.id));
            }
        }
        expected.sort_unstable();
        found.sort_unstable();
        match found == expected {
            true => Ok(()),
            false => Err(format!("on_dead runs (task, dead run): {found:?}, expected {expected:?}")),
        }
    }

    /// Returns how the runs of a task ended in this step, if they count: one-time tasks count none.
    fn ends(&self, step: &Step<'_>, gone: &[(&RunRow, RunStatus)], task: i64) -> Ends {
        let mut ends = Ends::default();
        let kept = step.changed.iter().filter_map(|(before, after)| Some(((*before)?, (*after)?.status)));
        for (run, status) in kept.chain(gone.iter().copied()).filter(|(run, _)| run.task == task) {
            if run.status != RunStatus::Running || !status.is_final() {
                continue;
            }
            let attempt = &self.attempts[&(run.id, run.attempt)];
            let own = attempt.outcome.is_some() && step.settling_owner(run.id, run.attempt) == Some(attempt.owner);
            let recurring = if own { attempt.recurring } else { step.after.tasks[&task].kind != "once" };
            match status {
                RunStatus::Dead if recurring => ends.dead += 1,
                RunStatus::Succeeded if recurring && matches!(attempt.outcome, Some(Outcome::Succeeded { .. })) => {
                    ends.succeeded += 1;
                }
                _ => {}
            }
        }
        ends
    }
}

/// Consecutive deaths are counted; a success or a resume ends the streak.
fn check_streak(step: &Step<'_>, before: &TaskRow, after: &TaskRow, ends: Ends) -> Check {
    let resumed = matches!(step.action, Action::Resumed { task, .. } if *task == after.name);
    let (least, most) = match ends {
        _ if resumed && before.status == "paused" => (0, 0),
        Ends { dead, succeeded: 0 } => (before.failures + dead, before.failures + dead),
        // The order within the step is unknown.
        Ends { dead, .. } => (0, dead),
    };
    match (least..=most).contains(&after.failures) {
        true => Ok(()),
        false => Err(format!("{} deaths in a row are counted, expected {least} to {most}", after.failures)),
    }
}
