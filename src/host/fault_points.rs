//! Points at which a test can have the whole process killed, as if from outside: between what is promised and what is done.
//!
//! They exist in builds with the private feature `faults` only, and are set by the environment: `DULY_FAULTS=claimed=kill`,
//! several separated by commas. In every other build there is nothing here.

/// `claiming`: claims are written, and not yet committed. `claimed`: they are, and nothing of them has started. `spawned`: a
/// command has started, and no record of its process is sent. `ended`: a handler has returned, and no outcome is written.
/// `settled`: it is. `locked`: an owner has its lock, and is not registered.
#[cfg(feature = "faults")]
pub(crate) fn reach(point: &str) {
    let faults = std::env::var("DULY_FAULTS").unwrap_or_default();
    if faults.split(',').any(|fault| fault.split_once('=') == Some((point, "kill"))) {
        die();
    }
}

/// Nothing is compiled of it.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn reach(_point: &str) {}

/// No destructor runs, and nothing is flushed.
#[cfg(all(feature = "faults", unix))]
fn die() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // The signal is delivered on the way back from the kernel.
    std::process::abort();
}

#[cfg(all(feature = "faults", not(unix)))]
fn die() {
    std::process::abort();
}
