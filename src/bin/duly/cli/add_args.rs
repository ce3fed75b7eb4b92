//! Arguments of `add`: the schedule, what to run, and the policies.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgGroup;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use duly::{Misfire, NewTask, Overlap, RetryPolicy};
use serde_json::value::RawValue;

use crate::cli::help_examples;
use crate::cli::values::{
    MAX_EXIT_CODE, command_line, duration, expiry, json_or_input, number, schedule_duration, variable, variable_name,
};

const WHEN: &str = "Schedule (exactly one)";
const WHAT: &str = "What to run (exactly one, or -- ARGV)";
const COMMAND: &str = "Options of a command";
const POLICIES: &str = "Policies";

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "duly add NAME <WHEN> [OPTIONS] (-- ARGV.. | --shell LINE | --handler NAME)",
    group = ArgGroup::new("when").required(true),
    group = ArgGroup::new("what").required(true),
    after_help = help_examples::ADD
)]
pub(crate) struct Add {
    /// Name of the task: a letter, then letters, digits or . _ : / @ -
    pub(crate) name: String,

    /// Run at the times of a cron expression: "0 7 * * *", "@daily".
    #[arg(long, value_name = "EXPR", group = "when", help_heading = WHEN)]
    pub(crate) cron: Option<String>,
    /// Run every N days, weeks or months: "every 2 weeks on mon at 09:00", "every month on 1, last fri at 06:00". They are
    /// counted from --starts-at, else from now.
    #[arg(long, value_name = "TEXT", group = "when", help_heading = WHEN)]
    pub(crate) on: Option<String>,
    /// Run at a fixed interval: 15m. The length of a run does not shift it.
    #[arg(long, value_name = "DUR", group = "when", help_heading = WHEN, value_parser = schedule_duration)]
    pub(crate) every: Option<String>,
    /// Run again this long after the previous run has ended: 15m.
    #[arg(long, value_name = "DUR", group = "when", help_heading = WHEN, value_parser = schedule_duration)]
    pub(crate) after: Option<String>,
    /// Run once at this time: 2027-03-14T12:00:00Z, or a local time in --tz.
    #[arg(long, value_name = "TIME", group = "when", help_heading = WHEN)]
    pub(crate) at: Option<String>,
    /// Run once, this long from now: 2h.
    #[arg(long = "in", value_name = "DUR", group = "when", help_heading = WHEN, value_parser = duration)]
    pub(crate) within: Option<Duration>,
    /// Run once, now.
    #[arg(long, group = "when", help_heading = WHEN)]
    pub(crate) now: bool,
    /// Run only when triggered, or by the --on-dead, --on-success, --on-end or --on-missed of another task.
    #[arg(long, group = "when", help_heading = WHEN, conflicts_with_all = ["starts_at", "ends_at"])]
    pub(crate) manual: bool,

    /// Time zone of the schedule: an IANA name, or local for the zone of this machine.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) tz: String,
    /// Change an existing task of this name to the given definition.
    #[arg(long, conflicts_with = "if_absent")]
    pub(crate) replace: bool,
    /// Leave an existing task of this name unchanged, even if it differs.
    #[arg(long)]
    pub(crate) if_absent: bool,

    /// Command and its arguments, started without a shell.
    #[arg(last = true, value_name = "ARGV", group = "what")]
    pub(crate) argv: Vec<String>,
    /// Command line for /bin/sh; on Windows for cmd.exe.
    #[arg(long, value_name = "LINE", group = "what", help_heading = WHAT, value_parser = command_line)]
    pub(crate) shell: Option<String>,
    /// Handler of an application that runs a scheduler on this database.
    #[arg(long, value_name = "NAME", group = "what", help_heading = WHAT)]
    pub(crate) handler: Option<String>,
    /// Payload of the handler; -: read it from standard input. Default: null.
    #[arg(long, value_name = "JSON", requires = "handler", conflicts_with_all = ["argv", "shell"],
          help_heading = WHAT, value_parser = json_or_input,
          allow_negative_numbers = true)]
    pub(crate) payload: Option<Box<RawValue>>,

    /// Working directory of the command. Default: the current directory.
    #[arg(long, value_name = "DIR", conflicts_with = "handler", help_heading = COMMAND)]
    pub(crate) cwd: Option<PathBuf>,
    /// User that runs the command, with its groups and its home directory. duly run must run as root. Default: the
    /// user of duly run.
    #[arg(long, value_name = "NAME", conflicts_with = "handler", help_heading = COMMAND,
          value_parser = NonEmptyStringValueParser::new())]
    pub(crate) user: Option<String>,
    /// Environment variable for the command; may be repeated. The value is stored unencrypted.
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "handler", help_heading = COMMAND, value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Environment variable that the scheduler must provide, for example a secret; may be repeated. Only the name is stored.
    #[arg(long, value_name = "NAME", conflicts_with = "handler", help_heading = COMMAND, value_parser = variable_name)]
    pub(crate) env_from: Vec<String>,
    /// Text that the command reads from its standard input.
    #[arg(long, value_name = "TEXT", conflicts_with = "handler", help_heading = COMMAND)]
    pub(crate) stdin: Option<String>,

    /// Gate: a command that decides whether a run is worth starting, split into words as a shell does, without a shell. It is executed
    /// before the first attempt of a run, for 30 s at most. Exit code 0: the run goes on. 1: it is skipped, and the last line that the gate
    /// printed is the reason. Any other: the attempt has failed. duly trigger and retry do not ask it.
    #[arg(long, value_name = "ARGV", conflicts_with = "handler", help_heading = COMMAND)]
    pub(crate) only_if: Option<String>,
    /// Exit codes after which the run is dead at once, beside 78; several with commas. After any other it is retried.
    #[arg(long, value_name = "CODES", conflicts_with = "handler", help_heading = COMMAND, value_delimiter = ',',
          value_parser = number(1..=MAX_EXIT_CODE))]
    pub(crate) give_up_exit_codes: Vec<i32>,
    /// Exit codes after which the run is skipped, which is no failure; several with commas.
    #[arg(long, value_name = "CODES", conflicts_with = "handler", help_heading = COMMAND, value_delimiter = ',',
          value_parser = number(1..=MAX_EXIT_CODE))]
    pub(crate) skip_exit_codes: Vec<i32>,

    #[command(flatten)]
    pub(crate) policies: Policies,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = POLICIES)]
pub(crate) struct Policies {
    /// What happens to an occurrence while an earlier run is unfinished; see below. Default: skip.
    #[arg(long, value_name = "POLICY", value_parser = overlap())]
    pub(crate) overlap: Option<Overlap>,
    /// What happens to occurrences that no scheduler has started in time; see below. Default: run_once.
    #[arg(long, value_name = "POLICY", value_parser = misfire())]
    pub(crate) misfire: Option<Misfire>,
    /// An occurrence that is later than this falls under --misfire. Default: 1m.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) misfire_grace: Option<Duration>,
    /// Most runs that buffer_all keeps waiting, or that run_all catches up. Default: 100.
    #[arg(long, value_name = "RUNS", value_parser = number(1..=duly::MAX_CATCH_UP))]
    pub(crate) catch_up_limit: Option<u32>,
    /// Record a run as missed if no attempt has started within this time; at least 1s. Default: never.
    #[arg(long, value_name = "DUR", value_parser = expiry)]
    pub(crate) expires: Option<Duration>,
    /// Most attempts of a run. After the last failure the run is dead. Default: 5.
    #[arg(long, value_name = "N", value_parser = number(1..=1_000_000_u32))]
    pub(crate) max_attempts: Option<u32>,
    /// Never start a run twice: the same as --max-attempts 1.
    #[arg(long, conflicts_with = "max_attempts")]
    pub(crate) at_most_once: bool,
    /// Wait before the second attempt: at random between half of this and all of it. It doubles with each further failure. Default: 10s.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) backoff: Option<Duration>,
    /// Longest wait between two attempts. Default: 1h.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) backoff_cap: Option<Duration>,
    /// End an attempt that takes longer; 0: no limit. Default: 1h for commands, else the handler's.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Delay each start by up to this time. The delay of a task is fixed, and derived from its name. Default: 0.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) jitter: Option<Duration>,
    /// Priority among waiting runs: 0 (first) to 3 (last). Default: 1.
    #[arg(long, value_name = "N", value_parser = number(0..=3_u8))]
    pub(crate) priority: Option<u8>,
    /// Concurrency key: at most one run with this key runs at a time, across tasks; duly limit allows more. Default: one key for each task.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Task to start when a run of this task is dead; several with commas. Its payload is the dead run.
    #[arg(long, value_name = "NAME")]
    pub(crate) on_dead: Option<String>,
    /// Task to start when a run of this task has succeeded; several with commas. Its payload is that run.
    #[arg(long, value_name = "NAME")]
    pub(crate) on_success: Option<String>,
    /// Task to start when a run of this task has succeeded, is dead, or was cancelled after an attempt began.
    #[arg(long, value_name = "NAME")]
    pub(crate) on_end: Option<String>,
    /// Task to start when occurrences of this task are missed and nothing runs for them (--misfire skip, --expires).
    #[arg(long, value_name = "NAME")]
    pub(crate) on_missed: Option<String>,
    /// Pause the task after N consecutive dead runs. Default: never.
    #[arg(long, value_name = "N", value_parser = number(1..=1_000_000_u32))]
    pub(crate) pause_after_failures: Option<u32>,
    /// Skip occurrences outside of these local times, such as 09:00-12:00,13:00-17:30 or 22:00-06:00.
    #[arg(long, value_name = "TIMES")]
    pub(crate) only_between: Option<String>,
    /// Skip occurrences on other local dates than these, such as 2027-12-20..2027-12-31,2028-01-07.
    #[arg(long, value_name = "DATES")]
    pub(crate) only_on: Option<String>,
    /// Skip occurrences on these local dates.
    #[arg(long = "except", value_name = "DATES")]
    pub(crate) except_on: Option<String>,
    /// No occurrence is before this time.
    #[arg(long, value_name = "TIME")]
    pub(crate) starts_at: Option<String>,
    /// No occurrence is after this time.
    #[arg(long, value_name = "TIME")]
    pub(crate) ends_at: Option<String>,
}

impl Policies {
    /// Sets the policies of a task, except for its bounds, which its time zone decides.
    pub(crate) fn set(&self, mut task: NewTask) -> NewTask {
        let default = RetryPolicy::default();
        let max_attempts = if self.at_most_once { Some(1) } else { self.max_attempts };
        task = task.retry(RetryPolicy {
            max_attempts: max_attempts.unwrap_or(default.max_attempts),
            backoff: self.backoff.unwrap_or(default.backoff),
            max_backoff: self.backoff_cap.unwrap_or(default.max_backoff),
        });
        let grace = self.misfire_grace.unwrap_or(Duration::from_secs(60));
        task = task.misfire(self.misfire.unwrap_or(Misfire::RunOnce), grace);
        task = self.overlap.into_iter().fold(task, NewTask::overlap);
        task = self.catch_up_limit.into_iter().fold(task, NewTask::catch_up_limit);
        task = self.expires.into_iter().fold(task, NewTask::expires);
        task = self.timeout.into_iter().fold(task, NewTask::timeout);
        task = self.jitter.into_iter().fold(task, NewTask::jitter);
        task = self.priority.into_iter().fold(task, NewTask::priority);
        task = self.key.iter().fold(task, NewTask::concurrency_key);
        task = self.on_dead.iter().fold(task, NewTask::on_dead);
        task = self.on_success.iter().fold(task, NewTask::on_success);
        task = self.on_end.iter().fold(task, NewTask::on_end);
        task = self.on_missed.iter().fold(task, NewTask::on_missed);
        task = self.only_between.iter().fold(task, NewTask::only_between);
        task = self.only_on.iter().fold(task, NewTask::only_on);
        task = self.except_on.iter().fold(task, NewTask::except_on);
        self.pause_after_failures.into_iter().fold(task, NewTask::pause_after_failures)
    }
}

fn overlap() -> impl TypedValueParser<Value = Overlap> {
    let words = PossibleValuesParser::new(Overlap::ALL.iter().map(|policy| policy.as_str()));
    words.try_map(|word| Overlap::parse(&word).ok_or("unknown policy"))
}

fn misfire() -> impl TypedValueParser<Value = Misfire> {
    let words = PossibleValuesParser::new(Misfire::ALL.iter().map(|policy| policy.as_str()));
    words.try_map(|word| Misfire::parse(&word).ok_or("unknown policy"))
}
