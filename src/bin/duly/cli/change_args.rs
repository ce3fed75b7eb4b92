//! Arguments of `cancel`, `retry`, `remove`, `pause` and `resume`: one run or task, or all that a filter selects.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use duly::{RunStatus, TaskStatus};

use crate::cli::values::{run_number, task_status};

/// The conditions of a filter, and the options that need one.
const CONDITIONS: [&str; 5] = ["handler", "pattern", "added_by", "older_than", "all"];
const CONDITIONS_AND_STATUS: [&str; 6] = ["status", "handler", "pattern", "added_by", "older_than", "all"];
const OPTIONS: [&str; 7] = ["handler", "pattern", "added_by", "older_than", "all", "dry_run", "yes"];
const OPTIONS_AND_STATUS: [&str; 8] =
    ["status", "handler", "pattern", "added_by", "older_than", "all", "dry_run", "yes"];

/// The conditions that runs and tasks share, and how the change is confirmed.
#[derive(Debug, clap::Args)]
pub(crate) struct Matching {
    /// Only those of this handler.
    #[arg(long, value_name = "HANDLER", help_heading = FILTER)]
    pub(crate) handler: Option<String>,
    /// Only those of tasks with such a name; * stands for any text, ? for one character.
    #[arg(long = "name", value_name = "PATTERN", help_heading = FILTER)]
    pub(crate) pattern: Option<String>,
    /// Only those of tasks that were added by such a client or manifest, such as mcp:claude-code or "mcp:*".
    #[arg(long, value_name = "PATTERN", help_heading = FILTER)]
    pub(crate) added_by: Option<String>,
    /// Only runs that were scheduled before then, or tasks that were last changed and ran before then: a duration before now,
    /// such as 2h, a date, or a time.
    #[arg(long, value_name = "TIME", help_heading = FILTER)]
    pub(crate) older_than: Option<String>,
    /// Everything, without a condition.
    #[arg(long, help_heading = FILTER)]
    pub(crate) all: bool,
    /// Print what would change, and change nothing.
    #[arg(long, help_heading = FILTER, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Do not ask. Required where there is no terminal.
    #[arg(short, long, help_heading = FILTER)]
    pub(crate) yes: bool,
}

const FILTER: &str = "Filter, instead of one run or task";

/// Arguments of `cancel`.
#[derive(Debug, clap::Args)]
pub(crate) struct Cancel {
    /// Number of a run, or name of a task.
    #[arg(
        value_name = "RUN|NAME",
        required_unless_present_any = CONDITIONS_AND_STATUS,
        conflicts_with_all = OPTIONS_AND_STATUS
    )]
    pub(crate) which: Option<String>,
    /// Declare that the command of a running run has ended, where duly check reports that duly cannot know this or waits
    /// for another process. The scheduler of the run must be dead. The run becomes cancelled.
    #[arg(long, conflicts_with_all = OPTIONS_AND_STATUS)]
    pub(crate) gone: bool,
    /// Only runs with this status.
    #[arg(long, value_name = "STATUS", help_heading = FILTER, value_parser = run_status(["queued", "running", "failed"]))]
    pub(crate) status: Option<RunStatus>,
    #[command(flatten)]
    pub(crate) matching: Matching,
}

/// Arguments of `retry`.
#[derive(Debug, clap::Args)]
pub(crate) struct Retry {
    /// Number of the run, as history lists it.
    #[arg(
        value_parser = run_number,
        required_unless_present_any = CONDITIONS_AND_STATUS,
        conflicts_with_all = OPTIONS_AND_STATUS
    )]
    pub(crate) run: Option<i64>,
    /// Only runs with this status. Default: dead.
    #[arg(long, value_name = "STATUS", help_heading = FILTER, value_parser = run_status(["dead", "cancelled"]))]
    pub(crate) status: Option<RunStatus>,
    #[command(flatten)]
    pub(crate) matching: Matching,
}

/// Arguments of `remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// Name of the task.
    #[arg(required_unless_present_any = CONDITIONS_AND_STATUS, conflicts_with_all = OPTIONS_AND_STATUS)]
    pub(crate) name: Option<String>,
    /// Cancel its unfinished runs first, and wait up to 30 seconds until running commands have ended.
    #[arg(long, conflicts_with_all = OPTIONS_AND_STATUS)]
    pub(crate) cancel: bool,
    /// Only tasks with this status.
    #[arg(long, value_name = "STATUS", help_heading = FILTER, value_parser = task_status())]
    pub(crate) status: Option<TaskStatus>,
    #[command(flatten)]
    pub(crate) matching: Matching,
}

/// Arguments of `pause` and `resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct Tasks {
    /// Name of the task.
    #[arg(required_unless_present_any = CONDITIONS, conflicts_with_all = OPTIONS)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) matching: Matching,
}

fn run_status<const N: usize>(words: [&'static str; N]) -> impl TypedValueParser<Value = RunStatus> {
    PossibleValuesParser::new(words).try_map(|word| RunStatus::parse(&word).ok_or("unknown status"))
}
