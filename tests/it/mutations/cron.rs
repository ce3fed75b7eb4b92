//! Cron lines with a few changes, and a second implementation of the dialect: sets of numbers, and one day after the other.
//! It uses neither croner nor the strict check before it. Both accept the same lines, and find the same occurrences, in UTC.

use chrono::{DateTime, Datelike, NaiveDate};
use duly::{NewTask, Timestamp};

use crate::mutations::mutator::each;

const LINES: [&str; 22] = [
    "* * * * *",
    "30 6 * * MON-FRI",
    "*/5 * * * * *",
    "0 0 */2 * MON",
    "0 0 13 * 5",
    "0 0 L * *",
    "0 0 15W,1W * *",
    "0 0 lw 2 5",
    "0 0 * * fri#2,FRIL",
    "@daily",
    "@Midnight",
    "@yearly",
    "0,30 2 1,15 JAN-mar mon",
    "05 04 * * *",
    "0 0-23/2 1 * 0-7/3",
    "*/15 1 * * *",
    "59 23 31 12 *",
    "0 0 29 2 *",
    "0 0 30 4,6 SUN-TUE",
    "10-50/20 8-18 * * fri-sun",
    " 0\t12 * * 7 ",
    "0 0 0 31W * 1#5",
];

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// An item of a field of days that is not a plain number.
enum Special {
    /// The last day of the month.
    Last,
    /// The last weekday (Monday to Friday) of the month.
    LastWorkday,
    /// The weekday nearest to this day, in its month.
    Workday(u32),
    /// The last of these weekdays in the month.
    LastOf(u32),
    /// The n-th of these weekdays in the month.
    Nth(u32, u32),
}

struct Field {
    starred: bool,
    numbers: u64,
    specials: Vec<Special>,
}

/// Parses a field; `None` if it is invalid. `names` stand for numbers from `low` up.
fn field(text: &str, low: u32, high: u32, names: &[&str], of_month: bool) -> Option<Field> {
    let mut read = Field { starred: text.starts_with('*'), numbers: 0, specials: Vec::new() };
    let of_week = names.len() == 7;
    let value = |word: &str| -> Option<u32> {
        if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) {
            return word.parse().ok().filter(|number| (low..=high).contains(number));
        }
        names.iter().position(|name| *name == word).map(|at| low + at as u32)
    };
    if text == "*" {
        read.numbers = (low..=high).fold(0, |all, number| all | 1 << number);
        return Some(read);
    }
    let (mut last, mut last_workday) = (false, false);
    for item in text.to_ascii_uppercase().split(',') {
        if of_month && (item == "L" || item == "LW") {
            (last, last_workday) = (last || item == "L", last_workday || item == "LW");
            read.specials.push(if item == "L" { Special::Last } else { Special::LastWorkday });
        } else if let Some(day) = item.strip_suffix('W').filter(|_| of_month) {
            read.specials.push(Special::Workday(value(day)?));
        } else if let Some(day) = item.strip_suffix('L').filter(|_| of_week && !item.contains(['/', '-'])) {
            read.specials.push(Special::LastOf(value(day)? % 7));
        } else if let Some((day, nth)) = item.split_once('#').filter(|_| of_week && !item.contains(['/', '-'])) {
            let nth = nth.bytes().all(|byte| byte.is_ascii_digit()).then(|| nth.parse::<u32>().ok())??;
            read.specials.push(Special::Nth(value(day)? % 7, (1..=5).contains(&nth).then_some(nth)?));
        } else {
            let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
            let (from, to) = match (range.split_once('-'), step) {
                (None, Some(_)) => (range == "*").then_some((low, high))?,
                (None, None) => (value(range)?, value(range)?),
                // A week that ends with Sunday.
                (Some((first, "SUN")), _) if of_week && value(first)? > 0 => (value(first)?, 7),
                (Some((first, last)), _) => (value(first)?, value(last)?),
            };
            let values = if of_week { 7 } else { high - low + 1 };
            let step = match step {
                None => 1,
                Some(step) => {
                    let digits = !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit());
                    digits.then(|| step.parse::<u32>().ok())?.filter(|step| (1..=values).contains(step))?
                }
            };
            if from > to {
                return None;
            }
            read.numbers |= (from..=to).step_by(step as usize).fold(0, |all, number| all | 1 << number);
        }
    }
    (!(last && last_workday)).then_some(read)
}

/// A line as sets: seconds, minutes, hours, days, months, weekdays.
pub(crate) struct Line([Field; 6]);

impl Line {
    pub(crate) fn read(text: &str) -> Option<Line> {
        let plain = |letter: char| letter.is_ascii_graphic() || letter == ' ' || letter == '\t';
        if text.len() > 256 || !text.chars().all(plain) {
            return None;
        }
        let text = match text.trim().to_ascii_lowercase().as_str() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            other if other.starts_with('@') => return None,
            _ => text,
        };
        let mut words: Vec<&str> = text.split_ascii_whitespace().collect();
        if words.len() == 5 {
            words.insert(0, "0");
        }
        let [second, minute, hour, day, month, weekday] = words.try_into().ok()?;
        Some(Line([
            field(second, 0, 59, &[], false)?,
            field(minute, 0, 59, &[], false)?,
            field(hour, 0, 23, &[], false)?,
            field(day, 1, 31, &[], true)?,
            field(month, 1, 12, &MONTHS, false)?,
            field(weekday, 0, 7, &WEEKDAYS, false)?,
        ]))
    }

    /// Whether the line names a minute, counted since 1970.
    pub(crate) fn names(&self, minute: i64) -> bool {
        let [_, minutes, hours, ..] = &self.0;
        let of_day = minute.rem_euclid(1440);
        let day = DateTime::from_timestamp(minute * 60, 0).expect("a time").date_naive();
        minutes.numbers & (1 << (of_day % 60)) != 0 && hours.numbers & (1 << (of_day / 60)) != 0 && self.has_day(day)
    }

    /// Whether its minute or its hour begins with a star.
    pub(crate) fn follows_the_clock(&self) -> bool {
        self.0[1].starred || self.0[2].starred
    }

    fn has_day(&self, date: NaiveDate) -> bool {
        let [_, _, _, days, months, weekdays] = &self.0;
        let weekday = |date: NaiveDate| date.weekday().num_days_from_sunday();
        let length = u32::from(date.num_days_in_month());
        let works =
            |day: u32| date.with_day(day).is_some_and(|date| !["Sat", "Sun"].contains(&&*date.weekday().to_string()));
        let nearest = |to: u32| [to, to - 1, to + 1, to.saturating_sub(2), to + 2].into_iter().find(|day| works(*day));
        let special = |special: &Special| match special {
            Special::Last => date.day() == length,
            Special::LastWorkday => (1..=length).rev().find(|day| works(*day)) == Some(date.day()),
            Special::Workday(day) => *day <= length && nearest(*day) == Some(date.day()),
            Special::LastOf(of) => weekday(date) == *of && date.day() + 7 > length,
            Special::Nth(of, nth) => weekday(date) == *of && date.day().div_ceil(7) == *nth,
        };
        let of_week = weekdays.numbers & (1 << weekday(date)) != 0
            || (weekday(date) == 0 && weekdays.numbers & (1 << 7) != 0)
            || weekdays.specials.iter().any(special);
        let of_month = days.numbers & (1 << date.day()) != 0 || days.specials.iter().any(special);
        let both = days.starred || weekdays.starred;
        months.numbers & (1 << date.month()) != 0 && if both { of_month && of_week } else { of_month || of_week }
    }

    /// Returns at most `limit` occurrences after an instant in whole seconds, within a number of days.
    fn after(&self, at: i64, most: usize, days: i64) -> Vec<i64> {
        let mut found = Vec::new();
        let [seconds, minutes, hours, ..] = &self.0;
        for day in at.div_euclid(86_400)..at.div_euclid(86_400) + days {
            if !self.has_day(DateTime::from_timestamp(day * 86_400, 0).expect("a day").date_naive()) {
                continue;
            }
            for hour in (0..24).filter(|hour| hours.numbers & (1 << hour) != 0) {
                for minute in (0..60).filter(|minute| minutes.numbers & (1 << minute) != 0) {
                    for second in (0..60).filter(|second| seconds.numbers & (1 << second) != 0) {
                        let instant = ((day * 24 + hour) * 60 + minute) * 60 + second;
                        if instant > at {
                            found.push(instant);
                        }
                        if found.len() == most {
                            return found;
                        }
                    }
                }
            }
        }
        found
    }
}

#[test]
fn cron_lines_match_a_second_implementation() {
    const MOST: usize = 4;
    let (mut accepted, mut refused) = (0, 0);
    each(2500, |mutator| {
        let text = mutator.text(&LINES);
        let from = 1_700_000_000 + mutator.random.i64(0..1_000_000_000);
        mutator.note(from);
        let task = NewTask::cron("t", &text).handler("work");
        let (duly, ours) = (task.occurrences(Timestamp::from_millis(from * 1000), MOST), Line::read(&text));
        match (duly, ours) {
            (Err(error), ours) => {
                let message = error.to_string();
                assert!(
                    message.lines().count() == 1 && message.len() < 700 && !message.chars().any(char::is_control),
                    "{message:?}"
                );
                let never = message.ends_with("no moment before the year 4000 matches it");
                // Nothing in forty years: both cycles of the calendar are shorter, except for a leap day around 2100.
                let found = ours.filter(|_| never).map(|line| line.after(1_704_067_200, 1, 40 * 366));
                assert!(never || Line::read(&text).is_none(), "{text:?} was refused: {message}");
                assert_eq!(found.unwrap_or_default(), [0; 0], "{text:?} was refused: {message}");
                refused += 1;
            }
            (Ok(_), None) => panic!("{text:?} was accepted"),
            (Ok(found), Some(line)) => {
                let found: Vec<i64> = found.iter().map(|at| at.as_millis()).collect();
                let expected: Vec<i64> = line.after(from, MOST, 10 * 366).iter().map(|second| second * 1000).collect();
                assert!(found.starts_with(&expected), "{text:?}: {found:?}, expected {expected:?}");
                accepted += 1;
            }
        }
    });
    assert!(accepted > 300 && refused > 300, "{accepted} accepted, {refused} refused");
}
