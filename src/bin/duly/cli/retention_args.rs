//! How long what is over is kept: the same options for `prune` and for `run`.

use std::time::Duration;

use duly::Retention;

use crate::cli::values::length;

/// What is kept. The defaults are the library's; a test compares them.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What is kept")]
pub(crate) struct Keep {
    /// Completed tasks that were due once, with their runs.
    #[arg(long, value_name = "DUR", default_value = "30d", value_parser = length)]
    pub(crate) keep_once: Duration,
    /// Final runs of other tasks.
    #[arg(long, value_name = "DUR", default_value = "30d", value_parser = length)]
    pub(crate) keep_runs: Duration,
    /// So many runs of each task, however old.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) least_runs: u32,
    /// Of more runs of a task the oldest go, however young.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) most_runs: u32,
    /// Events, and the rows of schedulers that have stopped.
    #[arg(long, value_name = "DUR", default_value = "30d", value_parser = length)]
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
