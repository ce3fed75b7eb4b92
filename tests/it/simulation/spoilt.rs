//! Rows that cannot be used, rows that cannot be written, and claims that no worker can begin: the rest goes on.

use crate::simulation::history::{Check, Deed, History, Step, Turn};
use crate::simulation::rows::TaskRow;
use crate::simulation::world::World;

/// What no schedule is written as.
pub(crate) const NONSENSE: &str = "whenever it suits";

/// A run that is listed here moves nowhere but into its grave: whoever tries is refused by the database.
pub(crate) const GUARD: &str = "
    CREATE TABLE stuck (run INTEGER PRIMARY KEY) STRICT;
    CREATE TRIGGER run_is_stuck BEFORE UPDATE OF status ON task_runs
    WHEN NEW.status <> OLD.status AND NEW.status <> 'cancelled' AND EXISTS (SELECT 1 FROM stuck WHERE run = NEW.id)
    BEGIN SELECT RAISE(ABORT, 'the run is stuck'); END";

impl History {
    /// Whether the database refuses, or has refused, to write the end or the beginning of a run. What was set aside is tried
    /// again when there is time for it.
    pub(crate) fn was_stuck(&self, run: i64) -> bool {
        self.stuck.contains_key(&run)
    }

    pub(crate) fn is_stuck(&self, run: i64) -> bool {
        self.stuck.get(&run).copied().unwrap_or_default()
    }

    /// Nothing is read ahead that may start only once: if its owner died, nobody could say whether it had.
    pub(crate) fn check_ahead(&self, step: &Step<'_>, turn: &Turn) -> Check {
        for claim in turn.claims.iter().skip(turn.free) {
            let run = &step.after.runs[&claim.run_id];
            if step.after.tasks[&run.task].max_attempts == 1 {
                return Err(format!("run {} may start only once, and was claimed with no worker free", run.id));
            }
        }
        Ok(())
    }
}

impl World {
    /// Somebody writes nonsense into a row, or sense into one that had none.
    pub(crate) fn spoil(&mut self) -> Check {
        let invalid = self.any_task(|task| task.status == "invalid" && has_text(task));
        if let Some(name) = invalid.filter(|_| self.rng.bool()) {
            let value = self.sense(&name);
            return self.rewrite(name, value);
        }
        let Some(name) = self.any_task(|task| task.is_active() && has_text(task)) else { return Ok(()) };
        self.fault("row spoilt");
        self.rewrite(name, NONSENSE)
    }

    fn sense(&mut self, name: &str) -> &'static str {
        let kind = &self.history.tables.named(name).expect("a task").kind;
        if kind == "cron" { "7,37 * * * *" } else { "11m" }
    }

    fn rewrite(&mut self, name: String, value: &str) -> Check {
        let text = "UPDATE scheduled_tasks SET schedule_value = ?2 WHERE name = ?1";
        let done = self.type_in(text, [&*name, value]);
        let what = format!("{name} is rewritten by SQL: {value}");
        self.by_sql(done, Deed::Edited { task: name, by_sql: true }, &what)
    }

    /// Before the end all rows are mended.
    pub(crate) fn mend_all(&mut self) -> Check {
        self.unstick()?;
        while let Some(name) = self.any_task(|task| task.value == NONSENSE && !task.rests_by_hand()) {
            let value = self.sense(&name);
            self.rewrite(name, value)?;
        }
        Ok(())
    }

    /// The database refuses to write what becomes of some runs.
    pub(crate) fn stick(&mut self) -> Check {
        if self.held {
            return Ok(());
        }
        let runs: Vec<i64> = self.history.tables.unfinished().map(|run| run.id).collect();
        for _ in 0..self.rng.u32(1..4) {
            let Some(run) = self.rng.choice(runs.iter().copied()) else { return Ok(()) };
            self.stage.shell.execute("INSERT OR IGNORE INTO stuck VALUES (?1)", [run]).expect("a row of ours");
            self.history.stuck.insert(run, true);
            self.fault("run cannot be written");
            self.done(&Deed::Nothing, &format!("run {run} cannot be written"))?;
        }
        Ok(())
    }

    pub(crate) fn unstick(&mut self) -> Check {
        if self.held || !self.history.stuck.values().any(|stuck| *stuck) {
            return Ok(());
        }
        self.stage.shell.execute("DELETE FROM stuck", []).expect("rows of ours");
        self.history.stuck.values_mut().for_each(|stuck| *stuck = false);
        self.done(&Deed::Nothing, "all runs can be written")
    }
}

/// Whether nonsense may stand in place of its schedule: one that is due once would never be due again, and a manual one has no
/// text.
fn has_text(task: &TaskRow) -> bool {
    task.kind != "once" && task.kind != "manual"
}

impl TaskRow {
    fn rests_by_hand(&self) -> bool {
        self.status == "paused"
    }
}
