//! The promises, kept in SQLite. One statement per arrow of a run's life, each guarded, its row count judged.
//!
//! The store takes no decision: it applies the pure rules inside a transaction. It reads no clock; `now` is an argument.

pub(crate) mod adder;
pub(crate) mod attempts;
pub(crate) mod census;
pub(crate) mod claiming;
#[cfg(test)]
mod cost;
pub(crate) mod damage;
pub(crate) mod database;
pub(crate) mod delays;
pub(crate) mod due;
pub(crate) mod dying;
pub(crate) mod effects;
pub(crate) mod fault;
pub(crate) mod file;
pub(crate) mod history;
pub(crate) mod ids;
pub(crate) mod invariants;
pub(crate) mod manual;
pub(crate) mod migration;
pub(crate) mod once;
pub(crate) mod opening;
pub(crate) mod owners;
pub(crate) mod problems;
pub(crate) mod pruning;
pub(crate) mod replan;
pub(crate) mod row;
pub(crate) mod runs;
pub(crate) mod schema;
pub(crate) mod seen;
pub(crate) mod settling;
pub(crate) mod tasks;
pub(crate) mod turn;
pub(crate) mod waiting;
pub(crate) mod work;

pub(crate) use database::Store;
pub(crate) use database::sqlite_version;
pub(crate) use fault::Fault;
pub use file::Durability;
pub(crate) use file::Missing;
pub use settling::MAX_RESULT_BYTES;
