//! The end of some seeds: a newer version brings the tables to its own while owners are at work. They start nothing more, write
//! down what they were at, and leave.

use crate::simulation::attempts;
use crate::simulation::history::{Check, Deed, Turn};
use crate::simulation::scenario::World;

/// What a newer version would do.
const RAISE: &str = "
    BEGIN IMMEDIATE;
    ALTER TABLE scheduled_tasks ADD COLUMN colour TEXT;
    UPDATE scheduler_meta SET value = '2' WHERE key = 'schema_version';
    COMMIT";
/// Turns in which an owner leaves: in one it goes on with what it is at, in the next it writes how that ended.
const TURNS: u32 = 3;

impl World {
    pub(crate) fn outlive(&mut self) -> Check {
        if !self.once_in(8) {
            return Ok(());
        }
        // Something to be at, and something that nobody may begin any more.
        self.trigger()?;
        for one in self.which(|agent| agent.stepper.is_some()) {
            self.turn(one)?;
        }
        self.trigger()?;
        self.is_over = true;
        self.stage.shell.execute_batch(RAISE).map_err(|error| format!("the tables cannot be raised: {error}"))?;
        self.done(&Deed::Nothing, "the tables are of a newer version")?;
        let living = self.which(|agent| agent.stepper.is_some());
        for one in &living {
            self.drain_before_newer(*one)?;
        }
        let names: Vec<&String> = living.iter().map(|one| &self.history.owners[*one].name).collect();
        match self.history.tables.unfinished().find(|run| run.owner.as_ref().is_some_and(|it| names.contains(&it))) {
            Some(run) => Err(format!("all owners have left, and one of them has run {}: {run:?}", run.id)),
            None => Ok(()),
        }
    }

    fn drain_before_newer(&mut self, one: usize) -> Check {
        for round in 0..TURNS {
            let now = self.now();
            let agent = &mut self.agents[one];
            let Some(stepper) = &mut agent.stepper else { return Ok(()) };
            let ended = if round > 0 { std::mem::take(&mut agent.works) } else { Vec::new() };
            for work in ended {
                stepper.finish(&work.claim, attempts::succeeded(&work.claim));
                self.history.delivered(&work.claim, attempts::succeeded(&work.claim), now);
            }
            let stepped = stepper.step();
            let at_work = stepper.running().len();
            // What is due is nobody's any more who knows the older tables alone.
            let (owner, sleeps) = (one, stepper.sleeps());
            let claims = stepped.as_ref().map_or_else(|_| Vec::new(), Clone::clone);
            let left = stepped.is_err();
            if !claims.is_empty() {
                return Err(format!("owner {one} claims from tables of a newer version"));
            }
            let turn = Turn { owner, claims, refused: true, sleeps, idle: 0, free: 0, draining: false };
            self.done(
                &Deed::Turn(turn),
                &format!("turn of owner {one}, which {}", if left { "leaves" } else { "stays" }),
            )?;
            if left && at_work > 0 {
                return Err(format!("owner {one} leaves with {at_work} runs at work"));
            }
            if left {
                self.agents[one].stepper = None;
                self.history.died(one);
                return Ok(());
            }
        }
        Err(format!("owner {one} has nothing at work, and does not leave the newer tables"))
    }
}
