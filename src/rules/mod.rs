//! Pure decisions: what becomes of a due task, which waiting run may start, what lies ahead, what retention keeps and when it
//! runs, what a step of the clock means.

pub(crate) mod clock_monitor;
pub(crate) mod forecast;
pub(crate) mod placement;
pub(crate) mod resolve;
pub(crate) mod retention;
pub(crate) mod retention_timer;
pub(crate) mod streak;
