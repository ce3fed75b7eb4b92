//! What `add` can be told: when, what, and the policies.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgGroup;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use duly::{Misfire, Overlap};
use serde_json::value::RawValue;

use crate::cli::help_examples;
use crate::cli::values::{expiry, json, length, rhythm, variable, variable_name};

const WHEN: &str = "When (one of)";
const WHAT: &str = "What (one of)";
const COMMAND: &str = "For a command";
const POLICIES: &str = "Policies";

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "duly add NAME <WHEN> [OPTIONS] (-- ARGV.. | --shell LINE | --handler NAME)",
    group = ArgGroup::new("when").required(true),
    group = ArgGroup::new("what").required(true),
    after_help = help_examples::ADD
)]
pub(crate) struct Add {
    /// Its name: a letter, then letters, digits or . _ : / @ -
    pub(crate) name: String,

    /// At the times that a cron line names: "0 7 * * *", "@daily".
    #[arg(long, value_name = "EXPR", group = "when", help_heading = WHEN)]
    pub(crate) cron: Option<String>,
    /// Every so often, on a fixed grid: 15m.
    #[arg(long, value_name = "DUR", group = "when", help_heading = WHEN, value_parser = rhythm)]
    pub(crate) every: Option<String>,
    /// So long after the end of its last run.
    #[arg(long, value_name = "DUR", group = "when", help_heading = WHEN, value_parser = rhythm)]
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
    /// Only by a trigger, or for a task that names it with --on-dead.
    #[arg(long, group = "when", help_heading = WHEN)]
    pub(crate) manual: bool,

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
    /// A run that has not begun within this time is missed; at least 1s. Default: never.
    #[arg(long, value_name = "DUR", value_parser = expiry)]
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

fn overlap() -> impl TypedValueParser<Value = Overlap> {
    let words = PossibleValuesParser::new(Overlap::ALL.iter().map(|policy| policy.as_str()));
    words.try_map(|word| Overlap::parse(&word).ok_or("expected a policy"))
}

fn misfire() -> impl TypedValueParser<Value = Misfire> {
    let words = PossibleValuesParser::new(Misfire::ALL.iter().map(|policy| policy.as_str()));
    words.try_map(|word| Misfire::parse(&word).ok_or("expected a policy"))
}
