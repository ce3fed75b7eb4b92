//! Arguments of `mcp`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::cli::values::{duration, number};

const CHANGES: &str = "What a model may change";
const LIMITS: &str = "Limits";

/// A kind of change that `--allow` admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Allow {
    /// Add and replace tasks: schedule_task.
    Add,
    /// Start a run now, or retry one: trigger_task, retry_run.
    Trigger,
    /// Pause and resume tasks: pause_task, resume_task.
    Pause,
    /// Cancel one run: cancel_run.
    Cancel,
    /// Cancel and remove tasks that a client of duly mcp added: cancel_task.
    Remove,
}

/// Arguments of `mcp`.
#[derive(Debug, clap::Args)]
pub(crate) struct McpArgs {
    /// Changes that tools may make, separated by commas. Default: none, the tools only look.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "scope", help_heading = CHANGES)]
    pub(crate) allow: Vec<Allow>,
    /// Beginning of the names of the tasks that a model sees and changes; it ends with / or :, as in agent:anna/. Default: a model sees all.
    #[arg(long, value_name = "PREFIX", value_parser = scope, help_heading = CHANGES)]
    pub(crate) scope: Option<String>,
    /// Show tasks outside of the scope too, without payloads and output. They are not changed.
    #[arg(long, requires = "scope", help_heading = CHANGES)]
    pub(crate) see_all: bool,
    /// Handlers that a model may use, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = handler, help_heading = CHANGES)]
    pub(crate) handlers: Vec<String>,
    /// Manifest whose templates a model may use, and that declares the schemas of payloads.
    #[arg(long, value_name = "FILE", help_heading = CHANGES)]
    pub(crate) manifest: Option<PathBuf>,
    /// Most tasks that are not completed of clients of duly mcp in the scope.
    #[arg(long, value_name = "N", default_value_t = 50, help_heading = LIMITS, value_parser = number(0..=1_000_000_usize))]
    pub(crate) max_tasks: usize,
    /// Most runs in 24 hours: those that were, and those that are planned.
    #[arg(long, value_name = "N", default_value_t = 500, help_heading = LIMITS, value_parser = number(1..=10_000_u16))]
    pub(crate) max_starts_per_day: u16,
    /// Shortest time between two occurrences of a task.
    #[arg(long, value_name = "DUR", default_value = "1m", value_parser = duration, help_heading = LIMITS)]
    pub(crate) min_interval: Duration,
    /// Time zone of schedules without one, and of times in answers: an IANA name, or local.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) tz: String,
    /// Name of the client, which is recorded with its changes as mcp:NAME. Default: the name that it gives itself.
    #[arg(long = "as", value_name = "NAME", value_parser = client_name)]
    pub(crate) client: Option<String>,
}

/// Checks that a scope ends where a part of a name ends: `agent:anna` would also be the beginning of `agent:anna2`.
fn scope(text: &str) -> Result<String, String> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "._:/@-".contains(letter);
    let begins = text.starts_with(|letter: char| letter.is_ascii_alphabetic());
    if begins && text.chars().all(allowed) && text.len() <= 100 && text.ends_with(['/', ':']) {
        return Ok(text.to_owned());
    }
    Err("expected the beginning of names with / or : at its end, as in agent:anna/".to_owned())
}

fn handler(text: &str) -> Result<String, String> {
    match text {
        "" => Err("expected the name of a handler".to_owned()),
        "command" => Err("a model is given no command: declare a [[template]] in --manifest FILE".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn client_name(text: &str) -> Result<String, String> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if (1..=64).contains(&text.len()) && text.chars().all(allowed) {
        return Ok(text.to_owned());
    }
    Err("expected 1 to 64 letters, digits or . _ -".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{client_name, handler, scope};

    #[test]
    fn values_that_would_give_more_than_they_seem_to_are_refused() {
        assert_eq!(scope("agent:anna/"), Ok("agent:anna/".to_owned()));
        for wrong in ["", "agent:anna", "/", ":", "7/", "agent anna/", "\u{430}gent/", "agent/*/x"] {
            assert!(scope(wrong).is_err(), "{wrong}");
        }
        assert!(handler("command").unwrap_err().contains("[[template]]") && handler("").is_err());
        assert!(client_name("claude-code").is_ok() && client_name("a b").is_err() && client_name("").is_err());
    }
}
