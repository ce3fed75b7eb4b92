//! Ends: the tasks that follow receive the ended run, once; and a task whose runs keep dying is paused.

use std::collections::BTreeSet;

use duly::{Origin, Outcome, RunStatus};

use crate::simulation::history::{Action, Check, History, Step};
use crate::simulation::notices::missed;
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
        self.check_followers(step, gone)?;
        let by_turn = step.turn().is_some();
        for (id, after) in &step.after.tasks {
            let Some(before) = step.before.tasks.get(id) else { continue };
            if before == after && died.is_empty() {
                continue;
            }
            let ends = self.ends(step, gone, *id);
            check_streak(step, before, after, ends).map_err(|broken| format!("task {:?}: {broken}", after.name))?;
            // A row that cannot be read is not paused. The next scheduler that is not draining makes it invalid.
            let is_readable = !self.corrupt.contains(&after.name);
            let most = after.pause_after.filter(|_| is_readable && died.iter().any(|run| run.task == *id));
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

    /// Checks that each end opens one run of each task that follows, or that an event says why not; and that no other run follows.
    fn check_followers(&self, step: &Step<'_>, gone: &[(&RunRow, RunStatus)]) -> Check {
        let new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|pair| pair.1);
        let mut found: Vec<(i64, i64)> = Vec::new();
        for run in new.filter(|run| run.follows()) {
            let (by_payload, by_key, length) = self.observer.followed_by(run.id);
            if by_payload != by_key || !(1..=100).contains(&length) {
                return Err(format!("run {} follows run {by_payload}, and its key says {by_key}, {length}", run.id));
            }
            // Retention may delete a row in the step that writes it.
            if step.after.runs.contains_key(&by_key) || step.before.runs.contains_key(&by_key) {
                found.push((run.task, by_key));
            }
        }
        let ended = step.changed.iter().filter_map(|(before, after)| Some((*before, (*after)?, (*after)?.status)));
        let gone = gone.iter().map(|(run, status)| (Some(*run), *run, *status));
        let mut expected = Vec::new();
        for (before, run, status) in ended.chain(gone) {
            if before.is_some_and(|before| before.status.is_final()) || !status.is_final() {
                continue;
            }
            let Some(task) = step.before.tasks.get(&run.task).or_else(|| step.after.tasks.get(&run.task)) else {
                continue;
            };
            // What a turn finds of a task is one report. A step may have several turns.
            let is_older = |newer: &RunRow| newer.task == run.task && newer.scheduled_for > run.scheduled_for;
            let missed_later = |pair: &(Option<&RunRow>, Option<&RunRow>)| {
                pair.1.is_some_and(|newer| pair.0.is_none() && newer.status == RunStatus::Missed && is_older(newer))
            };
            let is_reported = found.iter().any(|(_, of)| *of == run.id);
            if before.is_none() && status == RunStatus::Missed && !is_reported && step.changed.iter().any(missed_later)
            {
                continue;
            }
            let mut named = BTreeSet::new();
            for origin in self.opens(step, before, run, status) {
                let targets = task.followers(*origin).filter(|target| named.insert(*target)).collect::<Vec<_>>();
                for target in targets {
                    expected.extend(self.expected_follower(step, run, *origin, target, &found)?);
                }
            }
        }
        expected.sort_unstable();
        found.sort_unstable();
        match found == expected {
            true => Ok(()),
            false => Err(format!("runs that follow (task, run before): {found:?}, expected {expected:?}")),
        }
    }

    /// Returns which columns of its task apply to a run that has ended, or to a new row of missed occurrences.
    fn opens(&self, step: &Step<'_>, before: Option<&RunRow>, run: &RunRow, status: RunStatus) -> &'static [Origin] {
        let began = run.attempt > run.forgiven || self.observer.shows_an_attempt(run.id);
        let says = |words: &str| run.error.as_deref().is_some_and(|error| error.contains(words));
        // A run may be opened too late to begin, and expire in the same turn.
        let expired = before.is_some() || says("expired before");
        match status {
            RunStatus::Succeeded => &[Origin::OnSuccess, Origin::OnEnd],
            RunStatus::Dead if run.origin == Origin::OnDead => &[Origin::OnEnd],
            RunStatus::Dead => &[Origin::OnDead, Origin::OnEnd],
            RunStatus::Cancelled if began => &[Origin::OnEnd],
            RunStatus::Missed if expired && run.origin != Origin::OnMissed => &[Origin::OnMissed],
            RunStatus::Missed if !expired && missed(step, before, run) == Some("missed") => &[Origin::OnMissed],
            _ => &[],
        }
    }

    /// Returns the run that is expected to follow: its task, and the run before. `None`: it cannot, and an event says so.
    fn expected_follower(
        &self,
        step: &Step<'_>,
        run: &RunRow,
        origin: Origin,
        target: &str,
        found: &[(i64, i64)],
    ) -> Result<Option<(i64, i64)>, String> {
        let says = format!("the {origin} task {target:?} cannot run: ");
        let is_report = |(_, of, detail): &(String, Option<i64>, Option<String>)| {
            *of == Some(run.id) && detail.as_deref().is_some_and(|detail| detail.starts_with(&says))
        };
        let task = step.after.named(target);
        // A row that cannot be read is marked as invalid when a turn examines the task itself.
        let is_unmarked = step.fresh.events.iter().any(is_report);
        // A task that becomes invalid in this turn may have received the run before.
        let may_run = |task: &&TaskRow| !is_unmarked && task.status != "invalid" || found.contains(&(task.id, run.id));
        if let Some(task) = task.filter(may_run) {
            let was_invalid = step.before.named(target).is_some_and(|task| task.status == "invalid");
            let is_full = self.observer.followed_by(run.id).2 >= 100;
            return Ok(((task.status != "invalid" || !was_invalid) && !is_full).then_some((task.id, run.id)));
        }
        match step.fresh.events.iter().filter(|event| is_report(event)).count() {
            1 => Ok(None),
            _ => Err(format!("run {} has ended, {target:?} cannot run, and no event says so", run.id)),
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
