//! Schedules in words: `every weekday at 7`, `in 2 hours`, `tomorrow at 9`, a cron expression. What is not understood is refused with
//! examples: a guess would run at another time.

use std::time::Duration;

use chrono::{Datelike, Days, NaiveDate, NaiveTime, Weekday};
use duly::text::units::parse_duration;
use duly::{NewTask, ScheduleKind, Timestamp, Zone};

use crate::cli::values::truncated;

/// What is expected, for an error.
const EXAMPLES: &str = "a cron expression (\"0 7 * * 1-5\"), \"every 15m\", \"every day at 7:30\", \"every weekday at 7\", \
                        \"mondays and fridays at 18:00\", \"on the 1st of every month at 9\", \"in 2 hours\", \"tomorrow at 9\", \
                        \"2027-03-14T12:00\", \"after 15m\" (after the end of the run before), or \"manual\"";
/// Longest text.
const MAX_TEXT: usize = 200;

const DAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Mon),
    ("tuesday", Weekday::Tue),
    ("wednesday", Weekday::Wed),
    ("thursday", Weekday::Thu),
    ("friday", Weekday::Fri),
    ("saturday", Weekday::Sat),
    ("sunday", Weekday::Sun),
];

/// A schedule that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Understood {
    /// The kind and the value of a schedule.
    Schedule(ScheduleKind, String),
    /// Once, this long from now.
    In(Duration),
}

impl Understood {
    /// Returns a task with the schedule.
    pub(crate) fn task(&self, name: &str, zone: &Zone) -> NewTask {
        match self {
            Understood::Schedule(ScheduleKind::Manual, _) => NewTask::manual(name),
            Understood::Schedule(kind, value) => NewTask::scheduled(name, *kind, value).time_zone(zone.name()),
            Understood::In(after) => NewTask::once_in(name, *after).time_zone(zone.name()),
        }
    }

    /// Returns what was understood, in words and exactly.
    pub(crate) fn words(&self, zone: &Zone) -> String {
        match self {
            Understood::Schedule(ScheduleKind::Cron, line) => {
                format!("at the times of the cron expression {line:?}, in local time of {}", zone.name())
            }
            Understood::Schedule(ScheduleKind::Interval, every) => {
                format!("every {every}, counted from when it is added, whatever local time is")
            }
            Understood::Schedule(ScheduleKind::Calendar, value) => {
                format!("at the times of the calendar {value:?}, in local time of {}", zone.name())
            }
            Understood::Schedule(ScheduleKind::Delay, after) => format!("{after} after the end of each run"),
            Understood::Schedule(ScheduleKind::Once, at) => format!("once, at {at} ({})", zone.name()),
            Understood::Schedule(..) => "only when it is triggered".to_owned(),
            Understood::In(after) => format!("once, {} after it is added", duly::duration_text(*after)),
        }
    }
}

/// Reads a schedule. `now` and `zone` say which day is tomorrow.
pub(crate) fn understand(text: &str, now: Timestamp, zone: &Zone) -> Result<Understood, String> {
    let refused = || format!("schedule: expected {EXAMPLES}; found {:?}", truncated(text));
    let text = text.trim();
    if text.is_empty() || text.len() > MAX_TEXT || text.contains(char::is_control) {
        return Err(refused());
    }
    if is_cron(text) {
        return Ok(Understood::Schedule(ScheduleKind::Cron, text.to_owned()));
    }
    match zone.instant(text) {
        Ok(_) => return Ok(Understood::Schedule(ScheduleKind::Once, text.to_owned())),
        Err(error) if is_date(text) => return Err(format!("schedule: {error}")),
        Err(_) => {}
    }
    // In lower case it would be minutes.
    if text.split_whitespace().any(|word| word.trim_start_matches(|letter: char| letter.is_ascii_digit()) == "M") {
        return Err(refused());
    }
    let lower = text.to_lowercase().replace(',', " and ");
    let words: Vec<&str> = lower.split_whitespace().collect();
    let understood = match words.as_slice() {
        ["manual"] => Some(Understood::Schedule(ScheduleKind::Manual, String::new())),
        ["in", rest @ ..] => duration(rest).map(Understood::In),
        ["after", rest @ ..] => length(rest).map(|value| Understood::Schedule(ScheduleKind::Delay, value)),
        ["at", rest @ ..] => time(rest).and_then(|time| once(time, now, zone)),
        ["today", rest @ ..] => on_day(0, rest, now, zone),
        ["tomorrow", rest @ ..] => on_day(1, rest, now, zone),
        ["next", day, rest @ ..] => next_day(day, rest, now, zone),
        words => match (repeated(words)?, calendar(text, now, zone)) {
            (None, Err(error)) if is_calendar(words) => return Err(format!("schedule: {error}")),
            (understood, calendar) => understood.or(calendar.ok()),
        },
    };
    understood.ok_or_else(refused)
}

/// Whether a text has the form of a cron expression. Whether it is one is checked with the task.
fn is_cron(text: &str) -> bool {
    if text.starts_with('@') {
        return true;
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let is_field = |field: &&str| field.starts_with(|letter: char| letter.is_ascii_digit() || letter == '*');
    (5..=6).contains(&fields.len()) && fields.iter().take(2).all(is_field)
}

/// Whether a text begins as a date does. What is wrong with it, the library says.
fn is_date(text: &str) -> bool {
    let year = text.split_once('-').map_or("", |(year, _)| year);
    year.len() >= 4 && year.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether words have the form of a calendar interval. What is wrong with it, the library says.
fn is_calendar(words: &[&str]) -> bool {
    let is_unit = |word: &str| ["day", "week", "month"].contains(&word.strip_suffix('s').unwrap_or(word));
    match words {
        ["every", number, unit, ..] if number.bytes().all(|byte| byte.is_ascii_digit()) => is_unit(unit),
        ["every", unit, "on", ..] => is_unit(unit),
        _ => false,
    }
}

/// A length of time. Months and years have none.
fn duration(words: &[&str]) -> Option<Duration> {
    let text = words.join(" ");
    let mut units = text.split(|letter: char| !letter.is_alphabetic());
    if units.any(|unit| unit.starts_with("month") || unit.starts_with('y')) {
        return None;
    }
    let text = text.strip_prefix("an ").map(|rest| format!("1 {rest}")).unwrap_or(text);
    parse_duration(&text).ok().filter(|length| !length.is_zero())
}

/// A duration in the form of the tables.
fn length(words: &[&str]) -> Option<String> {
    duration(words).map(duly::duration_text)
}

/// A calendar interval, as the library reads it.
fn calendar(text: &str, now: Timestamp, zone: &Zone) -> duly::Result<Understood> {
    let task = NewTask::calendar("calendar", text).time_zone(zone.name()).handler("calendar");
    task.occurrences(now, 1).map(|_| Understood::Schedule(ScheduleKind::Calendar, text.to_owned()))
}

/// What repeats: an interval, or days with a time. Refuses a day that not every month has: the others would be passed over in silence.
fn repeated(words: &[&str]) -> Result<Option<Understood>, String> {
    let cron = |line: String| Ok(Some(Understood::Schedule(ScheduleKind::Cron, line)));
    match words {
        ["hourly"] | ["every", "hour"] => return cron("0 * * * *".to_owned()),
        ["every", "minute"] => return cron("* * * * *".to_owned()),
        ["every", rest @ ..] if duration(rest).is_some() => {
            return Ok(length(rest).map(|value| Understood::Schedule(ScheduleKind::Interval, value)));
        }
        _ => {}
    }
    // Without a time of day it would be midnight, which few mean.
    let mut parts = words.splitn(2, |word| *word == "at");
    let (days, Some(at)) = (parts.next().unwrap_or_default(), parts.next().and_then(time)) else { return Ok(None) };
    let (hour, minute) = (at.format("%-H"), at.format("%-M"));
    if let Some(day) = day_of_month(days) {
        let line = format!("{minute} {hour} {day} * *");
        if day <= 28 {
            return cron(line);
        }
        let last = format!("every month on last day at {}", at.format("%H:%M"));
        return Err(format!(
            "schedule: not every month has a day {day}: expected {last:?}, or {line:?}, which passes over the others"
        ));
    }
    let Some(of_week) = days_of_week(days) else { return Ok(None) };
    cron(format!("{minute} {hour} * * {of_week}"))
}

/// The days of the week of a cron expression.
fn days_of_week(days: &[&str]) -> Option<String> {
    Some(match days {
        ["every", "day"] | ["daily"] => "*".to_owned(),
        ["every", "weekday"] | ["weekdays"] | ["on", "weekdays"] => "1-5".to_owned(),
        ["every", "weekend"] | ["weekends"] | ["on", "weekends"] => "0,6".to_owned(),
        // `monday at 9` may mean the next one only.
        days if !days.contains(&"every") && !days.iter().any(|word| word.ends_with("days")) => return None,
        days => {
            let numbers = days.iter().filter(|word| !["and", "on", "every"].contains(word)).map(|word| weekday(word));
            let numbers: Vec<String> =
                numbers.map(|day| day.map(|day| day.num_days_from_sunday().to_string())).collect::<Option<_>>()?;
            if numbers.is_empty() {
                return None;
            }
            numbers.join(",")
        }
    })
}

/// The day in `monthly on the 15th`, `on the 1st of every month`, `every month on the 1st`. `every 3rd month` names none.
fn day_of_month(words: &[&str]) -> Option<u32> {
    let is_monthly = words.contains(&"monthly") || words.contains(&"month");
    let place = words.iter().position(|word| word.starts_with(|letter: char| letter.is_ascii_digit()))?;
    if !matches!(words[..place].last(), Some(&("on" | "the"))) || words.get(place + 1) == Some(&"month") {
        return None;
    }
    let filler = ["monthly", "every", "month", "on", "the", "of", "each"];
    let mut rest = words.iter().filter(|word| !filler.contains(word));
    let (day, more) = (rest.next()?, rest.next());
    let digits = day.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let suffix = &day[digits.len()..];
    let day = digits.parse().ok().filter(|day| (1..=31).contains(day))?;
    (is_monthly && more.is_none() && ["", "st", "nd", "rd", "th"].contains(&suffix)).then_some(day)
}

fn weekday(word: &str) -> Option<Weekday> {
    let single = word.strip_suffix('s').unwrap_or(word);
    DAYS.iter()
        .find(|(name, _)| *name == single || *name == word || (word.len() == 3 && name.starts_with(word)))
        .map(|(_, day)| *day)
}

/// A time of day: `9`, `9:30`, `9am`, `9:30 pm`, `noon`, `midnight`.
fn time(words: &[&str]) -> Option<NaiveTime> {
    let text = match words {
        [text] | [text, "am" | "pm"] if !text.is_empty() => words.concat(),
        _ => return None,
    };
    match text.as_str() {
        "noon" => return NaiveTime::from_hms_opt(12, 0, 0),
        "midnight" => return NaiveTime::from_hms_opt(0, 0, 0),
        _ => {}
    }
    let (text, half) = match (text.strip_suffix("am"), text.strip_suffix("pm")) {
        (Some(text), _) => (text, Some(0)),
        (_, Some(text)) => (text, Some(12)),
        _ => (text.as_str(), None),
    };
    let (hour, minute) = text.split_once(':').unwrap_or((text, "0"));
    let is_number = |text: &str| (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(hour) || !is_number(minute) {
        return None;
    }
    let hour: u32 = hour.parse().ok()?;
    let hour = match half {
        Some(half) if (1..=12).contains(&hour) => hour % 12 + half,
        Some(_) => return None,
        None => hour,
    };
    NaiveTime::from_hms_opt(hour, minute.parse().ok()?, 0)
}

/// The next time of day: today, or tomorrow if it has passed.
fn once(time: NaiveTime, now: Timestamp, zone: &Zone) -> Option<Understood> {
    let today = zone.local_at(now)?;
    let days = u64::from(time <= today.time());
    instant(today.date().checked_add_days(Days::new(days))?, time)
}

fn on_day(days: u64, rest: &[&str], now: Timestamp, zone: &Zone) -> Option<Understood> {
    let ["at", rest @ ..] = rest else { return None };
    let (today, time) = (zone.local_at(now)?, time(rest)?);
    if days == 0 && time <= today.time() {
        return None;
    }
    instant(today.date().checked_add_days(Days::new(days))?, time)
}

fn next_day(day: &str, rest: &[&str], now: Timestamp, zone: &Zone) -> Option<Understood> {
    let ["at", rest @ ..] = rest else { return None };
    let (day, today) = (weekday(day)?, zone.local_at(now)?.date());
    let ahead = (day.num_days_from_monday() + 7 - today.weekday().num_days_from_monday()) % 7;
    let days = if ahead == 0 { 7 } else { ahead };
    instant(today.checked_add_days(Days::new(u64::from(days)))?, time(rest)?)
}

fn instant(date: NaiveDate, time: NaiveTime) -> Option<Understood> {
    Some(Understood::Schedule(ScheduleKind::Once, format!("{date}T{}", time.format("%H:%M"))))
}

#[cfg(test)]
mod tests {
    use super::{Understood, understand};
    use duly::{ScheduleKind, Zone};

    #[test]
    fn words_are_understood_exactly_or_refused() {
        let (rome, now) = (Zone::named("Europe/Rome").unwrap(), "2027-03-14T12:00:00Z".parse().unwrap());
        for (text, expected) in [
            ("0 7 * * 1-5", "cron 0 7 * * 1-5"),
            ("@daily", "cron @daily"),
            ("every 15m", "every 15m"),
            ("every 15 minutes", "every 15m"),
            ("after 1 hour", "delay 1h"),
            ("every hour", "cron 0 * * * *"),
            ("Every day at 7:30", "cron 30 7 * * *"),
            ("daily at 9pm", "cron 0 21 * * *"),
            ("daily at 12 am", "cron 0 0 * * *"),
            ("daily at 9:30 PM", "cron 30 21 * * *"),
            ("every weekday at 7", "cron 0 7 * * 1-5"),
            ("Mondays, Wednesdays and fri at noon", "cron 0 12 * * 1,3,5"),
            ("on sundays at 8:05", "cron 5 8 * * 0"),
            ("on the 1st of every month at 9", "cron 0 9 1 * *"),
            ("monthly on the 15th at 9", "cron 0 9 15 * *"),
            ("every month on 15 at 9", "cron 0 9 15 * *"),
            ("tomorrow at 9", "once 2027-03-15T09:00"),
            ("today at 17:30", "once 2027-03-14T17:30"),
            ("at 14", "once 2027-03-14T14:00"),
            ("at 13", "once 2027-03-15T13:00"),
            ("next sunday at 9", "once 2027-03-21T09:00"),
            ("next monday at 9", "once 2027-03-15T09:00"),
            ("2027-03-14T12:00:00Z", "once 2027-03-14T12:00:00Z"),
            ("manual", "manual "),
            ("every 2 weeks on mon at 09:00", "calendar every 2 weeks on mon at 09:00"),
        ] {
            let Understood::Schedule(kind, value) = understand(text, now, &rome).unwrap() else { panic!("{text}") };
            let kind = if kind == ScheduleKind::Interval { "every".to_owned() } else { kind.to_string() };
            assert_eq!(format!("{kind} {value}"), expected, "{text}");
        }
        assert_eq!(understand("in 2 hours", now, &rome), Ok(Understood::In(std::time::Duration::from_secs(7200))));
        for text in [
            "",
            " ",
            "soon",
            "every",
            "every so often",
            "every day at 25",
            "at 9:60",
            "tomorrow",
            "in",
            "in 0s",
            "daily at 13pm",
            "on the 32nd of every month at 9",
            "every blue monday at 9",
            "every monday at 9; rm -rf /",
            "a\nb",
            "every ms",
            "today at 9",
            "monday at 9",
            "on sunday at 9",
            "every friday",
            "daily",
            "and at 9",
            "every and at 9",
            "every 3rd month at 9",
            "on the 3rd month at 9",
            "in 1M",
            "every 2 M",
            "in 1 month",
            "in 2 years",
            "every 1y",
            "every day at 1 2",
            "every day at 1 2 pm",
        ] {
            assert!(understand(text, now, &rome).unwrap_err().starts_with("schedule: expected a cron"), "{text:?}");
        }
        assert!(understand(&"every ".repeat(100), now, &rome).is_err());
        // What looks like a date, or like a calendar interval, is refused with what is wrong with it.
        for (text, says) in [
            ("2027-03-28T02:30", "the clock in Europe/Rome skips it: the nearest that exist are 2027-03-28T01:59:59"),
            ("2027-02-30T12:00", "there is no day 30 in February 2027, which has 28 days"),
            ("4001-01-01T00:00", "expected an instant from 2001-09-09T01:46:40.000Z to 4000"),
            ("every 2 weeks on mon at 9:00", "expected a time of 24 hours such as 09:00"),
            ("every 1 month", "expected a text such as \"every 3 days at 09:00\""),
            ("every 2 months on 31 at 09:00", "not every month has a day 31"),
        ] {
            let error = understand(text, now, &rome).unwrap_err();
            assert!(error.starts_with("schedule: invalid schedule") && error.contains(says), "{text}: {error}");
        }
        for text in ["every month on 31 at 9", "on the 29th of every month at 9", "monthly on the 30th at 9am"] {
            let error = understand(text, now, &rome).unwrap_err();
            let (before, after) = error.split_once(": expected ").unwrap();
            assert!(before.starts_with("schedule: not every month has a day "), "{error}");
            // What it advises is understood.
            for advised in after.split('"').skip(1).step_by(2) {
                assert!(understand(advised, now, &rome).is_ok(), "{advised}");
            }
        }
    }
}
