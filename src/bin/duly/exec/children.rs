//! Child processes: those that this program started, whose exit status it needs, and others, which it reaps.
//!
//! As PID 1 of a container, or if another program replaced itself by this one (exec), the program has children that it did not
//! start. Only their parent can reap them.

use std::collections::BTreeMap;
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError, RwLock};

/// Held for reading while a process is being started: until it is registered, it looks like a foreign child.
static STARTING: RwLock<()> = RwLock::new(());
/// Started processes that have not been waited for, by PID; each start has its own number.
static OWN: Mutex<Starts> = Mutex::new(Starts { last: 0, by_pid: BTreeMap::new() });

struct Starts {
    last: u64,
    by_pid: BTreeMap<u32, u64>,
}

/// Protects a process from [`reap`]. Must be dropped after the process was waited for.
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
        // The PID was free since the wait: it may be registered for a later start.
        if own.by_pid.get(&self.pid) == Some(&self.start) {
            own.by_pid.remove(&self.pid);
        }
    }
}

/// Reaps the children that have ended and were not started here. While a process is being started it does nothing; the next
/// call does it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn reap() {
    use nix::errno::Errno;
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    let Ok(_starting) = STARTING.try_write() else { return };
    let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        // The kernel returns the children of the calling thread first; adopted children belong to the main thread. A child that
        // was started here remains a zombie until its group is empty; children behind it are reaped after that.
        let reaped = match waitid(Id::All, options) {
            Ok(ended) => ended.pid().is_some_and(|pid| reap_one(pid.as_raw())),
            // nix cannot represent a real-time signal, and does not return the child that it ended.
            Err(Errno::EINVAL) => {
                let mut all = duly::command::processes().unwrap_or_default();
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

/// Reaps one child, if it was not started here.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn reap_one(pid: i32) -> bool {
    use rustix::process::{Pid, WaitOptions, waitpid};
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_own = u32::try_from(pid).is_ok_and(|pid| own.by_pid.contains_key(&pid));
    let Some(pid) = Pid::from_raw(pid).filter(|_| !is_own) else { return false };
    matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(Some(_)))
}

/// Other systems have no containers of which this program is PID 1.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn reap() {}
