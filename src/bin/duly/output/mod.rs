//! Output of the program: tables, JSON, times, progress bars, the log and the output of commands.

pub(crate) mod forward;
pub(crate) mod log_queue;
pub(crate) mod logger;
pub(crate) mod printer;
pub(crate) mod progress_bar;
pub(crate) mod sparkline;
pub(crate) mod table;

pub(crate) use duly::text::{escape, times, units};
