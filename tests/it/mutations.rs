//! Mutated input to every interface: text with a few changes, rows written by SQL, files with changed bytes. Never a panic,
//! a hang or a wrong exit code; a refusal is one line that says what is expected; accepted input means what a second
//! implementation reads, and stays the same when it is written out and read again.
//!
//! `DULY_MUTATIONS=50 cargo test --test it mutations` tries fifty times as much; a failing case prints its seed. What only
//! the program reads (manifests, crontabs, payloads) is tested in the program's own tests, with the same mutator.

/// Cron lines, beside a second reader without croner.
pub(crate) mod cron;
/// A database with changed bytes, pages or log.
mod file;
/// Seeds and changes.
pub(crate) mod mutator;
/// The program as a process, with mutated lines, files and databases.
mod program;
/// Rows with an unusual value in every column.
mod rows;
/// The other text forms: durations, instants, zone names, and tasks of unusual parts.
mod values;
