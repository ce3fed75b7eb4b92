//! Pure decisions: how a due task is resolved, which waiting run may start, which occurrences follow, what retention removes and when,
//! when failures pause a task, which runs follow another one and with what payload, which occurrences without a run are reported, what a
//! step of the clock means, how many starts a limit leaves, how long the lock of a file is used and when it is left to others.

pub(crate) mod alarm_pace;
pub(crate) mod chain;
pub(crate) mod clock_monitor;
pub(crate) mod description;
pub(crate) mod forecast;
pub(crate) mod lock_pause;
pub(crate) mod notice;
pub(crate) mod placement;
pub(crate) mod resolve;
pub(crate) mod retention;
pub(crate) mod retention_timer;
pub(crate) mod start_limit;
pub(crate) mod streak;
pub(crate) mod turn_size;
