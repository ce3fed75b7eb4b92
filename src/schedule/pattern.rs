//! The local times of a cron expression: croner's interpretation, stored as bit masks.
//!
//! croner determines once which days match in each kind of month; there are 28 kinds (four lengths, seven weekdays for
//! the 1st). A search then steps over at most 41 years of months, with a few bit operations each. Even the sparsest
//! expression costs only microseconds; croner's own search, which can take seconds, is never used.
//!
//! All times here are naive local times. This module knows no time zone.

mod words;

use chrono::{Datelike, Days, Months, NaiveDate, NaiveDateTime, NaiveTime, Timelike};
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use croner::{CronComponent, CronPattern, Weekday};

/// The local times of a cron expression, in whole seconds. Equivalent expressions are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    seconds: u64,
    minutes: u64,
    hours: u64,
    months: u64,
    /// The matching days of a month, indexed by its length minus 28 and the weekday of its 1st, Sunday first.
    days: [[u64; 7]; 4],
}

/// An expression that matches no day in this number of months never matches: there are fourteen kinds of years, and the
/// rarest, a leap year that begins on a given weekday, recurs within 40 years.
const SEARCH_MONTHS: usize = 41 * 12;

impl Pattern {
    /// Parses an expression that the dialect has checked and rewritten.
    pub(super) fn read(fields: &str) -> Result<Self, CronError> {
        let parser = CronParser::builder().seconds(Seconds::Required).year(Year::Disallowed).build();
        let line = parser.parse(fields)?.pattern;
        Ok(Pattern {
            seconds: mask(&line.seconds),
            minutes: mask(&line.minutes),
            hours: mask(&line.hours),
            months: mask(&line.months),
            days: days(&line)?,
        })
    }

    /// Returns the first match at or after `from`, a whole second. `None` only if no day matches at all, or at the end
    /// of the calendar.
    pub(super) fn first_from(&self, from: NaiveDateTime) -> Option<NaiveDateTime> {
        let today = from.date();
        if self.matches_day(today)
            && let Some(time) = self.time_from(from.time())
        {
            return Some(today.and_time(time));
        }
        let date = self.date_from(today.checked_add_days(Days::new(1))?)?;
        Some(date.and_time(self.time_from(NaiveTime::MIN)?))
    }

    /// Returns the last match at or before `until`, a whole second.
    pub(super) fn last_until(&self, until: NaiveDateTime) -> Option<NaiveDateTime> {
        let today = until.date();
        if self.matches_day(today)
            && let Some(time) = self.time_until(until.time())
        {
            return Some(today.and_time(time));
        }
        let date = self.date_until(today.checked_sub_days(Days::new(1))?)?;
        Some(date.and_time(self.time_until(NaiveTime::from_hms_opt(23, 59, 59)?)?))
    }

    fn matches_day(&self, date: NaiveDate) -> bool {
        self.days_of(date) & (1 << date.day()) != 0
    }

    /// Returns the matching days in the month of `date`.
    fn days_of(&self, date: NaiveDate) -> u64 {
        if self.months & (1 << date.month()) == 0 {
            return 0;
        }
        let (length, weekday) = shape(date);
        self.days[length][weekday]
    }

    fn date_from(&self, from: NaiveDate) -> Option<NaiveDate> {
        let mut from = from;
        for _ in 0..SEARCH_MONTHS {
            step();
            if let Some(day) = lowest(self.days_of(from), from.day()) {
                return from.with_day(day);
            }
            from = from.with_day(1)?.checked_add_months(Months::new(1))?;
        }
        None
    }

    fn date_until(&self, until: NaiveDate) -> Option<NaiveDate> {
        let mut until = until;
        for _ in 0..SEARCH_MONTHS {
            step();
            if let Some(day) = highest(self.days_of(until), until.day() + 1) {
                return until.with_day(day);
            }
            until = until.with_day(1)?.pred_opt()?;
        }
        None
    }

    fn time_from(&self, from: NaiveTime) -> Option<NaiveTime> {
        let (hour, minute) = (from.hour(), from.minute());
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = lowest(self.seconds, from.second())
            {
                return NaiveTime::from_hms_opt(hour, minute, second);
            }
            if let Some(minute) = lowest(self.minutes, minute + 1) {
                return NaiveTime::from_hms_opt(hour, minute, lowest(self.seconds, 0)?);
            }
        }
        let hour = lowest(self.hours, hour + 1)?;
        NaiveTime::from_hms_opt(hour, lowest(self.minutes, 0)?, lowest(self.seconds, 0)?)
    }

    fn time_until(&self, until: NaiveTime) -> Option<NaiveTime> {
        let (hour, minute) = (until.hour(), until.minute());
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = highest(self.seconds, until.second() + 1)
            {
                return NaiveTime::from_hms_opt(hour, minute, second);
            }
            if let Some(minute) = highest(self.minutes, minute) {
                return NaiveTime::from_hms_opt(hour, minute, highest(self.seconds, 60)?);
            }
        }
        let hour = highest(self.hours, hour)?;
        NaiveTime::from_hms_opt(hour, highest(self.minutes, 60)?, highest(self.seconds, 60)?)
    }
}

/// Queries croner for every day of every kind of month.
fn days(line: &CronPattern) -> Result<[[u64; 7]; 4], CronError> {
    let mut days = [[0; 7]; 4];
    let mut seen = [[false; 7]; 4];
    // Real dates, since croner takes no others; 28 years contain every kind of month.
    let months =
        (2001..2029).flat_map(|year| (1..=12).filter_map(move |month| NaiveDate::from_ymd_opt(year, month, 1)));
    for first in months {
        let (length, weekday) = shape(first);
        if seen[length][weekday] {
            continue;
        }
        seen[length][weekday] = true;
        for date in first.iter_days().take_while(|date| date.month() == first.month()) {
            let weekday_of_date = Weekday::from_days_from_sunday(date.weekday().num_days_from_sunday());
            if line.day_match(date.year(), date.month(), date.day(), weekday_of_date)? {
                days[length][weekday] |= 1 << date.day();
            }
        }
    }
    Ok(days)
}

/// Returns the kind of month of a date, as the index into the table of days.
fn shape(date: NaiveDate) -> (usize, usize) {
    let length = usize::from(date.num_days_in_month()) - 28;
    // Counted back from the date to the 1st; adding five whole weeks keeps it positive.
    let weekday = (date.weekday().num_days_from_sunday() + 36 - date.day()) % 7;
    (length, weekday as usize)
}

fn mask(component: &CronComponent) -> u64 {
    component.values().iter().fold(0, |mask, value| mask | 1 << value)
}

fn has(mask: u64, value: u32) -> bool {
    mask & (1 << value) != 0
}

/// Returns the lowest value at or above `from`.
fn lowest(mask: u64, from: u32) -> Option<u32> {
    let rest = mask & (u64::MAX << from);
    (rest != 0).then(|| rest.trailing_zeros())
}

/// Returns the highest value below `end`.
fn highest(mask: u64, end: u32) -> Option<u32> {
    let rest = mask & !(u64::MAX << end);
    (rest != 0).then(|| rest.ilog2())
}

/// Counts a step of a search, for tests that bound the number of steps.
pub(super) fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

#[cfg(test)]
thread_local! {
    pub(super) static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::Pattern;
    use chrono::{Months, NaiveDateTime};
    use croner::Cron;
    use std::str::FromStr;

    fn local(text: &str) -> NaiveDateTime {
        text.parse().unwrap()
    }

    #[test]
    fn a_search_includes_its_start() {
        let pattern = Pattern::read("0 15,45 9-17/4 * * 1-5").unwrap();
        for (from, first, last) in [
            ("2027-03-12T09:15:00", "2027-03-12T09:15:00", "2027-03-12T09:15:00"),
            ("2027-03-12T09:15:01", "2027-03-12T09:45:00", "2027-03-12T09:15:00"),
            ("2027-03-12T12:00:00", "2027-03-12T13:15:00", "2027-03-12T09:45:00"),
            ("2027-03-12T17:45:01", "2027-03-15T09:15:00", "2027-03-12T17:45:00"),
            ("2027-03-14T00:00:00", "2027-03-15T09:15:00", "2027-03-12T17:45:00"),
        ] {
            assert_eq!(pattern.first_from(local(from)), Some(local(first)), "{from}");
            assert_eq!(pattern.last_until(local(from)), Some(local(last)), "{from}");
        }
    }

    #[test]
    fn the_rarest_days_are_found_and_impossible_days_end_the_search() {
        let from = local("2072-02-29T00:00:01");
        for (fields, first) in [
            ("0 0 0 29 2 *", Some("2076-02-29T00:00:00")),
            // A leap day on a Monday, over a century without one: 2072, then 2112.
            ("0 0 0 29 2 +1", Some("2112-02-29T00:00:00")),
            ("0 0 0 30 2 *", None),
            ("0 0 0 31 2,4,6,9,11 *", None),
            ("0 0 0 15W * +0", None),
        ] {
            assert_eq!(Pattern::read(fields).unwrap().first_from(from), first.map(local), "{fields}");
        }
    }

    /// A cross-check of the masks against croner's own search, on naive times and expressions for which it is fast.
    #[test]
    fn the_masks_match_croner() {
        for fields in [
            "0 0 0 L * *",
            "0 0 0 LW * *",
            "0 30 12 L,15 2,4 *",
            "0 0 0 1W,15W,31W * *",
            "0 0 0 * * 5L",
            "0 0 0 * * 7#5",
            "0 0 0 13 * 5",
            "0 0 0 */2 * +1",
            "0 0 0 10-20 * +1#2,3L",
            "*/7 3-50/11 */5 */3 */2 *",
            "59 59 23 31 12 *",
        ] {
            let (pattern, croner) = (Pattern::read(fields).unwrap(), Cron::from_str(fields).unwrap());
            for months in 0..60 {
                let from = local("2026-11-30T23:59:59") + Months::new(months);
                assert_eq!(pattern.first_from(from), croner.find_next_occurrence(&from, true).ok(), "{fields} {from}");
                assert_eq!(
                    pattern.last_until(from),
                    croner.find_previous_occurrence(&from, true).ok(),
                    "{fields} {from}"
                );
            }
        }
    }
}
