//! Tasks that were written for another scheduler. Each source becomes tasks that can come, and what cannot, with the reason.

pub(crate) mod crontab;
mod foreign_rows;
mod lines;
mod name;
pub(crate) mod nanoclaw;
pub(crate) mod source;
pub(crate) mod users;
