//! The end of some seeds: a newer version migrates the tables while schedulers run. They start nothing more, record the
//! outcomes of their runs, and stop.

use crate::simulation::history::{Action, Check};
use crate::simulation::scenario::Scenario;

/// What a newer version would do.
const RAISE: &str = "
    BEGIN;
    ALTER TABLE scheduled_tasks ADD COLUMN colour TEXT;
    UPDATE scheduler_meta SET value = '2' WHERE key = 'schema_version';
    COMMIT";
/// Turns in which a scheduler stops: in one its runs continue, in the next it records their outcomes.
const TURNS: u32 = 3;

impl Scenario {
    pub(crate) fn upgrade_tables(&mut self) -> Check {
        if !self.once_in(8) {
            return Ok(());
        }
        // A run to execute, and one that no scheduler may begin any more.
        self.trigger()?;
        for one in self.running() {
            self.turn(one)?;
        }
        self.trigger()?;
        self.is_newer_version = true;
        self.database.shell.execute_batch(RAISE).map_err(|error| format!("the tables cannot be migrated: {error}"))?;
        self.record(&Action::Nothing, "the tables are of a newer version")?;
        let living = self.running();
        for one in &living {
            self.drain_before_newer(*one)?;
        }
        let names: Vec<&String> = living.iter().map(|one| &self.history.owners[*one].name).collect();
        match self.history.tables.unfinished().find(|run| run.owner.as_ref().is_some_and(|it| names.contains(&it))) {
            Some(run) => Err(format!("all owners have stopped, and run {} belongs to one of them: {run:?}", run.id)),
            None => Ok(()),
        }
    }

    fn drain_before_newer(&mut self, one: usize) -> Check {
        for round in 0..TURNS {
            if round > 0 {
                self.finish_quickly(one);
            }
            self.turn(one)?;
            if self.schedulers[one].stepper.is_none() {
                return Ok(());
            }
        }
        Err(format!("owner {one} has no running attempts, and does not stop at tables of a newer version"))
    }
}
