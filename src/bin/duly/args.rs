//! What can be typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, ArgGroup, Parser, Subcommand};
use duly::{Misfire, Overlap, RunStatus};
use serde_json::value::RawValue;

use crate::import::asked::Import;
use crate::values::{json, length, run_number, variable, variable_name};

/// Scheduled work in one SQLite file: each occurrence once, none lost in silence.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 110, after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// The database.
    #[arg(
        long,
        value_name = "FILE",
        env = "DULY_DB",
        hide_env_values = true,
        default_value = "duly.db",
        global = true
    )]
    pub(crate) db: PathBuf,

    /// Say more.
    #[arg(short, long, action = ArgAction::Count, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: u8,

    /// Say nothing of what was done.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Print one JSON document: keys are column names, times UTC.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 run cut work short; 4 no usable database.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run what is due, until SIGINT or SIGTERM.
    Run(RunArgs),
    /// Add a task: when, and what. The same again changes nothing.
    Add(Box<Add>),
    /// Make the tasks match a manifest, in one transaction. The same again changes nothing.
    Apply {
        /// A TOML file: examples/tasks.toml shows one.
        file: PathBuf,
        /// Remove what the same manifest declared before and does not any more.
        #[arg(long)]
        prune: bool,
        /// Show what would change, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Bring tasks over from a crontab, or from NanoClaw, in one transaction. The same again changes nothing.
    #[command(subcommand)]
    Import(Import),
    /// The tasks, and when each is due.
    List,
    /// One task: its policies, next occurrences and last runs.
    Show {
        /// The task.
        name: String,
    },
    /// The whole at a glance: who is at work, what is due, what fails.
    Status,
    /// What lies ahead of a task, or of a cron line that may become one.
    Next {
        /// The task, or a line: "0 7 * * *".
        #[arg(value_name = "NAME|EXPR")]
        what: String,
        /// The zone in which a line is read: an IANA name, or local. Default: UTC.
        #[arg(long, value_name = "ZONE")]
        tz: Option<String>,
        /// From then on, instead of from now.
        #[arg(long, value_name = "TIME")]
        from: Option<String>,
        /// How many.
        #[arg(short, long, value_name = "N", default_value_t = 5)]
        number: usize,
        /// What would become of it if no scheduler ran for so long.
        #[arg(long, value_name = "DUR", value_parser = length, conflicts_with = "number")]
        if_down: Option<Duration>,
    },
    /// The newest runs, of one task or of all, newest first.
    History {
        /// The task.
        name: Option<String>,
        /// Only those that stand so.
        #[arg(long, value_name = "STATUS", value_parser = run_status())]
        status: Option<RunStatus>,
        /// Only those from then on: a date, a time, or how long ago, as in 2h.
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// How many.
        #[arg(short, long, value_name = "N", default_value_t = 20)]
        number: usize,
    },
    /// What a run's attempts said and printed.
    Logs {
        /// The run.
        #[arg(value_parser = run_number)]
        run: i64,
    },
    /// Open a run of a task now, beside its schedule.
    Trigger {
        /// The task.
        name: String,
        /// What the handler is given instead of the task's payload.
        #[arg(long, value_name = "JSON", value_parser = json, allow_negative_numbers = true)]
        payload: Option<Box<RawValue>>,
        /// Wait until it is over, and fail if it does not succeed.
        #[arg(long)]
        wait: bool,
    },
    /// Open a new run for one that is dead or cancelled: the same piece of work, once more.
    Retry {
        /// The run.
        #[arg(value_parser = run_number)]
        run: i64,
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
    /// Cancel a run, or all unfinished runs of a task. One that is running is asked to stop.
    Cancel {
        /// The run, by its number, or the task.
        #[arg(value_name = "RUN|NAME")]
        which: String,
    },
    /// Remove a task with its history.
    Remove {
        /// The task.
        name: String,
    },
    /// For monitors: a line for each problem, and exit code 1; nothing where all is well.
    Check {
        /// Work that has been due for longer is a problem.
        #[arg(long, value_name = "DUR", default_value = "5m", value_parser = length)]
        overdue: Duration,
        /// So many dead runs of a task in a row are a problem.
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
        failures: u32,
    },
    /// Look whether the file is sound. It may be in use; nothing is written.
    Doctor,
    /// Copy the whole file while it is in use. A scheduler on the copy is a second one.
    Backup {
        /// The copy. There must be no such file.
        file: PathBuf,
    },
    /// Print a script that completes commands and options in a shell.
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program, or of a command: duly man add | man -l -
    Man {
        /// The command.
        command: Option<String>,
    },
}

const COMPLETIONS: &str = r#"Examples:
  duly completions bash > ~/.local/share/bash-completion/completions/duly
  duly completions zsh > "${fpath[1]}/_duly"
  duly completions fish > ~/.config/fish/completions/duly.fish"#;

/// How `duly run` works.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Apply this manifest first, as apply does; the database is made if there is none.
    #[arg(long, value_name = "FILE")]
    pub(crate) tasks: Option<PathBuf>,
    /// Make the database if there is none.
    #[arg(long)]
    pub(crate) create: bool,
    /// How many commands run at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) workers: usize,
    /// How often to look for what other programs wrote.
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = length)]
    pub(crate) poll: Duration,
    /// How long this scheduler is believed to move without a sign of life.
    #[arg(long, value_name = "DUR", default_value = "1m", value_parser = length)]
    pub(crate) lease: Duration,
    /// When told to leave, how long running commands may go on.
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = length)]
    pub(crate) drain: Duration,
    /// End when nothing is due, may start, runs, or waits for another try.
    #[arg(long)]
    pub(crate) until_idle: bool,
}

const WHEN: &str = "When (one of)";
const WHAT: &str = "What (one of)";
const COMMAND: &str = "For a command";
const POLICIES: &str = "Policies";

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "duly add NAME <WHEN> [OPTIONS] (-- ARGV.. | --shell LINE | --handler NAME)",
    group = ArgGroup::new("when").required(true),
    group = ArgGroup::new("what").required(true),
    after_help = EXAMPLES
)]
pub(crate) struct Add {
    /// Its name: a letter, then letters, digits or . _ : / @ -
    pub(crate) name: String,

    /// At the times that a cron line names: "0 7 * * *", "@daily".
    #[arg(long, value_name = "EXPR", group = "when", help_heading = WHEN)]
    pub(crate) cron: Option<String>,
    /// Every so often, on a fixed grid: 15m.
    #[arg(long, value_name = "DUR", group = "when", help_heading = WHEN)]
    pub(crate) every: Option<String>,
    /// So long after the end of its last run.
    #[arg(long, value_name = "DUR", group = "when", help_heading = WHEN)]
    pub(crate) after: Option<String>,
    /// Once, then: 2027-03-14T12:00:00Z, or a local time in --tz.
    #[arg(long, value_name = "TIME", group = "when", help_heading = WHEN)]
    pub(crate) at: Option<String>,
    /// Once, so long from now.
    #[arg(long = "in", value_name = "DUR", group = "when", help_heading = WHEN, value_parser = length)]
    pub(crate) within: Option<Duration>,
    /// Once, now.
    #[arg(long, group = "when", help_heading = WHEN)]
    pub(crate) now: bool,

    /// The zone in which times are read: an IANA name, or local for this machine's.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) tz: String,
    /// If a task of this name differs, make it what is given.
    #[arg(long, conflicts_with = "if_absent")]
    pub(crate) replace: bool,
    /// If there is a task of this name, leave it as it is.
    #[arg(long)]
    pub(crate) if_absent: bool,

    /// A command and its arguments. No shell reads them.
    #[arg(last = true, value_name = "ARGV", group = "what")]
    pub(crate) argv: Vec<String>,
    /// A line for /bin/sh.
    #[arg(long, value_name = "LINE", group = "what", help_heading = WHAT)]
    pub(crate) shell: Option<String>,
    /// A handler of an application that has this file open.
    #[arg(long, value_name = "NAME", group = "what", help_heading = WHAT)]
    pub(crate) handler: Option<String>,
    /// What the handler is given.
    #[arg(long, value_name = "JSON", requires = "handler", help_heading = WHAT, value_parser = json,
          allow_negative_numbers = true)]
    pub(crate) payload: Option<Box<RawValue>>,

    /// The folder to run it in. Default: this one.
    #[arg(long, value_name = "DIR", conflicts_with = "handler", help_heading = COMMAND)]
    pub(crate) cwd: Option<PathBuf>,
    /// A variable for it. It is stored: no place for secrets.
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "handler", help_heading = COMMAND, value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// A variable that it must find; only the name is stored.
    #[arg(long, value_name = "NAME", conflicts_with = "handler", help_heading = COMMAND, value_parser = variable_name)]
    pub(crate) env_from: Vec<String>,
    /// What it reads from its standard input.
    #[arg(long, value_name = "TEXT", conflicts_with = "handler", help_heading = COMMAND)]
    pub(crate) stdin: Option<String>,

    #[command(flatten)]
    pub(crate) policies: Policies,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = POLICIES)]
pub(crate) struct Policies {
    /// What becomes of an occurrence while an earlier run is unfinished. Default: skip.
    #[arg(long, value_name = "POLICY", value_parser = overlap())]
    pub(crate) overlap: Option<Overlap>,
    /// What becomes of occurrences that nobody was there for. Default: run_once.
    #[arg(long, value_name = "POLICY", value_parser = misfire())]
    pub(crate) misfire: Option<Misfire>,
    /// How late an occurrence is none of those yet. Default: 1m.
    #[arg(long, value_name = "DUR", value_parser = length)]
    pub(crate) misfire_grace: Option<Duration>,
    /// Most runs that wait or catch up. Default: 100.
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u32).range(1..=i64::from(duly::MAX_CATCH_UP)))]
    pub(crate) catch_up_limit: Option<u32>,
    /// A run that has not begun by then is missed. Default: never.
    #[arg(long, value_name = "DUR", value_parser = length)]
    pub(crate) expires: Option<Duration>,
    /// How often a run is tried. Default: 5.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_attempts: Option<u32>,
    /// Start once or never: --max-attempts 1.
    #[arg(long, conflicts_with = "max_attempts")]
    pub(crate) at_most_once: bool,
    /// The wait after the first failure; it doubles with each further one. Default: 10s.
    #[arg(long, value_name = "DUR", value_parser = length)]
    pub(crate) backoff: Option<Duration>,
    /// The longest such wait. Default: 1h.
    #[arg(long, value_name = "DUR", value_parser = length)]
    pub(crate) backoff_cap: Option<Duration>,
    /// Longest an attempt may take; 0: no limit. Default: the handler's, 1h for commands.
    #[arg(long, value_name = "DUR", value_parser = length)]
    pub(crate) timeout: Option<Duration>,
    /// Start a fixed part of this later than due. Default: 0.
    #[arg(long, value_name = "DUR", value_parser = length)]
    pub(crate) jitter: Option<Duration>,
    /// 0 (first) to 3. Default: 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub(crate) priority: Option<u8>,
    /// At most one run with this key runs at a time, across tasks. Default: the task's own.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// A task that gets a run, with the dead run as its payload, whenever one of this task dies.
    #[arg(long, value_name = "NAME")]
    pub(crate) on_dead: Option<String>,
    /// Pause the task after so many dead runs in a row. Default: never.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) pause_after_failures: Option<u32>,
    /// No occurrence before then.
    #[arg(long, value_name = "TIME")]
    pub(crate) starts_at: Option<String>,
    /// No occurrence after then.
    #[arg(long, value_name = "TIME")]
    pub(crate) ends_at: Option<String>,
}

const EXAMPLES: &str = r#"Examples:
  duly add nightly --cron "0 3 * * *" --tz local -- ./backup.sh --full
  duly add poll --every 15m --overlap skip --timeout 5m --shell 'curl -sf "$URL" | ./import'
  duly add reminder --in 2h --at-most-once -- notify-send "Tea is ready"
  duly add digest --cron "0 7 * * mon-fri" --handler digest --payload '{"to": "anna"}'"#;

fn run_status() -> impl TypedValueParser<Value = RunStatus> {
    let words = PossibleValuesParser::new(RunStatus::ALL.iter().map(|status| status.as_str()));
    words.try_map(|word| RunStatus::parse(&word).ok_or("expected a status"))
}

fn overlap() -> impl TypedValueParser<Value = Overlap> {
    let words = PossibleValuesParser::new(Overlap::ALL.iter().map(|policy| policy.as_str()));
    words.try_map(|word| Overlap::parse(&word).ok_or("expected a policy"))
}

fn misfire() -> impl TypedValueParser<Value = Misfire> {
    let words = PossibleValuesParser::new(Misfire::ALL.iter().map(|policy| policy.as_str()));
    words.try_map(|word| Misfire::parse(&word).ok_or("expected a policy"))
}

#[cfg(test)]
mod tests {
    use super::Args;
    use clap::CommandFactory;

    #[test]
    fn the_options_fit_together() {
        Args::command().debug_assert();
    }
}
