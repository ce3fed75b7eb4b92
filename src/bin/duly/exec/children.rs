//! Child processes: those that were started here, whose exit status is wanted, and all others, which are reaped.
//!
//! As PID 1 of a container, or where another program replaced itself by this one, the program has children that it did not start.
//! When they end, no other process can clear them away.

use std::collections::BTreeMap;
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError, RwLock};

/// Read while a process is being started: until it is registered, it cannot be told from others.
static STARTING: RwLock<()> = RwLock::new(());
/// Processes that were started here and not waited for, by their number; each start has a number of its own.
static OWN: Mutex<Starts> = Mutex::new(Starts { last: 0, by_pid: BTreeMap::new() });

struct Starts {
    last: u64,
    by_pid: BTreeMap<u32, u64>,
}

/// Keeps a process from being reaped. To be dropped after the process was waited for.
#[derive(Debug)]
pub(crate) struct Own {
    pid: u32,
    start: u64,
}

/// Starts a process, and registers it.
pub(crate) fn start(command: &mut Command) -> io::Result<(Child, Own)> {
    let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn()?;
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.last += 1;
    let (pid, start) = (child.id(), own.last);
    own.by_pid.insert(pid, start);
    Ok((child, Own { pid, start }))
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        // The number was free since the wait: it may be registered for a later start.
        if own.by_pid.get(&self.pid) == Some(&self.start) {
            own.by_pid.remove(&self.pid);
        }
    }
}

/// Reaps the children that have ended and were not started here. While one is being started it does nothing: the next call will do.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn reap() {
    use nix::errno::Errno;
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    let Ok(_none_starts) = STARTING.try_write() else { return };
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        // The kernel names one that has ended, of the calling thread's own children first: the main thread's are those that it
        // was given. One that was started here stays until its group is empty; what is behind it is reaped after that.
        let reaped = match waitid(Id::All, look) {
            Ok(ended) => ended.pid().is_some_and(|pid| reap_one(pid.as_raw())),
            // It has no name for a real-time signal, and does not tell which child was ended by one.
            Err(Errno::EINVAL) => {
                let mut all = duly::processes().unwrap_or_default();
                all.retain(|one| one.parent == std::process::id() && one.is_dead);
                all.iter().filter(|one| i32::try_from(one.pid).is_ok_and(reap_one)).count() > 0
            }
            Err(_) => false,
        };
        if !reaped {
            return;
        }
    }
}

/// Reaps a child that has ended, if it was not started here.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn reap_one(pid: i32) -> bool {
    use rustix::process::{Pid, WaitOptions, waitpid};
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_own = u32::try_from(pid).is_ok_and(|pid| own.by_pid.contains_key(&pid));
    let Some(pid) = Pid::from_raw(pid).filter(|_| !is_own) else { return false };
    matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(Some(_)))
}

/// Elsewhere no such program is the first process of a machine.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn reap() {}
