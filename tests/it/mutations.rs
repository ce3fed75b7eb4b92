//! Input as nobody would write it, to every door: text with a few changes, rows that other programs wrote by SQL, files with
//! bytes exchanged. Never a panic, never a hang, never a wrong exit code; a refusal is one line that says what would do; what
//! is accepted means what a second reading of it says, and is the same when it is written out and read again.
//!
//! `DULY_MUTATIONS=50 cargo test --test it mutations` tries fifty times as much; a case that fails prints its seed. What only
//! the program reads, manifests, crontabs and payloads, has its loops in the program's own tests, with the same mutator.

/// Cron lines, beside a reader that knows no croner.
mod cron;
/// A database with bytes, pages or a log that are not what they were.
mod file;
/// Seeds and changes.
pub(crate) mod mutator;
/// The program as a process, with lines, files and databases that are not right.
mod program;
/// Rows whose every column was set to something odd.
mod rows;
/// The other forms of text: durations, instants, names of zones, and what a task is put together of.
mod values;
