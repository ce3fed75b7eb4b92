//! Points at which a test kills the whole process, as if from outside: between a durable write and the action that it
//! announces.
//!
//! They exist only in builds with the private feature `faults`, and are set by the environment:
//! `DULY_FAULTS=claimed=kill`, several separated by commas. In every other build they compile to nothing.

/// Kills the process if the environment selects this point. `claiming`: claims are written, not yet committed.
/// `claimed`: claims are committed, and no attempt has started. `started`: a command has started, and the guard was not told which process it
/// is. `spawned`: the guard was told, and no record of the process is sent. `ended`: a handler has returned, and its outcome is not written.
/// `settled`: the outcome is written. `locked`: an owner holds its lock, and is not registered. `matching`: a batch of what a filter selects
/// is changed, not yet committed. `matched`: it is committed.
#[cfg(feature = "faults")]
pub(crate) fn reach(point: &str) {
    let faults = std::env::var("DULY_FAULTS").unwrap_or_default();
    if faults.split(',').any(|fault| fault.split_once('=') == Some((point, "kill"))) {
        die();
    }
}

/// Compiles to nothing.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn reach(_point: &str) {}

/// Ends the process without running destructors or flushing.
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
