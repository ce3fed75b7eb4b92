//! Rows that cannot be used, rows that cannot be written, and claims that no worker can begin: the rest goes on.

use std::collections::BTreeSet;

use duly::RunStatus;

use crate::simulation::history::{Check, Deed, History, Step, Turn};
use crate::simulation::rows::{RunRow, TaskRow};
use crate::simulation::scenario::World;

/// What no schedule is written as.
pub(crate) const NONSENSE: &str = "whenever it suits";

/// A zone that may be one, and that no zone data of this machine has.
pub(crate) const UNKNOWN_ZONE: &str = "Mars/Olympus_Mons";

/// Columns of a task that hold text which another program may write, and what mends each.
const TEXTS: [(&str, &str); 7] = [
    ("handler", "'work'"),
    ("payload", "'null'"),
    ("schedule_value", ""),
    ("time_zone", "'UTC'"),
    ("concurrency_key", "NULL"),
    ("on_dead", "NULL"),
    ("managed_by", "NULL"),
];

/// Text of other tables and columns that no rule is about: it is shown. What is empty stays so.
const SHOWN: [(&str, &str); 10] = [
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

    /// Whether its claim may have been set aside: it cannot be written, or its payload, its task's, could not be read.
    pub(crate) fn was_set_aside(&self, run: &RunRow) -> bool {
        self.was_stuck(run.id) || self.unreadable.contains(&run.task)
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
        if self.once_in(6) {
            let known = |task: &TaskRow| task.is_active() && task.kind == "cron" && task.zone != UNKNOWN_ZONE;
            let Some(name) = self.any_task(known) else { return Ok(()) };
            self.fault("time zone not known here");
            return self.set_zone(name, UNKNOWN_ZONE);
        }
        // One that is garbled and not yet looked at stays as it is: one column of a row is mended.
        let garbled: BTreeSet<String> = self.garbled.keys().cloned().collect();
        let sound = |task: &TaskRow| {
            task.is_active() && has_text(task) && task.zone != UNKNOWN_ZONE && !garbled.contains(&task.name)
        };
        if self.rng.bool() {
            // Those with a run that waits for a key of several tasks: they could stop the others of it.
            let shared = |run: &RunRow| {
                run.status != RunStatus::Running && run.key.as_ref().is_some_and(|key| !key.starts_with('#'))
            };
            let waiting: BTreeSet<i64> =
                self.history.tables.unfinished().filter(|run| shared(run)).map(|run| run.task).collect();
            if let Some(name) = self.any_task(|task| sound(task) && waiting.contains(&task.id)) {
                return self.garble(name, "handler");
            }
        }
        let Some(name) = self.any_task(sound) else { return Ok(()) };
        if self.rng.bool() {
            let (column, _) = self.pick(&TEXTS);
            return self.garble(name, column);
        }
        self.fault("row spoilt");
        self.rewrite(name, NONSENSE)
    }

    /// Another program writes text that is not UTF-8 into a row, and into what a run has printed. No check can refuse these.
    fn garble(&mut self, name: String, column: &'static str) -> Check {
        // Of each of them SQLite makes a character: bytes that begin none, and some that end too soon.
        let bytes = self.pick(&["b0", "80", "e980", "66b066"]);
        let set = match column {
            "payload" => format!("payload = '\"' || CAST(x'{bytes}' AS TEXT) || '\"', schedule_value = ?2"),
            "schedule_value" => format!("schedule_value = ?2 || CAST(x'{bytes}' AS TEXT)"),
            _ => format!("{column} = CAST(x'{bytes}' AS TEXT), schedule_value = ?2"),
        };
        self.fault("text garbled");
        if column == "payload" {
            self.history.unreadable.insert(self.history.tables.named(&name).expect("a task").id);
        }
        self.is_garbled = true;
        let garbled = format!("CAST(x'{bytes}' AS TEXT)");
        let written = self.set_shown(&garbled);
        self.by_sql(written, Deed::Nothing, "what is only shown is garbled")?;
        let done = self.type_in(&format!("UPDATE scheduled_tasks SET {set} WHERE name = ?1"), [&*name, NONSENSE]);
        if done.is_ok() {
            self.garbled.insert(name.clone(), column);
        }
        let what = format!("{column} of {name} is garbled by SQL: {bytes}");
        self.by_sql(done, Deed::Edited { task: name, by_sql: true }, &what)
    }

    fn set_shown(&self, text: &str) -> rusqlite::Result<usize> {
        SHOWN.iter().try_fold(0, |_, (table, column)| {
            self.type_in(&format!("UPDATE {table} SET {column} = {text} WHERE {column} IS NOT NULL"), []).map(|_| 0)
        })
    }

    fn set_zone(&mut self, name: String, zone: &str) -> Check {
        let done = self.type_in("UPDATE scheduled_tasks SET time_zone = ?2 WHERE name = ?1", [&*name, zone]);
        let what = format!("the zone of {name} is set to {zone} by SQL");
        self.by_sql(done, Deed::Edited { task: name, by_sql: true }, &what)
    }

    pub(crate) fn sense(&mut self, name: &str) -> &'static str {
        let kind = &self.history.tables.named(name).expect("a task").kind;
        if kind == "cron" { "7,37 * * * *" } else { "11m" }
    }

    pub(crate) fn rewrite(&mut self, name: String, value: &str) -> Check {
        let garbled = self.garbled.get(&name).copied().filter(|_| value != NONSENSE);
        let mended =
            TEXTS.iter().find(|(column, _)| Some(*column) == garbled).filter(|(column, _)| *column != "schedule_value");
        let mended = mended.map_or_else(String::new, |(column, value)| format!(", {column} = {value}"));
        let text = format!("UPDATE scheduled_tasks SET schedule_value = ?2{mended} WHERE name = ?1");
        let done = self.type_in(&text, [&*name, value]);
        if garbled.is_some() && done.is_ok() {
            self.garbled.remove(&name);
        }
        let what = format!("{name} is rewritten by SQL: {value}");
        self.by_sql(done, Deed::Edited { task: name, by_sql: true }, &what)
    }

    /// Before the end all rows are mended.
    pub(crate) fn mend_all(&mut self) -> Check {
        self.unstick()?;
        while let Some(name) = self.any_task(|task| task.zone == UNKNOWN_ZONE) {
            self.set_zone(name, "UTC")?;
        }
        while let Some(name) = self.any_task(|task| task.value.starts_with(NONSENSE) && !task.rests_by_hand()) {
            let value = self.sense(&name);
            self.rewrite(name, value)?;
        }
        // Those that are paused: their schedule stays what it is.
        for (name, column) in std::mem::take(&mut self.garbled) {
            let value = TEXTS.iter().find(|text| text.0 == column).map_or("NULL", |text| text.1);
            let value = if column == "schedule_value" { format!("'{NONSENSE}'") } else { value.to_owned() };
            let done = self.type_in(&format!("UPDATE scheduled_tasks SET {column} = {value} WHERE name = ?1"), [&name]);
            let what = format!("{column} of {name} is mended");
            self.by_sql(done, Deed::Edited { task: name, by_sql: true }, &what)?;
        }
        self.is_garbled = false;
        let written = self.set_shown("'mended'");
        self.by_sql(written, Deed::Nothing, "what is only shown is mended")
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
