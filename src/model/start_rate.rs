//! How many starts a time may have.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::schedule::{duration_text, parse_duration};

/// Most starts that a rate counts.
const MAX_STARTS: u32 = 10_000;

/// At most `starts` starts in any time of the length `per`. Its text is that of manifests and of the column `max_starts`: `4/1d`.
///
/// ```
/// use std::time::Duration;
/// use duly::StartRate;
/// let rate: StartRate = "4/1d".parse()?;
/// assert_eq!((rate.starts, rate.per), (4, Duration::from_secs(86400)));
/// assert_eq!("20/90m".parse::<StartRate>()?.to_string(), "20/1h 30m");
/// assert!("4 a day".parse::<StartRate>().is_err());
/// # Ok::<(), duly::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StartRate {
    /// 1 to 10 000.
    pub starts: u32,
    /// The length of the time, in whole milliseconds.
    pub per: Duration,
}

impl StartRate {
    /// Fails with [`Error::InvalidTask`] if a field cannot be accepted.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=MAX_STARTS).contains(&self.starts) {
            return Err(Error::invalid_task("max_starts", self.starts, format!("1 to {MAX_STARTS}")));
        }
        // As long as any duration may be.
        if parse_duration(&duration_text(self.per)).ok() != Some(self.per) || self.per.is_zero() {
            let expected = "whole milliseconds, 1ms to 3652d 12h";
            return Err(Error::invalid_task("per_ms", duration_text(self.per), expected));
        }
        Ok(())
    }
}

impl fmt::Display for StartRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.starts, duration_text(self.per))
    }
}

impl FromStr for StartRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (starts, per) = text.split_once('/')?;
            let rate = StartRate { starts: starts.trim().parse().ok()?, per: parse_duration(per).ok()? };
            rate.check().is_ok().then_some(rate)
        };
        let expected = format!("1 to {MAX_STARTS} starts and a time, as in 4/1d");
        read().ok_or_else(|| Error::invalid_task("max_starts", text, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::StartRate;

    #[test]
    fn a_rate_is_a_number_of_starts_and_a_time_with_a_unit() {
        let canonical = |text: &str| text.parse().map(|rate: StartRate| rate.to_string()).ok();
        for (text, rate) in [
            ("4/1d", Some("4/1d")),
            ("2 / 1h 30m", Some("2/1h 30m")),
            ("10000/1ms", Some("10000/1ms")),
            ("0/1d", None),
            ("10001/1d", None),
            ("4/0s", None),
            ("4/101y", None),
            ("-1/1m", None),
            ("4", None),
            ("/1d", None),
            ("4/", None),
            ("4/1d/2", None),
        ] {
            assert_eq!(canonical(text).as_deref(), rate, "{text}");
        }
        let error = "4 a day".parse::<StartRate>().unwrap_err().to_string();
        assert!(
            error.contains("max_starts: expected 1 to 10000 starts and a time, as in 4/1d, found \"4 a day\""),
            "{error}"
        );
    }
}
