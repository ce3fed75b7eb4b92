//! The command line: commands, arguments and options.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use duly::{NamePattern, RunStatus, TaskStatus};
use serde_json::value::RawValue;

use crate::cli::add_args::Add;
use crate::cli::alarm_args::AlarmArgs;
use crate::cli::change_args::{Cancel, Remove, Retry, Tasks};
use crate::cli::help_examples;
use crate::cli::hints;
use crate::cli::import_args::Import;
use crate::cli::limit_args::Limits;
#[cfg(feature = "mcp")]
use crate::cli::mcp_args::McpArgs;
use crate::cli::retention_args::Keep;
use crate::cli::service_args::Service;
use crate::cli::typed::Typed;
use crate::cli::values::{LogFormat, duration, json_or_input, number, task_status};

/// Durable scheduler on one SQLite file: each occurrence runs once, and none is lost without a record.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 110, after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// Database file, or postgres:// address. Default: that of the variable DULY_DB, else duly.db.
    #[arg(long, value_name = "FILE", default_value = "duly.db", hide_default_value = true, global = true, help_heading = GLOBAL)]
    pub(crate) db: PathBuf,

    /// Log debug messages too; twice: trace messages.
    #[arg(short, long, action = ArgAction::Count, global = true, conflicts_with = "quiet", help_heading = GLOBAL)]
    pub(crate) verbose: u8,

    /// Print results and errors only; log warnings and errors only.
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub(crate) quiet: bool,

    /// Print one JSON document. Keys are column names, times are UTC.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,

    /// Print tables as on a terminal of any width: nothing is shortened.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) wide: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const GLOBAL: &str = "Global options";
/// Most lines that a command may be asked for.
const MOST: usize = 1_000_000_000;

const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 failed; 2 wrong usage; 3 run ended commands early; 4 no usable database; 5 selftest decided nothing.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the scheduler until SIGINT or SIGTERM.
    #[command(after_help = help_examples::RUN)]
    Run(Box<RunArgs>),
    /// Add a task. Idempotent: adding the same definition again changes nothing.
    Add(Box<Add>),
    /// Make the tasks match a TOML manifest: all of them, or none if one is refused. Idempotent.
    #[command(after_help = help_examples::APPLY)]
    Apply(ApplyArgs),
    /// Import tasks from a crontab, supercronic or NanoClaw. Idempotent.
    #[command(subcommand, after_help = help_examples::IMPORT)]
    Import(Import),
    /// List the tasks, with the next and the last runs of each.
    #[command(after_help = help_examples::LIST)]
    List(ListArgs),
    /// Show one task: its policies, next occurrences and last runs.
    #[command(after_help = help_examples::SHOW)]
    Show {
        /// Name of the task.
        name: String,
    },
    /// Show schedulers, due and failing tasks, unfinished runs, and the size of the database.
    #[command(after_help = help_examples::STATUS)]
    Status,
    /// Show the next occurrences of a task or of a cron expression.
    #[command(after_help = help_examples::NEXT)]
    Next {
        /// Name of a task, or a cron expression: "0 7 * * *".
        #[arg(value_name = "NAME|EXPR")]
        what: String,
        /// Time zone of the cron expression: an IANA name, or local. Default: UTC.
        #[arg(long, value_name = "ZONE")]
        tz: Option<String>,
        /// Start at this date or time instead of now. A local time is read in --tz, else in the zone of this machine. For a
        /// task, the status is ignored: the occurrences of its schedule are shown even if it is paused.
        #[arg(long, value_name = "TIME")]
        from: Option<String>,
        /// Number of occurrences.
        #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = number(1..=MOST))]
        number: usize,
        /// Show what would run, be skipped or be missed if no scheduler ran for this long.
        #[arg(long, value_name = "DUR", value_parser = duration, conflicts_with = "number")]
        if_down: Option<Duration>,
    },
    /// List the runs of one task or of all tasks, newest first.
    #[command(after_help = help_examples::HISTORY)]
    History {
        /// Name of a task. Default: all tasks.
        name: Option<String>,
        /// Only runs with this status.
        #[arg(long, value_name = "STATUS", value_parser = run_status())]
        status: Option<RunStatus>,
        /// Only runs scheduled since then: a date, a time, or a duration before now, such as 2h.
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Most runs to list.
        #[arg(short, long, value_name = "N", default_value_t = 20, value_parser = number(1..=MOST))]
        number: usize,
    },
    /// Show the attempts of a run, with their errors and output so far.
    #[command(after_help = help_examples::LOGS)]
    Logs {
        /// Number of the run, as history lists it, or name of a task: its newest run that was begun.
        #[arg(value_name = "RUN|NAME")]
        which: String,
        /// Print output as it comes until the run has ended, with all its attempts. The exit code is 1 if it does not succeed.
        #[arg(long, short)]
        follow: bool,
    },
    /// Start a run of a task now. Its schedule does not change.
    #[command(after_help = help_examples::TRIGGER)]
    Trigger {
        /// Name of the task.
        name: String,
        /// Payload of this run, instead of the task's own; -: read it from standard input. A command reads it from its standard input.
        #[arg(long, value_name = "JSON", value_parser = json_or_input, allow_negative_numbers = true)]
        payload: Option<Box<RawValue>>,
        /// Idempotency key: the first trigger with this key starts a run; later ones print that run and start nothing. Another payload is refused.
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Wait until the run has ended. The exit code is 1 if it does not succeed.
        #[arg(long)]
        wait: bool,
    },
    /// Start a new run in place of a dead or cancelled one, with the same payload and idempotency key; or of all that match.
    #[command(after_help = help_examples::RETRY)]
    Retry(Retry),
    /// Pause a task, or all that match: its schedule starts no runs until duly resume.
    #[command(after_help = help_examples::PAUSE)]
    Pause(Tasks),
    /// Resume a paused task, or all that match. Its schedule counts from now; occurrences during the pause are not made up for.
    #[command(after_help = help_examples::RESUME)]
    Resume(Tasks),
    /// Cancel a run, all unfinished runs of a task, or all that match. A running command is ended.
    #[command(after_help = help_examples::CANCEL)]
    Cancel(Cancel),
    /// Delete a task, or all that match, with the history. Refused while a run of it is running.
    #[command(after_help = help_examples::REMOVE)]
    Remove(Remove),
    /// List, set or remove limits: how many runs of a concurrency key run at once, how often a handler starts.
    #[command(after_help = help_examples::LIMIT)]
    Limit(Limits),
    /// Check for problems, for monitoring: one line for each and exit code 1; no output and exit code 0 if there is none.
    #[command(after_help = help_examples::CHECK)]
    Check {
        /// Report work that has been due for longer than this.
        #[arg(long, value_name = "DUR", default_value = "5m", value_parser = duration)]
        overdue: Duration,
        /// Report a task with N or more consecutive dead runs.
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = number(1..=1_000_000_u32))]
        failures: u32,
        /// Report missed occurrences also if a later one ran in their place (misfire policies run_once and run_all).
        #[arg(long)]
        all_missed: bool,
    },
    /// Delete expired history now. A running scheduler does the same in small batches.
    #[command(after_help = help_examples::PRUNE)]
    Prune {
        /// Print how much would be deleted, and delete nothing.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        keep: Keep,
    },
    /// Check the integrity of the database. It may be in use; nothing is written.
    #[command(after_help = help_examples::DOCTOR)]
    Doctor,
    /// Test whether this disk is safe for duly: locks, shared memory, syncs, and schedulers killed at random.
    #[command(after_help = help_examples::SELFTEST)]
    Selftest {
        /// Approximate length of the test.
        #[arg(long = "for", value_name = "DUR", default_value = "10s", value_parser = duration)]
        length: Duration,
        /// Folder in which the test creates its temporary folder. Default: the folder of --db. The database is not opened.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Repeat the random choices of an earlier test: which scheduler is killed, and when.
        #[arg(long, value_name = "N", value_parser = number(0..=u64::MAX))]
        seed: Option<u64>,
    },
    /// Copy the database; it may be in use. Do not run schedulers on both files: each task would run twice.
    #[command(after_help = help_examples::BACKUP)]
    Backup {
        /// File to create. It must not exist.
        file: PathBuf,
    },
    /// Copy all tasks with their history from a file to a PostgreSQL server, or back, and compare both.
    #[command(after_help = help_examples::MIGRATE)]
    Migrate {
        /// Database to read: a path, or postgres://.. No scheduler may run on it.
        #[arg(long, value_name = "DB")]
        from: PathBuf,
        /// Database to write, which must be new or empty.
        #[arg(long, value_name = "DB")]
        to: PathBuf,
    },
    /// Run duly run as a service of systemd, launchd or the Windows Task Scheduler.
    #[command(subcommand, after_help = help_examples::SERVICE)]
    Service(Service),
    /// Serve tools for an agent over the Model Context Protocol: to look always, to change only what the options admit.
    #[cfg(feature = "mcp")]
    #[command(after_help = help_examples::MCP)]
    Mcp(Box<McpArgs>),
    /// Print a completion script for a shell.
    #[command(after_help = help_examples::COMPLETIONS)]
    Completions {
        /// Shell that reads the script.
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program or of a command.
    #[command(after_help = help_examples::MAN)]
    Man {
        /// Name of a command. Default: the program.
        command: Option<String>,
    },
}

impl Args {
    /// Parses the words of a command line.
    pub(crate) fn parse_words(words: impl IntoIterator<Item = OsString>) -> Result<(Args, Typed), clap::Error> {
        let mut command = with_negative_values(Args::command());
        if let Some(file) = std::env::var_os("DULY_DB").filter(|file| !file.is_empty()) {
            // As a default: clap would print an option that a variable sets in each usage. It keeps the text as long as the program runs.
            command = command.mut_arg("db", |db| db.default_value(&*file.leak()));
        }
        let words: Vec<OsString> = words.into_iter().collect();
        let matches = command.try_get_matches_from_mut(&words).map_err(|error| hints::hinted(error, &words))?;
        let args = Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        Ok((args, Typed::new(&command, &matches)))
    }
}

/// Lets values of numbers, durations and times begin with a hyphen, so that the error names the option that refuses them.
fn with_negative_values(command: clap::Command) -> clap::Command {
    const NAMES: [&str; 5] = ["N", "RUNS", "DUR", "TIME", "EXPR"];
    let command = command.mut_args(|arg| {
        let names = arg.get_value_names().unwrap_or_default();
        let numeric = names.iter().any(|name| NAMES.contains(&name.as_str()));
        if numeric && !arg.is_positional() { arg.allow_hyphen_values(true) } else { arg }
    });
    command.mut_subcommands(with_negative_values)
}

/// Arguments of `apply`.
#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    /// TOML file; examples/tasks.toml is an example.
    pub(crate) file: PathBuf,
    /// Remove tasks that this manifest declared before and no longer declares.
    #[arg(long)]
    pub(crate) prune: bool,
    /// With --prune: accept a manifest without tasks, and remove all tasks that it declared before.
    #[arg(long, requires = "prune")]
    pub(crate) allow_empty: bool,
    /// Take over tasks that another manifest declared, for example after the file was moved.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Show what would change, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Names of tasks; * stands for any text, ? for one character. Default: all tasks, except one-time tasks that are completed
    /// and not dead.
    #[arg(value_name = "NAME")]
    pub(crate) patterns: Vec<NamePattern>,
    /// List completed one-time tasks too.
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only tasks with this status.
    #[arg(long, value_name = "STATUS", value_parser = task_status())]
    pub(crate) status: Option<TaskStatus>,
    /// Only tasks of this handler.
    #[arg(long, value_name = "HANDLER")]
    pub(crate) handler: Option<String>,
    /// Only tasks that were added by such a client or manifest, such as mcp:claude-code or "mcp:*".
    #[arg(long, value_name = "PATTERN")]
    pub(crate) added_by: Option<NamePattern>,
    /// Most tasks to list. Default: no limit.
    #[arg(short, long, value_name = "N", value_parser = number(1..=MOST))]
    pub(crate) number: Option<usize>,
    /// Print only the names of all tasks, one on each line; nothing if the database does not exist.
    #[arg(long = "names", conflicts_with_all = ["patterns", "all", "status", "handler", "added_by", "number"])]
    pub(crate) only_names: bool,
}

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Apply this manifest first, as duly apply does. Creates the database if it does not exist.
    #[arg(long, value_name = "FILE")]
    pub(crate) tasks: Option<PathBuf>,
    /// Create the database if it does not exist. If the file holds tables of another program, add the tables of duly.
    #[arg(long)]
    pub(crate) create: bool,
    /// Most commands that run at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number(1..=256_usize))]
    pub(crate) workers: usize,
    /// Worker: a long-lived program whose functions are handlers. May be given several times. The command is split into words as a shell
    /// does, and started without a shell. -: the application that has started this program, over standard input and output.
    #[arg(long, value_name = "NAME=ARGV|-", allow_hyphen_values = true)]
    pub(crate) worker: Vec<String>,
    /// Time limits of workers, for tests.
    #[arg(long, hide = true, value_name = "TIMES")]
    pub(crate) worker_times: Option<String>,
    /// Poll interval: how often to look for changes made by other programs.
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = duration)]
    pub(crate) poll: Duration,
    /// Lease: how long this scheduler counts as working without a heartbeat. After that it is reported as stuck.
    #[arg(long, value_name = "DUR", default_value = "1m", value_parser = duration)]
    pub(crate) lease: Duration,
    /// After SIGINT or SIGTERM: how long running commands may continue before they are ended.
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = duration)]
    pub(crate) drain: Duration,
    /// Exit when no task is due and no run is waiting to start, running, or waiting for a retry.
    #[arg(long)]
    pub(crate) until_idle: bool,
    /// Start commands with PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_ALL and TZ, the variables of the task and those of duly alone.
    /// Default: commands inherit the environment of duly run.
    #[arg(long)]
    pub(crate) clean_env: bool,
    /// Form of the log on standard error. Default: json with --json; journald if standard error is the systemd journal; else text.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Copy each line that a command prints, after the name of its task, to standard output or standard error, as the command
    /// does. With a JSON log, each is a JSON object: task, run, stream, line.
    #[arg(long)]
    pub(crate) forward_output: bool,
    /// Serve the status page, /metrics, /healthz and /api on this address of the loopback interface, such as 127.0.0.1:8629. Port 0: a
    /// free port, which the log shows.
    #[cfg(feature = "page")]
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// Let every user of this machine trigger, pause, resume, cancel and retry on the status page.
    #[cfg(feature = "page")]
    #[arg(long, requires = "http")]
    pub(crate) http_actions: bool,
    /// Add metrics with the names of tasks: several time series for each.
    #[cfg(feature = "page")]
    #[arg(long, requires = "http")]
    pub(crate) metrics_per_task: bool,
    #[command(flatten)]
    pub(crate) alarms: AlarmArgs,
    #[command(flatten)]
    pub(crate) keep: Keep,
}

fn run_status() -> impl TypedValueParser<Value = RunStatus> {
    let words = PossibleValuesParser::new(RunStatus::ALL.iter().map(|status| status.as_str()));
    words.try_map(|word| RunStatus::parse(&word).ok_or("unknown status"))
}

#[cfg(test)]
mod tests {
    use super::{Args, Command};
    use clap::{CommandFactory, Parser};

    #[test]
    fn definitions_are_consistent() {
        Args::command().debug_assert();
    }

    /// Splits a line as a shell does, up to a pipe or a redirection.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for letter in line.chars() {
            match (quote, letter) {
                (None, '|' | '>') => break,
                (None, ' ') => words.push(String::new()),
                (None, '"' | '\'') => quote = Some(letter),
                (Some(open), letter) if letter == open => quote = None,
                (_, letter) => words.last_mut().unwrap().push(letter),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        for command in Args::command().get_subcommands() {
            let (name, help) = (command.get_name(), command.get_after_help().map(ToString::to_string));
            let help = help.unwrap_or_else(|| panic!("{name} has no example"));
            let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{name}: {help}"));
            for example in examples.lines() {
                let words = words(example);
                assert!(words.iter().any(|word| word == name), "{example} is no example of {name}");
                Args::try_parse_from(&words).unwrap_or_else(|error| panic!("{example}: {error}"));
            }
        }
    }

    #[test]
    fn retention_defaults_are_those_of_the_library() {
        for line in [&["duly", "run"], &["duly", "prune"]] {
            let keep = match Args::try_parse_from(line).unwrap().command {
                Command::Run(run) => run.keep.retention(),
                Command::Prune { keep, .. } => keep.retention(),
                other => panic!("{other:?}"),
            };
            assert_eq!(keep, duly::Retention::default(), "{line:?}");
        }
    }
}
