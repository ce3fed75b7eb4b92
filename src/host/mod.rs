//! What only the operating system knows: files and their names, locks, processes. What differs between systems stands in `platform`.

pub(crate) mod attempt_slots;
pub(crate) mod fault_points;
pub(crate) mod file_aliases;
pub(crate) mod folder;
pub(crate) mod orphan;
pub(crate) mod owner_lock;
pub(crate) mod panics;
pub(crate) mod platform;
pub(crate) mod process;
