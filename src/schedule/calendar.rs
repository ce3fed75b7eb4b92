//! Calendar intervals: every so many days, weeks or months, on certain days at certain local times.
//!
//! All times here are naive local times. This module knows no time zone.

use std::fmt;

use chrono::{Datelike, Days, Months, NaiveDate, NaiveDateTime, NaiveTime, Timelike, Weekday};

/// Longest interval: beyond, an occurrence may be later than any that is computed.
const MAX_EVERY: i32 = 1000;
/// Most times of a day.
const MAX_TIMES: usize = 24;
/// The 29th, 30th and 31st are not in every month.
const LAST_OF_ALL: u32 = 28;
const GRAMMAR: &str = "expected a text such as \"every 3 days at 09:00\", \"every 2 weeks on mon, thu at 09:00, 18:30\" or \
                       \"every month on 1, last fri at 06:00\"";
const TIME: &str = "expected a time of 24 hours such as 09:00 or 18:30:05";
const ORDINALS: [&str; 4] = ["first", "second", "third", "fourth"];
const WEEKDAY: &str = "expected mon, tue, wed, thu, fri, sat or sun";

/// The local times of a calendar interval, in whole seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Calendar {
    every: i32,
    unit: Unit,
    /// In ascending order, none twice.
    times: Vec<NaiveTime>,
    /// The first interval is the one with this day.
    anchor: NaiveDate,
}

/// What is counted, and on which days of it something occurs. Each unit has at least one of its days.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unit {
    Day,
    /// From Monday to Sunday.
    Week(Vec<Weekday>),
    Month(Vec<DayOfMonth>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DayOfMonth {
    /// 1 to 28.
    Numbered(u32),
    Last,
    /// 1 to 4.
    Nth(u32, Weekday),
    LastWeekday(Weekday),
}

impl Calendar {
    /// Parses a calendar interval that counts from the interval with the day `anchor`. Returns what is wrong with it otherwise.
    ///
    /// ```text
    /// every 3 days at 09:00
    /// every 2 weeks on mon, thu at 09:00, 18:30
    /// every month on 1, 15 at 06:00
    /// every 3 months on first mon, last fri, last day at 06:00
    /// every month on 31 at 06:00      refused: not every month has that day
    /// every 2 weeks at 09:00          refused: on which day?
    /// ```
    pub(super) fn parse(text: &str, anchor: NaiveDate) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        let rest = text.strip_prefix("every ").ok_or(GRAMMAR)?;
        let (head, times) = rest.split_once(" at ").ok_or_else(|| format!("it has no time of the day: {GRAMMAR}"))?;
        let (interval, days) = match head.split_once(" on ") {
            Some((interval, days)) => (interval, Some(days)),
            None => (head, None),
        };
        let (number, unit) = match interval.split_whitespace().collect::<Vec<_>>()[..] {
            [unit] => (1, unit),
            [number, unit] => (every(number)?, unit),
            _ => return Err(GRAMMAR.to_owned()),
        };
        let unit = match (unit, days) {
            ("day" | "days", None) => Unit::Day,
            ("day" | "days", Some(days)) => {
                return Err(format!("days have no \"on {days}\": count weeks or months to choose days"));
            }
            ("week" | "weeks", Some(days)) => Unit::Week(weekdays(days)?),
            ("week" | "weeks", None) => return Err(format!("on which day of the week? write \"on mon\": {WEEKDAY}")),
            ("month" | "months", Some(days)) => Unit::Month(list(days).map(day_of_month).collect::<Result<_, _>>()?),
            ("month" | "months", None) => {
                return Err("on which day of the month? write \"on 1\", \"on last day\" or \"on first mon\"".to_owned());
            }
            _ => return Err(format!("{unit:?} is no unit: expected days, weeks or months")),
        };
        Ok(Calendar { every: number, unit, times: times_of_day(times)?, anchor })
    }

    /// Returns the first of its times at or after `from`.
    pub(super) fn first_from(&self, from: NaiveDateTime) -> Option<NaiveDateTime> {
        let period = self.period_of(from.date());
        let mut period = period + (-period).rem_euclid(self.every);
        loop {
            let dates = self.dates_of(period)?;
            let days = dates.into_iter().filter(|date| *date >= from.date());
            let mut instants = days.flat_map(|date| self.times.iter().map(move |time| date.and_time(*time)));
            if let Some(first) = instants.find(|instant| *instant >= from) {
                return Some(first);
            }
            period += self.every;
        }
    }

    /// Returns the last of its times at or before `until`.
    pub(super) fn last_until(&self, until: NaiveDateTime) -> Option<NaiveDateTime> {
        let period = self.period_of(until.date());
        let mut period = period - period.rem_euclid(self.every);
        loop {
            let dates = self.dates_of(period)?;
            let days = dates.into_iter().rev().filter(|date| *date <= until.date());
            let mut instants = days.flat_map(|date| self.times.iter().rev().map(move |time| date.and_time(*time)));
            if let Some(last) = instants.find(|instant| *instant <= until) {
                return Some(last);
            }
            period -= self.every;
        }
    }

    /// Returns how many units after that of the anchor a day is.
    fn period_of(&self, date: NaiveDate) -> i32 {
        match self.unit {
            Unit::Day => date.num_days_from_ce() - self.anchor.num_days_from_ce(),
            Unit::Week(_) => (monday_of(date) - monday_of(self.anchor)) / 7,
            Unit::Month(_) => months_of(date) - months_of(self.anchor),
        }
    }

    /// Returns the days of a unit on which something occurs, in ascending order; `None` beyond the end of the calendar.
    fn dates_of(&self, period: i32) -> Option<Vec<NaiveDate>> {
        match &self.unit {
            Unit::Day => Some(vec![date_of(self.anchor.num_days_from_ce().checked_add(period)?)?]),
            Unit::Week(weekdays) => {
                let monday = date_of(monday_of(self.anchor).checked_add(period.checked_mul(7)?)?)?;
                let day = |weekday: &Weekday| monday.checked_add_days(Days::new(weekday.num_days_from_monday().into()));
                weekdays.iter().map(day).collect()
            }
            Unit::Month(days) => {
                let months = months_of(self.anchor).checked_add(period)?;
                let month0 = u32::try_from(months.rem_euclid(12)).ok()?;
                let first = NaiveDate::from_ymd_opt(months.div_euclid(12), month0 + 1, 1)?;
                let mut dates: Vec<NaiveDate> = days.iter().map(|day| day.in_month(first)).collect::<Option<_>>()?;
                dates.sort_unstable();
                dates.dedup();
                Some(dates)
            }
        }
    }
}

/// What is counted, on which days and at which times: `every 2 weeks on Monday at 09:00, counted from the week of 2027-03-01`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, days, first) = match &self.unit {
            Unit::Day => ("day", Vec::new(), format!("{}", self.anchor)),
            Unit::Week(days) => {
                let monday = date_of(monday_of(self.anchor)).unwrap_or(self.anchor);
                (
                    "week",
                    days.iter().map(|day| weekday_name(*day).to_owned()).collect(),
                    format!("the week of {monday}"),
                )
            }
            Unit::Month(days) => {
                ("month", days.iter().map(DayOfMonth::to_string).collect(), self.anchor.format("%B %Y").to_string())
            }
        };
        match self.every {
            1 => write!(f, "every {unit}")?,
            every => write!(f, "every {every} {unit}s")?,
        }
        if !days.is_empty() {
            write!(f, " on {}", enumerated(&days))?;
        }
        let time = |time: &NaiveTime| time.format(if time.second() == 0 { "%H:%M" } else { "%H:%M:%S" }).to_string();
        write!(f, " at {}", enumerated(&self.times.iter().map(time).collect::<Vec<_>>()))?;
        if self.every == 1 { Ok(()) } else { write!(f, ", counted from {first}") }
    }
}

impl fmt::Display for DayOfMonth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DayOfMonth::Numbered(day) => write!(f, "day {day}"),
            DayOfMonth::Last => f.write_str("the last day"),
            DayOfMonth::Nth(number, weekday) => {
                let word =
                    (1..).zip(ORDINALS).find_map(|(at, word)| (at == number).then_some(word)).unwrap_or_default();
                write!(f, "the {word} {}", weekday_name(weekday))
            }
            DayOfMonth::LastWeekday(weekday) => write!(f, "the last {}", weekday_name(weekday)),
        }
    }
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn enumerated(items: &[String]) -> String {
    match items {
        [first @ .., before, last] => [first, &[format!("{before} and {last}")]].concat().join(", "),
        _ => items.concat(),
    }
}

pub(super) fn weekday_name(day: Weekday) -> &'static str {
    match day {
        Weekday::Mon => "Monday",
        Weekday::Tue => "Tuesday",
        Weekday::Wed => "Wednesday",
        Weekday::Thu => "Thursday",
        Weekday::Fri => "Friday",
        Weekday::Sat => "Saturday",
        Weekday::Sun => "Sunday",
    }
}

impl DayOfMonth {
    /// Returns this day of the month that begins on `first`.
    fn in_month(self, first: NaiveDate) -> Option<NaiveDate> {
        let last = || first.checked_add_months(Months::new(1))?.pred_opt();
        match self {
            DayOfMonth::Numbered(day) => first.with_day(day),
            DayOfMonth::Last => last(),
            DayOfMonth::Nth(number, weekday) => {
                let ahead = (7 + weekday.num_days_from_monday() - first.weekday().num_days_from_monday()) % 7;
                first.with_day(1 + ahead + 7 * (number - 1))
            }
            DayOfMonth::LastWeekday(weekday) => {
                let last = last()?;
                let back = (7 + last.weekday().num_days_from_monday() - weekday.num_days_from_monday()) % 7;
                last.checked_sub_days(Days::new(back.into()))
            }
        }
    }
}

/// Returns the number of the Monday of a week, in days of the common era.
fn monday_of(date: NaiveDate) -> i32 {
    date.num_days_from_ce() - date.weekday().num_days_from_monday().cast_signed()
}

fn months_of(date: NaiveDate) -> i32 {
    date.year() * 12 + date.month0().cast_signed()
}

fn date_of(days: i32) -> Option<NaiveDate> {
    NaiveDate::from_num_days_from_ce_opt(days)
}

fn every(text: &str) -> Result<i32, String> {
    let number: Option<i32> = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    number
        .filter(|number| (1..=MAX_EVERY).contains(number))
        .ok_or_else(|| format!("{text:?} is no number of days, weeks or months: expected 1 to {MAX_EVERY}"))
}

/// The items of a list, separated by commas or `and`.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').flat_map(|part| part.split(" and ")).map(str::trim)
}

fn weekdays(text: &str) -> Result<Vec<Weekday>, String> {
    let mut days = list(text).map(weekday).collect::<Result<Vec<_>, _>>()?;
    days.sort_unstable_by_key(Weekday::num_days_from_monday);
    days.dedup();
    Ok(days)
}

fn weekday(text: &str) -> Result<Weekday, String> {
    Ok(match text {
        "mon" | "monday" => Weekday::Mon,
        "tue" | "tuesday" => Weekday::Tue,
        "wed" | "wednesday" => Weekday::Wed,
        "thu" | "thursday" => Weekday::Thu,
        "fri" | "friday" => Weekday::Fri,
        "sat" | "saturday" => Weekday::Sat,
        "sun" | "sunday" => Weekday::Sun,
        _ => return Err(format!("{text:?} is no day of the week: {WEEKDAY}")),
    })
}

fn day_of_month(text: &str) -> Result<DayOfMonth, String> {
    let expected =
        || format!("{text:?} is no day of a month: expected 1 to {LAST_OF_ALL}, last day, first mon or last fri");
    if let Some((which, day)) = text.split_once(char::is_whitespace) {
        let day = day.trim();
        let number = ORDINALS.iter().zip(1..).find(|(word, _)| **word == which);
        return match (which, number) {
            ("last", _) if day == "day" => Ok(DayOfMonth::Last),
            ("last", _) => Ok(DayOfMonth::LastWeekday(weekday(day)?)),
            (_, Some((_, number))) => Ok(DayOfMonth::Nth(number, weekday(day)?)),
            ("fifth", _) => Err(format!("not every month has a {text}: write \"last {day}\"")),
            _ => Err(expected()),
        };
    }
    let number: u32 =
        text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit())).ok_or_else(expected)?;
    match number {
        1..=LAST_OF_ALL => Ok(DayOfMonth::Numbered(number)),
        29..=31 => Err(format!("not every month has a day {number}: write \"last day\" for the last one")),
        _ => Err(expected()),
    }
}

fn times_of_day(text: &str) -> Result<Vec<NaiveTime>, String> {
    let mut times = list(text).map(time_of_day).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    times.dedup();
    match times.len() {
        ..=MAX_TIMES => Ok(times),
        more => Err(format!("{more} times of a day: expected at most {MAX_TIMES}, or a cron expression")),
    }
}

pub(super) fn time_of_day(text: &str) -> Result<NaiveTime, String> {
    let refused = || format!("{text:?} is no time of the day: {TIME}");
    let parts: Vec<&str> = text.split(':').collect();
    let has_two_digits = |part: &&str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    if !(2..=3).contains(&parts.len()) || !parts.iter().all(has_two_digits) {
        return Err(refused());
    }
    let number = |at: usize| parts.get(at).map_or(Some(0), |part| part.parse().ok());
    let time = number(0).zip(number(1)).zip(number(2));
    time.and_then(|((hour, minute), second)| NaiveTime::from_hms_opt(hour, minute, second)).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_understood_is_said_in_words() {
        let anchor = NaiveDate::from_ymd_opt(2027, 3, 4).unwrap();
        for (text, words) in [
            ("every day at 09:00", "every day at 09:00"),
            ("every 3 days at 18:30, 09:00", "every 3 days at 09:00 and 18:30, counted from 2027-03-04"),
            ("every weeks on thu, mon at 09:00:05", "every week on Monday and Thursday at 09:00:05"),
            ("every 2 weeks on mon at 09:00", "every 2 weeks on Monday at 09:00, counted from the week of 2027-03-01"),
            (
                "every month on 1, last fri, second mon and last day at 06:00",
                "every month on day 1, the last Friday, the second Monday and the last day at 06:00",
            ),
            (
                "every 3 months on first tue at 06:00",
                "every 3 months on the first Tuesday at 06:00, counted from March 2027",
            ),
        ] {
            let calendar = Calendar::parse(text, anchor).unwrap();
            assert_eq!(calendar.to_string(), words);
        }
    }
}
