//! The selftest: whether duly can be trusted on the disk and the machine that somebody has. It asks real processes on real
//! files, in a folder of its own; the user's database is never opened.

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
pub(crate) mod system;
pub(crate) mod tasks;
pub(crate) mod wait;
