//! Retention: the limits of a seed, and the checks of each deleted row and of each row that is kept too long.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::{Now, Retention, RunStatus};

use crate::simulation::history::{Action, Check, History, Owner, Step};
use crate::simulation::rows::{RunRow, Tables, TaskRow};
use crate::simulation::scenario::Scenario;

const MINUTE: u64 = 60;
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// After a clock step of at least this much nothing is deleted for the same time: new rows could look old.
const DAY: Duration = Duration::from_secs(86_400);
/// Full turns in which all expired history is deleted.
const ROUNDS: u32 = 12;

/// Runs of a task that one batch reads; what lies behind them is not checked.
const BATCH: usize = 200;

/// Draws the retention of a seed. Some keep everything.
pub(crate) fn draw(rng: &mut fastrand::Rng) -> Retention {
    let mut one_of = |minutes: &[u64]| Duration::from_secs(minutes[rng.usize(..minutes.len())] * MINUTE);
    let (runs, once, events) = (one_of(&[10, 120, 1440]), one_of(&[5, 90, 1440]), one_of(&[30, 1440]));
    let (least_runs, most_runs) = ([0, 2, 10][rng.usize(..3)], [15, 60, 10_000][rng.usize(..3)]);
    match rng.u32(..3) {
        0 => Retention { once: YEAR, runs: YEAR, events: YEAR, ..Retention::default() },
        _ => Retention { once, runs, least_runs, most_runs, events },
    }
}

fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).expect("a length")
}

/// Returns by how much the wall clock has stepped between two instants.
fn step(from: Now, to: Now) -> u64 {
    let expected = from.wall.plus(to.monotonic.saturating_sub(from.monotonic));
    expected.as_millis().abs_diff(to.wall.as_millis())
}

impl Owner {
    /// Notes a step of the clock, as the owner sees it at a turn. A refused turn may have ended before it read the clock: a
    /// step in several parts is certain only if one part is large enough.
    pub(crate) fn observe_clock(&mut self, now: Now, refused: bool) {
        let day = DAY.as_millis() as u64;
        self.large_step_between_turns |= step(self.turned_at, now) >= day;
        self.turned_at = now;
        let leaps = step(self.full_turn_at, now) >= day;
        let seen = leaps.then(|| self.possible_step_at.unwrap_or(now.monotonic));
        self.may_have_seen_step |= leaps || self.large_step_between_turns;
        if refused {
            self.possible_step_at = seen;
            return;
        }
        let for_sure = std::mem::take(&mut self.large_step_between_turns);
        (self.full_turn_at, self.possible_step_at) = (now, None);
        self.step_seen_at = seen.filter(|_| for_sure).or(self.step_seen_at);
    }
}

/// Returns the runs of which a retry is kept: a retry finds its effects through them.
fn retried(tables: &Tables, task: i64) -> BTreeSet<i64> {
    tables.runs.values().filter(|run| run.task == task).filter_map(|run| run.retry_of).collect()
}

/// Returns the sort key of a task's runs.
fn age(run: &RunRow) -> (i64, i64) {
    (run.scheduled_for, run.id)
}

fn runs_of(tables: &Tables, task: i64) -> Vec<&RunRow> {
    let mut runs: Vec<&RunRow> = tables.runs.values().map(AsRef::as_ref).filter(|run| run.task == task).collect();
    runs.sort_by_key(|run| age(run));
    runs
}

/// Returns unscheduled runs with an earlier due time than one opened before them: the clock had gone back. They are deleted
/// in the order in which they were opened.
fn out_of_order<'r>(runs: impl Iterator<Item = &'r RunRow>) -> BTreeSet<i64> {
    let mut runs: Vec<&RunRow> = runs.filter(|run| !run.is_scheduled()).collect();
    runs.sort_by_key(|run| run.id);
    let mut newest = i64::MIN;
    let mut fell_before = |run: &&RunRow| {
        newest = newest.max(run.scheduled_for);
        run.scheduled_for < newest
    };
    runs.into_iter().filter(|run| fell_before(run)).map(|run| run.id).collect()
}

impl Step<'_> {
    /// Whether a task had enough runs that one may have been deleted in the turn that wrote it, with older ones.
    pub(crate) fn is_full(&self, task: i64) -> bool {
        let gone =
            self.changed.iter().filter(|(before, after)| after.is_none() && before.is_some_and(|run| run.task == task));
        self.turn().is_some() && runs_of(self.after, task).len() + gone.count() >= self.keep.most_runs as usize
    }
}

impl History {
    /// Checks that each deleted row was finished and expired, or one of too many, or of a removed task.
    pub(crate) fn check_removed(&self, step: &Step<'_>, gone: &[(&RunRow, RunStatus)], monotonic: Duration) -> Check {
        let removed = |task: &TaskRow| matches!(step.action, Action::Removed(name) if *name == task.name);
        let tasks = step.before.tasks.values().filter(|task| !step.after.tasks.contains_key(&task.id));
        let tasks: Vec<&TaskRow> = tasks.map(AsRef::as_ref).filter(|task| !removed(task)).collect();
        if tasks.is_empty() && gone.is_empty() {
            return Ok(());
        }
        match step.action {
            Action::Pruned => {}
            Action::Turn(turn) => {
                let step_seen_at = self.owners[turn.owner].step_seen_at;
                if step_seen_at.is_some_and(|at| monotonic.saturating_sub(at) < DAY) {
                    return Err("rows were deleted within a day of a clock step".to_owned());
                }
            }
            _ => return Err(format!("runs were deleted by no action: {gone:?}")),
        }
        for task in tasks {
            self.check_removed_task(step, task)?;
        }
        let of: BTreeSet<i64> = gone.iter().map(|(run, _)| run.task).collect();
        of.into_iter().try_for_each(|task| check_runs(step, task, gone, self.was_rewound(task)))
    }

    fn was_rewound(&self, task: i64) -> bool {
        self.models.get(&task).is_some_and(|model| model.rewound)
    }

    /// A one-time task is deleted with all its runs, once all of them have expired.
    fn check_removed_task(&self, step: &Step<'_>, task: &TaskRow) -> Check {
        let before = step.now - millis(step.keep.once);
        let over = self.models.get(&task.id).and_then(|model| model.completed_at).is_some_and(|at| at < before);
        // By a user's prune its runs may be deleted before it, as those of other tasks are.
        let kept_until = before.max(step.now - millis(step.keep.runs));
        let ended = |run: &&RunRow| run.status.is_final() && run.finished_at.is_none_or(|at| at < kept_until);
        let runs = runs_of(step.before, task.id);
        if task.kind == "once" && task.status == "completed" && over && runs.iter().all(ended) {
            return Ok(());
        }
        Err(format!("task {:?} was deleted before it expired: {task:?}\n  {runs:?}", task.name))
    }

    /// Checks that retention has nothing left to delete.
    pub(crate) fn check_retention_is_complete(&self, keep: &Retention, now: i64) -> Check {
        let tables = &self.tables;
        for task in tables.tasks.values() {
            let (runs, retried) = (runs_of(tables, task.id), retried(tables, task.id));
            let over = self.models.get(&task.id).and_then(|model| model.completed_at);
            let before = now - millis(keep.once);
            let ended = |run: &&RunRow| run.status.is_final() && run.finished_at.is_some_and(|at| at < before);
            if task.kind == "once" && task.status == "completed" && over.is_some_and(|at| at < before) {
                if runs.iter().all(ended) {
                    return Err(format!("task {:?} was completed at {over:?}, and is kept", task.name));
                }
                continue;
            }
            // Runs from the time of a wrong clock are not in order with the others.
            if self.was_rewound(task.id) {
                continue;
            }
            let (least, most) = (keep.least_runs as usize, keep.most_runs as usize);
            let may_go = runs.iter().filter(|run| !retried.contains(&run.id));
            let may_go = may_go.take(runs.len().saturating_sub(least).min(BATCH)).enumerate();
            let late = out_of_order(runs.iter().copied());
            for (at, run) in may_go.filter(|(_, run)| run.status.is_final() && !late.contains(&run.id)) {
                let old = run.finished_at.is_some_and(|at| at < now - millis(keep.runs));
                if old || at < runs.len().saturating_sub(most) {
                    return Err(format!("run {} of {:?} is kept, one of {}: {run:?}", run.id, task.name, runs.len()));
                }
            }
        }
        Ok(())
    }
}

/// Checks a task that stays: a deleted run was final, has no kept retry, and was expired or the oldest of too many.
fn check_runs(step: &Step<'_>, task: i64, gone: &[(&RunRow, RunStatus)], rewound: bool) -> Check {
    let (least, most) = (step.keep.least_runs as usize, step.keep.most_runs as usize);
    let (kept, retried, stood) = (runs_of(step.after, task), retried(step.after, task), retried(step.before, task));
    let gone: Vec<_> = gone.iter().filter(|(run, _)| run.task == task).collect();
    let too_many = (kept.len() + gone.len()).saturating_sub(most);
    let late = out_of_order(kept.iter().copied().chain(gone.iter().map(|(run, _)| *run)));
    let mut young = 0;
    for (run, status) in &gone {
        let id = run.id;
        if !status.is_final() {
            return Err(format!("run {id} was deleted while {status}: {run:?}"));
        }
        if retried.contains(&id) {
            return Err(format!("run {id} was deleted, and its retry is kept"));
        }
        if kept.len() < least {
            return Err(format!("run {id} was deleted, and only {} of its task are left", kept.len()));
        }
        if run.status.is_final() && run.finished_at.is_some_and(|at| at < step.now - millis(step.keep.runs)) {
            continue;
        }
        young += 1;
        let older = kept.iter().filter(|kept| age(kept) < age(run) && !late.contains(&kept.id));
        let older = older.filter(|kept| !stood.contains(&kept.id));
        let older = older.count() + gone.iter().filter(|(other, _)| age(other) < age(run)).count();
        // A user's prune deletes many batches: this holds for each, not for all together.
        if young > too_many || (older >= too_many && !rewound && step.turn().is_some()) {
            return Err(format!(
                "run {id} was deleted and had not expired, {too_many} above the limit of its task: {run:?}"
            ));
        }
    }
    Ok(())
}

impl Scenario {
    /// Prunes the history as a user would.
    pub(crate) fn prune(&mut self) -> Check {
        match self.database.client.prune(self.history.keep) {
            Ok(pruned) => {
                if pruned.tasks + pruned.runs > 0 {
                    self.fault("history pruned by a user");
                }
                self.record(&Action::Pruned, "the history is pruned")
            }
            Err(error) => self.record(&Action::Nothing, &format!("the history is not pruned: {error}")),
        }
    }

    /// At the end, without faults: retention deletes all expired history by itself, and a prune the rest.
    pub(crate) fn check_retention_at_end(&mut self) -> Check {
        let keep = self.history.keep;
        for round in 0..ROUNDS {
            // At the first and the last of these instants each owner takes a full turn; between them the turns start
            // whatever becomes due as often as full turns come.
            let instant = Duration::from_secs(1);
            let living = self.history.owners.iter().filter(|owner| owner.is_alive);
            let lease = living.map(|owner| owner.lease).max().unwrap_or(Duration::from_secs(60));
            for by in [lease / 2, lease / 3 - instant, instant] {
                self.database.advance(by);
                for one in self.running() {
                    self.turn(one)?;
                    self.finish_quickly(one);
                    self.turn(one)?;
                }
            }
            let living = self.running();
            // A scheduler that is never idle deletes once a minute.
            let left = self.history.check_retention_is_complete(&keep, self.wall() - 60_000);
            if left.is_ok() || living.iter().any(|one| self.history.owners[*one].may_have_seen_step) {
                break;
            }
            // A turn that has something to start does nothing else.
            let busy = self.history.tables.unfinished().any(|run| run.run_at <= self.wall());
            // Turns of a few items delete a few rows a minute.
            if round + 1 == ROUNDS && !busy && !self.has_small_turns() {
                return left;
            }
        }
        self.prune()?;
        self.history.check_retention_is_complete(&keep, self.wall())
    }
}
