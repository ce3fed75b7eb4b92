//! Retention options of `prune` and `run`.

use std::time::Duration;

use duly::Retention;

use crate::cli::values::{duration, number};

/// How long history is kept. The defaults are those of the library; a test compares them.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Retention")]
pub(crate) struct Keep {
    /// Keep completed one-time tasks, with their runs, for this long.
    #[arg(long, value_name = "DUR", default_value = "30d", value_parser = duration)]
    pub(crate) keep_once: Duration,
    /// Keep finished runs of other tasks for this long.
    #[arg(long, value_name = "DUR", default_value = "30d", value_parser = duration)]
    pub(crate) keep_runs: Duration,
    /// Keep at least the newest N runs of each task, however old they are.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = number(0..=u32::MAX))]
    pub(crate) least_runs: u32,
    /// Keep at most the newest N runs of each task, however new the others are.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = number(1..=u32::MAX))]
    pub(crate) most_runs: u32,
    /// Keep events, and the records of stopped schedulers, for this long.
    #[arg(long, value_name = "DUR", default_value = "30d", value_parser = duration)]
    pub(crate) keep_events: Duration,
}

impl Keep {
    pub(crate) fn retention(&self) -> Retention {
        Retention {
            once: self.keep_once,
            runs: self.keep_runs,
            least_runs: self.least_runs,
            most_runs: self.most_runs,
            events: self.keep_events,
        }
    }
}
