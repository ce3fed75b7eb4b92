//! What is long over goes, and nothing else: how long a seed keeps it, and what the checker demands of each row that is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::{Now, Retention, RunStatus};

use crate::simulation::history::{Check, Deed, History, Owner, Step};
use crate::simulation::rows::{RunRow, Tables, TaskRow};
use crate::simulation::scenario::World;

const MINUTE: u64 = 60;
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// After a step of the clock by so much nothing goes for as long: what it makes look old may be young.
const DAY: Duration = Duration::from_secs(86_400);
/// Full turns in which all that is over goes.
const ROUNDS: u32 = 12;

/// Runs of a task that are looked at: behind a batch of those that stay nobody looks.
const MANY: usize = 200;

/// Draws how long a seed keeps what is over. Of some nothing goes.
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

/// How far the wall clock has stepped between two looks at it.
fn step(from: Now, to: Now) -> u64 {
    let expected = from.wall.plus(to.monotonic.saturating_sub(from.monotonic));
    expected.as_millis().abs_diff(to.wall.as_millis())
}

impl Owner {
    /// Takes note of a step of the clock, as it sees it at a turn. Of one that was refused nobody knows whether it got as far
    /// as the clock: what it may have seen in parts is a step for sure only if one of the parts is.
    pub(crate) fn look_at_the_clock(&mut self, now: Now, refused: bool) {
        let day = DAY.as_millis() as u64;
        self.in_parts |= step(self.glanced, now) >= day;
        self.glanced = now;
        let leaps = step(self.looked, now) >= day;
        let seen = leaps.then(|| self.glimpsed.unwrap_or(now.monotonic));
        self.may_have_leapt |= leaps || self.in_parts;
        if refused {
            self.glimpsed = seen;
            return;
        }
        let for_sure = std::mem::take(&mut self.in_parts);
        (self.looked, self.glimpsed) = (now, None);
        self.leapt = seen.filter(|_| for_sure).or(self.leapt);
    }
}

/// Runs that a kept one retries: through them it knows what was done.
fn retried(tables: &Tables, task: i64) -> BTreeSet<i64> {
    tables.runs.values().filter(|run| run.task == task).filter_map(|run| run.retry_of).collect()
}

/// A run's place among those of its task.
fn place(run: &RunRow) -> (i64, i64) {
    (run.scheduled_for, run.id)
}

fn runs_of(tables: &Tables, task: i64) -> Vec<&RunRow> {
    let mut runs: Vec<&RunRow> = tables.runs.values().map(AsRef::as_ref).filter(|run| run.task == task).collect();
    runs.sort_by_key(|run| place(run));
    runs
}

/// Runs beside the schedule that fell due before one that was opened before them: the clock had gone back. They go in the
/// order in which they were opened.
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
    /// Whether a task had so many runs that one may have gone in the turn in which it was made. Old ones may have gone with it.
    pub(crate) fn is_full(&self, task: i64) -> bool {
        let gone =
            self.changed.iter().filter(|(before, after)| after.is_none() && before.is_some_and(|run| run.task == task));
        self.turn().is_some() && runs_of(self.after, task).len() + gone.count() >= self.keep.most_runs as usize
    }
}

impl History {
    /// Whatever is gone was over, and for long enough, or was one of too many; or somebody has removed its task.
    pub(crate) fn check_gone(&self, step: &Step<'_>, gone: &[(&RunRow, RunStatus)], monotonic: Duration) -> Check {
        let removed = |task: &TaskRow| matches!(step.deed, Deed::Removed(name) if *name == task.name);
        let tasks = step.before.tasks.values().filter(|task| !step.after.tasks.contains_key(&task.id));
        let tasks: Vec<&TaskRow> = tasks.map(AsRef::as_ref).filter(|task| !removed(task)).collect();
        if tasks.is_empty() && gone.is_empty() {
            return Ok(());
        }
        match step.deed {
            Deed::Pruned => {}
            Deed::Turn(turn) => {
                let leapt = self.owners[turn.owner].leapt;
                if leapt.is_some_and(|at| monotonic.saturating_sub(at) < DAY) {
                    return Err("something was removed within a day of a step of the clock".to_owned());
                }
            }
            _ => return Err(format!("runs {:?} are gone, and nobody has removed them", ids(gone))),
        }
        for task in tasks {
            self.check_over(step, task)?;
        }
        let of: BTreeSet<i64> = gone.iter().map(|(run, _)| run.task).collect();
        of.into_iter().try_for_each(|task| check_runs(step, task, gone, self.was_rewound(task)))
    }

    fn was_rewound(&self, task: i64) -> bool {
        self.promises.get(&task).is_some_and(|promise| promise.rewound)
    }

    /// A task goes as a whole if it was due once, and all of it ended long ago.
    fn check_over(&self, step: &Step<'_>, task: &TaskRow) -> Check {
        let before = step.now - millis(step.keep.once);
        let over = self.promises.get(&task.id).and_then(|promise| promise.over_since).is_some_and(|at| at < before);
        // By hand: its runs may have gone before it, as those of other tasks do.
        let kept_until = before.max(step.now - millis(step.keep.runs));
        let ended = |run: &&RunRow| run.status.is_final() && run.finished_at.is_none_or(|at| at < kept_until);
        let runs = runs_of(step.before, task.id);
        if task.kind == "once" && task.status == "completed" && over && runs.iter().all(ended) {
            return Ok(());
        }
        Err(format!("task {:?} is gone, and was not long over: {task:?}\n  {runs:?}", task.name))
    }

    /// What retention would remove, and what is there all the same.
    pub(crate) fn check_nothing_is_left(&self, keep: &Retention, now: i64) -> Check {
        let tables = &self.tables;
        for task in tables.tasks.values() {
            let (runs, retried) = (runs_of(tables, task.id), retried(tables, task.id));
            let over = self.promises.get(&task.id).and_then(|promise| promise.over_since);
            let before = now - millis(keep.once);
            let ended = |run: &&RunRow| run.status.is_final() && run.finished_at.is_some_and(|at| at < before);
            if task.kind == "once" && task.status == "completed" && over.is_some_and(|at| at < before) {
                if runs.iter().all(ended) {
                    return Err(format!("task {:?} is over since {over:?}, and is kept", task.name));
                }
                continue;
            }
            // What a wrong clock has opened is not in order with what the right one opened.
            if self.was_rewound(task.id) {
                continue;
            }
            let (least, most) = (keep.least_runs as usize, keep.most_runs as usize);
            let may_go = runs.iter().filter(|run| !retried.contains(&run.id));
            let may_go = may_go.take(runs.len().saturating_sub(least).min(MANY)).enumerate();
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

fn ids(gone: &[(&RunRow, RunStatus)]) -> Vec<i64> {
    gone.iter().map(|(run, _)| run.id).collect()
}

/// Of a task that stays: what is gone is final, was retried by nothing that is kept, and is old, or the oldest of too many.
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
            return Err(format!("run {id} is gone, and was {status}: {run:?}"));
        }
        if retried.contains(&id) {
            return Err(format!("run {id} is gone, and what retries it is kept"));
        }
        if kept.len() < least {
            return Err(format!("run {id} is gone, and no more than {} of its task are left", kept.len()));
        }
        if run.status.is_final() && run.finished_at.is_some_and(|at| at < step.now - millis(step.keep.runs)) {
            continue;
        }
        young += 1;
        let older = kept.iter().filter(|kept| place(kept) < place(run) && !late.contains(&kept.id));
        let older = older.filter(|kept| !stood.contains(&kept.id));
        let older = older.count() + gone.iter().filter(|(other, _)| place(other) < place(run)).count();
        // By hand many batches follow one another: of each this holds, and not of all together.
        if young > too_many || (older >= too_many && !rewound && step.turn().is_some()) {
            return Err(format!("run {id} is young and gone, one of {too_many} too many of its task: {run:?}"));
        }
    }
    Ok(())
}

impl World {
    /// Somebody removes what is over, by hand.
    pub(crate) fn prune(&mut self) -> Check {
        match self.stage.client.prune(self.history.keep) {
            Ok(pruned) => {
                if pruned.tasks + pruned.runs > 0 {
                    self.fault("history removed by hand");
                }
                self.done(&Deed::Pruned, "what is over is removed by hand")
            }
            Err(error) => self.done(&Deed::Nothing, &format!("what is over is not removed: {error}")),
        }
    }

    /// At the end, when all is calm: what is over goes without anybody's asking for it, and by hand.
    pub(crate) fn forget_what_is_over(&mut self) -> Check {
        let keep = self.history.keep;
        for round in 0..ROUNDS {
            // At the first of these instants each takes a full turn, and at the last; between, whatever falls due as often
            // as full turns come has been started.
            let instant = Duration::from_secs(1);
            let living = self.history.owners.iter().filter(|owner| owner.lives);
            let lease = living.map(|owner| owner.lease).max().unwrap_or(Duration::from_secs(60));
            for by in [lease / 2, lease / 3 - instant, instant] {
                self.stage.clock.advance(by);
                for one in self.which(|agent| agent.stepper.is_some()) {
                    self.turn(one)?;
                    self.finish_quickly(one);
                    self.turn(one)?;
                }
            }
            let living = self.which(|agent| agent.stepper.is_some());
            let left = self.history.check_nothing_is_left(&keep, self.wall());
            if left.is_ok() || living.iter().any(|one| self.history.owners[*one].may_have_leapt) {
                break;
            }
            // A turn that has something to start does nothing else.
            let busy = self.history.tables.unfinished().any(|run| run.run_at <= self.wall());
            if round + 1 == ROUNDS && !busy {
                return left;
            }
        }
        self.prune()?;
        self.history.check_nothing_is_left(&keep, self.wall())
    }
}
