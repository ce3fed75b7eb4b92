//! Calls application code and drops its values without letting a panic end a thread of the scheduler.
//!
//! The payload of a panic is an application value too, and may panic when it is dropped. Some panics still end the
//! process: a destructor that panics while another panic unwinds, and any panic in a build with `panic = "abort"`.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `f`. Returns its result, or the message of its panic.
pub(crate) fn contained<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(message)
}

/// Drops a value. Logs a panic of its destructor.
pub(crate) fn dispose<T>(what: impl Display, value: T) {
    if let Err(panic) = contained(|| drop(value)) {
        log::warn!("{what} panicked when it was dropped: {panic}");
    }
}

/// Returns the message of a panic and drops its payload.
pub(crate) fn message(panic: Box<dyn Any + Send>) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
        .to_owned();
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // The payloads of further panics may form an endless chain: the second one is leaked.
        std::mem::forget(again);
    }
    message
}
