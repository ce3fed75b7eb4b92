//! Faults: schedulers that die at every point of a turn, are suspended or leave; a clock that steps; a busy file; removed
//! lock files.

use std::time::Duration;

use crate::simulation::attempts;
use crate::simulation::history::{Action, Check};
use crate::simulation::scenario::{HANDLERS, Scenario, Scheduler};

const HOUR: i64 = 3_600_000;
const MAX_SCHEDULERS: usize = 3;
/// How often in one simulation the clock may be wrong: each time every task is planned again.
const MAX_WRONG_CLOCKS: u64 = 2;

pub(crate) const OWNER_CLOCK: &str = "clock of an owner off by hours";

/// By how many milliseconds the clock of a machine is off.
pub(crate) fn draw_error(rng: &mut fastrand::Rng) -> i64 {
    let hours = rng.i64(1..40) * HOUR + rng.i64(..HOUR);
    if rng.bool() { hours } else { -hours }
}

impl Scenario {
    pub(crate) fn inject_fault(&mut self) -> Check {
        let living = self.running();
        let awake = self.schedulers_where(|scheduler| scheduler.can_step());
        let Some(one) = self.rng.choice(living) else { return self.start_scheduler() };
        #[cfg(feature = "postgres")]
        if self.database.server.is_some() && self.rng.bool() {
            return self.inject_server_fault(one);
        }
        match self.rng.u32(..100) {
            0..10 => {
                self.fault("killed before a turn");
                self.crash(one, "before a turn")
            }
            10..20 => {
                let Some(one) = self.rng.choice(awake) else { return Ok(()) };
                self.turn_without_starting(one)?;
                self.fault("killed after a turn, before its claims began");
                self.crash(one, "after its turn")
            }
            20..28 => {
                let busy = self.schedulers_where(|scheduler| !scheduler.calls.is_empty());
                let Some(one) = self.rng.choice(busy) else { return Ok(()) };
                self.fault("killed with runs executing");
                self.crash(one, "with runs executing")
            }
            28..36 => self.kill_before_outcome_is_written(),
            36..44 => self.order_to_drain(one),
            44..56 => self.suspend(one),
            56..66 => self.hold_write_lock(),
            66..72 => self.remove_lock_files(),
            72..86 => self.step_clock(),
            86..92 => self.block_run_writes(),
            92..95 => self.change_zone_data(),
            95..98 => self.hide_process(),
            _ => self.start_scheduler(),
        }
    }

    /// Starts another scheduler; not every one has every handler.
    pub(crate) fn start_scheduler(&mut self) -> Check {
        if self.schedulers_where(Scheduler::takes_on).len() >= MAX_SCHEDULERS || self.running().len() > MAX_SCHEDULERS {
            return Ok(());
        }
        let handlers = self.pick(&[&HANDLERS[..], &HANDLERS[..], &["work", "post"], &["work"], &["post", "rare"]]);
        self.start(handlers)
    }

    pub(crate) fn start_if_none_alive(&mut self) -> Check {
        if self.schedulers_where(Scheduler::takes_on).is_empty() { self.start_scheduler() } else { Ok(()) }
    }

    fn kill_before_outcome_is_written(&mut self) -> Check {
        let busy = self.schedulers_where(|scheduler| scheduler.can_step() && !scheduler.calls.is_empty());
        let Some(one) = self.rng.choice(busy) else { return Ok(()) };
        let taken = self.schedulers[one].calls.iter().find(|call| call.ends_at.is_some());
        let Some(claim) = taken.map(|call| call.claim.clone()) else { return Ok(()) };
        self.end_now(one, &claim, attempts::succeeded(&claim));
        self.deliver(one)?;
        if self.schedulers[one].stepper.is_none() {
            return Ok(());
        }
        self.fault("killed after a handler returned, before its outcome was written");
        self.crash(one, "before an outcome was written")
    }

    /// Orders a scheduler to drain: it claims no more, gives back what has not begun, and ends when its handlers have returned.
    fn order_to_drain(&mut self, one: usize) -> Check {
        if !self.schedulers[one].takes_on() {
            return Ok(());
        }
        self.fault("ordered to drain");
        self.order(one)
    }

    pub(crate) fn suspend(&mut self, one: usize) -> Check {
        let length = self.history.owners[one].lease * self.rng.u32(1..6) + Duration::from_secs(self.rng.u64(1..60));
        if self.schedulers[one].suspended.is_none() {
            self.fault("suspended for longer than a lease");
            self.schedulers[one].suspended = Some(self.now().monotonic + length);
            // Without its lock file it counts as dead once its lease has expired.
            if self.once_in(3) {
                let _ = std::fs::remove_file(&self.history.owners[one].lock);
                self.fault("lock file removed");
                self.record(&Action::Nothing, &format!("the lock file of owner {one} is removed"))?;
            }
            return self.record(&Action::Nothing, &format!("owner {one} is suspended for {length:?}"));
        }
        Ok(())
    }

    /// Another program begins to write, and keeps the lock.
    pub(crate) fn hold_write_lock(&mut self) -> Check {
        if !self.write_locked && self.database.shell.lock().is_ok() {
            self.write_locked = true;
            self.fault("write lock held");
            return self.record(&Action::Nothing, "another program holds the write lock");
        }
        Ok(())
    }

    pub(crate) fn release_write_lock(&mut self) {
        if std::mem::take(&mut self.write_locked) {
            self.database.shell.unlock();
        }
    }

    /// Another program removes lock files.
    fn remove_lock_files(&mut self) -> Check {
        let owners = self.running();
        for owner in owners {
            if self.once_in(2) {
                let _ = std::fs::remove_file(&self.history.owners[owner].lock);
                self.fault("lock file removed");
                self.record(&Action::Nothing, &format!("the lock file of owner {owner} is removed"))?;
            }
        }
        Ok(())
    }

    /// The clock of a machine is set, and the server's counts: that changes nothing.
    fn set_clock_of_host(&mut self) -> Check {
        let host = self.rng.usize(..self.database.hosts.len());
        let error = draw_error(&mut self.rng);
        self.database.hosts[host].clock.set_wall(duly::Timestamp::from_millis(self.wall() + error));
        self.fault(OWNER_CLOCK);
        self.record(&Action::Nothing, &format!("the clock of host {host} is off by {error} ms"))
    }

    fn step_clock(&mut self) -> Check {
        if self.database.follows_server {
            return self.set_clock_of_host();
        }
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
            _ if wrong < MAX_WRONG_CLOCKS => {
                self.fault("clock set back by more than 3 h");
                let wrong = self.rng.i64(3 * HOUR + 1..40 * HOUR);
                self.set_wall(now - wrong);
            }
            _ => {}
        }
        self.record(&Action::Nothing, &format!("the clock was set from {}", duly::Timestamp::from_millis(now)))
    }
}
