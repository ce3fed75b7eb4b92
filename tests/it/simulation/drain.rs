//! The end of a simulation: faults stop, and all that can be finished is, in bounded time.

use std::time::Duration;

use duly::{Origin, RunStatus};

use crate::simulation::attempts;
use crate::simulation::effects::Fate;
use crate::simulation::history::Check;
use crate::simulation::rows::RunRow;
use crate::simulation::scenario::{Agent, HANDLERS, World};

/// Within so long all is done: a clock that is three hours behind, the longest time-out, backoffs, and some patience.
const BOUND: Duration = Duration::from_secs(8 * 3600);
/// So many runs that wait are much for the workers that there are; and then there are so many.
const MUCH: usize = 40;
const MANY: usize = 20;
/// Rounds in which all owners turn; then all do so in one of as many.
const ALL: u32 = 8;
/// Rounds in which it must be done.
const ROUNDS: u32 = 6000;

impl World {
    /// Faults stop. Handlers succeed at once from now on.
    pub(crate) fn quiet_down(&mut self) -> Check {
        self.let_go();
        self.mend_all()?;
        for agent in &mut self.agents {
            agent.suspended = None;
        }
        let every = self.which(|agent| agent.stepper.is_some());
        for one in every {
            self.turn(one)?;
        }
        // Who can do it all, and as quickly as there is much of it.
        let all = |agent: &Agent| agent.stepper.is_some() && agent.handlers == HANDLERS.len();
        let much = self.history.tables.unfinished().count() > MUCH;
        if much || self.which(all).is_empty() {
            let workers = if much { MANY } else { self.rng.usize(1..=3) };
            self.start_with(&HANDLERS, workers)?;
        }
        let begin = self.now().monotonic;
        let waiting: Vec<i64> = self.history.tables.unfinished().map(|run| run.id).collect();
        for round in 0..ROUNDS {
            self.declare_gone()?;
            let living = self.which(|agent| agent.stepper.is_some());
            let newest = living.last().copied();
            for one in living {
                // A long queue behind one key is worked off one by one, and most need not look on.
                let looks_on = self.agents[one].works.is_empty() && Some(one) != newest;
                if round < ALL || round % ALL == 0 || !looks_on {
                    self.finish_quickly(one);
                    self.turn(one)?;
                }
            }
            // Before time passes: of a task that is due every minute something may always have fallen due since.
            if self.all_over(&waiting) {
                return Ok(());
            }
            self.pass_quickly();
            if self.now().monotonic.saturating_sub(begin) > BOUND {
                break;
            }
        }
        let stuck = |run: &&RunRow| waiting.contains(&run.id) && !self.may_wait(run.id);
        let left: Vec<_> = self.history.tables.unfinished().filter(stuck).map(|run| run.id).collect();
        let all: Vec<_> = self.history.tables.unfinished().map(RunRow::brief).collect();
        Err(format!("faults have stopped for {BOUND:?}, and runs {left:?} are not over: {}", all.join(", ")))
    }

    fn may_wait(&self, run: i64) -> bool {
        let tables = &self.history.tables;
        let run = &tables.runs[&run];
        tables.tasks[&run.task].rests() && run.origin != Origin::Manual && run.status != RunStatus::Running
    }

    fn all_over(&self, runs: &[i64]) -> bool {
        let tables = &self.history.tables;
        let over = |run: &i64| tables.runs.get(run).is_none_or(|row| row.status.is_final()) || self.may_wait(*run);
        runs.iter().all(over) && !tables.tasks.keys().any(|task| self.history.owes(*task, self.wall()))
    }

    pub(crate) fn finish_quickly(&mut self, one: usize) {
        let now = self.now().monotonic;
        for work in &mut self.agents[one].works {
            work.ends_at = now;
            work.outcome = attempts::succeeded(&work.claim);
            work.fate = Fate::Nothing;
        }
    }

    /// Time passes until something may happen.
    fn pass_quickly(&mut self) {
        let next = self.history.tables.unfinished().map(|run| run.run_at).filter(|at| *at > self.wall()).min();
        let millis = next.map_or(1000, |at| at - self.wall()).clamp(100, 60_000);
        self.stage.clock.advance(Duration::from_millis(millis.unsigned_abs()));
    }

    /// What must hold whatever has happened.
    pub(crate) fn check_sound(&self) -> Check {
        let mut findings = self.stage.client.doctor().map_err(|error| format!("doctor: {error}"))?;
        // A run that ended while its task was garbled keeps the handler that it had then.
        let over = |run: &RunRow| run.status.is_final().then(|| format!("run {}: handler is not UTF-8", run.id));
        let kept: Vec<String> = self.history.tables.runs.values().filter_map(|run| over(run)).collect();
        findings.retain(|finding| {
            !(self.is_garbled && finding.found.ends_with("is not UTF-8") || kept.contains(&finding.found))
        });
        if findings.is_empty() { Ok(()) } else { Err(format!("doctor: {findings:?}")) }
    }
}
