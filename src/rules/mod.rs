//! Pure decisions: what becomes of a due task, what lies ahead, when retention runs, what a step of the clock means.

pub(crate) mod clock_monitor;
pub(crate) mod forecast;
pub(crate) mod resolve;
pub(crate) mod retention_timer;
