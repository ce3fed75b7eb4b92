//! The SQLite store: one guarded statement for each transition of a run, its row count checked.

pub(crate) mod add;
pub(crate) mod attempts;
pub(crate) mod blocked;
pub(crate) mod census;
pub(crate) mod claim;
pub(crate) mod connection;
#[cfg(test)]
mod cost;
pub(crate) mod damage;
pub(crate) mod delays;
pub(crate) mod due;
pub(crate) mod effects;
pub(crate) mod file;
pub(crate) mod first_look;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod ids;
pub(crate) mod invariants;
pub(crate) mod manual;
pub(crate) mod migration;
pub(crate) mod on_dead;
pub(crate) mod once;
pub(crate) mod open;
pub(crate) mod owners;
pub(crate) mod prune;
pub(crate) mod replan;
pub(crate) mod row;
pub(crate) mod runs;
pub(crate) mod schema;
pub(crate) mod settle;
pub(crate) mod tasks;
pub(crate) mod turn;
