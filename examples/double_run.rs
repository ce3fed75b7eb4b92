//! The bug, on the bench: a task that takes five minutes, a loop that polls every minute, and five messages at one o'clock.
//!
//! `cargo run --example double_run` puts the loop that doubles, and the remedies that people reach for, through a day on a
//! clock that is moved by hand, minute by minute, with duly beside them. What it prints is counted, not told: the loops
//! are real, on real SQLite files in temporary folders, and `tests/it/double_run.rs` holds them to the same counts.

use std::process::ExitCode;

#[path = "double_run/mod.rs"]
mod bench;

fn main() -> ExitCode {
    match bench::report::page() {
        Ok(page) => {
            print!("{page}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
