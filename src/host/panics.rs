//! Calls code of the application, and drops its values: a panic of either ends no thread of the scheduler.
//!
//! The payload of a panic is a value of the application too, and may panic when it is dropped. What no program can contain ends
//! the process: a destructor that panics while another panic unwinds, and any panic where panics abort.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `f`. Returns what it returned, or the message of its panic.
pub(crate) fn contained<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(message)
}

/// Drops a value. A panic of its destructor is logged.
pub(crate) fn dispose<T>(what: impl Display, value: T) {
    if let Err(panic) = contained(|| drop(value)) {
        log::warn!("{what} panicked when it was dropped: {panic}");
    }
}

/// The message of a panic, whose payload is dropped.
pub(crate) fn message(panic: Box<dyn Any + Send>) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
        .to_owned();
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // A chain of such payloads may have no end: the second one is leaked.
        std::mem::forget(again);
    }
    message
}
