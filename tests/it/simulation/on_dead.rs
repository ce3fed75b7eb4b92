//! What a death brings about: another task is told of it, once, with the dead run in hand; and a task that keeps dying rests.

use duly::{Origin, Outcome, RunStatus};

use crate::simulation::history::{Check, Deed, History, Step};
use crate::simulation::rows::{RunRow, TaskRow};

/// Runs of one task that ended in one step, and count in its streak.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    dead: u32,
    succeeded: u32,
}

impl History {
    /// What follows from a death. `gone`: runs that died and were removed in the same step.
    pub(crate) fn check_dead(&self, step: &Step<'_>, gone: &[(&RunRow, RunStatus)]) -> Check {
        let at_once = gone.iter().filter(|(run, status)| !run.status.is_final() && *status == RunStatus::Dead);
        let died: Vec<&RunRow> = step.died.iter().copied().chain(at_once.map(|(run, _)| *run)).collect();
        self.check_told(step, &died)?;
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
                return Err(format!("{:?} has died {} times in a row and goes on", after.name, after.failures));
            }
            let tired = most.is_some_and(|most| before.failures + ends.dead >= most);
            if by_turn && before.is_active() && after.status == "paused" && !tired {
                return Err(format!(
                    "{:?} was paused by nobody, after {} deaths",
                    after.name,
                    before.failures + ends.dead
                ));
            }
        }
        Ok(())
    }

    /// Of each death the task is told that wants to be, once; or an event says why not.
    fn check_told(&self, step: &Step<'_>, died: &[&RunRow]) -> Check {
        let new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|pair| pair.1);
        let new = new.filter(|run| run.origin == Origin::OnDead);
        let mut found: Vec<(i64, i64)> = new.map(|run| (run.task, self.dead_run_of(run.id))).collect();
        let mut expected = Vec::new();
        for run in died.iter().filter(|run| run.origin != Origin::OnDead) {
            let Some(target) = step.after.tasks[&run.task].on_dead.as_deref() else { continue };
            let task = step.after.named(target);
            // One that is found to be nonsense in this turn may have been told before that was found.
            if let Some(task) = task.filter(|task| task.status != "invalid" || found.contains(&(task.id, run.id))) {
                let was_invalid = step.before.named(target).is_some_and(|task| task.status == "invalid");
                if task.status != "invalid" || !was_invalid {
                    expected.push((task.id, run.id));
                }
                continue;
            }
            let tells = |(kind, of, _): &(String, Option<i64>, _)| kind == "on_dead" && *of == Some(run.id);
            if step.news.events.iter().filter(|event| tells(event)).count() != 1 {
                return Err(format!("run {} died, {target:?} cannot be told, and no event says so", run.id));
            }
        }
        expected.sort_unstable();
        found.sort_unstable();
        match found == expected {
            true => Ok(()),
            false => Err(format!("told were (task, of run) {found:?}, expected {expected:?}")),
        }
    }

    /// How the runs of a task ended in this step, as far as that counts: of what is due once there is no streak.
    fn ends(&self, step: &Step<'_>, gone: &[(&RunRow, RunStatus)], task: i64) -> Ends {
        let mut ends = Ends::default();
        let kept = step.changed.iter().filter_map(|(before, after)| Some(((*before)?, (*after)?.status)));
        for (run, status) in kept.chain(gone.iter().copied()).filter(|(run, _)| run.task == task) {
            if run.status != RunStatus::Running || !status.is_final() {
                continue;
            }
            let attempt = &self.attempts[&(run.id, run.attempt)];
            let own = attempt.outcome.is_some() && step.ender(run.id, run.attempt) == Some(attempt.owner);
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

/// Deaths in a row are counted: a success ends the streak, and so does whoever resumes the task.
fn check_streak(step: &Step<'_>, before: &TaskRow, after: &TaskRow, ends: Ends) -> Check {
    let resumed = matches!(step.deed, Deed::Resumed { task, .. } if *task == after.name);
    let (least, most) = match ends {
        _ if resumed && before.status == "paused" => (0, 0),
        Ends { dead, succeeded: 0 } => (before.failures + dead, before.failures + dead),
        // Nobody knows which of them came last.
        Ends { dead, .. } => (0, dead),
    };
    match (least..=most).contains(&after.failures) {
        true => Ok(()),
        false => Err(format!("{} deaths in a row are counted, expected {least} to {most}", after.failures)),
    }
}
