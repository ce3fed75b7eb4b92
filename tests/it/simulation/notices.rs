//! Occurrences that got no run are told of once, in the step that passes over them.

use duly::{Misfire, RunStatus};

use crate::simulation::history::{Check, History, Step};
use crate::simulation::policies::{excluded, is_excluded, is_limited};
use crate::simulation::rows::RunRow;

impl History {
    /// Checks the events about missed and skipped rows.
    pub(crate) fn check_notices(&self, step: &Step<'_>) -> Check {
        let told = |kind: &str| ["missed", "caught_up", "skipped", "limited"].contains(&kind);
        // Retention may delete a row in the step that writes it.
        let is_kept = |run: &i64| step.after.runs.contains_key(run);
        let events = step.fresh.events.iter().filter(|(kind, _, _)| told(kind));
        let mut found: Vec<(i64, &str)> = events
            .filter_map(|(kind, run, _)| Some(((*run)?, kind.as_str())))
            .filter(|(run, _)| is_kept(run))
            .filter(|(run, kind)| *kind != "limited" || step.after.runs[run].status == RunStatus::Skipped)
            .collect();
        let mut expected: Vec<(i64, &str)> = Vec::new();
        for (before, after) in &step.changed {
            let Some(after) = after else { continue };
            match after.status {
                RunStatus::Missed => expected.extend(missed(step, *before, after).map(|kind| (after.id, kind))),
                RunStatus::Skipped if is_limited(after) => {
                    expected.extend(before.is_none().then_some((after.id, "limited")));
                }
                RunStatus::Skipped => {
                    let skipped =
                        before.filter(|run| run.status == RunStatus::Skipped).map_or(0, |run| run.occurrences);
                    let passed = [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120].iter();
                    let told = passed.filter(|skips| skipped < **skips && after.occurrences >= **skips).count() > 0;
                    let is_told = found.contains(&(after.id, "skipped"));
                    let held = was_held(step, after.task) || is_told && any_follows(step, after.task);
                    // No event tells of skips that a limit of starts has caused.
                    let awaits_start = !is_told && self.may_await_start(step, after.task);
                    if told && !is_excluded(after) && held && !awaits_start {
                        expected.push((after.id, "skipped"));
                    }
                }
                _ => {}
            }
        }
        found.sort_unstable();
        expected.sort_unstable();
        match found == expected {
            true => Ok(()),
            false => Err(format!("told of rows that got no run: {found:?}, expected {expected:?}")),
        }
    }
}

impl History {
    /// Whether a run of the task that has not finished is one whose starts are limited.
    fn may_await_start(&self, step: &Step<'_>, task: i64) -> bool {
        let Some(row) = step.after.tasks.get(&task) else { return false };
        step.before.unfinished().any(|run| run.task == task && self.limits.has_rate(run, row))
    }
}

/// Whether a run of the task was opened by its schedule that had not expired before that.
fn any_opened(step: &Step<'_>, task: i64) -> bool {
    let new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|pair| pair.1);
    let mut opened = new.filter(|run| run.task == task && run.is_scheduled());
    opened.any(|run| match run.expires_at {
        Some(at) => at > step.now,
        None => !matches!(run.status, RunStatus::Missed | RunStatus::Skipped),
    })
}

/// Whether the occurrence that would run has a run from a clock that was wrong. That event names no task.
fn has_one_already(step: &Step<'_>, row: i64) -> bool {
    let any = |kind: &str, of: Option<i64>| step.fresh.events.iter().any(|(is, run, _)| is == kind && *run == of);
    any("passed_over", None) && any("caught_up", Some(row))
}

/// Returns what is told of a row that is missed now.
pub(crate) fn missed(step: &Step<'_>, before: Option<&RunRow>, after: &RunRow) -> Option<&'static str> {
    match before {
        Some(before) => (before.status != RunStatus::Missed).then_some("missed"),
        None if after.expires_at.is_some() => Some("missed"),
        // Who changes a task by SQL has decided that what is due does not run.
        None if reason(after).contains("changed by SQL") => None,
        None => {
            let task = step.before.tasks.get(&after.task).or_else(|| step.after.tasks.get(&after.task))?;
            let is_cut = reason(after).contains("one by one")
                || reason(after).contains("while no start is left")
                || excluded(task, step.now).is_some();
            let runs = task.misfire != Misfire::Skip
                && !is_cut
                && (any_opened(step, after.task) || has_one_already(step, after.id));
            Some(if runs { "caught_up" } else { "missed" })
        }
    }
}

/// Whether a run of the task was unfinished before the step, and still is: what was due was skipped because of it.
fn was_held(step: &Step<'_>, task: i64) -> bool {
    let mut before = step.before.unfinished().filter(|run| run.task == task);
    before.any(|run| step.after.unfinished.contains_key(&run.id))
}

/// Whether a run of the task was opened because it follows another: before what was due is resolved, or after it.
fn any_follows(step: &Step<'_>, task: i64) -> bool {
    let mut new = step.changed.iter().filter(|(before, _)| before.is_none()).filter_map(|pair| pair.1);
    new.any(|run| run.task == task && run.follows())
}

fn reason(run: &RunRow) -> &str {
    run.error.as_deref().unwrap_or_default()
}
