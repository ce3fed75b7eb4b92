//! What was begun before the file was restored, and holds back its task.

use crate::client::check::{Check, Problem, ProblemKind, problem};
use crate::model::health::{HeldTask, Liveness};
use crate::model::report::Instance;

/// How to declare gone what is not known, and so belongs to no run.
const FOR_A_RUN: &str = "duly cancel RUN --gone, for a run that waits; if none does, trigger one";

impl Check<'_> {
    /// Adds what was begun before the file was restored, and may still run.
    pub(super) fn held_back(&mut self) {
        for owner in &self.health.laggards {
            // Any other looks within a poll interval.
            let is_silent = |one: &&Instance| one.alive == Some(true) && self.now.since(one.seen_at) > one.lease;
            let Some(one) = self.instance(owner).filter(is_silent) else { continue };
            let text = format!(
                "nothing starts until the scheduler with pid {} on {} has looked at the file, whose tables have changed: others wait for \
                 it, each for its lease",
                one.pid, one.host
            );
            self.found.push(problem(ProblemKind::Held, text, "let that process go on, or end it"));
        }
        for HeldTask { run, task, owner, goes_on, liveness } in &self.health.held {
            let Some(owner) = owner else {
                let text = "nothing starts: the row that says what had begun before a restore is damaged (held in scheduler_meta)";
                let advice = format!("if no command of before runs: {FOR_A_RUN}");
                self.found.push(problem(ProblemKind::Held, text.to_owned(), &advice));
                continue;
            };
            let pid = self.instance(owner).map(|one| format!(" (pid {} on {})", one.pid, one.host)).unwrap_or_default();
            let Some(run) = run else {
                let text = format!(
                    "nothing starts: the database was restored, and what scheduler {owner}{pid} had begun cannot be known"
                );
                let declare = format!("if that scheduler and its commands are gone: {FOR_A_RUN}");
                let advice = match liveness {
                    Liveness::Alive { .. } => "let that process go on, or end it".to_owned(),
                    Liveness::Dead { .. } => format!("it is dead: end the commands that it left; or, {declare}"),
                    Liveness::NoLock | Liveness::NoSession { .. } => {
                        format!("it has no lock file, which proves nothing; {declare}")
                    }
                    Liveness::Unknown(reason) => {
                        format!("whether it is alive cannot be known ({reason}): remove the cause; or, {declare}")
                    }
                };
                self.found.push(problem(ProblemKind::Held, text, &advice));
                continue;
            };
            let of_task = task.as_ref().map(|task| format!(" of {task}")).unwrap_or_default();
            let text = format!(
                "run {run}{of_task} was begun before the database was restored, and may still run: its task, and others with its \
                 concurrency key, start nothing"
            );
            let declare = format!("if it is gone: duly cancel {run} --gone");
            let advice = match liveness {
                Liveness::Alive { .. } if *goes_on => {
                    format!(
                        "its scheduler {owner}{pid} is alive and asks it to stop; if it does not end, end that process"
                    )
                }
                Liveness::Alive { .. } => format!(
                    "its scheduler {owner}{pid} is alive, and has not noticed the restore: let that process go on, or end it"
                ),
                Liveness::Dead { .. } => {
                    format!(
                        "its scheduler is dead: end its command, whose environment has DULY_RUN_ID={run}; or, {declare}"
                    )
                }
                Liveness::NoLock | Liveness::NoSession { .. } => {
                    format!(
                        "its scheduler {owner}{pid} has no lock file, which proves nothing: end that process; or, {declare}"
                    )
                }
                Liveness::Unknown(reason) => {
                    format!(
                        "whether its scheduler {owner}{pid} is alive cannot be known ({reason}): remove the cause; or, {declare}"
                    )
                }
            };
            let found = Problem { task: task.clone(), run: Some(*run), ..problem(ProblemKind::Held, text, &advice) };
            self.found.push(found);
        }
    }
}
