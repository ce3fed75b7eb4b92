//! Real processes that are killed: one driver (`soak`), one journal (`journal`) and one checker (`checker`). Handlers, commands and
//! workers append to the journal when they start and when they end; afterwards it is compared with the tables.
//!
//! `soaks` has the scenarios: which schedulers, which tasks, which faults. `torture` has all faults at once, `namespaces` those of evidence. `host_faults` uses the same
//! journal and checker on several hosts.
#![cfg(target_os = "linux")]

pub(crate) mod checker;
pub(crate) mod handlers;
pub(crate) mod journal;
mod namespaces;
pub(crate) mod process;
mod restores;
pub(crate) mod soak;
mod soaks;
mod tasks;
mod torture;
