//! Arguments of `limit`.

use clap::{ArgGroup, Subcommand};
use duly::{Limit, LimitOn, StartRate};

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
    /// Set a limit on a key or a handler. Of a key, what is not given stays as it is.
    #[command(after_help = help_examples::LIMIT)]
    Set(Set),
    /// Remove a limit. A key without a limit runs one run at a time.
    Remove(On),
}

/// Arguments of `limit set`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("on").args(["key", "handler"]).required(true))]
#[command(group = ArgGroup::new("how").args(["running", "rate"]).multiple(true))]
pub(crate) struct Set {
    /// Limit the runs with this concurrency key: how many run at once, how many start in a time, or both.
    #[arg(long, value_name = "KEY", requires = "how")]
    key: Option<String>,
    /// With --key: most runs that run at once, 1 to 1000. Without it, as before, or one.
    #[arg(long, value_name = "N", requires = "key", value_parser = number(1..=1000_u32))]
    running: Option<u32>,
    /// Limit the starts of this handler; the handler of commands is named command.
    #[arg(long, value_name = "HANDLER", requires = "rate", conflicts_with = "running")]
    handler: Option<String>,
    /// Most starts in any time of a length, retries included, as in 100/1m. With --key also none, which removes the rate; without it, the
    /// rate of a key stays as it is.
    #[arg(long, value_name = "N/DUR", value_parser = rate_or_none)]
    rate: Option<RateOrNone>,
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
    /// Returns what the limit is on.
    pub(crate) fn on(&self) -> LimitOn {
        on(self.key.as_ref(), self.handler.as_ref())
    }

    /// Returns the limit. `before`: the one that is stored, of which what is not given is kept.
    pub(crate) fn limit(&self, before: Option<&Limit>) -> Result<Limit, String> {
        let given = self.rate.map(|RateOrNone(rate)| rate);
        if let Some(handler) = &self.handler {
            // clap has required a rate.
            let rate = given.flatten().ok_or("--rate none: a handler has no other limit, use limit remove")?;
            return Ok(Limit::rate(handler, rate.starts, rate.per));
        }
        let (running, rate) = match before {
            Some(Limit::Key { running, rate, .. }) => (*running, *rate),
            _ => (1, None),
        };
        let limit = Limit::key(self.key.clone().unwrap_or_default(), self.running.unwrap_or(running));
        Ok(given.unwrap_or(rate).map_or_else(|| limit.clone(), |rate| limit.clone().with_rate(rate.starts, rate.per)))
    }
}

/// What `--rate` is given as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateOrNone(Option<StartRate>);

fn rate_or_none(text: &str) -> Result<RateOrNone, String> {
    if text == "none" { Ok(RateOrNone(None)) } else { rate(text).map(|rate| RateOrNone(Some(rate))) }
}

/// Returns what a limit is on. clap has required one of the two.
fn on(key: Option<&String>, handler: Option<&String>) -> LimitOn {
    match (handler, key) {
        (Some(handler), _) => LimitOn::Handler(handler.clone()),
        (None, key) => LimitOn::Key(key.cloned().unwrap_or_default()),
    }
}

impl On {
    /// Returns what the limit is on.
    pub(crate) fn on(&self) -> LimitOn {
        on(self.key.as_ref(), self.handler.as_ref())
    }
}

/// Parses a number of starts and a length of time: `100/1m`.
pub(crate) fn rate(text: &str) -> Result<StartRate, String> {
    const EXPECTED: &str = "expected a number of starts and a time, as in 100/1m";
    let (starts, per) = text.split_once('/').ok_or(EXPECTED)?;
    let starts = starts.trim().parse().map_err(|_| EXPECTED.to_owned())?;
    Ok(StartRate { starts, per: duration(per)? })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use duly::StartRate;

    use super::rate;

    #[test]
    fn a_rate_is_a_number_of_starts_and_a_time_with_a_unit() {
        assert_eq!(rate("100/1m"), Ok(StartRate { starts: 100, per: Duration::from_secs(60) }));
        assert_eq!(rate("2 / 1h 30m"), Ok(StartRate { starts: 2, per: Duration::from_secs(5400) }));
        for (text, says) in
            [("100", "as in 100/1m"), ("x/1m", "as in 100/1m"), ("-1/1m", "as in 100/1m"), ("1/60", "a unit")]
        {
            assert!(rate(text).unwrap_err().contains(says), "{text}");
        }
    }
}
