//! Demonstrates the double run: a task that takes five minutes, a loop that polls every minute, and five messages at
//! one o'clock.
//!
//! `cargo run --example double_run` runs the faulty loop, and the usual remedies, through a day on a manual clock,
//! minute by minute, with duly beside them. The output is counted, not scripted: the loops are real, on real SQLite
//! files in temporary folders, and `tests/it/double_run.rs` checks the counts.
//!
//! `cargo run --features postgres --example double_run -- --postgres [ADDRESS]` does the same with cron on three hosts
//! and the usual guards on a PostgreSQL server: that of the address, where the role must be able to create databases, or
//! one that it starts in a temporary folder. Exit code 0: each count is as documented; 1: one is not, or an error;
//! 2: no such server can be started here, or a wrong argument.

use std::process::ExitCode;

#[path = "double_run/mod.rs"]
mod bench;
#[cfg(feature = "postgres")]
#[path = "double_run/hosts/mod.rs"]
mod hosts;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => one_host(),
        ["--postgres"] => several_hosts(None),
        ["--postgres", address] => several_hosts(Some(address)),
        _ => exit("usage: double_run [--postgres [ADDRESS]]", 2),
    }
}

/// Prints a message on standard error. Returns the exit code.
fn exit(text: &str, code: u8) -> ExitCode {
    eprintln!("{text}");
    ExitCode::from(code)
}

fn one_host() -> ExitCode {
    match bench::report::page() {
        Ok(page) => {
            print!("{page}");
            ExitCode::SUCCESS
        }
        Err(error) => exit(&format!("error: {error}"), 1),
    }
}

#[cfg(feature = "postgres")]
fn several_hosts(address: Option<&str>) -> ExitCode {
    match hosts::page(address.map(str::to_owned)) {
        Ok(Some(page)) => {
            print!("{}", page.text);
            if page.is_as_expected { ExitCode::SUCCESS } else { exit("error: a count is not as expected", 1) }
        }
        Ok(None) => exit("PostgreSQL is not installed here (no initdb): give the address of a server", 2),
        Err(error) => exit(&format!("error: {error}"), 1),
    }
}

#[cfg(not(feature = "postgres"))]
fn several_hosts(_address: Option<&str>) -> ExitCode {
    exit("this is built without the feature: cargo run --features postgres --example double_run -- --postgres", 2)
}
