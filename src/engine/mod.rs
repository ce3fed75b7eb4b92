//! Decides when: one turn at a time (`poller`), and the loop that joins it with the pool (`loop_state`; its shell is `event_loop`).

pub(crate) mod event_loop;
pub(crate) mod former;
#[cfg(feature = "postgres")]
pub(crate) mod keeper;
pub(crate) mod lanes;
pub(crate) mod log_once;
pub(crate) mod loop_state;
pub(crate) mod peers;
pub(crate) mod poller;
mod start_backoff;
pub(crate) mod told;
pub(crate) mod wake_time;
pub(crate) mod wall_clock;
