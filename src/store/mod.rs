//! Records what has happened. The store takes no decision: it applies the pure rules inside a transaction. It reads no clock; `now` is
//! an argument.

pub(crate) mod fault;
pub(crate) mod sqlite;
pub(crate) mod turn_io;
