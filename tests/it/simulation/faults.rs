//! What goes wrong: owners that die at every point of a turn, stand still or leave; a clock that steps; a file that is busy;
//! a cleaner among the lock files.

use std::time::Duration;

use duly::Outcome;

use crate::simulation::attempts;
use crate::simulation::history::{Check, Deed};
use crate::simulation::scenario::{HANDLERS, World};

const HOUR: i64 = 3_600_000;
/// Owners that live at the same time.
const MOST_OWNERS: usize = 3;
/// How often in one simulation the clock is found to have been wrong: each time all that was planned is planned anew.
const WRONG_CLOCKS: u64 = 2;

impl World {
    /// Something goes wrong.
    pub(crate) fn go_wrong(&mut self) -> Check {
        let living = self.which(|agent| agent.stepper.is_some());
        let awake = self.which(|agent| agent.can_step());
        let Some(one) = self.rng.choice(living) else { return self.start_one() };
        match self.rng.u32(..100) {
            0..10 => {
                self.fault("killed before a turn");
                self.crash(one, "before a turn")
            }
            10..20 => {
                let Some(one) = self.rng.choice(awake) else { return Ok(()) };
                self.turn_alone(one)?;
                self.fault("killed after a turn, nothing of it begun");
                self.crash(one, "after its turn")
            }
            20..28 => {
                let busy = self.which(|agent| !agent.works.is_empty());
                let Some(one) = self.rng.choice(busy) else { return Ok(()) };
                self.fault("killed with runs at work");
                self.crash(one, "with runs at work")
            }
            28..36 => self.kill_before_the_end_is_written(),
            36..44 => self.leave(one),
            44..56 => self.suspend(one),
            56..66 => self.hold_the_lock(),
            66..72 => self.clean(),
            72..86 => self.step_the_clock(),
            86..92 => self.stick(),
            92..95 => self.change_the_law(),
            95..98 => self.hide(),
            _ => self.start_one(),
        }
    }

    /// Another owner is started; not all have every handler.
    pub(crate) fn start_one(&mut self) -> Check {
        if self.which(|agent| agent.stepper.is_some()).len() >= MOST_OWNERS {
            return Ok(());
        }
        let handlers = self.pick(&[&HANDLERS[..], &HANDLERS[..], &["work", "post"], &["work"], &["post", "rare"]]);
        self.start(handlers)
    }

    pub(crate) fn start_if_none_lives(&mut self) -> Check {
        if self.which(|agent| agent.stepper.is_some()).is_empty() { self.start_one() } else { Ok(()) }
    }

    fn kill_before_the_end_is_written(&mut self) -> Check {
        let busy = self.which(|agent| agent.can_step() && !agent.works.is_empty());
        let Some(one) = self.rng.choice(busy) else { return Ok(()) };
        let claim = self.agents[one].works[0].claim.clone();
        self.end_now(one, &claim, attempts::succeeded(&claim));
        self.deliver(one)?;
        if self.agents[one].stepper.is_none() {
            return Ok(());
        }
        self.fault("killed after a handler ended, before that was written");
        self.crash(one, "before an end was written")
    }

    /// It claims no more, gives back what no handler has begun, and goes. What is at work then is cut.
    fn leave(&mut self, one: usize) -> Check {
        if !self.agents[one].can_step() {
            return Ok(());
        }
        self.fault("left in order");
        let claims: Vec<_> = self.agents[one].works.iter().map(|work| work.claim.clone()).collect();
        for claim in claims {
            match self.rng.u32(..3) {
                0 => self.end_now(one, &claim, Outcome::Released),
                1 => self.end_now(one, &claim, attempts::succeeded(&claim)),
                _ => {}
            }
        }
        // What falls due meanwhile is left to others.
        for _ in 0..self.rng.u32(1..4) {
            self.drain(one)?;
            if self.once_in(2) {
                let waits = Duration::from_millis(self.rng.u64(..90_000));
                self.stage.clock.advance(waits);
            }
        }
        self.drain(one)?;
        let agent = &mut self.agents[one];
        agent.works.clear();
        let Some(stepper) = agent.stepper.take() else { return Ok(()) };
        let left = stepper.stop();
        self.history.died(one);
        let how = if left.is_ok() { "leaves" } else { "leaves without a word" };
        self.done(&Deed::Nothing, &format!("owner {one} {how}"))
    }

    fn suspend(&mut self, one: usize) -> Check {
        let length = self.history.owners[one].lease * self.rng.u32(1..6) + Duration::from_secs(self.rng.u64(1..60));
        if self.agents[one].suspended.is_none() {
            self.fault("suspended for longer than a lease");
            self.agents[one].suspended = Some(self.now().monotonic + length);
            // Nobody makes its lock file again meanwhile: once its lease has stood still it counts as dead.
            if self.once_in(3) {
                let _ = std::fs::remove_file(&self.history.owners[one].lock);
                self.fault("lock file removed");
                self.done(&Deed::Nothing, &format!("the lock file of owner {one} is removed"))?;
            }
            return self.done(&Deed::Nothing, &format!("owner {one} stands still for {length:?}"));
        }
        Ok(())
    }

    /// Another program begins to write, and takes its time.
    fn hold_the_lock(&mut self) -> Check {
        if !self.held && self.stage.shell.execute_batch("BEGIN IMMEDIATE").is_ok() {
            self.held = true;
            self.fault("busy");
            return self.done(&Deed::Nothing, "another program holds the write lock");
        }
        Ok(())
    }

    pub(crate) fn let_go(&mut self) {
        if std::mem::take(&mut self.held) {
            self.stage.shell.execute_batch("ROLLBACK").expect("a rollback");
        }
    }

    /// A cleaner removes the lock files.
    fn clean(&mut self) -> Check {
        let owners = self.which(|agent| agent.stepper.is_some());
        for owner in owners {
            if self.once_in(2) {
                let _ = std::fs::remove_file(&self.history.owners[owner].lock);
                self.fault("lock file removed");
                self.done(&Deed::Nothing, &format!("the lock file of owner {owner} is removed"))?;
            }
        }
        Ok(())
    }

    fn step_the_clock(&mut self) -> Check {
        let minutes = self.rng.i64(1..170);
        let now = self.wall();
        let wrong = self.faults.get("clock set back by more than 3 h").copied().unwrap_or_default();
        match self.rng.u32(..10) {
            0..3 => {
                self.fault("clock set forward by minutes");
                self.set_wall(now + minutes * 60_000 / 4);
            }
            3..5 => {
                self.fault("machine suspended for hours");
                let slept = self.rng.i64(HOUR..30 * HOUR);
                self.set_wall(now + slept);
            }
            5..7 => {
                self.fault("clock set back by minutes");
                self.set_wall(now - minutes * 60_000 / 4);
            }
            7..9 => {
                self.fault("clock set back by up to 3 h");
                self.set_wall(now - minutes * 60_000);
            }
            _ if wrong < WRONG_CLOCKS => {
                self.fault("clock set back by more than 3 h");
                let wrong = self.rng.i64(3 * HOUR + 1..40 * HOUR);
                self.set_wall(now - wrong);
            }
            _ => {}
        }
        self.done(&Deed::Nothing, &format!("the clock had shown {}", duly::Timestamp::from_millis(now)))
    }
}
