//! Parses durations, and writes each in one canonical form.

use std::time::Duration;

use crate::error::{Error, Result};

/// The maximum: ten years, leap days included. A longer duration is most likely a mistake.
const LONGEST: Duration = Duration::from_secs(3652 * 24 * 3600 + 12 * 3600);

/// Parses a duration: `15m`, `1h 30m`, `1.5h`, or a bare integer of milliseconds.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(duly::parse_duration("1h 30m")?, Duration::from_secs(5400));
/// // As in the tables, a number without a unit is in milliseconds. M is a month, m a minute.
/// assert_eq!(duly::parse_duration("90000")?, Duration::from_secs(90));
/// assert!(duly::parse_duration("10us").is_err(), "not whole milliseconds");
/// # Ok::<(), duly::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidSchedule`], which says what is expected.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let invalid = |reason: &str| Error::InvalidSchedule { text: text.to_owned(), reason: reason.to_owned() };
    let text = text.trim();
    let bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let read = if bare { text.parse().ok().map(Duration::from_millis) } else { humantime::parse_duration(text).ok() };
    match read {
        None if !bare => Err(invalid("expected a duration such as 15m, 1h 30m, or 90000 for milliseconds")),
        Some(read) if read.subsec_nanos() % 1_000_000 != 0 => Err(invalid("expected whole milliseconds")),
        Some(read) if !read.is_zero() && read <= LONGEST => Ok(read),
        _ => Err(invalid("expected a duration of 1ms to 10years")),
    }
}

/// Returns the canonical text: `1h 30m`. Fractions of a millisecond are cut, and the largest unit is the day.
///
/// ```
/// assert_eq!(duly::duration_text(duly::parse_duration("2weeks")?), "14d");
/// # Ok::<(), duly::Error>(())
/// ```
pub fn duration_text(duration: Duration) -> String {
    const UNITS: [(&str, u128); 5] = [("d", 24 * 3_600_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let mut rest = duration.as_millis();
    let mut parts = Vec::new();
    for (unit, length) in UNITS {
        if rest >= length {
            parts.push(format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    if parts.is_empty() { "0ms".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::{duration_text, parse_duration};
    use std::time::Duration;

    #[test]
    fn durations_are_parsed_and_formatted() {
        for (text, millis, canonical) in [
            ("15m", 900_000, "15m"),
            ("1h 30m", 5_400_000, "1h 30m"),
            ("90min", 5_400_000, "1h 30m"),
            (" 1.5h ", 5_400_000, "1h 30m"),
            ("90000", 90_000, "1m 30s"),
            ("1", 1, "1ms"),
            ("1500ms", 1_500, "1s 500ms"),
            ("2weeks", 1_209_600_000, "14d"),
            ("10years", 315_576_000_000, "3652d 12h"),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(millis), "{text}");
            assert_eq!(duration_text(Duration::from_millis(millis)), canonical);
            assert_eq!(parse_duration(canonical).unwrap(), Duration::from_millis(millis));
        }
        assert_eq!(duration_text(Duration::from_micros(999)), "0ms");
    }

    #[test]
    fn an_error_says_what_is_expected() {
        for (text, reason) in [
            ("", "15m, 1h 30m"),
            ("soon", "15m, 1h 30m"),
            ("-5m", "15m, 1h 30m"),
            ("15 parsecs", "15m, 1h 30m"),
            ("0", "1ms to 10years"),
            ("0s", "1ms to 10years"),
            ("11years", "1ms to 10years"),
            ("99999999999999999999999", "1ms to 10years"),
            ("10us", "whole milliseconds"),
            ("1ms 1ns", "whole milliseconds"),
        ] {
            assert!(parse_duration(text).unwrap_err().to_string().contains(reason), "{text}");
        }
    }
}
