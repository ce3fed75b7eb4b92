//! The end of some seeds: a newer version migrates the tables while schedulers run. They start nothing more, record the
//! outcomes of their runs, and stop.

use crate::simulation::attempts;
use crate::simulation::history::{Action, Check, Turn};
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
            let now = self.now();
            let scheduler = &mut self.schedulers[one];
            let Some(stepper) = &mut scheduler.stepper else { return Ok(()) };
            let ended = if round > 0 { std::mem::take(&mut scheduler.calls) } else { Vec::new() };
            for call in ended {
                stepper.finish(&call.claim, attempts::succeeded(&call.claim));
                self.history.delivered(&call.claim, attempts::succeeded(&call.claim), now);
            }
            let stepped = stepper.step();
            let at_work = stepper.running().len();
            // A scheduler that knows only the older tables starts nothing that is due.
            let (owner, sleeps) = (one, stepper.sleeps());
            let claims = stepped.as_ref().map_or_else(|_| Vec::new(), Clone::clone);
            let left = stepped.is_err();
            if !claims.is_empty() {
                return Err(format!("owner {one} claims from tables of a newer version"));
            }
            let turn = Turn { owner, claims, refused: true, sleeps, idle: 0, free: 0, draining: false, behind: false };
            self.record(
                &Action::Turn(turn),
                &format!("turn of owner {one}, which {}", if left { "leaves" } else { "stays" }),
            )?;
            if left && at_work > 0 {
                return Err(format!("owner {one} stopped while {at_work} of its runs were executing"));
            }
            if left {
                self.schedulers[one].stepper = None;
                self.history.died(one);
                return Ok(());
            }
        }
        Err(format!("owner {one} has no running attempts, and does not stop at tables of a newer version"))
    }
}
