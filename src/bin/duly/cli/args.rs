//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use duly::RunStatus;
use serde_json::value::RawValue;

use crate::cli::add_args::Add;
use crate::cli::help_examples;
use crate::cli::import_args::Import;
use crate::cli::retention_args::Keep;
use crate::cli::values::{json, length, run_number};

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
    #[command(after_help = help_examples::RUN)]
    Run(RunArgs),
    /// Add a task: when, and what. The same again changes nothing.
    Add(Box<Add>),
    /// Make the tasks match a manifest, in one transaction. The same again changes nothing.
    #[command(after_help = help_examples::APPLY)]
    Apply(ApplyArgs),
    /// Bring tasks over from a crontab, or from NanoClaw, in one transaction. The same again changes nothing.
    #[command(subcommand, after_help = help_examples::IMPORT)]
    Import(Import),
    /// The tasks, and when each is due.
    #[command(after_help = help_examples::LIST)]
    List {
        /// The names alone, a line each; nothing where there is no database.
        #[arg(long)]
        names: bool,
    },
    /// One task: its policies, next occurrences and last runs.
    #[command(after_help = help_examples::SHOW)]
    Show {
        /// The task.
        name: String,
    },
    /// The whole at a glance: who is at work, what is due, what fails.
    #[command(after_help = help_examples::STATUS)]
    Status,
    /// What lies ahead of a task, or of a cron line that may become one.
    #[command(after_help = help_examples::NEXT)]
    Next {
        /// The task, or a line: "0 7 * * *".
        #[arg(value_name = "NAME|EXPR")]
        what: String,
        /// The zone in which a line is read: an IANA name, or local. Default: UTC.
        #[arg(long, value_name = "ZONE")]
        tz: Option<String>,
        /// From then on, instead of from now: a date, or a time. Local times are read in --tz, or in the machine's zone. Of a
        /// task: what its schedule names, whatever its status.
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
    #[command(after_help = help_examples::HISTORY)]
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
    #[command(after_help = help_examples::LOGS)]
    Logs {
        /// The run.
        #[arg(value_parser = run_number)]
        run: i64,
    },
    /// Open a run of a task now, beside its schedule.
    #[command(after_help = help_examples::TRIGGER)]
    Trigger {
        /// The task.
        name: String,
        /// What the handler is given instead of the task's payload; a command reads it from its standard input.
        #[arg(long, value_name = "JSON", value_parser = json, allow_negative_numbers = true)]
        payload: Option<Box<RawValue>>,
        /// An idempotency key: of all requests with this key, one opens a run, and all others show that run.
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Wait until it is over, and fail if it does not succeed.
        #[arg(long)]
        wait: bool,
    },
    /// Open a new run for one that is dead or cancelled: the same piece of work, once more.
    #[command(after_help = help_examples::RETRY)]
    Retry {
        /// The run.
        #[arg(value_parser = run_number)]
        run: i64,
    },
    /// Stop a task's schedule for a while.
    #[command(after_help = help_examples::PAUSE)]
    Pause {
        /// The task.
        name: String,
    },
    /// Let a paused task's schedule count again, from now.
    #[command(after_help = help_examples::RESUME)]
    Resume {
        /// The task.
        name: String,
    },
    /// Cancel a run, or all unfinished runs of a task. One that is running is asked to stop.
    #[command(after_help = help_examples::CANCEL)]
    Cancel {
        /// The run, by its number, or the task.
        #[arg(value_name = "RUN|NAME")]
        which: String,
        /// Declare that the command of a running run is gone, where duly check says that this cannot be known, or that another
        /// process is waited for. Its scheduler must be dead. The run ends as cancelled.
        #[arg(long)]
        gone: bool,
    },
    /// Remove a task with its history.
    #[command(after_help = help_examples::REMOVE)]
    Remove {
        /// The task.
        name: String,
    },
    /// For monitors: a line for each problem, and exit code 1; nothing where all is well.
    #[command(after_help = help_examples::CHECK)]
    Check {
        /// Work that has been due for longer is a problem.
        #[arg(long, value_name = "DUR", default_value = "5m", value_parser = length)]
        overdue: Duration,
        /// So many dead runs of a task in a row are a problem.
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
        failures: u32,
    },
    /// Remove what is long over, as a scheduler does little by little. Nobody waits for it.
    #[command(after_help = help_examples::PRUNE)]
    Prune {
        /// Tell how much would go, and remove nothing.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        keep: Keep,
    },
    /// Look whether the file is sound. It may be in use; nothing is written.
    #[command(after_help = help_examples::DOCTOR)]
    Doctor,
    /// Try whether duly can be trusted on this disk, in a folder that goes away.
    #[command(after_help = help_examples::SELFTEST)]
    Selftest {
        /// How long, about.
        #[arg(long = "for", value_name = "DUR", default_value = "10s", value_parser = length)]
        length: Duration,
        /// Where: the folder is made in this one. Default: the folder of --db, which itself is not opened.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// The same choices as that time: who is killed, and when.
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
    },
    /// Copy the whole file while it is in use. A scheduler on the copy is a second one.
    #[command(after_help = help_examples::BACKUP)]
    Backup {
        /// The copy. There must be no such file.
        file: PathBuf,
    },
    /// Print a script that completes commands and options in a shell.
    #[command(after_help = help_examples::COMPLETIONS)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program, or of a command: duly man add | man -l -
    #[command(after_help = help_examples::MAN)]
    Man {
        /// The command.
        command: Option<String>,
    },
}

impl Args {
    /// Reads what was typed.
    pub(crate) fn typed(words: impl IntoIterator<Item = OsString>) -> Result<Args, clap::Error> {
        let mut command = with_negative_values(Args::command());
        let read = command.try_get_matches_from_mut(words).and_then(|mut found| Args::from_arg_matches_mut(&mut found));
        read.map_err(|error| error.format(&mut command))
    }
}

/// Values that are numbers, lengths or times may begin with a hyphen: then the error names the option that does not take them.
fn with_negative_values(command: clap::Command) -> clap::Command {
    const NAMES: [&str; 5] = ["N", "RUNS", "DUR", "TIME", "EXPR"];
    let command = command.mut_args(|arg| {
        let names = arg.get_value_names().unwrap_or_default();
        let numeric = names.iter().any(|name| NAMES.contains(&name.as_str()));
        if numeric && !arg.is_positional() { arg.allow_hyphen_values(true) } else { arg }
    });
    command.mut_subcommands(with_negative_values)
}

/// How a manifest is applied.
#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    /// A TOML file: examples/tasks.toml shows one.
    pub(crate) file: PathBuf,
    /// Remove what the same manifest declared before and does not any more.
    #[arg(long)]
    pub(crate) prune: bool,
    /// With --prune: accept a manifest that declares no task, and remove all that it declared before.
    #[arg(long, requires = "prune")]
    pub(crate) allow_empty: bool,
    /// Take over tasks that another manifest declared, as after this one was moved.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Show what would change, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

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
    #[command(flatten)]
    pub(crate) keep: Keep,
}

fn run_status() -> impl TypedValueParser<Value = RunStatus> {
    let words = PossibleValuesParser::new(RunStatus::ALL.iter().map(|status| status.as_str()));
    words.try_map(|word| RunStatus::parse(&word).ok_or("expected a status"))
}

#[cfg(test)]
mod tests {
    use super::{Args, Command};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_options_fit_together() {
        Args::command().debug_assert();
    }

    /// A line as a shell splits it, up to where its output goes.
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
    fn every_command_has_examples_and_each_can_be_typed() {
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
    fn what_is_kept_is_what_the_library_keeps() {
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
