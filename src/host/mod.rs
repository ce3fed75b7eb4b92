//! Everything that depends on the operating system: files, locks, processes. Differences between systems are in
//! `platform`.

pub(crate) mod attempt_slots;
pub(crate) mod evidence;
pub(crate) mod fault_points;
pub(crate) mod file_aliases;
pub(crate) mod folder;
pub(crate) mod guard_lock;
pub(crate) mod halting;
pub(crate) mod locked;
pub(crate) mod orphan;
pub(crate) mod owner_lock;
pub(crate) mod panics;
pub(crate) mod platform;
pub(crate) mod process;
pub(crate) mod shared_input;
#[cfg(feature = "postgres")]
pub(crate) mod state_folder;
