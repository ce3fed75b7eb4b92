//! Commands that cannot be seen: their process is recorded in another PID namespace, and the file of their input is missing.
//! Whether such a command is gone is unknown. Its run waits until a user declares the command gone.

use duly::Error;

use crate::simulation::history::{Check, Deed};
use crate::simulation::scenario::World;

/// What a run records of a command that no observer here can see. The boot id follows.
const RECORD: &str = r#"{"pid":4000000,"started":1,"pid_ns":1,"boot":""#;

impl World {
    /// A running attempt turns out to be a command that cannot be seen.
    pub(crate) fn hide(&mut self) -> Check {
        if self.held || !cfg!(target_os = "linux") {
            return Ok(());
        }
        let begun = |key: &&(i64, u32)| self.history.attempts[key].began.is_some() && self.history.is_running(key);
        let Some((run, attempt)) = self.rng.choice(self.history.open.iter().filter(begun).copied().collect::<Vec<_>>())
        else {
            return Ok(());
        };
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the id of this boot");
        let record = format!("{RECORD}{}\"}}", boot.trim());
        self.type_in("UPDATE task_runs SET process = ?2 WHERE id = ?1", (run, record)).expect("a record");
        self.history.hidden.insert((run, attempt));
        self.fault("command that cannot be seen");
        self.done(&Deed::Nothing, &format!("the command of run {run} cannot be seen"))
    }

    /// Declares the hidden commands of dead owners gone.
    pub(crate) fn declare_gone(&mut self) -> Check {
        let hidden: Vec<(i64, u32)> = self.history.hidden.iter().copied().collect();
        for (run, attempt) in hidden {
            let lost = !self.history.owners[self.history.attempts[&(run, attempt)].owner].lives;
            if lost && !self.held && self.history.is_running(&(run, attempt)) {
                match self.stage.client.declare_gone(run) {
                    Ok(()) => {}
                    // Without a lock file its owner counts as alive as long as its lease lasts.
                    Err(Error::Refused { .. }) => continue,
                    Err(error) => return Err(format!("the command of run {run} cannot be declared gone: {error}")),
                }
                self.history.hidden.remove(&(run, attempt));
                self.done(&Deed::Nothing, &format!("the command of run {run} is declared gone"))?;
            }
        }
        Ok(())
    }
}
