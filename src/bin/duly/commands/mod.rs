//! The commands. Each calls the library and prints the result.

pub(crate) mod add;
pub(crate) mod apply;
pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod difference;
pub(crate) mod doctor;
pub(crate) mod follow;
pub(crate) mod history;
pub(crate) mod import;
pub(crate) mod limit;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod matching;
pub(crate) mod migrate;
pub(crate) mod next;
pub(crate) mod prune;
pub(crate) mod run;
pub(crate) mod run_status;
pub(crate) mod selftest;
#[cfg(feature = "postgres")]
pub(crate) mod selftest_server;
pub(crate) mod service;
pub(crate) mod shell;
pub(crate) mod show;
pub(crate) mod status;
