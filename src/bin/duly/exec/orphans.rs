//! Orphans: ends the process groups that a dead scheduler left.

use std::thread;
use std::time::Duration;

use duly::command::{Orphan, Process};
use duly::{Clock, SystemClock};

use crate::exec::guard;
use crate::exec::system::{self, KILL, TERM};

/// Poll interval for the end of an orphan.
const POLL: Duration = Duration::from_millis(100);

/// Ends the process group of an orphan. `what`: `command` or `worker`, for the log.
pub(crate) fn end(orphan: &Orphan, what: &str) {
    // The guard of the dead scheduler sends the same signals. A command that handles SIGTERM receives it once.
    waits_until(|| orphan.is_gone() || !guard::process::is_one_ending(), TERM + KILL);
    let Some(group) = orphan.group() else { return };
    // The leader may end before the others. While one of the processes seen now is alive, the group ID is not reused.
    let seen = system::members(group).unwrap_or_default();
    let (run, task) = (orphan.run_id(), orphan.task());
    // A worker may have had no run.
    let of_run = if run == 0 { String::new() } else { format!("run {run} of {task:?}: ") };
    log::info!("{of_run}ending the orphan {what} of a dead scheduler");
    system::terminate(group);
    if waits_until(|| orphan.is_gone(), TERM) {
        return;
    }
    let is_left = |member: &Process| seen.iter().any(|one| (one.pid, one.started) == (member.pid, member.started));
    if orphan.group() == Some(group) || system::members(group).is_ok_and(|members| members.iter().any(is_left)) {
        system::kill(group);
    }
    if !waits_until(|| orphan.is_gone(), KILL) {
        let waits = if run == 0 { "" } else { "; the run waits for it" };
        log::warn!("{of_run}the orphan {what} of a dead scheduler cannot be ended{waits}");
    }
}

/// Returns whether the condition holds before the limit.
fn waits_until(holds: impl Fn() -> bool, limit: Duration) -> bool {
    let clock = SystemClock::new();
    let until = clock.now().monotonic + limit;
    while !holds() {
        if clock.now().monotonic >= until {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}
