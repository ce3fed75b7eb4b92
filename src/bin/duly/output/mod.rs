//! What is printed, and how it looks.

pub(crate) mod escape;
pub(crate) mod json;
pub(crate) mod log_queue;
pub(crate) mod printer;
pub(crate) mod progress_bar;
pub(crate) mod sizes;
pub(crate) mod sparkline;
pub(crate) mod table;
pub(crate) mod times;
