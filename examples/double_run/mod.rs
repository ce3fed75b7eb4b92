//! The bench: loops that people write, and duly, put through the same days on a clock that is moved by hand.
//!
//! Nothing here knows how a day will end. The loops and duly write down what they do in a [`journal`], and one judge reads
//! all journals alike.

/// The days, and the clock they are told in.
pub(crate) mod day;
/// duly on such a day, driven by its `Stepper`.
pub(crate) mod duly_day;
/// What happened, and the judge.
pub(crate) mod journal;
/// The loops, each as its tables and its SQL.
pub(crate) mod loops;
/// The processes that poll: a queue in memory, work under way, and what becomes of both when they are killed.
pub(crate) mod process;
/// The page that is printed.
pub(crate) mod report;
