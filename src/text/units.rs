//! Sizes, counts and durations as text, and durations as they are typed. Pure.

use std::time::Duration;

use crate::error::Error;
use crate::schedule::{self, duration_text};

/// Error for a text that is no duration.
const EXPECTED: &str = "expected a duration such as 15m or 1h 30m (units: ms, s, m, h, d, w, y)";

/// Error for a month, as which the tables read `M`.
const NO_MONTH: &str = "expected m for minutes or d for days: M would be a month, of 30 days and a half";

/// Checks that a duration does not have the unit `M`, which is a typing error for `m`. No other unit has a capital letter.
///
/// # Errors
/// What is expected.
pub(crate) fn without_month(text: &str) -> Result<&str, String> {
    if text.contains('M') { Err(NO_MONTH.to_owned()) } else { Ok(text) }
}

/// Parses a duration with a unit, as options and parameters have it. Zero is accepted.
///
/// # Errors
/// What is expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if ["0", "0s", "0ms"].contains(&text) {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("expected a unit, as in {text}s or {text}m"));
    }
    schedule::parse_duration(without_month(text)?).map_err(|error| match error {
        Error::InvalidSchedule { reason, .. } if !reason.starts_with("expected a duration such as") => reason,
        _ => EXPECTED.to_owned(),
    })
}

/// A size in its largest unit: `335 B`, `12 KiB`, `1.4 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = UNITS.iter().enumerate().rfind(|(power, _)| bytes >> (10 * (power + 1)) > 0);
    let (power, unit) = unit.unwrap_or((0, &UNITS[0]));
    let tenths = (bytes >> (10 * power)) * 10 / 1024;
    if tenths < 100 { format!("{}.{} {unit}", tenths / 10, tenths % 10) } else { format!("{} {unit}", tenths / 10) }
}

/// The first of some items, and how many there are beside them: `run 1 of a, run 2 of b and 307 more`. `count`: of all.
pub fn first_of(items: impl Iterator<Item = String>, most: usize, count: usize) -> String {
    let shown: Vec<String> = items.take(most).collect();
    match count.saturating_sub(shown.len()) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A number with its noun: `1 start`, `2 starts`.
pub fn count_of(count: impl TryInto<u64>, noun: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// As many marked runs stand for any larger number: they are counted no further.
pub const MANY_MARKED: usize = 10_001;

/// What [`TaskDetails::marked_runs`](crate::TaskDetails::marked_runs) means: `200 waiting runs are being marked`.
pub fn being_marked(runs: usize) -> String {
    match runs {
        1 => "1 waiting run is being marked".to_owned(),
        MANY_MARKED.. => format!("more than {} waiting runs are being marked", MANY_MARKED - 1),
        runs => format!("{runs} waiting runs are being marked"),
    }
}

/// The duration of a run: `350ms`, `2.4s`, `1m 5s`.
pub fn short_duration(length: Duration) -> String {
    match length.as_secs() {
        0 => format!("{}ms", length.as_millis()),
        1..=9 => format!("{}.{}s", length.as_secs(), length.subsec_millis() / 100),
        seconds => duration_text(Duration::from_secs(seconds)),
    }
}

/// A time that is left, rounded up to seconds, in one unit: `8s`, `4m`; `None` if none is left.
pub fn until(left: Duration) -> Option<String> {
    let seconds = u64::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u64::MAX / 1000);
    distance(Duration::from_secs(seconds), Parts::One)
}

/// The number of units in which a distance is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// The largest unit.
    One,
    /// The largest unit and the next one.
    Two,
}

/// A distance in time: `8s`, `4m`, `1h 30m`, `3d 4h`, `45d`, `2y`. `None`: less than a second.
pub fn distance(length: Duration, parts: Parts) -> Option<String> {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    const YEAR: u64 = 365 * DAY + DAY / 4;
    let seconds = length.as_secs();
    let unit = match (seconds, parts) {
        (0, _) => return None,
        (1..MINUTE, _) => 1,
        (MINUTE..HOUR, _) | (HOUR..DAY, Parts::Two) => MINUTE,
        (HOUR..DAY, _) => HOUR,
        (_, Parts::Two) if seconds < 10 * DAY => HOUR,
        _ if seconds < 2 * YEAR => DAY,
        _ => return Some(format!("{}y", seconds / YEAR)),
    };
    Some(duration_text(Duration::from_secs(seconds / unit * unit)))
}

#[cfg(test)]
mod tests {
    use super::{Parts, bytes, distance, parse_duration, short_duration, until};
    use std::time::Duration;

    #[test]
    fn a_size_is_printed_in_its_largest_unit() {
        let sizes = [0, 1023, 1024, 12_700, 5_000_000, 1 << 40].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "12 KiB", "4.7 MiB", "1.0 TiB"]);
    }

    #[test]
    fn durations_are_short() {
        for (millis, text) in [(0, "0ms"), (350, "350ms"), (2_449, "2.4s"), (65_900, "1m 5s"), (7_200_000, "2h")] {
            assert_eq!(short_duration(Duration::from_millis(millis)), text);
        }
        for (millis, text) in [(0, None), (1, Some("1s")), (7_001, Some("8s")), (64_999, Some("1m"))] {
            assert_eq!(until(Duration::from_millis(millis)).as_deref(), text);
        }
        assert!(until(Duration::MAX).is_some());
    }

    #[test]
    fn a_duration_has_a_unit() {
        assert_eq!(parse_duration(" 1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("soon"), Err(super::EXPECTED.into()));
        assert_eq!(parse_duration("1month"), Ok(Duration::from_secs(2_630_016)));
        assert_eq!(parse_duration("1M"), Err(super::NO_MONTH.into()));
        assert_eq!(parse_duration("15"), Err("expected a unit, as in 15s or 15m".into()));
    }

    #[test]
    fn a_distance_has_one_or_two_units() {
        for (seconds, two, one) in [
            (0, None, None),
            (59, Some("59s"), Some("59s")),
            (299, Some("4m"), Some("4m")),
            (3_600, Some("1h"), Some("1h")),
            (5_430, Some("1h 30m"), Some("1h")),
            (86_399, Some("23h 59m"), Some("23h")),
            (273_600, Some("3d 4h"), Some("3d")),
            (864_000, Some("10d"), Some("10d")),
            (63_115_199, Some("730d"), Some("730d")),
            (63_115_200, Some("2y"), Some("2y")),
        ] {
            let length = Duration::from_secs(seconds);
            assert_eq!([distance(length, Parts::Two).as_deref(), distance(length, Parts::One).as_deref()], [two, one]);
        }
    }
}
