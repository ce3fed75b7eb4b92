//! Demonstrates the double run: a task that takes five minutes, a loop that polls every minute, and five messages at
//! one o'clock.
//!
//! `cargo run --example double_run` runs the faulty loop, and the usual remedies, through a day on a manual clock,
//! minute by minute, with duly beside them. The output is counted, not scripted: the loops are real, on real SQLite
//! files in temporary folders, and `tests/it/double_run.rs` checks the counts.

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
