//! The test bench: common poll loops, and duly, run through the same days on a manual clock.
//!
//! No code here knows the result of a day in advance. The loops and duly record their actions in a [`journal`], and the
//! same function evaluates all journals.

/// The days, and the format of their times.
pub(crate) mod day;
/// duly on such a day, stepped by its `Stepper`.
pub(crate) mod duly_day;
/// The record of a day, and its evaluation.
pub(crate) mod journal;
/// The loops, each defined by its tables and its SQL.
pub(crate) mod loops;
/// The polling processes: a queue in memory, running work, and the loss of both when they are killed.
pub(crate) mod process;
/// The printed page.
pub(crate) mod report;
