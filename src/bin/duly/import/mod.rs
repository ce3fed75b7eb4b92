//! Import from other schedulers. A source is parsed into tasks, and entries that cannot be imported with the reason.

mod cronexpr;
pub(crate) mod crontab;
pub(crate) mod foreign_rows;
mod lines;
mod name;
pub(crate) mod nanoclaw;
pub(crate) mod nanoclaw_sessions;
pub(crate) mod source;
pub(crate) mod supercronic;
pub(crate) mod users;
