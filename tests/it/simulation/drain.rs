//! The end of a simulation: faults stop, and all work that can finish does so in bounded time.

use std::time::Duration;

use duly::{Origin, RunStatus};

use crate::simulation::attempts;
use crate::simulation::effects::Fault;
use crate::simulation::history::Check;
use crate::simulation::rows::RunRow;
use crate::simulation::scenario::{HANDLERS, Scenario, Scheduler};

/// All must be done within this time: a clock three hours behind, the longest time limit, backoffs, and a margin.
const TIME_LIMIT: Duration = Duration::from_secs(8 * 3600);
/// With more waiting runs than this a scheduler with `MANY_WORKERS` workers is started.
const LARGE_BACKLOG: usize = 40;
const MANY_WORKERS: usize = 20;
/// Rounds in which all schedulers turn; after that they all do so in one round of this many.
const FULL_ROUNDS: u32 = 8;
const ROUNDS: u32 = 6000;

impl Scenario {
    /// Stops all faults and runs the schedulers until all work is done. Handlers succeed at once from now on.
    pub(crate) fn finish_without_faults(&mut self) -> Check {
        self.is_calm = true;
        self.release_write_lock();
        self.repair_all()?;
        self.lift_rates()?;
        for scheduler in &mut self.schedulers {
            scheduler.suspended = None;
            scheduler.in_loop.calm();
        }
        let every = self.running();
        for one in every {
            self.turn(one)?;
        }
        // A scheduler with all handlers, and enough workers for the backlog.
        let all = |scheduler: &Scheduler| scheduler.takes_on() && scheduler.handlers == HANDLERS.len();
        let is_large = self.history.tables.unfinished().count() > LARGE_BACKLOG;
        if is_large || self.schedulers_where(all).is_empty() {
            let workers = if is_large { MANY_WORKERS } else { self.rng.usize(1..=3) };
            self.start_with(&HANDLERS, workers)?;
        }
        let begin = self.now().monotonic;
        let waiting: Vec<i64> = self.history.tables.unfinished().map(|run| run.id).collect();
        for round in 0..ROUNDS {
            self.declare_gone()?;
            let living = self.running();
            let newest = living.last().copied();
            for one in living {
                // A long backlog behind one key is processed one by one; most schedulers need not turn each time.
                let is_idle = self.schedulers[one].calls.is_empty() && Some(one) != newest;
                if round < FULL_ROUNDS || round % FULL_ROUNDS == 0 || !is_idle {
                    self.finish_quickly(one);
                    self.turn(one)?;
                }
            }
            // Checked before time passes: a task that is due every minute could always have become due again.
            if self.all_finished(&waiting) {
                return Ok(());
            }
            self.pass_quickly();
            if self.now().monotonic.saturating_sub(begin) > TIME_LIMIT {
                break;
            }
        }
        let unfinished = |run: &&RunRow| waiting.contains(&run.id) && !self.may_wait(run.id);
        let left: Vec<_> = self.history.tables.unfinished().filter(unfinished).map(|run| run.id).collect();
        let all: Vec<_> = self.history.tables.unfinished().map(RunRow::brief).collect();
        Err(format!("faults have stopped for {TIME_LIMIT:?}, and runs {left:?} are not finished: {}", all.join(", ")))
    }

    fn may_wait(&self, run: i64) -> bool {
        let tables = &self.history.tables;
        let run = &tables.runs[&run];
        tables.tasks[&run.task].is_halted() && run.origin != Origin::Manual && run.status != RunStatus::Running
    }

    fn all_finished(&self, runs: &[i64]) -> bool {
        let tables = &self.history.tables;
        let finished = |run: &i64| tables.runs.get(run).is_none_or(|row| row.status.is_final()) || self.may_wait(*run);
        runs.iter().all(finished)
            && !tables.tasks.keys().any(|task| self.history.has_due_occurrence(*task, self.wall()))
    }

    pub(crate) fn finish_quickly(&mut self, one: usize) {
        let now = self.now().monotonic;
        for call in &mut self.schedulers[one].calls {
            call.end_at(now);
            call.outcome = attempts::succeeded(&call.claim);
            call.fault = Fault::Nothing;
        }
    }

    /// Advances the clock until something may happen.
    fn pass_quickly(&mut self) {
        let next = self.history.tables.unfinished().map(|run| run.run_at).filter(|at| *at > self.wall()).min();
        let millis = next.map_or(1000, |at| at - self.wall()).clamp(100, 60_000);
        self.database.advance(Duration::from_millis(millis.unsigned_abs()));
    }

    /// Checks that `doctor` finds nothing.
    pub(crate) fn check_doctor(&self) -> Check {
        let mut findings = self.database.client.doctor().map_err(|error| format!("doctor: {error}"))?;
        // A run that ended while its task's text was corrupt keeps the handler that it had then.
        let finished = |run: &RunRow| run.status.is_final().then(|| format!("run {}: handler is not UTF-8", run.id));
        let kept: Vec<String> = self.history.tables.runs.values().filter_map(|run| finished(run)).collect();
        findings.retain(|finding| {
            !(self.has_corrupt_text && finding.found.ends_with("is not UTF-8") || kept.contains(&finding.found))
        });
        if findings.is_empty() { Ok(()) } else { Err(format!("doctor: {findings:?}")) }
    }
}
