//! Commands that cannot be observed: their process is recorded in another PID namespace, and their input file is missing.
//! Whether such a command has ended is unknown. Its run waits until a user declares the command gone.

use duly::Error;

use crate::simulation::history::{Action, Check};
use crate::simulation::scenario::Scenario;

/// The record of a process that no observer here can see. The boot id follows.
const RECORD: &str = r#"{"pid":4000000,"started":1,"pid_ns":1,"boot":""#;

impl Scenario {
    pub(crate) fn hide_process(&mut self) -> Check {
        if self.write_locked || !cfg!(target_os = "linux") {
            return Ok(());
        }
        let begun = |key: &&(i64, u32)| self.history.attempts[key].began.is_some() && self.history.is_running(key);
        let Some((run, attempt)) = self.rng.choice(self.history.open.iter().filter(begun).copied().collect::<Vec<_>>())
        else {
            return Ok(());
        };
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the id of this boot");
        let record = format!("{RECORD}{}\"}}", boot.trim());
        self.execute("UPDATE task_runs SET process = ?2 WHERE id = ?1", (run, record)).expect("a record");
        self.history.hidden.insert((run, attempt));
        self.fault("process hidden");
        self.record(&Action::Nothing, &format!("the command of run {run} is hidden"))
    }

    /// Declares the hidden commands of dead schedulers gone.
    pub(crate) fn declare_gone(&mut self) -> Check {
        let hidden: Vec<(i64, u32)> = self.history.hidden.iter().copied().collect();
        for (run, attempt) in hidden {
            let lost = !self.history.owners[self.history.attempts[&(run, attempt)].owner].is_alive;
            if lost && !self.write_locked && self.history.is_running(&(run, attempt)) {
                match self.database.client.declare_gone(run) {
                    Ok(()) => {}
                    // Without a lock file its owner counts as alive until its lease expires.
                    Err(Error::Refused { .. }) => continue,
                    Err(error) => return Err(format!("the command of run {run} cannot be declared gone: {error}")),
                }
                self.history.hidden.remove(&(run, attempt));
                self.record(&Action::Nothing, &format!("the command of run {run} is declared gone"))?;
            }
        }
        Ok(())
    }
}
