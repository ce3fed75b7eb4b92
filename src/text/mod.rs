//! Text for people: escaped text, sizes and durations, times, the zone of the machine. For the program and the status page; no part of
//! the public API.

pub mod database_name;
pub mod escape;
#[cfg(any(feature = "cli", feature = "page"))]
pub mod local_zone;
pub mod times;
pub mod units;
