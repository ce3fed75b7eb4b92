//! Invalid rows, rows that cannot be written, and claims that no worker can begin: everything else continues.

use std::collections::BTreeSet;

use duly::RunStatus;

use crate::simulation::history::{Action, Check, History, Step, Turn};
use crate::simulation::rows::{RunRow, TaskRow};
use crate::simulation::scenario::Scenario;

/// Text that is no schedule.
pub(crate) const INVALID_SCHEDULE: &str = "whenever it suits";

/// A well-formed zone that no zone data of this machine has.
pub(crate) const UNKNOWN_ZONE: &str = "Mars/Olympus_Mons";

/// Text columns of a task that another program may write, and a valid value for each.
const TEXTS: [(&str, &str); 7] = [
    ("handler", "'work'"),
    ("payload", "'null'"),
    ("schedule_value", ""),
    ("time_zone", "'UTC'"),
    ("concurrency_key", "NULL"),
    ("on_dead", "NULL"),
    ("managed_by", "NULL"),
];

/// Text columns that are only displayed, and that no rule covers. NULL stays NULL.
const DISPLAYED: [(&str, &str); 10] = [
    ("task_runs", "progress"),
    ("task_runs", "output"),
    ("task_attempts", "error"),
    ("task_attempts", "output"),
    ("scheduled_tasks", "last_error"),
    ("scheduled_tasks", "invalid_reason"),
    ("scheduled_tasks", "paused_by"),
    ("scheduler_instances", "host"),
    ("scheduler_instances", "version"),
    ("scheduler_events", "detail"),
];

/// The database refuses every transition of a run listed here, except its cancellation.
pub(crate) const GUARD: &str = "
    CREATE TABLE unwritable (run INTEGER PRIMARY KEY) STRICT;
    CREATE TRIGGER run_is_unwritable BEFORE UPDATE OF status ON task_runs
    WHEN NEW.status <> OLD.status AND NEW.status <> 'cancelled' AND EXISTS (SELECT 1 FROM unwritable WHERE run = NEW.id)
    BEGIN SELECT RAISE(ABORT, 'the run is unwritable'); END";

impl History {
    /// Whether the database refuses, or has refused, to write a run's end or beginning. A claim that was set aside is
    /// retried when there is time.
    pub(crate) fn was_stuck(&self, run: i64) -> bool {
        self.unwritable.contains_key(&run)
    }

    /// Whether its claim may have been set aside: it cannot be written, or its task's payload could not be read.
    pub(crate) fn was_set_aside(&self, run: &RunRow) -> bool {
        self.was_stuck(run.id) || self.unreadable.contains(&run.task)
    }

    pub(crate) fn is_stuck(&self, run: i64) -> bool {
        self.unwritable.get(&run).copied().unwrap_or_default()
    }

    /// Checks that a run that may start only once is not read ahead: if its owner died, it would be unknown whether it had
    /// begun.
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

impl Scenario {
    /// Makes a row invalid, or repairs an invalid one.
    pub(crate) fn corrupt_row(&mut self) -> Check {
        let invalid = self.any_task(|task| task.status == "invalid" && has_text(task));
        if let Some(name) = invalid.filter(|_| self.rng.bool()) {
            let value = self.valid_schedule(&name);
            return self.rewrite(name, value);
        }
        if self.once_in(6) {
            let known = |task: &TaskRow| task.is_active() && task.is_local() && task.zone != UNKNOWN_ZONE;
            let Some(name) = self.any_task(known) else { return Ok(()) };
            self.fault("unknown time zone");
            return self.set_zone(name, UNKNOWN_ZONE);
        }
        // A row whose corrupt text no scheduler has seen yet stays as it is: a repair sets one column.
        let corrupt: BTreeSet<String> = self.corrupt_texts.keys().cloned().collect();
        let sound = |task: &TaskRow| {
            task.is_active() && has_text(task) && task.zone != UNKNOWN_ZONE && !corrupt.contains(&task.name)
        };
        if self.rng.bool() {
            // Those with a run that waits for a key of several tasks: they could stop the others.
            let shared = |run: &RunRow| {
                run.status != RunStatus::Running && run.key.as_ref().is_some_and(|key| !key.starts_with('#'))
            };
            let waiting: BTreeSet<i64> =
                self.history.tables.unfinished().filter(|run| shared(run)).map(|run| run.task).collect();
            if let Some(name) = self.any_task(|task| sound(task) && waiting.contains(&task.id)) {
                return self.corrupt_text(name, "handler");
            }
        }
        let Some(name) = self.any_task(sound) else { return Ok(()) };
        if self.rng.bool() {
            let (column, _) = self.pick(&TEXTS);
            return self.corrupt_text(name, column);
        }
        self.fault("schedule made invalid");
        self.rewrite(name, INVALID_SCHEDULE)
    }

    /// Writes text that is not UTF-8 into a row and into displayed columns, as another program. No CHECK can refuse it.
    fn corrupt_text(&mut self, name: String, column: &'static str) -> Check {
        if self.database.shell.is_on_server() {
            // A server refuses such text.
            return self.rewrite(name, INVALID_SCHEDULE);
        }
        // SQLite makes a character of each: invalid first bytes, and sequences that end early.
        let bytes = self.pick(&["b0", "80", "e980", "66b066"]);
        let set = match column {
            "payload" => format!("payload = '\"' || CAST(x'{bytes}' AS TEXT) || '\"', schedule_value = ?2"),
            "schedule_value" => format!("schedule_value = ?2 || CAST(x'{bytes}' AS TEXT)"),
            _ => format!("{column} = CAST(x'{bytes}' AS TEXT), schedule_value = ?2"),
        };
        self.fault("text corrupted");
        if column == "payload" {
            self.history.unreadable.insert(self.history.tables.named(&name).expect("a task").id);
        }
        self.has_corrupt_text = true;
        let corrupt_text = format!("CAST(x'{bytes}' AS TEXT)");
        let written = self.set_displayed(&corrupt_text);
        self.record_sql(written, Action::Nothing, "displayed text is corrupted")?;
        let done =
            self.execute(&format!("UPDATE scheduled_tasks SET {set} WHERE name = ?1"), [&*name, INVALID_SCHEDULE]);
        if done.is_ok() {
            self.corrupt_texts.insert(name.clone(), column);
        }
        let what = format!("{column} of {name} is corrupted by SQL: {bytes}");
        self.record_sql(done, Action::Edited { task: name, by_sql: true }, &what)
    }

    fn set_displayed(&self, text: &str) -> Result<usize, String> {
        DISPLAYED.iter().try_fold(0, |_, (table, column)| {
            self.execute(&format!("UPDATE {table} SET {column} = {text} WHERE {column} IS NOT NULL"), []).map(|_| 0)
        })
    }

    fn set_zone(&mut self, name: String, zone: &str) -> Check {
        let done = self.execute("UPDATE scheduled_tasks SET time_zone = ?2 WHERE name = ?1", [&*name, zone]);
        let what = format!("the zone of {name} is set to {zone} by SQL");
        self.record_sql(done, Action::Edited { task: name, by_sql: true }, &what)
    }

    pub(crate) fn valid_schedule(&mut self, name: &str) -> &'static str {
        let kind = &self.history.tables.named(name).expect("a task").kind;
        match kind.as_str() {
            "cron" => "7,37 * * * *",
            "calendar" => "every day at 07:37, 19:07",
            _ => "11m",
        }
    }

    pub(crate) fn rewrite(&mut self, name: String, value: &str) -> Check {
        let corrupt_column = self.corrupt_texts.get(&name).copied().filter(|_| value != INVALID_SCHEDULE);
        let repair = TEXTS
            .iter()
            .find(|(column, _)| Some(*column) == corrupt_column)
            .filter(|(column, _)| *column != "schedule_value");
        let repair = repair.map_or_else(String::new, |(column, value)| format!(", {column} = {value}"));
        let text = format!("UPDATE scheduled_tasks SET schedule_value = ?2{repair} WHERE name = ?1");
        let done = self.execute(&text, [&*name, value]);
        if corrupt_column.is_some() && done.is_ok() {
            self.corrupt_texts.remove(&name);
        }
        let what = format!("{name} is rewritten by SQL: {value}");
        self.record_sql(done, Action::Edited { task: name, by_sql: true }, &what)
    }

    /// Repairs all rows before the end.
    pub(crate) fn repair_all(&mut self) -> Check {
        self.unblock_run_writes()?;
        while let Some(name) = self.any_task(|task| task.zone == UNKNOWN_ZONE) {
            self.set_zone(name, "UTC")?;
        }
        while let Some(name) = self.any_task(|task| task.value.starts_with(INVALID_SCHEDULE) && task.status != "paused")
        {
            let value = self.valid_schedule(&name);
            self.rewrite(name, value)?;
        }
        // Paused tasks keep their schedule.
        for (name, column) in std::mem::take(&mut self.corrupt_texts) {
            let value = TEXTS.iter().find(|text| text.0 == column).map_or("NULL", |text| text.1);
            let value = if column == "schedule_value" { format!("'{INVALID_SCHEDULE}'") } else { value.to_owned() };
            let done = self.execute(&format!("UPDATE scheduled_tasks SET {column} = {value} WHERE name = ?1"), [&name]);
            let what = format!("{column} of {name} is repaired");
            self.record_sql(done, Action::Edited { task: name, by_sql: true }, &what)?;
        }
        self.has_corrupt_text = false;
        let written = self.set_displayed("'repaired'");
        self.record_sql(written, Action::Nothing, "displayed text is repaired")
    }

    /// Makes the database refuse transitions of some runs.
    pub(crate) fn block_run_writes(&mut self) -> Check {
        if self.write_locked {
            return Ok(());
        }
        let runs: Vec<i64> = self.history.tables.unfinished().map(|run| run.id).collect();
        for _ in 0..self.rng.u32(1..4) {
            let Some(run) = self.rng.choice(runs.iter().copied()) else { return Ok(()) };
            let unwritable = "INSERT INTO unwritable VALUES (?1) ON CONFLICT DO NOTHING";
            self.database.shell.execute(unwritable, [run]).expect("a row");
            self.history.unwritable.insert(run, true);
            self.fault("run not writable");
            self.record(&Action::Nothing, &format!("run {run} cannot be written"))?;
        }
        Ok(())
    }

    pub(crate) fn unblock_run_writes(&mut self) -> Check {
        if self.write_locked || !self.history.unwritable.values().any(|unwritable| *unwritable) {
            return Ok(());
        }
        self.database.shell.execute("DELETE FROM unwritable", []).expect("a deletion");
        self.history.unwritable.values_mut().for_each(|unwritable| *unwritable = false);
        self.record(&Action::Nothing, "all runs can be written")
    }
}

/// Whether its schedule may become invalid: a one-time task would never be due again, and a manual one has no text.
fn has_text(task: &TaskRow) -> bool {
    task.kind != "once" && task.kind != "manual"
}
