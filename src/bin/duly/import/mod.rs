//! Tasks that were written for another scheduler. Each source becomes tasks that can come, and what cannot, with the reason.

pub(crate) mod asked;
pub(crate) mod crontab;
pub(crate) mod found;
mod lines;
mod name;
pub(crate) mod nanoclaw;
pub(crate) mod people;
mod rows;
