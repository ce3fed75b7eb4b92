//! The commands, one by one: each asks the library, and prints the answer.

pub(crate) mod add;
pub(crate) mod apply;
pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod doctor;
pub(crate) mod history;
pub(crate) mod import;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod next;
pub(crate) mod prune;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod shell;
pub(crate) mod show;
pub(crate) mod status;
