//! Parses an instant: with an offset, or as a local time in a zone.

use std::time::Duration;

use chrono::{Datelike, NaiveDate, NaiveDateTime, Timelike};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::schedule::zone::Zone;

/// The expected formats.
const EXPECTED: &str = "expected an instant as in 2027-03-14T12:00:00Z, or a local time as in 2027-03-14T12:00";

/// A local date and time, with or without seconds, joined by `T` or a space.
const LOCAL_FORMS: [&str; 4] = ["%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"];

impl Zone {
    /// Parses an instant: RFC 3339, or a local date and time in this zone.
    ///
    /// A local time that occurs twice is the first of the two. A local time in a gap is refused, with the nearest times
    /// that exist: moving it would be a guess.
    ///
    /// ```
    /// let new_york = duly::Zone::named("America/New_York")?;
    /// assert_eq!(new_york.instant("2027-07-01 12:00")?, "2027-07-01T16:00:00Z".parse()?);
    /// assert!(new_york.instant("2027-03-14T02:30").is_err(), "the clock is put forward at two");
    /// # Ok::<(), duly::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`], which says what is expected.
    pub fn instant(&self, text: &str) -> Result<Timestamp> {
        read(text.trim(), self).map_err(|reason| Error::InvalidSchedule { text: text.to_owned(), reason })
    }
}

fn read(text: &str, zone: &Zone) -> Result<Timestamp, String> {
    // With an offset first: no text matches both, and the stored instants, which are parsed for every task, have one.
    let at = match text.parse() {
        Ok(at) => at,
        Err(_) => {
            let local = LOCAL_FORMS.iter().find_map(|form| NaiveDateTime::parse_from_str(text, form).ok());
            let local = local.filter(|_| is_local_form(text));
            // chrono accepts second 60 in any minute as a leap second; no zone has it in its rules.
            let local = local.filter(|local| local.nanosecond() < 1_000_000_000);
            let why = || no_such_day(text).or_else(|| no_seconds(text)).unwrap_or_else(|| EXPECTED.to_owned());
            let local = local.ok_or_else(why)?;
            first_pass(local, zone)?
        }
    };
    if !(Timestamp::MIN..=Timestamp::MAX).contains(&at) {
        return Err(format!("expected an instant from {} to {}", Timestamp::MIN, Timestamp::MAX));
    }
    Ok(at)
}

/// Returns whether the text has the exact form: numbers of at most the allowed length between separators. chrono also
/// accepts signs, spaces before a number, and no space where one is required: it parses 2027-03-1122:00 as the 11th.
fn is_local_form(text: &str) -> bool {
    let number = |most: usize| {
        move |digits: &str| (1..=most).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let Some((date, time)) = text.split_once(['T', ' ']) else { return false };
    let (year, days) = date.split_once('-').unwrap_or_default();
    let (clock, part) = time.split_once('.').unwrap_or((time, "0"));
    year.len() == 4 && number(4)(year) && days.split('-').chain(clock.split(':')).all(number(2)) && number(9)(part)
}

/// Returns the length of the month if the text begins with a date that does not exist.
fn no_such_day(text: &str) -> Option<String> {
    let mut parts = text.get(..10)?.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let (year, month, day) = (year.parse().ok()?, month.parse().ok()?, day.parse().ok()?);
    let first = NaiveDate::from_ymd_opt(year, month, 1)?;
    let outside = NaiveDate::from_ymd_opt(year, month, day).is_none();
    outside.then(|| {
        format!("there is no day {day} in {}, which has {} days", first.format("%B %Y"), first.num_days_in_month())
    })
}

/// Returns what is missing if the text is an instant without seconds, as RFC 3339 does not have it.
fn no_seconds(text: &str) -> Option<String> {
    let (minutes, offset) = text.split_at_checked(16)?;
    let whole = format!("{minutes}:00{offset}");
    whole.parse::<Timestamp>().ok().map(|_| format!("expected seconds before the offset, as in {whole}"))
}

fn first_pass(local: NaiveDateTime, zone: &Zone) -> Result<Timestamp, String> {
    let first = zone.first_showing(local);
    if zone.local_at(first).is_some_and(|shown| shown > local) {
        let before = zone.text_at(first.minus(Duration::from_secs(1)));
        let after = zone.text_at(first);
        return Err(format!("the clock in {} skips it: the nearest that exist are {before} and {after}", zone.name()));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use crate::schedule::zone::Zone;

    #[test]
    fn instants_and_local_times() {
        for (text, instant) in [
            ("2027-07-01T12:00:00Z", "2027-07-01T12:00:00.000Z"),
            ("2027-07-01T12:00:00.250+02:00", "2027-07-01T10:00:00.250Z"),
            ("2027-07-01T12:00", "2027-07-01T16:00:00.000Z"),
            ("2027-07-01 12:00:30", "2027-07-01T16:00:30.000Z"),
            (" 2027-01-01 12:00 ", "2027-01-01T17:00:00.000Z"),
            // It occurs twice: the first pass, unless the offset selects the second.
            ("2027-11-07T01:30", "2027-11-07T05:30:00.000Z"),
            ("2027-11-07T01:30:00-05:00", "2027-11-07T06:30:00.000Z"),
            ("2027-03-14T03:00", "2027-03-14T07:00:00.000Z"),
            ("2027-3-9 9:05", "2027-03-09T14:05:00.000Z"),
            // A leap second at the end of a UTC day; clocks do not show it.
            ("2027-12-31T23:59:60Z", "2028-01-01T00:00:00.000Z"),
        ] {
            let at = Zone::named("America/New_York").unwrap().instant(text).unwrap();
            assert_eq!(at.to_string(), instant, "{text}");
        }
    }

    #[test]
    fn times_that_do_not_exist_are_refused() {
        let unreadable = "expected an instant as in 2027-03-14T12:00:00Z, or a local time as in 2027-03-14T12:00";
        for (zone, text, reason) in [
            (
                "America/New_York",
                "2027-03-14T02:30",
                "the clock in America/New_York skips it: the nearest that exist are \
                 2027-03-14T01:59:59-05:00 and 2027-03-14T03:00:00-04:00",
            ),
            (
                "Pacific/Apia",
                "2011-12-30 12:00",
                "the clock in Pacific/Apia skips it: the nearest that exist are \
                 2011-12-29T23:59:59-10:00 and 2011-12-31T00:00:00+14:00",
            ),
            ("UTC", "tomorrow", unreadable),
            ("UTC", "2027-13-14T12:00", unreadable),
            ("UTC", "2027-03-14T12:00:60", unreadable),
            ("UTC", "2027-03-1122:00", unreadable),
            ("UTC", "2027-03-14T12:00:60Z", unreadable),
            ("UTC", "2027-02-29T12:00", "there is no day 29 in February 2027, which has 28 days"),
            ("UTC", "2028-02-30T12:00:00Z", "there is no day 30 in February 2028, which has 29 days"),
            (
                "UTC",
                "1999-12-31T23:59",
                "expected an instant from 2001-09-09T01:46:40.000Z to 4000-01-01T00:00:00.000Z",
            ),
        ] {
            let error = Zone::named(zone).unwrap().instant(text).unwrap_err();
            assert_eq!(error.to_string(), format!("invalid schedule {text:?}: {reason}"));
        }
    }
}
