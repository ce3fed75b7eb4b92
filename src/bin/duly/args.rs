//! What can be typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Scheduled work in one SQLite file: each occurrence once, none lost in silence.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// The database.
    #[arg(long, value_name = "FILE", env = "DULY_DB", default_value = "duly.db", global = true)]
    pub(crate) db: PathBuf,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The tasks, and when each is due.
    List,
    /// The newest runs, of one task or of all, newest first.
    History {
        /// The task.
        name: Option<String>,
        /// How many.
        #[arg(short, long, value_name = "RUNS", default_value_t = 20)]
        number: usize,
    },
    /// Open a run of a task now, beside its schedule.
    Trigger {
        /// The task.
        name: String,
    },
    /// Stop a task's schedule for a while.
    Pause {
        /// The task.
        name: String,
    },
    /// Let a paused task's schedule count again, from now.
    Resume {
        /// The task.
        name: String,
    },
    /// Cancel a run, or ask it to stop if it is running.
    Cancel {
        /// The run.
        run: i64,
    },
    /// Remove a task with its history.
    Remove {
        /// The task.
        name: String,
    },
}
