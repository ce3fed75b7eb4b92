//! The selftest: whether a disk and a machine are safe for duly. It uses real processes and files in a temporary folder, and never
//! opens the database of the user.

pub(crate) mod bench;
pub(crate) mod checker;
pub(crate) mod child;
pub(crate) mod disk;
pub(crate) mod folder;
pub(crate) mod kills;
pub(crate) mod naive;
pub(crate) mod probe;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod scenario;
pub(crate) mod tasks;
pub(crate) mod wait;
