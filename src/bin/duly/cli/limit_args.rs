//! Arguments of `limit`.

use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use duly::{Limit, LimitOn};

use crate::cli::help_examples;
use crate::cli::values::{duration, number};

/// Arguments of `limit`; without an action, it lists the limits.
#[derive(Debug, clap::Args)]
pub(crate) struct Limits {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Set a limit, in place of an earlier one on the same key or handler.
    #[command(after_help = help_examples::LIMIT)]
    Set(Set),
    /// Remove a limit. A key without a limit runs one run at a time.
    Remove(On),
}

/// Arguments of `limit set`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("on").args(["key", "handler"]).required(true))]
pub(crate) struct Set {
    /// Limit the running runs with this concurrency key.
    #[arg(long, value_name = "KEY", requires = "running", conflicts_with = "rate")]
    key: Option<String>,
    /// With --key: most runs that run at once, 1 to 1000.
    #[arg(long, value_name = "N", requires = "key", value_parser = number(1..=1000_u32))]
    running: Option<u32>,
    /// Limit the starts of this handler; the handler of commands is named command.
    #[arg(long, value_name = "HANDLER", requires = "rate", conflicts_with = "running")]
    handler: Option<String>,
    /// With --handler: most starts in any time of a length, retries included, as in 100/1m.
    #[arg(long, value_name = "N/DUR", requires = "handler", value_parser = rate)]
    rate: Option<(u32, Duration)>,
}

/// Arguments of `limit remove`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("on").args(["key", "handler"]).required(true))]
pub(crate) struct On {
    /// The concurrency key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The handler.
    #[arg(long, value_name = "HANDLER")]
    handler: Option<String>,
}

impl Set {
    /// Returns the limit. clap has required one of the two.
    pub(crate) fn limit(&self) -> Limit {
        match (&self.handler, self.rate) {
            (Some(handler), Some((starts, per))) => Limit::rate(handler, starts, per),
            _ => Limit::key(self.key.clone().unwrap_or_default(), self.running.unwrap_or_default()),
        }
    }
}

impl On {
    /// Returns what the limit is on. clap has required one of the two.
    pub(crate) fn on(&self) -> LimitOn {
        match (&self.handler, &self.key) {
            (Some(handler), _) => LimitOn::Handler(handler.clone()),
            (None, key) => LimitOn::Key(key.clone().unwrap_or_default()),
        }
    }
}

/// Parses a number of starts and a length of time: `100/1m`.
pub(crate) fn rate(text: &str) -> Result<(u32, Duration), String> {
    const EXPECTED: &str = "expected a number of starts and a time, as in 100/1m";
    let (starts, per) = text.split_once('/').ok_or(EXPECTED)?;
    let starts = starts.trim().parse().map_err(|_| EXPECTED.to_owned())?;
    Ok((starts, duration(per)?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::rate;

    #[test]
    fn a_rate_is_a_number_of_starts_and_a_time_with_a_unit() {
        assert_eq!(rate("100/1m"), Ok((100, Duration::from_secs(60))));
        assert_eq!(rate("2 / 1h 30m"), Ok((2, Duration::from_secs(5400))));
        for (text, says) in
            [("100", "as in 100/1m"), ("x/1m", "as in 100/1m"), ("-1/1m", "as in 100/1m"), ("1/60", "a unit")]
        {
            assert!(rate(text).unwrap_err().contains(says), "{text}");
        }
    }
}
